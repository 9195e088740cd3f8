//! Ops that move elements.

use fourfold_ir::{OpKind, TensorType, Value};

use super::arguments::{Arguments, Reason};
use super::builder::{Entry, Translator, axis};

/// Translates an op of this family; `None` if it belongs to another.
pub(super) fn translate(
    t: &mut Translator<'_>,
    op: &str,
    arguments: Arguments<'_>,
) -> Result<Option<Entry>, Reason> {
    let value = match op {
        "view.default"
        | "reshape.default"
        | "_unsafe_view.default"
        | "flatten.using_ints"
        | "unflatten.int"
        | "unsqueeze.default"
        | "squeeze.dim"
        | "squeeze.dims"
        | "view_as.default"
        | "reshape_as.default"
        | "squeeze.default" => reshape(t, arguments)?,
        "expand.default" | "expand_as.default" => expand(t, arguments)?,
        "transpose.int" => {
            let rank = t.builder.ty(t.tensor(arguments.get(0, "input")?)?).rank();
            let (left, right) =
                (axis(arguments.integer(1, "dim0")?, rank)?, axis(arguments.integer(2, "dim1")?, rank)?);
            let mut permutation: Vec<u32> = (0..rank as u32).collect();
            permutation.swap(left as usize, right as usize);
            permute(t, arguments, permutation)?
        }
        "numpy_T.default" => {
            let rank = t.builder.ty(t.tensor(arguments.get(0, "input")?)?).rank();
            permute(t, arguments, (0..rank as u32).rev().collect())?
        }
        "t.default" | "mT.default" => {
            let rank = t.builder.ty(t.tensor(arguments.get(0, "input")?)?).rank();
            let mut permutation: Vec<u32> = (0..rank as u32).collect();
            if let [.., left, right] = &mut permutation[..] {
                std::mem::swap(left, right);
            }
            permute(t, arguments, permutation)?
        }
        "permute.default" => {
            let rank = t.builder.ty(t.tensor(arguments.get(0, "input")?)?).rank();
            let axes = arguments.integers(1, "dims")?.unwrap_or_default();
            let permutation = axes.into_iter().map(|of| axis(of, rank)).collect::<Result<_, Reason>>()?;
            permute(t, arguments, permutation)?
        }
        // The same elements in memory that the program does not see.
        "contiguous.default"
        | "clone.default"
        | "alias.default"
        | "detach.default"
        | "detach_.default"
        | "lift_fresh_copy.default"
        | "to.device" => t.tensor(arguments.get(0, "input")?)?,
        "dropout.default" => {
            if arguments.flag(2, "train")? {
                return Err("drops elements at random: export the model in evaluation mode".to_owned());
            }
            t.tensor(arguments.get(0, "input")?)?
        }
        _ => return Ok(None),
    };
    Ok(Some(Entry::Tensor(value)))
}

fn reshape(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    moved(t, arguments, OpKind::Reshape)
}

fn expand(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    moved(t, arguments, OpKind::Broadcast)
}

fn permute(t: &mut Translator<'_>, arguments: Arguments<'_>, permutation: Vec<u32>) -> Result<Value, Reason> {
    moved(t, arguments, OpKind::Transpose { permutation })
}

/// Adds an op with the node's shape, unless the operand has it already and nothing moves.
fn moved(t: &mut Translator<'_>, arguments: Arguments<'_>, kind: OpKind) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let ty = TensorType { shape: t.result(arguments.node)?.shape, ..t.builder.ty(x).clone() };
    if !matches!(kind, OpKind::Transpose { .. }) && ty == *t.builder.ty(x) {
        return Ok(x);
    }
    Ok(t.builder.op(kind, &[x], &[(&arguments.node.name, ty)])[0])
}

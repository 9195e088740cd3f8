//! Values that the interpreter computes, unless that takes too long.

use fourfold_ir::{Bound, Dim, InterpretError, Op, OpKind, Program, Tensor, Value, interpret};

use crate::error::Error;

/// The largest number of multiplications for the interpreter: about twenty seconds.
const MOST_PRODUCTS: f64 = 2e10;
/// The largest number of elements of a value for the interpreter.
const MOST_ELEMENTS: f64 = 1.5e8;

/// Interprets every value of a program. The original and the normalized program have the same inputs and symbols.
pub(super) fn interpreted(program: &Program, bound: &Bound<'_>) -> Result<Vec<Tensor>, NotInterpreted> {
    let ops: Vec<Op> = program.module().ops.keys().collect();
    check_work(program, bound, &ops)?;
    interpret(program, bound).map_err(NotInterpreted::Failed)
}

/// The reason why interpreted values are missing. It is kept so that each comparison can report it.
#[derive(Clone)]
pub(crate) enum NotInterpreted {
    TooMuchWork { op: String },
    Failed(InterpretError),
}

impl From<NotInterpreted> for Error {
    fn from(reason: NotInterpreted) -> Error {
        match reason {
            NotInterpreted::TooMuchWork { op } => Error::TooMuchWork { op },
            NotInterpreted::Failed(error) => Error::Interpret(error),
        }
    }
}

/// Refuses work for which the interpreter, which is simple and slow, would take too long.
pub(crate) fn check_work(program: &Program, bound: &Bound<'_>, ops: &[Op]) -> Result<(), NotInterpreted> {
    let module = program.module();
    let extent = |dim: &Dim| dim.evaluate(&bound.symbols).map_or(f64::INFINITY, |extent| extent as f64);
    let elements = |value: Value| module.ty(value).shape.iter().map(extent).product::<f64>();
    let mut products = 0.0;
    for &op in ops {
        let operation = &module.ops[op];
        let depth = match operation.kind {
            OpKind::Mma | OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_) => {
                module.ty(operation.operands[0]).shape.last().map_or(1.0, extent)
            }
            _ => 1.0,
        };
        let largest =
            operation.operands.iter().chain(&operation.results).map(|v| elements(*v)).fold(0.0, f64::max);
        products += operation.results.iter().map(|result| elements(*result) * depth).sum::<f64>();
        if largest > MOST_ELEMENTS || products > MOST_PRODUCTS {
            return Err(NotInterpreted::TooMuchWork { op: module.op_label(op) });
        }
    }
    Ok(())
}

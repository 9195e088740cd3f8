//! The values that an op reads and defines in a row kernel, with their places.

use fourfold_ir::{
    ConstantValue, Dim, ElementType, Op, OpKind, Program, QuantizedFormat, RowCapability, ScaleLayout, Value,
};

use super::shapes::{Place, Space, matrices};
use crate::plan::RowShape;
use crate::reason::{exceeded_extent, exceeded_scales};

/// The part of a row kernel that one op is.
pub(crate) struct Needs {
    /// The operands, in the op's order, each with the place at which it is read.
    pub(crate) reads: Vec<(Value, Place)>,
    /// The place of the results.
    pub(crate) result: RowShape,
    /// The number of steps.
    pub(crate) steps: usize,
    /// L and M, if the layout of scales depends on them.
    pub(crate) matrices: Option<[Dim; 2]>,
}

/// The space of rows and columns that an op computes alone; `None` for an op that is in no row kernel.
pub(crate) fn own_space(program: &Program, op: Op) -> Option<Space> {
    let module = program.module();
    let operation = &module.ops[op];
    let shape = |value: &Value| &module.ty(*value).shape;
    match &operation.kind {
        OpKind::Convert
        | OpKind::Bitcast
        | OpKind::Unary(_)
        | OpKind::Binary(_)
        | OpKind::Bitwise(_)
        | OpKind::Clamp { .. }
        | OpKind::Compare(_)
        | OpKind::Select
        | OpKind::Broadcast
        | OpKind::BlockDequantize { .. }
        | OpKind::Constant(ConstantValue::Splat(_)) => Space::of_elements(shape(&operation.results[0])),
        OpKind::LayerNorm { .. } | OpKind::BlockQuantize { .. } => {
            Space::of_elements(shape(&operation.operands[0]))
        }
        OpKind::Softmax { axis } => {
            let shape = shape(&operation.operands[0]);
            (*axis as usize + 1 == shape.len()).then(|| Space::of_elements(shape))?
        }
        OpKind::Reduce { axes, .. } => {
            let shape = shape(&operation.operands[0]);
            let first = shape.len().checked_sub(axes.len())?;
            let trailing = axes.iter().map(|axis| *axis as usize).eq(first..shape.len());
            trailing.then(|| Space::of(shape, axes.len()))?
        }
        _ => None,
    }
}

/// The part of a kernel of this space that an op is; `None` if the op is in no such kernel, or the target does not
/// compute it.
pub(crate) fn needs(program: &Program, capability: &RowCapability, op: Op, space: &Space) -> Option<Needs> {
    let module = program.module();
    let operation = &module.ops[op];
    if !computes(program, capability, op) || !fits(space, capability) {
        return None;
    }
    let own = own_space(program, op)?;
    // One row is computed by few threads, so only ops that must be are in its kernel.
    if own.rows != space.rows && space.rows.as_fixed() == Some(1) {
        return None;
    }
    let first = || module.ty(operation.operands[0]);
    let is_whole = || own == *space && space.class(&first().shape) == Some(RowShape::Matrix);
    match operation.kind {
        OpKind::Reduce { .. }
        | OpKind::Softmax { .. }
        | OpKind::LayerNorm { .. }
        | OpKind::BlockQuantize { .. }
            if !is_whole() =>
        {
            return None;
        }
        OpKind::BlockDequantize { .. } if own != *space => return None,
        _ => {}
    }
    let plain =
        |needs: Vec<(Value, Place)>, result, steps| Needs { reads: needs, result, steps, matrices: None };
    let at = |shape: RowShape| Place::of(shape);
    let operands = &operation.operands;
    Some(match operation.kind {
        OpKind::Reduce { .. } => plain(vec![(operands[0], at(RowShape::Matrix))], RowShape::Column, 1),
        OpKind::Softmax { .. } => plain(vec![(operands[0], at(RowShape::Matrix))], RowShape::Matrix, 6),
        OpKind::LayerNorm { .. } => {
            // With one row, [K] is both the row and the whole matrix.
            let row = space.read(&module.ty(operands[1]).shape, &first().shape)?;
            let reads =
                vec![(operands[0], at(RowShape::Matrix)), (operands[1], row.clone()), (operands[2], row)];
            plain(reads, RowShape::Matrix, 9)
        }
        OpKind::BlockQuantize { .. } => {
            let global = operands[1..].iter().map(|global| (*global, at(RowShape::Scalar)));
            let reads = std::iter::once((operands[0], at(RowShape::Matrix))).chain(global).collect();
            Needs { matrices: Some(matrices(&first().shape)?), ..plain(reads, RowShape::Matrix, 0) }
        }
        OpKind::BlockDequantize { block } => {
            let layout = module.ty(operands[1]).layout?;
            let scales = Place::scales(block, layout);
            let global = operands[2..].iter().map(|global| (*global, at(RowShape::Scalar)));
            let reads =
                [(operands[0], at(RowShape::Matrix)), (operands[1], scales)].into_iter().chain(global);
            let needs = plain(reads.collect(), RowShape::Matrix, 1);
            let is_blocked = layout == ScaleLayout::Blocked;
            Needs { matrices: if is_blocked { Some(matrices(&first().shape)?) } else { None }, ..needs }
        }
        OpKind::Constant(_) => plain(Vec::new(), space.class(&module.ty(operation.results[0]).shape)?, 1),
        _ => {
            let result = module.ty(operation.results[0]);
            let reads =
                operands.iter().map(|operand| elementwise_read(program, space, *operand, &result.shape));
            let class = space.class(&result.shape)?;
            // FP4 and FP6 elements share bytes along the last axis, so rows must be the kernel's.
            let mut types = operands.iter().map(|operand| module.ty(*operand)).chain([result]);
            if types.any(|ty| ty.element.packed_count() > 1) && own != *space {
                return None;
            }
            plain(reads.collect::<Option<_>>()?, class, usize::from(operation.kind != OpKind::Broadcast))
        }
    })
}

/// The place at which an elementwise op reads an operand. Linear f8E4M3FN scales are read unsigned: as the scales of
/// blocks of one element.
fn elementwise_read(
    program: &Program,
    space: &Space,
    operand: Value,
    result: &[Dim],
) -> Option<(Value, Place)> {
    let ty = program.module().ty(operand);
    let place = space.read(&ty.shape, result)?;
    match (ty.layout, ty.element) {
        (None, _) | (Some(ScaleLayout::Linear), ElementType::F8E8M0FNU) => Some((operand, place)),
        (Some(ScaleLayout::Linear), _) if place == Place::of(RowShape::Matrix) => {
            Some((operand, Place::scales(1, ScaleLayout::Linear)))
        }
        _ => None,
    }
}

/// Returns whether the target computes an op of this kind with these element types in rows.
fn computes(program: &Program, capability: &RowCapability, op: Op) -> bool {
    let module = program.module();
    let operation = &module.ops[op];
    let element = |value: &Value| module.ty(*value).element;
    let values = || operation.operands.iter().chain(&operation.results);
    let format = |codes: Value, scales: Value, block| QuantizedFormat {
        element: element(&codes),
        scale: element(&scales),
        block,
    };
    let kind = match operation.kind {
        OpKind::Unary(kind) => capability.unary.contains(&kind),
        OpKind::Binary(kind) => capability.binary.contains(&kind),
        OpKind::Bitwise(kind) => capability.bitwise.contains(&kind),
        OpKind::Reduce { kind, .. } => capability.reductions.contains(&kind),
        OpKind::BlockQuantize { block, .. } => {
            capability.quantized.contains(&format(operation.results[0], operation.results[1], block))
        }
        OpKind::BlockDequantize { block } => {
            capability.dequantized.contains(&format(operation.operands[0], operation.operands[1], block))
        }
        _ => true,
    };
    kind && values().all(|value| capability.elements.contains(&element(value)))
}

/// The extent of an op beyond a limit of row kernels, worded for a message; `None` if there is none, or if they do not
/// compute the op at all.
pub(crate) fn exceeded(program: &Program, capability: &RowCapability, op: Op) -> Option<String> {
    let module = program.module();
    let operation = &module.ops[op];
    let Space { rows, k } = own_space(program, op).filter(|_| computes(program, capability, op))?;
    let shape = &module.ty(*operation.operands.first()?).shape;
    let of_scales = || match operation.kind {
        OpKind::BlockQuantize { block, .. } | OpKind::BlockDequantize { block } => {
            let [l, m] = matrices(shape)?;
            exceeded_scales([&l, &m, shape.last()?], block, capability.max_scale_bytes)
        }
        _ => None,
    };
    exceeded_extent(module, [("L*M", &rows), ("K", &k)], capability.max_extent).or_else(of_scales)
}

/// Returns whether the extents of a space, as far as fixed, are within the target's limits.
fn fits(space: &Space, capability: &RowCapability) -> bool {
    [&space.rows, &space.k]
        .into_iter()
        .all(|dim| dim.as_fixed().is_none_or(|extent| extent <= capability.max_extent))
}

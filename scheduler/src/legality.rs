//! Decides whether an op can follow a multiplication in its kernel, limits and the order of kernels left aside.

use fourfold_ir::{
    Dim, ElementType, EpilogueCapability, FormatCapability, Op, OpKind, OperandShape, OutputCapability,
    Program, QuantizedCapability, ReduceKind, ScaleLayout, Value,
};

use crate::constraints::{output_scales, scale_bytes};
use crate::prove::{Class, operand_class};
use crate::root::{Divides, Root};

/// What keeps an op out of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// No epilogue computes it.
    Kind,
    /// It reduces in a way that no epilogue does.
    ReduceKind(ReduceKind),
    /// It reduces an element type that is not f32.
    ReduceElement(ElementType),
    /// It reduces along other axes than all, all but the last, or the last.
    ReduceAxes,
    /// There is nothing to reduce, and no kernel to write the result.
    ReduceNothing,
    /// The scales that it gives are linear.
    LinearScales(Value),
    /// It quantizes to a format that no epilogue writes.
    Format,
    /// It quantizes to a format whose rule for N does not hold.
    FormatN(QuantizedCapability),
    /// Its scales are too large.
    ScaleBytes,
    /// The result has another shape than D.
    ResultShape,
    /// An operand is of a shape or an element type that no epilogue reads there.
    Operand(Value),
    /// An operand is a matrix whose rule for N does not hold.
    OperandN(Value, OutputCapability),
    /// No epilogue rounds to the element type of the result.
    Element(ElementType),
}

/// What a kernel that takes an op reads for it, splat constants left out: they may become part of the kernel. `inside`
/// says which values the kernel computes; the op has one of them at least.
pub(crate) fn takes(
    program: &Program,
    root: &Root<'_>,
    op: Op,
    inside: impl Fn(Value) -> bool,
) -> Result<Vec<(Value, OperandShape)>, Fault> {
    let module = program.module();
    let operation = &module.ops[op];
    let epilogue = &root.capability.epilogue;
    if !computes(&operation.kind, epilogue) {
        return Err(Fault::Kind);
    }
    match operation.kind {
        OpKind::BlockQuantize { block, .. } => quantize(program, root, op, block, inside),
        OpKind::Reduce { kind, ref axes, .. } => reduce(program, root, op, kind, axes),
        _ => step(program, root, op, inside),
    }
}

/// Whether an epilogue has this op, in some form at least.
fn computes(kind: &OpKind, epilogue: &EpilogueCapability) -> bool {
    match kind {
        OpKind::Unary(kind) => epilogue.unary.contains(kind),
        OpKind::Binary(kind) => epilogue.binary.contains(kind),
        OpKind::Clamp { .. } => epilogue.clamp,
        OpKind::Compare(_) | OpKind::Select => epilogue.select,
        OpKind::Convert => true,
        OpKind::BlockQuantize { .. } => !epilogue.quantized.is_empty(),
        OpKind::Reduce { .. } => !epilogue.reductions.is_empty(),
        _ => false,
    }
}

/// Whether an op in a kernel gives no value that others in it could use: its results are complete after the kernel.
pub(crate) fn is_sink(kind: &OpKind) -> bool {
    matches!(kind, OpKind::BlockQuantize { .. } | OpKind::Reduce { .. })
}

/// The formats in which a kernel can write blocks for its N, at run time perhaps.
pub(crate) fn quantized(root: &Root<'_>) -> Vec<QuantizedCapability> {
    let fits = |rule: &&QuantizedCapability| {
        Divides::of(&root.matmul.n, rule.n_multiple) != Divides::Never && scales_fit(root, rule.block)
    };
    root.capability.epilogue.quantized.iter().filter(fits).copied().collect()
}

/// The reductions that a kernel can do for its M and L, at run time perhaps: without rows nothing is launched, and of
/// what is empty only the largest magnitude is known to be zero.
pub(crate) fn reductions(root: &Root<'_>) -> Vec<ReduceKind> {
    let empty = [&root.matmul.m, &root.matmul.batch].into_iter().any(|dim| dim.as_fixed() == Some(0));
    let kinds = root.capability.epilogue.reductions.iter();
    kinds.filter(|kind| !empty || !needs_rows(**kind)).copied().collect()
}

/// Whether a reduction of nothing has a result that only a kernel could write.
pub(crate) fn needs_rows(kind: ReduceKind) -> bool {
    kind != ReduceKind::Amax
}

/// What is left of D, of this rank, by a reduction along these axes.
pub(crate) fn reduced_shape(axes: &[u32], rank: usize) -> Option<OperandShape> {
    let last = rank.checked_sub(1)?;
    let is_range = |from: usize, to: usize| axes.iter().map(|axis| *axis as usize).eq(from..to);
    if is_range(0, rank) {
        Some(OperandShape::Scalar)
    } else if is_range(0, last) {
        Some(OperandShape::Row)
    } else {
        is_range(last, rank).then_some(OperandShape::Column)
    }
}

/// FP8 values are written or converted back, and nothing else.
pub(crate) fn is_narrow(element: ElementType) -> bool {
    matches!(element, ElementType::F8E4M3FN | ElementType::F8E5M2)
}

/// The value of a constant that is one number everywhere and may become part of a kernel.
pub(crate) fn is_inlinable(program: &Program, value: Value) -> bool {
    crate::region::splat(program, value).is_some() && !program.facts().is_output(value)
}

fn scales_fit(root: &Root<'_>, block: u32) -> bool {
    let Some(extents) = output_scales(root.matmul) else { return false };
    let extents = extents.each_ref().map(Dim::as_fixed);
    let known = extents.iter().all(Option::is_some);
    !known || scale_bytes(extents, block).is_some_and(|bytes| bytes <= root.capability.max_scale_bytes)
}

type Reads = Result<Vec<(Value, OperandShape)>, Fault>;

fn quantize(program: &Program, root: &Root<'_>, op: Op, block: u32, inside: impl Fn(Value) -> bool) -> Reads {
    let module = program.module();
    let operation = &module.ops[op];
    let (&[value, ref global @ ..], &[codes, scales]) = (&operation.operands[..], &operation.results[..])
    else {
        return Err(Fault::Kind);
    };
    let scale_type = module.ty(scales);
    if scale_type.layout != Some(ScaleLayout::Blocked) {
        return Err(Fault::LinearScales(scales));
    }
    let (element, scale) = (module.ty(codes).element, scale_type.element);
    let Some(rule) = root.capability.epilogue.quantized(element, scale, block) else {
        return Err(Fault::Format);
    };
    if Divides::of(&root.matmul.n, rule.n_multiple) == Divides::Never {
        return Err(Fault::FormatN(rule));
    }
    if !scales_fit(root, block) {
        return Err(Fault::ScaleBytes);
    }
    if !inside(value) || !module.ty(value).element.is_arithmetic() {
        return Err(Fault::Operand(value));
    }
    let global = global.iter().map(|global| {
        let is_f32 = module.ty(*global).element == ElementType::F32;
        match read(program, root, *global)? {
            OperandShape::Scalar if is_f32 => Ok((*global, OperandShape::Scalar)),
            _ => Err(Fault::Operand(*global)),
        }
    });
    global.collect()
}

fn reduce(program: &Program, root: &Root<'_>, op: Op, kind: ReduceKind, axes: &[u32]) -> Reads {
    let module = program.module();
    let operand = module.ty(module.ops[op].operands[0]);
    if !root.capability.epilogue.reductions.contains(&kind) {
        return Err(Fault::ReduceKind(kind));
    }
    if reduced_shape(axes, operand.rank()).is_none() {
        return Err(Fault::ReduceAxes);
    }
    if operand.element != ElementType::F32 {
        return Err(Fault::ReduceElement(operand.element));
    }
    if !reductions(root).contains(&kind) {
        return Err(Fault::ReduceNothing);
    }
    Ok(Vec::new())
}

fn step(program: &Program, root: &Root<'_>, op: Op, inside: impl Fn(Value) -> bool) -> Reads {
    let module = program.module();
    let operation = &module.ops[op];
    let &[result] = &operation.results[..] else { return Err(Fault::Kind) };
    let ty = module.ty(result);
    if ty.shape != module.ty(root.result).shape || ty.layout.is_some() {
        return Err(Fault::ResultShape);
    }
    let mut reads = Vec::new();
    for (position, &operand) in operation.operands.iter().enumerate() {
        if inside(operand) {
            continue;
        }
        if operation.kind == OpKind::Select && position == 0 {
            return Err(Fault::Operand(operand));
        }
        if !is_inlinable(program, operand) {
            reads.push((operand, read(program, root, operand)?));
        }
    }
    let rounds = match operation.kind {
        OpKind::Compare(_) => ty.element == ElementType::I1,
        _ => root.capability.epilogue.elements.contains(&ty.element),
    };
    let converted = (operation.kind == OpKind::Convert).then(|| operation.operands[0]);
    if let Some(condition) = converted.filter(|value| module.ty(*value).element == ElementType::I1) {
        // A comparison only chooses.
        return Err(Fault::Operand(condition));
    }
    let from_narrow = converted.is_some_and(|value| is_narrow(module.ty(value).element));
    if !rounds || (from_narrow && !ty.element.is_arithmetic()) {
        return Err(Fault::Element(ty.element));
    }
    Ok(reads)
}

/// How an epilogue reads a value from outside.
fn read(program: &Program, root: &Root<'_>, value: Value) -> Result<OperandShape, Fault> {
    let module = program.module();
    let ty = module.ty(value);
    let Class::Operand(shape) = operand_class(ty, &module.ty(root.result).shape) else {
        return Err(Fault::Operand(value));
    };
    let FormatCapability { epilogue, .. } = root.capability;
    let Some(rule) = epilogue.operand(shape).and_then(|rule| rule.element(ty.element)) else {
        return Err(Fault::Operand(value));
    };
    match Divides::of(&root.matmul.n, rule.n_multiple) {
        Divides::Never => Err(Fault::OperandN(value, rule)),
        _ => Ok(shape),
    }
}

#[cfg(test)]
mod tests {
    use super::{OperandShape, reduced_shape};

    #[test]
    fn a_reduction_leaves_a_scalar_a_row_or_a_column() {
        let cases: [(&[u32], usize, Option<OperandShape>); 8] = [
            (&[0, 1], 2, Some(OperandShape::Scalar)),
            (&[0], 2, Some(OperandShape::Row)),
            (&[1], 2, Some(OperandShape::Column)),
            (&[0, 1], 3, Some(OperandShape::Row)),
            (&[2], 3, Some(OperandShape::Column)),
            (&[0, 1, 2], 3, Some(OperandShape::Scalar)),
            (&[1], 3, None),
            (&[0, 2], 3, None),
        ];
        for (axes, rank, expected) in cases {
            assert_eq!(reduced_shape(axes, rank), expected, "{axes:?} of {rank}");
        }
    }
}

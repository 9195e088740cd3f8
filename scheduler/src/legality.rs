//! Decides whether an op can join the epilogue of a `scaled_mma`. Limits and the order of kernels are checked
//! elsewhere.

use fourfold_ir::{
    Dim, ElementType, EpilogueCapability, Op, OpKind, OperandShape, OutputCapability, Program,
    QuantizedCapability, ReduceKind, ScaleLayout, Value,
};

use crate::geometry::{Divides, SCALE_ROWS, flattens, operand_shape, reduced_shape, scale_bytes};
use crate::properties::{is_fp8, is_inlinable, is_sink, needs_rows};
use crate::root::Root;

/// The reason why an op is not legal in an epilogue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Illegal {
    /// No epilogue computes the op.
    Kind,
    /// No epilogue computes this reduction.
    ReduceKind(ReduceKind),
    /// The op reduces an element type other than f32.
    ReduceElement(ElementType),
    /// The op reduces along axes other than all, all but the last, or only the last.
    ReduceAxes,
    /// The reduction is over zero elements, and no launched kernel would write its result.
    ReduceNothing,
    /// The op writes linear scales.
    LinearScales(Value),
    /// No epilogue writes the format.
    Format,
    /// N does not satisfy the multiple that the format requires.
    FormatN(QuantizedCapability),
    /// The scales exceed the byte limit.
    ScaleBytes,
    /// The kernel flattens matrices whose scales are padded separately.
    ScaleRows,
    /// Kernels of groups of rows write values only.
    Grouped,
    /// The result's shape is not D's.
    ResultShape,
    /// An operand has a shape or an element type that no epilogue reads there.
    Operand(Value),
    /// N does not satisfy the multiple that a matrix operand requires.
    OperandN(Value, OutputCapability),
    /// No epilogue rounds to the element type of the result.
    Element(ElementType),
}

/// Returns the external operands that an op adds to the epilogue of a kernel. Splat constants are omitted,
/// because they may become part of the kernel. `inside` returns true for values that the kernel computes; the op reads
/// at least one of them.
pub(crate) fn check_legal(
    program: &Program,
    root: &Root<'_>,
    op: Op,
    inside: impl Fn(Value) -> bool,
) -> Result<Vec<(Value, OperandShape)>, Illegal> {
    let module = program.module();
    let operation = &module.ops[op];
    let epilogue = &root.capability.epilogue;
    if !is_supported(&operation.kind, epilogue) {
        return Err(Illegal::Kind);
    }
    if root.matmul.groups.is_some() && is_sink(&operation.kind) {
        return Err(Illegal::Grouped);
    }
    match operation.kind {
        OpKind::BlockQuantize { block, .. } => check_quantize(program, root, op, block, inside),
        OpKind::Reduce { kind, ref axes, .. } => check_reduce(program, root, op, kind, axes),
        _ => check_step(program, root, op, inside),
    }
}

/// Returns whether an epilogue supports this op in at least one form.
fn is_supported(kind: &OpKind, epilogue: &EpilogueCapability) -> bool {
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

/// The element types of outputs that the kernel can write for at least some values of N.
pub(crate) fn writable(root: &Root<'_>) -> Vec<ElementType> {
    let fits = |multiple| Divides::of(root.columns(), multiple) != Divides::Never;
    root.capability
        .outputs
        .iter()
        .filter(|output| fits(output.n_multiple))
        .map(|output| output.element)
        .collect()
}

/// The element types of matrix operands that the epilogue can read for at least some values of N.
pub(crate) fn readable_matrices(root: &Root<'_>) -> Vec<ElementType> {
    let rules = root.capability.epilogue.operand(OperandShape::Matrix).map_or(&[][..], |rule| &rule.elements);
    let fits = |rule: &&OutputCapability| Divides::of(root.columns(), rule.n_multiple) != Divides::Never;
    rules.iter().filter(fits).map(|rule| rule.element).collect()
}

/// The quantized formats that the kernel can write for at least some values of its extents.
pub(crate) fn quantized(root: &Root<'_>) -> Vec<QuantizedCapability> {
    let fits = |rule: &&QuantizedCapability| {
        root.matmul.groups.is_none()
            && Divides::of(root.columns(), rule.n_multiple) != Divides::Never
            && scales_fit(root, rule.block)
            && keeps_scale_rows(root)
            && holds_block(root, rule.block)
    };
    root.capability.epilogue.quantized.iter().filter(fits).copied().collect()
}

/// The reductions that a kernel can compute for at least some values of M and L. If M or L is 0, nothing is
/// launched, and only `amax` has a defined result: zero.
pub(crate) fn reductions(root: &Root<'_>) -> Vec<ReduceKind> {
    let empty = [&root.matmul.m, &root.matmul.batch].into_iter().any(|dim| dim.as_fixed() == Some(0));
    let kinds = root.capability.epilogue.reductions.iter();
    let is_grouped = root.matmul.groups.is_some();
    kinds.filter(|kind| !is_grouped && (!empty || !needs_rows(**kind))).copied().collect()
}

fn scales_fit(root: &Root<'_>, block: u32) -> bool {
    let Some(extents) = root.launched_d() else { return false };
    let extents = extents.each_ref().map(Dim::as_fixed);
    let known = extents.iter().all(Option::is_some);
    !known || scale_bytes(extents, block).is_some_and(|bytes| bytes <= root.capability.max_scale_bytes)
}

/// Returns whether blocked scales of the launched D are those of D: a flattened batch needs M without padding.
fn keeps_scale_rows(root: &Root<'_>) -> bool {
    !flattens(root.matmul) || root.matmul.m.is_multiple_of(SCALE_ROWS)
}

/// Returns whether the epilogue has whole blocks of this length.
pub(crate) fn holds_block(root: &Root<'_>, block: u32) -> bool {
    root.pair.is_none() || root.capability.pairs.is_some_and(|pairs| block <= pairs.max_block)
}

type Reads = Result<Vec<(Value, OperandShape)>, Illegal>;

fn check_quantize(
    program: &Program,
    root: &Root<'_>,
    op: Op,
    block: u32,
    inside: impl Fn(Value) -> bool,
) -> Reads {
    let module = program.module();
    let operation = &module.ops[op];
    let (&[value, ref global @ ..], &[codes, scales]) = (&operation.operands[..], &operation.results[..])
    else {
        return Err(Illegal::Kind);
    };
    let scale_type = module.ty(scales);
    if scale_type.layout != Some(ScaleLayout::Blocked) {
        return Err(Illegal::LinearScales(scales));
    }
    let (element, scale) = (module.ty(codes).element, scale_type.element);
    let rule = root.capability.epilogue.quantized(element, scale, block);
    let Some(rule) = rule.filter(|rule| holds_block(root, rule.block)) else {
        return Err(Illegal::Format);
    };
    if Divides::of(root.columns(), rule.n_multiple) == Divides::Never {
        return Err(Illegal::FormatN(rule));
    }
    if !scales_fit(root, block) {
        return Err(Illegal::ScaleBytes);
    }
    if !keeps_scale_rows(root) {
        return Err(Illegal::ScaleRows);
    }
    if !inside(value) || !module.ty(value).element.is_arithmetic() {
        return Err(Illegal::Operand(value));
    }
    let global = global.iter().map(|global| {
        let is_f32 = module.ty(*global).element == ElementType::F32;
        match check_read(program, root, *global)? {
            OperandShape::Scalar if is_f32 => Ok((*global, OperandShape::Scalar)),
            _ => Err(Illegal::Operand(*global)),
        }
    });
    global.collect()
}

fn check_reduce(program: &Program, root: &Root<'_>, op: Op, kind: ReduceKind, axes: &[u32]) -> Reads {
    let module = program.module();
    let operand = module.ty(module.ops[op].operands[0]);
    if !root.capability.epilogue.reductions.contains(&kind) {
        return Err(Illegal::ReduceKind(kind));
    }
    if reduced_shape(axes, operand.rank()).is_none() {
        return Err(Illegal::ReduceAxes);
    }
    if operand.element != ElementType::F32 {
        return Err(Illegal::ReduceElement(operand.element));
    }
    if !reductions(root).contains(&kind) {
        return Err(Illegal::ReduceNothing);
    }
    Ok(Vec::new())
}

fn check_step(program: &Program, root: &Root<'_>, op: Op, inside: impl Fn(Value) -> bool) -> Reads {
    let module = program.module();
    let operation = &module.ops[op];
    let &[result] = &operation.results[..] else { return Err(Illegal::Kind) };
    let ty = module.ty(result);
    if ty.shape != root.d(module).shape || ty.layout.is_some() {
        return Err(Illegal::ResultShape);
    }
    let mut reads = Vec::new();
    for (position, &operand) in operation.operands.iter().enumerate() {
        if inside(operand) {
            continue;
        }
        if operation.kind == OpKind::Select && position == 0 {
            return Err(Illegal::Operand(operand));
        }
        if !is_inlinable(program, operand) {
            reads.push((operand, check_read(program, root, operand)?));
        }
    }
    let rounds = match operation.kind {
        OpKind::Compare(_) => ty.element == ElementType::I1,
        _ => root.capability.epilogue.elements.contains(&ty.element),
    };
    let converted = (operation.kind == OpKind::Convert).then(|| operation.operands[0]);
    if let Some(condition) = converted.filter(|value| module.ty(*value).element == ElementType::I1) {
        // Only `select` may use a comparison.
        return Err(Illegal::Operand(condition));
    }
    let from_fp8 = converted.is_some_and(|value| is_fp8(module.ty(value).element));
    if !rounds || (from_fp8 && !ty.element.is_arithmetic()) {
        return Err(Illegal::Element(ty.element));
    }
    Ok(reads)
}

/// The shape in which an epilogue reads an external value.
fn check_read(program: &Program, root: &Root<'_>, value: Value) -> Result<OperandShape, Illegal> {
    let module = program.module();
    let ty = module.ty(value);
    let d = &root.d(module).shape;
    let shape = if ty.layout.is_none() { operand_shape(&ty.shape, d) } else { None };
    let rule = |shape| root.capability.epilogue.operand(shape)?.element(ty.element);
    let Some((shape, rule)) = shape.and_then(|shape| Some((shape, rule(shape)?))) else {
        return Err(Illegal::Operand(value));
    };
    match Divides::of(root.columns(), rule.n_multiple) {
        Divides::Never => Err(Illegal::OperandN(value, rule)),
        _ => Ok(shape),
    }
}

//! Properties of ops, values and element types, independent of targets and kernels.

use fourfold_ir::{ConstantValue, ElementType, Op, OpKind, Program, ReduceKind, Value};

/// Returns whether an op is a sink: its results are complete only after the kernel, so no op in the kernel
/// can use them.
pub(crate) fn is_sink(kind: &OpKind) -> bool {
    matches!(kind, OpKind::BlockQuantize { .. } | OpKind::Reduce { .. })
}

/// Returns whether a reduction over zero rows has a result that only a kernel could write.
pub(crate) fn needs_rows(kind: ReduceKind) -> bool {
    kind != ReduceKind::Amax
}

/// Returns whether the type is FP8, whose values can only be written or converted back.
pub(crate) fn is_fp8(element: ElementType) -> bool {
    matches!(element, ElementType::F8E4M3FN | ElementType::F8E5M2)
}

/// The defining op and the number of a splat constant.
pub(crate) fn splat(program: &Program, value: Value) -> Option<(Op, f64)> {
    let module = program.module();
    let op = module.defining_op(value)?;
    match module.ops[op].kind {
        OpKind::Constant(ConstantValue::Splat(number)) if module.ty(value).element.is_arithmetic() => {
            Some((op, number))
        }
        _ => None,
    }
}

/// Returns whether a value is a splat constant that may become part of a kernel.
pub(crate) fn is_inlinable(program: &Program, value: Value) -> bool {
    splat(program, value).is_some() && !program.facts().is_output(value)
}

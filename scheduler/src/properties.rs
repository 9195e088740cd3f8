//! Properties of ops, values and element types that depend on no target and on no kernel.

use fourfold_ir::{ConstantValue, ElementType, Op, OpKind, Program, ReduceKind, Value};

/// Whether an op in a kernel gives no value that others in it could use: its results are complete after the kernel.
pub(crate) fn is_sink(kind: &OpKind) -> bool {
    matches!(kind, OpKind::BlockQuantize { .. } | OpKind::Reduce { .. })
}

/// Whether a reduction of nothing has a result that only a kernel could write.
pub(crate) fn needs_rows(kind: ReduceKind) -> bool {
    kind != ReduceKind::Amax
}

/// Whether values of this type are written or converted back, and nothing else: those of FP8.
pub(crate) fn is_fp8(element: ElementType) -> bool {
    matches!(element, ElementType::F8E4M3FN | ElementType::F8E5M2)
}

/// The op and the number of a constant that is one number everywhere.
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

/// Whether a value is a splat constant that may become part of a kernel.
pub(crate) fn is_inlinable(program: &Program, value: Value) -> bool {
    splat(program, value).is_some() && !program.facts().is_output(value)
}

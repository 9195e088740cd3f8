//! Recognizes a `scaled_mma` or `grouped_scaled_mma` whose even and odd columns an epilogue pairs.

use fourfold_ir::{Dim, FormatCapability, Matmul, Op, OpKind, Program, SliceRange, Value};

/// The two halves of a product: its even and its odd columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    /// The ops that take the even and the odd columns.
    pub(crate) ops: [Op; 2],
    /// Their results.
    pub(crate) values: [Value; 2],
    /// The columns of each.
    pub(crate) columns: &'a Dim,
}

/// Returns the halves of a product if the target pairs columns and nothing else uses the product.
pub(crate) fn find_pair<'a>(
    program: &'a Program,
    matmul: &Matmul,
    capability: &FormatCapability,
    op: Op,
) -> Option<Pair<'a>> {
    capability.pairs?;
    let module = program.module();
    let &[result] = &module.ops[op].results[..] else { return None };
    let has_c = module.scaled_mma_operands(op)?.c.is_some();
    if has_c || program.facts().is_output(result) {
        return None;
    }
    let &[one, other] = program.facts().users(result) else { return None };
    let n = matmul.n.as_fixed().filter(|n| n.is_multiple_of(2))?;
    let axis = module.ty(result).shape.len().checked_sub(1)?;
    let start = |op: Op| {
        let OpKind::Slice { ranges } = &module.ops[op].kind else { return None };
        let &[SliceRange { axis: of, start, step: 2, .. }] = &ranges[..] else { return None };
        let columns = module.ty(module.ops[op].results[0]).shape.last()?;
        (of as usize == axis && columns.as_fixed() == Some(n / 2)).then_some(start)
    };
    let ops = match (start(one)?, start(other)?) {
        (0, 1) => [one, other],
        (1, 0) => [other, one],
        _ => return None,
    };
    let values = ops.map(|op| module.ops[op].results[0]);
    Some(Pair { ops, values, columns: module.ty(values[0]).shape.last()? })
}

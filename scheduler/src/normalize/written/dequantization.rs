//! Matches a block dequantization written out op by op, from its product of codes and scales.

use fourfold_ir::{BinaryKind, Dim, ElementType, Module, Op, OpKind, ScaleLayout, Shape, Value};

use super::mx::powers_of_scales;
use super::values::Graph;

/// A product that equals a `block_dequantize` of these codes and scales.
pub(crate) struct Dequantization {
    pub(crate) codes: Value,
    pub(crate) scales: Value,
    pub(crate) block: u32,
    /// The shape of scales that the codes need. The given ones may need a reshape.
    pub(crate) scale_shape: Shape,
    /// All matched ops.
    pub(crate) ops: Vec<Op>,
}

/// Matches the dequantization whose product of codes and scales this is.
pub(crate) fn dequantization(module: &Module, product: Op) -> Option<Dequantization> {
    let operation = &module.ops[product];
    let (OpKind::Binary(BinaryKind::Mul), &[left, right]) = (&operation.kind, &operation.operands[..]) else {
        return None;
    };
    let full = &module.ty(operation.results[0]).shape;
    let block = full.last().and_then(Dim::as_fixed).filter(|block| matches!(block, 16 | 32))?;
    of_sides(module, product, [left, right], block)
        .or_else(|| of_sides(module, product, [right, left], block))
}

/// The linear scales whose exact conversion this is.
fn converted_scales(graph: &mut Graph<'_>, value: Value) -> Option<Value> {
    let (convert, operation) = graph.definition(value)?;
    let scales = *operation.operands.first()?;
    // A layout makes scales unsigned, as `block_dequantize` reads them.
    let is_conversion =
        operation.kind == OpKind::Convert && graph.ty(scales).layout == Some(ScaleLayout::Linear);
    is_conversion.then(|| {
        graph.matched.push(convert);
        scales
    })
}

fn of_sides(module: &Module, product: Op, [codes, scales]: [Value; 2], block: u64) -> Option<Dequantization> {
    let mut graph = Graph::new(module);
    graph.matched.push(product);
    let result = module.ty(module.ops[product].results[0]);
    let per_block = graph.per_block(scales, &result.shape, block)?;
    let flat = graph.flat(per_block);
    let scales = match converted_scales(&mut graph, flat) {
        Some(scales) => scales,
        // The powers of two may be computed from exponents.
        None if block == 32 => {
            let (scales, ops) = powers_of_scales(module, flat)?;
            graph.matched.extend(ops);
            scales
        }
        None => return None,
    };
    let scale = module.ty(scales);
    let wide = [module.ty(flat).element, result.element];
    let exact = match scale.element {
        ElementType::F8E4M3FN => block == 16,
        // f16 does not hold every power of two.
        _ => block == 32 && !wide.contains(&ElementType::F16),
    };
    let is_data = |element: ElementType| match scale.element {
        ElementType::F8E4M3FN => element == ElementType::F4E2M1FN,
        _ => element.is_block_data(),
    };
    let has_blocks = |value: &&Value| {
        let ty = module.ty(**value);
        is_data(ty.element)
            && ty.rank() >= 2
            && ty.shape.last().is_some_and(|last| last.is_multiple_of(block))
    };
    let behind = graph.moved(codes);
    let codes = behind.iter().rev().find(has_blocks).copied().filter(|_| exact)?;
    let [rows @ .., last] = &module.ty(codes).shape[..] else { return None };
    let scale_shape = rows.iter().cloned().chain([last.divided_by(block)?]).collect();
    let block = u32::try_from(block).ok()?;
    Some(Dequantization { codes, scales, block, scale_shape, ops: graph.matched })
}

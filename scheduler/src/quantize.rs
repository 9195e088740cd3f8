//! Plans a `block_quantize` outside every epilogue as a standalone kernel.

use fourfold_ir::{
    BlockQuantizeCapability, Capabilities, Dim, Op, OpKind, Program, QuantizedFormat, dim_product,
};

use crate::geometry::scale_bytes;
use crate::plan::{BlockQuantizePlan, Constraint};
use crate::reason::{exceeded_extent, exceeded_scales};

/// The plan of a `block_quantize`; `None` if the target's kernel does not accept its types or its fixed
/// extents.
pub(crate) fn plan_block_quantize(
    program: &Program,
    capability: &BlockQuantizeCapability,
    op: Op,
) -> Option<BlockQuantizePlan> {
    let plan = supported(program, capability, op)?;
    let extents = [&plan.batch, &plan.m, &plan.k];
    let pointers = [plan.values, plan.codes, plan.scales];
    let constraints = constraints(capability, extents, plan.format.block, pointers)?;
    Some(BlockQuantizePlan { constraints, ..plan })
}

/// The extent of a `block_quantize` beyond a limit of the target's kernel, worded for a message; `None` if there is
/// none, or if the kernel does not accept its types.
pub(crate) fn exceeded(program: &Program, capability: &BlockQuantizeCapability, op: Op) -> Option<String> {
    let BlockQuantizePlan { batch, m, k, format, .. } = supported(program, capability, op)?;
    let BlockQuantizeCapability { max_extent, max_scale_bytes, .. } = *capability;
    if k.as_fixed() == Some(0) {
        return Some("K is 0; expected at least 1".to_owned());
    }
    exceeded_extent(program.module(), [("L", &batch), ("M", &m), ("K", &k)], max_extent)
        .or_else(|| exceeded_scales([&batch, &m, &k], format.block, max_scale_bytes))
}

/// The plan without its constraints, if the target's kernel accepts the types of a `block_quantize`.
fn supported(program: &Program, capability: &BlockQuantizeCapability, op: Op) -> Option<BlockQuantizePlan> {
    let module = program.module();
    let operation = &module.ops[op];
    let OpKind::BlockQuantize { block, scale_rounding, formula } = operation.kind else { return None };
    let (&[codes, scales], &[values, ref global @ ..]) = (&operation.results[..], &operation.operands[..])
    else {
        return None;
    };
    let (input, layout) = (module.ty(values).element, module.ty(scales).layout?);
    let format =
        QuantizedFormat { element: module.ty(codes).element, scale: module.ty(scales).element, block };
    if !capability.inputs.contains(&input) || !capability.formats.contains(&format) {
        return None;
    }
    let [leading @ .., m, k] = &module.ty(values).shape[..] else { return None };
    let batch = dim_product(leading)?;
    Some(BlockQuantizePlan {
        op,
        values,
        global: global.first().copied(),
        codes,
        scales,
        input,
        format,
        scale_rounding,
        formula,
        layout,
        constraints: Vec::new(),
        batch,
        m: m.clone(),
        k: k.clone(),
    })
}

/// Returns whether an op is a `block_quantize` that its own kernel computes faster than an epilogue.
pub(crate) fn is_faster_alone(program: &Program, capabilities: &Capabilities, op: Op) -> bool {
    capabilities.block_quantize.as_ref().is_some_and(|capability| {
        capability.is_faster && plan_block_quantize(program, capability, op).is_some()
    })
}

/// The conditions that do not hold for all symbol values; `None` if one holds for no symbol values.
fn constraints(
    capability: &BlockQuantizeCapability,
    [l, m, k]: [&Dim; 3],
    block: u32,
    pointers: [fourfold_ir::Value; 3],
) -> Option<Vec<Constraint>> {
    let BlockQuantizeCapability { max_extent, max_scale_bytes, pointer_alignment, .. } = *capability;
    let extents = [("L", l), ("M", m), ("K", k)];
    let fixed = |dim: &Dim| dim.as_fixed();
    if extents.iter().any(|(_, dim)| fixed(dim).is_some_and(|extent| max_extent < extent))
        || fixed(k) == Some(0)
    {
        return None;
    }
    let mut found: Vec<Constraint> = extents
        .iter()
        .filter(|(_, dim)| fixed(dim).is_none())
        .map(|(name, dim)| Constraint::AtMost { name, dim: (*dim).clone(), limit: max_extent })
        .collect();
    match [l, m, k].map(fixed) {
        known @ [Some(_), Some(_), Some(_)] => {
            scale_bytes(known, block).filter(|bytes| *bytes <= max_scale_bytes)?;
        }
        _ => found.push(Constraint::ScaleBytes {
            name: "the result",
            matrices: l.clone(),
            rows: m.clone(),
            k: k.clone(),
            block,
            limit: max_scale_bytes,
        }),
    }
    if fixed(k).is_none() {
        found.push(Constraint::NotEmpty { name: "K", dim: k.clone() });
    }
    found.extend(pointers.map(|value| Constraint::PointerAlignment { value, bytes: pointer_alignment }));
    Some(found)
}

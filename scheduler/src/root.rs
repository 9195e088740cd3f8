//! Decides whether a target has a kernel for a `scaled_mma`. Its result type and the following ops are
//! checked elsewhere.

use fourfold_ir::{
    BlockFormat, Capabilities, Dim, ElementType, FormatCapability, Matmul, Module, Op, Program, ScaleLayout,
    ScaledMmaOperands, TensorType, Value,
};

use crate::geometry::{
    Divides, SCALE_ROWS, extent_limits, flattens, launched_extents, scale_bytes, scale_operands, tile_count,
};
use crate::pair::{Pair, find_pair};
use crate::reason::{ReasonCode, Rejection, element_list, scale_message, tile_message};

/// An accepted `scaled_mma`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root<'a> {
    pub(crate) op: Op,
    pub(crate) operands: ScaledMmaOperands,
    pub(crate) matmul: &'a Matmul,
    pub(crate) capability: &'a FormatCapability,
    pub(crate) result: Value,
    /// The even and the odd columns of the result, if the epilogue pairs them.
    pub(crate) pair: Option<Pair<'a>>,
}

impl<'a> Root<'a> {
    /// The type of D: of a pair's halves, or of the result.
    pub(crate) fn d(&self, module: &'a Module) -> &'a TensorType {
        module.ty(self.pair.map_or(self.result, |pair| pair.values[0]))
    }

    /// The columns of D.
    pub(crate) fn columns(&self) -> &'a Dim {
        self.pair.map_or(&self.matmul.n, |pair| pair.columns)
    }

    /// Returns whether the epilogue quantizes pairs of columns faster than a kernel of its own. Those of groups write values
    /// only.
    pub(crate) fn quantizes_pairs(&self) -> bool {
        let (Some(_), Some(rules)) = (self.pair, self.capability.pairs) else { return false };
        let is_small = |m: &Dim| m.as_fixed().is_some_and(|m| m <= rules.max_quantized_m);
        self.matmul.groups.is_none() && self.matmul.batch.as_fixed() == Some(1) && is_small(&self.matmul.m)
    }

    /// The extents of D in one launch: matrices, rows and columns; `None` beyond 64 bits.
    pub(crate) fn launched_d(&self) -> Option<[Dim; 3]> {
        let [matrices, rows, _] = launched_extents(self.matmul)?;
        Some([matrices, rows, self.columns().clone()])
    }
}

/// Accepts a `scaled_mma` for the target, or returns the reason to refuse it.
pub(crate) fn accept<'a>(
    program: &'a Program,
    capabilities: &'a Capabilities,
    op: Op,
) -> Result<Root<'a>, Rejection> {
    let module = program.module();
    let label = module.op_label(op);
    let reject = |code, what: String| Err(Rejection::new(code, format!("{label}: {what}")));

    let target = capabilities.target.as_str();
    if target == "cpu" {
        return reject(
            ReasonCode::CpuTarget,
            "the target cpu has no kernels; expected a GPU target".to_owned(),
        );
    }
    let (Some(matmul), Some(operands), Some(&result)) =
        (program.facts().matmul(op), module.scaled_mma_operands(op), module.ops[op].results.first())
    else {
        return reject(
            ReasonCode::OperandLayout,
            "its extents are unknown; expected A [.., M, K] and B [.., N, K]".to_owned(),
        );
    };
    let format = matmul.format;
    if !format.is_standard() {
        let what = format!(
            "the scales are {} per {}; expected f8E4M3FN per 16 for FP4, or f8E8M0FNU per 32",
            format.scale, format.block
        );
        return reject(ReasonCode::ScaleDtype, what);
    }
    let Some(capability) = capabilities.format(format) else {
        if capabilities.not_emulated.contains(&format) {
            let what = format!(
                "the operands are {format}, which {target} has kernels for, but these are not emulated; expected a GPU \
                 of {target}, or another format"
            );
            return reject(ReasonCode::FormatNotEmulated, what);
        }
        if let Some(quantized) = quantized(capabilities, format) {
            let [bits_a, bits_b] = [quantized.a, quantized.b].map(ElementType::storage_bits);
            let what = format!(
                "A is {}, and the kernels of {target} take a block-scaled A; expected a quantized A: {quantized} \
                 (W{bits_b}A{bits_a})",
                format.a
            );
            return reject(ReasonCode::WeightOnly, what);
        }
        let known: Vec<_> = capabilities.formats.iter().map(|known| known.format.to_string()).collect();
        let known = if known.is_empty() { "no formats".to_owned() } else { known.join(", ") };
        let what = format!("the operands are {format}; expected a format of {target}, which has {known}");
        return reject(ReasonCode::TargetLacksFormat, what);
    };
    let has_no_kernel = capability.max_groups.is_none() || (matmul.masked && !capability.has_masked);
    if matmul.groups.is_some() && has_no_kernel {
        let what = format!("{target} has no kernel for a {} of {format}", module.ops[op].kind.mnemonic());
        return reject(ReasonCode::GroupedUnsupported, what);
    }
    // First, since other scales would not give it a kernel.
    if let Some((code, what)) = refusal(module, matmul, operands.c, capability) {
        return reject(code, what);
    }
    let of_a = operands.sfa.zip(matmul.sfa_layout).map(|(scales, layout)| ("A", scales, layout));
    // The rows of a group begin anywhere, so a grouped A has linear scales, or blocked ones for each group.
    let is_blocked = matmul.group_scales.is_some() && capability.has_group_scales;
    let is_linear = matmul.groups.is_some() && !is_blocked;
    let takes_both = matmul.groups.is_none() && capability.has_linear_scales;
    for (role, scales, layout) in of_a.into_iter().chain([("B", operands.sfb, matmul.sfb_layout)]) {
        let expected = if is_linear && role == "A" { ScaleLayout::Linear } else { ScaleLayout::Blocked };
        if layout != expected && !(takes_both && role == "A") {
            let name = module.name_of(scales);
            let what = format!("%{name}, the scales of {role}, are {layout}; expected {expected}");
            return reject(ReasonCode::ScaleLayout, what);
        }
    }
    let pair = find_pair(program, matmul, capability, op);
    Ok(Root { op, operands, matmul, capability, result, pair })
}

/// The reason why no kernel of a format computes a product with these extents and this C, whatever the layouts of its
/// scales become.
pub(crate) fn refusal(
    module: &Module,
    matmul: &Matmul,
    c: Option<Value>,
    capability: &FormatCapability,
) -> Refusal {
    extents(module, matmul, capability)
        .or_else(|| batch(module, matmul, capability))
        .or_else(|| c_operand(module, matmul, c?, capability))
}

/// The format with which a target multiplies the weights of a weight-only one, if it takes no A of 16 bits at all: with
/// the A that keeps most bits.
fn quantized(capabilities: &Capabilities, format: BlockFormat) -> Option<BlockFormat> {
    if !format.is_weight_only() || capabilities.formats.iter().any(|rules| rules.format.is_weight_only()) {
        return None;
    }
    let a = if format.scale == ElementType::F8E8M0FNU { ElementType::F8E4M3FN } else { format.b };
    let quantized = BlockFormat { a, ..format };
    capabilities.format(quantized).map(|_| quantized)
}

/// A reason, and its message without the op.
pub(crate) type Refusal = Option<(ReasonCode, String)>;

fn extents(module: &Module, matmul: &Matmul, capability: &FormatCapability) -> Refusal {
    let Matmul { n, k, groups, .. } = matmul;
    for (name, dim) in [("K", k), ("N", n)].into_iter().chain(groups.iter().map(|groups| ("E", groups))) {
        if dim.as_fixed() == Some(0) {
            return Some((ReasonCode::ExtentRange, format!("{name} is 0; expected at least 1")));
        }
    }
    // [`batch`] reports L*M.
    for (name, dim, limit) in extent_limits(matmul, capability).iter().filter(|(name, ..)| *name != "L*M") {
        if dim.as_fixed().is_some_and(|extent| *limit < extent) {
            let what = format!("{name} is {}; expected at most {limit}", module.display_dim(dim));
            return Some((ReasonCode::ExtentRange, what));
        }
    }
    let limit = capability.max_scale_bytes;
    for (name, extents) in scale_operands(matmul) {
        let extents = extents.each_ref().map(Dim::as_fixed);
        let known = extents.iter().all(Option::is_some);
        let bytes = scale_bytes(extents, matmul.format.block);
        if known && bytes.is_none_or(|bytes| limit < bytes) {
            return Some((ReasonCode::ExtentRange, scale_message(name, limit)));
        }
    }
    let (tile, limit) = (capability.grid.tile, capability.grid.max_tiles);
    if let Some(extents) = launched_extents(matmul)
        && let extents = extents.each_ref().map(Dim::as_fixed)
        && extents.iter().all(Option::is_some)
        && let found = tile_count(extents, tile)
        && found.is_none_or(|found| limit < found)
    {
        return Some((ReasonCode::ExtentRange, tile_message(found, tile, limit)));
    }
    let multiple = capability.k_multiple;
    (Divides::of(k, multiple) == Divides::Never).then(|| {
        let what = format!("K is {}; expected a multiple of {multiple}", module.display_dim(k));
        (ReasonCode::KAlignment, what)
    })
}

fn batch(module: &Module, matmul: &Matmul, capability: &FormatCapability) -> Refusal {
    let Matmul { batch, m, b_batched, .. } = matmul;
    if *b_batched {
        let fits = capability.batched || batch.as_fixed() == Some(1);
        let what = format!("the batch has {} matrices; expected one", module.display_dim(batch));
        return (!fits).then_some((ReasonCode::OperandLayout, what));
    }
    if !flattens(matmul) {
        return None;
    }
    // Linear scales of a batch equal those of one matrix with L*M rows.
    let stays_linear = capability.has_linear_scales && matmul.sfa_layout == Some(ScaleLayout::Linear);
    if matmul.sfa_layout.is_some() && !stays_linear && !m.is_multiple_of(SCALE_ROWS) {
        let linear = if capability.has_linear_scales { ", or linear scales of A" } else { "" };
        let what = format!(
            "one B is shared by {} matrices of M = {} rows, whose scales are padded separately; expected a B for each \
             matrix, or M a multiple of {SCALE_ROWS}{linear}",
            module.display_dim(batch),
            module.display_dim(m)
        );
        return Some((ReasonCode::OperandLayout, what));
    }
    let limit = capability.max_extent;
    let rows = batch.times(m);
    let too_many = rows.as_ref().is_none_or(|rows| rows.as_fixed().is_some_and(|rows| limit < rows));
    too_many.then(|| {
        let (batch, m) = (module.display_dim(batch), module.display_dim(m));
        (ReasonCode::ExtentRange, format!("L*M is {batch} * {m}; expected at most {limit}"))
    })
}

fn c_operand(module: &Module, matmul: &Matmul, c: Value, capability: &FormatCapability) -> Refusal {
    let name = module.name_of(c);
    let ty = module.ty(c);
    let Some(rule) = capability.c(ty.element) else {
        let known = element_list(capability.c.iter().map(|c| c.element));
        return Some((ReasonCode::OutputDtype, format!("C (%{name}) is {}; expected {known}", ty.element)));
    };
    (Divides::of(&matmul.n, rule.n_multiple) == Divides::Never).then(|| {
        let n = module.display_dim(&matmul.n);
        let what = format!("N is {n}; expected a multiple of {} for a {} C", rule.n_multiple, rule.element);
        (ReasonCode::NAlignment, what)
    })
}

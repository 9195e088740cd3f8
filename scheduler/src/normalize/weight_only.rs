//! Weight-only products that the target has no kernel for: a `scaled_mma` of a 16-bit A becomes an `mma` of the
//! dequantized weight, which runs on the device tier.

use std::collections::HashMap;

use fourfold_ir::{
    BinaryKind, BlockFormat, Capabilities, Dim, ElementType, Op, OpKind, OutputCapability, ScaledMma,
    TensorType, Value,
};

use super::NormalizeRule;
use super::draft::{Draft, Note};
use crate::geometry::Divides;

/// All rules of this module. Their positions follow those of the rules for programs written out.
pub(crate) const WEIGHT_ONLY_RULES: &[NormalizeRule] = &[
    NormalizeRule {
        name: "weight-only-without-kernel-is-mma",
        why: "code · scale of NVFP4 has 6 significant bits from 2^-10 to 2688, so f16 and bf16 hold the dequantized weight. \
              Both products take the same sum of the same terms in f64, round it to f32, multiply it by alpha, add C, \
              which beta does not scale, and round the result to its type",
        contract: false,
    },
    NormalizeRule {
        name: "mx-weight-only-without-kernel-is-mma",
        why: "drops nothing where bf16 holds the dequantized weight, whose codes have at most 4 significant bits. Range: \
              no code · 2^e overflows or is below 2^-133",
        contract: true,
    },
];

/// The weight-only products that a target's kernels compute, and whether it has a library for others.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeightOnly {
    kernels: Vec<Kernels>,
    /// The element types of A for which the library computes an f32 product.
    products: Vec<ElementType>,
}

#[derive(Clone, Debug)]
struct Kernels {
    format: BlockFormat,
    k_multiple: u64,
    /// The multiples of N for results and C of each type.
    results: Vec<OutputCapability>,
    c: Vec<OutputCapability>,
}

/// The matrices of a product besides its operands: their types decide the multiple of N. The epilogue may write another
/// type, which a kernel of its own then does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrices {
    pub(crate) result: ElementType,
    pub(crate) c: Option<ElementType>,
}

impl WeightOnly {
    pub(crate) fn of(capabilities: &Capabilities) -> WeightOnly {
        let formats = capabilities.formats.iter().filter(|rules| rules.format.is_weight_only());
        let kernels = formats.map(|rules| Kernels {
            format: rules.format,
            k_multiple: rules.k_multiple,
            results: rules.outputs.clone(),
            c: rules.c.clone(),
        });
        let products = capabilities.device.mma.iter().flat_map(|mma| &mma.elements);
        let products = products.filter(|[a, b, d]| a == b && *d == ElementType::F32).map(|[a, ..]| *a);
        WeightOnly { kernels: kernels.collect(), products: products.collect() }
    }

    /// Returns whether the target has a kernel for a product of this format with these extents.
    pub(crate) fn has_kernel(&self, format: BlockFormat, n: &Dim, k: &Dim, matrices: Matrices) -> bool {
        let fits = |rules: &[OutputCapability], element| {
            let mut rules = rules.iter().filter(|rule| rule.element == element);
            rules.any(|rule| Divides::of(n, rule.n_multiple) != Divides::Never)
        };
        self.kernels.iter().any(|kernels| {
            kernels.format == format
                && Divides::of(k, kernels.k_multiple) != Divides::Never
                && fits(&kernels.results, matrices.result)
                && matrices.c.is_none_or(|c| fits(&kernels.c, c))
        })
    }
}

/// A weight-only product to rewrite.
struct Product {
    op: Op,
    attributes: ScaledMma,
    operands: Vec<Value>,
    rule: usize,
}

/// Rewrites the products without a kernel; returns true if something changed. `first` is the position of the first
/// rule of this module.
pub(crate) fn lower(draft: &mut Draft, target: &WeightOnly, first: usize, contract: bool) -> bool {
    let products: Vec<Product> =
        draft.module.ops.keys().filter_map(|op| product(draft, target, first, contract, op)).collect();
    let mut weights: HashMap<(Value, Value, ElementType), Value> = HashMap::new();
    for product in &products {
        rewrite(draft, product, &mut weights);
    }
    !products.is_empty()
}

fn product(draft: &Draft, target: &WeightOnly, first: usize, contract: bool, op: Op) -> Option<Product> {
    let operation = &draft.module.ops[op];
    let OpKind::ScaledMma(attributes @ ScaledMma { weight_only: true, beta: false, .. }) = operation.kind
    else {
        return None;
    };
    let c = if attributes.c { operation.operands.get(3 + usize::from(attributes.alpha)) } else { None };
    let element = |value: Value| draft.module.ty(value).element;
    let matrices = Matrices { result: element(operation.results[0]), c: c.map(|c| element(*c)) };
    let [a, b, sfb, ..] = operation.operands[..] else { return None };
    let [a, b, sfb] = [a, b, sfb].map(|value| draft.module.ty(value));
    let format = BlockFormat { a: a.element, b: b.element, scale: sfb.element, block: attributes.block };
    let [.., n, k] = &b.shape[..] else { return None };
    if draft.note(op).gone
        || !target.products.contains(&a.element)
        || target.has_kernel(format, n, k, matrices)
    {
        return None;
    }
    let nvfp4 = format == BlockFormat::NVFP4.weight_only(a.element);
    let mx = format.is_standard() && a.element == ElementType::BF16 && contract;
    let rule = if nvfp4 { Some(first) } else { mx.then_some(first + 1) }?;
    Some(Product { op, attributes, operands: operation.operands.clone(), rule })
}

fn rewrite(draft: &mut Draft, product: &Product, weights: &mut HashMap<(Value, Value, ElementType), Value>) {
    let Product { op, attributes, ref operands, rule } = *product;
    let [a, b, sfb, ref named @ ..] = operands[..] else { return };
    let mut named = named.iter().copied();
    let mut take = |present: bool| if present { named.next() } else { None };
    let (alpha, c) = (take(attributes.alpha), take(attributes.c));
    let position = draft.note(op).position;
    let note = |from: Vec<Op>| Note { position, made: Some((from, vec![rule])), ..Note::default() };
    let result = draft.module.ops[op].results[0];
    let name = draft.module.name_of(result).to_owned();
    let to = draft.module.ty(result).clone();
    let wide = TensorType::new(to.shape.clone(), ElementType::F32);

    let element = draft.module.ty(a).element;
    let weight = *weights.entry((b, sfb, element)).or_insert_with(|| {
        let ty = TensorType::new(draft.module.ty(b).shape.clone(), element);
        let name = format!("{}.dequantized", draft.module.name_of(b));
        let kind = OpKind::BlockDequantize { block: attributes.block };
        let dequantize = draft.add(kind, vec![b, sfb], &name, ty, note(Vec::new()));
        draft.module.ops[dequantize].results[0]
    });
    let mut steps = vec![(OpKind::Mma, vec![weight])];
    steps.extend(alpha.map(|alpha| (OpKind::Binary(BinaryKind::Mul), vec![alpha])));
    steps.extend(c.map(|c| (OpKind::Binary(BinaryKind::Add), vec![c])));
    if to.element != ElementType::F32 {
        steps.push((OpKind::Convert, Vec::new()));
    }
    let last = steps.len() - 1;
    let mut value = a;
    for (index, (kind, others)) in steps.into_iter().enumerate() {
        let operands: Vec<Value> = std::iter::once(value).chain(others).collect();
        if index == last {
            let made = draft.redefine(&[result], kind, operands, note(vec![op]));
            draft.note_mut(op).successor = Some(made);
        } else {
            let name = format!("{name}.{}", if kind == OpKind::Mma { "product" } else { kind.mnemonic() });
            let made = draft.add(kind, operands, &name, wide.clone(), note(vec![op]));
            value = draft.module.ops[made].results[0];
        }
    }
    draft.remove_unused([op]);
}

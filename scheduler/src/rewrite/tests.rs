//! The rules on expressions written by hand.

use fourfold_ir::{BlockFormat, OutputCapability};

use super::*;

const ROOT: &str = "(scaled_mma v0 v1 v2 v3 none none none)";

fn capability() -> FormatCapability {
    let outputs = vec![
        OutputCapability { element: ElementType::BF16, n_multiple: 8 },
        OutputCapability { element: ElementType::F32, n_multiple: 4 },
    ];
    FormatCapability {
        format: BlockFormat::NVFP4,
        k_multiple: 32,
        max_extent: 1 << 20,
        max_scale_bytes: 1 << 30,
        pointer_alignment: 16,
        batched: true,
        c: outputs.clone(),
        outputs,
        bias: vec![ElementType::BF16, ElementType::F32],
        activations: vec![UnaryKind::Relu, UnaryKind::Silu],
    }
}

/// v0 to v3 are NVFP4 operands, v4 a bf16 bias, v5 an f32 matrix, v6 an f16 bias.
fn types(writable: &[ElementType]) -> TypeEnvironment {
    let ty = |element, class| Type { element: Some(element), class };
    let codes = ty(ElementType::F4E2M1FN, ShapeClass::Other);
    let scales = ty(ElementType::F8E4M3FN, ShapeClass::BlockedScales);
    TypeEnvironment {
        leaves: vec![
            codes,
            scales,
            codes,
            scales,
            ty(ElementType::BF16, ShapeClass::Columns),
            ty(ElementType::F32, ShapeClass::Matrix),
            ty(ElementType::F16, ShapeClass::Columns),
        ],
        accumulator: ElementType::F32,
        writable: writable.to_vec(),
    }
}

/// The written form of an expression as text; the rules must have run dry.
#[track_caller]
fn written(text: &str, types: &TypeEnvironment) -> Option<String> {
    let rewriter = Rewriter::new(&capability());
    let expr: RecExpr<Fir> = text.parse().expect(text);
    let runner = rewriter.saturate(&expr, types);
    assert!(matches!(runner.stop_reason, Some(StopReason::Saturated)), "{:?}", runner.stop_reason);
    written_form(&runner.egraph, &expr).map(|(_, form)| form.to_string())
}

const BOTH: [ElementType; 2] = [ElementType::BF16, ElementType::F32];

#[test]
fn a_chain_becomes_the_normal_form() {
    let text = format!("(convert_bf16 (relu (add {ROOT} v4)))");
    let expected = "(write (root v0 v1 v2 v3 none none none) v4 relu convert_bf16)";
    assert_eq!(written(&text, &types(&BOTH)).as_deref(), Some(expected));
}

#[test]
fn every_part_may_be_absent() {
    for (text, parts) in [
        (ROOT.to_owned(), "none none none"),
        (format!("(add v4 {ROOT})"), "v4 none none"),
        (format!("(silu {ROOT})"), "none silu none"),
        (format!("(convert_f32 {ROOT})"), "none none convert_f32"),
        (format!("(convert_bf16 (add {ROOT} v4))"), "v4 none convert_bf16"),
    ] {
        let expected = format!("(write (root v0 v1 v2 v3 none none none) {parts})");
        assert_eq!(written(&text, &types(&BOTH)), Some(expected), "{text}");
    }
}

#[test]
fn plain_mma_has_no_rule() {
    for text in ["(mma v0 v2)", "(relu (mma v0 v2))", "(convert_bf16 (add (mma v0 v2) v4))"] {
        assert_eq!(written(text, &types(&BOTH)), None, "{text}");
    }
}

#[test]
fn what_no_rule_takes_is_no_kernel() {
    for text in [
        format!("(tanh {ROOT})"),
        format!("(add {ROOT} v5)"),
        format!("(add {ROOT} v6)"),
        format!("(add {ROOT} {ROOT})"),
        format!("(add (relu {ROOT}) v4)"),
        format!("(relu (relu {ROOT}))"),
        format!("(add (add {ROOT} v4) v4)"),
        format!("(relu (convert_bf16 {ROOT}))"),
        format!("(convert_f16 {ROOT})"),
        "(scaled_mma v0 v0 v2 v3 none none none)".to_owned(),
        "(scaled_mma v0 v1 v4 v3 none none none)".to_owned(),
        "(scaled_mma v0 v1 v2 v3 none v6 none)".to_owned(),
    ] {
        assert_eq!(written(&text, &types(&BOTH)), None, "{text}");
    }
}

#[test]
fn a_kernel_is_written_only_as_a_writable_element() {
    let bf16_only = types(&[ElementType::BF16]);
    assert_eq!(written(ROOT, &bf16_only), None);
    assert_eq!(written(&format!("(relu {ROOT})"), &bf16_only), None);
    assert!(written(&format!("(convert_bf16 (relu {ROOT}))"), &bf16_only).is_some());
}

#[test]
fn the_proof_is_the_rules_in_the_order_of_the_ops() {
    let nodes: RecExpr<Fir> =
        format!("(convert_bf16 (relu (add v4 {ROOT})))").parse().expect("an expression");
    let prefixes = nodes
        .as_ref()
        .iter()
        .enumerate()
        .filter(|(_, node)| {
            matches!(node, Fir::ScaledMma(_) | Fir::Add(_) | Fir::Apply(..) | Fir::Convert(..))
        })
        .map(|(index, _)| index + 1)
        .collect();
    let found = Rewriter::new(&capability())
        .longest_kernel(Expression { nodes, prefixes, types: types(&BOTH) })
        .expect("a kernel");
    assert_eq!(
        found.proof,
        [
            "scaled_mma-is-root",
            "add-is-bias-on-the-left",
            "relu-is-activation",
            "convert_bf16-is-output",
            "result-is-written"
        ]
    );
    assert_eq!(found.steps, [Step::Bias(Leaf(4)), Step::Activation(UnaryKind::Relu), Step::Convert]);
}

//! The rules, on handwritten expressions.

use egg::{Id, Language, RecExpr};
use fourfold_ir::{
    BinaryKind, BlockFormat, ElementType, EpilogueCapability, FormatCapability, GridCapability,
    OperandCapability, OperandShape, OutputCapability, QuantizedCapability, ReduceKind, UnaryKind,
};

use super::Prover;
use crate::expression::{Class, Expression, Member, Source, Type, TypeEnvironment};
use crate::language::{Attribute, KernelTerm};

const ROOT: &str = "(scaled_mma v0 v1 v2 v3 none none none)";
const BF16: ElementType = ElementType::BF16;
const F32: ElementType = ElementType::F32;
const NVFP4: QuantizedCapability = QuantizedCapability {
    element: ElementType::F4E2M1FN,
    scale: ElementType::F8E4M3FN,
    block: 16,
    n_multiple: 32,
};
const MXFP8: QuantizedCapability = QuantizedCapability {
    element: ElementType::F8E4M3FN,
    scale: ElementType::F8E8M0FNU,
    block: 32,
    n_multiple: 32,
};

fn capability() -> FormatCapability {
    let rule = |element, n_multiple| OutputCapability { element, n_multiple };
    let outputs = vec![rule(BF16, 8), rule(F32, 4)];
    let operand = |shape, most| OperandCapability { shape, elements: outputs.clone(), most };
    FormatCapability {
        format: BlockFormat::NVFP4,
        k_multiple: 32,
        max_extent: 1 << 20,
        grid: GridCapability {
            max_matrices: 1 << 20,
            max_columns: 1 << 20,
            tile: [128, 64],
            max_tiles: 1 << 20,
        },
        max_scale_bytes: 1 << 30,
        operand_alignment: [16; 2],
        pointer_alignment: 16,
        batched: true,
        has_linear_scales: false,
        max_groups: None,
        has_masked: false,
        has_group_scales: false,
        c: outputs.clone(),
        epilogue: EpilogueCapability {
            elements: vec![ElementType::F8E4M3FN, BF16, F32],
            unary: vec![UnaryKind::Relu, UnaryKind::Silu],
            binary: vec![BinaryKind::Add, BinaryKind::Mul],
            clamp: true,
            select: true,
            operands: vec![
                operand(OperandShape::Scalar, 1),
                operand(OperandShape::Row, 2),
                operand(OperandShape::Matrix, 1),
            ],
            max_steps: 8,
            quantized: vec![NVFP4, MXFP8],
            reductions: vec![ReduceKind::Amax, ReduceKind::Max],
            max_outputs: 3,
        },
        pairs: None,
        outputs,
    }
}

/// Leaves: v0 to v3 are NVFP4 operands, v4 a bf16 row, v5 an f32 matrix, v6 an f16 row, v7 a column, v8 a
/// constant, v9 an f32 scalar.
fn types(writable: &[ElementType]) -> TypeEnvironment {
    let ty = |element, class| Type { element: Some(element), class, inlined: false };
    let codes = ty(ElementType::F4E2M1FN, Class::Other);
    let scales = ty(ElementType::F8E4M3FN, Class::BlockedScales);
    let operand = |element, shape| ty(element, Class::Operand(shape));
    TypeEnvironment {
        leaves: vec![
            codes,
            scales,
            codes,
            scales,
            operand(BF16, OperandShape::Row),
            operand(F32, OperandShape::Matrix),
            operand(ElementType::F16, OperandShape::Row),
            operand(F32, OperandShape::Column),
            Type { inlined: true, ..ty(F32, Class::Other) },
            operand(F32, OperandShape::Scalar),
        ],
        accumulator: F32,
        has_linear_sfa: false,
        writable: writable.to_vec(),
        matrices: vec![F32],
        quantized: vec![NVFP4, MXFP8],
        reductions: vec![ReduceKind::Amax],
    }
}

const BOTH: [ElementType; 2] = [BF16, F32];

/// The written form of an expression as text. The rules must have reached a fixed point.
#[track_caller]
fn written(text: &str, types: &TypeEnvironment) -> Option<String> {
    let prover = Prover::new(&capability());
    let nodes: RecExpr<KernelTerm> = text.parse().expect(text);
    let (egraph, classes) = prover.saturate(&nodes, types);
    let class = &egraph[egraph.find(*classes.last()?)];
    let written = class.iter().find(|node| matches!(node, KernelTerm::Write(_)))?;
    // No rule adds a term below a `write`, so every class has one node.
    Some(written.build_recexpr(|id| egraph[id].nodes[0].clone()).to_string())
}

#[track_caller]
fn check_written(text: &str, expression: &str) {
    let expected = format!("(write (root v0 v1 v2 v3 none none none) {expression})");
    assert_eq!(written(text, &types(&BOTH)), Some(expected), "{text}");
}

#[test]
fn ops_join_one_after_the_other() {
    check_written(ROOT, "acc");
    check_written(
        &format!("(convert bf16 (unary relu (binary add {ROOT} v4)))"),
        "(convert bf16 (unary relu (binary add acc v4)))",
    );
    check_written(
        &format!("(binary add v4 (unary silu (unary silu {ROOT})))"),
        "(binary add v4 (unary silu (unary silu acc)))",
    );
    check_written(&format!("(clamp -1.0..6.0 {ROOT})"), "(clamp -1.0..6.0 acc)");
}

#[test]
fn branches_join_where_they_meet() {
    check_written(&format!("(binary add {ROOT} {ROOT})"), "(binary add acc acc)");
    let gate = format!("(unary silu {ROOT})");
    check_written(
        &format!("(binary mul {gate} (binary add v5 {gate}))"),
        "(binary mul (unary silu acc) (binary add v5 (unary silu acc)))",
    );
    let mask = format!("(compare lt {ROOT} v4)");
    for (text, expected) in [
        (format!("(select {mask} {ROOT} {gate})"), "acc (unary silu acc)"),
        (format!("(select {mask} v5 {gate})"), "v5 (unary silu acc)"),
        (format!("(select {mask} {gate} v5)"), "(unary silu acc) v5"),
        (format!("(select {mask} v4 v5)"), "v4 v5"),
    ] {
        check_written(&text, &format!("(select (compare lt acc v4) {expected})"));
    }
    check_written(
        &format!("(select (compare ge v4 {ROOT}) v5 {ROOT})"),
        "(select (compare ge v4 acc) v5 acc)",
    );
}

#[test]
fn plain_mma_has_no_rule() {
    for text in ["(mma v0 v2)", "(unary relu (mma v0 v2))", "(binary add (mma v0 v2) v4)"] {
        assert_eq!(written(text, &types(&BOTH)), None, "{text}");
    }
}

#[test]
fn what_no_rule_takes_is_no_kernel() {
    for text in [
        format!("(unary tanh {ROOT})"),
        format!("(binary div {ROOT} v4)"),
        format!("(binary add {ROOT} v6)"),
        format!("(binary add {ROOT} v7)"),
        format!("(binary add {ROOT} (unary relu v5))"),
        format!("(binary add {ROOT} (mma v0 v2))"),
        format!("(convert f16 {ROOT})"),
        format!("(convert f32 (compare lt {ROOT} v4))"),
        format!("(compare lt {ROOT} v4)"),
        format!("(select v5 {ROOT} v4)"),
        format!("(select {ROOT} {ROOT} v4)"),
        "(scaled_mma v0 v0 v2 v3 none none none)".to_owned(),
        "(scaled_mma v0 v1 v4 v3 none none none)".to_owned(),
        "(scaled_mma v0 v1 v2 v3 none v6 none)".to_owned(),
    ] {
        assert_eq!(written(&text, &types(&BOTH)), None, "{text}");
    }
    let n_does_not_fit = TypeEnvironment { matrices: vec![BF16], ..types(&BOTH) };
    assert_eq!(written(&format!("(binary add {ROOT} v5)"), &n_does_not_fit), None);
}

#[test]
fn a_kernel_is_written_only_as_a_writable_element() {
    let bf16_only = types(&[BF16]);
    assert_eq!(written(ROOT, &bf16_only), None);
    assert_eq!(written(&format!("(unary relu {ROOT})"), &bf16_only), None);
    assert!(written(&format!("(convert bf16 (unary relu {ROOT}))"), &bf16_only).is_some());
}

/// The expression of a chain of ops, each using the one before. The last is used outside.
fn expression(ops: &[&str]) -> Expression {
    let text = ops.iter().fold(ROOT.to_owned(), |text, op| op.replace('_', &text));
    let nodes: RecExpr<KernelTerm> = text.parse().expect("an expression");
    let mut terms = vec![Id::from(nodes.as_ref().len() - 1)];
    let is_op = |id: &&Id| {
        !matches!(nodes[**id], KernelTerm::Leaf(_) | KernelTerm::Attribute(_) | KernelTerm::Absent)
    };
    while let Some(inner) = terms.last().and_then(|last| nodes[*last].children().iter().find(is_op)) {
        terms.push(*inner);
    }
    terms.reverse();
    let members = terms.iter().enumerate().map(|(position, term)| {
        let node = &nodes[*term];
        let source = |child: &Id| match nodes[*child] {
            KernelTerm::Leaf(leaf) => Some(Source::Leaf(leaf.0)),
            KernelTerm::Attribute(_) | KernelTerm::Absent => None,
            _ => Some(Source::Member(position - 1)),
        };
        let operands =
            if position == 0 { Vec::new() } else { node.children().iter().filter_map(source).collect() };
        let sink = matches!(node, KernelTerm::Quantize(_) | KernelTerm::Reduce(_));
        let tensors = if matches!(node, KernelTerm::Quantize(_)) { 2 } else { 1 };
        Member {
            term: *term,
            sink,
            operands,
            tensors,
            seen: sink || position + 1 == terms.len(),
            halves: Vec::new(),
        }
    });
    let members = members.collect();
    Expression { nodes, members, types: types(&BOTH) }
}

/// The number of ops in the kernel of a chain, and the names of the rules.
fn largest(expression: Expression) -> Option<(usize, Vec<String>)> {
    let found = Prover::new(&capability()).largest_kernel(expression)?;
    Some((found.members.len(), found.proof))
}

fn size(ops: &[&str]) -> Option<usize> {
    largest(expression(ops)).map(|(members, _)| members)
}

#[test]
fn the_proof_is_the_rules_in_the_order_of_the_ops() {
    let ops = ["(binary add v4 _)", "(unary relu _)", "(convert bf16 _)"];
    let (members, proof) = largest(expression(&ops)).expect("a kernel");
    assert_eq!(members, 4);
    assert_eq!(
        proof,
        [
            "scaled_mma-is-root",
            "binary-joins-after-operand",
            "unary-joins",
            "convert-joins",
            "result-is-written"
        ]
    );
    let mut quantized = expression(&["(unary relu _)", "(quantize f4E2M1FN:f8E4M3FN/16 _ v9)"]);
    quantized.members[0].seen = true;
    let (_, proof) = largest(quantized).expect("a kernel");
    assert_eq!(proof, ["scaled_mma-is-root", "unary-joins", "quantize-joins", "result-is-written"]);
}

#[test]
fn the_largest_kernel_has_no_more_operands_than_there_may_be() {
    assert_eq!(size(&["(binary add _ v5)", "(binary add _ v5)", "(binary mul _ v4)"]), Some(4));
    let mut three_rows = expression(&["(binary add _ v4)", "(binary add _ v6)", "(binary add _ v7)"]);
    for leaf in [6, 7] {
        three_rows.types.leaves[leaf] = three_rows.types.leaves[4];
    }
    assert_eq!(largest(three_rows).map(|(members, _)| members), Some(3));
}

#[test]
fn a_constant_is_part_of_a_kernel_that_has_all_its_users() {
    assert_eq!(size(&["(binary mul _ v8)", "(unary relu _)", "(binary add _ v8)"]), Some(4));
    // The constant's last user stays outside, and the epilogue cannot read it as an operand.
    assert_eq!(size(&["(binary mul _ v8)", "(unary tanh _)", "(binary add _ v8)"]), Some(1));
}

#[test]
fn blocks_and_reductions_end_an_expression() {
    let root = "(root v0 v1 v2 v3 none none none)";
    for (text, end) in [
        ("(quantize f4E2M1FN:f8E4M3FN/16 _ v9)", "(quantize f4E2M1FN:f8E4M3FN/16 (unary relu acc) v9)"),
        (
            "(quantize f8E4M3FN:f8E8M0FNU/32:ceil _ none)",
            "(quantize f8E4M3FN:f8E8M0FNU/32:ceil (unary relu acc) none)",
        ),
        ("(reduce amax@column _)", "(reduce amax@column (unary relu acc))"),
    ] {
        let text = text.replace('_', &format!("(unary relu {ROOT})"));
        assert_eq!(written(&text, &types(&BOTH)), Some(format!("(write {root} {end})")), "{text}");
    }
    for text in [
        // An unknown format, a non-scalar global scale, a reduction that M or L do not permit, a value that
        // is not f32.
        "(quantize f4E2M1FN:f8E8M0FNU/32:floor _ none)",
        "(quantize f4E2M1FN:f8E4M3FN/16 _ v4)",
        "(quantize f4E2M1FN:f8E4M3FN/16 _ v8)",
        "(quantize f4E2M1FN:f8E4M3FN/16 (compare lt _ v4) v9)",
        "(quantize f8E4M3FN:f8E8M0FNU/32:ceil (convert f8E4M3FN _) none)",
        "(quantize f4E2M1FN:f8E4M3FN/16 v5 v9)",
        "(reduce max@scalar _)",
        "(reduce sum@scalar _)",
        "(reduce amax@row (convert bf16 _))",
        "(reduce amax@row (mma v0 v2))",
        // No op inside can use a sink's result.
        "(unary relu (reduce amax@scalar _))",
        "(binary mul _ (reduce amax@column _))",
    ] {
        let text = text.replace('_', ROOT);
        assert_eq!(written(&text, &types(&BOTH)), None, "{text}");
    }
}

#[test]
fn fp8_is_converted_back_and_no_further() {
    let narrow = format!("(convert f8E4M3FN {ROOT})");
    check_written(
        &format!("(unary relu (convert f32 {narrow}))"),
        "(unary relu (convert f32 (convert f8E4M3FN acc)))",
    );
    for text in [
        // It may be written if the outputs permit its type.
        narrow.clone(),
        format!("(convert f8E5M2 {ROOT})"),
        format!("(convert f8E4M3FN {narrow})"),
        format!("(unary relu {narrow})"),
        format!("(binary add {narrow} v4)"),
        format!("(reduce amax@row {narrow})"),
    ] {
        assert_eq!(written(&text, &types(&BOTH)), None, "{text}");
    }
    assert!(written(&narrow, &types(&[ElementType::F8E4M3FN])).is_some());
}

#[test]
fn a_kernel_writes_no_more_than_it_may_and_keeps_the_earlier_ops() {
    // Three values, each used outside.
    let mut seen = expression(&["(unary relu _)", "(unary silu _)", "(unary relu _)", "(unary silu _)"]);
    seen.members.iter_mut().for_each(|member| member.seen = true);
    let found = Prover::new(&capability()).largest_kernel(seen.clone()).expect("a kernel");
    assert_eq!((&found.members[..], &found.written[..]), (&[0, 1, 2][..], &[0, 1, 2][..]));
    // The second value is not used outside, so a fourth op fits.
    seen.members[1].seen = false;
    let found = Prover::new(&capability()).largest_kernel(seen).expect("a kernel");
    assert_eq!((&found.members[..], &found.written[..]), (&[0, 1, 2, 3][..], &[0, 2, 3][..]));
}

#[test]
fn what_cannot_be_written_leaves_with_all_that_depends_on_it() {
    let mut masked =
        expression(&["(unary relu _)", "(convert f8E4M3FN _)", "(convert f32 _)", "(unary silu _)"]);
    let kernel = |expression: &Expression| {
        Prover::new(&capability())
            .largest_kernel(expression.clone())
            .map(|found| (found.members, found.written))
    };
    assert_eq!(kernel(&masked), Some((vec![0, 1, 2, 3, 4], vec![4])));
    masked.members[2].seen = true;
    assert_eq!(kernel(&masked), Some((vec![0, 1], vec![1])));
}

#[test]
fn shared_terms_are_written_once() {
    // 2^40 terms as a tree.
    let mut nodes: RecExpr<KernelTerm> = ROOT.parse().expect("an expression");
    let mut terms = vec![Id::from(nodes.as_ref().len() - 1)];
    for _ in 0..40 {
        let last = *terms.last().expect("the root is in the kernel");
        let function = nodes.add(KernelTerm::Attribute(Attribute::Binary(BinaryKind::Mul)));
        terms.push(nodes.add(KernelTerm::Binary([function, last, last])));
    }
    let members = terms.iter().enumerate().map(|(position, term)| Member {
        term: *term,
        sink: false,
        operands: position.checked_sub(1).map(Source::Member).into_iter().collect(),
        tensors: 1,
        seen: position == 40,
        halves: Vec::new(),
    });
    let members = members.collect();
    let mut capability = capability();
    capability.epilogue.max_steps = 40;
    let expression = Expression { nodes, members, types: types(&BOTH) };
    let found = Prover::new(&capability).largest_kernel(expression);
    assert_eq!(found.map(|found| (found.members.len(), found.proof.len())), Some((41, 42)));
}

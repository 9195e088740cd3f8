//! Layer norm and softmax written out op by op: the forms, near misses, and numbers before and after.

use std::collections::HashMap;

use fourfold_ir::{ElementType, Program, Tensor, text};

use super::contract::check_pattern;
use super::support::{describe, function, normalized};

const ROWS: usize = 8;
const COLUMNS: usize = 24;

/// A program over `%x` `[8, 24]`. A line is `name = op; shape`, where the shape is `full`, `row` (`[8, 1]`), `rows`
/// (`[8]`), `column` (`[1, 24]`), `channels` (`[24]`) or `scalar`, or a type. `T` is the element type.
fn program(element: &str, lines: &[&str], outputs: &str) -> Program {
    let inputs = "%x: tensor<[8, 24], T>, %z: tensor<[8, 24], T>, %w: tensor<[24], T>, %b: tensor<[24], T>, \
         %wide: tensor<[1, 24], T>, %per_row: tensor<[8, 1], T>";
    let constants = [
        ("eps", "1e-05"),
        ("zero", "0"),
        ("tiny", "1e-40"),
        ("one", "1"),
        ("two", "2"),
        ("half", "0.5"),
        ("minus_half", "-0.5"),
        ("count", "24"),
        ("fewer", "23"),
    ];
    // Unused constants stay in a program, so only those that are read are written.
    let is_read = |name: &str| {
        let reads =
            |line: &&str| line.split([' ', ',', ';']).any(|word| word.strip_prefix('%') == Some(name));
        lines.iter().any(reads)
    };
    let mut body = String::new();
    for (name, value) in constants.into_iter().filter(|(name, _)| is_read(name)) {
        body += &format!("  %{name} = constant {{value = {value}}} : tensor<[], T>\n");
    }
    for line in lines {
        let (op, shape) = line.split_once("; ").expect("a line has a shape");
        let ty = match shape {
            "full" => "tensor<[8, 24], T>",
            "row" => "tensor<[8, 1], T>",
            "rows" => "tensor<[8], T>",
            "column" => "tensor<[1, 24], T>",
            "channels" => "tensor<[24], T>",
            "scalar" => "tensor<[], T>",
            ty => ty,
        };
        body += &format!("  %{op} : {ty}\n");
    }
    let body = format!("{body}  return {outputs}");
    function(
        &inputs.replace(", T>", &format!(", {element}>")),
        &body.replace(", T>", &format!(", {element}>")),
    )
}

const MEAN: &str = "m = reduce %x {axes = [1], keep_dims = true, kind = mean}; row";
const CENTERED: &str = "d = sub %x, %m; full";
const SQUARE: &str = "s = mul %d, %d; full";
const VARIANCE: &str = "v = reduce %s {axes = [1], keep_dims = true, kind = mean}; row";
const SUM: &str = "e = add %v, %eps; row";

/// Layer norms as exporters write them.
fn layer_norms() -> Vec<Vec<&'static str>> {
    let start = [MEAN, CENTERED, SQUARE, VARIANCE, SUM];
    let with = |rest: &[&'static str]| [&start[..], rest].concat();
    vec![
        // ONNX.
        with(&["r = sqrt %e; row", "n = div %d, %r; full", "p = mul %n, %w; full", "y = add %p, %b; full"]),
        // Inductor.
        with(&["r = rsqrt %e; row", "n = mul %d, %r; full", "p = mul %n, %w; full", "y = add %p, %b; full"]),
        // Operands the other way round, reciprocals, and powers.
        with(&[
            "q = sqrt %e; row",
            "r = reciprocal %q; row",
            "n = mul %r, %d; full",
            "p = mul %w, %n; full",
            "y = add %b, %p; full",
        ]),
        with(&[
            "q = sqrt %e; row",
            "r = div %one, %q; row",
            "n = mul %d, %r; full",
            "p = mul %n, %wide; full",
            "y = add %p, %b; full",
        ]),
        with(&[
            "r = pow %e, %minus_half; row",
            "n = mul %d, %r; full",
            "p = mul %n, %w; full",
            "y = add %p, %wide; full",
        ]),
        with(&[
            "r = pow %e, %half; row",
            "n = div %d, %r; full",
            "p = mul %n, %w; full",
            "y = add %p, %b; full",
        ]),
        // Without weight, without bias, without both.
        with(&["r = sqrt %e; row", "n = div %d, %r; full", "y = add %n, %b; full"]),
        with(&["r = sqrt %e; row", "n = div %d, %r; full", "y = mul %n, %w; full"]),
        with(&["r = rsqrt %e; row", "y = mul %d, %r; full"]),
        // A difference that is computed twice, a square as a power, and everything repeated explicitly.
        vec![
            MEAN,
            "mm = broadcast %m; full",
            "d = sub %x, %mm; full",
            "s = pow %d, %two; full",
            VARIANCE,
            "e = add %eps, %v; row",
            "r = rsqrt %e; row",
            "rr = broadcast %r; full",
            "m2 = reduce %x {axes = [1], keep_dims = true, kind = mean}; row",
            "d2 = sub %x, %m2; full",
            "n = mul %d2, %rr; full",
            "ww = broadcast %w; full",
            "p = mul %n, %ww; full",
            "b1 = reshape %b; column",
            "y = add %p, %b1; full",
        ],
        // Means as sums, without the reduced axis.
        vec![
            "t = reduce %x {axes = [1], keep_dims = false, kind = sum}; rows",
            "m0 = div %t, %count; rows",
            "m = reshape %m0; row",
            CENTERED,
            SQUARE,
            "v0 = reduce %s {axes = [1], keep_dims = false, kind = mean}; rows",
            "e = add %v0, %eps; rows",
            "r0 = rsqrt %e; rows",
            "r = reshape %r0; row",
            "n = mul %d, %r; full",
            "p = mul %n, %w; full",
            "y = add %p, %b; full",
        ],
    ]
}

/// A layer norm in bf16 as torch computes it: each op in f32, and its result rounded.
const NARROWED: [&str; 17] = [
    "xf = convert %x; tensor<[8, 24], f32>",
    "m = reduce %xf {axes = [1], keep_dims = true, kind = mean}; tensor<[8, 1], f32>",
    "mb = convert %m; row",
    "mf = convert %mb; tensor<[8, 1], f32>",
    "xg = convert %x; tensor<[8, 24], f32>",
    "d = sub %xg, %mf; tensor<[8, 24], f32>",
    "db = convert %d; full",
    "df = convert %db; tensor<[8, 24], f32>",
    "s = mul %df, %df; tensor<[8, 24], f32>",
    "v = reduce %s {axes = [1], keep_dims = true, kind = mean}; tensor<[8, 1], f32>",
    "epsf = constant {value = 1e-05}; tensor<[], f32>",
    "e = add %v, %epsf; tensor<[8, 1], f32>",
    "r = rsqrt %e; tensor<[8, 1], f32>",
    "n = mul %df, %r; tensor<[8, 24], f32>",
    "wf = convert %w; tensor<[24], f32>",
    "y0 = mul %n, %wf; tensor<[8, 24], f32>",
    "y = convert %y0; full",
];

const MAX: &str = "m = reduce %x {axes = [1], keep_dims = true, kind = max}; row";
const EXP: &str = "e = exp %d; full";
const TOTAL: &str = "t = reduce %e {axes = [1], keep_dims = true, kind = sum}; row";

fn softmaxes() -> Vec<Vec<&'static str>> {
    let start = [MAX, CENTERED, EXP, TOTAL];
    let with = |rest: &[&'static str]| [&start[..], rest].concat();
    vec![
        with(&["y = div %e, %t; full"]),
        with(&["r = reciprocal %t; row", "y = mul %r, %e; full"]),
        with(&["r = div %one, %t; row", "y = mul %e, %r; full"]),
        // Along the first axis, with repeated numbers.
        vec![
            "m = reduce %x {axes = [0], keep_dims = true, kind = max}; column",
            "mm = broadcast %m; full",
            "d = sub %x, %mm; full",
            EXP,
            "t = reduce %e {axes = [0], keep_dims = true, kind = sum}; column",
            "y = div %e, %t; full",
        ],
        vec![
            "m0 = reduce %x {axes = [1], keep_dims = false, kind = max}; rows",
            "m = reshape %m0; row",
            CENTERED,
            EXP,
            "t0 = reduce %e {axes = [1], keep_dims = false, kind = sum}; rows",
            "t = reshape %t0; row",
            "y = div %e, %t; full",
        ],
    ]
}

/// Rows of ordinary, large, small and equal numbers, zeros, a NaN, and infinities.
fn inputs(element: ElementType) -> HashMap<String, Tensor> {
    let ordinary = |row: usize, column: usize| ((row * 31 + column * 17) % 29) as f64 / 7.0 - 2.0;
    let at = |row: usize, column: usize| match (row, column) {
        (3, 5) => f64::NAN,
        (4, 7) | (5, 0) => f64::INFINITY,
        (5, 9) => f64::NEG_INFINITY,
        (6, _) => 3.0,
        (7, column) => [0.0, -0.0][column % 2],
        (1, _) => ordinary(row, column) * 2f64.powi(40),
        (2, _) => ordinary(row, column) * 2f64.powi(-60),
        _ => ordinary(row, column),
    };
    let all: Vec<f64> = (0..ROWS * COLUMNS).map(|index| at(index / COLUMNS, index % COLUMNS)).collect();
    let row = |offset: usize| (0..COLUMNS).map(|column| ordinary(offset, column)).collect::<Vec<f64>>();
    let tensor = |dims: &[usize], values: &[f64]| {
        Tensor::from_f64(element, dims.to_vec(), None, values).expect("the number of values fits")
    };
    HashMap::from([
        ("x".to_owned(), tensor(&[ROWS, COLUMNS], &all)),
        ("z".to_owned(), tensor(&[ROWS, COLUMNS], &all)),
        ("w".to_owned(), tensor(&[COLUMNS], &row(1))),
        ("b".to_owned(), tensor(&[COLUMNS], &row(2))),
        ("wide".to_owned(), tensor(&[1, COLUMNS], &row(3))),
        ("per_row".to_owned(), tensor(&[ROWS, 1], &row(4)[..ROWS])),
    ])
}

#[track_caller]
fn check(element: ElementType, program: &Program, rule: &str, mnemonic: &str, close: f64) {
    let contracted = normalized(program, true);
    let module = contracted.program().module();
    let is_norm = |op: &fourfold_ir::Op| module.ops[*op].kind.mnemonic() == mnemonic;
    let rules: Vec<_> = contracted.contracted().flat_map(|(_, rules)| rules).collect();
    assert!(module.ops.keys().any(|op| is_norm(&op)), "{}", describe(program, &contracted));
    assert!(rules.contains(&rule), "{}", describe(program, &contracted));
    assert!(
        !module.ops.keys().any(|op| module.ops[op].kind.mnemonic() == "reduce"),
        "{}",
        text::print(module)
    );
    check_pattern(program, &contracted, &inputs(element), Some(close));
    let exact = normalized(program, false);
    assert!(exact.contracted().next().is_none(), "none applies unasked");
    assert!(!exact.program().module().ops.values().any(|op| op.kind.mnemonic() == mnemonic));
}

/// Checks that contract rules recognize no norm.
#[track_caller]
fn check_stays(element: &str, lines: &[&str], outputs: &str) {
    let program = program(element, lines, outputs);
    let contracted = normalized(&program, true);
    let ops = &contracted.program().module().ops;
    let is_norm = ops.values().any(|op| matches!(op.kind.mnemonic(), "layer_norm" | "softmax"));
    assert!(!is_norm, "{}", describe(&program, &contracted));
}

#[test]
fn layer_norms_written_out_are_recognized_under_contract() {
    for form in layer_norms() {
        for (element, name, close) in [(ElementType::F32, "f32", 1e-5), (ElementType::BF16, "bf16", 0.05)] {
            check(element, &program(name, &form, "%y"), "written-layer-norm", "layer_norm", close);
        }
    }
    check(ElementType::BF16, &program("bf16", &NARROWED, "%y"), "written-layer-norm", "layer_norm", 0.05);
}

#[test]
fn softmaxes_written_out_are_recognized_under_contract() {
    for form in softmaxes() {
        for (element, name, close) in [(ElementType::F32, "f32", 1e-5), (ElementType::BF16, "bf16", 0.05)] {
            check(element, &program(name, &form, "%y"), "written-softmax", "softmax", close);
        }
    }
}

/// One op of a form replaced by another.
fn instead(form: &[&'static str], name: &str, line: &'static str) -> Vec<&'static str> {
    let is_named = |line: &&str| line.split(' ').next() == Some(name);
    assert!(form.iter().any(is_named), "{name} is in the form");
    form.iter().map(|old| if is_named(old) { line } else { *old }).collect()
}

#[test]
fn what_only_looks_like_a_layer_norm_stays() {
    let form = &layer_norms()[0];
    for (name, line) in [
        // Another axis or tensor.
        ("m", "m = reduce %x {axes = [0], keep_dims = true, kind = mean}; column"),
        ("m", "m = reduce %x {axes = [0, 1], keep_dims = true, kind = mean}; tensor<[1, 1], T>"),
        ("m", "m = reduce %z {axes = [1], keep_dims = true, kind = mean}; row"),
        ("m", "m = reduce %x {axes = [1], keep_dims = true, kind = max}; row"),
        ("s", "s = mul %d, %x; full"),
        ("s", "s = mul %x, %x; full"),
        ("v", "v = reduce %s {axes = [1], keep_dims = true, kind = sum}; row"),
        ("v", "v = reduce %s {axes = [1], keep_dims = true, kind = amax}; row"),
        // A difference the other way round, and a sum.
        ("d", "d = sub %m, %x; full"),
        ("d", "d = add %x, %m; full"),
        // No usable eps.
        ("e", "e = add %v, %zero; row"),
        ("e", "e = add %v, %tiny; row"),
        ("e", "e = sub %v, %eps; row"),
        ("e", "e = add %v, %per_row; row"),
        ("e", "e = max %v, %eps; row"),
        // The root that the other operation needs.
        ("r", "r = rsqrt %e; row"),
        ("r", "r = abs %e; row"),
        ("n", "n = div %x, %r; full"),
        ("n", "n = div %r, %d; full"),
        ("n", "n = mul %d, %r; full"),
    ] {
        check_stays("f32", &instead(form, name, line), "%y");
    }
    // eps outside the root.
    let outside = [
        MEAN,
        CENTERED,
        SQUARE,
        VARIANCE,
        "q = sqrt %v; row",
        "r = add %q, %eps; row",
        "n = div %d, %r; full",
        "p = mul %n, %w; full",
        "y = add %p, %b; full",
    ];
    check_stays("f32", &outside, "%y");
    // The variance of a sample.
    let sample = [
        MEAN,
        CENTERED,
        SQUARE,
        "t = reduce %s {axes = [1], keep_dims = true, kind = sum}; row",
        "v = div %t, %fewer; row",
        SUM,
        "r = sqrt %e; row",
        "y = div %d, %r; full",
    ];
    check_stays("f32", &sample, "%y");
    // No mean is subtracted: rms_norm.
    let rms = [
        "s = mul %x, %x; full",
        VARIANCE,
        SUM,
        "r = rsqrt %e; row",
        "n = mul %x, %r; full",
        "y = mul %n, %w; full",
    ];
    check_stays("f32", &rms, "%y");
    // Intermediates that are used elsewhere, but for the normalized values.
    for escaping in ["%m", "%d", "%s", "%v", "%e", "%r"] {
        check_stays("f32", form, &format!("{escaping}, %y"));
    }
    // Squares overflow at 256.
    check_stays("f16", form, "%y");
}

#[test]
fn a_norm_ends_before_what_does_not_belong_to_it() {
    for (name, line, outputs) in [
        // A factor per row, an addend that is no row, and a product that is used elsewhere.
        ("p", "p = mul %n, %per_row; full", "%y"),
        ("p", "p = mul %n, %n; full", "%y"),
        ("y", "y = add %p, %z; full", "%y"),
        ("y", "y = sub %p, %b; full", "%y"),
        ("y", "y = add %p, %b; full", "%p, %y"),
        ("y", "y = add %p, %b; full", "%n, %y"),
    ] {
        let lines = instead(&layer_norms()[0], name, line);
        let program = program("f32", &lines, outputs);
        let contracted = normalized(&program, true);
        let output = *contracted.program().module().outputs.last().expect("an output");
        let last = contracted.program().module().defining_op(output).expect("an op");
        let ops = &contracted.program().module().ops;
        assert!(
            ops.values().any(|op| op.kind.mnemonic() == "layer_norm"),
            "{}",
            describe(&program, &contracted)
        );
        assert_ne!(ops[last].kind.mnemonic(), "layer_norm", "{}", describe(&program, &contracted));
        check_pattern(&program, &contracted, &inputs(ElementType::F32), Some(1e-5));
    }
}

#[test]
fn what_only_looks_like_a_softmax_stays() {
    let form = &softmaxes()[0];
    for (name, line) in [
        ("m", "m = reduce %x {axes = [0], keep_dims = true, kind = max}; column"),
        ("m", "m = reduce %x {axes = [0, 1], keep_dims = true, kind = max}; tensor<[1, 1], T>"),
        ("m", "m = reduce %x {axes = [1], keep_dims = true, kind = amax}; row"),
        ("m", "m = reduce %z {axes = [1], keep_dims = true, kind = max}; row"),
        ("d", "d = sub %m, %x; full"),
        ("d", "d = sub %x, %per_row; full"),
        ("e", "e = tanh %d; full"),
        ("t", "t = reduce %e {axes = [0], keep_dims = true, kind = sum}; column"),
        ("t", "t = reduce %e {axes = [1], keep_dims = true, kind = mean}; row"),
        ("t", "t = reduce %d {axes = [1], keep_dims = true, kind = sum}; row"),
        ("y", "y = div %t, %e; full"),
        ("y", "y = mul %e, %t; full"),
        ("y", "y = div %d, %t; full"),
    ] {
        check_stays("f32", &instead(form, name, line), "%y");
    }
    let without_max = ["e = exp %x; full", TOTAL, "y = div %e, %t; full"];
    check_stays("f32", &without_max, "%y");
    for escaping in ["%m", "%d", "%e", "%t"] {
        check_stays("f32", form, &format!("{escaping}, %y"));
    }
    check_stays("f16", form, "%y");
}

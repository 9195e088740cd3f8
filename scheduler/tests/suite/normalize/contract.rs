//! Contract rules change only last bits: a result is NaN or infinite exactly where the original program's is.

use std::collections::{BTreeSet, HashMap};

use fourfold_ir::{
    ElementType, Entity, OpKind, Program, SymbolValues, Tensor, UnaryKind, bind, interpret, text,
};
use fourfold_scheduler::{Fate, Normalized, Origin, normalize_rules};

use super::support::{Random, describe, function, normalized, poisoned_inputs};
use super::weight_only::{normalized_for, with_kernels, without_kernels};

/// Values at which formulas change behaviour, for every float type.
fn specials(element: ElementType) -> Vec<f64> {
    let (most, least, normal) = match element {
        ElementType::F16 => (65_504.0, 2f64.powi(-24), 2f64.powi(-14)),
        ElementType::BF16 => (255.0 * 2f64.powi(120), 2f64.powi(-133), 2f64.powi(-126)),
        _ => (f64::from(f32::MAX), 2f64.powi(-149), 2f64.powi(-126)),
    };
    let root = most.sqrt();
    let positive =
        [0.0, least, 3.0 * least, normal, most, most / 2.0, 0.51 * most, 0.25 * most, root, 2.0 * root]
            .into_iter()
            .chain([
                f64::INFINITY,
                0.3,
                1.0,
                3.0,
                5.6,
                9.0,
                11.0,
                12.0,
                15.0,
                17.0,
                88.0,
                89.0,
                100.0,
                105.0,
                120.0,
            ])
            .chain([256.0, 300.0, most.cbrt(), 2.0 * most.cbrt()]);
    positive.flat_map(|x| [x, -x]).chain([f64::NAN]).collect()
}

const EXTENTS: (usize, usize) = (8, 24);

/// `%x` equals the given tensor, in a form that follows a multiplication.
fn activation(element: &str, body: &str) -> Program {
    let inputs = format!(
        "%a: tensor<[8, 64], f4E2M1FN>, %sa: tensor<[8, 4], f8E4M3FN, blocked>, param %b: tensor<[24, 64], f4E2M1FN>, \
         param %sb: tensor<[24, 4], f8E4M3FN, blocked>, %given: tensor<[8, 24], {element}>, %all: tensor<[8, 24], i1>"
    );
    let constants = [
        ("one", "1"),
        ("half", "0.5"),
        ("two", "2"),
        ("three", "3"),
        ("root", "1.4142135"),
        ("c", "0.044715"),
        ("k", "0.7978845608"),
        ("quarter", "0.25"),
        ("tiny", "1e-30"),
        ("huge", "1e30"),
    ]
    .map(|(name, value)| format!("  %{name} = constant {{value = {value}}} : tensor<[], T>\n"))
    .concat();
    let lines = body.split("; ").map(|line| format!("  %{line} : tensor<[8, 24], T>\n")).collect::<String>();
    let body = format!(
        "  %p = scaled_mma %a, %sa, %b, %sb {{block = 16}} : tensor<[8, 24], T>
  %x = select %all, %given, %p : tensor<[8, 24], T>
{constants}{lines}  return %y"
    );
    function(&inputs, &body.replace('T', element))
}

const EXP: &str = "n = neg %x; e = exp %n; q = add %one, %e";
const ERF: &str = "v = div %x, %root; f = erf %v; g = add %f, %one";
const TANH: &str = "s = mul %x, %x; t = mul %s, %x; w = mul %c, %t; i = add %x, %w; v = mul %k, %i; f = tanh %v; g = add %one, %f";
const TANH_OF_POWER: &str =
    "t = pow %x, %three; w = mul %c, %t; i = add %x, %w; v = mul %k, %i; f = tanh %v; g = add %one, %f";
const TANH_OF_SQUARE: &str = "s = mul %x, %x; w = mul %s, %c; i = add %one, %w; kx = mul %k, %x; v = mul %kx, %i; f = tanh %v; g = add %f, %one";

/// The recognized forms of each activation: the rule, the replacing op, and the form.
fn forms() -> Vec<(&'static str, &'static str, String)> {
    let mut forms = vec![
        ("sigmoid-written-with-div", "sigmoid", format!("{EXP}; y = div %one, %q")),
        ("sigmoid-written-with-reciprocal", "sigmoid", format!("{EXP}; y = reciprocal %q")),
        ("silu-written-with-sigmoid", "silu", "s = sigmoid %x; y = mul %x, %s".to_owned()),
        ("silu-written-with-sigmoid-before", "silu", "s = sigmoid %x; y = mul %s, %x".to_owned()),
        ("silu-written-with-div", "silu", format!("{EXP}; y = div %x, %q")),
        ("silu-written-with-sigmoid", "silu", format!("{EXP}; r = reciprocal %q; y = mul %x, %r")),
        ("silu-written-with-sigmoid-before", "silu", format!("{EXP}; r = div %one, %q; y = mul %r, %x")),
    ];
    for (rule, kind, sum) in [
        ("gelu-written-with-erf", "gelu", ERF),
        ("gelu-written-with-tanh", "gelu_tanh", TANH),
        ("gelu-written-with-tanh", "gelu_tanh", TANH_OF_POWER),
        ("gelu-written-with-tanh", "gelu_tanh", TANH_OF_SQUARE),
    ] {
        forms.push((rule, kind, format!("{sum}; h = mul %half, %x; y = mul %h, %g")));
        forms.push((rule, kind, format!("{sum}; h = div %x, %two; y = mul %g, %h")));
        forms.push((rule, kind, format!("{sum}; h = mul %g, %half; y = mul %x, %h")));
        // A form that overflows beyond half of the largest number still overflows.
        forms.push((rule, "mul", format!("{sum}; h = mul %x, %g; y = mul %h, %half")));
        forms.push((rule, "mul", format!("{sum}; h = mul %g, %x; y = mul %half, %h")));
    }
    forms
}

fn contract_rules(normalized: &Normalized) -> BTreeSet<&'static str> {
    normalized.contracted().flat_map(|(_, rules)| rules).collect()
}

#[track_caller]
fn values(program: &Program, inputs: &HashMap<String, Tensor>) -> Vec<Tensor> {
    let bound = bind::bind(program, inputs).expect("the inputs fit");
    interpret(program, &bound).expect("the program is small")
}

/// Checks that shared values have the same NaN and infinities, and that numbers are close in units of the
/// largest.
#[track_caller]
pub(super) fn check_pattern(
    program: &Program,
    normalized: &Normalized,
    inputs: &HashMap<String, Tensor>,
    close: Option<f64>,
) {
    let (before, after) = (values(program, inputs), values(normalized.program(), inputs));
    for value in program.module().values.keys() {
        let Some(new) = normalized.value(value) else { continue };
        let (want, got) = (before[value.index()].to_f64(), after[new.index()].to_f64());
        let largest = want.iter().filter(|x| x.is_finite()).fold(0.0, |most: f64, x| most.max(x.abs()));
        for (index, (want, got)) in want.iter().zip(&got).enumerate() {
            let is_same = match want.is_finite() {
                true => got.is_finite() && close.is_none_or(|close| (want - got).abs() <= close * largest),
                false => want == got || (want.is_nan() && got.is_nan()),
            };
            let place = format!("%{} [{index}]", program.module().name_of(value));
            assert!(is_same, "{place} is {got:e}, not {want:e}:\n{}", describe(program, normalized));
        }
    }
}

#[test]
fn activations_are_nan_and_infinite_where_their_formulas_are() {
    let mut random = Random(0x000C_0274_AC70);
    for (element, name) in [(ElementType::F32, "f32"), (ElementType::BF16, "bf16"), (ElementType::F16, "f16")]
    {
        for (rule, kind, form) in forms() {
            let program = activation(name, &form);
            let contracted = normalized(&program, true);
            assert!(
                contract_rules(&contracted).contains(rule),
                "{form}\n{}",
                describe(&program, &contracted)
            );
            let module = contracted.program().module();
            let output = module.defining_op(module.outputs[0]).expect("an op");
            assert_eq!(
                module.op_label(output),
                format!("%y = {kind}"),
                "{}",
                describe(&program, &contracted)
            );
            let count = EXTENTS.0 * EXTENTS.1;
            for seed in 0..4 {
                let mut inputs = poisoned_inputs(&program, seed, &SymbolValues::default());
                let mut given = specials(element);
                given.resize_with(count, || {
                    f64::from(f32::from_bits(random.bits() as u32)) * 2f64.powi(random.below(9) as i32 - 4)
                });
                let dims = vec![EXTENTS.0, EXTENTS.1];
                let given =
                    Tensor::from_f64(element, dims.clone(), None, &given).expect("the number of values fits");
                inputs.insert("given".to_owned(), given);
                let all = Tensor::from_codes(ElementType::I1, dims, None, vec![1; count])
                    .expect("the number of codes fits");
                inputs.insert("all".to_owned(), all);
                check_pattern(&program, &contracted, &inputs, Some(2f64.powi(-7)));
            }
        }
    }
}

/// A form that overflows where neither the function nor its double does is not recognized.
#[test]
fn a_gelu_that_overflows_on_the_way_stays() {
    for body in [
        "d = mul %two, %x; y4 = mul %d, %g; y2 = mul %y4, %half; y = mul %y2, %half",
        "d = mul %two, %g; y4 = mul %d, %x; y2 = mul %y4, %half; y = mul %y2, %half",
        "d = mul %x, %g; y4 = mul %d, %two; y = mul %y4, %quarter",
    ] {
        let program = activation("f32", &format!("{ERF}; {body}"));
        let source = text::print(program.module());
        let contracted = normalized(&program, true);
        let is_gelu = |kind: &OpKind| matches!(kind, OpKind::Unary(UnaryKind::Gelu));
        let ops = &contracted.program().module().ops;
        assert!(!ops.values().any(|op| is_gelu(&op.kind)), "{source}");
    }
    // A very large or small factor overflows or vanishes where the function does not.
    let far = format!("{ERF}; h = mul %x, %g; i = mul %h, %tiny; j = mul %i, %half; y = mul %j, %huge");
    let contracted = normalized(&activation("f32", &far), true);
    assert!(!contracted.is_changed(), "{}", text::print(contracted.program().module()));
}

/// Rules on products: the rule, the block, the dequantized and the result type, and factors of A and B.
const PRODUCTS: [(&str, u32, &str, &str, [bool; 2]); 12] = [
    ("factors-of-dequantized-are-alpha", 16, "f32", "f32", [true, true]),
    ("factors-of-dequantized-are-alpha", 16, "bf16", "f32", [true, true]),
    ("factors-of-dequantized-are-alpha", 16, "f16", "f32", [true, false]),
    ("factors-of-dequantized-are-alpha", 16, "bf16", "bf16", [false, true]),
    ("factors-of-dequantized-are-alpha", 16, "f32", "f16", [true, false]),
    ("narrow-mma-is-scaled-mma", 16, "f32", "bf16", [false, false]),
    ("narrow-mma-is-scaled-mma", 16, "f16", "f16", [false, false]),
    ("narrow-mma-is-scaled-mma", 16, "bf16", "f16", [false, false]),
    ("mma-of-mx-is-scaled-mma", 32, "f32", "f32", [false, false]),
    ("mma-of-mx-is-scaled-mma", 32, "bf16", "f32", [true, false]),
    ("mma-of-mx-is-scaled-mma", 32, "f32", "bf16", [true, true]),
    ("mma-of-mx-is-scaled-mma", 32, "bf16", "f16", [false, false]),
];

#[test]
fn products_are_nan_and_infinite_where_those_of_dequantized_operands_are() {
    for (rule, block, dequantized, result, factors) in PRODUCTS {
        let scale = if block == 16 { "f8E4M3FN" } else { "f8E8M0FNU" };
        let columns = 64 / block;
        let inputs = format!(
            "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, {columns}], {scale}, linear>, \
             %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, {columns}], {scale}, linear>, \
             %ga: tensor<[], f32>, %gb: tensor<[1], f32>, %s: tensor<[], f32>"
        );
        let factor = |name: &str, present: bool| if present { format!(", %{name}") } else { String::new() };
        let (ga, gb) = (factor("ga", factors[0]), factor("gb", factors[1]));
        let body = format!(
            "  %x = block_dequantize %a, %sa{ga} {{block = {block}}} : tensor<[37, 64], {dequantized}>
  %w = block_dequantize %b, %sb{gb} {{block = {block}}} : tensor<[24, 64], {dequantized}>
  %p = mma %x, %w : tensor<[37, 24], {result}>
  %y = mul %p, %s : tensor<[37, 24], f32>
  return %y"
        );
        let program = function(&inputs, &body);
        let contracted = normalized(&program, true);
        assert_eq!(
            contract_rules(&contracted),
            BTreeSet::from([rule]),
            "{}",
            describe(&program, &contracted)
        );
        let mut random = Random(0x9A17);
        let number = |random: &mut Random| {
            // Within the rules' ranges: 2688 times each fits f16, and products fit f32.
            random.pick(&[0.0, -0.0, 1.0, -24.0, 1e-3, 3e-6, -1e-12, 7.5, f32::NAN, 1e-18, 0.0371])
        };
        for seed in 0..24 {
            let mut inputs = poisoned_inputs(&program, seed, &SymbolValues::default());
            for name in ["ga", "gb"] {
                let dims = inputs[name].dims().to_vec();
                let value = Tensor::from_f32(dims, &[number(&mut random)]).expect("one number");
                inputs.insert(name.to_owned(), value);
            }
            // 6 · 2^126 overflows in f32. With factors, the sum without them must not overflow either.
            let most = if factors == [false, false] { 252 } else { 127 + 40 };
            for name in ["sa", "sb"].into_iter().filter(|_| block == 32) {
                let tensor = &inputs[name];
                let codes =
                    tensor.to_codes().into_iter().map(|code| if code == 255 { code } else { code.min(most) });
                let (dims, codes) = (tensor.dims().to_vec(), codes.collect());
                let tensor = Tensor::from_codes(tensor.element(), dims, tensor.layout(), codes);
                inputs.insert(name.to_owned(), tensor.expect("the shape is unchanged"));
            }
            // Small elements vanish in f16.
            let close = (dequantized != "f16").then(|| 2f64.powi(-5));
            check_pattern(&program, &contracted, &inputs, close);
        }
    }
}

/// Rules on products of a 16-bit x and a dequantized weight: the rule, the block, the types of x and of the result, and
/// whether the weight has a factor. The last one rewrites a weight-only product.
const WEIGHT_ONLY: [(&str, u32, &str, &str, bool); 9] = [
    ("factor-of-dequantized-weight-is-alpha", 16, "bf16", "f32", true),
    ("factor-of-dequantized-weight-is-alpha", 16, "f16", "f32", true),
    ("factor-of-dequantized-weight-is-alpha", 16, "bf16", "bf16", true),
    ("narrow-mma-is-weight-only", 16, "bf16", "bf16", false),
    ("narrow-mma-is-weight-only", 16, "f16", "f16", false),
    ("mma-of-mx-weight-is-weight-only", 32, "bf16", "f32", false),
    ("mma-of-mx-weight-is-weight-only", 32, "bf16", "bf16", true),
    ("mx-weight-only-without-kernel-is-mma", 32, "bf16", "f32", false),
    ("mx-weight-only-without-kernel-is-mma", 32, "bf16", "f16", false),
];

#[test]
fn weight_only_products_are_nan_and_infinite_where_those_of_dequantized_weights_are() {
    for (rule, block, x, result, factor) in WEIGHT_ONLY {
        let scale = if block == 16 { "f8E4M3FN" } else { "f8E8M0FNU" };
        let columns = 64 / block;
        let inputs = format!(
            "%x: tensor<[37, 64], {x}>, %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, {columns}], {scale}, linear>, \
             %g: tensor<[], f32>"
        );
        let g = if factor { ", %g" } else { "" };
        let lowers = rule.ends_with("is-mma");
        let body = if lowers {
            format!(
                "  %p = scaled_mma %x, %b, %sb {{block = {block}}} : tensor<[37, 24], {result}>\n  return %p"
            )
        } else {
            format!(
                "  %w = block_dequantize %b, %sb{g} {{block = {block}}} : tensor<[24, 64], {x}>
  %p = mma %x, %w : tensor<[37, 24], {result}>
  return %p"
            )
        };
        let program = function(&inputs, &body);
        let target = if lowers { without_kernels() } else { with_kernels() };
        let contracted = normalized_for(&program, true, &target);
        assert_eq!(
            contract_rules(&contracted),
            BTreeSet::from([rule]),
            "{}",
            describe(&program, &contracted)
        );
        let mut random = Random(0x9A18);
        for seed in 0..24 {
            let mut inputs = poisoned_inputs(&program, seed, &SymbolValues::default());
            // Within the rules' ranges: 2688 times each fits f16, and products fit f32.
            let g = random.pick(&[0.0, -0.0, 1.0, -24.0, 1e-3, 7.5, f32::NAN, 0.0371]);
            inputs.insert("g".to_owned(), Tensor::from_f32(vec![], &[g]).expect("one number"));
            if block == 32 {
                // 6 · 2^126 overflows in bf16.
                let tensor = &inputs["sb"];
                let most = if factor { 127 + 40 } else { 252 };
                let codes =
                    tensor.to_codes().into_iter().map(|code| if code == 255 { code } else { code.min(most) });
                let (dims, codes) = (tensor.dims().to_vec(), codes.collect());
                let tensor = Tensor::from_codes(tensor.element(), dims, tensor.layout(), codes);
                inputs.insert("sb".to_owned(), tensor.expect("the shape is unchanged"));
            }
            // Small elements vanish in f16.
            let close = (x != "f16" || !factor).then(|| 2f64.powi(-5));
            check_pattern(&program, &contracted, &inputs, close);
        }
    }
}

/// The rule of dequantized elements that are rounded twice.
const ROUNDED_TWICE: &str = "convert-joins-scaled-dequantize";

#[test]
fn dequantized_elements_rounded_once_are_nan_and_infinite_where_those_rounded_twice_are() {
    for to in ["f16", "bf16"] {
        let program = function(
            &format!(
                "%a: tensor<[24, 64], f4E2M1FN>, %sa: tensor<[24, 4], f8E4M3FN, linear>, %g: tensor<[], f32>, \
                 %x: tensor<[8, 64], {to}>"
            ),
            &format!(
                "  %w = block_dequantize %a, %sa, %g {{block = 16}} : tensor<[24, 64], f32>
  %y = convert %w : tensor<[24, 64], {to}>
  %m = mma %x, %y : tensor<[8, 24], f32>
  return %y, %m"
            ),
        );
        assert!(!normalized(&program, false).is_changed());
        let contracted = normalized(&program, true);
        assert_eq!(contract_rules(&contracted), [ROUNDED_TWICE].into());
        let mut random = Random(0x9A19);
        for seed in 0..24 {
            let mut inputs = poisoned_inputs(&program, seed, &SymbolValues::default());
            let g = random.pick(&[0.0, 1.0, -24.0, 1e-3, f32::NAN, 1e-18, 0.0371, 1e30]);
            inputs.insert("g".to_owned(), Tensor::from_f32(vec![], &[g]).expect("one number"));
            check_pattern(&program, &contracted, &inputs, Some(2f64.powi(-7)));
        }
    }
}

/// The rule of quantizations with rounded logarithms.
const LOGARITHMS: &str = "written-mx-quantization-by-unrounded-logarithms";

#[test]
fn quantizations_by_logarithms_keep_nan_and_differ_next_to_powers_of_two_only() {
    let program = function(
        "%x: tensor<[70, 32], f32>",
        "  %amax = reduce %x {axes = [1], keep_dims = true, kind = amax} : tensor<[70, 1], f32>
  %six = constant {value = 6} : tensor<[], f32>
  %range = div %amax, %six : tensor<[70, 1], f32>
  %log = log2 %range : tensor<[70, 1], f32>
  %up = ceil %log : tensor<[70, 1], f32>
  %exponent = clamp %up {max = 127, min = -127} : tensor<[70, 1], f32>
  %step = exp2 %exponent : tensor<[70, 1], f32>
  %s = convert %step : tensor<[70, 1], f8E8M0FNU, linear>
  %quotients = div %x, %step : tensor<[70, 32], f32>
  %q = convert %quotients : tensor<[70, 32], f4E2M1FN>
  return %q, %s",
    );
    assert!(!normalized(&program, false).is_changed());
    let contracted = normalized(&program, true);
    assert_eq!(contract_rules(&contracted), [LOGARITHMS].into());
    let mut largest = specials(ElementType::F32);
    // Far from 1, log2 of the successor of a power of two is rounded to an integer.
    let next = f64::from((6.0 * 2f32.powi(100)).next_up());
    largest.push(next);
    let row = |row: usize| {
        let value = largest.get(row).copied().unwrap_or(0.0);
        (0..32).map(move |column| match column {
            7 => value,
            _ if value.is_finite() => f64::from((value * f64::from(column % 5) / 8.0) as f32),
            _ => 1.0,
        })
    };
    assert!(largest.len() <= 70);
    let numbers: Vec<f64> = (0..70).flat_map(row).collect();
    let x = Tensor::from_f64(ElementType::F32, vec![70, 32], None, &numbers).expect("the shape");
    let inputs = HashMap::from([("x".to_owned(), x)]);
    let scales = |program: &Program| {
        let scales = program.module().outputs[1];
        values(program, &inputs)[scales.index()].to_codes()
    };
    let (want, got) = (scales(&program), scales(contracted.program()));
    for (row, (want, got)) in want.iter().zip(&got).enumerate() {
        let moves = largest.get(row).is_some_and(|value| *value == next);
        assert_eq!(i16::from(*got) - i16::from(*want), i16::from(moves), "{:e}", numbers[32 * row + 7]);
    }
}

/// Fails for a contract rule that is in none of the tables above.
#[test]
fn every_contract_rule_is_held_against_poisoned_data() {
    // `norms.rs` has the tables of the last two.
    let norms = ["written-layer-norm", "written-softmax"];
    let held: BTreeSet<&str> = forms()
        .iter()
        .map(|form| form.0)
        .chain(PRODUCTS.iter().map(|product| product.0))
        .chain(WEIGHT_ONLY.iter().map(|product| product.0))
        .chain(norms)
        .chain([LOGARITHMS, ROUNDED_TWICE])
        .collect();
    let rules: BTreeSet<&str> =
        normalize_rules().filter(|rule| rule.contract).map(|rule| rule.name).collect();
    assert_eq!(held, rules);
}

/// Each op of a doubled gelu states its origin.
#[test]
fn a_halved_double_takes_the_part_of_all_that_was_written() {
    let program = activation("f32", &format!("{ERF}; h = mul %x, %g; y = mul %h, %half"));
    let contracted = normalized(&program, true);
    let (before, after) = (program.module(), contracted.program().module());
    let is_constant = |op: &fourfold_ir::Op| matches!(after.ops[*op].kind, OpKind::Constant(_));
    let ops = after.ops.keys().filter(|op| !is_constant(op));
    let names: Vec<String> = ops.map(|op| after.op_label(op)).collect();
    assert_eq!(names, ["%p = scaled_mma", "%x = select", "%y.gelu = gelu", "%y.doubled = add", "%y = mul"]);
    for op in after.ops.keys() {
        let Origin::Made { from, .. } = contracted.origin(op) else { continue };
        let from: Vec<&str> = from.iter().map(|op| before.name_of(before.ops[*op].results[0])).collect();
        let is_whole = after.op_label(op) == "%y = mul";
        assert_eq!(
            from,
            if is_whole { vec!["v", "f", "g", "h", "y"] } else { vec![] },
            "{}",
            after.op_label(op)
        );
    }
    for name in ["v", "f", "g", "h", "y"] {
        let op = before.defining_op(program.facts().value_named(name).expect("a value")).expect("an op");
        let Fate::Part { op, .. } = contracted.fate(op) else { panic!("%{name} is part of something") };
        assert_eq!(after.op_label(*op), "%y = mul");
    }
}

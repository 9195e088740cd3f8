//! MX quantization written out op by op: recognized exactly when it equals a `block_quantize`, with equal bits.

use std::collections::{BTreeMap, HashMap};

use fourfold::ir::{Entity, OpKind, Program, SymbolValues, Tensor, Value, bind, text};
use fourfold::scheduler::{NormalizeOptions, ReasonCode, check, normalize, partition};
use fourfold_tests::random::Random;
use fourfold_tests::written_mx::{MxForm, MxMiss};

use super::written::{loaded, outputs, quantizations, symbols};

const PROGRAMS: usize = 240;
const PROGRAMS_OF_MISS: usize = 10;

/// Blocks of every kind: numbers of every size, zeros of both signs, subnormals, infinities, NaN, and largest magnitudes
/// next to those at which the scale changes.
fn numbers(random: &mut Random, count: usize) -> Vec<f64> {
    let mut numbers = Vec::with_capacity(count);
    while numbers.len() < count {
        let kind = random.below(11);
        let exponent = random.below(254) as i32 - 126;
        let scale = if random.percent(60) { random.below(24) as i32 - 12 } else { exponent };
        let at = [1.0f32, 1.5, 1.75][random.below(3)] * 2f32.powi(exponent);
        let largest = [at, at.next_up(), at.next_down()][random.below(3)];
        let place = random.below(32);
        for position in 0..32 {
            let sign = if random.percent(50) { -1.0 } else { 1.0 };
            let coarse = (random.below(129) as f64 - 64.0) / 8.0;
            numbers.push(match kind {
                0 => 0.0 * sign,
                1 => f64::from(f32::from_bits(random.below(1 << 20) as u32)) * sign,
                2 if position == place => f64::INFINITY * sign,
                3 if position == place => f64::NAN,
                4 => 3.4e38 * coarse / 8.0,
                5 => f64::from(f32::from_bits(random.bits() as u32 & 0x00FF_FFFF)) * sign,
                6..=8 if position == place => f64::from(largest) * sign,
                6..=8 => f64::from(largest) * coarse / 8.0,
                _ => coarse * 2f64.powi(scale),
            });
        }
    }
    numbers.truncate(count);
    numbers
}

fn inputs(program: &Program, random: &mut Random, symbols: &SymbolValues) -> HashMap<String, Tensor> {
    let module = program.module();
    let of_input = |value: &Value| {
        let ty = module.ty(*value);
        let dims = bind::concrete_dims(ty, symbols).expect("the symbol has a value");
        let values = numbers(random, dims.iter().product());
        let tensor = Tensor::from_f64(ty.element, dims, None, &values).expect("the count fits");
        (module.name_of(*value).to_owned(), tensor)
    };
    module.inputs.iter().map(of_input).collect()
}

#[test]
fn every_mx_form_that_equals_a_block_quantize_becomes_one_with_equal_bits() {
    let mut random = Random::new(0x0512_88A9);
    let (mut formulas, mut styles) = (BTreeMap::new(), BTreeMap::new());
    for index in 0..PROGRAMS {
        let form = MxForm::new(&mut random);
        let source = form.text(None);
        let program = loaded(&source);
        let normalized = normalize(&program, &NormalizeOptions::default());
        let after = text::print(normalized.program().module());
        let reasons = || {
            let capabilities = fourfold::codegen::capabilities("sm_120a").expect("a known target");
            let decisions = partition(normalized.program(), &capabilities).decisions;
            decisions
                .into_iter()
                .filter_map(|decision| decision.rejection)
                .map(|reason| reason.message)
                .collect()
        };
        let reasons: Vec<String> = if quantizations(&normalized) == 1 { Vec::new() } else { reasons() };
        assert_eq!(quantizations(&normalized), 1, "{index} {form:?}\n{source}\n{reasons:#?}");
        let again = normalize(normalized.program(), &NormalizeOptions::default());
        assert!(!again.is_changed(), "{index}: a second pass changed\n{after}");
        *styles.entry(form.style).or_insert(0) += 1;
        for operation in normalized.program().module().ops.values() {
            if let OpKind::BlockQuantize { formula, scale_rounding, .. } = operation.kind {
                *formulas.entry((formula, scale_rounding)).or_insert(0) += 1;
            }
        }
        for m in [1, 3] {
            let symbols = symbols(&program, m);
            for _ in 0..5 {
                let tensors = inputs(&program, &mut random, &symbols);
                let (want, got) = (outputs(&program, &tensors), outputs(normalized.program(), &tensors));
                assert!(want == got, "{index}\n{source}\n{after}\n{want:?}\n{got:?}");
            }
        }
    }
    assert!(styles.len() == 4 && formulas.len() >= 25, "{styles:?}, {} formulas", formulas.len());
}

#[test]
fn mx_near_misses_stay_as_they_are_with_a_reason_and_have_other_bits() {
    let mut random = Random::new(0x0512_88AA);
    let capabilities = fourfold::codegen::capabilities("sm_120a").expect("a known target");
    for miss in MxMiss::ALL {
        let mut differs = 0;
        for index in 0..PROGRAMS_OF_MISS {
            let form = MxForm::new(&mut random).with_effect(miss);
            let (source, base) = (form.text(Some(miss)), form.text(None));
            let program = loaded(&source);
            let normalized = normalize(&program, &NormalizeOptions::default());
            assert_eq!(quantizations(&normalized), 0, "{miss:?} {index} {form:?}\n{source}");
            let partition = partition(normalized.program(), &capabilities);
            assert_eq!(check(normalized.program(), &capabilities, &partition), Ok(()));
            let module = normalized.program().module();
            let anchors = module.ops.iter().filter(|(_, operation)| {
                let is_data = |value: &Value| module.ty(*value).element.is_block_data();
                operation.kind == OpKind::Convert && operation.results.iter().any(is_data)
            });
            let anchors: Vec<_> = anchors.map(|(op, _)| op).collect();
            assert_eq!(anchors.len(), 1, "{miss:?}\n{source}");
            let rejection = partition.decisions[anchors[0].index()].rejection.as_ref();
            let rejection = rejection.expect("the conversion is in no kernel");
            assert_eq!(rejection.code, ReasonCode::WrittenQuantization, "{miss:?} {rejection}\n{source}");
            assert!(rejection.message.contains("; expected "), "{rejection}");
            if index == 0 {
                println!("{miss:?}: {}", rejection.message);
            }

            let base = loaded(&base);
            let symbols = symbols(&program, 3);
            for _ in 0..12 {
                let tensors = inputs(&program, &mut random, &symbols);
                let seen = |program: &Program| outputs(program, &tensors).concat();
                differs += usize::from(seen(&program) != seen(&base));
            }
        }
        assert!(differs > 0, "{miss:?} has the bits of the form without it");
    }
}

#[test]
fn rounded_logarithms_need_contract_rules() {
    let mut random = Random::new(0x0512_88AB);
    let mut quantized = 0;
    for index in 0..60 {
        let form = MxForm::new(&mut random).with_effect(MxMiss::LogarithmRounded);
        let source = form.text(Some(MxMiss::LogarithmRounded));
        let program = loaded(&source);
        let exact = normalize(&program, &NormalizeOptions::default());
        assert_eq!(quantizations(&exact), 0, "{index}\n{source}");
        let contracted = normalize(&program, &NormalizeOptions { contract: true });
        let by_rule = contracted.contracted().any(|(op, _)| {
            matches!(contracted.program().module().ops[op].kind, OpKind::BlockQuantize { .. })
        });
        quantized += usize::from(by_rule);
        assert_eq!(quantizations(&contracted), usize::from(by_rule), "{index}\n{source}");
    }
    assert!(quantized >= 30, "only {quantized} of 60");
}

//! Quantization written out op by op: recognized exactly when it equals a `block_quantize`, with equal bits.

use std::collections::{BTreeMap, HashMap};

use fourfold::ir::{ElementType, Entity, OpKind, Program, SymbolValues, Tensor, bind, interpret, load, text};
use fourfold::scheduler::{NormalizeOptions, Normalized, ReasonCode, check, normalize, partition};
use fourfold_tests::random::Random;
use fourfold_tests::written::{Form, Miss};

const PROGRAMS: usize = 300;
const PROGRAMS_OF_MISS: usize = 12;

/// An amax and a g for which (amax / 6) / g is rounded to another scale than in any other order of operations.
const ORDER_OF_SCALE: [u32; 2] = [0x3F4B_331E, 0x3CBC_799E];
/// A value, a block's largest value and a g for which the code changes with the order of operations.
const ORDER_OF_CODES: [u32; 3] = [0x3F72_8C28, 0x4011_8F4A, 0x3C8D_1E58];

pub(super) fn loaded(source: &str) -> Program {
    match load(source) {
        Ok((program, _)) => program,
        Err(errors) => panic!("{}\n{source}", errors[0].message),
    }
}

/// Blocks of every kind: ordinary numbers of every size, zeros of both signs, subnormals, infinities, NaN, numbers near
/// ties, and numbers that show the order of operations.
fn numbers(random: &mut Random, count: usize) -> Vec<f64> {
    let mut numbers = Vec::with_capacity(count);
    while numbers.len() < count {
        let kind = random.below(12);
        let size = 2f64.powi(random.below(40) as i32 - 20);
        for position in 0..16 {
            let sign = if random.percent(50) { -1.0 } else { 1.0 };
            let coarse = (random.below(129) as f64 - 64.0) / 8.0;
            let fine = f64::from(f32::from_bits(0x3F80_0000 | random.bits() as u32 & 0x007F_FFFF));
            numbers.push(match kind {
                0 => 0.0 * sign,
                1 => 1e-40 * coarse,
                2 if position == 5 => f64::INFINITY * sign,
                3 if position == 9 => f64::NAN,
                4 => 3e38 * coarse / 8.0,
                5 => f64::from(f32::from_bits(ORDER_OF_SCALE[0])) * if position == 0 { sign } else { 0.01 },
                6 if position == 0 => f64::from(f32::from_bits(ORDER_OF_CODES[1])),
                6 => f64::from(f32::from_bits(ORDER_OF_CODES[0])),
                7 => fine * size * sign,
                _ => coarse * size,
            });
        }
    }
    numbers.truncate(count);
    numbers
}

fn inputs(program: &Program, random: &mut Random, symbols: &SymbolValues) -> HashMap<String, Tensor> {
    const GLOBALS: [f32; 10] = [1.0, 0.37, 3.0, 1e-30, 1e30, 1e-41, 0.0, -0.5, f32::INFINITY, f32::NAN];
    let module = program.module();
    let of_input = |value: &fourfold::ir::Value| {
        let ty = module.ty(*value);
        let dims = bind::concrete_dims(ty, symbols).expect("the symbol has a value");
        let count = dims.iter().product();
        let name = module.name_of(*value).to_owned();
        let values = if name == "g" {
            let g = match random.below(5) {
                0 => f32::from_bits(ORDER_OF_SCALE[1]),
                1 => f32::from_bits(ORDER_OF_CODES[2]),
                2 => random.pick(&GLOBALS),
                _ => 2f32.powi(random.below(24) as i32 - 12) * (1.0 + random.below(64) as f32 / 64.0),
            };
            (0..count).map(|index| f64::from(g) * (1.0 + index as f64 / 3.0)).collect()
        } else {
            numbers(random, count)
        };
        (name, Tensor::from_f64(ty.element, dims, None, &values).expect("the count fits"))
    };
    module.inputs.iter().map(of_input).collect()
}

/// The codes of outputs; every NaN of an arithmetic type is one.
pub(super) fn outputs(program: &Program, tensors: &HashMap<String, Tensor>) -> Vec<Vec<u64>> {
    let bound = bind::bind(program, tensors).expect("the inputs fit");
    let values = interpret(program, &bound).expect("the program is small");
    let of_output = |output: &fourfold::ir::Value| {
        let tensor = &values[output.index()];
        if !tensor.element().is_arithmetic() {
            return tensor.to_codes().into_iter().map(u64::from).collect();
        }
        let bits = |value: f64| if value.is_nan() { f64::NAN } else { value }.to_bits();
        tensor.to_f64().into_iter().map(bits).collect()
    };
    program.module().outputs.iter().map(of_output).collect()
}

pub(super) fn quantizations(normalized: &Normalized) -> usize {
    let ops = normalized.program().module().ops.values();
    ops.filter(|operation| matches!(operation.kind, OpKind::BlockQuantize { .. })).count()
}

pub(super) fn symbols(program: &Program, m: u64) -> SymbolValues {
    let mut symbols = SymbolValues::default();
    program.module().symbols.keys().for_each(|symbol| symbols.set(symbol, m));
    symbols
}

#[test]
fn every_form_that_equals_a_block_quantize_becomes_one_with_equal_bits() {
    let mut random = Random::new(0x0512_77A9);
    let mut formulas = BTreeMap::new();
    for index in 0..PROGRAMS {
        let form = Form::new(&mut random).with_effect(Miss::CodesNegated);
        let source = form.text(None);
        let program = loaded(&source);
        let normalized = normalize(&program, &NormalizeOptions::default());
        let after = text::print(normalized.program().module());
        assert_eq!(quantizations(&normalized), 1, "{index} {form:?}\n{source}\n{after}");
        let again = normalize(normalized.program(), &NormalizeOptions::default());
        assert!(!again.is_changed(), "{index}: a second pass changed\n{after}");
        for operation in normalized.program().module().ops.values() {
            if let OpKind::BlockQuantize { formula, .. } = operation.kind {
                *formulas.entry(formula).or_insert(0) += 1;
            }
        }
        for m in [1, 3] {
            let symbols = symbols(&program, m);
            for _ in 0..4 {
                let tensors = inputs(&program, &mut random, &symbols);
                let (want, got) = (outputs(&program, &tensors), outputs(normalized.program(), &tensors));
                let g = tensors["g"].to_f32();
                assert!(want == got, "{index} g {g:?}\n{source}\n{after}\n{want:?}\n{got:?}");
            }
        }
    }
    assert!(formulas.len() >= 40, "only {} formulas", formulas.len());
}

#[test]
fn near_misses_stay_as_they_are_with_a_reason_and_have_other_bits() {
    let mut random = Random::new(0x0512_77AA);
    let capabilities = fourfold::codegen::capabilities("sm_120a").expect("a known target");
    for miss in Miss::ALL {
        let mut differs = 0;
        for index in 0..PROGRAMS_OF_MISS {
            let form = Form::new(&mut random).with_effect(miss);
            let (source, base) = (form.text(Some(miss)), form.text(None));
            let program = loaded(&source);
            let normalized = normalize(&program, &NormalizeOptions::default());
            assert_eq!(quantizations(&normalized), 0, "{miss:?} {index} {form:?}\n{source}");
            let partition = partition(normalized.program(), &capabilities);
            assert_eq!(check(normalized.program(), &capabilities, &partition), Ok(()));
            let module = normalized.program().module();
            let anchors = module.ops.iter().filter(|(_, operation)| {
                let is_fp4 = |value: &fourfold::ir::Value| module.ty(*value).element == ElementType::F4E2M1FN;
                operation.kind == OpKind::Convert && operation.results.iter().any(is_fp4)
            });
            let anchors: Vec<_> = anchors.map(|(op, _)| op).collect();
            assert_eq!(anchors.len(), 1, "{miss:?}\n{source}");
            let rejection = partition.decisions[anchors[0].index()].rejection.as_ref();
            let rejection = rejection.expect("the conversion is in no kernel");
            assert_eq!(rejection.code, ReasonCode::WrittenQuantization, "{miss:?} {rejection}\n{source}");
            assert!(rejection.message.contains("; expected "), "{rejection}");

            let base = loaded(&base);
            if base
                .module()
                .inputs
                .iter()
                .zip(&program.module().inputs)
                .any(|(base_input, input)| base.module().ty(*base_input) != program.module().ty(*input))
            {
                differs += 1;
                continue;
            }
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

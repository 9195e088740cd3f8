//! Helpers of the normalization tests: before and after as text, and the interpreter on poisoned data.

use std::collections::HashMap;
use std::fmt::Write;

use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{ElementType, OpKind, Program, SymbolValues, Tensor, bind, interpret, text, verify};
use fourfold_scheduler::{Fate, NormalizeOptions, Normalized, Origin, Step, normalize};

/// Loads a program from text.
#[track_caller]
pub fn program(source: &str) -> Program {
    match fourfold_ir::load(source) {
        Ok((program, _)) => program,
        Err(errors) => {
            panic!("{}", errors.iter().map(|error| error.render("test", source)).collect::<String>())
        }
    }
}

/// Loads `func @f(INPUTS) { BODY }`.
#[track_caller]
pub fn function(inputs: &str, body: &str) -> Program {
    program(&format!("fir 1\nfunc @f({inputs}) {{\n{body}\n}}\n"))
}

/// Describes a normalized program: the new body, and the origin of each op.
pub fn describe(program: &Program, normalized: &Normalized) -> String {
    let (before, after) = (program.module(), normalized.program().module());
    let mut out = String::new();
    for op in after.ops.keys() {
        let _ = write!(out, "{}", text::print_op(after, op));
        if let Origin::Made { from, steps } = normalized.origin(op) {
            let from: Vec<&str> = from.iter().map(|op| before.name_of(before.ops[*op].results[0])).collect();
            let from =
                if from.is_empty() { "inserted".to_owned() } else { format!("from {}", from.join(" ")) };
            let _ = write!(out, "  ; {from}: {}", steps_text(steps));
        }
        out.push('\n');
    }
    for op in before.ops.keys() {
        if let Fate::Gone { steps } = normalized.fate(op) {
            let _ = writeln!(out, "; {} is gone: {}", before.op_label(op), steps_text(steps));
        }
    }
    out
}

fn steps_text(steps: &[Step]) -> String {
    let texts: Vec<String> = steps
        .iter()
        .map(|step| if step.contract { format!("{} (contract)", step.rule) } else { step.rule.to_owned() })
        .collect();
    texts.join(", ")
}

/// Normalizes, and checks every property that holds for all programs.
#[track_caller]
pub fn normalized(program: &Program, contract: bool) -> Normalized {
    let options = NormalizeOptions { contract };
    let normalized = normalize(program, &options);
    check_bookkeeping(program, &normalized);
    let again = normalize(normalized.program(), &options);
    assert!(
        !again.is_changed(),
        "a second pass changed the program:\n{}",
        describe(normalized.program(), &again)
    );
    normalized
}

/// Checks that inputs, outputs and symbols are equal, that remaining values are unchanged, and that every op
/// has a fate.
#[track_caller]
pub fn check_bookkeeping(program: &Program, normalized: &Normalized) {
    let (before, after) = (program.module(), normalized.program().module());
    let signature = |module: &fourfold_ir::Module, values: &[fourfold_ir::Value]| -> Vec<String> {
        values
            .iter()
            .map(|value| {
                let data = &module.values[*value];
                let param = matches!(data.def, fourfold_ir::ValueDef::Input { param: true, .. });
                format!("{} {} {param}", data.name, module.display_type(&data.ty))
            })
            .collect()
    };
    assert_eq!(signature(before, &before.inputs), signature(after, &after.inputs));
    assert_eq!(signature(before, &before.outputs), signature(after, &after.outputs));
    assert_eq!(before.symbols, after.symbols);
    for value in before.values.keys() {
        match normalized.value(value) {
            Some(new) => {
                assert_eq!(before.name_of(value), after.name_of(new));
                assert_eq!(before.ty(value), after.ty(new));
            }
            None => assert!(
                !after.values.values().any(|data| data.name == before.name_of(value)),
                "%{} is another value now",
                before.name_of(value)
            ),
        }
    }
    for op in before.ops.keys() {
        match normalized.fate(op) {
            Fate::Kept(new) => {
                assert_eq!(normalized.origin(*new), &Origin::Kept(op));
                // Compared as text, in which NaN equals itself.
                assert_eq!(before.ops[op].kind.attributes().len(), after.ops[*new].kind.attributes().len());
                assert_eq!(before.op_label(op), after.op_label(*new));
            }
            Fate::Part { op: new, steps } => {
                assert!(!steps.is_empty(), "{} became another op without a rule", before.op_label(op));
                assert!(after.ops.get(*new).is_some());
            }
            Fate::Gone { .. } => {}
        }
    }
    for op in after.ops.keys() {
        match normalized.origin(op) {
            Origin::Kept(old) => assert_eq!(normalized.fate(*old), &Fate::Kept(op)),
            Origin::Made { steps, .. } => {
                assert!(!steps.is_empty(), "{} has no rule", after.op_label(op));
            }
        }
    }
    assert!(verify(after.clone()).is_ok());
    if !normalized.is_changed() {
        assert_eq!(text::print(before), text::print(after));
    }
}

/// A small seeded generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}

/// The integers of a program with groups: ends and indices, which most numbers are not.
fn drawn_integers(program: &Program, seed: u64, symbols: &SymbolValues) -> HashMap<String, Tensor> {
    let module = program.module();
    if !module.ops.values().any(|operation| matches!(operation.kind, OpKind::GroupedScaledMma(_))) {
        return HashMap::new();
    }
    let extents =
        module.symbols.iter().filter_map(|(symbol, name)| Some((name.clone(), symbols.get(symbol)?)));
    let recipe = Recipe { rule: Rule::Normal, seed, symbols: extents.collect() };
    let mut drawn = sample::inputs(program, &recipe).expect("every symbol has a value");
    drawn.retain(|_, tensor| tensor.element() == ElementType::I32);
    drawn
}

/// Inputs with NaN, infinities, both zeros and subnormals among ordinary numbers, and scales of every kind.
pub fn poisoned_inputs(program: &Program, seed: u64, symbols: &SymbolValues) -> HashMap<String, Tensor> {
    let mut random = Random(seed);
    let module = program.module();
    let poison = random.pick(&[0usize, 2, 10]);
    let mut inputs = HashMap::new();
    let integers = drawn_integers(program, seed, symbols);
    for input in &module.inputs {
        let ty = module.ty(*input);
        let dims = bind::concrete_dims(ty, symbols).expect("every symbol has a value");
        let count: usize = dims.iter().product();
        let width = ty.element.storage_bits().div_ceil(8);
        let mut codes = Vec::new();
        for _ in 0..count {
            let poisoned = random.percent(poison);
            let mut number = |specials: &[f64]| {
                if poisoned { random.pick(specials) } else { random.below(4001) as f64 / 512.0 - 3.9 }
            };
            match ty.element {
                ElementType::F32 => {
                    let specials =
                        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-42, -1e-40, 3e38];
                    codes.extend((number(&specials) as f32).to_le_bytes());
                }
                ElementType::F16 | ElementType::BF16 => {
                    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 6e-8, 1e-40, 6e4];
                    let tensor = Tensor::from_f64(ty.element, vec![1], None, &[number(&specials)]);
                    codes.extend(tensor.expect("one number").bytes());
                }
                ElementType::F4E2M1FN => codes.push(random.below(16) as u8),
                ElementType::F8E4M3FN if ty.layout.is_some() => {
                    codes.push(if poisoned && random.percent(20) { 0x7F } else { random.below(0x7F) as u8 });
                }
                ElementType::F8E8M0FNU => codes.push(if poisoned { random.below(256) as u8 } else { 127 }),
                ElementType::I1 => codes.push(random.below(2) as u8),
                _ => codes.extend((0..width).map(|_| random.below(256) as u8)),
            }
        }
        if let Some(drawn) = integers.get(module.name_of(*input)) {
            inputs.insert(module.name_of(*input).to_owned(), drawn.clone());
            continue;
        }
        let tensor =
            Tensor::from_codes(ty.element, dims, ty.layout, codes).expect("the number of codes fits");
        inputs.insert(module.name_of(*input).to_owned(), tensor);
    }
    inputs
}

/// Checks for equal bits, with any two NaN equal, in every shared value and every output.
#[track_caller]
pub fn check_same_bits(program: &Program, normalized: &Normalized, seeds: u64, symbols: &SymbolValues) {
    for seed in 0..seeds {
        let inputs = poisoned_inputs(program, seed, symbols);
        let evaluate = |program: &Program| {
            let bound = bind::bind(program, &inputs).expect("the inputs fit");
            interpret(program, &bound).expect("the program is small")
        };
        let (before, after) = (evaluate(program), evaluate(normalized.program()));
        for value in program.module().values.keys() {
            let Some(new) = normalized.value(value) else { continue };
            let index = fourfold_ir::Entity::index;
            let (want, got) = (&before[index(value)], &after[index(new)]);
            let same = match want.element().is_arithmetic() {
                true => {
                    let (want, got) = (want.to_f64(), got.to_f64());
                    let mut pairs = want.iter().zip(&got);
                    pairs
                        .all(|(want, got)| want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan()))
                }
                false => want.to_codes() == got.to_codes(),
            };
            assert!(
                same,
                "seed {seed}: %{} differs in\n{}\n{}\n{want:?}\n{got:?}",
                program.module().name_of(value),
                text::print(program.module()),
                text::print(normalized.program().module())
            );
        }
    }
}

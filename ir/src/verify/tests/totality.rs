//! Tests that any module, well-formed or not, is accepted or rejected without a panic and in linear time.

use std::cell::Cell;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::accepted::every_op;
use super::*;
use crate::entities::{Entity, Op, Symbol};
use crate::module::{Operation, ValueData, ValueDef};
use crate::numeric::Nvfp4Formula;
use crate::ops::{
    BinaryKind, BitwiseKind, ConstantValue, GroupedScaledMma, OpKind, PadAmount, Predicate, ReduceKind,
    ScaleRounding, ScaledMma, SliceRange, UnaryKind,
};

/// Decisions drawn from proptest, so that a failure shrinks. Past the end every decision is 0.
struct Choices<'a> {
    numbers: std::slice::Iter<'a, u32>,
}

impl Choices<'_> {
    fn below(&mut self, limit: usize) -> usize {
        self.numbers.next().map_or(0, |number| *number as usize % limit)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    fn number(&mut self) -> f64 {
        self.pick(&[0.0, 1.0, -0.0, 1e-5, -3.0, 0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300])
    }

    fn axes(&mut self) -> Vec<u32> {
        (0..self.below(4)).map(|_| self.pick(&[0, 1, 2, 3, 7, u32::MAX])).collect()
    }

    fn ranges(&mut self) -> Vec<SliceRange> {
        let axes: &[u32] = self.pick(&[&[0][..], &[1], &[0, 1], &[], &[1, 0, u32::MAX]]);
        let range = |axis: &u32| SliceRange {
            axis: *axis,
            start: self.pick(&[0, 2, 1, u64::MAX]),
            end: self.pick(&[4, 2, 0, 64, u64::MAX]),
            step: self.pick(&[1, 2, 0, u64::MAX]),
        };
        axes.iter().map(range).collect()
    }

    /// Half of the draws are values of real programs.
    fn dim(&mut self) -> Dim {
        if self.one_in(2) {
            return Dim::fixed(self.pick(&[64, 4, 2, 1]));
        }
        let constant = self.pick(&[1, 64, 4, 2, 3, 0, 37, 1 << 20, 1 << 40, (1 << 40) + 1, u64::MAX]);
        if !self.one_in(4) {
            return Dim::fixed(constant);
        }
        let symbols = self.pick(&[1, 2, 3, 32, 33, 1000]);
        Dim::product(constant, (0..symbols).map(|_| Symbol::from_index(self.below(4))).collect())
    }

    /// Half of the draws are values of real programs.
    fn ty(&mut self) -> TensorType {
        if self.one_in(2) {
            let right = [
                ty(&[4, 64], F4E2M1FN),
                sf(&[4, 4], F8E4M3FN, Linear),
                sf(&[4, 4], F8E4M3FN, Blocked),
                ty(&[4, 64], BF16),
                ty(&[4, 4], F32),
                ty(&[], F32),
            ];
            return self.pick(&right);
        }
        let rank = self.pick(&[2, 1, 3, 0, 8, 9, 40]);
        TensorType {
            shape: (0..rank).map(|_| self.dim()).collect(),
            element: self.pick(&ElementType::ALL),
            layout: self.pick(&[None, None, Some(Linear), Some(Blocked)]),
        }
    }

    fn kind(&mut self) -> OpKind {
        let block = self.pick(&[16, 32, 0, 1, u32::MAX]);
        match self.below(33) {
            0 => OpKind::ScaledMma(ScaledMma {
                block,
                weight_only: self.one_in(2),
                alpha: self.one_in(2),
                c: self.one_in(2),
                beta: self.one_in(2),
            }),
            1 => OpKind::Mma,
            2 => OpKind::SwizzleScales,
            3 => OpKind::BlockQuantize {
                block,
                scale_rounding: self.pick(&[
                    None,
                    Some(ScaleRounding::Floor),
                    Some(ScaleRounding::Ceil),
                    Some(ScaleRounding::Even),
                ]),
                formula: Nvfp4Formula { guard: self.one_in(2), ..Nvfp4Formula::DEFAULT },
            },
            4 => OpKind::BlockDequantize { block },
            5 => OpKind::Convert,
            6 => OpKind::Unary(self.pick(UnaryKind::ALL)),
            7 => OpKind::Binary(self.pick(BinaryKind::ALL)),
            8 => OpKind::Clamp { min: self.number(), max: self.number() },
            9 => OpKind::Compare(self.pick(Predicate::ALL)),
            10 => OpKind::Select,
            11 => OpKind::Reshape,
            12 => OpKind::Transpose { permutation: self.axes() },
            13 => OpKind::Broadcast,
            14 => OpKind::Reduce {
                kind: self.pick(ReduceKind::ALL),
                axes: self.axes(),
                keep_dims: self.one_in(2),
            },
            15 => OpKind::Softmax { axis: self.pick(&[0, 1, 5, u32::MAX]) },
            16 => OpKind::LayerNorm { eps: self.number() },
            17 => OpKind::Constant(ConstantValue::Splat(self.number())),
            18 => OpKind::Slice { ranges: self.ranges() },
            19 => OpKind::Concat { axis: self.pick(&[0, 1, 5, u32::MAX]) },
            20 => OpKind::Gather { axis: self.pick(&[0, 1, 5, u32::MAX]) },
            21 => {
                let amounts = self.ranges().into_iter();
                let amount = |SliceRange { axis, start, end, .. }| PadAmount { axis, low: start, high: end };
                OpKind::Pad { amounts: amounts.map(amount).collect(), value: self.number() }
            }
            22 => OpKind::Bitcast,
            23 => OpKind::Bitwise(self.pick(BitwiseKind::ALL)),
            24 => OpKind::TopK { k: self.pick(&[0, 1, 6, u32::MAX]) },
            25 => OpKind::GroupRows { groups: self.pick(&[0, 1, 6, u32::MAX]) },
            26 => OpKind::ScatterAdd,
            28 => OpKind::Choose { axis: self.pick(&[0, 1, 5, u32::MAX]), ends: self.axes() },
            27 => OpKind::GroupedScaledMma(GroupedScaledMma {
                block,
                weight_only: self.one_in(2),
                alpha: self.one_in(2),
                masked: self.one_in(2),
                sfa_ends: self.one_in(2),
            }),
            29 => OpKind::PaddedEnds { multiple: self.pick(&[0, 1, 128, u32::MAX]) },
            30 => OpKind::GroupScales,
            _ => {
                let count = self.pick(&[0, 1, 6, 64]);
                OpKind::Constant(ConstantValue::Dense((0..count).map(|_| self.number()).collect()))
            }
        }
    }

    /// Mostly a value of the module, sometimes one out of range.
    fn value(&mut self, module: &Module) -> Value {
        Value::from_index(self.below(module.values.len() + 1))
    }

    fn def(&mut self) -> ValueDef {
        let index = self.pick(&[0, 1, 5, usize::MAX]);
        match self.one_in(2) {
            true => ValueDef::Input { index, param: self.one_in(2) },
            false => ValueDef::Result { op: Op::from_index(self.below(12)), index },
        }
    }

    fn name(&mut self) -> String {
        self.pick(&["", "x", "y", "x", "%", "é", "0"]).to_owned()
    }
}

/// Ops with random operands, about half of them with a plausible result type.
fn random_module(choices: &mut Choices<'_>) -> Module {
    let mut module = Module::new("random");
    for name in ["M", "N", "K"] {
        module.intern_symbol(name);
    }
    for index in 0..1 + choices.below(4) {
        let ty = choices.ty();
        module.push_input(format!("in{index}"), ty, choices.one_in(3));
    }
    for index in 0..choices.below(8) {
        let kind = choices.kind();
        let arity = crate::typing::arity(&kind);
        let operand_count = if choices.one_in(8) { choices.below(6) } else { (*arity.operands.end()).min(6) };
        let result_count = if choices.one_in(8) { choices.below(3) } else { arity.results };
        let same = choices.one_in(2);
        let first = choices.value(&module);
        let operands: Vec<Value> =
            (0..operand_count).map(|_| if same { first } else { choices.value(&module) }).collect();
        let results = (0..result_count)
            .map(|result| {
                let like = module.values.get(first).filter(|_| choices.one_in(2)).map(|data| data.ty.clone());
                (format!("v{index}.{result}"), like.unwrap_or_else(|| choices.ty()))
            })
            .collect();
        module.push_op(kind, operands, results);
    }
    module.outputs = (0..1 + choices.below(2)).map(|_| choices.value(&module)).collect();
    module
}

/// Changes one thing, which may break the module.
fn mutate(module: &mut Module, choices: &mut Choices<'_>) {
    let value = Value::from_index(choices.below(module.values.len()));
    let op = Op::from_index(choices.below(module.ops.len().max(1)));
    let other = choices.value(module);
    let operation = module.ops.get(op).cloned();
    let mut rewrite = |change: &mut dyn FnMut(&mut Operation)| {
        if let Some(mut operation) = operation.clone() {
            change(&mut operation);
            module.ops[op] = operation;
        }
    };
    match choices.below(14) {
        0 => module.values[value].ty = choices.ty(),
        1 => module.values[value].ty.element = choices.pick(&ElementType::ALL),
        2 => module.values[value].ty.layout = choices.pick(&[None, Some(Linear), Some(Blocked)]),
        3 => {
            let dim = choices.dim();
            if let Some(last) = module.values[value].ty.shape.last_mut() {
                *last = dim;
            }
        }
        4 => drop(module.values[value].ty.shape.pop()),
        5 => module.values[value].def = choices.def(),
        6 => module.values[value].name = choices.name(),
        7 => rewrite(&mut |operation| operation.kind = choices.kind()),
        8 => rewrite(&mut |operation| {
            if let Some(operand) = operation.operands.first_mut() {
                *operand = other;
            }
        }),
        9 => rewrite(&mut |operation| operation.operands.reverse()),
        10 => rewrite(&mut |operation| operation.operands.truncate(1)),
        11 => rewrite(&mut |operation| operation.results = vec![other; choices.below(3)]),
        12 => module.inputs.push(other),
        _ => {
            let ty = choices.ty();
            module.values.push(ValueData { name: choices.name(), ty, def: choices.def() });
        }
    }
}

/// Verifies a module and checks the invariants of every verdict. Returns true if it was accepted.
fn verdict(module: Module) -> bool {
    // NaN attributes are not equal to themselves.
    let before = format!("{module:?}");
    let rank = |place: Place| match place {
        Place::Module => (0, 0),
        Place::Input(index) => (1, index),
        Place::Op(op) => (2, op.index()),
        Place::Output(index) => (3, index),
    };
    match verify(module) {
        Ok(program) => {
            assert_eq!(format!("{:?}", program.module()), before);
            let (module, facts) = (program.module(), program.facts());
            for (op, operation) in module.ops.iter() {
                assert!(operation.operands.iter().all(|operand| facts.users(*operand).contains(&op)));
                let multiplies = matches!(operation.kind, OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_));
                assert_eq!(facts.matmul(op).is_some(), multiplies);
            }
            true
        }
        Err(invalid) => {
            assert_eq!(format!("{:?}", invalid.module), before);
            assert!(!invalid.errors.is_empty());
            assert!(invalid.errors.is_sorted_by_key(|error| rank(error.place)));
            for error in &invalid.errors {
                assert!(error.diagnostic(None).render("random.fir", "").contains(error.code()));
                assert_eq!(error.op_text.is_some(), matches!(error.place, Place::Op(_)));
            }
            false
        }
    }
}

fn check_verdicts(cases: u32, least_accepted: u32, make: impl Fn(&mut Choices<'_>) -> Module) {
    let accepted = Cell::new(0);
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner =
        TestRunner::new_with_rng(Config { cases, failure_persistence: None, ..Config::default() }, rng);
    let result = runner.run(&prop::collection::vec(any::<u32>(), 0..160), |numbers| {
        let module = make(&mut Choices { numbers: numbers.iter() });
        accepted.set(accepted.get() + u32::from(verdict(module)));
        Ok(())
    });
    assert_eq!(result, Ok(()));
    assert!(accepted.get() >= least_accepted, "only {} of {cases} were accepted", accepted.get());
}

#[test]
fn any_random_module_gets_a_verdict() {
    check_verdicts(4000, 40, random_module);
}

#[test]
fn any_mutation_of_a_right_module_gets_a_verdict() {
    check_verdicts(2000, 40, |choices| {
        let mut module = every_op();
        for _ in 0..choices.below(5) {
            mutate(&mut module, choices);
        }
        module
    });
}

/// A chain of NVFP4 multiplications, biases, activations and quantizations, `ops` ops long.
fn long_module(ops: usize) -> Module {
    let mut b = Builder::new("long");
    let m = b.symbol("M");
    let rows = |inner: u64, element| TensorType::new(vec![m.clone(), Dim::fixed(inner)], element);
    let mut x = b.input("x", rows(64, BF16));
    let g = b.input("g", ty(&[], F32));
    let w = b.param("w", ty(&[64, 64], F4E2M1FN));
    let sfw = b.param("sfw", sf(&[64, 4], F8E4M3FN, Blocked));
    let bias = b.param("bias", ty(&[64], BF16));
    for layer in 0..ops / 4 {
        let scales = TensorType::scales(vec![m.clone(), Dim::fixed(4)], F8E4M3FN, Blocked);
        let names = [format!("layers.{layer}.codes"), format!("layers.{layer}.scales")];
        let quantized = b.op(
            OpKind::block_quantize(16, None),
            &[x, g],
            &[(&names[0], rows(64, F4E2M1FN)), (&names[1], scales)],
        );
        let options = ScaledMmaOptions::default();
        let (codes, scales) = (quantized[0], quantized[1]);
        let y = b.scaled_mma(&format!("layers.{layer}.y"), codes, scales, w, sfw, 16, BF16, options);
        let y = b.binary(&format!("layers.{layer}.sum"), BinaryKind::Add, y, bias);
        x = b.unary(&format!("layers.{layer}.act"), UnaryKind::Gelu, y);
    }
    b.finish(&[x])
}

#[test]
fn a_module_of_a_hundred_thousand_ops_takes_a_moment() {
    let module = long_module(100_000);
    let start = Instant::now();
    let program = accept(module);
    let seconds = start.elapsed().as_secs_f64();
    println!("100000 valid ops: {seconds:.3} s");
    assert_eq!(program.facts().matmuls().len(), 25_000);
    // About 20 times the time on an idle machine, so that only a higher complexity fails.
    assert!(seconds < 3.0, "{seconds} s");
}

#[test]
fn a_module_of_a_hundred_thousand_wrong_ops_takes_a_moment() {
    let mut module = long_module(100_000);
    for value in module.values.keys() {
        module.values[value].ty.shape.push(Dim::fixed(2));
        module.values[value].ty.layout = None;
    }
    let start = Instant::now();
    let invalid = verify(module).expect_err("nothing fits");
    let seconds = start.elapsed().as_secs_f64();
    println!("{} errors: {seconds:.3} s", invalid.errors.len());
    assert!(invalid.errors.len() >= 100_000 / 2);
    assert!(seconds < 3.0, "{seconds} s");
}

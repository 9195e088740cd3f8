//! Random programs: every op has a decision, and the checker agrees.

use fourfold_ir::{
    BinaryKind, Builder, Capabilities, Dim, ElementType, Entity, Module, ReduceKind, ScaledMmaOptions,
    UnaryKind, Value,
};
use fourfold_scheduler::{EpilogueKind, KernelOutput, OutputKind, ReasonCode};

use super::support::*;

use ElementType::{BF16, F16, F32};

/// A simple generator, sufficient to pick among a few items.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// Matrices `[M, N]` of one M and N, and vectors `[N]`, combined at random, mostly in ways that kernels
/// accept.
fn random_module(seed: u64) -> Module {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (seed + 1));
    let mut builder = Builder::new("random");
    let m = if random.below(2) == 0 { builder.symbol("M") } else { Dim::fixed(random.pick(&[1, 37, 128])) };
    let n = random.pick(&[12, 16, 48, 56, 64, 96]);
    let mut vectors: Vec<Value> = [F32, BF16, F16]
        .map(|element| builder.param(&format!("vector_{element}"), tensor(&[n], element)))
        .to_vec();
    let global = builder.input("g", tensor(&[], F32));
    let mut ends: Vec<Value> = Vec::new();
    let mut matrices: Vec<Value> = Vec::new();
    let first = Gemm::new(m.clone(), n, 96).build(&mut builder, "first");
    matrices.push(first);
    for step in 0..random.below(30) {
        let name = format!("x{step}");
        // Mostly the newest value, so that chains form.
        let recent = *matrices.last().expect("the list is not empty");
        let matrix = if random.below(4) == 0 { random.pick(&matrices) } else { recent };
        let result = match random.below(15) {
            0..=2 => {
                let c = if random.below(3) == 0 { Some(random.pick(&matrices)) } else { None };
                let gemm = Gemm {
                    element: random.pick(&[F32, F32, BF16, F16]),
                    options: ScaledMmaOptions { c, ..ScaledMmaOptions::default() },
                    ..Gemm::new(m.clone(), n, random.pick(&[32, 48, 64, 128]))
                };
                gemm.build(&mut builder, &name)
            }
            3..=5 => {
                let other = if random.below(4) == 0 { random.pick(&matrices) } else { random.pick(&vectors) };
                let sides = if random.below(2) == 0 { [matrix, other] } else { [other, matrix] };
                builder.binary(&name, BinaryKind::Add, sides[0], sides[1])
            }
            6 | 7 => builder.unary(&name, random.pick(UnaryKind::ALL), matrix),
            8 | 9 => builder.convert(&name, matrix, random.pick(&[F32, BF16, F16])),
            10 => builder.binary(&name, BinaryKind::Mul, matrix, random.pick(&matrices)),
            11 => {
                vectors.push(column_sums(&mut builder, &name, matrix));
                continue;
            }
            12 => {
                let kind = random.pick(ReduceKind::ALL);
                let axes = random.pick(&[&[0][..], &[1], &[0, 1]]);
                let reduced = reduce(&mut builder, &name, kind, axes, matrix);
                let row = axes == [0] && random.below(2) == 0;
                if row {
                    vectors.push(reduced)
                } else {
                    ends.push(reduced)
                }
                continue;
            }
            13 if n.is_multiple_of(16) => {
                ends.extend(quantize(&mut builder, &name, matrix, global));
                continue;
            }
            _ => {
                let narrow = random.pick(&[ElementType::F8E4M3FN, ElementType::F8E5M2]);
                let narrow = builder.convert(&format!("{name}.8"), matrix, narrow);
                if random.below(4) == 0 {
                    ends.push(narrow);
                }
                builder.convert(&name, narrow, F32)
            }
        };
        matrices.push(result);
    }
    let last = *matrices.last().expect("the list is not empty");
    let mut outputs = vec![last];
    if random.below(3) == 0 {
        let another = random.pick(&matrices);
        if another != last {
            outputs.push(another);
        }
    }
    outputs.extend(ends.into_iter().filter(|_| random.below(2) == 0));
    builder.finish(&outputs)
}

/// Totals over random programs.
#[derive(Debug, Default)]
struct Counts {
    kernels: usize,
    steps: usize,
    /// Kernels with several outputs.
    several: usize,
    /// Quantized outputs and reductions.
    ends: usize,
}

fn partition_many(capabilities: &Capabilities) -> Counts {
    let Counts { mut kernels, mut steps, mut several, mut ends } = Counts::default();
    for seed in 0..400 {
        let (program, partition) = planned(random_module(seed), capabilities);
        let module = program.module();
        assert_eq!(partition.decisions.len(), module.ops.len());
        for (op, decision) in module.ops.keys().zip(&partition.decisions) {
            assert!(decision.segment < partition.segments.len());
            let Some(rejection) = &decision.rejection else { continue };
            let label = module.op_label(op);
            assert!(rejection.message.starts_with(&label), "{seed}: {rejection} does not name {label}");
            let root = matches!(module.ops[op].kind, fourfold_ir::OpKind::ScaledMma(_));
            assert!(!root || rejection.code != ReasonCode::NoScaledMmaProducer, "{seed}: {rejection}");
        }
        for (index, plan) in partition.kernels() {
            assert!(partition.segments[index].ops.contains(&plan.root));
            assert_eq!(partition.decisions[plan.root.index()].segment, index);
            let constant = |kind: &EpilogueKind| matches!(kind, EpilogueKind::Constant { .. });
            let lifted = plan.epilogue.iter().filter(|step| !constant(&step.kind)).count();
            let values = |output: &KernelOutput| matches!(output.kind, OutputKind::Value { .. });
            let rules = 1 + lifted + plan.outputs.len();
            assert_eq!(plan.proof.len(), rules, "{seed}: {:?}", plan.proof);
            several += usize::from(plan.outputs.len() > 1);
            ends += plan.outputs.iter().filter(|output| !values(output)).count();
            kernels += 1;
            steps += plan.epilogue.len();
        }
    }
    Counts { kernels, steps, several, ends }
}

#[test]
fn every_op_of_a_random_program_gets_an_answer_that_the_checker_proves() {
    let counts = partition_many(&with_device());
    println!("{counts:?}");
    let Counts { kernels, steps, several, ends } = counts;
    assert!(kernels > 800 && steps > 1000, "{kernels} kernels with {steps} steps are too few");
    assert!(several > 200 && ends > 100, "{several} with several outputs, {ends} quantized or reduced");
}

#[test]
fn so_on_targets_that_take_little() {
    let Counts { kernels, steps, .. } = partition_many(&narrow());
    assert!(kernels > 40 && steps > 10, "{kernels} kernels with {steps} steps are too few");
    let Counts { kernels, steps, several, ends } = partition_many(&one_output());
    assert!(kernels > 800 && steps > 300, "{kernels} kernels with {steps} steps are too few");
    assert_eq!((several, ends), (0, 0));
}

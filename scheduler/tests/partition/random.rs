//! Random programs: every op gets an answer, and the checker agrees with it.

use fourfold_ir::{
    BinaryKind, Builder, Capabilities, Dim, ElementType, Entity, Module, ScaledMmaOptions, UnaryKind, Value,
};
use fourfold_scheduler::{EpilogueKind, ReasonCode};

use crate::support::*;

use ElementType::{BF16, F16, F32};

/// A generator good enough to pick among a few things.
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

/// Matrices `[M, N]` of one M and N, and vectors `[N]`, combined at random; mostly what kernels like.
fn random_module(seed: u64) -> Module {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (seed + 1));
    let mut builder = Builder::new("random");
    let m = if random.below(2) == 0 { builder.symbol("M") } else { Dim::fixed(random.pick(&[1, 37, 128])) };
    let n = random.pick(&[12, 16, 48, 56, 64]);
    let mut vectors: Vec<Value> = [F32, BF16, F16]
        .map(|element| builder.param(&format!("vector_{element}"), tensor(&[n], element)))
        .to_vec();
    let mut matrices: Vec<Value> = Vec::new();
    let first = Gemm::new(m.clone(), n, 96).build(&mut builder, "first");
    matrices.push(first);
    for step in 0..random.below(30) {
        let name = format!("x{step}");
        // Mostly the newest value, so that chains come about.
        let recent = *matrices.last().expect("there is one");
        let matrix = if random.below(4) == 0 { random.pick(&matrices) } else { recent };
        let result = match random.below(12) {
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
            _ => {
                vectors.push(column_sums(&mut builder, &name, matrix));
                continue;
            }
        };
        matrices.push(result);
    }
    let last = *matrices.last().expect("there is one");
    let mut outputs = vec![last];
    if random.below(3) == 0 {
        let another = random.pick(&matrices);
        if another != last {
            outputs.push(another);
        }
    }
    builder.finish(&outputs)
}

/// Partitions many programs; gives how many kernels and steps there were.
fn partition_many(capabilities: &Capabilities) -> (usize, usize) {
    let (mut kernels, mut steps) = (0, 0);
    for seed in 0..400 {
        let (program, partition) = planned(random_module(seed), capabilities);
        let module = program.module();
        assert_eq!(partition.decisions.len(), module.ops.len());
        for (op, decision) in module.ops.keys().zip(&partition.decisions) {
            assert!(decision.segment < partition.segments.len());
            let Some(rejection) = &decision.rejection else { continue };
            let label = module.op_label(op);
            assert!(rejection.message.starts_with(&label), "{seed}: {rejection} does not name {label}");
            assert!(!rejection.message.contains("no rule takes it"), "{seed}: {rejection}");
            let root = matches!(module.ops[op].kind, fourfold_ir::OpKind::ScaledMma(_));
            assert!(!root || rejection.code != ReasonCode::NoScaledMmaProducer, "{seed}: {rejection}");
        }
        for (index, plan) in partition.kernels() {
            assert!(partition.segments[index].ops.contains(&plan.root));
            assert_eq!(partition.decisions[plan.root.index()].segment, index);
            let constant = |kind: &EpilogueKind| matches!(kind, EpilogueKind::Constant { .. });
            let lifted = plan.epilogue.iter().filter(|step| !constant(&step.kind)).count();
            assert_eq!(plan.proof.len(), lifted + 2, "{seed}: {:?}", plan.proof);
            kernels += 1;
            steps += plan.epilogue.len();
        }
    }
    (kernels, steps)
}

#[test]
fn every_op_of_a_random_program_gets_an_answer_that_the_checker_proves() {
    let (kernels, steps) = partition_many(&blackwell());
    assert!(kernels > 800 && steps > 300, "{kernels} kernels with {steps} steps test little");
}

#[test]
fn so_on_a_target_that_takes_little() {
    let (kernels, steps) = partition_many(&narrow());
    assert!(kernels > 40 && steps > 10, "{kernels} kernels with {steps} steps test little");
}

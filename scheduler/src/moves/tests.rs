//! Plans of moves as text, and random moves against the checker.

use expect_test::{Expect, expect};
use fourfold_ir::{
    Builder, Capabilities, Dim, ElementType, Module, MoveCapability, OpKind, PadAmount, Program, ScaleLayout,
    SliceRange, TensorType, Value, dim_product, verify,
};

use super::plan_move;
use crate::check::{CheckError, check};
use crate::plan::{Constraint, Decision, MovePlan, MoveProgram, Partition, Plan, Segment, SegmentKind};
use crate::reason::{ReasonCode, Rejection};

fn capabilities() -> Capabilities {
    fourfold_codegen::capabilities("sm_90a").expect("a known target")
}

fn moves() -> MoveCapability {
    // The crate under test and the one that `fourfold_codegen` uses are two instances, which share `fourfold_ir`.
    capabilities().device.moves.expect("the target has moves")
}

/// A partition with one segment for each op, as the planner plans it; fallback if it does not.
fn partition(program: &Program) -> Partition {
    let module = program.module();
    let segments: Vec<Segment> = module
        .ops
        .iter()
        .map(|(op, operation)| {
            let mut inputs = operation.operands.clone();
            inputs.sort_unstable();
            inputs.dedup();
            let kind = match plan_move(program, &moves(), op) {
                Some(plan) => SegmentKind::Kernel(Box::new(plan)),
                None => SegmentKind::Fallback,
            };
            let is_used = |value: &Value| {
                !program.facts().users(*value).is_empty() || program.facts().is_output(*value)
            };
            let outputs = operation.results.iter().copied().filter(is_used).collect();
            Segment { ops: vec![op], inputs, outputs, kind }
        })
        .collect();
    let rejection = Some(Rejection::new(ReasonCode::NoScaledMmaProducer, "a test"));
    let decisions =
        (0..segments.len()).map(|segment| Decision { segment, rejection: rejection.clone() }).collect();
    Partition { target: capabilities().target, segments, decisions }
}

/// A plan as text. Leading axes of one index, and offsets of 0, are left out.
fn text(program: &Program, plan: Option<&Plan>) -> String {
    let module = program.module();
    let plan = match plan {
        None => return "no plan".to_owned(),
        Some(Plan::View(plan)) => return format!("view of %{}", module.name_of(plan.operand)),
        Some(Plan::Move(plan)) => plan,
        Some(other) => panic!("{other:?} is no move"),
    };
    let operands: Vec<String> =
        plan.operands.iter().map(|value| format!("%{}", module.name_of(*value))).collect();
    let numbers: Vec<String> = plan
        .program
        .extent_names()
        .into_iter()
        .zip(&plan.extents)
        .filter(|(name, dim)| {
            let is_indexed = name[1..].parse::<usize>().is_ok();
            let unused = match name.as_bytes()[0] {
                b'S' | b'P' | b'O' => 0,
                _ => 1,
            };
            !(is_indexed && dim.as_fixed() == Some(unused))
        })
        .map(|(name, dim)| format!("{name}={}", module.display_dim(dim)))
        .collect();
    let limits = plan.constraints.iter().map(|constraint| match constraint {
        Constraint::AtMost { name, .. } => format!("{name} limited"),
        Constraint::Tiles { tile: [rows, columns], .. } => format!("tiles of {rows}x{columns} limited"),
        Constraint::PointerAlignment { value, bytes } => format!("%{} at {bytes}", module.name_of(*value)),
        other => format!("{other:?}"),
    });
    let limits: Vec<String> = limits.collect();
    format!(
        "{} {}: {}; {}",
        plan.program.signature(),
        operands.join(" "),
        numbers.join(" "),
        limits.join(", ")
    )
}

/// Plans every op of a program, checks the plans, and compares them as text.
fn expect_plans(body: &str, expected: Expect) {
    let source = format!("fir 1\nfunc @f({body}\n");
    let (program, _) = fourfold_ir::load(&source).unwrap_or_else(|errors| panic!("{errors:?}"));
    let partition = partition(&program);
    let lines = partition.segments.iter().map(|segment| {
        let name = program.module().name_of(program.module().ops[segment.ops[0]].results[0]);
        format!("{name}: {}\n", text(&program, segment.plan()))
    });
    expected.assert_eq(&lines.collect::<String>());
    assert_eq!(check(&program, &capabilities(), &partition), Ok(()));
}

#[test]
fn axes_that_move_together_are_one() {
    expect_plans(
        "%x: tensor<[2, M, 3, 64], bf16>, %y: tensor<[M, K], i1>, %z: tensor<[4, 1, N, 1, 8], f32>) {
  %a = transpose %x {permutation = [0, 2, 1, 3]} : tensor<[2, 3, M, 64], bf16>
  %b = transpose %x {permutation = [3, 0, 1, 2]} : tensor<[64, 2, M, 3], bf16>
  %c = transpose %y {permutation = [1, 0]} : tensor<[K, M], i1>
  %d = transpose %z {permutation = [4, 3, 1, 0, 2]} : tensor<[8, 1, 1, 4, N], f32>
  return %a, %b, %c, %d
}",
        expect![[r#"
            a: move 16 strided %x: D2=2 D3=3 D4=M D5=64 S2=192*M S3=64 S4=192 S5=1 E=384*M; D4 limited, E limited, %x at 2, %a at 2
            b: move 16 strided %x: D4=64 D5=6*M S4=1 S5=64 E=384*M; D5 limited, E limited, %x at 2, %b at 2
            c: move 8 strided %y: D4=K D5=M S4=1 S5=K E=M*K; D4 limited, D5 limited, E limited
            d: move 32 strided %z: D4=8 D5=4*N S4=1 S5=8 E=32*N; D5 limited, E limited, %z at 4, %d at 4
        "#]],
    );
}

#[test]
fn moves_that_change_no_byte_are_views() {
    expect_plans(
        "%x: tensor<[1, M, 1, 64], bf16>, %c: tensor<[M, 2*K], f4E2M1FN>, %n: tensor<[M, 4], f8E4M3FN>,
    %o: tensor<[0, 64], bf16>, %p: tensor<[5, 64], bf16>) {
  %a = transpose %x {permutation = [1, 0, 3, 2]} : tensor<[M, 1, 64, 1], bf16>
  %b = broadcast %x : tensor<[1, 1, M, 1, 64], bf16>
  %d = slice %x {axes = [3], ends = [64], starts = [0], steps = [1]} : tensor<[1, M, 1, 64], bf16>
  %e = concat %p {axis = 0} : tensor<[5, 64], bf16>
  %f = reshape %c : tensor<[K, 2*M], f4E2M1FN>
  %g = swizzle_scales %n : tensor<[M, 4], f8E4M3FN, linear>
  %h = concat %o, %p {axis = 0} : tensor<[5, 64], bf16>
  return %a, %b, %d, %e, %f, %g, %h
}",
        expect![[r#"
            a: view of %x
            b: view of %x
            d: view of %x
            e: view of %p
            f: view of %c
            g: view of %n
            h: view of %p
        "#]],
    );
}

#[test]
fn slices_and_repeats_are_strides() {
    expect_plans(
        "%x: tensor<[8, 6, M], f16>, %v: tensor<[M, 1], f32>, %w: tensor<[K], f32>, %c: tensor<[6, M, 32], f4E2M1FN>) {
  %a = slice %x {axes = [0], ends = [7], starts = [2], steps = [1]} : tensor<[5, 6, M], f16>
  %b = slice %x {axes = [0, 1], ends = [8, 6], starts = [1, 2], steps = [3, 2]} : tensor<[3, 2, M], f16>
  %d = broadcast %v : tensor<[4, M, 64], f32>
  %e = broadcast %w : tensor<[2, 3, K], f32>
  %f = slice %c {axes = [2], ends = [24], starts = [8], steps = [1]} : tensor<[6, M, 16], f4E2M1FN>
  return %a, %b, %d, %e, %f
}",
        expect![[r#"
            a: move 16 strided %x: D5=30*M S5=1 O0=12*M E=48*M; D5 limited, E limited, %x at 2, %a at 2
            b: move 16 strided %x: D3=3 D4=2 D5=M S3=18*M S4=2*M S5=1 O0=8*M E=48*M; D5 limited, E limited, %x at 2, %b at 2
            d: move 32 strided %v: D3=4 D4=M D5=64 S4=1 E=M; D4 limited, E limited, %v at 4, %d at 4
            e: move 32 strided %w: D4=6 D5=K S5=1 E=K; D5 limited, E limited, %w at 4, %e at 4
            f: move 8 strided %c: D4=6*M D5=8 S4=16 S5=1 O0=4 E=96*M; D4 limited, E limited
        "#]],
    );
}

#[test]
fn other_moves_are_rows() {
    expect_plans(
        "%x: tensor<[2, M, 8], bf16>, %y: tensor<[2, 3*M, 8], bf16>, %i: tensor<[B, 5], i32>,
    %c: tensor<[9, 32], f4E2M1FN>, %s: tensor<[3, M, 8], f8E8M0FNU, linear>,
    %b: tensor<[M, 8], f8E4M3FN, blocked>) {
  %a = pad %x {axes = [2], high = [1], low = [2], value = 0} : tensor<[2, M, 11], bf16>
  %d = pad %x {axes = [0], high = [0], low = [1], value = -1} : tensor<[3, M, 8], bf16>
  %e = pad %c {axes = [1], high = [2], low = [4], value = 1} : tensor<[9, 38], f4E2M1FN>
  %f = concat %x, %y {axis = 1} : tensor<[2, 4*M, 8], bf16>
  %g = gather %x, %i {axis = 1} : tensor<[2, B, 5, 8], bf16>
  %h = gather %c, %i {axis = 0} : tensor<[B, 5, 32], f4E2M1FN>
  %j = swizzle_scales %s : tensor<[3, M, 8], f8E8M0FNU, blocked>
  %k = swizzle_scales %b : tensor<[M, 8], f8E4M3FN>
  return %a, %d, %e, %f, %g, %h, %j, %k
}",
        expect![[r#"
            a: move 16 pad %x: D3=2*M D4=11 E3=2*M E4=8 P4=2 F=0; D3 limited, E3 limited, %x at 2, %a at 2
            d: move 16 pad %x: D4=24*M E4=16*M P4=8*M F=49024; D4 limited, E4 limited, %x at 2, %d at 2
            e: move 8 pad %c: D3=9 D4=19 E3=9 E4=16 P4=2 F=34; 
            f: move concat 2 %x %y: O=2 R=64*M R0=16*M R1=48*M; R limited, R0 limited, R1 limited
            g: move gather %x %i: O=2 A=M I=16 C=5*B; A limited, C limited, %i at 4
            h: move gather %c %i: O=1 A=9 I=16 C=5*B; C limited, %i at 4
            j: move swizzle blocked %s: L=3 M=M B=8; M limited, %j at 16
            k: move swizzle linear %b: L=1 M=M B=8; M limited, %b at 16
        "#]],
    );
}

#[test]
fn padded_groups_have_a_move_for_their_ends_and_one_for_their_scales() {
    expect_plans(
        "%s: tensor<[M, 7], f8E8M0FNU, linear>, %ends: tensor<[5], i32>, %t: tensor<[64, 12], f8E4M3FN, linear>,
    %i: tensor<[B], i32>, %j: tensor<[B], i32>) {
  %a = padded_ends %ends {multiple = 128} : tensor<[5], i32>
  %b = padded_ends %i {multiple = 1} : tensor<[B], i32>
  %c = group_scales %s, %ends, %a : tensor<[900, 7], f8E8M0FNU, blocked>
  %d = group_scales %t, %i, %j : tensor<[2*B, 12], f8E4M3FN, blocked>
  return %a, %b, %c, %d
}",
        expect![[r#"
            a: move padded_ends %ends: E=5 R=128; %ends at 4, %a at 4
            b: move padded_ends %i: E=B R=1; E limited, %i at 4, %b at 4
            c: move group_scales %s %ends %a: M=M B=7 E=5 P=900; M limited, %ends at 4, %a at 4, %c at 16
            d: move group_scales %t %i %j: M=64 B=12 E=B P=2*B; E limited, P limited, %i at 4, %j at 4, %d at 16
        "#]],
    );
}

#[test]
fn each_op_that_routes_rows_is_one_move() {
    expect_plans(
        "%ids: tensor<[M, 2], i32>, %three: tensor<[3, M, 5], i32>, %x: tensor<[M, 7, 9], f32>, %i: tensor<[M], i32>,
    %h: tensor<[3, M, 11], f16>, %b: tensor<[40], bf16>, %first: tensor<[3], i32>) {
  %positions, %rows, %ends = group_rows %ids {groups = 6} : tensor<[2*M], i32>, tensor<[2*M], i32>, tensor<[6], i32>
  %p, %r, %e = group_rows %three {groups = 1} : tensor<[15*M], i32>, tensor<[15*M], i32>, tensor<[1], i32>
  %y = scatter_add %x, %i : tensor<[M, 7, 9], bf16>
  %z = scatter_add %h, %first : tensor<[5, M, 11], f16>
  %v, %k = top_k %h {k = 3} : tensor<[3, M, 3], f16>, tensor<[3, M, 3], i32>
  %w, %l = top_k %b {k = 40} : tensor<[40], bf16>, tensor<[40], i32>
  return %positions, %ends, %p, %y, %v, %l
}",
        expect![[r#"
            positions: move group_rows %ids: M=2*M C=2 E=6; M limited, %ids at 4, %positions at 4, %rows at 4, %ends at 4
            p: move group_rows %three: M=15*M C=5 E=1; M limited, %three at 4, %p at 4, %r at 4, %e at 4
            y: move scatter_add f32 bf16 %x %i: M=M N=M C=63; M limited, N limited, %x at 4, %i at 4, %y at 2
            z: move scatter_add f16 f16 %h %first: M=3 N=5 C=11*M; C limited, tiles of 1x2048 limited, %h at 2, %first at 4, %z at 2
            v: move top_k f16 %h: M=3*M C=11 K=3; M limited, %h at 2, %v at 2, %k at 4
            w: move top_k bf16 %b: M=1 C=40 K=40; %b at 2, %w at 2, %l at 4
        "#]],
    );
}

#[test]
fn limits_leave_ops_to_the_fallback() {
    expect_plans(
        "%x: tensor<[2, 3, 4, 5, 6, 7, 8], f32>, %y: tensor<[1, 2], i1>, %z: tensor<[2], f32>,
    %ends: tensor<[65537], i32>, %ids: tensor<[2, 3], i32>, %row: tensor<[70000], f32>) {
  %a = transpose %x {permutation = [6, 5, 4, 3, 2, 1, 0]} : tensor<[8, 7, 6, 5, 4, 3, 2], f32>
  %b = broadcast %y : tensor<[8, 1099511627776, 2], i1>
  %e = concat %y, %y, %y, %y, %y, %y, %y, %y, %y {axis = 1} : tensor<[1, 18], i1>
  %f = relu %z : tensor<[2], f32>
  %g = padded_ends %ends {multiple = 128} : tensor<[65537], i32>
  %h, %i, %j = group_rows %ids {groups = 65537} : tensor<[6], i32>, tensor<[6], i32>, tensor<[65537], i32>
  %k, %l = top_k %row {k = 256} : tensor<[256], f32>, tensor<[256], i32>
  return %a, %b, %e, %f, %g, %h, %k
}",
        expect![[r#"
            a: no plan
            b: no plan
            e: no plan
            f: no plan
            g: no plan
            h: no plan
            k: no plan
        "#]],
    );
}

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    /// A fixed extent, or one with symbols.
    fn dim(&mut self, symbols: &[Dim]) -> Dim {
        let factor = Dim::fixed(1 + self.below(4));
        match self.below(3) {
            0 => self.pick(symbols).times(&factor).expect("a small extent"),
            1 => Dim::fixed(1),
            _ => Dim::fixed(1 + self.below(8)),
        }
    }
}

/// A program of one random move.
fn random_move(random: &mut Random) -> Module {
    let mut builder = Builder::new("f");
    let symbols = ["M", "N"].map(|name| builder.symbol(name));
    // Every symbol has a value.
    builder.input("symbols", TensorType::new(symbols.to_vec(), ElementType::I1));
    let rank = 1 + random.below(4) as usize;
    let mut shape: Vec<Dim> = (0..rank).map(|_| random.dim(&symbols)).collect();
    let plain = [ElementType::I1, ElementType::F8E5M2, ElementType::BF16, ElementType::I32];
    let kind = random.below(11).min(9);
    let mut element = random.pick(&plain);
    if kind == 7 {
        element = ElementType::I32;
    } else if kind == 6 || kind == 8 {
        element = ElementType::F8E4M3FN;
    } else if kind > 1 && random.below(3) == 0 {
        element = ElementType::F4E2M1FN;
        shape[rank - 1] = shape[rank - 1].times(&Dim::fixed(2)).expect("a small extent");
    }
    let is_packed = |axis: usize| element == ElementType::F4E2M1FN && axis + 1 == rank;
    let input = |builder: &mut Builder, name: &str, shape: &[Dim]| {
        builder.input(name, TensorType::new(shape.to_vec(), element))
    };
    let mut result = shape.clone();
    let mut operands = Vec::new();
    let mut layouts = [None, None];
    let op = match kind {
        0 => {
            let mut permutation: Vec<u32> = (0..rank as u32).collect();
            (1..rank).rev().for_each(|at| permutation.swap(at, random.below(at as u64 + 1) as usize));
            result = permutation.iter().map(|axis| shape[*axis as usize].clone()).collect();
            OpKind::Transpose { permutation }
        }
        1 => {
            for dim in result.iter_mut().filter(|dim| dim.as_fixed() == Some(1)) {
                *dim = random.dim(&symbols);
            }
            result.splice(0..0, (0..random.below(2)).map(|_| random.dim(&symbols)).collect::<Vec<_>>());
            OpKind::Broadcast
        }
        2 => {
            let mut ranges = Vec::new();
            for axis in 0..rank {
                let Some(extent) = shape[axis].as_fixed().filter(|_| random.below(2) == 0) else { continue };
                let unit = if is_packed(axis) { 2 } else { 1 };
                let start = random.below(extent / unit) * unit;
                let end = start + (1 + random.below((extent - start) / unit)) * unit;
                let step = if is_packed(axis) { 1 } else { 1 + random.below(3) };
                let range = SliceRange { axis: axis as u32, start, end, step };
                result[axis] = Dim::fixed(range.extent());
                ranges.push(range);
            }
            OpKind::Slice { ranges }
        }
        3 => {
            let mut amounts = Vec::new();
            for axis in 0..rank {
                if shape[axis].as_fixed().is_none() || random.below(2) == 0 {
                    continue;
                }
                let unit = if is_packed(axis) { 2 } else { 1 };
                let [low, high] = [random.below(3) * unit, random.below(3) * unit];
                result[axis] = result[axis].plus(&Dim::fixed(low + high)).expect("a small extent");
                amounts.push(PadAmount { axis: axis as u32, low, high });
            }
            OpKind::Pad { amounts, value: random.pick(&[0.0, 1.0]) }
        }
        4 => {
            let axis = random.below(rank as u64) as usize;
            let count = 1 + random.below(4);
            let factors: Vec<u64> = (0..count).map(|_| 1 + random.below(3)).collect();
            for (index, factor) in factors.iter().enumerate() {
                let mut part = shape.clone();
                part[axis] = part[axis].times(&Dim::fixed(*factor)).expect("a small extent");
                operands.push(input(&mut builder, &format!("x{index}"), &part));
            }
            let sum = Dim::fixed(factors.iter().sum());
            result[axis] = result[axis].times(&sum).expect("a small extent");
            OpKind::Concat { axis: axis as u32 }
        }
        5 => {
            let axis = random.below(rank as u64) as usize;
            let axis = if is_packed(axis) { axis.saturating_sub(1) } else { axis };
            if is_packed(axis) {
                return random_move(random);
            }
            operands.push(input(&mut builder, "x", &shape));
            let indices: Vec<Dim> = (0..random.below(3)).map(|_| random.dim(&symbols)).collect();
            operands.push(builder.input("i", TensorType::new(indices.clone(), ElementType::I32)));
            result = [&shape[..axis], &indices, &shape[axis + 1..]].concat();
            OpKind::Gather { axis: axis as u32 }
        }
        6 => {
            if rank < 2 || shape.len() < 2 {
                return random_move(random);
            }
            layouts = random.pick(&[
                [None, Some(ScaleLayout::Blocked)],
                [None, Some(ScaleLayout::Linear)],
                [Some(ScaleLayout::Linear), Some(ScaleLayout::Blocked)],
                [Some(ScaleLayout::Blocked), Some(ScaleLayout::Linear)],
                [Some(ScaleLayout::Blocked), None],
            ]);
            let ty = TensorType { shape: shape.clone(), element, layout: layouts[0] };
            operands.push(builder.input("x", ty));
            OpKind::SwizzleScales
        }
        9 => return random_routing(random, builder, &symbols),
        7 => {
            result = vec![random.dim(&symbols)];
            operands.push(builder.input("ends", TensorType::new(result.clone(), element)));
            OpKind::PaddedEnds { multiple: random.pick(&[1, 3, 128]) }
        }
        _ => {
            layouts = [Some(ScaleLayout::Linear), Some(ScaleLayout::Blocked)];
            let [rows, blocks, groups, padded] = [0; 4].map(|_| random.dim(&symbols));
            let scales = TensorType::scales(vec![rows, blocks.clone()], element, ScaleLayout::Linear);
            operands.push(builder.input("scales", scales));
            for name in ["ends", "sfa_ends"] {
                let ty = TensorType::new(vec![groups.clone()], ElementType::I32);
                operands.push(builder.input(name, ty));
            }
            result = vec![padded, blocks];
            OpKind::GroupScales
        }
    };
    if operands.is_empty() {
        operands.push(input(&mut builder, "x", &shape));
    }
    let ty = TensorType { shape: result, element, layout: layouts[1] };
    let results = builder.op(op, &operands, &[("y", ty)]);
    builder.finish(&results)
}

/// A program of one random op that routes rows.
fn random_routing(random: &mut Random, mut builder: Builder, symbols: &[Dim]) -> Module {
    let floats = [ElementType::F16, ElementType::BF16, ElementType::F32];
    let [rows, columns, more] = [0; 3].map(|_| random.dim(symbols));
    let positions = |shape: &[Dim]| TensorType::new(shape.to_vec(), ElementType::I32);
    let x = random.pick(&floats);
    let results = match random.below(3) {
        0 => {
            let ids = builder.input("ids", positions(&[rows.clone(), columns.clone()]));
            let count = dim_product(&[rows, columns]).expect("a small extent");
            let groups = 1 + random.below(9) as u32;
            let ends = positions(&[Dim::fixed(u64::from(groups))]);
            let of_ids = positions(&[count]);
            let types = [("p", of_ids.clone()), ("r", of_ids), ("e", ends)];
            builder.op(OpKind::GroupRows { groups }, &[ids], &types)
        }
        1 => {
            let to = TensorType::new(vec![more, columns.clone()], random.pick(&floats));
            let indices = positions(std::slice::from_ref(&rows));
            let operands =
                [builder.input("x", TensorType::new(vec![rows, columns], x)), builder.input("i", indices)];
            builder.op(OpKind::ScatterAdd, &operands, &[("y", to)])
        }
        _ => {
            let extent = 1 + random.below(9);
            let k = 1 + random.below(extent);
            let shape = |last: u64| vec![rows.clone(), columns.clone(), Dim::fixed(last)];
            let of_x = builder.input("x", TensorType::new(shape(extent), x));
            let types = [("v", TensorType::new(shape(k), x)), ("i", positions(&shape(k)))];
            builder.op(OpKind::TopK { k: k as u32 }, &[of_x], &types)
        }
    };
    builder.finish(&results)
}

/// Changes one number, operand or constraint of a plan so that it means something else; `None` if it would not.
fn with_fault(random: &mut Random, plan: &MovePlan) -> Option<MovePlan> {
    let mut wrong = plan.clone();
    match random.below(8) {
        0 if !wrong.constraints.is_empty() => {
            let at = random.below(wrong.constraints.len() as u64) as usize;
            wrong.constraints.remove(at);
        }
        1 if wrong.operands.len() > 1 => wrong.operands.reverse(),
        _ => {
            let at = random.below(wrong.extents.len() as u64) as usize;
            let is_strided = matches!(plan.program, MoveProgram::Strided { .. });
            // The stride of an axis with one index has no effect.
            if is_strided && (6..12).contains(&at) && plan.extents[at - 6].as_fixed() == Some(1) {
                return None;
            }
            wrong.extents[at] = match plan.extents[at].constant() {
                0 => Dim::fixed(1),
                _ => plan.extents[at].times(&Dim::fixed(2))?,
            };
        }
    }
    (wrong != *plan).then_some(wrong)
}

#[test]
fn every_plan_passes_the_check_and_every_fault_fails_it() {
    let (mut counts, mut found, mut unplanned) = ([0; 11], 0, 0);
    for seed in 0..1500 {
        let mut random = Random(seed);
        let module = random_move(&mut random);
        let program = verify(module).unwrap_or_else(|errors| panic!("seed {seed}: {errors:?}"));
        let mut partition = partition(&program);
        assert_eq!(check(&program, &capabilities(), &partition), Ok(()), "seed {seed}: {partition:?}");
        let plan = match partition.segments[0].plan() {
            None => {
                unplanned += 1;
                continue;
            }
            Some(Plan::Move(plan)) => plan.clone(),
            Some(_) => {
                counts[7] += 1;
                continue;
            }
        };
        counts[match plan.program {
            MoveProgram::Strided { .. } => 0,
            MoveProgram::Pad { .. } => 1,
            MoveProgram::Concat { .. } => 2,
            MoveProgram::Gather => 3,
            MoveProgram::Swizzle { .. } => 4,
            MoveProgram::PaddedEnds => 5,
            MoveProgram::GroupScales => 6,
            MoveProgram::GroupRows => 8,
            MoveProgram::ScatterAdd { .. } => 9,
            MoveProgram::TopK { .. } => 10,
        }] += 1;
        let Some(wrong) = with_fault(&mut random, &plan) else { continue };
        found += 1;
        let text = format!("seed {seed}: {}", text(&program, Some(&Plan::Move(wrong.clone()))));
        partition.segments[0].kind = SegmentKind::Kernel(Box::new(Plan::Move(wrong)));
        let errors = check(&program, &capabilities(), &partition).expect_err(&text);
        let is_ours = |error: &CheckError| {
            matches!(
                error,
                CheckError::Shape { .. } | CheckError::Constraint { .. } | CheckError::ExtraConstraint { .. }
            )
        };
        assert!(errors.iter().all(is_ours), "{text}: {errors:?}");
    }
    assert!(counts.iter().all(|count| *count > 50) && found > 500, "{counts:?} {found}");
    assert_eq!(unplanned, 0);
}

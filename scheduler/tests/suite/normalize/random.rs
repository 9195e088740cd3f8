//! Random graphs like those that frameworks export: quantize, dequantize, move, multiply, scale, and near
//! misses.

use fourfold_codegen::capabilities;
use fourfold_ir::{
    BinaryKind, Builder, ConstantValue, Dim, ElementType, Module, OpKind, Program, ScaleLayout,
    ScaledMmaOptions, Shape, SymbolValues, TensorType, UnaryKind, Value, text, verify,
};
use fourfold_scheduler::{NormalizeOptions, normalize, partition};

use super::support::{Random, check_same_bits, describe, normalized};
use super::weight_only::{normalized_for, with_kernels, without_kernels};

const PROGRAMS: u64 = 500;

#[test]
fn random_quantized_graphs_keep_their_bits() {
    let (mut changed, mut taken) = (0, 0);
    for seed in 0..PROGRAMS {
        let (module, symbols) = graph(seed);
        let program = match verify(module) {
            Ok(program) => program,
            Err(invalid) => panic!("{seed}: {:?}", invalid.errors),
        };
        let normalized = normalized(&program, false);
        changed += u64::from(normalized.is_changed());
        let products = |program: &fourfold_ir::Program| program.facts().matmuls().len();
        taken += u64::from(products(&program) < products(normalized.program()));
        check_same_bits(&program, &normalized, 2, &symbols);
    }
    assert!(changed * 2 > PROGRAMS, "only {changed} of {PROGRAMS} changed");
    assert!(taken * 4 > PROGRAMS, "only {taken} of {PROGRAMS} got a scaled_mma");
}

/// With kernels, products of a plain 16-bit value become weight-only; without, they become plain again.
#[test]
fn random_graphs_keep_their_bits_with_weight_only_kernels_and_without() {
    let (mut raised, mut lowered) = (0, 0);
    for seed in 0..PROGRAMS {
        let (module, symbols) = graph(seed);
        let Ok(program) = verify(module) else { panic!("{seed} is valid") };
        let products = |program: &Program| {
            program.facts().matmuls().filter(|(_, matmul)| matmul.format.is_weight_only()).count()
        };
        let with = normalized_for(&program, false, &with_kernels());
        check_same_bits(&program, &with, 2, &symbols);
        let without = normalized_for(with.program(), false, &without_kernels());
        check_same_bits(with.program(), &without, 2, &symbols);
        raised += products(with.program());
        lowered += products(with.program()) - products(without.program());
    }
    assert!(raised * 10 > PROGRAMS as usize && lowered == raised, "{raised} raised, {lowered} lowered");
}

#[test]
fn contracting_random_quantized_graphs_leaves_programs_that_are_normal() {
    for seed in 0..PROGRAMS {
        let (module, _) = graph(seed);
        let Ok(program) = verify(module) else { panic!("{seed} is valid") };
        let contracted = normalized(&program, true);
        let again = normalize(&program, &NormalizeOptions { contract: true });
        assert_eq!(describe(&program, &contracted), describe(&program, &again), "{seed}");
    }
}

/// 100 000 ops: layers of a dequantized product with an epilogue, of fifty different shapes.
#[test]
fn a_hundred_thousand_ops_take_time_in_proportion_with_their_partition() {
    const LAYERS: usize = 9_100;
    let capabilities = capabilities("sm_100a").expect("a target");
    // The least of several runs, because other tests run at the same time.
    let seconds = |layers: usize| {
        let Ok(program) = verify(tower(layers)) else { panic!("the program must be valid") };
        let run = || {
            let start = std::time::Instant::now();
            let normalized = normalize(&program, &NormalizeOptions { contract: true });
            let partition = partition(normalized.program(), &capabilities);
            assert_eq!(partition.kernels().count(), layers);
            start.elapsed().as_secs_f64()
        };
        (program.module().ops.len(), (0..3).map(|_| run()).fold(f64::INFINITY, f64::min))
    };
    let (_, tenth) = seconds(LAYERS / 10);
    let (ops, whole) = seconds(LAYERS);
    assert!(ops >= 100_000, "{ops}");
    // It takes less than half a second on an idle machine. The bound allows for a loaded one.
    assert!(whole < 3.0, "{whole} s");
    assert!(whole < 40.0 * tenth, "{whole} s, and {tenth} s for a tenth");
}

/// Each value is used by the next two, so the number of paths is exponential.
#[test]
fn what_many_paths_share_is_worked_out_once() {
    const STEPS: usize = 60;
    let mut source = "fir 1
func @shared(
    %a: tensor<[24, 64], f4E2M1FN>, %sa: tensor<[24, 4], f8E4M3FN, linear>,
    %b: tensor<[32, 64], f4E2M1FN>, %sb: tensor<[32, 4], f8E4M3FN, linear>
) {
  %x = block_dequantize %a, %sa {block = 16} : tensor<[24, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[32, 64], f32>
  %p = mma %x, %y : tensor<[24, 32], f32>
  %t0 = reshape %p : tensor<[2, 12, 32], f32>
  %t1 = neg %t0 : tensor<[2, 12, 32], f32>\n"
        .to_owned();
    for step in 2..STEPS {
        let (last, before) = (step - 1, step - 2);
        source += &format!("  %t{step} = add %t{last}, %t{before} : tensor<[2, 12, 32], f32>\n");
    }
    source += &format!("  return %t{}\n}}\n", STEPS - 1);
    let parsed = text::parse(&source).expect("the program parses");
    let Ok(program) = verify(parsed.module) else { panic!("the program must be valid") };
    let start = std::time::Instant::now();
    let normalized = normalize(&program, &NormalizeOptions::default());
    assert!(normalized.is_changed());
    assert!(start.elapsed().as_secs_f64() < 3.0, "{:?}", start.elapsed());
}

fn tower(layers: usize) -> Module {
    let mut builder = Builder::new("tower");
    let m = builder.symbol("M");
    let fixed = Dim::fixed;
    let mut outputs = Vec::new();
    let g = builder.param("g", TensorType::new(vec![], ElementType::F32));
    let a = builder.input("a", TensorType::new(vec![m.clone(), fixed(64)], ElementType::F4E2M1FN));
    let sa = TensorType::scales(vec![m.clone(), fixed(4)], ElementType::F8E4M3FN, ScaleLayout::Linear);
    let sa = builder.input("sa", sa);
    for layer in 0..layers {
        let n = fixed(32 + 32 * (layer % 50) as u64);
        let b_ty = TensorType::new(vec![n.clone(), fixed(64)], ElementType::F4E2M1FN);
        let b = builder.param(&format!("b{layer}"), b_ty);
        let sb = TensorType::scales(vec![n.clone(), fixed(4)], ElementType::F8E4M3FN, ScaleLayout::Linear);
        let sb = builder.param(&format!("sb{layer}"), sb);
        let bias =
            builder.param(&format!("bias{layer}"), TensorType::new(vec![n.clone()], ElementType::BF16));
        let mut graph = Graph { random: Random(layer as u64), builder, inputs: 0 };
        let x = graph.dequantize(a, sa, Some(g), ElementType::F32);
        let y = graph.dequantize(b, sb, Some(g), ElementType::F32);
        builder = graph.builder;
        let turned = TensorType::new(vec![fixed(64), n.clone()], ElementType::F32);
        let permutation = || OpKind::Transpose { permutation: vec![1, 0] };
        let t = builder.op(permutation(), &[y], &[("", turned)])[0];
        let back = TensorType::new(vec![n.clone(), fixed(64)], ElementType::F32);
        let y = builder.op(permutation(), &[t], &[("", back)])[0];
        let p = builder.mma("", x, y, ElementType::F32);
        let biased = builder.binary("", BinaryKind::Add, p, bias);
        let gate = builder.unary("", UnaryKind::Sigmoid, biased);
        let silu = builder.binary("", BinaryKind::Mul, biased, gate);
        let scaled = builder.binary("", BinaryKind::Mul, silu, g);
        let narrow = builder.convert("", scaled, ElementType::BF16);
        outputs.push(builder.unary("", UnaryKind::Relu, narrow));
    }
    builder.finish(&outputs)
}

const ARITHMETIC: [ElementType; 4] =
    [ElementType::F32, ElementType::F32, ElementType::BF16, ElementType::F16];

struct Graph {
    random: Random,
    builder: Builder,
    inputs: usize,
}

fn graph(seed: u64) -> (Module, SymbolValues) {
    let mut graph = Graph { random: Random(seed ^ 0x5EED), builder: Builder::new("qdq"), inputs: 0 };
    let mut symbols = SymbolValues::default();
    let rows = graph.random.pick(&[1u64, 3, 7]);
    let m = if graph.random.percent(40) {
        let dim = graph.builder.symbol("M");
        symbols.set(dim.symbols()[0], rows);
        dim
    } else {
        Dim::fixed(rows)
    };
    let mut outputs = Vec::new();
    // The symbol needs an input that determines it.
    outputs.push(graph.input(TensorType::new(vec![m.clone()], ElementType::F32)));
    for _ in 0..1 + graph.random.below(2) {
        graph.layer(&m, &mut outputs);
    }
    let mut seen = Vec::new();
    outputs.retain(|value| {
        !seen.contains(value) && {
            seen.push(*value);
            true
        }
    });
    (graph.builder.finish(&outputs), symbols)
}

impl Graph {
    fn input(&mut self, ty: TensorType) -> Value {
        self.inputs += 1;
        self.builder.input(&format!("in.{}", self.inputs), ty)
    }

    fn op(&mut self, kind: OpKind, operands: &[Value], ty: TensorType) -> Value {
        self.builder.op(kind, operands, &[("", ty)])[0]
    }

    fn layer(&mut self, m: &Dim, outputs: &mut Vec<Value>) {
        let nvfp4 = self.random.percent(80);
        let block = if nvfp4 { 16u64 } else { 32 };
        let k = block * self.random.pick(&[2u64, 4]);
        let n = self.random.pick(&[8u64, 12]);
        let element = self.random.pick(&ARITHMETIC);
        let batched = self.random.percent(40);
        let a_shape = if batched {
            vec![Dim::fixed(2), m.clone(), Dim::fixed(k)]
        } else {
            vec![m.clone(), Dim::fixed(k)]
        };
        let a = if element.is_half() && self.random.percent(40) {
            self.input(TensorType::new(a_shape, element))
        } else {
            self.operand(a_shape, k, block, element, outputs)
        };
        let b = self.operand(vec![Dim::fixed(n), Dim::fixed(k)], k, block, element, outputs);
        // Flattened before the product, and restored after it.
        let flatten = batched && self.random.percent(60);
        let shape = self.builder.ty(a).shape.clone();
        let a = if flatten {
            let rows = Dim::fixed(2).times(m).expect("the extent is small");
            self.reshape(a, vec![rows, Dim::fixed(k)])
        } else {
            a
        };
        let result = if self.random.percent(80) { ElementType::F32 } else { self.random.pick(&ARITHMETIC) };
        let mut value = self.builder.mma("", a, b, result);
        if self.random.percent(10) {
            outputs.push(value);
        }
        if self.random.percent(40) {
            value = self.factor(value);
        }
        if flatten {
            let mut back = shape[..2].to_vec();
            back.push(Dim::fixed(n));
            value = self.reshape(value, back);
        }
        for _ in 0..self.random.below(6) {
            value = self.epilogue(value, n, outputs);
        }
        outputs.push(value);
    }

    fn operand(
        &mut self,
        shape: Shape,
        k: u64,
        block: u64,
        element: ElementType,
        outputs: &mut Vec<Value>,
    ) -> Value {
        let nvfp4 = block == 16;
        let scale = if nvfp4 { ElementType::F8E4M3FN } else { ElementType::F8E8M0FNU };
        let layout = self.random.pick(&[ScaleLayout::Linear, ScaleLayout::Linear, ScaleLayout::Blocked]);
        let mut scale_shape = shape.clone();
        *scale_shape.last_mut().expect("a matrix") = Dim::fixed(k / block);
        let scales = TensorType::scales(scale_shape, scale, layout);
        let (codes, scales) = if nvfp4 && self.random.percent(25) {
            let v = self.input(TensorType::new(shape.clone(), ElementType::F32));
            let g = self.input(TensorType::new(vec![], ElementType::F32));
            let kind = OpKind::block_quantize(16, None);
            let results = [("", TensorType::new(shape.clone(), ElementType::F4E2M1FN)), ("", scales)];
            let made = self.builder.op(kind, &[v, g], &results);
            (made[0], made[1])
        } else {
            (self.input(TensorType::new(shape.clone(), ElementType::F4E2M1FN)), self.input(scales))
        };
        if self.random.percent(5) {
            outputs.push(scales);
        }
        let g = self
            .random
            .percent(15)
            .then(|| self.input(TensorType::new(vec![Dim::fixed(1)], ElementType::F32)));
        let made = if self.random.percent(30) { self.random.pick(&ARITHMETIC) } else { element };
        let mut value = self.dequantize_by(codes, scales, g, made, block as u32);
        if self.random.percent(10) {
            outputs.push(value);
        }
        if made == ElementType::F32 && self.random.percent(15) {
            value = self.factor(value);
        }
        if self.random.percent(15) {
            let flat = fourfold_ir::dim_product(&shape).expect("the extent is small");
            value = self.reshape(value, vec![flat]);
            value = self.reshape(value, shape.clone());
        }
        if self.random.percent(20) {
            let rank = shape.len();
            let mut permutation: Vec<u32> = (0..rank as u32).collect();
            permutation.swap(rank - 1, rank - 2);
            value = self.transpose(value, permutation.clone());
            value = self.transpose(value, permutation);
        }
        if made != element {
            let ty = TensorType::new(shape, element);
            value = self.op(OpKind::Convert, &[value], ty);
        }
        value
    }

    fn dequantize(&mut self, codes: Value, scales: Value, g: Option<Value>, element: ElementType) -> Value {
        self.dequantize_by(codes, scales, g, element, 16)
    }

    fn dequantize_by(
        &mut self,
        codes: Value,
        scales: Value,
        g: Option<Value>,
        element: ElementType,
        block: u32,
    ) -> Value {
        let ty = TensorType::new(self.builder.ty(codes).shape.clone(), element);
        let operands: Vec<Value> = [codes, scales].into_iter().chain(g).collect();
        self.op(OpKind::BlockDequantize { block }, &operands, ty)
    }

    fn reshape(&mut self, value: Value, shape: Shape) -> Value {
        let element = self.builder.ty(value).element;
        self.op(OpKind::Reshape, &[value], TensorType::new(shape, element))
    }

    fn transpose(&mut self, value: Value, permutation: Vec<u32>) -> Value {
        let ty = self.builder.ty(value).clone();
        let shape = permutation.iter().map(|axis| ty.shape[*axis as usize].clone()).collect();
        self.op(OpKind::Transpose { permutation }, &[value], TensorType::new(shape, ty.element))
    }

    fn factor(&mut self, value: Value) -> Value {
        let shape = self.random.pick(&[vec![], vec![Dim::fixed(1)], vec![Dim::fixed(1), Dim::fixed(1)]]);
        let element = self.random.pick(&[ElementType::F32, ElementType::F32, ElementType::BF16]);
        let s = self.input(TensorType::new(shape, element));
        if self.random.percent(50) {
            self.builder.binary("", BinaryKind::Mul, value, s)
        } else {
            self.builder.binary("", BinaryKind::Mul, s, value)
        }
    }

    fn constant(&mut self) -> Value {
        let number = self.random.pick(&[0.0, -0.0, 1.0, -1.5, 2.7, 0.5, f64::INFINITY, f64::NAN]);
        let element = self.random.pick(&ARITHMETIC);
        let shape = self.random.pick(&[vec![], vec![Dim::fixed(1)]]);
        self.op(OpKind::Constant(ConstantValue::Splat(number)), &[], TensorType::new(shape, element))
    }

    fn epilogue(&mut self, value: Value, n: u64, outputs: &mut Vec<Value>) -> Value {
        if self.random.percent(5) {
            outputs.push(value);
        }
        let ty = self.builder.ty(value).clone();
        match self.random.below(9) {
            0 | 1 => {
                let kind = self.random.pick(UnaryKind::ALL);
                self.builder.unary("", kind, value)
            }
            2 => {
                let element = self.random.pick(&ARITHMETIC);
                let row = self.input(TensorType::new(vec![Dim::fixed(n)], element));
                let kind = self.random.pick(BinaryKind::ALL);
                self.builder.binary("", kind, value, row)
            }
            3 => {
                let element = self.random.pick(&ARITHMETIC);
                let matrix = self.input(TensorType::new(ty.shape.clone(), element));
                self.builder.binary("", BinaryKind::Add, matrix, value)
            }
            4 => {
                let zero = self.constant();
                let kind = self.random.pick(&[BinaryKind::Max, BinaryKind::Min]);
                self.builder.binary("", kind, value, zero)
            }
            5 => {
                let (lo, hi) = (self.constant(), self.constant());
                let (first, second) = self
                    .random
                    .pick(&[(BinaryKind::Max, BinaryKind::Min), (BinaryKind::Min, BinaryKind::Max)]);
                let inner = self.builder.binary("", first, lo, value);
                self.builder.binary("", second, inner, hi)
            }
            6 => {
                let gate = self.builder.unary("", UnaryKind::Sigmoid, value);
                self.builder.binary("", BinaryKind::Mul, value, gate)
            }
            7 => {
                let wide = self.builder.convert("", value, ElementType::F32);
                self.builder.convert("", wide, ty.element)
            }
            _ => {
                let shape = [vec![Dim::fixed(1)], ty.shape].concat();
                if shape.len() > 4 { value } else { self.reshape(value, shape) }
            }
        }
    }
}

/// A program that is already normal stays unchanged.
#[test]
fn what_is_normal_is_not_touched() {
    let mut builder = Builder::new("normal");
    let fixed = |rows: u64, columns: u64| vec![Dim::fixed(rows), Dim::fixed(columns)];
    let scales = |rows| TensorType::scales(fixed(rows, 4), ElementType::F8E4M3FN, ScaleLayout::Blocked);
    let a = builder.input("a", TensorType::new(fixed(37, 64), ElementType::F4E2M1FN));
    let sa = builder.input("sa", scales(37));
    let b = builder.input("b", TensorType::new(fixed(24, 64), ElementType::F4E2M1FN));
    let sb = builder.input("sb", scales(24));
    let p = builder.scaled_mma("p", a, sa, b, sb, 16, ElementType::F32, ScaledMmaOptions::default());
    let y = builder.unary("y", UnaryKind::Gelu, p);
    let Ok(program) = verify(builder.finish(&[y])) else { panic!("the program must be valid") };
    assert!(!normalized(&program, true).is_changed());
}

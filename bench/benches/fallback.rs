//! Compares `scaled_mma` on the CPU fallback with the plain alternative: dequantizing both operands to f32, then
//! a fast f32 GEMM. Prints criterion times, a table of interleaved medians, and the peak memory of one call.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fourfold::executor::fallback::{
    BlockScaled, BlockScaledShape, Epilogue, ScaledMmaKernel, dequantize_into, gemm_f32, scaled_mma_with,
};
use fourfold::ir::sample::{Rule, tensor};
use fourfold::ir::{ElementType, ScaleLayout, Tensor};
use peak_alloc::PeakAlloc;

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// M, N, K.
const SHAPES: [(usize, usize, usize); 2] = [(128, 4096, 4096), (1, 4096, 4096)];
/// For memory: more rows, columns and elements along K than are held at a time.
const LARGE: (usize, usize, usize) = (600, 17_000, 16_384);
const LARGE_PAIRS: [(Format, Format); 3] = [(NVFP4, NVFP4), (BF16, NVFP4), (MXFP8_E4M3, MXFP8_E4M3)];
/// The number of rounds behind each row of the table.
const ROUNDS: usize = 31;

/// The format of an operand.
#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    element: ElementType,
    /// The type of the scales, and the elements that share one; a 16-bit operand has none.
    scales: Option<(ElementType, usize)>,
}

const fn scaled(name: &'static str, element: ElementType) -> Format {
    Format { name, element, scales: Some((ElementType::F8E8M0FNU, 32)) }
}

const NVFP4: Format =
    Format { name: "nvfp4", element: ElementType::F4E2M1FN, scales: Some((ElementType::F8E4M3FN, 16)) };
const MXFP4: Format = scaled("mxfp4", ElementType::F4E2M1FN);
const MXFP6_E2M3: Format = scaled("mxfp6 e2m3", ElementType::F6E2M3FN);
const MXFP6_E3M2: Format = scaled("mxfp6 e3m2", ElementType::F6E3M2FN);
const MXFP8_E4M3: Format = scaled("mxfp8 e4m3", ElementType::F8E4M3FN);
const MXFP8_E5M2: Format = scaled("mxfp8 e5m2", ElementType::F8E5M2);
const BF16: Format = Format { name: "bf16", element: ElementType::BF16, scales: None };
const F16: Format = Format { name: "f16", element: ElementType::F16, scales: None };

/// Pairs in which each format is on each side that it may have.
const PAIRS: [(Format, Format); 19] = [
    (NVFP4, NVFP4),
    (MXFP4, MXFP4),
    (MXFP8_E4M3, MXFP8_E4M3),
    (MXFP8_E5M2, MXFP8_E5M2),
    (MXFP8_E4M3, MXFP4),
    (MXFP8_E5M2, MXFP4),
    (MXFP4, MXFP8_E4M3),
    (MXFP6_E2M3, MXFP6_E2M3),
    (MXFP6_E3M2, MXFP6_E3M2),
    (MXFP8_E4M3, MXFP6_E2M3),
    (MXFP6_E3M2, MXFP4),
    (BF16, NVFP4),
    (BF16, MXFP4),
    (BF16, MXFP6_E3M2),
    (BF16, MXFP8_E4M3),
    (F16, NVFP4),
    (F16, MXFP4),
    (F16, MXFP6_E2M3),
    (F16, MXFP8_E5M2),
];

/// The codes of an operand, and its scales.
struct Matrix {
    format: Format,
    codes: Tensor,
    scales: Option<Tensor>,
}

impl Matrix {
    fn new(format: Format, rows: usize, k: usize, seed: u64) -> Matrix {
        let tensor = |element, columns, layout, seed| {
            tensor(element, vec![rows, columns], layout, Rule::Normal, seed).expect("a small tensor")
        };
        let scales = format.scales;
        let scales =
            scales.map(|(element, block)| tensor(element, k / block, Some(ScaleLayout::Blocked), seed + 1));
        Matrix { format, codes: tensor(format.element, k, None, seed), scales }
    }

    /// `block` is that of B.
    fn operand(&self, rows: usize, k: usize, block: usize) -> BlockScaled<'_> {
        let data = (self.codes.bytes(), self.format.element);
        let shape = BlockScaledShape { batch: 1, rows, k, block };
        let operand = match &self.scales {
            Some(scales) => {
                BlockScaled::new(data, (scales.bytes(), scales.element(), ScaleLayout::Blocked), shape)
            }
            None => BlockScaled::unscaled(data, shape),
        };
        operand.expect("data and scales have matching shapes")
    }
}

struct Problem {
    shape: (usize, usize, usize),
    a: Matrix,
    b: Matrix,
}

/// Dequantized operands and the product, in f32.
struct Buffers {
    a: Vec<f32>,
    b: Vec<f32>,
    d: Vec<f32>,
}

impl Problem {
    fn new((m, n, k): (usize, usize, usize), (a, b): (Format, Format)) -> Problem {
        Problem { shape: (m, n, k), a: Matrix::new(a, m, k, 1), b: Matrix::new(b, n, k, 3) }
    }

    fn name(&self) -> String {
        format!("{} x {}", self.a.format.name, self.b.format.name)
    }

    fn operands(&self) -> (BlockScaled<'_>, BlockScaled<'_>) {
        let (m, n, k) = self.shape;
        let (_, block) = self.b.format.scales.expect("B has scales");
        (self.a.operand(m, k, block), self.b.operand(n, k, block))
    }

    fn fallback(&self, kernel: ScaledMmaKernel) -> Vec<u8> {
        let (m, n, _) = self.shape;
        let (a, b) = self.operands();
        let mut d = vec![0u8; m * n * 4];
        scaled_mma_with(kernel, &a, &b, Epilogue::default(), ElementType::F32, &mut d)
            .expect("the shapes match");
        d
    }

    fn dequantize_then_gemm(&self) -> Vec<f32> {
        let (m, n, k) = self.shape;
        let mut buffers = Buffers { a: vec![0.0; m * k], b: vec![0.0; n * k], d: vec![0.0; m * n] };
        self.dequantize_then_gemm_into(&mut buffers);
        buffers.d
    }

    /// The same with memory that the caller reuses.
    fn dequantize_then_gemm_into(&self, buffers: &mut Buffers) {
        let (m, n, k) = self.shape;
        let (a, b) = self.operands();
        dequantize_into(&a, &mut buffers.a);
        dequantize_into(&b, &mut buffers.b);
        gemm_f32([m, n, k], &buffers.a, &buffers.b, &mut buffers.d);
    }

    /// Both results agree within f32 accumulation, so the timed work is equal.
    fn check(&self, kernel: ScaledMmaKernel) {
        let want = self.dequantize_then_gemm();
        let got = self.fallback(kernel);
        let (got, _) = got.as_chunks::<4>();
        let largest = want.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        for (got, want) in got.iter().zip(&want) {
            assert!(
                (f32::from_le_bytes(*got) - want).abs() <= 1e-5 * largest,
                "{kernel:?} and the GEMM disagree"
            );
        }
    }
}

fn kernels(problem: &Problem) -> Vec<ScaledMmaKernel> {
    let (a, b) = problem.operands();
    let mut kernels = ScaledMmaKernel::available(&a, &b);
    // The alternative does not support the formats that need f64 sums, which would only slow it down.
    kernels.retain(|kernel| *kernel != ScaledMmaKernel::Double);
    kernels
}

fn time(criterion: &mut Criterion) {
    for shape in SHAPES {
        let problem = Problem::new(shape, (NVFP4, NVFP4));
        let mut group = criterion.benchmark_group(format!("scaled_mma {shape:?}"));
        group.sample_size(20).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(4));
        for kernel in kernels(&problem) {
            group.bench_function(BenchmarkId::new("fallback", format!("{kernel:?}")), |bencher| {
                bencher.iter_with_large_drop(|| problem.fallback(kernel));
            });
        }
        group.bench_function("dequantize, then gemm", |bencher| {
            bencher.iter_with_large_drop(|| problem.dequantize_then_gemm());
        });
        group.finish();
    }
}

/// Rounds are interleaved, so all candidates see the same machine.
fn table(_: &mut Criterion) {
    println!(
        "\n| M, N, K | A x B | kernel | fallback ms | dequantize + gemm ms (ratio) | with reused buffers (ratio) | \
         peak MB beyond the result |"
    );
    println!("|---|---|---|---|---|---|---|");
    let shapes = SHAPES.iter().flat_map(|shape| PAIRS.map(|pair| (*shape, pair, ROUNDS)));
    for (shape, pair, rounds) in shapes.chain(LARGE_PAIRS.map(|pair| (LARGE, pair, 3))) {
        let problem = Problem::new(shape, pair);
        for kernel in kernels(&problem) {
            problem.check(kernel);
            row(&problem, kernel, rounds);
        }
    }
}

fn row(problem: &Problem, kernel: ScaledMmaKernel, rounds: usize) {
    let (m, n, k) = problem.shape;
    let mut buffers = Buffers { a: vec![0.0; m * k], b: vec![0.0; n * k], d: vec![0.0; m * n] };
    let (mut ours, mut cold, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(milliseconds(|| drop(std::hint::black_box(problem.fallback(kernel)))));
        cold.push(milliseconds(|| drop(std::hint::black_box(problem.dequantize_then_gemm()))));
        warm.push(milliseconds(|| problem.dequantize_then_gemm_into(&mut buffers)));
    }
    let before = PEAK.current_usage();
    PEAK.reset_peak_usage();
    let result = std::hint::black_box(problem.fallback(kernel));
    let peak = PEAK.peak_usage() - before - result.len();
    let [ours, cold, warm] = [median(&mut ours), median(&mut cold), median(&mut warm)];
    println!(
        "| {m}, {n}, {k} | {} | {kernel:?} | {ours:.2} | {cold:.2} ({:.2}) | {warm:.2} ({:.2}) | {:.2} |",
        problem.name(),
        ours / cold,
        ours / warm,
        peak as f64 / 1e6,
    );
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

criterion_group!(benches, time, table);
criterion_main!(benches);

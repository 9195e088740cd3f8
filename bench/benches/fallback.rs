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
const BLOCK: usize = 16;
/// The number of rounds behind each row of the table.
const ROUNDS: usize = 31;

struct Problem {
    shape: (usize, usize, usize),
    codes_a: Tensor,
    scales_a: Tensor,
    codes_b: Tensor,
    scales_b: Tensor,
}

/// Dequantized operands and the product, in f32.
struct Buffers {
    a: Vec<f32>,
    b: Vec<f32>,
    d: Vec<f32>,
}

impl Problem {
    fn new((m, n, k): (usize, usize, usize)) -> Problem {
        let codes = |rows, seed| {
            tensor(ElementType::F4E2M1FN, vec![rows, k], None, Rule::Normal, seed).expect("a small tensor")
        };
        let scales = |rows, seed| {
            let layout = Some(ScaleLayout::Blocked);
            tensor(ElementType::F8E4M3FN, vec![rows, k / BLOCK], layout, Rule::Normal, seed)
                .expect("a small tensor")
        };
        Problem {
            shape: (m, n, k),
            codes_a: codes(m, 1),
            scales_a: scales(m, 2),
            codes_b: codes(n, 3),
            scales_b: scales(n, 4),
        }
    }

    fn operands(&self) -> (BlockScaled<'_>, BlockScaled<'_>) {
        let (m, n, k) = self.shape;
        fn operand<'a>(codes: &'a Tensor, scales: &'a Tensor, rows: usize, k: usize) -> BlockScaled<'a> {
            let data = (codes.bytes(), codes.element());
            let scales = (scales.bytes(), scales.element(), ScaleLayout::Blocked);
            let shape = BlockScaledShape { batch: 1, rows, k, block: BLOCK };
            BlockScaled::new(data, scales, shape).expect("data and scales have matching shapes")
        }
        (operand(&self.codes_a, &self.scales_a, m, k), operand(&self.codes_b, &self.scales_b, n, k))
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
        let problem = Problem::new(shape);
        let mut group = criterion.benchmark_group(format!("scaled_mma {shape:?}"));
        group.sample_size(20).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(4));
        for kernel in kernels(&problem) {
            problem.check(kernel);
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
        "\n| M, N, K | kernel | fallback ms | dequantize + gemm ms (ratio) | with reused buffers (ratio) | peak MB \
         | of dequantized B |"
    );
    println!("|---|---|---|---|---|---|---|");
    for shape in SHAPES {
        let problem = Problem::new(shape);
        let (m, n, k) = shape;
        let mut buffers = Buffers { a: vec![0.0; m * k], b: vec![0.0; n * k], d: vec![0.0; m * n] };
        for kernel in kernels(&problem) {
            let (mut ours, mut cold, mut warm) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                ours.push(milliseconds(|| drop(std::hint::black_box(problem.fallback(kernel)))));
                cold.push(milliseconds(|| drop(std::hint::black_box(problem.dequantize_then_gemm()))));
                warm.push(milliseconds(|| problem.dequantize_then_gemm_into(&mut buffers)));
            }
            let before = PEAK.current_usage();
            PEAK.reset_peak_usage();
            std::hint::black_box(problem.fallback(kernel));
            let peak = PEAK.peak_usage() - before;
            let of_b = peak as f64 / (n * k * 4) as f64;
            let [ours, cold, warm] = [median(&mut ours), median(&mut cold), median(&mut warm)];
            println!(
                "| {m}, {n}, {k} | {kernel:?} | {ours:.2} | {cold:.2} ({:.2}) | {warm:.2} ({:.2}) | {:.2} | {of_b:.3} |",
                ours / cold,
                ours / warm,
                peak as f64 / 1e6,
            );
        }
    }
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

//! The allocations of a block-scaled multiplication. A separate binary, because it counts every allocation.

use fourfold_executor::fallback::{
    BlockScaled, BlockScaledShape, Epilogue, ScaledMmaKernel, dequantize, scaled_mma_with,
};
use fourfold_ir::{ElementType, ScaleLayout};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes that `work` has allocated at its peak.
fn peak(work: impl FnOnce()) -> usize {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    work();
    ALLOCATOR.peak_usage().saturating_sub(before)
}

#[test]
fn b_is_never_dequantized_as_a_whole() {
    let (n, k) = (4096, 4096);
    let dequantized = n * k * size_of::<f32>();
    let operand = |codes: &'static [u8], scales: &'static [u8], rows: usize| {
        BlockScaled::new(
            (codes, ElementType::F4E2M1FN),
            (scales, ElementType::F8E4M3FN, ScaleLayout::Linear),
            BlockScaledShape { batch: 1, rows, k, block: 16 },
        )
        .expect("the buffers have the size of their shape")
    };
    let codes: &'static [u8] = vec![0x25; n * k / 2].leak();
    let scales: &'static [u8] = vec![0x38; n * k / 16].leak();
    let b = operand(codes, scales, n);
    assert!(peak(|| drop(dequantize(&b))) >= dequantized, "what this test measures with counts");
    for m in [1, 128, 300] {
        let a = operand(&codes[..m * k / 2], &scales[..m * k / 16], m);
        let mut out = vec![0u8; m * n * size_of::<f32>()];
        for kernel in ScaledMmaKernel::available(&a, &b) {
            let used = peak(|| {
                scaled_mma_with(kernel, &a, &b, Epilogue::default(), ElementType::F32, &mut out)
                    .expect("the shapes go together");
            });
            // The f64 kernel, for formats that f32 cannot hold exactly, takes twice as much.
            let limit = if kernel == ScaledMmaKernel::Double { dequantized / 2 } else { dequantized / 4 };
            assert!(used <= limit, "{kernel:?} with {m} rows takes {used} bytes, more than {limit}");
        }
    }
}

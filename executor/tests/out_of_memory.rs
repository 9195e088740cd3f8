//! What happens when there is no memory. In a binary of its own, because it refuses every large allocation.
#![allow(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fourfold_executor::fallback::{
    BlockScaled, BlockScaledShape, Epilogue, FallbackError, ScaledMmaError, ScaledMmaKernel, run_op,
    scaled_mma_with,
};
use fourfold_ir::{
    Builder, Dim, ElementType, OpKind, Program, ScaleLayout, SymbolValues, Tensor, TensorType, verify,
};

/// The system's allocator, which has nothing of more than so many bytes.
struct Limited;

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: everything is the system allocator's, or null, which is allowed.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LIMIT.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LIMIT.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

const MIB: usize = 1 << 20;

/// Works where no buffer may have more than so many MiB.
fn within<R>(mib: usize, work: impl FnOnce() -> R) -> R {
    LIMIT.store(mib * MIB, Ordering::Relaxed);
    let result = work();
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    result
}

fn ty(dims: &[u64], element: ElementType) -> TensorType {
    TensorType::new(dims.iter().map(|dim| Dim::fixed(*dim)).collect(), element)
}

fn run_first(program: &Program, operands: &[&Tensor]) -> Result<Vec<Tensor>, FallbackError> {
    let op = program.module().ops.keys().next().expect("the program has an op");
    run_op(program, op, operands, &SymbolValues::default())
}

/// One test, because the limit is everybody's.
#[test]
fn what_does_not_fit_in_memory_is_an_error_and_no_abort() {
    plain_multiplication();
    softmax();
    block_scaled_multiplications();
}

fn plain_multiplication() {
    let mut builder = Builder::new("plain");
    let x = builder.input("x", ty(&[2048, 4], ElementType::BF16));
    let y = builder.mma("y", x, x, ElementType::BF16);
    let program = verify(builder.finish(&[y])).expect("the program is valid");
    let x = Tensor::zeros(ElementType::BF16, vec![2048, 4], None).expect("a valid shape");
    // D takes 8 MiB, its products in f32 take 16.
    let memory = |mib| match within(mib, || run_first(&program, &[&x, &x])) {
        Err(FallbackError::Memory { what, bytes }) => Some((what, bytes / MIB)),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    };
    let tensor = |element| format!("a {element} tensor of shape [2048, 2048]");
    assert_eq!(memory(6), Some((tensor("bf16"), 8)));
    assert_eq!(memory(12), Some((tensor("f32"), 16)));
    assert_eq!(memory(20), None);
}

fn softmax() {
    let mut builder = Builder::new("softmax");
    let extent = 2 * MIB;
    let of_type = ty(&[extent as u64], ElementType::BF16);
    let x = builder.input("x", of_type.clone());
    let y = builder.op(OpKind::Softmax { axis: 0 }, &[x], &[("y", of_type)])[0];
    let program = verify(builder.finish(&[y])).expect("the program is valid");
    let x = Tensor::zeros(ElementType::BF16, vec![extent], None).expect("a valid shape");
    // 4 MiB, and 16 in f64.
    let error = within(8, || run_first(&program, &[&x])).expect_err("there is no memory");
    assert!(matches!(error, FallbackError::Memory { bytes, .. } if bytes == 16 * MIB), "{error}");
}

fn block_scaled_multiplications() {
    let mut failed = 0;
    // Decoded rows of A are large, then the sums, then a panel of B.
    for ([m, n, k], limit) in [([256, 16, 1 << 16], 24), ([256, 1 << 16, 32], 36), ([1, 1, 1 << 21], 20)] {
        let codes = vec![0x21; m.max(n) * k / 2];
        let scales = vec![0x38; m.max(n) * k / 16];
        let operand = |rows: usize| {
            BlockScaled::new(
                (&codes[..rows * k / 2], ElementType::F4E2M1FN),
                (&scales[..rows * k / 16], ElementType::F8E4M3FN, ScaleLayout::Linear),
                BlockScaledShape { batch: 1, rows, k, block: 16 },
            )
            .expect("the buffers have the size of their shape")
        };
        let (a, b) = (operand(m), operand(n));
        let mut out = vec![0; m * n * 2];
        for kernel in ScaledMmaKernel::available(&a, &b) {
            let mut run = |mib| {
                within(mib, || {
                    scaled_mma_with(kernel, &a, &b, Epilogue::default(), ElementType::BF16, &mut out)
                })
            };
            match run(limit) {
                Ok(()) => {}
                Err(ScaledMmaError::Memory { bytes }) => {
                    assert!(bytes > limit * MIB, "{kernel:?}: {bytes}");
                    failed += 1;
                }
                Err(error) => panic!("{kernel:?}: {error}"),
            }
            assert_eq!(run(usize::MAX / MIB), Ok(()), "{kernel:?}");
        }
    }
    assert!(failed >= 4, "only {failed} needed more than they had");
}

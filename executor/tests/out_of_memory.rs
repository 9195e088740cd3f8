//! Behaviour without memory. A separate binary, because it refuses every large allocation.
#![allow(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fourfold_executor::fallback::{
    BlockScaled, BlockScaledShape, Epilogue, FallbackError, ScaledMmaError, ScaledMmaKernel, run_op,
    scaled_mma_with,
};
use fourfold_ir::sample::{self, Rule};
use fourfold_ir::{
    Builder, Dim, ElementType, InterpretError, OpKind, Program, ScaleLayout, SymbolValues, Tensor,
    TensorError, TensorType, interpret_op, verify,
};

/// The system's allocator, which refuses allocations above a limit.
struct Limited;

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: every result is the system allocator's, or null, which is allowed.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LIMIT.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LIMIT.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

const MIB: usize = 1 << 20;

/// Runs `work` with buffers limited to `mib` MiB each.
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

/// One test, because all threads share the limit.
#[test]
fn what_does_not_fit_in_memory_is_an_error_and_no_abort() {
    plain_multiplication();
    softmax();
    block_scaled_multiplications();
    copies_and_weights();
    tensors_and_the_interpreter();
}

fn copies_and_weights() {
    let extent = 2 * MIB;
    let mut builder = Builder::new("reshape");
    let x = builder.input("x", ty(&[extent as u64], ElementType::BF16));
    let shape = ty(&[2, extent as u64 / 2], ElementType::BF16);
    let y = builder.op(OpKind::Reshape, &[x], &[("y", shape)])[0];
    let program = verify(builder.finish(&[y])).expect("the program is valid");
    let x = Tensor::zeros(ElementType::BF16, vec![extent], None).expect("a valid shape");
    let error = within(3, || run_first(&program, &[&x])).expect_err("there is no memory");
    assert!(matches!(error, FallbackError::Memory { bytes, .. } if bytes == 4 * MIB), "{error}");

    let mut builder = Builder::new("norm");
    let [x, w, b] = ["x", "w", "b"].map(|name| builder.input(name, ty(&[extent as u64], ElementType::BF16)));
    let of_type = ty(&[extent as u64], ElementType::BF16);
    let y = builder.op(OpKind::LayerNorm { eps: 1e-5 }, &[x, w, b], &[("y", of_type)])[0];
    let program = verify(builder.finish(&[y])).expect("the program is valid");
    let x = Tensor::zeros(ElementType::BF16, vec![extent], None).expect("a valid shape");
    // Its weights take 16 MiB in f64.
    let error = within(8, || run_first(&program, &[&x, &x, &x])).expect_err("there is no memory");
    assert!(matches!(error, FallbackError::Memory { bytes, .. } if bytes == 16 * MIB), "{error}");
}

fn tensors_and_the_interpreter() {
    let dims = || vec![MIB];
    let is_memory = |made: Result<Tensor, TensorError>| match made {
        Err(error @ TensorError::Memory { bytes, .. }) => error.is_resource_limit() && bytes == 4 * MIB,
        _ => false,
    };
    let (values, x) = (vec![1.0; MIB], Tensor::zeros(ElementType::F32, dims(), None).expect("a valid shape"));
    let singles = vec![1f32; MIB];
    assert!(within(3, || is_memory(Tensor::zeros(ElementType::F32, dims(), None))));
    assert!(within(3, || is_memory(Tensor::from_f64(ElementType::F32, dims(), None, &values))));
    assert!(within(3, || is_memory(Tensor::from_f32(dims(), &singles))));
    assert!(within(3, || is_memory(x.try_clone())));
    assert!(within(3, || is_memory(sample::tensor(ElementType::F32, dims(), None, Rule::Normal, 1))));
    assert!(within(6, || x.try_clone()).is_ok_and(|copy| copy == x));

    let mut builder = Builder::new("sum");
    let a = builder.input("a", ty(&[MIB as u64], ElementType::F32));
    let y = builder.binary("y", fourfold_ir::BinaryKind::Add, a, a);
    let program = verify(builder.finish(&[y])).expect("the program is valid");
    let op = program.module().ops.keys().next().expect("the program has an op");
    let interpret = || interpret_op(&program, op, &[&x, &x], &SymbolValues::default());
    // The required memory is far more than the largest array, so the op is refused before it allocates.
    for mib in [1, 4, 16, 64] {
        let error = within(mib, interpret).expect_err("there is no memory");
        assert!(matches!(error, InterpretError::Memory { bytes, .. } if bytes > mib * MIB), "{error}");
    }
    assert!(within(128, interpret).is_ok());
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
    let tensor = |element| format!("a tensor of {element} with shape [2048, 2048]");
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
    for ([m, n, k], limit) in [([256, 16, 1 << 16], 12), ([256, 1 << 16, 32], 6), ([1, 1, 1 << 21], 20)] {
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

//! Plain products on the GPU through cuBLASLt, bit for bit those of the interpreter.
//!
//! The data is whole numbers whose sums are exact in f32 in any order. TF32 operands, and split-K sums in 16 bits, give
//! other bits.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use fourfold::executor::blas::{Blas, BlasError, Matmul, MatmulProblem};
use fourfold::executor::device::{Buffer, Device};
use fourfold::ir::{Builder, Dim, ElementType, Entity, Tensor, TensorType, bind, interpret, verify};
use libtest_mimic::Completion;

use ElementType::{BF16, F16, F32};

const POISON: u8 = 0xFF;

/// The operands of a problem, and its result as the interpreter computes it.
struct Reference {
    a: Tensor,
    b: Tensor,
    d: Tensor,
}

/// Whole numbers in -`magnitude`..=`magnitude`.
fn integers(element: ElementType, dims: &[i64], magnitude: u64, seed: u64) -> Result<Tensor> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % (2 * magnitude + 1)) as f64 - magnitude as f64
    };
    let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
    let values: Vec<f64> = (0..dims.iter().product()).map(|_| next()).collect();
    Ok(Tensor::from_f64(element, dims, None, &values)?)
}

impl Reference {
    fn of(problem: &MatmulProblem) -> Result<Reference> {
        let MatmulProblem { l, m, n, k, elements: [a, b, d], b_batched } = *problem;
        // An f32 of 12 bits is no TF32; a sum of 4096 such numbers is below 2^24.
        let magnitudes = if a == F32 && k <= 4096 { [4095, 1] } else { [7, 7] };
        let a = integers(a, &[l, m, k], magnitudes[0], 1)?;
        let b_dims = if b_batched { vec![l, n, k] } else { vec![n, k] };
        let b = integers(b, &b_dims, magnitudes[1], 2)?;
        let mut builder = Builder::new("product");
        let ty = |tensor: &Tensor| {
            let dims = tensor.dims().iter().map(|dim| Dim::fixed(*dim as u64)).collect();
            TensorType::new(dims, tensor.element())
        };
        let operands = [builder.input("a", ty(&a)), builder.input("b", ty(&b))];
        let product = builder.mma("d", operands[0], operands[1], d);
        let program = verify(builder.finish(&[product])).map_err(|invalid| anyhow::anyhow!("{invalid:?}"))?;
        let tensors = HashMap::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        let values = interpret(&program, &bind::bind(&program, &tensors)?)?;
        let [a, b, d] = [operands[0], operands[1], product].map(|value| values[value.index()].clone());
        Ok(Reference { a, b, d })
    }
}

/// A product with its memory on the device. Operands and result start at an offset in bytes.
struct Placed<'a> {
    device: &'a Device,
    matmul: &'a Matmul,
    operands: [Buffer; 2],
    d: Buffer,
    workspace: Buffer,
    offset: usize,
}

impl<'a> Placed<'a> {
    fn new(
        device: &'a Device,
        matmul: &'a Matmul,
        reference: &Reference,
        offset: usize,
    ) -> Result<Placed<'a>> {
        let upload = |tensor: &Tensor| -> Result<Buffer> {
            let buffer = device.alloc(tensor.bytes().len() + offset)?;
            device.stream().upload(&buffer, offset, tensor.bytes())?;
            Ok(buffer)
        };
        let operands = [upload(&reference.a)?, upload(&reference.b)?];
        // Bytes behind D show writes beyond its end.
        let d = device.alloc(offset + reference.d.bytes().len() + 256)?;
        let workspace = device.alloc(matmul.workspace().max(1) as usize)?;
        Ok(Placed { device, matmul, operands, d, workspace, offset })
    }

    fn launch(&self) -> Result<(), fourfold::executor::DeviceError> {
        let [a, b, d] = [&self.operands[0], &self.operands[1], &self.d]
            .map(|buffer| buffer.address() + self.offset as u64);
        // SAFETY: the buffers hold the operands, the result and the workspace, and are freed after a wait.
        unsafe { self.matmul.launch(self.device.stream(), a, b, d, self.workspace.address()) }
    }

    fn poison(&self) -> Result<()> {
        Ok(self.device.stream().fill(&self.d, 0, self.d.len(), POISON)?)
    }

    /// Compares D, and the bytes around it.
    fn check(&self, problem: &MatmulProblem, expected: &Tensor) -> Result<()> {
        let mut bytes = vec![0; self.d.len()];
        self.device.stream().download(&self.d, 0, &mut bytes)?;
        let (found, behind) = bytes[self.offset..].split_at(expected.bytes().len());
        let found = Tensor::new(expected.element(), expected.dims().to_vec(), None, found.to_vec())?;
        // Zeros may differ in sign: that of a sum of exact zeros depends on the order.
        let pairs = found.to_f64().into_iter().zip(expected.to_f64());
        let differing = pairs.filter(|(found, expected)| found != expected).count();
        ensure!(differing == 0, "{problem}, offset {}: {differing} elements differ", self.offset);
        let around = bytes[..self.offset].iter().chain(behind);
        ensure!(around.copied().all(|byte| byte == POISON), "{problem}: bytes around D are written");
        Ok(())
    }
}

fn problems() -> Vec<MatmulProblem> {
    let halves = [[F16, F16, F16], [F16, F16, F32], [BF16, BF16, BF16], [BF16, BF16, F32]];
    let mut problems = Vec::new();
    for elements in [[F32; 3]].into_iter().chain(halves) {
        let mut add = |l, [m, n, k]: [i64; 3], b_batched| {
            problems.push(MatmulProblem { l, m, n, k, elements, b_batched });
        };
        for extents in [[1, 1, 1], [3, 5, 7], [1, 64, 128], [37, 19, 91], [257, 1, 33]] {
            for (l, b_batched) in [(1, true), (1, false), (3, true), (3, false)] {
                add(l, extents, b_batched);
            }
        }
        add(1, [91, 384, 384], false);
        add(2, [128, 256, 512], true);
        // Long sums are split, and a batch may exceed the 65,535 CTAs of one axis of a grid.
        add(1, [16, 24, 65536], true);
        add(1, [1, 64, 16384], false);
        add(66_000, [1, 2, 8], true);
    }
    problems
}

/// Every problem, at aligned and at misaligned addresses, launched and replayed from a graph.
pub fn plain_products() -> Result<Completion> {
    let device = Device::open(0)?;
    let blas = match Blas::load(&device) {
        Ok(blas) => blas,
        Err(error @ BlasError::Missing { .. }) => return Ok(Completion::ignored_with(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    eprintln!("cuBLASLt {} in {}", blas.version(), blas.path().display());
    for problem in problems() {
        let reference = Reference::of(&problem)?;
        let matmul = blas.matmul(&problem)?;
        let element = problem.elements.iter().map(|element| element.storage_bits() / 8).max().unwrap_or(4);
        for offset in [0, element] {
            let placed = Placed::new(&device, &matmul, &reference, offset)?;
            placed.poison()?;
            placed.launch()?;
            placed.check(&problem, &reference.d)?;
            let graph = device.stream().capture(|| placed.launch())?;
            placed.poison()?;
            // SAFETY: the memory and the product outlive the wait in `check`.
            unsafe { graph.launch(device.stream()) }?;
            placed.check(&problem, &reference.d)?;
        }
    }
    Ok(Completion::Completed)
}

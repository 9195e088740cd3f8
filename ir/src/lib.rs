//! What a Fourfold program means.
//!
//! A program is a dataflow graph of tensor operations ([`Module`]). It can be built ([`Builder`]), read and written
//! as text ([`text`]), proved well-formed ([`verify`]), and evaluated ([`interpret`]). This crate does no I/O, has
//! no `unsafe` and knows no GPU: it says what the right answer is, and every kernel and every fallback is compared
//! with it.
//!
//! # What a block-scaled matrix is
//!
//! Data and scales are two tensors. A matrix `[rows, K]` of FP4 (`f4E2M1FN`) or FP8 codes comes with scales
//! `[rows, K/V]`: element (r, k) stands for `code(r, k) · scale(r, k / V)`, V being the block, 16 or 32. Operands
//! are K-major: A is `[.., M, K]`, B is `[.., N, K]`, D is `[.., M, N]`, and the leading extents are the batch L.
//! A B of rank two under an A of higher rank serves every matrix of the batch.
//!
//! *Packing.* FP4 takes half a byte; the low nibble of a byte is the even k. Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3,
//! 4, 6; bit 3 is the sign.
//!
//! *Scales.* A scale of type `f8E4M3FN` is read unsigned: bit 7 is ignored and 0x7F is NaN. `f8E8M0FNU` is
//! 2^(byte-127), 0xFF is NaN. NVFP4 is V = 16 with `f8E4M3FN` scales; the MX formats are V = 32 with `f8E8M0FNU`.
//!
//! *Scale layout.* The layout is part of a scale tensor's type. `linear` is `[.., rows, K/V]` row-major. `blocked`
//! is the padded 128x4 swizzle: with KT = ceil((K/V)/4), element (r, c) of one matrix lies at byte
//! `((r/128)·KT + c/4)·512 + (r%32)·16 + ((r%128)/32)·4 + c%4` of a buffer of `roundup(rows, 128)·4·KT` bytes, and
//! a batch is one such buffer per matrix. Producers write zero into the padding; consumers tolerate any finite
//! padding. `swizzle_scales` converts; nothing is guessed. `reshape` takes linear scales, and gives linear scales.
//!
//! # What numbers mean
//!
//! Every op rounds once, to nearest even, to its result type; the operands are exact. Arithmetic ops take `f16`,
//! `bf16` and `f32`, and their result type is the join of the operand types: the type itself when they agree, `f32`
//! otherwise. Narrowing is always an op of its own (`convert`, `block_quantize`, the result of a multiplication).
//!
//! `scaled_mma` is D = alpha · Σ_k (a·sfa)(b·sfb) + beta · C:
//! - acc is the exact sum rounded to f32. For FP4 codes with `f8E4M3FN` scales every product is a multiple of
//!   2^-20 and the sum is an integer in that unit; for every other format the sum is taken in f64 with k ascending.
//! - t = rn(alpha · acc), or acc where there is no alpha;
//! - with C, fma(beta, C, t) in f32, where a missing beta is 1;
//! - the result is rounded to the result type. (Those are its definition's roundings; the last is the op's own.)
//!
//! `mma` and the sums inside `reduce`, `softmax` and `layer_norm` are f64 with ascending indices, rounded once at
//! the end. Elementwise functions are computed in f64 and rounded once. max, min, relu and clamp propagate NaN. `silu`,
//! `gelu` and `gelu_tanh` are NaN at -inf, as x · sigmoid(x) and the formulas of the others are.
//!
//! `convert` to `f16` and `bf16` overflows to infinity. `convert` to `f4E2M1FN`, `f8E4M3FN` and `f8E5M2` saturates
//! (CUDA's satfinite: infinity becomes the largest finite value, NaN becomes +6 in FP4 and NaN in FP8). `convert`
//! to `i32` rounds to nearest even, saturates, and sends NaN to 0. Nothing converts to `f8E8M0FNU` or `i1`.
//!
//! `block_quantize` of v with a per-tensor scale g (NVFP4): with amax the largest magnitude of a block,
//! s = e4m3(rn(rn(amax/6)/g)) and code = e2m1(rn(v / rn(s·g))), every rn an IEEE f32 rounding; codes are 0 where
//! s·g is 0. Where amax is 0, s and the codes are 0, whatever g is: 0 and NaN included. For MX, s is 2^(floor(log2 amax) - emax) (`scale_rounding = floor`) or the least power of two that
//! brings amax within range (`ceil`), and code = rn(v / s). `block_dequantize` is rn(code · scale · g).
//!
//! # How an implementation is compared with this
//!
//! A multiplication, on the fallback or in a kernel, is compared bit for bit where f32 accumulation is exact in any
//! order ([`sample::Rule::Exact`], [`sample::Rule::Contest`]). Elsewhere it may differ by
//! γ_K·|alpha|·Σ|a·b| + 4 ulp with γ_K = K·2^-24/(1 - K·2^-24).
//!
//! Every other op is compared bit for bit on the fallback, any NaN standing for any other. A kernel computes an
//! epilogue in f32: it may differ by 4 ulp of f32 where the function is transcendental (`exp`, `tanh`, `erf`,
//! `sigmoid`, `gelu`, `gelu_tanh`, `silu`, `rsqrt`), and not at all where it is `neg`, `abs`, `relu`, `sqrt`, `reciprocal`,
//! `clamp`, a function of two operands, a comparison, `select` or a conversion. What such an error becomes in the steps
//! that follow is computed, step by step.
#![forbid(unsafe_code)]

pub mod bind;
mod builder;
mod capabilities;
mod diagnostics;
mod entities;
mod interp;
mod load;
pub mod memory;
mod module;
pub mod numeric;
mod ops;
mod program;
pub mod sample;
pub mod scalar;
mod tensor;
pub mod text;
mod types;
mod typing;
mod verify;

pub use bind::{BindError, Bound};
pub use builder::{Builder, ScaledMmaOptions};
pub use capabilities::{
    BlockQuantizeCapability, Capabilities, EpilogueCapability, FormatCapability, GridCapability,
    OperandCapability, OperandShape, OutputCapability, QuantizedCapability, QuantizedFormat,
};
pub use diagnostics::{Diagnostic, Place, Span, Spans};
pub use entities::{Arena, Entity, Op, Symbol, Value};
pub use interp::{InterpretError, interpret, interpret_op};
pub use load::load;
pub use module::{Module, Operation, ScaledMmaOperands, ValueData, ValueDef};
pub use ops::{
    AttributeError, AttributeValue, BinaryKind, ConstantValue, OpKind, Predicate, ReduceKind, ScaleRounding,
    ScaledMma, UnaryKind,
};
pub use program::{BlockFormat, Facts, Matmul, Program};
pub use tensor::{Tensor, TensorError};
pub use types::{Dim, ElementType, ScaleLayout, Shape, SymbolValues, TensorType, dim_product};
pub use typing::broadcast_shape;
pub use verify::{Invalid, VerifyError, VerifyErrorKind, verify};

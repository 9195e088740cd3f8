//! The program representation of Fourfold and its reference semantics.
//!
//! A program is a dataflow graph of tensor operations. This crate defines its types and ops, its text form, a verifier,
//! the numeric formats, and an interpreter. The interpreter's results are the reference for every kernel and fallback.
//! The crate does no I/O, has no `unsafe` code and knows no GPU. It has no Cargo features.
//!
//! # Entry points
//!
//! | to | use |
//! |---|---|
//! | build a program op by op | [`Builder`] |
//! | parse, verify and print a text | [`load`], [`text::parse`], [`text::print`] |
//! | verify a [`Module`] and get a [`Program`] | [`verify`] |
//! | bind tensors to a program's inputs | [`bind::bind`] |
//! | evaluate a program | [`interpret`] |
//! | draw seeded sample inputs | [`sample::inputs`] |
//! | convert, pack and quantize numbers | [`numeric`] |
//! | describe a target's kernels to the scheduler | [`Capabilities`] |
//!
//! # Example
//!
//! ```
//! use std::collections::HashMap;
//!
//! use fourfold_ir::{Tensor, bind::bind, interpret, load};
//!
//! let (program, _spans) = load(
//!     "fir 1
//!      func @main(%x: tensor<[M, 2], f32>) {
//!        %y = relu %x : tensor<[M, 2], f32>
//!        return %y
//!      }",
//! )
//! .map_err(|errors| errors[0].message.clone())?;
//!
//! let x = Tensor::from_f32(vec![3, 2], &[1.0, -2.0, 3.0, -4.0, 5.0, -6.0])?;
//! let tensors = HashMap::from([("x".to_owned(), x)]);
//! let bound = bind(&program, &tensors)?; // M = 3
//! let values = interpret(&program, &bound)?;
//! let y = program.facts().value_named("y").expect("the program defines %y");
//! # use fourfold_ir::Entity;
//! assert_eq!(values[y.index()].to_f32(), [1.0, 0.0, 3.0, 0.0, 5.0, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Block-scaled matrices
//!
//! Data and scales are two tensors. A matrix `[rows, K]` of FP4 (`f4E2M1FN`), FP6 or FP8 codes has scales `[rows, K/V]`.
//! V is the block, 16 or 32. Element (r, k) has the value `code(r, k) · scale(r, k / V)`.
//!
//! *Operands* are K-major: A is `[.., M, K]`, B is `[.., N, K]`, D is `[.., M, N]`. The leading extents are the batch
//! L. If A has a higher rank, a B of rank 2 is shared by all matrices of the batch.
//!
//! *Packing.* FP4 takes half a byte; the low nibble of a byte is the even k. Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3,
//! 4, 6; bit 3 is the sign. FP6 (`f6E2M3FN`, `f6E3M2FN`) takes six bits: element i of a row is at bit 6·i, low bits first,
//! so four elements are three bytes, and the last extent is a multiple of four. Bit 5 is the sign; neither type has NaN or
//! infinity.
//!
//! *Scales.* A scale of type `f8E4M3FN` is read unsigned: bit 7 is ignored and 0x7F is NaN. `f8E8M0FNU` is
//! 2^(byte-127); 0xFF is NaN. NVFP4 is V = 16 with `f8E4M3FN` scales; the MX formats are V = 32 with `f8E8M0FNU`.
//!
//! *Scale layout.* The layout is part of a scale tensor's type; `swizzle_scales` converts it.
//! - `linear` is `[.., rows, K/V]`, row-major.
//! - `blocked` is the padded 128x4 swizzle, one buffer per matrix of the batch. With KT = ceil((K/V)/4), element (r, c)
//!   is at byte `((r/128)·KT + c/4)·512 + (r%32)·16 + ((r%128)/32)·4 + c%4` of `roundup(rows, 128)·4·KT` bytes.
//!
//! Producers write zero padding; consumers tolerate any finite padding. `reshape` accepts and returns only linear
//! scales. `swizzle_scales` also turns `f8E4M3FN` numbers without a layout into scales, and scales into such numbers.
//! It keeps every byte: as a number a byte has a sign, as a scale its bit 7 is ignored.
//! `slice`, `concat` and `gather` move linear scales as they move other tensors.
//!
//! `group_scales` of linear scales `[T, K/V]`, `i32` ends `[E]` and sfa_ends `[E]` gives blocked scales `[P, K/V]`, in which
//! each group of rows begins with a tile of 128 rows. With 0 before the first of either, row `ends[e-1] + i` of group e
//! becomes row `sfa_ends[e-1] + i`. Every other row is zero. Each sfa_end is a multiple of 128, at least the end of the
//! group's own rows, and at most P. Another one is an error of the run; with a kernel, the scales are then undefined.
//!
//! # Movement
//!
//! `reshape`, `transpose`, `broadcast`, `slice`, `concat`, `gather` and `pad` copy elements bit for bit:
//! - `slice` takes the indices `start`, `start + step` and so on before `end` of each axis in `axes`, and every index of
//!   other axes. The axes that it names have fixed extents.
//! - `concat` joins operands along `axis`. The sum of their extents must be an extent: M and 3*M give 4*M.
//! - `gather` of x and `i32` indices takes slices of x along `axis`. The axes of the indices replace the axis, so rows
//!   `[R, C]` and indices `[B, S]` give `[B, S, C]`. An index below 0 or beyond the extent is an error of the run, even
//!   if the result has no elements. Negative indices do not count from the end.
//! - `pad` adds `low` elements before and `high` elements after the axes in `axes`. Their value is `value`, rounded to
//!   the element type as a `constant` is.
//!
//! No movement but `reshape` takes FP6. `transpose` and `broadcast` do not take FP4. The others take whole bytes of FP4
//! along the last axis: `slice` with even bounds and step 1, `pad` with even amounts, and `gather` along other axes.
//!
//! # Choice by an extent
//!
//! `choose` is one of its operands, which have one type. With e the extent of the result's axis `axis`, it is operand i for
//! the first i with e <= `ends[i]`, and the last operand if there is none. So `ends` has the largest extent of each operand
//! but the last, in ascending order. An extent of 0 chooses the first operand. The numbers of a program thus depend on its
//! extents as it says, on every target.
//!
//! An operand that is not chosen need not be computed. Then an error of the run that it alone causes does not occur.
//!
//! # Routing
//!
//! - `top_k` moves the k greatest elements along the last axis, in descending order, and gives their indices. NaN is
//!   greater than any number, and -0 equals 0. Of equal elements the first comes first.
//! - `group_rows` of `i32` ids gives the positions of ids in row-major order, sorted stably by id; the position divided by
//!   the last extent, which is the row; and for each group g the number of ids up to g. An id outside 0 <= id < `groups`
//!   is an error of the run; a kernel takes the nearest group instead.
//! - `padded_ends` of `i32` ends gives the ends of the same groups after each is padded to a multiple of `multiple` rows:
//!   with 0 before the first end, the difference of two ends is rounded up. An end below the one before it, or a sum
//!   beyond `i32`, is an error of the run; a kernel takes the nearest allowed one instead.
//! - `scatter_add` adds row i of x to row `indices[i]` of the result, by ascending i. Each addition rounds to f32; the first
//!   addend is the sum so far, and 0 is the sum of none. The sum rounds once more, to the result type.
//!   An index outside the result is an error of the run; a kernel skips the row.
//!
//! # Numerics
//!
//! Every op rounds once, to nearest even, to its result type. Operands are exact. Arithmetic ops take `f16`, `bf16` and
//! `f32`. Their result type is the join of the operand types: the type itself if they are equal, else `f32`. Narrowing
//! is always explicit: `convert`, `block_quantize`, or the result type of a multiplication.
//!
//! `add`, `sub`, `mul`, `max`, `min`, `compare` and `select` also take two `i32`. Sums, differences and products of
//! integers wrap around: the result is the exact one modulo 2^32. Integers and floats do not mix without `convert`.
//!
//! `scaled_mma` is D = alpha · Σ_k (a·sfa)(b·sfb) + beta · C. Its operands are a, sfa, b, sfb, or a, b, sfb if A is
//! `f16` or `bf16`. Such an A has no scales: a·sfa is a. It is called weight-only.
//! - acc is the exact sum rounded to f32. For FP4 codes with `f8E4M3FN` scales on both sides, every product is a
//!   multiple of 2^-20 and the sum is an integer in that unit. For every other format, the sum is taken in f64 with k
//!   ascending. f64 holds each product exactly: 11 significant bits of an `f16` times 6 of FP4 with an `f8E4M3FN` scale
//!   are the most. Infinities and NaN follow IEEE 754: infinity times zero is NaN, and so is a block with a NaN scale.
//! - t = rn(alpha · acc), or acc without alpha.
//! - With C, fma(beta, C, t) in f32; beta defaults to 1.
//! - The result is rounded to the result type. These intermediate roundings are part of the definition.
//!
//! `grouped_scaled_mma` multiplies each row of A `[T, K]` with the matrix of its group in B `[E, N, K]`, as `scaled_mma`
//! does. `i32` offsets `[E]` are the ends of the groups: group e has the rows from `offsets[e-1]` (0 for the first) to
//! before `offsets[e]`. A row at or after the last end has no group, and its result is 0. An offset below the one before
//! it, below 0 or above T is an error of the run; a kernel takes the nearest allowed one instead. alpha is one number, or
//! one for each group. sfa is linear `[T, K/V]`; or, with the operand sfa_ends, blocked `[P, K/V]` as `group_scales` gives it.
//!
//! `masked_scaled_mma` is the same product for groups that have a matrix of A each: A `[E, M, K]`, result `[E, M, N]`. `i32`
//! counts `[E]` replace offsets: group e has the first `counts[e]` rows of its matrix. A has anything in the other rows, and
//! their result is not defined: here it is 0, and a kernel does not write it. A count below 0 or above M is an error of the
//! run; a kernel takes the nearest allowed one instead.
//!
//! `mma` and the sums in `reduce`, `softmax` and `layer_norm` are computed in f64 with ascending indices and rounded
//! once at the end. Elementwise functions are computed in f64 and rounded once. `max`, `min`, `relu` and `clamp`
//! propagate NaN. `silu`, `gelu` and `gelu_tanh` are NaN at -inf, as their formulas are.
//!
//! `floor`, `ceil` and `round` (half to even) are exact and keep the sign of zero. `log` and `log2` are NaN below 0 and
//! -inf at 0. `exp2` of an integer and `log2` of a power of two are exact.
//! `sin` and `cos` are NaN at infinities. `pow` is that of IEEE 754: `pow(x, 0)` and `pow(1, y)` are 1 even for NaN, and
//! a negative x to the power of a non-integer is NaN.
//!
//! `convert` to `f16` and `bf16` overflows to infinity. `convert` to FP4, FP6 and FP8 saturates (CUDA's satfinite: infinity
//! becomes the largest finite value, NaN becomes the largest in FP4 and FP6 and NaN in FP8). `convert`
//! to `i32` rounds to nearest even, saturates, and maps NaN to 0. `convert` to `f8E8M0FNU`, whose result is linear
//! scales, rounds down to a power of two. It saturates: numbers below 2^-127, zero included, become 2^-127, and infinity
//! becomes 2^127. NaN and negative numbers become NaN. Nothing converts to `i1`.
//!
//! `bitcast` keeps bits. Between `f32` and `i32`, every NaN has the bits 0x7FC00000 in both directions, because NaNs
//! count as equal elsewhere. From `f8E8M0FNU` to `i32` it gives the byte, 0 to 255. From `i32` to `f8E8M0FNU` it takes
//! the low 8 bits. Both are linear scales.
//!
//! `and`, `or`, `shift_left` and `shift_right` take two `i32`. `shift_right` repeats the sign bit (arithmetic shift).
//! The amount of a shift is read unsigned. From 32 on, `shift_left` gives 0, and `shift_right` 0 or -1 by the sign.
//!
//! `block_quantize` of v, with amax the largest magnitude of a block and rn an IEEE f32 rounding:
//! - NVFP4, with the per-tensor scale g: s = e4m3(rn(rn(amax/6)/g)) and code = e2m1(rn(v / rn(s·g))). Codes are 0 where
//!   s·g is 0. Where amax is 0, s and the codes are 0 for any g, including 0 and NaN. Attributes change the formula,
//!   so that quantization written out op by op has an equal `block_quantize`:
//!   - `scale_min` is a lower bound of the scale before it is rounded: s = e4m3(max(t, scale_min)), with t the quotient
//!     above. It is at most 448 and defaults to 0. Where amax is 0, s is e4m3(scale_min).
//!   - `amax = multiply` replaces rn(amax/6) by rn(amax · rn(1/6)).
//!   - `global = multiply` replaces g by a factor: t = rn(rn(amax/6) · g), and rn(s/g) replaces rn(s·g).
//!   - `codes = reciprocal_step` makes a code e2m1(rn(v · rn(1/step))), with step = rn(s·g) or rn(s/g).
//!     `codes = reciprocal_scale` makes it e2m1(rn(v · rn(rn(1/g)/s))), or e2m1(rn(v · rn(g/s))) if g multiplies.
//!   - `guard = false` takes the formula literally. No code is 0 because amax or the step is: 0/0 is NaN, whose code is
//!     +6. The scale keeps the sign of max(t, scale_min), which is NaN if t is. Then g may be absent, which is a g of 1.
//! - MX: s is 2^(floor(log2 amax) - emax) (`scale_rounding = floor`), or the least power of two that brings amax within
//!   range (`ceil`). With `even`, s is that of `floor`, and twice that if amax is at least 1.75 times a power of two.
//!   code = rn(v / step), with step = s. Attributes change the edges, so that quantization written out op by op has an
//!   equal `block_quantize`:
//!   - `infinity` states s for a block with an infinity and no NaN. It is 2^127 (`largest`, the default), or that of an
//!     amax of 2^128 (`exponent`).
//!   - `nan` states the result for a block with a NaN: s and step are NaN (`propagate`, the default), s is NaN and step is
//!     infinite (`infinite_step`), or both are those of an infinity (`infinity`).
//!   - `least_scale` is a lower bound of s, a power of two. It defaults to 2^-127.
//!   - `least_step` is the step where s is 2^-127: s itself (`scale`, the default), 2^-126 (`normal`) or 1 (`one`).
//!
//! `block_dequantize` is rn(code · scale · g).
//!
//! # Comparison of an implementation with the interpreter
//!
//! A multiplication, on the fallback or in a kernel, is compared bit for bit if f32 accumulation is exact in any
//! order ([`sample::Rule::Exact`], [`sample::Rule::Contest`]). Otherwise it may differ by
//! γ_K·|alpha|·Σ|a·b| + 4 ulp with γ_K = K·2^-24/(1 - K·2^-24).
//!
//! On the fallback, every other op is compared bit for bit. All NaNs count as equal. A kernel computes its epilogue in
//! f32:
//! - The transcendental functions `exp`, `tanh`, `erf`, `sigmoid`, `gelu`, `gelu_tanh`, `silu` and `rsqrt` may differ
//!   by 4 ulp of f32.
//! - `neg`, `abs`, `relu`, `sqrt`, `reciprocal`, `clamp`, the functions of two operands, comparisons, `select` and
//!   conversions must not differ.
//!
//! No epilogue computes `log`, `log2`, `exp2`, `sin`, `cos`, `floor`, `ceil`, `round`, `pow`, `bitcast`, `and`, `or`,
//! `shift_left` or `shift_right`.
//!
//! The error bound is propagated through the steps of the epilogue.
//!
//! On the device tier:
//! - Moves and views keep every bit, payloads of NaN and signs of zeros included.
//! - A standalone `block_quantize` is compared bit for bit.
//! - A plain `mma` has the bound of a multiplication with an alpha of 1, before it is rounded to the result type. It is
//!   compared bit for bit if every partial sum is a whole number of units that f32 can hold.
//! - A row kernel is compared bit for bit where no step can differ. Otherwise a bound is propagated through its steps,
//!   which round to f32 or to the types that the program states.
//!
//! The steps of a row kernel:
//! - The transcendental functions above, and `log`, `log2`, `exp2`, `sin`, `cos` and `pow`, may differ by 4 ulp of f32.
//! - The other elementwise functions, `floor`, `ceil`, `round`, `bitcast`, `and`, `or`, `shift_left`, `shift_right`,
//!   `block_quantize`, `block_dequantize`, and the reductions `max`, `min` and `amax` must not differ.
//! - A sum of n elements is in f32, in any order. It may differ by γ_(n+1)·Σ|x|: the last unit allows the device to add
//!   an f32 product without rounding it. The sum must not differ if every partial sum is a whole number of units that
//!   f32 can hold.
//! - A mean is the sum times the f32 reciprocal of n: two more roundings, or none if n is a power of two.
//! - `softmax` and `layer_norm` are steps, each of which rounds to f32: max, sub, exp, sum and div, or mean, sub, mul,
//!   mean, add, sqrt, div, mul and add.
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
mod named;
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
    BlockQuantizeCapability, Capabilities, ColumnCapability, DeviceCapability, EpilogueCapability,
    FormatCapability, GridCapability, MmaCapability, MoveCapability, OperandCapability, OperandShape,
    OutputCapability, PairCapability, QuantizedCapability, QuantizedFormat, RowCapability,
};
pub use diagnostics::{Diagnostic, Place, Span, Spans};
pub use entities::{Arena, Entity, Op, Symbol, Value};
pub use interp::{InterpretError, interpret, interpret_op};
pub use load::load;
pub use module::{Module, Operation, ScaledMmaOperands, ValueData, ValueDef};
pub use ops::{
    AttributeError, AttributeValue, BinaryKind, BitwiseKind, ConstantValue, GroupedScaledMma, OpKind,
    PadAmount, Predicate, ReduceKind, ScaleRounding, ScaledMma, SliceRange, UnaryKind,
};
pub use program::{BlockFormat, Facts, Matmul, Program};
pub use tensor::{Tensor, TensorError};
pub use types::{Dim, ElementType, ScaleLayout, Shape, SymbolValues, TensorType, dim_product};
pub use typing::broadcast_shape;
pub use verify::{Invalid, VerifyError, VerifyErrorKind, verify};

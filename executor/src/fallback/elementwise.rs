//! Elementwise ops: broadcast operands, one function and one rounding, in cache-sized chunks.

use fourfold_ir::scalar;
use fourfold_ir::{BinaryKind, BitwiseKind, ConstantValue, ElementType, Predicate, Tensor, UnaryKind};

use super::codec::{Codec, Number};
use super::view::View;
use super::{FallbackError, ResultType, movement};
use crate::parallel::for_each_chunk;

/// Elements per step; even, so that FP4 falls on whole bytes.
const CHUNK: usize = 1024;

/// Applies a function to every element.
pub(super) fn unary(kind: UnaryKind, x: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    // These three only change the sign or select, so f32 is as exact as f64.
    match kind {
        UnaryKind::Neg => map1(x, result, |x: f32| -x),
        UnaryKind::Abs => map1(x, result, f32::abs),
        UnaryKind::Relu => map1(x, result, |x: f32| if x > 0.0 || x.is_nan() { x } else { 0.0 }),
        _ => map1(x, result, move |x: f64| scalar::unary(kind, x)),
    }
}

/// Applies a function to every pair of elements.
pub(super) fn binary(
    kind: BinaryKind,
    left: &Tensor,
    right: &Tensor,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    if result.element == ElementType::I32 {
        return integers(kind, left, right, result);
    }
    // With f32 operands and result, these are f32's IEEE operations, equal to the f64 result rounded once. Narrower
    // types use f64, so that no further proof is needed.
    let is_f32 = [left.element(), right.element(), result.element].iter().all(|e| *e == ElementType::F32);
    match kind {
        BinaryKind::Add if is_f32 => map2(left, right, result, |a: f32, b: f32| a + b),
        BinaryKind::Sub if is_f32 => map2(left, right, result, |a: f32, b: f32| a - b),
        BinaryKind::Mul if is_f32 => map2(left, right, result, |a: f32, b: f32| a * b),
        BinaryKind::Div if is_f32 => map2(left, right, result, |a: f32, b: f32| a / b),
        BinaryKind::Add => map2(left, right, result, |a: f64, b: f64| a + b),
        BinaryKind::Sub => map2(left, right, result, |a: f64, b: f64| a - b),
        BinaryKind::Mul => map2(left, right, result, |a: f64, b: f64| a * b),
        BinaryKind::Div => map2(left, right, result, |a: f64, b: f64| a / b),
        BinaryKind::Max => map2(left, right, result, |a: f64, b: f64| scalar::binary(BinaryKind::Max, a, b)),
        BinaryKind::Min => map2(left, right, result, |a: f64, b: f64| scalar::binary(BinaryKind::Min, a, b)),
        BinaryKind::Pow => map2(left, right, result, |a: f64, b: f64| scalar::binary(BinaryKind::Pow, a, b)),
    }
}

/// Applies a function to every pair of integers. f64 holds every i32, but not every product.
fn integers(
    kind: BinaryKind,
    left: &Tensor,
    right: &Tensor,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let of = |function: fn(i32, i32) -> i32| {
        map2(left, right, result, move |a: f64, b: f64| f64::from(function(a as i32, b as i32)))
    };
    match kind {
        BinaryKind::Add => of(i32::wrapping_add),
        BinaryKind::Sub => of(i32::wrapping_sub),
        BinaryKind::Mul => of(i32::wrapping_mul),
        BinaryKind::Max => of(i32::max),
        BinaryKind::Min => of(i32::min),
        BinaryKind::Div | BinaryKind::Pow => {
            Err(FallbackError::Internal { reason: "integers have no div and no pow" })
        }
    }
}

/// Applies a function to the bits of every pair of integers.
pub(super) fn bitwise(
    kind: BitwiseKind,
    left: &Tensor,
    right: &Tensor,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let of = |function: fn(i32, i32) -> i32| {
        map2(left, right, result, move |a: f64, b: f64| f64::from(function(a as i32, b as i32)))
    };
    // A negative amount is a large one.
    match kind {
        BitwiseKind::And => of(|a, b| a & b),
        BitwiseKind::Or => of(|a, b| a | b),
        BitwiseKind::ShiftLeft => of(|a, b| if (0..32).contains(&b) { a << b } else { 0 }),
        BitwiseKind::ShiftRight => of(|a, b| a >> if (0..32).contains(&b) { b } else { 31 }),
    }
}

/// Changes the element type and keeps the bits. NaN has one pattern.
pub(super) fn bitcast(x: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    /// The bits of the NaN that every NaN becomes.
    const NAN: u32 = 0x7FC0_0000;
    let one_nan = |bits: u32| if bits & 0x7FFF_FFFF > 0x7F80_0000 { NAN } else { bits };
    let bytes = x.bytes();
    match (x.element(), result.element) {
        (ElementType::F8E8M0FNU, ElementType::I32) => result.fill(CHUNK, |start, out| {
            for (quad, byte) in out.as_chunks_mut::<4>().0.iter_mut().zip(&bytes[start..]) {
                *quad = u32::from(*byte).to_le_bytes();
            }
        }),
        (ElementType::I32, ElementType::F8E8M0FNU) => result.fill(CHUNK, |start, out| {
            for (byte, quad) in out.iter_mut().zip(bytes[4 * start..].as_chunks::<4>().0) {
                *byte = quad[0];
            }
        }),
        (ElementType::F32, ElementType::I32) | (ElementType::I32, ElementType::F32) => {
            result.fill(CHUNK, |start, out| {
                let quads = bytes[4 * start..].as_chunks::<4>().0;
                for (to, from) in out.as_chunks_mut::<4>().0.iter_mut().zip(quads) {
                    *to = one_nan(u32::from_le_bytes(*from)).to_le_bytes();
                }
            })
        }
        _ => Err(FallbackError::Internal { reason: "a bitcast is of f32, i32 or f8E8M0FNU" }),
    }
}

/// Clamps every element between two bounds.
pub(super) fn clamp(min: f64, max: f64, x: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    map1(x, result, move |x: f64| scalar::clamp(x, min, max))
}

/// Compares every pair of elements.
pub(super) fn compare(
    predicate: Predicate,
    left: &Tensor,
    right: &Tensor,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let holds = move |a: f64, b: f64| f64::from(u8::from(scalar::compare(predicate, a, b)));
    map2(left, right, result, holds)
}

/// Converts to another element type.
pub(super) fn convert(x: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    // Every type but i32 is exact in f32, so rounding from f32 is the only rounding.
    if x.element() == ElementType::I32 { map1(x, result, |x: f64| x) } else { map1(x, result, |x: f32| x) }
}

/// Selects elements of one operand or another, bit for bit, except for an exact change of type.
pub(super) fn select(operands: &[&Tensor], result: ResultType) -> Result<Tensor, FallbackError> {
    let mut widened = Vec::new();
    for operand in &operands[1..] {
        let ty = ResultType { element: result.element, dims: operand.dims().to_vec(), layout: None };
        widened.push(if operand.element() == result.element { None } else { Some(convert(operand, ty)?) });
    }
    let chosen = |index: usize| widened[index - 1].as_ref().unwrap_or(operands[index]);
    let operands = [operands[0], chosen(1), chosen(2)];
    let views: Vec<View> =
        operands.iter().map(|operand| View::broadcast(operand.dims(), &result.dims)).collect();
    let bits = result.element.storage_bits();
    result.fill(CHUNK, |start, out| {
        let len = out.len() * 8 / bits;
        let mut conditions = [0f32; CHUNK];
        read(operands[0], &views[0], start, &mut conditions[..len]);
        // Copies the second choice first, then overwrites it with the first choice where the condition holds.
        movement::copy_runs(operands[2], &views[2], start, out);
        let mut chosen = [0u8; CHUNK * 4];
        let chosen = &mut chosen[..out.len()];
        movement::copy_runs(operands[1], &views[1], start, chosen);
        for (index, condition) in conditions[..len].iter().enumerate() {
            if *condition != 0.0 {
                movement::copy_element(bits, chosen, index, out, index);
            }
        }
    })
}

/// Creates a constant of the program.
pub(super) fn constant(value: &ConstantValue, result: ResultType) -> Result<Tensor, FallbackError> {
    match value {
        ConstantValue::Dense(values) => {
            Ok(Tensor::from_f64(result.element, result.dims, result.layout, values)?)
        }
        ConstantValue::Splat(value) => {
            let codec = Codec::plain(result.element);
            let values = [*value; CHUNK];
            result.fill(CHUNK, |_, out| {
                codec.write(&values[..out.len() * 8 / codec.element.storage_bits()], out);
            })
        }
    }
}

fn map1<T: Number>(
    x: &Tensor,
    result: ResultType,
    function: impl Fn(T) -> T + Sync,
) -> Result<Tensor, FallbackError> {
    let view = View::broadcast(x.dims(), &result.dims);
    let codec = Codec::plain(result.element);
    result.fill(CHUNK, |start, out| {
        let mut values = [T::default(); CHUNK];
        let values = &mut values[..out.len() * 8 / codec.element.storage_bits()];
        read(x, &view, start, values);
        for value in values.iter_mut() {
            *value = function(*value);
        }
        codec.write(values, out);
    })
}

fn map2<T: Number>(
    left: &Tensor,
    right: &Tensor,
    result: ResultType,
    function: impl Fn(T, T) -> T + Sync,
) -> Result<Tensor, FallbackError> {
    let views = [left, right].map(|operand| View::broadcast(operand.dims(), &result.dims));
    let codec = Codec::plain(result.element);
    result.fill(CHUNK, |start, out| {
        let (mut values, mut others) = ([T::default(); CHUNK], [T::default(); CHUNK]);
        let len = out.len() * 8 / codec.element.storage_bits();
        let (values, others) = (&mut values[..len], &mut others[..len]);
        read(left, &views[0], start, values);
        read(right, &views[1], start, others);
        for (value, other) in values.iter_mut().zip(others) {
            *value = function(*value, *other);
        }
        codec.write(values, out);
    })
}

/// Reads the values at positions from `start` on.
fn read<T: Number>(tensor: &Tensor, view: &View, start: usize, out: &mut [T]) {
    let codec = Codec::of(tensor);
    view.runs(start..start + out.len(), |run| {
        codec.read(tensor.bytes(), run.start, run.stride, &mut out[run.at..run.at + run.len]);
    });
}

impl ResultType {
    /// Creates a tensor. `fill(first position, bytes)` writes its bytes, `chunk` elements at a time and in parallel.
    pub(super) fn fill(
        self,
        chunk: usize,
        fill: impl Fn(usize, &mut [u8]) + Sync + Send,
    ) -> Result<Tensor, FallbackError> {
        let chunk_bytes = chunk * self.element.storage_bits() / 8;
        let mut tensor = self.zeros()?;
        for_each_chunk(tensor.bytes_mut(), chunk_bytes, |index, out| fill(index * chunk, out));
        Ok(tensor)
    }
}

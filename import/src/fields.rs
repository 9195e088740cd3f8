//! The tensors of one module, taken one by one as a format expects them.

use std::collections::BTreeMap;

use fourfold_executor::{AxisSlice, TensorReference};
use fourfold_ir::ElementType;
use fourfold_ir::numeric::{bf16_bits_to_f32, f16_bits_to_f32};

use crate::checkpoint::{Tensor, Tensors, extents_text};
use crate::imported::LeftOutCode;
use crate::linear::{Convention, Scalar, Stored};

/// The reason that a module is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: LeftOutCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: LeftOutCode, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into() }
    }
}

/// The tensors of a module that a format has not taken yet.
pub(crate) struct Fields<'a> {
    module: &'a str,
    left: BTreeMap<&'a str, &'a Tensor>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(module: &'a str, tensors: &'a Tensors) -> Fields<'a> {
        Fields { module, left: tensors.iter().collect() }
    }

    /// The path of the module.
    pub(crate) fn module(&self) -> &'a str {
        self.module
    }

    /// Looks at a tensor without taking it.
    pub(crate) fn peek(&self, field: &str) -> Option<&'a Tensor> {
        self.left.get(field).copied()
    }

    /// The dtype of a tensor; empty if it is missing.
    pub(crate) fn dtype(&self, field: &str) -> &'a str {
        self.peek(field).map_or("", |tensor| &tensor.dtype)
    }

    /// Takes a tensor, if there is one of this name.
    pub(crate) fn take(&mut self, field: &str) -> Option<&'a Tensor> {
        self.left.remove(field)
    }

    /// Takes a tensor that the format must have.
    pub(crate) fn need(&mut self, field: &str) -> Result<&'a Tensor, Refusal> {
        self.take(field).ok_or_else(|| {
            let message = format!("the tensor `{}` is missing", join(self.module, field));
            Refusal::new(LeftOutCode::MissingTensor, message)
        })
    }

    /// Takes a scale of the whole tensor that the format must have.
    pub(crate) fn need_scalar(&mut self, field: &str, convention: Convention) -> Result<Scalar, Refusal> {
        scalar(self.need(field)?, convention)
    }

    /// Takes the bias `[n]`, if there is one.
    pub(crate) fn bias(&mut self, n: u64) -> Result<Option<Stored>, Refusal> {
        self.take("bias").map(|tensor| stored(tensor, &[n])).transpose()
    }

    /// Fails if a tensor is left that the format does not know, since it may change the meaning of the others.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        match self.left.values().next() {
            None => Ok(()),
            Some(tensor) => Err(Refusal::new(
                LeftOutCode::UnknownFormat,
                format!("the tensor `{}` ({}) is not part of the format", tensor.name, tensor.form()),
            )),
        }
    }
}

/// A module and a field as one name.
pub(crate) fn join(module: &str, field: &str) -> String {
    if module.is_empty() { field.to_owned() } else { format!("{module}.{field}") }
}

/// Checks the dtype of a tensor.
pub(crate) fn require_dtype(tensor: &Tensor, expected: &[&str]) -> Result<(), Refusal> {
    if expected.contains(&tensor.dtype.as_str()) {
        return Ok(());
    }
    let (name, found) = (&tensor.name, &tensor.dtype);
    let message = format!("the tensor `{name}` is {found}, expected {}", expected.join(" or "));
    Err(Refusal::new(LeftOutCode::WrongDtype, message))
}

/// Checks the shape of a tensor.
pub(crate) fn require_shape(tensor: &Tensor, expected: &[u64]) -> Result<(), Refusal> {
    if tensor.shape == expected {
        return Ok(());
    }
    let (name, found) = (&tensor.name, extents_text(&tensor.shape));
    let message = format!("the tensor `{name}` has the shape {found}, expected {expected:?}");
    Err(Refusal::new(LeftOutCode::WrongShape, message))
}

/// The refusal of a tensor's shape, with a reason.
pub(crate) fn wrong_shape(tensor: &Tensor, expected: &str) -> Refusal {
    let (name, found) = (&tensor.name, extents_text(&tensor.shape));
    let message = format!("the tensor `{name}` has the shape {found}, expected {expected}");
    Refusal::new(LeftOutCode::WrongShape, message)
}

/// The extents of a matrix, none of which is zero.
pub(crate) fn matrix(tensor: &Tensor) -> Result<[u64; 2], Refusal> {
    match tensor.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(wrong_shape(tensor, "a matrix that is not empty")),
    }
}

/// A product of extents. The header of the file bounds those of its tensors, but not twice of them.
pub(crate) fn times(tensor: &Tensor, extent: u64, factor: u64) -> Result<u64, Refusal> {
    // The verifier refuses larger extents.
    const LARGEST: u64 = 1 << 40;
    extent
        .checked_mul(factor)
        .filter(|product| *product <= LARGEST)
        .ok_or_else(|| wrong_shape(tensor, &format!("extents of at most {LARGEST}")))
}

/// The arithmetic type of a dtype.
pub(crate) fn arithmetic(dtype: &str) -> Option<ElementType> {
    match dtype {
        "F32" => Some(ElementType::F32),
        "BF16" => Some(ElementType::BF16),
        "F16" => Some(ElementType::F16),
        _ => None,
    }
}

/// The arithmetic type with this name in configurations.
pub(crate) fn named_type(name: &str) -> Option<ElementType> {
    match name.trim_start_matches("torch.") {
        "bfloat16" => Some(ElementType::BF16),
        "float16" => Some(ElementType::F16),
        "float32" => Some(ElementType::F32),
        _ => None,
    }
}

/// A whole tensor of an arithmetic type and this shape.
pub(crate) fn stored(tensor: &Tensor, shape: &[u64]) -> Result<Stored, Refusal> {
    require_shape(tensor, shape)?;
    stored_as(tensor, tensor.reference(), shape.to_vec())
}

/// A tensor, or a slice of one, of an arithmetic type.
pub(crate) fn stored_as(
    tensor: &Tensor,
    reference: TensorReference,
    shape: Vec<u64>,
) -> Result<Stored, Refusal> {
    require_dtype(tensor, &["F32", "BF16", "F16"])?;
    let element = arithmetic(&tensor.dtype).unwrap_or(ElementType::F32);
    Ok(Stored { reference, element, shape })
}

/// A scale of a whole tensor: one element, of rank 0 or 1.
pub(crate) fn scalar(tensor: &Tensor, convention: Convention) -> Result<Scalar, Refusal> {
    if !matches!(tensor.shape[..], [] | [1]) {
        return Err(wrong_shape(tensor, "one element"));
    }
    let stored = stored_as(tensor, tensor.reference(), tensor.shape.clone())?;
    if let Some(value) = tensor.bits.map(|bits| value_of(stored.element, bits)) {
        let factor = if convention == Convention::Divide { 1.0 / value } else { value };
        if !(factor > 0.0 && factor.is_finite()) {
            let message =
                format!("the scale `{}` is {value}, which is no positive finite factor", tensor.name);
            return Err(Refusal::new(LeftOutCode::InvalidScale, message));
        }
    }
    Ok(Scalar { stored, convention, bits: tensor.bits })
}

/// Returns whether a number can be the factor of one of several experts. An expert whose weights are all zero has the
/// factor 0.
pub(crate) fn is_factor(number: f64) -> bool {
    number >= 0.0 && number.is_finite()
}

/// The numbers for which [`is_factor`] is true, for messages.
pub(crate) const FACTOR: &str = "a finite number that is not negative";

/// The number that a stored element of an arithmetic type has.
pub(crate) fn value_of(element: ElementType, bits: u64) -> f32 {
    let [first, second, third, fourth, ..] = bits.to_le_bytes();
    let half = u16::from_le_bytes([first, second]);
    match element {
        ElementType::BF16 => bf16_bits_to_f32(half),
        ElementType::F16 => f16_bits_to_f32(half),
        _ => f32::from_le_bytes([first, second, third, fourth]),
    }
}

/// The part of a tensor at an index of its first axis.
pub(crate) fn at(tensor: &Tensor, index: u64) -> TensorReference {
    tensor.reference().sliced(vec![AxisSlice::Index(index)])
}

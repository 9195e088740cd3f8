//! The mapping between safetensors dtypes and IR element types.

use fourfold_ir::{ElementType, ScaleLayout, Tensor};
use safetensors::Dtype;

/// The dtype that an element type is written as. FP4 and FP6 are stored in bytes, as in checkpoints.
pub(super) fn of_element(element: ElementType) -> Dtype {
    match element {
        ElementType::F4E2M1FN | ElementType::F6E2M3FN | ElementType::F6E3M2FN => Dtype::U8,
        ElementType::F8E4M3FN => Dtype::F8_E4M3,
        ElementType::F8E5M2 => Dtype::F8_E5M2,
        ElementType::F8E8M0FNU => Dtype::F8_E8M0,
        ElementType::F16 => Dtype::F16,
        ElementType::BF16 => Dtype::BF16,
        ElementType::F32 => Dtype::F32,
        ElementType::I32 => Dtype::I32,
        ElementType::I1 => Dtype::BOOL,
    }
}

/// The shape that a tensor is written with, in elements of [`of_element`].
pub(super) fn stored_shape(tensor: &Tensor) -> Vec<usize> {
    let mut shape = tensor.dims().to_vec();
    if tensor.element().packed_count() > 1
        && let Some(last) = shape.last_mut()
    {
        *last = *last * tensor.element().storage_bits() / 8;
    }
    if let (Some(ScaleLayout::Blocked), [.., rows, columns]) = (tensor.layout(), shape.as_mut_slice()) {
        *rows = rows.next_multiple_of(128);
        *columns = columns.next_multiple_of(4);
    }
    shape
}

/// The dtypes that a tensor of this type may be stored as, its own first. Narrower floats are widened exactly, `F64` is
/// rounded to nearest even, and `U32` holds eight FP4 codes, the first in the lowest bits.
pub(super) fn accepted(element: ElementType) -> &'static [&'static str] {
    match element {
        ElementType::F4E2M1FN => &["U8", "F4", "U32"],
        ElementType::F6E2M3FN | ElementType::F6E3M2FN => &["U8"],
        ElementType::F8E4M3FN => &["F8_E4M3", "U8"],
        ElementType::F8E5M2 => &["F8_E5M2", "U8"],
        ElementType::F8E8M0FNU => &["F8_E8M0", "U8"],
        ElementType::F16 => &["F16", "F64"],
        ElementType::BF16 => &["BF16", "F64"],
        ElementType::F32 => &["F32", "BF16", "F16", "F64"],
        ElementType::I32 => &["I32"],
        ElementType::I1 => &["BOOL"],
    }
}

/// Returns true for the dtypes whose elements are bytes that may be moved one by one.
pub(super) fn is_byte(dtype: &str) -> bool {
    ["U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"].contains(&dtype)
}

/// The element type of a dtype; `None` for bytes, and for dtypes that the IR lacks.
pub(super) fn natural_element(dtype: &str) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|element| match element {
        ElementType::F4E2M1FN => dtype == "F4",
        ElementType::F6E2M3FN | ElementType::F6E3M2FN => false,
        _ => accepted(*element)[0] == dtype,
    })
}

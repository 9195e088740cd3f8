//! The CUDA spelling and alignment of element types.

use fourfold_ir::ElementType;

/// The number of elements in 16 bytes, the unit of TMA.
pub(crate) fn alignment(element: ElementType) -> usize {
    128 / element.storage_bits()
}

/// The CUDA C++ type of an element.
pub(crate) fn element_type(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => "cutlass::half_t",
        ElementType::BF16 => "cutlass::bfloat16_t",
        ElementType::F8E4M3FN => "cutlass::float_e4m3_t",
        ElementType::F8E5M2 => "cutlass::float_e5m2_t",
        _ => "float",
    }
}

//! How element types are spelled and aligned in CUDA sources.

use fourfold_ir::ElementType;

/// Elements in 16 bytes, which is what TMA moves.
pub(crate) fn alignment(element: ElementType) -> usize {
    128 / element.storage_bits()
}

/// The type of an element in the source.
pub(crate) fn element_type(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => "cutlass::half_t",
        ElementType::BF16 => "cutlass::bfloat16_t",
        ElementType::F8E4M3FN => "cutlass::float_e4m3_t",
        ElementType::F8E5M2 => "cutlass::float_e5m2_t",
        _ => "float",
    }
}

//! The elements and scales of one operand, and their C++ types.

use fourfold_ir::ElementType;

/// An 8-bit float of an MXFP8 operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// e4m3
    E4m3,
    /// e5m2
    E5m2,
}

/// A 6-bit float of an MXFP6 operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp6 {
    /// e2m3
    E2m3,
    /// e3m2
    E3m2,
}

/// The elements and scales of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// e2m1, a ue4m3 scale per 16.
    Nvfp4,
    /// e2m1, a ue8m0 scale per 32.
    Mxfp4,
    /// e4m3 or e5m2, a ue8m0 scale per 32.
    Mxfp8(Fp8),
    /// e2m3 or e3m2, a ue8m0 scale per 32.
    Mxfp6(Fp6),
    /// NVFP4, spelled as a tuple for the Sm103 collectives.
    UltraNvfp4,
    /// MXFP4, spelled as a tuple for the Sm103 collectives.
    UltraMxfp4,
}

impl Format {
    /// The MX format of an element type; `None` for a type that no operand of these kernels has.
    pub fn mx(element: ElementType) -> Option<Format> {
        match element {
            ElementType::F4E2M1FN => Some(Format::Mxfp4),
            ElementType::F8E4M3FN => Some(Format::Mxfp8(Fp8::E4m3)),
            ElementType::F8E5M2 => Some(Format::Mxfp8(Fp8::E5m2)),
            ElementType::F6E2M3FN => Some(Format::Mxfp6(Fp6::E2m3)),
            ElementType::F6E3M2FN => Some(Format::Mxfp6(Fp6::E3m2)),
            _ => None,
        }
    }

    /// The number of elements along K per scale: 16 or 32.
    pub fn scale_vector(self) -> u32 {
        match self {
            Format::Nvfp4 | Format::UltraNvfp4 => 16,
            Format::Mxfp4 | Format::Mxfp8(_) | Format::Mxfp6(_) | Format::UltraMxfp4 => 32,
        }
    }

    /// The hardware's name of the scale type: `ue4m3` or `ue8m0`.
    pub fn scale_text(self) -> &'static str {
        match self.scale_vector() {
            16 => "ue4m3",
            _ => "ue8m0",
        }
    }

    /// The element type in a program.
    pub fn element(self) -> ElementType {
        match self {
            Format::Nvfp4 | Format::Mxfp4 | Format::UltraNvfp4 | Format::UltraMxfp4 => ElementType::F4E2M1FN,
            Format::Mxfp6(Fp6::E2m3) => ElementType::F6E2M3FN,
            Format::Mxfp6(Fp6::E3m2) => ElementType::F6E3M2FN,
            Format::Mxfp8(Fp8::E4m3) => ElementType::F8E4M3FN,
            Format::Mxfp8(Fp8::E5m2) => ElementType::F8E5M2,
        }
    }

    /// The bits of an element in global memory: 4, 6 or 8.
    pub fn bits(self) -> u32 {
        match self {
            Format::Nvfp4 | Format::Mxfp4 | Format::UltraNvfp4 | Format::UltraMxfp4 => 4,
            Format::Mxfp6(_) => 6,
            Format::Mxfp8(_) => 8,
        }
    }

    /// The C++ type of an element in memory.
    pub(crate) fn code_text(self) -> &'static str {
        match self {
            Format::Nvfp4 | Format::Mxfp4 | Format::UltraNvfp4 | Format::UltraMxfp4 => {
                "cutlass::float_e2m1_t"
            }
            Format::Mxfp8(Fp8::E4m3) => "cutlass::float_e4m3_t",
            Format::Mxfp8(Fp8::E5m2) => "cutlass::float_e5m2_t",
            Format::Mxfp6(Fp6::E2m3) => "cutlass::float_e2m3_t",
            Format::Mxfp6(Fp6::E3m2) => "cutlass::float_e3m2_t",
        }
    }

    /// Returns whether the format is one of the Sm103 tuples.
    pub fn is_ultra(self) -> bool {
        matches!(self, Format::UltraNvfp4 | Format::UltraMxfp4)
    }

    /// The C++ type that the collective builder expects.
    pub fn type_text(self) -> &'static str {
        match self {
            Format::Nvfp4 => "cutlass::nv_float4_t<cutlass::float_e2m1_t>",
            Format::Mxfp4 => "cutlass::mx_float4_t<cutlass::float_e2m1_t>",
            Format::Mxfp8(Fp8::E4m3) => "cutlass::mx_float8_t<cutlass::float_e4m3_t>",
            Format::Mxfp8(Fp8::E5m2) => "cutlass::mx_float8_t<cutlass::float_e5m2_t>",
            Format::Mxfp6(Fp6::E2m3) => "cutlass::mx_float6_t<cutlass::float_e2m3_t>",
            Format::Mxfp6(Fp6::E3m2) => "cutlass::mx_float6_t<cutlass::float_e3m2_t>",
            Format::UltraNvfp4 => "cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>",
            Format::UltraMxfp4 => "cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue8m0_t>",
        }
    }
}

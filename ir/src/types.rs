//! Element types, shapes with symbolic extents, and tensor types with a scale layout.

use std::fmt;

use crate::entities::{Arena, Symbol};

/// The type of one element. Names are MLIR's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementType {
    /// 4-bit float, e2m1: ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}. Two per byte, low nibble = even index of the last axis.
    F4E2M1FN,
    /// 6-bit float, e2m3: largest 7.5, least 1/8. Four in three bytes, bit 6·i of the bytes first. Only data of MX
    /// blocks has this type.
    F6E2M3FN,
    /// 6-bit float, e3m2: largest 28, least 1/16. Packed as `f6E2M3FN`.
    F6E3M2FN,
    /// 8-bit float, e4m3 without infinities, largest 448. A scale is read unsigned: bit 7 is ignored.
    F8E4M3FN,
    /// 8-bit float, e5m2, largest 57344.
    F8E5M2,
    /// 8-bit power of two, 2^(byte-127); 0xFF is NaN. Only scales have this type.
    F8E8M0FNU,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE single.
    F32,
    /// 32-bit signed integer.
    I32,
    /// Boolean, one byte in memory, 0 or 1.
    I1,
}

impl ElementType {
    /// Every element type: floats by width, then integers.
    pub const ALL: [ElementType; 11] = [
        ElementType::F4E2M1FN,
        ElementType::F6E2M3FN,
        ElementType::F6E3M2FN,
        ElementType::F8E4M3FN,
        ElementType::F8E5M2,
        ElementType::F8E8M0FNU,
        ElementType::F16,
        ElementType::BF16,
        ElementType::F32,
        ElementType::I32,
        ElementType::I1,
    ];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            ElementType::F4E2M1FN => "f4E2M1FN",
            ElementType::F6E2M3FN => "f6E2M3FN",
            ElementType::F6E3M2FN => "f6E3M2FN",
            ElementType::F8E4M3FN => "f8E4M3FN",
            ElementType::F8E5M2 => "f8E5M2",
            ElementType::F8E8M0FNU => "f8E8M0FNU",
            ElementType::F16 => "f16",
            ElementType::BF16 => "bf16",
            ElementType::F32 => "f32",
            ElementType::I32 => "i32",
            ElementType::I1 => "i1",
        }
    }

    /// The type with this name in text.
    pub fn from_name(name: &str) -> Option<ElementType> {
        ElementType::ALL.into_iter().find(|element| element.name() == name)
    }

    /// The bits of an element in memory: 4 for FP4, 6 for FP6, 8 for `i1`.
    pub fn storage_bits(self) -> usize {
        match self {
            ElementType::F4E2M1FN => 4,
            ElementType::F6E2M3FN | ElementType::F6E3M2FN => 6,
            ElementType::F8E4M3FN | ElementType::F8E5M2 | ElementType::F8E8M0FNU | ElementType::I1 => 8,
            ElementType::F16 | ElementType::BF16 => 16,
            ElementType::F32 | ElementType::I32 => 32,
        }
    }

    /// The number of elements that are packed in whole bytes: 2 of FP4, 4 of FP6, 1 of other types. The last extent is a
    /// multiple of it.
    pub fn packed_count(self) -> usize {
        match self.storage_bits() {
            4 => 2,
            6 => 4,
            _ => 1,
        }
    }

    /// Returns true for `f6E2M3FN` and `f6E3M2FN`.
    pub fn is_fp6(self) -> bool {
        matches!(self, ElementType::F6E2M3FN | ElementType::F6E3M2FN)
    }

    /// Returns true for the types of arithmetic ops: `f16`, `bf16`, `f32`. Narrower floats must be converted first.
    pub fn is_arithmetic(self) -> bool {
        matches!(self, ElementType::F16 | ElementType::BF16 | ElementType::F32)
    }

    /// Returns true for `f16` and `bf16`.
    pub fn is_half(self) -> bool {
        matches!(self, ElementType::F16 | ElementType::BF16)
    }

    /// Returns true for the types of scales: `f8E4M3FN` (read unsigned) and `f8E8M0FNU`.
    pub fn is_scale(self) -> bool {
        matches!(self, ElementType::F8E4M3FN | ElementType::F8E8M0FNU)
    }

    /// Returns true for the types of block-scaled data: `f4E2M1FN`, `f6E2M3FN`, `f6E3M2FN`, `f8E4M3FN`, `f8E5M2`.
    pub fn is_block_data(self) -> bool {
        self.is_fp6() || matches!(self, ElementType::F4E2M1FN | ElementType::F8E4M3FN | ElementType::F8E5M2)
    }

    /// The arithmetic type that represents every value of both types: the type itself if they are equal, else `f32`.
    /// `None` unless both types are arithmetic.
    pub fn join(self, other: ElementType) -> Option<ElementType> {
        match (self.is_arithmetic(), other.is_arithmetic()) {
            (true, true) if self == other => Some(self),
            (true, true) => Some(ElementType::F32),
            _ => None,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An extent: a constant, or a constant times named symbols (`384`, `M`, `4*B*S`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    constant: u64,
    /// Sorted; a power repeats its symbol. Empty if the constant is zero.
    symbols: Vec<Symbol>,
}

impl Dim {
    /// A known extent.
    pub fn fixed(extent: u64) -> Dim {
        Dim { constant: extent, symbols: Vec::new() }
    }

    /// An extent known at run time.
    pub fn symbol(symbol: Symbol) -> Dim {
        Dim { constant: 1, symbols: vec![symbol] }
    }

    /// `constant` times the product of `symbols`.
    pub fn product(constant: u64, mut symbols: Vec<Symbol>) -> Dim {
        symbols.sort_unstable();
        if constant == 0 {
            symbols.clear();
        }
        Dim { constant, symbols }
    }

    /// The constant factor: the whole extent when there are no symbols.
    pub fn constant(&self) -> u64 {
        self.constant
    }

    /// The symbols, sorted; a power repeats its symbol.
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The extent if it has no symbols, else `None`.
    pub fn as_fixed(&self) -> Option<u64> {
        self.symbols.is_empty().then_some(self.constant)
    }

    /// Returns true if the extent is a multiple of `of` for every value of its symbols.
    pub fn is_multiple_of(&self, of: u64) -> bool {
        self.constant.is_multiple_of(of)
    }

    /// The product; `None` if its constant exceeds 64 bits.
    pub fn times(&self, other: &Dim) -> Option<Dim> {
        let constant = self.constant.checked_mul(other.constant)?;
        Some(Dim::product(constant, self.symbols.iter().chain(&other.symbols).copied().collect()))
    }

    /// The sum; `None` unless both have the same symbols or one is 0, or if the constant exceeds 64 bits.
    pub fn plus(&self, other: &Dim) -> Option<Dim> {
        match (self.constant, other.constant) {
            (_, 0) => Some(self.clone()),
            (0, _) => Some(other.clone()),
            (left, right) if self.symbols == other.symbols => {
                Some(Dim { constant: left.checked_add(right)?, symbols: self.symbols.clone() })
            }
            _ => None,
        }
    }

    /// The extent divided by `divisor`; `None` unless that is an integer for every value of its symbols.
    pub fn divided_by(&self, divisor: u64) -> Option<Dim> {
        (divisor != 0 && self.is_multiple_of(divisor))
            .then(|| Dim { constant: self.constant / divisor, symbols: self.symbols.clone() })
    }

    /// Evaluates the extent. `None` if a symbol has no value or the product exceeds 64 bits.
    pub fn evaluate(&self, values: &SymbolValues) -> Option<u64> {
        let mut extent = self.constant;
        for symbol in &self.symbols {
            extent = extent.checked_mul(values.get(*symbol)?)?;
        }
        Some(extent)
    }
}

/// The extents of a tensor, outermost first; rank 0 is a scalar.
pub type Shape = Vec<Dim>;

/// The product of some extents; `None` if its constant exceeds 64 bits.
pub fn dim_product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<Dim> {
    dims.into_iter().try_fold(Dim::fixed(1), |product, dim| product.times(dim))
}

/// The run-time values of a program's symbols.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SymbolValues {
    values: Vec<Option<u64>>,
}

impl SymbolValues {
    /// The value of a symbol; `None` if it is not set.
    pub fn get(&self, symbol: Symbol) -> Option<u64> {
        use crate::entities::Entity;
        self.values.get(symbol.index()).copied().flatten()
    }

    /// Sets the value of a symbol.
    pub fn set(&mut self, symbol: Symbol, extent: u64) {
        use crate::entities::Entity;
        if self.values.len() <= symbol.index() {
            self.values.resize(symbol.index() + 1, None);
        }
        self.values[symbol.index()] = Some(extent);
    }
}

/// The memory layout of the scales of a matrix. It is part of the tensor's type; `swizzle_scales` converts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaleLayout {
    /// `[.., rows, K/V]` row-major, as checkpoints store scales.
    Linear,
    /// The padded 128x4 swizzle that the hardware reads, one buffer per matrix
    /// ([`crate::numeric::blocked_offset`], [`crate::numeric::blocked_len`]).
    Blocked,
}

impl ScaleLayout {
    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            ScaleLayout::Linear => "linear",
            ScaleLayout::Blocked => "blocked",
        }
    }
}

impl fmt::Display for ScaleLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The extents in elements. For blocked scales, padding is excluded.
    pub shape: Shape,
    /// The type of an element.
    pub element: ElementType,
    /// The layout; `Some` for scales only.
    pub layout: Option<ScaleLayout>,
}

impl TensorType {
    /// The type of a tensor that is not a scale tensor.
    pub fn new(shape: Shape, element: ElementType) -> TensorType {
        TensorType { shape, element, layout: None }
    }

    /// The type of the scales of a matrix.
    pub fn scales(shape: Shape, element: ElementType, layout: ScaleLayout) -> TensorType {
        TensorType { shape, element, layout: Some(layout) }
    }

    /// The number of extents.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns true if the shape is `[]` or all extents are 1.
    pub fn is_scalar(&self) -> bool {
        self.shape.iter().all(|dim| dim.as_fixed() == Some(1))
    }

    /// Displays the type, with the names of its symbols.
    pub fn display<'a>(&'a self, symbols: &'a Arena<Symbol, String>) -> impl fmt::Display + 'a {
        DisplayType { ty: self, symbols }
    }
}

/// Displays an extent, with the names of its symbols.
pub fn display_dim<'a>(dim: &'a Dim, symbols: &'a Arena<Symbol, String>) -> impl fmt::Display + 'a {
    DisplayDim { dim, symbols }
}

struct DisplayDim<'a> {
    dim: &'a Dim,
    symbols: &'a Arena<Symbol, String>,
}

impl fmt::Display for DisplayDim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if self.dim.constant != 1 || self.dim.symbols.is_empty() {
            write!(f, "{}", self.dim.constant)?;
            separator = "*";
        }
        for symbol in &self.dim.symbols {
            let name = self.symbols.get(*symbol).map_or("?", String::as_str);
            write!(f, "{separator}{name}")?;
            separator = "*";
        }
        Ok(())
    }
}

struct DisplayType<'a> {
    ty: &'a TensorType,
    symbols: &'a Arena<Symbol, String>,
}

impl fmt::Display for DisplayType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<[")?;
        for (index, dim) in self.ty.shape.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", DisplayDim { dim, symbols: self.symbols })?;
        }
        write!(f, "], {}", self.ty.element)?;
        if let Some(layout) = self.ty.layout {
            write!(f, ", {layout}")?;
        }
        f.write_str(">")
    }
}

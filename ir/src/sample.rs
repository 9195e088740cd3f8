//! Seeded sample inputs. A fixture names a rule and a seed, which determine every byte on every machine.
//!
//! SplitMix64 generates the numbers. Each input has its own stream, seeded from the seed and the input's name, so
//! that one input does not depend on the others. Elements are drawn in logical row-major order.
//!
//! # Exactness of exact-rule data
//!
//! Under [`Rule::Exact`] a `scaled_mma` with K <= 512 gives the same f32 sum in any order of accumulation:
//! - A data code is i times the element type's unit, at least 2^-2, with |i| <= 12: FP4 in halves up to 6,
//!   `f8E4M3FN` in quarters up to 3, `f8E5M2` in halves up to 4 (|i| <= 8), `f6E2M3FN` in halves up to 6, `f6E3M2FN` in
//!   quarters up to 3, rounded to two bits of mantissa.
//! - A scale is 2^e(row) · j/8 with j = 8 to 15, or 2^e(row) · j with j = 1 or 2 for `f8E8M0FNU`.
//! - An input that is the 16-bit A of a weight-only `scaled_mma` is 2^e(row) · i/16 with |i| <= 180.
//! - In one sum, over one row of A and one of B, every product is therefore an integer multiple of one unit. Its
//!   magnitude is at most 12² · 15² = 32 400 units.
//! - Every partial sum, in any order, is an integer of at most 512 · 32 400 = 16 588 800 < 2^24 units. An f32 holds
//!   it exactly, so no addition rounds. The smallest unit is far above f32's subnormals.
//!
//! Under [`Rule::Contest`] the same holds with other scales. With 0 to 3 (`f8E4M3FN`) a product has at most 12² · 3²
//! units, so K <= 12 945 is exact. With 1/2 to 4 (`f8E8M0FNU`) it has at most 12² · 8², so K <= 1 820 is. A 16-bit A is
//! i/16 with |i| <= 36 = 12 · 3.

mod indices;

use std::collections::HashMap;

use crate::bind::concrete_dims;
use crate::entities::Value;
use crate::memory::check_memory;
use crate::numeric;
use crate::ops::OpKind;
use crate::program::Program;
use crate::tensor::{Tensor, TensorError};
use crate::types::{ElementType, ScaleLayout, SymbolValues};

pub use indices::Distribution;

/// A distribution of sample data. Types that a rule does not mention follow `Normal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Block-scaled operands whose product is exact in f32 in any order, for K <= 512 (see the module's page):
    /// - all 16 FP4 codes; `f8E4M3FN` in steps of 1/4 up to 3; `f8E5M2` and `f6E2M3FN` in steps of 1/2 up to 4 and 6;
    ///   `f6E3M2FN` in steps of 1/4 up to 3, rounded to its two bits of mantissa;
    /// - `f8E4M3FN` scales 2^e(row) · (8 + m(row, block))/8 with e in -4..=4 and m in 0..=7;
    /// - `f8E8M0FNU` scales 2^(e(row) + m(row, block)) with m in 0..=1. A row is every index but the last.
    /// - a 16-bit A without scales: 2^e(row) · i/16 with |i| <= 180.
    Exact,
    /// The data of `Exact` (FP4 is uniform bytes) with scales 0, 1, 2, 3 (`f8E4M3FN`) or 1/2, 1, 2, 4
    /// (`f8E8M0FNU`): exact for a larger K. A 16-bit A without scales is i/16 with |i| <= 36.
    Contest,
    /// All finite values of each format:
    /// - FP4, FP6 and FP8 data: uniform over the finite codes;
    /// - `f8E4M3FN` scales: uniform over 0x00 to 0x7E; of 61 consecutive scales at least one is zero, one subnormal
    ///   and one 448; `f8E8M0FNU` scales: 2^-20 to 2^20;
    /// - `f16`, `bf16`, `f32`: approximately normal (mean 0, variance 1, within ±6), rounded. For the shapes `[]` and
    ///   `[1]` (alpha, beta, a per-tensor scale): in [0.25, 2), with random mantissa bits;
    /// - `i32`: -8 to 8; `i1`: coin flips. An input of `i32` that ops use as the ends of groups or as indices, directly
    ///   or after a `reshape`, has numbers that they accept. [`Distribution`] states the sizes of groups. Indices are
    ///   uniform.
    Normal,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 3] = [Rule::Exact, Rule::Contest, Rule::Normal];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Exact => "exact",
            Rule::Contest => "contest",
            Rule::Normal => "normal",
        }
    }

    /// The largest K for which data of this rule with scales of this type is exact (derived on the module's page);
    /// `None` if it is not exact for any K.
    pub fn exact_k(self, scale: ElementType) -> Option<u64> {
        match (self, scale) {
            (Rule::Exact, _) => Some(512),
            (Rule::Contest, ElementType::F8E4M3FN) => Some(12_945),
            (Rule::Contest, _) => Some(1_820),
            (Rule::Normal, _) => None,
        }
    }

    /// The rule with this name in text.
    pub fn from_name(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// Everything that determines a program's sample inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The distribution.
    pub rule: Rule,
    /// The seed.
    pub seed: u64,
    /// The value of each symbol of the program, in any order.
    pub symbols: Vec<(String, u64)>,
}

/// An error from drawing a program's inputs by a recipe. The caller is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The recipe has no value for a symbol of the program.
    #[error("the recipe has no value for the symbol `{name}`")]
    MissingSymbol {
        /// The symbol.
        name: String,
    },
    /// The program has no such symbol.
    #[error("the program has no symbol `{name}`")]
    UnknownSymbol {
        /// The name in the recipe.
        name: String,
    },
    /// The recipe gives a symbol two values.
    #[error("the recipe gives the symbol `{name}` a value twice")]
    RepeatedSymbol {
        /// The symbol.
        name: String,
    },
    /// An extent exceeds the address space.
    #[error("the recipe's symbols determine no valid extents for `%{name}: {ty}`")]
    Extents {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
    },
    /// An input cannot have these extents.
    #[error("`%{name}`: {source}")]
    Tensor {
        /// The input.
        name: String,
        /// The reason.
        source: TensorError,
    },
}

/// Draws one tensor for each input of the program. Returns them by name.
///
/// # Errors
/// If the recipe's symbols are not exactly the program's, or if [`tensor`] fails.
pub fn inputs(program: &Program, recipe: &Recipe) -> Result<HashMap<String, Tensor>, SampleError> {
    some_inputs(program, recipe, &|_| true)
}

/// Draws the tensors of the inputs whose names are wanted. They are those of [`inputs`].
///
/// # Errors
/// As [`inputs`].
pub fn some_inputs(
    program: &Program,
    recipe: &Recipe,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<HashMap<String, Tensor>, SampleError> {
    let module = program.module();
    let mut values = SymbolValues::default();
    for (name, extent) in &recipe.symbols {
        let known = module.symbols.iter().find(|(_, known)| *known == name);
        let (symbol, _) = known.ok_or_else(|| SampleError::UnknownSymbol { name: name.clone() })?;
        if values.get(symbol).is_some() {
            return Err(SampleError::RepeatedSymbol { name: name.clone() });
        }
        values.set(symbol, *extent);
    }
    if let Some((_, name)) = module.symbols.iter().find(|(symbol, _)| values.get(*symbol).is_none()) {
        return Err(SampleError::MissingSymbol { name: name.clone() });
    }
    let mut tensors = HashMap::new();
    for &input in &module.inputs {
        let (name, ty) = (module.name_of(input), module.ty(input));
        if !is_wanted(name) {
            continue;
        }
        let dims = concrete_dims(ty, &values).ok_or_else(|| SampleError::Extents {
            name: name.to_owned(),
            ty: module.display_type(ty).to_string(),
        })?;
        let seed = recipe.seed ^ fnv1a(name);
        let tensor = if let Some(numbers) = indices::accepted(program, input, &values) {
            check_size(ty.element, &dims, None).and_then(|()| {
                let count = dims.iter().product();
                let codes = indices::draw(numbers, count, recipe.seed, &mut SplitMix64(seed));
                Tensor::from_codes(ty.element, dims, None, codes)
            })
        } else if recipe.rule != Rule::Normal && is_unscaled_operand(program, input) {
            unscaled_operand(ty.element, dims, recipe.rule, seed)
        } else {
            tensor(ty.element, dims, ty.layout, recipe.rule, seed)
        };
        let tensor = tensor.map_err(|source| SampleError::Tensor { name: name.to_owned(), source })?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

/// Returns true for the A of a weight-only `scaled_mma` or `grouped_scaled_mma`.
fn is_unscaled_operand(program: &Program, input: Value) -> bool {
    program.facts().users(input).iter().any(|op| {
        let operation = &program.module().ops[*op];
        let is_weight_only = match operation.kind {
            OpKind::ScaledMma(mma) => mma.weight_only,
            OpKind::GroupedScaledMma(mma) => mma.weight_only,
            _ => false,
        };
        is_weight_only && operation.operands.first() == Some(&input)
    })
}

/// Draws a 16-bit A whose products with block-scaled data of the rule are exact in f32 in any order.
fn unscaled_operand(
    element: ElementType,
    dims: Vec<usize>,
    rule: Rule,
    seed: u64,
) -> Result<Tensor, TensorError> {
    check_size(element, &dims, None)?;
    let columns = dims.last().copied().unwrap_or(1);
    let mut random = SplitMix64(seed);
    let mut row_exponent = 0;
    let mut draw = |index: usize| {
        if rule == Rule::Exact && index.is_multiple_of(columns) {
            row_exponent = random.between(-4, 4);
        }
        let most = if rule == Rule::Exact { 180 } else { 36 };
        f64::from(random.between(-most, most)) / 16.0 * 2f64.powi(row_exponent)
    };
    let encode = match element {
        ElementType::F16 => numeric::f64_to_f16_bits,
        _ => numeric::f64_to_bf16_bits,
    };
    let count: usize = dims.iter().product();
    let codes = (0..count).flat_map(|index| encode(draw(index)).to_le_bytes()).collect();
    Tensor::from_codes(element, dims, None, codes)
}

/// Draws a tensor by a rule. The padding of blocked scales is finite and never zero, since consumers must tolerate
/// that.
///
/// # Errors
/// As [`Tensor::byte_len`], and if the size exceeds 4 GiB or the available memory.
pub fn tensor(
    element: ElementType,
    dims: Vec<usize>,
    layout: Option<ScaleLayout>,
    rule: Rule,
    seed: u64,
) -> Result<Tensor, TensorError> {
    check_size(element, &dims, layout)?;
    let mut random = SplitMix64(seed);
    let is_scale = layout.is_some() || element == ElementType::F8E8M0FNU;
    let mut tensor = if is_scale {
        let codes = scale_codes(element, &dims, rule, &mut random);
        Tensor::from_codes(element, dims, layout, codes)?
    } else {
        let bytes = data_bytes(element, &dims, rule, &mut random);
        Tensor::new(element, dims, layout, bytes)?
    };
    if layout == Some(ScaleLayout::Blocked) {
        fill_padding(&mut tensor, &mut random);
    }
    Ok(tensor)
}

fn check_size(element: ElementType, dims: &[usize], layout: Option<ScaleLayout>) -> Result<(), TensorError> {
    const MAX_BYTES: usize = 1 << 32;
    if Tensor::byte_len(element, dims, layout)? > MAX_BYTES {
        let dims = dims.to_vec();
        return Err(TensorError::TooLarge { element, dims, reason: "sample data is limited to 4 GiB" });
    }
    let count: usize = dims.iter().product();
    check_memory(count.saturating_mul(element.storage_bits().div_ceil(8)))
        .map_err(|error| TensorError::memory(element, dims, error))
}

fn scale_codes(element: ElementType, dims: &[usize], rule: Rule, random: &mut SplitMix64) -> Vec<u8> {
    let count = dims.iter().product();
    let columns = dims.last().copied().unwrap_or(1);
    let mut row_exponent = 0;
    let mut code = |index: usize| {
        if index.is_multiple_of(columns) {
            row_exponent = random.between(-4, 4);
        }
        if element == ElementType::F8E8M0FNU {
            let exponent = match rule {
                Rule::Exact => row_exponent + random.between(0, 1),
                Rule::Contest => random.between(-1, 2),
                Rule::Normal => random.between(-20, 20),
            };
            return (127 + exponent) as u8;
        }
        match rule {
            // The exponent bias of e4m3 is 7, and the mantissa is in eighths.
            Rule::Exact => ((7 + row_exponent) * 8 + random.between(0, 7)) as u8,
            Rule::Contest => numeric::ue4m3_from_f32(random.below(4) as f32),
            Rule::Normal => {
                let (any, subnormal) = (random.below(0x7F) as u8, 1 + random.below(7) as u8);
                match index % 61 {
                    13 => 0x00,
                    29 => subnormal,
                    47 => 0x7E,
                    _ => any,
                }
            }
        }
    };
    (0..count).map(&mut code).collect()
}

/// Draws the bytes of a tensor without layout.
fn data_bytes(element: ElementType, dims: &[usize], rule: Rule, random: &mut SplitMix64) -> Vec<u8> {
    let count: usize = dims.iter().product();
    let is_scalar = matches!(dims, [] | [1]);
    // The bits of a float in [0.25, 2): one of three exponents and a random mantissa.
    let mut positive = |exponent_of_quarter: u64, mantissa_bits: u32| {
        let exponent = exponent_of_quarter + random.below(3);
        (exponent << mantissa_bits) | random.below(1 << mantissa_bits)
    };
    match (element, is_scalar) {
        (ElementType::F16, true) => return repeat(count, || (positive(13, 10) as u16).to_le_bytes()),
        (ElementType::BF16, true) => return repeat(count, || (positive(125, 7) as u16).to_le_bytes()),
        (ElementType::F32, true) => return repeat(count, || (positive(125, 23) as u32).to_le_bytes()),
        _ => {}
    }
    match element {
        // Weights are large: two codes at a time need no memory for codes that are not packed.
        ElementType::F4E2M1FN => {
            let mut code = || random.below(16) as u8;
            let packed = (0..count).step_by(2).map(|first| {
                let low = code();
                if first + 1 < count { low | code() << 4 } else { low }
            });
            packed.collect()
        }
        ElementType::F6E2M3FN | ElementType::F6E3M2FN => {
            let codes = repeat(count, || match (rule, element) {
                (Rule::Normal, _) => [random.below(64) as u8],
                (_, ElementType::F6E2M3FN) => {
                    [numeric::e2m3_from_f64(f64::from(random.between(-12, 12)) / 2.0)]
                }
                _ => [numeric::e3m2_from_f64(f64::from(random.between(-12, 12)) / 4.0)],
            });
            numeric::pack_codes(&codes, element.storage_bits())
        }
        ElementType::F8E4M3FN if rule != Rule::Normal => {
            repeat(count, || [numeric::e4m3_from_f32(random.between(-12, 12) as f32 / 4.0)])
        }
        ElementType::F8E5M2 if rule != Rule::Normal => {
            repeat(count, || [numeric::e5m2_from_f32(random.between(-8, 8) as f32 / 2.0)])
        }
        ElementType::F8E4M3FN | ElementType::F8E8M0FNU => repeat(count, || random.finite_code(0x7E)),
        ElementType::F8E5M2 => repeat(count, || random.finite_code(0x7B)),
        ElementType::F16 => repeat(count, || numeric::f64_to_f16_bits(random.nearly_normal()).to_le_bytes()),
        ElementType::BF16 => {
            repeat(count, || numeric::f64_to_bf16_bits(random.nearly_normal()).to_le_bytes())
        }
        ElementType::F32 => repeat(count, || numeric::f64_to_f32(random.nearly_normal()).to_le_bytes()),
        ElementType::I32 => repeat(count, || random.between(-8, 8).to_le_bytes()),
        ElementType::I1 => repeat(count, || [random.below(2) as u8]),
    }
}

/// Overwrites the padding of blocked scales with NaN, so that a kernel that uses padding produces NaN. Leaves other
/// tensors unchanged.
pub fn fill_padding_with_nan(tensor: &mut Tensor) {
    if tensor.layout() == Some(ScaleLayout::Blocked) {
        let nan = if tensor.element() == ElementType::F8E8M0FNU { 0xFF } else { 0x7F };
        overwrite_padding(tensor, || nan);
    }
}

/// Overwrites the padding of blocked scales with finite codes other than 0x00.
fn fill_padding(tensor: &mut Tensor, random: &mut SplitMix64) {
    let largest = if tensor.element() == ElementType::F8E8M0FNU { 0xFE } else { 0x7E };
    overwrite_padding(tensor, || 1 + random.below(largest) as u8);
}

fn overwrite_padding(tensor: &mut Tensor, mut code: impl FnMut() -> u8) {
    let &[.., rows, columns] = tensor.dims() else { return };
    let matrix_bytes = numeric::blocked_len(rows, columns);
    if matrix_bytes == 0 {
        return;
    }
    for matrix in tensor.bytes_mut().chunks_exact_mut(matrix_bytes) {
        for row in 0..rows.next_multiple_of(128) {
            for column in 0..columns.next_multiple_of(4) {
                if row >= rows || column >= columns {
                    matrix[numeric::blocked_offset(row, column, columns)] = code();
                }
            }
        }
    }
}

fn repeat<const N: usize>(count: usize, mut draw: impl FnMut() -> [u8; N]) -> Vec<u8> {
    (0..count).flat_map(|_| draw()).collect()
}

/// The 64-bit FNV-1a hash of a name.
fn fnv1a(name: &str) -> u64 {
    name.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `count` - 1, for `count` <= 2^32. The bias, at most count/2^32, is negligible here.
    fn below(&mut self, count: u64) -> u64 {
        ((self.next() >> 32) * count) >> 32
    }

    /// A number from `low` to `high`.
    fn between(&mut self, low: i32, high: i32) -> i32 {
        low + self.below((high - low + 1) as u64) as i32
    }

    /// The sum of twelve uniform numbers, minus 6. A multiple of 2^-32, exact in f64.
    fn nearly_normal(&mut self) -> f64 {
        let sum: u64 = (0..6).map(|_| self.next()).map(|bits| (bits >> 32) + (bits & 0xFFFF_FFFF)).sum();
        sum as f64 / f64::from(2u32.pow(31)) / 2.0 - 6.0
    }

    /// A code of a signed 8-bit float with a magnitude up to `max_finite`.
    fn finite_code(&mut self, max_finite: u64) -> [u8; 1] {
        let code = self.below(2 * (max_finite + 1));
        let (sign, magnitude) = (code / (max_finite + 1), code % (max_finite + 1));
        [(sign << 7 | magnitude) as u8]
    }
}

#[cfg(test)]
mod tests;

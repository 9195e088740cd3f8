//! The operations and their attributes. This module alone defines mnemonics and the spelling of attributes.

mod attributes;
mod kinds;
mod reader;

pub use self::attributes::{AttributeError, AttributeValue};
use self::attributes::{formula_attributes, pad_attributes, slice_attributes};
pub use self::kinds::{BinaryKind, BitwiseKind, Predicate, ReduceKind, UnaryKind};
use self::reader::{AttributeReader, NamedOperands, bool_from_name};
use crate::numeric::Nvfp4Formula;
pub use crate::numeric::ScaleRounding;

/// The kind of an operation, with its attributes. [`crate::Operation`] holds its operands and results.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// Block-scaled matrix multiplication: operands a, sfa, b, sfb, then `alpha`, `c` and `beta` if present. A 16-bit
    /// a has no sfa.
    ScaledMma(ScaledMma),
    /// Block-scaled multiplication of groups of rows with a matrix each: operands a `[T, K]`, sfa, b `[E, N, K]`, sfb and
    /// offsets (`i32`, `[E]`), the end of each group, then `alpha` if present. A 16-bit a has no sfa. The masked form has a
    /// `[E, M, K]` and counts instead: the rows that each group has in its matrix. `sfa_ends` follows if present.
    GroupedScaledMma(GroupedScaledMma),
    /// Plain matrix multiplication of K-major operands: a `[.., M, K]`, b `[.., N, K]`, result `[.., M, N]`.
    Mma,
    /// Converts scales to the layout of the result type.
    SwizzleScales,
    /// Lays out the scales of groups of rows, each padded to whole tiles. Operands: scales (linear, `[T, K/V]`), ends
    /// (`i32`, `[E]`) of the groups there, and sfa_ends, those in the result (blocked, `[P, K/V]`).
    GroupScales,
    /// Quantizes along the last axis. Operands: v and, for NVFP4, the per-tensor scale g. Results: codes, scales.
    BlockQuantize {
        /// Elements per scale: 16 or 32.
        block: u32,
        /// Rounding of an MX scale to a power of two; absent for NVFP4.
        scale_rounding: Option<ScaleRounding>,
        /// The formula of NVFP4, and the edges of MX.
        formula: Nvfp4Formula,
    },
    /// Computes code · scale · g. Operands: codes, scales and optionally the per-tensor scale g, 1 by default.
    BlockDequantize {
        /// Elements per scale: 16 or 32.
        block: u32,
    },
    /// Changes the element type.
    Convert,
    /// Changes the element type and keeps the bits.
    Bitcast,
    /// An elementwise function of one operand.
    Unary(UnaryKind),
    /// An elementwise function of two operands, which broadcast as in NumPy.
    Binary(BinaryKind),
    /// A function of the bits of two integers, which broadcast as in NumPy.
    Bitwise(BitwiseKind),
    /// Computes min(max(x, min), max). NaN propagates.
    Clamp {
        /// Lower bound.
        min: f64,
        /// Upper bound.
        max: f64,
    },
    /// Compares two operands, which broadcast, and returns `i1`. Comparisons with NaN are false, except `ne`.
    Compare(Predicate),
    /// Selects per element. Operands: condition (`i1`), then, else; they broadcast.
    Select,
    /// Changes the shape and keeps the elements in row-major order.
    Reshape,
    /// Permutes axes: result axis i is operand axis `permutation[i]`.
    Transpose {
        /// A permutation of the operand's axes.
        permutation: Vec<u32>,
    },
    /// Repeats extents of 1 and adds leading extents, as in NumPy.
    Broadcast,
    /// Takes every `step`-th element of a range of some axes. An axis without a range is taken whole.
    Slice {
        /// At most one range per axis, by ascending axis.
        ranges: Vec<SliceRange>,
    },
    /// Joins operands along one axis, in order.
    Concat {
        /// The axis.
        axis: u32,
    },
    /// The operand chosen by the extent of an axis of the result: the first whose end is at least the extent, else the
    /// last.
    Choose {
        /// The axis.
        axis: u32,
        /// The largest extent of each operand but the last, ascending.
        ends: Vec<u32>,
    },
    /// Takes slices of x along one axis. Operands: x, indices (`i32`). The axes of the indices replace the axis.
    Gather {
        /// The axis of x.
        axis: u32,
    },
    /// The k greatest elements along the last axis, in descending order, and their indices (`i32`). NaN is greater than
    /// any number, and of equal elements the first comes first.
    TopK {
        /// The number of elements.
        k: u32,
    },
    /// Sorts the elements of ids (`i32`) by group, those of a group by position. Results, all `i32`: the positions in
    /// row-major order, the rows of the positions (all axes but the last), and the end of each group.
    GroupRows {
        /// The number of groups. Ids are at least 0 and below it.
        groups: u32,
    },
    /// The ends of groups of rows (`i32`, `[E]`) if each group is padded to whole multiples. Operand: their ends.
    PaddedEnds {
        /// The number of which the rows of each group become a multiple.
        multiple: u32,
    },
    /// Adds rows of x to rows of the result. Operands: x, indices (`i32`) of rows of the result. Sums are f32, in ascending
    /// order of the rows of x. A row without addends is 0.
    ScatterAdd,
    /// Adds elements of one value before and after some axes.
    Pad {
        /// At most one amount per axis, by ascending axis.
        amounts: Vec<PadAmount>,
        /// The value of the added elements.
        value: f64,
    },
    /// Reduces along some axes.
    Reduce {
        /// The reduction.
        kind: ReduceKind,
        /// Distinct axes, ascending.
        axes: Vec<u32>,
        /// True if reduced axes remain, with extent 1.
        keep_dims: bool,
    },
    /// Computes exp(x - max) / sum along one axis.
    Softmax {
        /// The axis.
        axis: u32,
    },
    /// Computes (x - mean) / sqrt(var + eps) · weight + bias over the last axis. Operands: x, weight, bias.
    LayerNorm {
        /// The addend of the biased variance.
        eps: f64,
    },
    /// A literal, rounded to the result type.
    Constant(ConstantValue),
}

/// Attributes of `scaled_mma`: the block, the number of positional operands, and the named operands present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledMma {
    /// Elements of K per scale: 16 or 32.
    pub block: u32,
    /// True for a, b, sfb: a 16-bit A without scales. Otherwise the positional operands are a, sfa, b, sfb.
    pub weight_only: bool,
    /// True if the operand `alpha` is present.
    pub alpha: bool,
    /// True if the operand `c` is present.
    pub c: bool,
    /// True if the operand `beta` is present.
    pub beta: bool,
}

impl ScaledMma {
    /// The roles of the positional operands.
    pub fn positional(self) -> &'static [&'static str] {
        if self.weight_only { &["a", "b", "sfb"] } else { &["a", "sfa", "b", "sfb"] }
    }

    /// The number of operands.
    pub fn operand_count(self) -> usize {
        self.positional().len() + usize::from(self.alpha) + usize::from(self.c) + usize::from(self.beta)
    }
}

/// Attributes of `grouped_scaled_mma` and `masked_scaled_mma`: the block, the number of positional operands, and the named
/// operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedScaledMma {
    /// Elements of K per scale: 16 or 32.
    pub block: u32,
    /// True for a, b, sfb, offsets: a 16-bit A without scales. Otherwise sfa follows a.
    pub weight_only: bool,
    /// True if the operand `alpha` is present.
    pub alpha: bool,
    /// True for `masked_scaled_mma`: A has a matrix for each group, and counts replace offsets.
    pub masked: bool,
    /// True if the operand `sfa_ends` is present: the end of each group in sfa, which is blocked and has whole tiles for
    /// each group.
    pub sfa_ends: bool,
}

impl GroupedScaledMma {
    /// The roles of the positional operands.
    pub fn positional(self) -> &'static [&'static str] {
        match (self.weight_only, self.masked) {
            (true, false) => &["a", "b", "sfb", "offsets"],
            (false, false) => &["a", "sfa", "b", "sfb", "offsets"],
            (true, true) => &["a", "b", "sfb", "counts"],
            (false, true) => &["a", "sfa", "b", "sfb", "counts"],
        }
    }

    /// The number of operands.
    pub fn operand_count(self) -> usize {
        self.positional().len() + usize::from(self.alpha) + usize::from(self.sfa_ends)
    }
}

/// The part of one axis that `slice` takes: `start`, `start + step` and so on, before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceRange {
    /// The axis.
    pub axis: u32,
    /// The first index.
    pub start: u64,
    /// The index after the last that may be taken.
    pub end: u64,
    /// The distance of two indices.
    pub step: u64,
}

impl SliceRange {
    /// The number of indices; 0 for a step of 0, which the verifier refuses.
    pub fn extent(self) -> u64 {
        if self.step == 0 { 0 } else { self.end.saturating_sub(self.start).div_ceil(self.step) }
    }
}

/// The number of elements that `pad` adds to one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PadAmount {
    /// The axis.
    pub axis: u32,
    /// Elements before index 0.
    pub low: u64,
    /// Elements after the last index.
    pub high: u64,
}

/// The values of a `constant`.
#[derive(Clone, Debug, PartialEq)]
pub enum ConstantValue {
    /// One value for every element.
    Splat(f64),
    /// Every element, row-major.
    Dense(Vec<f64>),
}

impl OpKind {
    /// The mnemonics of all ops.
    pub fn mnemonics() -> impl Iterator<Item = &'static str> {
        const OTHERS: [&str; 29] = [
            "scaled_mma",
            "grouped_scaled_mma",
            "masked_scaled_mma",
            "mma",
            "swizzle_scales",
            "group_scales",
            "block_quantize",
            "block_dequantize",
            "convert",
            "bitcast",
            "clamp",
            "compare",
            "select",
            "reshape",
            "transpose",
            "broadcast",
            "slice",
            "concat",
            "choose",
            "gather",
            "top_k",
            "group_rows",
            "padded_ends",
            "scatter_add",
            "pad",
            "reduce",
            "softmax",
            "layer_norm",
            "constant",
        ];
        let unary = UnaryKind::ALL.iter().map(|kind| kind.name());
        let binary = BinaryKind::ALL.iter().map(|kind| kind.name());
        let bitwise = BitwiseKind::ALL.iter().map(|kind| kind.name());
        OTHERS.into_iter().chain(unary).chain(binary).chain(bitwise)
    }

    /// A `block_quantize` with the default formula.
    pub fn block_quantize(block: u32, scale_rounding: Option<ScaleRounding>) -> OpKind {
        OpKind::BlockQuantize { block, scale_rounding, formula: Nvfp4Formula::DEFAULT }
    }

    /// The op's name in text.
    pub fn mnemonic(&self) -> &'static str {
        match self {
            OpKind::ScaledMma(_) => "scaled_mma",
            OpKind::GroupedScaledMma(mma) if mma.masked => "masked_scaled_mma",
            OpKind::GroupedScaledMma(_) => "grouped_scaled_mma",
            OpKind::Mma => "mma",
            OpKind::SwizzleScales => "swizzle_scales",
            OpKind::GroupScales => "group_scales",
            OpKind::BlockQuantize { .. } => "block_quantize",
            OpKind::BlockDequantize { .. } => "block_dequantize",
            OpKind::Convert => "convert",
            OpKind::Bitcast => "bitcast",
            OpKind::Unary(kind) => kind.name(),
            OpKind::Binary(kind) => kind.name(),
            OpKind::Bitwise(kind) => kind.name(),
            OpKind::Clamp { .. } => "clamp",
            OpKind::Compare(_) => "compare",
            OpKind::Select => "select",
            OpKind::Reshape => "reshape",
            OpKind::Transpose { .. } => "transpose",
            OpKind::Broadcast => "broadcast",
            OpKind::Slice { .. } => "slice",
            OpKind::Concat { .. } => "concat",
            OpKind::Choose { .. } => "choose",
            OpKind::Gather { .. } => "gather",
            OpKind::TopK { .. } => "top_k",
            OpKind::GroupRows { .. } => "group_rows",
            OpKind::PaddedEnds { .. } => "padded_ends",
            OpKind::ScatterAdd => "scatter_add",
            OpKind::Pad { .. } => "pad",
            OpKind::Reduce { .. } => "reduce",
            OpKind::Softmax { .. } => "softmax",
            OpKind::LayerNorm { .. } => "layer_norm",
            OpKind::Constant(_) => "constant",
        }
    }

    /// The attributes as they are written in text, sorted by name.
    pub fn attributes(&self) -> Vec<(&'static str, AttributeValue)> {
        let whole = |number: u32| AttributeValue::Number(f64::from(number));
        let list = |axes: &[u32]| AttributeValue::Numbers(axes.iter().map(|axis| f64::from(*axis)).collect());
        match self {
            OpKind::ScaledMma(mma) => vec![("block", whole(mma.block))],
            OpKind::GroupedScaledMma(mma) => vec![("block", whole(mma.block))],
            OpKind::BlockQuantize { block, scale_rounding, formula } => {
                let mut attributes = formula_attributes(*formula);
                attributes.push(("block", whole(*block)));
                if let Some(rounding) = scale_rounding {
                    attributes.push(("scale_rounding", AttributeValue::word(rounding.name())));
                }
                attributes.sort_by_key(|(name, _)| *name);
                attributes
            }
            OpKind::BlockDequantize { block } => vec![("block", whole(*block))],
            OpKind::Clamp { min, max } => {
                vec![("max", AttributeValue::Number(*max)), ("min", AttributeValue::Number(*min))]
            }
            OpKind::Compare(predicate) => vec![("predicate", AttributeValue::word(predicate.name()))],
            OpKind::Transpose { permutation } => vec![("permutation", list(permutation))],
            OpKind::Slice { ranges } => slice_attributes(ranges),
            OpKind::Concat { axis } | OpKind::Gather { axis } => vec![("axis", whole(*axis))],
            OpKind::Choose { axis, ends } => vec![("axis", whole(*axis)), ("ends", list(ends))],
            OpKind::TopK { k } => vec![("k", whole(*k))],
            OpKind::GroupRows { groups } => vec![("groups", whole(*groups))],
            OpKind::PaddedEnds { multiple } => vec![("multiple", whole(*multiple))],
            OpKind::Pad { amounts, value } => pad_attributes(amounts, *value),
            OpKind::Reduce { kind, axes, keep_dims } => {
                let mut attributes = vec![("axes", list(axes))];
                if *keep_dims {
                    attributes.push(("keep_dims", AttributeValue::word("true")));
                }
                attributes.push(("kind", AttributeValue::word(kind.name())));
                attributes
            }
            OpKind::Softmax { axis } => vec![("axis", whole(*axis))],
            OpKind::LayerNorm { eps } => vec![("eps", AttributeValue::Number(*eps))],
            OpKind::Constant(ConstantValue::Splat(value)) => vec![("value", AttributeValue::Number(*value))],
            OpKind::Constant(ConstantValue::Dense(values)) => {
                vec![("value", AttributeValue::Numbers(values.clone()))]
            }
            OpKind::Mma
            | OpKind::SwizzleScales
            | OpKind::GroupScales
            | OpKind::Convert
            | OpKind::Bitcast
            | OpKind::Unary(_)
            | OpKind::Binary(_)
            | OpKind::Bitwise(_)
            | OpKind::Select
            | OpKind::Reshape
            | OpKind::ScatterAdd
            | OpKind::Broadcast => Vec::new(),
        }
    }

    /// The names of the named operands present, in operand order. They follow the positional operands.
    pub fn named_operands(&self) -> Vec<&'static str> {
        match self {
            OpKind::ScaledMma(mma) => [(mma.alpha, "alpha"), (mma.c, "c"), (mma.beta, "beta")]
                .into_iter()
                .filter_map(|(present, name)| present.then_some(name))
                .collect(),
            OpKind::GroupedScaledMma(mma) => [(mma.alpha, "alpha"), (mma.sfa_ends, "sfa_ends")]
                .into_iter()
                .filter_map(|(present, name)| present.then_some(name))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Builds the op with this mnemonic, these attributes and these named operands, in any order. The inverse of
    /// [`OpKind::mnemonic`], [`OpKind::attributes`] and [`OpKind::named_operands`]. `positional` is the number of
    /// positional operands: a `scaled_mma` of three is weight-only, and so is a
    /// `grouped_scaled_mma` or `masked_scaled_mma` of four.
    ///
    /// # Errors
    /// If the mnemonic, an attribute or a named operand is unknown, or an attribute is missing or malformed.
    pub fn from_text(
        mnemonic: &str,
        attributes: &[(&str, AttributeValue)],
        positional: usize,
        named_operands: &[&str],
    ) -> Result<OpKind, AttributeError> {
        let mut reader = AttributeReader::new(mnemonic, attributes);
        let mut named = NamedOperands::new(named_operands);
        let kind = match mnemonic {
            "scaled_mma" => OpKind::ScaledMma(ScaledMma {
                block: reader.whole("block")?,
                weight_only: positional == 3,
                alpha: named.take("alpha"),
                c: named.take("c"),
                beta: named.take("beta"),
            }),
            "grouped_scaled_mma" | "masked_scaled_mma" => OpKind::GroupedScaledMma(GroupedScaledMma {
                block: reader.whole("block")?,
                weight_only: positional == 4,
                alpha: named.take("alpha"),
                masked: mnemonic == "masked_scaled_mma",
                sfa_ends: named.take("sfa_ends"),
            }),
            "mma" => OpKind::Mma,
            "swizzle_scales" => OpKind::SwizzleScales,
            "group_scales" => OpKind::GroupScales,
            "block_quantize" => OpKind::BlockQuantize {
                block: reader.whole("block")?,
                scale_rounding: reader.optional_word(
                    "scale_rounding",
                    "floor, ceil or even",
                    ScaleRounding::from_name,
                )?,
                formula: reader.formula()?,
            },
            "block_dequantize" => OpKind::BlockDequantize { block: reader.whole("block")? },
            "convert" => OpKind::Convert,
            "bitcast" => OpKind::Bitcast,
            "clamp" => OpKind::Clamp { min: reader.number("min")?, max: reader.number("max")? },
            "compare" => {
                OpKind::Compare(reader.word("predicate", "eq, ne, lt, le, gt or ge", Predicate::from_name)?)
            }
            "select" => OpKind::Select,
            "reshape" => OpKind::Reshape,
            "transpose" => OpKind::Transpose { permutation: reader.whole_list("permutation")? },
            "broadcast" => OpKind::Broadcast,
            "slice" => OpKind::Slice { ranges: reader.ranges()? },
            "concat" => OpKind::Concat { axis: reader.whole("axis")? },
            "choose" => OpKind::Choose { axis: reader.whole("axis")?, ends: reader.whole_list("ends")? },
            "gather" => OpKind::Gather { axis: reader.whole("axis")? },
            "top_k" => OpKind::TopK { k: reader.whole("k")? },
            "group_rows" => OpKind::GroupRows { groups: reader.whole("groups")? },
            "padded_ends" => OpKind::PaddedEnds { multiple: reader.whole("multiple")? },
            "scatter_add" => OpKind::ScatterAdd,
            "pad" => OpKind::Pad { amounts: reader.amounts()?, value: reader.number("value")? },
            "reduce" => OpKind::Reduce {
                kind: reader.word("kind", "sum, max, min, mean or amax", ReduceKind::from_name)?,
                axes: reader.whole_list("axes")?,
                keep_dims: reader
                    .optional_word("keep_dims", "true or false", bool_from_name)?
                    .unwrap_or(false),
            },
            "softmax" => OpKind::Softmax { axis: reader.whole("axis")? },
            "layer_norm" => OpKind::LayerNorm { eps: reader.number("eps")? },
            "constant" => OpKind::Constant(reader.constant("value")?),
            _ => elementwise(mnemonic).ok_or_else(|| AttributeError::UnknownOp(mnemonic.to_owned()))?,
        };
        reader.finish()?;
        named.finish(mnemonic)?;
        Ok(kind)
    }
}

/// The elementwise function with this name.
fn elementwise(mnemonic: &str) -> Option<OpKind> {
    let unary = UnaryKind::from_name(mnemonic).map(OpKind::Unary);
    let binary = || BinaryKind::from_name(mnemonic).map(OpKind::Binary);
    unary.or_else(binary).or_else(|| BitwiseKind::from_name(mnemonic).map(OpKind::Bitwise))
}

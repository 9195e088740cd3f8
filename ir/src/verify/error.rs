//! Everything that can be wrong with a module: a variant per property, with a stable code and what to do about it.

use crate::types::{ElementType, ScaleLayout};

macro_rules! define_kinds {
    ($(
        $(#[$attr:meta])*
        $variant:ident { $($(#[$fattr:meta])* $field:ident: $ty:ty,)* } = $code:literal, $message:tt, $note:literal;
    )*) => {
        /// What is wrong. Values are named with their `%`, types and shapes are as text spells them.
        #[derive(Clone, Debug, PartialEq, thiserror::Error)]
        pub enum VerifyErrorKind {
            $($(#[$attr])* #[error($message)] $variant { $($(#[$fattr])* $field: $ty,)* },)*
        }

        impl VerifyErrorKind {
            /// Every code.
            pub const CODES: &'static [&'static str] = &[$($code,)*];

            /// The stable code: its text never changes.
            pub fn code(&self) -> &'static str {
                match self { $(VerifyErrorKind::$variant { .. } => $code,)* }
            }

            /// What the author of the program can do about it.
            pub fn note(&self) -> &'static str {
                match self { $(VerifyErrorKind::$variant { .. } => $note,)* }
            }
        }
    };
}

define_kinds! {
    /// A name is empty or has other characters than names may have.
    BadName {
        /// `function`, `symbol` or `value`.
        what: &'static str,
        /// The name.
        name: String,
        /// What a name of this kind is made of.
        allowed: &'static str,
    } = "bad_name", "a {what} name is made of {allowed}, which `{name}` is not",
        "names of a host that have other characters are replaced by the embedder, who keeps the table";
    /// Two values or two symbols have one name.
    DuplicateName {
        /// `symbol` or `value`.
        what: &'static str,
        /// The name.
        name: String,
    } = "duplicate_name", "there is already a {what} `{name}`",
        "inputs and outputs bind by name, so every name is used once";
    /// The list of inputs and a value's definition disagree.
    InputTable {
        /// Position in the list of inputs.
        position: usize,
        /// The value.
        value: String,
    } = "input_table", "input {position} and the definition of `{value}` disagree",
        "add inputs with Module::push_input or Builder, which keep both tables";
    /// An op's list of results and a value's definition disagree.
    ResultTable {
        /// The op.
        op: String,
        /// Position in its list of results.
        position: usize,
        /// The value.
        value: String,
    } = "result_table", "result {position} of {op} and the definition of `{value}` disagree",
        "add ops with Module::push_op or Builder, which keep both tables";
    /// An operand is no value of the module.
    UnknownOperand {
        /// The op.
        mnemonic: &'static str,
        /// The operand's role.
        operand: &'static str,
        /// The value.
        value: String,
    } = "unknown_operand", "{mnemonic} takes {value} as {operand}, which the program does not have",
        "values of one module mean nothing in another";
    /// An operand is defined by this op or a later one.
    UseBeforeDefinition {
        /// The op.
        mnemonic: &'static str,
        /// The operand's role.
        operand: &'static str,
        /// The value.
        value: String,
    } = "use_before_definition", "{mnemonic} takes `{value}` as {operand} before it is defined",
        "ops stand in an order in which they can run; there are no cycles";
    /// A type uses a symbol that the module does not have.
    UnknownSymbol {
        /// The value.
        value: String,
        /// The symbol.
        symbol: String,
    } = "unknown_symbol", "an extent of `{value}` is {symbol}, which the program does not have",
        "symbols of one module mean nothing in another: intern the name";
    /// No input has the symbol in its shape.
    UnboundSymbol {
        /// The symbol's name.
        symbol: String,
        /// The first value that uses it.
        value: String,
        /// Its type.
        ty: String,
    } = "unbound_symbol", "`{value}: {ty}` uses the symbol `{symbol}`, which no input's shape contains",
        "the shapes of the inputs say what a symbol is at run time";

    /// An op has too few or too many operands.
    OperandCount {
        /// The op.
        mnemonic: &'static str,
        /// How many it takes.
        expected: String,
        /// How many it has.
        found: usize,
    } = "operand_count", "{mnemonic} has {found} operand(s) and takes {expected}",
        "named operands count too";
    /// An op has too few or too many results.
    ResultCount {
        /// The op.
        mnemonic: &'static str,
        /// How many it gives.
        expected: usize,
        /// How many it has.
        found: usize,
    } = "result_count", "{mnemonic} has {found} result(s) and gives {expected}",
        "only block_quantize has more than one result: codes, then scales";
    /// A `scaled_mma` has beta and no c.
    BetaWithoutC {} = "beta_without_c", "beta multiplies c, but there is no c",
        "give the operand c, or leave beta out";
    /// A block that is neither 16 nor 32.
    BlockSize {
        /// The block.
        found: u32,
    } = "block_size", "a block has 16 or 32 elements, not {found}",
        "NVFP4 has 16 elements per scale, the MX formats have 32";
    /// MX quantization that does not say how scales are rounded.
    ScaleRoundingMissing {
        /// Element type of the scales.
        scale: ElementType,
    } = "scale_rounding_missing", "quantization with {scale} scales needs the attribute scale_rounding",
        "`floor` follows the OCP MX specification, `ceil` never saturates";
    /// NVFP4 quantization with a rule for powers of two.
    ScaleRoundingUnexpected {
        /// Element type of the scales.
        scale: ElementType,
    } = "scale_rounding_unexpected", "quantization with {scale} scales has no attribute scale_rounding",
        "these scales are rounded to nearest even";
    /// NVFP4 quantization without its per-tensor scale.
    GlobalScaleMissing {
        /// Element type of the scales.
        scale: ElementType,
    } = "global_scale_missing", "quantization with {scale} scales needs the per-tensor scale g",
        "give a second operand, f32 of shape [] or [1]; a constant 1 is a choice";
    /// MX quantization with a per-tensor scale.
    GlobalScaleUnexpected {
        /// Element type of the scales.
        scale: ElementType,
    } = "global_scale_unexpected", "quantization with {scale} scales takes no per-tensor scale",
        "divide by the per-tensor scale before quantizing";
    /// An axis that the operand does not have.
    AxisOutOfRange {
        /// The axis.
        axis: u32,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "axis_out_of_range", "`{value}: {ty}` has no axis {axis}",
        "axes count from 0, outermost first, and are not negative";
    /// Axes that repeat or descend.
    AxesOrder {
        /// The axes.
        axes: Vec<u32>,
    } = "axes_order", "the axes {axes:?} are not distinct and ascending",
        "sort them and drop the repeated ones";
    /// A reduction over nothing.
    NoAxes {} = "no_axes", "there is no axis to reduce",
        "name at least one axis, or drop the op";
    /// A transposition whose attribute is no permutation of the operand's axes.
    Permutation {
        /// The attribute.
        permutation: Vec<u32>,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "permutation", "{permutation:?} is not a permutation of the axes of `{value}: {ty}`",
        "name every axis from 0 once: result axis i is operand axis permutation[i]";
    /// Bounds that are NaN or in the wrong order.
    ClampBounds {
        /// Lower bound.
        min: String,
        /// Upper bound.
        max: String,
    } = "clamp_bounds", "nothing lies between min = {min} and max = {max}",
        "give min <= max, neither of them NaN; -inf and inf leave a side open";
    /// An eps that is negative, infinite or NaN.
    Eps {
        /// The attribute.
        eps: String,
    } = "eps", "eps = {eps} is not a finite number of at least 0",
        "1e-5 is usual";
    /// A constant whose shape has symbols.
    ConstantShape {
        /// The result.
        value: String,
        /// Its type.
        ty: String,
    } = "constant_shape", "the constant `{value}: {ty}` has no fixed shape",
        "write a scalar and broadcast it";
    /// A list of values of another length than the shape has elements.
    ConstantCount {
        /// Elements of the shape.
        expected: u64,
        /// Values in the list.
        found: usize,
    } = "constant_count", "the constant's shape has {expected} elements, but {found} values are given",
        "write one number for all elements, or a list of exactly as many as there are, row-major";
    /// A constant that is too large to be written out.
    ConstantTooLarge {
        /// Elements of the shape.
        count: u64,
        /// The most it may have.
        limit: u64,
    } = "constant_too_large", "a constant of {count} elements is beyond the limit of {limit}",
        "write a scalar and broadcast it, or make it a param";
    /// A number that the constant's element type does not have.
    ConstantValue {
        /// Position in the list.
        position: usize,
        /// The number.
        value: String,
        /// The element type.
        element: ElementType,
    } = "constant_value", "value {position} of the constant, {value}, is not a value of {element}",
        "i1 is 0 or 1, i32 is a whole number of 32 bits; floats are rounded and take any number";

    /// More extents than a tensor may have.
    RankTooLarge {
        /// The value.
        value: String,
        /// Its rank.
        rank: usize,
        /// The most it may be.
        limit: usize,
    } = "rank_too_large", "`{value}` has rank {rank}, beyond the limit of {limit}",
        "merge axes with reshape";
    /// An extent that is a product of more symbols than it may be.
    TooManySymbols {
        /// The value.
        value: String,
        /// Symbols, powers counted.
        count: usize,
        /// The most it may have.
        limit: usize,
    } = "too_many_symbols", "an extent of `{value}` is a product of {count} symbols, beyond the limit of {limit}",
        "name the product with a symbol of its own";
    /// A constant factor so large that sizes could overflow.
    ExtentTooLarge {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
    } = "extent_too_large", "`{value}: {ty}` is larger than any memory",
        "an extent is at most 2^40 and a tensor at most 2^46 elements, symbols not counted";
    /// FP4 whose last extent is not always even.
    PackedExtent {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
    } = "packed_extent", "the last extent of `{value}: {ty}` is not known to be even",
        "FP4 is packed in pairs along the last axis: give that axis an even constant factor";
    /// A layout on a tensor that cannot hold the scales of a matrix.
    LayoutOnType {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
    } = "layout_on_type", "`{value}: {ty}` has a scale layout, but cannot be the scales of a matrix",
        "scales are f8E4M3FN or f8E8M0FNU of shape [.., rows, K/V]";
    /// `f8E8M0FNU` without a layout.
    ScaleWithoutLayout {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
    } = "scale_without_layout", "`{value}: {ty}` has no scale layout",
        "f8E8M0FNU is a type of scales only: write `linear` (as checkpoints store them) or `blocked` into the type";

    /// An operand of an element type that the op does not take.
    OperandElement {
        /// The op.
        mnemonic: &'static str,
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
        /// The element types that it takes.
        expected: &'static str,
    } = "operand_element", "{mnemonic} takes {expected} as {operand}, but `{value}` is {ty}",
        "change the element type with convert, or with block_dequantize for block-scaled data";
    /// Operands whose element types must agree.
    ElementMismatch {
        /// One operand.
        left: String,
        /// Its type.
        left_ty: String,
        /// The other.
        right: String,
        /// Its type.
        right_ty: String,
    } = "element_mismatch",
        "`{left}: {left_ty}` and `{right}: {right_ty}` must have one element type",
        "convert one of them";
    /// A result whose element type does not follow from the operands.
    ResultElement {
        /// The result.
        value: String,
        /// Its type.
        ty: String,
        /// The element type that follows, or those that it may have.
        expected: String,
    } = "result_element", "the element type of `{value}: {ty}` must be {expected}",
        "arithmetic gives the join of its operands' types (f32 where they differ); narrowing is an op of its own";
    /// An element type that cannot be computed or converted to.
    TargetElement {
        /// The op.
        mnemonic: &'static str,
        /// The result.
        value: String,
        /// Its type.
        ty: String,
    } = "target_element", "{mnemonic} cannot give `{value}: {ty}`",
        "i1 comes from compare or a constant, f8E8M0FNU from block_quantize";
    /// Element types and block that are no block-scaled format.
    Format {
        /// Element type of the data.
        data: ElementType,
        /// Element type of the scales.
        scale: ElementType,
        /// Elements per scale.
        block: u32,
    } = "format", "{data} data with {scale} scales per {block} elements is no format of this op",
        "f8E4M3FN scales go with f4E2M1FN data, f8E8M0FNU scales with any; block_quantize writes NVFP4 (f4E2M1FN, \
         f8E4M3FN, 16) and MX (f8E8M0FNU, 32)";
    /// alpha, beta or g that is no f32 scalar.
    ScalarOperand {
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "scalar_operand", "{operand} must be f32 of shape [] or [1], but `{value}` is {ty}",
        "convert or reshape it; a factor per row or column is a mul of its own";

    /// An operand with too few extents.
    OperandRank {
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
        /// The least rank.
        least: usize,
    } = "operand_rank", "{operand} needs a rank of at least {least}, but `{value}` is {ty}",
        "add extents of 1 with reshape";
    /// An operand whose shape does not follow from the others.
    OperandShape {
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
        /// The shape that follows.
        expected: String,
    } = "operand_shape", "{operand} must have the shape {expected}, but `{value}` is {ty}",
        "this operand does not broadcast: reshape or broadcast it first";
    /// A result whose shape does not follow from the operands.
    ResultShape {
        /// The result.
        value: String,
        /// Its type.
        ty: String,
        /// The shape that follows.
        expected: String,
    } = "result_shape", "the shape of `{value}: {ty}` must be {expected}",
        "it follows from the operands; symbols are equal only to themselves";
    /// A and B with different last extents.
    KMismatch {
        /// A.
        a: String,
        /// Its type.
        a_ty: String,
        /// B.
        b: String,
        /// Its type.
        b_ty: String,
    } = "k_mismatch", "`{a}: {a_ty}` and `{b}: {b_ty}` differ in their last extent, K",
        "operands are K-major: A is [.., M, K] and B is [.., N, K]; transpose a B of [K, N]";
    /// B with leading extents that are not those of A.
    BatchMismatch {
        /// A.
        a: String,
        /// Its type.
        a_ty: String,
        /// B.
        b: String,
        /// Its type.
        b_ty: String,
    } = "batch_mismatch", "the leading extents of `{b}: {b_ty}` are not those of `{a}: {a_ty}`",
        "B has the leading extents of A, or rank 2 and serves every matrix of A; they do not broadcast";
    /// A last extent that does not always consist of whole blocks.
    BlockMultiple {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
        /// Elements per scale.
        block: u32,
    } = "block_multiple", "the last extent of `{value}: {ty}` is not known to be a multiple of the block, {block}",
        "pad the axis with zeros to whole blocks; a symbolic extent needs the block as a factor";
    /// Operands that do not broadcast.
    NotBroadcastable {
        /// The op.
        mnemonic: &'static str,
        /// The shapes of the operands (and, for `broadcast`, of the result).
        shapes: String,
    } = "not_broadcastable", "{mnemonic} of shapes that do not broadcast: {shapes}",
        "aligned at the last extent, two extents must be equal or one of them 1; a symbol is equal only to itself";
    /// A reshape that would change the number of elements.
    ElementCount {
        /// The operand's shape.
        from: String,
        /// The result's shape.
        to: String,
    } = "element_count", "{from} and {to} are not known to have as many elements",
        "the constants and the symbols of both shapes must have the same product";

    /// A scale tensor where an op takes none.
    UnexpectedScales {
        /// The op.
        mnemonic: &'static str,
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "unexpected_scales", "{mnemonic} takes no scale tensor as {operand}, but `{value}` is {ty}",
        "scales go to scaled_mma, swizzle_scales, block_dequantize, convert and reshape (linear ones) and outputs";
    /// Something else where an op takes scales.
    ExpectedScales {
        /// The op.
        mnemonic: &'static str,
        /// The operand's or result's role.
        operand: &'static str,
        /// The operand or result.
        value: String,
        /// Its type.
        ty: String,
    } = "expected_scales", "{mnemonic} needs a scale tensor as {operand}, but `{value}` is {ty}",
        "scales are f8E4M3FN or f8E8M0FNU with a layout, `linear` or `blocked`, in their type";
    /// Scales of another shape than their data asks for.
    ScaleShape {
        /// The scales.
        value: String,
        /// Their type.
        ty: String,
        /// The data that they scale.
        data: String,
        /// The shape that follows.
        expected: String,
    } = "scale_shape", "the scales of `{data}` must have the shape {expected}, but `{value}` is {ty}",
        "there is one scale per block of the last axis; padding is not part of the shape, whatever the layout";
    /// A layout on a result that cannot have one.
    ResultLayout {
        /// The op.
        mnemonic: &'static str,
        /// The result.
        value: String,
        /// Its type.
        ty: String,
    } = "result_layout", "{mnemonic} does not give scales, but `{value}` is {ty}",
        "only inputs, swizzle_scales, block_quantize and a reshape of linear scales give scale tensors";
    /// A conversion of blocked scales.
    BlockedConvert {
        /// The scales.
        value: String,
        /// Their type.
        ty: String,
    } = "blocked_convert", "`{value}: {ty}` cannot be converted while it is blocked",
        "make it linear with swizzle_scales first";
    /// A change of layout that changes nothing.
    SwizzleNothing {
        /// Both layouts.
        layout: ScaleLayout,
    } = "swizzle_nothing", "the scales are {layout} before and after",
        "use the operand itself, or correct the result's layout";

    /// A program that returns nothing.
    NoOutputs {} = "no_outputs", "the program returns nothing",
        "return at least one value";
    /// An output that is no value of the module.
    UnknownOutput {
        /// The value.
        value: String,
    } = "unknown_output", "the program returns {value}, which it does not have",
        "values of one module mean nothing in another";
    /// A value that is returned twice.
    DuplicateOutput {
        /// The value.
        value: String,
    } = "duplicate_output", "`{value}` is returned already",
        "outputs bind by name, so each value is returned once";
}

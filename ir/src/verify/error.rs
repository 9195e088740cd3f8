//! The verifier's errors: one variant per checked property, with a stable code and a remedy.

use crate::types::{ElementType, ScaleLayout};

macro_rules! define_kinds {
    ($(
        $(#[$attr:meta])*
        $variant:ident { $($(#[$fattr:meta])* $field:ident: $ty:ty,)* } = $code:literal, $message:tt, $note:literal;
    )*) => {
        /// An error of the verifier. Value names include the `%`; types and shapes are in text form.
        #[derive(Clone, Debug, PartialEq, thiserror::Error)]
        pub enum VerifyErrorKind {
            $($(#[$attr])* #[error($message)] $variant { $($(#[$fattr])* $field: $ty,)* },)*
        }

        impl VerifyErrorKind {
            /// Every code.
            pub const CODES: &'static [&'static str] = &[$($code,)*];

            /// The stable code. Its text never changes.
            pub fn code(&self) -> &'static str {
                match self { $(VerifyErrorKind::$variant { .. } => $code,)* }
            }

            /// A remedy, which begins with `help: `, or a reason, which begins with `note: `.
            pub fn note(&self) -> &'static str {
                match self { $(VerifyErrorKind::$variant { .. } => $note,)* }
            }
        }
    };
}

define_kinds! {
    /// A name is empty or contains invalid characters.
    BadName {
        /// `function`, `symbol` or `value`.
        what: &'static str,
        /// The name.
        name: String,
        /// The characters of a name of this kind.
        allowed: &'static str,
    } = "bad_name", "the {what} name `{name}` must consist of {allowed}",
        "help: map host names with other characters to valid ones, and keep the table in the host";
    /// Two values or two symbols have the same name.
    DuplicateName {
        /// `symbol` or `value`.
        what: &'static str,
        /// The name.
        name: String,
    } = "duplicate_name", "the {what} name `{name}` is used twice",
        "note: names must be unique, because inputs and outputs bind by name";
    /// The list of inputs and a value's definition disagree.
    InputTable {
        /// Position in the list of inputs.
        position: usize,
        /// The value.
        value: String,
    } = "input_table", "input {position} and the definition of `{value}` disagree",
        "help: add inputs with Module::push_input or Builder, which update both";
    /// An op's list of results and a value's definition disagree.
    ResultTable {
        /// The op.
        op: String,
        /// Position in its list of results.
        position: usize,
        /// The value.
        value: String,
    } = "result_table", "result {position} of {op} and the definition of `{value}` disagree",
        "help: add ops with Module::push_op or Builder, which update both";
    /// An operand is not a value of the module.
    UnknownOperand {
        /// The op.
        mnemonic: &'static str,
        /// The operand's role.
        operand: &'static str,
        /// The value.
        value: String,
    } = "unknown_operand", "{mnemonic} takes {value} as {operand}, which does not exist",
        "note: a value is valid only in the module that created it";
    /// An operand is defined by this op or a later one.
    UseBeforeDefinition {
        /// The op.
        mnemonic: &'static str,
        /// The operand's role.
        operand: &'static str,
        /// The value.
        value: String,
    } = "use_before_definition", "{mnemonic} takes `{value}` as {operand} before its definition",
        "help: put each op after the ops that it depends on; cycles are not allowed";
    /// A type uses a symbol that is not in the module.
    UnknownSymbol {
        /// The value.
        value: String,
        /// The symbol.
        symbol: String,
    } = "unknown_symbol", "an extent of `{value}` uses {symbol}, which does not exist",
        "help: a symbol is valid only in its module; create it with Module::intern_symbol";
    /// No input's shape contains the symbol.
    UnboundSymbol {
        /// The symbol's name.
        symbol: String,
        /// The first value that uses it.
        value: String,
        /// Its type.
        ty: String,
    } = "unbound_symbol", "`{value}: {ty}` uses the symbol `{symbol}`, which no input's shape contains",
        "note: a symbol gets its value from the shapes of the inputs";

    /// An op has too few or too many operands.
    OperandCount {
        /// The op.
        mnemonic: &'static str,
        /// Operands expected.
        expected: String,
        /// Operands found.
        found: usize,
    } = "operand_count", "{mnemonic} takes {expected} operand(s), not {found}",
        "note: the count includes named operands";
    /// An op has too few or too many results.
    ResultCount {
        /// The op.
        mnemonic: &'static str,
        /// Results expected.
        expected: usize,
        /// Results found.
        found: usize,
    } = "result_count", "{mnemonic} has {expected} result(s), not {found}",
        "note: block_quantize has 2 results (codes, scales), top_k 2 (values, indices), group_rows 3 (positions, rows, ends)";
    /// A `scaled_mma` has beta but no c.
    BetaWithoutC {} = "beta_without_c", "beta multiplies c, but c is missing",
        "help: add the operand c, or remove beta";
    /// A block size other than 16 and 32.
    BlockSize {
        /// The block.
        found: u32,
    } = "block_size", "a block has 16 or 32 elements, not {found}",
        "note: NVFP4 has 16 elements per scale, the MX formats have 32";
    /// MX quantization without a scale rounding.
    ScaleRoundingMissing {
        /// Element type of the scales.
        scale: ElementType,
    } = "scale_rounding_missing", "quantization with {scale} scales requires the attribute scale_rounding",
        "help: use `floor` for the OCP MX specification, or `ceil` to avoid saturation";
    /// NVFP4 quantization with a scale rounding.
    ScaleRoundingUnexpected {
        /// Element type of the scales.
        scale: ElementType,
    } = "scale_rounding_unexpected", "quantization with {scale} scales takes no attribute scale_rounding",
        "help: remove it; these scales are rounded to nearest even";
    /// MX quantization with an attribute of the NVFP4 formula.
    FormulaUnexpected {
        /// Element type of the scales.
        scale: ElementType,
    } = "formula_unexpected",
        "quantization with {scale} scales takes none of the attributes amax, codes, global, guard and scale_min",
        "help: remove them; they describe the formula of NVFP4";
    /// NVFP4 quantization with an attribute of the edges of MX.
    EdgesUnexpected {
        /// Element type of the scales.
        scale: ElementType,
    } = "edges_unexpected",
        "quantization with {scale} scales takes none of the attributes infinity, least_scale, least_step and nan",
        "help: remove them; they describe f8E8M0FNU scales";
    /// NVFP4 quantization without its per-tensor scale.
    GlobalScaleMissing {
        /// Element type of the scales.
        scale: ElementType,
    } = "global_scale_missing", "quantization with {scale} scales requires the per-tensor scale g",
        "help: add a second operand, f32 of shape [] or [1], such as a constant 1";
    /// MX quantization with a per-tensor scale.
    GlobalScaleUnexpected {
        /// Element type of the scales.
        scale: ElementType,
    } = "global_scale_unexpected", "quantization with {scale} scales takes no per-tensor scale",
        "help: divide by the per-tensor scale before quantizing";
    /// An axis beyond the operand's rank.
    AxisOutOfRange {
        /// The axis.
        axis: u32,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "axis_out_of_range", "`{value}: {ty}` has no axis {axis}",
        "note: axes are numbered from 0, outermost first";
    /// Axes that repeat or descend.
    AxesOrder {
        /// The axes.
        axes: Vec<u32>,
    } = "axes_order", "the axes {axes:?} are not distinct and ascending",
        "help: sort the axes and remove duplicates";
    /// A reduction without axes.
    NoAxes {} = "no_axes", "the reduction has no axes",
        "help: name at least one axis, or remove the op";
    /// A transposition whose attribute is not a permutation of the operand's axes.
    Permutation {
        /// The attribute.
        permutation: Vec<u32>,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "permutation", "{permutation:?} is not a permutation of the axes of `{value}: {ty}`",
        "help: list every axis from 0 once; result axis i is operand axis permutation[i]";
    /// A `top_k` of more elements than there are.
    TopK {
        /// The number of elements.
        k: u32,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "top_k", "the last axis of `{value}: {ty}` has no k = {k} elements to take",
        "help: use a k of at least 1, and at most the last extent, which must be a number";
    /// A `group_rows` without groups.
    NoGroups {} = "no_groups", "group_rows needs at least one group",
        "help: set groups to the number of experts";
    /// A's scales of a `grouped_scaled_mma` in the blocked layout, which knows no groups.
    GroupedLayout {
        /// The scales.
        value: String,
        /// Their type.
        ty: String,
    } = "grouped_layout", "`{value}: {ty}` has the blocked layout, but its ends of groups are not stated",
        "help: state them with sfa_ends, or give sfa the linear layout, as block_quantize writes it";
    /// Ends of groups in scales of A that have no padded groups.
    SfaEndsUnexpected {
        /// The op.
        mnemonic: &'static str,
        /// The ends.
        value: String,
    } = "sfa_ends_unexpected", "{mnemonic} has sfa_ends = `{value}`, but its sfa has no padded groups",
        "help: remove sfa_ends, or give sfa of grouped_scaled_mma the blocked layout, as group_scales writes it";
    /// Ends of groups in blocked scales that do not end whole tiles.
    PaddedMultiple {
        /// The op that reads the ends.
        mnemonic: &'static str,
        /// The ends.
        value: String,
        /// The multiple of the `padded_ends` that defines them.
        multiple: u32,
    } = "padded_multiple",
        "{mnemonic} takes groups of whole tiles of 128 rows, but padded_ends pads those of `{value}` to a multiple of {multiple}",
        "help: set `multiple` of padded_ends to a multiple of 128";
    /// A `group_scales` from or to another layout.
    GroupScalesLayout {
        /// The type of the operand.
        from: String,
        /// The type of the result.
        to: String,
    } = "group_scales_layout", "group_scales converts linear scales to blocked ones, not `{from}` to `{to}`",
        "help: use swizzle_scales where the rows have no groups";
    /// A `padded_ends` without a multiple.
    NoMultiple {} = "no_multiple", "padded_ends needs a multiple of at least 1",
        "help: set multiple to 128, the rows of a tile of blocked scales";
    /// A range that `slice` cannot take.
    SliceRange {
        /// The axis.
        axis: u32,
        /// The first index.
        start: u64,
        /// The index after the last.
        end: u64,
        /// The distance of two indices.
        step: u64,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "slice_range", "start {start}, end {end} and step {step} do not fit axis {axis} of `{value}: {ty}`",
        "help: use 0 <= start <= end <= extent and a step of at least 1";
    /// A slice of an axis whose extent has symbols.
    SliceSymbol {
        /// The axis.
        axis: u32,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "slice_symbol", "axis {axis} of `{value}: {ty}` has a symbolic extent, so it cannot be sliced",
        "help: omit the axis to take it whole, or take elements by index with gather";
    /// A sum of extents that is not an extent.
    ExtentSum {
        /// The op.
        mnemonic: &'static str,
        /// The axis.
        axis: u32,
        /// The sum, as it would be written.
        sum: String,
    } = "extent_sum", "{mnemonic} would give axis {axis} the extent {sum}",
        "note: an extent is a number times symbols: M + M is 2*M, and M + 4 is no extent";
    /// Ends of a `choose` that do not ascend, or not one for each operand but the last.
    ChooseEnds {
        /// The ends.
        ends: Vec<u32>,
        /// The number of operands.
        operands: usize,
    } = "choose_ends", "the ends {ends:?} do not fit the {operands} operands of choose",
        "help: give the largest extent of each operand but the last, in ascending order: \
         `choose %few, %many {axis = 0, ends = [64]}`";
    /// An op that would split the bytes of FP4.
    PackedAxis {
        /// The op.
        mnemonic: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "packed_axis", "{mnemonic} would split bytes of `{value}: {ty}` along its last axis",
        "help: use another axis, or even numbers and step 1, because FP4 is packed in pairs along the last axis";
    /// A padding that the operand's element type cannot represent.
    PadValue {
        /// The number.
        value: String,
        /// The element type.
        element: ElementType,
    } = "pad_value", "the padding {value} is not a value of {element}",
        "note: i1 is 0 or 1, i32 is a 32-bit integer; float types round any number";
    /// Bounds that are NaN or in the wrong order.
    ClampBounds {
        /// Lower bound.
        min: String,
        /// Upper bound.
        max: String,
    } = "clamp_bounds", "no value lies between min = {min} and max = {max}",
        "help: use min <= max, neither of them NaN; -inf or inf removes a bound";
    /// An eps that is negative, infinite or NaN.
    Eps {
        /// The attribute.
        eps: String,
    } = "eps", "eps = {eps} is not a finite number >= 0",
        "help: use a small number such as 1e-5";
    /// A constant whose shape contains symbols.
    ConstantShape {
        /// The result.
        value: String,
        /// Its type.
        ty: String,
    } = "constant_shape", "the shape of the constant `{value}: {ty}` contains symbols",
        "help: write a scalar and broadcast it";
    /// A list of values whose length differs from the number of elements.
    ConstantCount {
        /// Elements of the shape.
        expected: u64,
        /// Values in the list.
        found: usize,
    } = "constant_count", "the constant's shape has {expected} elements, but {found} values are given",
        "help: write one number for all elements, or one per element in row-major order";
    /// A constant with too many elements.
    ConstantTooLarge {
        /// Elements of the shape.
        count: u64,
        /// The limit.
        limit: u64,
    } = "constant_too_large", "a constant of {count} elements exceeds the limit of {limit}",
        "help: write a scalar and broadcast it, or make it a param";
    /// A number that the constant's element type cannot represent.
    ConstantValue {
        /// Position in the list.
        position: usize,
        /// The number.
        value: String,
        /// The element type.
        element: ElementType,
    } = "constant_value", "value {position} of the constant, {value}, is not a value of {element}",
        "note: i1 is 0 or 1, i32 is a 32-bit integer; float types round any number";

    /// A rank above the limit.
    RankTooLarge {
        /// The value.
        value: String,
        /// Its rank.
        rank: usize,
        /// The limit.
        limit: usize,
    } = "rank_too_large", "the rank of `{value}`, {rank}, exceeds the limit of {limit}",
        "help: merge axes with reshape";
    /// An extent with too many symbols.
    TooManySymbols {
        /// The value.
        value: String,
        /// Symbols, repeated for powers.
        count: usize,
        /// The limit.
        limit: usize,
    } = "too_many_symbols", "an extent of `{value}` has {count} symbols, which exceeds the limit of {limit}",
        "help: replace the product with one symbol";
    /// An extent or a tensor so large that sizes could overflow.
    ExtentTooLarge {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
    } = "extent_too_large", "`{value}: {ty}` is too large",
        "note: without symbols, an extent is at most 2^40 and a tensor at most 2^46 elements";
    /// FP4 or FP6 whose last extent does not fill whole bytes for every value of its symbols, or that has no axis.
    PackedExtent {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
        /// The number of elements in whole bytes.
        packed: u64,
    } = "packed_extent", "`{value}: {ty}` needs a last extent that is known to be a multiple of {packed}",
        "help: give the last axis a constant factor of that many: two of FP4 are packed in a byte, four of FP6 in three";
    /// A layout on a type that is not a scale type.
    LayoutOnType {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
    } = "layout_on_type", "`{value}: {ty}` has a scale layout, but is not a scale tensor",
        "note: scales are f8E4M3FN or f8E8M0FNU of shape [.., rows, K/V]";
    /// `f8E8M0FNU` without a layout.
    ScaleWithoutLayout {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
    } = "scale_without_layout", "`{value}: {ty}` has no scale layout",
        "help: add `linear` (as in checkpoints) or `blocked` to the type; only scales are f8E8M0FNU, of shape [.., rows, K/V]";

    /// An operand with an element type that the op does not accept.
    OperandElement {
        /// The op.
        mnemonic: &'static str,
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
        /// The element types that the op accepts.
        expected: &'static str,
    } = "operand_element", "{mnemonic} takes {expected} as {operand}, but `{value}` is {ty}",
        "help: use convert, or block_dequantize for block-scaled data";
    /// Operands whose element types differ but must be equal.
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
        "`{left}: {left_ty}` and `{right}: {right_ty}` must have the same element type",
        "help: convert one of them";
    /// A result whose element type is not the one determined by the operands.
    ResultElement {
        /// The result.
        value: String,
        /// Its type.
        ty: String,
        /// The required element type, or the allowed ones.
        expected: String,
    } = "result_element", "the element type of `{value}: {ty}` must be {expected}",
        "help: arithmetic ops return the join of the operand types (f32 if they differ); narrow with convert";
    /// A result with an element type that the op cannot produce.
    TargetElement {
        /// The op.
        mnemonic: &'static str,
        /// The result.
        value: String,
        /// Its type.
        ty: String,
    } = "target_element", "{mnemonic} cannot produce `{value}: {ty}`",
        "help: use compare or a constant for i1, and block_quantize for f8E8M0FNU";
    /// Element types and a block that are not a block-scaled format.
    Format {
        /// Element type of the data.
        data: ElementType,
        /// Element type of the scales.
        scale: ElementType,
        /// Elements per scale.
        block: u32,
    } = "format", "{data} data with {scale} scales per {block} elements is not a format of this op",
        "note: f8E4M3FN scales require f4E2M1FN data, f8E8M0FNU scales accept any; block_quantize writes NVFP4 \
         (f4E2M1FN, f8E4M3FN, 16) and MX (f8E8M0FNU, 32)";
    /// A `scaled_mma` of three positional operands whose A is block-scaled.
    ScalesMissing {
        /// The op's mnemonic.
        mnemonic: &'static str,
        /// The operand A.
        value: String,
        /// Its type.
        ty: String,
    } = "scales_missing", "{mnemonic} takes `{value}: {ty}` as a without its scales",
        "help: write %a, %sfa, %b, %sfb; only an a of f16 or bf16 has no sfa";
    /// A `scaled_mma` or `grouped_scaled_mma` with sfa whose A has no scales.
    ScalesUnexpected {
        /// The op's mnemonic.
        mnemonic: &'static str,
        /// The operand A.
        value: String,
        /// Its type.
        ty: String,
        /// The operand in the place of sfa.
        scales: String,
    } = "scales_unexpected", "{mnemonic} takes `{value}: {ty}` as a, which has no scales, and `{scales}` as sfa",
        "help: write %a, %b, %sfb; an a of f16 or bf16 has no sfa";
    /// An alpha, beta or g that is not an f32 scalar.
    ScalarOperand {
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
    } = "scalar_operand", "{operand} must be f32 of shape [] or [1], but `{value}` is {ty}",
        "help: convert or reshape it; apply a factor per row or column with mul";

    /// An operand of too low a rank.
    OperandRank {
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
        /// The least rank.
        least: usize,
    } = "operand_rank", "{operand} must have rank {least} or more, but `{value}` is {ty}",
        "help: add extents of 1 with reshape";
    /// An operand whose shape does not fit the other operands.
    OperandShape {
        /// The operand's role.
        operand: &'static str,
        /// The operand.
        value: String,
        /// Its type.
        ty: String,
        /// The required shape.
        expected: String,
    } = "operand_shape", "{operand} must have the shape {expected}, but `{value}` is {ty}",
        "help: reshape or broadcast it first; this operand does not broadcast";
    /// A result whose shape is not the one determined by the operands.
    ResultShape {
        /// The result.
        value: String,
        /// Its type.
        ty: String,
        /// The required shape.
        expected: String,
    } = "result_shape", "the shape of `{value}: {ty}` must be {expected}",
        "note: the operands determine the shape; two different symbols are never equal";
    /// A and B with different K.
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
        "help: transpose a B of [K, N]; operands are K-major, A [.., M, K] and B [.., N, K]";
    /// B with leading extents that differ from A's.
    BatchMismatch {
        /// A.
        a: String,
        /// Its type.
        a_ty: String,
        /// B.
        b: String,
        /// Its type.
        b_ty: String,
    } = "batch_mismatch", "the leading extents of `{b}: {b_ty}` differ from those of `{a}: {a_ty}`",
        "help: give B the leading extents of A, or rank 2 to share it; leading extents do not broadcast";
    /// A last extent that is not whole blocks for every value of its symbols.
    BlockMultiple {
        /// The value.
        value: String,
        /// Its type.
        ty: String,
        /// Elements per scale.
        block: u32,
    } = "block_multiple", "the last extent of `{value}: {ty}` is not known to be a multiple of the block, {block}",
        "help: pad the axis with zeros; a symbolic extent needs the block as a factor";
    /// Operands that do not broadcast.
    NotBroadcastable {
        /// The op.
        mnemonic: &'static str,
        /// The shapes of the operands (and, for `broadcast`, of the result).
        shapes: String,
    } = "not_broadcastable", "the shapes of {mnemonic} do not broadcast: {shapes}",
        "note: aligned at the last extent, two extents must be equal or one of them 1; a symbol equals only itself";
    /// A reshape that changes the number of elements.
    ElementCount {
        /// The operand's shape.
        from: String,
        /// The result's shape.
        to: String,
    } = "element_count", "{from} and {to} are not known to have the same number of elements",
        "note: the constants and symbols of both shapes must have the same product";

    /// A scale tensor as an operand that cannot be one.
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
        "note: scaled_mma, swizzle_scales, block_dequantize and outputs take scales; convert, reshape, slice, concat \
         and gather take linear ones";
    /// An operand or result that must be a scale tensor and is not.
    ExpectedScales {
        /// The op.
        mnemonic: &'static str,
        /// The operand's or result's role.
        operand: &'static str,
        /// The operand or result.
        value: String,
        /// Its type.
        ty: String,
    } = "expected_scales", "{mnemonic} requires a scale tensor as {operand}, but `{value}` is {ty}",
        "note: scales are f8E4M3FN or f8E8M0FNU with the layout `linear` or `blocked` in their type";
    /// Scales whose shape does not fit their data.
    ScaleShape {
        /// The scales.
        value: String,
        /// Their type.
        ty: String,
        /// The data that they scale.
        data: String,
        /// The required shape.
        expected: String,
    } = "scale_shape", "the scales of `{data}` must have the shape {expected}, but `{value}` is {ty}",
        "note: there is one scale per block of the last axis; the shape excludes padding in both layouts";
    /// A layout on a result that cannot have one.
    ResultLayout {
        /// The op.
        mnemonic: &'static str,
        /// The result.
        value: String,
        /// Its type.
        ty: String,
    } = "result_layout", "{mnemonic} does not produce scales, but `{value}` is {ty}",
        "note: scale tensors are inputs, and results of swizzle_scales, block_quantize, and of reshape, slice, concat \
         and gather of linear scales";
    /// A conversion of blocked scales.
    BlockedConvert {
        /// The scales.
        value: String,
        /// Their type.
        ty: String,
    } = "blocked_convert", "`{value}: {ty}` has the blocked layout and cannot be converted",
        "help: convert the layout to linear with swizzle_scales first";
    /// A `swizzle_scales` that does not change the layout.
    SwizzleNothing {
        /// The layout of operand and result.
        layout: ScaleLayout,
    } = "swizzle_nothing", "swizzle_scales from {layout} to {layout} changes nothing",
        "help: use the operand, or correct the layout of the result";

    /// A program without outputs.
    NoOutputs {} = "no_outputs", "the program has no outputs",
        "help: return at least one value";
    /// An output that is not a value of the module.
    UnknownOutput {
        /// The value.
        value: String,
    } = "unknown_output", "the program returns {value}, which does not exist",
        "note: a value is valid only in the module that created it";
    /// A value that is returned twice.
    DuplicateOutput {
        /// The value.
        value: String,
    } = "duplicate_output", "`{value}` is returned twice",
        "help: return each value once, because outputs bind by name";
}

//! Stored weights and scales that several formats share.

use fourfold_executor::TensorReference;
use fourfold_ir::{ElementType, ScaleLayout};
use serde_json::Value;

use crate::checkpoint::Tensor;
use crate::fields::{Refusal, matrix, require_dtype, require_shape, scalar, times, wrong_shape};
use crate::imported::LeftOutCode;
use crate::linear::{Convention, Scalar, Scales, Weight};

/// The block and the type of scales along K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockScales {
    pub(super) block: u32,
    pub(super) element: ElementType,
    pub(super) layout: ScaleLayout,
}

impl BlockScales {
    /// Linear scales of NVFP4.
    pub(super) const NVFP4: BlockScales =
        BlockScales { block: 16, element: ElementType::F8E4M3FN, layout: ScaleLayout::Linear };
    /// Linear scales of the MX formats.
    pub(super) const MX: BlockScales =
        BlockScales { block: 32, element: ElementType::F8E8M0FNU, layout: ScaleLayout::Linear };

    /// The same scales in the blocked layout.
    pub(super) fn blocked(self) -> BlockScales {
        BlockScales { layout: ScaleLayout::Blocked, ..self }
    }
}

/// The extents `[N, K]` of FP4 that is packed in bytes along K.
pub(super) fn fp4_extents(tensor: &Tensor) -> Result<[u64; 2], Refusal> {
    require_dtype(tensor, &["U8"])?;
    let [n, bytes] = matrix(tensor)?;
    Ok([n, times(tensor, bytes, 2)?])
}

/// The number of blocks along K.
pub(super) fn blocks_of(weight: &Tensor, k: u64, block: u32) -> Result<u64, Refusal> {
    if !k.is_multiple_of(u64::from(block)) {
        return Err(wrong_shape(weight, &format!("a K that is a multiple of {block}")));
    }
    Ok(k / u64::from(block))
}

/// A weight with block scales. The scales are those of `[n, k]`, in any of `dtypes`.
pub(super) fn block_scaled(
    (codes, reference): (&Tensor, TensorReference),
    element: ElementType,
    [n, k]: [u64; 2],
    (scales, dtypes): (&Tensor, &[&str]),
    format: BlockScales,
    global: Option<Scalar>,
) -> Result<Weight, Refusal> {
    require_dtype(scales, dtypes)?;
    let blocks = blocks_of(codes, k, format.block)?;
    match format.layout {
        ScaleLayout::Linear => require_shape(scales, &[n, blocks])?,
        ScaleLayout::Blocked => require_blocked(scales, n, blocks)?,
    }
    let scales = Scales::Block {
        reference: scales.reference(),
        element: format.element,
        block: format.block,
        layout: format.layout,
        global,
    };
    Ok(Weight { codes: reference, element, scales })
}

/// FP8 with E8M0 scales, or with one scale.
pub(super) fn fp8(weight: &Tensor, scale: &Tensor) -> Result<([u64; 2], Weight), Refusal> {
    let extents = matrix(weight)?;
    let (codes, element) = (weight.reference(), ElementType::F8E4M3FN);
    let weight = if scale.dtype == "U8" {
        block_scaled((weight, codes), element, extents, (scale, &["U8"]), BlockScales::MX, None)?
    } else {
        if scale.shape.len() > 1 || !matches!(scale.shape[..], [] | [1]) {
            return Err(unsupported(format!(
                "FP8 with the scales `{}` ({}), not one for the tensor or E8M0 per 32",
                scale.name,
                scale.form()
            )));
        }
        Weight { codes, element, scales: Scales::Tensor(scalar(scale, Convention::Multiply)?) }
    };
    Ok((extents, weight))
}

/// Checks that a matrix has the size of blocked scales. Its shape is nominal: producers write several.
fn require_blocked(scales: &Tensor, n: u64, blocks: u64) -> Result<(), Refusal> {
    let expected = n.next_multiple_of(128).checked_mul(blocks.next_multiple_of(4));
    let [rows, columns] = matrix(scales)?;
    if rows.checked_mul(columns) == expected {
        return Ok(());
    }
    let reason = format!("the padded size of blocked scales of [{n}, {blocks}]");
    Err(wrong_shape(scales, &reason))
}

/// The maximum size of JSON in the header of a file in bytes, which is that of a configuration file.
const JSON_LIMIT: usize = 4 << 20;

/// Parses JSON in the header of a file. `what` names it.
pub(super) fn header_json(text: &str, what: &str) -> Result<Value, Refusal> {
    if text.len() > JSON_LIMIT {
        let message = format!("{what} has more than {JSON_LIMIT} bytes, the limit");
        return Err(Refusal::new(LeftOutCode::UnsupportedFormat, message));
    }
    serde_json::from_str(text).map_err(|error| contradiction(format!("{what} is not JSON: {error}")))
}

/// Returns true if a value of a configuration states something.
pub(super) fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(values) => !values.is_empty(),
        Value::Object(object) => !object.is_empty(),
        _ => true,
    }
}

/// The refusal of a format that is known, but not imported.
pub(super) fn unsupported(what: impl std::fmt::Display) -> Refusal {
    Refusal::new(LeftOutCode::UnsupportedFormat, format!("{what}: this form is not imported"))
}

/// The refusal of tensors that contradict the configuration.
pub(super) fn contradiction(message: impl Into<String>) -> Refusal {
    Refusal::new(LeftOutCode::Contradiction, message)
}

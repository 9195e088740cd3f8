//! The place of an input's tensor in a file, before it is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fourfold_ir::{Dim, ElementType, Module, ScaleLayout, Tensor, TensorType, Value};

use super::allocation::zeros;
use super::decode::{check_dtype, check_encoding, decode, logical_dims};
use super::dtype;
use super::error::{DataError, TensorDataError};
use super::gguf::Blocks;
use super::header::StoredTensor;
use super::raw::check_blocked;
use super::reference::TensorEncoding;
use super::safetensors_file::SafetensorsFile;
use super::selection::Selection;
use super::slice::AxisSlice;
use crate::files::RangeHash;

/// The tensor of an input.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) source: Source<'a>,
    pub(super) encoding: Option<TensorEncoding>,
}

#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Stored { file: &'a SafetensorsFile, tensor: &'a StoredTensor, slice: &'a [AxisSlice] },
    Bytes { path: &'a Path, file: &'a File, start: u64, end: u64, hash: Option<RangeHash> },
}

/// An input and the tensor that fits it.
pub(super) struct Fitting<'a> {
    pub(super) input: Value,
    pub(super) place: Place<'a>,
    selection: Option<Selection>,
    /// The extents, in elements of the input's type; `None` if they follow from the other inputs.
    pub(super) dims: Option<Vec<usize>>,
}

impl<'a> Place<'a> {
    fn path(&self) -> &'a Path {
        match self.source {
            Source::Stored { file, .. } => file.path(),
            Source::Bytes { path, .. } => path,
        }
    }

    /// Returns the name of the tensor in errors.
    fn shown(&self) -> String {
        match self.source {
            Source::Stored { tensor, slice: [], .. } => format!("the tensor `{}`", tensor.name),
            Source::Stored { tensor, slice, .. } => {
                let axes: Vec<String> = slice.iter().map(ToString::to_string).collect();
                format!("the slice [{}] of the tensor `{}`", axes.join(", "), tensor.name)
            }
            Source::Bytes { start, end, .. } => format!("the range of bytes {start}:{end}"),
        }
    }

    /// Checks the tensor's dtype, slice and shape, without reading it.
    pub(super) fn fit(self, module: &Module, input: Value) -> Result<Fitting<'a>, DataError> {
        self.fitting(module, input).map_err(|source| self.misfit(module, input, source))
    }

    fn fitting(self, module: &Module, input: Value) -> Result<Fitting<'a>, TensorDataError> {
        let ty = module.ty(input);
        let (selection, dims) = match self.source {
            Source::Stored { tensor, slice, .. } => {
                check_encoding(self.encoding, &tensor.dtype, ty.element)?;
                let selection = Selection::new(tensor, slice)?;
                let stored = self.exchanged(&selection.dims, ty, &tensor.dtype)?;
                let dims = if ty.layout == Some(ScaleLayout::Blocked) {
                    check_dtype(&tensor.dtype, &selection.dims, ty.element)?;
                    None
                } else {
                    Some(dims_of_type(module, ty, logical_dims(&tensor.dtype, &stored, ty.element)?)?)
                };
                (Some(selection), dims)
            }
            Source::Bytes { .. } => {
                match Blocks::of(self.encoding) {
                    Some(blocks) if blocks.hold(ty.element, ty.layout) => {}
                    _ => check_encoding(self.encoding, self.dtype(ty.element), ty.element)?,
                }
                (None, None)
            }
        };
        Ok(Fitting { input, place: self, selection, dims })
    }

    /// Returns a stored shape with the axes that the encoding exchanges in the input's order.
    fn exchanged(&self, dims: &[usize], ty: &TensorType, dtype: &str) -> Result<Vec<usize>, TensorDataError> {
        let mut dims = dims.to_vec();
        if self.encoding == Some(TensorEncoding::Transposed) {
            let last = dims.len().wrapping_sub(1);
            if dims.len() < 2 || ty.layout == Some(ScaleLayout::Blocked) {
                let (encoding, element) = (TensorEncoding::Transposed, ty.element);
                return Err(TensorDataError::Encoding { encoding, element, found: dtype.to_owned() });
            }
            dims.swap(last - 1, last);
        }
        Ok(dims)
    }

    /// The dtype's name; that of the element type for bytes.
    fn dtype(&self, element: ElementType) -> &'a str {
        match self.source {
            Source::Stored { tensor, .. } => &tensor.dtype,
            Source::Bytes { .. } => dtype::accepted(element)[0],
        }
    }

    pub(super) fn no_memory(&self, module: &Module, input: Value, bytes: u64) -> DataError {
        let tensor = module.name_of(input).to_owned();
        DataError::Memory { path: self.path().to_owned(), tensor, bytes }
    }

    pub(super) fn misfit(&self, module: &Module, input: Value, source: TensorDataError) -> DataError {
        DataError::Input {
            path: self.path().to_owned(),
            tensor: self.shown(),
            input: module.name_of(input).to_owned(),
            ty: module.display_type(module.ty(input)).to_string(),
            source: Box::new(source),
        }
    }
}

impl Fitting<'_> {
    /// Returns the shape in elements of the dtype; empty for bytes.
    pub(super) fn stored_shape(&self) -> Vec<usize> {
        self.selection.as_ref().map_or_else(Vec::new, |selection| selection.dims.clone())
    }

    /// Reads the tensor, whose extents are `dims`.
    pub(super) fn read(self, module: &Module, dims: Vec<usize>) -> Result<Tensor, DataError> {
        let Fitting { input, place, selection, .. } = self;
        let ty = module.ty(input);
        let misfit = |source| place.misfit(module, input, source);
        let expected =
            Tensor::byte_len(ty.element, &dims, ty.layout).map_err(|error| misfit(error.into()))?;
        let size = match (&place.source, &selection) {
            (Source::Bytes { start, end, .. }, _) => {
                let (dims, found) = (dims.clone(), end - start);
                let expected = match Blocks::of(place.encoding) {
                    Some(blocks) => blocks.size(ty.element, &dims),
                    None => Some(expected as u64),
                };
                // Only a row of blocks has no size.
                let expected = expected
                    .map_or_else(|| check_encoding(place.encoding, "U8", ty.element).map(|()| found), Ok);
                let expected = expected.map_err(misfit)?;
                if found != expected {
                    let element = ty.element;
                    return Err(misfit(TensorDataError::Bytes { element, dims, expected, found }));
                }
                found
            }
            (_, selection) => selection.as_ref().map_or(0, |selection| selection.size),
        };
        if let (Some(ScaleLayout::Blocked), Some(selection)) = (ty.layout, &selection) {
            check_blocked(&dims, expected as u64, selection.size, &selection.dims).map_err(misfit)?;
        }
        let mut bytes = zeros(size).ok_or_else(|| place.no_memory(module, input, size))?;
        let failed = |source: io::Error| DataError::Read { path: place.path().to_owned(), source };
        match (place.source, &selection) {
            (Source::Bytes { path, file, start, end, hash }, _) => {
                file.read_exact_at(&mut bytes, start).map_err(failed)?;
                // A hash of other bytes was compared when the file was opened.
                let is_changed = |hash: RangeHash| {
                    (hash.start, hash.end) == (start, end) && *blake3::hash(&bytes).as_bytes() != hash.blake3
                };
                if hash.is_some_and(is_changed) {
                    return Err(DataError::changed(path, module.name_of(input), start, end));
                }
            }
            (Source::Stored { file, tensor, .. }, Some(selection)) => {
                selection.read(&mut bytes, |part, offset| file.read_at(part, tensor.start + offset))?;
            }
            (Source::Stored { .. }, None) => {}
        }
        decode(place.dtype(ty.element), bytes, place.encoding, (ty.element, dims, ty.layout)).map_err(misfit)
    }
}

/// Returns true if each extent of `joined` is the product of neighbours in `dims`, as `[N, K/32, 32]` is `[N, K]`.
fn joins(dims: &[usize], joined: &[usize]) -> bool {
    let mut rest = dims.iter().copied().filter(|dim| *dim != 1);
    let all_join = joined.iter().filter(|extent| **extent != 1).all(|&extent| {
        let mut product = 1usize;
        while product != 0 && product < extent {
            let next = rest.next().unwrap_or(0);
            product = product.checked_mul(next).unwrap_or(0);
        }
        product == extent && product != 0
    });
    all_join && rest.next().is_none()
}

/// The extents of a tensor, if its shape in elements fits a type. Extents of 1 may be missing or added where the type
/// has fixed extents. The blocks of FP4 may be an axis of their own.
fn dims_of_type(module: &Module, ty: &TensorType, dims: Vec<usize>) -> Result<Vec<usize>, TensorDataError> {
    let can_be = |(dim, extent): (&Dim, &usize)| {
        let extent = *extent as u64;
        match dim.as_fixed() {
            Some(fixed) => fixed == extent,
            // A symbolic extent's constant factor is not zero, so the division is valid.
            None => extent.is_multiple_of(dim.constant()),
        }
    };
    // Checkpoints store a scalar as rank 0 or as one element.
    let dims = if ty.rank() == 1 && dims.is_empty() { vec![1] } else { dims };
    if dims.len() == ty.rank() && ty.shape.iter().zip(&dims).all(can_be) {
        return Ok(dims);
    }
    let fixed: Option<Vec<usize>> =
        ty.shape.iter().map(|dim| usize::try_from(dim.as_fixed()?).ok()).collect();
    let Some(expected) = fixed else {
        let expected: Vec<String> = ty.shape.iter().map(|dim| module.display_dim(dim).to_string()).collect();
        return Err(TensorDataError::ShapePattern { expected: expected.join(", "), found: dims });
    };
    let without_ones = |dims: &[usize]| dims.iter().copied().filter(|dim| *dim != 1).collect::<Vec<_>>();
    let is_joined = ty.element == ElementType::F4E2M1FN && joins(&dims, &expected);
    if is_joined || without_ones(&expected) == without_ones(&dims) {
        return Ok(expected);
    }
    Err(TensorDataError::Shape { expected, found: dims })
}

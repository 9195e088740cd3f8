//! Stored tensors as the expectations of values.

use fourfold_executor::{RawTensor, TensorDataError};
use fourfold_ir::{ElementType, ScaleLayout, Tensor, TensorError, Value, bind};

use super::Comparer;
use crate::compare::{Tolerance, Wanted};
use crate::error::Error;
use crate::report::OutputReport;

impl Comparer<'_> {
    /// Returns [`Comparer::stored_as`], or adds a report to `outputs` if the tensor does not fit the value.
    pub(super) fn fitting(
        &self,
        value: Value,
        stored: &RawTensor,
        layout: Option<ScaleLayout>,
        name: &str,
        outputs: &mut Vec<OutputReport>,
    ) -> Result<Option<Want>, Error> {
        match self.stored_as(value, stored, layout, name) {
            Ok(want) => Ok(Some(want)),
            Err(error @ Error::Expected { .. }) => {
                let value = self.original.module().name_of(value);
                outputs.push(OutputReport::unfit(value, name, error.message()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Converts a stored tensor to the type of a value. A value of an arithmetic type may be stored in another
    /// one. Scales have the stated layout, else that of the value, else the linear one if only that fits.
    pub(super) fn stored_as(
        &self,
        value: Value,
        stored: &RawTensor,
        layout: Option<ScaleLayout>,
        name: &str,
    ) -> Result<Want, Error> {
        let module = self.original.module();
        let ty = module.ty(value);
        let dims = bind::concrete_dims(ty, &self.bound.symbols).ok_or_else(|| {
            Error::Missing(format!("the shape of %{} is not determined in this run", module.name_of(value)))
        })?;
        let layouts = match (ty.layout, layout) {
            (None, _) => vec![None],
            (Some(_), Some(stated)) => vec![Some(stated)],
            (Some(own), None) => vec![Some(own), Some(ScaleLayout::Linear)],
        };
        if let Some(values) = stored.as_f64().filter(|_| ty.element.is_arithmetic() && stored.dims == dims) {
            return Ok(Want::F64 { dims, values });
        }
        let as_stored = || stored.as_stored().filter(|t| t.dims() == dims && t.element().is_arithmetic());
        for layout in layouts {
            match stored.as_type(ty.element, &dims, layout) {
                Ok(tensor) => return Ok(Want::Tensor(tensor)),
                Err(TensorDataError::Tensor(TensorError::Memory { bytes, .. })) => {
                    return Err(Error::Memory { what: format!("`{name}`"), bytes });
                }
                Err(_) => {}
            }
        }
        as_stored().filter(|_| ty.element.is_arithmetic()).map(Want::Tensor).ok_or_else(|| Error::Expected {
            tensor: name.to_owned(),
            found: format!("{} of shape {:?}", stored.dtype, stored.dims),
            value: module.name_of(value).to_owned(),
            expected: format!("{} of shape {dims:?}", ty.element),
        })
    }
}

/// The expected values of the data.
pub(super) enum Want {
    Tensor(Tensor),
    F64 { dims: Vec<usize>, values: Vec<f64> },
}

impl Want {
    pub(super) fn as_wanted(&self) -> &dyn Wanted {
        match self {
            Want::Tensor(tensor) => tensor,
            Want::F64 { values, .. } => values,
        }
    }

    /// Rounds values in f64 to the type of the value if its bits must be equal, since no result has more digits.
    pub(super) fn for_tolerance(self, tolerance: &Tolerance, element: ElementType) -> Result<Want, Error> {
        match self {
            Want::F64 { dims, values } if *tolerance == Tolerance::Relative(0.0) => {
                let what = || "the rounded expectation".to_owned();
                let rounded = Tensor::from_f64(element, dims, None, &values);
                let memory = |_| Error::Memory { what: what(), bytes: std::mem::size_of_val(&values[..]) };
                rounded.map(Want::Tensor).map_err(memory)
            }
            want => Ok(want),
        }
    }
}

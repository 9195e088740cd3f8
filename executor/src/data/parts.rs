//! Inputs whose parts are tensors of their own, such as the weights of experts.

use fourfold_ir::{Module, Tensor, TensorType, Value};

use super::allocation::zeros;
use super::error::{DataError, PartsFault};
use super::place::{Fitting, Place};
use super::reference::TensorReference;

/// The references to an input: one to the whole, or one to each part, in order.
#[derive(Debug)]
pub(super) struct References<'a> {
    all: Vec<&'a TensorReference>,
}

impl<'a> References<'a> {
    /// Sorts the references to an input. Of several to the whole input, the last counts.
    pub(super) fn new(
        module: &Module,
        input: Value,
        mut all: Vec<&'a TensorReference>,
    ) -> Result<References<'a>, DataError> {
        if all.iter().all(|reference| reference.part.is_none()) {
            let last = all.pop();
            return Ok(References { all: last.into_iter().collect() });
        }
        all.sort_by_key(|reference| reference.part);
        let shape = &module.ty(input).shape;
        let count = shape.first().and_then(|first| first.as_fixed());
        let count = count.filter(|_| shape.iter().all(|dim| dim.as_fixed().is_some()));
        let check = || {
            let count = count.ok_or(PartsFault::Extents)?;
            let mut next = 0;
            for reference in &all {
                match reference.part.ok_or(PartsFault::Whole)? {
                    part if part >= count => return Err(PartsFault::Outside { part, count }),
                    part if part < next => return Err(PartsFault::Repeated { part }),
                    part if part > next => return Err(PartsFault::Missing { part: next, count }),
                    _ => next += 1,
                }
            }
            if next < count { Err(PartsFault::Missing { part: next, count }) } else { Ok(()) }
        };
        check().map_err(|fault| failed(module, input, fault))?;
        Ok(References { all })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a TensorReference> {
        self.all.iter().copied()
    }

    /// The reference to the whole input, if it has no parts.
    pub(super) fn whole(&self) -> Option<&'a TensorReference> {
        self.all.first().copied().filter(|reference| reference.part.is_none())
    }
}

/// The parts of an input, each with a tensor that fits it.
pub(super) struct Parts<'a> {
    /// A module with one input: a part.
    module: Module,
    parts: Vec<Fitting<'a>>,
    ty: TensorType,
}

impl<'a> Parts<'a> {
    /// Checks the tensor of every part, without reading it.
    pub(super) fn fit(
        module: &Module,
        input: Value,
        places: impl Iterator<Item = Result<Place<'a>, DataError>>,
    ) -> Result<Parts<'a>, DataError> {
        let ty = module.ty(input).clone();
        let part = TensorType { shape: ty.shape.iter().skip(1).cloned().collect(), ..ty.clone() };
        let mut of_part = Module::new(module.name.clone());
        let value = of_part.push_input(module.name_of(input), part, false);
        let parts = places.map(|place| place?.fit(&of_part, value)).collect::<Result<_, _>>()?;
        Ok(Parts { module: of_part, parts, ty })
    }

    /// Reads the parts into one tensor.
    pub(super) fn read(self, module: &Module, input: Value) -> Result<Tensor, DataError> {
        let failed = |fault| failed(module, input, fault);
        let extents = |ty: &TensorType| {
            let extents = ty.shape.iter().map(|dim| usize::try_from(dim.as_fixed()?).ok());
            extents.collect::<Option<Vec<usize>>>().ok_or_else(|| failed(PartsFault::Extents))
        };
        let dims = extents(&self.ty)?;
        let part_dims = dims.get(1..).unwrap_or_default().to_vec();
        let invalid = |place: &Place<'_>, error| place.misfit(module, input, error);
        let (mut bytes, mut end) = (Vec::new(), 0);
        let mut last = None;
        for part in self.parts {
            let place = part.place;
            let tensor = part.read(&self.module, part_dims.clone())?;
            if bytes.is_empty() {
                let size = Tensor::byte_len(self.ty.element, &dims, self.ty.layout);
                let size = size.map_err(|error| invalid(&place, error.into()))?;
                if tensor.bytes().len().checked_mul(dims[0]) != Some(size) {
                    return Err(failed(PartsFault::SharedBytes));
                }
                bytes = zeros(size as u64).ok_or_else(|| place.no_memory(module, input, size as u64))?;
            }
            let size = tensor.bytes().len();
            bytes[end..end + size].copy_from_slice(tensor.bytes());
            end += size;
            last = Some(place);
        }
        Tensor::new(self.ty.element, dims, self.ty.layout, bytes).map_err(|error| match last {
            Some(place) => invalid(&place, error.into()),
            None => failed(PartsFault::Extents),
        })
    }
}

fn failed(module: &Module, input: Value, fault: PartsFault) -> DataError {
    let ty = module.display_type(module.ty(input)).to_string();
    DataError::Parts { input: module.name_of(input).to_owned(), ty, fault }
}

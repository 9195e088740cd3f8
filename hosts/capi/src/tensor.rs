//! Conversion between the caller's tensors and Fourfold's.

use std::collections::HashMap;

use fourfold::ir::{ElementType, Module, ScaleLayout, Tensor, TensorType, Value};

use crate::abi::{DEVICE_CPU, DEVICE_CUDA, DEVICE_CUDA_HOST, DataType, SymbolExtent, TensorView};
use crate::error::ErrorHandle;
use crate::memory::{array, borrow};

/// DLPack's type of an element.
pub(crate) fn data_type(element: ElementType) -> DataType {
    let (code, bits) = match element {
        ElementType::I32 => (0, 32),
        ElementType::F16 => (2, 16),
        ElementType::F32 => (2, 32),
        ElementType::BF16 => (4, 16),
        ElementType::I1 => (6, 8),
        ElementType::F8E4M3FN => (10, 8),
        ElementType::F8E5M2 => (12, 8),
        ElementType::F8E8M0FNU => (14, 8),
        ElementType::F6E2M3FN => (15, 6),
        ElementType::F6E3M2FN => (16, 6),
        ElementType::F4E2M1FN => (17, 4),
    };
    DataType { code, bits, lanes: 1 }
}

/// DLPack's uint8, as which every type of at most 8 bits may cross.
const UINT8: DataType = DataType { code: 1, bits: 8, lanes: 1 };

/// A tensor of the caller, checked against the type of its value.
pub(crate) struct Given<'a> {
    pub(crate) name: &'a str,
    pub(crate) element: ElementType,
    pub(crate) layout: Option<ScaleLayout>,
    /// The extents in elements.
    pub(crate) dims: Vec<usize>,
    /// The size in bytes, padding of blocked scales included.
    pub(crate) bytes: usize,
    /// The address, on the host or on the device.
    pub(crate) address: usize,
    /// The device's ordinal; `None` for the host.
    pub(crate) device: Option<usize>,
}

impl<'a> Given<'a> {
    /// Checks a tensor's type, shape, strides and place. Its extents need not fit those of the value yet.
    ///
    /// # Safety
    /// Shape and strides are null or have as many elements as the tensor has axes.
    pub(crate) unsafe fn new(
        module: &'a Module,
        value: Value,
        view: &TensorView,
    ) -> Result<Given<'a>, ErrorHandle> {
        let (name, ty) = (module.name_of(value), module.ty(value));
        let wrong = |problem: String| {
            ErrorHandle::argument(format!("the tensor for `%{name}: {}` {problem}", module.display_type(ty)))
        };
        if usize::try_from(view.ndim) != Ok(ty.rank()) {
            return Err(wrong(format!("has {} axes; expected {}", view.ndim, ty.rank())));
        }
        // SAFETY: the caller vouches for it.
        let (shape, strides) = unsafe {
            let strides = if view.strides.is_null() { 0 } else { ty.rank() };
            (array(view.shape, ty.rank(), "a shape")?, array(view.strides, strides, "strides")?)
        };
        let [packed, units] = packing(ty.element, view.dtype).ok_or_else(|| {
            let DataType { code, bits, lanes } = view.dtype;
            wrong(format!("has the DLPack type ({code}, {bits}, {lanes}), which is not its type"))
        })?;
        let mut dims = Vec::with_capacity(shape.len());
        for extent in shape {
            dims.push(usize::try_from(*extent).map_err(|_| wrong(format!("has the extent {extent}")))?);
        }
        check_compact(&dims, strides).map_err(wrong)?;
        if let Some(last) = dims.last_mut() {
            let whole = last.is_multiple_of(units).then_some(*last / units);
            let extent = whole.and_then(|groups| groups.checked_mul(packed));
            *last = extent.ok_or_else(|| wrong(format!("has the extent {last}")))?;
        }
        let bytes = Tensor::byte_len(ty.element, &dims, ty.layout)?;
        let offset = usize::try_from(view.byte_offset).unwrap_or(usize::MAX);
        let address =
            (view.data as usize).checked_add(offset).filter(|start| start.checked_add(bytes).is_some());
        let address = address.ok_or_else(|| wrong("exceeds the address space".to_owned()))?;
        if bytes > 0 && view.data.is_null() {
            return Err(wrong("has no memory: data is NULL".to_owned()));
        }
        let device = match (view.device.kind, usize::try_from(view.device.id)) {
            (DEVICE_CPU | DEVICE_CUDA_HOST, _) => None,
            (DEVICE_CUDA, Ok(id)) => Some(id),
            (kind, _) => {
                return Err(wrong(format!(
                    "is on DLPack device ({kind}, {}); expected the host or CUDA",
                    view.device.id
                )));
            }
        };
        Ok(Given { name, element: ty.element, layout: ty.layout, dims, bytes, address, device })
    }

    /// Copies a tensor on the host.
    ///
    /// # Safety
    /// The memory is live and as large as the tensor.
    pub(crate) unsafe fn to_tensor(&self) -> Result<Tensor, ErrorHandle> {
        let mut tensor = Tensor::zeros(self.element, self.dims.clone(), self.layout)?;
        // SAFETY: both have this many bytes, and the tensor's are new.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address as *const u8,
                tensor.bytes_mut().as_mut_ptr(),
                self.bytes,
            )
        };
        Ok(tensor)
    }

    /// Writes a tensor of the same type and shape to the memory on the host.
    ///
    /// # Safety
    /// The memory is live, writable and as large as the tensor.
    pub(crate) unsafe fn write(&self, tensor: &Tensor) -> Result<(), ErrorHandle> {
        let bytes = tensor.bytes();
        if bytes.len() != self.bytes {
            let message = format!("`%{}` takes {} bytes, not {}", self.name, bytes.len(), self.bytes);
            return Err(ErrorHandle::argument(message));
        }
        // SAFETY: both have this many bytes, and the tensor's are ours.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address as *mut u8, bytes.len()) };
        Ok(())
    }

    /// Checks that the tensor has these extents.
    pub(crate) fn expect(&self, dims: Option<&[usize]>) -> Result<(), ErrorHandle> {
        match dims {
            Some(dims) if dims == self.dims => Ok(()),
            Some(dims) => {
                let message = format!(
                    "the tensor for `%{}` has the shape {:?}; expected {dims:?}",
                    self.name, self.dims
                );
                Err(ErrorHandle::argument(message))
            }
            None => Err(ErrorHandle::argument(format!("the extents of `%{}` are unknown", self.name))),
        }
    }
}

/// The number of elements in some of the caller's, and the number of these; `None` if the types differ.
fn packing(element: ElementType, given: DataType) -> Option<[usize; 2]> {
    let own = data_type(element);
    match (given, own.bits) {
        _ if given == own => Some([1, 1]),
        (_, 4) if given == (DataType { lanes: 2, ..own }) => Some([2, 1]),
        (UINT8, 4) => Some([2, 1]),
        (UINT8, 6) => Some([4, 3]),
        (UINT8, 8) => Some([1, 1]),
        _ => None,
    }
}

/// Checks that strides, if any, are those of compact row-major memory.
fn check_compact(dims: &[usize], strides: &[i64]) -> Result<(), String> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut expected = 1usize;
    for (axis, stride) in strides.iter().enumerate().rev() {
        if dims[axis] != 1 && i64::try_from(expected) != Ok(*stride) {
            return Err(format!(
                "has the strides {strides:?} for the shape {dims:?}; expected compact row-major memory"
            ));
        }
        expected = expected.saturating_mul(dims[axis]);
    }
    Ok(())
}

/// Checks the number of tensors, and each of them.
///
/// # Safety
/// The tensors are live.
pub(crate) unsafe fn given<'a>(
    module: &'a Module,
    values: &[Value],
    (views, count): (*const TensorView, usize),
    what: &str,
) -> Result<Vec<Given<'a>>, ErrorHandle> {
    check_count(module, what, values.len(), count)?;
    // SAFETY: the caller vouches for it.
    let views = unsafe { array(views, count, what)? };
    // SAFETY: as above.
    values.iter().zip(views).map(|(value, view)| unsafe { Given::new(module, *value, view) }).collect()
}

pub(crate) fn check_count(
    module: &Module,
    what: &str,
    expected: usize,
    found: usize,
) -> Result<(), ErrorHandle> {
    match expected == found {
        true => Ok(()),
        false => Err(ErrorHandle::argument(format!("`@{}` has {expected} {what}, not {found}", module.name))),
    }
}

/// Copies tensors on the host, by name.
///
/// # Safety
/// As for [`Given::to_tensor`].
pub(crate) unsafe fn to_tensors(given: &[Given<'_>]) -> Result<HashMap<String, Tensor>, ErrorHandle> {
    // SAFETY: the caller vouches for it.
    given.iter().map(|given| Ok((given.name.to_owned(), unsafe { given.to_tensor()? }))).collect()
}

/// The extents of symbols that the caller gives.
///
/// # Safety
/// The symbols are live.
pub(crate) unsafe fn symbols(
    symbols: *const SymbolExtent,
    count: usize,
) -> Result<Vec<(String, u64)>, ErrorHandle> {
    // SAFETY: the caller vouches for it.
    let symbols = unsafe { array(symbols, count, "symbols")? };
    let one = |symbol: &SymbolExtent| {
        // SAFETY: as above.
        let name = unsafe { borrow(symbol.name, "the name of a symbol")? };
        let extent = u64::try_from(symbol.extent)
            .map_err(|_| ErrorHandle::argument(format!("the extent of `{name}` is {}", symbol.extent)))?;
        Ok((name.to_owned(), extent))
    };
    symbols.iter().map(one).collect()
}

/// The extents of a type, or -1 for each that the symbols do not determine.
pub(crate) fn extents(ty: &TensorType, symbols: &fourfold::ir::SymbolValues) -> Vec<i64> {
    let extent =
        |dim: &fourfold::ir::Dim| dim.evaluate(symbols).and_then(|extent| i64::try_from(extent).ok());
    ty.shape.iter().map(|dim| extent(dim).unwrap_or(-1)).collect()
}

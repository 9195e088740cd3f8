//! Tensors that a session takes: on the host, or in the caller's device memory.

use std::marker::PhantomData;

use fourfold_ir::{ElementType, ScaleLayout, Tensor};

use crate::device::{Buffer, Device, DeviceError};

/// Element type, extents and layout.
pub(super) type Type<'a> = (ElementType, &'a [usize], Option<ScaleLayout>);

/// An input of a call.
#[derive(Clone, Debug)]
pub enum SessionInput<'a> {
    /// A tensor on the host.
    Host(&'a Tensor),
    /// A tensor on the device.
    Device(DeviceTensor<'a>),
}

impl<'a> From<&'a Tensor> for SessionInput<'a> {
    fn from(tensor: &'a Tensor) -> SessionInput<'a> {
        SessionInput::Host(tensor)
    }
}

impl<'a> From<DeviceTensor<'a>> for SessionInput<'a> {
    fn from(tensor: DeviceTensor<'a>) -> SessionInput<'a> {
        SessionInput::Device(tensor)
    }
}

impl SessionInput<'_> {
    pub(super) fn element(&self) -> ElementType {
        match self {
            SessionInput::Host(tensor) => tensor.element(),
            SessionInput::Device(tensor) => tensor.element,
        }
    }

    pub(super) fn dims(&self) -> &[usize] {
        match self {
            SessionInput::Host(tensor) => tensor.dims(),
            SessionInput::Device(tensor) => &tensor.dims,
        }
    }

    pub(super) fn layout(&self) -> Option<ScaleLayout> {
        match self {
            SessionInput::Host(tensor) => tensor.layout(),
            SessionInput::Device(tensor) => tensor.layout,
        }
    }
}

/// A tensor in the caller's device memory: an address and a type. The memory is borrowed.
#[derive(Clone, Debug)]
pub struct DeviceTensor<'a> {
    address: u64,
    bytes: usize,
    /// The device's ordinal.
    device: usize,
    element: ElementType,
    dims: Vec<usize>,
    layout: Option<ScaleLayout>,
    memory: PhantomData<&'a Buffer>,
}

impl<'a> DeviceTensor<'a> {
    /// The tensor at the start of a buffer.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the buffer belongs to another device; [`DeviceError::Range`] when it is too
    /// small, or the tensor exceeds the address space.
    pub fn new(
        device: &Device,
        buffer: &'a Buffer,
        element: ElementType,
        dims: Vec<usize>,
        layout: Option<ScaleLayout>,
    ) -> Result<DeviceTensor<'a>, DeviceError> {
        let bytes = Tensor::byte_len(element, &dims, layout).unwrap_or(usize::MAX);
        device.check_buffer(buffer, bytes)?;
        // SAFETY: the buffer is on this device, is as large, and is borrowed.
        Ok(unsafe { DeviceTensor::at(device, buffer.address(), element, dims, layout) })
    }

    /// The tensor at an address.
    ///
    /// # Safety
    /// The address must point to memory on this device that is at least as large as the tensor, and stays valid for the
    /// lifetime of the result. Work that writes it must have ended before a call reads it. Other work must not use the
    /// memory of an output during a call.
    pub unsafe fn at(
        device: &Device,
        address: u64,
        element: ElementType,
        dims: Vec<usize>,
        layout: Option<ScaleLayout>,
    ) -> DeviceTensor<'a> {
        let bytes = Tensor::byte_len(element, &dims, layout).unwrap_or(usize::MAX);
        let device = device.gpu().ordinal;
        DeviceTensor { address, bytes, device, element, dims, layout, memory: PhantomData }
    }

    /// The device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The layout of scales.
    pub fn layout(&self) -> Option<ScaleLayout> {
        self.layout
    }

    pub(super) fn is_on(&self, device: &Device) -> bool {
        self.device == device.gpu().ordinal
    }
}

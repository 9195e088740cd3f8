//! Discovery of the machine's GPUs.

use std::fmt;

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use super::DeviceError;
use super::driver::{check, driver};

/// A GPU's properties, as reported by its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The ordinal among the devices visible to this process.
    pub ordinal: usize,
    /// The product name.
    pub name: String,
    /// The compute capability: (major, minor).
    pub capability: (u32, u32),
    /// The number of SMs.
    pub sm_count: u32,
    /// The total memory, in bytes.
    pub memory_bytes: u64,
    /// The size of the L2 cache, in bytes.
    pub l2_bytes: u64,
    /// The maximum shared memory per CTA that a kernel can opt in to, in bytes.
    pub shared_memory_per_block_optin: u32,
    /// The driver's CUDA version: (major, minor).
    pub driver_version: (u32, u32),
}

impl Gpu {
    /// The target whose kernels run natively on this GPU, if any.
    pub fn target(&self) -> Option<&'static str> {
        match self.capability {
            (9, 0) => Some("sm_90a"),
            (10, 0) => Some("sm_100a"),
            (10, 3) => Some("sm_103a"),
            (12, 0) => Some("sm_120a"),
            (12, 1) => Some("sm_121a"),
            _ => None,
        }
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GIB: f64 = (1u64 << 30) as f64;
        let (major, minor) = self.capability;
        let memory = self.memory_bytes as f64 / GIB;
        write!(f, "{} (sm_{major}{minor}, {} SMs, {memory:.1} GiB)", self.name, self.sm_count)
    }
}

/// Lists the CUDA devices visible to this process. Empty if the driver finds none.
///
/// # Errors
/// [`DeviceError::NoDriver`], [`DeviceError::DriverTooOld`], or the driver's own error.
pub fn discover() -> Result<Vec<Gpu>, DeviceError> {
    (0..count()?).map(describe).collect()
}

/// The number of devices.
pub(super) fn count() -> Result<usize, DeviceError> {
    if !driver()?.has_devices {
        return Ok(0);
    }
    let mut count = 0;
    // SAFETY: the driver is initialized, and the int is live.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The driver's handle for a device.
pub(super) fn handle(ordinal: usize) -> Result<CUdevice, DeviceError> {
    let count = count()?;
    let no_such = DeviceError::NoSuchDevice { ordinal, count };
    let Some(number) = i32::try_from(ordinal).ok().filter(|_| ordinal < count) else { return Err(no_such) };
    let mut device = 0;
    // SAFETY: the driver is initialized, and the handle is live.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, number) })?;
    Ok(device)
}

/// Queries a device's properties.
pub(super) fn describe(ordinal: usize) -> Result<Gpu, DeviceError> {
    let version = driver()?.version;
    let device = handle(ordinal)?;
    let mut name = [0u8; 256];
    // SAFETY: the driver is initialized, the device is one of its own, and the buffer has the given length.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device)
    })?;
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let mut memory = 0;
    // SAFETY: as above; the size is live.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
    let attribute = |attribute: CUdevice_attribute| {
        let mut value = 0;
        // SAFETY: as above; the int is live.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
        Ok::<u32, DeviceError>(u32::try_from(value).unwrap_or(0))
    };
    use CUdevice_attribute as Attribute;
    Ok(Gpu {
        ordinal,
        name: String::from_utf8_lossy(&name[..length]).into_owned(),
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory as u64,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        shared_memory_per_block_optin: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        driver_version: (version / 1000, version % 1000 / 10),
    })
}

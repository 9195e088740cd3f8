//! Device errors.

use cudarc::driver::sys::CUresult;

use crate::kernel::Status;

/// The reason that a device is unusable, or that an operation on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no CUDA driver, or only the stub library for linking.
    #[error("there is no CUDA driver")]
    NoDriver,
    /// The driver is older than kernels require. Versions are encoded as by `cuDriverGetVersion`: 13000 is CUDA 13.0.
    #[error("the driver supports CUDA {}, but CUDA {} is required", version(*found), version(*needed))]
    DriverTooOld {
        /// The installed version.
        found: u32,
        /// The required version.
        needed: u32,
    },
    /// No device has this ordinal.
    #[error("there is no CUDA device {ordinal}; the number of devices is {count}")]
    NoSuchDevice {
        /// The requested ordinal.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },
    /// The device is out of memory.
    #[error("cannot allocate {bytes} bytes of device memory")]
    OutOfMemory {
        /// The requested bytes.
        bytes: u64,
    },
    /// The range exceeds the buffer: an error of the caller.
    #[error("the range of {bytes} bytes at offset {offset} exceeds the buffer of {len} bytes")]
    Range {
        /// The start of the range, in bytes.
        offset: usize,
        /// The length of the range, in bytes.
        bytes: usize,
        /// The length of the buffer, in bytes.
        len: usize,
    },
    /// An argument belongs to another device: an error of the caller.
    #[error("the {what} belongs to another device")]
    OtherDevice {
        /// The kind of argument, such as `buffer` or `stream`.
        what: &'static str,
    },
    /// A kernel could not be loaded or launched, and the driver reports no error itself.
    #[error("the launch failed: {status}")]
    Launch {
        /// The kernel's status.
        status: Status,
    },
    /// The emulation of a kernel found an instruction that its target does not allow, or a wait that does not end.
    #[error("the emulated kernel is wrong: {}", .status.message)]
    Emulation {
        /// The fault.
        status: Status,
    },
    /// A call of the vendor's matrix library failed, and the driver reports no error itself.
    #[error("{call} failed: {name} ({code})")]
    Library {
        /// The call.
        call: &'static str,
        /// The library's status.
        code: i32,
        /// Its name.
        name: String,
    },
    /// A driver call, or earlier asynchronous work, failed.
    #[error("{call} failed: {name} ({code}): {message}")]
    Cuda {
        /// The call that reported the error. Work is asynchronous, so another call may have caused it.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
        /// Its name.
        name: String,
        /// The driver's description.
        message: String,
    },
}

/// Errors that destroy the context: every later call fails until the process ends.
const STICKY: [CUresult; 19] = [
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_CONTAINED,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
    CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_UNKNOWN,
];

impl DeviceError {
    /// The stable code that reports and tests use.
    pub fn code(&self) -> &'static str {
        match self {
            DeviceError::NoDriver => "no_driver",
            DeviceError::DriverTooOld { .. } => "driver_too_old",
            DeviceError::NoSuchDevice { .. } => "no_device",
            DeviceError::OutOfMemory { .. } => "device_memory",
            DeviceError::Range { .. }
            | DeviceError::OtherDevice { .. }
            | DeviceError::Launch { .. }
            | DeviceError::Emulation { .. }
            | DeviceError::Library { .. }
            | DeviceError::Cuda { .. } => "device_error",
        }
    }

    /// Advice for the machine's owner.
    pub fn remedy(&self) -> &'static str {
        match self {
            DeviceError::NoDriver => {
                "install the NVIDIA driver; in a container, expose the driver of the host"
            }
            DeviceError::DriverTooOld { .. } => "install driver release 580 or later",
            DeviceError::NoSuchDevice { .. } => {
                "choose an existing device; CUDA_VISIBLE_DEVICES may hide some"
            }
            DeviceError::OutOfMemory { .. } => "free device memory, or run a smaller batch",
            DeviceError::Range { .. } => "keep the range within the buffer",
            DeviceError::OtherDevice { .. } => "use buffers, streams and kernels only with their own device",
            DeviceError::Library { .. } => "report the program: an accepted product must run",
            DeviceError::Emulation { .. } => {
                "report the program: `docs/internals/emulation.md` lists the faults"
            }
            _ if self.is_sticky() => "restart the process; run with `locate` to find the kernel at fault",
            DeviceError::Launch { status } if status.code == Status::INDEX => {
                "correct the indices: each must be within the axis that its `gather` reads"
            }
            DeviceError::Launch { status } if status.cuda_error().is_none() => {
                "report the program: an accepted kernel must run"
            }
            DeviceError::Launch { .. } | DeviceError::Cuda { .. } => {
                "read the driver's message, and check the device with `nvidia-smi`"
            }
        }
    }

    /// Returns true if this process has lost the device. Every retry fails; the host must restart the process.
    pub fn is_sticky(&self) -> bool {
        let code = match self {
            DeviceError::Cuda { code, .. } => Some(*code),
            DeviceError::Launch { status } => status.cuda_error(),
            _ => None,
        };
        code.is_some_and(|code| STICKY.iter().any(|sticky| *sticky as i32 == code))
    }
}

fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

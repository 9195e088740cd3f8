//! Why a device could not be used.

use cudarc::driver::sys::CUresult;

use crate::kernel::Status;

/// Why a device could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no CUDA driver, or only the stub that programs are linked with.
    #[error("there is no CUDA driver")]
    NoDriver,
    /// The driver is older than the kernels need. Versions are those of `cuDriverGetVersion`: 13000 is CUDA 13.0.
    #[error("the driver is one for CUDA {}; CUDA {} is needed", version(*found), version(*needed))]
    DriverTooOld {
        /// What there is.
        found: u32,
        /// What is needed.
        needed: u32,
    },
    /// There is no device of this number.
    #[error("there is no CUDA device {ordinal}; there are {count}")]
    NoSuchDevice {
        /// What was asked for.
        ordinal: usize,
        /// How many there are, counted from 0.
        count: usize,
    },
    /// The device has no memory left.
    #[error("the device has no room for {bytes} bytes")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
    },
    /// A part of a buffer that it does not have. The caller's fault.
    #[error("a buffer of {len} bytes has no {bytes} bytes at {offset}")]
    Range {
        /// Where the part begins.
        offset: usize,
        /// How long it is.
        bytes: usize,
        /// How long the buffer is.
        len: usize,
    },
    /// Two things of different devices were given for one call. The caller's fault.
    #[error("the {what} is one of another device")]
    OtherDevice {
        /// What it is, as `buffer` or `stream`.
        what: &'static str,
    },
    /// A kernel could not be loaded or launched, and the driver itself has nothing to say about it.
    #[error("the launch failed: {status}")]
    Launch {
        /// What the kernel answered.
        status: Status,
    },
    /// A call of the driver failed, or what ran before it did.
    #[error("{call} failed: {name} ({code}): {message}")]
    Cuda {
        /// The call that reported it. Work runs behind the host's back, so it need not be the call that caused it.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
        /// Its name.
        name: String,
        /// What the driver says about it.
        message: String,
    },
}

/// After these the context is lost: every later call fails, until the process ends.
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
            | DeviceError::Cuda { .. } => "device_error",
        }
    }

    /// What whoever has the machine can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            DeviceError::NoDriver => "install NVIDIA's driver, or, in a container, let it see the host's",
            DeviceError::DriverTooOld { .. } => "install a driver of release 580 or later",
            DeviceError::NoSuchDevice { .. } => {
                "choose one that is there; CUDA_VISIBLE_DEVICES may hide some"
            }
            DeviceError::OutOfMemory { .. } => "free memory of the device, or run a smaller batch",
            DeviceError::Range { .. } => "stay within the buffer",
            DeviceError::OtherDevice { .. } => "use what belongs to one device with that device",
            _ if self.is_sticky() => "start the process anew; run with `locate` to see which kernel it was",
            DeviceError::Launch { status } if status.cuda_error().is_none() => {
                "report the program: an accepted kernel must run"
            }
            DeviceError::Launch { .. } | DeviceError::Cuda { .. } => {
                "see what the driver says; `nvidia-smi` shows whether the device is well"
            }
        }
    }

    /// Whether the device is lost to this process: a host then has to restart it, and whatever it tries again before
    /// that fails.
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

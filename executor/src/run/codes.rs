//! The stable codes of why a kernel does not run, apart from those of a constraint that a call does not meet and those
//! of a kernel that could not be had.

/// A kernel has no device to run on, or is not one for the device that there is.
pub const NO_DEVICE: &str = "no_device";
/// No kernel was given for a kernel segment.
pub const NOT_BUILT: &str = "not_built";
/// A kernel is still being built in the background.
pub const BUILDING: &str = "building";
/// A kernel does not take a problem that its plan accepted, or is not the plan's: a bug of ours, or of whoever chose it.
pub const KERNEL_REFUSED: &str = "kernel_refused";
/// The device has no memory for a kernel or its operands.
pub const DEVICE_MEMORY: &str = "device_memory";
/// The device failed.
pub const DEVICE_ERROR: &str = "device_error";
/// A program with a segment that no kernel computes was to be prepared.
pub const FALLBACK_SEGMENT: &str = "fallback_segment";
/// The partition has no such segment.
pub const NO_SUCH_SEGMENT: &str = "no_such_segment";
/// A value has no address, or nothing makes it.
pub const MISSING_ADDRESS: &str = "missing_address";
/// An address is not the multiple that a kernel needs.
pub const POINTER_ALIGNMENT: &str = "pointer_alignment";
/// The workspace is too small.
pub const WORKSPACE_SIZE: &str = "workspace_size";
/// What a kernel writes is something else as well.
pub const ALIAS: &str = "alias";

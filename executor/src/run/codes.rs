//! Stable codes for kernels that do not run. Unmet constraints and failed builds have their own codes.

/// There is no device, or the kernel is for another one.
pub const NO_DEVICE: &str = "no_device";
/// A kernel segment has no kernel.
pub const NOT_BUILT: &str = "not_built";
/// The kernel is still being built in the background.
pub const BUILDING: &str = "building";
/// The segment computes values that a `choose` does not take with the extents of the call.
pub const NOT_CHOSEN: &str = "not_chosen";
/// The operand of a view is on the host, so there is no device memory to share.
pub const HOST_OPERAND: &str = "host_operand";
/// A kernel rejected a problem that its plan accepted, or does not match the plan: a bug in Fourfold, or a wrong
/// kernel given by the caller.
pub const KERNEL_REFUSED: &str = "kernel_refused";
/// The device is out of memory for a kernel or its operands.
pub const DEVICE_MEMORY: &str = "device_memory";
/// The device failed.
pub const DEVICE_ERROR: &str = "device_error";
/// Preparation was requested for a program with a fallback segment.
pub const FALLBACK_SEGMENT: &str = "fallback_segment";
/// The partition has no segment with this index.
pub const NO_SUCH_SEGMENT: &str = "no_such_segment";
/// A value has no address, or nothing computes it.
pub const MISSING_ADDRESS: &str = "missing_address";
/// An address lacks the alignment that a kernel requires.
pub const POINTER_ALIGNMENT: &str = "pointer_alignment";
/// The workspace is too small.
pub const WORKSPACE_SIZE: &str = "workspace_size";
/// Memory that a kernel writes overlaps other memory.
pub const ALIAS: &str = "alias";

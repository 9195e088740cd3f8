//! The structs of the plug-in interface, which `ort-sys` leaves opaque.
//!
//! They have the members of API version 23 in their order. ONNX Runtime never reads beyond the members of the version
//! that `ort_version_supported` states. C enums are integers here, because a newer runtime may have more values.

use std::ffi::{c_char, c_void};

use ort_sys::{
    OrtAllocator, OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtKernelContext, OrtKeyValuePairs, OrtLogger,
    OrtMemoryInfo, OrtNode, OrtRunOptions, OrtSessionOptions, OrtStatusPtr,
};

/// The API version that all structs here have.
pub const VERSION: u32 = 23;

/// `EP_SUPPORTED_OPTIMAL` of `OrtCompiledModelCompatibility`.
pub const COMPATIBLE: i32 = 1;
/// `EP_UNSUPPORTED` of `OrtCompiledModelCompatibility`.
pub const INCOMPATIBLE: i32 = 3;

/// A function pointer that ONNX Runtime does not call if it is null, of a member that this provider lacks.
pub type Absent = Option<unsafe extern "system" fn()>;

/// The nodes that a provider takes from a graph.
#[repr(C)]
pub struct EpGraphSupportInfo {
    _opaque: [u8; 0],
}

/// The name of a compiled node, for its state.
#[repr(C)]
pub struct NodeComputeContext {
    _opaque: [u8; 0],
}

/// `OrtNodeFusionOptions`.
#[repr(C)]
pub struct NodeFusionOptions {
    pub version: u32,
    pub drop_constant_initializers: bool,
}

/// The first members of `OrtEpApi`.
#[repr(C)]
pub struct EpApi {
    pub create_ep_device: unsafe extern "system" fn(
        *mut EpFactory,
        *const OrtHardwareDevice,
        *const OrtKeyValuePairs,
        *const OrtKeyValuePairs,
        *mut *mut OrtEpDevice,
    ) -> OrtStatusPtr,
    pub release_ep_device: unsafe extern "system" fn(*mut OrtEpDevice),
    pub add_nodes_to_fuse: unsafe extern "system" fn(
        *mut EpGraphSupportInfo,
        *const *const OrtNode,
        usize,
        *const NodeFusionOptions,
    ) -> OrtStatusPtr,
}

/// `OrtEpFactory`.
#[repr(C)]
pub struct EpFactory {
    pub version: u32,
    pub get_name: unsafe extern "system" fn(*const EpFactory) -> *const c_char,
    pub get_vendor: unsafe extern "system" fn(*const EpFactory) -> *const c_char,
    pub get_supported_devices: unsafe extern "system" fn(
        *mut EpFactory,
        *const *const OrtHardwareDevice,
        usize,
        *mut *mut OrtEpDevice,
        usize,
        *mut usize,
    ) -> OrtStatusPtr,
    pub create_ep: unsafe extern "system" fn(
        *mut EpFactory,
        *const *const OrtHardwareDevice,
        *const *const OrtKeyValuePairs,
        usize,
        *const OrtSessionOptions,
        *const OrtLogger,
        *mut *mut Ep,
    ) -> OrtStatusPtr,
    pub release_ep: unsafe extern "system" fn(*mut EpFactory, *mut Ep),
    pub get_vendor_id: unsafe extern "system" fn(*const EpFactory) -> u32,
    pub get_version: unsafe extern "system" fn(*const EpFactory) -> *const c_char,
    pub validate_compatibility: unsafe extern "system" fn(
        *mut EpFactory,
        *const *const OrtHardwareDevice,
        usize,
        *const c_char,
        *mut i32,
    ) -> OrtStatusPtr,
    pub create_allocator: unsafe extern "system" fn(
        *mut EpFactory,
        *const OrtMemoryInfo,
        *const OrtKeyValuePairs,
        *mut *mut OrtAllocator,
    ) -> OrtStatusPtr,
    pub release_allocator: unsafe extern "system" fn(*mut EpFactory, *mut OrtAllocator),
    pub create_data_transfer: unsafe extern "system" fn(*mut EpFactory, *mut *mut c_void) -> OrtStatusPtr,
    pub is_stream_aware: unsafe extern "system" fn(*const EpFactory) -> bool,
    pub create_sync_stream: unsafe extern "system" fn(
        *mut EpFactory,
        *const c_void,
        *const OrtKeyValuePairs,
        *mut *mut c_void,
    ) -> OrtStatusPtr,
}

/// `OrtEp`.
#[repr(C)]
pub struct Ep {
    pub version: u32,
    pub get_name: unsafe extern "system" fn(*const Ep) -> *const c_char,
    pub get_capability:
        unsafe extern "system" fn(*mut Ep, *const OrtGraph, *mut EpGraphSupportInfo) -> OrtStatusPtr,
    pub compile: unsafe extern "system" fn(
        *mut Ep,
        *const *const OrtGraph,
        *const *const OrtNode,
        usize,
        *mut *mut NodeComputeInfo,
        *mut *mut OrtNode,
    ) -> OrtStatusPtr,
    pub release_node_compute_infos: unsafe extern "system" fn(*mut Ep, *mut *mut NodeComputeInfo, usize),
    pub get_preferred_data_layout: Absent,
    pub should_convert_data_layout_for_op: Absent,
    pub set_dynamic_options: Absent,
    pub on_run_start: Option<unsafe extern "system" fn(*mut Ep, *const OrtRunOptions) -> OrtStatusPtr>,
    pub on_run_end: Option<unsafe extern "system" fn(*mut Ep, *const OrtRunOptions, bool) -> OrtStatusPtr>,
    pub create_allocator: Absent,
    pub create_sync_stream: Absent,
    pub get_compatibility: unsafe extern "system" fn(*mut Ep, *const OrtGraph) -> *const c_char,
}

/// `OrtNodeComputeInfo`.
#[repr(C)]
pub struct NodeComputeInfo {
    pub version: u32,
    pub create_state: unsafe extern "system" fn(
        *mut NodeComputeInfo,
        *mut NodeComputeContext,
        *mut *mut c_void,
    ) -> OrtStatusPtr,
    pub compute:
        unsafe extern "system" fn(*mut NodeComputeInfo, *mut c_void, *mut OrtKernelContext) -> OrtStatusPtr,
    pub release_state: unsafe extern "system" fn(*mut NodeComputeInfo, *mut c_void),
}

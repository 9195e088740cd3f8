//! The types of `include/fourfold.h`, field for field. The header documents them.
#![allow(missing_docs, reason = "the header documents the fields")]

use std::ffi::{c_char, c_void};

/// Handles that only the library looks into.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name([u8; 0]);
    )*};
}

opaque! { Error Backend Report Module Info Session Prepared }

/// The version of the interface.
pub const VERSION: Version = Version { major: 1, minor: 0 };

pub const FEATURE_CUDA: u32 = 1 << 0;
pub const FEATURE_CPU_FALLBACK: u32 = 1 << 1;

pub const TIER_KERNEL: u32 = 0;
pub const TIER_DEVICE: u32 = 1;
pub const TIER_FALLBACK: u32 = 2;
pub const TIER_REMOVED: u32 = 3;

pub const LAYOUT_NONE: u32 = 0;
pub const LAYOUT_LINEAR: u32 = 1;
pub const LAYOUT_BLOCKED: u32 = 2;

pub const PORT_PARAM: u32 = 1 << 0;

pub const COMPILE_IN_BACKGROUND: u32 = 1 << 0;

/// DLPack's device types.
pub const DEVICE_CPU: i32 = 1;
pub const DEVICE_CUDA: i32 = 2;
pub const DEVICE_CUDA_HOST: i32 = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Str {
    pub ptr: *const c_char,
    pub len: usize,
}

impl Str {
    /// Text of ours, for as long as it lives.
    pub const fn of(text: &str) -> Str {
        Str { ptr: text.as_ptr().cast(), len: text.len() }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OptionEntry {
    pub key: Str,
    pub value: Str,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorDevice {
    pub kind: i32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorView {
    pub data: *mut c_void,
    pub device: TensorDevice,
    pub ndim: i32,
    pub dtype: DataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    pub op: u32,
    pub segment: u32,
    pub tier: u32,
    pub reserved: u32,
    pub name: Str,
    pub reason: Str,
    pub message: Str,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub tier: u32,
    pub op_count: u32,
    pub name: Str,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub name: Str,
    pub ty: Str,
    pub shape: *const i64,
    pub ndim: i32,
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
    pub layout: u32,
    pub flags: u32,
    pub bytes: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SymbolExtent {
    pub name: Str,
    pub extent: i64,
}

/// Receives progress lines.
pub type LogFn = unsafe extern "C" fn(user: *mut c_void, level: i32, line: Str);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BackendCreateArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub options: *const OptionEntry,
    pub option_count: usize,
    pub log: Option<LogFn>,
    pub log_user: *mut c_void,
    pub backend: *mut Backend,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuerySupportArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub backend: *mut Backend,
    pub ir: Str,
    pub report: *mut Report,
    pub decisions: *const Decision,
    pub decision_count: usize,
    pub segments: *const Segment,
    pub segment_count: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CompileArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub backend: *mut Backend,
    pub ir: Str,
    pub flags: u32,
    pub reserved: u32,
    pub module: *mut Module,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModuleWaitArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub module: *mut Module,
    pub timeout_ms: i64,
    pub is_ready: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModuleInfoArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub module: *const Module,
    pub symbols: *const SymbolExtent,
    pub symbol_count: usize,
    pub info: *mut Info,
    pub inputs: *const Port,
    pub outputs: *const Port,
    pub input_count: usize,
    pub output_count: usize,
    pub symbol_names: *const Str,
    pub symbol_name_count: usize,
    pub workspace_size: i64,
    pub workspace_align: usize,
    pub is_ready: u32,
    pub is_capturable: u32,
    pub why_not: Str,
    pub compat: Str,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExecuteArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub module: *const Module,
    pub inputs: *const TensorView,
    pub outputs: *const TensorView,
    pub input_count: usize,
    pub output_count: usize,
    pub stream: *mut c_void,
    pub symbols: *const SymbolExtent,
    pub symbol_count: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SessionCreateArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub module: *mut Module,
    pub params: *const TensorView,
    pub param_count: usize,
    pub symbols: *const SymbolExtent,
    pub symbol_count: usize,
    pub session: *mut Session,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SessionRunArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub session: *mut Session,
    pub inputs: *const TensorView,
    pub outputs: *const TensorView,
    pub input_count: usize,
    pub output_count: usize,
    pub was_prepared: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PrepareArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub module: *mut Module,
    pub session: *mut Session,
    pub symbols: *const SymbolExtent,
    pub symbol_count: usize,
    pub inputs: *const *mut c_void,
    pub outputs: *const *mut c_void,
    pub input_count: usize,
    pub output_count: usize,
    pub workspace: *mut c_void,
    pub workspace_size: usize,
    pub stream: *mut c_void,
    pub prepared: *mut Prepared,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchArgs {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub prepared: *mut Prepared,
    pub inputs: *const *mut c_void,
    pub outputs: *const *mut c_void,
    pub input_count: usize,
    pub output_count: usize,
    pub stream: *mut c_void,
}

/// The table of functions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Api {
    pub struct_size: usize,
    pub ext: *mut c_void,
    pub version: Version,
    pub features: u32,
    pub reserved: u32,
    pub name: Str,
    pub error_destroy: unsafe extern "C" fn(*mut Error),
    pub error_code: unsafe extern "C" fn(*const Error) -> i32,
    pub error_message: unsafe extern "C" fn(*const Error) -> Str,
    pub error_reason: unsafe extern "C" fn(*const Error) -> Str,
    pub backend_create: unsafe extern "C" fn(*mut BackendCreateArgs) -> *mut Error,
    pub backend_destroy: unsafe extern "C" fn(*mut Backend),
    pub backend_target: unsafe extern "C" fn(*const Backend) -> Str,
    pub query_support: unsafe extern "C" fn(*mut QuerySupportArgs) -> *mut Error,
    pub report_destroy: unsafe extern "C" fn(*mut Report),
    pub compile: unsafe extern "C" fn(*mut CompileArgs) -> *mut Error,
    pub module_wait: unsafe extern "C" fn(*mut ModuleWaitArgs) -> *mut Error,
    pub module_cancel: unsafe extern "C" fn(*mut Module),
    pub module_info: unsafe extern "C" fn(*mut ModuleInfoArgs) -> *mut Error,
    pub info_destroy: unsafe extern "C" fn(*mut Info),
    pub module_destroy: unsafe extern "C" fn(*mut Module),
    pub execute: unsafe extern "C" fn(*const ExecuteArgs) -> *mut Error,
    pub session_create: unsafe extern "C" fn(*mut SessionCreateArgs) -> *mut Error,
    pub session_run: unsafe extern "C" fn(*mut SessionRunArgs) -> *mut Error,
    pub session_destroy: unsafe extern "C" fn(*mut Session),
    pub prepare: unsafe extern "C" fn(*mut PrepareArgs) -> *mut Error,
    pub launch: unsafe extern "C" fn(*const LaunchArgs) -> *mut Error,
    pub prepared_fault: unsafe extern "C" fn(*mut Prepared) -> *mut Error,
    pub prepared_destroy: unsafe extern "C" fn(*mut Prepared),
}

// SAFETY: the table is never written, and its pointers are functions and static text.
unsafe impl Sync for Api {}

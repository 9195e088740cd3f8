//! The C interface of Fourfold.
//!
//! `include/fourfold.h` is authoritative: it documents every function and field, and [`abi`] repeats its types. The
//! library exports [`fourfold_plugin_query`] only, which returns the table of functions. Rust hosts use the crate
//! `fourfold`.
//!
//! Every function catches panics, checks the sizes of structs ([`memory`]), and returns an error object ([`error`]).

pub mod abi;
pub mod backend;
pub mod error;
pub mod execute;
pub mod handles;
pub mod info;
pub mod memory;
pub mod module;
pub mod prepared;
pub mod report;
pub mod session;
mod tensor;

use abi::{Api, FEATURE_CPU_FALLBACK, FEATURE_CUDA, VERSION, Version};

static API: Api = Api {
    struct_size: size_of::<Api>(),
    ext: std::ptr::null_mut(),
    version: VERSION,
    features: FEATURE_CUDA | FEATURE_CPU_FALLBACK,
    reserved: 0,
    name: abi::Str::of(concat!("fourfold ", env!("CARGO_PKG_VERSION"))),
    error_destroy: error::error_destroy,
    error_code: error::error_code,
    error_message: error::error_message,
    error_reason: error::error_reason,
    backend_create: backend::backend_create,
    backend_destroy: backend::backend_destroy,
    backend_target: backend::backend_target,
    query_support: report::query_support,
    report_destroy: report::report_destroy,
    compile: module::compile,
    module_wait: module::module_wait,
    module_cancel: module::module_cancel,
    module_info: info::module_info,
    info_destroy: info::info_destroy,
    module_destroy: module::module_destroy,
    execute: execute::execute,
    session_create: session::session_create,
    session_run: session::session_run,
    session_destroy: session::session_destroy,
    prepare: prepared::prepare,
    launch: prepared::launch,
    prepared_fault: prepared::prepared_fault,
    prepared_destroy: prepared::prepared_destroy,
};

/// Returns the table of functions, or null if `max.major` is not this library's.
#[unsafe(no_mangle)]
pub extern "C" fn fourfold_plugin_query(max: Version) -> *const Api {
    if max.major == VERSION.major { &raw const API } else { std::ptr::null() }
}

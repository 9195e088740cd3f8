//! Fourfold as a plug-in execution provider of ONNX Runtime.
//!
//! ONNX Runtime loads the library, and calls [`CreateEpFactories`]. The factory creates a provider for each session.
//!
//! ```text
//! abi, error <- api <- guard, options, graph <- region, serialize <- program <- context, compute <- provider <- factory
//! ```
//!
//! The provider grows regions of nodes from quantized products (`region`). It writes each region as an ONNX file
//! (`serialize`), which `fourfold-import` translates (`program`), and asks the decisions of Fourfold. Nodes that
//! have no equivalent, or would run on the fallback, stay with ONNX Runtime.

mod abi;
mod api;
mod compute;
mod context;
mod error;
mod factory;
mod graph;
mod guard;
mod options;
mod program;
mod provider;
mod region;
mod serialize;

use std::ffi::c_char;

use ort_sys::{OrtApiBase, OrtLogger, OrtStatusPtr};

use crate::abi::EpFactory;

/// Creates the factory of the provider.
///
/// # Safety
/// ONNX Runtime calls this, with the pointers that its header describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const OrtApiBase,
    _logger: *const OrtLogger,
    factories: *mut *mut EpFactory,
    max: usize,
    count: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the caller vouches for the pointers.
    unsafe { factory::create_ep_factories(base, factories, max, count) }
}

/// Releases a factory of [`CreateEpFactories`].
///
/// # Safety
/// ONNX Runtime calls this, once per factory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut EpFactory) -> OrtStatusPtr {
    // SAFETY: the caller vouches for the pointer.
    unsafe { factory::release_ep_factory(factory) }
}

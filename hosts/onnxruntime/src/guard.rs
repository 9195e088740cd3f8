//! The guard around every call of ONNX Runtime, which turns errors and panics into statuses.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ort_sys::{OrtErrorCode, OrtStatusPtr};

use crate::api::Api;
use crate::error::ProviderError;

/// Runs the body of a call. Returns null, or a status that ONNX Runtime owns. No panic crosses the border.
pub fn guard(api: Api, body: impl FnOnce() -> Result<(), ProviderError>) -> OrtStatusPtr {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OrtStatusPtr(ptr::null_mut()),
        Ok(Err(error)) => api.status(error.code(), &format!("Fourfold: {error}")),
        Err(payload) => {
            let message = format!("bug: a panic in Fourfold: {}; please report the model", said(&*payload));
            api.status(OrtErrorCode::ORT_RUNTIME_EXCEPTION, &message)
        }
    }
}

/// Runs the body of a call that returns no status. A panic is swallowed.
pub fn guard_silently(body: impl FnOnce()) {
    // The payload may panic when it is dropped.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        std::mem::forget(payload);
    }
}

fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

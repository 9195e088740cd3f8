//! Errors of ops, which become exceptions of PyTorch.

use std::fmt::Display;

use fourfold_capi::abi::{self, Api};

/// An error of an op.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument is wrong.
    #[error("{0}")]
    Argument(String),
    /// The C interface refused a call.
    #[error("{message} [{reason}]")]
    Fourfold {
        /// The stable code of the reason, or `error` if there is none.
        reason: String,
        /// The message.
        message: String,
    },
    /// libtorch refused a call. It has printed the reason to its log.
    #[error("libtorch refused {0}")]
    Torch(&'static str),
    /// A bug in this library.
    #[error("bug: {0}; please report the call")]
    Bug(String),
}

impl Error {
    /// An argument is wrong.
    pub fn argument(message: impl Into<String>) -> Error {
        Error::Argument(message.into())
    }

    /// An argument has a value that is not among those expected.
    pub fn unknown(what: &str, value: impl Display, expected: &str) -> Error {
        Error::Argument(format!("{what} is {value}; expected {expected}"))
    }
}

/// Turns the result of a C function into a `Result`, and frees the error.
///
/// # Safety
/// The error is null, or was returned by a function of `api` and is not used again.
pub unsafe fn check(api: &Api, error: *mut abi::Error) -> Result<(), Error> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller vouches for the error, and its text is copied before it is freed.
    let (reason, message) = unsafe {
        let texts = ((api.error_reason)(error), (api.error_message)(error));
        let owned = (copy(texts.0), copy(texts.1));
        (api.error_destroy)(error);
        owned
    };
    let reason = if reason.is_empty() { "error".to_owned() } else { reason };
    Err(Error::Fourfold { reason, message })
}

/// # Safety
/// The text is live.
unsafe fn copy(text: fourfold_capi::abi::Str) -> String {
    if text.len == 0 {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { std::slice::from_raw_parts(text.ptr.cast::<u8>(), text.len) };
    String::from_utf8_lossy(bytes).into_owned()
}

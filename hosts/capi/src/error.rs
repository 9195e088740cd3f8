//! Errors as objects of the interface, and the guard around every call.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fourfold::ir::{Diagnostic, TensorError};
use fourfold::{Fault, Refused, chain, executor};

use crate::abi::{self, Str};
use crate::handles::{destroy, give, handles, look};

/// The code of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The program, a tensor or an argument is wrong.
    InvalidArgument = 3,
    /// Memory, disk or processes ran out.
    ResourceExhausted = 8,
    /// No driver, no device, or a kernel that is not built here.
    FailedPrecondition = 9,
    /// Fourfold cannot do this.
    Unimplemented = 12,
    /// A bug in Fourfold.
    Internal = 13,
}

/// The reason that a call failed.
#[derive(Debug)]
pub struct ErrorHandle {
    code: Code,
    reason: String,
    message: String,
}

handles! { ErrorHandle = Error "error" }

impl ErrorHandle {
    /// An error with a stable reason code and a message.
    pub fn new(code: Code, reason: &str, message: impl Into<String>) -> ErrorHandle {
        ErrorHandle { code, reason: reason.to_owned(), message: message.into() }
    }

    /// An argument is wrong.
    pub fn argument(message: impl Into<String>) -> ErrorHandle {
        ErrorHandle::new(Code::InvalidArgument, "invalid_argument", message)
    }

    /// The errors of a program's text.
    pub fn program(diagnostics: &[Diagnostic], source: &str) -> ErrorHandle {
        let reason = diagnostics.first().map_or("", |diagnostic| diagnostic.code);
        let shown: Vec<String> =
            diagnostics.iter().map(|diagnostic| diagnostic.render("program", source)).collect();
        ErrorHandle::new(Code::InvalidArgument, reason, shown.concat().trim_end())
    }

    fn internal(payload: &(dyn Any + Send)) -> ErrorHandle {
        let said = payload.downcast_ref::<&str>().copied();
        let said =
            said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let message = format!("bug: a panic in Fourfold: {said}; please report the program");
        ErrorHandle::new(Code::Internal, "panic", message)
    }
}

impl From<fourfold::Error> for ErrorHandle {
    fn from(error: fourfold::Error) -> ErrorHandle {
        let fault = error.fault();
        let code = match fault {
            Fault::InvalidInput => Code::InvalidArgument,
            Fault::Unsupported => Code::Unimplemented,
            Fault::ResourceLimit => Code::ResourceExhausted,
            Fault::Device | Fault::Environment => Code::FailedPrecondition,
            Fault::Bug => Code::Internal,
        };
        ErrorHandle::new(code, fault.name(), chain(&error))
    }
}

impl From<fourfold::ir::BindError> for ErrorHandle {
    fn from(error: fourfold::ir::BindError) -> ErrorHandle {
        fourfold::Error::from(error).into()
    }
}

impl From<fourfold::DeviceError> for ErrorHandle {
    fn from(error: fourfold::DeviceError) -> ErrorHandle {
        let code = match error.code() {
            executor::DEVICE_MEMORY => Code::ResourceExhausted,
            _ => Code::FailedPrecondition,
        };
        ErrorHandle::new(code, error.code(), format!("{error}: {}", error.remedy()))
    }
}

impl From<Refused> for ErrorHandle {
    fn from(refused: Refused) -> ErrorHandle {
        let code = match refused.code {
            executor::DEVICE_MEMORY => Code::ResourceExhausted,
            executor::MISSING_ADDRESS
            | executor::POINTER_ALIGNMENT
            | executor::WORKSPACE_SIZE
            | executor::ALIAS => Code::InvalidArgument,
            executor::KERNEL_REFUSED => Code::Internal,
            executor::NO_DEVICE | executor::NOT_BUILT | executor::BUILDING | executor::DEVICE_ERROR => {
                Code::FailedPrecondition
            }
            _ => Code::Unimplemented,
        };
        let place = refused.segment.map_or(String::new(), |segment| format!("segment {segment}: "));
        ErrorHandle::new(code, refused.code, format!("{place}{}", refused.message))
    }
}

impl From<TensorError> for ErrorHandle {
    fn from(error: TensorError) -> ErrorHandle {
        let code = if error.is_resource_limit() { Code::ResourceExhausted } else { Code::InvalidArgument };
        ErrorHandle::new(code, "tensor", error.to_string())
    }
}

/// Runs the body of a call. Returns null or an error, which the caller owns. No panic crosses the border.
pub fn guard(body: impl FnOnce() -> Result<(), ErrorHandle>) -> *mut abi::Error {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(error)) => error,
        Err(payload) => ErrorHandle::internal(&*payload),
    };
    give(error)
}

/// Frees an error.
///
/// # Safety
/// The pointer is null or a live error, and is not used again.
pub unsafe extern "C" fn error_destroy(error: *mut abi::Error) {
    // SAFETY: the caller vouches for it.
    unsafe { destroy::<ErrorHandle>(error) }
}

/// The code of an error; 0 for null.
///
/// # Safety
/// The pointer is null or a live error.
pub unsafe extern "C" fn error_code(error: *const abi::Error) -> i32 {
    // SAFETY: the caller vouches for it.
    unsafe { look::<ErrorHandle>(error) }.map_or(0, |error| error.code as i32)
}

/// The message of an error; empty for null.
///
/// # Safety
/// The pointer is null or a live error.
pub unsafe extern "C" fn error_message(error: *const abi::Error) -> Str {
    // SAFETY: the caller vouches for it.
    unsafe { look::<ErrorHandle>(error) }.map_or(Str::of(""), |error| Str::of(&error.message))
}

/// The reason code of an error; empty for null.
///
/// # Safety
/// The pointer is null or a live error.
pub unsafe extern "C" fn error_reason(error: *const abi::Error) -> Str {
    // SAFETY: the caller vouches for it.
    unsafe { look::<ErrorHandle>(error) }.map_or(Str::of(""), |error| Str::of(&error.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_panic_crosses_the_border() {
        type Body = fn() -> Result<(), ErrorHandle>;
        let bodies: [(Body, &str); 3] = [
            (|| panic!("boom {}", 1), "boom 1"),
            (|| panic!("boom"), "boom"),
            (|| std::panic::panic_any(7), "no message"),
        ];
        for (body, says) in bodies {
            let error = guard(body);
            // SAFETY: the error is live until it is destroyed.
            unsafe {
                assert_eq!(error_code(error), 13);
                let known = look::<ErrorHandle>(error).expect("an error");
                assert!(known.message.contains(says), "{known:?}");
                error_destroy(error);
            }
        }
        assert!(guard(|| Ok(())).is_null());
    }
}

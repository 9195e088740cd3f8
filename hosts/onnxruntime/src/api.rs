//! Calls of ONNX Runtime, whose statuses become errors.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use ort_sys::{
    OrtApi, OrtErrorCode, OrtHardwareDevice, OrtLogger, OrtLoggingLevel, OrtSessionOptions, OrtStatusPtr,
    OrtTensorTypeAndShapeInfo, OrtTypeInfo, OrtValue, OrtValueInfo,
};

use crate::abi::EpApi;
use crate::error::ProviderError;

/// The function tables of ONNX Runtime, which live as long as the process.
#[derive(Clone, Copy)]
pub struct Api {
    pub ort: &'static OrtApi,
    pub ep: &'static EpApi,
}

/// The type and shape of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// The `ONNXTensorElementDataType`.
    pub element: i32,
    /// Extents; an unknown one has a name, which may be empty.
    pub shape: Vec<Extent>,
}

/// An extent.
#[derive(Clone, Debug, PartialEq)]
pub enum Extent {
    Fixed(u64),
    Named(String),
}

/// The severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
}

/// Calls a function of the table, and returns the error of its status.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $api.checked(stringify!($function), ($api.ort.$function)($($argument),*))
    };
}
pub(crate) use call;

impl Api {
    /// Creates a status with a message.
    pub fn status(self, code: OrtErrorCode, message: &str) -> OrtStatusPtr {
        // SAFETY: the message is a C string, which is copied.
        unsafe { (self.ort.CreateStatus)(code, c_string(message).as_ptr()) }
    }

    /// The error of a status, which is released.
    pub fn checked(self, function: &'static str, status: OrtStatusPtr) -> Result<(), ProviderError> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: the status is not null, and owns its message until it is released.
        let message = unsafe { text((self.ort.GetErrorMessage)(status.0)) };
        // SAFETY: statuses that are returned belong to the caller.
        unsafe { (self.ort.ReleaseStatus)(status.0) };
        Err(ProviderError::Runtime { function, message })
    }

    /// Logs a message.
    pub fn log(self, logger: *const OrtLogger, level: Level, message: &str) {
        let message = c_string(message);
        #[cfg(not(windows))]
        let file = c"fourfold".as_ptr();
        #[cfg(windows)]
        let file = [0u16].as_ptr();
        let level = match level {
            Level::Info => OrtLoggingLevel::ORT_LOGGING_LEVEL_INFO,
            Level::Warning => OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING,
        };
        // SAFETY: the logger outlives the provider, and all texts end with a zero.
        let status = unsafe {
            (self.ort.Logger_LogMessage)(logger, level, message.as_ptr(), file, 0, c"fourfold".as_ptr())
        };
        // A message that cannot be logged changes nothing.
        let _ = self.checked("Logger_LogMessage", status);
    }

    /// The kind of a device: 0 is a CPU.
    ///
    /// # Safety
    /// The device is live.
    pub unsafe fn device_type(self, device: *const OrtHardwareDevice) -> i32 {
        type Returning<T> = unsafe extern "system" fn(*const OrtHardwareDevice) -> T;
        // SAFETY: a C enum is returned as an `int`, and may have values that `ort-sys` does not list.
        let function: Returning<i32> = unsafe { std::mem::transmute(self.ort.HardwareDevice_Type) };
        // SAFETY: the caller vouches for the device.
        unsafe { function(device) }
    }

    /// A session option; `None` if it is not set.
    ///
    /// # Safety
    /// The options are live.
    pub unsafe fn session_option(
        self,
        options: *const OrtSessionOptions,
        key: &str,
    ) -> Result<Option<String>, ProviderError> {
        let key = c_string(key);
        let (mut is_set, mut size) = (0, 0);
        // SAFETY: the caller vouches for the options; the buffer has the size that is stated.
        unsafe {
            call!(self, HasSessionConfigEntry(options, key.as_ptr(), &raw mut is_set))?;
            if is_set == 0 {
                return Ok(None);
            }
            call!(self, GetSessionConfigEntry(options, key.as_ptr(), ptr::null_mut(), &raw mut size))?;
            let mut value = vec![0u8; size];
            call!(
                self,
                GetSessionConfigEntry(options, key.as_ptr(), value.as_mut_ptr().cast(), &raw mut size)
            )?;
            value.truncate(size.saturating_sub(1));
            Ok(Some(String::from_utf8_lossy(&value).into_owned()))
        }
    }

    /// The keys of the session options that begin with `prefix`, without it.
    ///
    /// # Safety
    /// The options are live.
    pub unsafe fn session_keys(
        self,
        options: *const OrtSessionOptions,
        prefix: &str,
    ) -> Result<Vec<String>, ProviderError> {
        let (mut pairs, mut keys, mut values, mut count) = (ptr::null_mut(), ptr::null(), ptr::null(), 0);
        // SAFETY: the caller vouches for the options.
        unsafe { call!(self, GetSessionOptionsConfigEntries(options, &raw mut pairs))? };
        // SAFETY: the pairs live until they are released. Their keys are copied before that.
        unsafe {
            (self.ort.GetKeyValuePairs)(pairs, &raw mut keys, &raw mut values, &raw mut count);
            let keys = (0..count).map(|place| text(*keys.add(place)));
            let found = keys.filter_map(|key| key.strip_prefix(prefix).map(str::to_owned)).collect();
            (self.ort.ReleaseKeyValuePairs)(pairs);
            Ok(found)
        }
    }

    /// The name of a value.
    ///
    /// # Safety
    /// The value is live.
    pub unsafe fn value_name(self, value: *const OrtValueInfo) -> Result<String, ProviderError> {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the caller vouches for the value, which owns the name.
        unsafe {
            call!(self, GetValueInfoName(value, &raw mut name))?;
            Ok(text(name))
        }
    }

    /// The type of a value; `None` if it is no tensor, or has no known rank.
    ///
    /// # Safety
    /// The value is live.
    pub unsafe fn value_type(self, value: *const OrtValueInfo) -> Result<Option<Type>, ProviderError> {
        let mut info: *const OrtTypeInfo = ptr::null();
        let mut tensor: *const OrtTensorTypeAndShapeInfo = ptr::null();
        // SAFETY: the caller vouches for the value, which owns the information.
        unsafe {
            call!(self, GetValueInfoTypeInfo(value, &raw mut info))?;
            if info.is_null() {
                return Ok(None);
            }
            call!(self, CastTypeInfoToTensorInfo(info, &raw mut tensor))?;
            if tensor.is_null() { Ok(None) } else { self.tensor_type(tensor).map(Some) }
        }
    }

    /// The type of a tensor.
    ///
    /// # Safety
    /// The information is live.
    pub unsafe fn tensor_type(self, info: *const OrtTensorTypeAndShapeInfo) -> Result<Type, ProviderError> {
        let (mut element, mut rank) = (0i32, 0usize);
        // SAFETY: the caller vouches for the information; the lists have the length that is stated. The enum is written
        // to an integer of its size.
        unsafe {
            call!(self, GetTensorElementType(info, (&raw mut element).cast()))?;
            call!(self, GetDimensionsCount(info, &raw mut rank))?;
            let (mut extents, mut names) = (vec![0i64; rank], vec![ptr::null::<c_char>(); rank]);
            call!(self, GetDimensions(info, extents.as_mut_ptr(), rank))?;
            call!(self, GetSymbolicDimensions(info, names.as_mut_ptr(), rank))?;
            let shape = extents.into_iter().zip(names).map(|(extent, name)| match u64::try_from(extent) {
                Ok(extent) => Extent::Fixed(extent),
                Err(_) => Extent::Named(text(name)),
            });
            Ok(Type { element, shape: shape.collect() })
        }
    }

    /// The type and the address of a tensor on the host.
    ///
    /// # Safety
    /// The tensor is live.
    pub unsafe fn tensor(self, value: *const OrtValue) -> Result<(Type, *const u8), ProviderError> {
        let mut info: *mut OrtTensorTypeAndShapeInfo = ptr::null_mut();
        let mut data: *mut c_void = ptr::null_mut();
        // SAFETY: the caller vouches for the tensor, which the call does not change. The information belongs to us.
        unsafe {
            call!(self, GetTensorTypeAndShape(value, &raw mut info))?;
            let ty = self.tensor_type(info);
            (self.ort.ReleaseTensorTypeAndShapeInfo)(info);
            call!(self, GetTensorMutableData(value.cast_mut(), &raw mut data))?;
            Ok((ty?, data.cast_const().cast()))
        }
    }
}

/// A C string as text; empty if it is null.
///
/// # Safety
/// The string is null or ends with a zero.
pub unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for the string.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// An array of C as a slice.
///
/// # Safety
/// The pointer is null, or points to so many elements, which nothing changes during `'a`.
pub unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    if pointer.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}

/// A C string without the zero bytes of a text.
pub fn c_string(text: &str) -> CString {
    let bytes = text.bytes().filter(|byte| *byte != 0).collect::<Vec<u8>>();
    CString::new(bytes).unwrap_or_default()
}

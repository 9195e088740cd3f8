//! The factory of the provider, and the entry points of the library.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use ort_sys::{
    OrtAllocator, OrtApiBase, OrtEpDevice, OrtErrorCode, OrtHardwareDevice, OrtKeyValuePairs, OrtLogger,
    OrtMemoryInfo, OrtSessionOptions, OrtStatusPtr,
};

use crate::abi::{COMPATIBLE, Ep, EpFactory, INCOMPATIBLE, VERSION};
use crate::api::{Api, slice, text};
use crate::context;
use crate::error::ProviderError;
use crate::guard::{guard, guard_silently};
use crate::options::{NAME, Options};
use crate::provider::Provider;

const VENDOR: &CStr = c"Fourfold";
const PROVIDER_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The factory, which ONNX Runtime knows by its first member.
#[repr(C)]
struct Factory {
    base: EpFactory,
    api: Api,
}

/// The API of a factory.
///
/// # Safety
/// The pointer is one that [`create_ep_factories`] returned.
unsafe fn api_of(factory: *const EpFactory) -> Api {
    // SAFETY: the factory is the first member of a `Factory`.
    unsafe { (*factory.cast::<Factory>()).api }
}

/// Creates the factory. ONNX Runtime calls this once, when the library is registered.
///
/// # Safety
/// As the header of ONNX Runtime says: the pointers are valid, and `factories` has room for `max` of them.
pub unsafe fn create_ep_factories(
    base: *const OrtApiBase,
    factories: *mut *mut EpFactory,
    max: usize,
    count: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime vouches for the table of versions, whose tables live as long as the process.
    let Some(ort) = (unsafe { ((*base).GetApi)(VERSION).as_ref() }) else {
        // SAFETY: every runtime has version 1, which is a prefix of later ones.
        return match unsafe { ((*base).GetApi)(1).as_ref() } {
            // SAFETY: the message is a C string.
            Some(ort) => unsafe {
                let message = c"Fourfold needs ONNX Runtime 1.24 or newer; update onnxruntime";
                (ort.CreateStatus)(OrtErrorCode::ORT_NOT_IMPLEMENTED, message.as_ptr())
            },
            None => OrtStatusPtr(ptr::null_mut()),
        };
    };
    // SAFETY: the table of version 23 has the members that `EpApi` declares.
    let ep = unsafe { &*(ort.GetEpApi)().cast() };
    let api = Api { ort, ep };
    guard(api, || {
        if max == 0 {
            let message = "there is no room for a factory".to_owned();
            return Err(ProviderError::Runtime { function: "CreateEpFactories", message });
        }
        let base = EpFactory {
            version: VERSION,
            get_name,
            get_vendor,
            get_supported_devices,
            create_ep,
            release_ep,
            get_vendor_id,
            get_version,
            validate_compatibility,
            create_allocator,
            release_allocator,
            create_data_transfer,
            is_stream_aware,
            create_sync_stream,
        };
        let factory = Box::into_raw(Box::new(Factory { base, api }));
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            *factories = factory.cast();
            *count = 1;
        }
        Ok(())
    })
}

/// Releases a factory.
///
/// # Safety
/// The factory is one that [`create_ep_factories`] returned, and is not used afterwards.
pub unsafe fn release_ep_factory(factory: *mut EpFactory) -> OrtStatusPtr {
    // SAFETY: the caller vouches for it.
    guard_silently(|| drop(unsafe { Box::from_raw(factory.cast::<Factory>()) }));
    OrtStatusPtr(ptr::null_mut())
}

unsafe extern "system" fn get_name(_: *const EpFactory) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "system" fn get_vendor(_: *const EpFactory) -> *const c_char {
    VENDOR.as_ptr()
}

unsafe extern "system" fn get_vendor_id(_: *const EpFactory) -> u32 {
    0
}

unsafe extern "system" fn get_version(_: *const EpFactory) -> *const c_char {
    PROVIDER_VERSION.as_ptr().cast()
}

/// Offers the CPU. Tensors stay on the host; with a GPU, Fourfold copies them for each call.
unsafe extern "system" fn get_supported_devices(
    this: *mut EpFactory,
    devices: *const *const OrtHardwareDevice,
    device_count: usize,
    ep_devices: *mut *mut OrtEpDevice,
    max: usize,
    count: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes its factory, arrays of these lengths, and a place for the count.
    let (api, devices) = unsafe {
        *count = 0;
        (api_of(this), slice(devices, device_count))
    };
    guard(api, || {
        for device in devices {
            // SAFETY: as above.
            unsafe {
                if api.device_type(*device) != 0 || *count >= max {
                    continue;
                }
                let mut made = ptr::null_mut();
                let status =
                    (api.ep.create_ep_device)(this, *device, ptr::null(), ptr::null(), &raw mut made);
                api.checked("CreateEpDevice", status)?;
                *ep_devices.add(*count) = made;
                *count += 1;
            }
        }
        Ok(())
    })
}

unsafe extern "system" fn create_ep(
    this: *mut EpFactory,
    _: *const *const OrtHardwareDevice,
    _: *const *const OrtKeyValuePairs,
    _: usize,
    session: *const OrtSessionOptions,
    logger: *const OrtLogger,
    ep: *mut *mut Ep,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes its factory.
    let api = unsafe { api_of(this) };
    guard(api, || {
        // SAFETY: the options are live during this call, and the logger as long as the provider.
        let provider = unsafe { Provider::new(api, Options::read(api, session)?, logger)? };
        // SAFETY: ONNX Runtime passes a place for the provider.
        unsafe { *ep = Provider::into_raw(provider) };
        Ok(())
    })
}

unsafe extern "system" fn release_ep(_: *mut EpFactory, ep: *mut Ep) {
    // SAFETY: ONNX Runtime passes a provider of `create_ep`, once.
    guard_silently(|| drop(unsafe { Provider::from_raw(ep) }));
}

unsafe extern "system" fn validate_compatibility(
    this: *mut EpFactory,
    _: *const *const OrtHardwareDevice,
    _: usize,
    info: *const c_char,
    compatibility: *mut i32,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes its factory, a C string, and a place for an enum.
    guard(unsafe { api_of(this) }, || unsafe {
        *compatibility = if text(info) == context::COMPATIBILITY { COMPATIBLE } else { INCOMPATIBLE };
        Ok(())
    })
}

unsafe extern "system" fn create_allocator(
    _: *mut EpFactory,
    _: *const OrtMemoryInfo,
    _: *const OrtKeyValuePairs,
    allocator: *mut *mut OrtAllocator,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes a place; null selects its own allocator.
    unsafe { *allocator = ptr::null_mut() };
    OrtStatusPtr(ptr::null_mut())
}

unsafe extern "system" fn release_allocator(_: *mut EpFactory, _: *mut OrtAllocator) {}

unsafe extern "system" fn create_data_transfer(
    _: *mut EpFactory,
    transfer: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes a place; null means that tensors stay on the host.
    unsafe { *transfer = ptr::null_mut() };
    OrtStatusPtr(ptr::null_mut())
}

unsafe extern "system" fn is_stream_aware(_: *const EpFactory) -> bool {
    false
}

unsafe extern "system" fn create_sync_stream(
    _: *mut EpFactory,
    _: *const c_void,
    _: *const OrtKeyValuePairs,
    stream: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes a place; null means no stream.
    unsafe { *stream = ptr::null_mut() };
    OrtStatusPtr(ptr::null_mut())
}

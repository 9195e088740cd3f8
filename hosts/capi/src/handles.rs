//! Handles: values of ours that the caller holds by pointer.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A type whose values the caller holds by pointer, and its opaque type in the header.
pub trait Handle: Sized {
    /// The opaque type.
    type Opaque;
    /// The name in messages.
    const NAME: &'static str;
}

macro_rules! handles {
    ($($ty:ty = $opaque:ident $name:literal)*) => {$(
        impl $crate::handles::Handle for $ty {
            type Opaque = $crate::abi::$opaque;
            const NAME: &'static str = $name;
        }
    )*};
}
pub(crate) use handles;

/// Gives a value to the caller, who destroys it.
pub fn give<T: Handle>(value: T) -> *mut T::Opaque {
    Box::into_raw(Box::new(value)).cast()
}

/// The value behind a pointer; `None` for null.
///
/// # Safety
/// The pointer is null, or came from [`give`] for this type and is not destroyed.
pub unsafe fn look<'a, T: Handle>(pointer: *const T::Opaque) -> Option<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_ref() }
}

/// Frees a value. Takes null. A panic of a destructor is swallowed: nobody could receive it.
///
/// # Safety
/// As for [`look`], and the pointer is not used again.
pub unsafe fn destroy<T: Handle>(pointer: *mut T::Opaque) {
    if !pointer.is_null() {
        // SAFETY: the caller vouches for it.
        let value = unsafe { Box::from_raw(pointer.cast::<T>()) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_panic_leaves_a_destructor() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("boom");
            }
        }
        handles! { Panics = Module "module" }
        let pointer = give(Panics);
        // SAFETY: the pointer is not used again.
        unsafe { destroy::<Panics>(pointer) };
    }
}

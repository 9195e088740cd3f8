//! Modules: compiled programs, at once or in the background.

use std::sync::Arc;
use std::time::Duration;

use fourfold::executor::Cancel;
use fourfold::ir::{Module, Value};
use fourfold::{Compiled, Wait};

use crate::abi::{self, COMPILE_IN_BACKGROUND, CompileArgs, ModuleWaitArgs};
use crate::backend::{BackendHandle, Shared};
use crate::error::{ErrorHandle, guard};
use crate::handles::{destroy, give, handles, look};
use crate::memory::{borrow, handle, read};
use crate::report::plan;

/// A module, shared with the sessions and prepared programs that were made from it.
#[derive(Debug)]
pub struct ModuleHandle(pub(crate) Arc<Built>);

handles! { ModuleHandle = Module "module" }

/// A compiled program, and the backend that compiled it.
#[derive(Debug)]
pub struct Built {
    pub(crate) compiled: Compiled,
    cancel: Cancel,
    _backend: Arc<Shared>,
}

impl Built {
    /// The program that runs. Its inputs and outputs are those of the program as given, in the same order.
    pub(crate) fn module(&self) -> &Module {
        self.compiled.planned().program().module()
    }

    /// The inputs that are params, or the others.
    pub(crate) fn inputs(&self, params: bool) -> Vec<Value> {
        let module = self.module();
        module.inputs.iter().copied().filter(|value| module.is_param(*value) == params).collect()
    }
}

fn compile_program(shared: &Arc<Shared>, source: &str, background: bool) -> Result<Built, ErrorHandle> {
    let planned = plan(shared, source)?;
    let cancel = Cancel::new();
    let mut options = shared.compile.clone();
    options.build.cancel = Some(cancel.clone());
    let log = shared.log;
    let compiled = if background {
        shared.backend.compile_in_background(planned, &options, Arc::new(move |event| log.event(event)))
    } else {
        shared.backend.compile(planned, &options, &|event| log.event(event))
    };
    Ok(Built { compiled, cancel, _backend: Arc::clone(shared) })
}

/// `fourfold_api.compile`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn compile(args: *mut CompileArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let (backend, source) =
            unsafe { (handle::<BackendHandle>(known.backend)?, borrow(known.ir, "the program")?) };
        if known.flags & !COMPILE_IN_BACKGROUND != 0 {
            return Err(ErrorHandle::argument(format!("the flags {:#x} are unknown", known.flags)));
        }
        let built = compile_program(&backend.0, source, known.flags & COMPILE_IN_BACKGROUND != 0)?;
        // SAFETY: `read` has checked that the struct has this field.
        unsafe { (*args).module = give(ModuleHandle(Arc::new(built))) };
        Ok(())
    })
}

/// `fourfold_api.module_wait`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn module_wait(args: *mut ModuleWaitArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let module = unsafe { handle::<ModuleHandle>(known.module)? };
        let wait = match known.timeout_ms {
            0 => Wait::Never,
            -1 => Wait::Forever,
            limit => match u64::try_from(limit) {
                Ok(limit) => Wait::AtMost(Duration::from_millis(limit)),
                Err(_) => {
                    return Err(ErrorHandle::argument(format!("timeout_ms is {limit}; expected -1 or more")));
                }
            },
        };
        let is_ready = module.0.compiled.wait(wait);
        // SAFETY: `read` has checked that the struct has this field.
        unsafe { (*args).is_ready = u32::from(is_ready) };
        Ok(())
    })
}

/// `fourfold_api.module_cancel`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn module_cancel(module: *mut abi::Module) {
    // SAFETY: the caller vouches for it.
    if let Some(module) = unsafe { look::<ModuleHandle>(module) } {
        let error = guard(|| {
            module.0.cancel.cancel();
            Ok(())
        });
        // SAFETY: it is ours. Nobody could receive it.
        unsafe { destroy::<ErrorHandle>(error) }
    }
}

/// `fourfold_api.module_destroy`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn module_destroy(module: *mut abi::Module) {
    // SAFETY: the caller vouches for it.
    unsafe { destroy::<ModuleHandle>(module) }
}

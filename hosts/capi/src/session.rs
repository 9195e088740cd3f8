//! Sessions: repeated calls of a module, whose params are given once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fourfold::ir::Tensor;
use fourfold::ir::bind::solve_symbols;
use fourfold::{DeviceTensor, Session, SessionInput};

use crate::abi::{self, SessionCreateArgs, SessionRunArgs};
use crate::error::{Code, ErrorHandle, guard};
use crate::execute::check_outputs;
use crate::handles::{destroy, give, handles};
use crate::memory::{handle, read};
use crate::module::{Built, ModuleHandle};
use crate::tensor::{Given, given, symbols, to_tensors};

/// A session.
#[derive(Debug)]
pub struct SessionHandle(pub(crate) Arc<Open>);

handles! { SessionHandle = Session "session" }

/// The state of a session, shared with the programs prepared from it.
#[derive(Debug)]
pub struct Open {
    session: Mutex<Session>,
    /// The shapes of the params, in order.
    shapes: Vec<Vec<usize>>,
    extents: Vec<(String, u64)>,
    pub(crate) built: Arc<Built>,
}

impl Open {
    fn new(
        built: Arc<Built>,
        params: HashMap<String, Tensor>,
        shapes: Vec<Vec<usize>>,
        extents: Vec<(String, u64)>,
    ) -> Result<Open, ErrorHandle> {
        let session = built.compiled.session(params)?.with_symbols(extents.clone());
        Ok(Open { session: Mutex::new(session), shapes, extents, built })
    }

    /// Calls a function with the session. Calls are serialized.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Session) -> T) -> T {
        call(&mut self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// # Safety
    /// The memory of the tensors is live and as large as they are, that of outputs writable.
    unsafe fn run(&self, inputs: &[Given<'_>], outputs: &[Given<'_>]) -> Result<bool, ErrorHandle> {
        let module = self.built.module();
        self.check(inputs, outputs)?;
        let device = self.built.compiled.device();
        let on_device = |given: &Given<'_>| match (given.device, device) {
            (None, _) => Ok(None),
            (Some(id), Some(device)) if id == device.gpu().ordinal => {
                let Given { address, element, ref dims, layout, .. } = *given;
                // SAFETY: the caller vouches for the memory.
                Ok(Some(unsafe { DeviceTensor::at(device, address as u64, element, dims.clone(), layout) }))
            }
            (Some(id), _) => Err(ErrorHandle::new(
                Code::FailedPrecondition,
                "no_device",
                format!("the tensor for `%{}` is on device {id}, and the module is not", given.name),
            )),
        };
        let host: Vec<&Given<'_>> = inputs.iter().filter(|given| given.device.is_none()).collect();
        let mut tensors = Vec::with_capacity(host.len());
        for given in &host {
            // SAFETY: as above.
            tensors.push((given.name, unsafe { given.to_tensor()? }));
        }
        let mut call: HashMap<&str, SessionInput<'_>> =
            tensors.iter().map(|(name, tensor)| (*name, tensor.into())).collect();
        for given in inputs {
            if let Some(tensor) = on_device(given)? {
                call.insert(given.name, tensor.into());
            }
        }
        let mut targets = HashMap::new();
        for given in outputs {
            if let Some(tensor) = on_device(given)? {
                targets.insert(given.name, tensor);
            }
        }
        let run = self.with(|session| session.run_to(&call, &targets))?;
        for (output, tensor) in outputs.iter().zip(&run.outputs) {
            match tensor {
                // SAFETY: as above.
                Some(tensor) if output.device.is_none() => unsafe { output.write(tensor)? },
                None if output.device.is_some() => {}
                _ => {
                    let message = format!(
                        "`%{}` of `@{}` is returned twice, on the host and on the device",
                        output.name, module.name
                    );
                    return Err(ErrorHandle::new(Code::Unimplemented, "alias", message));
                }
            }
        }
        Ok(run.refused.is_none())
    }

    /// Checks all extents before anything runs.
    fn check(&self, inputs: &[Given<'_>], outputs: &[Given<'_>]) -> Result<(), ErrorHandle> {
        let module = self.built.module();
        let (mut params, mut others) = (self.shapes.iter(), inputs.iter());
        let shapes: Vec<&[usize]> = (module.inputs.iter())
            .filter_map(|value| match module.is_param(*value) {
                true => params.next().map(Vec::as_slice),
                false => others.next().map(|given| given.dims.as_slice()),
            })
            .collect();
        check_outputs(module, &solve_symbols(module, &shapes, &self.extents)?, outputs)
    }
}

/// `fourfold_api.session_create`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn session_create(args: *mut SessionCreateArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let built = unsafe { &handle::<ModuleHandle>(known.module)?.0 };
        // SAFETY: as above.
        let (params, extents) = unsafe {
            (
                given(built.module(), &built.inputs(true), (known.params, known.param_count), "params")?,
                symbols(known.symbols, known.symbol_count)?,
            )
        };
        if let Some(param) = params.iter().find(|param| param.device.is_some()) {
            let message =
                format!("the param `%{}` is on a device; sessions take params on the host", param.name);
            return Err(ErrorHandle::new(Code::Unimplemented, "device_param", message));
        }
        // SAFETY: as above.
        let tensors = unsafe { to_tensors(&params)? };
        let shapes = params.into_iter().map(|param| param.dims).collect();
        let open = Open::new(Arc::clone(built), tensors, shapes, extents)?;
        // SAFETY: `read` has checked that the struct has this field.
        unsafe { (*args).session = give(SessionHandle(Arc::new(open))) };
        Ok(())
    })
}

/// `fourfold_api.session_run`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn session_run(args: *mut SessionRunArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let open = unsafe { &handle::<SessionHandle>(known.session)?.0 };
        let module = open.built.module();
        // SAFETY: as above.
        let was_prepared = unsafe {
            let inputs =
                given(module, &open.built.inputs(false), (known.inputs, known.input_count), "inputs")?;
            let outputs = given(module, &module.outputs, (known.outputs, known.output_count), "outputs")?;
            open.run(&inputs, &outputs)?
        };
        // SAFETY: `read` has checked that the struct has this field.
        unsafe { (*args).was_prepared = u32::from(was_prepared) };
        Ok(())
    })
}

/// `fourfold_api.session_destroy`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn session_destroy(session: *mut abi::Session) {
    // SAFETY: the caller vouches for it.
    unsafe { destroy::<SessionHandle>(session) }
}

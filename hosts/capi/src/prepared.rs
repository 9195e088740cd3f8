//! Prepared programs: launches on the host's stream, with fresh addresses each time.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use fourfold::ir::Value;
use fourfold::ir::bind::symbols_given;
use fourfold::{Device, Preparation, PreparedProgram};

use crate::abi::{self, LaunchArgs, PrepareArgs};
use crate::error::{Code, ErrorHandle, guard};
use crate::execute::addresses;
use crate::handles::{destroy, give, handles, look};
use crate::memory::{array, handle, read};
use crate::module::{Built, ModuleHandle};
use crate::session::{Open, SessionHandle};
use crate::tensor::{check_count, symbols};

/// A prepared program, and what it was prepared from.
#[derive(Debug)]
pub struct PreparedHandle {
    program: Mutex<PreparedProgram>,
    device: Device,
    inputs: Vec<Value>,
    built: Arc<Built>,
    _session: Option<Arc<Open>>,
}

handles! { PreparedHandle = Prepared "prepared program" }

/// Pairs values with the caller's addresses.
///
/// # Safety
/// The arrays are null, or have as many elements as their counts say.
unsafe fn pairs(
    built: &Built,
    values: &[Value],
    (inputs, input_count): (*const *mut c_void, usize),
    (outputs, output_count): (*const *mut c_void, usize),
) -> Result<Vec<(Value, u64)>, ErrorHandle> {
    let module = built.module();
    check_count(module, "inputs to bind", values.len(), input_count)?;
    check_count(module, "outputs", module.outputs.len(), output_count)?;
    // SAFETY: the caller vouches for it.
    let (inputs, outputs) =
        unsafe { (array(inputs, input_count, "inputs")?, array(outputs, output_count, "outputs")?) };
    let given = inputs.iter().chain(outputs).map(|address| *address as u64);
    addresses(module, values.iter().chain(&module.outputs).copied().zip(given))
}

/// Refuses outputs that depend on params only: a session computes them once, and no launch writes them.
fn check_computed(built: &Built) -> Result<(), ErrorHandle> {
    let module = built.module();
    let constant = module.constant_ops();
    let is_constant = |value: &&Value| {
        use fourfold::ir::Entity;
        module.defining_op(**value).is_some_and(|op| constant[op.index()])
    };
    match module.outputs.iter().find(is_constant) {
        None => Ok(()),
        Some(output) => {
            let name = module.name_of(*output);
            let message = format!(
                "`%{name}` depends on params only, so launches of a session do not write it; prepare the module instead"
            );
            Err(ErrorHandle::new(Code::Unimplemented, "constant_output", message))
        }
    }
}

/// Binds addresses and builds the launches.
///
/// # Safety
/// As for [`Preparation::build`]. The stream is one of the device's primary context, or null.
unsafe fn build(
    preparation: Preparation<'_>,
    device: &Device,
    addresses: Vec<(Value, u64)>,
    args: &PrepareArgs,
) -> Result<PreparedProgram, ErrorHandle> {
    // SAFETY: the caller vouches for the stream.
    let stream = unsafe { device.borrow_stream(args.stream) };
    let mut preparation = preparation.bind_all(addresses);
    if !args.workspace.is_null() {
        preparation = preparation.workspace(args.workspace as u64, args.workspace_size as u64);
    }
    // SAFETY: the caller vouches for the addresses.
    Ok(unsafe { preparation.stream(&stream)?.build()? })
}

/// `fourfold_api.prepare`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn prepare(args: *mut PrepareArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let (module, session) =
            unsafe { (look::<ModuleHandle>(known.module), look::<SessionHandle>(known.session)) };
        let (built, session): (Arc<Built>, Option<Arc<Open>>) = match (module, session) {
            (Some(module), None) => (Arc::clone(&module.0), None),
            (None, Some(session)) => (Arc::clone(&session.0.built), Some(Arc::clone(&session.0))),
            _ => return Err(ErrorHandle::argument("give either a module or a session")),
        };
        let values = if session.is_some() { built.inputs(false) } else { built.module().inputs.clone() };
        // SAFETY: as above.
        let (addresses, extents) = unsafe {
            let (inputs, outputs) = ((known.inputs, known.input_count), (known.outputs, known.output_count));
            (pairs(&built, &values, inputs, outputs)?, symbols(known.symbols, known.symbol_count)?)
        };
        let extents = symbols_given(built.module(), &extents)?;
        let program = match &session {
            None => {
                let preparation = built.compiled.prepare(&extents)?;
                let device = built.compiled.device().ok_or_else(without_device)?;
                // SAFETY: as above.
                unsafe { build(preparation, device, addresses, &known)? }
            }
            Some(open) => {
                check_computed(&built)?;
                open.with(|session| {
                    let preparation = session.prepare(&extents)?;
                    let device = built.compiled.device().ok_or_else(without_device)?;
                    // SAFETY: as above.
                    unsafe { build(preparation, device, addresses, &known) }
                })?
            }
        };
        let device = built.compiled.device().ok_or_else(without_device)?.clone();
        let prepared =
            PreparedHandle { program: Mutex::new(program), device, inputs: values, built, _session: session };
        // SAFETY: `read` has checked that the struct has this field.
        unsafe { (*args).prepared = give(prepared) };
        Ok(())
    })
}

fn without_device() -> ErrorHandle {
    ErrorHandle::new(Code::FailedPrecondition, "no_device", "the module is on no device")
}

/// `fourfold_api.launch`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn launch(args: *const LaunchArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let prepared = unsafe { handle::<PreparedHandle>(known.prepared)? };
        let mut program = prepared.program.lock().unwrap_or_else(PoisonError::into_inner);
        if known.input_count + known.output_count > 0 {
            let (inputs, outputs) = ((known.inputs, known.input_count), (known.outputs, known.output_count));
            // SAFETY: as above.
            let given = unsafe { pairs(&prepared.built, &prepared.inputs, inputs, outputs)? };
            let given: HashMap<Value, u64> = given.into_iter().collect();
            // SAFETY: the caller vouches for the addresses.
            unsafe { program.update_addresses(&given)? };
        }
        // SAFETY: the caller vouches for the stream.
        let stream = unsafe { prepared.device.borrow_stream(known.stream) };
        // SAFETY: the caller vouches for the memory, and keeps the program until the device is done.
        unsafe { program.launch(&stream) }.map_err(ErrorHandle::from)
    })
}

/// `fourfold_api.prepared_fault`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn prepared_fault(prepared: *mut abi::Prepared) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the handle.
        let prepared = unsafe { handle::<PreparedHandle>(prepared)? };
        let mut program = prepared.program.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller has waited for every launch.
        match unsafe { program.fault()? } {
            Some(fault) => Err(fourfold::Error::Run(fault).into()),
            None => Ok(()),
        }
    })
}

/// `fourfold_api.prepared_destroy`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn prepared_destroy(prepared: *mut abi::Prepared) {
    // SAFETY: the caller vouches for it.
    unsafe { destroy::<PreparedHandle>(prepared) }
}

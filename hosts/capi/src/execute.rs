//! Runs of a module: once, on the host or on a device.

use std::collections::HashMap;

use fourfold::Error;
use fourfold::ir::bind::{bind_given, concrete_dims, solve_symbols};
use fourfold::ir::{Module, SymbolValues, Value};

use crate::abi::{self, ExecuteArgs};
use crate::error::{Code, ErrorHandle, guard};
use crate::memory::{handle, read};
use crate::module::{Built, ModuleHandle};
use crate::tensor::{Given, given, symbols, to_tensors};

/// Checks that the outputs have the extents that the inputs imply.
pub(crate) fn check_outputs(
    module: &Module,
    known: &SymbolValues,
    outputs: &[Given<'_>],
) -> Result<(), ErrorHandle> {
    for (value, output) in module.outputs.iter().zip(outputs) {
        output.expect(concrete_dims(module.ty(*value), known).as_deref())?;
    }
    Ok(())
}

/// Runs on the host's tensors.
///
/// # Safety
/// The memory of the tensors is live and as large as they are, that of outputs writable.
unsafe fn on_host(
    built: &Built,
    extents: &[(String, u64)],
    inputs: &[Given<'_>],
    outputs: &[Given<'_>],
) -> Result<(), ErrorHandle> {
    // SAFETY: the caller vouches for it.
    let tensors = unsafe { to_tensors(inputs)? };
    let planned = built.compiled.planned();
    let bound = bind_given(planned.program(), &tensors, extents)?;
    check_outputs(built.module(), &bound.symbols, outputs)?;
    let run = built.compiled.run_bound(&bound, &Default::default())?;
    for (value, output) in planned.original().module().outputs.iter().zip(outputs) {
        let tensor = run.value(*value).ok_or_else(|| {
            ErrorHandle::new(Code::Internal, "bug", format!("bug: the run has no `%{}`", output.name))
        })?;
        // SAFETY: the caller vouches for it.
        unsafe { output.write(tensor)? };
    }
    Ok(())
}

/// Device addresses by value. A value returned twice must have one address.
pub(crate) fn addresses(
    module: &Module,
    pairs: impl Iterator<Item = (Value, u64)>,
) -> Result<Vec<(Value, u64)>, ErrorHandle> {
    let mut known: HashMap<Value, u64> = HashMap::new();
    let mut all = Vec::new();
    for (value, address) in pairs {
        match known.insert(value, address) {
            None => all.push((value, address)),
            Some(other) if other == address => {}
            Some(_) => {
                let name = module.name_of(value);
                let message =
                    format!("`%{name}` is returned twice, and on a device both must have one address");
                return Err(ErrorHandle::new(Code::Unimplemented, "alias", message));
            }
        }
    }
    Ok(all)
}

/// Runs on a device's tensors and waits.
///
/// # Safety
/// The memory of the tensors is on the device, live and as large as they are, that of outputs writable. The stream is
/// one of the device's primary context, or null.
unsafe fn on_device(
    built: &Built,
    extents: &[(String, u64)],
    inputs: &[Given<'_>],
    outputs: &[Given<'_>],
    stream: *mut std::ffi::c_void,
) -> Result<(), ErrorHandle> {
    let module = built.module();
    let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.dims.as_slice()).collect();
    let known = solve_symbols(module, &shapes, extents)?;
    check_outputs(module, &known, outputs)?;
    let preparation = built.compiled.prepare(&known)?;
    let Some(device) = built.compiled.device() else {
        return Err(ErrorHandle::new(Code::FailedPrecondition, "no_device", "the module is on no device"));
    };
    let ordinal = device.gpu().ordinal;
    if let Some(other) = inputs.iter().chain(outputs).find(|given| given.device != Some(ordinal)) {
        let message = format!("the tensor for `%{}` is not on device {ordinal}, the module's", other.name);
        return Err(ErrorHandle::argument(message));
    }
    let values = module.inputs.iter().chain(&module.outputs).copied();
    let given = inputs.iter().chain(outputs).map(|given| given.address as u64);
    // SAFETY: the caller vouches for the stream.
    let stream = unsafe { device.borrow_stream(stream) };
    let preparation = preparation.bind_all(addresses(module, values.zip(given))?).stream(&stream)?;
    // SAFETY: the caller vouches for the addresses.
    let mut prepared = unsafe { preparation.build()? };
    // SAFETY: as above. The program lives until the device is done: waiting comes next.
    let launched = unsafe { prepared.launch(&stream) };
    let waited = stream.synchronize();
    launched?;
    waited?;
    // SAFETY: no launch is in flight, and the workspace is the program's own.
    match unsafe { prepared.fault()? } {
        Some(fault) => Err(Error::Run(fault).into()),
        None => Ok(()),
    }
}

/// `fourfold_api.execute`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn execute(args: *const ExecuteArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let built = unsafe { &handle::<ModuleHandle>(known.module)?.0 };
        let module = built.module();
        // SAFETY: as above.
        let (inputs, outputs, extents) = unsafe {
            (
                given(module, &module.inputs, (known.inputs, known.input_count), "inputs")?,
                given(module, &module.outputs, (known.outputs, known.output_count), "outputs")?,
                symbols(known.symbols, known.symbol_count)?,
            )
        };
        let on_devices = inputs.iter().chain(&outputs).filter(|given| given.device.is_some()).count();
        if on_devices == 0 {
            // SAFETY: as above.
            return unsafe { on_host(built, &extents, &inputs, &outputs) };
        }
        if on_devices < inputs.len() + outputs.len() {
            let message = "some tensors are on the host and others on a device; a session takes both";
            return Err(ErrorHandle::argument(message));
        }
        // SAFETY: as above.
        unsafe { on_device(built, &extents, &inputs, &outputs, known.stream) }
    })
}

//! Compiled nodes, and their calls.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use fourfold::ir::{ElementType, Tensor, TensorType};
use fourfold::{Compiled, Session, SessionInput};
use ort_sys::{OrtKernelContext, OrtStatusPtr, OrtValue};

use crate::abi::{NodeComputeContext, NodeComputeInfo, VERSION};
use crate::api::{Api, Extent, call, slice};
use crate::error::ProviderError;
use crate::guard::guard;
use crate::program::Program;

/// A compiled node, which ONNX Runtime knows by its first member.
#[repr(C)]
pub struct CompiledNode {
    base: NodeComputeInfo,
    api: Api,
    node: String,
    /// The inputs of the node.
    names: Vec<String>,
    /// The inputs of the program, each with the position of the node's input.
    inputs: Vec<(String, usize)>,
    /// The position of the node's output for each output of the program.
    outputs: Vec<usize>,
    panics: bool,
    session: Mutex<Session>,
    compiled: Compiled,
}

impl CompiledNode {
    /// Starts a session of a program. `inputs[p]` is the position of the node's input for the program's input `ip`, and
    /// `outputs[p]` that of the node's output for `op`. `names` are those of the node's inputs.
    pub fn new(
        api: Api,
        (node, names): (String, Vec<String>),
        program: Program,
        inputs: &[usize],
        outputs: &[usize],
        panics: bool,
    ) -> Result<CompiledNode, ProviderError> {
        let Program { compiled, params } = program;
        let module = compiled.planned().original().module();
        let wrong = |name: &str| ProviderError::Region {
            node: format!("node `{node}`"),
            message: format!("its program has another input or output than the node: `{name}`"),
        };
        let position = |name: &str, prefix: char, known: &[usize]| {
            let number = name.strip_prefix(prefix).and_then(|rest| rest.parse::<usize>().ok());
            number.and_then(|number| known.get(number).copied()).ok_or_else(|| wrong(name))
        };
        let values = module.inputs.iter().filter(|input| !module.is_param(**input));
        let inputs = values
            .map(|input| module.name_of(*input))
            .map(|name| Ok((name.to_owned(), position(name, 'i', inputs)?)))
            .collect::<Result<_, ProviderError>>()?;
        let values = module.outputs.iter().map(|output| module.name_of(*output));
        let found: Vec<usize> = values.map(|name| position(name, 'o', outputs)).collect::<Result<_, _>>()?;
        if let Some(at) = outputs.iter().position(|wanted| !found.contains(wanted)) {
            return Err(wrong(&format!("o{at}")));
        }
        let session = compiled.session(params)?;
        let base = NodeComputeInfo { version: VERSION, create_state, compute, release_state };
        Ok(CompiledNode {
            base,
            api,
            node,
            names,
            inputs,
            outputs: found,
            panics,
            session: Mutex::new(session),
            compiled,
        })
    }

    /// Gives the node to ONNX Runtime.
    pub fn into_raw(self) -> *mut NodeComputeInfo {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Takes a node back.
    ///
    /// # Safety
    /// The pointer is one of [`CompiledNode::into_raw`], and is not used afterwards.
    pub unsafe fn from_raw(node: *mut NodeComputeInfo) -> Box<CompiledNode> {
        // SAFETY: the caller vouches for it.
        unsafe { Box::from_raw(node.cast()) }
    }

    /// Runs the program on the inputs of a call.
    unsafe fn run(&self, context: *mut OrtKernelContext) -> Result<(), ProviderError> {
        assert!(!self.panics, "the option `panic_in_compute` is set");
        let module = self.compiled.planned().original().module();
        let values = module.inputs.iter().filter(|input| !module.is_param(**input));
        let mut tensors = Vec::with_capacity(self.inputs.len());
        for ((name, position), value) in self.inputs.iter().zip(values) {
            // SAFETY: the caller vouches for the context.
            tensors.push((name.as_str(), unsafe { self.input(context, *position, module.ty(*value))? }));
        }
        let call: HashMap<&str, SessionInput<'_>> =
            tensors.iter().map(|(name, tensor)| (*name, tensor.into())).collect();
        let run = self.session.lock().unwrap_or_else(PoisonError::into_inner).run(&call);
        let run = run.map_err(|source| self.failed(source))?;
        for (tensor, position) in run.outputs.iter().zip(&self.outputs) {
            let missing = || self.wrong_output(*position, "the program has computed no value for it");
            // SAFETY: as above.
            unsafe { self.output(context, *position, tensor.as_ref().ok_or_else(missing)?)? };
        }
        Ok(())
    }

    fn wrong_output(&self, position: usize, message: &str) -> ProviderError {
        ProviderError::Output { node: self.node.clone(), position, message: message.to_owned() }
    }

    fn failed(&self, source: fourfold::Error) -> ProviderError {
        let inputs = self.inputs.iter().map(|(name, at)| format!("`%{name}` = `{}`", self.names[*at]));
        let inputs = inputs.collect::<Vec<String>>().join(", ");
        ProviderError::Run { node: self.node.clone(), inputs, source: Box::new(source) }
    }

    /// Copies an input of a call.
    unsafe fn input(
        &self,
        context: *mut OrtKernelContext,
        position: usize,
        wanted: &TensorType,
    ) -> Result<Tensor, ProviderError> {
        let mut value: *const OrtValue = ptr::null();
        // SAFETY: the caller vouches for the context, which owns its inputs.
        let (ty, data) = unsafe {
            call!(self.api, KernelContext_GetInput(context, position, &raw mut value))?;
            self.api.tensor(value)?
        };
        let wrong = |message: String| ProviderError::Input { node: self.node.clone(), position, message };
        let mut dims = Vec::with_capacity(ty.shape.len());
        for extent in &ty.shape {
            match extent {
                Extent::Fixed(extent) => dims.push(usize::try_from(*extent).unwrap_or(usize::MAX)),
                Extent::Named(_) => return Err(wrong("its shape is not known".to_owned())),
            }
        }
        let TensorType { element, layout, .. } = *wanted;
        if element_type(ty.element) != Some(element) {
            return Err(wrong(format!("its type is number {} of ONNX, not {element}", ty.element)));
        }
        let length = Tensor::byte_len(element, &dims, layout).map_err(|error| wrong(error.to_string()))?;
        // SAFETY: ONNX Runtime allocates so many bytes for the type and shape of a tensor.
        let bytes = unsafe { slice(data, length) }.to_vec();
        Tensor::new(element, dims, layout, bytes).map_err(|error| wrong(error.to_string()))
    }

    /// Copies an output to ONNX Runtime's memory.
    unsafe fn output(
        &self,
        context: *mut OrtKernelContext,
        position: usize,
        tensor: &Tensor,
    ) -> Result<(), ProviderError> {
        let dims: Vec<i64> =
            tensor.dims().iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect();
        let mut value = ptr::null_mut();
        // SAFETY: the caller vouches for the context.
        let (ty, data) = unsafe {
            call!(
                self.api,
                KernelContext_GetOutput(context, position, dims.as_ptr(), dims.len(), &raw mut value)
            )?;
            self.api.tensor(value)?
        };
        // A context may hold a program of another type than its node states.
        if element_type(ty.element) != Some(tensor.element()) {
            return Err(self.wrong_output(position, "its type is not that of the program"));
        }
        if !tensor.bytes().is_empty() {
            // SAFETY: ONNX Runtime has allocated so many bytes for this type and shape.
            unsafe {
                ptr::copy_nonoverlapping(tensor.bytes().as_ptr(), data.cast_mut(), tensor.bytes().len());
            }
        }
        Ok(())
    }
}

fn element_type(onnx: i32) -> Option<ElementType> {
    use crate::graph::element;
    Some(match onnx {
        element::FLOAT => ElementType::F32,
        element::FLOAT16 => ElementType::F16,
        element::BFLOAT16 => ElementType::BF16,
        element::FLOAT4E2M1 => ElementType::F4E2M1FN,
        element::FLOAT8E4M3FN => ElementType::F8E4M3FN,
        element::FLOAT8E5M2 => ElementType::F8E5M2,
        element::FLOAT8E8M0 => ElementType::F8E8M0FNU,
        _ => return None,
    })
}

unsafe extern "system" fn create_state(
    _: *mut NodeComputeInfo,
    _: *mut NodeComputeContext,
    state: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes a place for the state; the session is part of the node.
    unsafe { *state = ptr::null_mut() };
    OrtStatusPtr(ptr::null_mut())
}

unsafe extern "system" fn compute(
    this: *mut NodeComputeInfo,
    _: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes a node of `CompiledNode::into_raw`, whose state is behind a lock.
    let node = unsafe { &*this.cast::<CompiledNode>() };
    // SAFETY: ONNX Runtime passes a context that is live during the call.
    guard(node.api, || unsafe { node.run(context) })
}

unsafe extern "system" fn release_state(_: *mut NodeComputeInfo, _: *mut c_void) {}

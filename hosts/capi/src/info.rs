//! Descriptions of modules: ports, workspace, and if they can be prepared.

use fourfold::executor::{BUILDING, FALLBACK_SEGMENT, NO_DEVICE, PART_ALIGNMENT};
use fourfold::ir::bind::symbols_given;
use fourfold::ir::{BindError, Module, ScaleLayout, SymbolValues, Tensor, Value};

use crate::abi::{self, LAYOUT_BLOCKED, LAYOUT_LINEAR, LAYOUT_NONE, ModuleInfoArgs, PORT_PARAM, Port, Str};
use crate::error::{ErrorHandle, guard};
use crate::handles::{destroy, give, handles};
use crate::memory::{handle, read};
use crate::module::{Built, ModuleHandle};
use crate::tensor::{data_type, extents, symbols};

/// A description of a module, with the arrays and the text that it points to.
#[derive(Debug)]
pub struct InfoHandle {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    symbols: Vec<Str>,
    workspace: Option<u64>,
    why_not: Str,
    compat: Str,
    _shapes: Vec<Vec<i64>>,
    _texts: Vec<String>,
}

handles! { InfoHandle = Info "description" }

/// Text and shapes that ports point to. Moving a vector or string does not move its elements.
#[derive(Default)]
struct Kept {
    shapes: Vec<Vec<i64>>,
    texts: Vec<String>,
}

impl Kept {
    fn text(&mut self, kept: String) -> Str {
        let place = Str::of(&kept);
        self.texts.push(kept);
        place
    }

    fn port(&mut self, module: &Module, value: Value, known: &SymbolValues) -> Port {
        let ty = module.ty(value);
        let shape = extents(ty, known);
        let dims: Option<Vec<usize>> = shape.iter().map(|extent| usize::try_from(*extent).ok()).collect();
        let bytes = dims.and_then(|dims| Tensor::byte_len(ty.element, &dims, ty.layout).ok());
        let (place, ndim) = (shape.as_ptr(), i32::try_from(shape.len()).unwrap_or(i32::MAX));
        self.shapes.push(shape);
        let element = data_type(ty.element);
        Port {
            name: self.text(module.name_of(value).to_owned()),
            ty: self.text(module.display_type(ty).to_string()),
            shape: place,
            ndim,
            code: element.code,
            bits: element.bits,
            lanes: element.lanes,
            layout: match ty.layout {
                None => LAYOUT_NONE,
                Some(ScaleLayout::Linear) => LAYOUT_LINEAR,
                Some(ScaleLayout::Blocked) => LAYOUT_BLOCKED,
            },
            flags: if module.is_param(value) { PORT_PARAM } else { 0 },
            bytes: bytes.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1),
        }
    }
}

impl InfoHandle {
    fn new(built: &Built, given: &[(String, u64)]) -> Result<InfoHandle, ErrorHandle> {
        let module = built.module();
        let mut kept = Kept::default();
        let (known, all_known) = match symbols_given(module, given) {
            Ok(known) => (known, true),
            Err(BindError::Undetermined { .. }) => (some_symbols(module, given), false),
            Err(error) => return Err(error.into()),
        };
        let ports = |values: &[Value], kept: &mut Kept| -> Vec<Port> {
            values.iter().map(|value| kept.port(module, *value, &known)).collect()
        };
        let (inputs, outputs) = (ports(&module.inputs, &mut kept), ports(&module.outputs, &mut kept));
        let symbols = module.symbols.values().map(|name| kept.text(name.clone())).collect();
        let (workspace, why_not) = if all_known {
            match built.compiled.prepare(&known) {
                Ok(preparation) => (Some(preparation.workspace_size()), None),
                Err(refused) => (None, Some(refused.to_string())),
            }
        } else {
            (None, obstacle(built))
        };
        let target = &built.compiled.planned().partition().target;
        let compat = format!("fourfold {}, target {target}", env!("CARGO_PKG_VERSION"));
        Ok(InfoHandle {
            inputs,
            outputs,
            symbols,
            workspace,
            why_not: kept.text(why_not.unwrap_or_default()),
            compat: kept.text(compat),
            _shapes: kept.shapes,
            _texts: kept.texts,
        })
    }
}

/// The values of the given symbols, which exist and are consistent.
fn some_symbols(module: &Module, given: &[(String, u64)]) -> SymbolValues {
    let mut known = SymbolValues::default();
    for (symbol, name) in module.symbols.iter() {
        if let Some((_, extent)) = given.iter().find(|(given, _)| given == name) {
            known.set(symbol, *extent);
        }
    }
    known
}

/// The reason that a module cannot be prepared for any extents.
fn obstacle(built: &Built) -> Option<String> {
    let compiled = &built.compiled;
    let segments = &compiled.planned().partition().segments;
    for (index, segment) in segments.iter().enumerate() {
        if segment.plan().is_none() {
            let op = segment.ops.first().map_or(String::new(), |op| built.module().op_label(*op));
            return Some(format!("{FALLBACK_SEGMENT}: `{op}` runs on the CPU"));
        }
        if let Some(reason) = compiled.unavailable(index) {
            return Some(format!("{}: {}", reason.code, reason.message));
        }
    }
    if compiled.building() > 0 {
        return Some(format!("{BUILDING}: {} kernels are being built", compiled.building()));
    }
    compiled.device().is_none().then(|| format!("{NO_DEVICE}: no device can run the program's kernels"))
}

/// `fourfold_api.module_info`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn module_info(args: *mut ModuleInfoArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let (module, given) =
            unsafe { (handle::<ModuleHandle>(known.module)?, symbols(known.symbols, known.symbol_count)?) };
        let info = Box::new(InfoHandle::new(&module.0, &given)?);
        // SAFETY: `read` has checked that the struct has these fields.
        let out = unsafe { &mut *args };
        (out.inputs, out.input_count) = (info.inputs.as_ptr(), info.inputs.len());
        (out.outputs, out.output_count) = (info.outputs.as_ptr(), info.outputs.len());
        (out.symbol_names, out.symbol_name_count) = (info.symbols.as_ptr(), info.symbols.len());
        out.workspace_size = info.workspace.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1);
        out.workspace_align = usize::try_from(PART_ALIGNMENT).unwrap_or(usize::MAX);
        out.is_ready = u32::from(module.0.compiled.building() == 0);
        out.is_capturable = u32::from(info.why_not.len == 0);
        (out.why_not, out.compat) = (info.why_not, info.compat);
        out.info = give(*info);
        Ok(())
    })
}

/// `fourfold_api.info_destroy`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn info_destroy(info: *mut abi::Info) {
    // SAFETY: the caller vouches for it.
    unsafe { destroy::<InfoHandle>(info) }
}

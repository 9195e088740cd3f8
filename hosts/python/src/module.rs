//! Programs, compiled once for each place, and the tensors of their calls.

use std::collections::HashMap;
use std::io::Write;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use fourfold::ir::bind::{concrete_dims, solve_symbols};
use fourfold::ir::{self, ElementType, Program, ScaleLayout, SymbolValues, TensorType};
use fourfold_capi::abi::{
    self, Api, BackendCreateArgs, CompileArgs, OptionEntry, Str, SymbolExtent, VERSION,
};
use tempfile::NamedTempFile;

use crate::error::{Error, check};
use crate::shim::{Element, Place, Tensor};

/// The table of the C interface.
pub fn api() -> &'static Api {
    // SAFETY: the table is static, and its version is ours.
    unsafe { &*fourfold_capi::fourfold_plugin_query(VERSION) }
}

/// A compiled program.
#[derive(Debug)]
pub struct Module {
    /// The program as its text states it. Its inputs and outputs are those of the handle.
    pub program: Program,
    /// The module of the C interface, which lives as long as the process.
    pub handle: *mut abi::Module,
    /// The place of its tensors.
    pub place: Place,
    /// Its number, unique in the process.
    pub id: usize,
}

// SAFETY: the C interface allows any thread to use a module.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

struct Backend(*mut abi::Backend);

// SAFETY: the C interface allows any thread to use a backend.
unsafe impl Send for Backend {}
// SAFETY: as above.
unsafe impl Sync for Backend {}

/// The place of a program's tensors, and the dispatch tables that select its kernels, if they are not the default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// The place.
    pub place: Place,
    /// The text of the tables.
    pub dispatch: Option<Arc<str>>,
}

/// A slot for each program and setting. Calls of one program wait for its compilation, others do not.
type Slot = Arc<OnceLock<Result<Arc<Module>, String>>>;

static BACKENDS: LazyLock<Mutex<HashMap<Setting, Arc<Backend>>>> = LazyLock::new(Default::default);
static MODULES: LazyLock<Mutex<HashMap<(Setting, String), Slot>>> = LazyLock::new(Default::default);

fn backend(setting: &Setting) -> Result<Arc<Backend>, Error> {
    let mut backends = BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(backend) = backends.get(setting) {
        return Ok(Arc::clone(backend));
    }
    let device = match setting.place {
        Place::Host => "none".to_owned(),
        Place::Cuda(index) => index.to_string(),
    };
    let mut options = vec![OptionEntry { key: Str::of("device"), value: Str::of(&device) }];
    let file = setting.dispatch.as_deref().map(temporary).transpose()?;
    let path = file.as_ref().map(|file| file.path().to_string_lossy());
    if let Some(path) = &path {
        options.push(OptionEntry { key: Str::of("dispatch"), value: Str::of(path) });
    }
    let mut args = BackendCreateArgs {
        struct_size: size_of::<BackendCreateArgs>(),
        ext: ptr::null_mut(),
        options: options.as_ptr(),
        option_count: options.len(),
        log: None,
        log_user: ptr::null_mut(),
        backend: ptr::null_mut(),
    };
    // SAFETY: the struct and what it points to are live.
    unsafe { check(api(), (api().backend_create)(&raw mut args))? };
    let backend = Arc::new(Backend(args.backend));
    backends.insert(setting.clone(), Arc::clone(&backend));
    Ok(backend)
}

/// A text in a file that lives as long as the result.
fn temporary(text: &str) -> Result<NamedTempFile, Error> {
    let write = || {
        let mut file = tempfile::Builder::new().prefix("fourfold-").suffix(".toml").tempfile()?;
        file.write_all(text.as_bytes())?;
        Ok(file)
    };
    write()
        .map_err(|error: std::io::Error| Error::argument(format!("cannot write a temporary file: {error}")))
}

/// The compiled form of a program. The first call of a program compiles it.
pub fn module(text: &str, setting: &Setting) -> Result<Arc<Module>, Error> {
    let key = (setting.clone(), text.to_owned());
    let slot = {
        let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(modules.entry(key.clone()).or_default())
    };
    let compiled =
        slot.get_or_init(|| compile(text, setting).map(Arc::new).map_err(|error| error.to_string()));
    match compiled {
        Ok(module) => Ok(Arc::clone(module)),
        Err(message) => {
            let message = message.clone();
            // A failure may be temporary, such as a full disk.
            MODULES.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            Err(Error::Argument(message))
        }
    }
}

fn compile(text: &str, setting: &Setting) -> Result<Module, Error> {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let backend = backend(setting)?;
    let mut args = CompileArgs {
        struct_size: size_of::<CompileArgs>(),
        ext: ptr::null_mut(),
        backend: backend.0,
        ir: Str::of(text),
        flags: 0,
        reserved: 0,
        module: ptr::null_mut(),
    };
    // SAFETY: the struct and what it points to are live.
    unsafe { check(api(), (api().compile)(&raw mut args))? };
    let (program, _) =
        ir::load(text).map_err(|_| Error::Bug("a compiled program does not parse".to_owned()))?;
    let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Ok(Module { program, handle: args.module, place: setting.place, id })
}

/// A tensor for an input of a program.
#[derive(Debug)]
pub struct Operand {
    /// The tensor, contiguous.
    pub tensor: Tensor,
    /// Its extents in elements, if they are not those of the tensor.
    pub dims: Option<Vec<usize>>,
}

impl Operand {
    /// A tensor whose extents are its own.
    pub fn new(tensor: Tensor) -> Operand {
        Operand { tensor, dims: None }
    }

    /// A tensor that the program reads with these extents, of the same number of bytes.
    pub fn shaped(tensor: Tensor, dims: Vec<usize>) -> Operand {
        Operand { tensor, dims: Some(dims) }
    }
}

/// The extents of a call, checked against the program.
#[derive(Debug)]
pub struct Extents {
    /// The values of the program's symbols.
    pub symbols: SymbolValues,
    /// The extents of each input, in elements.
    pub inputs: Vec<Vec<usize>>,
    /// The extents of each output, in elements.
    pub outputs: Vec<Vec<usize>>,
}

/// The element type in which torch holds a type's memory. FP4, FP6, FP8 and scales are bytes, since torch's functions and
/// checks of ops do not take their dtypes.
pub fn storage(element: ElementType) -> Element {
    match element {
        ElementType::F32 => Element::Float32,
        ElementType::F16 => Element::Float16,
        ElementType::BF16 => Element::BFloat16,
        ElementType::I32 => Element::Int32,
        ElementType::I1 => Element::Bool,
        ElementType::F4E2M1FN
        | ElementType::F6E2M3FN
        | ElementType::F6E3M2FN
        | ElementType::F8E4M3FN
        | ElementType::F8E5M2
        | ElementType::F8E8M0FNU => Element::UInt8,
    }
}

/// Elements of the program for each element of torch, or `None` if the types differ.
fn packing(expected: ElementType, given: Element) -> Option<usize> {
    match (expected, given) {
        (ElementType::F4E2M1FN, Element::UInt8 | Element::Float4x2) => Some(2),
        (ElementType::F8E4M3FN, Element::Float8E4M3)
        | (ElementType::F8E5M2, Element::Float8E5M2)
        | (ElementType::F8E8M0FNU, Element::Float8E8M0) => Some(1),
        _ if storage(expected) == given && expected.packed_count() == 1 => Some(1),
        _ => None,
    }
}

/// The extents of torch's memory for a value: bytes for FP4 and FP6, padded for blocked scales.
pub fn storage_dims(ty: &TensorType, dims: &[usize]) -> Vec<i64> {
    let mut sizes: Vec<usize> = dims.to_vec();
    if let (Some(ScaleLayout::Blocked), [.., rows, columns]) = (ty.layout, sizes.as_mut_slice()) {
        (*rows, *columns) = (rows.next_multiple_of(128), columns.next_multiple_of(4));
    }
    if let Some(last) = sizes.last_mut().filter(|_| ty.element.packed_count() > 1) {
        *last = *last * ty.element.storage_bits() / 8;
    }
    sizes.into_iter().map(|size| i64::try_from(size).unwrap_or(i64::MAX)).collect()
}

impl Module {
    /// Checks the tensors of a call, and finds its extents.
    pub fn extents(&self, operands: &[Operand]) -> Result<Extents, Error> {
        let module = self.program.module();
        if operands.len() != module.inputs.len() {
            return Err(Error::argument(format!(
                "`@{}` has {} inputs, not {}",
                module.name,
                module.inputs.len(),
                operands.len()
            )));
        }
        let mut given: Vec<Option<Vec<usize>>> = Vec::with_capacity(operands.len());
        for (value, operand) in module.inputs.iter().zip(operands) {
            given.push(self.given(*value, operand)?);
        }
        let known = self.partial(&given);
        let mut inputs = Vec::with_capacity(operands.len());
        for ((value, operand), dims) in module.inputs.iter().zip(operands).zip(given) {
            let ty = module.ty(*value);
            let dims = match dims {
                Some(dims) => dims,
                None => concrete_dims(ty, &known).ok_or_else(|| {
                    Error::argument(format!(
                        "no dense input determines the extents of the blocked scales `%{}`",
                        module.name_of(*value)
                    ))
                })?,
            };
            let expected: i64 = storage_dims(ty, &dims).iter().product();
            let found: i64 = operand.tensor.sizes()?.iter().product();
            if expected != found {
                return Err(Error::argument(format!(
                    "the tensor for `%{}: {}` has {found} elements in memory; expected {expected}, for the \
                     extents {dims:?}",
                    module.name_of(*value),
                    module.display_type(ty)
                )));
            }
            inputs.push(dims);
        }
        let shapes: Vec<&[usize]> = inputs.iter().map(Vec::as_slice).collect();
        let symbols =
            solve_symbols(module, &shapes, &[]).map_err(|error| Error::argument(error.to_string()))?;
        let outputs = (module.outputs.iter())
            .map(|value| concrete_dims(module.ty(*value), &symbols))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Error::argument("an output exceeds the address space"))?;
        Ok(Extents { symbols, inputs, outputs })
    }

    /// The extents of an operand in elements; `None` for blocked scales, whose tensor may have any shape.
    fn given(&self, value: ir::Value, operand: &Operand) -> Result<Option<Vec<usize>>, Error> {
        let module = self.program.module();
        let ty = module.ty(value);
        let describe = || format!("the tensor for `%{}: {}`", module.name_of(value), module.display_type(ty));
        let place = operand.tensor.place()?;
        if place != self.place {
            let message = format!("{} is on {place:?}, others are on {:?}", describe(), self.place);
            return Err(Error::argument(message));
        }
        let element = operand.tensor.element()?;
        let Some(packed) = packing(ty.element, element) else {
            return Err(Error::argument(format!("{} has the dtype {element:?}", describe())));
        };
        if let Some(dims) = &operand.dims {
            return Ok(Some(dims.clone()));
        }
        if ty.layout == Some(ScaleLayout::Blocked) {
            return Ok(None);
        }
        let sizes = operand.tensor.sizes()?;
        if sizes.len() != ty.rank() {
            return Err(Error::argument(format!("{} has the shape {sizes:?}", describe())));
        }
        let mut dims: Vec<usize> = sizes.into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect();
        if let Some(last) = dims.last_mut() {
            *last = last.saturating_mul(packed);
        }
        Ok(Some(dims))
    }

    /// The program's symbols with their extents, in the form of the C interface.
    pub fn symbols(&self, extents: &Extents) -> Vec<SymbolExtent> {
        let one = |(symbol, name): (_, &String)| {
            let extent = i64::try_from(extents.symbols.get(symbol)?).ok()?;
            Some(SymbolExtent { name: Str::of(name), extent })
        };
        self.program.module().symbols.iter().filter_map(one).collect()
    }

    /// The symbols that dense inputs determine.
    fn partial(&self, given: &[Option<Vec<usize>>]) -> SymbolValues {
        let module = self.program.module();
        let mut known = SymbolValues::default();
        for (value, dims) in module.inputs.iter().zip(given) {
            for (dim, extent) in module.ty(*value).shape.iter().zip(dims.iter().flatten()) {
                if let ([symbol], factor @ 1..) = (dim.symbols(), dim.constant()) {
                    known.set(*symbol, *extent as u64 / factor);
                }
            }
        }
        known
    }
}

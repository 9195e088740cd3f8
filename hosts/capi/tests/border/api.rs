//! The table of functions, wrapped for tests.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;

use fourfold::ir::{ElementType, ScaleLayout, Tensor};
use fourfold_capi::abi::*;

pub fn api() -> &'static Api {
    // SAFETY: the table is static.
    unsafe { &*fourfold_capi::fourfold_plugin_query(VERSION) }
}

pub fn fixture(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../fixtures/{name}", env!("CARGO_MANIFEST_DIR")))
        .expect("a fixture")
}

pub fn text(text: &str) -> Str {
    Str { ptr: text.as_ptr().cast(), len: text.len() }
}

fn owned(text: Str) -> String {
    // SAFETY: the text is the library's, and its owner is alive.
    let bytes = unsafe { std::slice::from_raw_parts(text.ptr.cast::<u8>(), text.len) };
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// All bytes zero, and the size set.
pub fn args<T>() -> T {
    // SAFETY: argument structs consist of integers, pointers and options of functions, and begin with their size.
    unsafe {
        let mut args: T = std::mem::zeroed();
        (&raw mut args).cast::<usize>().write(size_of::<T>());
        args
    }
}

/// An error, taken apart and freed.
#[derive(Debug)]
pub struct Wrong {
    pub code: i32,
    pub reason: String,
    pub message: String,
}

fn outcome(error: *mut fourfold_capi::abi::Error) -> Result<(), Wrong> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is live until it is destroyed.
    unsafe {
        let wrong = Wrong {
            code: (api().error_code)(error),
            reason: owned((api().error_reason)(error)),
            message: owned((api().error_message)(error)),
        };
        (api().error_destroy)(error);
        Err(wrong)
    }
}

/// Calls a function of the table.
pub fn call<A>(
    function: unsafe extern "C" fn(*mut A) -> *mut fourfold_capi::abi::Error,
    args: *mut A,
) -> Result<(), Wrong> {
    // SAFETY: the arguments are live, and what they point to is too.
    outcome(unsafe { function(args) })
}

/// Calls a function of the table that only reads its arguments.
pub fn call_const<A>(
    function: unsafe extern "C" fn(*const A) -> *mut fourfold_capi::abi::Error,
    args: &A,
) -> Result<(), Wrong> {
    // SAFETY: the arguments are live, and what they point to is too.
    outcome(unsafe { function(args) })
}

pub type Segments = Vec<(u32, String)>;

/// A backend.
pub struct Host(pub *mut fourfold_capi::abi::Backend);

impl Host {
    pub fn new(options: &[(&str, &str)]) -> Host {
        Host::create(options).expect("a backend")
    }

    pub fn create(options: &[(&str, &str)]) -> Result<Host, Wrong> {
        let entry = |(key, value): &(&str, &str)| OptionEntry { key: text(key), value: text(value) };
        let options: Vec<OptionEntry> = options.iter().map(entry).collect();
        let mut args: BackendCreateArgs = args();
        (args.options, args.option_count) = (options.as_ptr(), options.len());
        call(api().backend_create, &mut args)?;
        Ok(Host(args.backend))
    }

    pub fn target(&self) -> String {
        // SAFETY: the backend is live.
        owned(unsafe { (api().backend_target)(self.0) })
    }

    pub fn compile(&self, source: &str, flags: u32) -> Result<Module, Wrong> {
        let mut args: CompileArgs = args();
        (args.backend, args.ir, args.flags) = (self.0, text(source), flags);
        call(api().compile, &mut args)?;
        Ok(Module(args.module))
    }

    /// The decisions, and the tier and name of each segment.
    pub fn query(&self, source: &str) -> Result<(Vec<OwnDecision>, Segments), Wrong> {
        let mut args: QuerySupportArgs = args();
        (args.backend, args.ir) = (self.0, text(source));
        call(api().query_support, &mut args)?;
        // SAFETY: the arrays live as long as the report.
        let (decisions, segments) = unsafe {
            (
                std::slice::from_raw_parts(args.decisions, args.decision_count),
                std::slice::from_raw_parts(args.segments, args.segment_count),
            )
        };
        let decisions = decisions
            .iter()
            .map(|decision| OwnDecision {
                name: owned(decision.name),
                tier: decision.tier,
                segment: decision.segment,
                reason: owned(decision.reason),
            })
            .collect();
        let segments = segments.iter().map(|segment| (segment.tier, owned(segment.name))).collect();
        // SAFETY: the report is not used again.
        unsafe { (api().report_destroy)(args.report) };
        Ok((decisions, segments))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { (api().backend_destroy)(self.0) }
    }
}

#[derive(Debug)]
pub struct OwnDecision {
    pub name: String,
    pub tier: u32,
    pub segment: u32,
    pub reason: String,
}

#[derive(Clone, Debug)]
pub struct OwnPort {
    pub name: String,
    pub ty: String,
    pub shape: Vec<i64>,
    pub bytes: i64,
    pub code: u8,
    pub bits: u8,
    pub layout: u32,
    pub flags: u32,
}

impl OwnPort {
    fn element(&self) -> ElementType {
        let name = self.ty.split(", ").find_map(|word| ElementType::from_name(word.trim_end_matches('>')));
        name.expect("an element type")
    }

    /// A tensor for an output, every byte of which is written.
    fn poisoned(&self) -> Tensor {
        let layout = match self.layout {
            LAYOUT_LINEAR => Some(ScaleLayout::Linear),
            LAYOUT_BLOCKED => Some(ScaleLayout::Blocked),
            _ => None,
        };
        let dims = self.shape.iter().map(|extent| usize::try_from(*extent).expect("an extent")).collect();
        let bytes = vec![0xA5; usize::try_from(self.bytes).expect("a size")];
        Tensor::new(self.element(), dims, layout, bytes).expect("a tensor")
    }
}

/// The form in which narrow types cross.
#[derive(Clone, Copy, Debug)]
pub enum Backing {
    /// One element of 4 or 8 bits.
    Own,
    /// Pairs of FP4.
    Pairs,
    /// uint8.
    Bytes,
}

/// A tensor of the caller, with its shape.
pub struct View {
    pub shape: Vec<i64>,
    pub view: TensorView,
}

impl View {
    pub fn of(tensor: &mut Tensor, backing: Backing) -> View {
        let element = tensor.element();
        let (code, bits) = match element {
            ElementType::I32 => (0, 32),
            ElementType::F16 => (2, 16),
            ElementType::F32 => (2, 32),
            ElementType::BF16 => (4, 16),
            ElementType::I1 => (6, 8),
            ElementType::F8E4M3FN => (10, 8),
            ElementType::F8E5M2 => (12, 8),
            ElementType::F8E8M0FNU => (14, 8),
            ElementType::F6E2M3FN => (15, 6),
            ElementType::F6E3M2FN => (16, 6),
            ElementType::F4E2M1FN => (17, 4),
        };
        let mut shape: Vec<i64> = tensor.dims().iter().map(|extent| *extent as i64).collect();
        let mut dtype = DataType { code, bits, lanes: 1 };
        let is_fp4 = element == ElementType::F4E2M1FN;
        match backing {
            Backing::Pairs if is_fp4 => dtype.lanes = 2,
            Backing::Bytes if bits <= 8 => dtype = DataType { code: 1, bits: 8, lanes: 1 },
            _ => {}
        }
        if is_fp4 && (dtype.lanes == 2 || dtype.code == 1) {
            *shape.last_mut().expect("an axis") /= 2;
        }
        if bits == 6 && dtype.code == 1 {
            let last = shape.last_mut().expect("an axis");
            *last = *last * 3 / 4;
        }
        let view = TensorView {
            data: tensor.bytes_mut().as_mut_ptr().cast::<c_void>(),
            device: TensorDevice { kind: DEVICE_CPU, id: 0 },
            ndim: shape.len() as i32,
            dtype,
            shape: shape.as_mut_ptr(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        View { shape, view }
    }
}

/// A module.
pub struct Module(pub *mut fourfold_capi::abi::Module);

// SAFETY: the header allows calls from any thread.
unsafe impl Sync for Module {}

fn extents(symbols: &[(&str, u64)]) -> Vec<SymbolExtent> {
    let one = |(name, extent): &(&str, u64)| SymbolExtent { name: text(name), extent: *extent as i64 };
    symbols.iter().map(one).collect()
}

impl Module {
    fn info<T>(&self, symbols: &[(&str, u64)], read: impl FnOnce(&ModuleInfoArgs) -> T) -> Result<T, Wrong> {
        let symbols = extents(symbols);
        let mut args: ModuleInfoArgs = args();
        (args.module, args.symbols, args.symbol_count) = (self.0, symbols.as_ptr(), symbols.len());
        call(api().module_info, &mut args)?;
        let result = read(&args);
        // SAFETY: it is not used again.
        unsafe { (api().info_destroy)(args.info) };
        Ok(result)
    }

    /// The inputs, and then the outputs.
    pub fn ports(&self, symbols: &[(&str, u64)]) -> Result<Vec<OwnPort>, Wrong> {
        self.info(symbols, |args| {
            // SAFETY: the arrays live as long as the description.
            let (inputs, outputs) = unsafe {
                (
                    std::slice::from_raw_parts(args.inputs, args.input_count),
                    std::slice::from_raw_parts(args.outputs, args.output_count),
                )
            };
            let own = |port: &Port| OwnPort {
                name: owned(port.name),
                ty: owned(port.ty),
                // SAFETY: as above.
                shape: unsafe { std::slice::from_raw_parts(port.shape, port.ndim as usize) }.to_vec(),
                bytes: port.bytes,
                code: port.code,
                bits: port.bits,
                layout: port.layout,
                flags: port.flags,
            };
            inputs.iter().chain(outputs).map(own).collect()
        })
    }

    pub fn symbols(&self) -> Vec<String> {
        self.info(&[], |args| {
            // SAFETY: the array lives as long as the description.
            let names = unsafe { std::slice::from_raw_parts(args.symbol_names, args.symbol_name_count) };
            names.iter().map(|name| owned(*name)).collect()
        })
        .expect("a description")
    }

    pub fn capturable(&self, symbols: &[(&str, u64)]) -> (bool, String) {
        self.info(symbols, |args| (args.is_capturable == 1, owned(args.why_not))).expect("a description")
    }

    pub fn wait(&self, timeout_ms: i64) -> Result<bool, Wrong> {
        let mut args: ModuleWaitArgs = args();
        (args.module, args.timeout_ms) = (self.0, timeout_ms);
        call(api().module_wait, &mut args)?;
        Ok(args.is_ready == 1)
    }

    pub fn cancel(&self) {
        // SAFETY: the module is live.
        unsafe { (api().module_cancel)(self.0) }
    }

    pub fn execute(
        &self,
        tensors: &HashMap<String, Tensor>,
        symbols: &[(&str, u64)],
    ) -> Result<Vec<Tensor>, Wrong> {
        self.execute_as(tensors, symbols, Backing::Own)
    }

    pub fn execute_as(
        &self,
        tensors: &HashMap<String, Tensor>,
        symbols: &[(&str, u64)],
        backing: Backing,
    ) -> Result<Vec<Tensor>, Wrong> {
        self.call(tensors, symbols, &[], backing)
    }

    /// Runs with explicit extents of symbols.
    pub fn execute_given(
        &self,
        tensors: &HashMap<String, Tensor>,
        symbols: &[(&str, u64)],
        given: &[(&str, u64)],
    ) -> Result<Vec<Tensor>, Wrong> {
        self.call(tensors, symbols, given, Backing::Own)
    }

    fn call(
        &self,
        tensors: &HashMap<String, Tensor>,
        symbols: &[(&str, u64)],
        given: &[(&str, u64)],
        backing: Backing,
    ) -> Result<Vec<Tensor>, Wrong> {
        let ports = self.ports(symbols)?;
        let (inputs, outputs): (Vec<OwnPort>, Vec<OwnPort>) =
            ports.into_iter().partition(|port| tensors.contains_key(&port.name));
        let mut inputs: Vec<Tensor> = inputs.iter().map(|port| tensors[&port.name].clone()).collect();
        let mut outputs: Vec<Tensor> = outputs.iter().map(OwnPort::poisoned).collect();
        let views = |tensors: &mut [Tensor]| -> Vec<View> {
            tensors.iter_mut().map(|tensor| View::of(tensor, backing)).collect()
        };
        let (inputs, results) = (views(&mut inputs), views(&mut outputs));
        self.execute_views(&inputs, &results, given)?;
        Ok(outputs)
    }

    pub fn execute_views(
        &self,
        inputs: &[View],
        outputs: &[View],
        given: &[(&str, u64)],
    ) -> Result<(), Wrong> {
        self.execute_on(ptr::null_mut(), inputs, outputs, given)
    }

    pub fn execute_on(
        &self,
        stream: *mut c_void,
        inputs: &[View],
        outputs: &[View],
        given: &[(&str, u64)],
    ) -> Result<(), Wrong> {
        let bare = |views: &[View]| -> Vec<TensorView> { views.iter().map(|view| view.view).collect() };
        let (inputs, outputs, symbols) = (bare(inputs), bare(outputs), extents(given));
        let mut args: ExecuteArgs = args();
        (args.module, args.stream) = (self.0, stream);
        (args.inputs, args.input_count) = (inputs.as_ptr(), inputs.len());
        (args.outputs, args.output_count) = (outputs.as_ptr(), outputs.len());
        (args.symbols, args.symbol_count) = (symbols.as_ptr(), symbols.len());
        call_const(api().execute, &args)
    }

    /// The tensors of the inputs that are no params, in order.
    pub fn without_params(&self, tensors: &HashMap<String, Tensor>) -> Vec<Tensor> {
        let ports = self.ports(&[]).expect("ports");
        let others = ports.iter().filter(|port| port.flags & PORT_PARAM == 0);
        others.filter_map(|port| tensors.get(&port.name).cloned()).collect()
    }

    pub fn session(&self, tensors: &HashMap<String, Tensor>) -> Result<OpenSession, Wrong> {
        let ports = self.ports(&[])?;
        let params = ports.iter().filter(|port| port.flags & PORT_PARAM != 0);
        let mut params: Vec<Tensor> = params.map(|port| tensors[&port.name].clone()).collect();
        let views: Vec<View> = params.iter_mut().map(|tensor| View::of(tensor, Backing::Own)).collect();
        self.session_of(&views)
    }

    pub fn session_of(&self, params: &[View]) -> Result<OpenSession, Wrong> {
        let views: Vec<TensorView> = params.iter().map(|view| view.view).collect();
        let mut args: SessionCreateArgs = args();
        (args.module, args.params, args.param_count) = (self.0, views.as_ptr(), views.len());
        call(api().session_create, &mut args)?;
        Ok(OpenSession(args.session))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { (api().module_destroy)(self.0) }
    }
}

/// A session.
pub struct OpenSession(pub *mut fourfold_capi::abi::Session);

impl OpenSession {
    pub fn run(
        &self,
        module: &Module,
        tensors: &HashMap<String, Tensor>,
        symbols: &[(&str, u64)],
    ) -> Result<(Vec<Tensor>, bool), Wrong> {
        self.run_on(&module.ports(symbols)?, &module.without_params(tensors))
    }

    /// Runs on the tensors of the inputs that are no params. `ports` are those of the module, with known extents.
    pub fn run_on(&self, ports: &[OwnPort], inputs: &[Tensor]) -> Result<(Vec<Tensor>, bool), Wrong> {
        let params = ports.iter().filter(|port| port.flags & PORT_PARAM != 0).count();
        let outputs = &ports[params + inputs.len()..];
        let mut outputs: Vec<Tensor> = outputs.iter().map(OwnPort::poisoned).collect();
        let mut inputs = inputs.to_vec();
        let views = |tensors: &mut [Tensor]| -> Vec<View> {
            tensors.iter_mut().map(|tensor| View::of(tensor, Backing::Own)).collect()
        };
        let (given, results) = (views(&mut inputs), views(&mut outputs));
        let bare = |views: &[View]| -> Vec<TensorView> { views.iter().map(|view| view.view).collect() };
        let (given, results) = (bare(&given), bare(&results));
        let mut args: SessionRunArgs = args();
        args.session = self.0;
        (args.inputs, args.input_count) = (given.as_ptr(), given.len());
        (args.outputs, args.output_count) = (results.as_ptr(), results.len());
        call(api().session_run, &mut args)?;
        Ok((outputs, args.was_prepared == 1))
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { (api().session_destroy)(self.0) }
    }
}

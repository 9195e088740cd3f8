//! Device tensors and prepared launches, on a stand-in driver whose device memory is host memory. It runs work only
//! when it is waited for.

#[path = "border/api.rs"]
#[allow(dead_code, reason = "the other test uses the rest")]
mod api;

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr;

use fourfold::ir::bind::bind;
use fourfold::ir::sample::{Recipe, Rule, inputs};
use fourfold::ir::{Entity, Tensor, interpret, load};
use fourfold_capi::abi::*;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use api::{Backing, Host, Module, OwnPort, View, Wrong, api, args, call, call_const, text};

const SOURCE: &str = "fir 1
func @chain(%x: tensor<[M, 32], bf16>, param %w0: tensor<[48, 32], bf16>, param %w1: tensor<[40, 48], bf16>) {
  %h = mma %x, %w0 : tensor<[M, 48], bf16>
  %y = mma %h, %w1 : tensor<[M, 40], f32>
  return %y
}
";

/// The counters of the stand-in that these tests read.
const MEMORIES: i32 = 0;
const ALLOCATIONS: i32 = 9;

/// The stand-in driver, loaded before anything looks for a driver.
struct Driver {
    library: Library,
    /// A stream of the host.
    stream: *mut c_void,
    _folder: tempfile::TempDir,
}

impl Driver {
    fn new() -> Driver {
        let folder = tempfile::tempdir().expect("a folder");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../executor/tests/stand_ins");
        let build = |source: &str, library: &str, flag: &str| {
            let library = folder.path().join(library);
            let mut compiler = Command::new("cc");
            compiler
                .args(["-O1", "-shared", "-fPIC", flag, "-o"])
                .arg(&library)
                .arg(sources.join(source))
                .arg("-lm");
            assert!(compiler.status().expect("a compiler").success(), "{source}");
            library
        };
        let blas = build("libcublaslt.c", "libcublasLt.so.13", "-fno-common");
        let driver = build("libcuda.c", "libcuda.so", "-Wl,-soname,libcuda.so");
        // SAFETY: this test is the only one of its process, and has started no thread.
        unsafe { std::env::set_var("FOURFOLD_CUBLASLT", &blas) };
        // SAFETY: the stand-in has no initializers.
        let library =
            unsafe { Library::open(Some(&driver), RTLD_NOW | RTLD_GLOBAL) }.expect("the driver loads");
        let mut driver = Driver { library, stream: ptr::null_mut(), _folder: folder };
        let mut context = ptr::null_mut::<c_void>();
        // SAFETY: the functions have these types, and the handle is live.
        unsafe {
            let retain = *driver
                .function::<unsafe extern "C" fn(*mut *mut c_void, i32) -> i32>(c"cuDevicePrimaryCtxRetain");
            let push = *driver.function::<unsafe extern "C" fn(*mut c_void) -> i32>(c"cuCtxPushCurrent_v2");
            assert_eq!((driver.function::<unsafe extern "C" fn(u32) -> i32>(c"cuInit"))(0), 0);
            assert_eq!((retain(&mut context, 0), push(context)), (0, 0));
            let create =
                driver.function::<unsafe extern "C" fn(*mut *mut c_void, u32) -> i32>(c"cuStreamCreate");
            let mut stream = ptr::null_mut();
            assert_eq!(create(&mut stream, 1), 0);
            driver.stream = stream;
        }
        driver
    }

    /// # Safety
    /// The function has this type.
    unsafe fn function<T>(&self, name: &CStr) -> Symbol<T> {
        // SAFETY: the caller vouches for it.
        unsafe { self.library.get::<T>(name) }.expect("a function of the driver")
    }

    fn count(&self, counter: i32) -> u64 {
        // SAFETY: the function has this type.
        unsafe { (self.function::<unsafe extern "C" fn(i32) -> u64>(c"stand_in_get"))(counter) }
    }

    fn wait(&self) {
        type Wait = unsafe extern "C" fn(*mut c_void) -> i32;
        // SAFETY: the function has this type, and the stream is live.
        assert_eq!(unsafe { (self.function::<Wait>(c"cuStreamSynchronize"))(self.stream) }, 0);
    }

    /// Device memory with the bytes of a tensor.
    fn upload(&self, tensor: &Tensor) -> Memory<'_> {
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> i32;
        let (mut address, bytes) = (0u64, tensor.bytes());
        // SAFETY: the function has this type, and the address is live.
        let status =
            unsafe { (self.function::<Allocate>(c"cuMemAlloc_v2"))(&mut address, bytes.len().max(1)) };
        assert_eq!(status, 0);
        let memory = Memory { driver: self, address: address as *mut c_void, tensor: tensor.clone() };
        // SAFETY: memory of the stand-in is host memory of this size.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), memory.address.cast(), bytes.len()) };
        memory
    }
}

struct Memory<'a> {
    driver: &'a Driver,
    address: *mut c_void,
    tensor: Tensor,
}

impl Memory<'_> {
    fn view(&mut self) -> View {
        let mut view = View::of(&mut self.tensor, Backing::Own);
        (view.view.data, view.view.device.kind) = (self.address, DEVICE_CUDA);
        view
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: as in `upload`.
        unsafe { std::slice::from_raw_parts(self.address.cast::<u8>(), self.tensor.bytes().len()) }.to_vec()
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(u64) -> i32;
        // SAFETY: the function has this type, and the address is not used again.
        assert_eq!(unsafe { (self.driver.function::<Free>(c"cuMemFree_v2"))(self.address as u64) }, 0);
    }
}

/// Inputs and the expected output for M rows.
fn case(m: u64, seed: u64) -> (HashMap<String, Tensor>, Tensor) {
    let (program, _) = load(SOURCE).expect("a valid program");
    let recipe = Recipe { rule: Rule::Exact, seed, symbols: vec![("M".to_owned(), m)] };
    let tensors = inputs(&program, &recipe).expect("inputs");
    let output = interpreted(&tensors);
    (tensors, output)
}

fn interpreted(tensors: &HashMap<String, Tensor>) -> Tensor {
    let (program, _) = load(SOURCE).expect("a valid program");
    let bound = bind(&program, tensors).expect("the inputs fit");
    interpret(&program, &bound).expect("values")[program.module().outputs[0].index()].clone()
}

fn poisoned(like: &Tensor) -> Tensor {
    Tensor::new(like.element(), like.dims().to_vec(), like.layout(), vec![0xFF; like.bytes().len()])
        .expect("a tensor")
}

struct Program(*mut fourfold_capi::abi::Prepared);

impl Program {
    fn new(args: &mut PrepareArgs) -> Result<Program, Wrong> {
        call(api().prepare, args)?;
        Ok(Program(args.prepared))
    }

    fn launch(&self, driver: &Driver, inputs: &[*mut c_void], outputs: &[*mut c_void]) -> Result<(), Wrong> {
        let mut launch: LaunchArgs = args();
        (launch.prepared, launch.stream) = (self.0, driver.stream);
        (launch.inputs, launch.input_count) = (inputs.as_ptr(), inputs.len());
        (launch.outputs, launch.output_count) = (outputs.as_ptr(), outputs.len());
        call_const(api().launch, &launch)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it is not used again, and the device is idle.
        unsafe { (api().prepared_destroy)(self.0) }
    }
}

const NAMES: [&str; 3] = ["x", "w0", "w1"];

fn executes_on_the_device(driver: &Driver, module: &Module) {
    for m in [0, 1, 5, 131] {
        let (tensors, expected) = case(m, m + 1);
        let mut inputs = NAMES.map(|name| driver.upload(&tensors[name]));
        let mut output = driver.upload(&poisoned(&expected));
        let views: Vec<View> = inputs.iter_mut().map(Memory::view).collect();
        module.execute_on(driver.stream, &views, &[output.view()], &[]).expect("a run");
        assert_eq!(output.bytes(), expected.bytes(), "M = {m}");
    }
    let (tensors, expected) = case(5, 1);
    let mut inputs = NAMES.map(|name| driver.upload(&tensors[name]));
    let mut output = driver.upload(&poisoned(&expected));
    let mut views: Vec<View> = inputs.iter_mut().map(Memory::view).collect();
    views[2].view.device.id = 1;
    let wrong = module.execute_on(driver.stream, &views, &[output.view()], &[]).expect_err("another device");
    assert!(
        wrong.code == 3 && wrong.message.contains("the tensor for `%w1` is not on device 0"),
        "{wrong:?}"
    );
    assert_eq!(output.bytes(), poisoned(&expected).bytes());
}

fn sessions_take_tensors_of_both_places(driver: &Driver, module: &Module) {
    let (tensors, expected) = case(7, 3);
    let session = module.session(&tensors).expect("a session");
    let (found, prepared) = session.run(module, &tensors, &[("M", 7)]).expect("a run");
    assert!(found[0] == expected && prepared);
    let (mut x, mut y) = (driver.upload(&tensors["x"]), driver.upload(&poisoned(&expected)));
    let (x, view) = (x.view().view, y.view().view);
    let mut shapes = [[7i64, 32], [7, 40]];
    let place = |mut view: TensorView, shape: &mut [i64; 2]| {
        view.shape = shape.as_mut_ptr();
        view
    };
    let [first, second] = &mut shapes;
    let (x, view) = (place(x, first), place(view, second));
    let mut run: SessionRunArgs = args();
    (run.session, run.inputs, run.input_count) = (session.0, &x, 1);
    (run.outputs, run.output_count) = (&view, 1);
    call(api().session_run, &mut run).expect("a run");
    assert!(run.was_prepared == 1 && y.bytes() == expected.bytes());
}

/// The prepared programs of a module and of a session, launched with fresh addresses while others are in flight.
fn launches_take_fresh_addresses(driver: &Driver, module: &Module) {
    let m = SymbolExtent { name: text("M"), extent: 9 };
    let cases: Vec<_> = (0..3).map(|seed| case(9, 20 + seed)).collect();
    let (shared, _) = &cases[0];
    let session = module.session(shared).expect("a session");
    for by_session in [false, true] {
        let names = if by_session { &NAMES[..1] } else { &NAMES[..] };
        let sets: Vec<(Vec<Memory<'_>>, Memory<'_>)> = cases
            .iter()
            .map(|(tensors, expected)| {
                (
                    names.iter().map(|name| driver.upload(&tensors[*name])).collect(),
                    driver.upload(&poisoned(expected)),
                )
            })
            .collect();
        let addresses: Vec<(Vec<*mut c_void>, [*mut c_void; 1])> = (sets.iter())
            .map(|(inputs, output)| (inputs.iter().map(|input| input.address).collect(), [output.address]))
            .collect();
        let mut prepare: PrepareArgs = args();
        if by_session {
            prepare.session = session.0
        } else {
            prepare.module = module.0
        }
        (prepare.symbols, prepare.symbol_count) = (&m, 1);
        (prepare.inputs, prepare.input_count) = (addresses[0].0.as_ptr(), names.len());
        (prepare.outputs, prepare.output_count) = (addresses[0].1.as_ptr(), 1);
        let program = Program::new(&mut prepare).expect("a prepared program");
        let before = driver.count(ALLOCATIONS);
        for (inputs, output) in addresses.iter().rev() {
            program.launch(driver, inputs, output).expect("a launch");
        }
        program.launch(driver, &[], &[]).expect("a launch at the same addresses");
        assert_eq!(driver.count(ALLOCATIONS), before, "launches allocate nothing");
        driver.wait();
        call(api().prepared_fault, program.0).expect("no fault");
        for ((_, output), (tensors, expected)) in sets.iter().zip(&cases) {
            let expected = match by_session {
                true => with_params_of(shared, tensors),
                false => expected.clone(),
            };
            assert_eq!(output.bytes(), expected.bytes(), "by session: {by_session}");
        }
        let (inputs, output) = &addresses[0];
        let refused = |inputs: &[*mut c_void], outputs: &[*mut c_void], reason: &str| {
            let wrong = program.launch(driver, inputs, outputs).expect_err(reason);
            assert!(wrong.code == 3 && wrong.reason == reason, "{wrong:?}");
        };
        refused(inputs, &[inputs[0]], "alias");
        refused(inputs, &[output[0].wrapping_byte_add(1)], "pointer_alignment");
        refused(inputs, &[ptr::null_mut()], "missing_address");
        refused(&inputs[1..], output, "invalid_argument");
        program.launch(driver, &[], &[]).expect("the addresses stay");
        driver.wait();
    }
}

/// The output for the inputs of one case and the params of another.
fn with_params_of(params: &HashMap<String, Tensor>, tensors: &HashMap<String, Tensor>) -> Tensor {
    let mut mixed = params.clone();
    mixed.insert("x".to_owned(), tensors["x"].clone());
    interpreted(&mixed)
}

fn workspaces_are_those_of_the_description(driver: &Driver, module: &Module) {
    let ports: Vec<OwnPort> = module.ports(&[("M", 9)]).expect("ports");
    assert_eq!(ports.iter().map(|port| port.bytes).collect::<Vec<_>>(), [9 * 64, 48 * 64, 40 * 96, 9 * 160]);
    assert_eq!(module.capturable(&[("M", 9)]), (true, String::new()));
    assert_eq!(module.capturable(&[]), (true, String::new()));
    let (tensors, expected) = case(9, 4);
    let inputs = NAMES.map(|name| driver.upload(&tensors[name]));
    let output = driver.upload(&poisoned(&expected));
    let addresses = inputs.each_ref().map(|input| input.address);
    let workspace = driver.upload(&Tensor::from_f32(vec![65536], &[0.0; 65536]).expect("a tensor"));
    let m = SymbolExtent { name: text("M"), extent: 9 };
    let mut prepare: PrepareArgs = args();
    (prepare.module, prepare.stream) = (module.0, driver.stream);
    (prepare.symbols, prepare.symbol_count) = (&m, 1);
    (prepare.inputs, prepare.input_count) = (addresses.as_ptr(), 3);
    (prepare.outputs, prepare.output_count) = (&output.address, 1);
    (prepare.workspace, prepare.workspace_size) = (workspace.address, 16);
    let wrong = Program::new(&mut prepare).err().expect("a small workspace");
    assert!(wrong.code == 3 && wrong.reason == "workspace_size", "{wrong:?}");
    prepare.workspace_size = 65536 * 4;
    let program = Program::new(&mut prepare).expect("a prepared program");
    program.launch(driver, &[], &[]).expect("a launch");
    driver.wait();
    assert_eq!(output.bytes(), expected.bytes());
}

#[test]
fn a_module_runs_on_a_device() {
    let driver = Driver::new();
    let host = Host::new(&[("device", "0")]);
    assert_eq!(host.target(), "sm_100a");
    let module = host.compile(SOURCE, 0).expect("a module");
    executes_on_the_device(&driver, &module);
    sessions_take_tensors_of_both_places(&driver, &module);
    launches_take_fresh_addresses(&driver, &module);
    workspaces_are_those_of_the_description(&driver, &module);
    drop(module);
    assert_eq!(driver.count(MEMORIES), 0, "device memory is left");
}

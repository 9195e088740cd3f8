//! Plain products through a stand-in cuBLASLt that multiplies as its descriptors say.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use fourfold_executor::blas::{Blas, BlasError, Matmul, MatmulProblem, WORKSPACE_LIMIT};
use fourfold_executor::device::{Buffer, Device, DeviceError, Stream};
use fourfold_executor::environment::Environment;
use fourfold_executor::{Ran, RunOptions};
use fourfold_ir::bind::bind;
use fourfold_ir::{Builder, Dim, ElementType, Tensor, TensorType, interpret, verify};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tempfile::TempDir;

use super::fixture::Fixture;
use super::stand_in::{Counter, StandIn, compile};
use super::tier::tier;

use ElementType::{BF16, F16, F32};

/// The counters of the stand-in library, in its order. The last ones are properties of the last call.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Handles,
    Objects,
    Searches,
    Calls,
    Compute,
    Schemes,
    Limit,
    Alignment,
}

#[derive(Clone, Copy, Debug)]
enum Setting {
    NoFastAlgorithm,
    NoAlgorithm,
    FailCalls,
    FailCreate,
}

const SETTINGS: [Setting; 4] =
    [Setting::NoFastAlgorithm, Setting::NoAlgorithm, Setting::FailCalls, Setting::FailCreate];

type Set = unsafe extern "C" fn(i32, u64);
type Get = unsafe extern "C" fn(i32) -> u64;

struct StandInBlas {
    path: PathBuf,
    set: Set,
    get: Get,
    _folder: TempDir,
}

static BLAS: LazyLock<StandInBlas> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = library(folder.path(), "libcublasLt.so.13", &[]);
    // SAFETY: the stand-in has no initializers; its functions have these types; it is never closed.
    unsafe {
        let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).unwrap();
        let set = *library.get::<Set>(c"stand_in_blas_set").unwrap();
        let get = *library.get::<Get>(c"stand_in_blas_get").unwrap();
        std::mem::forget(library);
        StandInBlas { path, set, get, _folder: folder }
    }
});

/// Compiles a stand-in library.
fn library(folder: &Path, name: &str, defines: &[&str]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join(name);
    let defines: Vec<String> = defines.iter().map(|define| format!("-D{define}")).collect();
    compile("libcublaslt.c", &path, &defines);
    path
}

fn seen(counter: Seen) -> u64 {
    // SAFETY: it reads a number.
    unsafe { (BLAS.get)(counter as i32) }
}

fn set(setting: Setting, value: u64) {
    // SAFETY: it stores a number.
    unsafe { (BLAS.set)(setting as i32, value) }
}

fn named(path: &Path) -> Environment {
    Environment { fourfold_cublaslt: Some(path.into()), ..Environment::default() }
}

/// The stand-in library on a device of the stand-in driver. On drop, everything must have been destroyed.
pub struct Setup {
    pub device: Device,
    pub _stand_in: StandIn,
}

impl Setup {
    pub fn new() -> Setup {
        let stand_in = StandIn::new();
        for setting in SETTINGS {
            set(setting, 0);
        }
        Setup { device: Device::open(0).unwrap(), _stand_in: stand_in }
    }

    pub fn blas(&self) -> Blas {
        Blas::load_from(&self.device, &named(&BLAS.path)).unwrap()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!((seen(Seen::Handles), seen(Seen::Objects)), (0, 0), "handles and objects are left");
        }
    }
}

const fn problem(l: i64, [m, n, k]: [i64; 3], elements: [ElementType; 3], b_batched: bool) -> MatmulProblem {
    MatmulProblem { l, m, n, k, elements, b_batched }
}

/// Small whole numbers, so that a sum is exact in f32 in any order.
fn integers(element: ElementType, dims: &[i64], seed: u64) -> Tensor {
    let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % 15) as f64 - 7.0
    };
    let values: Vec<f64> = (0..dims.iter().product()).map(next).collect();
    Tensor::from_f64(element, dims, None, &values).unwrap()
}

/// A and B of a problem, and D as the interpreter computes it from a program with one `mma`.
struct Reference {
    a: Tensor,
    b: Tensor,
    d: Vec<u8>,
}

impl Reference {
    fn of(problem: &MatmulProblem, seed: u64) -> Reference {
        let MatmulProblem { l, m, n, k, elements: [a, b, d], b_batched } = *problem;
        let b_dims = if b_batched { vec![l, n, k] } else { vec![n, k] };
        let (a, b) = (integers(a, &[l, m, k], seed), integers(b, &b_dims, seed + 1));
        let mut builder = Builder::new("product");
        let ty = |tensor: &Tensor| {
            let dims = tensor.dims().iter().map(|dim| Dim::fixed(*dim as u64)).collect();
            TensorType::new(dims, tensor.element())
        };
        let operands = [builder.input("a", ty(&a)), builder.input("b", ty(&b))];
        let product = builder.mma("d", operands[0], operands[1], d);
        let program = verify(builder.finish(&[product])).unwrap();
        let tensors = HashMap::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        let values = interpret(&program, &bind(&program, &tensors).unwrap()).unwrap();
        let [a, b, d] = [operands[0], operands[1], product]
            .map(|value| values[fourfold_ir::Entity::index(value)].try_clone().unwrap());
        Reference { a, b, d: d.bytes().to_vec() }
    }
}

/// A buffer with these bytes at an offset.
fn upload(stream: &Stream, device: &Device, bytes: &[u8], offset: usize) -> Buffer {
    let buffer = device.alloc(bytes.len() + offset).unwrap();
    stream.upload(&buffer, offset, bytes).unwrap();
    buffer
}

/// Runs a product with its operands at an offset in bytes, and returns D.
fn run(setup: &Setup, matmul: &Matmul, reference: &Reference, offset: usize) -> Result<Vec<u8>, DeviceError> {
    let (device, stream) = (&setup.device, setup.device.stream());
    let [a, b] = [&reference.a, &reference.b].map(|tensor| upload(stream, device, tensor.bytes(), offset));
    let d = device.alloc(reference.d.len() + offset).unwrap();
    stream.fill(&d, 0, d.len(), 0xFF).unwrap();
    let workspace = device.alloc(matmul.workspace().max(1) as usize).unwrap();
    let at = |buffer: &Buffer| buffer.address() + offset as u64;
    // SAFETY: the buffers hold the operands, the result and the workspace, and outlive the wait.
    unsafe { matmul.launch(stream, at(&a), at(&b), at(&d), workspace.address()) }?;
    let mut bytes = vec![0; reference.d.len()];
    stream.download(&d, offset, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn products_are_those_of_the_interpreter() {
    let setup = Setup::new();
    let blas = setup.blas();
    let halves = [[F16, F16, F16], [F16, F16, F32], [BF16, BF16, BF16], [BF16, BF16, F32]];
    let every_type = || [[F32; 3]].into_iter().chain(halves);
    let extents = [[3, 5, 7], [1, 1, 1], [1, 33, 91], [91, 1, 8], [64, 40, 16], [37, 19, 91]];
    let mut problems = Vec::new();
    for extents in extents {
        for elements in every_type() {
            let batches = [(1, true), (1, false), (3, true), (3, false)];
            problems.extend(batches.map(|(l, b_batched)| problem(l, extents, elements, b_batched)));
        }
    }
    for (seed, problem) in problems.iter().enumerate() {
        let reference = Reference::of(problem, seed as u64);
        let matmul = blas.matmul(problem).unwrap();
        let found = run(&setup, &matmul, &reference, 0).unwrap();
        assert!(found == reference.d, "{problem}");
        // f32 is never shortened, not even where the environment allows it.
        let compute = if problem.elements[0] == F32 { 69 } else { 68 };
        assert_eq!(seen(Seen::Compute), compute, "{problem}");
        // Split-K keeps its sums in f32.
        assert_eq!((seen(Seen::Schemes), seen(Seen::Limit)), (2, WORKSPACE_LIMIT), "{problem}");
    }
}

#[test]
fn an_algorithm_is_chosen_by_the_alignment_of_the_addresses() {
    let setup = Setup::new();
    let blas = setup.blas();
    for (elements, bytes) in [([BF16, BF16, BF16], 2), ([F32; 3], 4)] {
        let problem = problem(2, [5, 6, 8], elements, true);
        let reference = Reference::of(&problem, 9);
        let searches = seen(Seen::Searches);
        let matmul = blas.matmul(&problem).unwrap();
        assert_eq!(matmul.alignments(), [bytes; 3]);
        assert_eq!((matmul.workspace(), seen(Seen::Searches)), (1000, searches + 2));
        for (offset, alignment) in [(0, 16), (bytes as usize, bytes.into()), (16, 16), (8, bytes.into())] {
            assert_eq!(run(&setup, &matmul, &reference, offset), Ok(reference.d.clone()), "{offset}");
            assert_eq!(seen(Seen::Alignment), alignment, "{offset}");
        }
        assert_eq!(seen(Seen::Searches), searches + 2, "launches search for nothing");
        let refused = run(&setup, &matmul, &reference, 1).unwrap_err();
        assert!(matches!(&refused, DeviceError::Library { code: 7, .. }), "{refused}");
    }
    // The result of half operands may need more than they do.
    let mixed = problem(1, [2, 3, 4], [F16, F16, F32], true);
    assert_eq!(blas.matmul(&mixed).unwrap().alignments(), [2, 2, 4]);
    set(Setting::NoFastAlgorithm, 1);
    let matmul = blas.matmul(&mixed).unwrap();
    let reference = Reference::of(&mixed, 3);
    assert_eq!(run(&setup, &matmul, &reference, 0), Ok(reference.d.clone()));
    assert_eq!(seen(Seen::Alignment), 2);
}

/// `%q` has the same extents and types as `%p`.
const TWO: &str = "fir 1
func @two(%x: tensor<[M, 6], f32>, %v: tensor<[5, 6], f32>, %w: tensor<[5, 6], f32>) {
  %p = mma %x, %v : tensor<[M, 5], f32>
  %q = mma %x, %w : tensor<[M, 5], f32>
  return %p, %q
}
";

#[test]
fn a_run_searches_only_for_new_problems() {
    let setup = Setup::new();
    let blas = setup.blas();
    let run = |m: u64| {
        let fixture = tier(TWO, &[("M", m)]).with_library(Ok(blas.clone()));
        let searches = seen(Seen::Searches);
        let run = fixture.run(Some(&setup.device), &RunOptions::default()).unwrap();
        for name in ["p", "q"] {
            assert_eq!(run.value(fixture.value(name)), Some(&fixture.expected(name)), "%{name}");
        }
        seen(Seen::Searches) - searches
    };
    // One search for each alignment.
    assert_eq!([run(7), run(7), run(8), run(7), run(8)], [2, 0, 2, 0, 0]);
    // A failed search is tried again.
    set(Setting::NoAlgorithm, 1);
    let fixture = tier(TWO, &[("M", 9)]).with_library(Ok(blas.clone()));
    let ran = |fixture: &Fixture| {
        let run = fixture.run(Some(&setup.device), &RunOptions::default()).unwrap();
        run.segments.iter().map(|segment| segment.ran).collect::<Vec<_>>()
    };
    assert_eq!(ran(&fixture), [Ran::Fallback; 2]);
    set(Setting::NoAlgorithm, 0);
    assert_eq!(ran(&fixture), [Ran::Kernel; 2]);
    // The oldest problems are given up.
    let objects = seen(Seen::Objects);
    let mut searches = 0;
    for m in 10..10 + 1024 {
        searches += run(m);
    }
    assert_eq!((searches, seen(Seen::Objects) / 4), (2 * 1024, 1024), "{objects}");
    assert_eq!([run(1033), run(7)], [0, 2]);
}

#[test]
fn a_product_is_captured_and_replayed_without_allocation() {
    let setup = Setup::new();
    let (device, stream) = (&setup.device, setup.device.stream());
    let matmul = setup.blas().matmul(&problem(2, [5, 6, 7], [BF16, BF16, F32], false)).unwrap();
    let reference = Reference::of(&problem(2, [5, 6, 7], [BF16, BF16, F32], false), 4);
    let [a, b] = [&reference.a, &reference.b].map(|tensor| upload(stream, device, tensor.bytes(), 0));
    let d = device.alloc(reference.d.len()).unwrap();
    let workspace = device.alloc(matmul.workspace() as usize).unwrap();
    let count = |counter| setup._stand_in.count(counter);
    let before = [Counter::Allocations, Counter::Waits].map(count);
    let calls = seen(Seen::Calls);
    // SAFETY: the buffers hold the operands, the result and the workspace, and outlive the graph.
    let launch =
        || unsafe { matmul.launch(stream, a.address(), b.address(), d.address(), workspace.address()) };
    let graph = stream.capture(launch).unwrap();
    assert_eq!([Counter::Allocations, Counter::Waits].map(count), before);
    for _ in 0..2 {
        stream.fill(&d, 0, d.len(), 0xFF).unwrap();
        // SAFETY: as above.
        unsafe { graph.launch(stream) }.unwrap();
        let mut bytes = vec![0; d.len()];
        stream.download(&d, 0, &mut bytes).unwrap();
        assert!(bytes == reference.d);
    }
    assert_eq!(seen(Seen::Calls), calls + 1);
}

#[test]
fn each_device_has_its_own_handle() {
    let setup = Setup::new();
    let other = Device::open(1).unwrap();
    let blas = setup.blas();
    let second = Blas::load_from(&other, &named(&BLAS.path)).unwrap();
    assert_eq!(seen(Seen::Handles), 2);
    assert_eq!(second.path(), BLAS.path);
    assert_eq!(second.version().to_string(), "13.1.0");
    let matmul = blas.matmul(&problem(1, [2, 2, 2], [F32; 3], true)).unwrap();
    // The product keeps the handle.
    drop(blas);
    // SAFETY: the call is refused before any address is used.
    let refused = unsafe { matmul.launch(other.stream(), 256, 256, 256, 256) };
    assert_eq!(refused, Err(DeviceError::OtherDevice { what: "stream" }));
    // A workspace must be aligned and present.
    for workspace in [0, 8] {
        // SAFETY: as above.
        let refused = unsafe { matmul.launch(setup.device.stream(), 256, 256, 256, workspace) };
        assert!(matches!(refused, Err(DeviceError::Library { code: 7, .. })), "{refused:?}");
    }
    assert_eq!(seen(Seen::Handles), 2);
}

#[test]
fn products_that_the_library_refuses_are_errors() {
    let setup = Setup::new();
    let blas = setup.blas();
    let ok = problem(2, [3, 4, 5], [F32; 3], true);
    let huge = i64::from(i32::MAX);
    for (wrong, text) in [
        (MatmulProblem { k: 0, ..ok }, "K is 0; expected 1 to 2147483647"),
        (MatmulProblem { m: -1, ..ok }, "M is -1; expected 1 to 2147483647"),
        (MatmulProblem { n: huge + 1, ..ok }, "N is 2147483648; expected 1 to 2147483647"),
        (MatmulProblem { l: 0, ..ok }, "L is 0; expected 1 to 2147483647"),
        (MatmulProblem { m: huge, b_batched: false, ..ok }, "L*M is 4294967294; expected 1 to 2147483647"),
        (
            MatmulProblem { elements: [F16, F16, BF16], ..ok },
            "cuBLASLt does not compute mma of f16 and f16 with a result of bf16",
        ),
    ] {
        assert_eq!(blas.matmul(&wrong).unwrap_err().to_string(), text);
    }
    set(Setting::NoAlgorithm, 1);
    let error = blas.matmul(&ok).unwrap_err();
    assert_eq!(error.to_string(), "cuBLASLt has no algorithm for mma a=f32 b=f32 d=f32 of L=2 M=3 N=4 K=5");
    assert_eq!(error, BlasError::NoAlgorithm { problem: ok });
    set(Setting::NoAlgorithm, 0);
    set(Setting::FailCreate, 1);
    let error = Blas::load_from(&setup.device, &named(&BLAS.path)).unwrap_err();
    assert_eq!(error.to_string(), "cublasLtCreate failed: CUBLAS_STATUS_NOT_INITIALIZED (1)");
    set(Setting::FailCreate, 0);
    set(Setting::FailCalls, 14);
    let failed = run(&setup, &blas.matmul(&ok).unwrap(), &Reference::of(&ok, 1), 0).unwrap_err();
    assert_eq!(failed.to_string(), "cublasLtMatmul failed: unknown (14)");
    assert!(!failed.is_sticky());
}

#[test]
fn the_library_is_searched_in_toolkits_and_packages() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let found =
        |environment: &Environment| Blas::find(environment).map(|(path, version)| (path, version.major));
    // A toolkit, and the packages of CUDA 12 and 13 in a toolchain folder and beside nvcc.
    let toolkit = library(&at("cuda/lib64"), "libcublasLt.so.12", &["VERSION=120804"]);
    let home = Environment { cuda_home: Some(at("cuda").into()), ..Environment::default() };
    assert_eq!(found(&home), Ok((toolkit, 12)));
    let package = library(&at("carried/nvidia/cu13/lib"), "libcublasLt.so.13", &[]);
    let carried = Environment { fourfold_toolchain: Some(at("carried").into()), ..home.clone() };
    assert_eq!(found(&carried), Ok((package, 13)));
    let old = library(&at("site/nvidia/cublas/lib"), "libcublasLt.so.12", &["VERSION=120001"]);
    let nvcc = at("site/nvidia/cuda_nvcc/bin/nvcc");
    let beside = Environment { fourfold_nvcc: Some(nvcc.into()), ..carried.clone() };
    assert_eq!(found(&beside), Ok((old, 12)));
    // A library of another version is not used; the next one is.
    let wrong = library(&at("wrong/lib64"), "libcublasLt.so.13", &["VERSION=140000"]);
    let next = library(&at("wrong/lib"), "libcublasLt.so.13", &["VERSION=130200"]);
    let home = Environment { cuda_home: Some(at("wrong").into()), ..Environment::default() };
    assert_eq!(found(&home), Ok((next.clone(), 13)));
    fs::remove_file(next).unwrap();
    match Blas::find(&home) {
        Ok((path, _)) => assert!(!path.starts_with(folder.path()), "a library of the system"),
        Err(error) => {
            let expected = format!(
                "there is no cuBLASLt library (libcublasLt.so.13 or libcublasLt.so.12); cuBLASLt 14.0.0 in `{}` is not \
                 supported; expected version 12 or 13",
                wrong.display()
            );
            assert_eq!(error.to_string(), expected);
        }
    }
    let error = Blas::find(&named(&wrong)).unwrap_err();
    assert!(matches!(&error, BlasError::Version { found, .. } if found.major == 14), "{error}");
    assert!(error.remedy().contains("nvidia-cublas") && error.remedy().contains("FOURFOLD_CUBLASLT"));
}

#[test]
fn a_named_library_is_a_file_or_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let file = library(&at("lib"), "libcublasLt.so.12", &["VERSION=120804"]);
    assert_eq!(Blas::find(&named(&at("lib"))).unwrap().0, file);
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("text"), "no library").unwrap();
    compile("libcuda.c", &at("other.so"), &[]);
    let error = |path: &str| Blas::find(&named(&at(path))).unwrap_err().to_string();
    let named = |path: &str| format!("FOURFOLD_CUBLASLT names `{}`, which", at(path).display());
    assert_eq!(error("none"), format!("{} does not exist", named("none")));
    assert_eq!(
        error("empty"),
        format!("{} contains neither libcublasLt.so.13 nor libcublasLt.so.12", named("empty"))
    );
    assert!(error("text").starts_with(&format!("{} cannot be loaded: ", named("text"))), "{}", error("text"));
    assert_eq!(
        error("other.so"),
        format!("`{}` lacks the function cublasLtGetVersion", at("other.so").display())
    );
}

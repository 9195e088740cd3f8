//! Stand-in kernels. Each is a copy of one library with the interface of a generated kernel, and calls back here.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use fourfold::Planned;
use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::{Interface, KernelSpec, specify, target};
use fourfold::executor::SegmentKernel;
use fourfold::executor::blas::Blas;
use fourfold::executor::kernel::{Kernel, MAX_OPERANDS, MAX_OUTPUTS, MAX_SCALARS, Requirements};
use fourfold::ir::bind::concrete_dims;
use fourfold::ir::{Entity, OpKind, Program, SymbolValues, Tensor, Value, interpret_op};
use fourfold::scheduler::Plan;
use fourfold_tests::repository;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tempfile::TempDir;

use crate::stand_in::compile;

/// The workspaces of kernels, in bytes, by their numbers.
const WORKSPACES: [u64; 4] = [0, 300, 0, 1000];

/// The addresses of a call, as in the C interface.
#[repr(C)]
pub struct Addresses {
    operands: [*const c_void; MAX_OPERANDS],
    operand_count: u32,
    scalars: [*const c_void; MAX_SCALARS],
    scalar_count: u32,
    outputs: [*mut c_void; MAX_OUTPUTS],
    output_count: u32,
}

type Query = unsafe extern "C" fn(u64, *const i64, u32, *mut Requirements) -> i32;
type Prepare = unsafe extern "C" fn(u64, *const i64, u32) -> u64;
type Work = unsafe extern "C" fn(u64, *const Addresses, *const c_void, usize) -> i32;
type Connect = unsafe extern "C" fn(*const c_char, u64, Query, Prepare, Work);

/// A segment with its values in the order of its kernel's interface.
#[derive(Clone)]
struct Segment {
    kernel: u64,
    planned: Arc<Planned>,
    position: usize,
    interface: Interface,
    symbols: SymbolValues,
}

/// The segments of kernels and calls, by number. A call has the extents of its preparation.
#[derive(Default)]
struct Known {
    kernels: HashMap<u64, Segment>,
    calls: HashMap<u64, Segment>,
    last: u64,
    /// The first reason for a failure.
    failure: Option<String>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernels of one thread. A kernel serves one segment after another.
#[derive(Default)]
pub struct Kernels {
    /// Kernels with their numbers, by metadata. A program takes several if it has several segments of one kernel.
    loaded: HashMap<String, Vec<(u64, Kernel)>>,
    /// Kernels of the current program.
    current: Vec<u64>,
}

impl Kernels {
    /// Gives each segment of a program a kernel or the library.
    pub fn of(&mut self, planned: Planned, blas: &Blas) -> (Arc<Planned>, HashMap<usize, SegmentKernel>) {
        let planned = Arc::new(planned);
        let target = target(&planned.partition().target).expect("a known target");
        let mut known = known();
        known.calls.retain(|_, segment| !self.current.contains(&segment.kernel));
        for kernel in self.current.drain(..) {
            known.kernels.remove(&kernel);
        }
        let mut taken: HashMap<String, usize> = HashMap::new();
        let mut kernels = HashMap::new();
        for (position, plan) in planned.partition().plans() {
            if let Plan::Mma(_) = plan {
                kernels.insert(position, SegmentKernel::Library(blas.clone()));
            }
            let specified = specify(planned.program(), plan, target, CutlassVersion::PINNED, None);
            let Some((spec, _)) = specified else { continue };
            let text = metadata(&spec);
            let loaded = self.loaded.entry(text.clone()).or_default();
            let taken = taken.entry(text.clone()).or_default();
            if loaded.len() == *taken {
                known.last += 1;
                loaded.push((known.last, load(known.last, &text)));
            }
            let (number, kernel) = loaded[*taken].clone();
            *taken += 1;
            let (interface, symbols) = (spec.interface(), SymbolValues::default());
            let segment =
                Segment { kernel: number, planned: Arc::clone(&planned), position, interface, symbols };
            known.kernels.insert(number, segment);
            self.current.push(number);
            kernels.insert(position, SegmentKernel::Ready(kernel));
        }
        drop(known);
        (planned, kernels)
    }

    /// Sets the extents of symbols for the calls that are prepared from now on.
    pub fn bind(&self, symbols: &SymbolValues) {
        let mut known = known();
        for kernel in &self.current {
            if let Some(segment) = known.kernels.get_mut(kernel) {
                segment.symbols = symbols.clone();
            }
        }
    }

    /// An error with the reason of a kernel, if one has failed.
    pub fn why(&self, error: &str) -> String {
        let failure = known().failure.clone();
        failure.map_or(error.to_owned(), |failure| format!("{error}: {failure}"))
    }
}

/// The metadata of a kernel, as its source states them.
fn metadata(spec: &KernelSpec) -> String {
    let Interface { extents, operands, scalars, outputs } = spec.interface();
    let roles = |roles: &[fourfold::codegen::Role]| -> Vec<String> {
        let role = |role: &fourfold::codegen::Role| {
            let extents = role.extents.as_ref().map(|names| format!(",\"extents\":{names:?}"));
            let (name, element) = (&role.name, &role.element);
            format!("{{\"role\":\"{name}\",\"element\":\"{element}\"{}}}", extents.unwrap_or_default())
        };
        roles.iter().map(role).collect()
    };
    format!(
        "{{\"abi\":6,\"target\":\"{}\",\"kernel\":\"{}\",\"tile\":[1,1,1],\"cluster\":[1,1,1],\"shared_memory\":0,\
         \"threads\":256,\"signature\":\"{}\",\"extents\":{extents:?},\"operands\":[{}],\"scalars\":{scalars:?},\
         \"outputs\":[{}],\"emulated\":false}}",
        spec.target().name,
        spec.name(),
        spec.signature(),
        roles(&operands).join(","),
        roles(&outputs).join(",")
    )
}

/// Loads a copy of the library, since the dynamic linker identifies libraries by file.
fn load(number: u64, metadata: &str) -> Kernel {
    static COMPILED: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let library = folder.path().join("kernel.so");
        compile(&repository().join("tests/tests/programs/kernel.c"), &library, &[]);
        (folder, library)
    });
    let (folder, compiled) = &*COMPILED;
    let path = folder.path().join(format!("kernel{number}.so"));
    fs::copy(compiled, &path).expect("a copy");
    // The library keeps the text as long as it is loaded: to the end of the process.
    let metadata = CString::new(metadata).expect("metadata has no NUL").into_raw();
    // SAFETY: the library has no initializers; the function has this type; the library is never closed. Its functions
    // are those of the interface.
    unsafe {
        let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).expect("the kernel loads");
        let connect = *library.get::<Connect>(c"stand_in_connect").expect("a function of the kernel");
        connect(metadata, number, query, prepare, work);
        std::mem::forget(library);
        Kernel::open(&path).expect("a kernel")
    }
}

/// # Safety
/// `extents` has `count` numbers, and `requirements` is live.
unsafe extern "C" fn query(
    kernel: u64,
    extents: *const i64,
    count: u32,
    requirements: *mut Requirements,
) -> i32 {
    // SAFETY: the kernel passes the lists of its own call.
    let (extents, requirements) =
        unsafe { (std::slice::from_raw_parts(extents, count as usize), &mut *requirements) };
    let mut known = known();
    let found = known.kernels.get(&kernel).ok_or("no such kernel".to_owned()).and_then(|segment| {
        segment.check_extents(extents)?;
        requirements.workspace = WORKSPACES[kernel as usize % WORKSPACES.len()];
        for (slot, value) in requirements.operands.iter_mut().zip(segment.operands()?) {
            *slot = segment.bytes(value)? as u64;
        }
        for (slot, value) in requirements.outputs.iter_mut().zip(segment.outputs()?) {
            *slot = segment.bytes(value)? as u64;
        }
        Ok(())
    });
    i32::from(known.succeeds(found).is_some())
}

/// # Safety
/// `extents` has `count` numbers.
unsafe extern "C" fn prepare(kernel: u64, extents: *const i64, count: u32) -> u64 {
    // SAFETY: the kernel passes the list of its own call.
    let extents = unsafe { std::slice::from_raw_parts(extents, count as usize) };
    let mut known = known();
    let found = known.kernels.get(&kernel).cloned().ok_or("no such kernel".to_owned());
    let found = found.and_then(|segment| segment.check_extents(extents).map(|()| segment));
    let Some(segment) = known.succeeds(found) else { return 0 };
    known.last += 1;
    let number = known.last;
    known.calls.insert(number, segment);
    number
}

/// # Safety
/// The addresses are those of the call, and so is the workspace.
unsafe extern "C" fn work(
    call: u64,
    addresses: *const Addresses,
    workspace: *const c_void,
    workspace_size: usize,
) -> i32 {
    let segment = known().calls.get(&call).cloned();
    let found = segment.ok_or("no such call".to_owned()).and_then(|segment| {
        // SAFETY: the kernel passes its own addresses, and the executor checked their sizes against the query.
        unsafe { segment.compute(&*addresses, (workspace as usize, workspace_size)) }
    });
    i32::from(known().succeeds(found).is_some())
}

impl Known {
    fn succeeds<T>(&mut self, found: Result<T, String>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            Err(failure) => {
                self.failure.get_or_insert(failure);
                None
            }
        }
    }
}

impl Segment {
    fn program(&self) -> &Program {
        self.planned.program()
    }

    fn plan(&self) -> &Plan {
        self.planned.partition().segments[self.position].plan().expect("a kernel has a plan")
    }

    /// The values of roles, in the order of the interface.
    fn values(roles: &[String], planned: &[(String, Value)]) -> Result<Vec<Value>, String> {
        let value = |role: &String| {
            let found = planned.iter().find(|(name, _)| name == role);
            found.map(|(_, value)| *value).ok_or_else(|| format!("the plan has no `{role}`"))
        };
        roles.iter().map(value).collect()
    }

    fn operands(&self) -> Result<Vec<Value>, String> {
        let names: Vec<String> = self.interface.operands.iter().map(|role| role.name.clone()).collect();
        Segment::values(&names, &self.plan().roles().operands)
    }

    fn scalars(&self) -> Result<Vec<Value>, String> {
        let names: Vec<String> = self.interface.scalars.iter().map(|name| (*name).to_owned()).collect();
        Segment::values(&names, &self.plan().roles().scalars)
    }

    fn outputs(&self) -> Result<Vec<Value>, String> {
        let names: Vec<String> = self.interface.outputs.iter().map(|role| role.name.clone()).collect();
        Segment::values(&names, &self.plan().roles().outputs)
    }

    fn dims(&self, value: Value) -> Result<Vec<usize>, String> {
        let ty = self.program().module().ty(value);
        concrete_dims(ty, &self.symbols).ok_or_else(|| "a symbol has no extent".to_owned())
    }

    fn bytes(&self, value: Value) -> Result<usize, String> {
        let ty = self.program().module().ty(value);
        Tensor::byte_len(ty.element, &self.dims(value)?, ty.layout).map_err(|error| error.to_string())
    }

    /// Compares the extents of a call with those of the plan.
    fn check_extents(&self, extents: &[i64]) -> Result<(), String> {
        let planned = self.plan().extents(&self.symbols).ok_or("the extents of the plan are unknown")?;
        let wanted: Vec<Option<i64>> = self
            .interface
            .extents
            .iter()
            .map(|name| planned.iter().find(|(planned, _)| planned == name).map(|(_, extent)| *extent))
            .collect();
        let found: Vec<Option<i64>> = extents.iter().copied().map(Some).collect();
        if found == wanted { Ok(()) } else { Err(format!("the extents are {found:?}, not {wanted:?}")) }
    }

    /// Evaluates the segment on device memory. Memory that a launch writes must not overlap memory that it reads, or its
    /// workspace.
    ///
    /// # Safety
    /// The addresses are of live memory of the values' sizes, which no other work uses.
    unsafe fn compute(&self, addresses: &Addresses, workspace: (usize, usize)) -> Result<(), String> {
        let module = self.program().module();
        let (operands, scalars, outputs) = (self.operands()?, self.scalars()?, self.outputs()?);
        let counts = [addresses.operand_count, addresses.scalar_count, addresses.output_count];
        if counts != [operands.len(), scalars.len(), outputs.len()].map(|count| count as u32) {
            return Err(format!("the addresses are {counts:?}"));
        }
        let read = operands.iter().zip(addresses.operands).chain(scalars.iter().zip(addresses.scalars));
        let mut places = vec![workspace];
        let mut tensors: HashMap<Value, Tensor> = HashMap::new();
        for (value, address) in read {
            let (ty, bytes) = (module.ty(*value), self.bytes(*value)?);
            let data = match bytes {
                0 => Vec::new(),
                // SAFETY: the caller vouches for the address.
                _ => unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) }.to_vec(),
            };
            places.push((address as usize, bytes));
            let tensor = Tensor::new(ty.element, self.dims(*value)?, ty.layout, data);
            tensors.insert(*value, tensor.map_err(|error| error.to_string())?);
        }
        self.evaluate(&mut tensors)?;
        for (value, address) in outputs.iter().zip(addresses.outputs) {
            let place = (address as usize, self.bytes(*value)?);
            if let Some(other) = places.iter().find(|other| overlaps(place, **other)) {
                return Err(format!("%{} at {place:?} overlaps {other:?}", module.name_of(*value)));
            }
            places.push(place);
            let data = tensors.get(value).ok_or("an output has no value")?.bytes();
            if data.len() != place.1 {
                return Err(format!("%{} has {} bytes", module.name_of(*value), data.len()));
            }
            // SAFETY: as above. An empty tensor is not written.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), address.cast::<u8>(), data.len()) };
        }
        Ok(())
    }

    /// Evaluates the ops of the segment with the interpreter.
    fn evaluate(&self, tensors: &mut HashMap<Value, Tensor>) -> Result<(), String> {
        let module = self.program().module();
        let mut ops = self.planned.partition().segments[self.position].ops.clone();
        // Constants of other segments are part of a kernel, too.
        let read = ops.iter().flat_map(|op| &module.ops[*op].operands);
        let constants = read.filter_map(|value| module.defining_op(*value));
        ops.extend(
            constants.filter(|op| matches!(module.ops[*op].kind, OpKind::Constant(_))).collect::<Vec<_>>(),
        );
        ops.sort_unstable_by_key(|op| op.index());
        ops.dedup();
        for op in ops {
            let operation = &module.ops[op];
            for value in &operation.operands {
                // A kernel has no address of an operand without elements.
                if !tensors.contains_key(value) && self.dims(*value)?.contains(&0) {
                    let ty = module.ty(*value);
                    let empty = Tensor::zeros(ty.element, self.dims(*value)?, ty.layout);
                    tensors.insert(*value, empty.map_err(|error| error.to_string())?);
                }
            }
            let operand = |value: &Value| {
                let missing = || format!("the kernel does not read %{}", module.name_of(*value));
                tensors.get(value).ok_or_else(missing)
            };
            let operands: Vec<&Tensor> = operation.operands.iter().map(operand).collect::<Result<_, _>>()?;
            let results = interpret_op(self.program(), op, &operands, &self.symbols);
            let results = results.map_err(|error| error.to_string())?;
            tensors.extend(operation.results.iter().copied().zip(results));
        }
        Ok(())
    }
}

fn overlaps((start, bytes): (usize, usize), (other, others): (usize, usize)) -> bool {
    bytes > 0 && others > 0 && start < other + others && other < start + bytes
}

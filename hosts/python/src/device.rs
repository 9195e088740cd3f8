//! Launches on torch's current stream.
//!
//! A program is prepared once for each stream and each set of extents. Preparing waits for the stream, so it is refused
//! while the stream is captured. A launch takes the addresses of its call and waits for nothing.
//!
//! Launches of one prepared program share a workspace, so they must run one after the other: the stream is part of the
//! key. A capture takes the program that the warm-up prepared, if need be from another stream, which must have ended its
//! work. That program is kept forever, because the graph launches its kernels with its workspace. Of the others, the
//! least recently used one is freed when there are more than `LIMIT`.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use fourfold_capi::abi::{self, LaunchArgs, PrepareArgs, SymbolExtent};

use crate::error::{Error, check};
use crate::module::{Extents, Module, Operand, api};
use crate::shim::{Tensor, ok, open, shim};

/// The number of prepared programs that are kept besides those of graphs.
const LIMIT: usize = 256;

type CurrentStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> i32;
type IsCapturing = unsafe extern "C" fn(*mut c_void, *mut i32) -> i32;
type Synchronize = unsafe extern "C" fn() -> i32;

/// Functions of torch's CUDA library and of the driver, which are loaded if torch has a CUDA tensor.
#[derive(Debug)]
struct Cuda {
    current_stream: CurrentStream,
    is_capturing: IsCapturing,
    synchronize: Synchronize,
}

fn cuda() -> Result<&'static Cuda, Error> {
    static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
    let load = || {
        let (torch, driver) = (open("libtorch_cuda.so")?, open("libcuda.so.1")?);
        // SAFETY: the types are those of torch's shim and of the driver's header.
        let cuda = unsafe {
            Cuda {
                current_stream: *torch.get(b"aoti_torch_get_current_cuda_stream\0").ok()?,
                is_capturing: *driver.get(b"cuStreamIsCapturing\0").ok()?,
                synchronize: *driver.get(b"cuCtxSynchronize\0").ok()?,
            }
        };
        // The functions must stay valid.
        std::mem::forget((torch, driver));
        Some(cuda)
    };
    CUDA.get_or_init(load).as_ref().ok_or_else(|| Error::argument("this PyTorch has no CUDA"))
}

/// Makes a device the current one, and restores the previous one when dropped.
struct Guard(*mut c_void);

impl Guard {
    fn new(ordinal: i32) -> Result<Guard, Error> {
        let mut guard = ptr::null_mut();
        // SAFETY: the pointer is valid.
        ok(unsafe { (shim()?.create_guard)(ordinal, &raw mut guard) }, "a device")?;
        Ok(Guard(guard))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(shim) = shim() {
            // SAFETY: the guard is ours.
            unsafe { (shim.delete_guard)(self.0) };
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    module: usize,
    stream: usize,
    symbols: Vec<i64>,
}

#[derive(Debug)]
struct Prepared {
    handle: *mut abi::Prepared,
    ordinal: i32,
    was_captured: bool,
    used: u64,
}

// SAFETY: the C interface allows any thread to use a prepared program; the map is locked.
unsafe impl Send for Prepared {}

#[derive(Debug, Default)]
struct Cache {
    prepared: HashMap<Key, Prepared>,
    clock: u64,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Default::default);

impl Cache {
    /// Gives a stream that is captured the program that another stream prepared for the same extents. PyTorch warms up
    /// on one stream, waits, and captures on another. Returns false if there is none.
    fn take_over(&mut self, key: &Key) -> bool {
        let is_same = |other: &Key| other.module == key.module && other.symbols == key.symbols;
        let Some(other) = self.evictable().map(|(other, _)| other).find(|other| is_same(other)).cloned()
        else {
            return false;
        };
        if let Some(prepared) = self.prepared.remove(&other) {
            self.prepared.insert(key.clone(), prepared);
        }
        true
    }

    /// The programs that no graph may launch.
    fn evictable(&self) -> impl Iterator<Item = (&Key, &Prepared)> {
        self.prepared.iter().filter(|(_, prepared)| !prepared.was_captured)
    }

    /// Frees the least recently used program that no graph may launch.
    fn evict(&mut self, cuda: &Cuda) -> Result<(), Error> {
        let Some(key) =
            self.evictable().min_by_key(|(_, prepared)| prepared.used).map(|(key, _)| key.clone())
        else {
            return Ok(());
        };
        let oldest = &self.prepared[&key];
        let _guard = Guard::new(oldest.ordinal)?;
        // SAFETY: the guard made the device current. Its launches must end before their workspace is freed. If waiting
        // fails, as while a graph is captured, the program is kept. The stream itself may be gone.
        unsafe {
            if (cuda.synchronize)() != 0 {
                return Ok(());
            }
            (api().prepared_destroy)(oldest.handle);
        }
        self.prepared.remove(&key);
        Ok(())
    }
}

/// Prepares a program for some extents.
///
/// # Safety
/// The addresses are those of live tensors with these extents, and the stream is one of the current device.
unsafe fn prepare(
    compiled: &Module,
    symbols: &[SymbolExtent],
    inputs: &[*mut c_void],
    results: &[*mut c_void],
    stream: *mut c_void,
) -> Result<*mut abi::Prepared, Error> {
    let mut args = PrepareArgs {
        struct_size: size_of::<PrepareArgs>(),
        ext: ptr::null_mut(),
        module: compiled.handle,
        session: ptr::null_mut(),
        symbols: symbols.as_ptr(),
        symbol_count: symbols.len(),
        inputs: inputs.as_ptr(),
        outputs: results.as_ptr(),
        input_count: inputs.len(),
        output_count: results.len(),
        workspace: ptr::null_mut(),
        workspace_size: 0,
        stream,
        prepared: ptr::null_mut(),
    };
    // SAFETY: the struct is live, and the caller vouches for the rest.
    unsafe { check(api(), (api().prepare)(&raw mut args))? };
    Ok(args.prepared)
}

/// Launches a program on torch's current stream.
pub fn launch(
    compiled: &Module,
    extents: &Extents,
    operands: &[Operand],
    outputs: &[Tensor],
    ordinal: i32,
) -> Result<(), Error> {
    if extents.outputs.iter().all(|dims| dims.contains(&0)) {
        return Ok(());
    }
    let cuda = cuda()?;
    let _guard = Guard::new(ordinal)?;
    let (mut stream, mut capturing) = (ptr::null_mut(), 0);
    // SAFETY: the pointers are valid.
    unsafe {
        ok((cuda.current_stream)(ordinal, &raw mut stream), "the current stream")?;
        ok((cuda.is_capturing)(stream, &raw mut capturing), "the state of the current stream")?;
    }
    let inputs = addresses(operands.iter().map(|operand| &operand.tensor), &extents.inputs)?;
    let results = addresses(outputs.iter(), &extents.outputs)?;
    let symbols = compiled.symbols(extents);
    let key = Key {
        module: compiled.id,
        stream: stream as usize,
        symbols: symbols.iter().map(|symbol| symbol.extent).collect(),
    };
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_prepared = cache.prepared.contains_key(&key) || (capturing != 0 && cache.take_over(&key));
    if !is_prepared {
        if capturing != 0 {
            return Err(Error::argument(
                "this program was not run with these shapes before its capture; run it once on any stream, and wait",
            ));
        }
        if cache.evictable().count() >= LIMIT {
            cache.evict(cuda)?;
        }
        // SAFETY: the addresses are those of live tensors of the checked sizes, and the stream is torch's.
        let handle = unsafe { prepare(compiled, &symbols, &inputs, &results, stream)? };
        let prepared = Prepared { handle, ordinal, was_captured: false, used: 0 };
        cache.prepared.insert(key.clone(), prepared);
    }
    cache.clock += 1;
    let now = cache.clock;
    let prepared =
        cache.prepared.get_mut(&key).ok_or_else(|| Error::Bug("a prepared program is gone".to_owned()))?;
    prepared.used = now;
    prepared.was_captured |= capturing != 0;
    let args = LaunchArgs {
        struct_size: size_of::<LaunchArgs>(),
        ext: ptr::null_mut(),
        prepared: prepared.handle,
        inputs: inputs.as_ptr(),
        outputs: results.as_ptr(),
        input_count: inputs.len(),
        output_count: results.len(),
        stream,
    };
    // SAFETY: as above. torch keeps the memory of tensors for later work of the same stream, so it outlives the launch.
    unsafe { check(api(), (api().launch)(&raw const args)) }
}

/// The addresses of tensors; null for those without elements.
fn addresses<'a>(
    tensors: impl Iterator<Item = &'a Tensor>,
    dims: &[Vec<usize>],
) -> Result<Vec<*mut c_void>, Error> {
    let one = |(tensor, dims): (&Tensor, &Vec<usize>)| {
        if dims.contains(&0) { Ok(ptr::null_mut()) } else { tensor.address() }
    };
    tensors.zip(dims).map(one).collect()
}

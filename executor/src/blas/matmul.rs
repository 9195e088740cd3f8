//! One product: its descriptors, its algorithm, and its launch.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use fourfold_ir::ElementType;

use super::chosen::{Choice, Chosen, Descriptor, Objects};
use super::error::BlasError;
use super::functions::{
    Found, STATUS_INVALID_VALUE, STATUS_NOT_SUPPORTED, compute, data_type, desc, layout, operation,
    preference,
};
use super::open::Blas;
use super::problem::MatmulProblem;
use crate::device::{DeviceError, Stream};

/// The largest workspace that an algorithm may use, in bytes.
pub const WORKSPACE_LIMIT: u64 = 32 << 20;

/// The alignment of addresses that the fastest algorithms need, in bytes.
const FAST_ALIGNMENT: u32 = 16;

/// The extents of a call: matrices, rows of one matrix, N and K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extents {
    l: i64,
    m: i64,
    n: i64,
    k: i64,
}

impl Extents {
    /// Checks the extents, and joins the rows of all matrices that share one B.
    fn of(problem: &MatmulProblem) -> Result<Extents, BlasError> {
        let MatmulProblem { l, m, n, k, .. } = *problem;
        let check = |name, extent: i64| match i32::try_from(extent) {
            Ok(1..) => Ok(()),
            _ => Err(BlasError::Extent { name, extent }),
        };
        for (name, extent) in [("L", l), ("M", m), ("N", n), ("K", k)] {
            check(name, extent)?;
        }
        if problem.b_batched {
            return Ok(Extents { l, m, n, k });
        }
        // Both are below 2³¹, so the product fits.
        check("L*M", l * m)?;
        Ok(Extents { l: 1, m: l * m, n, k })
    }
}

/// A product with its chosen algorithms. Keeps the library's handle alive.
#[derive(Debug)]
pub struct Matmul {
    chosen: Arc<Chosen>,
    blas: Blas,
}

impl Blas {
    /// Chooses an algorithm for a problem. Takes tens of microseconds, so callers keep the result.
    ///
    /// # Errors
    /// [`BlasError::Extent`] when an extent is not in 1..=`i32::MAX`; [`BlasError::Elements`] for types that the
    /// library does not multiply; [`BlasError::NoAlgorithm`]; or the library's error.
    pub fn matmul(&self, problem: &MatmulProblem) -> Result<Matmul, BlasError> {
        let chosen = Arc::new(choose(self, problem)?);
        Ok(Matmul { chosen, blas: self.clone() })
    }

    /// As [`Blas::matmul`], but searches only for a problem that is not among the last ones.
    ///
    /// # Errors
    /// As for [`Blas::matmul`]. Errors are not kept.
    pub(crate) fn kept_matmul(&self, problem: &MatmulProblem) -> Result<Matmul, BlasError> {
        let known = self.kept().find(problem);
        let chosen = match known {
            Some(chosen) => chosen,
            None => {
                let chosen = Arc::new(choose(self, problem)?);
                self.kept().add(*problem, Arc::clone(&chosen));
                chosen
            }
        };
        Ok(Matmul { chosen, blas: self.clone() })
    }
}

/// Creates the descriptors of a problem, and searches for algorithms.
fn choose(blas: &Blas, problem: &MatmulProblem) -> Result<Chosen, BlasError> {
    let extents = Extents::of(problem)?;
    let objects = objects(blas, problem, extents)?;
    let current = blas.device().enter()?;
    let mut choices = Vec::new();
    let mut workspace = 0;
    for alignments in [[FAST_ALIGNMENT; 3], problem.elements.map(element_bytes)] {
        if let Some(found) = search(blas, &objects, alignments)? {
            choices.push(Choice { algorithm: found.algorithm, alignments });
            workspace = workspace.max(found.workspace as u64);
        }
    }
    drop(current);
    if choices.is_empty() {
        return Err(BlasError::NoAlgorithm { problem: *problem });
    }
    Ok(Chosen { objects, choices, workspace })
}

impl Matmul {
    /// The bytes of device memory that a launch needs, at most [`WORKSPACE_LIMIT`]. Its address is a multiple of 256.
    pub fn workspace(&self) -> u64 {
        self.chosen.workspace
    }

    /// The alignments in bytes that the addresses of A, B and D need: one element each, for nearly all problems.
    pub fn alignments(&self) -> [u32; 3] {
        self.chosen.choices.last().map_or([FAST_ALIGNMENT; 3], |choice| choice.alignments)
    }

    /// Enqueues the product. Neither allocates nor waits, and can be captured in a graph.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the stream belongs to another device; [`DeviceError::Library`] when an
    /// address lacks its alignment or the library refuses the call; or the driver's error.
    ///
    /// # Safety
    /// The addresses must point to A, B and D of the problem and to [`Matmul::workspace`] bytes, on the stream's
    /// device. They stay valid until the device is done. D and the workspace overlap nothing else, and the workspace
    /// serves one launch at a time.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        a: u64,
        b: u64,
        d: u64,
        workspace: u64,
    ) -> Result<(), DeviceError> {
        const CALL: &str = "cublasLtMatmul";
        let (device, library) = (self.blas.device(), self.blas.library());
        if !device.owns(stream) {
            return Err(DeviceError::OtherDevice { what: "stream" });
        }
        let failed = |code| DeviceError::Library { call: CALL, code, name: library.status_name(code) };
        let is_aligned = |choice: &&Choice| {
            choice
                .alignments
                .iter()
                .zip([a, b, d])
                .all(|(bytes, address)| address.is_multiple_of(u64::from(*bytes)))
        };
        let Chosen { objects, choices, workspace: needed } = &*self.chosen;
        let choice = choices.iter().find(is_aligned).ok_or_else(|| failed(STATUS_INVALID_VALUE))?;
        if *needed > 0 && (workspace == 0 || !workspace.is_multiple_of(256)) {
            return Err(failed(STATUS_INVALID_VALUE));
        }
        let (one, zero) = (1f32, 0f32);
        let Objects { operation, a: a_layout, b: b_layout, d: d_layout } = objects;
        let _current = device.enter()?;
        let status = {
            let handle = self.blas.handle();
            // SAFETY: the objects are live, and describe the memory that the caller vouches for. The scalars are read
            // during the call. C is D and is not read, since its factor is zero.
            unsafe {
                (library.functions().matmul)(
                    handle.0,
                    operation.raw,
                    ptr::from_ref(&one).cast(),
                    b as *const c_void,
                    b_layout.raw,
                    a as *const c_void,
                    a_layout.raw,
                    ptr::from_ref(&zero).cast(),
                    d as *const c_void,
                    d_layout.raw,
                    d as *mut c_void,
                    d_layout.raw,
                    &choice.algorithm,
                    workspace as *mut c_void,
                    *needed as usize,
                    stream.raw(),
                )
            }
        };
        match status {
            0 => Ok(()),
            code => Err(stream.fault().unwrap_or_else(|| failed(code))),
        }
    }
}

/// The bytes of an element that the library multiplies.
fn element_bytes(element: ElementType) -> u32 {
    if element == ElementType::F32 { 4 } else { 2 }
}

/// The data types of A, B and D, and the type of the computation.
fn types(elements: [ElementType; 3]) -> Result<([c_int; 3], c_int), BlasError> {
    use ElementType::{BF16, F16, F32};
    Ok(match elements {
        [F32, F32, F32] => ([data_type::F32; 3], compute::F32_PEDANTIC),
        [F16, F16, F16] => ([data_type::F16; 3], compute::F32),
        [F16, F16, F32] => ([data_type::F16, data_type::F16, data_type::F32], compute::F32),
        [BF16, BF16, BF16] => ([data_type::BF16; 3], compute::F32),
        [BF16, BF16, F32] => ([data_type::BF16, data_type::BF16, data_type::F32], compute::F32),
        _ => return Err(BlasError::Elements { elements }),
    })
}

fn objects(blas: &Blas, problem: &MatmulProblem, extents: Extents) -> Result<Objects, BlasError> {
    let (library, functions) = (blas.library(), blas.library().functions());
    let ([a_type, b_type, d_type], compute) = types(problem.elements)?;
    let mut raw = ptr::null_mut();
    // SAFETY: the object is live; the numbers are a compute type, and the type of the factors.
    let status = unsafe { (functions.desc_create)(&mut raw, compute, data_type::F32) };
    library.check("cublasLtMatmulDescCreate", status)?;
    let operation = Descriptor { raw, destroy: functions.desc_destroy };
    for (attribute, value) in
        [(desc::TRANSPOSE_A, operation::TRANSPOSE), (desc::TRANSPOSE_B, operation::NONE)]
    {
        // SAFETY: the object is live, and the attribute is an int.
        let status = unsafe {
            (functions.desc_set)(raw, attribute, ptr::from_ref(&value).cast(), size_of_val(&value))
        };
        library.check("cublasLtMatmulDescSetAttribute", status)?;
    }
    let Extents { l, m, n, k } = extents;
    let a = matrix(blas, a_type, [k, m], l)?;
    let b = matrix(blas, b_type, [k, n], l)?;
    let d = matrix(blas, d_type, [n, m], l)?;
    Ok(Objects { operation, a, b, d })
}

/// The layout of column-major matrices without elements between columns or matrices.
fn matrix(blas: &Blas, element: c_int, [rows, columns]: [i64; 2], l: i64) -> Result<Descriptor, BlasError> {
    let (library, functions) = (blas.library(), blas.library().functions());
    let mut raw = ptr::null_mut();
    // SAFETY: the object is live; the extents are positive.
    let status = unsafe { (functions.layout_create)(&mut raw, element, rows as u64, columns as u64, rows) };
    library.check("cublasLtMatrixLayoutCreate", status)?;
    let created = Descriptor { raw, destroy: functions.layout_destroy };
    if l > 1 {
        // Each extent is below 2³¹, so both fit.
        let (count, stride) = (l as i32, rows * columns);
        // SAFETY: the object is live, and the attributes are an int and a 64-bit number.
        let statuses = unsafe {
            [
                (functions.layout_set)(
                    raw,
                    layout::BATCH_COUNT,
                    ptr::from_ref(&count).cast(),
                    size_of_val(&count),
                ),
                (functions.layout_set)(
                    raw,
                    layout::BATCH_STRIDE,
                    ptr::from_ref(&stride).cast(),
                    size_of_val(&stride),
                ),
            ]
        };
        for status in statuses {
            library.check("cublasLtMatrixLayoutSetAttribute", status)?;
        }
    }
    Ok(created)
}

/// The library's best algorithm for addresses of A, B and D of these alignments. The device's context must be current.
fn search(blas: &Blas, objects: &Objects, [of_a, of_b, of_d]: [u32; 3]) -> Result<Option<Found>, BlasError> {
    let (library, functions) = (blas.library(), blas.library().functions());
    let mut raw = ptr::null_mut();
    // SAFETY: the object is live.
    let status = unsafe { (functions.preference_create)(&mut raw) };
    library.check("cublasLtMatmulPreferenceCreate", status)?;
    let preferences = Descriptor { raw, destroy: functions.preference_destroy };
    let set = |attribute: c_int, value: *const c_void, size: usize| {
        // SAFETY: the object is live, and the caller passes a live number of the attribute's size.
        let status = unsafe { (functions.preference_set)(preferences.raw, attribute, value, size) };
        library.check("cublasLtMatmulPreferenceSetAttribute", status)
    };
    let (limit, schemes) = (WORKSPACE_LIMIT, preference::REDUCE_IN_COMPUTE_TYPE);
    set(preference::MAX_WORKSPACE, ptr::from_ref(&limit).cast(), size_of_val(&limit))?;
    set(preference::REDUCTION_SCHEMES, ptr::from_ref(&schemes).cast(), size_of_val(&schemes))?;
    for (attribute, alignment) in preference::ALIGNMENTS.into_iter().zip([of_b, of_a, of_d, of_d]) {
        set(attribute, ptr::from_ref(&alignment).cast(), size_of_val(&alignment))?;
    }
    let mut found = [Found::default(); 4];
    let mut count = 0;
    let Objects { operation, a, b, d } = objects;
    let status = {
        let handle = blas.handle();
        // SAFETY: the objects are live, and the array has the given length.
        unsafe {
            (functions.heuristic)(
                handle.0,
                operation.raw,
                b.raw,
                a.raw,
                d.raw,
                d.raw,
                preferences.raw,
                found.len() as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        }
    };
    if status != STATUS_NOT_SUPPORTED {
        library.check("cublasLtMatmulAlgoGetHeuristic", status)?;
    }
    let count = usize::try_from(count).unwrap_or(0);
    let usable = |found: &&Found| found.state == 0 && found.workspace as u64 <= WORKSPACE_LIMIT;
    Ok(found.iter().take(count).find(usable).copied())
}

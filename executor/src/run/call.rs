//! One call of a kernel: whether it may be made, its extents, and which value goes where.

use std::ffi::c_void;
use std::ptr;

use fourfold_ir::bind::concrete_dims;
use fourfold_ir::{OperandShape, Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::{EpilogueOperand, KernelPlan, Partition};

use super::{DEVICE_MEMORY, KERNEL_REFUSED, Machine, NO_DEVICE, NOT_BUILT, RunReason, SegmentKernel};
use crate::device::{DeviceError, Gpu};
use crate::kernel::{Device, Kernel, MAX_OPERANDS, Metadata, Pointers, Problem, Requirements, Status};

/// A call that the kernel takes.
pub(super) struct Call<'a> {
    pub(super) roles: Roles,
    pub(super) kernel: &'a Kernel,
    pub(super) device: Device,
    pub(super) problem: Problem,
    /// Bytes of workspace on the device.
    pub(super) workspace: u64,
    /// Bytes of D.
    pub(super) d_bytes: u64,
}

impl Call<'_> {
    /// Whether there is nothing to launch.
    pub(super) fn is_empty(&self) -> bool {
        is_empty(&self.problem)
    }
}

/// Whether a segment's kernel may be called with these symbol values, as far as that can be known without its
/// operands' memory. The order of the questions is the one that [`super`] promises.
pub(super) fn admit<'a>(
    program: &Program,
    partition: &Partition,
    position: usize,
    plan: &KernelPlan,
    symbols: &SymbolValues,
    machine: Option<&Machine<'a>>,
) -> Result<Call<'a>, RunReason> {
    if let Some(rejection) = fourfold_scheduler::violated(plan, symbols) {
        return Err(RunReason { code: rejection.code.as_str(), message: rejection.message });
    }
    let Some(machine) = machine else {
        let (target, format) = (&partition.target, plan.format);
        return Err(RunReason {
            code: NO_DEVICE,
            message: format!("no GPU of target {target} was found: the {format} kernel ran on the CPU"),
        });
    };
    let kernel = match machine.kernels().get(&position) {
        Some(SegmentKernel::Ready(kernel)) => kernel,
        Some(SegmentKernel::Unavailable(reason)) => return Err(reason.clone()),
        None => {
            let message = format!("no kernel was given for segment {position}");
            return Err(RunReason { code: NOT_BUILT, message });
        }
    };
    check_identity(program, plan, kernel.metadata(), machine.device().gpu())?;
    let problem = problem(plan, symbols).ok_or_else(|| refused("its extents are not known"))?;
    let roles = Roles::of(plan);
    let sm_count = i32::try_from(machine.device().gpu().sm_count).unwrap_or(i32::MAX);
    // No kernel that is generated asks how many clusters fit: see `Device::max_active_clusters`.
    let device = Device { sm_count, max_active_clusters: 0 };
    let mut requirements = Requirements::default();
    if !is_empty(&problem) {
        requirements = kernel.query(&device, &problem).map_err(|status| refused_by(&status))?;
        check_sizes(program, plan, &roles, symbols, &problem, &requirements)?;
    }
    let d_bytes = bytes(program, roles.d, symbols).ok_or_else(|| refused("the size of D is not known"))?;
    let workspace = requirements.workspace;
    Ok(Call { roles, kernel, device, problem, workspace, d_bytes })
}

/// Why a call could not be prepared: a reason not to run the kernel, or a device that failed. `waited` is what waiting
/// for the stream gave afterwards: CUTLASS has one status for almost everything, so the driver is asked as well.
pub(super) fn unprepared(status: Status, waited: Result<(), DeviceError>) -> Result<RunReason, DeviceError> {
    waited?;
    match status.cuda_error() {
        None => Ok(refused_by(&status)),
        Some(OUT_OF_MEMORY) => {
            let message = format!("the device has no room for the kernel ({status})");
            Ok(RunReason { code: DEVICE_MEMORY, message })
        }
        Some(_) => Err(DeviceError::Launch { status }),
    }
}

/// `cudaErrorMemoryAllocation`: a kernel is loaded onto the device when it is first prepared.
const OUT_OF_MEMORY: i32 = 2;

/// What a plan's kernel must read and write, in the words in which a generated kernel says it of itself
/// ([`Metadata::signature`]): the format, and then, where there are any, `alpha`, the type of C, `beta`, the shape and
/// type of each operand of the epilogue, and the type of D. A kernel that says something else is not launched for the plan.
pub fn signature_of(program: &Program, plan: &KernelPlan) -> String {
    let element = |value| program.module().ty(value).element;
    let mut parts = vec![plan.format.to_string()];
    parts.extend(plan.alpha.map(|_| "alpha".to_owned()));
    parts.extend(plan.c.map(|c| format!("c={}", element(c))));
    parts.extend(plan.beta.map(|_| "beta".to_owned()));
    let operand = |operand: &EpilogueOperand| format!("{}={}", operand.shape, element(operand.value));
    parts.extend(plan.operands.iter().map(operand));
    parts.push(format!("d={}", element(plan.first_written())));
    parts.join(" ")
}

/// Whether the kernel is one for the device, and reads and writes what the plan says.
fn check_identity(
    program: &Program,
    plan: &KernelPlan,
    metadata: &Metadata,
    gpu: &Gpu,
) -> Result<(), RunReason> {
    let needed = if metadata.emulated { EMULATOR } else { metadata.target.as_str() };
    if gpu.target() != Some(needed) {
        let how = if metadata.emulated { ", emulated," } else { "" };
        let message = format!(
            "a kernel for {}{how} needs a GPU of target {needed}, and this is {gpu}",
            metadata.target
        );
        return Err(RunReason { code: NO_DEVICE, message });
    }
    let signature = signature_of(program, plan);
    if metadata.signature == signature {
        return Ok(());
    }
    let found = if metadata.signature.is_empty() { "nothing" } else { &metadata.signature };
    Err(refused(&format!("the kernel says that it computes `{found}`, and the plan is `{signature}`")))
}

/// The target of the GPUs that emulate.
const EMULATOR: &str = "sm_90a";

/// A kernel's refusal to prepare or run what its plan accepted.
fn refused_by(status: &Status) -> RunReason {
    refused(&status.to_string())
}

fn refused(why: &str) -> RunReason {
    let message = format!("{why}; this is a bug in Fourfold: an accepted kernel must run");
    RunReason { code: KERNEL_REFUSED, message }
}

fn is_empty(problem: &Problem) -> bool {
    problem.l == 0 || problem.m == 0
}

/// The extents as the kernel takes them: see [`KernelPlan`] on flattening.
fn problem(plan: &KernelPlan, symbols: &SymbolValues) -> Option<Problem> {
    let extent = |dim: &fourfold_ir::Dim| i64::try_from(dim.evaluate(symbols)?).ok();
    let (l, m, n, k) = (extent(&plan.batch)?, extent(&plan.m)?, extent(&plan.n)?, extent(&plan.k)?);
    if plan.b_batched || l == 1 {
        return Some(Problem { l, m, n, k });
    }
    Some(Problem { l: 1, m: l.checked_mul(m)?, n, k })
}

/// No kernel is launched on a buffer that is shorter than what it reads or writes, whatever the partition says.
fn check_sizes(
    program: &Program,
    plan: &KernelPlan,
    roles: &Roles,
    symbols: &SymbolValues,
    problem: &Problem,
    requirements: &Requirements,
) -> Result<(), RunReason> {
    let product = |extents: &[i64]| {
        extents.iter().try_fold(1u64, |product, extent| product.checked_mul(u64::try_from(*extent).ok()?))
    };
    let Problem { l, m, n, k } = *problem;
    let mut elements = vec![
        ("A", Some(roles.a), product(&[l, m, k])),
        ("B", Some(roles.b), product(&[if plan.b_batched { l } else { 1 }, n, k])),
        ("C", roles.c, product(&[l, m, n])),
        ("alpha", roles.alpha, Some(1)),
        ("beta", roles.beta, Some(1)),
        ("D", Some(roles.d), product(&[l, m, n])),
    ];
    elements.extend(plan.operands.iter().map(|operand| match operand.shape {
        OperandShape::Scalar => ("a scalar", Some(operand.value), Some(1)),
        OperandShape::Row => ("a row", Some(operand.value), product(&[n])),
        OperandShape::Column => ("a column", Some(operand.value), product(&[l, m])),
        OperandShape::Matrix => ("a matrix", Some(operand.value), product(&[l, m, n])),
    }));
    for (name, value, expected) in elements {
        let Some(value) = value else { continue };
        let found = concrete_dims(program.module().ty(value), symbols)
            .and_then(|dims| dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim as u64)));
        if found.is_none() || found != expected {
            return Err(refused(&format!(
                "{name} has {} elements, and the kernel takes {}",
                number(found),
                number(expected)
            )));
        }
    }
    let scales = [("A", roles.sfa, requirements.sfa), ("B", roles.sfb, requirements.sfb)];
    for (name, value, expected) in scales {
        let found = bytes(program, value, symbols);
        if found != Some(expected) {
            return Err(refused(&format!(
                "the scales of {name} take {} bytes, and the kernel reads {expected}",
                number(found)
            )));
        }
    }
    Ok(())
}

fn number(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}

/// The bytes that a value takes under these symbol values.
pub(super) fn bytes(program: &Program, value: Value, symbols: &SymbolValues) -> Option<u64> {
    let ty = program.module().ty(value);
    let dims = concrete_dims(ty, symbols)?;
    Some(Tensor::byte_len(ty.element, &dims, ty.layout).ok()? as u64)
}

/// Which value goes where.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    a: Value,
    sfa: Value,
    b: Value,
    sfb: Value,
    c: Option<Value>,
    alpha: Option<Value>,
    beta: Option<Value>,
    /// What the epilogue reads, in the order of the plan.
    epilogue: Vec<Value>,
    pub(super) d: Value,
}

impl Roles {
    fn of(plan: &KernelPlan) -> Roles {
        Roles {
            a: plan.a,
            sfa: plan.sfa,
            b: plan.b,
            sfb: plan.sfb,
            c: plan.c,
            alpha: plan.alpha,
            beta: plan.beta,
            epilogue: plan.operands.iter().map(|operand| operand.value).collect(),
            d: plan.first_written(),
        }
    }

    /// What the kernel reads. A value that it reads twice is there twice.
    pub(super) fn operands(&self) -> impl Iterator<Item = Value> + '_ {
        [Some(self.a), Some(self.sfa), Some(self.b), Some(self.sfb), self.c, self.alpha, self.beta]
            .into_iter()
            .flatten()
            .chain(self.epilogue.iter().copied())
    }

    /// The addresses for the kernel, given that of each value; `None` for a value that has none, or more operands than
    /// the interface has room for.
    pub(super) fn pointers(&self, address: impl Fn(Value) -> Option<u64>) -> Option<Pointers> {
        let optional = |value: Option<Value>| match value {
            Some(value) => address(value).map(pointer),
            None => Some(ptr::null_mut()),
        };
        let mut operands = [ptr::null(); MAX_OPERANDS];
        for (index, value) in self.epilogue.iter().enumerate() {
            *operands.get_mut(index)? = pointer(address(*value)?).cast_const();
        }
        Some(Pointers {
            a: pointer(address(self.a)?),
            sfa: pointer(address(self.sfa)?),
            b: pointer(address(self.b)?),
            sfb: pointer(address(self.sfb)?),
            c: optional(self.c)?,
            alpha: optional(self.alpha)?.cast(),
            beta: optional(self.beta)?.cast(),
            d: pointer(address(self.d)?),
            operands,
            operand_count: self.epilogue.len() as u32,
        })
    }
}

/// A device address as the kernels' interface has it. The host never follows it.
pub(super) fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

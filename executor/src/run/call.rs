//! One kernel call: admission, extents, and results of an empty problem.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use fourfold_ir::bind::concrete_dims;
use fourfold_ir::{Op, OpKind, Program, ScaleLayout, SymbolValues, Tensor, Value};
use fourfold_scheduler::{MmaPlan, MoveProgram, OutputKind, Partition, Plan, Segment};

use super::roles::Roles;
use super::{DEVICE_MEMORY, KERNEL_REFUSED, Machine, NO_DEVICE, NOT_BUILT, RunReason, SegmentKernel};
use crate::blas::{Blas, Matmul, MatmulProblem};
use crate::device::{DeviceError, Gpu};
use crate::fallback::{self, FallbackError};
use crate::kernel::{Device, Extents, Kernel, MAX_EXTENTS, Metadata, Requirements, Status};

/// A call that the kernel or the library admits.
pub(super) struct Call<'a> {
    pub(super) roles: Roles,
    pub(super) work: Work<'a>,
    /// Bytes of device workspace.
    pub(super) workspace: u64,
    /// The size of each value written, in bytes.
    pub(super) written_bytes: Vec<u64>,
}

/// The work of a call.
pub(super) enum Work<'a> {
    /// Launches a generated kernel.
    Kernel { kernel: &'a Kernel, device: Device, extents: Extents },
    /// Calls the vendor's library.
    Product(Box<Product>),
    /// Launches nothing: the problem is empty, and [`results_of_nothing`] are its results.
    Nothing { emulated: bool },
    /// Launches nothing: some results reduce or join empty tensors, and the fallback computes them.
    Fallback { emulated: bool },
}

/// A call of the vendor's library.
pub(super) struct Product {
    pub(super) matmul: Arc<Matmul>,
    pub(super) problem: MatmulProblem,
    /// The library's path.
    pub(super) library: PathBuf,
    pub(super) a: Value,
    pub(super) b: Value,
    pub(super) d: Value,
}

impl Call<'_> {
    /// True if the kernel's instructions are emulated.
    pub(super) fn is_emulated(&self) -> bool {
        match &self.work {
            Work::Kernel { kernel, .. } => kernel.metadata().emulated,
            Work::Product(_) => false,
            Work::Nothing { emulated } | Work::Fallback { emulated } => *emulated,
        }
    }

    /// The values written, each with its size in bytes.
    pub(super) fn written(&self) -> impl Iterator<Item = (Value, u64)> + '_ {
        self.roles.written.iter().copied().zip(self.written_bytes.iter().copied())
    }
}

/// Returns the results of a problem without elements: empty tensors, reductions and sums over nothing, or zeros.
pub(super) fn results_of_nothing(
    program: &Program,
    plan: &Plan,
    symbols: &SymbolValues,
) -> Result<Vec<(Value, Tensor)>, FallbackError> {
    let module = program.module();
    let empty = |value: Value| -> Result<Tensor, FallbackError> {
        let ty = module.ty(value);
        let dims = concrete_dims(ty, symbols).ok_or_else(|| FallbackError::Extents {
            name: module.name_of(value).to_owned(),
            ty: module.display_type(ty).to_string(),
        })?;
        Ok(Tensor::zeros(ty.element, dims, ty.layout)?)
    };
    let Plan::ScaledMma(plan) = plan else {
        return plan.written().into_iter().map(|value| Ok((value, empty(value)?))).collect();
    };
    let mut results = Vec::new();
    for output in &plan.outputs {
        match output.kind {
            OutputKind::Value { value } => results.push((value, empty(value)?)),
            OutputKind::Quantized { codes, scales, .. } => {
                results.extend([(codes, empty(codes)?), (scales, empty(scales)?)]);
            }
            OutputKind::Reduced { op, value, .. } => {
                let operand = empty(module.ops[op].operands[0])?;
                let result = fallback::run_op(program, op, &[&operand], symbols)?.into_iter().next();
                let none = FallbackError::Internal { reason: "a reduction has a result" };
                results.push((value, result.ok_or(none)?));
            }
        }
    }
    Ok(results)
}

/// Returns whether the results of a move without rows are zeros.
fn is_zero_of_nothing(program: MoveProgram) -> bool {
    matches!(program, MoveProgram::GroupScales | MoveProgram::GroupRows | MoveProgram::ScatterAdd { .. })
}

/// Decides whether a segment's kernel may be called with these symbol values, as far as possible before its operands
/// are in memory. Waits until `deadline` for a kernel being built; `None` waits forever. [`super`] documents the
/// order of the checks.
pub(super) fn admit<'a>(
    program: &Program,
    partition: &Partition,
    position: usize,
    plan: &Plan,
    symbols: &SymbolValues,
    machine: Option<&Machine<'a>>,
    deadline: Option<Instant>,
) -> Result<Call<'a>, RunReason> {
    if let Some(rejection) = fourfold_scheduler::violated(plan.constraints(), symbols) {
        return Err(RunReason { code: rejection.code.as_str(), message: rejection.message });
    }
    let Some(machine) = machine else {
        let target = &partition.target;
        let kernel = match plan {
            Plan::ScaledMma(plan) => plan.format.to_string(),
            other => other.kind_name().to_owned(),
        };
        return Err(RunReason {
            code: NO_DEVICE,
            message: format!("no GPU of target {target} was found: the {kernel} kernel ran on the CPU"),
        });
    };
    let kernel = match machine.kernels().get(&position) {
        Some(SegmentKernel::Ready(kernel)) => kernel,
        Some(SegmentKernel::Unavailable(reason)) => return Err(reason.clone()),
        Some(SegmentKernel::Pending(pending)) => pending.get(deadline)?,
        Some(SegmentKernel::Library(blas)) => match plan {
            Plan::Mma(plan) => return admit_product(program, plan, symbols, blas),
            _ => return Err(refused("the matrix library was passed for a segment that is no plain mma")),
        },
        None => {
            let message = format!("no kernel was passed for segment {position}");
            return Err(RunReason { code: NOT_BUILT, message });
        }
    };
    let metadata = kernel.metadata();
    check_identity(program, plan, metadata, machine.device().gpu())?;
    let extents = extents_of(plan, metadata, symbols)?;
    let roles = Roles::bind(plan, metadata).map_err(|why| refused(&why))?;
    check_written(program, &partition.segments[position], plan, &roles)?;
    let written_bytes = sizes_of(program, &roles.written, symbols)?;
    let emulated = metadata.emulated;
    let is_gather = |op: Op| matches!(program.module().ops[op].kind, OpKind::Gather { .. });
    let writes_nothing = written_bytes.iter().all(|bytes| *bytes == 0);
    let sizes_read = || sizes_of(program, &roles.reads().collect::<Vec<_>>(), symbols);
    let sums_nothing = || ["L", "M", "K"].iter().any(|name| metadata.extent(name, &extents) == Some(0));
    let work = match plan {
        // The fallback checks indices even if they select nothing.
        Plan::Move(plan) if writes_nothing && is_gather(plan.op) => Work::Fallback { emulated },
        Plan::Row(_) | Plan::Move(_) | Plan::Column(_) if writes_nothing => Work::Nothing { emulated },
        Plan::Row(_) if sums_nothing() => Work::Fallback { emulated },
        // Without rows, every scale is padding, every group is empty, and every sum is 0.
        Plan::Move(plan) if is_zero_of_nothing(plan.program) && metadata.is_empty(&extents) => {
            Work::Nothing { emulated }
        }
        // An operand without elements has no address.
        Plan::Move(_) | Plan::Column(_) if sizes_read()?.contains(&0) => Work::Fallback { emulated },
        _ if metadata.is_empty(&extents) => Work::Nothing { emulated },
        _ => {
            let sm_count = i32::try_from(machine.device().gpu().sm_count).unwrap_or(i32::MAX);
            // No generated kernel uses the number of clusters; see `Device::max_active_clusters`.
            let device = Device { sm_count, max_active_clusters: 0 };
            let requirements = kernel.query(&device, &extents).map_err(|status| refused_by(&status))?;
            check_sizes(program, metadata, &roles, symbols, &extents, &requirements)?;
            let work = Work::Kernel { kernel, device, extents };
            return Ok(Call { roles, work, workspace: requirements.workspace, written_bytes });
        }
    };
    Ok(Call { roles, work, workspace: 0, written_bytes })
}

/// Admits a plain `mma` to the vendor's library.
fn admit_product<'a>(
    program: &Program,
    plan: &MmaPlan,
    symbols: &SymbolValues,
    blas: &Blas,
) -> Result<Call<'a>, RunReason> {
    let of = Plan::Mma(plan.clone());
    let extents = of.extents(symbols).ok_or_else(|| refused("its extents are unknown"))?;
    let [l, m, n, k] = extents[..] else { return Err(refused("a plain mma has four extents")) };
    let [l, m, n, k] = [l, m, n, k].map(|(_, extent)| extent);
    let roles = Roles::of(&of);
    let written_bytes = sizes_of(program, &[plan.d], symbols)?;
    if [l, m, n, k].contains(&0) {
        return Ok(Call { roles, work: Work::Nothing { emulated: false }, workspace: 0, written_bytes });
    }
    let problem = MatmulProblem { l, m, n, k, elements: plan.elements, b_batched: plan.b_batched };
    let matmul = blas.kept_matmul(&problem).map_err(|error| RunReason::from(&error))?;
    let workspace = matmul.workspace();
    let library = blas.path().to_owned();
    let matmul = Arc::new(matmul);
    let product = Product { matmul, problem, library, a: plan.a, b: plan.b, d: plan.d };
    Ok(Call { roles, work: Work::Product(Box::new(product)), workspace, written_bytes })
}

/// The sizes of values in bytes.
fn sizes_of(program: &Program, values: &[Value], symbols: &SymbolValues) -> Result<Vec<u64>, RunReason> {
    let sizes: Option<Vec<u64>> = values.iter().map(|value| bytes(program, *value, symbols)).collect();
    sizes.ok_or_else(|| refused("the sizes of its outputs are unknown"))
}

/// Classifies a failed preparation: a refusal by the kernel, or a device error. `waited` is the result of
/// synchronizing the stream afterwards. CUTLASS has one status for almost every error, so the driver's answer is
/// needed too.
pub(super) fn unprepared(status: Status, waited: Result<(), DeviceError>) -> Result<RunReason, DeviceError> {
    waited?;
    match status.cuda_error() {
        None => Ok(refused_by(&status)),
        Some(OUT_OF_MEMORY) => {
            let message = format!("cannot allocate device memory for the kernel ({status})");
            Ok(RunReason { code: DEVICE_MEMORY, message })
        }
        Some(_) => Err(DeviceError::Launch { status }),
    }
}

/// `cudaErrorMemoryAllocation`. The first preparation loads the kernel onto the device, which takes memory.
const OUT_OF_MEMORY: i32 = 2;

/// Checks that the kernel is for this device and has the plan's signature.
fn check_identity(program: &Program, plan: &Plan, metadata: &Metadata, gpu: &Gpu) -> Result<(), RunReason> {
    check_target(metadata, gpu)?;
    let signature = plan.signature(program);
    if metadata.signature == signature {
        return Ok(());
    }
    let found = if metadata.signature.is_empty() { "nothing" } else { &metadata.signature };
    Err(refused(&format!("the kernel's signature is `{found}`, but the plan's is `{signature}`")))
}

/// Checks that the kernel is for this device.
pub(crate) fn check_target(metadata: &Metadata, gpu: &Gpu) -> Result<(), RunReason> {
    let needed = if metadata.emulated { EMULATOR } else { metadata.target.as_str() };
    if gpu.target() == Some(needed) {
        return Ok(());
    }
    let how = if metadata.emulated { ", emulated," } else { "" };
    let message = format!(
        "a kernel for {}{how} needs a GPU of target {needed}, but this GPU is {gpu}",
        metadata.target
    );
    Err(RunReason { code: NO_DEVICE, message })
}

/// The target of GPUs that run emulated kernels.
const EMULATOR: &str = "sm_90a";

/// The reason for a kernel that rejects a problem its plan accepted.
fn refused_by(status: &Status) -> RunReason {
    refused(&status.to_string())
}

pub(super) fn refused(why: &str) -> RunReason {
    let message = format!("{why}; this is a bug in Fourfold: an accepted kernel must run");
    RunReason { code: KERNEL_REFUSED, message }
}

/// Checks that the plan writes all segment outputs and no value of another segment. It may write additional values:
/// codes and scales need not both be used.
fn check_written(program: &Program, segment: &Segment, plan: &Plan, roles: &Roles) -> Result<(), RunReason> {
    let module = program.module();
    if roles.addresses(|_| Some(0)).is_none() {
        return Err(refused("it has more operands or outputs than the kernel ABI allows"));
    }
    if let Some(value) = segment.outputs.iter().find(|value| !roles.written.contains(value)) {
        return Err(refused(&format!(
            "it does not write `%{}`, an output of its segment",
            module.name_of(*value)
        )));
    }
    for (index, value) in roles.written.iter().enumerate() {
        let name = module.name_of(*value);
        if roles.written[..index].contains(value) {
            return Err(refused(&format!("it writes `%{name}` twice")));
        }
        if !module.defining_op(*value).is_some_and(|op| segment.ops.contains(&op)) {
            return Err(refused(&format!("it writes `%{name}`, which its segment does not define")));
        }
    }
    let Plan::ScaledMma(plan) = plan else { return Ok(()) };
    let linear = plan.outputs.iter().find_map(|output| match output.kind {
        OutputKind::Quantized { scales, .. } if module.ty(scales).layout != Some(ScaleLayout::Blocked) => {
            Some(scales)
        }
        _ => None,
    });
    match linear {
        None => Ok(()),
        Some(scales) => Err(refused(&format!(
            "kernels write blocked scales, but `%{}` has another layout",
            module.name_of(scales)
        ))),
    }
}

/// The extents of a call, in the kernel's order.
fn extents_of(plan: &Plan, metadata: &Metadata, symbols: &SymbolValues) -> Result<Extents, RunReason> {
    let planned = plan.extents(symbols).ok_or_else(|| refused("its extents are unknown"))?;
    let extent = |name: &String| {
        let found = planned.iter().find(|(planned, _)| planned == name);
        found
            .map(|(_, extent)| *extent)
            .ok_or_else(|| refused(&format!("the kernel has the extent `{name}`, but the plan does not")))
    };
    let extents: Vec<i64> = metadata.extents.iter().map(extent).collect::<Result<_, _>>()?;
    let is_repeated = |(index, name): (usize, &String)| metadata.extents[..index].contains(name);
    if let Some((_, name)) = metadata.extents.iter().enumerate().find(|it| is_repeated(*it)) {
        return Err(refused(&format!("the kernel has the extent `{name}` twice")));
    }
    if extents.len() != planned.len() || extents.len() > MAX_EXTENTS {
        return Err(refused("the kernel's extents differ from the plan's"));
    }
    Ok(Extents::new(&extents))
}

/// Checks buffer sizes against the kernel's own requirements, independently of the partition.
fn check_sizes(
    program: &Program,
    metadata: &Metadata,
    roles: &Roles,
    symbols: &SymbolValues,
    extents: &Extents,
    requirements: &Requirements,
) -> Result<(), RunReason> {
    let elements = |value: Value| {
        let dims = concrete_dims(program.module().ty(value), symbols)?;
        dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim as u64))
    };
    let take = |role: &str, found: Option<u64>, expected: Option<u64>| match found {
        Some(_) if found == expected => Ok(()),
        _ => Err(refused(&format!(
            "`{role}` has {} elements, but the kernel expects {}",
            number(found),
            number(expected)
        ))),
    };
    let operands = roles.operands.iter().zip(&metadata.operands).zip(requirements.operands);
    for (((name, value), role), required) in operands {
        if role.extents.is_some() {
            take(name, elements(*value), metadata.elements(role, extents))?;
            continue;
        }
        let found = bytes(program, *value, symbols);
        if found != Some(required) {
            let found = number(found);
            return Err(refused(&format!("`{name}` takes {found} bytes, but the kernel reads {required}")));
        }
    }
    for (name, value) in &roles.scalars {
        take(name, elements(*value), Some(1))?;
    }
    for (value, expected) in roles.written.iter().zip(requirements.outputs) {
        let found = bytes(program, *value, symbols);
        if found != Some(expected) {
            let name = program.module().name_of(*value);
            return Err(refused(&format!(
                "`%{name}` takes {} bytes, but the kernel writes {expected}",
                number(found)
            )));
        }
    }
    Ok(())
}

fn number(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}

/// The size of a value under these symbol values, in bytes.
pub(super) fn bytes(program: &Program, value: Value, symbols: &SymbolValues) -> Option<u64> {
    let ty = program.module().ty(value);
    let dims = concrete_dims(ty, symbols)?;
    Some(Tensor::byte_len(ty.element, &dims, ty.layout).ok()? as u64)
}

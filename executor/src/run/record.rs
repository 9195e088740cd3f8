//! Launch records: kernel, extents, device, addresses and workspace of one launch, as data and as text.
//!
//! Recorded in debug mode only ([`RunOptions::debug`](super::RunOptions::debug)), just before the kernel is prepared,
//! so that a record exists even if the launch fails.

use std::fmt;
use std::path::PathBuf;

use fourfold_ir::bind::concrete_dims;
use fourfold_ir::{ElementType, Program, ScaleLayout, SymbolValues, Value};
use fourfold_scheduler::{Constraint, Plan};
use serde::{Serialize, Serializer};

use super::call::{Call, Work};
use crate::blas::MatmulProblem;
use crate::device::{Buffer, Gpu};

/// The arguments of one launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchRecord {
    /// The segment's position.
    pub segment: usize,
    /// The kernel's name.
    pub kernel: String,
    /// The digest of the kernel's specification.
    pub hash: String,
    /// The kernel's target.
    pub target: String,
    /// True if the target's instructions are emulated.
    pub emulated: bool,
    /// The path of the kernel's library.
    pub library: PathBuf,
    /// The ops that the kernel computes, as `%name = mnemonic`.
    pub ops: Vec<String>,
    /// The GPU's ordinal.
    pub device: usize,
    /// The GPU's description.
    pub device_name: String,
    /// The SM count passed to the kernel.
    pub sm_count: i32,
    /// The extents, in the kernel's order: L, M, N and K of a `scaled_mma`.
    pub extents: Vec<i64>,
    /// The names of the extents.
    #[serde(skip)]
    pub extent_names: Vec<String>,
    /// The arguments: inputs, then outputs.
    pub arguments: Vec<LaunchArgument>,
    /// The workspace.
    pub workspace: LaunchWorkspace,
}

/// One tensor of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchArgument {
    /// The role: `a`, `sfa`, `b`, `sfb`, `c`, `alpha`, `beta`, `x0` for an epilogue operand, `y0` for an output, and
    /// so on.
    pub role: String,
    /// The value's name.
    pub value: String,
    /// Its extents, element type and layout in this run.
    pub ty: String,
    /// The device address.
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// The bytes that the kernel reads or writes.
    pub bytes: u64,
    /// The size of the allocation at the address, in bytes.
    pub capacity: u64,
    /// The largest power of two that divides the address.
    pub alignment: u64,
    /// The alignment that the plan requires, if any.
    pub required_alignment: Option<u32>,
    /// True if the kernel writes it.
    pub written: bool,
    /// The byte that it was filled with before the launch.
    pub poison: Option<u8>,
}

/// The workspace of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchWorkspace {
    /// The device address; 0 without a workspace.
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// The bytes that the kernel requested.
    pub bytes: u64,
    /// The byte that it was filled with before the launch.
    pub poison: Option<u8>,
}

/// Launch facts known only to its run.
pub(super) struct LaunchPlace<'a> {
    pub(super) segment: usize,
    pub(super) gpu: &'a Gpu,
    pub(super) workspace: &'a Buffer,
    pub(super) poison: Option<u8>,
}

impl LaunchRecord {
    /// Records a call; `buffer` maps each value to its memory.
    pub(super) fn of<'b>(
        program: &Program,
        plan: &Plan,
        symbols: &SymbolValues,
        call: &Call<'_>,
        place: &LaunchPlace<'_>,
        buffer: impl Fn(Value) -> Option<&'b Buffer>,
    ) -> LaunchRecord {
        let module = program.module();
        let argument = |(role, value): (String, Value)| {
            let ty = module.ty(value);
            let dims = concrete_dims(ty, symbols).unwrap_or_default();
            let found = buffer(value);
            let address = found.map_or(0, Buffer::address);
            let written = call.roles.written.contains(&value);
            let required = plan.constraints().iter().find_map(|constraint| match constraint {
                Constraint::PointerAlignment { value: of, bytes } if *of == value => Some(*bytes),
                _ => None,
            });
            LaunchArgument {
                role,
                value: module.name_of(value).to_owned(),
                ty: describe(ty.element, &dims, ty.layout),
                address,
                bytes: super::call::bytes(program, value, symbols).unwrap_or_default(),
                capacity: found.map_or(0, |buffer| buffer.len() as u64),
                alignment: address & address.wrapping_neg(),
                required_alignment: required,
                written,
                poison: place.poison.filter(|_| written),
            }
        };
        let described = Described::of(plan, program, &call.work, place.gpu);
        LaunchRecord {
            segment: place.segment,
            kernel: described.kernel,
            hash: described.hash,
            target: described.target,
            emulated: call.is_emulated(),
            library: described.library,
            ops: plan.ops().into_iter().map(|op| module.op_label(op)).collect(),
            device: place.gpu.ordinal,
            device_name: place.gpu.to_string(),
            sm_count: i32::try_from(place.gpu.sm_count).unwrap_or(i32::MAX),
            extents: described.extents,
            extent_names: described.extent_names,
            arguments: call.roles.named().map(argument).collect(),
            workspace: LaunchWorkspace {
                address: place.workspace.address(),
                bytes: call.workspace,
                poison: place.poison.filter(|_| call.workspace > 0),
            },
        }
    }
}

/// The part of a record that describes the launched code.
struct Described {
    kernel: String,
    hash: String,
    target: String,
    library: PathBuf,
    extents: Vec<i64>,
    extent_names: Vec<String>,
}

impl Described {
    fn of(plan: &Plan, program: &Program, work: &Work<'_>, gpu: &Gpu) -> Described {
        match work {
            Work::Kernel { kernel, extents, .. } => {
                let metadata = kernel.metadata();
                Described {
                    kernel: metadata.kernel.clone(),
                    hash: metadata.hash.clone(),
                    target: metadata.target.clone(),
                    library: kernel.path().to_owned(),
                    extents: extents.values().to_vec(),
                    extent_names: metadata.extents.clone(),
                }
            }
            Work::Product(product) => {
                let MatmulProblem { l, m, n, k, .. } = product.problem;
                Described {
                    kernel: "cublasLtMatmul".to_owned(),
                    hash: String::new(),
                    target: gpu.target().unwrap_or_default().to_owned(),
                    library: product.library.clone(),
                    extents: vec![l, m, n, k],
                    extent_names: ["L", "M", "N", "K"].map(str::to_owned).to_vec(),
                }
            }
            // Nothing is launched, so nothing is recorded.
            Work::Nothing { .. } | Work::Fallback { .. } => Described {
                kernel: plan.signature(program),
                hash: String::new(),
                target: gpu.target().unwrap_or_default().to_owned(),
                library: PathBuf::new(),
                extents: Vec::new(),
                extent_names: Vec::new(),
            },
        }
    }
}

/// Written as text, since many JSON readers lose precision above 2^53.
fn hexadecimal<S: Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{address:#x}"))
}

/// Formats the record for users: one argument per line, without a final newline.
impl fmt::Display for LaunchRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let emulated = if self.emulated { ", emulated" } else { "" };
        let hash = if self.hash.is_empty() { String::new() } else { format!(", {}", self.hash) };
        let (segment, kernel, target) = (self.segment, &self.kernel, &self.target);
        writeln!(f, "launch of segment {segment}: {kernel} ({target}{emulated}{hash})")?;
        writeln!(f, "  for {}", self.ops.join("; "))?;
        writeln!(f, "  on GPU {}, {}, launched for {} SMs", self.device, self.device_name, self.sm_count)?;
        let extents = self.extent_names.iter().zip(&self.extents);
        let extents: Vec<String> = extents.map(|(name, extent)| format!("{name}={extent}")).collect();
        writeln!(f, "  {}", extents.join(" "))?;
        let width = |text: fn(&LaunchArgument) -> usize| self.arguments.iter().map(text).max().unwrap_or(0);
        let (names, types) = (width(|a| a.value.chars().count()), width(|a| a.ty.chars().count()));
        for argument in &self.arguments {
            let LaunchArgument { role, value, ty, address, bytes, capacity, alignment, .. } = argument;
            write!(
                f,
                "  {role:<10} %{value:<names$} {ty:<types$}  {address:#014x}, {bytes} of {capacity} bytes"
            )?;
            match argument.required_alignment {
                Some(required) => write!(f, ", aligned to {alignment}, needs {required}")?,
                None => write!(f, ", aligned to {alignment}")?,
            }
            writeln!(f, "{}", poisoned(argument.poison))?;
        }
        let LaunchWorkspace { address, bytes, poison } = self.workspace;
        write!(f, "  workspace  {address:#014x}, {bytes} bytes{}", poisoned(poison))
    }
}

fn poisoned(byte: Option<u8>) -> String {
    byte.map_or(String::new(), |byte| format!(", filled with {byte:#04x} before the launch"))
}

/// Formats extents, element type and layout.
pub(super) fn describe(element: ElementType, dims: &[usize], layout: Option<ScaleLayout>) -> String {
    let layout = layout.map_or(String::new(), |layout| format!(", {layout}"));
    format!("{dims:?}, {element}{layout}")
}

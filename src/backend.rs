//! The embedding interface: hand over a program, get a partition.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use fourfold_codegen::dispatch::Tables;
use fourfold_codegen::{EMULATED_TARGETS, EMULATOR};
use fourfold_executor::device::{Gpu, discover};
use fourfold_executor::{NO_DEVICE, Run, RunOptions, RunReason};
use fourfold_ir::{Capabilities, Entity, Module, Op, Program, Tensor, Value, bind, verify};
use fourfold_scheduler::{NormalizeOptions, Normalized, Partition, check, normalize, partition};

use crate::error::Error;

/// The target that is planned for when none is named and no GPU is there to ask.
pub const DEFAULT_TARGET: &str = "sm_100a";

/// The target that is planned for when kernels are to be emulated and none is named.
pub const DEFAULT_EMULATED_TARGET: &str = EMULATED_TARGETS[0];

/// How a backend plans, and where what it plans runs.
///
/// ```
/// use fourfold::{Claim, Options};
///
/// let options = Options::default().target("sm_90a").claim(Claim::KernelsOnly);
/// assert_eq!(options.target.as_deref(), Some("sm_90a"));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// What is planned for, such as `sm_120a` or `cpu`. When absent: that of the GPU, else [`DEFAULT_TARGET`]; with
    /// `emulate`, [`DEFAULT_EMULATED_TARGET`].
    pub target: Option<String>,
    /// Where kernels run.
    pub device: DeviceChoice,
    /// Whether kernels of the sm_120 family run on a Hopper GPU, with their matrix instruction emulated: correct and
    /// slow, for tests.
    pub emulate: bool,
    /// Which ops the backend takes.
    pub claim: Claim,
    /// Whether normalization may drop roundings that a program states, such as that of each dequantized element.
    pub contract: bool,
    /// Which kernel a problem gets, for the targets and formats that these tables are for. For others, and where a kernel
    /// of these cannot be it, the default tables count ([`fourfold_codegen::dispatch`]).
    pub dispatch: Option<Arc<Tables>>,
}

impl Options {
    /// Plans for this target.
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Options {
        self.target = Some(target.into());
        self
    }

    /// Plans for this target, or for that of the GPU.
    #[must_use]
    pub fn maybe_target(mut self, target: Option<String>) -> Options {
        self.target = target;
        self
    }

    /// Runs kernels on this GPU.
    #[must_use]
    pub fn device(mut self, device: DeviceChoice) -> Options {
        self.device = device;
        self
    }

    /// Emulates kernels of the sm_120 family on a Hopper GPU.
    #[must_use]
    pub fn emulate(mut self, emulate: bool) -> Options {
        self.emulate = emulate;
        self
    }

    /// Takes these ops from the host.
    #[must_use]
    pub fn claim(mut self, claim: Claim) -> Options {
        self.claim = claim;
        self
    }

    /// Allows normalization to drop roundings that a program states.
    #[must_use]
    pub fn contract(mut self, contract: bool) -> Options {
        self.contract = contract;
        self
    }

    /// Selects kernels by these tables.
    #[must_use]
    pub fn dispatch(mut self, dispatch: impl Into<Option<Arc<Tables>>>) -> Options {
        self.dispatch = dispatch.into();
        self
    }
}

/// Which GPU kernels run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// The first one, if there is any.
    #[default]
    First,
    /// The one with this number.
    Ordinal(usize),
    /// None: the driver is not asked for, everything runs on the fallback.
    None,
}

/// As the command line and `FOURFOLD_DEVICE` name it: the number of a GPU, or `none`.
impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match (text, text.parse()) {
            ("none", _) => Ok(DeviceChoice::None),
            (_, Ok(ordinal)) => Ok(DeviceChoice::Ordinal(ordinal)),
            _ => Err(format!("expected the number of a GPU or `none`, found `{text}`")),
        }
    }
}

/// Which ops a backend takes from its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Claim {
    /// All: what no kernel takes runs on the fallback.
    #[default]
    Everything,
    /// Those of kernel segments. The host keeps the others and runs claimed segments one by one, so a program is not
    /// run as a whole. As the ops that the host keeps are those that it has, such a program is not normalized.
    KernelsOnly,
}

/// A segment that the backend takes, as its host sees it: ops to be replaced by one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedSegment {
    /// The position of the segment in the partition, by which it is run.
    pub segment: usize,
    /// The ops that it replaces.
    pub ops: Vec<Op>,
    /// The values that it needs, in the order in which a call takes them.
    pub inputs: Vec<Value>,
    /// The values that it gives, in the order in which a call returns them.
    pub outputs: Vec<Value>,
}

/// How kernels run on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// As they are: the device is of their target.
    Native,
    /// With the target's matrix instruction emulated.
    Emulated,
}

/// Plans programs for one target.
#[derive(Clone, Debug)]
pub struct Backend {
    capabilities: Capabilities,
    claim: Claim,
    contract: bool,
    emulate: bool,
    dispatch: Option<Arc<Tables>>,
    gpu: Result<Gpu, String>,
}

/// A program, what it was normalized to, and the partition of that.
#[derive(Clone, Debug)]
pub struct Planned {
    original: Program,
    normalized: Normalized,
    partition: Partition,
    claim: Claim,
    dispatch: Option<Arc<Tables>>,
}

impl Backend {
    /// A backend for these options. It asks the driver which GPUs there are and starts nothing on them.
    ///
    /// # Errors
    /// When there is no such target, when it is one whose kernels cannot be emulated and they are to be, or when a GPU
    /// is asked for by number that is not there. A machine without a GPU is no error.
    pub fn new(options: &Options) -> Result<Backend, Error> {
        let gpu = find_gpu(options.device)?;
        let own = gpu.as_ref().ok().and_then(Gpu::target);
        let name = match &options.target {
            Some(name) => name.as_str(),
            None if options.emulate => DEFAULT_EMULATED_TARGET,
            None => own.unwrap_or(DEFAULT_TARGET),
        };
        let capabilities = fourfold_codegen::capabilities(name).ok_or_else(|| {
            let known: Vec<&str> = fourfold_codegen::TARGETS.iter().map(|target| target.name).collect();
            Error::UnknownTarget { name: name.to_owned(), known: known.join(", ") }
        })?;
        if options.emulate && !EMULATED_TARGETS.contains(&name) {
            return Err(Error::NotEmulated { name: name.to_owned(), known: EMULATED_TARGETS.join(", ") });
        }
        let Options { claim, contract, emulate, .. } = *options;
        let dispatch = options.dispatch.clone();
        Ok(Backend { capabilities, claim, contract, emulate, dispatch, gpu })
    }

    /// What the target's kernels take.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The GPU that kernels would run on, whether or not it is of the target; `None` where there is none.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref().ok()
    }

    /// The GPU and how the target's kernels run on it.
    ///
    /// # Errors
    /// The reason, `no_device`, when they cannot run here.
    pub fn execution(&self) -> Result<(&Gpu, Execution), RunReason> {
        let target = &self.capabilities.target;
        let refuse = |message: String| RunReason { code: NO_DEVICE, message };
        let gpu = self.gpu.as_ref().map_err(|why| {
            refuse(format!("no GPU of target {target} was found ({why}): the kernel ran on the CPU"))
        })?;
        match gpu.target() {
            Some(own) if own == target && !self.emulate => Ok((gpu, Execution::Native)),
            Some(EMULATOR) if self.emulate => Ok((gpu, Execution::Emulated)),
            _ if self.emulate => Err(refuse(format!(
                "kernels are emulated on a GPU of target {EMULATOR}, and this is {gpu}: the kernel ran on the CPU"
            ))),
            _ => Err(refuse(format!("the GPU, {gpu}, is not of target {target}: the kernel ran on the CPU"))),
        }
    }

    /// Whether kernels are built to be emulated.
    pub fn emulates(&self) -> bool {
        self.emulate
    }

    /// Which ops it takes.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Whether normalization may drop roundings that a program states.
    pub fn contracts(&self) -> bool {
        self.contract
    }

    /// Which kernel a problem gets, where that is not as by default.
    pub fn dispatch(&self) -> Option<&Arc<Tables>> {
        self.dispatch.as_ref()
    }

    /// Verifies a module, normalizes it and partitions what it becomes: every op is in a segment, and every op outside a kernel has a reason.
    ///
    /// # Errors
    /// When the module is not a program; never because an op is not taken.
    pub fn plan_module(&self, module: Module) -> Result<Planned, Error> {
        match verify(module) {
            Ok(program) => Ok(self.plan(program)),
            Err(invalid) => Err(Error::Module {
                name: invalid.module.name.clone(),
                diagnostics: invalid.errors.iter().map(|error| error.diagnostic(None)).collect(),
            }),
        }
    }

    /// Normalizes a verified program, unless only kernels are claimed, and partitions what it becomes.
    pub fn plan(&self, program: Program) -> Planned {
        self.plan_with(program, &NormalizeOptions::default())
    }

    /// [`Backend::plan`], where this program allows more than the backend's options do.
    pub fn plan_with(&self, program: Program, options: &NormalizeOptions) -> Planned {
        let normalized = match self.claim {
            Claim::Everything => {
                normalize(&program, &NormalizeOptions { contract: self.contract || options.contract })
            }
            Claim::KernelsOnly => Normalized::unchanged(program.clone()),
        };
        let partition = match self.claim {
            Claim::Everything => partition(normalized.program(), &self.capabilities),
            // A host that claims kernels only keeps every other op, on the device too.
            Claim::KernelsOnly => {
                let capabilities = Capabilities { block_quantize: None, ..self.capabilities.clone() };
                partition(normalized.program(), &capabilities)
            }
        };
        let (claim, dispatch) = (self.claim, self.dispatch.clone());
        Planned { original: program, normalized, partition, claim, dispatch }
    }

    /// Proves a plan again, with a checker that shares no code with what made it.
    ///
    /// # Errors
    /// A bug of ours, with everything that is wrong.
    pub fn check(&self, planned: &Planned) -> Result<(), Error> {
        check(planned.program(), &self.capabilities, &planned.partition).map_err(|errors| {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Error::Partition(texts.join("; "))
        })
    }
}

/// The GPU of choice, or in words why there is none.
fn find_gpu(choice: DeviceChoice) -> Result<Result<Gpu, String>, Error> {
    if choice == DeviceChoice::None {
        return Ok(Err("none was to be used".to_owned()));
    }
    let gpus = match discover() {
        Ok(gpus) => gpus,
        Err(error) if choice == DeviceChoice::First => return Ok(Err(error.to_string())),
        Err(error) => return Err(Error::Device(error)),
    };
    let count = gpus.len();
    let wanted = match choice {
        DeviceChoice::Ordinal(ordinal) => ordinal,
        _ => 0,
    };
    match (gpus.into_iter().nth(wanted), choice) {
        (Some(gpu), _) => Ok(Ok(gpu)),
        (None, DeviceChoice::Ordinal(ordinal)) => {
            Err(Error::Device(fourfold_executor::device::DeviceError::NoSuchDevice { ordinal, count }))
        }
        (None, _) => Ok(Err("the driver knows of no GPU".to_owned())),
    }
}

impl Planned {
    /// The program that is partitioned, compiled and run: the normalized one.
    pub fn program(&self) -> &Program {
        self.normalized.program()
    }

    /// The program as it was given.
    pub fn original(&self) -> &Program {
        &self.original
    }

    /// How the one came from the other.
    pub fn normalized(&self) -> &Normalized {
        &self.normalized
    }

    /// The segments and decisions of [`Planned::program`].
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Which kernel a problem gets, where that is not as by default.
    pub(crate) fn dispatch(&self) -> Option<&Tables> {
        self.dispatch.as_deref()
    }

    /// What the host gives away: the kernel segments, in the order in which they can run.
    pub fn claimed(&self) -> Vec<ClaimedSegment> {
        let segments = &self.partition.segments;
        let claim = |segment: usize| ClaimedSegment {
            segment,
            ops: segments[segment].ops.clone(),
            inputs: segments[segment].inputs.clone(),
            outputs: segments[segment].outputs.clone(),
        };
        self.partition.kernels().map(|(segment, _)| claim(segment)).collect()
    }

    /// Runs the program on these inputs, which bind by name, on the fallback: nothing is built or launched. See
    /// [`Backend::compile`](crate::Backend::compile) for kernels. The values of the run are those of
    /// [`Planned::original`].
    ///
    /// # Errors
    /// When the tensors do not fit the inputs, when memory does not suffice, or when only kernels are claimed and the
    /// program has other ops.
    pub fn run(&self, tensors: &HashMap<String, Tensor>, options: &RunOptions) -> Result<Run, Error> {
        self.refuse_unclaimed()?;
        let bound = bind::bind(self.program(), tensors)?;
        let run = fourfold_executor::run(self.program(), &self.partition, &bound, options, None)?;
        Ok(self.in_original(run))
    }

    /// A run of the normalized program with the values of the original, as far as they are still there.
    pub(crate) fn in_original(&self, mut run: Run) -> Run {
        if self.normalized.is_changed() {
            let values = self.original.module().values.keys();
            let found = values.map(|value| run.values.get_mut(self.normalized.value(value)?.index())?.take());
            run.values = found.collect();
        }
        run
    }

    /// With [`Claim::KernelsOnly`], an op that is the host's.
    pub(crate) fn refuse_unclaimed(&self) -> Result<(), Error> {
        if self.claim == Claim::Everything {
            return Ok(());
        }
        let mut unclaimed = self.partition.segments.iter().filter(|segment| segment.kernel().is_none());
        match unclaimed.find_map(|segment| segment.ops.first()) {
            Some(&op) => Err(Error::Unclaimed { op: self.program().module().op_label(op) }),
            None => Ok(()),
        }
    }
}

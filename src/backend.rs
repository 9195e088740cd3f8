//! Planning: a [`Backend`] turns a program into a [`Planned`] partition for one target.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold_codegen::dispatch::Tables;
use fourfold_codegen::{EMULATED_TARGETS, EMULATOR, emulated_capabilities};
use fourfold_executor::device::{Gpu, discover};
use fourfold_executor::{NO_DEVICE, Run, RunOptions, RunReason};
use fourfold_ir::{Capabilities, DeviceCapability, Entity, Module, Op, Program, Tensor, Value, bind, verify};
use fourfold_scheduler::{NormalizeOptions, Normalized, Partition, Segment, check, normalize_for, partition};

use crate::error::Error;
use crate::options::{Claim, DEFAULT_EMULATED_TARGET, DEFAULT_TARGET, DeviceChoice, Options};

/// A segment offered to the host: one call that replaces some of its ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedSegment {
    /// The segment's position in the partition, as [`Compiled::run_segment`](crate::Compiled::run_segment) takes it.
    pub segment: usize,
    /// The ops that the call replaces.
    pub ops: Vec<Op>,
    /// The values that the call reads, in argument order.
    pub inputs: Vec<Value>,
    /// The values that the call returns, in result order.
    pub outputs: Vec<Value>,
}

/// The mode in which kernels run on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// Unmodified: the device is of the kernels' target.
    Native,
    /// With the target's matrix instruction emulated on a Hopper GPU.
    Emulated,
}

/// Plans and compiles programs for one target.
#[derive(Clone, Debug)]
pub struct Backend {
    capabilities: Capabilities,
    claim: Claim,
    contract: bool,
    keep_weights: bool,
    emulate: bool,
    dispatch: Option<Arc<Tables>>,
    gpu: Result<Gpu, String>,
}

/// A partitioned program: the original, its normalized form, and the segments of the normalized form.
#[derive(Clone, Debug)]
pub struct Planned {
    original: Program,
    normalized: Normalized,
    partition: Arc<Partition>,
    claim: Claim,
    dispatch: Option<Arc<Tables>>,
}

impl Backend {
    /// Creates a backend. Queries the driver for GPUs, but opens none of them.
    ///
    /// # Errors
    /// [`Error::UnknownTarget`] for a target that does not exist; [`Error::NotEmulated`] when `emulate` is set for a
    /// target without emulation; [`Error::Device`] when [`DeviceChoice::Ordinal`] names a GPU that is missing or
    /// cannot be queried. With [`DeviceChoice::First`], a machine without a GPU is no error.
    ///
    /// ```
    /// use fourfold::{Backend, DeviceChoice, Error, Options};
    ///
    /// let options = Options::default().device(DeviceChoice::None);
    /// assert_eq!(Backend::new(&options)?.capabilities().target, fourfold::DEFAULT_TARGET);
    /// let unknown = Backend::new(&options.target("sm_1a"));
    /// assert!(matches!(unknown, Err(Error::UnknownTarget { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn new(options: &Options) -> Result<Backend, Error> {
        let gpu = find_gpu(options.device)?;
        let own = gpu.as_ref().ok().and_then(Gpu::target);
        let name = match &options.target {
            Some(name) => name.as_str(),
            None if options.emulate => DEFAULT_EMULATED_TARGET,
            None => own.unwrap_or(DEFAULT_TARGET),
        };
        let mut capabilities = fourfold_codegen::capabilities(name).ok_or_else(|| {
            let known: Vec<&str> = fourfold_codegen::TARGETS.iter().map(|target| target.name).collect();
            Error::UnknownTarget { name: name.to_owned(), known: known.join(", ") }
        })?;
        if options.emulate {
            capabilities = emulated_capabilities(name).ok_or_else(|| Error::NotEmulated {
                name: name.to_owned(),
                known: EMULATED_TARGETS.join(", "),
            })?;
        }
        let Options { claim, contract, keep_weights, emulate, .. } = *options;
        let dispatch = options.dispatch.clone();
        Ok(Backend { capabilities, claim, contract, keep_weights, emulate, dispatch, gpu })
    }

    /// The formats and ops that the target's kernels support.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// let backend = Backend::new(&Options::default().target("sm_90a").device(DeviceChoice::None))?;
    /// assert_eq!(backend.capabilities().target, "sm_90a");
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The selected GPU, even if it is not of the target; `None` if the machine has none.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// assert!(Backend::new(&Options::default().device(DeviceChoice::None))?.gpu().is_none());
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref().ok()
    }

    /// The selected GPU, and the mode in which the target's kernels run on it.
    ///
    /// # Errors
    /// A reason with code [`NO_DEVICE`] when the target's kernels cannot run on this machine.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// assert_eq!(backend.execution().unwrap_err().code, "no_device");
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn execution(&self) -> Result<(&Gpu, Execution), RunReason> {
        let target = &self.capabilities.target;
        let refuse = |message: String| RunReason { code: NO_DEVICE, message };
        let gpu = self.gpu.as_ref().map_err(|why| {
            refuse(format!("no GPU of target {target} was found ({why}): kernels run on the CPU"))
        })?;
        match gpu.target() {
            Some(own) if own == target && !self.emulate => Ok((gpu, Execution::Native)),
            Some(EMULATOR) if self.emulate => Ok((gpu, Execution::Emulated)),
            _ if self.emulate => Err(refuse(format!(
                "kernels are emulated on a GPU of target {EMULATOR}, but this GPU is {gpu}: kernels run on the CPU"
            ))),
            _ => {
                Err(refuse(format!("the GPU {gpu} cannot run kernels for {target}: kernels run on the CPU")))
            }
        }
    }

    /// Returns [`Options::emulate`].
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// let backend = Backend::new(&Options::default().emulate(true).device(DeviceChoice::None))?;
    /// assert!(backend.emulates());
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn emulates(&self) -> bool {
        self.emulate
    }

    /// Returns [`Options::claim`].
    ///
    /// ```
    /// # use fourfold::{Backend, Claim, DeviceChoice, Options};
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// assert_eq!(backend.claim(), Claim::Everything);
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Returns [`Options::contract`].
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// assert!(!Backend::new(&Options::default().device(DeviceChoice::None))?.contracts());
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn contracts(&self) -> bool {
        self.contract
    }

    /// Returns [`Options::dispatch`].
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// assert!(Backend::new(&Options::default().device(DeviceChoice::None))?.dispatch().is_none());
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn dispatch(&self) -> Option<&Arc<Tables>> {
        self.dispatch.as_ref()
    }

    /// Verifies, normalizes and partitions a module. Every op ends up in a segment, and every op outside a kernel has
    /// a reason. The module is normalized with [`Claim::Everything`] only.
    ///
    /// # Errors
    /// [`Error::Module`] when the module does not verify. An op that no kernel takes is no error.
    ///
    /// ```
    /// use fourfold::ir::{Builder, Dim, ElementType, TensorType, UnaryKind};
    /// # use fourfold::{Backend, DeviceChoice, Options};
    ///
    /// let mut builder = Builder::new("activation");
    /// let x = builder.input("x", TensorType::new(vec![Dim::fixed(4)], ElementType::F32));
    /// let y = builder.unary("y", UnaryKind::Relu, x);
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// let planned = backend.plan_module(builder.finish(&[y]))?;
    /// assert_eq!(planned.partition().kernels().count(), 0);
    /// # Ok::<(), fourfold::Error>(())
    /// ```
    pub fn plan_module(&self, module: Module) -> Result<Planned, Error> {
        match verify(module) {
            Ok(program) => Ok(self.plan(program)),
            Err(invalid) => Err(Error::Module {
                name: invalid.module.name.clone(),
                diagnostics: invalid.errors.iter().map(|error| error.diagnostic(None)).collect(),
            }),
        }
    }

    /// Partitions a verified program. It is normalized with [`Claim::Everything`] only.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let planned = Backend::new(&Options::default().device(DeviceChoice::None))?.plan(program);
    /// assert_eq!(planned.partition().kernels().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn plan(&self, program: Program) -> Planned {
        self.plan_with(program, &NormalizeOptions::default())
    }

    /// Like [`Backend::plan`], with `contract` enabled if either the backend's options or `options` enable it.
    ///
    /// ```
    /// use fourfold::scheduler::NormalizeOptions;
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// let planned = backend.plan_with(program, &NormalizeOptions { contract: true });
    /// assert_eq!(planned.partition().kernels().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn plan_with(&self, program: Program, options: &NormalizeOptions) -> Planned {
        let normalized = match self.claim {
            Claim::Everything => {
                let options = NormalizeOptions { contract: self.contract || options.contract };
                if self.keep_weights {
                    normalize_for(&program, &options, &without_pairs(&self.capabilities))
                } else {
                    normalize_for(&program, &options, &self.capabilities)
                }
            }
            Claim::KernelsOnly | Claim::Device => Normalized::unchanged(program.clone()),
        };
        let partition = match self.claim {
            Claim::Everything | Claim::Device => partition(normalized.program(), &self.capabilities),
            // The host keeps every other op, on the device too.
            Claim::KernelsOnly => {
                let device = DeviceCapability::default();
                let capabilities = Capabilities { block_quantize: None, device, ..self.capabilities.clone() };
                partition(normalized.program(), &capabilities)
            }
        };
        let (claim, dispatch) = (self.claim, self.dispatch.clone());
        Planned { original: program, normalized, partition: Arc::new(partition), claim, dispatch }
    }

    /// Checks a partition with [`fourfold_scheduler::check`], which shares no code with the partitioner.
    ///
    /// # Errors
    /// [`Error::Partition`], a bug in Fourfold, with every violation found.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// backend.check(&backend.plan(program))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self, planned: &Planned) -> Result<(), Error> {
        check(planned.program(), &self.capabilities, &planned.partition).map_err(|errors| {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Error::Partition(texts.join("; "))
        })
    }
}

/// The capabilities without epilogues that pair columns, for which weights are rearranged.
fn without_pairs(capabilities: &Capabilities) -> Capabilities {
    let mut capabilities = capabilities.clone();
    capabilities.formats.iter_mut().for_each(|format| format.pairs = None);
    capabilities
}

/// The selected GPU, or the reason that there is none.
fn find_gpu(choice: DeviceChoice) -> Result<Result<Gpu, String>, Error> {
    if choice == DeviceChoice::None {
        return Ok(Err("the options select none".to_owned()));
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
        (None, _) => Ok(Err("the driver reports no GPU".to_owned())),
    }
}

impl Planned {
    /// The normalized program, which is partitioned, compiled and run.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let planned = Backend::new(&Options::default().device(DeviceChoice::None))?.plan(program);
    /// assert_eq!(planned.program().module().outputs.len(), planned.original().module().outputs.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn program(&self) -> &Program {
        self.normalized.program()
    }

    /// The program before normalization. [`Planned::program`] has an example.
    pub fn original(&self) -> &Program {
        &self.original
    }

    /// The normalized program with its map from the original's values.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let planned = Backend::new(&Options::default().device(DeviceChoice::None))?.plan(program);
    /// assert!(!planned.normalized().is_changed(), "nothing to rewrite in a plain scaled_mma");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn normalized(&self) -> &Normalized {
        &self.normalized
    }

    /// The segments and decisions of [`Planned::program`].
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let planned = Backend::new(&Options::default().device(DeviceChoice::None))?.plan(program);
    /// assert_eq!(planned.partition().segments.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// [`Planned::partition`], for owners that outlive this.
    pub(crate) fn shared_partition(&self) -> Arc<Partition> {
        Arc::clone(&self.partition)
    }

    /// The dispatch tables of [`Options::dispatch`].
    pub(crate) fn dispatch(&self) -> Option<&Tables> {
        self.dispatch.as_deref()
    }

    /// The kernel segments, in an order in which they can run. With [`Claim::Device`], also the device segments.
    ///
    /// ```
    /// use fourfold::{Backend, Claim, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    ///
    /// let options = Options::default().claim(Claim::KernelsOnly).device(DeviceChoice::None);
    /// let planned = Backend::new(&options)?.plan(program);
    /// let [segment] = planned.claimed().try_into().expect("one scaled_mma");
    /// assert_eq!((segment.inputs.len(), segment.outputs.len()), (4, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn claimed(&self) -> Vec<ClaimedSegment> {
        let segments = &self.partition.segments;
        let claim = |segment: usize| ClaimedSegment {
            segment,
            ops: segments[segment].ops.clone(),
            inputs: segments[segment].inputs.clone(),
            outputs: segments[segment].outputs.clone(),
        };
        match self.claim {
            Claim::Device => self.partition.plans().map(|(segment, _)| claim(segment)).collect(),
            Claim::Everything | Claim::KernelsOnly => {
                self.partition.kernels().map(|(segment, _)| claim(segment)).collect()
            }
        }
    }

    /// Runs the program on the CPU fallback; builds and launches nothing. `tensors` maps input names to tensors. The
    /// run holds the values of [`Planned::original`]. To run kernels, use
    /// [`Backend::compile`](crate::Backend::compile).
    ///
    /// # Errors
    /// [`Error::Bind`] when the tensors do not fit the inputs; [`Error::Run`] when memory runs out;
    /// [`Error::Unclaimed`] when an op belongs to the host.
    ///
    /// ```
    /// use fourfold::ir::sample::{Recipe, Rule, inputs};
    /// # use fourfold::{Backend, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    ///
    /// let tensors = inputs(&program, &Recipe { rule: Rule::Exact, seed: 1, symbols: Vec::new() })?;
    /// let output = program.module().outputs[0];
    /// let planned = Backend::new(&Options::default().device(DeviceChoice::None))?.plan(program);
    /// let run = planned.run(&tensors, &Default::default())?;
    /// assert!(run.value(output).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run(&self, tensors: &HashMap<String, Tensor>, options: &RunOptions) -> Result<Run, Error> {
        self.refuse_unclaimed()?;
        let bound = bind::bind(self.program(), tensors)?;
        let run = fourfold_executor::run(self.program(), &self.partition, &bound, options, None)?;
        Ok(self.in_original(run))
    }

    /// Maps a run of the normalized program to the original's values; values that normalization removed are absent.
    pub(crate) fn in_original(&self, mut run: Run) -> Run {
        if self.normalized.is_changed() {
            let values = self.original.module().values.keys();
            let found = values.map(|value| run.values.get_mut(self.normalized.value(value)?.index())?.take());
            run.values = found.collect();
        }
        run
    }

    /// Refuses a program with ops of the host.
    pub(crate) fn refuse_unclaimed(&self) -> Result<(), Error> {
        let is_unclaimed = |segment: &&Segment| match self.claim {
            Claim::Everything => false,
            Claim::KernelsOnly => segment.kernel().is_none(),
            Claim::Device => segment.plan().is_none(),
        };
        let mut unclaimed = self.partition.segments.iter().filter(is_unclaimed);
        match unclaimed.find_map(|segment| segment.ops.first()) {
            Some(&op) => Err(Error::Unclaimed { op: self.program().module().op_label(op) }),
            None => Ok(()),
        }
    }
}

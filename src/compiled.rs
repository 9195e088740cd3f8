//! Compiled programs: their kernels built and loaded, ready to run as a whole or segment by segment.

use std::collections::HashMap;

use fourfold_codegen::configuration::CutlassVersion;
use fourfold_executor::device::{Device, DeviceError, Gpu};
use fourfold_executor::toolchain::ToolchainOptions;
use fourfold_executor::{
    BuildOptions, Kernel, Machine, Run, RunOptions, RunReason, SegmentKernel, SegmentRun,
};
use fourfold_ir::{Bound, SymbolValues, Tensor, bind};

use crate::backend::{Backend, Execution, Planned};
use crate::error::Error;
use crate::kernels::{
    BuildFailure, BuiltKernel, PlannedKernel, build_kernels, chain, cutlass_version, planned_kernels,
    toolchain,
};

/// How kernels are built.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// The toolchain to use.
    pub toolchain: ToolchainOptions,
    /// How to build with it.
    pub build: BuildOptions,
    /// Build kernels that cannot run here too, to see what they cost.
    pub build_anyway: bool,
}

/// A program that is ready to run. What could not be built or cannot run here runs on the fallback, with the reason.
#[derive(Debug)]
pub struct Compiled {
    planned: Planned,
    gpu: Option<Gpu>,
    device: Option<Device>,
    kernels: HashMap<usize, SegmentKernel>,
    configured: Vec<PlannedKernel>,
    built: Vec<BuiltKernel>,
}

impl Backend {
    /// Builds and loads the kernels of a program, if they can run here. `progress` is told of what takes long.
    ///
    /// It cannot fail: a kernel that cannot be built is a segment that runs on the fallback, with the compiler's own
    /// words and whose fault it was as its reason. So does a plan that another backend made for another target.
    pub fn compile(
        &self,
        planned: Planned,
        options: &CompileOptions,
        progress: &(dyn Fn(&str) + Sync),
    ) -> Compiled {
        let mut compiled = self.compile_all(vec![planned], options, progress);
        compiled.pop().expect("one program was given")
    }

    /// [`Backend::compile`] for several programs at once, with each distinct kernel built once and as many at a time
    /// as there are cores.
    pub fn compile_all(
        &self,
        programs: Vec<Planned>,
        options: &CompileOptions,
        progress: &(dyn Fn(&str) + Sync),
    ) -> Vec<Compiled> {
        let gpu = self.execution().ok().map(|(gpu, _)| gpu.clone());
        let mut compiled: Vec<Compiled> =
            programs.into_iter().map(|planned| Compiled::unbuilt(planned, gpu.clone())).collect();
        let own = &self.capabilities().target;
        let mut mine = Vec::new();
        for compiled in &mut compiled {
            let theirs = &compiled.planned.partition().target;
            if theirs == own {
                mine.push(compiled);
            } else {
                let message = format!("it was planned for {theirs}, and this backend is for {own}");
                compiled.refuse_all(false, &RunReason { code: FOREIGN_PLAN, message });
            }
        }
        mine.retain(|compiled| compiled.planned.partition().kernels().next().is_some());
        if !mine.is_empty() {
            self.build_all(mine, options, progress);
        }
        compiled
    }

    /// Builds for programs that have kernels.
    fn build_all(
        &self,
        mut compiled: Vec<&mut Compiled>,
        options: &CompileOptions,
        progress: &(dyn Fn(&str) + Sync),
    ) {
        // The device is opened before anything is built: without it kernels need not be.
        let device = self.execution().and_then(|(gpu, execution)| {
            let device = Device::open(gpu.ordinal).map_err(|error| device_reason(&error))?;
            Ok((device, execution))
        });
        let refuse_all = |compiled: &mut [&mut Compiled], reason: &RunReason| {
            compiled.iter_mut().for_each(|compiled| compiled.refuse_all(self.emulates(), reason));
        };
        if let (Err(reason), false) = (&device, options.build_anyway) {
            return refuse_all(&mut compiled, reason);
        }
        let toolchain = match toolchain(&options.toolchain, &mut |line| progress(line)) {
            Ok(toolchain) => toolchain,
            Err(error) => {
                return refuse_all(&mut compiled, &RunReason::from(&BuildFailure::from(&error)));
            }
        };
        let version = cutlass_version(&toolchain);
        let mut all = Vec::new();
        for compiled in &mut compiled {
            compiled.configured = planned_kernels(&compiled.planned, version, self.emulates());
            all.extend(compiled.configured.iter().cloned());
        }
        let mut built = build_kernels(all, &toolchain, &options.build, progress).into_iter();
        for compiled in compiled {
            compiled.built = built.by_ref().take(compiled.configured.len()).collect();
            compiled.load(&device);
        }
    }
}

/// The code of a plan that was made for another target than that of the backend that compiles it.
const FOREIGN_PLAN: &str = "foreign_plan";

impl Compiled {
    fn unbuilt(planned: Planned, gpu: Option<Gpu>) -> Compiled {
        let (kernels, configured, built) = (HashMap::new(), Vec::new(), Vec::new());
        Compiled { planned, gpu, device: None, kernels, configured, built }
    }

    /// Nothing can be built or run, for one reason.
    fn refuse_all(&mut self, emulate: bool, reason: &RunReason) {
        self.configured = planned_kernels(&self.planned, CutlassVersion::PINNED, emulate);
        for (segment, _) in self.planned.partition().kernels() {
            self.kernels.insert(segment, SegmentKernel::Unavailable(reason.clone()));
        }
    }

    fn load(&mut self, device: &Result<(Device, Execution), RunReason>) {
        for built in &self.built {
            let kernel = match (&built.outcome, device) {
                (Err(failure), _) => SegmentKernel::Unavailable(RunReason::from(failure)),
                (Ok(_), Err(reason)) => SegmentKernel::Unavailable(reason.clone()),
                (Ok(artifact), Ok(_)) => match Kernel::load(artifact) {
                    Ok(kernel) => SegmentKernel::Ready(kernel),
                    Err(error) => {
                        SegmentKernel::Unavailable(RunReason { code: error.code(), message: chain(&error) })
                    }
                },
            };
            self.kernels.insert(built.planned.segment, kernel);
        }
        self.device = device.as_ref().ok().map(|(device, _)| device.clone());
    }

    /// The program and its partition.
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// The kernels as they are configured.
    pub fn configured(&self) -> &[PlannedKernel] {
        &self.configured
    }

    /// What became of building each kernel; empty where nothing was built.
    pub fn built(&self) -> &[BuiltKernel] {
        &self.built
    }

    /// The GPU that the target's kernels run on, also where this program has none; `None` where they cannot run.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// The device with this program's kernels on it; `None` where there are none, or they cannot run.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// The device with the kernels, as the executor's functions take them: [`prepare`](fourfold_executor::prepare) is
    /// one, for hosts that have device memory and a stream of their own.
    pub fn machine(&self) -> Option<Machine<'_>> {
        Some(Machine::new(self.device.as_ref()?, &self.kernels))
    }

    /// Why the kernel of a segment cannot run here; `None` when it can, and for a fallback segment.
    pub fn unavailable(&self, segment: usize) -> Option<&RunReason> {
        match self.kernels.get(&segment) {
            Some(SegmentKernel::Unavailable(reason)) => Some(reason),
            _ => None,
        }
    }

    /// Runs the program on these inputs, which bind by name. The values of the run are those of
    /// [`Planned::original`].
    ///
    /// # Errors
    /// When the tensors do not fit the inputs, memory does not suffice, the device fails, or only kernels are claimed
    /// and the program has other ops.
    pub fn run(&self, tensors: &HashMap<String, Tensor>, options: &RunOptions) -> Result<Run, Error> {
        self.planned.refuse_unclaimed()?;
        self.run_bound(&bind::bind(self.planned.program(), tensors)?, options)
    }

    /// [`Compiled::run`] on inputs that are bound already, to either program: they have the same.
    ///
    /// # Errors
    /// As [`Compiled::run`], but for binding.
    pub fn run_bound(&self, bound: &Bound<'_>, options: &RunOptions) -> Result<Run, Error> {
        Ok(self.planned.in_original(self.run_normalized(bound, options)?))
    }

    /// [`Compiled::run_bound`] with the values of [`Planned::program`].
    pub(crate) fn run_normalized(&self, bound: &Bound<'_>, options: &RunOptions) -> Result<Run, Error> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let machine = self.machine();
        let mut run = fourfold_executor::run(program, partition, bound, options, machine.as_ref())?;
        if machine.is_none() {
            self.explain(&mut run.segments);
        }
        Ok(run)
    }

    /// Runs one segment, for hosts that keep their own ops: the inputs and results are those of
    /// [`ClaimedSegment`](crate::ClaimedSegment), in its order.
    ///
    /// # Errors
    /// As [`Compiled::run`].
    pub fn run_segment(
        &self,
        segment: usize,
        inputs: &[&Tensor],
        symbols: &SymbolValues,
        options: &RunOptions,
    ) -> Result<(Vec<Tensor>, SegmentRun), Error> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let machine = self.machine();
        let (results, mut run) = fourfold_executor::run_segment(
            program,
            partition,
            segment,
            inputs,
            symbols,
            options,
            machine.as_ref(),
        )?;
        if machine.is_none()
            && let Some(reason) = self.unavailable(segment)
        {
            refine(&mut run, reason);
        }
        Ok((results, run))
    }

    /// Without a device the executor knows only that there is none; why is known here.
    fn explain(&self, segments: &mut [SegmentRun]) {
        for (index, run) in segments.iter_mut().enumerate() {
            if let Some(reason) = self.unavailable(index) {
                refine(run, reason);
            }
        }
    }
}

/// Replaces the general reason by the one that is known. A constraint that the call does not meet stays: no device
/// would have helped.
fn refine(run: &mut SegmentRun, reason: &RunReason) {
    if run.reason.as_ref().is_some_and(|general| general.code == fourfold_executor::NO_DEVICE) {
        run.reason = Some(reason.clone());
    }
}

fn device_reason(error: &DeviceError) -> RunReason {
    RunReason { code: error.code(), message: format!("{error}: {}", error.remedy()) }
}

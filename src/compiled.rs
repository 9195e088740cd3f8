//! Compiled programs: their kernels built and loaded, ready to run as a whole or segment by segment.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_executor::cache::CacheKey;
use fourfold_executor::device::{Device, DeviceError, Gpu};
use fourfold_executor::service::{Built, CompileService, Event, Listener, Outcome, Request, Wait};
use fourfold_executor::{
    Machine, NO_DEVICE, PendingKernel, Preparation, Refused, Run, RunOptions, RunReason, SegmentKernel,
    SegmentRun,
};
use fourfold_ir::{Bound, SymbolValues, Tensor, bind};

use crate::backend::{Backend, Execution, Planned};
use crate::compile_options::{CompileOptions, Supply};
use crate::error::Error;
use crate::kernels::{BuiltKernel, PlannedKernel, build_targets, get_kernels, planned_kernels, request};

/// A program that is ready to run. What could not be built or cannot run here runs on the fallback, with the reason.
#[derive(Debug)]
pub struct Compiled {
    planned: Planned,
    gpu: Option<Gpu>,
    device: Option<Device>,
    kernels: HashMap<usize, SegmentKernel>,
    configured: Vec<PlannedKernel>,
    built: Vec<BuiltKernel>,
    /// Those that are had in the background, in the order of `configured`.
    pending: Vec<PendingKernel>,
    /// Who has a kernel keeps it for others in this process.
    _kept: Vec<Arc<Built>>,
    /// Where its kernels come from; others find the same service while somebody has it.
    supply: Option<Supply>,
    /// Every run is in debug mode.
    debug: bool,
}

/// The device that kernels run on, or why there is none.
type Place = Result<(Device, Execution), RunReason>;

impl Backend {
    /// Builds and loads the kernels of a program, if they can run here; those that the cache has are only loaded.
    /// `progress` is told of what takes long.
    ///
    /// It cannot fail: a kernel that cannot be had is a segment that runs on the fallback, with the compiler's own
    /// words, whose fault it was and what to do as its reason. So does a plan that another backend made for another
    /// target.
    pub fn compile(
        &self,
        planned: Planned,
        options: &CompileOptions,
        progress: &(dyn Fn(&Event) + Sync),
    ) -> Compiled {
        let mut compiled = self.compile_all(vec![planned], options, progress);
        compiled.pop().expect("one program was given")
    }

    /// [`Backend::compile`] for several programs at once, with each distinct kernel built once and as many at a time
    /// as the machine has room for.
    pub fn compile_all(
        &self,
        programs: Vec<Planned>,
        options: &CompileOptions,
        progress: &(dyn Fn(&Event) + Sync),
    ) -> Vec<Compiled> {
        let mut compiled: Vec<Compiled> =
            programs.into_iter().map(|planned| self.begin(planned, options)).collect();
        let mut mine: Vec<&mut Compiled> =
            compiled.iter_mut().filter(|compiled| compiled.needs_kernels()).collect();
        let Some((place, supply)) = self.place(&mut mine, options, progress) else { return compiled };
        let mut all = Vec::new();
        for compiled in &mut mine {
            compiled.configured = planned_kernels(&compiled.planned, supply.cutlass, self.emulates());
            all.extend(compiled.configured.iter().cloned());
        }
        let outcomes = get_kernels(&supply.service, &all, &supply.cancel, progress);
        let mut outcomes = outcomes.into_iter();
        for compiled in mine {
            compiled.load(outcomes.by_ref().take(compiled.configured.len()), &place, &supply.service);
            compiled.supply = Some(supply.clone());
        }
        compiled
    }

    /// [`Backend::compile`] without waiting for compilers: a segment runs on the fallback, with the reason
    /// [`BUILDING`](fourfold_executor::BUILDING), until its kernel is there, and as that from then on; a call may wait
    /// for it ([`RunOptions::wait`]), and [`Compiled::wait`] does. When the result is dropped, or the wish of
    /// [`BuildOptions::cancel`](fourfold_executor::BuildOptions::cancel) comes, the builds that nobody else wants end.
    /// `events` is called on other threads too.
    ///
    /// A toolchain that has to be installed first, which [`ToolchainOptions`](fourfold_executor::toolchain::ToolchainOptions)
    /// allows or not, is installed before this returns.
    pub fn compile_in_background(
        &self,
        planned: Planned,
        options: &CompileOptions,
        events: Listener,
    ) -> Compiled {
        let mut compiled = self.begin(planned, options);
        if !compiled.needs_kernels() {
            return compiled;
        }
        let told = Arc::clone(&events);
        let prepared = self.place(&mut [&mut compiled], options, &move |event| told(event));
        let Some((place, supply)) = prepared else { return compiled };
        compiled.configured = planned_kernels(&compiled.planned, supply.cutlass, self.emulates());
        let requests = compiled.configured.iter().map(|kernel| request(&supply.service, &kernel.source));
        let requests: Vec<Request> = requests.collect();
        let distinct: HashMap<CacheKey, &Request> =
            requests.iter().map(|request| (request.key(), request)).collect();
        // What is there already is told as soon as it is asked for.
        events(&Event::Needed { kernels: distinct.len() });
        let start = |request: &Request| {
            let pending = supply.service.start(request.clone(), Arc::clone(&events));
            PendingKernel::new(pending.ended_by(&supply.cancel))
        };
        let started: HashMap<CacheKey, PendingKernel> =
            distinct.into_iter().map(|(key, request)| (key, start(request))).collect();
        for (kernel, request) in compiled.configured.iter().zip(&requests) {
            let pending = started[&request.key()].clone();
            compiled.pending.push(pending.clone());
            let kernel_of_segment = match &place {
                Ok(_) => SegmentKernel::Pending(pending),
                Err(reason) => SegmentKernel::Unavailable(reason.clone()),
            };
            compiled.kernels.insert(kernel.segment, kernel_of_segment);
        }
        compiled.device = place.ok().map(|(device, _)| device);
        compiled.supply = Some(supply);
        compiled
    }

    /// A program of which nothing is built; one that was planned for another target never will be.
    fn begin(&self, planned: Planned, options: &CompileOptions) -> Compiled {
        let gpu = self.execution().ok().map(|(gpu, _)| gpu.clone());
        let mut compiled = Compiled::unbuilt(planned, gpu, options.debug);
        let (theirs, own) = (&compiled.planned.partition().target, &self.capabilities().target);
        if theirs != own {
            let message = format!("it was planned for {theirs}, and this backend is for {own}");
            compiled.refuse_all(false, &RunReason { code: FOREIGN_PLAN, message });
        }
        compiled
    }

    /// Where the kernels of programs will run, and where they come from; `None` if they are not needed.
    fn place(
        &self,
        compiled: &mut [&mut Compiled],
        options: &CompileOptions,
        progress: &(dyn Fn(&Event) + Sync),
    ) -> Option<(Place, Supply)> {
        if compiled.is_empty() {
            return None;
        }
        // The device is opened before anything is built: without it kernels need not be.
        let place = self.execution().and_then(|(gpu, execution)| {
            let device = Device::open(gpu.ordinal).map_err(|error| device_reason(&error))?;
            Ok((device, execution))
        });
        if let (Err(reason), false) = (&place, options.build_anyway) {
            compiled.iter_mut().for_each(|compiled| compiled.refuse_all(self.emulates(), reason));
            return None;
        }
        let targets = build_targets(&self.capabilities().target, self.emulates());
        Some((place, options.supply(&targets, progress)))
    }
}

/// The code of a plan that was made for another target than that of the backend that compiles it.
const FOREIGN_PLAN: &str = "foreign_plan";

impl Compiled {
    fn unbuilt(planned: Planned, gpu: Option<Gpu>, debug: bool) -> Compiled {
        Compiled {
            planned,
            gpu,
            device: None,
            kernels: HashMap::new(),
            configured: Vec::new(),
            built: Vec::new(),
            pending: Vec::new(),
            _kept: Vec::new(),
            supply: None,
            debug,
        }
    }

    /// Whether it has kernels about which nothing is known yet.
    fn needs_kernels(&self) -> bool {
        self.kernels.is_empty() && self.planned.partition().plans().next().is_some()
    }

    /// Nothing can be built or run, for one reason.
    fn refuse_all(&mut self, emulate: bool, reason: &RunReason) {
        self.configured = planned_kernels(&self.planned, CutlassVersion::PINNED, emulate);
        for (segment, _) in self.planned.partition().plans() {
            self.kernels.insert(segment, SegmentKernel::Unavailable(reason.clone()));
        }
    }

    /// Takes what became of each configured kernel, in order, and loads those that can run.
    fn load(&mut self, outcomes: impl Iterator<Item = Outcome>, place: &Place, service: &CompileService) {
        for (planned, outcome) in self.configured.iter().zip(outcomes) {
            let kernel = match (&outcome, place) {
                (Err(failure), _) => SegmentKernel::Unavailable(RunReason::from(&**failure)),
                (Ok(_), Err(reason)) => SegmentKernel::Unavailable(reason.clone()),
                (Ok(built), Ok(_)) => match built.kernel() {
                    Ok(kernel) => SegmentKernel::Ready(kernel.clone()),
                    Err(failure) => SegmentKernel::Unavailable(RunReason::from(&*failure)),
                },
            };
            self.kernels.insert(planned.segment, kernel);
            self.built.push(BuiltKernel::new(planned.clone(), &outcome, service));
            self._kept.extend(outcome);
        }
        self.device = place.as_ref().ok().map(|(device, _)| device.clone());
    }

    /// The program and its partition.
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// The kernels as they are configured.
    pub fn configured(&self) -> &[PlannedKernel] {
        &self.configured
    }

    /// What became of building each kernel; empty where nothing was built, or in the background: see
    /// [`Compiled::built_so_far`].
    pub fn built(&self) -> &[BuiltKernel] {
        &self.built
    }

    /// What became of building each kernel, as far as it is known.
    pub fn built_so_far(&self) -> Vec<BuiltKernel> {
        let pending = self.configured.iter().zip(&self.pending);
        let known = pending.filter_map(|(planned, it)| {
            let service = &self.supply.as_ref()?.service;
            Some(BuiltKernel::new(planned.clone(), it.outcome()?, service))
        });
        self.built.iter().cloned().chain(known).collect()
    }

    /// How many segments wait for kernels that are being built in the background.
    pub fn building(&self) -> usize {
        self.pending.iter().filter(|pending| pending.outcome().is_none()).count()
    }

    /// Waits for the kernels that are being built in the background, and says whether none is any more. Those that
    /// cannot be had count as done.
    pub fn wait(&self, wait: Wait) -> bool {
        let deadline = wait.deadline();
        self.pending.iter().all(|pending| pending.wait_until(deadline).is_some())
    }

    /// The GPU that the target's kernels run on, also where this program has none; `None` where they cannot run.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// The device with this program's kernels on it; `None` where there are none, or they cannot run.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Prepares the launches of a program in which every segment is a kernel, for a host with device memory and a stream
    /// of its own. Each input and output is a [`Value`](fourfold_ir::Value) of [`Planned::program`].
    ///
    /// # Errors
    /// When a segment is no kernel, or its kernel cannot run here with these extents.
    pub fn prepare(&self, symbols: &SymbolValues) -> Result<Preparation<'_>, Refused> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let machine = self.machine().ok_or_else(|| self.without_device(None))?;
        Preparation::of_program(program, partition, symbols, &machine)
    }

    /// [`prepare`](Compiled::prepare) for one segment, for hosts that keep their own ops. The inputs and outputs are those
    /// of [`ClaimedSegment`](crate::ClaimedSegment).
    ///
    /// # Errors
    /// When there is no such segment, or its kernel cannot run here with these extents.
    pub fn prepare_segment(
        &self,
        segment: usize,
        symbols: &SymbolValues,
    ) -> Result<Preparation<'_>, Refused> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let machine = self.machine().ok_or_else(|| self.without_device(Some(segment)))?;
        Preparation::of_segment(program, partition, segment, symbols, &machine)
    }

    /// The refusal where no kernel can run: the reason of the segment, or of the first one that has a reason.
    fn without_device(&self, segment: Option<usize>) -> Refused {
        let known =
            segment.map_or(0..self.planned.partition().segments.len(), |segment| segment..segment + 1);
        let reason = known.into_iter().find_map(|segment| self.unavailable(segment));
        let (code, message) = match reason {
            Some(reason) => (reason.code, reason.message.clone()),
            None => (NO_DEVICE, "there is no device that runs the program's kernels".to_owned()),
        };
        Refused { code, segment, message }
    }

    /// The device with the kernels, as the executor's functions take them.
    pub fn machine(&self) -> Option<Machine<'_>> {
        Some(Machine::new(self.device.as_ref()?, &self.kernels))
    }

    /// Why the kernel of a segment cannot run here; `None` when it can, while it is being built, and for a fallback
    /// segment.
    pub fn unavailable(&self, segment: usize) -> Option<&RunReason> {
        match self.kernels.get(&segment) {
            Some(SegmentKernel::Unavailable(reason)) => Some(reason),
            Some(SegmentKernel::Pending(pending)) => pending.wait(Wait::Never)?.err(),
            _ => None,
        }
    }

    /// Whether it was compiled, and is run, to look for a fault: [`CompileOptions::debug`].
    pub fn is_in_debug_mode(&self) -> bool {
        self.debug
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
    ///
    /// # Errors
    /// As [`Compiled::run_bound`].
    pub fn run_normalized(&self, bound: &Bound<'_>, options: &RunOptions) -> Result<Run, Error> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let machine = self.machine();
        let options = &self.run_options(options);
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
        let options = &self.run_options(options);
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

    fn run_options(&self, options: &RunOptions) -> RunOptions {
        options.debug(options.debug || self.debug)
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

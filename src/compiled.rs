//! Compiled programs: kernels built and loaded, run as a whole program or segment by segment.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_executor::blas::Blas;
use fourfold_executor::cache::CacheKey;
use fourfold_executor::device::{Device, DeviceError, Gpu};
use fourfold_executor::service::{Built, CompileService, Event, Listener, Outcome, Request, Wait};
use fourfold_executor::{
    FALLBACK_SEGMENT, Kernels, Machine, NO_DEVICE, PendingKernel, Preparation, Refused, Run, RunOptions,
    RunReason, SegmentKernel, SegmentRun,
};
use fourfold_ir::{Bound, SymbolValues, Tensor, bind};
use fourfold_scheduler::Plan;

use crate::backend::{Backend, Execution, Planned};
use crate::compile_options::{CompileOptions, Supply};
use crate::error::Error;
use crate::kernels::{BuiltKernel, PlannedKernel, build_targets, get_kernels, planned_kernels, request};

/// A program ready to run. Kernels that failed to build, or cannot run here, are replaced by the fallback with a
/// reason.
#[derive(Debug)]
pub struct Compiled {
    planned: Arc<Planned>,
    gpu: Option<Gpu>,
    device: Option<Device>,
    kernels: Arc<Kernels>,
    configured: Vec<PlannedKernel>,
    built: Vec<BuiltKernel>,
    /// Kernels requested in the background, in the order of `configured`.
    pending: Vec<PendingKernel>,
    /// Keeps each kernel alive, so that other programs in this process share it.
    _kept: Vec<Arc<Built>>,
    /// The kernels' source. A live service is found again by later compilations with the same options.
    supply: Option<Supply>,
    /// Run in debug mode.
    debug: bool,
}

/// The device that kernels run on, or the reason that there is none.
type Place = Result<(Device, Execution), RunReason>;

impl Backend {
    /// Builds and loads the kernels of a program that this machine can run. Cached kernels are only loaded. Slow
    /// steps are reported to `progress`.
    ///
    /// Never fails. The segment of a kernel that cannot be built runs on the fallback; its reason holds the
    /// compiler's message, the fault and a remedy. A plan made for another backend's target runs on the fallback too.
    ///
    /// ```
    /// use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    ///
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// assert_eq!(compiled.unavailable(0).expect("no GPU").code, "no_device");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compile(
        &self,
        planned: Planned,
        options: &CompileOptions,
        progress: &(dyn Fn(&Event) + Sync),
    ) -> Compiled {
        let mut compiled = self.compile_all(vec![planned], options, progress);
        compiled.pop().expect("one program was given")
    }

    /// Compiles several programs. Each distinct kernel is built once, as many at a time as [`CompileOptions::jobs`]
    /// allows.
    ///
    /// ```
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// let plans = vec![backend.plan(program.clone()), backend.plan(program)];
    /// assert_eq!(backend.compile_all(plans, &CompileOptions::default(), &|_| ()).len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Compiles without waiting for compilers. Until its kernel is ready, a segment runs on the fallback with the
    /// reason [`BUILDING`](fourfold_executor::BUILDING). [`RunOptions::wait`] makes a call wait; [`Compiled::wait`]
    /// waits for all kernels.
    ///
    /// Dropping the result, or cancelling [`BuildOptions::cancel`](fourfold_executor::BuildOptions::cancel), ends
    /// builds that no other program needs. `events` is also called on other threads. If
    /// [`ToolchainOptions`](fourfold_executor::toolchain::ToolchainOptions) ask to install a toolchain, the
    /// installation completes before this returns.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use fourfold::{Backend, CompileOptions, DeviceChoice, Options, Wait};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    ///
    /// let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// let options = CompileOptions::default();
    /// let compiled = backend.compile_in_background(backend.plan(program), &options, Arc::new(|_| ()));
    /// assert_eq!(compiled.building(), 0, "nothing to build without a GPU");
    /// assert!(compiled.wait(Wait::Never));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        // Announced first: a cached kernel's event follows as soon as it is requested.
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
            Arc::make_mut(&mut compiled.kernels).insert(kernel.segment, kernel_of_segment);
        }
        compiled.take_place(&place);
        compiled.supply = Some(supply);
        compiled
    }

    /// A program without kernels yet. All kernels of a plan for another target are refused.
    fn begin(&self, planned: Planned, options: &CompileOptions) -> Compiled {
        let gpu = self.execution().ok().map(|(gpu, _)| gpu.clone());
        let mut compiled = Compiled::unbuilt(planned, gpu, options.debug);
        let (theirs, own) = (&compiled.planned.partition().target, &self.capabilities().target);
        if theirs != own {
            let message = format!("the program was planned for {theirs}, but this backend is for {own}");
            compiled.refuse_all(false, &RunReason { code: FOREIGN_PLAN, message });
        }
        compiled
    }

    /// The device and the kernels' source for these programs; `None` if they need no kernels.
    fn place(
        &self,
        compiled: &mut [&mut Compiled],
        options: &CompileOptions,
        progress: &(dyn Fn(&Event) + Sync),
    ) -> Option<(Place, Supply)> {
        if compiled.is_empty() {
            return None;
        }
        // The device is opened before anything is built: without one, nothing has to be built.
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

/// The reason code of a plan made for another target than the compiling backend's.
const FOREIGN_PLAN: &str = "foreign_plan";

impl Compiled {
    fn unbuilt(planned: Planned, gpu: Option<Gpu>, debug: bool) -> Compiled {
        Compiled {
            planned: Arc::new(planned),
            gpu,
            device: None,
            kernels: Arc::default(),
            configured: Vec::new(),
            built: Vec::new(),
            pending: Vec::new(),
            _kept: Vec::new(),
            supply: None,
            debug,
        }
    }

    /// Returns true if the program has kernels and none is decided yet.
    fn needs_kernels(&self) -> bool {
        self.kernels.is_empty() && self.planned.partition().plans().next().is_some()
    }

    /// Marks every kernel as unavailable, for one reason.
    fn refuse_all(&mut self, emulate: bool, reason: &RunReason) {
        self.configured = planned_kernels(&self.planned, CutlassVersion::PINNED, emulate);
        for (segment, _) in self.planned.partition().plans() {
            Arc::make_mut(&mut self.kernels).insert(segment, SegmentKernel::Unavailable(reason.clone()));
        }
    }

    /// Takes the outcome of each configured kernel, in order, and loads the kernels that can run.
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
            Arc::make_mut(&mut self.kernels).insert(planned.segment, kernel);
            self.built.push(BuiltKernel::new(planned.clone(), &outcome, service));
            self._kept.extend(outcome);
        }
        self.take_place(place);
    }

    /// Keeps the device, and loads the matrix library for it if the program has plain products.
    fn take_place(&mut self, place: &Place) {
        let products = self.planned.partition().plans().filter(|(_, plan)| matches!(plan, Plan::Mma(_)));
        let products: Vec<usize> = products.map(|(segment, _)| segment).collect();
        if !products.is_empty() {
            let library = match place {
                Ok((device, _)) => match Blas::load(device) {
                    Ok(blas) => SegmentKernel::Library(blas),
                    Err(error) => SegmentKernel::Unavailable(RunReason::from(&error)),
                },
                Err(reason) => SegmentKernel::Unavailable(reason.clone()),
            };
            let of_products = products.into_iter().map(|segment| (segment, library.clone()));
            Arc::make_mut(&mut self.kernels).extend(of_products);
        }
        self.device = place.as_ref().ok().map(|(device, _)| device.clone());
    }

    /// The program and its partition.
    ///
    /// ```
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// assert_eq!(compiled.planned().claimed().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// The kernels' configurations and sources.
    ///
    /// ```
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// assert!(compiled.configured()[0].source.text.contains("cutlass"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn configured(&self) -> &[PlannedKernel] {
        &self.configured
    }

    /// The build result of each kernel. Empty if nothing was built, or if kernels are built in the background: use
    /// [`Compiled::built_so_far`] then.
    ///
    /// ```
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// assert!(compiled.built().is_empty() && compiled.built_so_far().is_empty(), "no GPU: nothing is built");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn built(&self) -> &[BuiltKernel] {
        &self.built
    }

    /// The build results known so far, background builds included. [`Compiled::built`] has an example.
    pub fn built_so_far(&self) -> Vec<BuiltKernel> {
        let pending = self.configured.iter().zip(&self.pending);
        let known = pending.filter_map(|(planned, it)| {
            let service = &self.supply.as_ref()?.service;
            Some(BuiltKernel::new(planned.clone(), it.outcome()?, service))
        });
        self.built.iter().cloned().chain(known).collect()
    }

    /// The number of segments whose kernels are still being built. [`Backend::compile_in_background`] has an example.
    pub fn building(&self) -> usize {
        self.pending.iter().filter(|pending| pending.outcome().is_none()).count()
    }

    /// Waits for background builds. Returns true if none is left running; a failed build is not running.
    /// [`Backend::compile_in_background`] has an example.
    pub fn wait(&self, wait: Wait) -> bool {
        let deadline = wait.deadline();
        self.pending.iter().all(|pending| pending.wait_until(deadline).is_some())
    }

    /// The GPU that runs the target's kernels, even if this program has no kernels; `None` if it cannot run them.
    ///
    /// ```
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// assert!(compiled.gpu().is_none() && compiled.device().is_none() && compiled.machine().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// The device that holds this program's kernels; `None` if it has no kernels or they cannot run.
    /// [`Compiled::gpu`] has an example.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Prepares the launches of a program without fallback segments, for a host with its own device memory and
    /// stream. Inputs and outputs are each a [`Value`](fourfold_ir::Value) of [`Planned::program`].
    ///
    /// Every launch reads all inputs, params included, when it runs on the stream. So the host may change a param between
    /// launches, and every launch computes anew what depends on params only. If params never change, use
    /// [`Session::prepare`](crate::Session::prepare): it computes these values once. There, ops that depend on params
    /// only may also run on the fallback.
    ///
    /// # Errors
    /// When a segment runs on the fallback, or its kernel cannot run on this machine with these extents.
    ///
    /// ```
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options, ir::SymbolValues};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// let symbols = SymbolValues::default();
    /// assert_eq!(compiled.prepare(&symbols).err().expect("no GPU").code, "no_device");
    /// assert_eq!(compiled.prepare_segment(0, &symbols).err().expect("no GPU").code, "no_device");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// With a GPU, bind an address to each input and output and launch:
    ///
    /// ```no_run
    /// # use fourfold::{Compiled, Refused, ir::SymbolValues};
    /// # unsafe fn launch(compiled: &Compiled, addresses: Vec<(fourfold::ir::Value, u64)>) -> Result<(), Refused> {
    /// let preparation = compiled.prepare(&SymbolValues::default())?.bind_all(addresses);
    /// // SAFETY: each address is device memory as large as its value, valid until `prepared` is dropped.
    /// let prepared = unsafe { preparation.build()? };
    /// # let _ = prepared;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare(&self, symbols: &SymbolValues) -> Result<Preparation<'_>, Refused> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let machine = self.machine().ok_or_else(|| self.without_device(None))?;
        Preparation::of_program(program, partition, symbols, &machine)
    }

    /// Prepares the launch of one segment, for hosts that run the other ops. Inputs and outputs are those of
    /// [`ClaimedSegment`](crate::ClaimedSegment). [`Compiled::prepare`] has an example.
    ///
    /// # Errors
    /// When the segment does not exist, or its kernel cannot run on this machine with these extents.
    pub fn prepare_segment(
        &self,
        segment: usize,
        symbols: &SymbolValues,
    ) -> Result<Preparation<'_>, Refused> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let machine = self.machine().ok_or_else(|| self.without_device(Some(segment)))?;
        Preparation::of_segment(program, partition, segment, symbols, &machine)
    }

    /// The refusal without a device: the segment's own reason, or the first reason of any segment. A program without
    /// kernels opens no device.
    fn without_device(&self, segment: Option<usize>) -> Refused {
        let segments = &self.planned.partition().segments;
        let mut known = segment.map_or(0..segments.len(), |segment| segment..segment + 1);
        if let Some(reason) = known.clone().find_map(|segment| self.unavailable(segment)) {
            return Refused { code: reason.code, segment, message: reason.message.clone() };
        }
        let is_fallback = |at: &usize| segments.get(*at).is_some_and(|segment| segment.plan().is_none());
        if let Some(at) = known.find(is_fallback) {
            let message = format!("segment {at} runs on the fallback; run such programs with `run`");
            return Refused { code: FALLBACK_SEGMENT, segment: Some(at), message };
        }
        Refused { code: NO_DEVICE, segment, message: "no device can run the program's kernels".to_owned() }
    }

    /// The plan, for owners that outlive this.
    pub(crate) fn shared_plan(&self) -> Arc<Planned> {
        Arc::clone(&self.planned)
    }

    /// The device and kernels, for owners that outlive this.
    pub(crate) fn shared_machine(&self) -> Option<(Device, Arc<Kernels>)> {
        Some((self.device.clone()?, Arc::clone(&self.kernels)))
    }

    /// The device and kernels, in the form that the executor's functions take. [`Compiled::gpu`] has an example.
    pub fn machine(&self) -> Option<Machine<'_>> {
        Some(Machine::new(self.device.as_ref()?, &self.kernels))
    }

    /// The reason that a segment's kernel cannot run here. `None` if it can run, is being built, or the segment has
    /// no kernel. [`Backend::compile`] has an example.
    pub fn unavailable(&self, segment: usize) -> Option<&RunReason> {
        match self.kernels.get(&segment) {
            Some(SegmentKernel::Unavailable(reason)) => Some(reason),
            Some(SegmentKernel::Pending(pending)) => pending.wait(Wait::Never)?.err(),
            _ => None,
        }
    }

    /// Returns [`CompileOptions::debug`].
    ///
    /// ```
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// let options = CompileOptions::default().debug(true);
    /// assert!(backend.compile(backend.plan(program), &options, &|_| ()).is_in_debug_mode());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_in_debug_mode(&self) -> bool {
        self.debug
    }

    /// Runs the program. `tensors` maps input names to tensors. The run holds the values of [`Planned::original`].
    ///
    /// # Errors
    /// [`Error::Bind`] when the tensors do not fit the inputs; [`Error::Run`] when memory runs out or the device
    /// fails; [`Error::Unclaimed`] when an op belongs to the host.
    ///
    /// ```
    /// use fourfold::ir::sample::{Recipe, Rule, inputs};
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    ///
    /// let tensors = inputs(&program, &Recipe { rule: Rule::Exact, seed: 1, symbols: Vec::new() })?;
    /// # let output = program.module().outputs[0];
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// let run = compiled.run(&tensors, &Default::default())?;
    /// assert!(run.value(output).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run(&self, tensors: &HashMap<String, Tensor>, options: &RunOptions) -> Result<Run, Error> {
        self.planned.refuse_unclaimed()?;
        self.run_bound(&bind::bind(self.planned.program(), tensors)?, options)
    }

    /// Runs the program on bound inputs. They may be bound to the original or to the normalized program: both have
    /// the same inputs.
    ///
    /// # Errors
    /// As [`Compiled::run`], except [`Error::Bind`] and [`Error::Unclaimed`].
    ///
    /// ```
    /// use fourfold::ir::{bind::bind, sample::{Recipe, Rule, inputs}};
    /// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    ///
    /// let tensors = inputs(&program, &Recipe { rule: Rule::Exact, seed: 1, symbols: Vec::new() })?;
    /// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
    /// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// let bound = bind(compiled.planned().program(), &tensors)?;
    /// let original = compiled.run_bound(&bound, &Default::default())?;
    /// let normalized = compiled.run_normalized(&bound, &Default::default())?;
    /// assert_eq!(original.segments.len(), normalized.segments.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_bound(&self, bound: &Bound<'_>, options: &RunOptions) -> Result<Run, Error> {
        Ok(self.planned.in_original(self.run_normalized(bound, options)?))
    }

    /// Like [`Compiled::run_bound`], which has an example, but the run holds the values of [`Planned::program`].
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

    /// Runs one segment, for hosts that run the other ops. Inputs and results are those of
    /// [`ClaimedSegment`](crate::ClaimedSegment), in its order.
    ///
    /// # Errors
    /// [`Error::Run`] when the segment does not exist, the inputs do not fit it, memory runs out, or the device
    /// fails.
    ///
    /// ```
    /// use fourfold::ir::{SymbolValues, sample::{Recipe, Rule, inputs}};
    /// # use fourfold::{Backend, Claim, CompileOptions, DeviceChoice, Options};
    /// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
    /// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
    ///
    /// let tensors = inputs(&program, &Recipe { rule: Rule::Exact, seed: 1, symbols: Vec::new() })?;
    /// # let options = Options::default().claim(Claim::KernelsOnly).device(DeviceChoice::None);
    /// # let backend = Backend::new(&options)?;
    /// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
    /// let arguments = ["a", "sfa", "b", "sfb"].map(|name| &tensors[name]);
    /// let symbols = SymbolValues::default();
    /// let (results, run) = compiled.run_segment(0, &arguments, &symbols, &Default::default())?;
    /// assert_eq!(results.len(), 1);
    /// assert_eq!(run.reason.expect("no GPU").code, "no_device");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Replaces the executor's general "no device" by the specific reason known here.
    fn explain(&self, segments: &mut [SegmentRun]) {
        for (index, run) in segments.iter_mut().enumerate() {
            if let Some(reason) = self.unavailable(index) {
                refine(run, reason);
            }
        }
    }
}

/// Replaces a general `no_device` reason by a specific one. An unmet constraint stays: a device would not have
/// helped.
fn refine(run: &mut SegmentRun, reason: &RunReason) {
    if run.reason.as_ref().is_some_and(|general| general.code == fourfold_executor::NO_DEVICE) {
        run.reason = Some(reason.clone());
    }
}

fn device_reason(error: &DeviceError) -> RunReason {
    RunReason { code: error.code(), message: format!("{error}: {}", error.remedy()) }
}

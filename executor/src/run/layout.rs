//! Layout of prepared programs: the steps of a launch, and one allocation for all intermediates and workspaces.

use std::ops::Range;

use fourfold_ir::{Entity, Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::{ConstantPlan, Constraint, Partition, Plan, ReasonCode, ViewPlan};

use super::call::{Call, Work, admit, bytes, refused, results_of_nothing};
use super::homes::Homes;
use super::live::{Live, view_of};
use super::memory::{Lifetimes, MemoryPlan, on_fallback, size};
use super::residents::Residents;
use super::{ALIAS, MISSING_ADDRESS, Machine, NO_SUCH_SEGMENT, Refused};
use crate::fallback;
use crate::service::Wait;

/// A program's steps, and the layout of its memory.
pub(super) struct Layout<'a> {
    /// The steps, in order.
    pub(super) steps: Vec<Step<'a>>,
    /// The intermediates and workspaces.
    pub(super) memory: MemoryPlan,
    /// The memory that holds each value.
    pub(super) homes: Homes,
    /// The constants, each with its part of the memory.
    pub(super) constants: Vec<(usize, Tensor)>,
    /// The values that the caller must bind to an address.
    pub(super) outside: Vec<Outside>,
    /// Alignment requirements of addresses.
    pub(super) alignments: Vec<Alignment>,
}

/// The work for a segment.
pub(super) enum Step<'a> {
    /// Launches its kernel.
    Call(Box<PlacedCall<'a>>),
    /// Sets a value to zero, without a launch: a reduction over nothing.
    Zero(ZeroValue),
    /// Copies a value.
    Copy(CopyValue),
}

impl Step<'_> {
    /// The position of its segment.
    pub(super) fn segment(&self) -> usize {
        match self {
            Step::Call(call) => call.segment,
            Step::Zero(zero) => zero.segment,
            Step::Copy(copy) => copy.segment,
        }
    }
}

/// A call with the part of its workspace.
pub(super) struct PlacedCall<'a> {
    pub(super) segment: usize,
    /// The labels of its ops, if it may end with a fault.
    pub(super) ops: Vec<String>,
    pub(super) call: Call<'a>,
    pub(super) workspace: usize,
}

/// A value to copy to the memory of another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyValue {
    pub(super) segment: usize,
    pub(super) from: CopySource,
    pub(super) to: Value,
    pub(super) bytes: u64,
}

/// The source of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopySource {
    /// A value.
    Value(Value),
    /// A constant, by its part of the memory.
    Constant(usize),
}

/// A value to fill with zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroValue {
    pub(super) segment: usize,
    pub(super) value: Value,
    pub(super) bytes: u64,
}

/// A value in the caller's memory.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    pub(crate) value: Value,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// True if a kernel writes it.
    pub(crate) is_output: bool,
}

/// An alignment requirement of a value's address.
#[derive(Clone, Debug)]
pub(super) struct Alignment {
    pub(super) segment: usize,
    pub(super) value: Value,
    pub(super) bytes: u64,
}

/// The scope of a preparation: consecutive segments with their inputs and outputs.
pub(super) struct Scope<'a> {
    segments: Range<usize>,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    residents: Option<&'a Residents>,
    live: Live,
}

impl<'a> Scope<'a> {
    /// A whole program.
    pub(super) fn program(program: &Program, partition: &Partition, symbols: &SymbolValues) -> Scope<'a> {
        let module = program.module();
        Scope {
            segments: 0..partition.segments.len(),
            inputs: module.inputs.clone(),
            outputs: module.outputs.clone(),
            residents: None,
            live: Live::of(program, partition, symbols),
        }
    }

    /// The part of a program that resident values leave: they are inputs, and no outputs.
    pub(super) fn beside(
        program: &Program,
        partition: &Partition,
        symbols: &SymbolValues,
        residents: &'a Residents,
    ) -> Scope<'a> {
        let module = program.module();
        let is_input = |value: &Value| module.defining_op(*value).is_none();
        let mut inputs: Vec<Value> =
            residents.on_device().keys().copied().filter(|value| !is_input(value)).collect();
        inputs.extend(module.inputs.iter().filter(|input| {
            // Params that no kernel reads have no device memory.
            !module.is_param(**input) || residents.on_device().contains_key(input)
        }));
        inputs.sort_unstable();
        let computed = |value: &&Value| !is_input(value) && residents.tensor(**value).is_none();
        let outputs = module.outputs.iter().filter(computed).copied().collect();
        let live = Live::of(program, partition, symbols);
        Scope { segments: 0..partition.segments.len(), inputs, outputs, residents: Some(residents), live }
    }

    /// One segment.
    pub(super) fn segment(
        program: &Program,
        partition: &Partition,
        segment: usize,
    ) -> Result<Scope<'a>, Refused> {
        let count = partition.segments.len();
        match partition.segments.get(segment) {
            Some(planned) => Ok(Scope {
                segments: segment..segment + 1,
                inputs: planned.inputs.clone(),
                outputs: planned.outputs.clone(),
                residents: None,
                live: Live::all(program, partition),
            }),
            None => {
                let message = format!("the partition has no segment {segment}; it has {count}");
                Err(Refused::new(NO_SUCH_SEGMENT, Some(segment), message))
            }
        }
    }
}

/// Admits every call, and assigns an offset to every part.
pub(super) fn lay_out<'a>(
    program: &Program,
    partition: &Partition,
    scope: &Scope<'_>,
    symbols: &SymbolValues,
    machine: &Machine<'a>,
) -> Result<Layout<'a>, Refused> {
    let mut builder = Builder::new(program, symbols, partition, scope);
    builder.inputs()?;
    for position in scope.segments.clone() {
        let is_resident = scope.residents.is_some_and(|residents| residents.skips_segment(position));
        if is_resident || !scope.live.has_segment(position) {
            continue;
        }
        let plan = partition.segments[position].plan().ok_or_else(|| on_fallback(position))?;
        if let Some(view) = view_of(plan, symbols) {
            builder.view(position, &view)?;
            continue;
        }
        if let Plan::Constant(constant) = plan {
            builder.stored(position, constant)?;
            continue;
        }
        // Callers that want to wait have done so already.
        let deadline = Wait::Never.deadline();
        let call = admit(program, partition, position, plan, symbols, Some(machine), deadline)
            .map_err(|reason| Refused::new(reason.code, Some(position), reason.message))?;
        builder.call(position, plan, call)?;
    }
    builder.finish()
}

/// A layout in progress.
struct Builder<'a, 'p> {
    program: &'p Program,
    symbols: &'p SymbolValues,
    scope: &'p Scope<'p>,
    homes: Homes,
    lifetimes: Lifetimes,
    steps: Vec<Step<'a>>,
    constants: Vec<(usize, Tensor)>,
    outside: Vec<Outside>,
    alignments: Vec<Alignment>,
    /// By value: true if it is an input, or an earlier segment computes it.
    made: Vec<bool>,
}

impl<'a, 'p> Builder<'a, 'p> {
    fn new(
        program: &'p Program,
        symbols: &'p SymbolValues,
        partition: &Partition,
        scope: &'p Scope<'p>,
    ) -> Builder<'a, 'p> {
        Builder {
            program,
            symbols,
            scope,
            homes: Homes::of(
                &scope.live.views(partition, scope.segments.clone(), symbols),
                &scope.inputs,
                &scope.outputs,
            ),
            lifetimes: Lifetimes::default(),
            steps: Vec::new(),
            constants: Vec::new(),
            outside: Vec::new(),
            alignments: Vec::new(),
            made: vec![false; program.module().values.len()],
        }
    }

    fn size(&self, value: Value, segment: Option<usize>) -> Result<u64, Refused> {
        size(self.program, value, self.symbols, segment)
    }

    fn inputs(&mut self) -> Result<(), Refused> {
        for &input in &self.scope.inputs {
            self.made[input.index()] = true;
            let name = self.program.module().name_of(input);
            if self.scope.outputs.contains(&input) {
                let message = format!("the program returns its input `%{name}`, which no kernel writes");
                return Err(Refused::new(ALIAS, None, message));
            }
            let bytes = self.size(input, None)?;
            self.outside.push(Outside { value: input, name: name.to_owned(), bytes, is_output: false });
        }
        Ok(())
    }

    /// Checks that a value is computed before a segment reads it.
    fn reads(&self, position: usize, value: Value) -> Result<(), Refused> {
        if self.made[value.index()] {
            return Ok(());
        }
        let name = self.program.module().name_of(value);
        let message = format!("no segment computes `%{name}` before segment {position} reads it");
        Err(Refused::new(MISSING_ADDRESS, Some(position), message))
    }

    /// Records that a segment computes a value, which the caller receives if it is an output.
    fn makes(&mut self, value: Value, bytes: u64) {
        self.made[value.index()] = true;
        if self.scope.outputs.contains(&value) {
            let name = self.program.module().name_of(value).to_owned();
            self.outside.push(Outside { value, name, bytes, is_output: true });
        }
    }

    fn view(&mut self, position: usize, view: &ViewPlan) -> Result<(), Refused> {
        self.reads(position, view.operand)?;
        let bytes = self.size(view.result, Some(position))?;
        self.makes(view.result, bytes);
        if let Some((from, to)) = self.homes.copy(view)
            && bytes > 0
        {
            let step = self.steps.len();
            self.lifetimes.read(from, bytes, step);
            self.lifetimes.fill(to, bytes, step);
            let from = CopySource::Value(from);
            self.steps.push(Step::Copy(CopyValue { segment: position, from, to, bytes }));
        }
        Ok(())
    }

    /// Stores a constant, and copies it at each launch if it is in the caller's memory.
    fn stored(&mut self, position: usize, plan: &ConstantPlan) -> Result<(), Refused> {
        let module = self.program.module();
        let value = plan.result;
        let bytes = self.size(value, Some(position))?;
        let computed = fallback::run_op(self.program, plan.op, &[], self.symbols).map_err(|error| {
            let message = format!("`{}`: {error}", module.op_label(plan.op));
            Refused::new(ReasonCode::ExtentRange.as_str(), Some(position), message)
        })?;
        self.makes(value, bytes);
        let Some(tensor) = computed.into_iter().next().filter(|_| bytes > 0) else { return Ok(()) };
        let part = self.lifetimes.stored(value, bytes);
        self.constants.push((part, tensor));
        if self.homes.is_outside(value) {
            let from = CopySource::Constant(part);
            self.lifetimes.fill(self.homes.home(value), bytes, self.steps.len());
            self.steps.push(Step::Copy(CopyValue { segment: position, from, to: value, bytes }));
        }
        Ok(())
    }

    fn call(&mut self, position: usize, plan: &Plan, call: Call<'a>) -> Result<(), Refused> {
        let step = self.steps.len();
        for value in call.roles.reads() {
            self.reads(position, value)?;
            let bytes = bytes(self.program, value, self.symbols).unwrap_or(0);
            self.lifetimes.read(self.homes.home(value), bytes, step);
        }
        for (value, bytes) in call.written() {
            self.makes(value, bytes);
            let is_outside = self.homes.is_outside(value);
            self.lifetimes.write(self.homes.home(value), bytes, step, is_outside);
        }
        if let Work::Nothing { .. } = call.work {
            let zeros = zeros(self.program, plan, self.symbols, position)?;
            for zero in zeros {
                self.lifetimes.fill(self.homes.home(zero.value), zero.bytes, self.steps.len());
                self.steps.push(Step::Zero(zero));
            }
            return Ok(());
        }
        if let Work::Fallback { .. } = call.work {
            return self.constants(position, plan);
        }
        for constraint in plan.constraints() {
            if let Constraint::PointerAlignment { value, bytes } = constraint {
                let (value, bytes) = (self.homes.home(*value), u64::from(*bytes).max(1));
                self.alignments.push(Alignment { segment: position, value, bytes });
            }
        }
        if let Work::Product(product) = &call.work {
            let aligned = [product.a, product.b, product.d].into_iter().zip(product.matmul.alignments());
            for (value, bytes) in aligned {
                let (value, bytes) = (self.homes.home(value), u64::from(bytes));
                self.alignments.push(Alignment { segment: position, value, bytes });
            }
        }
        // Faults are collected in the workspace, from the preparation until they are queried.
        let finds_faults = matches!(call.work, Work::Kernel { kernel, .. } if kernel.finds_faults());
        let workspace = self.lifetimes.workspace(position, call.workspace, step, finds_faults);
        self.lifetimes.launch(step);
        let label = |op| self.program.module().op_label(op);
        let ops = if finds_faults { plan.ops().into_iter().map(label).collect() } else { Vec::new() };
        self.steps.push(Step::Call(Box::new(PlacedCall { segment: position, ops, call, workspace })));
        Ok(())
    }

    /// Computes the results of a segment that reads no element, and copies them at each launch.
    fn constants(&mut self, position: usize, plan: &Plan) -> Result<(), Refused> {
        let refuse =
            |message: String| Refused::new(ReasonCode::ExtentRange.as_str(), Some(position), message);
        let module = self.program.module();
        let mut known: Vec<(Value, Tensor)> = Vec::new();
        for value in plan.roles().operands.into_iter().map(|(_, value)| value) {
            if self.size(value, Some(position))? > 0 {
                let name = module.name_of(value);
                return Err(refuse(format!(
                    "an extent is 0, but the results depend on `%{name}`; run such programs with `run`"
                )));
            }
            let empty = fallback::zeros(self.program, value, self.symbols);
            known.push((value, empty.map_err(|error| refuse(error.to_string()))?));
        }
        let mut ops = plan.ops();
        ops.sort_unstable();
        for op in ops {
            let operation = &module.ops[op];
            let find = |value: &Value| known.iter().find(|(known, _)| known == value).map(|(_, it)| it);
            let operands: Option<Vec<&Tensor>> = operation.operands.iter().map(find).collect();
            let operands = operands.ok_or_else(|| refuse("its operands are unknown".to_owned()))?;
            let results = fallback::run_op(self.program, op, &operands, self.symbols)
                .map_err(|error| refuse(format!("`{}`: {error}", module.op_label(op))))?;
            known.extend(operation.results.iter().copied().zip(results));
        }
        for value in plan.written() {
            let Some(at) = known.iter().position(|(known, _)| *known == value) else { continue };
            let (_, tensor) = known.swap_remove(at);
            let bytes = tensor.bytes().len() as u64;
            if bytes > 0 {
                let part = self.lifetimes.constant(value, bytes);
                self.constants.push((part, tensor));
                let from = CopySource::Constant(part);
                self.lifetimes.fill(self.homes.home(value), bytes, self.steps.len());
                self.steps.push(Step::Copy(CopyValue { segment: position, from, to: value, bytes }));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Layout<'a>, Refused> {
        if let Some(output) = self.scope.outputs.iter().find(|output| !self.made[output.index()]) {
            let name = self.program.module().name_of(*output);
            let message = format!("no segment computes the output `%{name}`");
            return Err(Refused::new(MISSING_ADDRESS, None, message));
        }
        let Builder { homes, lifetimes, steps, constants, outside, alignments, .. } = self;
        let memory = lifetimes.assign(steps.len());
        Ok(Layout { steps, memory, homes, constants, outside, alignments })
    }
}

/// The values of an empty problem that must be set to zero.
fn zeros(
    program: &Program,
    plan: &Plan,
    symbols: &SymbolValues,
    segment: usize,
) -> Result<Vec<ZeroValue>, Refused> {
    let refuse = |why: &str| {
        let reason = refused(why);
        Refused::new(reason.code, Some(segment), reason.message)
    };
    let results = results_of_nothing(program, plan, symbols).map_err(|error| refuse(&error.to_string()))?;
    let mut zeros = Vec::new();
    for (value, tensor) in results.into_iter().filter(|(_, tensor)| tensor.count() > 0) {
        // A prepared program can only fill memory. Plans exclude reductions with another initial value.
        if tensor.bytes().iter().any(|byte| *byte != 0) {
            let name = program.module().name_of(value);
            return Err(refuse(&format!("`%{name}` is not zero although its problem is empty")));
        }
        zeros.push(ZeroValue { segment, value, bytes: tensor.bytes().len() as u64 });
    }
    Ok(zeros)
}

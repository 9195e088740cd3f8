//! Matches one segment of a row kernel against its plan and the target's rules.
//!
//! The steps are compared with the ops one after another. Which element a step reads is not compared by shapes, as the
//! planner decides it, but element by element on sample extents: the element that the kernel reads at a row and column
//! must be the one that the op means.

use std::collections::HashMap;

use fourfold_ir::{
    Capabilities, ConstantValue, Dim, Module, Op, OpKind, Program, RowCapability, ScaleLayout, Value,
};

use self::places::{Sample, broadcast_element, coordinates};
use super::{CheckError, ContainsSorted, known};
use crate::plan::{Constraint, RowOutput, RowOutputKind, RowPlan, RowRef, RowShape, RowStepKind, Segment};

mod expected;
mod places;

pub(super) fn check(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &RowPlan,
    errors: &mut Vec<CheckError>,
) {
    let module = program.module();
    let samples = Sample::all(module, plan);
    let mut checker = Checker { program, module, segment, plan, samples, held: HashMap::new(), next: 0 };
    let problem = match &capabilities.device.rows {
        None => Some(format!("{} has no row kernels", capabilities.target)),
        Some(rules) => checker.all().err().or_else(|| checker.limits(rules).err()),
    };
    if let Some(what) = problem {
        errors.push(CheckError::Shape { segment: index, what });
    }
    let needed = constraints(capabilities.device.rows.as_ref(), plan);
    for needed in needed.iter().filter(|needed| !plan.constraints.contains(needed)) {
        errors.push(CheckError::Constraint { segment: index, needed: needed.clone() });
    }
    for found in plan.constraints.iter().filter(|found| !needed.contains(found)) {
        errors.push(CheckError::ExtraConstraint { segment: index, found: found.clone() });
    }
}

/// The place of a value: the operand or step that holds it, and the value whose elements that has.
#[derive(Clone)]
struct Held {
    of: RowRef,
    /// The value that the operand or step is; another one for the result of a `broadcast` or `reshape`.
    origin: Value,
    /// The ops that make the value from the origin, the last first.
    moves: Vec<Op>,
}

struct Checker<'a> {
    program: &'a Program,
    module: &'a Module,
    segment: &'a Segment,
    plan: &'a RowPlan,
    samples: Vec<Sample>,
    held: HashMap<Value, Held>,
    /// The next step.
    next: usize,
}

type Checked = Result<(), String>;

impl Checker<'_> {
    fn all(&mut self) -> Checked {
        let plan = self.plan;
        require(plan.ops == self.segment.ops && !plan.ops.is_empty(), || {
            "the ops differ from the segment's".into()
        })?;
        require(plan.operands.len() == plan.program.operands.len(), || "operands have no types".into())?;
        for (input, operand) in plan.operands.iter().zip(&plan.program.operands) {
            let element = self.module.values.get(input.value).map(|data| data.ty.element);
            require(element == Some(operand.element), || format!("{} has another type", input.value))?;
            require(input.repeat.is_some() == operand.repeats, || format!("{} repeats", input.value))?;
        }
        for (position, step) in plan.program.steps.iter().enumerate() {
            let exists = |of: &RowRef| match *of {
                RowRef::Operand(operand) => operand < plan.operands.len(),
                RowRef::Step(step) => step < position,
            };
            require(step.operands.iter().all(exists), || format!("step {position} reads a later step"))?;
        }
        let (operands, steps) = (plan.operands.len(), plan.program.steps.len());
        let exists = |output: &RowOutput| match output.of {
            RowRef::Operand(operand) => operand < operands,
            RowRef::Step(step) => step < steps,
        };
        require(plan.program.outputs.iter().all(exists), || "an output is of no step".into())?;
        for op in &plan.ops {
            self.op(*op).map_err(|what| format!("{}: {what}", self.module.op_label(*op)))?;
        }
        self.outputs()?;
        let steps = plan.program.steps.len();
        require(self.next == steps, || format!("{} steps belong to no op", steps - self.next))
    }

    fn op(&mut self, op: Op) -> Checked {
        let operation = &self.module.ops[op];
        match &operation.kind {
            OpKind::BlockQuantize { .. } => return Ok(()),
            OpKind::Broadcast | OpKind::Reshape => return self.alias(op),
            OpKind::Constant(ConstantValue::Splat(number)) => {
                let element = self.module.ty(operation.results[0]).element;
                let step = self.step(RowStepKind::Constant(expected::bits(element, *number)), element)?;
                return self.hold(operation.results[0], step);
            }
            OpKind::Softmax { axis } => {
                require(*axis as usize + 1 == self.rank(operation.operands[0]), || "another axis".into())?;
                let last = expected::softmax(self, operation.operands[0], operation.results[0])?;
                return self.hold(operation.results[0], last);
            }
            OpKind::LayerNorm { eps } => {
                let last = expected::layer_norm(self, &operation.operands, *eps, operation.results[0])?;
                return self.hold(operation.results[0], last);
            }
            OpKind::Reduce { kind, axes, .. } => {
                let result = operation.results[0];
                let step = self.step(RowStepKind::Reduce(*kind), self.module.ty(result).element)?;
                self.reduces(step, operation.operands[0], result, axes)?;
                return self.hold(result, step);
            }
            _ => {}
        }
        let result = operation.results[0];
        let kind = expected::kind(self.module, op).ok_or("no row kernel computes it")?;
        let step = self.step(kind, self.module.ty(result).element)?;
        let found = self.plan.program.steps[step].operands.len();
        require(found == operation.operands.len(), || "another number of operands".into())?;
        for (position, operand) in operation.operands.iter().enumerate() {
            if matches!(operation.kind, OpKind::BlockDequantize { .. }) && position == 1 {
                self.scales(step, op)?;
            } else {
                self.reads(step, position, *operand, result)?;
            }
        }
        self.hold(result, step)
    }

    /// Takes the next step, which must be this one.
    fn step(&mut self, kind: RowStepKind, element: fourfold_ir::ElementType) -> Result<usize, String> {
        let step = self.plan.program.steps.get(self.next).ok_or("its step is missing")?;
        require(step.kind == kind && step.element == element, || {
            format!("step {} is {:?} to {}, not {kind:?} to {element}", self.next, step.kind, step.element)
        })?;
        self.next += 1;
        Ok(self.next - 1)
    }

    /// States that a step computes a value, and compares the number of elements.
    fn hold(&mut self, value: Value, step: usize) -> Checked {
        let step_shape = self.plan.program.steps[step].shape;
        let is_constant = matches!(self.plan.program.steps[step].kind, RowStepKind::Constant(_));
        for sample in self.samples.iter().filter(|_| !is_constant) {
            let count = sample.dims(&self.module.ty(value).shape).map(|dims| dims.iter().product::<u64>());
            require(count == sample.count(step_shape), || format!("it is no {step_shape}"))?;
        }
        self.held.insert(value, Held { of: RowRef::Step(step), origin: value, moves: Vec::new() });
        Ok(())
    }

    fn alias(&mut self, op: Op) -> Checked {
        let operation = &self.module.ops[op];
        let (operand, result) = (operation.operands[0], operation.results[0]);
        let held = match self.held.get(&operand) {
            Some(held) => held.clone(),
            None => {
                // An operand of the kernel: its users, or the output, state which.
                let of = self.plan.operands.iter().position(|input| input.value == operand);
                let of = RowRef::Operand(of.ok_or("its operand is not read")?);
                Held { of, origin: operand, moves: Vec::new() }
            }
        };
        let moves = std::iter::once(op).chain(held.moves).collect();
        self.held.insert(result, Held { moves, ..held });
        Ok(())
    }

    /// Checks that a step's operand is a value, broadcast to the result.
    fn reads(&self, step: usize, position: usize, value: Value, result: Value) -> Checked {
        let of = self.plan.program.steps[step].operands[position];
        let shape = self.plan.program.steps[step].shape;
        let held = self.held.get(&value);
        let (origin, moves) = match held {
            Some(held) => {
                let same = held.of == of || self.is_operand_of(of, held);
                require(same, || format!("step {step} does not read %{}", self.module.name_of(value)))?;
                (held.origin, &held.moves[..])
            }
            None => {
                require(self.is_value(of, value), || {
                    format!("step {step} does not read %{}", self.module.name_of(value))
                })?;
                (value, &[][..])
            }
        };
        if self.is_uniform(of) {
            return Ok(());
        }
        for sample in &self.samples {
            let dims =
                |value: Value| sample.dims(&self.module.ty(value).shape).ok_or("an extent is too large");
            let (of_result, of_value) = (dims(result)?, dims(value)?);
            for (row, column) in sample.positions() {
                let at = coordinates(&of_result, sample.element(shape, row, column));
                let mut meant = broadcast_element(&of_value, &at).ok_or("its rank is too small")?;
                for moved in moves {
                    meant = self.before(sample, *moved, meant)?;
                }
                let found = self.element(sample, of, row, column);
                require(found == Some(meant), || {
                    let name = self.module.name_of(origin);
                    format!(
                        "at row {row} and column {column}, it reads element {found:?} of %{name}, not {meant}"
                    )
                })?;
            }
        }
        Ok(())
    }

    /// The element of a move's operand that an element of its result is.
    fn before(&self, sample: &Sample, op: Op, element: u64) -> Result<u64, String> {
        let operation = &self.module.ops[op];
        if operation.kind == OpKind::Reshape {
            return Ok(element);
        }
        let dims = |value: Value| sample.dims(&self.module.ty(value).shape).ok_or("an extent is too large");
        let at = coordinates(&dims(operation.results[0])?, element);
        broadcast_element(&dims(operation.operands[0])?, &at).ok_or("its rank is too small".into())
    }

    fn element(&self, sample: &Sample, of: RowRef, row: u64, column: u64) -> Option<u64> {
        match of {
            RowRef::Operand(operand) => {
                let shape = self.plan.program.operands[operand].shape;
                sample.operand(&self.plan.operands[operand], shape, row, column)
            }
            RowRef::Step(step) => Some(sample.element(self.plan.program.steps[step].shape, row, column)),
        }
    }

    fn is_value(&self, of: RowRef, value: Value) -> bool {
        matches!(of, RowRef::Operand(operand) if self.plan.operands[operand].value == value)
    }

    /// Returns whether an operand is the origin of a value that is held as another operand, for another place.
    fn is_operand_of(&self, of: RowRef, held: &Held) -> bool {
        matches!(held.of, RowRef::Operand(_)) && self.is_value(of, held.origin)
    }

    fn is_uniform(&self, of: RowRef) -> bool {
        matches!(of, RowRef::Step(step) if matches!(self.plan.program.steps[step].kind, RowStepKind::Constant(_)))
    }

    fn rank(&self, value: Value) -> usize {
        self.module.ty(value).rank()
    }

    /// Checks that a reduction combines, for each element of the result, the elements of the operand that the op means.
    fn reduces(&self, step: usize, operand: Value, result: Value, axes: &[u32]) -> Checked {
        let reduction = &self.plan.program.steps[step];
        require(reduction.shape == RowShape::Column && reduction.operands.len() == 1, || {
            "no reduction".into()
        })?;
        self.matrix(reduction.operands[0], operand)?;
        for sample in &self.samples {
            let dims =
                |value: Value| sample.dims(&self.module.ty(value).shape).ok_or("an extent is too large");
            let (of_operand, of_result) = (dims(operand)?, dims(result)?);
            let kept = of_operand.iter().enumerate().filter(|(axis, _)| !axes.contains(&(*axis as u32)));
            let kept: Vec<u64> = kept.map(|(_, extent)| *extent).collect();
            let count: u64 = of_result.iter().product();
            require(count == sample.rows, || "another number of rows".into())?;
            for (row, column) in sample.positions() {
                let at = coordinates(&of_operand, row * sample.k + column);
                let rest = at.iter().enumerate().filter(|(axis, _)| !axes.contains(&(*axis as u32)));
                let rest: Vec<u64> = rest.map(|(_, at)| *at).collect();
                let meant = kept.iter().zip(&rest).fold(0, |element, (extent, at)| element * extent + at);
                require(meant == row, || format!("row {row} is reduced to element {meant}"))?;
            }
        }
        Ok(())
    }

    /// Checks that an operand or step is all elements of a value.
    fn matrix(&self, of: RowRef, value: Value) -> Checked {
        let name = || self.module.name_of(value);
        let origin = match self.held.get(&value) {
            Some(held) => {
                require(held.of == of || self.is_operand_of(of, held), || {
                    format!("%{} is not read", name())
                })?;
                held.moves.iter().all(|op| self.module.ops[*op].kind == OpKind::Reshape)
            }
            None => self.is_value(of, value),
        };
        let shape = self.plan.program.shape(of);
        let is_whole = match of {
            RowRef::Operand(operand) => self.plan.operands[operand].repeat.is_none(),
            RowRef::Step(_) => true,
        };
        let counts = self.samples.iter().all(|sample| {
            let count = sample.dims(&self.module.ty(value).shape).map(|dims| dims.iter().product());
            count == sample.count(RowShape::Matrix)
        });
        require(origin && is_whole && shape == RowShape::Matrix && counts, || {
            format!("%{} is not read as a matrix", name())
        })
    }

    fn scales(&self, step: usize, op: Op) -> Checked {
        let OpKind::BlockDequantize { block } = self.module.ops[op].kind else { return Ok(()) };
        let value = self.module.ops[op].operands[1];
        let of = self.plan.program.steps[step].operands[1];
        let layout = self.module.ty(value).layout;
        let shape = layout.map(|layout| RowShape::Scales { block, layout });
        let fits = self.is_value(of, value) && Some(self.plan.program.shape(of)) == shape;
        require(fits, || "its scales are not read".into())?;
        // Linear scales lie row after row, whatever L and M are.
        match layout {
            Some(ScaleLayout::Blocked) => self.lm(self.module.ops[op].operands[0]),
            _ => Ok(()),
        }
    }

    /// Checks that L and M are those of a value.
    fn lm(&self, value: Value) -> Checked {
        let shape = &self.module.ty(value).shape;
        for sample in &self.samples {
            let dims = sample.dims(shape).ok_or("an extent is too large")?;
            let plan = sample
                .dims(&[self.plan.batch.clone(), self.plan.m.clone()])
                .ok_or("an extent is too large")?;
            let m = if dims.len() < 2 { 1 } else { dims[dims.len() - 2] };
            let l = dims.iter().rev().skip(2).product();
            require(plan == [l, m] && dims.last() == Some(&sample.k), || "L, M or K is another".into())?;
        }
        Ok(())
    }

    fn outputs(&mut self) -> Checked {
        let plan = self.plan;
        let (mut outputs, mut written) = (plan.program.outputs.iter(), Vec::new());
        for op in &plan.ops {
            let operation = &self.module.ops[*op];
            if let OpKind::BlockQuantize { .. } = operation.kind {
                let output = outputs.next().ok_or("an output is missing")?;
                expected::quantized(self, *op, output)?;
                written.extend(&operation.results);
                continue;
            }
            for result in operation.results.clone() {
                if self.is_written(result) {
                    let output = outputs.next().ok_or("an output is missing")?;
                    self.value(result, *output)?;
                    written.push(result);
                }
            }
        }
        require(outputs.next().is_none() && written == plan.written, || "other values are written".into())
    }

    fn is_written(&self, value: Value) -> bool {
        let users = self.program.facts().users(value);
        let outside = users.iter().any(|user| !self.segment.ops.contains_sorted(*user));
        self.program.facts().is_output(value) || users.is_empty() || outside
    }

    /// Checks that an output writes a value, perhaps through a step that repeats its elements.
    fn value(&mut self, value: Value, output: RowOutput) -> Checked {
        require(output.kind == RowOutputKind::Value, || "a value is quantized".into())?;
        let element = self.module.ty(value).element;
        let held = self.held.get(&value).cloned().ok_or("an unknown value is written")?;
        let step = match output.of {
            RowRef::Step(step) if RowRef::Step(step) != held.of && step == self.next => {
                self.step(RowStepKind::Convert, element)?;
                self.reads(step, 0, value, value)?;
                step
            }
            RowRef::Step(step) if held.of == RowRef::Step(step) && self.keep(&held.moves, step) => step,
            _ => return Err(format!("another value is written as %{}", self.module.name_of(value))),
        };
        let shape = self.plan.program.steps[step].shape;
        let counts = self.samples.iter().all(|sample| {
            let count = sample.dims(&self.module.ty(value).shape).map(|dims| dims.iter().product());
            count == sample.count(shape)
        });
        require(counts, || format!("%{} is no {shape}", self.module.name_of(value)))
    }

    /// Returns whether moves keep the place of each element of a step.
    fn keep(&self, moves: &[Op], step: usize) -> bool {
        let shape = self.plan.program.steps[step].shape;
        self.samples.iter().all(|sample| {
            sample.positions().into_iter().all(|(row, column)| {
                let element = sample.element(shape, row, column);
                let before = moves.iter().try_fold(element, |element, op| self.before(sample, *op, element));
                before == Ok(element)
            })
        })
    }

    fn limits(&self, rules: &RowCapability) -> Checked {
        let plan = self.plan;
        let repeats = plan.program.operands.iter().filter(|operand| operand.repeats).count();
        let steps =
            plan.program.steps.iter().filter(|step| !matches!(step.kind, RowStepKind::Constant(_))).count();
        // A step that repeats a value for its output is not counted.
        let most_steps = rules.max_steps + rules.max_outputs;
        require(plan.program.operands.len() <= rules.max_operands, || "too many operands".into())?;
        require(repeats <= rules.max_repeats && steps <= most_steps, || "too many steps or repeats".into())?;
        require(plan.written.len() <= rules.max_outputs.max(2), || "too many outputs".into())?;
        for op in &plan.ops {
            expected::supported(self.module, rules, *op)?;
        }
        Ok(())
    }
}

fn constraints(rules: Option<&RowCapability>, plan: &RowPlan) -> Vec<Constraint> {
    let Some(rules) = rules else { return Vec::new() };
    let mut needed = Vec::new();
    let rows = plan.batch.times(&plan.m).unwrap_or(Dim::fixed(u64::MAX));
    for (name, dim) in [("L*M", rows), ("K", plan.k.clone())] {
        if known(&dim).is_none_or(|extent| extent > rules.max_extent) {
            needed.push(Constraint::AtMost { name, dim, limit: rules.max_extent });
        }
    }
    let of_outputs = plan.program.outputs.iter().filter_map(|output| match output.kind {
        RowOutputKind::Quantized { format, .. } => Some(format.block),
        RowOutputKind::Value => None,
    });
    let of_operands = plan.program.operands.iter().filter_map(|operand| match operand.shape {
        RowShape::Scales { block, .. } => Some(block),
        _ => None,
    });
    for block in of_outputs.chain(of_operands) {
        let bytes = [&plan.batch, &plan.m, &plan.k].map(known);
        let fits = match bytes {
            [Some(l), Some(m), Some(k)] => {
                let columns = u128::from(k.div_ceil(u64::from(block)).next_multiple_of(4));
                u128::from(m.next_multiple_of(128)) * columns * u128::from(l)
                    <= u128::from(rules.max_scale_bytes)
            }
            _ => false,
        };
        let constraint = Constraint::ScaleBytes {
            name: "a block-scaled tensor",
            matrices: plan.batch.clone(),
            rows: plan.m.clone(),
            k: plan.k.clone(),
            block,
            limit: rules.max_scale_bytes,
        };
        if !fits && !needed.contains(&constraint) {
            needed.push(constraint);
        }
    }
    needed
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

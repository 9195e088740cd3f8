//! Matches the steps and operands of a kernel's epilogue against the ops.

use std::collections::HashSet;

use fourfold_ir::{
    ConstantValue, Dim, ElementType, FormatCapability, OpKind, OperandCapability, OperandShape,
    OutputCapability, TensorType, Value, scalar,
};

use super::kernel::Checker;
use super::{known, may_divide};
use crate::plan::{EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, OutputKind};

impl<'a> Checker<'a> {
    /// Follows the steps from the root's result. Returns the values inside: the root's result, or the even columns of a
    /// pair, then one value per step.
    pub(super) fn epilogue(&mut self) -> Option<Vec<Value>> {
        let (plan, module) = (self.plan, self.module);
        let root = self.halves()?.0;
        let d_shape = &module.ty(root).shape;
        self.field("accumulator", &plan.accumulator, &module.ty(module.ops[plan.root].results[0]).element);
        let mut inside = vec![root];
        for (position, step) in plan.epilogue.iter().enumerate() {
            let [result] = module.ops[step.op].results[..] else {
                self.shape(format!("{} does not have exactly one result", step.op));
                return None;
            };
            if self.step_operands(&inside[1..], root, step).as_deref() != Some(&module.ops[step.op].operands)
            {
                self.shape(format!("step {position} does not have the operands of {}", step.op));
            }
            if !self.is_kind(step, result) {
                self.shape(format!("{} is not {:?}", step.op, step.kind));
            }
            let constant = matches!(step.kind, EpilogueKind::Constant { .. });
            if !constant && module.ty(result).shape != *d_shape {
                self.shape(format!("{} changes the shape", step.op));
            }
            self.field("element", &step.element, &module.ty(result).element);
            inside.push(result);
        }
        self.read(&inside);
        Some(inside)
    }

    /// Checks the operands: each external value once, first those of the steps, then those of the outputs, in
    /// order of use.
    fn read(&mut self, inside: &[Value]) {
        let plan = self.plan;
        let inside: HashSet<Value> = inside.iter().copied().chain(self.odd()).collect();
        let mut expected: Vec<Value> = Vec::new();
        let steps = plan.epilogue.iter().flat_map(|step| &self.module.ops[step.op].operands);
        let global_scales = plan.outputs.iter().filter_map(|output| match output.kind {
            OutputKind::Quantized { op, .. } => self.module.ops[op].operands.get(1),
            OutputKind::Value { .. } | OutputKind::Reduced { .. } => None,
        });
        for value in steps.chain(global_scales) {
            if !inside.contains(value) && !expected.contains(value) {
                expected.push(*value);
            }
        }
        let found: Vec<Value> = plan.operands.iter().map(|operand| operand.value).collect();
        self.field("operands", &found, &expected);
    }

    /// The values that the plan names as the operands of a step; `None` for a dangling reference.
    fn step_operands(&self, before: &[Value], root: Value, step: &EpilogueStep) -> Option<Vec<Value>> {
        let value = |reference: &EpilogueRef| match reference {
            EpilogueRef::Accumulator => Some(root),
            EpilogueRef::Odd => self.odd(),
            EpilogueRef::Step(step) => before.get(*step).copied(),
            EpilogueRef::Operand(operand) => self.plan.operands.get(*operand).map(|operand| operand.value),
        };
        step.operands.iter().map(value).collect()
    }

    fn is_kind(&self, step: &EpilogueStep, result: Value) -> bool {
        match (&step.kind, &self.module.ops[step.op].kind) {
            (EpilogueKind::Constant { bits }, OpKind::Constant(ConstantValue::Splat(number))) => {
                let element = self.module.ty(result).element;
                let number = scalar::round_to(element, *number);
                let planned = f32::from_bits(*bits);
                let same = f64::from(planned).to_bits() == number.to_bits();
                element.is_arithmetic() && (same || (planned.is_nan() && number.is_nan()))
            }
            (EpilogueKind::Unary(planned), OpKind::Unary(kind)) => planned == kind,
            (EpilogueKind::Binary(planned), OpKind::Binary(kind)) => planned == kind,
            (EpilogueKind::Clamp { min, max }, OpKind::Clamp { min: low, max: high }) => {
                [min, max].map(|bound| bound.to_bits()) == [low, high].map(|bound| bound.to_bits())
            }
            (EpilogueKind::Compare(planned), OpKind::Compare(predicate)) => planned == predicate,
            (EpilogueKind::Select, OpKind::Select) | (EpilogueKind::Convert, OpKind::Convert) => true,
            _ => false,
        }
    }

    /// Checks the epilogue against the target's rules.
    pub(super) fn epilogue_capability(&mut self, rules: &FormatCapability, d: &TensorType) {
        let plan = self.plan;
        let epilogue = &rules.epilogue;
        let mut booleans = HashSet::new();
        let mut narrow = HashSet::new();
        let mut counted = 0;
        for (position, step) in plan.epilogue.iter().enumerate() {
            let has = match step.kind {
                EpilogueKind::Constant { .. } | EpilogueKind::Convert => true,
                EpilogueKind::Unary(kind) => epilogue.unary.contains(&kind),
                EpilogueKind::Binary(kind) => epilogue.binary.contains(&kind),
                EpilogueKind::Clamp { .. } => epilogue.clamp,
                EpilogueKind::Compare(_) | EpilogueKind::Select => epilogue.select,
            };
            self.rule(has, || format!("{:?} is not supported", step.kind));
            counted += usize::from(!matches!(step.kind, EpilogueKind::Constant { .. }));
            if step.element == ElementType::I1 {
                booleans.insert(position);
                let compares = matches!(step.kind, EpilogueKind::Compare(_));
                self.rule(compares, || format!("step {position} produces i1 without a comparison"));
            } else {
                let rounds = epilogue.elements.contains(&step.element);
                self.rule(rounds, || format!("rounding to {} is not supported", step.element));
            }
            if [ElementType::F8E4M3FN, ElementType::F8E5M2].contains(&step.element) {
                narrow.insert(position);
                self.rule(step.kind == EpilogueKind::Convert, || {
                    format!("step {position} produces FP8 without a convert")
                });
            }
            for (operand, reference) in step.operands.iter().enumerate() {
                let widens = step.kind == EpilogueKind::Convert && !narrow.contains(&position);
                let of_narrow = matches!(reference, EpilogueRef::Step(step) if narrow.contains(step));
                self.rule(!of_narrow || widens, || {
                    format!("step {position} reads FP8, but is not a widening convert")
                });
                let boolean = matches!(reference, EpilogueRef::Step(step) if booleans.contains(step));
                let chooses = step.kind == EpilogueKind::Select && operand == 0;
                self.rule(boolean == chooses, || format!("step {position} misuses i1 in operand {operand}"));
            }
        }
        self.rule(counted <= epilogue.max_steps, || {
            format!("{counted} steps exceed the limit of {}", epilogue.max_steps)
        });
        for shape in OperandShape::ALL {
            let count = plan.operands.iter().filter(|operand| operand.shape == shape).count();
            let most = epilogue.operand(shape).map_or(0, |rule| rule.most);
            self.rule(count <= most, || format!("{count} {shape} operands exceed the limit of {most}"));
        }
        for operand in &plan.operands {
            self.operand(operand, epilogue.operand(operand.shape), d);
        }
    }

    fn operand(&mut self, operand: &EpilogueOperand, rules: Option<&OperandCapability>, d: &TensorType) {
        let Some(value) = self.module.values.get(operand.value) else {
            return self.shape("an operand of the epilogue does not exist");
        };
        let ty = &value.ty;
        self.field("operand element", &operand.element, &ty.element);
        let rule = rules.and_then(|rules| rules.elements.iter().find(|rule| rule.element == ty.element));
        self.rule(rule.is_some(), || {
            format!("a {} operand of type {} is not supported", operand.shape, ty.element)
        });
        let n = self.plan.columns();
        self.rule(rule.is_none_or(|rule| may_divide(n, rule.n_multiple)), || {
            format!("N is not aligned for a {} operand", ty.element)
        });
        let fits = ty.layout.is_none() && lies(&ty.shape, &d.shape, operand.shape);
        self.rule(fits, || format!("{} does not broadcast to D as a {}", operand.value, operand.shape));
    }

    /// The target's rules for N of the operands that the epilogue reads.
    pub(super) fn read_rules<'b>(&self, rules: &'b FormatCapability) -> Vec<&'b OutputCapability>
    where
        'a: 'b,
    {
        let rule = |operand: &EpilogueOperand| {
            let allowed = rules.epilogue.operands.iter().find(|rule| rule.shape == operand.shape)?;
            allowed.elements.iter().find(|rule| rule.element == operand.element)
        };
        self.plan.operands.iter().filter_map(rule).collect()
    }
}

/// Returns whether `shape` broadcasts to D as `class`: padded with ones on the left to D's rank, it is 1
/// along the broadcast axes and D's extent along the others.
fn lies(shape: &[Dim], d: &[Dim], class: OperandShape) -> bool {
    let is_one = |dim: &Dim| known(dim) == Some(1);
    let Some(missing) = d.len().checked_sub(shape.len()) else { return false };
    let fits = |repeated: &dyn Fn(usize) -> bool| {
        d.iter().enumerate().all(|(axis, extent)| {
            let own = axis.checked_sub(missing).map(|axis| &shape[axis]);
            match own {
                Some(own) if repeated(axis) => is_one(own),
                Some(own) => own == extent,
                None => repeated(axis) || is_one(extent),
            }
        })
    };
    let last = d.len().saturating_sub(1);
    match class {
        OperandShape::Scalar => fits(&|_| true),
        OperandShape::Row => fits(&|axis| axis < last),
        OperandShape::Column => fits(&|axis| axis == last),
        OperandShape::Matrix => fits(&|_| false),
    }
}

//! Gives ops to kernels, in one pass over the program.
//!
//! A kernel runs as a whole, so that no path may leave it and return. Every op has a *stage* for that: an op outside
//! kernels has the largest stage of its operands (inputs have 0), and a kernel has a larger one than anything that it
//! reads. Along a use the stage never falls, and into a kernel it rises: a path that left a kernel would come back to it
//! at a higher stage than its own. Hence an op joins a kernel only when whatever it reads besides has a lower stage.
//! The stage of a kernel may be raised for that as long as nothing outside has used a value of the kernel, because no
//! other stage was computed from it.
//!
//! When a kernel is trimmed afterwards ([`crate::trim`]), an op leaves together with what uses it inside, and is
//! outside with the stage that it had: what it reads has at most that stage, and what reads it was placed no lower.

use std::collections::HashMap;

use fourfold_ir::{Capabilities, Entity, Op, OpKind, OperandShape, Program, Value};

use crate::legality::check_legal;
use crate::properties::is_sink;
use crate::reason::Rejection;
use crate::root::{Root, accept};

/// What may run together with a `scaled_mma`.
pub(crate) struct Grown<'a> {
    pub(crate) root: Root<'a>,
    /// The `scaled_mma`, then what follows it, in program order.
    pub(crate) ops: Vec<Op>,
}

/// What came of a program.
pub(crate) struct Growth<'a> {
    /// In the order of their roots.
    pub(crate) kernels: Vec<Grown<'a>>,
    /// Why nothing grew from the others.
    pub(crate) rejected_roots: HashMap<Op, Rejection>,
    /// The operand that kept an op from joining the kernel of a root, because it comes too late.
    pub(crate) late: HashMap<(Op, Op), Value>,
}

/// Grows a kernel from each `scaled_mma` that the target takes and that is not known to have none.
pub(crate) fn grow<'a>(
    program: &'a Program,
    capabilities: &'a Capabilities,
    mut rejected_roots: HashMap<Op, Rejection>,
) -> Growth<'a> {
    let module = program.module();
    let mut grower = Grower {
        program,
        kernels: Vec::new(),
        places: vec![Place::Outside { stage: 0 }; module.ops.len()],
        late: HashMap::new(),
    };
    for (op, operation) in module.ops.iter() {
        match operation.kind {
            OpKind::ScaledMma(_) if rejected_roots.contains_key(&op) => grower.leave_outside(op),
            OpKind::ScaledMma(_) => match accept(program, capabilities, op) {
                Ok(root) => grower.begin(root),
                Err(rejection) => {
                    rejected_roots.insert(op, rejection);
                    grower.leave_outside(op);
                }
            },
            _ if grower.candidates(op).into_iter().any(|kernel| grower.join(op, kernel)) => {}
            _ => grower.leave_outside(op),
        }
    }
    let Grower { kernels, late, .. } = grower;
    let kernels = kernels.into_iter().map(|Growing { root, ops, .. }| Grown { root, ops }).collect();
    Growth { kernels, rejected_roots, late }
}

/// Where an op is.
#[derive(Clone, Copy)]
enum Place {
    Outside { stage: usize },
    Kernel(usize),
}

struct Growing<'a> {
    root: Root<'a>,
    ops: Vec<Op>,
    stage: usize,
    /// Whether something outside uses a value of it.
    used: bool,
    steps: usize,
    /// Tensors that its sinks write.
    written: usize,
    /// Splat constants not counted.
    operands: Vec<(Value, OperandShape)>,
}

struct Grower<'a> {
    program: &'a Program,
    kernels: Vec<Growing<'a>>,
    /// By op.
    places: Vec<Place>,
    late: HashMap<(Op, Op), Value>,
}

impl<'a> Grower<'a> {
    fn begin(&mut self, root: Root<'a>) {
        let stage = 1 + self.stage_above(root.op);
        self.use_operands(root.op, None);
        self.places[root.op.index()] = Place::Kernel(self.kernels.len());
        let (op, operands) = (root.op, Vec::new());
        let kernel = Growing { root, ops: vec![op], stage, used: false, steps: 0, written: 0, operands };
        self.kernels.push(kernel);
    }

    fn leave_outside(&mut self, op: Op) {
        let stage = self.stage_above(op);
        self.use_operands(op, None);
        self.places[op.index()] = Place::Outside { stage };
    }

    /// The kernels that compute an operand, the latest first.
    fn candidates(&self, op: Op) -> Vec<usize> {
        let operands = self.program.module().ops[op].operands.iter();
        let mut kernels: Vec<usize> = operands.filter_map(|operand| self.computed_in(*operand)).collect();
        kernels.sort_unstable_by(|one, other| other.cmp(one));
        kernels.dedup();
        kernels
    }

    /// Adds an op to a kernel, when the kernel takes it and has room for it.
    fn join(&mut self, op: Op, kernel: usize) -> bool {
        let module = self.program.module();
        let growing = &self.kernels[kernel];
        let inside = |value| self.computed_in(value) == Some(kernel);
        let epilogue = &growing.root.capability.epilogue;
        let sink = is_sink(&module.ops[op].kind);
        let (steps, written) = match sink {
            true => (growing.steps, growing.written + module.ops[op].results.len()),
            false => (growing.steps + 1, growing.written),
        };
        if epilogue.max_steps < steps || epilogue.max_outputs < written {
            return false;
        }
        let Ok(mut reads) = check_legal(self.program, &growing.root, op, inside) else { return false };
        // A result of the kernel that is complete only after it.
        let own = |operand: &Value| !inside(*operand) && self.kernel_of(*operand) == Some(kernel);
        if module.ops[op].operands.iter().any(own) {
            return false;
        }
        let latest = reads.iter().map(|(value, _)| (self.stage(*value), *value)).max();
        let above = latest.map_or(0, |(stage, _)| stage + 1);
        if let Some((_, value)) = latest
            && growing.used
            && growing.stage < above
        {
            self.late.insert((op, growing.root.op), value);
            return false;
        }
        reads.retain(|read| !growing.operands.contains(read));
        reads.sort_unstable();
        reads.dedup();
        let has_room = |shape| {
            let of_shape = |read: &&(Value, OperandShape)| read.1 == shape;
            let count = growing.operands.iter().chain(&reads).filter(of_shape).count();
            count <= epilogue.operand(shape).map_or(0, |rule| rule.most)
        };
        if !reads.iter().all(|(_, shape)| has_room(*shape)) {
            return false;
        }
        self.use_operands(op, Some(kernel));
        self.places[op.index()] = Place::Kernel(kernel);
        let growing = &mut self.kernels[kernel];
        growing.stage = growing.stage.max(above);
        growing.operands.extend(reads);
        (growing.steps, growing.written) = (steps, written);
        growing.ops.push(op);
        true
    }

    fn kernel_of(&self, value: Value) -> Option<usize> {
        let op = self.program.module().defining_op(value)?;
        match self.places[op.index()] {
            Place::Kernel(kernel) => Some(kernel),
            Place::Outside { .. } => None,
        }
    }

    /// The kernel in which a value is there for other ops.
    fn computed_in(&self, value: Value) -> Option<usize> {
        let module = self.program.module();
        let op = module.defining_op(value)?;
        if is_sink(&module.ops[op].kind) { None } else { self.kernel_of(value) }
    }

    fn stage(&self, value: Value) -> usize {
        match self.program.module().defining_op(value).map(|op| self.places[op.index()]) {
            None => 0,
            Some(Place::Outside { stage }) => stage,
            Some(Place::Kernel(kernel)) => self.kernels[kernel].stage,
        }
    }

    fn stage_above(&self, op: Op) -> usize {
        let operands = self.program.module().ops[op].operands.iter();
        operands.map(|operand| self.stage(*operand)).max().unwrap_or(0)
    }

    /// Notes that an op in this kernel, or in none, uses values of others.
    fn use_operands(&mut self, op: Op, by: Option<usize>) {
        for operand in &self.program.module().ops[op].operands {
            if let Some(kernel) = self.kernel_of(*operand).filter(|kernel| Some(*kernel) != by) {
                self.kernels[kernel].used = true;
            }
        }
    }
}

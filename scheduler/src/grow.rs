//! Assigns ops to kernels in one pass over the program.
//!
//! A kernel runs as a whole, so no path may leave it and return. Every op has a *stage* to ensure this:
//! - An op outside kernels has the largest stage of its operands; inputs have stage 0.
//! - A kernel has a larger stage than everything it reads.
//!
//! Along a use the stage never decreases, and a use by a kernel increases it. A path that left a kernel would therefore
//! return at a higher stage than the kernel's own. Hence an op joins a kernel only if its other operands have a lower
//! stage. The kernel's stage may be raised to admit an op until something outside uses a value of the kernel, because
//! no other stage depends on it until then.
//!
//! Trimming ([`crate::trim`]) removes an op together with its users inside the kernel. A removed op keeps the
//! kernel's stage. Its operands have at most that stage, and its users were placed no lower.

use std::collections::{HashMap, HashSet};

use fourfold_ir::{Capabilities, Entity, Op, OpKind, OperandShape, Program, Value};

use crate::legality::check_legal;
use crate::properties::is_sink;
use crate::quantize::is_faster_alone;
use crate::reason::Rejection;
use crate::root::{Root, accept};

/// A `scaled_mma` and the ops that may join its kernel.
pub(crate) struct Grown<'a> {
    pub(crate) root: Root<'a>,
    /// The root, then the ops that follow it, in program order, without those that take the halves of a pair.
    pub(crate) ops: Vec<Op>,
}

/// The result of growing every kernel of a program.
pub(crate) struct Growth<'a> {
    /// In the order of their roots.
    pub(crate) kernels: Vec<Grown<'a>>,
    /// The reasons why the other roots have no kernel.
    pub(crate) rejected_roots: HashMap<Op, Rejection>,
    /// By op and root: the operand that kept the op from joining the kernel, because it is computed too late.
    pub(crate) late: HashMap<(Op, Op), Value>,
}

/// Grows a kernel from each `scaled_mma` that the target accepts, except those already in `rejected_roots`. Those of
/// `unpaired` do not pair columns.
pub(crate) fn grow<'a>(
    program: &'a Program,
    capabilities: &'a Capabilities,
    mut rejected_roots: HashMap<Op, Rejection>,
    unpaired: &HashSet<Op>,
) -> Growth<'a> {
    let module = program.module();
    let mut grower = Grower {
        program,
        capabilities,
        kernels: Vec::new(),
        places: vec![Place::Outside { stage: 0 }; module.ops.len()],
        halves: HashMap::new(),
        late: HashMap::new(),
    };
    for (op, operation) in module.ops.iter() {
        match operation.kind {
            OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_) if rejected_roots.contains_key(&op) => {
                grower.leave_outside(op);
            }
            OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_) => match accept(program, capabilities, op) {
                Ok(root) if unpaired.contains(&op) => grower.begin(Root { pair: None, ..root }),
                Ok(root) => grower.begin(root),
                Err(rejection) => {
                    rejected_roots.insert(op, rejection);
                    grower.leave_outside(op);
                }
            },
            _ if grower.halves.contains_key(&op) => {
                grower.places[op.index()] = Place::Kernel(grower.halves[&op]);
            }
            _ if grower.candidates(op).into_iter().any(|kernel| grower.join(op, kernel)) => {}
            _ => grower.leave_outside(op),
        }
    }
    let Grower { kernels, late, .. } = grower;
    let kernels = kernels.into_iter().map(|Growing { root, ops, .. }| Grown { root, ops }).collect();
    Growth { kernels, rejected_roots, late }
}

/// The position of an op: outside kernels, or in one.
#[derive(Clone, Copy)]
enum Place {
    Outside { stage: usize },
    Kernel(usize),
}

struct Growing<'a> {
    root: Root<'a>,
    ops: Vec<Op>,
    stage: usize,
    /// True once an op outside uses a value of the kernel.
    used: bool,
    steps: usize,
    /// The number of tensors that its sinks write.
    written: usize,
    /// External operands, without splat constants.
    operands: Vec<(Value, OperandShape)>,
}

struct Grower<'a> {
    program: &'a Program,
    capabilities: &'a Capabilities,
    kernels: Vec<Growing<'a>>,
    /// By op.
    places: Vec<Place>,
    /// By op: the kernel that reads its result as half of a product.
    halves: HashMap<Op, usize>,
    late: HashMap<(Op, Op), Value>,
}

impl<'a> Grower<'a> {
    fn begin(&mut self, root: Root<'a>) {
        let stage = 1 + self.stage_above(root.op);
        self.use_operands(root.op, None);
        self.places[root.op.index()] = Place::Kernel(self.kernels.len());
        let halves = root.pair.into_iter().flat_map(|pair| pair.ops);
        self.halves.extend(halves.map(|half| (half, self.kernels.len())));
        let (op, operands) = (root.op, Vec::new());
        let kernel = Growing { root, ops: vec![op], stage, used: false, steps: 0, written: 0, operands };
        self.kernels.push(kernel);
    }

    fn leave_outside(&mut self, op: Op) {
        let stage = self.stage_above(op);
        self.use_operands(op, None);
        self.places[op.index()] = Place::Outside { stage };
    }

    /// The kernels that compute an operand of the op, the latest first.
    fn candidates(&self, op: Op) -> Vec<usize> {
        let operands = self.program.module().ops[op].operands.iter();
        let mut kernels: Vec<usize> = operands.filter_map(|operand| self.computed_in(*operand)).collect();
        kernels.sort_unstable_by(|one, other| other.cmp(one));
        kernels.dedup();
        kernels
    }

    /// Adds an op to a kernel if the kernel accepts it and has room.
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
        if !growing.root.quantizes_pairs() && is_faster_alone(self.program, self.capabilities, op) {
            return false;
        }
        let Ok(mut reads) = check_legal(self.program, &growing.root, op, inside) else { return false };
        // A sink's result is complete only after the kernel.
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

    /// The kernel whose other ops can use this value.
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

    /// Marks the kernels whose values this op uses from outside.
    fn use_operands(&mut self, op: Op, by: Option<usize>) {
        for operand in &self.program.module().ops[op].operands {
            if let Some(kernel) = self.kernel_of(*operand).filter(|kernel| Some(*kernel) != by) {
                self.kernels[kernel].used = true;
            }
        }
    }
}

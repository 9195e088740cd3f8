//! Resident values: params, and the values that depend on params and constants only.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold_ir::{Entity, Op, Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::{Partition, Segment, SegmentKind};

use super::{Machine, RunError};
use crate::device::{Buffer, DeviceError};
use crate::fallback;

/// The values of a program that stay the same in every call. They are computed once, on the fallback, and uploaded
/// once.
#[derive(Debug)]
pub(super) struct Residents {
    host: HashMap<Value, Tensor>,
    device: HashMap<Value, Arc<Buffer>>,
    /// By op: true if it depends on params and constants only.
    constant: Vec<bool>,
    /// By segment: true if it has constant ops only.
    skipped: Vec<bool>,
}

impl Residents {
    /// Computes the values that calls need from `params`, which are named and have their values' types.
    ///
    /// # Errors
    /// When an op cannot be computed.
    pub(super) fn compute(
        program: &Program,
        partition: &Partition,
        params: HashMap<Value, Tensor>,
    ) -> Result<Residents, RunError> {
        let constant = program.module().constant_ops();
        let is_constant = |op: &Op| constant[op.index()];
        let skipped: Vec<bool> =
            partition.segments.iter().map(|segment| segment.ops.iter().all(is_constant)).collect();
        let needed = needed(program, partition, &constant, &skipped);
        let mut residents = Residents { host: params, device: HashMap::new(), constant, skipped };
        residents.evaluate(program, partition, &needed)?;
        Ok(residents)
    }

    /// Computes the needed values and those that they depend on, and keeps the needed ones.
    fn evaluate(
        &mut self,
        program: &Program,
        partition: &Partition,
        needed: &[bool],
    ) -> Result<(), RunError> {
        let module = program.module();
        let mut wanted = needed.to_vec();
        let ops: Vec<Op> = module.ops.keys().filter(|op| self.constant[op.index()]).collect();
        let runs =
            |op: &Op, wanted: &[bool]| module.ops[*op].results.iter().any(|result| wanted[result.index()]);
        for op in ops.iter().rev() {
            if runs(op, &wanted) {
                module.ops[*op].operands.iter().for_each(|operand| wanted[operand.index()] = true);
            }
        }
        let symbols = SymbolValues::default();
        for op in ops.into_iter().filter(|op| runs(op, &wanted)) {
            let operation = &module.ops[op];
            let segment = partition.decisions.get(op.index()).map_or(0, |decision| decision.segment);
            let operands: Vec<&Tensor> = operation
                .operands
                .iter()
                .map(|value| {
                    self.host.get(value).ok_or_else(|| RunError::Partition {
                        segment,
                        value: module.name_of(*value).to_owned(),
                    })
                })
                .collect::<Result<_, _>>()?;
            let results = fallback::run_op(program, op, &operands, &symbols)
                .map_err(|source| RunError::Op { op: module.op_label(op), segment, source })?;
            self.host.extend(operation.results.iter().copied().zip(results));
        }
        let is_param = |value: &Value| module.defining_op(*value).is_none();
        self.host.retain(|value, _| is_param(value) || needed[value.index()]);
        Ok(())
    }

    /// Uploads the values that kernels read.
    ///
    /// # Errors
    /// The driver's error. Everything uploaded is freed.
    pub(super) fn upload(&mut self, partition: &Partition, machine: &Machine<'_>) -> Result<(), DeviceError> {
        let mut on_device: HashMap<Value, Arc<Buffer>> = HashMap::new();
        for (position, segment) in partition.segments.iter().enumerate() {
            if self.skipped[position] || segment.plan().is_none() {
                continue;
            }
            for value in &segment.inputs {
                let Some(tensor) = self.host.get(value) else { continue };
                if on_device.contains_key(value) {
                    continue;
                }
                let buffer = machine.device().alloc(tensor.bytes().len())?;
                on_device.insert(*value, Arc::new(buffer));
            }
        }
        let copies: Vec<(&Buffer, usize, &[u8])> =
            on_device.iter().map(|(value, buffer)| (&**buffer, 0, self.host[value].bytes())).collect();
        machine.stream().upload_all(&copies)?;
        self.device = on_device;
        Ok(())
    }

    /// The values on the host.
    pub(super) fn on_host(&self) -> impl Iterator<Item = (Value, &Tensor)> {
        self.host.iter().map(|(value, tensor)| (*value, tensor))
    }

    /// A value on the host.
    pub(super) fn tensor(&self, value: Value) -> Option<&Tensor> {
        self.host.get(&value)
    }

    /// The values on the device.
    pub(super) fn on_device(&self) -> &HashMap<Value, Arc<Buffer>> {
        &self.device
    }

    /// True if a segment has nothing to do in a call.
    pub(super) fn skips_segment(&self, position: usize) -> bool {
        self.skipped.get(position).copied().unwrap_or(false)
    }

    /// True if an op of a segment has nothing to do in a call. `known` tells whether a value is on the host.
    pub(super) fn skips_op(&self, segment: &Segment, op: Op, known: bool) -> bool {
        // A kernel may compute a constant itself, so its value is not resident.
        self.constant[op.index()] && (known || segment.kind == SegmentKind::Fallback)
    }
}

/// By value: true if a constant op computes it, and the rest of the program reads it or the program returns it.
fn needed(program: &Program, partition: &Partition, constant: &[bool], skipped: &[bool]) -> Vec<bool> {
    let module = program.module();
    let mut needed = vec![false; module.values.len()];
    // A kernel that also computes something else writes its constants in every call.
    let is_written = |op: Op| {
        let segment = partition.decisions[op.index()].segment;
        !skipped[segment] && partition.segments[segment].plan().is_some()
    };
    let mut need = |value: Value| {
        if module.defining_op(value).is_some_and(|op| constant[op.index()] && !is_written(op)) {
            needed[value.index()] = true;
        }
    };
    for (segment, _) in partition.segments.iter().zip(skipped).filter(|(_, skipped)| !**skipped) {
        match segment.kind {
            SegmentKind::Kernel(_) => segment.inputs.iter().copied().for_each(&mut need),
            SegmentKind::Fallback => {
                for op in segment.ops.iter().filter(|op| !constant[op.index()]) {
                    module.ops[*op].operands.iter().copied().for_each(&mut need);
                }
            }
        }
    }
    module.outputs.iter().copied().for_each(&mut need);
    needed
}

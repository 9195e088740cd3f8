//! Plans the kernel of a region: its operands, steps, outputs and constraints.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, Op, OpKind, Program, QuantizedFormat, ReduceKind,
    RowCapability, UnaryKind, Value,
};

use super::forming::is_written;
use super::needs::needs;
use super::shapes::{Place, Space};
use crate::geometry::scale_bytes;
use crate::plan::{
    Constraint, RowInput, RowOperand, RowOutput, RowOutputKind, RowPlan, RowProgram, RowRef, RowShape,
    RowStep, RowStepKind,
};

/// The plan of the kernel that computes these ops, which are ascending; `None` if fixed extents exceed a limit.
pub(crate) fn plan_rows(
    program: &Program,
    capability: &RowCapability,
    space: &Space,
    ops: Vec<Op>,
) -> Option<RowPlan> {
    let mut builder = Builder {
        program,
        capability,
        space,
        operands: Vec::new(),
        steps: Vec::new(),
        outputs: Vec::new(),
        written: Vec::new(),
        known: Vec::new(),
        places: Vec::new(),
        matrices: None,
    };
    for op in &ops {
        builder.add(*op)?;
    }
    for op in &ops {
        builder.write(*op, &ops)?;
    }
    let Builder { operands, steps, outputs, written, matrices, .. } = builder;
    let [batch, m] = matrices.unwrap_or([Dim::fixed(1), space.rows.clone()]);
    let (operands, inputs): (Vec<RowOperand>, Vec<RowInput>) = operands.into_iter().unzip();
    let program = RowProgram { operands, steps, outputs };
    let k = space.k.clone();
    let constraints = constraints(capability, &program, [&batch, &m, &k], space)?;
    Some(RowPlan { ops, batch, m, k, program, operands: inputs, written, constraints })
}

struct Builder<'a> {
    program: &'a Program,
    capability: &'a RowCapability,
    space: &'a Space,
    operands: Vec<(RowOperand, RowInput)>,
    steps: Vec<RowStep>,
    outputs: Vec<RowOutput>,
    written: Vec<Value>,
    /// The values that the ops define: few, so that a search is faster than a hash.
    known: Vec<(Value, RowRef)>,
    /// Their places once they are written: a broadcast value has fewer elements until then.
    places: Vec<(Value, RowShape)>,
    /// L and M, if the layout of scales depends on them.
    matrices: Option<[Dim; 2]>,
}

impl Builder<'_> {
    fn add(&mut self, op: Op) -> Option<()> {
        let module = self.program.module();
        let operation = &module.ops[op];
        if operation.kind == OpKind::Reshape {
            let (operand, result) = (operation.operands[0], operation.results[0]);
            self.known.push((result, find(&self.known, operand)?));
            self.places.push((result, find(&self.places, operand)?));
            return Some(());
        }
        if let OpKind::Constant(ConstantValue::Splat(number)) = operation.kind {
            return self.constant(operation.results[0], number);
        }
        let needs = needs(self.program, self.capability, op, self.space)?;
        self.matrices = self.matrices.take().or(needs.matrices);
        let shape = needs.result;
        let read: Vec<RowRef> =
            needs.reads.into_iter().map(|(value, place)| self.reference(value, place)).collect();
        let result = operation.results[0];
        self.places.push((result, shape));
        let element = module.ty(result).element;
        let kind = match operation.kind {
            OpKind::BlockQuantize { .. } => return Some(()),
            OpKind::Broadcast => {
                self.known.push((result, read[0]));
                return Some(());
            }
            OpKind::Softmax { .. } => {
                self.softmax(read[0], element);
                return self.define(result);
            }
            OpKind::LayerNorm { eps } => {
                self.layer_norm(&read, eps, element);
                return self.define(result);
            }
            OpKind::Clamp { min, max } => {
                let operand = module.ty(operation.operands[0]).element;
                RowStepKind::Clamp { lower: bits(operand, min), upper: bits(operand, max) }
            }
            ref kind => step_kind(kind)?,
        };
        self.push(kind, read, element, shape);
        self.define(result)
    }

    fn push(
        &mut self,
        kind: RowStepKind,
        operands: Vec<RowRef>,
        element: ElementType,
        shape: RowShape,
    ) -> RowRef {
        self.steps.push(RowStep { kind, operands, element, shape });
        RowRef::Step(self.steps.len() - 1)
    }

    /// States that the last step is a value.
    fn define(&mut self, value: Value) -> Option<()> {
        self.known.push((value, RowRef::Step(self.steps.len().checked_sub(1)?)));
        Some(())
    }

    fn reference(&mut self, value: Value, place: Place) -> RowRef {
        if let Some(known) = find(&self.known, value) {
            return known;
        }
        let element = self.program.module().ty(value).element;
        let operand = RowOperand { shape: place.shape, element, repeats: place.repeat.is_some() };
        let operand = (operand, RowInput { value, repeat: place.repeat });
        let position = self.operands.iter().position(|other| *other == operand).unwrap_or_else(|| {
            self.operands.push(operand);
            self.operands.len() - 1
        });
        RowRef::Operand(position)
    }

    /// A constant is uniform, so it has the place of a scalar until it is written.
    fn constant(&mut self, value: Value, number: f64) -> Option<()> {
        let ty = self.program.module().ty(value);
        if let Some(place) = self.space.class(&ty.shape) {
            self.places.push((value, place));
        }
        let element = ty.element;
        self.push(RowStepKind::Constant(bits(element, number)), Vec::new(), element, RowShape::Scalar);
        self.define(value)
    }

    /// exp(x - max) / sum. Each row has one division, of which each element takes the product.
    fn softmax(&mut self, x: RowRef, element: ElementType) {
        use RowShape::{Column, Matrix};
        let f32 = ElementType::F32;
        let max = self.push(RowStepKind::Reduce(ReduceKind::Max), vec![x], f32, Column);
        let shifted = self.push(RowStepKind::Binary(BinaryKind::Sub), vec![x, max], f32, Matrix);
        let power = self.push(RowStepKind::Unary(UnaryKind::Exp), vec![shifted], f32, Matrix);
        let sum = self.push(RowStepKind::Reduce(ReduceKind::Sum), vec![power], f32, Column);
        let factor = self.push(RowStepKind::Unary(UnaryKind::Reciprocal), vec![sum], f32, Column);
        self.push(RowStepKind::Binary(BinaryKind::Mul), vec![power, factor], element, Matrix);
    }

    /// (x - mean) / sqrt(variance + eps) · weight + bias. Each row has one reciprocal root, of which each element
    /// takes the product.
    fn layer_norm(&mut self, read: &[RowRef], eps: f64, element: ElementType) {
        use RowShape::{Column, Matrix, Scalar};
        let f32 = ElementType::F32;
        let (x, weight, bias) = (read[0], read[1], read[2]);
        let mean = RowStepKind::Reduce(ReduceKind::Mean);
        let average = self.push(mean, vec![x], f32, Column);
        let centered = self.push(RowStepKind::Binary(BinaryKind::Sub), vec![x, average], f32, Matrix);
        let square = self.push(RowStepKind::Binary(BinaryKind::Mul), vec![centered, centered], f32, Matrix);
        let variance = self.push(mean, vec![square], f32, Column);
        let eps = self.push(RowStepKind::Constant(bits(f32, eps)), Vec::new(), f32, Scalar);
        let sum = self.push(RowStepKind::Binary(BinaryKind::Add), vec![variance, eps], f32, Column);
        let factor = self.push(RowStepKind::Unary(UnaryKind::Rsqrt), vec![sum], f32, Column);
        let normal = self.push(RowStepKind::Binary(BinaryKind::Mul), vec![centered, factor], f32, Matrix);
        let scaled = self.push(RowStepKind::Binary(BinaryKind::Mul), vec![normal, weight], f32, Matrix);
        self.push(RowStepKind::Binary(BinaryKind::Add), vec![scaled, bias], element, Matrix);
    }

    /// Adds the outputs of an op.
    fn write(&mut self, op: Op, ops: &[Op]) -> Option<()> {
        let module = self.program.module();
        let operation = &module.ops[op];
        if let (OpKind::BlockQuantize { block, scale_rounding, formula }, &[codes, scales]) =
            (&operation.kind, &operation.results[..])
        {
            let of = operation.operands[0];
            let of = self.reference(of, Place::of(RowShape::Matrix));
            let global = match operation.operands.get(1) {
                None => None,
                Some(global) => match self.reference(*global, Place::of(RowShape::Scalar)) {
                    RowRef::Operand(position) => Some(position),
                    RowRef::Step(_) => return None,
                },
            };
            let (codes_type, scales_type) = (module.ty(codes), module.ty(scales));
            let format =
                QuantizedFormat { element: codes_type.element, scale: scales_type.element, block: *block };
            let kind = RowOutputKind::Quantized {
                format,
                layout: scales_type.layout?,
                global,
                scale_rounding: *scale_rounding,
                formula: *formula,
            };
            self.outputs.push(RowOutput { of, kind });
            self.written.extend([codes, scales]);
            return Some(());
        }
        for result in operation.results.iter().filter(|result| is_written(self.program, **result, ops)) {
            let ty = module.ty(*result);
            let of = find(&self.known, *result)?;
            // A broadcast value has fewer elements until it is written. A reduction writes one per row.
            let class = find(&self.places, *result)?;
            let of = self.whole(of, ty.element, class);
            self.outputs.push(RowOutput { of, kind: RowOutputKind::Value });
            self.written.push(*result);
        }
        Some(())
    }

    fn shape(&self, value: RowRef) -> RowShape {
        match value {
            RowRef::Operand(operand) => self.operands[operand].0.shape,
            RowRef::Step(step) => self.steps[step].shape,
        }
    }

    /// The value with all elements of a place: a step of its own if it has fewer, or is an operand.
    fn whole(&mut self, value: RowRef, element: ElementType, class: RowShape) -> RowRef {
        if self.shape(value) == class && matches!(value, RowRef::Step(_)) {
            return value;
        }
        self.push(RowStepKind::Convert, vec![value], element, class)
    }
}

fn find<T: Copy>(known: &[(Value, T)], value: Value) -> Option<T> {
    known.iter().find(|(other, _)| *other == value).map(|(_, found)| *found)
}

/// The bits of a number of an element type as an f32, or as an i32 or i1.
fn bits(element: ElementType, number: f64) -> u32 {
    match element {
        ElementType::I32 => number as i32 as u32,
        ElementType::I1 => u32::from(number != 0.0),
        _ => {
            let number = fourfold_ir::scalar::round_to(element, number);
            if number.is_nan() { f32::NAN } else { number as f32 }.to_bits()
        }
    }
}

fn step_kind(kind: &OpKind) -> Option<RowStepKind> {
    Some(match *kind {
        OpKind::Convert => RowStepKind::Convert,
        OpKind::Bitcast => RowStepKind::Bitcast,
        OpKind::Unary(kind) => RowStepKind::Unary(kind),
        OpKind::Binary(kind) => RowStepKind::Binary(kind),
        OpKind::Bitwise(kind) => RowStepKind::Bitwise(kind),
        OpKind::Compare(predicate) => RowStepKind::Compare(predicate),
        OpKind::Select => RowStepKind::Select,
        OpKind::BlockDequantize { .. } => RowStepKind::Dequantize,
        OpKind::Reduce { kind, .. } => RowStepKind::Reduce(kind),
        _ => return None,
    })
}

/// The conditions that do not hold for all symbol values; `None` if one holds for none.
fn constraints(
    capability: &RowCapability,
    program: &RowProgram,
    [l, m, k]: [&Dim; 3],
    space: &Space,
) -> Option<Vec<Constraint>> {
    let RowCapability { max_extent, max_scale_bytes, .. } = *capability;
    let mut found = Vec::new();
    for (name, dim) in [("L*M", &space.rows), ("K", k)] {
        match dim.as_fixed() {
            Some(extent) if max_extent < extent => return None,
            Some(_) => {}
            None => found.push(Constraint::AtMost { name, dim: dim.clone(), limit: max_extent }),
        }
    }
    let mut blocks: Vec<u32> = program
        .outputs
        .iter()
        .filter_map(|output| match output.kind {
            RowOutputKind::Quantized { format, .. } => Some(format.block),
            RowOutputKind::Value => None,
        })
        .chain(program.operands.iter().filter_map(|operand| match operand.shape {
            RowShape::Scales { block, .. } => Some(block),
            _ => None,
        }))
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    for block in blocks {
        match [l, m, k].map(Dim::as_fixed) {
            known @ [Some(_), Some(_), Some(_)] => {
                scale_bytes(known, block).filter(|bytes| *bytes <= max_scale_bytes)?;
            }
            _ => found.push(Constraint::ScaleBytes {
                name: "a block-scaled tensor",
                matrices: l.clone(),
                rows: m.clone(),
                k: k.clone(),
                block,
                limit: max_scale_bytes,
            }),
        }
    }
    Some(found)
}

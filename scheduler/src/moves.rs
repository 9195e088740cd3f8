//! Plans ops that copy elements bit for bit, each as a move or as a view, the ends of padded groups, and ops that route
//! rows.

mod limits;

use fourfold_ir::{
    Dim, ElementType, MoveCapability, Op, OpKind, PadAmount, Program, ScaleLayout, SliceRange, Tensor, Value,
    dim_product,
};

use crate::plan::{
    Constraint, MAX_MOVE_AXES, MAX_MOVE_OFFSETS, MAX_MOVE_OPERANDS, MAX_PAD_AXES, MovePlan, MoveProgram,
    Plan, ViewPlan,
};

/// The alignment in bytes of blocked scales, whose kernel moves 16 bytes at a time.
const BLOCKED_ALIGNMENT: u32 = 16;

/// The bytes of an index of `gather`, or of the end of a group.
const INDEX_BYTES: u32 = 4;

/// The plan of a move: a kernel, or a view if no byte changes. `None` if the op is no move, or if it exceeds the limits
/// of the kernels.
pub(crate) fn plan_move(program: &Program, capability: &MoveCapability, op: Op) -> Option<Plan> {
    let module = program.module();
    let operation = &module.ops[op];
    let (&[result, ..], &[first, ..]) = (&operation.results[..], &operation.operands[..]) else {
        return None;
    };
    let results = operation.results.clone();
    if !capability.elements.contains(&module.ty(first).element) {
        return None;
    }
    let (copy, operands, extents) = match copy_of(program, op, first, result)? {
        Copy::View(operand) => return Some(Plan::View(ViewPlan { op, operand, result })),
        Copy::Move { program, operands, extents } => (program, operands, extents),
    };
    if limits::exceeded_by(program, capability, copy, &extents).is_some() {
        return None;
    }
    let mut constraints = limits::constraints(capability, copy, &extents);
    let aligned = |value: Value, bytes: u32| Constraint::PointerAlignment { value, bytes };
    match copy {
        MoveProgram::Strided { bits } | MoveProgram::Pad { bits } if bits > 8 => {
            constraints.extend([aligned(operands[0], bits / 8), aligned(result, bits / 8)]);
        }
        MoveProgram::Gather => constraints.push(aligned(operands[1], INDEX_BYTES)),
        MoveProgram::Swizzle { to: ScaleLayout::Blocked } => {
            constraints.push(aligned(result, BLOCKED_ALIGNMENT));
        }
        MoveProgram::Swizzle { to: ScaleLayout::Linear } => {
            constraints.push(aligned(operands[0], BLOCKED_ALIGNMENT));
        }
        MoveProgram::PaddedEnds => {
            constraints.extend([operands[0], result].map(|value| aligned(value, INDEX_BYTES)));
        }
        MoveProgram::GroupScales => {
            constraints.extend(operands[1..].iter().map(|ends| aligned(*ends, INDEX_BYTES)));
            constraints.push(aligned(result, BLOCKED_ALIGNMENT));
        }
        MoveProgram::GroupRows | MoveProgram::ScatterAdd { .. } | MoveProgram::TopK { .. } => {
            let bytes = |value: Value| module.ty(value).element.storage_bits() as u32 / 8;
            constraints.extend(operands.iter().chain(&results).map(|value| aligned(*value, bytes(*value))));
        }
        _ => {}
    }
    Some(Plan::Move(MovePlan { op, program: copy, operands, results, extents, constraints }))
}

/// The copy of an op with this first operand and this result.
fn copy_of(program: &Program, op: Op, first: Value, result: Value) -> Option<Copy> {
    let module = program.module();
    let operation = &module.ops[op];
    let ty = module.ty(first);
    if operation.kind == OpKind::Reshape {
        return Some(Copy::View(first));
    }
    let units = Units::of(ty.element);
    let x = Source { value: first, units, shape: units.shape(&ty.shape)? };
    match &operation.kind {
        OpKind::Transpose { permutation } => strided(&x, transposed(&x.shape, permutation)?),
        OpKind::Broadcast => strided(&x, repeated(&x.shape, &module.ty(result).shape)?),
        OpKind::Slice { ranges } => strided(&x, sliced(&x, ranges)?),
        OpKind::Pad { amounts, value } => padded(&x, amounts, fill(ty.element, *value)?),
        OpKind::Concat { axis } => {
            let parts = operation.operands.iter().map(|value| {
                Some(Source { value: *value, units, shape: units.shape(&module.ty(*value).shape)? })
            });
            joined(&parts.collect::<Option<Vec<_>>>()?, *axis as usize)
        }
        OpKind::Gather { axis } => {
            let (outer, rest) = x.shape.split_at_checked(*axis as usize)?;
            let (extent, inner) = rest.split_first()?;
            let indices = module.ty(*operation.operands.get(1)?);
            let extents =
                vec![dim_product(outer)?, extent.clone(), units.bytes(inner)?, dim_product(&indices.shape)?];
            Some(Copy::Move { program: MoveProgram::Gather, operands: operation.operands.clone(), extents })
        }
        OpKind::SwizzleScales => {
            let is_blocked = |value: Value| module.ty(value).layout == Some(ScaleLayout::Blocked);
            let to = if is_blocked(result) { ScaleLayout::Blocked } else { ScaleLayout::Linear };
            if is_blocked(first) == is_blocked(result) {
                return Some(Copy::View(first));
            }
            let [leading @ .., rows, blocks] = &x.shape[..] else { return None };
            let extents = vec![dim_product(leading)?, rows.clone(), blocks.clone()];
            Some(Copy::Move { program: MoveProgram::Swizzle { to }, operands: vec![first], extents })
        }
        OpKind::PaddedEnds { multiple } => {
            let extents = vec![dim_product(&ty.shape)?, Dim::fixed(u64::from(*multiple))];
            Some(Copy::Move { program: MoveProgram::PaddedEnds, operands: vec![first], extents })
        }
        OpKind::GroupScales => {
            let [rows, blocks] = &x.shape[..] else { return None };
            let groups = dim_product(&module.ty(*operation.operands.get(1)?).shape)?;
            let padded = module.ty(result).shape.first()?.clone();
            let extents = vec![rows.clone(), blocks.clone(), groups, padded];
            let operands = operation.operands.clone();
            Some(Copy::Move { program: MoveProgram::GroupScales, operands, extents })
        }
        OpKind::GroupRows { groups } => {
            let extents =
                vec![dim_product(&ty.shape)?, ty.shape.last()?.clone(), Dim::fixed(u64::from(*groups))];
            Some(Copy::Move { program: MoveProgram::GroupRows, operands: vec![first], extents })
        }
        OpKind::ScatterAdd => {
            let to = module.ty(result);
            let program = MoveProgram::ScatterAdd { from: ty.element, to: to.element };
            let (count, row) = ty.shape.split_first()?;
            let extents = vec![count.clone(), to.shape.first()?.clone(), dim_product(row)?];
            Some(Copy::Move { program, operands: operation.operands.clone(), extents })
        }
        OpKind::TopK { k } => {
            let (columns, rows) = ty.shape.split_last()?;
            let extents = vec![dim_product(rows)?, columns.clone(), Dim::fixed(u64::from(*k))];
            Some(Copy::Move {
                program: MoveProgram::TopK { element: ty.element },
                operands: vec![first],
                extents,
            })
        }
        _ => None,
    }
}

/// A copy in the making.
enum Copy {
    /// The memory of an operand.
    View(Value),
    /// A kernel.
    Move { program: MoveProgram, operands: Vec<Value>, extents: Vec<Dim> },
}

/// The units that a kernel moves: elements, or bytes of FP4.
#[derive(Clone, Copy)]
struct Units {
    /// The elements of one unit.
    elements: u64,
    /// The bits of one unit.
    bits: u32,
}

impl Units {
    fn of(element: ElementType) -> Units {
        match element {
            ElementType::F4E2M1FN => Units { elements: 2, bits: 8 },
            _ => Units { elements: 1, bits: element.storage_bits() as u32 },
        }
    }

    /// A shape in units; `None` if a row is not known to be whole units.
    fn shape(self, shape: &[Dim]) -> Option<Vec<Dim>> {
        let mut shape = shape.to_vec();
        if self.elements > 1 {
            let last = shape.last_mut()?;
            *last = last.divided_by(self.elements)?;
        }
        Some(shape)
    }

    /// The bytes of a tensor with this shape in units.
    fn bytes(self, shape: &[Dim]) -> Option<Dim> {
        dim_product(shape)?.times(&Dim::fixed(u64::from(self.bits / 8)))
    }
}

/// An operand, with its shape in units.
struct Source {
    value: Value,
    units: Units,
    shape: Vec<Dim>,
}

/// An axis of a strided result: its extent, and the distance of two indices in the operand.
struct Axis {
    extent: Dim,
    stride: Dim,
}

/// The axes and offsets of a strided result.
type Strides = (Vec<Axis>, Vec<Dim>);

fn row_major(shape: &[Dim]) -> Option<Vec<Axis>> {
    let axis = |at: usize| Some(Axis { extent: shape[at].clone(), stride: dim_product(&shape[at + 1..])? });
    (0..shape.len()).map(axis).collect()
}

fn transposed(x: &[Dim], permutation: &[u32]) -> Option<Strides> {
    let mut axes: Vec<Option<Axis>> = row_major(x)?.into_iter().map(Some).collect();
    let taken = permutation.iter().map(|axis| axes.get_mut(*axis as usize)?.take());
    Some((taken.collect::<Option<_>>()?, Vec::new()))
}

fn repeated(x: &[Dim], result: &[Dim]) -> Option<Strides> {
    let added = result.len().checked_sub(x.len())?;
    let of_operand = row_major(x)?;
    let axes = result.iter().enumerate().map(|(at, extent)| {
        let own = at.checked_sub(added).map(|at| &of_operand[at]).filter(|axis| axis.extent == *extent);
        let stride = own.map_or(Dim::fixed(0), |axis| axis.stride.clone());
        Axis { extent: extent.clone(), stride }
    });
    Some((axes.collect(), Vec::new()))
}

fn sliced(x: &Source, ranges: &[SliceRange]) -> Option<Strides> {
    let mut axes = row_major(&x.shape)?;
    let mut offsets = Vec::new();
    for range in ranges {
        let at = range.axis as usize;
        // Along the last axis, FP4 is sliced in whole bytes with step 1.
        let per_unit = if at + 1 == x.shape.len() { x.units.elements } else { 1 };
        let units = SliceRange { start: range.start / per_unit, end: range.end / per_unit, ..*range };
        let axis = axes.get_mut(at)?;
        offsets.push(axis.stride.times(&Dim::fixed(units.start))?);
        *axis =
            Axis { extent: Dim::fixed(units.extent()), stride: axis.stride.times(&Dim::fixed(units.step))? };
    }
    Some((axes, offsets))
}

/// A strided move in its canonical form: without extents of 1, and with axes joined that move together.
fn strided(x: &Source, (axes, offsets): Strides) -> Option<Copy> {
    let mut joined: Vec<Axis> = Vec::new();
    for axis in axes.into_iter().filter(|axis| axis.extent.as_fixed() != Some(1)) {
        match joined.last_mut() {
            Some(last) if axis.extent.times(&axis.stride).as_ref() == Some(&last.stride) => {
                *last = Axis { extent: last.extent.times(&axis.extent)?, stride: axis.stride };
            }
            _ => joined.push(axis),
        }
    }
    let mut sums: Vec<Dim> = Vec::new();
    for offset in offsets.into_iter().filter(|offset| offset.constant() != 0) {
        match sums.iter_mut().find_map(|sum| Some((sum.plus(&offset)?, sum))) {
            Some((more, sum)) => *sum = more,
            None => sums.push(offset),
        }
    }
    let elements = dim_product(&x.shape)?;
    let is_whole = match &joined[..] {
        [] => elements.as_fixed() == Some(1),
        [axis] => axis.stride.as_fixed() == Some(1) && axis.extent == elements,
        _ => false,
    };
    if is_whole && sums.is_empty() {
        return Some(Copy::View(x.value));
    }
    let missing_axes = MAX_MOVE_AXES.checked_sub(joined.len())?;
    let missing_offsets = MAX_MOVE_OFFSETS.checked_sub(sums.len())?;
    let with_leading = |value: u64, own: Vec<Dim>| {
        std::iter::repeat_n(Dim::fixed(value), missing_axes).chain(own).collect::<Vec<_>>()
    };
    let (extents, strides): (Vec<Dim>, Vec<Dim>) =
        joined.into_iter().map(|axis| (axis.extent, axis.stride)).unzip();
    let mut numbers = with_leading(1, extents);
    numbers.extend(with_leading(0, strides));
    numbers.extend(sums);
    numbers.extend(std::iter::repeat_n(Dim::fixed(0), missing_offsets));
    numbers.push(elements);
    let program = MoveProgram::Strided { bits: x.units.bits };
    Some(Copy::Move { program, operands: vec![x.value], extents: numbers })
}

/// The bits of a unit of padding: the value, rounded to the element type. For FP4, two codes.
fn fill(element: ElementType, value: f64) -> Option<u64> {
    let bytes = Tensor::from_f64(element, vec![2], None, &[value; 2]).ok()?;
    let unit = usize::try_from(Units::of(element).bits / 8).ok()?;
    Some(bytes.bytes()[..unit].iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte)))
}

/// An axis of a `pad`.
struct PaddedAxis {
    result: Dim,
    operand: Dim,
    low: Dim,
}

/// A pad in its canonical form: axes without padding are joined to the axis before them.
fn padded(x: &Source, amounts: &[PadAmount], fill: u64) -> Option<Copy> {
    let mut axes: Vec<PaddedAxis> = Vec::new();
    for (at, operand) in x.shape.iter().enumerate() {
        let per_unit = if at + 1 == x.shape.len() { x.units.elements } else { 1 };
        let amount = amounts.iter().find(|amount| amount.axis as usize == at);
        let [low, high] = amount.map_or([0, 0], |amount| [amount.low / per_unit, amount.high / per_unit]);
        match axes.last_mut() {
            Some(last) if [low, high] == [0, 0] => {
                for dim in [&mut last.result, &mut last.operand, &mut last.low] {
                    *dim = dim.times(operand)?;
                }
            }
            _ => {
                let result = operand.plus(&Dim::fixed(low))?.plus(&Dim::fixed(high))?;
                axes.push(PaddedAxis { result, operand: operand.clone(), low: Dim::fixed(low) });
            }
        }
    }
    // Leading extents of 1 are no axes of their own.
    if axes.len() > 1 && axes[0].result.as_fixed() == Some(1) && axes[0].operand.as_fixed() == Some(1) {
        axes.remove(0);
    }
    if axes.iter().all(|axis| axis.result == axis.operand) {
        return Some(Copy::View(x.value));
    }
    let missing = MAX_PAD_AXES.checked_sub(axes.len())?;
    let with_leading = |value: u64, of: fn(&PaddedAxis) -> &Dim| {
        std::iter::repeat_n(Dim::fixed(value), missing).chain(axes.iter().map(move |axis| of(axis).clone()))
    };
    let numbers = with_leading(1, |axis| &axis.result)
        .chain(with_leading(1, |axis| &axis.operand))
        .chain(with_leading(0, |axis| &axis.low))
        .chain([Dim::fixed(fill)]);
    let program = MoveProgram::Pad { bits: x.units.bits };
    Some(Copy::Move { program, operands: vec![x.value], extents: numbers.collect() })
}

/// A concat of rows of bytes. Operands whose extent is 0 are left out.
fn joined(parts: &[Source], axis: usize) -> Option<Copy> {
    let first = parts.first()?;
    let outer = dim_product(first.shape.get(..axis)?)?;
    let mut rows = Vec::new();
    let mut sum = Dim::fixed(0);
    let mut operands = Vec::new();
    for part in parts.iter().filter(|part| part.shape.get(axis).is_none_or(|dim| dim.constant() != 0)) {
        let extent = part.units.bytes(part.shape.get(axis..)?)?;
        sum = sum.plus(&extent)?;
        rows.push(extent);
        operands.push(part.value);
    }
    match operands[..] {
        [] => return Some(Copy::View(first.value)),
        [only] => return Some(Copy::View(only)),
        _ => {}
    }
    if MAX_MOVE_OPERANDS < rows.len() {
        return None;
    }
    let program = MoveProgram::Concat { operands: rows.len() as u32 };
    Some(Copy::Move { program, operands, extents: [outer, sum].into_iter().chain(rows).collect() })
}

/// The extent of a move beyond a limit of its kernel, worded for a message. `None` if there is none, or if the op is no
/// move at all.
pub(crate) fn exceeded(program: &Program, capability: &MoveCapability, op: Op) -> Option<String> {
    let module = program.module();
    let operation = &module.ops[op];
    let (&[result, ..], &[first, ..]) = (&operation.results[..], &operation.operands[..]) else {
        return None;
    };
    if !capability.elements.contains(&module.ty(first).element) {
        return None;
    }
    match copy_of(program, op, first, result)? {
        Copy::View(_) => None,
        Copy::Move { program: copy, extents, .. } => limits::exceeded_by(program, capability, copy, &extents),
    }
}

#[cfg(test)]
mod tests;

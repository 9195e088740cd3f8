//! Compares a move or a view with its op, byte by byte: for sampled extents and bytes of the result, the plan must read
//! the byte that the op means. [`groups`] checks the ops whose bytes follow from data.

mod groups;
mod meaning;

use fourfold_ir::numeric::{blocked_len, blocked_offset};
use fourfold_ir::{
    Capabilities, Dim, Entity, Op, OpKind, Program, ScaleLayout, Symbol, SymbolValues, Tensor, Value,
};

use self::meaning::Meaning;
use super::{CheckError, known};
use crate::plan::{
    ChoosePlan, Constraint, MAX_MOVE_AXES, MAX_PAD_AXES, MovePlan, MoveProgram, Segment, ViewPlan,
};

/// Values of symbols. Each sample starts at another one.
const EXTENTS: [u64; 5] = [3, 2, 5, 1, 7];

/// Results of up to this many bytes are compared whole; of others, this many bytes.
const MOST_BYTES: u64 = 1024;

/// The alignment of blocked scales, in bytes.
const BLOCKED_ALIGNMENT: u32 = 16;

pub(super) fn check(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &MovePlan,
    errors: &mut Vec<CheckError>,
) {
    let operands = &plan.operands;
    if !matches(program, index, segment, (plan.op, operands, &plan.results), errors) {
        return;
    }
    let names = plan.program.extent_names();
    let shape = |what: &str| CheckError::Shape { segment: index, what: what.to_owned() };
    let count = match plan.program {
        MoveProgram::Concat { operands } => operands as usize,
        MoveProgram::Gather | MoveProgram::ScatterAdd { .. } => 2,
        MoveProgram::GroupScales => 3,
        _ => 1,
    };
    if names.len() != plan.extents.len() || operands.len() != count {
        return errors.push(shape("the plan has other extents or operands than its program"));
    }
    if groups::follows_from_data(plan) {
        if let Err(what) = groups::check(program, plan) {
            return errors.push(shape(&what));
        }
        return limits(capabilities, index, plan, errors);
    }
    let samples = samples(program, plan.op);
    if samples.is_empty() {
        return errors.push(shape("no extents of the op are valid"));
    }
    for symbols in &samples {
        let numbers: Option<Vec<u64>> = plan.extents.iter().map(|dim| dim.evaluate(symbols)).collect();
        let source = |at: u64, indices: &dyn Fn(u64) -> u64| of_plan(plan, numbers.as_ref()?, at, indices);
        let compared = sizes(program, symbols, plan)
            .and_then(|()| compare(program, symbols, plan.op, plan.results[0], source));
        if let Err(what) = compared {
            return errors.push(shape(&what));
        }
    }
    limits(capabilities, index, plan, errors);
}

/// Checks a view: every byte of the result is the same byte of the operand.
pub(super) fn check_view(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &ViewPlan,
    errors: &mut Vec<CheckError>,
) {
    if !matches(program, index, segment, (plan.op, &[plan.operand], &[plan.result]), errors) {
        return;
    }
    if capabilities.device.moves.is_none() {
        let rule = format!("{} has no views", capabilities.target);
        errors.push(CheckError::Capability { segment: index, rule });
    }
    let samples = samples(program, plan.op);
    if samples.is_empty() {
        let what = "no extents of the op are valid".to_owned();
        errors.push(CheckError::Shape { segment: index, what });
    }
    for symbols in samples {
        let bytes = [plan.operand, plan.result].map(|value| byte_count(program, value, &symbols));
        let mut found =
            compare(program, &symbols, plan.op, plan.result, |at, _| Some(Byte::Operand(plan.operand, at)));
        if bytes[0] != bytes[1] {
            found = Err("the result of a view has another size than its operand".to_owned());
        }
        if let Err(what) = found {
            return errors.push(CheckError::Shape { segment: index, what });
        }
    }
}

/// Checks a choice: the operands, the extent and the ends are those of the op.
pub(super) fn check_choose(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &ChoosePlan,
    errors: &mut Vec<CheckError>,
) {
    if !matches(program, index, segment, (plan.op, &plan.operands, &[plan.result]), errors) {
        return;
    }
    if capabilities.device.moves.is_none() {
        let rule = format!("{} has no choices", capabilities.target);
        errors.push(CheckError::Capability { segment: index, rule });
    }
    let operation = &program.module().ops[plan.op];
    let fits = match &operation.kind {
        OpKind::Choose { axis, ends } => {
            let extent = program.module().ty(plan.result).shape.get(*axis as usize);
            plan.operands == operation.operands && plan.ends == *ends && extent == Some(&plan.extent)
        }
        _ => false,
    };
    if !fits {
        let what = "the operands, extent or ends of the plan are not those of a choose".to_owned();
        errors.push(CheckError::Shape { segment: index, what });
    }
}

/// Checks that a plan names the op of its segment, its results, and some of its operands in order.
fn matches(
    program: &Program,
    index: usize,
    segment: &Segment,
    (op, operands, results): (Op, &[Value], &[Value]),
    errors: &mut Vec<CheckError>,
) -> bool {
    let operation = &program.module().ops[op];
    let mut rest = operation.operands.iter();
    let in_order = operands.iter().all(|value| rest.any(|operand| operand == value));
    let fits = segment.ops == [op]
        && operation.results == results
        && !results.is_empty()
        && in_order
        && !operands.is_empty();
    if !fits {
        let what = "the op, operands or result of the plan are not those of the segment".to_owned();
        errors.push(CheckError::Shape { segment: index, what });
    }
    fits
}

/// The limits of the target, as exactly the constraints of the plan.
fn limits(capabilities: &Capabilities, index: usize, plan: &MovePlan, errors: &mut Vec<CheckError>) {
    let Some(rules) = &capabilities.device.moves else {
        let rule = format!("{} has no kernel for moves", capabilities.target);
        return errors.push(CheckError::Capability { segment: index, rule });
    };
    let mut needed = Vec::new();
    for (name, dim) in plan.program.extent_names().into_iter().zip(&plan.extents) {
        let bounds_memory = match plan.program {
            MoveProgram::Strided { .. } => name.starts_with('D') || name == "E",
            MoveProgram::Pad { .. } => name.starts_with('D') || name.starts_with('E'),
            _ => true,
        };
        let limit = match (name, plan.program) {
            ("E", _) if groups::follows_from_data(plan) => rules.max_groups,
            ("M", MoveProgram::GroupRows | MoveProgram::ScatterAdd { .. }) => rules.max_positions,
            ("M", MoveProgram::TopK { .. }) => rules.max_extent.min(rules.max_ranked_rows),
            ("N", MoveProgram::ScatterAdd { .. }) => groups::most_rows(rules, plan),
            _ => rules.max_extent,
        };
        match known(dim) {
            _ if !bounds_memory => {}
            None => needed.push(Constraint::AtMost { name, dim: dim.clone(), limit }),
            Some(extent) if extent <= limit => {}
            Some(_) => errors
                .push(CheckError::Capability { segment: index, rule: format!("{name} exceeds {limit}") }),
        }
    }
    if let (MoveProgram::TopK { .. }, [_, columns, taken]) = (plan.program, &plan.extents[..]) {
        let examined = known(columns).and_then(|columns| columns.checked_mul(known(taken)?));
        if examined.is_none_or(|examined| examined > rules.max_examined) {
            let rule = format!("C · K exceeds {}", rules.max_examined);
            errors.push(CheckError::Capability { segment: index, rule });
        }
    }
    needed.extend(groups::tiles(rules, plan));
    let pointers: Vec<(Value, u32)> = match plan.program {
        MoveProgram::Strided { bits: 8 } | MoveProgram::Pad { bits: 8 } | MoveProgram::Concat { .. } => {
            vec![]
        }
        MoveProgram::Strided { bits } | MoveProgram::Pad { bits } => {
            vec![(plan.operands[0], bits / 8), (plan.results[0], bits / 8)]
        }
        MoveProgram::Gather => vec![(plan.operands[1], 4)],
        MoveProgram::Swizzle { to: ScaleLayout::Blocked } => vec![(plan.results[0], BLOCKED_ALIGNMENT)],
        MoveProgram::Swizzle { to: ScaleLayout::Linear } => vec![(plan.operands[0], BLOCKED_ALIGNMENT)],
        MoveProgram::PaddedEnds => vec![(plan.operands[0], 4), (plan.results[0], 4)],
        MoveProgram::GroupScales => {
            vec![(plan.operands[1], 4), (plan.operands[2], 4), (plan.results[0], BLOCKED_ALIGNMENT)]
        }
        MoveProgram::GroupRows => {
            let results = plan.results.iter().map(|value| (*value, 4));
            std::iter::once((plan.operands[0], 4)).chain(results).collect()
        }
        MoveProgram::ScatterAdd { from, to } => {
            let [from, to] = [from, to].map(|element| element.storage_bits() as u32 / 8);
            vec![(plan.operands[0], from), (plan.operands[1], 4), (plan.results[0], to)]
        }
        MoveProgram::TopK { element } => {
            let bytes = element.storage_bits() as u32 / 8;
            vec![(plan.operands[0], bytes), (plan.results[0], bytes), (plan.results[1], 4)]
        }
    };
    needed.extend(pointers.into_iter().map(|(value, bytes)| Constraint::PointerAlignment { value, bytes }));
    for needed in &needed {
        if !plan.constraints.contains(needed) {
            errors.push(CheckError::Constraint { segment: index, needed: needed.clone() });
        }
    }
    for found in &plan.constraints {
        if !needed.contains(found) {
            errors.push(CheckError::ExtraConstraint { segment: index, found: found.clone() });
        }
    }
}

/// The source of one byte of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    /// A byte of an operand.
    Operand(Value, u64),
    /// A byte that comes from no operand.
    Constant(u8),
}

/// Symbol values to compare with: those with which the operands and the result exist.
pub(super) fn samples(program: &Program, op: Op) -> Vec<SymbolValues> {
    let operation = &program.module().ops[op];
    let values = || operation.operands.iter().chain(&operation.results);
    let symbols: Vec<Symbol> = values()
        .flat_map(|value| program.module().ty(*value).shape.iter().flat_map(Dim::symbols))
        .copied()
        .collect();
    // The first sample suits FP4, whose last extents are even.
    (0..=EXTENTS.len())
        .map(|sample| {
            let extent = |symbol: &Symbol| match sample {
                0 => 2,
                _ => EXTENTS[(symbol.index() + sample) % EXTENTS.len()],
            };
            let mut values = SymbolValues::default();
            symbols.iter().for_each(|symbol| values.set(*symbol, extent(symbol)));
            values
        })
        .take(if symbols.is_empty() { 1 } else { usize::MAX })
        .filter(|sample| values().all(|value| byte_count(program, *value, sample).is_some()))
        .collect()
}

/// The index that a `gather` takes at a position, for the comparison.
fn index_at(position: u64, extent: u64) -> u64 {
    position.wrapping_mul(0x9E37_79B9).wrapping_add(1) % extent
}

/// Compares the sources of sampled bytes of the result.
fn compare(
    program: &Program,
    symbols: &SymbolValues,
    op: Op,
    result: Value,
    of_plan: impl Fn(u64, &dyn Fn(u64) -> u64) -> Option<Byte>,
) -> Result<(), String> {
    let unknown = || "an extent exceeds 64 bits".to_owned();
    let bytes = byte_count(program, result, symbols).ok_or_else(unknown)?;
    let meaning = Meaning::of(program, op, symbols).ok_or_else(unknown)?;
    let taken = meaning.taken;
    if bytes > 0 && taken == Some(0) {
        return Ok(());
    }
    let indices = |position: u64| index_at(position, taken.unwrap_or(1).max(1));
    let count = bytes.min(MOST_BYTES);
    for sample in 0..count {
        let at = match sample {
            _ if bytes <= MOST_BYTES => sample,
            0 => 0,
            1 => bytes - 1,
            _ => sample.wrapping_mul(0x9E37_79B9_7F4A_7C15) % bytes,
        };
        let expected = meaning.byte(at, &indices);
        let found = of_plan(at, &indices);
        if expected.is_none() || found != expected {
            return Err(format!("byte {at} of the result is {found:?}, not {expected:?}"));
        }
    }
    Ok(())
}

/// Compares the sizes of operands and result that the plan implies with those of their types.
fn sizes(program: &Program, symbols: &SymbolValues, plan: &MovePlan) -> Result<(), String> {
    let number = |at: usize| plan.extents[at].evaluate(symbols);
    let product = |mut ats: std::ops::Range<usize>, by: u64| {
        ats.try_fold(by, |product, at| product.checked_mul(number(at)?))
    };
    let mut pairs = Vec::new();
    let x = plan.operands[0];
    match plan.program {
        MoveProgram::Strided { bits } => {
            let unit = u64::from(bits / 8);
            pairs.push((plan.results[0], product(0..MAX_MOVE_AXES, unit)));
            pairs.push((x, product(plan.extents.len() - 1..plan.extents.len(), unit)));
        }
        MoveProgram::Pad { bits } => {
            let unit = u64::from(bits / 8);
            pairs.push((plan.results[0], product(0..MAX_PAD_AXES, unit)));
            pairs.push((x, product(MAX_PAD_AXES..2 * MAX_PAD_AXES, unit)));
        }
        MoveProgram::Concat { .. } => {
            pairs.push((plan.results[0], product(0..2, 1)));
            let rows = plan.operands.iter().enumerate();
            let size = |at: usize| number(0)?.checked_mul(number(2 + at)?);
            pairs.extend(rows.map(|(at, value)| (*value, size(at))));
        }
        MoveProgram::Gather => {
            pairs.push((x, product(0..3, 1)));
            pairs.push((plan.operands[1], product(3..4, 4)));
            pairs.push((plan.results[0], product(0..1, 1).and_then(|outer| product(2..4, outer))));
        }
        MoveProgram::Swizzle { to } => {
            pairs.push((if to == ScaleLayout::Blocked { x } else { plan.results[0] }, product(0..3, 1)));
        }
        MoveProgram::PaddedEnds
        | MoveProgram::GroupScales
        | MoveProgram::GroupRows
        | MoveProgram::ScatterAdd { .. }
        | MoveProgram::TopK { .. } => {}
    }
    for (value, found) in pairs {
        let expected = byte_count(program, value, symbols);
        if found.is_none() || found != expected {
            let name = program.module().name_of(value);
            return Err(format!("`%{name}` has {found:?} bytes in the plan, not {expected:?}"));
        }
    }
    Ok(())
}

pub(super) fn dims(program: &Program, value: Value, symbols: &SymbolValues) -> Option<Vec<u64>> {
    program.module().ty(value).shape.iter().map(|dim| dim.evaluate(symbols)).collect()
}

fn byte_count(program: &Program, value: Value, symbols: &SymbolValues) -> Option<u64> {
    let ty = program.module().ty(value);
    let dims = dims(program, value, symbols)?;
    let dims: Vec<usize> = dims.into_iter().map(usize::try_from).collect::<Result<_, _>>().ok()?;
    Some(Tensor::byte_len(ty.element, &dims, ty.layout).ok()? as u64)
}

/// The byte of an operand that a kernel of this plan writes to a byte of the result.
fn of_plan(plan: &MovePlan, numbers: &[u64], at: u64, indices: &dyn Fn(u64) -> u64) -> Option<Byte> {
    let x = plan.operands[0];
    match plan.program {
        MoveProgram::Strided { bits } => {
            let unit = u64::from(bits / 8);
            let (extents, rest) = numbers.split_at(MAX_MOVE_AXES);
            let (strides, rest) = rest.split_at(MAX_MOVE_AXES);
            let (elements, offsets) = rest.split_last()?;
            let mut from = offsets.iter().sum::<u64>();
            for (place, stride) in places(at / unit, extents)?.into_iter().zip(strides) {
                from = from.checked_add(place.checked_mul(*stride)?)?;
            }
            (from < *elements).then_some(Byte::Operand(x, from * unit + at % unit))
        }
        MoveProgram::Pad { bits } => {
            let unit = u64::from(bits / 8);
            let (extents, rest) = numbers.split_at(MAX_PAD_AXES);
            let (operand, rest) = rest.split_at(MAX_PAD_AXES);
            let (low, fill) = rest.split_at(MAX_PAD_AXES);
            let places = places(at / unit, extents)?;
            let outside = |axis: usize| places[axis] < low[axis] || low[axis] + operand[axis] <= places[axis];
            if (0..MAX_PAD_AXES).any(outside) {
                return Some(Byte::Constant((fill[0] >> (8 * (at % unit))) as u8));
            }
            let from =
                (0..MAX_PAD_AXES).fold(0, |from, axis| from * operand[axis] + places[axis] - low[axis]);
            Some(Byte::Operand(x, from * unit + at % unit))
        }
        MoveProgram::Concat { .. } => {
            let (outer, mut within) = (at / numbers[1], at % numbers[1]);
            for (row, value) in numbers[2..].iter().zip(&plan.operands) {
                if within < *row {
                    return Some(Byte::Operand(*value, outer * row + within));
                }
                within -= row;
            }
            None
        }
        MoveProgram::Gather => {
            let [_, extent, inner, count] = *numbers else { return None };
            let (rest, within) = (at / inner, at % inner);
            let row = rest / count * extent + indices(rest % count);
            Some(Byte::Operand(x, row * inner + within))
        }
        MoveProgram::Swizzle { to: ScaleLayout::Blocked } => {
            let [_, rows, blocks] = *numbers else { return None };
            let bytes = rows.next_multiple_of(128) * blocks.next_multiple_of(4);
            let [row, block] = tile_place(at % bytes, blocks);
            Some(match row < rows && block < blocks {
                true => Byte::Operand(x, (at / bytes * rows + row) * blocks + block),
                false => Byte::Constant(0),
            })
        }
        MoveProgram::Swizzle { to: ScaleLayout::Linear } => {
            let [_, rows, blocks] = *numbers else { return None };
            let (row, block) = (at / blocks, at % blocks);
            Some(Byte::Operand(x, blocked(row / rows, row % rows, block, rows, blocks)?))
        }
        // The byte depends on data.
        MoveProgram::PaddedEnds
        | MoveProgram::GroupScales
        | MoveProgram::GroupRows
        | MoveProgram::ScatterAdd { .. }
        | MoveProgram::TopK { .. } => None,
    }
}

/// The place of a scale in blocked matrices.
fn blocked(matrix: u64, row: u64, block: u64, rows: u64, blocks: u64) -> Option<u64> {
    let [row, block, rows, blocks] =
        [row, block, rows, blocks].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
    Some(matrix * blocked_len(rows, blocks) as u64 + blocked_offset(row, block, blocks) as u64)
}

/// The row and the block of a byte of a blocked matrix, perhaps of its padding.
fn tile_place(at: u64, blocks: u64) -> [u64; 2] {
    let (tile, byte, tiles) = (at / 512, at % 512, blocks.div_ceil(4));
    [tile / tiles * 128 + byte % 16 / 4 * 32 + byte / 16, tile % tiles * 4 + byte % 4]
}

/// The index of an element in row-major order.
pub(super) fn places(mut element: u64, extents: &[u64]) -> Option<Vec<u64>> {
    let mut places = vec![0; extents.len()];
    for (place, extent) in places.iter_mut().zip(extents).rev() {
        *place = element.checked_rem(*extent)?;
        element /= extent;
    }
    Some(places)
}

pub(super) fn row_major(places: &[u64], extents: &[u64]) -> u64 {
    places.iter().zip(extents).fold(0, |element, (place, extent)| element * extent + place)
}

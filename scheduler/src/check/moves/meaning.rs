//! The meaning of an op that moves elements: the source of each byte of its result.

use fourfold_ir::numeric::blocked_len;
use fourfold_ir::{Op, OpKind, Program, ScaleLayout, SymbolValues, Tensor, Value};

use super::{Byte, blocked, dims, places, row_major, tile_place};

/// The meaning of an op with concrete extents.
pub(super) struct Meaning<'a> {
    program: &'a Program,
    op: Op,
    operands: Vec<(Value, Vec<u64>)>,
    result: Vec<u64>,
    /// The extent of the axis that a `gather` indexes.
    pub(super) taken: Option<u64>,
}

impl<'a> Meaning<'a> {
    /// Returns the meaning of an op; `None` if a value has no extents.
    pub(super) fn of(program: &'a Program, op: Op, symbols: &SymbolValues) -> Option<Meaning<'a>> {
        let operation = &program.module().ops[op];
        let operands = operation.operands.iter().map(|value| Some((*value, dims(program, *value, symbols)?)));
        let operands: Vec<(Value, Vec<u64>)> = operands.collect::<Option<_>>()?;
        let taken = match operation.kind {
            OpKind::Gather { axis } => operands.first()?.1.get(axis as usize).copied(),
            _ => None,
        };
        let result = dims(program, *operation.results.first()?, symbols)?;
        Some(Meaning { program, op, operands, result, taken })
    }

    /// The source of a byte of the result.
    pub(super) fn byte(&self, at: u64, indices: &dyn Fn(u64) -> u64) -> Option<Byte> {
        let module = self.program.module();
        let (x, _) = self.operands.first()?;
        let ty = module.ty(*x);
        if module.ops[self.op].kind == OpKind::SwizzleScales {
            let result = module.ty(*module.ops[self.op].results.first()?);
            return self.scale(at, ty.layout, result.layout);
        }
        // All codes that share bytes must come from such codes.
        let packed = ty.element.packed_count() as u64;
        let unit = packed * ty.element.storage_bits() as u64 / 8;
        let first = self.element(at / unit * packed, indices)?;
        for other in 1..packed {
            let expected = first.map(|(value, element)| (value, element + other));
            if self.element(at / unit * packed + other, indices)? != expected {
                return None;
            }
        }
        match first {
            Some((_, element)) if !element.is_multiple_of(packed) => None,
            Some((value, element)) => Some(Byte::Operand(value, element / packed * unit + at % unit)),
            None => self.fill((at % unit) as usize),
        }
    }

    /// The byte of a scale.
    fn scale(&self, at: u64, from: Option<ScaleLayout>, to: Option<ScaleLayout>) -> Option<Byte> {
        let [leading @ .., rows, blocks] = &self.result[..] else { return None };
        let (rows, blocks, x) = (*rows, *blocks, self.operands.first()?.0);
        let place = |layout: Option<ScaleLayout>, matrix: u64, row: u64, block: u64| match layout {
            Some(ScaleLayout::Blocked) => blocked(matrix, row, block, rows, blocks),
            _ => Some((matrix * rows + row) * blocks + block),
        };
        if to != Some(ScaleLayout::Blocked) {
            let row = at.checked_div(blocks)?;
            return Some(Byte::Operand(x, place(from, row.checked_div(rows)?, row % rows, at % blocks)?));
        }
        // A byte of a tile is a scale or padding; the definition of the layout must lead back to it.
        let matrix = at.checked_div(blocked_len(rows as usize, blocks as usize) as u64)?;
        let [row, block] = tile_place(at % blocked_len(rows as usize, blocks as usize) as u64, blocks);
        let leads_back = blocked(matrix, row, block, rows, blocks)? == at;
        if !leads_back || leading.iter().product::<u64>() <= matrix {
            return None;
        }
        match row < rows && block < blocks {
            true => Some(Byte::Operand(x, place(from, matrix, row, block)?)),
            false => Some(Byte::Constant(0)),
        }
    }

    /// A byte of the value that a `pad` adds.
    fn fill(&self, byte: usize) -> Option<Byte> {
        let module = self.program.module();
        let OpKind::Pad { value, .. } = module.ops[self.op].kind else { return None };
        let element = module.ty(self.operands.first()?.0).element;
        let tensor = Tensor::from_f64(element, vec![2], None, &[value; 2]).ok()?;
        tensor.bytes().get(byte).copied().map(Byte::Constant)
    }

    /// The operand and the element that an element of the result is; `Some(None)` for padding.
    fn element(&self, at: u64, indices: &dyn Fn(u64) -> u64) -> Option<Option<(Value, u64)>> {
        let operation = &self.program.module().ops[self.op];
        let (x, from) = self.operands.first()?;
        let to = places(at, &self.result)?;
        let own = |places: &[u64]| Some(Some((*x, row_major(places, from))));
        match &operation.kind {
            OpKind::Reshape => Some(Some((*x, at))),
            OpKind::Transpose { permutation } => {
                let mut places = vec![0; from.len()];
                for (place, axis) in to.iter().zip(permutation) {
                    *places.get_mut(*axis as usize)? = *place;
                }
                own(&places)
            }
            OpKind::Broadcast => {
                let last = to.get(to.len().checked_sub(from.len())?..)?;
                let places: Vec<u64> = last
                    .iter()
                    .zip(from)
                    .map(|(place, extent)| if *extent == 1 { 0 } else { *place })
                    .collect();
                own(&places)
            }
            OpKind::Slice { ranges } => {
                let mut places = to;
                for range in ranges {
                    let place = places.get_mut(range.axis as usize)?;
                    *place = range.start + *place * range.step;
                }
                own(&places)
            }
            OpKind::Pad { amounts, .. } => {
                let mut places = to;
                for amount in amounts {
                    let axis = amount.axis as usize;
                    match places[axis].checked_sub(amount.low).filter(|place| *place < from[axis]) {
                        Some(place) => places[axis] = place,
                        None => return Some(None),
                    }
                }
                own(&places)
            }
            OpKind::Concat { axis } => {
                let (mut places, axis) = (to, *axis as usize);
                for (value, from) in &self.operands {
                    if places[axis] < from[axis] {
                        return Some(Some((*value, row_major(&places, from))));
                    }
                    places[axis] -= from[axis];
                }
                None
            }
            OpKind::Gather { axis } => {
                let axis = *axis as usize;
                let (_, of_indices) = self.operands.get(1)?;
                let (outer, rest) = to.split_at_checked(axis)?;
                let (within, inner) = rest.split_at_checked(of_indices.len())?;
                let index = indices(row_major(within, of_indices));
                own(&[outer, &[index], inner].concat())
            }
            _ => None,
        }
    }
}

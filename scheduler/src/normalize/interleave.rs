//! Writes a rewritten pair of products: matrices whose rows alternate, made by ordinary ops of params.

use std::collections::HashMap;

use fourfold_ir::{Dim, Op, OpKind, ScaleLayout, SliceRange, TensorType, Value};

use super::draft::{Draft, Note};

/// Adds the ops of one rewritten pair.
pub(super) struct Writer<'a> {
    pub(super) draft: &'a mut Draft,
    pub(super) position: usize,
    pub(super) from: Vec<Op>,
    pub(super) rule: usize,
    /// By value and first row: a half of its rows.
    pub(super) rows: HashMap<(Value, u64), Value>,
}

impl Writer<'_> {
    pub(super) fn note(&self, from: Vec<Op>) -> Note {
        Note { position: self.position, made: Some((from, vec![self.rule])), ..Note::default() }
    }

    pub(super) fn add(&mut self, kind: OpKind, operands: Vec<Value>, name: &str, ty: TensorType) -> Value {
        // Only what is computed in each call replaces ops of the program.
        let from = if is_product(&kind) { self.from.clone() } else { Vec::new() };
        let note = self.note(from);
        let op = self.draft.add(kind, operands, name, ty, note);
        self.draft.module.ops[op].results[0]
    }

    /// Scales in the linear layout.
    pub(super) fn linear(&mut self, scales: Value) -> Value {
        if let Some((op, OpKind::SwizzleScales)) = self.draft.definition(scales) {
            let before = self.draft.module.ops[op].operands[0];
            if self.draft.module.ty(before).layout == Some(ScaleLayout::Linear) {
                return before;
            }
        }
        match self.draft.module.ty(scales).layout {
            Some(ScaleLayout::Linear) => scales,
            _ => self.swizzled(scales, ScaleLayout::Linear),
        }
    }

    pub(super) fn swizzled(&mut self, scales: Value, layout: ScaleLayout) -> Value {
        let ty = TensorType { layout: Some(layout), ..self.draft.module.ty(scales).clone() };
        let name = format!("{}.{layout}", self.draft.module.name_of(scales));
        self.add(OpKind::SwizzleScales, vec![scales], &name, ty)
    }

    /// Matrices of the rows of two matrices in turn, each `rows` from a first one on.
    pub(super) fn interleaved(&mut self, halves: [(Value, u64); 2], rows: u64) -> Value {
        let of = self.draft.module.ty(halves[0].0).clone();
        let [matrices @ .., _, width] = &of.shape[..] else { return halves[0].0 };
        let axis = matrices.len() as u32 + 1;
        let shaped = |inner: &[u64]| {
            let inner = inner.iter().map(|extent| Dim::fixed(*extent));
            let shape = matrices.iter().cloned().chain(inner).chain([width.clone()]).collect();
            TensorType { shape, ..of.clone() }
        };
        let name = self.draft.module.name_of(halves[0].0).to_owned();
        let parts = halves.map(|(value, first)| {
            let part = self.rows_of(value, first, rows);
            let name = format!("{}.rows", self.draft.module.name_of(value));
            self.add(OpKind::Reshape, vec![part], &name, shaped(&[rows, 1]))
        });
        let beside = format!("{name}.beside");
        let both = self.add(OpKind::Concat { axis }, parts.to_vec(), &beside, shaped(&[rows, 2]));
        self.add(OpKind::Reshape, vec![both], &format!("{name}.pair"), shaped(&[2 * rows]))
    }

    /// `rows` rows of each matrix from a first one on.
    fn rows_of(&mut self, value: Value, first: u64, rows: u64) -> Value {
        let ty = self.draft.module.ty(value).clone();
        let axis = ty.shape.len().saturating_sub(2);
        if ty.shape[axis].as_fixed() == Some(rows) {
            return value;
        }
        if let Some(known) = self.rows.get(&(value, first)) {
            return *known;
        }
        let mut shape = ty.shape.clone();
        shape[axis] = Dim::fixed(rows);
        let range = SliceRange { axis: axis as u32, start: first, end: first + rows, step: 1 };
        let name = format!("{}.half", self.draft.module.name_of(value));
        let part =
            self.add(OpKind::Slice { ranges: vec![range] }, vec![value], &name, TensorType { shape, ..ty });
        self.rows.insert((value, first), part);
        part
    }
}

fn is_product(kind: &OpKind) -> bool {
    matches!(kind, OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_))
}

//! The typing rule of each op: the types allowed for its operands and the resulting types of its results.
//!
//! The program states result types, so a rule compares and never infers. The verifier guarantees that the operands and
//! results of an op exist, that their number fits [`arity`], and that each type is valid by itself.

mod elementwise;
mod grouped;
mod matmul;
mod movement;
mod routing;
mod shape;

use std::ops::RangeInclusive;

use crate::entities::{Op, Value};
use crate::module::{Module, Operation};
use crate::ops::{AttributeValue, OpKind};
use crate::program::Matmul;
use crate::types::{Dim, ElementType, ScaleLayout, Shape, TensorType};
use crate::verify::VerifyErrorKind as Kind;

/// The number of operands and results of an op.
pub(crate) struct Arity {
    pub(crate) operands: RangeInclusive<usize>,
    pub(crate) results: usize,
}

/// The result of checking an op.
pub(crate) struct Typed {
    /// Empty if the op is well-typed.
    pub(crate) errors: Vec<Kind>,
    /// The extents and format of a well-typed `scaled_mma`.
    pub(crate) matmul: Option<Matmul>,
}

/// Broadcasts two shapes as NumPy does: aligned at the last extent, two extents must be equal or one of them 1.
/// `None` if the shapes do not broadcast.
pub fn broadcast_shape(left: &[Dim], right: &[Dim]) -> Option<Shape> {
    let one = Dim::fixed(1);
    let rank = left.len().max(right.len());
    let extent = |shape: &[Dim], index: usize| match (index + shape.len()).checked_sub(rank) {
        Some(index) => shape[index].clone(),
        None => one.clone(),
    };
    (0..rank)
        .map(|index| match (extent(left, index), extent(right, index)) {
            (left, right) if left == right => Some(left),
            (left, right) if left == one => Some(right),
            (left, right) if right == one => Some(left),
            _ => None,
        })
        .collect()
}

/// The number of operands and results of an op of this kind.
pub(crate) fn arity(kind: &OpKind) -> Arity {
    let (operands, results) = match kind {
        OpKind::ScaledMma(mma) => (mma.operand_count()..=mma.operand_count(), 1),
        OpKind::GroupedScaledMma(mma) => (mma.operand_count()..=mma.operand_count(), 1),
        OpKind::BlockQuantize { .. } => (1..=2, 2),
        OpKind::BlockDequantize { .. } => (2..=3, 1),
        OpKind::TopK { .. } => (1..=1, 2),
        OpKind::GroupRows { .. } => (1..=1, 3),
        OpKind::Mma
        | OpKind::Binary(_)
        | OpKind::Bitwise(_)
        | OpKind::Compare(_)
        | OpKind::Gather { .. }
        | OpKind::ScatterAdd => (2..=2, 1),
        OpKind::Concat { .. } => (1..=usize::MAX, 1),
        OpKind::Choose { .. } => (2..=usize::MAX, 1),
        OpKind::Select | OpKind::LayerNorm { .. } => (3..=3, 1),
        OpKind::GroupScales => (3..=3, 1),
        OpKind::SwizzleScales
        | OpKind::PaddedEnds { .. }
        | OpKind::Convert
        | OpKind::Bitcast
        | OpKind::Unary(_)
        | OpKind::Clamp { .. }
        | OpKind::Reshape
        | OpKind::Transpose { .. }
        | OpKind::Broadcast
        | OpKind::Slice { .. }
        | OpKind::Pad { .. }
        | OpKind::Reduce { .. }
        | OpKind::Softmax { .. } => (1..=1, 1),
        OpKind::Constant(_) => (0..=0, 1),
    };
    Arity { operands, results }
}

/// The role of an operand in its op, such as `sfa`.
pub(crate) fn operand_role(kind: &OpKind, position: usize) -> &'static str {
    let roles: &[&str] = match kind {
        OpKind::ScaledMma(mma) => match position.checked_sub(mma.positional().len()) {
            Some(named) => return kind.named_operands().get(named).copied().unwrap_or("operand"),
            None => mma.positional(),
        },
        OpKind::GroupedScaledMma(mma) => match mma.positional().get(position) {
            Some(role) => return role,
            None => {
                let named = position - mma.positional().len();
                return kind.named_operands().get(named).copied().unwrap_or("operand");
            }
        },
        OpKind::Mma => &["a", "b"],
        OpKind::SwizzleScales => &["scales"],
        OpKind::GroupScales => &["scales", "ends", "sfa_ends"],
        OpKind::BlockQuantize { .. } => &["v", "g"],
        OpKind::BlockDequantize { .. } => &["codes", "scales", "g"],
        OpKind::Binary(_) | OpKind::Bitwise(_) | OpKind::Compare(_) => &["left", "right"],
        OpKind::Select => &["condition", "then", "else"],
        OpKind::LayerNorm { .. } => &["x", "weight", "bias"],
        OpKind::Gather { .. } | OpKind::ScatterAdd => &["x", "indices"],
        OpKind::TopK { .. } => &["x"],
        OpKind::GroupRows { .. } => &["ids"],
        OpKind::PaddedEnds { .. } => &["ends"],
        _ => &[],
    };
    roles.get(position).copied().unwrap_or("operand")
}

/// Checks one op against its typing rule. See the module's page for the preconditions.
pub(crate) fn check_op(module: &Module, op: Op) -> Typed {
    let mut site = Site { module, operation: &module.ops[op], errors: Vec::new() };
    check_layouts(&mut site);
    if !site.errors.is_empty() {
        // A misplaced scale tensor would also violate the element rules: report it once.
        return Typed { errors: site.errors, matmul: None };
    }
    let mut matmul = None;
    match &site.operation.kind {
        OpKind::ScaledMma(mma) => matmul = matmul::scaled_mma(&mut site, *mma),
        OpKind::GroupedScaledMma(mma) => matmul = grouped::grouped_scaled_mma(&mut site, *mma),
        OpKind::Mma => matmul::mma(&mut site),
        OpKind::SwizzleScales => matmul::swizzle_scales(&mut site),
        OpKind::GroupScales => grouped::group_scales(&mut site),
        OpKind::BlockQuantize { block, scale_rounding, formula } => {
            matmul::block_quantize(&mut site, *block, *scale_rounding, *formula)
        }
        OpKind::BlockDequantize { block } => matmul::block_dequantize(&mut site, *block),
        OpKind::Convert => elementwise::convert(&mut site),
        OpKind::Bitcast => elementwise::bitcast(&mut site),
        OpKind::Unary(_) => elementwise::unary(&mut site),
        OpKind::Binary(kind) => elementwise::binary(&mut site, *kind),
        OpKind::Bitwise(_) => elementwise::bitwise(&mut site),
        OpKind::Clamp { min, max } => elementwise::clamp(&mut site, *min, *max),
        OpKind::Compare(_) => elementwise::compare(&mut site),
        OpKind::Select => elementwise::select(&mut site),
        OpKind::Reshape => shape::reshape(&mut site),
        OpKind::Transpose { permutation } => shape::transpose(&mut site, permutation),
        OpKind::Broadcast => shape::broadcast(&mut site),
        OpKind::Slice { ranges } => movement::slice(&mut site, ranges),
        OpKind::Concat { axis } => movement::concat(&mut site, *axis),
        OpKind::Choose { axis, ends } => movement::choose(&mut site, *axis, ends),
        OpKind::Gather { axis } => movement::gather(&mut site, *axis),
        OpKind::TopK { k } => routing::top_k(&mut site, *k),
        OpKind::GroupRows { groups } => routing::group_rows(&mut site, *groups),
        OpKind::PaddedEnds { multiple } => routing::padded_ends(&mut site, *multiple),
        OpKind::ScatterAdd => routing::scatter_add(&mut site),
        OpKind::Pad { amounts, value } => movement::pad(&mut site, amounts, *value),
        OpKind::Reduce { axes, keep_dims, .. } => shape::reduce(&mut site, axes, *keep_dims),
        OpKind::Softmax { axis } => elementwise::softmax(&mut site, *axis),
        OpKind::LayerNorm { eps } => elementwise::layer_norm(&mut site, *eps),
        OpKind::Constant(value) => shape::constant(&mut site, value),
    }
    let matmul = matmul.filter(|_| site.errors.is_empty());
    Typed { errors: site.errors, matmul }
}

/// A number as it is written in the program's text.
fn number_text(number: f64) -> String {
    AttributeValue::Number(number).to_string()
}

/// Checks that only operands and results that may be scales have a layout.
fn check_layouts(site: &mut Site<'_>) {
    let kind = &site.operation.kind;
    for position in 0..site.operation.operands.len() {
        let slot = site.operand(position);
        let taken = match (kind, position) {
            (OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_), _)
                if ["sfa", "sfb"].contains(&slot.role) =>
            {
                true
            }
            (OpKind::BlockDequantize { .. }, 1) | (OpKind::SwizzleScales | OpKind::GroupScales, 0) => true,
            (OpKind::Convert | OpKind::Bitcast, 0) if slot.ty.layout == Some(ScaleLayout::Blocked) => {
                let (value, ty) = (site.name(slot), site.ty(slot));
                site.errors.push(Kind::BlockedConvert { value, ty });
                continue;
            }
            (OpKind::Convert | OpKind::Bitcast, 0) => true,
            (kind, position) => moves_scales(site, kind, position),
        };
        if slot.ty.layout.is_some() && !taken {
            let (mnemonic, operand, value, ty) = (site.mnemonic(), slot.role, site.name(slot), site.ty(slot));
            site.errors.push(Kind::UnexpectedScales { mnemonic, operand, value, ty });
        }
    }
    for position in 0..site.operation.results.len() {
        let slot = site.result(position);
        let given = match (kind, position) {
            (OpKind::SwizzleScales | OpKind::GroupScales, 0) | (OpKind::BlockQuantize { .. }, 1) => true,
            // Numbers become powers of two; f8E4M3FN scales come from swizzle_scales.
            (OpKind::Convert | OpKind::Bitcast, 0) => {
                (slot.ty.element, slot.ty.layout) == (ElementType::F8E8M0FNU, Some(ScaleLayout::Linear))
            }
            (kind, _) => moves_scales(site, kind, 0),
        };
        if slot.ty.layout.is_some() && !given {
            let (mnemonic, value, ty) = (site.mnemonic(), site.name(slot), site.ty(slot));
            site.errors.push(Kind::ResultLayout { mnemonic, value, ty });
        }
    }
}

/// Returns true if an op moves linear scales from this operand to its result. They are row-major as other tensors are.
fn moves_scales(site: &Site<'_>, kind: &OpKind, position: usize) -> bool {
    let moves = match kind {
        OpKind::Reshape | OpKind::Slice { .. } | OpKind::Gather { .. } => position == 0,
        OpKind::Concat { .. } => true,
        _ => false,
    };
    // The typing rule of `concat` compares the other operands with the first.
    let slots = || [site.operand(0), site.operand(position), site.result(0)];
    moves && slots().iter().all(|slot| slot.ty.layout == Some(ScaleLayout::Linear))
}

/// A set of element types, with its text in messages.
#[derive(Clone, Copy)]
struct Elements {
    has: fn(ElementType) -> bool,
    text: &'static str,
}

const ARITHMETIC: Elements = Elements { has: ElementType::is_arithmetic, text: "f16, bf16 or f32" };
const ARITHMETIC_OR_I32: Elements = Elements {
    has: |element| element.is_arithmetic() || element == ElementType::I32,
    text: "f16, bf16, f32 or i32",
};
const BLOCK_DATA: Elements =
    Elements { has: ElementType::is_block_data, text: "f4E2M1FN, f6E2M3FN, f6E3M2FN, f8E4M3FN or f8E5M2" };
const HALF: Elements = Elements { has: ElementType::is_half, text: "f16 or bf16" };
const INTEGER: Elements = Elements { has: |element| element == ElementType::I32, text: "i32" };
const BOOLEAN: Elements = Elements { has: |element| element == ElementType::I1, text: "i1" };
/// FP4 and FP6 elements share bytes along the last axis, so they cannot be moved one by one.
const UNPACKED: Elements = Elements {
    has: |element| element.packed_count() == 1,
    text: "any type but f4E2M1FN, f6E2M3FN and f6E3M2FN",
};
/// Only block quantization, products, conversions and `reshape` take FP6.
const NO_FP6: Elements =
    Elements { has: |element| !element.is_fp6(), text: "any type but f6E2M3FN and f6E3M2FN" };

/// An operand or a result of the op being checked.
#[derive(Clone, Copy)]
struct Slot<'a> {
    role: &'static str,
    value: Value,
    ty: &'a TensorType,
}

impl<'a> Slot<'a> {
    fn shape(self) -> &'a [Dim] {
        &self.ty.shape
    }

    /// The last extent. Requires a rank of at least 1.
    fn last(self) -> &'a Dim {
        &self.ty.shape[self.ty.rank() - 1]
    }
}

/// The op being checked, and the errors found in it.
struct Site<'a> {
    module: &'a Module,
    operation: &'a Operation,
    errors: Vec<Kind>,
}

impl<'a> Site<'a> {
    fn operand(&self, position: usize) -> Slot<'a> {
        let value = self.operation.operands[position];
        Slot { role: operand_role(&self.operation.kind, position), value, ty: self.module.ty(value) }
    }

    fn find_operand(&self, position: usize) -> Option<Slot<'a>> {
        (position < self.operation.operands.len()).then(|| self.operand(position))
    }

    fn result(&self, position: usize) -> Slot<'a> {
        let value = self.operation.results[position];
        let role = match (&self.operation.kind, position) {
            (OpKind::BlockQuantize { .. }, 0) => "codes",
            (OpKind::BlockQuantize { .. } | OpKind::SwizzleScales, _) => "scales",
            _ => "result",
        };
        Slot { role, value, ty: self.module.ty(value) }
    }

    fn mnemonic(&self) -> &'static str {
        self.operation.kind.mnemonic()
    }

    fn name(&self, slot: Slot<'_>) -> String {
        format!("%{}", self.module.name_of(slot.value))
    }

    fn ty(&self, slot: Slot<'_>) -> String {
        self.module.display_type(slot.ty).to_string()
    }

    fn shape_text(&self, shape: &[Dim]) -> String {
        let dims: Vec<String> = shape.iter().map(|dim| self.module.display_dim(dim).to_string()).collect();
        format!("[{}]", dims.join(", "))
    }

    fn require_element(&mut self, slot: Slot<'_>, elements: Elements) -> bool {
        let right = (elements.has)(slot.ty.element);
        if !right {
            let (mnemonic, value, ty) = (self.mnemonic(), self.name(slot), self.ty(slot));
            self.errors.push(Kind::OperandElement {
                mnemonic,
                operand: slot.role,
                value,
                ty,
                expected: elements.text,
            });
        }
        right
    }

    fn require_same_element(&mut self, left: Slot<'_>, right: Slot<'_>) {
        if left.ty.element != right.ty.element {
            self.errors.push(Kind::ElementMismatch {
                left: self.name(left),
                left_ty: self.ty(left),
                right: self.name(right),
                right_ty: self.ty(right),
            });
        }
    }

    /// The join of the operands' element types; `None` if there is none. Reports each operand whose type is not one of
    /// `elements`.
    fn join(&mut self, slots: &[Slot<'_>], elements: Elements) -> Option<ElementType> {
        let mut joined = slots.first().map(|slot| slot.ty.element);
        for &slot in slots {
            self.require_element(slot, elements);
            joined = joined.and_then(|element| element.join(slot.ty.element));
        }
        joined
    }

    fn require_scalar(&mut self, slot: Slot<'_>) {
        if slot.ty.element != ElementType::F32 || slot.ty.rank() > 1 || !slot.ty.is_scalar() {
            let (value, ty) = (self.name(slot), self.ty(slot));
            self.errors.push(Kind::ScalarOperand { operand: slot.role, value, ty });
        }
    }

    fn require_rank(&mut self, slot: Slot<'_>, least: usize) -> bool {
        let right = slot.ty.rank() >= least;
        if !right {
            let (value, ty) = (self.name(slot), self.ty(slot));
            self.errors.push(Kind::OperandRank { operand: slot.role, value, ty, least });
        }
        right
    }

    fn require_operand_shape(&mut self, slot: Slot<'_>, expected: &[Dim]) {
        if slot.shape() != expected {
            let (value, ty, expected) = (self.name(slot), self.ty(slot), self.shape_text(expected));
            self.errors.push(Kind::OperandShape { operand: slot.role, value, ty, expected });
        }
    }

    fn require_axis(&mut self, slot: Slot<'_>, axis: u32) -> bool {
        let right = (axis as usize) < slot.ty.rank();
        if !right {
            let (value, ty) = (self.name(slot), self.ty(slot));
            self.errors.push(Kind::AxisOutOfRange { axis, value, ty });
        }
        right
    }

    fn require_result_shape(&mut self, slot: Slot<'_>, expected: &[Dim]) {
        if slot.shape() != expected {
            let (value, ty, expected) = (self.name(slot), self.ty(slot), self.shape_text(expected));
            self.errors.push(Kind::ResultShape { value, ty, expected });
        }
    }

    fn require_result_element(&mut self, slot: Slot<'_>, expected: ElementType) {
        if slot.ty.element != expected {
            let (value, ty) = (self.name(slot), self.ty(slot));
            self.errors.push(Kind::ResultElement { value, ty, expected: expected.to_string() });
        }
    }

    /// Requires one of several element types, to any of which the op can round.
    fn require_result_among(&mut self, slot: Slot<'_>, elements: Elements) {
        if !(elements.has)(slot.ty.element) {
            let (value, ty) = (self.name(slot), self.ty(slot));
            self.errors.push(Kind::ResultElement { value, ty, expected: elements.text.to_owned() });
        }
    }

    /// The shape to which all shapes broadcast; reports an error and returns `None` if they do not.
    fn broadcast(&mut self, shapes: &[&[Dim]]) -> Option<Shape> {
        let joined = shapes.iter().try_fold(Shape::new(), |joined, shape| broadcast_shape(&joined, shape));
        if joined.is_none() {
            let shapes: Vec<String> = shapes.iter().map(|shape| self.shape_text(shape)).collect();
            let (mnemonic, shapes) = (self.mnemonic(), shapes.join(", "));
            self.errors.push(Kind::NotBroadcastable { mnemonic, shapes });
        }
        joined
    }
}

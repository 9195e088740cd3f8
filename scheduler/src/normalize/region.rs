//! Collects a region: a multiplication, the ops that make its operands, and the ops that follow it.

use std::collections::{BTreeSet, HashMap, VecDeque};

use egg::{Id, RecExpr};
use fourfold_ir::{BinaryKind, ConstantValue, Op, OpKind, ScaleLayout, Value, scalar};

use super::draft::Draft;
use super::expression::{Expression, Member};
use super::language::{Attribute, LeafInfo, OwnAttribute, Tables, Term};
use crate::attribute::Leaf;

/// The maximum number of ops of a region before and after its multiplication.
const MOST_BEFORE: usize = 24;
const MOST_BEHIND: usize = 40;
/// The maximum number of users of a value that is followed.
const MOST_USERS: usize = 8;

/// A multiplication with its surrounding ops.
pub(crate) struct Region {
    /// The ops, each after its operands.
    pub(crate) ops: Vec<Op>,
    /// The value of each leaf.
    pub(crate) leaves: Vec<Value>,
    pub(crate) expression: Expression,
}

/// Collects the region of an `mma` or a `scaled_mma`.
pub(crate) fn region(draft: &Draft, tables: &mut Tables, root: Op) -> Region {
    let mut members = BTreeSet::from([root]);
    before(draft, root, &mut members);
    behind(draft, root, &mut members);
    let mut nodes = Nodes {
        draft,
        tables,
        members,
        nodes: RecExpr::default(),
        leaves: Vec::new(),
        terms: HashMap::new(),
        ops: Vec::new(),
    };
    let mut ordered: Vec<Op> = nodes.members.iter().copied().collect();
    ordered.sort_by_key(|op| (draft.note(*op).position, *op));
    for op in ordered {
        nodes.op(op);
    }
    let Nodes { members, nodes, leaves, ops, tables, .. } = nodes;
    let info = leaves.iter().map(|leaf| leaf_info(draft, tables, *leaf)).collect();
    let inside: Vec<Member> = ops
        .iter()
        .map(|(op, term)| {
            let result = draft.module.ops[*op].results[0];
            let users = draft.users(result);
            let output = draft.is_output(result);
            // An unused result stays.
            let exported = output || users.is_empty() || users.iter().any(|user| !members.contains(user));
            Member { term: *term, exported, output, shared: !is_seen_once(draft, result) }
        })
        .collect();
    Region {
        ops: ops.into_iter().map(|(op, _)| op).collect(),
        leaves,
        expression: Expression { nodes, ops: inside, leaves: info },
    }
}

/// Adds the ops that make the operands: scaling, moves and conversions.
fn before(draft: &Draft, root: Op, members: &mut BTreeSet<Op>) {
    let mut open: VecDeque<Op> = VecDeque::from([root]);
    let mut count = 0;
    while let Some(op) = open.pop_front() {
        for operand in &draft.module.ops[op].operands {
            let Some((producer, kind)) = draft.definition(*operand) else { continue };
            let layout = |value: Value| draft.module.ty(value).layout;
            // The language has two layouts, and no numbers that become scales.
            let followed = match kind {
                OpKind::BlockDequantize { .. } | OpKind::Transpose { .. } | OpKind::Reshape => true,
                OpKind::Convert => layout(*operand).is_none(),
                OpKind::SwizzleScales => {
                    let operation = &draft.module.ops[producer];
                    layout(operation.operands[0]).is_some() && layout(*operand).is_some()
                }
                OpKind::Binary(BinaryKind::Mul) => {
                    let operands = &draft.module.ops[producer].operands;
                    operands.iter().any(|operand| draft.module.ty(*operand).is_scalar())
                }
                _ => false,
            };
            if followed && count < MOST_BEFORE && members.insert(producer) {
                count += 1;
                open.push_back(producer);
            }
        }
    }
}

/// Adds the elementwise ops and moves that follow the root.
fn behind(draft: &Draft, root: Op, members: &mut BTreeSet<Op>) {
    let mut open: VecDeque<Op> = VecDeque::from([root]);
    let mut count = 0;
    while let Some(op) = open.pop_front() {
        let Some(result) = draft.module.ops[op].results.first() else { continue };
        let users = draft.users(*result);
        if users.len() > MOST_USERS {
            continue;
        }
        for user in users {
            let followed = matches!(
                draft.module.ops[*user].kind,
                OpKind::Unary(_)
                    | OpKind::Binary(_)
                    | OpKind::Clamp { .. }
                    | OpKind::Compare(_)
                    | OpKind::Select
                    | OpKind::Convert
                    | OpKind::Reshape
                    | OpKind::Transpose { .. }
            );
            // The language has no numbers that become scales.
            let makes_scales = draft.module.ops[*user]
                .results
                .iter()
                .any(|result| draft.module.ty(*result).layout.is_some());
            if followed && !makes_scales && count < MOST_BEHIND && members.insert(*user) {
                count += 1;
                open.push_back(*user);
                // Another operand may have the same reshape.
                for operand in &draft.module.ops[*user].operands {
                    if let Some((beside, OpKind::Reshape)) = draft.definition(*operand) {
                        members.insert(beside);
                    }
                }
            }
        }
    }
}

/// Returns whether a value has at most one user, directly or through moves without other users.
fn is_seen_once(draft: &Draft, value: Value) -> bool {
    let mut value = value;
    for _ in 0..MOST_BEHIND {
        let users = draft.users(value);
        if draft.is_output(value) || users.len() > 1 {
            return false;
        }
        let Some(user) = users.first() else { return true };
        let operation = &draft.module.ops[*user];
        if !matches!(operation.kind, OpKind::Reshape | OpKind::Transpose { .. } | OpKind::Convert) {
            return true;
        }
        value = operation.results[0];
    }
    false
}

fn leaf_info(draft: &Draft, tables: &mut Tables, leaf: Value) -> LeafInfo {
    let ty = draft.module.ty(leaf);
    let splat = match draft.definition(leaf) {
        Some((_, OpKind::Constant(ConstantValue::Splat(number)))) if ty.element.is_arithmetic() => {
            Some(scalar::round_to(ty.element, *number).to_bits())
        }
        _ => None,
    };
    LeafInfo { ty: tables.types.intern(ty), splat }
}

struct Nodes<'a> {
    draft: &'a Draft,
    tables: &'a mut Tables,
    members: BTreeSet<Op>,
    nodes: RecExpr<Term>,
    leaves: Vec<Value>,
    terms: HashMap<Value, Id>,
    ops: Vec<(Op, Id)>,
}

impl Nodes<'_> {
    /// Adds an op after its operands. Recursion is shallow, because regions are small.
    fn op(&mut self, op: Op) {
        let operation = &self.draft.module.ops[op];
        let result = operation.results[0];
        if self.terms.contains_key(&result) {
            return;
        }
        for operand in &operation.operands {
            if let Some(producer) = self.draft.module.defining_op(*operand)
                && self.members.contains(&producer)
            {
                self.op(producer);
            }
        }
        let operands: Vec<Id> = operation.operands.iter().map(|value| self.value(*value)).collect();
        let ty = self.draft.module.ty(result);
        let mut of = |attribute| self.nodes.add(Term::Attribute(attribute));
        let term = match (&operation.kind, &operands[..]) {
            (OpKind::Mma, &[a, b]) => Term::Mma([of(Attribute::Element(ty.element)), a, b]),
            (OpKind::ScaledMma(mma), &[a, ref rest @ ..]) => {
                let (element, block) =
                    (of(Attribute::Element(ty.element)), of(Attribute::Own(OwnAttribute::Block(mma.block))));
                let mut rest = rest.iter().copied();
                let present = [!mma.weight_only, true, true, mma.alpha, mma.c, mma.beta];
                let [sfa, b, sfb, alpha, c, beta] = present.map(|present| {
                    let operand = if present { rest.next() } else { None };
                    operand.unwrap_or_else(|| self.nodes.add(Term::Absent))
                });
                Term::ScaledMma([element, block, a, sfa, b, sfb, alpha, c, beta])
            }
            (OpKind::BlockDequantize { block }, &[codes, scales, ..]) => {
                let (element, block) =
                    (of(Attribute::Element(ty.element)), of(Attribute::Own(OwnAttribute::Block(*block))));
                let g = operands.get(2).copied();
                let g = g.unwrap_or_else(|| self.nodes.add(Term::Absent));
                Term::Dequantize([element, block, codes, scales, g])
            }
            (OpKind::SwizzleScales, &[x]) => Term::Swizzle([
                of(Attribute::Own(OwnAttribute::Blocked(ty.layout == Some(ScaleLayout::Blocked)))),
                x,
            ]),
            (OpKind::Reshape, &[x]) => {
                let shape = self.tables.shapes.intern(&ty.shape);
                Term::Reshape([of(Attribute::Own(OwnAttribute::Shape(shape))), x])
            }
            (OpKind::Transpose { permutation }, &[x]) => {
                let permutation = self.tables.permutations.intern(permutation);
                Term::Transpose([of(Attribute::Own(OwnAttribute::Permutation(permutation))), x])
            }
            (OpKind::Convert, &[x]) => Term::Convert([of(Attribute::Element(ty.element)), x]),
            (OpKind::Unary(kind), &[x]) => Term::Unary([of(Attribute::Unary(*kind)), x]),
            (OpKind::Binary(kind), &[x, y]) => Term::Binary([of(Attribute::Binary(*kind)), x, y]),
            (OpKind::Clamp { min, max }, &[x]) => {
                Term::Clamp([of(Attribute::Bounds([min.to_bits(), max.to_bits()])), x])
            }
            (OpKind::Compare(predicate), &[x, y]) => {
                Term::Compare([of(Attribute::Predicate(*predicate)), x, y])
            }
            (OpKind::Select, &[condition, x, y]) => Term::Select([condition, x, y]),
            _ => unreachable!("a region has no other ops, and the verifier counted their operands"),
        };
        let id = self.nodes.add(term);
        self.terms.insert(result, id);
        self.ops.push((op, id));
    }

    fn value(&mut self, value: Value) -> Id {
        if let Some(known) = self.terms.get(&value) {
            return *known;
        }
        self.leaves.push(value);
        let id = self.nodes.add(Term::Leaf(Leaf(self.leaves.len() - 1)));
        self.terms.insert(value, id);
        id
    }
}

/// The multiplications of a draft, in program order.
pub(crate) fn roots(draft: &Draft) -> Vec<Op> {
    let mut roots: Vec<Op> = draft
        .module
        .ops
        .iter()
        .filter(|(op, operation)| {
            !draft.note(*op).gone && matches!(operation.kind, OpKind::Mma | OpKind::ScaledMma(_))
        })
        .map(|(op, _)| op)
        .collect();
    roots.sort_by_key(|op| (draft.note(*op).position, *op));
    roots
}

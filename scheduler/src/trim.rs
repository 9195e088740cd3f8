//! Trims a grown region to a kernel within the limits of the epilogue.

use fourfold_ir::{FormatCapability, OperandShape};

use crate::expression::{Class, Expression, Proved, Source, is_readable};

/// Trims a region by the facts that rules proved about its members.
pub(crate) struct Trimmer<'a> {
    expression: &'a Expression,
    capability: &'a FormatCapability,
    proved: Vec<Proved>,
    /// By member: the members that use its value.
    users: Vec<Vec<usize>>,
    /// By leaf.
    leaf_users: Vec<Vec<usize>>,
}

impl<'a> Trimmer<'a> {
    pub(crate) fn new(
        expression: &'a Expression,
        capability: &'a FormatCapability,
        proved: impl Iterator<Item = Proved>,
    ) -> Trimmer<'a> {
        let mut users = vec![Vec::new(); expression.members.len()];
        let mut leaf_users = vec![Vec::new(); expression.types.leaves.len()];
        for (user, member) in expression.members.iter().enumerate() {
            for source in &member.operands {
                match *source {
                    Source::Member(of) => users[of].push(user),
                    Source::Leaf(of) => leaf_users[of].push(user),
                }
            }
        }
        Trimmer { expression, capability, proved: proved.collect(), users, leaf_users }
    }

    /// Returns the kernel with the most members, as a flag per member; `None` if not even the `scaled_mma` is
    /// one.
    ///
    /// Tries prefixes of the region in program order, the longest first, each without its unwritable members.
    /// Completes the best with every member that still fits. Of two ops, the earlier one is preferred.
    pub(crate) fn largest_kernel(&self) -> Option<Vec<bool>> {
        let count = self.expression.members.len();
        let mut best: Option<(usize, Vec<bool>)> = None;
        for length in (1..=count).rev() {
            if best.as_ref().is_some_and(|(members, _)| length <= *members) {
                break;
            }
            let mut inside: Vec<bool> = (0..count).map(|member| member < length).collect();
            self.drop_unwritable(&mut inside);
            let members = inside.iter().filter(|inside| **inside).count();
            let better = best.as_ref().is_none_or(|(most, _)| *most < members);
            if inside[0] && better && self.fits(&inside) {
                best = Some((members, inside));
            }
        }
        let (_, mut inside) = best?;
        let mut changed = true;
        while changed {
            changed = false;
            for member in 0..count {
                if inside[member] {
                    continue;
                }
                inside[member] = true;
                let fits = self.is_closed(&inside) && self.fits(&inside);
                inside[member] = fits;
                changed |= fits;
            }
        }
        Some(inside)
    }

    /// Returns whether a kernel of these members must write the member's value.
    pub(crate) fn is_written(&self, member: usize, inside: &[bool]) -> bool {
        let of = &self.expression.members[member];
        !of.sink && (of.seen || self.users[member].iter().any(|user| !inside[*user]))
    }

    /// The leaves that are constants whose users are all in the kernel.
    pub(crate) fn inlined(&self, inside: &[bool]) -> Vec<usize> {
        let leaves = self.expression.types.leaves.iter().zip(&self.leaf_users).enumerate();
        leaves
            .filter(|(_, (ty, users))| ty.inlined && users.iter().all(|user| inside[*user]))
            .map(|(leaf, _)| leaf)
            .collect()
    }

    /// Removes members that cannot be in the kernel until nothing changes: at most one pass per member.
    fn drop_unwritable(&self, inside: &mut [bool]) {
        let mut changed = true;
        while changed {
            changed = false;
            for member in 0..inside.len() {
                if inside[member] && self.must_leave(member, inside) {
                    inside[member] = false;
                    changed = true;
                }
            }
        }
    }

    fn is_closed(&self, inside: &[bool]) -> bool {
        !(0..inside.len()).any(|member| inside[member] && self.must_leave(member, inside))
    }

    fn must_leave(&self, member: usize, inside: &[bool]) -> bool {
        let (of, proved) = (&self.expression.members[member], self.proved[member]);
        let orphan = of.operands.iter().any(|source| matches!(source, Source::Member(of) if !inside[*of]));
        let joins = if of.sink { proved.writable } else { proved.lifted };
        let writable = proved.writable && of.halves.is_empty();
        orphan || !joins || (self.is_written(member, inside) && !writable)
    }

    /// Returns whether the epilogue has room for these members, their operands and outputs, and can read
    /// every operand.
    fn fits(&self, inside: &[bool]) -> bool {
        let Expression { members, types, .. } = self.expression;
        let epilogue = &self.capability.epilogue;
        let chosen = || (0..inside.len()).filter(|member| inside[*member]);
        let steps = chosen().skip(1).filter(|member| !members[*member].sink).count();
        let sinks: usize =
            chosen().filter(|member| members[*member].sink).map(|member| members[member].tensors).sum();
        let written = chosen().filter(|member| self.is_written(*member, inside)).count();
        if epilogue.max_steps < steps || epilogue.max_outputs < sinks + written {
            return false;
        }
        let inlined = self.inlined(inside);
        let mut leaves: Vec<usize> = chosen()
            .flat_map(|member| &members[member].operands)
            .filter_map(|source| match source {
                Source::Leaf(leaf) => Some(*leaf),
                Source::Member(_) => None,
            })
            .filter(|leaf| !inlined.contains(leaf))
            .collect();
        leaves.sort_unstable();
        leaves.dedup();
        let read = || leaves.iter().map(|leaf| types.leaves[*leaf]);
        let room = |shape| {
            let count = read().filter(|ty| ty.class == Class::Operand(shape)).count();
            count <= epilogue.operand(shape).map_or(0, |rule| rule.most)
        };
        OperandShape::ALL.into_iter().all(room) && read().all(|ty| is_readable(ty, self.capability, types))
    }
}

//! Dependencies of a segment through nodes that Fourfold does not see.

use std::collections::BTreeSet;

use tract_core::internal::*;

/// The nodes of `group` that need, through nodes outside it, a result of `group`. One node in place of the group would
/// close a cycle. Nodes of each of `groups` run as one.
pub(crate) fn late(
    model: &TypedModel,
    groups: &[BTreeSet<usize>],
    group: &BTreeSet<usize>,
) -> BTreeSet<usize> {
    let readers = |id: usize| {
        let outputs = &model.node(id).outputs;
        outputs.iter().flat_map(|output| &output.successors).map(|reader| reader.node)
    };
    let mut waiting: Vec<usize> =
        group.iter().flat_map(|id| readers(*id)).filter(|id| !group.contains(id)).collect();
    let (mut seen, mut late) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = waiting.pop() {
        if group.contains(&id) {
            late.insert(id);
        } else if seen.insert(id) {
            match groups.iter().find(|other| other.contains(&id)) {
                Some(other) => {
                    seen.extend(other);
                    waiting.extend(other.iter().flat_map(|id| readers(*id)).filter(|id| !other.contains(id)));
                }
                None => waiting.extend(readers(id)),
            }
        }
    }
    late
}

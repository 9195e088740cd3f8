//! Dependencies of a segment through nodes that Fourfold does not see.

use std::collections::{BTreeSet, HashMap, HashSet};

use tract_core::internal::TypedModel;

/// For each group, the nodes that need, through nodes outside it, a result of the group. One node in place of the group
/// would close a cycle. Earlier groups run as one node each.
pub(crate) fn late(model: &TypedModel, groups: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let members =
        groups.iter().enumerate().flat_map(|(index, group)| group.iter().map(move |id| (*id, index)));
    let group_of: HashMap<usize, usize> = members.collect();
    let readers = |id: usize| {
        let outputs = &model.node(id).outputs;
        outputs.iter().flat_map(|output| &output.successors).map(|reader| reader.node)
    };
    let mut late = BTreeSet::new();
    for (index, group) in groups.iter().enumerate() {
        let leaving = group.iter().flat_map(|id| readers(*id)).filter(|id| !group.contains(id));
        let mut waiting: Vec<usize> = leaving.collect();
        let mut seen = HashSet::new();
        while let Some(id) = waiting.pop() {
            match group_of.get(&id) {
                Some(own) if *own == index => {
                    late.insert(id);
                }
                _ if !seen.insert(id) => {}
                Some(other) if *other < index => {
                    let others = &groups[*other];
                    seen.extend(others);
                    waiting
                        .extend(others.iter().flat_map(|id| readers(*id)).filter(|id| !others.contains(id)));
                }
                _ => waiting.extend(readers(id)),
            }
        }
    }
    late
}

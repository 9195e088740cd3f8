//! The dataflow graph of a program, with each kernel contracted to one node.

use fourfold_ir::{Entity, Op, Program};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

/// The number of kernels on the longest path to each unit.
#[derive(Debug)]
pub(crate) struct Stages {
    /// By op. Every op of a kernel has the stage of its kernel.
    pub(crate) ops: Vec<usize>,
}

/// A node of the contracted graph.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Kernel,
    Op,
}

/// Computes the stages. `kernel_of` maps each op to the number of its kernel, if any, starting at 0.
///
/// A kernel's operand (a bias, say) may be defined after the kernel's root. Program order therefore does not
/// order the kernels; the contracted graph does.
pub(crate) fn stages(program: &Program, kernel_of: &[Option<usize>]) -> Stages {
    let module = program.module();
    let mut graph = DiGraph::<Unit, ()>::with_capacity(module.ops.len(), 2 * module.ops.len());
    let mut kernel_nodes: Vec<Option<NodeIndex>> = Vec::new();
    let nodes: Vec<NodeIndex> = kernel_of
        .iter()
        .map(|kernel| {
            let Some(kernel) = *kernel else { return graph.add_node(Unit::Op) };
            if kernel_nodes.len() <= kernel {
                kernel_nodes.resize(kernel + 1, None);
            }
            *kernel_nodes[kernel].get_or_insert_with(|| graph.add_node(Unit::Kernel))
        })
        .collect();
    let node_of = |op: Op| nodes[op.index()];
    for (op, operation) in module.ops.iter() {
        for producer in operation.operands.iter().filter_map(|operand| module.defining_op(*operand)) {
            if node_of(producer) != node_of(op) {
                graph.add_edge(node_of(producer), node_of(op), ());
            }
        }
    }
    let order = petgraph::algo::toposort(&graph, None)
        .expect("a kernel reads only earlier stages, so contraction creates no cycle");
    let mut stage_of = vec![0; graph.node_count()];
    for node in order {
        // The maximum does not depend on the order of neighbours.
        stage_of[node.index()] = graph
            .neighbors_directed(node, Direction::Incoming)
            .map(|before| stage_of[before.index()] + usize::from(matches!(graph[before], Unit::Kernel)))
            .max()
            .unwrap_or(0);
    }
    Stages { ops: nodes.iter().map(|node| stage_of[node.index()]).collect() }
}

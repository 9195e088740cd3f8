//! The descriptors and algorithms of products, and those that a library keeps.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::functions::{Algorithm, Object, Status};
use super::problem::MatmulProblem;

/// An algorithm, and the alignments of the addresses of A, B and D that it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) algorithm: Algorithm,
    pub(super) alignments: [u32; 3],
}

/// The descriptors and algorithms of a product.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) objects: Objects,
    /// The fastest first.
    pub(super) choices: Vec<Choice>,
    pub(super) workspace: u64,
}

// SAFETY: after the search the library only reads the descriptors.
unsafe impl Send for Chosen {}
// SAFETY: as above.
unsafe impl Sync for Chosen {}

/// The descriptors of a product. The library's matrices are column-major, so the row-major D is its Dᵀ `[N, M]`. Its A is
/// our B, which it transposes, and its B is our A.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) operation: Descriptor,
    pub(super) a: Descriptor,
    pub(super) b: Descriptor,
    pub(super) d: Descriptor,
}

/// An object of the library, destroyed on drop.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) raw: Object,
    pub(super) destroy: unsafe extern "C" fn(Object) -> Status,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the object is ours. The library is never unloaded.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

/// The number of problems whose algorithms a library keeps.
const KEPT: usize = 1024;

/// The algorithms of the last problems.
#[derive(Debug, Default)]
pub(super) struct Kept {
    chosen: HashMap<MatmulProblem, Arc<Chosen>>,
    /// The oldest first.
    order: VecDeque<MatmulProblem>,
}

impl Kept {
    /// The algorithms of a problem, if they are kept.
    pub(super) fn find(&self, problem: &MatmulProblem) -> Option<Arc<Chosen>> {
        self.chosen.get(problem).cloned()
    }

    /// Adds a problem, and drops the oldest one beyond [`KEPT`].
    pub(super) fn add(&mut self, problem: MatmulProblem, chosen: Arc<Chosen>) {
        // Another thread may have added it meanwhile.
        if self.chosen.insert(problem, chosen).is_none() {
            self.order.push_back(problem);
        }
        while self.order.len() > KEPT {
            let Some(oldest) = self.order.pop_front() else { break };
            self.chosen.remove(&oldest);
        }
    }
}

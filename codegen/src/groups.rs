//! The groups of rows of a kernel.

/// The groups of rows of a kernel, each with a matrix of B of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// True if alpha has a value for each group.
    pub has_alphas: bool,
}

impl Groups {
    /// The word of a signature.
    pub(crate) fn signature(self) -> &'static str {
        if self.has_alphas { "grouped_alpha" } else { "grouped" }
    }
}

//! The groups of rows of a kernel.

/// The groups of rows of a kernel, each with a matrix of B of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// True if alpha has a value for each group.
    pub has_alphas: bool,
}

impl Groups {
    /// The word of a signature. `masked` is true if each group has a matrix of A of its own.
    pub(crate) fn signature(self, masked: bool) -> &'static str {
        match (masked, self.has_alphas) {
            (false, false) => "grouped",
            (false, true) => "grouped_alpha",
            (true, false) => "masked",
            (true, true) => "masked_alpha",
        }
    }
}

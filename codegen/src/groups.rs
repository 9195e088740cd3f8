//! The groups of rows of a kernel.

/// The groups of rows of a kernel, each with a matrix of B of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// True if alpha has a value for each group.
    pub has_alphas: bool,
    /// True if each group has a matrix of A of its own, of which it uses the first rows (`masked_scaled_mma`).
    pub masked: bool,
    /// True if scales of A are blocked: with whole tiles of 128 rows for each group, or for each matrix of A. Otherwise they
    /// are linear.
    pub blocked: bool,
}

impl Groups {
    /// The groups of a plan.
    pub(crate) fn of(groups: &fourfold_scheduler::Groups) -> Groups {
        Groups { has_alphas: groups.has_alphas, masked: groups.masked, blocked: groups.scales.is_some() }
    }

    /// Returns whether scales of A have whole tiles for each group, whose ends are data.
    pub(crate) fn has_padded_scales(self) -> bool {
        self.blocked && !self.masked
    }

    /// The word of a signature.
    pub(crate) fn signature(self) -> &'static str {
        match (self.masked, self.has_alphas) {
            (false, false) => "grouped",
            (false, true) => "grouped_alpha",
            (true, false) => "masked",
            (true, true) => "masked_alpha",
        }
    }
}

//! Validity of the kernels that a table names.

use fourfold_ir::BlockFormat;

use crate::cutlass::{CutlassVersion, rules};
use crate::dispatch::{Flaw, Kernel, Kind, Place, Table};
use crate::hopper;

impl Table {
    /// Checks that every rule is reachable and that the default takes all problems. Each kernel must be valid
    /// under this CUTLASS version, or under its rule's minimum version if that is newer.
    ///
    /// # Errors
    /// All flaws.
    pub fn check(&self, cutlass: CutlassVersion) -> Result<(), Vec<Flaw>> {
        let mut flaws = self.rule_flaws();
        let rules = self.rules.iter().enumerate();
        let named = rules.map(|(at, rule)| (Place::Rule(at), rule.kernel, rule.when.cutlass));
        for (place, kernel, least) in named.chain([(Place::Default, self.default.kernel, None)]) {
            let cutlass = least.unwrap_or(cutlass).max(cutlass);
            let pairs =
                self.targets.iter().flat_map(|target| self.formats.iter().map(move |it| (target, *it)));
            let mut refusals = pairs.map(|(target, format)| kernel.valid(target, format, cutlass).err());
            if let Some(Some(why)) = refusals.next()
                && refusals.all(|refusal| refusal.is_some())
            {
                flaws.push(Flaw::Kernel { place, kernel, why });
            }
        }
        if flaws.is_empty() { Ok(()) } else { Err(flaws) }
    }
}

impl Kernel {
    /// Checks that the kernel is valid for a target and a format, with a bf16 D and no C.
    ///
    /// # Errors
    /// The reason, as a sentence without its period.
    pub fn valid(&self, target: &str, format: BlockFormat, cutlass: CutlassVersion) -> Result<(), String> {
        match (self, Kind::of(target)) {
            (Kernel::Hopper(shared), Some(Kind::Hopper)) => {
                hopper::check(format, shared.tile(), shared.cluster).map_err(|error| error.to_string())
            }
            (Kernel::Cutlass(collectives), Some(Kind::Cutlass(family))) => {
                let configuration = collectives
                    .configuration(family, format)
                    .ok_or_else(|| format!("the family has no kernels for {format}"))?;
                rules::check(&configuration, cutlass, target).map_err(|broken| rules::texts(&broken))
            }
            _ => Err(format!("{target} has kernels of another kind")),
        }
    }
}

//! The results of an earlier run, kept by a bundle and compared by its replay.

use std::collections::HashMap;

use fourfold_executor::{Ran, RawTensor};
use serde::{Deserialize, Serialize};

use crate::report::Report;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedRun {
    /// True if every expectation was met.
    pub(crate) ok: bool,
    pub(crate) device: Option<String>,
    /// The processor that ran the fallback; null if it is unknown.
    #[serde(default)]
    pub(crate) processor: Option<String>,
    /// The tier that ran each segment.
    pub(crate) ran: Vec<String>,
}

/// The results of a run that a bundle keeps.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) run: RecordedRun,
    /// True if every expectation was met.
    pub(crate) ok: bool,
    /// The program's outputs.
    pub(crate) tensors: HashMap<String, RawTensor>,
}

impl Recorded {
    /// Returns `Ok` if another run ran each segment the same way: on the same tier and device, and on the same
    /// processor where the fallback ran. An error holds the reason if the report does not show it.
    pub(crate) fn ran_as(&self, report: &Report, processor: Option<&str>) -> Result<(), Option<String>> {
        let ran = report.segments.iter().map(|segment| segment.ran);
        if self.run.device != report.device || !ran.eq(self.run.ran.iter().map(String::as_str)) {
            return Err(None);
        }
        let is_on_device = |ran: &str| [Ran::Kernel.as_str(), Ran::Emulated.as_str()].contains(&ran);
        if self.run.ran.iter().all(|ran| is_on_device(ran)) {
            return Ok(());
        }
        match (self.run.processor.as_deref(), processor) {
            (Some(then), Some(now)) if then == now => Ok(()),
            (then, now) => {
                let [then, now] = [then, now].map(|name| name.unwrap_or("an unknown processor"));
                Err(Some(format!(
                    "the recorded run used another processor, where sums are rounded in another order: {then}; this \
                     is {now}"
                )))
            }
        }
    }
}

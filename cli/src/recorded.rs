//! The results of an earlier run, which a bundle keeps and a replay compares with.

use std::collections::HashMap;

use fourfold_executor::{Ran, RawTensor};
use serde::{Deserialize, Serialize};

use crate::report::Report;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedRun {
    /// Whether every expectation was met.
    pub(crate) ok: bool,
    pub(crate) device: Option<String>,
    /// What computed what no kernel did; null where that is not known.
    #[serde(default)]
    pub(crate) processor: Option<String>,
    /// How each segment ran.
    pub(crate) ran: Vec<String>,
}

/// What a run gave that a bundle keeps.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) run: RecordedRun,
    /// Whether every expectation was met.
    pub(crate) ok: bool,
    /// The program's outputs.
    pub(crate) tensors: HashMap<String, RawTensor>,
}

impl Recorded {
    /// Whether another run ran each segment as this one did, on such a device, and on such a processor where one had a
    /// part in it. If not, and that is not to be seen in the report, it is said why.
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
                let [then, now] = [then, now].map(|name| name.unwrap_or("one of which nothing is known"));
                Err(Some(format!(
                    "what was recorded ran on another processor, and sums are rounded in another order there: {then}; \
                     this is {now}"
                )))
            }
        }
    }
}

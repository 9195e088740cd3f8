//! Kernels of segments that are still being built.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::{BUILDING, RunReason};
use crate::kernel::Kernel;
use crate::service::{Failure, Outcome, Pending, Wait};

/// A kernel being built in the background. Clones share it; dropping the last one gives it up.
#[derive(Clone, Debug)]
pub struct PendingKernel {
    pending: Arc<Pending>,
    settled: Arc<OnceLock<Result<Kernel, RunReason>>>,
}

impl PendingKernel {
    /// Wraps a pending request.
    pub fn new(pending: Pending) -> PendingKernel {
        PendingKernel { pending: Arc::new(pending), settled: Arc::default() }
    }

    /// Waits for the kernel or its failure; `None` at the time limit.
    pub fn wait(&self, wait: Wait) -> Option<Result<&Kernel, &RunReason>> {
        self.wait_until(wait.deadline())
    }

    /// The build's outcome, if known.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.pending.try_get()
    }

    /// The kernel, or the reason that it is unavailable at `deadline`; `None` waits forever.
    pub(super) fn get(&self, deadline: Option<Instant>) -> Result<&Kernel, RunReason> {
        match self.wait_until(deadline) {
            Some(settled) => settled.map_err(RunReason::clone),
            None => {
                let kernel = self.pending.request().kernel();
                let message = format!("the kernel {kernel} is being built: the segment ran on the CPU");
                Err(RunReason { code: BUILDING, message })
            }
        }
    }

    /// Like [`PendingKernel::wait`], until a point in time; forever without one.
    pub fn wait_until(&self, deadline: Option<Instant>) -> Option<Result<&Kernel, &RunReason>> {
        if self.settled.get().is_none() {
            let outcome = self.pending.wait_until(deadline)?;
            self.settled.get_or_init(|| match outcome {
                Ok(built) => built.kernel().cloned().map_err(|failure| RunReason::from(&*failure)),
                Err(failure) => Err(RunReason::from(&**failure)),
            });
        }
        self.settled.get().map(Result::as_ref)
    }
}

impl From<&Failure> for RunReason {
    fn from(failure: &Failure) -> RunReason {
        let known = if failure.remembered && failure.lasting {
            "; recorded by an earlier build: --retry tries again"
        } else {
            ""
        };
        let Failure { message, remedy, .. } = failure;
        let message = format!("{message} (fault: {}; {remedy}{known})", failure.fault.name());
        RunReason { code: failure.code, message }
    }
}

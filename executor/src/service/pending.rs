//! Kernels being built in the background.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::Request;
use super::flight::{Outcome, Waiter};
use crate::process::Cancel;

/// A limit on waiting for a kernel that is still being built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Do not wait.
    #[default]
    Never,
    /// Wait at most this long.
    AtMost(Duration),
    /// Wait until it is built or has failed.
    Forever,
}

impl Wait {
    /// The time at which a wait that starts now ends; `None` for no limit.
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Wait::Never => Some(Instant::now()),
            // A time beyond the clock's range never comes.
            Wait::AtMost(time) => Instant::now().checked_add(time),
            Wait::Forever => None,
        }
    }
}

/// A kernel being built in the background. Dropping it cancels the build, unless another request waits for it.
#[derive(Debug)]
pub struct Pending {
    request: Request,
    /// `None` if the outcome was known at once.
    waiter: Option<Waiter>,
    outcome: OnceLock<Outcome>,
}

impl Pending {
    pub(super) fn new(request: Request, waiter: Waiter) -> Pending {
        Pending { request, waiter: Some(waiter), outcome: OnceLock::new() }
    }

    pub(super) fn ready(request: Request, outcome: Outcome) -> Pending {
        Pending { request, waiter: None, outcome: OnceLock::from(outcome) }
    }

    /// Gives the kernel up when `cancel` is cancelled. Later queries return a `cancelled` failure.
    pub fn ended_by(self, cancel: &Cancel) -> Pending {
        if let Some(waiter) = &self.waiter {
            waiter.end_by(cancel);
        }
        self
    }

    /// The request.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The outcome, if known.
    pub fn try_get(&self) -> Option<&Outcome> {
        self.wait(Wait::Never)
    }

    /// Waits for the outcome; `None` if it is not known in time.
    pub fn wait(&self, wait: Wait) -> Option<&Outcome> {
        self.wait_until(wait.deadline())
    }

    /// Like [`Pending::wait`], until a point in time; forever without one.
    pub(crate) fn wait_until(&self, deadline: Option<Instant>) -> Option<&Outcome> {
        if let Some(outcome) = self.outcome.get() {
            return Some(outcome);
        }
        let waiter = self.waiter.as_ref()?;
        let outcome = match waiter.outcome() {
            Some(outcome) => outcome,
            None => waiter.wait_until(deadline)?,
        };
        Some(self.outcome.get_or_init(|| outcome))
    }
}

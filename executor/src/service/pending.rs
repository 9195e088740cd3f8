//! A kernel that is being had in the background.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::Request;
use super::flight::{Outcome, Waiter};
use crate::process::Cancel;

/// How long a call may wait for a kernel that is still being built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Not at all.
    #[default]
    Never,
    /// So long.
    AtMost(Duration),
    /// Until it is there, or cannot be had.
    Forever,
}

impl Wait {
    /// When waiting that begins now ends: `None` if never.
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Wait::Never => Some(Instant::now()),
            // What a clock cannot hold never comes.
            Wait::AtMost(time) => Instant::now().checked_add(time),
            Wait::Forever => None,
        }
    }
}

/// A kernel that is being had in the background. When it is dropped and nobody else wants the kernel, its build is
/// cancelled.
#[derive(Debug)]
pub struct Pending {
    request: Request,
    /// Empty when the outcome was there at once.
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

    /// Gives it up when that is wished, as dropping it does; who then asks for the kernel is told so.
    pub fn ended_by(self, cancel: &Cancel) -> Pending {
        if let Some(waiter) = &self.waiter {
            waiter.end_by(cancel);
        }
        self
    }

    /// What was asked for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The kernel or why there is none, if that is known.
    pub fn try_get(&self) -> Option<&Outcome> {
        self.wait(Wait::Never)
    }

    /// The kernel or why there is none; `None` if that is not known within the time.
    pub fn wait(&self, wait: Wait) -> Option<&Outcome> {
        self.wait_until(wait.deadline())
    }

    /// As [`Pending::wait`], to a point in time; forever without one.
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

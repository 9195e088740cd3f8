//! Shared builds: concurrent requests for a key wait for one build and share its events and outcome. The build is
//! cancelled when nobody waits.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{Built, Event, Failure};
use crate::cache::CacheKey;
use crate::process::{Cancel, Stops};

/// The outcome of a request.
pub type Outcome = Result<Arc<Built>, Arc<Failure>>;

/// An event callback. Runs on the building thread, or at once if the outcome is already known.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// A build, running or ended.
pub(super) struct Flight {
    /// Cancelled when the last waiter leaves.
    pub(super) cancel: Cancel,
    kernel: Arc<str>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    listeners: Vec<Listener>,
    outcome: Option<Outcome>,
    has_ended: bool,
    waiting: usize,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

impl Flight {
    fn new(kernel: Arc<str>) -> Flight {
        Flight { cancel: Cancel::new(), kernel, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Reports an event to all listeners. A panicking listener affects nobody else.
    pub(super) fn tell(&self, event: Event) {
        let listeners = {
            let mut state = self.lock();
            state.events.push(event.clone());
            state.listeners.clone()
        };
        self.changed.notify_all();
        for listener in listeners {
            let _ = catch_unwind(AssertUnwindSafe(|| listener(&event)));
        }
    }

    /// Sets the outcome and wakes all waiters.
    pub(super) fn finish(&self, outcome: Outcome) {
        let mut state = self.lock();
        state.outcome = Some(outcome);
        state.has_ended = true;
        state.listeners.clear();
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// A poisoned state is still valid: our code does not panic while holding the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request waiting for a flight. When the last one leaves, the build is cancelled.
#[derive(Debug)]
pub(super) struct Waiter {
    seat: Arc<Seat>,
}

/// A waiter's registration, which ends when it leaves.
#[derive(Debug)]
struct Seat {
    flight: Arc<Flight>,
    is_left: AtomicBool,
}

impl Seat {
    fn leave(&self) {
        if self.is_left.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.flight.lock();
        state.waiting -= 1;
        if state.waiting == 0 && state.outcome.is_none() {
            self.flight.cancel.cancel();
        }
        drop(state);
        self.flight.changed.notify_all();
    }

    /// The outcome for this waiter: cancelled if it has left.
    fn outcome(&self, outcome: &Option<Outcome>) -> Option<Outcome> {
        let cancelled = || Err(Arc::new(Failure::cancelled(&self.flight.kernel)));
        outcome.clone().or_else(|| self.is_left.load(Ordering::Relaxed).then(cancelled))
    }
}

impl Stops for Seat {
    fn stop(&self) {
        self.leave();
    }
}

/// The interval at which a waiter checks for cancellation.
const LOOK: Duration = Duration::from_millis(25);

impl Waiter {
    /// Creates a waiter that the flight has already counted.
    fn of(flight: &Arc<Flight>) -> Waiter {
        Waiter { seat: Arc::new(Seat { flight: Arc::clone(flight), is_left: AtomicBool::new(false) }) }
    }

    /// Makes the waiter leave when `cancel` is cancelled.
    pub(super) fn end_by(&self, cancel: &Cancel) {
        let seat: Arc<dyn Stops> = Arc::<Seat>::clone(&self.seat);
        cancel.tell(Arc::downgrade(&seat));
    }

    /// Waits for the outcome or for cancellation. Calls `events` on this thread, for earlier events too.
    pub(super) fn wait(&self, cancel: &Cancel, events: &(dyn Fn(&Event) + Sync)) -> Outcome {
        let mut seen = 0;
        loop {
            let (new, outcome) = {
                let mut state = self.seat.flight.lock();
                if state.events.len() == seen && state.outcome.is_none() && !cancel.is_cancelled() {
                    let waited = self.seat.flight.changed.wait_timeout(state, LOOK);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                (state.events[seen..].to_vec(), state.outcome.clone())
            };
            seen += new.len();
            new.iter().for_each(events);
            if let Some(outcome) = outcome {
                return outcome;
            }
            if cancel.is_cancelled() {
                return Err(Arc::new(Failure::cancelled(&self.seat.flight.kernel)));
            }
        }
    }

    /// Waits until the flight ends or `deadline` passes; without a deadline, forever.
    pub(super) fn wait_until(&self, deadline: Option<Instant>) -> Option<Outcome> {
        let mut state = self.seat.flight.lock();
        loop {
            if let Some(outcome) = self.seat.outcome(&state.outcome) {
                return Some(outcome);
            }
            let left = match deadline {
                Some(deadline) => {
                    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?
                }
                None => Duration::from_secs(3600),
            };
            state =
                self.seat.flight.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.seat.outcome(&self.seat.flight.lock().outcome)
    }
}

impl Drop for Waiter {
    /// The last waiter takes the outcome with it. If the build thread dropped it, a library might be unloaded while
    /// the process exits, and race with the exit handlers.
    fn drop(&mut self) {
        self.seat.leave();
        let taken = {
            let mut state = self.seat.flight.lock();
            if state.waiting == 0 { state.outcome.take() } else { None }
        };
        drop(taken);
    }
}

/// This process's state of a key.
enum Entry {
    Live(Weak<Built>),
    Flying(Arc<Flight>),
    /// A lasting failure, with its sequence number.
    Bad(Arc<Failure>, u64),
}

/// The result of [`Table::enter`].
pub(super) enum Found {
    Here(Outcome),
    Flying(Waiter),
    /// Unknown: the caller must build and report to the flight.
    New(Waiter, Arc<Flight>),
}

/// This process's kernels by key. Keeps none of them alive.
pub(super) struct Table {
    entries: Mutex<HashMap<CacheKey, Entry>>,
    /// Record lasting failures here. False with a cache, which records them itself: a failure fixed through another
    /// process is then fixed here too.
    remembers: bool,
    failures: AtomicU64,
}

/// The maximum number of recorded failures; the oldest are removed. Each may hold half a megabyte of log.
const MOST_BAD: usize = 32;

impl Table {
    pub(super) fn new(remembers: bool) -> Table {
        Table { entries: Mutex::default(), remembers, failures: AtomicU64::new(0) }
    }

    /// The kernel, if it is live in this process.
    pub(super) fn live(&self, key: CacheKey) -> Option<Arc<Built>> {
        match self.lock().get(&key) {
            Some(Entry::Live(built)) => built.upgrade(),
            _ => None,
        }
    }

    /// Looks up a key and joins or starts its flight. With `forgives`, lasting failures are tried again.
    pub(super) fn enter(
        &self,
        key: CacheKey,
        kernel: &Arc<str>,
        forgives: bool,
        listener: Option<Listener>,
    ) -> Found {
        let mut entries = self.lock();
        match entries.get(&key) {
            Some(Entry::Live(built)) => {
                if let Some(built) = built.upgrade() {
                    return Found::Here(Ok(built));
                }
            }
            Some(Entry::Bad(failure, _)) if !forgives => return Found::Here(Err(Arc::clone(failure))),
            Some(Entry::Flying(flight)) => {
                let mut state = flight.lock();
                // A cancelled flight is ending; start a new one.
                if !flight.cancel.is_cancelled() {
                    state.waiting += 1;
                    state.listeners.extend(listener);
                    drop(state);
                    return Found::Flying(Waiter::of(flight));
                }
            }
            _ => {}
        }
        let flight = Arc::new(Flight::new(Arc::clone(kernel)));
        {
            let mut state = flight.lock();
            state.waiting = 1;
            state.listeners.extend(listener);
        }
        entries.insert(key, Entry::Flying(Arc::clone(&flight)));
        // Remove keys of dropped kernels, which would accumulate.
        if entries.len().is_power_of_two() {
            entries.retain(|_, entry| !matches!(entry, Entry::Live(built) if built.strong_count() == 0));
        }
        Found::New(Waiter::of(&flight), flight)
    }

    /// Ends a flight: updates the table first, so that new requests get the result, then wakes waiters.
    pub(super) fn land(&self, key: CacheKey, flight: &Arc<Flight>, outcome: Outcome) {
        {
            let mut entries = self.lock();
            let is_current =
                matches!(entries.get(&key), Some(Entry::Flying(current)) if Arc::ptr_eq(current, flight));
            if is_current {
                match &outcome {
                    Ok(built) => entries.insert(key, Entry::Live(Arc::downgrade(built))),
                    Err(failure) if failure.lasting && self.remembers => {
                        let number = self.failures.fetch_add(1, Ordering::Relaxed);
                        let failure = Failure { remembered: true, ..Failure::clone(failure) };
                        entries.insert(key, Entry::Bad(Arc::new(failure), number))
                    }
                    Err(_) => entries.remove(&key),
                };
                forget_oldest(&mut entries);
            }
        }
        flight.finish(outcome);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CacheKey, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget_oldest(entries: &mut HashMap<CacheKey, Entry>) {
    let number = |entry: &Entry| match entry {
        Entry::Bad(_, number) => Some(*number),
        Entry::Live(_) | Entry::Flying(_) => None,
    };
    let mut bad: Vec<u64> = entries.values().filter_map(number).collect();
    if bad.len() > MOST_BAD {
        bad.sort_unstable();
        let oldest = bad[bad.len() - MOST_BAD];
        entries.retain(|_, entry| number(entry).is_none_or(|number| number >= oldest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::BuildFault;

    #[test]
    fn lasting_failures_are_remembered_where_no_cache_does_it_and_only_so_many() {
        for remembers in [true, false] {
            let table = Table::new(remembers);
            let kernel: Arc<str> = "kernel".into();
            let enter = |number: usize| {
                let key = format!("{number:064x}").parse().unwrap();
                (key, table.enter(key, &kernel, false, None))
            };
            for number in 0..MOST_BAD + 3 {
                let (key, Found::New(waiter, flight)) = enter(number) else { panic!("it is new") };
                let failure = Failure::new("compile_error", BuildFault::OurBug, "no");
                table.land(key, &flight, Err(Arc::new(Failure { lasting: true, ..failure })));
                assert!(waiter.outcome().unwrap().is_err_and(|failure| !failure.remembered));
                drop(waiter);
                assert!(
                    flight.has_ended() && flight.lock().outcome.is_none(),
                    "the last who waits takes it along"
                );
            }
            assert!(matches!(enter(2).1, Found::New(..)), "the oldest went");
            match enter(3).1 {
                Found::Here(Err(failure)) => assert!(remembers && failure.remembered),
                found => assert!(!remembers && matches!(found, Found::New(..))),
            }
        }
    }
}

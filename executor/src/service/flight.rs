//! One build that several wait for: they share its events, its result or its failure, and it ends when nobody waits.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{Built, Event, Failure};
use crate::cache::CacheKey;
use crate::process::{Cancel, Stops};

/// What those who wait get.
pub type Outcome = Result<Arc<Built>, Arc<Failure>>;

/// Somebody who is told of events: on the thread that builds, or at once where there is nothing to wait for.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// A build that is under way, or has ended.
pub(super) struct Flight {
    /// The wish to stop, once nobody waits.
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

    /// Tells everybody. A listener that panics harms nobody but itself.
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

    /// Says how it ended.
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

    /// A state that a panic has left is whole: nothing of ours panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits. When the last one goes, the build is cancelled.
#[derive(Debug)]
pub(super) struct Waiter {
    seat: Arc<Seat>,
}

/// That somebody waits, until that is over.
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

    /// How it ended, for whoever sits here.
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

/// How often somebody who waits looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(25);

impl Waiter {
    /// One who waits from now on; the flight has counted it already.
    fn of(flight: &Arc<Flight>) -> Waiter {
        Waiter { seat: Arc::new(Seat { flight: Arc::clone(flight), is_left: AtomicBool::new(false) }) }
    }

    /// Has a wish end the waiting.
    pub(super) fn end_by(&self, cancel: &Cancel) {
        let seat: Arc<dyn Stops> = Arc::<Seat>::clone(&self.seat);
        cancel.tell(Arc::downgrade(&seat));
    }

    /// Waits to the end, or to the wish to stop. Events come on this thread, those of before too.
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

    /// Waits until it has ended or `deadline` is over; forever without one.
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
    /// The last one takes the outcome along. The thread of the build must not be left with it: it may still be running
    /// when the process ends, and there a library that is unloaded and the handlers of the exit would meet.
    fn drop(&mut self) {
        self.seat.leave();
        let taken = {
            let mut state = self.seat.flight.lock();
            if state.waiting == 0 { state.outcome.take() } else { None }
        };
        drop(taken);
    }
}

/// What is known of a key in this process.
enum Entry {
    Live(Weak<Built>),
    Flying(Arc<Flight>),
    /// A lasting failure, and which one it was of all.
    Bad(Arc<Failure>, u64),
}

/// What a table has for a key.
pub(super) enum Found {
    Here(Outcome),
    Flying(Waiter),
    /// Nothing, so that whoever asked must build, and tell the flight.
    New(Waiter, Arc<Flight>),
}

/// The kernels of this process by key. It keeps none of them alive.
pub(super) struct Table {
    entries: Mutex<HashMap<CacheKey, Entry>>,
    /// Whether lasting failures are remembered here. Where there is a cache they are there, and whoever mends one of
    /// them in another process has mended it here.
    remembers: bool,
    failures: AtomicU64,
}

/// More failures than this are not remembered; the oldest go. Each may have a log of half a megabyte.
const MOST_BAD: usize = 32;

impl Table {
    pub(super) fn new(remembers: bool) -> Table {
        Table { entries: Mutex::default(), remembers, failures: AtomicU64::new(0) }
    }

    /// The kernel if somebody has it.
    pub(super) fn live(&self, key: CacheKey) -> Option<Arc<Built>> {
        match self.lock().get(&key) {
            Some(Entry::Live(built)) => built.upgrade(),
            _ => None,
        }
    }

    /// What there is for a key. `forgives` has lasting failures tried again.
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
                // One that is being stopped, because nobody wanted it, is not what somebody wants now.
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
        // Keys of kernels that are gone would gather otherwise.
        if entries.len().is_power_of_two() {
            entries.retain(|_, entry| !matches!(entry, Entry::Live(built) if built.strong_count() == 0));
        }
        Found::New(Waiter::of(&flight), flight)
    }

    /// Ends a flight: first here, so that whoever comes now gets the result, then for those who wait.
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

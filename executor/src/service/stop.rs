//! Stops all builds of a process before it exits.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::flight::Flight;
use crate::temporary::{begin_end, remove_temporary};

/// All builds of this process, of all services.
static FLIGHTS: Mutex<Flights> = Mutex::new(Flights { all: Vec::new(), are_over: false });

struct Flights {
    all: Vec<Weak<Flight>>,
    are_over: bool,
}

/// Adds a build, so that [`stop_all`] stops it; at once if it has been called.
pub(super) fn register(flight: &Arc<Flight>) {
    let mut flights = FLIGHTS.lock().unwrap_or_else(PoisonError::into_inner);
    flights.all.retain(|flight| flight.upgrade().is_some_and(|flight| !flight.has_ended()));
    flights.all.push(Arc::downgrade(flight));
    if flights.are_over {
        flight.cancel.cancel();
    }
}

/// Stops all builds of this process, current and future, before it exits. Kills their compilers and removes temporary
/// folders. Waits at most `limit`; returns true if all builds have ended.
pub fn stop_all(limit: Duration) -> bool {
    begin_end();
    let all_ended = stop_flights(limit);
    remove_temporary();
    all_ended
}

fn stop_flights(limit: Duration) -> bool {
    let deadline = Instant::now().checked_add(limit);
    let flights: Vec<Arc<Flight>> = {
        let mut flights = FLIGHTS.lock().unwrap_or_else(PoisonError::into_inner);
        flights.are_over = true;
        flights.all.iter().filter_map(Weak::upgrade).collect()
    };
    flights.iter().for_each(|flight| flight.cancel.cancel());
    loop {
        if flights.iter().all(|flight| flight.has_ended()) {
            return true;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

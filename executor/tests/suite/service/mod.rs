//! The compile service: one build per key in a process and among processes, failures as data, and background builds.

mod background;
mod faults;
pub(crate) mod fixture;
mod flight;
mod headers;
mod killed;
mod known_bad;
mod paths;
mod processes;
mod turns;

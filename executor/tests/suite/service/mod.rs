//! The compile service: one build per key, in this process and among many, failures as data, builds in the background.

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

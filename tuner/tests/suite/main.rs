//! The integration tests of the tuner, in one binary, since each binary costs a link.

mod formats;
mod heatmap;
mod profile;
mod select;

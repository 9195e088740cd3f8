//! The integration tests of the scheduler, in one binary, since each binary costs a link.

mod normalize;
mod partition;

//! The integration tests of the executor, in one binary, since each binary costs a link. Tests that replace standard
//! output, or limit or measure the memory of the process, are separate binaries.

#[macro_use]
mod test_name;

mod build;
mod cache;
mod classes;
mod device;
mod environment;
mod service;

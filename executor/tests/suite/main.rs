//! The integration tests of the executor, in one binary, since each binary costs a link. Tests that replace standard
//! output, or limit or measure the memory of the process, are separate binaries.

/// Returns the name of a test of this module as `--exact` takes it: its path below the crate. The test must exist.
macro_rules! test_name {
    ($test:ident) => {{
        let _: fn() = $test;
        let path = concat!(module_path!(), "::", stringify!($test));
        path.split_once("::").expect("a path begins with the crate").1
    }};
}

mod build;
mod cache;
mod classes;
mod device;
mod environment;
mod service;

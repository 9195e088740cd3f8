//! Names of tests, for a test that starts its own binary again.

/// Returns the name of a test of this module as `--exact` takes it: its path below the crate. The test must exist.
macro_rules! test_name {
    ($test:ident) => {{
        let _: fn() = $test;
        let path = concat!(module_path!(), "::", stringify!($test));
        path.split_once("::").expect("a path begins with the crate").1
    }};
}

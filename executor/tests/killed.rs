//! Kills builds at random points, as often as the second tier does.

#[macro_use]
#[path = "suite/test_name.rs"]
mod test_name;
#[path = "suite/service"]
mod service {
    #[allow(dead_code, reason = "other tests use the rest")]
    mod fixture;
    mod killed;
}

//! Kills builds at random points, as often as the second tier does.

// Other tests use the rest of the fixture.
#![allow(dead_code)]

#[macro_use]
#[path = "suite/test_name.rs"]
mod test_name;
#[path = "suite/service"]
mod service {
    mod fixture;
    mod killed;
}

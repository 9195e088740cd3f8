//! A crate that depends on this one without using it does not link it.

use tract_core::internal::*;

#[test]
fn the_name_is_unknown_without_a_use_of_the_crate() -> TractResult<()> {
    assert!(runtime_for_name("fourfold")?.is_none());
    Ok(())
}

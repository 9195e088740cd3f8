//! Selections with the large instances of the second tier.

#[path = "suite/select.rs"]
mod select;

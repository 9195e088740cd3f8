//! The properties of random programs with the number of programs of the second tier.

#[path = "suite/properties.rs"]
mod properties;

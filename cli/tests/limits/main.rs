//! The command `fourfold` at its limits: sweeps that are interrupted, streams that fail, and too little memory,
//! threads, files or space. These tests start thousands of processes; they are in the second tier.

#[path = "../command/machine.rs"]
mod machine;
mod resources;
#[cfg(feature = "tune")]
mod streams;
#[cfg(feature = "tune")]
mod sweep;

//! Devices, runs and prepared programs on a stand-in driver with stand-in kernels that really multiply.
//!
//! The driver queues work until a caller waits for it. The tests check which tensors move, which segments run on the
//! device, the reasons for the others, and that every resource is freed.
#![allow(unsafe_code, reason = "the stand-in is a library, and prepared programs take addresses")]

mod allocations;
mod blas;
mod branches;
mod choices;
mod columns;
mod debug;
pub(crate) mod fixture;
mod interface;
mod kernels;
mod measured;
mod memory;
mod outputs;
mod pending;
pub(crate) mod placed;
mod programs;
mod roles;
mod rotation;
mod sessions;
mod several;
pub(crate) mod stand_in;
mod tier;
mod whole;

//! Devices, runs and prepared programs on a stand-in driver, whose work is queued until somebody waits for it, with
//! stand-in kernels that really multiply: what moves, what runs where and why not, and that nothing is left.
#![allow(unsafe_code, reason = "the stand-in is a library, and prepared programs take addresses")]

mod allocations;
mod debug;
mod fixture;
mod interface;
mod kernels;
mod measured;
mod memory;
mod outputs;
mod pending;
mod placed;
mod programs;
mod roles;
mod several;
mod stand_in;

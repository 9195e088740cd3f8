//! What is taken, what is not and why, in which order it runs, and that the checker would notice otherwise.

mod checker;
mod device;
mod kernels;
mod order;
mod outputs;
mod random;
mod reasons;
mod support;
mod written;

//! Accepted and refused ops, with reasons, the order of segments, and the checker's verdict on defects.

mod checker;
mod choices;
mod device;
mod grouped;
mod kernels;
mod limits;
mod order;
mod outputs;
mod pairs;
mod random;
mod reasons;
mod rows;
mod support;
mod weight_only;
mod written;

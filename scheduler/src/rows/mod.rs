//! Row kernels: forms regions of elementwise ops, reductions and quantizations that one kernel computes row by row, and
//! plans them.

mod forming;
mod merging;
mod needs;
mod program;
mod shapes;

pub(crate) use forming::form;
pub(crate) use needs::exceeded;
pub(crate) use program::plan_rows;

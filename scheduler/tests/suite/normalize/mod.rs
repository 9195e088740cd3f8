//! Normalization: each rule on text, its near misses, and the interpreter's bits before and after.

mod axes;
mod contract;
mod linear_scales;
mod norms;
mod pairs;
mod random;
mod rules;
mod support;
mod weight_only;
mod written;

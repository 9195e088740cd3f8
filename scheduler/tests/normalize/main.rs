//! Normalization: each rule on text, its near misses, and the interpreter's bits before and after.

mod random;
mod rules;
mod support;

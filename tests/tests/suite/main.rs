//! The tests of the workspace that use the standard harness and need no feature, in one binary, since each binary costs
//! a link.

mod choices;
mod claims;
mod codes;
mod covering;
mod docs;
mod functions;
mod groups;
mod kit;
mod moves;
mod mutations;
mod normalize;
mod outputs;
mod processes;
mod properties;
mod quantize;
mod rows;
mod signatures;
mod tensor_memory;
mod tidy;
mod tiles;
mod written;
mod written_mx;

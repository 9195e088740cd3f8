//! Rewrites the PTX of Blackwell kernels that use tensor memory, for a Hopper GPU.
//!
//! nvcc compiles a generated source for `compute_100a` to PTX. [`rewrite`] replaces each instruction that sm_90a lacks
//! by a call of a device function. The functions are another PTX text, the library. `ptxas -arch=sm_90a` assembles the
//! result. The rewriter refuses every statement that it does not know.
//!
//! | instruction | replacement |
//! |---|---|
//! | `elect.sync` | itself, then `fourfold_flush(mask)` |
//! | `tcgen05.alloc`, `tcgen05.dealloc` | `fourfold_alloc`, `fourfold_dealloc`, with the CTA group |
//! | `tcgen05.cp` of `32x128b.warpx4` | `fourfold_copy_scales` |
//! | `tcgen05.mma` of `kind::mxf4nvf4` or `kind::mxf4` | `fourfold_mma` |
//! | `tcgen05.commit` | `fourfold_commit` |
//! | `tcgen05.ld`, `tcgen05.st` of `32x32b` | `fourfold_load_address`, `fourfold_store_address`, then global accesses |
//! | `tcgen05.wait`, `tcgen05.fence`, `tcgen05.relinquish_alloc_permit` | none: the emulation works in order |
//! | `clusterlaunchcontrol.try_cancel` | `fourfold_try_cancel`, and `fourfold_enter` at the kernel's entry |
//! | `clusterlaunchcontrol.query_cancel` | moves out of the 128-bit response |
//! | `mbarrier.try_wait.parity` | itself, then `fourfold_waited` after a failed attempt |
//! | `cvt.rn.satfinite.e2m1x2.f32` | `fourfold_e2m1x2` |

mod block;
mod edit;
mod error;
mod header;
mod library;
mod operand;
mod replace;
mod rewrite;
mod statement;
mod synchronize;
mod tensor_memory;
#[cfg(test)]
mod tests;
mod token;
mod vocabulary;

pub use error::{PtxText, RewriteError, RewriteProblem};
pub use rewrite::rewrite;

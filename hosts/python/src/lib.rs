//! The native library of the Python package `fourfold`.
//!
//! It exports these functions. [`fourfold_plugin_query`] returns the table of the C interface, which `import fourfold`
//! calls through ctypes. [`register::fourfold_torch_register`] defines the ops of `import fourfold.torch`.
//!
//! | module | task |
//! |---|---|
//! | [`shim`] | finds libtorch's stable C functions in the running process |
//! | [`stack`] | takes arguments from an op's stack and puts results there |
//! | [`register`] | defines the ops, and turns errors into exceptions |
//! | [`ops`] | checks the arguments of each op |
//! | [`arguments`] | checks arguments that several ops have |
//! | [`by_m`] | multiplies 16-bit or quantized numbers, chosen by M |
//! | [`kernels`] | lists the kernels of a tuning manifest, and multiplies with one of them |
//! | [`product`] | checks the operands of a product |
//! | [`grouped`] | multiplies rows sorted by expert |
//! | [`programs`] | writes the program of each op |
//! | [`module`] | compiles programs once, and checks tensors |
//! | [`run`] | runs a program on tensors of the host or of a GPU |
//! | [`log`] | passes lines of builds to Python, until it ends |
//! | [`device`] | prepares launches, once for each stream and shape |

pub mod arguments;
pub mod by_m;
pub mod device;
pub mod error;
pub mod grouped;
pub mod kernels;
pub mod log;
pub mod module;
pub mod ops;
pub mod product;
pub mod programs;
pub mod register;
pub mod run;
pub mod shim;
pub mod stack;

pub use fourfold_capi::fourfold_plugin_query;

//! What happens: files, data, and the execution of partitioned programs.
//!
//! This is the only crate with `unsafe` and the only one that touches the outside world. [`read_text`] and
//! [`read_tensors`] bring a program and its data in; [`run`] executes a partition; [`fallback`] computes whatever
//! no kernel takes. [`toolchain`] finds or installs the compiler and the kernel library, [`run_tool`] runs such
//! programs within bounds, and [`environment`] lists every variable that has a say. [`build()`] compiles a generated
//! kernel and proves what came out, [`service`] sees to it that each is built once, whatever goes wrong, and [`kernel`]
//! loads and questions it. [`device`] finds the GPUs to run it on;
//! [`Preparation`] builds the launches of a program of kernels only, or of one kernel, for hosts
//! that have the tensors there already. [`measure`] times one kernel on one problem and checks what it writes.
//! [`cache`] keeps built kernels on disk.
//!
//! What safe functions here rely on, beyond their types: a [`Kernel`] is what [`build()`] made of a generated source, or
//! what the caller of the unsafe [`Kernel::open`] vouches for. Whatever segment it is put at, it is launched only if it
//! says of itself that it is for the device ([`kernel::Metadata`]), and that it reads and writes what the segment's plan
//! says ([`signature`](fourfold_scheduler::Plan::signature)), and if the sizes that it asks for are those of the operands. That it computes what the plan
//! says is left to whoever chose it.

#![allow(unsafe_code, reason = "vector instructions, gemm, fallible allocations, the CUDA driver, kernels")]

mod build;
pub mod cache;
mod causes;
mod data;
pub mod device;
pub mod environment;
pub mod fallback;
mod fault;
mod files;
mod isolation;
pub mod kernel;
mod last_resort;
pub mod measure;
mod parallel;
mod process;
mod profiler;
mod run;
mod sealed;
pub mod service;
mod signals;
mod stdio;
mod temporary;
pub mod toolchain;
mod transient;

pub use build::{
    Artifact, BuildError, BuildInput, BuildOptions, BuildTools, BuiltWith, DumpedKernel, FLAGS, Phase,
    Resources, ToolCause, ToolEnvironment, build, semantic_flags,
};
pub use cache::{Cache, CacheError, CacheKey, CacheOptions};
pub use causes::chain;
pub use data::{
    DataError, DataFile, RawTensor, TensorDataError, read_tensors, read_tensors_given, write_tensors,
};
pub use device::{Device, DeviceError, Gpu, discover};
pub use fault::BuildFault;
pub use files::{
    AppendFile, FileError, RECORDS_LIMIT, TEXT_LIMIT, files_below, is_standard_stream, read_input, read_text,
    serialize_path, write_file,
};
pub use kernel::{Kernel, LoadError};
pub use last_resort::{Allocator, report_memory_exhaustion};
pub use parallel::spawn_workers;
pub use process::{Cancel, ToolRun, run_tool, run_tool_watched};
pub use profiler::{ProfileFolder, Profiler, ProfilerError, ProfilerTool, find_profiler, this_program};
pub use run::{
    ALIAS, BUILDING, DEVICE_ERROR, DEVICE_MEMORY, FALLBACK_SEGMENT, FaultPlace, KERNEL_REFUSED,
    LaunchArgument, LaunchRecord, LaunchWorkspace, MISSING_ADDRESS, Machine, Moved, NO_DEVICE,
    NO_SUCH_SEGMENT, NOT_BUILT, POINTER_ALIGNMENT, PendingKernel, Preparation, PreparedProgram, Ran, Refused,
    Run, RunError, RunOptions, RunReason, SegmentKernel, SegmentRun, WORKSPACE_SIZE, run, run_segment,
};
pub use sealed::{Sealed, SealedError, SealedFormat, SealedWriter};
pub use signals::{ignore_file_size_signal, keep_ignored};
pub use stdio::{StdoutOnStderr, stdout_on_stderr, write_to_stdout};
pub use transient::Transient;

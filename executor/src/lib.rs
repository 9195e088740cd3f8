//! Builds, caches and loads kernels, and executes partitioned programs. All access to files and devices is here.
//!
//! Of Fourfold's libraries, only this one has `unsafe` code, accesses files, runs tools, or calls the CUDA driver.
//!
//! # Entry points
//!
//! - [`read_text`] and [`read_tensors`] read a program and its data.
//! - [`run`] executes a partition, and [`run_segment`] one segment of it. [`fallback`] computes every op that no kernel
//!   runs.
//! - [`Session`] executes a partition repeatedly, with params that are uploaded once.
//! - [`Preparation`] builds launches for hosts whose tensors are on the device. It prepares one segment, or a program
//!   without fallback segments. [`plan_memory`] shows the memory of its intermediates.
//! - [`toolchain`] finds or installs nvcc and CUTLASS. [`environment`] lists every environment variable that is read.
//! - [`build()`] compiles a generated kernel and verifies the binary. [`service`] builds each kernel once, and
//!   [`cache`] stores kernels on disk.
//! - [`blas`] multiplies matrices on the device, through the vendor's library.
//! - [`kernel`] loads and queries kernels; [`device`] finds GPUs and manages memory, streams and graphs.
//! - [`measure`] times one kernel on one problem and verifies its output.
//! - [`run_tool`] runs external programs with limits.
//!
//! # Features
//!
//! - `object-store` adds object stores, such as `s3://`, as tiers of the cache. Off by default.
//!
//! # Example
//!
//! Without kernels, every segment runs on the fallback:
//!
//! ```
//! use std::collections::HashMap;
//!
//! use fourfold_executor::{RunOptions, run};
//! use fourfold_ir::{Capabilities, Tensor, bind::bind, load};
//! use fourfold_scheduler::partition;
//!
//! let text = "fir 1
//! func @main(%x: tensor<[4], f32>) {
//!   %y = relu %x : tensor<[4], f32>
//!   return %y
//! }
//! ";
//! let (program, _) = load(text).expect("a valid program");
//! let capabilities = Capabilities { target: "cpu".into(), formats: Vec::new(), not_emulated: Vec::new(),
//!     block_quantize: None, device: Default::default() };
//! let partition = partition(&program, &capabilities);
//! let tensors = HashMap::from([("x".to_owned(), Tensor::from_f32(vec![4], &[-1.0, 0.0, 1.0, 2.0])?)]);
//! let run = run(&program, &partition, &bind(&program, &tensors)?, &RunOptions::default(), None)?;
//! let y = run.value(program.module().outputs[0]).expect("an output");
//! assert_eq!(y.to_f32(), [0.0, 0.0, 1.0, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Safety
//!
//! Safe functions trust each [`Kernel`]. A kernel is a library that [`build()`] made from a generated source, or one
//! that the caller of the unsafe [`Kernel::open`] vouches for. A kernel is launched for a segment only under three
//! conditions:
//!
//! 1. Its metadata states that it runs on the device ([`kernel::Metadata`]).
//! 2. It declares the inputs and outputs of the segment's plan ([`signature`](fourfold_scheduler::Plan::signature)).
//! 3. The sizes that it requires match the operands.
//!
//! The computation itself is not checked: the kernel's supplier must ensure that it is the plan's.

#![allow(unsafe_code, reason = "vector instructions, gemm, fallible allocations, the CUDA driver, kernels")]

pub mod blas;
mod build;
pub mod cache;
mod causes;
mod data;
pub mod device;
pub mod environment;
pub mod fallback;
mod fault;
mod files;
mod host;
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
    Resources, ToolCause, ToolEnvironment, Translation, build, host_flags, ptx_flags, semantic_flags,
};
pub use cache::{Cache, CacheError, CacheKey, CacheOptions};
pub use causes::chain;
pub use data::{
    AxisSlice, DataError, DataFile, DataSources, OpenSources, OtherTensors, PartsFault, RawTensor,
    ReferenceError, SafetensorsFile, StoredTensor, TensorDataError, TensorEncoding, TensorReference,
    TensorSource, read_tensors, read_tensors_given, write_data, write_tensors,
};
pub use device::{Device, DeviceError, Gpu, discover};
pub use fault::BuildFault;
pub use files::{
    AppendFile, FileError, RECORDS_LIMIT, RangeHash, RegularFile, TEXT_LIMIT, create_file, create_folder,
    files_below, files_in, io_error, is_present, is_standard_stream, path_from, read_input, read_text,
    remove_link, serialize_path, write_file, write_generated_file,
};
pub use host::{driver_release, host_name};
pub use kernel::{Kernel, LoadError};
pub use last_resort::{Allocator, report_memory_exhaustion};
pub use parallel::spawn_workers;
pub use process::{Cancel, LineError, LineProcess, ToolRun, run_tool, run_tool_watched};
pub use profiler::{ProfileFolder, Profiler, ProfilerError, ProfilerTool, find_profiler, this_program};
pub use run::{
    ALIAS, BUILDING, DEVICE_ERROR, DEVICE_MEMORY, DeviceTensor, FALLBACK_SEGMENT, FaultPlace, HOST_OPERAND,
    KERNEL_REFUSED, Kernels, LaunchArgument, LaunchRecord, LaunchWorkspace, MISSING_ADDRESS, Machine,
    MemoryContent, MemoryPart, MemoryPlan, Moved, NO_DEVICE, NO_SUCH_SEGMENT, NOT_BUILT, NOT_CHOSEN,
    PART_ALIGNMENT, POINTER_ALIGNMENT, PendingKernel, Preparation, PreparedProgram, Ran, Refused, Run,
    RunError, RunOptions, RunReason, SegmentKernel, SegmentRun, Session, SessionError, SessionInput,
    SessionRun, WORKSPACE_SIZE, plan_memory, run, run_segment,
};
pub use sealed::{Sealed, SealedError, SealedFormat, SealedWriter};
pub use signals::{ignore_file_size_signal, keep_ignored};
pub use stdio::{StdoutOnStderr, stdout_on_stderr, write_to_stdout};
pub use transient::Transient;

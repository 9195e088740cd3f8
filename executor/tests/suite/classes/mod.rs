//! Known classes of faults in JIT kernel caches and plug-in backends, each with the public report that shows it. A test
//! is named after its row.
//!
//! | class | evidence | test |
//! |---|---|---|
//! | a rename race is lost | deepseek-ai/DeepEP#683 | `sharing::a_lost_rename_race_gives_the_winners_entry` |
//! | files missing on a shared cache | triton-lang/triton#11512, pytorch/pytorch#173679 | `sharing::files_that_a_shared_cache_lacks_cost_a_build` |
//! | a failed or empty build is published | flashinfer-ai/flashinfer#4062 | `sharing::a_failed_or_empty_build_is_never_published` |
//! | a load races a build | flashinfer-ai/flashinfer#1467 | `sharing::a_load_never_sees_a_build_under_way` |
//! | the lock file is deleted | flashinfer-ai/flashinfer#3777 | `sharing::a_deleted_lock_file_costs_at_most_a_second_build` |
//! | mtime as validity | flashinfer-ai/flashinfer#4489, #4490 | `keys::modification_times_decide_nothing` |
//! | key too narrow | tinygrad/tinygrad#15811 | `keys::toolchains_and_flags_have_keys_of_their_own` |
//! | key too wide | deepseek-ai/DeepGEMM#388, ModelCloud/GPTQModel#3039 | `keys::install_paths_and_thread_counts_are_in_no_key` |
//! | a kernel in memory is reused on another GPU | deepseek-ai/TileKernels#30, CUTLASS 4.4.2 | `devices::a_kernel_in_memory_is_not_reused_on_another_gpu` |
//! | stale launch attributes | facebookexperimental/triton#3514 | `devices::a_launch_keeps_no_attribute_of_the_one_before` |
//! | a module is loaded during capture | newton-physics/newton#357 | `devices::the_first_launch_may_be_captured` |
//! | native code from the working directory | NVIDIA/cutlass#3404 | `trust::the_working_directory_is_no_cache` |
//! | links, foreign owners, open folders | unslothai/unsloth-zoo#906 | `trust::links_foreign_owners_and_open_folders_are_refused` |
//! | check, then use | unslothai/unsloth-zoo#906 | `trust::what_was_checked_is_what_is_loaded` |
//! | a co-located hash is not authentication | unslothai/unsloth-zoo#906 | `trust::a_right_hash_does_not_make_a_strangers_entry_ours` |
//! | a new host GCC breaks the JIT | reports of GCC 16 | `host_compiler::a_refused_host_compiler_is_named_and_does_not_last` |
//!
//! Missing, because they require a special file system:
//! - NFS: a negative look-up that is cached for up to a minute after a lost race, and locks that a server does not grant
//!   or loses. If a lock is unavailable, a kernel is built without the cache (`service::flight`).
//! - EBUSY from a shared file system when a file that another host has open is removed.
#![allow(unsafe_code, reason = "prepared programs take addresses")]

mod devices;
mod host_compiler;
mod keys;
mod sharing;
mod trust;

//! The command `fourfold` as its users see it: output, files, and exit codes.

mod background;
mod bench;
mod bundle;
mod cache;
mod commands;
mod data;
mod device;
mod failures;
mod import;
mod interface;
mod known_bad;
mod machine;
mod pack;
#[cfg(feature = "tune")]
mod profile;
#[cfg(feature = "tune")]
mod reference;
mod report_file;
mod stand_in;
mod toolchain;

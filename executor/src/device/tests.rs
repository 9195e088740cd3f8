//! Tests of missing, old, stub and deviceless drivers: each has its own error, and none panics.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::driver::{Driver, probe};
use super::*;

/// The stand-in driver, built with these definitions; the folder must outlive its use.
fn stand_in(folder: &Path, defines: &[&str]) -> Vec<String> {
    let library: PathBuf = folder.join("libstandin.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins/libcuda.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(source)
        .status();
    assert!(built.unwrap().success());
    vec!["libfourfold-no-such-driver.so".to_owned(), library.to_str().unwrap().to_owned()]
}

fn probe_stand_in(defines: &[&str]) -> Result<Driver, DeviceError> {
    let folder = tempfile::tempdir().unwrap();
    probe(stand_in(folder.path(), defines))
}

#[test]
fn a_machine_without_a_driver_says_so() {
    assert_eq!(probe(["libfourfold-no-such-driver.so".to_owned()]), Err(DeviceError::NoDriver));
    // A library without driver functions.
    assert_eq!(probe(["libc.so.6".to_owned()]), Err(DeviceError::NoDriver));
}

#[test]
fn looking_for_devices_never_panics() {
    match discover() {
        Ok(gpus) => {
            assert!(gpus.iter().enumerate().all(|(ordinal, gpu)| gpu.ordinal == ordinal));
            let error = Device::open(gpus.len()).unwrap_err();
            assert_eq!(error, DeviceError::NoSuchDevice { ordinal: gpus.len(), count: gpus.len() });
        }
        Err(error) => {
            assert!(matches!(error, DeviceError::NoDriver | DeviceError::DriverTooOld { .. }), "{error}");
            assert_eq!(Device::open(0).unwrap_err(), error);
        }
    }
}

#[test]
fn a_driver_is_judged_by_its_version_before_anything_else() {
    assert_eq!(probe_stand_in(&[]), Ok(Driver { version: 13_000, has_devices: true }));
    let error = probe_stand_in(&["VERSION=12080", "INIT=999"]).unwrap_err();
    assert_eq!(error, DeviceError::DriverTooOld { found: 12_080, needed: NEEDED_DRIVER });
    assert_eq!(error.to_string(), "the driver supports CUDA 12.8, but CUDA 13.0 is required");
}

#[test]
fn a_stub_is_no_driver_and_no_device_is_no_error() {
    assert_eq!(probe_stand_in(&["INIT=34"]), Err(DeviceError::NoDriver));
    let driver = probe_stand_in(&["INIT=100", "VERSION=13020"]);
    assert_eq!(driver, Ok(Driver { version: 13_020, has_devices: false }));
    // A code unknown to this version of Fourfold.
    let error = probe_stand_in(&["INIT=4242"]).unwrap_err();
    assert_eq!((error.code(), error.is_sticky()), ("device_error", false));
    assert!(error.to_string().starts_with("cuInit failed: CUDA_ERROR_4242 (4242): "), "{error}");
}

#[test]
fn a_gpu_names_the_target_that_runs_on_it() {
    let mut gpu = Gpu {
        ordinal: 0,
        name: "NVIDIA H200".to_owned(),
        capability: (9, 0),
        sm_count: 132,
        memory_bytes: 150_109_880_320,
        l2_bytes: 62_914_560,
        shared_memory_per_block_optin: 232_448,
        driver_version: (13, 0),
    };
    assert_eq!(gpu.to_string(), "NVIDIA H200 (sm_90, 132 SMs, 139.8 GiB)");
    let targets = [(9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (8, 9), (11, 0)].map(|capability| {
        gpu.capability = capability;
        gpu.target()
    });
    let expected =
        [Some("sm_90a"), Some("sm_100a"), Some("sm_103a"), Some("sm_120a"), Some("sm_121a"), None, None];
    assert_eq!(targets, expected);
}

#[test]
fn errors_after_which_the_device_is_lost_are_known() {
    let error =
        |code| DeviceError::Cuda { call: "cuStreamSynchronize", code, name: "x".into(), message: "y".into() };
    let sticky = [700, 715, 716, 719, 999, 1, 2, 400, 600, 900, 901].map(|code| error(code).is_sticky());
    assert_eq!(sticky, [true, true, true, true, true, false, false, false, false, false, false]);
    assert!(!DeviceError::OutOfMemory { bytes: 1 }.is_sticky());
    assert!(error(700).remedy().contains("locate"));
}

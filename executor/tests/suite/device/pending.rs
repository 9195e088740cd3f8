//! Segments whose kernels are still being built: they run on the fallback until the kernels are ready, or wait.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fourfold_executor::device::Device;
use fourfold_executor::service::{CompileService, ServiceOptions, Wait};
use fourfold_executor::toolchain::{Origin, Toolchain};
use fourfold_executor::{BUILDING, BuildInput, BuildOptions, PendingKernel, RunOptions, SegmentKernel};
use tempfile::TempDir;

use super::fixture::{Between, Fixture, layers, story};
use super::placed::Placed;
use super::stand_in::StandIn;

/// A compiler of stand-in kernels that waits until it is released.
struct Workshop {
    folder: TempDir,
    service: CompileService,
}

impl Workshop {
    fn new() -> Workshop {
        let folder = tempfile::tempdir().unwrap();
        let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins");
        let at = |name: &str| folder.path().join(name);
        let script = |name: &str, body: String| {
            fs::write(at(name), format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        let (begun, go, gemm) = (at("begun"), at("go"), stand_ins.join("gemm.c"));
        script(
            "nvcc",
            format!(
                "touch '{}'; while ! test -e '{}'; do sleep 0.01; done\n\
                 exec cc -O1 -shared -fPIC -o kernel.so \"-DSIGNATURE=$(sed -n 1p kernel.cu)\" \
                 \"-DROLES=$(sed -n 2p kernel.cu)\" \"-D$(sed -n 3p kernel.cu)\" '{}' -lm",
                begun.display(),
                go.display(),
                gemm.display()
            ),
        );
        script("cuobjdump", "echo '        /*0010*/   UTCOMMA.4X gdesc[UR48] ;   /* 0x0 */'".to_owned());
        let toolchain = Toolchain {
            nvcc: at("nvcc"),
            include: Vec::new(),
            libraries: Vec::new(),
            cutlass: None,
            cuobjdump: Some(at("cuobjdump")),
            nvcc_version: "13.0.88".to_owned(),
            nvcc_origin: Origin::Named("--nvcc"),
            allow_known_bad: false,
            passed_over: Vec::new(),
        };
        let service = CompileService::new(ServiceOptions {
            cache: None,
            toolchain: Ok(Arc::new(toolchain)),
            build: BuildOptions::default(),
            jobs: None,
            retry_known_bad: false,
        });
        Workshop { folder, service }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets the compiler work.
    fn open(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    /// The fixture with the kernel of a segment still being built.
    fn pending(&self, mut fixture: Fixture, segment: usize) -> Fixture {
        let plan = fixture.partition.segments[segment].kernel().unwrap();
        let activation = if plan.epilogue.is_empty() { "PLAIN" } else { "RELU" };
        let interface = fixture.interface(segment);
        let text = format!("{:?}\n{:?}\n{activation}\n", interface.signature, interface.roles());
        let request = self.service.request(&BuildInput {
            text: &text,
            kernel: "stand_in_gemm",
            prelude: None,
            target: "sm_100a",
            architecture: "100a",
            opcode: "UTCOMMA",
            stages: None,
            translation: None,
        });
        let pending = PendingKernel::new(self.service.start(request, Arc::new(|_| {})));
        fixture.kernels.insert(segment, SegmentKernel::Pending(pending));
        fixture
    }
}

const KERNEL: (&str, Option<&str>) = ("kernel", None);
const WAITS: (&str, Option<&str>) = ("fallback", Some(BUILDING));

fn waiting(wait: Wait) -> RunOptions {
    RunOptions::default().wait(wait)
}

#[test]
fn a_segment_runs_on_the_fallback_while_its_kernel_is_built_and_as_the_kernel_from_then_on() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for segment in [0, 1] {
        let workshop = Workshop::new();
        let fixture = workshop.pending(layers(37, 64, Between::Nothing), segment);
        let expected = fixture.expected("y");
        let mut during = [KERNEL, KERNEL];
        during[segment] = WAITS;
        for wait in [Wait::Never, Wait::AtMost(Duration::from_millis(30))] {
            let started = Instant::now();
            let run = fixture.run(Some(&device), &waiting(wait)).unwrap();
            assert_eq!(story(&run), during);
            assert_eq!(run.value(fixture.value("y")), Some(&expected));
            let message = &run.segments[segment].reason.as_ref().unwrap().message;
            assert!(message.contains("stand_in_gemm is being built"), "{message}");
            assert!(started.elapsed() < Duration::from_secs(10));
        }
        workshop.open();
        let run = fixture.run(Some(&device), &waiting(Wait::Forever)).unwrap();
        assert_eq!(story(&run), [KERNEL, KERNEL]);
        assert_eq!(run.value(fixture.value("y")), Some(&expected));
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        assert_eq!(story(&run), [KERNEL, KERNEL], "and without waiting");
        assert_eq!(run.value(fixture.value("y")), Some(&expected));
    }
}

#[test]
fn a_call_waits_no_longer_than_it_may_in_all() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let workshop = Workshop::new();
    let fixture = workshop.pending(workshop.pending(layers(1, 64, Between::Nothing), 0), 1);
    let started = Instant::now();
    let limit = Duration::from_millis(300);
    let run = fixture.run(Some(&device), &waiting(Wait::AtMost(limit))).unwrap();
    let took = started.elapsed();
    assert_eq!(story(&run), [WAITS, WAITS]);
    assert!(took >= limit && took < limit * 2, "{took:?}");
}

#[test]
fn a_program_is_prepared_once_its_kernels_are_there_and_not_before() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let workshop = Workshop::new();
    let fixture = workshop.pending(layers(91, 64, Between::Nothing), 1);
    let placed = Placed::new(&fixture, &device);
    let refused = placed.prepare(&placed.addresses(), None).unwrap_err();
    assert_eq!((refused.code, refused.segment), (BUILDING, Some(1)), "{refused}");
    workshop.open();
    let SegmentKernel::Pending(pending) = &fixture.kernels[&1] else { panic!("it was pending") };
    assert!(pending.wait(Wait::Forever).unwrap().is_ok());
    assert!(placed.prepare(&placed.addresses(), None).is_ok());
}

#[test]
fn a_kernel_that_cannot_be_built_is_a_reason_that_stays() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let workshop = Workshop::new();
    fs::write(workshop.path("nvcc"), "#!/bin/sh\necho 'kernel.cu(1): error: no'; exit 1\n").unwrap();
    let fixture = workshop.pending(layers(37, 64, Between::Nothing), 0);
    for wait in [Wait::Forever, Wait::Never] {
        let run = fixture.run(Some(&device), &waiting(wait)).unwrap();
        assert_eq!(story(&run), [("fallback", Some("compile_error")), KERNEL]);
        assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    }
}

#[test]
fn dropping_a_program_ends_the_builds_that_nobody_else_wants() {
    let _stand_in = StandIn::new();
    let workshop = Workshop::new();
    let fixture = workshop.pending(layers(37, 64, Between::Nothing), 0);
    let kernels = fixture.kernels.clone();
    let started = Instant::now();
    while !workshop.path("begun").exists() {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    let runs = || {
        // The compiler is called by a link in the folder of its build.
        let compilers = workshop.path("nvcc").parent().unwrap().to_owned();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|entry| fs::read_link(entry.path().join("cwd/links/nvcc")).ok())
            .any(|target| target == compilers)
    };
    drop(fixture);
    std::thread::sleep(Duration::from_millis(100));
    assert!(runs(), "a copy still wants it");
    drop(kernels);
    let dropped = Instant::now();
    while runs() {
        assert!(dropped.elapsed() < Duration::from_secs(5), "the compiler still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

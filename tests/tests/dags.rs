//! Builds the epilogues of `dag_*.fir` and `activations.fir` in `fixtures/` for every family of targets. Each
//! kernel is a test, named `TARGET/PROGRAM`. A run builds three of each family in rotation and lists the others
//! as ignored; `--features full` builds all.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use fourfold::codegen::ScaledMmaSpec;
use fourfold_tests::answers::{check_acceptance, check_scale_places};
use fourfold_tests::built::{build, check_resources, describe, loaded, planned, scaled_mma, turn};
use fourfold_tests::dags::{DAG_TARGETS, kernels};
use fourfold_tests::structure::structure;
use libtest_mimic::{Arguments, Trial};

/// The number of kernels of each family that a run builds.
const BY_TURNS: usize = 3;
/// The least number of different graphs.
const STRUCTURES: usize = 24;

fn main() -> ExitCode {
    let mut trials = vec![Trial::test("the_epilogues_are_different_graphs", || {
        different_graphs().map_err(|error| format!("{error:#}").into())
    })];
    for (family, target) in DAG_TARGETS.into_iter().enumerate() {
        let kernels = match kernels(target) {
            Ok(kernels) => kernels,
            Err(error) => {
                eprintln!("{error:#}");
                return ExitCode::FAILURE;
            }
        };
        let count = kernels.len();
        // The rotations of the families are offset against each other.
        let first = turn() * BY_TURNS + family * count / DAG_TARGETS.len();
        for (index, (name, spec)) in kernels.into_iter().enumerate() {
            let is_due = (index + count - first % count) % count < BY_TURNS;
            let build = move || {
                builds(spec);
                Ok(())
            };
            let due = is_due || cfg!(feature = "full");
            trials.push(Trial::test(format!("{target}/{name}"), build).with_ignored_flag(!due));
        }
    }
    let mut arguments = Arguments::from_args();
    // A build runs a compiler that uses gigabytes of memory.
    let most = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    arguments.test_threads = Some(arguments.test_threads.map_or(most, |threads| threads.min(most)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn different_graphs() -> Result<()> {
    let mut graphs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, spec) in kernels(DAG_TARGETS[0])? {
        graphs.entry(structure(&spec.epilogue)).or_default().push(name);
    }
    for (graph, names) in &graphs {
        println!("{}: {graph}", names.join(", "));
    }
    ensure!(graphs.len() >= STRUCTURES, "{} distinct graphs, not {STRUCTURES}", graphs.len());
    Ok(())
}

fn builds(spec: ScaledMmaSpec) {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("dags");
    let built = build(vec![planned(spec)], folder);
    for built in &built {
        println!("{}", describe(built));
        check_resources(built);
        check_acceptance(scaled_mma(built), &loaded(built));
        check_scale_places(scaled_mma(built), &loaded(built));
    }
}

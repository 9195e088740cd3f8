//! Emulated kernels of groups of rows: ends that are not valid, and faults planted in the kernel that fills the tables.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow, ensure};
use fourfold::executor::Artifact;
use fourfold::executor::device::Device;
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{ElementType, Tensor};
use fourfold::kernels::{build_input, planned_kernels};
use fourfold::{Backend, Options, Planned};
use fourfold_tests::built::cutlass;
use fourfold_tests::random::Random;
use libtest_mimic::Completion;

use super::planted::{build_of, differs};

/// The groups of the program.
const GROUPS: usize = 6;

/// The rows of A.
const ROWS: usize = 300;

/// Several tiles for some groups, of two steps of tile K, and N that is no multiple of 128.
const TEXT: &str = "fir 1
func @main(
    %a: tensor<[300, 352], f4E2M1FN>, %sfa: tensor<[300, 22], f8E4M3FN, linear>,
    param %b: tensor<[6, 200, 352], f4E2M1FN>, param %sfb: tensor<[6, 200, 22], f8E4M3FN, blocked>,
    %ends: tensor<[6], i32>, param %alpha: tensor<[6], f32>, %weights: tensor<[300, 1], f32>
) {
  %d = grouped_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha {block = 16} : tensor<[300, 200], f32>
  %y = mul %d, %weights : tensor<[300, 200], f32>
  return %y
}
";

/// Changes of the source, each of which must be seen.
const FAULTS: [(&str, &str, &str); 4] = [
    // A row of the group before, and the scales of the first group.
    (
        "group offset",
        "set(to.mainloop.ptr_A, p.a + row * p.k",
        "set(to.mainloop.ptr_A, p.a + max(row - 1, int64_t{0}) * p.k",
    ),
    (
        "offset of SFA",
        "to.scales + first_tiles[group] * bytes_of_tile",
        "to.scales + first_tiles[0] * bytes_of_tile",
    ),
    // Scales without their padding to 128 rows.
    (
        "stride of SFB",
        "p.sfb + matrix * tiles_n * bytes_of_tile",
        "p.sfb + matrix * p.n * (bytes_of_tile / kScaleRows)",
    ),
    ("alpha", "is_group ? p.alphas[group] : 1.0f", "is_group ? p.alphas[0] : 1.0f"),
];

fn planned(target: &str) -> Result<Planned> {
    let options = Options::default().emulate(true).target(target.to_owned());
    let (program, _) = fourfold::ir::load(TEXT).map_err(|errors| anyhow!("{}", errors[0].message))?;
    Ok(Backend::new(&options)?.plan(program))
}

/// Builds the kernel with a change of its source.
fn built(planned: &Planned, change: Option<(&str, &str)>) -> Result<Artifact> {
    let mut kernel = planned_kernels(planned, cutlass(), true).pop().context("a kernel")?;
    if let Some((what, by)) = change {
        ensure!(kernel.source.text.matches(what).count() == 1, "{what} is not in the source once");
        kernel.source.text = kernel.source.text.replace(what, by);
    }
    build_of(&build_input(&kernel.source))
}

/// Returns ends, and those that the kernel makes of them: random, descending, negative and too large ones.
fn ends(random: &mut Random) -> [Vec<f64>; 2] {
    let rows = ROWS as i64;
    let given: Vec<i64> = (0..GROUPS)
        .map(|group| match random.below(6) {
            0 => -7,
            1 => rows + 9,
            2 => random.below(ROWS + 1) as i64,
            _ => group as i64 * rows / GROUPS as i64,
        })
        .collect();
    let mut least = 0;
    let made = given.iter().map(|end| {
        least = least.max((*end).clamp(0, rows));
        least as f64
    });
    let made = made.collect();
    [given.into_iter().map(|end| end as f64).collect(), made]
}

/// Runs the kernel on several distributions. Returns how a fault was seen.
fn symptom(planned: &Planned, artifact: &Artifact, device: &Device) -> Result<Option<String>> {
    let mut random = Random::new(0x6709);
    for seed in 0..6 {
        let recipe = Recipe { rule: Rule::Contest, seed, symbols: Vec::new() };
        let tensors: HashMap<String, Tensor> = sample::inputs(planned.program(), &recipe)?;
        let with = |ends: &[f64]| -> Result<HashMap<String, Tensor>> {
            let ends = Tensor::from_f64(ElementType::I32, vec![GROUPS], None, ends)?;
            let mut tensors = tensors.clone();
            tensors.insert("ends".to_owned(), ends);
            Ok(tensors)
        };
        let [given, meant] = ends(&mut random);
        let seen = differs(planned, artifact, device, &with(&given)?, &with(&meant)?)?;
        if seen.is_some() {
            return Ok(seen);
        }
    }
    Ok(None)
}

pub fn groups() -> Result<Completion> {
    let backend = Backend::new(&Options::default().emulate(true).target("sm_120a".to_owned()))?;
    let gpu = match backend.execution() {
        Ok((gpu, _)) => gpu,
        Err(reason) => return Ok(Completion::ignored_with(reason.message)),
    };
    let device = Device::open(gpu.ordinal)?;
    let changes = FAULTS.into_iter().map(|(name, what, by)| (name, Some((what, by))));
    let changes: Vec<_> = [("none", None)].into_iter().chain(changes).collect();
    let mut unseen = Vec::new();
    for (target, changes) in [("sm_120a", &changes[..]), ("sm_100a", &changes[..4])] {
        let planned = planned(target)?;
        // Each build takes most of a minute.
        let artifacts: Vec<Result<Artifact>> = std::thread::scope(|scope| {
            let build = |change: Option<(&'static str, &'static str)>| {
                let planned = &planned;
                scope.spawn(move || built(planned, change))
            };
            let builds: Vec<_> = changes.iter().map(|(_, change)| build(*change)).collect();
            let joined = |build: std::thread::ScopedJoinHandle<'_, Result<Artifact>>| {
                build.join().unwrap_or_else(|_| Err(anyhow!("a build panicked")))
            };
            builds.into_iter().map(joined).collect()
        });
        for ((name, _), artifact) in changes.iter().zip(artifacts) {
            let artifact = artifact.with_context(|| (*name).to_owned())?;
            let seen = symptom(&planned, &artifact, &device).with_context(|| (*name).to_owned())?;
            println!("{target}, {name}: {}", seen.as_deref().unwrap_or("all values are right"));
            if seen.is_some() == (*name == "none") {
                unseen.push((target, *name));
            }
        }
    }
    ensure!(unseen.is_empty(), "not as expected: {unseen:?}");
    Ok(Completion::Completed)
}

//! Fourfold's own sm_90a kernels, with one tile for all calls.

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::hopper::{Configuration, ForcedError, TARGET, Tile};
use fourfold_codegen::{Design, KernelSource, ScaledMmaSpec, Target, dispatch};

use super::Computed;
use super::values::{D, FORMAT, Values, extents, format, output};
use crate::generator::{Broken, Configured, Generator, Parameter, Work, Workload};
use crate::parameters::Parameters;
use crate::problem::Problem;

/// The type of sm_90a kernels.
#[derive(Clone, Copy, Debug)]
pub struct Hopper;

const PARAMETERS: &[Parameter] = &[
    FORMAT,
    D,
    Parameter {
        name: "tile",
        about: "tile of D per CTA, M x N; a single number is M of a small-M kernel, which splits N evenly across SMs",
        values: "1, 8, 16, 64x128, 64x256, 128x64, 128x128, 128x256 or 256x128",
        default: "128x256",
    },
    Parameter {
        name: "cluster",
        about: "CTAs that split the K of a tile",
        values: "auto (chosen per call), 1, 2, 4 (not for 128x64) or, for M <= 16, 8",
        default: "auto",
    },
];

impl Generator for Hopper {
    fn name(&self) -> &'static str {
        "scaled_mma.sm90"
    }

    fn about(&self) -> &'static str {
        "D = sum of (a sfa)(b sfb), with FP4 and FP8 decoded in registers for wgmma and mma.sync"
    }

    fn targets(&self) -> &'static [&'static str] {
        &[TARGET]
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn configure(
        &self,
        parameters: &Parameters,
        target: &'static Target,
        _: CutlassVersion,
    ) -> Result<Box<dyn Configured>, Vec<Broken>> {
        let mut values = Values::new(parameters, PARAMETERS);
        let computed = values.read("format", |text| format(text, target)).zip(values.read("d", output));
        let tile = values.read("tile", tile);
        let cluster = values.read("cluster", |text| match text {
            "auto" => Some(0),
            text => text.parse().ok(),
        });
        let ((format, d), (tile, cluster)) = match computed.zip(tile.zip(cluster)) {
            Some(read) if values.broken.is_empty() => read,
            _ => return Err(values.broken),
        };
        match Configuration::forced(format, tile, cluster) {
            Ok(configuration) => Ok(Box::new(Kernel {
                configuration,
                tile,
                cluster,
                computed: Computed { format, d },
                target,
            })),
            Err(error) => Err(vec![broken(&error)]),
        }
    }
}

fn broken(error: &ForcedError) -> Broken {
    let rule = match error {
        ForcedError::NoTile { .. } => "tile",
        ForcedError::Cluster { .. } => "cluster",
    };
    Broken {
        rule: rule.to_owned(),
        demands: "the kernel source has the tile and supports the cluster size".to_owned(),
        found: error.to_string(),
        prevents: "a missing template, or a plan that cannot be launched".to_owned(),
        refused: false,
    }
}

fn tile(text: &str) -> Option<Tile> {
    const N_OF_SMALL_M: u32 = 128;
    match extents::<2>(text) {
        Some([m, n]) => Some(Tile::new(m, n)),
        None => Some(Tile::new(text.parse().ok()?, N_OF_SMALL_M)),
    }
}

/// One kernel.
#[derive(Clone, Debug)]
struct Kernel {
    configuration: Configuration,
    tile: Tile,
    cluster: u32,
    computed: Computed,
    target: &'static Target,
}

impl Kernel {
    fn spec(&self) -> ScaledMmaSpec {
        ScaledMmaSpec {
            target: self.target,
            configuration: Design::Hopper(self.configuration.clone()),
            epilogue: self.computed.epilogue(),
        }
    }
}

impl Configured for Kernel {
    fn name(&self) -> String {
        self.spec().name()
    }

    fn source(&self) -> KernelSource {
        self.spec().emit()
    }

    fn takes(&self, problem: &Problem) -> Result<(), String> {
        self.computed.takes(self.target, problem)?;
        if !self.tile.is_small_m() {
            return Ok(());
        }
        let most = u64::from(self.tile.m);
        if problem.m > most {
            return Err(format!("M = {} exceeds the kernel's maximum of {most}", problem.m));
        }
        // All of A must fit the shared memory of the cluster.
        let longest = u64::from(self.tile.max_k(self.computed.format));
        match problem.k > longest {
            true => Err(format!("K = {} exceeds {longest}, the most that fits shared memory", problem.k)),
            false => Ok(()),
        }
    }

    fn workload(&self, problem: &Problem, seed: u64) -> Result<Workload, String> {
        self.computed.workload(problem, seed)
    }

    fn workload_key(&self) -> String {
        self.computed.key()
    }

    fn work(&self, problem: &Problem) -> Work {
        self.computed.work(problem)
    }

    fn entry(&self) -> Option<dispatch::Kernel> {
        let Tile { m, n } = self.tile;
        Some(dispatch::Kernel::Hopper(dispatch::Shared { tile: [m, n], cluster: self.cluster }))
    }
}

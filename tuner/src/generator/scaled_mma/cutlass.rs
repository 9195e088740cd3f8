//! Kernels built from CUTLASS's block-scaled collectives.

use fourfold_codegen::cutlass::configuration::{
    Cluster, Configuration, Epilogue, EpilogueSchedule, Family, Kind, Mainloop, OperatorClass, Raster, Sms,
    Stages, TileOrder, TileScheduler,
};
use fourfold_codegen::cutlass::{CutlassVersion, defaults, grid, rules};
use fourfold_codegen::{Design, KernelSource, ScaledMmaSpec, Target, dispatch};
use fourfold_ir::BlockFormat;

use super::Computed;
use super::values::{D, FORMAT, Values, extents, format, output};
use crate::generator::{Broken, Configured, Generator, Parameter, Work, Workload};
use crate::parameters::Parameters;
use crate::problem::Problem;

/// The type of kernels of one family.
#[derive(Clone, Copy, Debug)]
pub struct Cutlass {
    /// The name, such as `scaled_mma.sm100`.
    pub name: &'static str,
    /// The family, Sm100 or Sm120.
    pub family: Family,
    /// The supported targets.
    pub targets: &'static [&'static str],
}

const PARAMETERS: &[Parameter] = &[
    FORMAT,
    D,
    Parameter {
        name: "tile",
        about: "MMA tile over all its SMs, M x N x K in elements",
        values: "three numbers, such as 128x128x256",
        default: "128x128x128",
    },
    Parameter {
        name: "cluster",
        about: "CTAs of a cluster along M and N, which share loads",
        values: "two numbers, such as 2x1",
        default: "1x1",
    },
    Parameter { name: "sms", about: "SMs per MMA tile", values: "1 or 2", default: "1" },
    Parameter {
        name: "mainloop",
        about: "mainloop schedule",
        values: "auto, native (sm100: the format's own tag), cpasync (sm100), cooperative or pingpong (sm120)",
        default: "auto",
    },
    Parameter {
        name: "epilogue",
        about: "epilogue schedule",
        values: "auto, tma (sm100: through shared memory) or nosmem (sm100: directly from registers)",
        default: "auto",
    },
    Parameter {
        name: "epilogue_tile",
        about: "rows and columns of D that the epilogue stores at a time",
        values: "auto, or two numbers such as 128x32",
        default: "auto",
    },
    Parameter {
        name: "stages",
        about: "mainloop stages",
        values: "auto (as many as fit) or a number",
        default: "auto",
    },
    Parameter {
        name: "scheduler",
        about: "tile scheduler",
        values: "default (the family's own), static, streamk, or split2 to split64 (parts of K)",
        default: "static",
    },
    Parameter {
        name: "raster",
        about: "direction in which consecutive tiles of D are scheduled",
        values: "heuristic, m or n",
        default: "heuristic",
    },
    Parameter {
        name: "swizzle",
        about: "width of a band of consecutive tiles, in tiles",
        values: "1, 2, 4 or 8",
        default: "1",
    },
    Parameter {
        name: "swap",
        about: "compute the transpose, so that the tile's N is along the problem's M",
        values: "no or yes",
        default: "no",
    },
];

impl Generator for Cutlass {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "D = sum of (a sfa)(b sfb), by CUTLASS's block-scaled collectives"
    }

    fn targets(&self) -> &'static [&'static str] {
        self.targets
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn configure(
        &self,
        parameters: &Parameters,
        target: &'static Target,
        cutlass: CutlassVersion,
    ) -> Result<Box<dyn Configured>, Vec<Broken>> {
        let kernel = self.read(parameters, target)?;
        let broken = broken(&rules::invalid(&kernel.configuration, cutlass, target.name));
        if broken.is_empty() { Ok(Box::new(kernel)) } else { Err(broken) }
    }

    fn unchecked(&self, parameters: &Parameters, target: &'static Target) -> Option<Box<dyn Configured>> {
        Some(Box::new(self.read(parameters, target).ok()?))
    }
}

fn broken(violations: &[rules::Violation]) -> Vec<Broken> {
    let broken = |violation: &rules::Violation| Broken {
        rule: violation.rule.number.to_string(),
        demands: violation.rule.text.to_owned(),
        found: violation.found.clone(),
        prevents: violation.rule.prevents.to_owned(),
        refused: violation.rule.kind == rules::RuleKind::Compiler,
    };
    violations.iter().map(broken).collect()
}

impl Cutlass {
    fn read(&self, parameters: &Parameters, target: &'static Target) -> Result<Kernel, Vec<Broken>> {
        let mut values = Values::new(parameters, PARAMETERS);
        let computed = values.read("format", |text| format(text, target)).zip(values.read("d", output));
        let tile = values.read("tile", extents);
        let cluster = values.read("cluster", extents);
        let sms = values.read("sms", |text| match text {
            "1" => Some(Sms::One),
            "2" => Some(Sms::Two),
            _ => None,
        });
        let block = computed.map_or(BlockFormat::NVFP4, |(format, _)| format);
        let mainloop = values.read("mainloop", |text| self.mainloop(text, block));
        let schedule = values.read("epilogue", |text| match text {
            "auto" => Some(EpilogueSchedule::Auto),
            "tma" => Some(EpilogueSchedule::Tma),
            "nosmem" => Some(EpilogueSchedule::NoSmem),
            _ => None,
        });
        let epilogue_tile = values.read("epilogue_tile", |text| match text {
            "auto" => Some(None),
            text => Some(Some(extents(text)?)),
        });
        let stages = values.read("stages", |text| match text {
            "auto" => Some(Stages::Auto),
            text => text.parse().ok().map(Stages::Fixed),
        });
        let scheduler = values.read("scheduler", |text| match text {
            "default" => Some(TileScheduler::Default),
            "static" => Some(TileScheduler::StaticPersistent),
            "streamk" => Some(TileScheduler::StreamK),
            text => text.strip_prefix("split")?.parse().ok().map(TileScheduler::SplitK),
        });
        let raster = values.read("raster", |text| match text {
            "heuristic" => Some(Raster::Heuristic),
            "m" => Some(Raster::AlongM),
            "n" => Some(Raster::AlongN),
            _ => None,
        });
        let swizzle = values.read("swizzle", |text| text.parse().ok());
        let swapped = values.read("swap", |text| match text {
            "no" => Some(false),
            "yes" => Some(true),
            _ => None,
        });
        let read = || {
            let (format, d) = computed?;
            let [a, b] = defaults::operands(format)?;
            let sms = sms?;
            let configuration = Configuration {
                family: self.family,
                a,
                b,
                tile: tile?,
                cluster: Cluster::Static(cluster?),
                sms,
                mainloop: mainloop?,
                groups: None,
                epilogue: Epilogue {
                    schedule: schedule?,
                    sms,
                    grouped: false,
                    tile: epilogue_tile?,
                    class: OperatorClass::BlockScaledTensorOp,
                },
                stages: stages?,
                scheduler: scheduler?,
                c: None,
                d,
                d_row_major: true,
                order: TileOrder { raster: raster?, swizzle: swizzle? },
                swapped: swapped?,
            };
            Some(Kernel { configuration, computed: Computed { format, d }, target })
        };
        read().ok_or(values.broken)
    }

    fn mainloop(&self, text: &str, format: BlockFormat) -> Option<Mainloop> {
        let [a, b] = defaults::operands(format)?;
        let kind = Kind::of(a.format, b.format);
        match (text, self.family) {
            ("auto", _) => Some(Mainloop::Auto),
            ("native", Family::Sm100) => Some(Mainloop::Sm100(kind)),
            ("cpasync", Family::Sm100) => Some(Mainloop::Sm100MixedTmaCpAsync),
            ("cooperative", Family::Sm120) => Some(Mainloop::Cooperative),
            ("pingpong", Family::Sm120) => Some(Mainloop::Pingpong),
            _ => None,
        }
    }
}

/// One kernel.
#[derive(Clone, Debug)]
struct Kernel {
    configuration: Configuration,
    computed: Computed,
    target: &'static Target,
}

impl Kernel {
    fn spec(&self) -> ScaledMmaSpec {
        ScaledMmaSpec {
            target: self.target,
            configuration: Design::Cutlass(self.configuration.clone()),
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
        grid::launches(&self.configuration, [problem.l, problem.m, problem.n])
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
        let Configuration { family, tile, cluster, sms, epilogue, stages, order, swapped, .. } =
            self.configuration;
        let usual = dispatch::Collectives::of_tile(tile).configuration(family, self.computed.format)?;
        let Cluster::Static(cluster) = cluster else { return None };
        // Tables cannot express these, so they must have the defaults of the tile's kernel.
        if swapped || order != TileOrder::default() || sms != usual.sms {
            return None;
        }
        let schedule = match self.configuration.mainloop {
            mainloop if mainloop == usual.mainloop => None,
            Mainloop::Sm100MixedTmaCpAsync => Some(dispatch::ScheduleName::CpAsync),
            Mainloop::Cooperative => Some(dispatch::ScheduleName::Cooperative),
            Mainloop::Pingpong => Some(dispatch::ScheduleName::Pingpong),
            // On one SM, the builder chooses the format's own schedule.
            Mainloop::Auto if sms == Sms::One => None,
            _ => return None,
        };
        let scheduler = match self.configuration.scheduler {
            TileScheduler::Default => dispatch::SchedulerName::Own,
            TileScheduler::StaticPersistent => dispatch::SchedulerName::Static,
            TileScheduler::StreamK => dispatch::SchedulerName::StreamK,
            TileScheduler::SplitK(_) => return None,
        };
        Some(dispatch::Kernel::Cutlass(dispatch::Collectives {
            tile,
            cluster: Some(cluster),
            schedule,
            epilogue: (epilogue.schedule == EpilogueSchedule::NoSmem)
                .then_some(dispatch::EpilogueName::NoSmem),
            epilogue_tile: epilogue.tile,
            stages: match stages {
                Stages::Fixed(stages) => Some(stages),
                Stages::Auto => None,
            },
            scheduler: Some(scheduler),
        }))
    }

    fn advice(&self, cutlass: CutlassVersion) -> Vec<Broken> {
        let all = rules::check(&self.configuration, cutlass, self.target.name).err().unwrap_or_default();
        broken(&all)
    }
}

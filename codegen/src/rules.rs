//! The rules that a configuration must pass before nvcc sees it, as data: what each demands and what it prevents.
//!
//! Rules 1 to 17 were compared with every configuration of `fixtures/combos.jsonl` (`tests/combos.rs`): they reject
//! what nvcc rejects and accept what it builds, but for builds that stop at types and would fail in the body.
//! Of the others 22, 27, 30, 32 and 33 are refused by the compiler too; the rest compile and are wrong or not at their best
//! ([`RuleKind`]), and a kernel that breaks 29 was seen to compute wrong results when it ran emulated. Rules 25 and 26 judge a call, not a configuration, and live where
//! calls are prepared. What is demanded of any version but 4.2.0 and 4.7.0 was
//! read in the sources between them: there, compile every tile in use once.

use std::fmt;

use crate::configuration::{
    Cluster, Configuration, CutlassVersion, EpilogueSchedule, Family, Format, Kind, Mainloop, Sms, Stages,
    TileScheduler,
};
use crate::stages::{automatic_stages, stages};
use crate::tensor_memory::{self, Columns};

/// What becomes of a configuration that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleKind {
    /// The compiler refuses it.
    Compiler,
    /// It compiles without a word, and has no MMA, cannot be launched, or computes something else.
    Silent,
    /// It works, and is slower or takes less than it could. No default breaks it.
    Advice,
}

/// One demand.
pub struct Rule {
    /// Its number; stable.
    pub number: u32,
    /// What becomes of a configuration that breaks it.
    pub kind: RuleKind,
    /// The configurations it concerns.
    pub scope: &'static str,
    /// What it demands.
    pub text: &'static str,
    /// What the compiler says, or what goes wrong, without it.
    pub prevents: &'static str,
    /// What is wrong with this subject, if anything.
    check: fn(&Subject) -> Option<String>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("number", &self.number).field("text", &self.text).finish_non_exhaustive()
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.number == other.number
    }
}

impl Eq for Rule {}

/// A rule that a configuration breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: &'static Rule,
    /// What was found instead of what it demands.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({}): {}; found {}", self.rule.number, self.rule.scope, self.rule.text, self.found)
    }
}

/// Holds a configuration against every rule. `target` is what nvcc is told: `sm_100a`, …
///
/// # Errors
/// Every rule that it breaks, in order of number.
pub fn check(
    configuration: &Configuration,
    cutlass: CutlassVersion,
    target: &str,
) -> Result<(), Vec<Violation>> {
    let subject = Subject { configuration, cutlass, target };
    let violations: Vec<_> = RULES
        .iter()
        .filter_map(|rule| (rule.check)(&subject).map(|found| Violation { rule, found }))
        .collect();
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Why a configuration cannot be used at all: the rules that it breaks, advice aside.
pub fn invalid(configuration: &Configuration, cutlass: CutlassVersion, target: &str) -> Vec<Violation> {
    let mut violations = check(configuration, cutlass, target).err().unwrap_or_default();
    violations.retain(|violation| violation.rule.kind != RuleKind::Advice);
    violations
}

/// Broken rules in a line.
pub(crate) fn texts(violations: &[Violation]) -> String {
    let texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// Every rule, in order of number.
pub static RULES: [Rule; 32] = [
    Rule {
        number: 1,
        kind: RuleKind::Compiler,
        scope: "all",
        text: "A and B have the same scale type and scale vector",
        prevents: "Scale factor types for A and B should be the same.",
        check: same_scales,
    },
    Rule {
        number: 2,
        kind: RuleKind::Compiler,
        scope: "all",
        text: "the schedule tags exist in this CUTLASS and belong to the architecture tag",
        prevents: "Could not build a collective [epilogue] for given parameters.",
        check: tags_of_the_family,
    },
    Rule {
        number: 3,
        kind: RuleKind::Compiler,
        scope: "all",
        text: "a main loop tag that names its format is given it: Nvf4 ue4m3 per 16, Mxf4 and Mxf8f6f4 ue8m0 per 32",
        prevents: "Kernel Schedule policy doesn't match the scale factor vector size.",
        check: tag_of_the_format,
    },
    Rule {
        number: 4,
        kind: RuleKind::Compiler,
        scope: "nvf4, mxf4, Sm103, Sm120",
        text: "both operands are K-major",
        prevents: "MX/NV_F4 only supports RowMajor A, and ColMajorB; Only TN layout is supported.",
        check: k_major_only,
    },
    Rule {
        number: 5,
        kind: RuleKind::Compiler,
        scope: "Sm100 mxf8f6f4",
        text: "under an N-major B of 4 or 6 bits tile N is a multiple of 128 (1SM) or 256 (2SM)",
        prevents: "TileSize and MNK Major does not met with MMA Mix 8-bit TMA load requirement",
        check: n_major_tile,
    },
    Rule {
        number: 6,
        kind: RuleKind::Compiler,
        scope: "native FP4; mxf8f6f4 under an explicit dense tag",
        text: "alignments in elements: 32 for native FP4; under mxf8f6f4 16 for FP8, 128 for FP6 and FP4",
        prevents: "Could not build a collective for given parameters.",
        check: asserted_alignment,
    },
    Rule {
        number: 7,
        kind: RuleKind::Compiler,
        scope: "Sm100, Sm103",
        text: "tile M is 128 on one SM, 256 on two",
        prevents: "Invalid TileShape_M.",
        check: tile_m_of_the_sms,
    },
    Rule {
        number: 8,
        kind: RuleKind::Compiler,
        scope: "Sm100, Sm103, two SMs",
        text: "a static cluster has an even M; Auto means what Auto picks, and never meets a dynamic cluster at M = 256",
        prevents: "schedule + cluster mismatch; If M=256, auto policy can't create 2sm kernels. Specify a 2SM policy",
        check: cluster_of_the_sms,
    },
    Rule {
        number: 9,
        kind: RuleKind::Compiler,
        scope: "Sm100",
        text: "tile N is 64, 128, 192 or 256",
        prevents: "Invalid TileShape_N.; Cta N should be one of 64/128/192/256",
        check: sm100_tile_n,
    },
    Rule {
        number: 10,
        kind: RuleKind::Compiler,
        scope: "Sm103",
        text: "tile N is 128, 192 or 256, tile K 768, operands are tuples (and nowhere else), the tag is explicit",
        prevents: "Cta N should be one of 128/192/256; TileShape_K should 768 for MMA kernels",
        check: sm103_shape,
    },
    Rule {
        number: 11,
        kind: RuleKind::Compiler,
        scope: "Sm100, Sm120",
        text: "tile K is a multiple of four scale vectors: 64 for nvf4, 128 for MX",
        prevents: "TMA requires CTA_Tile and SLayout top-level size equivalence.",
        check: tile_k,
    },
    Rule {
        number: 12,
        kind: RuleKind::Compiler,
        scope: "Sm120",
        text: "tile M is a multiple of 128",
        prevents: "in the body only: TMA requires CTA_Tile and SLayout top-level size equivalence.; Shape Divisibility \
                   Condition",
        check: sm120_tile_m,
    },
    Rule {
        number: 13,
        kind: RuleKind::Compiler,
        scope: "Sm120",
        text: "tile N is 8, 16, 32, 64, 128 or 256; before CUTLASS 4.6 at least 32, before 4.5 at least 128",
        prevents: "TileShape_N must be at least 8 for SM120 blockscaled.; Divisibility Condition; Invalid tile shape N.",
        check: sm120_tile_n,
    },
    Rule {
        number: 14,
        kind: RuleKind::Compiler,
        scope: "Sm120",
        text: "pingpong needs tile N of 16 at least",
        prevents: "Could not build a collective for given parameters.",
        check: pingpong_tile_n,
    },
    Rule {
        number: 15,
        kind: RuleKind::Compiler,
        scope: "Sm120",
        text: "the cluster is 1x1, one SM to a tile",
        prevents: "no programmatic multicast on this arch",
        check: sm120_cluster,
    },
    Rule {
        number: 16,
        kind: RuleKind::Compiler,
        scope: "all",
        text: "shared memory holds one stage at least (Sm100, Sm103), two on Sm120",
        prevents: "Smem usage is too high. Can't create any SMEM buffers for A, B, SFA, and SFB.; Specialization \
                   requires Stages set to value 2 or more.",
        check: enough_stages,
    },
    Rule {
        number: 17,
        kind: RuleKind::Compiler,
        scope: "Sm100 grouped",
        text: "a PtrArray main loop goes with the PtrArray TMA epilogue of as many SMs",
        prevents: "Expected layout args... in make_tensor(iter, args...); missing members of CollectiveEpilogue",
        check: grouped_pair,
    },
    Rule {
        number: 18,
        kind: RuleKind::Silent,
        scope: "all",
        text: "the target has the family's instructions: Sm100 on sm_100a, sm_100f, sm_103a; Sm103 on sm_103a; Sm120 \
               on sm_120a, sm_120f, sm_121a",
        prevents: "nothing is said: a kernel without its MMA",
        check: target_of_the_family,
    },
    Rule {
        number: 19,
        kind: RuleKind::Silent,
        scope: "Sm100, Sm103",
        text: "the epilogue's tag counts as many SMs as the main loop's",
        prevents: "nothing is said: other shared-memory sizes, of unknown meaning",
        check: same_digit,
    },
    Rule {
        number: 20,
        kind: RuleKind::Silent,
        scope: "all",
        text: "an explicit stage count fits into shared memory",
        prevents: "nothing is said: initialize returns 7",
        check: fixed_stages_fit,
    },
    Rule {
        number: 21,
        kind: RuleKind::Silent,
        scope: "Sm100",
        text: "a static cluster's M and N are 1, 2 or 4",
        prevents: "nothing is said: can_implement refuses every call above 4, 3 is untested",
        check: cluster_extents,
    },
    Rule {
        number: 22,
        kind: RuleKind::Compiler,
        scope: "Sm120 grouped, before CUTLASS 4.4.3",
        text: "with A and B of 6 or 8 bits both, the tags are Auto",
        prevents: "Incorrect SfVectorSize for MX_F4F6F8 is deduced.",
        check: grouped_narrow_tags,
    },
    Rule {
        number: 23,
        kind: RuleKind::Advice,
        scope: "Sm100",
        text: "at tile N = 256 a TMA epilogue has an explicit epilogue tile",
        prevents: "spills (182 bytes and more) and lost stages",
        check: wide_epilogue_tile,
    },
    Rule {
        number: 24,
        kind: RuleKind::Silent,
        scope: "weight-only FP4 (16-bit A)",
        text: "the scale type is the MMA type; a block-scaled configuration, the only kind there is, cannot break it",
        prevents: "nothing is said: scales are loaded and never applied",
        check: |_| None,
    },
    Rule {
        number: 27,
        kind: RuleKind::Compiler,
        scope: "all",
        text: "an explicit epilogue tile divides the tile of a CTA, and its columns are a multiple of 8",
        prevents: "EpilogueTile must evenly divide CTA tile; Unsupported tile shape",
        check: epilogue_tile_divides,
    },
    Rule {
        number: 28,
        kind: RuleKind::Advice,
        scope: "mxf8f6f4 under Auto or PtrArray tags",
        text: "alignments in elements: 16 for FP8, 128 for FP6 and FP4",
        prevents: "nothing is said: K that is no multiple of 128 is refused at every call, for a reason not named",
        check: silent_alignment,
    },
    Rule {
        number: 29,
        kind: RuleKind::Silent,
        scope: "Sm120 with A and B of 4 bits",
        text: "tile K is 128 at least: two steps of the MMA",
        prevents: "nothing is said: with one step the main loop overwrites its registers before it has used them, and \
                   results are wrong from the second tile along K on",
        check: two_steps,
    },
    Rule {
        number: 30,
        kind: RuleKind::Compiler,
        scope: "Sm120 pingpong",
        text: "the tile scheduler does not split K",
        prevents: "Ping-pong kernel does not currently support stream-K scheduler.",
        check: pingpong_splits,
    },
    Rule {
        number: 31,
        kind: RuleKind::Silent,
        scope: "all",
        text: "tiles are handed out in bands of 1, 2, 4 or 8; a split of K has at least two parts and at most 64",
        prevents: "nothing is said: the scheduler rounds to something else, or one part is no split",
        check: schedule_numbers,
    },
    Rule {
        number: 32,
        kind: RuleKind::Compiler,
        scope: "Sm100, Sm120",
        text: "a tile scheduler that splits K belongs to a kernel of one problem",
        prevents: "Could not select a tile scheduler for given parameters.",
        check: grouped_splits,
    },
    Rule {
        number: 33,
        kind: RuleKind::Compiler,
        scope: "Sm100, Sm103",
        text: "an explicit epilogue tile goes with an explicit schedule of the epilogue",
        prevents: "Don't specify epilogue tile with auto schedule",
        check: epilogue_tile_of_a_schedule,
    },
    Rule {
        number: 34,
        kind: RuleKind::Silent,
        scope: "Sm100",
        text: "accumulators and scales fit into the 512 columns of tensor memory: (tile N = 256 ? 512 - E : 2N) + K/V + \
               ceil(N/128) K/V, with E columns of the epilogue tile and V elements per scale",
        prevents: "nothing is said: scales lie outside of what was allocated, and results are undefined",
        check: tensor_memory_columns,
    },
];

fn epilogue_tile_of_a_schedule(subject: &Subject) -> Option<String> {
    let Configuration { family, epilogue, .. } = subject.configuration;
    let is_free = *family == Family::Sm120 || epilogue.tile.is_none();
    demand(is_free || epilogue.schedule != EpilogueSchedule::Auto, || {
        format!("epilogue tile {:?} under the automatic schedule", epilogue.tile)
    })
}

fn pingpong_splits(subject: &Subject) -> Option<String> {
    let Configuration { mainloop, scheduler, .. } = subject.configuration;
    demand(!(mainloop.is_pingpong() && scheduler.splits_k()), || format!("{scheduler:?}"))
}

fn schedule_numbers(subject: &Subject) -> Option<String> {
    let Configuration { order, scheduler, .. } = subject.configuration;
    let splits = match scheduler {
        TileScheduler::SplitK(splits) => (2..=64).contains(splits),
        _ => true,
    };
    demand([1, 2, 4, 8].contains(&order.swizzle) && splits, || {
        format!("bands of {}, {scheduler:?}", order.swizzle)
    })
}

fn grouped_splits(subject: &Subject) -> Option<String> {
    let Configuration { grouped, scheduler, .. } = subject.configuration;
    demand(!(*grouped && scheduler.splits_k()), || format!("{scheduler:?} of a grouped kernel"))
}

struct Subject<'a> {
    configuration: &'a Configuration,
    cutlass: CutlassVersion,
    target: &'a str,
}

/// A finding, if the demand is not met.
fn demand(met: bool, found: impl FnOnce() -> String) -> Option<String> {
    if met { None } else { Some(found()) }
}

fn same_scales(subject: &Subject) -> Option<String> {
    let (a, b) = (subject.configuration.a.format, subject.configuration.b.format);
    demand(a.scale_vector() == b.scale_vector() && a.is_ultra() == b.is_ultra(), || format!("{a:?} by {b:?}"))
}

fn tags_of_the_family(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let belongs = configuration.mainloop.family().is_none_or(|family| family == configuration.family);
    let epilogue = match (configuration.family, configuration.epilogue.schedule) {
        (_, EpilogueSchedule::Auto) => true,
        (Family::Sm100 | Family::Sm103, EpilogueSchedule::Tma | EpilogueSchedule::NoSmem) => true,
        // It has no PtrArray form.
        (Family::Sm100, EpilogueSchedule::TmaNvf4) => !configuration.epilogue.grouped,
        (Family::Sm120, EpilogueSchedule::Cooperative | EpilogueSchedule::Pingpong) => {
            configuration.grouped && configuration.epilogue.grouped
        }
        _ => false,
    };
    // PtrArray forms of the tags that name a format were never written for Sm120.
    let written = match configuration.mainloop {
        Mainloop::Sm120 { .. } => !configuration.grouped,
        Mainloop::Sm100MixedTmaCpAsync => {
            !configuration.grouped
                && (configuration.sms == Sms::One || subject.cutlass >= CutlassVersion::new(4, 5, 0))
        }
        _ => true,
    };
    demand(belongs && epilogue && written, || {
        format!(
            "{} with {} for {} in CUTLASS {}",
            configuration.mainloop_tag(),
            configuration.epilogue_tag(),
            configuration.arch_tag(),
            subject.cutlass
        )
    })
}

fn tag_of_the_format(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let formats = [configuration.a.format, configuration.b.format];
    let takes = |format: Format| match configuration.mainloop {
        Mainloop::Sm100(kind) | Mainloop::Sm120 { kind, .. } => match kind {
            Kind::Nvf4 => format == Format::Nvfp4,
            Kind::Mxf4 => format == Format::Mxfp4,
            Kind::Mxf8f6f4 => format.scale_vector() == 32,
        },
        Mainloop::Sm103Ultra { vector, .. } => format.scale_vector() == vector,
        _ => true,
    };
    demand(formats.into_iter().all(takes), || {
        format!("{} on {:?} by {:?}", configuration.mainloop_tag(), formats[0], formats[1])
    })
}

fn k_major_only(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let free = configuration.family == Family::Sm100 && configuration.kind() == Kind::Mxf8f6f4;
    demand(free || (configuration.a.k_major && configuration.b.k_major), || {
        let major = |k_major| if k_major { "K-major" } else { "not K-major" };
        format!("A {}, B {}", major(configuration.a.k_major), major(configuration.b.k_major))
    })
}

fn n_major_tile(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let concerned = configuration.family == Family::Sm100
        && configuration.kind() == Kind::Mxf8f6f4
        && !configuration.b.k_major
        && configuration.b.format.bits() < 8;
    let multiple = 128 * configuration.sms.count();
    demand(!concerned || configuration.tile[1].is_multiple_of(multiple), || {
        format!("tile N {}, not a multiple of {multiple}", configuration.tile[1])
    })
}

/// What alignments miss their multiple.
fn misaligned(configuration: &Configuration) -> Option<String> {
    let multiple = |format: Format| match (configuration.kind(), format.bits()) {
        (Kind::Nvf4 | Kind::Mxf4, _) => 32,
        (Kind::Mxf8f6f4, 8) => 16,
        (Kind::Mxf8f6f4, _) => 128,
    };
    [("A", configuration.a), ("B", configuration.b)].into_iter().find_map(|(name, operand)| {
        let multiple = multiple(operand.format);
        let met = operand.alignment > 0 && operand.alignment.is_multiple_of(multiple);
        demand(met, || format!("{name} aligned to {}, not to {multiple}", operand.alignment))
    })
}

/// Whether the collective's builder states the alignment; it does not for mxf8f6f4 under Auto and PtrArray tags.
fn asserts_alignment(configuration: &Configuration) -> bool {
    let explicit = matches!(configuration.mainloop, Mainloop::Sm100(_) | Mainloop::Sm120 { .. });
    configuration.kind() != Kind::Mxf8f6f4 || (explicit && !configuration.grouped)
}

fn asserted_alignment(subject: &Subject) -> Option<String> {
    if asserts_alignment(subject.configuration) { misaligned(subject.configuration) } else { None }
}

fn silent_alignment(subject: &Subject) -> Option<String> {
    if asserts_alignment(subject.configuration) { None } else { misaligned(subject.configuration) }
}

fn tile_m_of_the_sms(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let sms = configuration.sms.count();
    demand(configuration.family == Family::Sm120 || configuration.tile[0] == 128 * sms, || {
        format!("tile M {} on {sms} SM", configuration.tile[0])
    })
}

fn cluster_of_the_sms(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    if configuration.family == Family::Sm120 {
        return None;
    }
    let cluster = configuration.cluster;
    if configuration.mainloop == Mainloop::Auto {
        if configuration.tile[0] == 256 && cluster == Cluster::Dynamic {
            return Some("Auto at M = 256 with a dynamic cluster".to_owned());
        }
        let picked = configuration.auto_sms();
        return demand(picked == configuration.sms, || {
            format!("{} SM where Auto picks {}", configuration.sms.count(), picked.count())
        });
    }
    match cluster {
        Cluster::Static([m, _]) if configuration.sms == Sms::Two => {
            demand(m > 0 && m.is_multiple_of(2), || format!("cluster M {m} with two SMs"))
        }
        _ => None,
    }
}

fn sm100_tile_n(subject: &Subject) -> Option<String> {
    let n = subject.configuration.tile[1];
    demand(subject.configuration.family != Family::Sm100 || [64, 128, 192, 256].contains(&n), || {
        format!("tile N {n}")
    })
}

fn sm103_shape(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let [_, n, k] = configuration.tile;
    let formats = [configuration.a.format, configuration.b.format];
    if configuration.family != Family::Sm103 {
        return demand(formats.iter().all(|format| !format.is_ultra()), || "tuple operands".to_owned());
    }
    let met = [128, 192, 256].contains(&n)
        && k == 768
        && formats.iter().all(|format| format.is_ultra())
        && configuration.mainloop != Mainloop::Auto;
    demand(met, || {
        format!("tile N {n}, K {k}, {:?} by {:?}, {}", formats[0], formats[1], configuration.mainloop_tag())
    })
}

fn tile_k(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let multiple = 4 * configuration.a.format.scale_vector().max(configuration.b.format.scale_vector());
    let k = configuration.tile[2];
    let met = configuration.family == Family::Sm103 || (k > 0 && k.is_multiple_of(multiple));
    demand(met, || format!("tile K {k}, not a multiple of {multiple}"))
}

fn sm120_tile_m(subject: &Subject) -> Option<String> {
    let m = subject.configuration.tile[0];
    let met = subject.configuration.family != Family::Sm120 || (m > 0 && m.is_multiple_of(128));
    demand(met, || format!("tile M {m}"))
}

fn sm120_tile_n(subject: &Subject) -> Option<String> {
    let n = subject.configuration.tile[1];
    let smallest = if subject.cutlass >= CutlassVersion::new(4, 6, 0) {
        8
    } else if subject.cutlass >= CutlassVersion::new(4, 5, 0) {
        32
    } else {
        128
    };
    let met = n >= smallest && [8, 16, 32, 64, 128, 256].contains(&n);
    demand(subject.configuration.family != Family::Sm120 || met, || {
        format!("tile N {n} in CUTLASS {}", subject.cutlass)
    })
}

fn pingpong_tile_n(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    demand(!configuration.mainloop.is_pingpong() || configuration.tile[1] >= 16, || {
        format!("pingpong with tile N {}", configuration.tile[1])
    })
}

fn sm120_cluster(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let met = configuration.cluster == Cluster::Static([1, 1]) && configuration.sms == Sms::One;
    demand(configuration.family != Family::Sm120 || met, || {
        format!("{:?}, {} SM", configuration.cluster, configuration.sms.count())
    })
}

fn enough_stages(subject: &Subject) -> Option<String> {
    let least = if subject.configuration.family == Family::Sm120 { 2 } else { 1 };
    let stages = stages(subject.configuration, subject.cutlass)?;
    demand(stages >= least, || format!("{stages} of {least} stages"))
}

fn grouped_pair(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let epilogue = configuration.epilogue;
    if configuration.family != Family::Sm100 {
        return None;
    }
    if !configuration.grouped {
        return demand(!epilogue.grouped, || "a PtrArray epilogue in a kernel for one problem".to_owned());
    }
    let met = matches!(configuration.mainloop, Mainloop::Sm100(_) | Mainloop::Sm100BlockScaled)
        && epilogue.grouped
        && epilogue.schedule == EpilogueSchedule::Tma
        && epilogue.sms == configuration.sms;
    demand(met, || format!("{} with {}", configuration.mainloop_tag(), configuration.epilogue_tag()))
}

fn target_of_the_family(subject: &Subject) -> Option<String> {
    let family = subject.configuration.family;
    let targets: &[&str] = match family {
        Family::Sm100 => &["sm_100a", "sm_100f", "sm_103a"],
        Family::Sm103 => &["sm_103a"],
        Family::Sm120 => &["sm_120a", "sm_120f", "sm_121a"],
    };
    demand(targets.contains(&subject.target), || format!("{family:?} for {}", subject.target))
}

fn same_digit(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let digits = !matches!(configuration.epilogue.schedule, EpilogueSchedule::Auto)
        && configuration.family != Family::Sm120;
    demand(!digits || configuration.epilogue.sms == configuration.sms, || {
        format!("{} SM, epilogue {}", configuration.sms.count(), configuration.epilogue.sms.count())
    })
}

fn fixed_stages_fit(subject: &Subject) -> Option<String> {
    let Stages::Fixed(stages) = subject.configuration.stages else { return None };
    let most = automatic_stages(subject.configuration, subject.cutlass)?;
    demand(stages <= most, || format!("{stages} stages where {most} fit"))
}

fn cluster_extents(subject: &Subject) -> Option<String> {
    let extents = |extent: u32| [1, 2, 4].contains(&extent);
    match subject.configuration.cluster {
        Cluster::Static([m, n]) if subject.configuration.family == Family::Sm100 => {
            demand(extents(m) && extents(n), || format!("cluster {m}x{n}"))
        }
        _ => None,
    }
}

fn grouped_narrow_tags(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let concerned = configuration.family == Family::Sm120
        && configuration.grouped
        && configuration.a.format.bits() >= 6
        && configuration.b.format.bits() >= 6
        && subject.cutlass < CutlassVersion::new(4, 4, 3);
    let auto =
        configuration.mainloop == Mainloop::Auto && configuration.epilogue.schedule == EpilogueSchedule::Auto;
    demand(!concerned || auto, || {
        format!("{} with {}", configuration.mainloop_tag(), configuration.epilogue_tag())
    })
}

fn wide_epilogue_tile(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let concerned = configuration.family == Family::Sm100
        && configuration.tile[1] == 256
        && configuration.epilogue.schedule != EpilogueSchedule::NoSmem;
    demand(!concerned || configuration.epilogue.tile.is_some(), || {
        "tile N 256, epilogue tile Auto".to_owned()
    })
}

fn two_steps(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let concerned = configuration.family == Family::Sm120
        && configuration.a.format.bits() == 4
        && configuration.b.format.bits() == 4;
    let k = configuration.tile[2];
    demand(!concerned || k >= 128, || format!("tile K of {k}"))
}

fn tensor_memory_columns(subject: &Subject) -> Option<String> {
    let columns = tensor_memory::columns(subject.configuration)?;
    demand(columns.total() <= tensor_memory::CAPACITY, || {
        let Columns { accumulators, scales_a, scales_b } = columns;
        format!("{accumulators} + {scales_a} + {scales_b} = {} columns", columns.total())
    })
}

fn epilogue_tile_divides(subject: &Subject) -> Option<String> {
    let [m, n, _] = subject.configuration.cta_tile();
    let [rows, columns] = subject.configuration.epilogue.tile?;
    let met = rows > 0
        && columns > 0
        && m.is_multiple_of(rows)
        && n.is_multiple_of(columns)
        && columns.is_multiple_of(8);
    demand(met, || format!("epilogue tile {rows}x{columns} in a CTA's {m}x{n}"))
}

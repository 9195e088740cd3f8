//! The check of each rule on a configuration.

use crate::cutlass::configuration::{
    Cluster, Configuration, EpilogueSchedule, Family, Format, Kind, Mainloop, Sms, Stages, TileScheduler,
};
use crate::cutlass::stages::{automatic_stages, stages};
use crate::cutlass::tensor_memory::{self, Columns};
use crate::cutlass::version::CutlassVersion;

/// The input of a check.
pub(super) struct Subject<'a> {
    pub(super) configuration: &'a Configuration,
    pub(super) cutlass: CutlassVersion,
    pub(super) target: &'a str,
}

pub(super) fn epilogue_tile_of_a_schedule(subject: &Subject) -> Option<String> {
    let Configuration { family, epilogue, .. } = subject.configuration;
    let is_free = *family == Family::Sm120 || epilogue.tile.is_none();
    demand(is_free || epilogue.schedule != EpilogueSchedule::Auto, || {
        format!("epilogue tile {:?} under the automatic schedule", epilogue.tile)
    })
}

pub(super) fn pingpong_splits(subject: &Subject) -> Option<String> {
    let Configuration { mainloop, scheduler, .. } = subject.configuration;
    demand(!(mainloop.is_pingpong() && scheduler.splits_k()), || format!("{scheduler:?}"))
}

pub(super) fn schedule_numbers(subject: &Subject) -> Option<String> {
    let Configuration { order, scheduler, .. } = subject.configuration;
    let splits = match scheduler {
        TileScheduler::SplitK(splits) => (2..=64).contains(splits),
        _ => true,
    };
    demand([1, 2, 4, 8].contains(&order.swizzle) && splits, || {
        format!("swizzle {}, {scheduler:?}", order.swizzle)
    })
}

pub(super) fn grouped_splits(subject: &Subject) -> Option<String> {
    let Configuration { groups, scheduler, .. } = subject.configuration;
    demand(!(groups.is_some() && scheduler.splits_k()), || format!("{scheduler:?} of a grouped kernel"))
}

/// Returns a finding if a requirement is not met.
fn demand(met: bool, found: impl FnOnce() -> String) -> Option<String> {
    if met { None } else { Some(found()) }
}

pub(super) fn same_scales(subject: &Subject) -> Option<String> {
    let (a, b) = (subject.configuration.a.format, subject.configuration.b.format);
    demand(a.scale_vector() == b.scale_vector() && a.is_ultra() == b.is_ultra(), || format!("{a:?} by {b:?}"))
}

pub(super) fn tags_of_the_family(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let belongs = configuration.mainloop.family().is_none_or(|family| family == configuration.family);
    let epilogue = match (configuration.family, configuration.epilogue.schedule) {
        (_, EpilogueSchedule::Auto) => true,
        (Family::Sm100 | Family::Sm103, EpilogueSchedule::Tma | EpilogueSchedule::NoSmem) => true,
        // This tag has no PtrArray form.
        (Family::Sm100, EpilogueSchedule::TmaNvf4) => !configuration.epilogue.grouped,
        (Family::Sm120, EpilogueSchedule::Cooperative | EpilogueSchedule::Pingpong) => {
            configuration.groups.is_some() && configuration.epilogue.grouped
        }
        _ => false,
    };
    // CUTLASS has no PtrArray forms of the Sm120 tags that name a format.
    let written = match configuration.mainloop {
        Mainloop::Sm120 { .. } => configuration.groups.is_none(),
        Mainloop::Sm100MixedTmaCpAsync => {
            configuration.groups.is_none()
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

pub(super) fn tag_of_the_format(subject: &Subject) -> Option<String> {
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

pub(super) fn k_major_only(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let free = configuration.family == Family::Sm100 && configuration.kind() == Kind::Mxf8f6f4;
    demand(free || (configuration.a.k_major && configuration.b.k_major), || {
        let major = |k_major| if k_major { "K-major" } else { "not K-major" };
        format!("A {}, B {}", major(configuration.a.k_major), major(configuration.b.k_major))
    })
}

pub(super) fn n_major_tile(subject: &Subject) -> Option<String> {
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

/// Finds an operand whose alignment is not the required multiple.
fn misaligned(configuration: &Configuration) -> Option<String> {
    [("A", configuration.a), ("B", configuration.b)].into_iter().find_map(|(name, operand)| {
        let multiple = configuration.kind().alignment(operand.format);
        let met = operand.alignment > 0 && operand.alignment.is_multiple_of(multiple);
        demand(met, || format!("{name} aligned to {}, not to {multiple}", operand.alignment))
    })
}

/// Returns whether the builder asserts the alignment. It does not for mxf8f6f4 with Auto or PtrArray tags.
fn asserts_alignment(configuration: &Configuration) -> bool {
    let explicit = matches!(configuration.mainloop, Mainloop::Sm100(_) | Mainloop::Sm120 { .. });
    configuration.kind() != Kind::Mxf8f6f4 || (explicit && configuration.groups.is_none())
}

pub(super) fn asserted_alignment(subject: &Subject) -> Option<String> {
    if asserts_alignment(subject.configuration) { misaligned(subject.configuration) } else { None }
}

pub(super) fn silent_alignment(subject: &Subject) -> Option<String> {
    if asserts_alignment(subject.configuration) { None } else { misaligned(subject.configuration) }
}

pub(super) fn tile_m_of_the_sms(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let sms = configuration.sms.count();
    demand(configuration.family == Family::Sm120 || configuration.tile[0] == 128 * sms, || {
        format!("tile M {} on {sms} SM", configuration.tile[0])
    })
}

pub(super) fn cluster_of_the_sms(subject: &Subject) -> Option<String> {
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
            format!("{} SM, but Auto picks {}", configuration.sms.count(), picked.count())
        });
    }
    match cluster {
        Cluster::Static([m, _]) if configuration.sms == Sms::Two => {
            demand(m > 0 && m.is_multiple_of(2), || format!("cluster M {m} with two SMs"))
        }
        _ => None,
    }
}

pub(super) fn sm100_tile_n(subject: &Subject) -> Option<String> {
    let n = subject.configuration.tile[1];
    demand(subject.configuration.family != Family::Sm100 || [64, 128, 192, 256].contains(&n), || {
        format!("tile N {n}")
    })
}

pub(super) fn sm103_shape(subject: &Subject) -> Option<String> {
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

pub(super) fn tile_k(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let multiple = 4 * configuration.a.format.scale_vector().max(configuration.b.format.scale_vector());
    let k = configuration.tile[2];
    let met = configuration.family == Family::Sm103 || (k > 0 && k.is_multiple_of(multiple));
    demand(met, || format!("tile K {k}, not a multiple of {multiple}"))
}

pub(super) fn sm120_tile_m(subject: &Subject) -> Option<String> {
    let m = subject.configuration.tile[0];
    let met = subject.configuration.family != Family::Sm120 || (m > 0 && m.is_multiple_of(128));
    demand(met, || format!("tile M {m}"))
}

pub(super) fn sm120_tile_n(subject: &Subject) -> Option<String> {
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

pub(super) fn pingpong_tile_n(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    demand(!configuration.mainloop.is_pingpong() || configuration.tile[1] >= 16, || {
        format!("pingpong with tile N {}", configuration.tile[1])
    })
}

pub(super) fn sm120_cluster(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let met = configuration.cluster == Cluster::Static([1, 1]) && configuration.sms == Sms::One;
    demand(configuration.family != Family::Sm120 || met, || {
        format!("{:?}, {} SM", configuration.cluster, configuration.sms.count())
    })
}

pub(super) fn enough_stages(subject: &Subject) -> Option<String> {
    let least = if subject.configuration.family == Family::Sm120 { 2 } else { 1 };
    let stages = stages(subject.configuration, subject.cutlass)?;
    demand(stages >= least, || format!("{stages} stages, fewer than {least}"))
}

pub(super) fn grouped_pair(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let epilogue = configuration.epilogue;
    if configuration.family != Family::Sm100 {
        return None;
    }
    if configuration.groups.is_none() {
        return demand(!epilogue.grouped, || {
            "a PtrArray epilogue in a kernel that is not grouped".to_owned()
        });
    }
    let met = matches!(configuration.mainloop, Mainloop::Sm100(_) | Mainloop::Sm100BlockScaled)
        && epilogue.grouped
        && epilogue.schedule == EpilogueSchedule::Tma
        && epilogue.sms == configuration.sms;
    demand(met, || format!("{} with {}", configuration.mainloop_tag(), configuration.epilogue_tag()))
}

pub(super) fn target_of_the_family(subject: &Subject) -> Option<String> {
    let family = subject.configuration.family;
    let targets: &[&str] = match family {
        Family::Sm100 => &["sm_100a", "sm_100f", "sm_103a"],
        Family::Sm103 => &["sm_103a"],
        Family::Sm120 => &["sm_120a", "sm_120f", "sm_121a"],
    };
    demand(targets.contains(&subject.target), || format!("{family:?} for {}", subject.target))
}

pub(super) fn same_digit(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let digits = !matches!(configuration.epilogue.schedule, EpilogueSchedule::Auto)
        && configuration.family != Family::Sm120;
    demand(!digits || configuration.epilogue.sms == configuration.sms, || {
        format!("{} SM, epilogue {}", configuration.sms.count(), configuration.epilogue.sms.count())
    })
}

pub(super) fn fixed_stages_fit(subject: &Subject) -> Option<String> {
    let Stages::Fixed(stages) = subject.configuration.stages else { return None };
    let most = automatic_stages(subject.configuration, subject.cutlass)?;
    demand(stages <= most, || format!("{stages} stages, but only {most} fit"))
}

pub(super) fn cluster_extents(subject: &Subject) -> Option<String> {
    let extents = |extent: u32| [1, 2, 4].contains(&extent);
    match subject.configuration.cluster {
        Cluster::Static([m, n]) if subject.configuration.family == Family::Sm100 => {
            demand(extents(m) && extents(n), || format!("cluster {m}x{n}"))
        }
        _ => None,
    }
}

pub(super) fn grouped_narrow_tags(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let concerned = configuration.family == Family::Sm120
        && configuration.groups.is_some()
        && configuration.a.format.bits() >= 6
        && configuration.b.format.bits() >= 6
        && subject.cutlass < CutlassVersion::new(4, 4, 3);
    let auto =
        configuration.mainloop == Mainloop::Auto && configuration.epilogue.schedule == EpilogueSchedule::Auto;
    demand(!concerned || auto, || {
        format!("{} with {}", configuration.mainloop_tag(), configuration.epilogue_tag())
    })
}

pub(super) fn wide_epilogue_tile(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let concerned = configuration.family == Family::Sm100
        && configuration.tile[1] == 256
        && configuration.epilogue.schedule != EpilogueSchedule::NoSmem;
    demand(!concerned || configuration.epilogue.tile.is_some(), || {
        "tile N 256, epilogue tile Auto".to_owned()
    })
}

pub(super) fn two_steps(subject: &Subject) -> Option<String> {
    let configuration = subject.configuration;
    let concerned = configuration.family == Family::Sm120
        && configuration.a.format.bits() == 4
        && configuration.b.format.bits() == 4;
    let k = configuration.tile[2];
    demand(!concerned || k >= 128, || format!("tile K of {k}"))
}

pub(super) fn tensor_memory_columns(subject: &Subject) -> Option<String> {
    let columns = tensor_memory::columns(subject.configuration)?;
    demand(columns.total() <= tensor_memory::CAPACITY, || {
        let Columns { accumulators, scales_a, scales_b } = columns;
        format!("{accumulators} + {scales_a} + {scales_b} = {} columns", columns.total())
    })
}

pub(super) fn epilogue_tile_divides(subject: &Subject) -> Option<String> {
    let [m, n, _] = subject.configuration.cta_tile();
    let [rows, columns] = subject.configuration.epilogue.tile?;
    let met = rows > 0
        && columns > 0
        && m.is_multiple_of(rows)
        && n.is_multiple_of(columns)
        && columns.is_multiple_of(8);
    demand(met, || format!("epilogue tile {rows}x{columns} in a CTA's {m}x{n}"))
}

//! The table of reported metrics, with their names on each chip, taken from ncu's metric catalogues.

use serde::Serialize;

/// A chip, by the profiler's name. Counter names differ between chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Chip {
    /// H100, H200.
    Gh100,
    /// B200 and B300, which have the same counters.
    Gb100,
    /// RTX 50, RTX PRO Blackwell, DGX Spark.
    Gb202,
}

impl Chip {
    /// Every supported chip, in the order of the table's columns.
    pub const ALL: [Chip; 3] = [Chip::Gh100, Chip::Gb100, Chip::Gb202];

    /// The chip of a compute capability; `None` if it is not supported.
    pub fn of(capability: (u32, u32)) -> Option<Chip> {
        match capability {
            (9, 0) => Some(Chip::Gh100),
            (10, 0 | 3) => Some(Chip::Gb100),
            (12, 0 | 1) => Some(Chip::Gb202),
            _ => None,
        }
    }

    /// The profiler's name.
    pub fn name(self) -> &'static str {
        match self {
            Chip::Gh100 => "gh100",
            Chip::Gb100 => "gb100",
            Chip::Gb202 => "gb202",
        }
    }
}

/// The unit of a reported number, independent of the profiler's scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Percent.
    #[serde(rename = "%")]
    Percent,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
    /// A count.
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// The factor that converts from the profiler's unit; `None` if that unit is of another kind.
    pub fn factor(self, unit: &str) -> Option<f64> {
        let (of, per) = unit.split_once('/').map_or((unit, None), |(of, per)| (of, Some(per)));
        // A rate is not an amount.
        if per.is_some_and(|per| ["s", "second", "ns", "cycle"].contains(&per)) {
            return None;
        }
        match self {
            Unit::Microseconds => match of {
                "ns" | "nsecond" => Some(1e-3),
                "us" | "usecond" => Some(1.0),
                "ms" | "msecond" => Some(1e3),
                "s" | "second" => Some(1e6),
                _ => None,
            },
            Unit::Percent => (of == "%").then_some(1.0),
            Unit::Bytes => {
                let (factor, base) = prefix(of);
                (base == "byte").then_some(factor)
            }
            Unit::Count => {
                let (factor, base) = prefix(of);
                let counts = base.bytes().all(|letter| letter.is_ascii_lowercase());
                (counts && !["byte", "hz"].contains(&base)).then_some(factor)
            }
        }
    }
}

/// Splits a unit into its power of ten and its base unit, which begins with a lower-case letter.
fn prefix(unit: &str) -> (f64, &str) {
    for (letter, factor) in [('K', 1e3), ('M', 1e6), ('G', 1e9), ('T', 1e12)] {
        if let Some(base) = unit.strip_prefix(letter) {
            return (factor, base);
        }
    }
    (1.0, unit)
}

/// The source of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A hardware counter, collected by name.
    Counter,
    /// A property of the launch, collected with the sections [`SECTIONS`].
    Launch,
}

/// The ncu sections that contain [`Source::Launch`].
pub const SECTIONS: [&str; 2] = ["LaunchStats", "Occupancy"];

/// A reported number.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The key in JSON reports.
    pub key: &'static str,
    /// The title in text reports.
    pub title: &'static str,
    /// The unit.
    pub unit: Unit,
    /// The source.
    pub source: Source,
    /// The names on [`Chip::ALL`]; `None` if the chip has no such counter.
    names: [Option<&'static str>; 3],
}

impl Metric {
    /// The profiler's name on a chip, also the column name; `None` if the chip has no such counter.
    pub fn name(&self, chip: Chip) -> Option<&'static str> {
        let [gh100, gb100, gb202] = self.names;
        match chip {
            Chip::Gh100 => gh100,
            Chip::Gb100 => gb100,
            Chip::Gb202 => gb202,
        }
    }
}

const fn counter(key: &'static str, title: &'static str, unit: Unit, name: &'static str) -> Metric {
    Metric { key, title, unit, source: Source::Counter, names: [Some(name); 3] }
}

const fn launch(key: &'static str, title: &'static str, unit: Unit, name: &'static str) -> Metric {
    Metric { key, title, unit, source: Source::Launch, names: [Some(name); 3] }
}

/// A counter that some chips name differently or lack.
const fn differs(
    key: &'static str,
    title: &'static str,
    unit: Unit,
    names: [Option<&'static str>; 3],
) -> Metric {
    Metric { key, title, unit, source: Source::Counter, names }
}

const READ: &str = "dram__bytes_read.sum";
const WRITE: &str = "dram__bytes_write.sum";
const SUBPIPE: &str = "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active";
const HMMA: &str = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active";
const FP4: &str = "sm__ops_path_tensor_src_fp4_dst_fp32.sum";

/// The key of the bytes read from DRAM.
pub const DRAM_READ: &str = "dram_bytes_read";
/// The key of the bytes written to DRAM.
pub const DRAM_WRITTEN: &str = "dram_bytes_written";

/// All reported metrics, in report order.
pub const METRICS: &[Metric] = &[
    counter("duration", "duration", Unit::Microseconds, "gpu__time_duration.sum"),
    counter(
        "sm_throughput",
        "SM throughput",
        Unit::Percent,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    counter(
        "dram_throughput",
        "DRAM throughput",
        Unit::Percent,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    counter(
        "l2_throughput",
        "L2 throughput",
        Unit::Percent,
        "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    counter("l2_hit_rate", "L2 hit rate", Unit::Percent, "lts__t_sector_hit_rate.pct"),
    differs(DRAM_READ, "DRAM read", Unit::Bytes, [Some(READ), Some(READ), Some("dram__bytes_op_read.sum")]),
    differs(
        DRAM_WRITTEN,
        "DRAM written",
        Unit::Bytes,
        [Some(WRITE), Some(WRITE), Some("dram__bytes_op_write.sum")],
    ),
    counter(
        "tensor_pipe",
        "tensor pipe, whole",
        Unit::Percent,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    // The subpipe for 16-bit, FP8 and FP4 formats. Blackwell has another name for it.
    differs("tensor_subpipe", "tensor pipe, FP", Unit::Percent, [Some(HMMA), Some(SUBPIPE), Some(SUBPIPE)]),
    differs(
        "tcgen05_pipe",
        "tcgen05 issue pipe",
        Unit::Percent,
        [None, Some("sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_active"), None],
    ),
    differs(
        "matrix_instructions",
        "matrix instructions",
        Unit::Count,
        [
            Some("sm__inst_executed_pipe_tensor_op_gmma.sum"),
            Some("sm__sass_inst_executed_op_utcmma.sum"),
            None,
        ],
    ),
    differs("fp4_operations", "FP4 operations", Unit::Count, [None, Some(FP4), Some(FP4)]),
    counter("tma_instructions", "TMA instructions", Unit::Count, "sm__inst_executed_pipe_tma.sum"),
    counter(
        "tma_bytes_loaded",
        "TMA loaded",
        Unit::Bytes,
        "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    ),
    counter(
        "shared_conflicts",
        "shared conflicts",
        Unit::Count,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    ),
    // Local memory holds register spills and arrays with dynamic indices.
    counter("local_loads", "local loads", Unit::Count, "smsp__sass_inst_executed_op_local_ld.sum"),
    counter("local_stores", "local stores", Unit::Count, "smsp__sass_inst_executed_op_local_st.sum"),
    counter(
        "warps_active",
        "warps active",
        Unit::Percent,
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
    launch("registers", "registers per thread", Unit::Count, "launch__registers_per_thread"),
    launch("shared_memory", "shared memory per CTA", Unit::Bytes, "launch__shared_mem_per_block_dynamic"),
    launch("grid", "CTAs per grid", Unit::Count, "launch__grid_size"),
    launch("cluster", "CTAs per cluster", Unit::Count, "launch__cluster_size"),
    launch("waves", "waves", Unit::Count, "launch__waves_per_multiprocessor"),
    launch("limit_registers", "limit by registers", Unit::Count, "launch__occupancy_limit_registers"),
    launch("limit_shared", "limit by shared mem.", Unit::Count, "launch__occupancy_limit_shared_mem"),
    launch("limit_warps", "limit by warps", Unit::Count, "launch__occupancy_limit_warps"),
    launch("limit_blocks", "limit by CTAs", Unit::Count, "launch__occupancy_limit_blocks"),
    launch("limit_barriers", "limit by barriers", Unit::Count, "launch__occupancy_limit_barriers"),
];

/// Stall reasons of every chip. Excludes `selected`, which means that the warp issued.
const STALLS: &[&str] = &[
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
];

/// All stall reasons of a chip.
pub fn stalls(chip: Chip) -> impl Iterator<Item = &'static str> {
    let more: &[&str] = match chip {
        Chip::Gh100 => &["gmma", "imc_miss"],
        Chip::Gb100 => &[],
        Chip::Gb202 => &["mio_throttle_pipe_mio"],
    };
    STALLS.iter().chain(more).copied()
}

/// The counter of a stall reason: average number of warps stalled for it per issued instruction.
pub fn stall_metric(reason: &str) -> String {
    format!("smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio")
}

/// Every counter that is collected on a chip.
pub fn counters(chip: Chip) -> impl Iterator<Item = String> {
    let named = METRICS.iter().filter(|metric| metric.source == Source::Counter);
    let named = named.filter_map(move |metric| metric.name(chip)).map(str::to_owned);
    named.chain(stalls(chip).map(stall_metric))
}

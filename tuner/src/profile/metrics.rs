//! Which numbers are shown, by the names that each chip has for them: data, from the catalogues of the chips.

use serde::Serialize;

/// A chip, as the profiler names it. Names of counters differ between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Chip {
    /// H100, H200.
    Gh100,
    /// B200, B300: they have the same counters.
    Gb100,
    /// RTX 50, RTX PRO Blackwell, DGX Spark.
    Gb202,
}

impl Chip {
    /// Every chip that has a column in the table.
    pub const ALL: [Chip; 3] = [Chip::Gh100, Chip::Gb100, Chip::Gb202];

    /// The chip with the counters of a GPU of this compute capability.
    pub fn of(capability: (u32, u32)) -> Option<Chip> {
        match capability {
            (9, 0) => Some(Chip::Gh100),
            (10, 0 | 3) => Some(Chip::Gb100),
            (12, 0 | 1) => Some(Chip::Gb202),
            _ => None,
        }
    }

    /// The profiler's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Chip::Gh100 => "gh100",
            Chip::Gb100 => "gb100",
            Chip::Gb202 => "gb202",
        }
    }
}

/// What a number is measured in here, whatever the profiler scaled it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Per cent.
    #[serde(rename = "%")]
    Percent,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
    /// How many, or how many times.
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// What a number in the profiler's unit is multiplied with; `None` if that unit measures something else.
    pub fn factor(self, unit: &str) -> Option<f64> {
        let (of, per) = unit.split_once('/').map_or((unit, None), |(of, per)| (of, Some(per)));
        // A rate is not the amount that a number is asked for.
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

/// The power of ten before a base unit. Base units begin with a small letter.
fn prefix(unit: &str) -> (f64, &str) {
    for (letter, factor) in [('K', 1e3), ('M', 1e6), ('G', 1e9), ('T', 1e12)] {
        if let Some(base) = unit.strip_prefix(letter) {
            return (factor, base);
        }
    }
    (1.0, unit)
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A counter of the hardware, which is asked for by its name.
    Counter,
    /// What the profiler knows of the launch: it comes with the sections [`SECTIONS`].
    Launch,
}

/// The profiler's sections that [`Source::Launch`] comes with.
pub const SECTIONS: [&str; 2] = ["LaunchStats", "Occupancy"];

/// A number that is shown.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its key in reports.
    pub key: &'static str,
    /// What it is called in text.
    pub title: &'static str,
    /// What it is measured in.
    pub unit: Unit,
    /// Where it comes from.
    pub source: Source,
    /// Its names on [`Chip::ALL`]; `None` where the chip does not count that.
    names: [Option<&'static str>; 3],
}

impl Metric {
    /// The profiler's name for it on a chip, which is also the column; `None` where the chip does not count that.
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

/// A counter whose name, or existence, depends on the chip.
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

/// The keys of what is held against the bytes that must move.
pub const DRAM_READ: &str = "dram_bytes_read";
/// As [`DRAM_READ`].
pub const DRAM_WRITTEN: &str = "dram_bytes_written";

/// Everything that is shown, in this order.
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
    // The part of it that computes in 16 bits, FP8 and FP4; the name of gh100 does not exist on Blackwell.
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
    // Spills go to local memory, and so does an array that is indexed by what is not known.
    counter("local_loads", "local loads", Unit::Count, "smsp__sass_inst_executed_op_local_ld.sum"),
    counter("local_stores", "local stores", Unit::Count, "smsp__sass_inst_executed_op_local_st.sum"),
    counter(
        "warps_active",
        "warps active",
        Unit::Percent,
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
    launch("registers", "registers a thread", Unit::Count, "launch__registers_per_thread"),
    launch("shared_memory", "shared memory a block", Unit::Bytes, "launch__shared_mem_per_block_dynamic"),
    launch("grid", "blocks of the grid", Unit::Count, "launch__grid_size"),
    launch("cluster", "blocks of a cluster", Unit::Count, "launch__cluster_size"),
    launch("waves", "waves", Unit::Count, "launch__waves_per_multiprocessor"),
    launch("limit_registers", "limit by registers", Unit::Count, "launch__occupancy_limit_registers"),
    launch("limit_shared", "limit by shared mem.", Unit::Count, "launch__occupancy_limit_shared_mem"),
    launch("limit_warps", "limit by warps", Unit::Count, "launch__occupancy_limit_warps"),
    launch("limit_blocks", "limit by blocks", Unit::Count, "launch__occupancy_limit_blocks"),
    launch("limit_barriers", "limit by barriers", Unit::Count, "launch__occupancy_limit_barriers"),
];

/// Why a warp did not issue, on every chip. `selected` is not among them: it says that a warp did.
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

/// The reasons for which a warp of this chip does not issue.
pub fn stalls(chip: Chip) -> impl Iterator<Item = &'static str> {
    let more: &[&str] = match chip {
        Chip::Gh100 => &["gmma", "imc_miss"],
        Chip::Gb100 => &[],
        Chip::Gb202 => &["mio_throttle_pipe_mio"],
    };
    STALLS.iter().chain(more).copied()
}

/// The counter of a reason: how many warps wait for it whenever an instruction is issued, on average.
pub fn stall_metric(reason: &str) -> String {
    format!("smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio")
}

/// Every counter that is asked for on a chip.
pub fn counters(chip: Chip) -> impl Iterator<Item = String> {
    let named = METRICS.iter().filter(|metric| metric.source == Source::Counter);
    let named = named.filter_map(move |metric| metric.name(chip)).map(str::to_owned);
    named.chain(stalls(chip).map(stall_metric))
}

//! Validity rules as data: the requirement of each rule, and the failure that it prevents. Compiler messages are those
//! of nvcc 13.0.88.

use fourfold_codegen::Target;
use fourfold_codegen::block_quantize::{Configuration, Padding};
use fourfold_ir::ScaleLayout;

use super::TARGETS;
use crate::generator::Broken;

struct Rule {
    name: &'static str,
    demands: &'static str,
    prevents: &'static str,
    /// Returns the offending value, if the rule is broken.
    check: fn(&Configuration, &Target) -> Option<String>,
}

static RULES: [Rule; 5] = [
    Rule {
        name: "target",
        demands: "the generator supports the target",
        prevents: "nvcc fatal   : Unsupported gpu architecture",
        check: |_, target| {
            let is_known = TARGETS.contains(&target.name);
            (!is_known).then(|| target.name.to_owned())
        },
    },
    Rule {
        name: "block",
        demands: "a thread holds values of one block: at most 16 for NVFP4, 32 for MX",
        prevents: "error: division by zero: no thread computes a block's scale",
        check: |settings, _| {
            let block = settings.format.block();
            (settings.values > block).then(|| format!("{} of {block}", settings.values))
        },
    },
    Rule {
        name: "row",
        demands: "the threads of a row hold at least a whole block: threads / rows >= block / values",
        prevents: "error: static assertion failed: threads of two rows would share a block of values, and its scale",
        check: |settings, _| {
            let (threads, lanes) = (settings.threads / settings.rows, lanes(settings));
            (threads < lanes).then(|| format!("{threads} threads per row, but a block needs {lanes}"))
        },
    },
    Rule {
        name: "registers",
        demands: "a thread holds at most 64 words of values; with 1024 threads, at most 16 words in at most 4 turns",
        prevents: "16 to 448 bytes of spill stores, because values stay in registers until they are written",
        check: |settings, _| {
            let words = words(settings);
            let is_largest = settings.threads > 512;
            let most = if is_largest { 16 } else { 64 };
            (words > most || (is_largest && settings.turns > 4))
                .then(|| format!("{words} words in {} turns of {} threads", settings.turns, settings.threads))
        },
    },
    Rule {
        name: "padding",
        demands: "a memset clears blocked scales only",
        prevents: "a useless memset of linear scales, which have no padding",
        check: |settings, _| {
            let is_linear = settings.layout == ScaleLayout::Linear;
            (is_linear && settings.padding == Padding::Memset)
                .then(|| "padding=memset layout=linear".to_owned())
        },
    },
];

/// Threads that share a block of values.
fn lanes(settings: &Configuration) -> u32 {
    settings.format.block() / settings.values
}

/// Registers per thread that hold values.
fn words(settings: &Configuration) -> u32 {
    settings.values * settings.turns * settings.input.storage_bits() as u32 / 32
}

/// Checks settings against every rule.
pub(super) fn check(settings: &Configuration, target: &Target) -> Result<(), Vec<Broken>> {
    let broken = |rule: &Rule| {
        (rule.check)(settings, target).map(|found| Broken {
            rule: rule.name.to_owned(),
            demands: rule.demands.to_owned(),
            found,
            prevents: rule.prevents.to_owned(),
            refused: false,
        })
    };
    let broken: Vec<Broken> = RULES.iter().filter_map(broken).collect();
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

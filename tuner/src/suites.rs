//! Named lists of problems: shapes of a public contest, and layers of popular models.

use crate::problem::{Problem, Weighted};

/// A layer of a model: name, N and K.
type Layer = (&'static str, u64, u64);

/// Models with their linear layers as they are run: Q, K and V fused, gate and up fused.
const MODELS: [(&str, &[Layer]); 4] = [
    (
        "llama-3.1-8b",
        &[("qkv", 6144, 4096), ("o", 4096, 4096), ("gate_up", 28672, 4096), ("down", 4096, 14336)],
    ),
    (
        "llama-3.1-70b",
        &[("qkv", 10240, 8192), ("o", 8192, 8192), ("gate_up", 57344, 8192), ("down", 8192, 28672)],
    ),
    (
        "qwen3-32b",
        &[("qkv", 10240, 5120), ("o", 5120, 8192), ("gate_up", 51200, 5120), ("down", 5120, 25600)],
    ),
    // One expert's layers, and the output projection of attention.
    ("deepseek-v3", &[("expert_gate_up", 4096, 7168), ("expert_down", 7168, 2048), ("o", 7168, 16384)]),
];

/// M in the decode phase: one row per sequence.
const DECODE: [u64; 6] = [1, 4, 8, 16, 32, 64];
/// M in the prefill phase.
const PREFILL: [u64; 4] = [256, 512, 2048, 8192];

const CONTEST: [(u64, u64, u64); 3] = [(128, 7168, 16384), (128, 4096, 7168), (128, 7168, 2048)];
const CONTEST_TESTS: [(u64, u64, u64); 10] = [
    (128, 256, 256),
    (128, 1536, 7168),
    (128, 3072, 1536),
    (256, 7168, 256),
    (256, 7168, 2048),
    (2304, 4608, 7168),
    (384, 7168, 2304),
    (512, 512, 7168),
    (512, 4096, 512),
    (512, 1536, 7168),
];
const SQUARE: [u64; 5] = [512, 1024, 2048, 4096, 8192];

/// The names of all suites.
pub fn names() -> Vec<String> {
    let models =
        MODELS.iter().flat_map(|(model, _)| ["decode", "prefill"].map(|how| format!("{how}:{model}")));
    ["contest", "contest-tests", "square"].map(str::to_owned).into_iter().chain(models).collect()
}

/// The problems of a suite, each with weight 1; `None` if the suite is unknown.
pub fn suite(name: &str) -> Option<Vec<Weighted>> {
    let of = |(m, n, k): (u64, u64, u64)| Weighted { problem: Problem::new(m, n, k), weight: 1.0 };
    match name {
        "contest" => return Some(CONTEST.map(of).to_vec()),
        "contest-tests" => return Some(CONTEST_TESTS.map(of).to_vec()),
        "square" => return Some(SQUARE.map(|extent| of((extent, extent, extent))).to_vec()),
        _ => {}
    }
    let (how, model) = name.split_once(':')?;
    let rows: &[u64] = match how {
        "decode" => &DECODE,
        "prefill" => &PREFILL,
        _ => return None,
    };
    let (_, layers) = MODELS.iter().find(|(known, _)| *known == model)?;
    Some(rows.iter().flat_map(|m| layers.iter().map(|(_, n, k)| of((*m, *n, *k)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_suite_and_every_problem_of_one_is_there_once() {
        for name in names() {
            let problems = suite(&name).expect("a suite");
            let mut distinct: Vec<Problem> = problems.iter().map(|weighted| weighted.problem).collect();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), problems.len(), "{name}");
            // The alignment of K for the formats, and of N for 16-bit results.
            assert!(distinct.iter().all(|it| it.k.is_multiple_of(32) && it.n.is_multiple_of(8)), "{name}");
        }
        assert_eq!(suite("decode:nobody"), None);
        assert_eq!(suite("contest:llama-3.1-8b"), None);
        assert_eq!(suite("prefill:llama-3.1-8b").map(|problems| problems.len()), Some(16));
    }
}

//! Problems: the extents of a multiplication, with an optional weight.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The extents of one call in elements: D is `[L, M, N]`, A is `[L, M, K]`, B is `[L, N, K]`. The text form is
/// `MxNxK`, or `LxMxNxK` if L is not 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// Batch.
    pub l: u64,
    /// Rows of A and D.
    pub m: u64,
    /// Rows of B, columns of D.
    pub n: u64,
    /// Columns of A and B, the summed extent.
    pub k: u64,
}

impl Problem {
    /// A problem of one matrix.
    pub const fn new(m: u64, n: u64, k: u64) -> Problem {
        Problem { l: 1, m, n, k }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { l, m, n, k } = self;
        if *l != 1 {
            write!(f, "{l}x")?;
        }
        write!(f, "{m}x{n}x{k}")
    }
}

/// A text that is not a problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a problem; write MxNxK or LxMxNxK with whole numbers from 1 to 2^31-1, such as 128x7168x16384"
)]
pub struct ProblemError(String);

impl FromStr for Problem {
    type Err = ProblemError;

    fn from_str(text: &str) -> Result<Problem, ProblemError> {
        let error = || ProblemError(text.to_owned());
        let extents: Vec<u64> =
            text.trim().split('x').map(|part| part.parse().map_err(|_| error())).collect::<Result<_, _>>()?;
        let problem = match extents[..] {
            [m, n, k] => Problem { l: 1, m, n, k },
            [l, m, n, k] => Problem { l, m, n, k },
            _ => return Err(error()),
        };
        // The interface of kernels has 32-bit extents.
        let fits = |extent: u64| (1..1 << 31).contains(&extent);
        let Problem { l, m, n, k } = problem;
        if [l, m, n, k].into_iter().all(fits) { Ok(problem) } else { Err(error()) }
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Problem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Problem, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A problem with a weight, such as the number of calls in a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weighted {
    /// The problem.
    pub problem: Problem,
    /// The weight, above 0.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

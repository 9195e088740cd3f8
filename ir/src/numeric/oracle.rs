//! An independent rounding for tests, which searches a table of all values of a format.
//!
//! It shares no code with [`super::round`]: floating-point arithmetic computes the tables from the definition of
//! each format, and comparisons with exact midpoints find the nearest entry.

use proptest::test_runner::Config;

/// All magnitudes of a format in ascending order; the index of a value is its code.
pub(super) struct Table {
    magnitudes: Vec<f64>,
    /// True if the last entry stands for infinity. Its value is that of the next exponent.
    ends_in_infinity: bool,
}

impl Table {
    /// A format with `exponent_bits`, `mantissa_bits` and the usual bias, up to and including `last_code`.
    fn new(exponent_bits: i32, mantissa_bits: i32, last_code: u16, ends_in_infinity: bool) -> Self {
        let bias = (1 << (exponent_bits - 1)) - 1;
        let magnitude = |code: u16| {
            let field = i32::from(code >> mantissa_bits);
            let fraction = f64::from(code % (1 << mantissa_bits)) / 2f64.powi(mantissa_bits);
            if field == 0 {
                fraction * 2f64.powi(1 - bias)
            } else {
                (1.0 + fraction) * 2f64.powi(field - bias)
            }
        };
        Self { magnitudes: (0..=last_code).map(magnitude).collect(), ends_in_infinity }
    }

    /// The values, ascending.
    pub(super) fn magnitudes(&self) -> &[f64] {
        &self.magnitudes
    }

    /// The largest finite value.
    pub(super) fn last_finite(&self) -> f64 {
        let last = self.magnitudes.len() - 1 - usize::from(self.ends_in_infinity);
        self.magnitudes[last]
    }

    /// The code of the value nearest to `v` >= 0, ties to even; the last code for `v` at or above the last value.
    pub(super) fn nearest(&self, v: f64) -> u16 {
        let above = self.magnitudes.partition_point(|&magnitude| magnitude <= v);
        let below = above - 1;
        if above == self.magnitudes.len() {
            return below as u16;
        }
        // Exact in f64: neighbours differ in the last of at most eleven bits.
        let midpoint = f64::midpoint(self.magnitudes[below], self.magnitudes[above]);
        let up = v > midpoint || (v == midpoint && below % 2 == 1);
        if up { above as u16 } else { below as u16 }
    }
}

/// 0, 0.5, 1, 1.5, 2, 3, 4, 6.
pub(super) fn e2m1() -> Table {
    Table::new(2, 1, 0x7, false)
}

/// Up to 7.5.
pub(super) fn e2m3() -> Table {
    Table::new(2, 3, 0x1F, false)
}

/// Up to 28.
pub(super) fn e3m2() -> Table {
    Table::new(3, 2, 0x1F, false)
}

/// Up to 448.
pub(super) fn e4m3() -> Table {
    Table::new(4, 3, 0x7E, false)
}

/// Up to 57344. Leaves out the format's infinity, because the conversions saturate.
pub(super) fn e5m2() -> Table {
    Table::new(5, 2, 0x7B, false)
}

/// Up to 65504, then infinity.
pub(super) fn f16() -> Table {
    Table::new(5, 10, 0x7C00, true)
}

/// Up to 3.4e38, then infinity.
pub(super) fn bf16() -> Table {
    Table::new(8, 7, 0x7F80, true)
}

/// A property test's configuration that leaves no file in the source tree when a case fails.
pub(super) fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

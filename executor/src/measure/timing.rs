//! Statistics of timing samples.

/// A timing, in microseconds per call.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// One sample per replay: its time divided by its calls.
    pub samples_us: Vec<f64>,
    /// The median of the samples.
    pub median_us: f64,
    /// The minimum.
    pub min_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// The dispersion: half the interquartile range, divided by the median.
    pub dispersion: f64,
    /// Calls per replay.
    pub calls: usize,
    /// The copies of all operands and outputs that calls rotate through.
    pub copies: usize,
    /// The bytes of operands and outputs over all copies, accessed between two calls on one copy.
    pub rotation_bytes: u64,
    /// The size of the device's L2 cache, in bytes.
    pub l2_bytes: u64,
}

impl Timing {
    /// Returns true if a call's data is no longer in L2 when it starts: the copies exceed three times L2. False if
    /// they do not fit the device, or a small problem would need too many copies.
    pub fn is_rotating(&self) -> bool {
        super::exceeds_l2(self.rotation_bytes, self.l2_bytes)
    }
}

/// Statistics of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The median, interpolated between the two middle samples of an even number.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The 90th percentile, which is one of the samples.
    pub p90: f64,
    /// Half the interquartile range, divided by the median.
    pub dispersion: f64,
}

/// Summarizes samples.
///
/// # Panics
/// If there are none.
pub fn summary(samples: &[f64]) -> Summary {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    // Interpolates linearly between samples.
    let quantile = |part: f64| {
        let place = part * last as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    };
    let median = quantile(0.5);
    let half = (quantile(0.75) - quantile(0.25)) / 2.0;
    let dispersion = if median > 0.0 { half / median } else { 0.0 };
    // For ten samples, the ninth: a measured value, not an interpolated one.
    let p90 = sorted[(sorted.len() * 9).div_ceil(10) - 1];
    Summary { median, min: sorted[0], p90, dispersion }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_order_statistics() {
        let expected = |median, min, p90, dispersion| Summary { median, min, p90, dispersion };
        assert_eq!(summary(&[7.0]), expected(7.0, 7.0, 7.0, 0.0));
        assert_eq!(summary(&[4.0, 2.0]), expected(3.0, 2.0, 4.0, 0.5 / 3.0));
        assert_eq!(summary(&[5.0, 1.0, 3.0, 2.0, 4.0]), expected(3.0, 1.0, 5.0, 1.0 / 3.0));
        let ten: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        assert_eq!(summary(&ten), expected(5.5, 1.0, 9.0, 2.25 / 5.5));
        // An outlier does not move the median.
        assert_eq!(summary(&[2.0, 2.0, 2.0, 2.0, 90.0]), expected(2.0, 2.0, 90.0, 0.0));
        assert_eq!(summary(&[0.0, 0.0]), expected(0.0, 0.0, 0.0, 0.0));
    }
}

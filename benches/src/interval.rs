//! Geometric mean of ratios, and its 95 % confidence interval by Student's t distribution of their logarithms.
//!
//! Each ratio compares two consecutive measurements, so that disturbances of the machine affect both. With logarithms,
//! half as fast and twice as fast have the same distance from equal.

use serde::{Deserialize, Serialize};

/// The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T_QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// A mean with its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// Number of ratios or differences.
    pub n: usize,
    /// Geometric mean of ratios, or arithmetic mean of differences.
    pub mean: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

impl Interval {
    /// Returns the mean of ratios with its interval. `None` for fewer than two ratios, or if a ratio is not a positive
    /// finite number.
    pub fn of_ratios(ratios: &[f64]) -> Option<Interval> {
        if !ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0) {
            return None;
        }
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let (mean, half) = mean_and_half_width(&logs)?;
        Some(Interval {
            n: logs.len(),
            mean: mean.exp(),
            low: (mean - half).exp(),
            high: (mean + half).exp(),
        })
    }
}

/// Returns the mean of differences with its interval. `None` for fewer than two differences, or if a difference is not
/// finite.
pub fn of_differences(differences: &[f64]) -> Option<Interval> {
    let (mean, half) = mean_and_half_width(differences)?;
    Some(Interval { n: differences.len(), mean, low: mean - half, high: mean + half })
}

/// Returns the mean of the values, and half the width of its interval. `None` for fewer than two values, or if one is
/// not finite.
fn mean_and_half_width(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len();
    if n < 2 || !values.iter().all(|value| value.is_finite()) {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (n - 1) as f64 / n as f64).sqrt();
    // Beyond the table, its last entry is slightly too large, so the interval is slightly too wide.
    Some((mean, T_QUANTILES[(n - 2).min(T_QUANTILES.len() - 1)] * error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3
    }

    /// Calculated by hand: the logarithms 0, ln 2 and ln 4 have the mean ln 2 and the standard error ln 2 / √3.
    /// Student's t is 4.303.
    #[test]
    fn interval_of_three_ratios_matches_reference() {
        let interval = Interval::of_ratios(&[1.0, 2.0, 4.0]).unwrap();
        let half = 4.303 * 2f64.ln() / 3f64.sqrt();
        assert_eq!(interval.n, 3);
        assert!(near(interval.mean, 2.0), "{interval:?}");
        assert!(near(interval.low, 2.0 / half.exp()) && near(interval.high, 2.0 * half.exp()));
    }

    #[test]
    fn interval_of_differences_matches_reference_and_may_be_negative() {
        let interval = of_differences(&[-1.0, 0.0, 1.0]).unwrap();
        let half = 4.303 / 3f64.sqrt();
        assert!(near(interval.mean, 0.0) && near(interval.low, -half) && near(interval.high, half));
        assert_eq!(of_differences(&[1.0]), None);
    }

    #[test]
    fn equal_ratios_have_zero_width_and_one_ratio_has_no_interval() {
        let interval = Interval::of_ratios(&[0.5; 7]).unwrap();
        assert!(near(interval.low, 0.5) && near(interval.high, 0.5));
        assert_eq!(Interval::of_ratios(&[0.5]), None);
        assert_eq!(Interval::of_ratios(&[]), None);
        assert_eq!(Interval::of_ratios(&[0.5, 0.0]), None);
        assert_eq!(Interval::of_ratios(&[0.5, f64::INFINITY]), None);
    }

    #[test]
    fn more_repetitions_narrow_the_interval() {
        let width = |n: usize| {
            let ratios: Vec<f64> = (0..n).map(|i| 1.0 + (i % 2) as f64 * 0.1).collect();
            let interval = Interval::of_ratios(&ratios).unwrap();
            interval.high - interval.low
        };
        assert!(width(8) < width(4) && width(4) < width(2) && width(100) < width(40));
    }
}

//! One measured number with everything that is needed to read it, as it goes from process to process and
//! into `results.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A latency distribution: octiles are not enough for tails, so each point is a quantile and its value.
pub type Quantiles = Vec<(f64, u64)>;

/// One measurement.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// What group of the plan it belongs to.
    pub group: String,
    /// Unique in a run.
    pub name: String,
    /// What distinguishes it, as people read it: `mtu`, `len`, `streams` and so on.
    pub parameters: BTreeMap<String, String>,
    /// The median of `samples`; `None` if it did not run.
    pub value: Option<f64>,
    /// Of `value` and `samples`.
    pub unit: String,
    /// One for each repetition.
    pub samples: Vec<f64>,
    /// Samples that are not among them, because they were noisy and others were not.
    #[serde(default)]
    pub left_out: u32,
    /// What was measured besides, the median as well; the unit is in the name. Of what ends in `_max` it is the
    /// most.
    pub extra: BTreeMap<String, f64>,
    /// One for each repetition, of each of them.
    #[serde(default)]
    pub extra_samples: BTreeMap<String, Vec<f64>>,
    /// Nanoseconds by quantile, where it is a latency.
    pub latency: Quantiles,
    /// Why it did not run, in a sentence.
    pub not_run: Option<String>,
    /// The cores were too far apart around it, or not ours alone, for absolute numbers to mean anything.
    pub noisy: bool,
    /// The slowest copying of the slower core before or after one of its samples, in gigaoctets per second.
    #[serde(default)]
    pub copied: Option<f64>,
}

impl Row {
    /// A row that is still to be measured.
    pub fn new(group: &str, name: &str, unit: &str) -> Row {
        let (group, name, unit) = (group.to_owned(), name.to_owned(), unit.to_owned());
        Row { group, name, unit, ..Row::default() }
    }

    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Row {
        self.parameters.insert(name.to_owned(), value.to_string());
        self
    }

    /// Adds a measurement.
    pub fn sample(&mut self, value: f64) {
        self.samples.push(value);
        self.value = Some(median(&self.samples));
    }

    /// Says why there is no number.
    #[must_use]
    pub fn not_run(mut self, why: impl Into<String>) -> Row {
        self.not_run = Some(why.into());
        self
    }

    /// Takes another repetition of the same measurement in. Quiet ones put noisy ones aside, whatever either
    /// measured: what is noisy is known before the measurement's result.
    pub fn merge(&mut self, other: Row) {
        let new = u32::try_from(other.samples.len()).unwrap_or(u32::MAX);
        if self.value.is_some() && other.value.is_some() && self.noisy != other.noisy {
            if other.noisy {
                self.left_out += new;
                return;
            }
            self.left_out += u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
            self.samples.clear();
            self.copied = None;
            self.extra.clear();
            self.extra_samples.clear();
        }
        for value in other.samples {
            self.sample(value);
        }
        for (name, value) in other.extra {
            let samples = self.extra_samples.entry(name.clone()).or_default();
            samples.push(value);
            let most = || samples.iter().copied().fold(f64::MIN, f64::max);
            self.extra.insert(
                name.clone(),
                if name.ends_with("_max") { most() } else { median(samples) },
            );
        }
        if !other.latency.is_empty() {
            self.latency = other.latency;
        }
        if other.value.is_some() {
            self.noisy = other.noisy;
            self.copied = self.copied.into_iter().chain(other.copied).reduce(f64::min);
        }
        if self.value.is_none() {
            self.not_run = self.not_run.take().or(other.not_run);
        } else {
            self.not_run = None;
        }
    }
}

/// The middle one; the mean of the middle two; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    fn sampled(value: f64, noisy: bool) -> Row {
        let mut row = Row { noisy, ..Row::new("g", "n", "u") };
        row.sample(value);
        row.extra.insert("held_max".into(), value);
        row.extra.insert("rate".into(), value);
        row
    }

    #[test]
    fn repetitions_make_one_row_and_a_failed_one_does_not_hide_the_others() {
        let mut row = Row::new("g", "n", "u").not_run("broken");
        for value in [2.0, 4.0, 3.0] {
            row.merge(sampled(value, false));
        }
        row.merge(Row::new("g", "n", "u").not_run("broken again"));
        assert_eq!((row.value, row.samples.len(), row.noisy), (Some(3.0), 3, false));
        assert_eq!((row.extra["held_max"], row.extra["rate"]), (4.0, 3.0));
        assert_eq!(row.not_run, None);
    }

    #[test]
    fn noisy_repetitions_count_only_where_there_are_no_quiet_ones() {
        let mut row = Row::new("g", "n", "u");
        row.merge(sampled(1.0, true));
        row.merge(sampled(3.0, true));
        assert_eq!((row.value, row.noisy, row.left_out), (Some(2.0), true, 0));
        row.merge(sampled(10.0, false));
        row.merge(sampled(5.0, true));
        assert_eq!((row.value, row.noisy, row.left_out), (Some(10.0), false, 3));
        assert_eq!(row.extra["rate"], 10.0);
    }
}

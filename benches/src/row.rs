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
    /// What was measured besides; the unit is in the name.
    pub extra: BTreeMap<String, f64>,
    /// Nanoseconds by quantile, where it is a latency.
    pub latency: Quantiles,
    /// Why it did not run, in a sentence.
    pub not_run: Option<String>,
    /// The cores' ping-pong time around it was too long for absolute numbers to mean anything.
    pub noisy: bool,
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

    /// Takes another repetition of the same measurement in.
    pub fn merge(&mut self, other: Row) {
        for value in other.samples {
            self.sample(value);
        }
        self.extra.extend(other.extra);
        if !other.latency.is_empty() {
            self.latency = other.latency;
        }
        self.noisy |= other.noisy;
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

    #[test]
    fn repetitions_make_one_row_and_a_failed_one_does_not_hide_the_others() {
        let mut row = Row::new("g", "n", "u").not_run("broken");
        let mut good = Row::new("g", "n", "u");
        good.sample(2.0);
        row.merge(good.clone());
        row.merge(Row { noisy: true, ..good });
        assert_eq!((row.value, row.samples.len(), row.noisy), (Some(2.0), 2, true));
        assert_eq!(row.not_run, None);
    }
}

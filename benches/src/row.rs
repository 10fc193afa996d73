//! A row: one measured number with its parameters and repetitions. Rows are passed between processes and stored in
//! `results.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A latency distribution: pairs of a quantile, 0 to 1, and its latency, nanoseconds. The quantiles become denser
/// towards the tail.
pub type Quantiles = Vec<(f64, u64)>;

/// A measured number with its parameters and repetitions.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// Name of the group in the plan.
    pub group: String,
    /// Name, unique in a run.
    pub name: String,
    /// Parameters that distinguish the row, for display: `mtu`, `len`, `streams` and so on.
    pub parameters: BTreeMap<String, String>,
    /// Median of the repetitions; `None` if the row did not run.
    pub value: Option<f64>,
    /// Unit of `value`.
    pub unit: String,
    /// Secondary numbers by name. The name contains the unit. The number is the median of the repetitions, or the
    /// maximum if the name ends in `_max`.
    pub extra: BTreeMap<String, f64>,
    /// Completed repetitions. Within a group, repetitions with the same number ran consecutively for all rows.
    pub runs: Vec<Repetition>,
    /// Latency distribution of the last repetition; empty if the row measures no latencies.
    pub latency: Quantiles,
    /// Reason why the row has no value, as a sentence.
    pub not_run: Option<String>,
    /// True if the cores were too far from each other or shared with other programs, before or after any repetition.
    /// Absolute numbers of a noisy row are meaningless.
    pub noisy: bool,
}

/// One of several repetitions of a row, with its own numbers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Repetition {
    /// Number of the repetition, from 0.
    pub repetition: u32,
    /// The measured value, in the row's unit.
    pub value: f64,
    /// Secondary numbers of this repetition, by name.
    pub extra: BTreeMap<String, f64>,
    /// True if the check of the cores before or after this repetition failed; see [`Row::noisy`].
    pub noisy: bool,
    /// Copy rate of the slower core, GB/s: the lower of the rates before and after the repetition; `None` if unknown.
    pub copied: Option<f64>,
}

impl Repetition {
    /// Returns the secondary number named `what`, or the repetition's value if `what` is `None`.
    pub fn value_of(&self, what: Option<&str>) -> Option<f64> {
        what.map_or(Some(self.value), |name| self.extra.get(name).copied())
    }
}

impl Row {
    /// Returns a row without a value, parameters and repetitions.
    pub fn new(group: &str, name: &str, unit: &str) -> Row {
        let (group, name, unit) = (group.to_owned(), name.to_owned(), unit.to_owned());
        Row { group, name, unit, ..Row::default() }
    }

    /// Adds a parameter for display.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Row {
        self.parameters.insert(name.to_owned(), value.to_string());
        self
    }

    /// Sets the measured value, in the row's unit.
    pub fn set(&mut self, value: f64) {
        self.value = Some(value);
    }

    /// Adds a secondary number, whose name contains its unit.
    pub fn add_extra(&mut self, name: &str, value: f64) {
        self.extra.insert(name.to_owned(), value);
    }

    /// Sets the reason why the row has no value, as a sentence.
    #[must_use]
    pub fn with_reason(mut self, why: impl Into<String>) -> Row {
        self.not_run = Some(why.into());
        self
    }

    /// Adds the repetition `run` with the measured numbers of `other` and recomputes the medians. If `other` has no
    /// value and the row has no repetition, the row takes over the reason.
    pub fn merge(&mut self, run: Repetition, other: Row) {
        let Some(value) = other.value else {
            if self.runs.is_empty() {
                self.not_run = self.not_run.take().or(other.not_run);
            }
            return;
        };
        self.not_run = None;
        self.noisy |= run.noisy;
        self.runs.push(Repetition { value, extra: other.extra, ..run });
        self.value = Some(median(&self.values(None)));
        let names: Vec<String> =
            self.runs.iter().flat_map(|run| run.extra.keys().cloned()).collect();
        for name in names {
            let values = self.values(Some(&name));
            let most = || values.iter().copied().fold(f64::MIN, f64::max);
            let value = if name.ends_with("_max") { most() } else { median(&values) };
            self.extra.insert(name, value);
        }
        if !other.latency.is_empty() {
            self.latency = other.latency;
        }
    }

    /// Returns the secondary numbers named `what` of all repetitions that have one, or all values if `what` is `None`.
    pub fn values(&self, what: Option<&str>) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.value_of(what)).collect()
    }
}

/// Returns the median of the values: the mean of the middle two if their number is even, 0 if there are none.
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
    fn median_is_middle_value() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    fn measured(value: f64) -> Row {
        let mut row = Row::new("g", "n", "u");
        row.set(value);
        row.add_extra("held_max", value);
        row.add_extra("rate", value);
        row
    }

    #[test]
    fn repetitions_merge_into_one_row_with_failed_run() {
        let mut row = Row::new("g", "n", "u").with_reason("broken");
        let run = |repetition, noisy| Repetition { repetition, noisy, ..Repetition::default() };
        row.merge(run(0, false), measured(2.0));
        row.merge(run(1, false), Row::new("g", "n", "u").with_reason("broken again"));
        row.merge(run(2, true), measured(4.0));
        row.merge(run(3, false), measured(3.0));
        assert_eq!((row.value, row.noisy, row.not_run.as_deref()), (Some(3.0), true, None));
        assert_eq!((row.extra["held_max"], row.extra["rate"]), (4.0, 3.0));
        let numbers: Vec<u32> = row.runs.iter().map(|run| run.repetition).collect();
        assert_eq!(numbers, [0, 2, 3]);
    }

    #[test]
    fn row_without_runs_keeps_reason() {
        let mut row = Row::new("g", "n", "u");
        row.merge(
            Repetition::default(),
            Row::new("g", "n", "u").with_reason("there is no such tool"),
        );
        row.merge(
            Repetition::default(),
            Row::new("g", "n", "u").with_reason("there is still none"),
        );
        assert_eq!(row.value, None);
        assert_eq!(row.not_run.as_deref(), Some("there is no such tool"));
    }
}

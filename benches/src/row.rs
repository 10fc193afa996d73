//! One measured number with everything that is needed to read it, as it goes from process to process and
//! into `results.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A latency distribution: octiles are not enough for tails, so each point is a quantile and its value.
pub type Quantiles = Vec<(f64, u64)>;

/// One measurement.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// What group of the plan it belongs to.
    pub group: String,
    /// Unique in a run.
    pub name: String,
    /// What distinguishes it, as people read it: `mtu`, `len`, `streams` and so on.
    pub parameters: BTreeMap<String, String>,
    /// The median of its repetitions; `None` if it did not run.
    pub value: Option<f64>,
    /// Of `value`.
    pub unit: String,
    /// What was measured besides, the median as well; the unit is in the name. Of what ends in `_max` it is the
    /// most.
    pub extra: BTreeMap<String, f64>,
    /// The repetitions that ran, by their number: those of other rows with the same number ran right before or
    /// after.
    pub runs: Vec<Run>,
    /// Nanoseconds by quantile, where it is a latency; of the last repetition.
    pub latency: Quantiles,
    /// Why it did not run, in a sentence.
    pub not_run: Option<String>,
    /// The cores were too far apart around one of its repetitions, or not ours alone, for absolute numbers to mean
    /// anything.
    pub noisy: bool,
}

/// One repetition.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Its number, from 0.
    pub repetition: u32,
    /// What was measured.
    pub value: f64,
    /// Besides.
    pub extra: BTreeMap<String, f64>,
    /// As [`Row::noisy`].
    pub noisy: bool,
    /// The slower core's copy rate before or after it, whichever was less, in gigabytes per second.
    pub copied: Option<f64>,
}

impl Run {
    /// The value, or what was measured besides under this name.
    pub fn get(&self, what: Option<&str>) -> Option<f64> {
        what.map_or(Some(self.value), |name| self.extra.get(name).copied())
    }
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

    /// What was measured.
    pub fn set(&mut self, value: f64) {
        self.value = Some(value);
    }

    /// What was measured besides.
    pub fn also(&mut self, name: &str, value: f64) {
        self.extra.insert(name.to_owned(), value);
    }

    /// Says why there is no number.
    #[must_use]
    pub fn not_run(mut self, why: impl Into<String>) -> Row {
        self.not_run = Some(why.into());
        self
    }

    /// Takes a repetition in.
    pub fn merge(&mut self, run: Run, other: Row) {
        let Some(value) = other.value else {
            if self.runs.is_empty() {
                self.not_run = self.not_run.take().or(other.not_run);
            }
            return;
        };
        self.not_run = None;
        self.noisy |= run.noisy;
        self.runs.push(Run { value, extra: other.extra, ..run });
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

    /// The value, or what was measured besides, of each repetition that has it.
    pub fn values(&self, what: Option<&str>) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.get(what)).collect()
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

    fn measured(value: f64) -> Row {
        let mut row = Row::new("g", "n", "u");
        row.set(value);
        row.also("held_max", value);
        row.also("rate", value);
        row
    }

    #[test]
    fn repetitions_make_one_row_and_a_failed_one_keeps_its_number() {
        let mut row = Row::new("g", "n", "u").not_run("broken");
        let run = |repetition, noisy| Run { repetition, noisy, ..Run::default() };
        row.merge(run(0, false), measured(2.0));
        row.merge(run(1, false), Row::new("g", "n", "u").not_run("broken again"));
        row.merge(run(2, true), measured(4.0));
        row.merge(run(3, false), measured(3.0));
        assert_eq!((row.value, row.noisy, row.not_run.as_deref()), (Some(3.0), true, None));
        assert_eq!((row.extra["held_max"], row.extra["rate"]), (4.0, 3.0));
        let numbers: Vec<u32> = row.runs.iter().map(|run| run.repetition).collect();
        assert_eq!(numbers, [0, 2, 3]);
    }

    #[test]
    fn what_never_ran_says_why() {
        let mut row = Row::new("g", "n", "u");
        row.merge(Run::default(), Row::new("g", "n", "u").not_run("there is no such tool"));
        row.merge(Run::default(), Row::new("g", "n", "u").not_run("there is still none"));
        assert_eq!(row.value, None);
        assert_eq!(row.not_run.as_deref(), Some("there is no such tool"));
    }
}

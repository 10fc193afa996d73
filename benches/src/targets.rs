//! Performance targets, and their comparison with the rows of a run.
//!
//! - A *ratio* of two rows is formed for each repetition. Its 95 % interval is compared with the bound ([`Verdict`]).
//! - A *difference* of two rows and a *value* of one row are judged in the same way as a ratio.
//! - A *count* is the same on every machine. It is met or missed by its worst repetition.
//! - A *figure* (Gbit/s, microseconds) depends on the machine and its load. Figures have no bound.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::interval::{Interval, of_differences};
use crate::row::{Row, median};

/// Kind of a target, which determines the samples and how they are judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ratio of two rows, with an interval.
    Ratio,
    /// Difference of two rows, in their unit, with an interval.
    Difference,
    /// Value of one row, in its unit, with an interval.
    Value,
    /// Count of one row, the same on every machine, judged by its worst repetition.
    Count,
    /// Value of one row, shown without a bound.
    Figure,
}

impl Kind {
    /// Returns true for kinds that are judged by the interval over the repetitions.
    pub fn has_interval(self) -> bool {
        matches!(self, Kind::Ratio | Kind::Difference | Kind::Value)
    }
}

/// Comparison of a measured target with its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval meets the bound.
    Met,
    /// No part of the interval meets the bound.
    Missed,
    /// The interval contains the bound, or there are too few samples for an interval.
    Unresolved,
}

impl Verdict {
    /// Judges a 95 % interval. `at_most` is true if `bound` is an upper bound. An end that equals the bound meets it.
    pub fn of_interval(interval: Interval, bound: f64, at_most: bool) -> Verdict {
        let meets = |end: f64| if at_most { end <= bound } else { end >= bound };
        match (meets(interval.low), meets(interval.high)) {
            (true, true) => Verdict::Met,
            (false, false) => Verdict::Missed,
            _ => Verdict::Unresolved,
        }
    }

    /// Returns the verdict as a word.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::Unresolved => "unresolved",
        }
    }
}

/// A target or figure with its measured value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Name in the report.
    pub name: String,
    /// Kind of the target: determines samples, interval and verdict.
    pub kind: Kind,
    /// The bound; `None` for figures and for ratios that are only shown.
    pub target: Option<f64>,
    /// True if `target` is an upper bound, false if `target` is a lower bound.
    pub at_most: bool,
    /// Unit of `target`, `samples`, `value`, `low` and `high`; empty for ratios.
    pub unit: String,
    /// One ratio, difference or value for each repetition.
    pub samples: Vec<f64>,
    /// Geometric mean of ratios and values, arithmetic mean of differences, maximum of counts, median of figures. The
    /// first sample, if a kind with intervals has too few samples for an interval. `None` if not measured.
    pub value: Option<f64>,
    /// Lower end of the 95 % interval, or the minimum sample of kinds without an interval.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval, or the maximum sample of kinds without an interval.
    pub high: Option<f64>,
    /// Comparison with the bound. `None` without a bound, or if not measured.
    pub verdict: Option<Verdict>,
    /// Reason why `value` or the interval is missing.
    pub why: Option<String>,
    /// True if one of the target's rows is noisy; see [`Row::noisy`].
    pub noisy: bool,
}

/// A measured number: the name of a row, and the name of a secondary number or `None` for the row's value.
#[derive(Clone, Copy)]
struct Metric<'a>(&'a str, Option<&'a str>);

fn row_value(row: &str) -> Metric<'_> {
    Metric(row, None)
}

/// Returns all targets and figures, in the order of the report. Targets whose rows are missing have a reason.
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let rows: BTreeMap<&str, &Row> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
    let mut list = TargetList { rows, targets: Vec::new() };
    list.add_ratios();
    list.add_messages();
    list.add_idle();
    list.add_protected();
    list.add_programs();
    list.add_peers();
    list.add_counts();
    list.add_figures();
    list.targets
}

/// Returns the samples without a reason, or no samples with the reason of the error.
fn split_samples(found: Result<Samples, String>) -> (Samples, Option<String>) {
    match found {
        Ok(samples) => (samples, None),
        Err(why) => (Samples::default(), Some(why)),
    }
}

struct TargetList<'a> {
    rows: BTreeMap<&'a str, &'a Row>,
    targets: Vec<Target>,
}

/// Samples of one or two rows.
#[derive(Default)]
struct Samples {
    /// One value for each repetition.
    values: Vec<f64>,
    /// True if a row is noisy.
    noisy: bool,
}

/// Returns the ratios `of / by` of the rows' values, one for each repetition that both rows have.
pub fn ratios(of: &Row, by: &Row) -> Vec<f64> {
    combine_runs(of, by, None, None, |a, b| a / b)
}

/// Applies `form` to the numbers of two rows, for each repetition that both rows have. `of_what` and `by_what` name
/// secondary numbers; `None` selects the row's value.
fn combine_runs(
    of: &Row,
    by: &Row,
    of_what: Option<&str>,
    by_what: Option<&str>,
    form: fn(f64, f64) -> f64,
) -> Vec<f64> {
    let numbers = of.runs.iter().filter_map(|run| {
        let other = by.runs.iter().find(|other| other.repetition == run.repetition)?;
        Some(form(run.value_of(of_what)?, other.value_of(by_what)?))
    });
    numbers.collect()
}

impl TargetList<'_> {
    fn row(&self, name: &str) -> Result<&Row, String> {
        let row = self.rows.get(name).ok_or("it is not in this run")?;
        match (&row.not_run, row.value) {
            (Some(why), None) => Err(format!("{name}: {why}")),
            (None, None) => Err(format!("{name} did not run")),
            _ => Ok(row),
        }
    }

    fn combine(
        &self,
        of: Metric<'_>,
        by: Metric<'_>,
        form: fn(f64, f64) -> f64,
    ) -> Result<Samples, String> {
        let (a, b) = (self.row(of.0)?, self.row(by.0)?);
        let values = combine_runs(a, b, of.1, by.1, form);
        match values.is_empty() {
            true => Err("no repetition has both".into()),
            false => Ok(Samples { values, noisy: a.noisy || b.noisy }),
        }
    }

    /// Adds the ratio `of / by`. `at_most` is true if the target is an upper bound.
    fn add_ratio(
        &mut self,
        name: &str,
        target: Option<f64>,
        at_most: bool,
        of: Metric<'_>,
        by: Metric<'_>,
    ) {
        let found = self.combine(of, by, |a, b| a / b);
        self.push(Kind::Ratio, name, "", target, at_most, found);
    }

    /// Adds a ratio that is the value of one row, as for A/B cells. The target is a lower bound.
    fn add_row_ratio(&mut self, name: &str, target: Option<f64>, row: &str) {
        let found = self.row(row).map(|row| Samples { values: row.values(None), noisy: row.noisy });
        self.push(Kind::Ratio, name, "", target, false, found);
    }

    /// Adds the difference `of - by` with the upper bound `bound`.
    fn add_difference(
        &mut self,
        name: &str,
        unit: &str,
        bound: f64,
        of: Metric<'_>,
        by: Metric<'_>,
    ) {
        let found = self.combine(of, by, |a, b| a - b);
        self.push(Kind::Difference, name, unit, Some(bound), true, found);
    }

    /// Adds a value of one row with the upper bound `bound`.
    fn add_upper_bound(&mut self, name: &str, unit: &str, bound: f64, of: Metric<'_>) {
        let found = self.values(of, 1.0);
        self.push(Kind::Value, name, unit, Some(bound), true, found);
    }

    /// Adds a ratio, difference or value, and compares its interval with the bound.
    fn push(
        &mut self,
        kind: Kind,
        name: &str,
        unit: &str,
        target: Option<f64>,
        at_most: bool,
        found: Result<Samples, String>,
    ) {
        let (Samples { values: samples, noisy }, why) = split_samples(found);
        let interval = match kind {
            Kind::Difference => of_differences(&samples),
            _ => Interval::of_ratios(&samples),
        };
        let short = (why.is_none() && interval.is_none())
            .then(|| "one repetition alone has no interval".to_owned());
        let judge = |bound| match interval {
            Some(interval) => Verdict::of_interval(interval, bound, at_most),
            None => Verdict::Unresolved,
        };
        let verdict = target.filter(|_| !samples.is_empty()).map(judge);
        self.targets.push(Target {
            name: name.to_owned(),
            kind,
            target,
            at_most,
            unit: unit.to_owned(),
            value: interval.map(|i| i.mean).or(samples.first().copied()),
            low: interval.map(|i| i.low),
            high: interval.map(|i| i.high),
            verdict,
            why: why.or(short),
            noisy,
            samples,
        });
    }

    /// Returns the samples of one number, multiplied by `scale`.
    fn values(&self, of: Metric<'_>, scale: f64) -> Result<Samples, String> {
        let row = self.row(of.0)?;
        let values: Vec<f64> = row.values(of.1).iter().map(|value| value * scale).collect();
        match values.is_empty() {
            true => Err(format!("{} has no such number", of.0)),
            false => Ok(Samples { values, noisy: row.noisy }),
        }
    }

    /// Adds a count with the upper bound `bound`, or a figure if `bound` is `None`.
    fn add_number(
        &mut self,
        name: &str,
        unit: &str,
        scale: f64,
        bound: Option<f64>,
        of: Metric<'_>,
    ) {
        let (Samples { values: samples, noisy }, why) = split_samples(self.values(of, scale));
        let some = !samples.is_empty();
        let low = samples.iter().copied().fold(f64::MAX, f64::min);
        let high = samples.iter().copied().fold(f64::MIN, f64::max);
        self.targets.push(Target {
            name: name.to_owned(),
            kind: if bound.is_some() { Kind::Count } else { Kind::Figure },
            target: bound,
            at_most: bound.is_some(),
            unit: unit.to_owned(),
            value: some.then(|| if bound.is_some() { high } else { median(&samples) }),
            low: some.then_some(low),
            high: some.then_some(high),
            verdict: bound.filter(|_| some).map(|bound| match high <= bound {
                true => Verdict::Met,
                false => Verdict::Missed,
            }),
            why,
            noisy,
            samples,
        });
    }

    fn add_ratios(&mut self) {
        for (mtu, share) in [(1500, 0.5), (9000, 0.85)] {
            let (write, limit) = (format!("write-{mtu}"), format!("handoff-{mtu}"));
            let name = format!("goodput, ddpd / hand-off, MTU {mtu}");
            self.add_ratio(&name, Some(share), false, row_value(&write), row_value(&limit));
        }
        for (limit, name) in [
            ("write-9000", "goodput, MTU 65 280 / MTU 9000"),
            ("handoff-65280", "goodput, ddpd / hand-off, MTU 65 280"),
        ] {
            self.add_ratio(name, None, false, row_value("write-65280"), row_value(limit));
        }
        for (what, row, share) in [
            ("goodput, markers / no markers", "markers", 0.92),
            ("goodput, sender keeps a copy / no copy", "unstable", 0.85),
            ("goodput, SCTP / TCP", "sctp", 0.9),
        ] {
            for mtu in [1500, 9000] {
                let name = format!("{what}, MTU {mtu}");
                self.add_row_ratio(&name, Some(share), &format!("turns-{row}-{mtu}"));
            }
        }
        for (name, row, share) in [("Reads", "read", 0.85), ("Sends", "send", 0.7)] {
            for (mtu, share) in [(1500, None), (9000, Some(share))] {
                let name = format!("goodput, {name} / Writes, MTU {mtu}");
                self.add_row_ratio(&name, share, &format!("turns-{row}-{mtu}"));
            }
        }
        for (what, load, share) in [
            ("64-byte writes", "messages-64", Some(0.98)),
            ("1 MiB writes", "write-1m", Some(0.99)),
            ("1 MiB writes at 1 % loss", "write-1m-loss", None),
        ] {
            let name = format!("rate, flight recorder on / off, {what}");
            self.add_row_ratio(&name, share, &format!("recorder-{load}"));
        }
        let (many, one) = (row_value("streams-10000"), row_value("streams-1"));
        let name = "goodput, 10 000 active streams / one stream";
        self.add_ratio(name, Some(0.85), false, many, one);
        let cost = |name| Metric(name, Some("asked_busy_ns_per_byte"));
        let name = "receive time per byte, 1 % loss / no loss";
        self.add_ratio(name, Some(1.1), true, cost("loss-1"), cost("loss-0"));
        let name = "receive time per byte, 1 % loss / no loss at 1 Gbit/s, evenly spaced";
        self.add_ratio(name, None, true, cost("loss-1"), cost("loss-0-slow"));
    }

    fn add_messages(&mut self) {
        let time = |name| Metric(name, Some("p50_us"));
        let tail = |name| Metric(name, Some("p99_9_us"));
        let name = "64-byte write, post to completion / echo, p50";
        self.add_ratio(name, Some(1.3), true, time("write-64"), time("echo"));
        self.add_ratio("echo, p99.9 / p50", Some(4.0), true, tail("echo"), time("echo"));
        let row = "loaded-1-50";
        self.add_ratio("echo at 50 % load, p99.9 / p50", None, true, tail(row), time(row));
        let name = "echo at 50 % load, 1000 streams, p99.9";
        self.add_upper_bound(name, "us", 20.0, tail("loaded-1000-50"));
    }

    fn add_idle(&mut self) {
        let share = Metric("adaptive-1", Some("asked_cpu_share"));
        self.add_upper_bound("CPU time at 1 % load, idle worker sleeps", "of a core", 0.05, share);
        let time = |name| Metric(name, Some("p50_us"));
        let name = "echo at 1 % load, idle worker sleeps − polls, p50";
        self.add_difference(name, "us", 10.0, time("adaptive-1"), time("polling-1"));
    }

    fn add_programs(&mut self) {
        for (what, row, share) in [
            ("64-byte Writes", "write-64", Some(0.8)),
            ("64-byte Sends", "send-64", None),
            ("1 MiB Writes", "write-1MiB", Some(0.95)),
            ("1 MiB Sends", "send-1MiB", Some(0.95)),
        ] {
            let name = format!("rate, local program / own load of the worker, {what}");
            self.add_row_ratio(&name, share, &format!("program-{row}"));
        }
        for (what, row, share) in [("64-byte", "64", None), ("16 KiB", "16KiB", Some(0.8))] {
            let name = format!("rate, 10 000 active QPs of a program / one QP, {what} Writes");
            self.add_row_ratio(&name, share, &format!("program-pairs-{row}"));
        }
        for (name, row, bound) in [
            ("echo, two programs − inside the worker, per side, p50", "echo-64", 0.6),
            ("echo, program sleeps − polls, p50", "event", 12.0),
            ("echo, program and worker sleep − program polls, p50", "event-asleep", 12.0),
        ] {
            let found = self.values(row_value(&format!("program-{row}")), 1.0);
            self.push(Kind::Difference, name, "us", Some(bound), true, found);
        }
        let (register, death) = ("program-register", "program-death-1000");
        for (name, unit, row, bound) in [
            ("registration of 4 KiB by a program", "us", format!("{register}-4KiB"), 10.0),
            ("registration of 1 GiB by a program", "us", format!("{register}-1GiB"), 20_000.0),
            ("end of a program with 1000 idle QPs", "ms", format!("{death}-idle"), 10.0),
            ("end of a program with 1000 connected QPs", "ms", format!("{death}-connected"), 10.0),
        ] {
            self.add_upper_bound(name, unit, bound, row_value(&row));
        }
        let pair = row_value("program-idle-pair");
        self.add_number("memory of an idle QP, with its rings", "bytes", 1.0, Some(8192.0), pair);
    }

    fn add_protected(&mut self) {
        for mtu in [1500, 9000] {
            let name = format!("goodput, ESP / predicted from clear text and AES-GCM, MTU {mtu}");
            let found = self.relative_to_clear_and_gcm(mtu);
            self.push(Kind::Ratio, &name, "", Some(0.85), false, found);
            let (of, by) = (format!("esp-write-{mtu}"), format!("clear-write-{mtu}"));
            let name = format!("goodput, ESP / clear text, MTU {mtu}");
            self.add_ratio(&name, None, false, row_value(&of), row_value(&by));
        }
        let time = |name| Metric(name, Some("p50_us"));
        let name = "echo, ESP − clear text, p50";
        self.add_difference(name, "us", 0.5, time("esp-echo"), time("clear-echo"));
    }

    /// Returns the rate under ESP relative to the predicted rate of one core that processes clear text and encrypts in
    /// sequence. For this prediction the times per byte of both steps are added.
    fn relative_to_clear_and_gcm(&self, mtu: u16) -> Result<Samples, String> {
        let rows = [format!("esp-write-{mtu}"), format!("clear-write-{mtu}"), format!("gcm-{mtu}")];
        let [esp, clear, gcm] = [self.row(&rows[0])?, self.row(&rows[1])?, self.row(&rows[2])?];
        let sums = esp.runs.iter().filter_map(|run| {
            let of = |row: &Row| {
                row.runs.iter().find(|other| other.repetition == run.repetition).map(|r| r.value)
            };
            Some(run.value / of(clear)? + run.value / of(gcm)?)
        });
        let values: Vec<f64> = sums.collect();
        match values.is_empty() {
            true => Err("no repetition has all three".into()),
            false => Ok(Samples { values, noisy: [esp, clear, gcm].iter().any(|row| row.noisy) }),
        }
    }

    fn add_peers(&mut self) {
        for (peer, name, target) in [
            ("sockets-crc-copy", "kernel sockets over lo", Some(4.0)),
            ("ucx-put-bw", "UCX put over TCP", Some(3.0)),
            // Within a host, UCX may choose shared memory and use no network. This ratio therefore has no target.
            ("ucx-put-bw-auto", "UCX put over a transport of its choice", None),
        ] {
            let name = format!("goodput, ddpd at MTU 9000 / {name}");
            self.add_ratio(&name, target, false, row_value("write-9000"), row_value(peer));
        }
        // The MTU of `lo` is 65 536 bytes, so the kernel's segments over `lo` are about as long as those of this row.
        let name = "goodput, ddpd at MTU 65 280 / kernel sockets over lo";
        self.add_ratio(name, None, false, row_value("write-65280"), row_value("sockets-crc-copy"));
        for (peer, name) in [
            ("sockets-latency", "kernel sockets over lo"),
            ("ucx-put-lat", "UCX put over TCP"),
            ("ucx-put-lat-auto", "UCX put over a transport of its choice"),
        ] {
            let name = format!("round trip, ddpd / {name}");
            let target = (!peer.ends_with("auto")).then_some(0.2);
            self.add_ratio(&name, target, true, row_value("echo"), row_value(peer));
        }
        for kind in ["af_packet", "af_xdp"] {
            let (row, limit) = (format!("{kind}-write-1500"), format!("testpmd-{kind}"));
            let name = format!("frames per second on a veth pair, ddpd / testpmd, {kind}");
            self.add_ratio(
                &name,
                Some(0.8),
                false,
                Metric(&row, Some("frames_per_s")),
                row_value(&limit),
            );
        }
    }

    fn add_counts(&mut self) {
        // 10 000 streams give the most precise number. A quick run measures only 100 streams.
        for (bound, with, suffix) in [(1536.0, "with", ""), (1024.0, "without", "-unrecorded")] {
            let [most, fewer] = [10_000, 100].map(|n| format!("memory-{n}{suffix}"));
            let row = if self.row(&most).is_ok() { &most } else { &fewer };
            let name = format!("memory of an idle stream, {with} the flight recorder");
            self.add_number(&name, "bytes", 1.0, Some(bound), Metric(row, None));
        }
        let held = Metric("loss-1", Some("located_held_bytes_max"));
        self.add_number("located bytes held at 1 % loss", "bytes", 1.0, Some(0.0), held);
    }

    fn add_figures(&mut self) {
        let mut figure = |name: &str, unit: &str, scale, row: &str, what: Option<&str>| {
            self.add_number(name, unit, scale, None, Metric(row, what));
        };
        figure("goodput of 1 MiB writes, MTU 65 280", "Gbit/s", 1.0, "write-65280", None);
        for mtu in [1500, 9000] {
            let name = format!("goodput of 1 MiB writes, MTU {mtu}");
            figure(&name, "Gbit/s", 1.0, &format!("write-{mtu}"), None);
            figure(
                &format!("{name}, no TCP checksum"),
                "Gbit/s",
                1.0,
                &format!("write-{mtu}-trusted"),
                None,
            );
            figure(&format!("hand-off, MTU {mtu}"), "Gbit/s", 1.0, &format!("handoff-{mtu}"), None);
        }
        let million = 1e-6;
        figure("64-byte writes", "million/s", million, "messages-64", Some("messages_per_s"));
        figure("64-byte writes, one at a time", "thousand/s", 1e-3, "write-64-1500-depth-1", None);
        for quantile in ["p50_us", "p99_us", "p99_9_us"] {
            let name = quantile.trim_end_matches("_us").replace('_', ".");
            figure(&format!("echo of 64 bytes, {name}"), "us", 1.0, "echo", Some(quantile));
        }
        let name = "echo of 64 bytes, p99.9: stalls of the cores alone";
        figure(name, "us", 1.0, "stalls-echo", Some("echo_p99_9_us"));
        let name = "message at a random time, p99.9: stalls of the cores alone";
        figure(name, "us", 1.0, "stalls-load", None);
        for what in ["seal", "open"] {
            let (name, row) = (format!("AES-GCM-128, packet of an echo: {what}"), "gcm-176");
            figure(&name, "ns", 1.0, row, Some(&format!("{what}_ns")));
        }
        let name = "echo at 1 % load, idle worker sleeps, p50";
        figure(name, "us", 1.0, "adaptive-1", Some("p50_us"));
        figure("put of a file to the completion ring", "us", 1.0, "put-to-ring", None);
        figure("streams set up and closed", "thousand/s", 1e-3, "set-up", None);
        figure("start of two appliances", "ms", 1.0, "start-up", None);
        let name = "control thread's time for a scrape, 10 000 streams";
        figure(name, "ms", 1.0, "scrape-10000", None);
        figure("series of a scrape, 10 000 streams", "", 1.0, "scrape-10000", Some("series"));
        figure("registration of 4 GiB", "ms", 1.0, "register-4096", None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Repetition;

    fn row(name: &str, values: &[f64]) -> Row {
        let mut row = Row::new("g", name, "u");
        for (repetition, &value) in (0..).zip(values) {
            let mut measured = Row::new("g", name, "u");
            measured.set(value);
            measured.add_extra("p50_us", value);
            measured.add_extra("p99_9_us", 4.0 * value);
            measured.add_extra("located_held_bytes_max", value);
            row.merge(Repetition { repetition, ..Repetition::default() }, measured);
        }
        row
    }

    fn find<'a>(targets: &'a [Target], name: &str) -> &'a Target {
        targets.iter().find(|t| t.name == name).unwrap()
    }

    const HAND_OFF: &str = "goodput, ddpd / hand-off, MTU 1500";

    /// The machine is ten times slower from the third repetition on. The rates change, the ratios remain exact.
    #[test]
    fn ratios_are_formed_per_repetition() {
        let rows = [
            row("write-1500", &[60.0, 61.0, 6.0, 6.1]),
            row("handoff-1500", &[100.0, 100.0, 10.0, 10.0]),
        ];
        let targets = targets(&rows);
        let target = find(&targets, HAND_OFF);
        assert_eq!(target.samples, [0.6, 0.61, 0.6, 0.61]);
        let (low, high) = (target.low.unwrap(), target.high.unwrap());
        assert!(low > 0.59 && high < 0.62, "{low} {high}");
        assert_eq!(target.verdict, Some(Verdict::Met));
    }

    /// The mean is above the target, but the interval reaches below it.
    #[test]
    fn interval_across_the_bound_is_unresolved() {
        let rows = [row("write-1500", &[45.0, 65.0, 55.0]), row("handoff-1500", &[100.0; 3])];
        let targets = targets(&rows);
        let target = find(&targets, HAND_OFF);
        assert!(target.value.unwrap() > 0.5 && target.low.unwrap() < 0.5, "{target:?}");
        assert_eq!(target.verdict, Some(Verdict::Unresolved));
    }

    #[test]
    fn verdict_is_met_or_missed_only_if_the_whole_interval_agrees() {
        use Verdict::{Met, Missed, Unresolved};
        let judge = |low, high, at_most| {
            let interval = Interval { n: 7, mean: (low + high) / 2.0, low, high };
            Verdict::of_interval(interval, 1.0, at_most)
        };
        for (low, high, at_least, at_most) in [
            (1.1, 1.2, Met, Missed),
            (1.0, 1.2, Met, Unresolved),
            (0.9, 1.1, Unresolved, Unresolved),
            (0.8, 1.0, Unresolved, Met),
            (0.8, 0.9, Missed, Met),
        ] {
            assert_eq!(judge(low, high, false), at_least, "{low} to {high}, lower bound");
            assert_eq!(judge(low, high, true), at_most, "{low} to {high}, upper bound");
        }
    }

    #[test]
    fn ratio_of_ab_row_is_judged_by_its_interval() {
        for (values, verdict) in [
            ([1.0, 0.99, 1.0], Verdict::Met),
            ([1.0, 0.9, 1.1], Verdict::Unresolved),
            ([0.9, 0.91, 0.9], Verdict::Missed),
        ] {
            let targets = targets(&[row("recorder-messages-64", &values)]);
            let target = find(&targets, "rate, flight recorder on / off, 64-byte writes");
            assert_eq!((target.verdict, target.samples.as_slice()), (Some(verdict), &values[..]));
        }
    }

    #[test]
    fn upper_bound_is_judged_by_upper_end_of_interval() {
        let rows = [row("loaded-1-50", &[1.0, 1.0, 1.1])];
        let tail = "echo at 50 % load, p99.9 / p50";
        let ours = targets(&rows);
        let tail = find(&ours, tail);
        assert!((tail.value.unwrap() - 4.0).abs() < 1e-9);
        // A ratio without a target is not judged.
        assert_eq!((tail.target, tail.verdict), (None, None));
        let mut list = TargetList { rows: BTreeMap::new(), targets: Vec::new() };
        let samples = Samples { values: vec![0.5, 1.2, 0.8], noisy: false };
        list.push(Kind::Ratio, "x", "", Some(1.0), true, Ok(samples));
        assert!(list.targets[0].value.unwrap() < 1.0);
        assert_eq!(list.targets[0].verdict, Some(Verdict::Unresolved));
    }

    #[test]
    fn a_value_with_a_bound_is_judged_by_its_interval() {
        for (tail, verdict) in [
            ([4.0, 4.1, 4.2], Verdict::Met),
            ([4.0, 4.1, 7.0], Verdict::Unresolved),
            ([6.0, 6.1, 6.2], Verdict::Missed),
        ] {
            let targets = targets(&[row("loaded-1000-50", &tail)]);
            let target = find(&targets, "echo at 50 % load, 1000 streams, p99.9");
            // `row` sets `p99_9_us` to four times the value.
            assert_eq!((target.kind, target.samples[0]), (Kind::Value, 4.0 * tail[0]));
            assert!(target.low < target.value && target.value < target.high);
            assert_eq!((target.unit.as_str(), target.verdict), ("us", Some(verdict)));
        }
    }

    #[test]
    fn esp_rows_are_compared_with_clear_and_gcm_times() {
        let rows = [
            row("esp-write-1500", &[20.0, 21.0, 20.0]),
            row("clear-write-1500", &[40.0, 40.0, 40.0]),
            row("gcm-1500", &[40.0, 40.0, 40.0]),
            row("esp-echo", &[2.0, 2.1, 2.0]),
            row("clear-echo", &[1.7, 1.8, 1.7]),
        ];
        let targets = targets(&rows);
        let name = "goodput, ESP / predicted from clear text and AES-GCM, MTU 1500";
        let target = find(&targets, name);
        // The predicted rate is 1 / (1 / 40 + 1 / 40) = 20, so the first ratio is 20 / 20 = 1.
        assert_eq!(target.samples, [1.0, 1.05, 1.0]);
        assert_eq!(target.verdict, Some(Verdict::Met));
        let echo = find(&targets, "echo, ESP − clear text, p50");
        assert!((echo.value.unwrap() - 0.3).abs() < 1e-9 && echo.unit == "us");
        assert_eq!((echo.kind, echo.verdict), (Kind::Difference, Some(Verdict::Met)));
    }

    #[test]
    fn one_repetition_is_unresolved_and_missing_row_has_reason() {
        let lost = Row::new("g", "handoff-9000", "u").with_reason("no memory");
        let rows = [row("write-1500", &[50.0]), row("handoff-1500", &[100.0]), lost];
        let targets = targets(&rows);
        let target = find(&targets, HAND_OFF);
        assert_eq!((target.value, target.low), (Some(0.5), None));
        assert_eq!(target.verdict, Some(Verdict::Unresolved));
        let target = find(&targets, "goodput, ddpd / hand-off, MTU 9000");
        assert_eq!((target.value, target.verdict), (None, None));
        assert!(target.why.is_some());
    }

    #[test]
    fn figures_are_not_judged_and_counts_by_maximum() {
        let rows = [row("write-1500", &[1.0, 3.0, 2.0]), row("loss-1", &[0.0, 0.0, 1.0])];
        let targets = targets(&rows);
        let figure = find(&targets, "goodput of 1 MiB writes, MTU 1500");
        assert_eq!((figure.kind, figure.value, figure.verdict), (Kind::Figure, Some(2.0), None));
        assert_eq!((figure.low, figure.high), (Some(1.0), Some(3.0)));
        let count = find(&targets, "located bytes held at 1 % loss");
        assert_eq!((count.kind, count.value), (Kind::Count, Some(1.0)));
        assert_eq!(count.verdict, Some(Verdict::Missed));
    }
}

//! Execution of a benchmark run. Each task runs in its own process. Each repetition of a group runs its tasks
//! consecutively, in reverse order in every second repetition (A B, B A, …). Before and after each task,
//! [`NoiseMonitor`] checks the cores.
//!
//! [`compare_builds`] compares this program with a build of another commit. Each task runs with both programs in
//! ABBA order.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use comfy_table::{Cell as TableCell, CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::interval::Interval;
use crate::machine;
use crate::noise::NoiseMonitor;
use crate::peers::{PeerKind, missing_namespaces_message};
use crate::plan::{Group, RunOptions, Task, groups};
use crate::rig_config::Link;
use crate::row::{Repetition, Row, median};
use crate::targets::{Kind, Target, Verdict, ratios, targets};

/// Results of a run, stored as `results.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Description of the machine: names and values.
    pub machine: BTreeMap<String, String>,
    /// True for a quick run: fewer cells and repetitions, shorter measurements.
    pub quick: bool,
    /// True if the run included all groups.
    pub whole: bool,
    /// Duration of the run, seconds.
    pub seconds: f64,
    /// Round trips of a cache line between the cores, nanoseconds, sampled during the run.
    pub ping_pong_ns: Vec<f64>,
    /// Copy rates of the slower core within its L1 cache, GB/s, sampled during the run.
    pub copy_gb_per_s: Vec<f64>,
    /// Name and heading of each group.
    pub groups: Vec<(String, String)>,
    /// Performance targets and figures, with their measured values.
    pub targets: Vec<Target>,
    /// Rows of all groups.
    pub rows: Vec<Row>,
}

impl Results {
    /// Returns true if any row is noisy: the cores were too far from each other or shared with other programs. The
    /// absolute numbers of noisy rows are meaningless.
    pub fn is_noisy(&self) -> bool {
        self.rows.iter().any(|row| row.noisy)
    }

    /// Returns the unresolved targets.
    pub fn unresolved(&self) -> Vec<&Target> {
        let unresolved = |target: &&Target| target.verdict == Some(Verdict::Unresolved);
        self.targets.iter().filter(unresolved).collect()
    }
}

/// Returns the groups named in `only`, or all groups if `only` is empty. Fails for an unknown name.
fn select_groups(means: &RunOptions, only: &[String]) -> anyhow::Result<Vec<Group>> {
    let all = groups(means);
    for name in only {
        let known = || all.iter().map(|group| group.name).collect::<Vec<_>>().join(", ");
        let found = all.iter().any(|group| group.name == name);
        anyhow::ensure!(found, "there is no group {name}; there are {}", known());
    }
    let wanted = |group: &Group| only.is_empty() || only.iter().any(|name| name == group.name);
    Ok(all.into_iter().filter(wanted).collect())
}

/// Runs the groups named in `only`, or all groups if `only` is empty. Fails for an unknown name. A failed task yields a
/// row with the reason.
pub fn run(means: &RunOptions, only: &[String]) -> anyhow::Result<Results> {
    let begin = Instant::now();
    let machine = machine::describe();
    let chosen = select_groups(means, only)?;
    let mut runner = Runner { watch: NoiseMonitor::new(means.cores) };
    let mut rows = Vec::new();
    let mut headings = Vec::new();
    for group in &chosen {
        headings.push((group.name.to_owned(), group.title.to_owned()));
        rows.extend(runner.run_group(group));
    }
    for row in &mut rows {
        let shared =
            |run: &Repetition| run.copied.is_some_and(|copied| runner.watch.is_below_best(copied));
        row.noisy |= row.runs.iter().any(shared);
    }
    Ok(Results {
        machine,
        quick: means.quick,
        whole: only.is_empty(),
        seconds: begin.elapsed().as_secs_f64(),
        ping_pong_ns: runner.watch.ping_pong,
        copy_gb_per_s: runner.watch.copies,
        groups: headings,
        targets: targets(&rows),
        rows,
    })
}

struct Runner {
    watch: NoiseMonitor,
}

impl Runner {
    fn run_group(&mut self, group: &Group) -> Vec<Row> {
        let mut rows: Vec<Row> = group.tasks.iter().map(Task::row).collect();
        for repetition in 0..group.repetitions {
            for at in repetition_order(repetition, group.tasks.len()) {
                let (run, measured) = self.run_once(&group.tasks[at], repetition, None);
                print_progress(&run, group, &measured);
                rows[at].merge(run, measured);
            }
        }
        rows
    }

    /// Runs one repetition of a task, with the executable `program`, or with this executable if `None`.
    fn run_once(
        &mut self,
        task: &Task,
        repetition: u32,
        program: Option<&Path>,
    ) -> (Repetition, Row) {
        let before = self.watch.check_quiet();
        let copied = self.watch.last_copy_rate();
        let row = run_in_child(task, program)
            .unwrap_or_else(|error| task.row().with_reason(format!("{error:#}")));
        let noisy = !(before & self.watch.check_quiet());
        let copied = copied.into_iter().chain(self.watch.last_copy_rate()).reduce(f64::min);
        (Repetition { repetition, noisy, copied, ..Repetition::default() }, row)
    }
}

/// Returns the order of the `many` tasks in a repetition. The order alternates between forward and backward, so that a
/// drift of the machine's speed favours no task.
fn repetition_order(repetition: u32, many: usize) -> Vec<usize> {
    let forward = 0..many;
    if repetition.is_multiple_of(2) { forward.collect() } else { forward.rev().collect() }
}

#[allow(clippy::print_stderr)]
fn print_progress(run: &Repetition, group: &Group, row: &Row) {
    let noisy = if run.noisy { " (noisy)" } else { "" };
    let turn = format!("{}/{}", run.repetition + 1, group.repetitions);
    match (row.value, &row.not_run) {
        (Some(value), _) => {
            eprintln!("{:10} {turn} {:28} {value:12.2} {}{noisy}", group.name, row.name, row.unit);
        }
        (None, why) => {
            let why = why.as_deref().unwrap_or("no reason given");
            eprintln!("{:10} {turn} {:28}      not run: {why}", group.name, row.name);
        }
    }
}

/// A task, measured with this program and with a build of another commit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Result of this program.
    pub ours: Row,
    /// Result of the other program.
    pub theirs: Row,
    /// Ratios ours / theirs, one for each repetition that both completed.
    pub ratios: Vec<f64>,
    /// Geometric mean of the ratios with its 95 % interval; `None` for fewer than two ratios.
    pub interval: Option<Interval>,
}

/// Runs each task `repetitions` times with this program and with `other`, in ABBA order. Tasks that run another
/// project's program for comparison ([`Task::Peer`], such as `iperf3`) are omitted, because their results do not depend
/// on the build.
pub fn compare_builds(
    means: &RunOptions,
    only: &[String],
    other: &Path,
    repetitions: u32,
) -> anyhow::Result<Vec<Comparison>> {
    anyhow::ensure!(other.is_file(), "{} does not exist", other.display());
    let mut runner = Runner { watch: NoiseMonitor::new(means.cores) };
    let mut all = Vec::new();
    for group in select_groups(means, only)? {
        let group = Group { repetitions, ..group };
        for task in group.tasks.iter().filter(|task| !matches!(task, Task::Peer(_))) {
            let mut rows = [task.row(), task.row()];
            for repetition in 0..repetitions {
                for which in repetition_order(repetition, 2) {
                    let program = (which == 1).then_some(other);
                    let (run, measured) = runner.run_once(task, repetition, program);
                    print_progress(&run, &group, &measured);
                    rows[which].merge(run, measured);
                }
            }
            let [ours, theirs] = rows;
            let ratios = ratios(&ours, &theirs);
            let interval = Interval::of_ratios(&ratios);
            all.push(Comparison { ours, theirs, ratios, interval });
        }
    }
    Ok(all)
}

/// Formats the comparisons as a table, one line for each task.
pub fn comparison_table(all: &[Comparison]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["row", "unit", "this", "the other", "this / the other", "n", ""]);
    for Comparison { ours, theirs, ratios, interval } in all {
        let value = |row: &Row| row.value.map_or("—".to_owned(), format_number);
        let why = ours.not_run.as_ref().or(theirs.not_run.as_ref());
        // The two programs differ significantly if the interval does not contain 1.
        let differs = |i: &Interval| if i.low > 1.0 || i.high < 1.0 { "differs" } else { "" };
        table.add_row([
            ours.name.clone(),
            ours.unit.clone(),
            value(ours),
            value(theirs),
            interval.map_or("—".to_owned(), |i| format_ratio(i.mean, i.low, i.high)),
            ratios.len().to_string(),
            why.map_or(interval.as_ref().map_or("", differs).to_owned(), String::clone),
        ]);
    }
    table
}

/// Returns true if the task needs Linux interfaces and the run has none.
fn lacks_device(task: &Task) -> bool {
    match task {
        Task::Cell(cell) => cell.rig.link != Link::Ring && cell.rig.devices[0].is_empty(),
        Task::Peer(peer) => match &peer.what {
            PeerKind::Testpmd { devices, .. } => devices[0].is_empty(),
            _ => false,
        },
        Task::Limit(_) | Task::Gcm(_) | Task::Stalls(_) | Task::Appliance(_) | Task::Flood(_) => {
            false
        }
    }
}

/// Time-out of a task's process.
const TASK_TIMEOUT: Duration = Duration::from_secs(180);

/// Runs a task in a new process, with the executable `other`, or with this executable if `None`. Memory cells run in
/// `ddp-bench-memory` of the same directory. The row is the last output line that begins with `{`.
fn run_in_child(task: &Task, other: Option<&Path>) -> anyhow::Result<Row> {
    anyhow::ensure!(!lacks_device(task), "{}", missing_namespaces_message());
    let program = match task {
        Task::Cell(cell) if cell.what == crate::cell::Measure::Memory => "ddp-bench-memory",
        _ => "ddp-bench",
    };
    let own = std::env::current_exe()?;
    let path = other.unwrap_or(&own).with_file_name(program);
    let path =
        if other.is_some() && program == "ddp-bench" { other.unwrap_or(&own) } else { &path };
    let mut child = Command::new(path)
        .args(["task", &serde_json::to_string(task)?])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} cannot be started", path.display()))?;
    let begin = Instant::now();
    while child.try_wait()?.is_none() {
        if begin.elapsed() > TASK_TIMEOUT {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("it has not ended after {} s", TASK_TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rev().find(|line| line.starts_with('{'));
    match line {
        Some(line) if output.status.success() => Ok(serde_json::from_str(line)?),
        _ => {
            let words = String::from_utf8_lossy(&output.stderr);
            let reason = words.lines().find(|line| !line.trim().is_empty());
            anyhow::bail!("{}", reason.unwrap_or("it ended without a message"));
        }
    }
}

/// Writes `results.json` into `directory`, which is created if it is missing.
pub fn write(results: &Results, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    let text = serde_json::to_string_pretty(results)?;
    std::fs::write(directory.join("results.json"), text + "\n")?;
    Ok(())
}

/// Formats the targets as a table: bound, measured value, number of samples and verdict.
pub fn target_table(results: &Results) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["what", "target", "measured", "n", ""]);
    for target in &results.targets {
        let right = |text: String| TableCell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            TableCell::new(&target.name),
            right(format_bound(target)),
            right(format_value(target)),
            right(target.samples.len().to_string()),
            TableCell::new(format_verdict(target)),
        ]);
    }
    table
}

/// Formats the bound of a target with ≤ or ≥ and its unit; "—" without a bound.
pub fn format_bound(target: &Target) -> String {
    let sign = if target.at_most { "≤" } else { "≥" };
    let text =
        target.target.map(|bound| format!("{sign} {} {}", format_number(bound), target.unit));
    text.map_or("—".to_owned(), |text| text.trim_end().to_owned())
}

/// Formats the measured value of a target with its 95 % interval or its range; "—" without a value.
pub fn format_value(target: &Target) -> String {
    let Some(value) = target.value else { return "—".to_owned() };
    match (target.kind, target.low.zip(target.high)) {
        (Kind::Ratio, Some((low, high))) => format_ratio(value, low, high),
        (Kind::Ratio, None) => format!("{value:.2}"),
        (Kind::Difference | Kind::Value, Some((low, high))) => {
            format!("{value:.2} [{low:.2}, {high:.2}] {}", target.unit)
        }
        (Kind::Difference | Kind::Value, None) => format!("{value:.2} {}", target.unit),
        (_, Some((low, high))) if low != high => {
            let (low, high) = (format_number(low), format_number(high));
            format!("{} {} ({low} to {high})", format_number(value), target.unit)
        }
        _ => format!("{} {}", format_number(value), target.unit).trim_end().to_owned(),
    }
}

/// Formats the verdict of a target, the reason why the target was not measured, or "noisy" for a noisy figure.
pub fn format_verdict(target: &Target) -> String {
    match (target.value, target.verdict) {
        (None, _) => format!("not run: {}", target.why.as_deref().unwrap_or("no reason given")),
        (_, Some(verdict)) => match &target.why {
            Some(why) => format!("{}: {why}", verdict.name()),
            None => verdict.name().to_owned(),
        },
        (_, None) if target.noisy && target.kind == Kind::Figure => "noisy".to_owned(),
        (_, None) => target.why.clone().unwrap_or_default(),
    }
}

/// Formats a ratio with its interval. The number of decimals depends on the ratio and on the width of the interval.
pub fn format_ratio(mean: f64, low: f64, high: f64) -> String {
    let digits = match mean {
        mean if mean >= 100.0 => 0,
        mean if mean >= 10.0 => 1,
        _ if high - low < 0.02 => 3,
        _ => 2,
    };
    format!("{mean:.digits$} [{low:.digits$}, {high:.digits$}]")
}

/// Formats a number with up to three significant digits and at most two decimals. Numbers from 1000 on are rounded to
/// integers, with digits in groups of three.
pub fn format_number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 => return group_digits(value),
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

fn group_digits(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) && digit != '-' {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Returns the median round trip of a cache line between the cores in a run, nanoseconds.
pub fn typical_ping_pong(results: &Results) -> f64 {
    median(&results.ping_pong_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_reading() {
        assert_eq!(format_number(1.234), "1.23");
        assert_eq!(format_number(12.34), "12.3");
        assert_eq!(format_number(0.0), "0");
        assert_eq!(format_number(123.4), "123");
        assert_eq!(format_number(1_234_567.0), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn ratio_precision_follows_interval_width() {
        assert_eq!(format_ratio(0.4125, 0.3949, 0.4301), "0.41 [0.39, 0.43]");
        assert_eq!(format_ratio(0.8449, 0.8441, 0.8457), "0.845 [0.844, 0.846]");
        assert_eq!(format_ratio(13.21, 12.9, 13.5), "13.2 [12.9, 13.5]");
        assert_eq!(format_ratio(250.4, 200.2, 301.0), "250 [200, 301]");
        assert_eq!(format_ratio(0.5, 0.01, 10.44), "0.50 [0.01, 10.44]");
    }

    #[test]
    fn repetitions_alternate_order() {
        assert_eq!(repetition_order(0, 3), [0, 1, 2]);
        assert_eq!(repetition_order(1, 3), [2, 1, 0]);
        assert_eq!(repetition_order(2, 2), [0, 1]);
    }

    #[test]
    fn target_shows_interval_count_and_verdict() {
        let mut target = Target {
            name: "x".into(),
            kind: Kind::Ratio,
            target: Some(0.45),
            at_most: false,
            unit: String::new(),
            samples: vec![0.4; 7],
            value: Some(0.41),
            low: Some(0.39),
            high: Some(0.43),
            verdict: Some(Verdict::Missed),
            why: None,
            noisy: true,
        };
        assert_eq!(
            (format_bound(&target), format_value(&target)),
            ("≥ 0.45".into(), "0.41 [0.39, 0.43]".into())
        );
        assert_eq!(format_verdict(&target), "missed");
        (target.high, target.verdict) = (Some(0.46), Some(Verdict::Unresolved));
        assert_eq!(format_verdict(&target), "unresolved");
        target.why = Some("one repetition alone has no interval".into());
        assert_eq!(format_verdict(&target), "unresolved: one repetition alone has no interval");
        (target.value, target.verdict, target.why) = (None, None, Some("no such tool".into()));
        assert_eq!(
            (format_value(&target), format_verdict(&target)),
            ("—".into(), "not run: no such tool".into())
        );
    }
}

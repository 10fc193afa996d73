//! A whole run: each task in a process of its own, interleaved within its group, with the cores'
//! ping-pong time taken between them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use comfy_table::{Cell as TableCell, CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::peers::PeerKind;
use crate::plan::{Group, Means, Task, groups};
use crate::quiet::Watch;
use crate::rig::Link;
use crate::row::{Row, median};
use crate::targets::{Target, targets};

/// What a run leaves behind, as `results.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Where it was made.
    pub machine: BTreeMap<String, String>,
    /// It was a quick one.
    pub quick: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Round trips of a cache line between the cores, in nanoseconds, through the run.
    pub ping_pong_ns: Vec<f64>,
    /// What the slower core copied within its first cache, in gigaoctets per second, through the run.
    pub copy_gb_per_s: Vec<f64>,
    /// Headings by group.
    pub groups: Vec<(String, String)>,
    /// The promises.
    pub targets: Vec<Target>,
    /// All rows.
    pub rows: Vec<Row>,
}

impl Results {
    /// The cores were too far apart, or not ours alone, for absolute numbers in some of it.
    pub fn is_noisy(&self) -> bool {
        self.rows.iter().any(|row| row.noisy)
    }
}

/// Runs what `only` names, or all.
pub fn run(means: &Means, only: &[String]) -> anyhow::Result<Results> {
    let begin = Instant::now();
    let machine = machine::describe();
    let all = groups(means);
    for name in only {
        let known = || all.iter().map(|group| group.name).collect::<Vec<_>>().join(", ");
        let found = all.iter().any(|group| group.name == name);
        anyhow::ensure!(found, "there is no group {name}; there are {}", known());
    }
    let chosen = |group: &&Group| only.is_empty() || only.iter().any(|name| name == group.name);
    let again = AGAIN_TIME[usize::from(means.quick)];
    let mut runner = Runner { watch: Watch::new(means.cores, again) };
    let mut rows = Vec::new();
    let mut headings = Vec::new();
    for group in all.iter().filter(chosen) {
        headings.push((group.name.to_owned(), group.title.to_owned()));
        rows.extend(runner.group(group));
    }
    for row in &mut rows {
        row.noisy |= row.copied.is_some_and(|copied| runner.watch.was_shared(copied));
    }
    Ok(Results {
        machine,
        quick: means.quick,
        seconds: begin.elapsed().as_secs_f64(),
        ping_pong_ns: runner.watch.ping_pong,
        copy_gb_per_s: runner.watch.copies,
        groups: headings,
        targets: targets(&rows),
        rows,
    })
}

/// How often a task is done again at once because it was noisy, and how long all such repeating, and waiting for
/// quiet, may take.
const AGAIN: u32 = 2;
const AGAIN_TIME: [Duration; 2] = [Duration::from_secs(120), Duration::from_secs(25)];

/// Measures tasks when the machine is quiet, and again what was noisy, as long as there is time for that.
struct Runner {
    watch: Watch,
}

impl Runner {
    fn group(&mut self, group: &Group) -> Vec<Row> {
        let mut rows: Vec<Row> = group.tasks.iter().map(Task::row).collect();
        for repetition in 0..group.repetitions {
            for (task, row) in group.tasks.iter().zip(&mut rows) {
                self.repetition(task, |measured| {
                    say(repetition, group, &measured);
                    row.merge(measured);
                });
            }
        }
        rows
    }

    fn repetition(&mut self, task: &Task, mut take: impl FnMut(Row)) {
        for attempt in 0..=AGAIN {
            let begin = Instant::now();
            let before = self.watch.wait();
            let copied = self.watch.last_copied();
            let waited = begin.elapsed();
            let mut row = task_in_process(task);
            row.noisy = !(before && self.watch.is_quiet());
            row.copied = copied.into_iter().chain(self.watch.last_copied()).reduce(f64::min);
            let done = !row.noisy || row.value.is_none();
            take(row);
            if attempt > 0 {
                self.watch.spend(begin.elapsed() - waited);
            }
            if done || self.watch.is_spent() {
                return;
            }
        }
    }
}

#[allow(clippy::print_stderr)]
fn say(repetition: u32, group: &Group, row: &Row) {
    let noisy = if row.noisy { " (noisy)" } else { "" };
    let turn = format!("{}/{}", repetition + 1, group.repetitions);
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

/// It wants an interface, and the run was given none.
fn lacks_device(task: &Task) -> bool {
    match task {
        Task::Cell(cell) => cell.rig.link != Link::Ring && cell.rig.devices[0].is_empty(),
        Task::Peer(peer) => match &peer.what {
            PeerKind::Testpmd { devices, .. } => devices[0].is_empty(),
            _ => false,
        },
        Task::Limit(_) => false,
    }
}

/// Longest that a task may take before it is ended.
const PATIENCE: Duration = Duration::from_secs(90);

fn task_in_process(task: &Task) -> Row {
    child(task).unwrap_or_else(|error| task.row().not_run(format!("{error:#}")))
}

fn child(task: &Task) -> anyhow::Result<Row> {
    anyhow::ensure!(!lacks_device(task), "a veth pair needs root and network namespaces");
    let program = match task {
        Task::Cell(cell) if cell.what == crate::cell::What::Memory => "ddp-bench-memory",
        _ => "ddp-bench",
    };
    let path = std::env::current_exe()?.with_file_name(program);
    let mut child = Command::new(&path)
        .args(["task", &serde_json::to_string(task)?])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} cannot be started", path.display()))?;
    let begin = Instant::now();
    while child.try_wait()?.is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("it was not done after {} s", PATIENCE.as_secs());
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
            let said = words.lines().find(|line| !line.trim().is_empty());
            anyhow::bail!("{}", said.unwrap_or("it ended without a word"));
        }
    }
}

/// Writes `results.json`.
pub fn write(results: &Results, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    let text = serde_json::to_string_pretty(results)?;
    std::fs::write(directory.join("results.json"), text + "\n")?;
    Ok(())
}

/// The promises as a table.
pub fn table(results: &Results) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["what", "target", "measured", "ratio", ""]);
    for target in &results.targets {
        let bound = if target.at_most { "≤" } else { "≥" };
        let value = target.value.map(|value| measured(value, target.target));
        let verdict = match (target.value, target.met, target.noisy) {
            (None, ..) => "not run",
            (_, true, _) => "met",
            (_, false, true) => "not met (noisy)",
            (_, false, false) => "not met",
        };
        let right = |text: String| TableCell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            TableCell::new(&target.name),
            right(format!("{bound} {} {}", number(target.target), target.unit)),
            right(value.unwrap_or("—".to_owned())),
            right(target.ratio.map_or("—".to_owned(), ratio)),
            TableCell::new(verdict),
        ]);
    }
    table
}

/// A ratio; what nothing stands against is endless.
pub fn ratio(ratio: f64) -> String {
    if ratio > 1e6 { "∞".to_owned() } else { format!("{ratio:.2}") }
}

/// A number as people read it: three digits, thousands apart.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 => return grouped(value),
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// What was measured beside a promise: with another two digits where the two would read the same and are not.
pub fn measured(value: f64, target: f64) -> String {
    let text = number(value);
    if text != number(target) || value == target || value.abs() >= 1000.0 {
        return text;
    }
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len()) + 2;
    format!("{value:.digits$}")
}

fn grouped(value: f64) -> String {
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

/// The typical distance of the cores in a run.
pub fn typical_ping_pong(results: &Results) -> f64 {
    median(&results.ping_pong_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(1.234), "1.23");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(ratio(f64::MAX), "∞");
    }

    #[test]
    fn what_misses_a_promise_by_little_does_not_read_like_it() {
        assert_eq!(measured(0.8449, 0.85), "0.84");
        assert_eq!(measured(0.8451, 0.85), "0.8451");
        assert_eq!(measured(39.96, 40.0), "39.960");
        assert_eq!(measured(40.0, 40.0), "40.0");
        assert_eq!(measured(0.0, 0.0), "0");
        assert_eq!(measured(1017.0, 1024.0), "1\u{202f}017");
    }
}

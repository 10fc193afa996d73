//! Instruction counts of the hot paths, compared with a committed baseline.
//!
//! Paths with full segments are counted natively ([`crate::single_step`]), once with each of the CRC engines `avx512`
//! and `avx2` that this CPU supports, or else with `clmul`. Floods and operations of programs have short frames. They
//! are counted under callgrind, which is faster but does not support AVX-512. Where the system does not permit ptrace,
//! callgrind counts all paths.
//!
//! Counts are comparable only for the same compiler, CRC crates, counter and CRC engine, so each combination has its
//! own baseline.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context as _, ensure};
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

use crate::hot_path::engine_named;
use crate::machine::command_output;
use crate::run::format_number;
use crate::single_step::{Steps, count_steps};

/// Factor of growth above which a path fails: 2 % more instructions.
pub const GROWTH: f64 = 1.02;

/// The committed baseline file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstructionBaseline {
    /// Counts by build key (compiler, CRC crates, counter and engine), then by path.
    #[serde(default)]
    counts: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Instruction count of a path.
#[derive(Clone, PartialEq, Debug)]
pub struct Count {
    /// Name of the path.
    pub name: String,
    /// Number of work units in the path, and the unit's name.
    pub units: (u64, String),
    /// Instructions of all units in total.
    pub instructions: u64,
}

/// Result of the comparison. The greatest result of all paths and builds is the result of the run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// No path has grown by more than 2 %.
    Passed,
    /// A stream's share under a flood is below its bound, or has fallen by more than 2 %.
    ShareShrunk,
    /// A path has grown by more than 2 %.
    Grown,
    /// The baseline file has no counts for this build.
    NoBaseline,
}

/// Method of counting.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Counter {
    /// Single steps, with this CRC engine.
    Native(&'static str),
    /// Callgrind, with the engine that `crc-fast` selects on callgrind's emulated CPU.
    Callgrind(String),
}

/// Programs with hot paths, in the order of the tables.
const PROGRAMS: [&str; 3] = ["hot", "hot-worker", "hot-programs"];
/// Paths with long payloads, which are counted with each CRC engine.
const LONG_PATHS: [&str; 12] = [
    "tx-1448",
    "tx-1448-markers",
    "rx-1448",
    "rx-1448-markers",
    "sctp-tx-1480",
    "sctp-rx-1480",
    "send-1500",
    "send-1500-markers",
    "send-9000",
    "receive-1500",
    "receive-1500-markers",
    "receive-9000",
];
/// Number of paths that are counted at the same time.
const THREADS: usize = 2;

/// A path of a program.
#[derive(Clone, Debug)]
struct HotPath {
    program: PathBuf,
    name: String,
    units: (u64, String),
}

/// Counts the instructions, compares them with the baseline and prints both. `bless` stores the counts as the baseline.
#[allow(clippy::print_stdout)]
pub fn check(file: &Path, bless: bool) -> anyhow::Result<Verdict> {
    let mut baseline = read_baseline(file)?;
    let mut paths = Vec::new();
    for program in PROGRAMS {
        paths.extend(list_paths(&std::env::current_exe()?.with_file_name(program))?);
    }
    for long in LONG_PATHS {
        ensure!(paths.iter().any(|path| path.name == long), "no path {long}");
    }
    let mut verdict = Verdict::Passed;
    for (counter, counts) in count_all(&paths, bless)? {
        let key = build_key(&counter);
        let known = baseline.counts.get(&key);
        println!("{}", count_table(&counts, known));
        println!("for {key}");
        let shares = stream_shares(&counts, known);
        for share in &shares {
            println!("{}", share.describe());
        }
        verdict = verdict.max(judge_counts(&counts, known));
        if !shares.iter().all(StreamShare::meets_bound) {
            verdict = verdict.max(Verdict::ShareShrunk);
        }
        if bless {
            let counted = counts.into_iter().map(|c| (c.name, c.instructions)).collect();
            baseline.counts.insert(key, counted);
        }
    }
    if bless {
        let head = "# Instructions of the hot paths (scripts/bench --instructions --bless).\n\n";
        std::fs::write(file, head.to_owned() + &toml::to_string_pretty(&baseline)?)?;
        println!("this is the baseline now: {}", file.display());
        return Ok(Verdict::Passed);
    }
    println!("{}", verdict.message());
    Ok(verdict)
}

/// Counts all paths, by counter. A path is counted natively unless [`needs_native_count`] is false for it. For a new
/// baseline, `bless`, callgrind counts all paths, for systems that do not permit ptrace.
fn count_all(paths: &[HotPath], bless: bool) -> anyhow::Result<Vec<(Counter, Vec<Count>)>> {
    let engines: Vec<&str> =
        ["avx512", "avx2"].into_iter().filter(|engine| engine_named(engine).is_some()).collect();
    // A CPU with neither engine uses `clmul`.
    let engines = if engines.is_empty() { vec!["clmul"] } else { engines };
    let (native, emulated): (Vec<_>, Vec<_>) =
        paths.iter().cloned().partition(|path| needs_native_count(&path.name));
    let callgrind = Counter::Callgrind(callgrind_engine(paths)?);
    let mut all = Vec::new();
    for (n, engine) in engines.into_iter().enumerate() {
        let counter = Counter::Native(engine);
        let mut native = native.clone();
        native.retain(|path| n == 0 || LONG_PATHS.contains(&&*path.name));
        match count_paths(&counter, &native)? {
            Some(counts) => all.push((counter, counts)),
            None => {
                let counts = count_paths(&callgrind, paths)?.context("no count")?;
                return Ok(vec![(callgrind, counts)]);
            }
        }
    }
    let emulated = if bless { paths } else { &emulated };
    let counts = count_paths(&callgrind, emulated)?.context("no count")?;
    all.push((callgrind, counts));
    Ok(all)
}

/// Returns false for floods and for the operations of programs: they have short frames, for which AVX-512 is not used,
/// and too many instructions for single steps.
fn needs_native_count(name: &str) -> bool {
    let emulated = ["flood-", "share-", "program-", "load-worker"];
    !emulated.iter().any(|prefix| name.starts_with(prefix))
}

/// Counts these paths, [`THREADS`] at a time. Returns `None` if the system does not permit this counter.
fn count_paths(counter: &Counter, paths: &[HotPath]) -> anyhow::Result<Option<Vec<Count>>> {
    let next = Mutex::new(paths.iter().enumerate());
    let counted = Mutex::new(Vec::with_capacity(paths.len()));
    let work = || {
        while let Some((index, path)) = lock(&next).next() {
            let count = path.count(counter);
            lock(&counted).push((index, count));
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let mut counted = std::mem::take(&mut *lock(&counted));
    counted.sort_by_key(|(index, _)| *index);
    let counts: Vec<Option<Count>> =
        counted.into_iter().map(|(_, count)| count).collect::<anyhow::Result<_>>()?;
    Ok(counts.into_iter().collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with the lock")
}

impl HotPath {
    /// Counts the path's instructions. Returns `None` if the system does not permit this counter.
    fn count(&self, counter: &Counter) -> anyhow::Result<Option<Count>> {
        let (instructions, output) = match counter {
            Counter::Native(engine) => match count_steps(&self.program, engine, &self.name)? {
                Steps::Counted(steps, output) => (steps, output),
                Steps::NotPermitted => return Ok(None),
            },
            Counter::Callgrind(_) => count_instructions(&self.program, &self.name)?,
        };
        // Some paths print their number of units, because the number depends on the product.
        let (listed, unit) = self.units.clone();
        let counted = output.lines().find_map(|line| line.strip_prefix("units ")?.parse().ok());
        let units = (counted.unwrap_or(listed), unit);
        Ok(Some(Count { name: self.name.clone(), units, instructions }))
    }
}

impl Verdict {
    /// Returns the result and its remedy as a sentence.
    pub fn message(self) -> &'static str {
        match self {
            Verdict::Passed => "no path has grown by more than 2 %",
            Verdict::Grown => {
                "FAILED: a path has grown by more than 2 %. Reduce it, or, if the growth is justified, \
                 renew the baseline: scripts/bench --instructions --bless"
            }
            Verdict::ShareShrunk => {
                "FAILED: under a flood, a stream's share of the remaining core time is below its bound, or 2 % \
                 below the baseline. See docs/performance.md, Floods"
            }
            Verdict::NoBaseline => {
                "FAILED: there is no baseline for this compiler and CRC, so nothing was checked; other counts \
                 are not comparable. Make one on the commit to compare with, and commit \
                 benches/instructions.toml: scripts/bench --instructions --bless"
            }
        }
    }

    /// Returns 0 for [`Verdict::Passed`], otherwise 1.
    pub fn exit_code(self) -> u8 {
        u8::from(self != Verdict::Passed)
    }
}

fn read_baseline(file: &Path) -> anyhow::Result<InstructionBaseline> {
    match std::fs::read_to_string(file) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("{}", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(InstructionBaseline::default())
        }
        Err(error) => Err(error).with_context(|| format!("{}", file.display())),
    }
}

/// Returns the build key. Counts with equal keys are comparable.
fn build_key(counter: &Counter) -> String {
    let compiler = command_output("rustc", &["--version"]);
    let lock = include_str!("../../Cargo.lock");
    let version = |name: &str| {
        let at = lock.find(&format!("name = \"{name}\"\n"))?;
        lock[at..].lines().nth(1)?.split('"').nth(1)
    };
    let crates = ["crc-fast", "crc32c-hw"];
    let crates = crates.map(|name| format!("{name} {}", version(name).unwrap_or("?")));
    let counter = match counter {
        Counter::Native(engine) => format!("native, {engine}"),
        Counter::Callgrind(engine) => format!("callgrind, {engine}"),
    };
    format!("{compiler}, {}, {counter}", crates.join(", "))
}

/// Runs a program under valgrind.
fn valgrind(program: &Path, tool: &[&str], argument: &str) -> anyhow::Result<std::process::Output> {
    let output = Command::new("valgrind")
        .args(tool)
        .arg(program)
        .arg(argument)
        // Selects the same memcpy on every CPU, for equal counts.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-ERMS,-FSRM")
        .output()
        .context("valgrind cannot be started (Debian: valgrind; scripts/setup installs it)")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} {argument}: {text}", program.display());
    Ok(output)
}

/// Returns the engine that `crc-fast` selects under valgrind. It depends on the CPU features that valgrind reports.
fn callgrind_engine(paths: &[HotPath]) -> anyhow::Result<String> {
    let program = &paths.first().context("no path")?.program;
    let output = valgrind(program, &["--tool=none"], "--list")?;
    let text = String::from_utf8(output.stdout)?;
    let engine = text.lines().find_map(|line| line.strip_prefix("crc "));
    Ok(engine.context("no engine")?.to_owned())
}

/// Returns the paths of a program. After the CRC engine, each line has name, number of units, and unit.
fn list_paths(program: &Path) -> anyhow::Result<Vec<HotPath>> {
    let output = Command::new(program).arg("--list").output()?;
    ensure!(output.status.success(), "{}: {}", program.display(), output.status);
    let path = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let name = words.next()?.to_owned();
        let units = (words.next()?.parse().ok()?, words.next()?.to_owned());
        Some(HotPath { program: program.to_owned(), name, units })
    };
    let text = String::from_utf8(output.stdout)?;
    text.lines().skip(1).map(|line| path(line).context("a bad line")).collect()
}

/// Counts the instructions of a path under callgrind. Returns them and the program's standard output.
fn count_instructions(program: &Path, name: &str) -> anyhow::Result<(u64, String)> {
    let tool = [
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--collect-atstart=no",
        "--toggle-collect=*measured_hot_path*",
    ];
    let output = valgrind(program, &tool, name)?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split("Collected :").nth(1));
    let count = line.and_then(|words| words.trim().parse().ok());
    let count: u64 =
        count.with_context(|| format!("no count in the output of callgrind: {text}"))?;
    ensure!(count > 0, "{name}: nothing was counted");
    Ok((count, String::from_utf8(output.stdout)?))
}

fn judge_counts(counts: &[Count], known: Option<&BTreeMap<String, u64>>) -> Verdict {
    let Some(known) = known else { return Verdict::NoBaseline };
    let grown = counts.iter().any(|count| match known.get(&count.name) {
        Some(&before) => count.instructions as f64 > before as f64 * GROWTH,
        // A new path fails until it is in the baseline.
        None => true,
    });
    if grown { Verdict::Grown } else { Verdict::Passed }
}

/// Frames per segment of the stream in a mixed burst: one segment and four frames of the flood (`hot-worker`).
const FRAMES_PER_SEGMENT: f64 = 5.0;
/// Minimum share for each flood; see [`StreamShare`].
const MIN_SHARES: [(&str, f64); 3] = [("rst", 0.80), ("syn", 0.80), ("init", 0.80)];

/// Share that a stream keeps of the core time that a flood leaves. The numerator is the instructions of the stream's
/// segments alone. The denominator is the instructions of the mixed bursts minus those of the flood.
#[derive(Clone, PartialEq, Debug)]
struct StreamShare {
    flood: &'static str,
    share: f64,
    /// Share according to the baseline's counts; `None` without them.
    baseline: Option<f64>,
    bound: f64,
}

impl StreamShare {
    fn meets_bound(&self) -> bool {
        // NaN does not meet the bound.
        self.share >= self.bound && self.baseline.is_none_or(|before| self.share * GROWTH >= before)
    }

    fn describe(&self) -> String {
        let StreamShare { flood, share: kept, baseline: before, bound: least } = self;
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let baseline = before.map_or("—".to_owned(), percent);
        let (kept, least) = (percent(*kept), percent(*least));
        format!(
            "share of a stream under a flood of {flood}: {kept} (baseline {baseline}, at least {least})"
        )
    }
}

fn stream_shares(counts: &[Count], known: Option<&BTreeMap<String, u64>>) -> Vec<StreamShare> {
    let units = |name: &str| {
        let count = counts.iter().find(|count| count.name == name)?;
        Some((count.instructions as f64, count.units.0 as f64))
    };
    let now = |name: &str| units(name).map(|(all, units)| all / units);
    let then = |name: &str| Some(*known?.get(name)? as f64 / units(name)?.1);
    let share = |each: &dyn Fn(&str) -> Option<f64>, flood: &str| {
        let mixed = each(&format!("share-{flood}"))?;
        // The bursts of `share-flood-*` have a RST in place of the stream's segment. The cost of the RST is
        // subtracted.
        let reset = each("share-flood-rst")? / FRAMES_PER_SEGMENT;
        let flood = each(&format!("share-flood-{flood}"))? - reset;
        Some(each("share-alone")? / (mixed - flood))
    };
    let found = MIN_SHARES.into_iter().filter_map(|(flood, least)| {
        let (kept, before) = (share(&now, flood)?, share(&then, flood));
        Some(StreamShare { flood, share: kept, baseline: before, bound: least })
    });
    found.collect()
}

fn count_table(counts: &[Count], known: Option<&BTreeMap<String, u64>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["path", "unit", "instructions each", "baseline", "growth"]);
    for count in counts {
        let (units, unit) = &count.units;
        let each = |instructions: u64| format_number(instructions as f64 / *units as f64);
        let before = known.and_then(|known| known.get(&count.name)).copied();
        let growth = before.map(|before| count.instructions as f64 / before as f64 - 1.0);
        table.add_row([
            count.name.clone(),
            unit.clone(),
            each(count.instructions),
            before.map_or("—".to_owned(), each),
            growth.map_or("—".to_owned(), |growth| format!("{:+.2} %", growth * 100.0)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_above_2_percent_or_unlisted_path_fails() {
        let count = |name: &str, instructions| {
            let name = name.to_owned();
            Count { name, units: (1, "unit".into()), instructions }
        };
        let known = BTreeMap::from([("a".to_owned(), 1000)]);
        assert_eq!(judge_counts(&[count("a", 1020)], Some(&known)), Verdict::Passed);
        assert_eq!(judge_counts(&[count("a", 1021)], Some(&known)), Verdict::Grown);
        assert_eq!(judge_counts(&[count("b", 1)], Some(&known)), Verdict::Grown);
        assert_eq!(judge_counts(&[count("a", 1)], None), Verdict::NoBaseline);
    }

    #[test]
    fn stream_share_under_flood_below_bound_fails() {
        let count = |name: &str, units, instructions| {
            let name = name.to_owned();
            Count { name, units: (units, "unit".into()), instructions }
        };
        let counts = |mixed| {
            [
                count("share-alone", 10, 40_000),
                count("share-flood-rst", 10, 50_000),
                count("share-rst", 10, mixed),
            ]
        };
        // 4000 instructions for a segment and 1000 for each of the flood's four frames.
        let share = |mixed, known: Option<&_>| stream_shares(&counts(mixed), known).remove(0);
        assert_eq!(share(80_000, None).share, 1.0);
        assert_eq!(share(90_000, None).share, 0.8);
        assert!(share(90_000, None).meets_bound() && !share(90_001, None).meets_bound());
        let known = counts(80_000).map(|count| (count.name, count.instructions)).into();
        assert_eq!(share(81_000, Some(&known)).baseline, Some(1.0));
        assert!(share(80_790, Some(&known)).meets_bound());
        assert!(!share(80_810, Some(&known)).meets_bound());
        assert_eq!(stream_shares(&[], None), []);
    }

    #[test]
    fn missing_baseline_fails_with_remedy() {
        let verdict = judge_counts(&[], None);
        assert_eq!(verdict.exit_code(), 1);
        assert!(verdict.message().contains("scripts/bench --instructions --bless"));
        assert_eq!((Verdict::Grown.exit_code(), Verdict::Passed.exit_code()), (1, 0));
    }

    #[test]
    fn build_key_contains_crc_crate_versions() {
        let key = build_key(&Counter::Native("avx512"));
        assert!(
            key.contains("crc-fast 1.")
                && key.contains("crc32c-hw 0.")
                && key.ends_with("native, avx512")
                && !key.contains('?')
        );
    }
}

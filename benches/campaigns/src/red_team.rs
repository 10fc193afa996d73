//! Runs each attack of the red team while the good peers transfer. Counters and memory are sampled before and after
//! each attack.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use comfy_table::{Table, presets};
use load::stream_watch::Flow;
use serde::Serialize;

use crate::attack_context::AttackContext;
use crate::attacker_port::AttackerPort;
use crate::attacks::{self, Attack};
use crate::cable::Cable;
use crate::good_peers::{GoodPeers, STALL_TIMEOUT_MS, Transfers};
use crate::sample::{Sample, refusal_counters, unaccounted_frames};
use crate::testbed::{self, Environment, GUARD_REGIONS, LocationArgs, TargetSetting, Testbed};
use crate::verdict::{Observations, judge};

/// Command-line arguments of `ddp-red-team`.
#[derive(clap::Parser)]
#[command(
    about = "Attack a live appliance with raw frames and hostile streams while good peers transfer"
)]
pub struct Arguments {
    /// Names of attacks; by default all
    names: Vec<String>,
    #[command(flatten)]
    location: LocationArgs,
    /// Minimum duration of each attack, in seconds
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 5042)]
    seed: u64,
    /// Print one JSON object with all results instead of the table
    #[arg(long)]
    json: bool,
    /// List the attacks, and do nothing else
    #[arg(long)]
    list: bool,
}

/// Outcome of a run.
#[derive(Debug)]
pub struct Report {
    /// Report for the terminal.
    pub text: String,
    /// Number of attacks with violations.
    pub failed: usize,
}

/// Result of an attack in the report.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    source: &'static str,
    #[serde(flatten)]
    seen: Observations,
    refusals: crate::sample::CounterMap,
    wrong: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Results {
    seed: u64,
    seconds: f64,
    /// Bytes per second of each good peer without attack.
    quiet: Vec<(&'static str, f64)>,
    /// Sums over all attacks.
    totals: Totals,
    rows: Vec<Row>,
}

#[derive(Debug, Default, Serialize)]
struct Totals {
    attacks: usize,
    failed: usize,
    attempts: u64,
    frames: u64,
    good_bytes: u64,
    /// Memory of the first target before its first attack, bytes. `memory_last` is its memory after its last attack.
    memory_first: u64,
    memory_last: u64,
}

impl Totals {
    /// Adds a row. `first` is true if the attack was on the first target.
    fn add(&mut self, row: &Row, first: bool) {
        let seen = &row.seen;
        if self.attacks == 0 {
            self.memory_first = seen.memory_before;
        }
        self.attacks += 1;
        self.failed += usize::from(!row.wrong.is_empty());
        self.attempts += seen.attempts;
        self.frames += seen.sent.frames;
        self.good_bytes += seen.good.iter().map(|done| done.bytes).sum::<u64>();
        if first {
            self.memory_last = seen.memory_after;
        }
    }
}

/// Number of the attacker's ports for each attack, from 20,000 on.
const PORTS_PER_ATTACK: usize = 490;
/// Minimum duration of the phase without attack, which measures the good peers' rates. The phase also requires two
/// completed transfers of each peer.
const BASELINE_TIME: Duration = Duration::from_secs(3);
/// Maximum duration of an attack, seconds: two transfers that nearly stall, plus 10 s.
const MAX_ATTACK_SECONDS: f64 = 2.0 * STALL_TIMEOUT_MS as f64 * 1e-3 + 10.0;

/// Runs the selected attacks on their targets.
///
/// # Errors
/// The test bed does not start, an attack name is unknown, or a good peer fails without attack.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let all = select_attacks(&arguments.names)?;
    if arguments.list {
        let lines: Vec<String> =
            all.iter().map(|attack| format!("{:28} {}", attack.name, attack.source)).collect();
        return Ok(Report { text: lines.join("\n"), failed: 0 });
    }
    let directory = tempfile::tempdir()?;
    let place = arguments.location.environment(directory.path());
    let began = Instant::now();
    let results = run_attacks(&all, &place, arguments)?;
    let failed = results.totals.failed;
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&results)?,
        false => format_table(&results, began.elapsed()),
    };
    Ok(Report { text, failed })
}

fn select_attacks(names: &[String]) -> Result<Vec<Attack>> {
    let mut all = attacks::attacks();
    for name in names {
        ensure!(all.iter().any(|attack| attack.name == *name), "no attack is called {name}");
    }
    all.retain(|attack| names.is_empty() || names.iter().any(|name| name == attack.name));
    Ok(all)
}

fn run_attacks(all: &[Attack], place: &Environment<'_>, arguments: &Arguments) -> Result<Results> {
    let mut results = Results {
        seed: arguments.seed,
        seconds: arguments.seconds,
        quiet: Vec::new(),
        totals: Totals::default(),
        rows: Vec::new(),
    };
    // DPDK's EAL can start only once per process, so both targets share the attacker's port.
    let mut station = None;
    for setting in [TargetSetting::Plain, TargetSetting::Guarded] {
        let of: Vec<_> = all.iter().filter(|attack| attack.setting == setting).collect();
        if !of.is_empty() {
            run_attacks_on_target(setting, &of, place, arguments, &mut station, &mut results)?;
        }
    }
    Ok(results)
}

/// Starts the target with `setting` and runs `attacks` on it.
fn run_attacks_on_target(
    setting: TargetSetting,
    attacks: &[&Attack],
    place: &Environment<'_>,
    arguments: &Arguments,
    station: &mut Option<AttackerPort>,
    results: &mut Results,
) -> Result<()> {
    let bed = Testbed::start(place, setting)?;
    // The port must be open before the good peers' streams start, to observe their sequence numbers.
    let station = match station {
        Some(station) => station,
        None => station.insert(AttackerPort::open(place.device, bed.mac)?),
    };
    let good = GoodPeers::start(&bed, &arguments.location.ddpctl, place.directory)?;
    let flow = Flow { source: good.tcp.remote.parse()?, destination: good.tcp.local.parse()? };
    let cable = Cable::new(place.device, place.namespace, place.target_device);
    let mut scene =
        AttackRun { bed: &bed, good: &good, cable, last_work: Vec::new(), baseline: Vec::new() };
    scene.measure_baseline(station)?;
    let guards = read_guard_regions(&bed)?;
    let (seed, first) = (arguments.seed, results.rows.is_empty());
    for (index, attack) in attacks.iter().enumerate() {
        let mut context = AttackContext {
            station: &mut *station,
            target: &bed.target,
            flow,
            random: fastrand::Rng::with_seed(seed.wrapping_add(results.rows.len() as u64)),
            findings: Vec::new(),
            attempts: 0,
            // Each attack has its own range of ports.
            last_port: 20_000 + (PORTS_PER_ATTACK * index) as u16,
        };
        let row = scene.attack(attack, &mut context, arguments.seconds, &guards)?;
        print_progress(&row);
        results.totals.add(&row, first);
        results.rows.push(row);
    }
    if first {
        results.quiet = scene.baseline;
    }
    Ok(())
}

/// Prints the verdict of an attack to standard error.
#[allow(clippy::print_stderr)]
fn print_progress(row: &Row) {
    let verdict = if row.wrong.is_empty() { "ok" } else { "FAILED" };
    eprintln!("{verdict:7} {:28} {}", row.name, row.source);
    row.wrong.iter().for_each(|wrong| eprintln!("        {wrong}"));
}

/// Returns the contents of the guard regions, which no attack may change.
fn read_guard_regions(bed: &Testbed) -> Result<Vec<Vec<u8>>> {
    GUARD_REGIONS.iter().map(|name| read_region(bed, name)).collect()
}

fn read_region(bed: &Testbed, name: &str) -> Result<Vec<u8>> {
    let path = format!("/v1/regions/{name}/data?offset=0&length={}", testbed::REGION_LEN);
    Ok(bed.target.client.bytes(&path)?)
}

/// Execution of attacks on one target.
struct AttackRun<'a> {
    bed: &'a Testbed,
    good: &'a GoodPeers,
    cable: Cable,
    /// Bytes and transfers of each good peer at the last call of [`GoodPeers::take_work`].
    last_work: Vec<(u64, u64)>,
    /// Bytes per second of each good peer without attack.
    baseline: Vec<(&'static str, f64)>,
}

impl AttackRun<'_> {
    /// Measures the rates of the good peers without attack, then pauses the peers.
    fn measure_baseline(&mut self, station: &mut AttackerPort) -> Result<()> {
        self.good.take_work(&mut self.last_work);
        self.good.resume();
        let (first, began) = (self.good.transfers(), Instant::now());
        while began.elapsed() < BASELINE_TIME || !self.have_progressed(&first) {
            let _: Option<()> = station.wait_answer(Duration::from_millis(100), |_| None);
        }
        let seconds = began.elapsed().as_secs_f64();
        for done in self.good.take_work(&mut self.last_work) {
            ensure!(
                done.failures.is_empty() && done.bytes > 0,
                "without attack the good peer {} fails: {}",
                done.name,
                done.failures.join("; ")
            );
            self.baseline.push((done.name, done.bytes as f64 / seconds));
        }
        self.good.pause(Duration::from_millis(STALL_TIMEOUT_MS));
        Ok(())
    }

    /// Runs an attack for at least `seconds` while the good peers transfer. Returns the observations and the
    /// violations.
    fn attack(
        &mut self,
        attack: &Attack,
        context: &mut AttackContext<'_>,
        seconds: f64,
        guards: &[Vec<u8>],
    ) -> Result<Row> {
        let (before, wire) = (Sample::collect(&self.bed.target)?, self.cable.frame_counts()?);
        let (sent, answers) = (context.station.sent, context.station.answers);
        self.good.take_work(&mut self.last_work);
        self.good.resume();
        let first = self.good.transfers();
        let began = Instant::now();
        let mut rounds = 0;
        loop {
            if rounds > 0 && attack.single_round {
                context.settle(Duration::from_millis(10));
            } else if let Err(error) = (attack.round)(context) {
                context.report_violation(format!("{error:#}"));
                break;
            }
            rounds += 1;
            if began.elapsed().as_secs_f64() >= seconds && self.have_progressed(&first) {
                break;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let good = self.good.take_work(&mut self.last_work);
        // Frame counts balance only when no frames are in flight.
        self.good.pause(Duration::from_millis(STALL_TIMEOUT_MS));
        context.settle(Duration::from_millis(20));
        let (after, unaccounted) = self.settled_sample(&before)?;
        let now = self.cable.frame_counts()?;
        if seconds > MAX_ATTACK_SECONDS {
            context.report_violation(format!("it took {seconds:.1} s"));
        }
        let counted = after.growth_since(&before);
        let taken = counted.get("rx_frames").copied().unwrap_or(0);
        let seen = Observations {
            seconds,
            attempts: context.attempts,
            sent: context.station.sent.since_sample(sent),
            answers: context.station.answers.since_sample(answers),
            unaccounted,
            lost: now.0 - wire.0 + (now.1 - wire.1).saturating_sub(taken),
            memory_before: before.memory,
            memory_after: after.memory,
            log: after.log - before.log,
            good,
            bounds: bounded_gauges(&after),
            changed: self.changed_guards(guards)?,
            findings: std::mem::take(&mut context.findings),
            counted,
        };
        let wrong = judge(&attack.rule, &seen);
        let refusals = refusal_counters(&seen.counted);
        Ok(Row { name: attack.name, source: attack.source, seen, refusals, wrong })
    }

    /// Returns true if each good peer has completed two transfers since `first` or has stalled. The second of two
    /// transfers certainly began after `first`.
    fn have_progressed(&self, first: &[Transfers]) -> bool {
        let mut both = self.good.transfers().into_iter().zip(first);
        both.all(|(now, then)| {
            now.completed >= then.completed + 2 || now.silent_ms > STALL_TIMEOUT_MS
        })
    }

    /// Returns a sample with its number of unaccounted frames. Because a running worker may hold frames, sampling
    /// repeats up to 20 times until the number is 0.
    fn settled_sample(&self, before: &Sample) -> Result<(Sample, i64)> {
        let mut after = Sample::collect(&self.bed.target)?;
        for _ in 0..20 {
            if unaccounted_frames(&after.growth_since(before)) == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            after = Sample::collect(&self.bed.target)?;
        }
        let lost = unaccounted_frames(&after.growth_since(before));
        Ok((after, lost))
    }

    fn changed_guards(&self, guards: &[Vec<u8>]) -> Result<Vec<String>> {
        let mut changed = Vec::new();
        for (name, before) in GUARD_REGIONS.iter().zip(guards) {
            if read_region(self.bed, name)? != *before {
                changed.push((*name).to_owned());
            }
        }
        Ok(changed)
    }
}

/// Returns the gauges that have an upper bound: name, value and bound. Bounds are from the target's configuration,
/// otherwise the defaults in `docs/ddpd.reference.toml`.
fn bounded_gauges(sample: &Sample) -> Vec<(&'static str, u64, u64)> {
    let all = [
        ("held_bytes", testbed::HELD_LIMIT),
        ("held_bytes_max", testbed::HELD_LIMIT),
        ("reassembly_bytes", 1 << 20),
        ("neighbours", 256),
        ("streams", 256),
        ("associations", 256),
        ("kept_bytes", 64 << 20),
        ("untagged_bytes", 64 << 20),
    ];
    all.into_iter()
        .map(|(name, bound)| (name, sample.gauges.get(name).copied().unwrap_or(0), bound))
        .collect()
}

fn format_table(results: &Results, took: Duration) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "attack",
        "source",
        "sent",
        "answers KiB",
        "refused",
        "good MiB",
        "longest ms",
        "memory KiB",
        "verdict",
    ]);
    for row in &results.rows {
        let seen = &row.seen;
        let mut most: Vec<_> = row.refusals.iter().collect();
        most.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let refused: Vec<String> = most
            .iter()
            .take(3)
            .map(|(name, n)| format!("{} {n}", name.split_once(':').map_or(name.as_str(), |p| p.1)))
            .collect();
        let good: u64 = seen.good.iter().map(|done| done.bytes).sum();
        let longest = seen.good.iter().map(|done| done.longest_ms).max().unwrap_or(0);
        table.add_row([
            row.name.to_owned(),
            row.source.to_owned(),
            seen.attempts.to_string(),
            (seen.answers.bytes >> 10).to_string(),
            refused.join("\n"),
            format!("{:.1}", good as f64 / (1 << 20) as f64),
            longest.to_string(),
            format!(
                "{} {:+}",
                seen.memory_before >> 10,
                (seen.memory_after as i64 - seen.memory_before as i64) >> 10
            ),
            if row.wrong.is_empty() {
                "ok".into()
            } else {
                format!("FAILED\n{}", row.wrong.join("\n"))
            },
        ]);
    }
    let totals = &results.totals;
    format!(
        "{table}\n{} attacks, {} FAILED; {} attempts, {} raw frames; good peers moved and compared {} MiB; \
         memory {} KiB at first, {} KiB at last; {:.0} s",
        totals.attacks,
        totals.failed,
        totals.attempts,
        totals.frames,
        totals.good_bytes >> 20,
        totals.memory_first >> 10,
        totals.memory_last >> 10,
        took.as_secs_f64(),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_attack_has_unique_name_source_and_explanation() {
        let all = attacks::attacks();
        let names: HashSet<_> = all.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), all.len());
        for attack in &all {
            assert!(attack.source.starts_with("RFC "), "{}", attack.name);
            assert!(!attack.rule.explained_by.is_empty(), "{}", attack.name);
        }
        // The port ranges of all attacks on one target end below 65,000, so none wraps into another.
        for setting in [TargetSetting::Plain, TargetSetting::Guarded] {
            let count = all.iter().filter(|attack| attack.setting == setting).count();
            assert!(20_000 + PORTS_PER_ATTACK * count <= 65_000, "{count} attacks");
        }
    }

    #[test]
    fn unknown_attack_name_is_refused() {
        assert!(select_attacks(&["rst-in-window".into()]).is_ok_and(|all| all.len() == 1));
        assert!(select_attacks(&["rst".into()]).is_err());
    }
}

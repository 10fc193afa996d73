//! The soak: opens and closes streams of all kinds over a lossy cable while the peer is killed and restarted and the
//! configuration is reloaded. Afterwards no resource may exceed its initial value by more than its allowance
//! (`resources`).
//!
//! ```text
//!  namespace A                 namespace B, in which this program runs
//!  target: ddpd   ── veth ──   this program, which loses frames   ── veth ──   peer: ddpd, and the kernel's TCP
//! ```

mod appliances;
mod explain;
mod faults;
mod ops;
mod programs;
mod resources;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use api::Client;
use serde::Serialize;

use self::appliances::THREADS;
use self::faults::FaultInjector;
use self::ops::{Kind, Worker};
use self::resources::Resources;
use crate::lossy_cable::LossyCable;
use crate::testbed::{self, LocationArgs};

/// Command-line arguments of `ddp-soak`.
#[derive(clap::Parser)]
#[command(
    about = "Open and close streams of all kinds with faults, and check that all resources are freed"
)]
pub struct Arguments {
    /// Duration of streams and faults, in minutes
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 5043)]
    seed: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    location: LocationArgs,
    /// Two devices in this namespace, joined by the lossy cable: the veth peers of the target's port and of the peer
    /// appliance's port
    #[arg(long, num_args = 2)]
    between: Vec<String>,
}

/// Outcome of a soak.
#[derive(Debug)]
pub struct Report {
    /// Report for the terminal.
    pub text: String,
    /// True if there are no violations.
    pub good: bool,
}

/// Outcomes of the streams of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Tally {
    /// Completed streams. All their bytes were compared equal.
    done: u64,
    /// Streams that failed because the peer was killed, or because the cable delivered none of their frames for
    /// [`OUTAGE_LIMIT`].
    cut_off: u64,
    /// Bytes compared equal.
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Results {
    seed: u64,
    minutes: f64,
    streams: BTreeMap<Kind, Tally>,
    faults: BTreeMap<&'static str, u64>,
    before: Resources,
    after: Resources,
    /// Seconds until no resource exceeded its initial value by more than its allowance.
    back_after: f64,
    wrong: Vec<String>,
}

/// Time-out after the soak for all resources to return to their initial values plus their allowances. Unfinished
/// datagrams expire after 15 s, streams of a killed peer after 5 s.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(40);

/// Outage of the cable after which a stream may fail: `user_timeout` of both appliances. Injected outages are shorter,
/// but a busy machine may prolong them.
const OUTAGE_LIMIT: Duration = Duration::from_secs(5);

/// State shared by all threads.
struct Shared {
    stop: AtomicBool,
    /// Number of kills and completed restarts of the peer. The number is odd while the peer is down. A stream's
    /// failure is excused if the number changed during the stream.
    peer_epoch: AtomicU64,
    tallies: Mutex<BTreeMap<Kind, Tally>>,
    violations: Mutex<Vec<String>>,
}

impl Shared {
    fn add_violation(&self, what: String) {
        if let Ok(mut wrong) = self.violations.lock()
            && wrong.len() < 50
        {
            wrong.push(what);
        }
    }
}

/// Runs a soak: streams under faults, then the comparison of resources.
///
/// # Errors
/// The test bed does not start, a stream without faults fails, or a fault cannot be injected.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let [near, far] = &arguments.between[..] else { anyhow::bail!("--between takes two devices") };
    let directory = tempfile::tempdir()?;
    let place = arguments.location.environment(directory.path());
    let lossy = LossyCable::start([near, far], arguments.seed)?;
    let target = appliances::start_target(&place)?;
    target.wait_for_links()?;
    let peer = appliances::start_peer(&place)?;
    let shared = Shared {
        stop: AtomicBool::new(false),
        peer_epoch: AtomicU64::new(0),
        tallies: Mutex::default(),
        violations: Mutex::default(),
    };
    let sockets = (peer.socket.clone(), target.socket.clone());
    let programs = [&peer, &target].map(testbed::programs_socket);
    let worker = |thread: usize| -> Result<Worker> {
        Ok(Worker {
            thread,
            peer: Client::new(&sockets.0)?,
            target: Client::new(&sockets.1)?,
            programs: programs.clone(),
            ddpctl: arguments.location.ddpctl.clone(),
            file: directory.path().join(format!("file{thread}.bin")),
            random: fastrand::Rng::with_seed(arguments.seed.wrapping_add(thread as u64)),
            last_id: None,
            last_at_target: false,
            addresses: Vec::new(),
        })
    };
    let mut workers = (0..THREADS).map(worker).collect::<Result<Vec<_>>>()?;
    // Each worker runs one stream of each kind before the first sample, so that the sample includes one-time
    // allocations. No fault is injected yet, so a stream that fails here fails the soak.
    for worker in &mut workers {
        for kind in Kind::ALL {
            worker.run_once(kind)?;
        }
    }
    let before = settled_resources(&target, None)?.0;
    let mut faults = FaultInjector::new(place, &lossy, peer, arguments.seed);
    let time = Duration::from_secs_f64(60.0 * arguments.minutes);
    std::thread::scope(|scope| -> Result<()> {
        for worker in workers {
            scope.spawn(|| run_worker(worker, &shared, &lossy));
        }
        let until = Instant::now() + time;
        let mut made = Ok(());
        while Instant::now() < until && made.is_ok() {
            made = faults.inject_next(&target, &shared.peer_epoch);
        }
        // Faults end first, so that open streams can complete.
        faults.clear_all(&target);
        shared.stop.store(true, Ordering::Relaxed);
        made
    })?;
    let (after, back_after) = settled_resources(&target, Some(&before))?;
    let mut wrong = shared.violations.into_inner().unwrap_or_default();
    wrong.extend(after.excess_over(&before));
    let streams = shared.tallies.into_inner().unwrap_or_default();
    for kind in Kind::ALL {
        if streams.get(&kind).is_none_or(|tally| tally.done == 0) {
            wrong.push(format!("no stream of the kind {kind:?} has completed"));
        }
    }
    let (seed, minutes) = (arguments.seed, arguments.minutes);
    let faults = faults.counts();
    let results = Results { seed, minutes, streams, faults, before, after, back_after, wrong };
    let good = results.wrong.is_empty();
    let text = if arguments.json {
        serde_json::to_string_pretty(&results)?
    } else {
        format_report(&results)
    };
    Ok(Report { text, good })
}

/// Runs random operations until the soak ends. Counts each outcome, and reports each failure that is not excused.
fn run_worker(mut worker: Worker, shared: &Shared, lossy: &LossyCable) {
    while !shared.stop.load(Ordering::Relaxed) {
        let kind = Kind::ALL[worker.random.usize(..Kind::ALL.len())];
        let life = shared.peer_epoch.load(Ordering::Relaxed);
        if life % 2 == 1 {
            // The peer is being restarted.
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let began = Instant::now();
        let result = worker.run_once(kind);
        let cut_off = shared.peer_epoch.load(Ordering::Relaxed) != life;
        if let Ok(mut tallies) = shared.tallies.lock() {
            let tally = tallies.entry(kind).or_default();
            match &result {
                Ok(bytes) => {
                    tally.done += 1;
                    tally.bytes += bytes;
                }
                Err(_) if cut_off => tally.cut_off += 1,
                Err(_) => {}
            }
        }
        if let Err(error) = result {
            let text = format!("{error:#}");
            // Wrong bytes at the target are never excused, because the target is not killed.
            if !cut_off || text.contains("DIFFERS") {
                let (story, cut) = explain::explain(&worker, lossy, began);
                if cut < OUTAGE_LIMIT || text.contains("DIFFERS") {
                    shared.add_violation(format!("{text}\n{story}"));
                } else if let Ok(mut tallies) = shared.tallies.lock() {
                    tallies.entry(kind).or_default().cut_off += 1;
                }
            }
        }
    }
}

/// Returns the target's settled resources and the seconds until they settled.
///
/// - With `before`: settled if no resource exceeds its value in `before` by more than its allowance. After
///   [`SETTLE_TIMEOUT`] the current resources are returned.
/// - Without `before`: settled if there are no streams and two samples a second apart have equal gauges and
///   descriptors. After [`SETTLE_TIMEOUT`] an error is returned.
fn settled_resources(
    target: &load::testbed::Appliance,
    before: Option<&Resources>,
) -> Result<(Resources, f64)> {
    let began = Instant::now();
    let mut last = Resources::collect(target)?;
    loop {
        let rested = match before {
            Some(before) => last.excess_over(before).is_empty(),
            None => {
                std::thread::sleep(Duration::from_secs(1));
                let now = Resources::collect(target)?;
                let same = now.gauges == last.gauges && now.descriptors == last.descriptors;
                last = now;
                let streams = ["worker streams", "worker associations", "streams"];
                same && streams.iter().all(|name| last.gauges.get(*name) == Some(&0))
            }
        };
        if rested {
            return Ok((last, began.elapsed().as_secs_f64()));
        }
        if began.elapsed() > SETTLE_TIMEOUT {
            ensure!(before.is_some(), "the target does not settle: {:?}", last.gauges);
            return Ok((last, began.elapsed().as_secs_f64()));
        }
        std::thread::sleep(Duration::from_millis(200));
        last = Resources::collect(target)?;
    }
}

fn format_report(results: &Results) -> String {
    let mut lines =
        vec![format!("{:14} {:>8} {:>8} {:>12}", "streams", "done", "cut off", "MiB compared")];
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let mut sum = Tally::default();
    for (kind, tally) in &results.streams {
        let name = format!("{kind:?}");
        lines.push(format!(
            "{name:14} {:>8} {:>8} {:>12.1}",
            tally.done,
            tally.cut_off,
            mib(tally.bytes)
        ));
        sum.done += tally.done;
        sum.cut_off += tally.cut_off;
        sum.bytes += tally.bytes;
    }
    lines.push(format!("{:14} {:>8} {:>8} {:>12.1}", "all", sum.done, sum.cut_off, mib(sum.bytes)));
    lines.push(String::new());
    lines.extend(results.faults.iter().map(|(name, n)| format!("{name:28} {n:>8}")));
    lines.push(String::new());
    let (before, after) = (&results.before, &results.after);
    let rows = [
        ("memory, KiB", before.memory >> 10, after.memory >> 10),
        ("packet buffers free", before.buffers_free, after.buffers_free),
        ("descriptors", before.descriptors, after.descriptors),
        ("threads", before.threads, after.threads),
        ("regions", before.regions.len() as u64, after.regions.len() as u64),
        ("listeners", before.listeners.len() as u64, after.listeners.len() as u64),
    ];
    lines.push(format!("{:28} {:>10} {:>10}", "", "before", "after"));
    lines.extend(rows.iter().map(|(name, then, now)| format!("{name:28} {then:>10} {now:>10}")));
    for (name, now) in &after.gauges {
        let then = before.gauges.get(name).copied().unwrap_or(0);
        if (then, *now) != (0, 0) {
            lines.push(format!("{name:28} {then:>10} {now:>10}"));
        }
    }
    let verdict = if results.wrong.is_empty() { "all is well" } else { "FAILED" };
    lines.push(format!(
        "\nseed {}: {verdict}, back after {:.1} s",
        results.seed, results.back_after
    ));
    lines.extend(results.wrong.iter().map(|wrong| format!("  {wrong}")));
    lines.join("\n")
}

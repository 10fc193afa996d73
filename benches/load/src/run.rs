//! A run of the profiles. Each profile has a phase without load, then a phase under load. The results account for all
//! frames, events and gauges.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{Client, ConnectSpec, StreamInfo};
use serde::{Deserialize, Serialize};

use crate::account::{Account, Snapshot};
use crate::capture;
use crate::frames;
use crate::generator::{Generator, Job, Kind};
use crate::peer_work::{PeerWork, TestFiles, run_peer};
use crate::profile::{Case, CaseName, VictimOutcome};
use crate::stream_watch::{Flow, StreamPosition};
use crate::testbed::{
    FILES_PORT, FLOODED_NET_OCTET, OTHER_NET_OCTET, ROUTER_MAC, SCTP_PORT, TARGET_MAC, Testbed,
    target_address, target_v6,
};

/// Results of a phase with or without load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Phase {
    /// Duration, seconds.
    pub seconds: f64,
    /// Work of the good peer on the flooded port.
    pub flooded: PeerWork,
    /// Work of the good peer on the other port.
    pub other: PeerWork,
    /// Median and maximum response time of the management API, milliseconds.
    pub api_ms: (f64, f64),
}

/// Results of one profile, without and with load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Profile and sources.
    pub case: CaseName,
    /// Description of the profile, for display.
    pub what: String,
    /// Phase without load, directly before the load.
    pub unloaded: Phase,
    /// Phase under load.
    pub loaded: Phase,
    /// Approximate seconds from the generator's first frame to its last.
    pub seconds: f64,
    /// Account of all frames during the load.
    pub account: Account,
    /// Violations; empty if the run passes.
    pub failures: Vec<String>,
    /// Growth of the target's memory, bytes, from before the load to a second after it.
    pub memory: i64,
    /// Number of events that the target reported.
    pub events: u64,
    /// Growth of the target's log, bytes.
    pub log_bytes: u64,
    /// Gauges that were higher one second after the load than before it: name, value before, value after.
    pub gauges: Vec<(String, u64, u64)>,
}

/// Results of all profiles of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Generator program.
    pub generator: Kind,
    /// Seconds of each phase.
    pub seconds: f64,
    /// True if the run had all profiles, each for at least 5 s.
    pub whole: bool,
    /// Description of the machine: names and values.
    pub machine: BTreeMap<String, String>,
    /// Results of each profile.
    pub outcomes: Vec<Outcome>,
}

/// Parameters that all profiles of a run share.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Duration of each phase.
    pub time: Duration,
    /// Directory for files, sockets and logs.
    pub directory: PathBuf,
    /// Directory of the profiles' command files.
    pub profiles: PathBuf,
    /// Number of frames in each capture file.
    pub frames: usize,
}

/// Minimum share of a profile's frames that its expected counters must account for.
const EXPECTED_SHARE: f64 = 0.95;

/// Runs one profile: a phase without load, then a phase under load.
pub fn run(
    bed: &Testbed,
    generator: &Generator,
    case: Case,
    plan: &Plan,
    files: &TestFiles,
) -> anyhow::Result<Outcome> {
    let (unloaded, failures) = run_phase(bed, files, plan.time)?;
    let mut failures: Vec<String> =
        failures.into_iter().map(|failure| format!("without load: {failure}")).collect();
    let victim =
        (case.profile.victim != VictimOutcome::None).then(|| open_victim(bed)).transpose()?;
    let capture = write_capture(generator, case, plan, victim.as_ref())?;
    let (before, first_event) = (bed.target.stats()?, bed.target.last_event()?);
    let (memory, log) = (bed.target.memory()?, bed.target.log_bytes()?);
    let from = Snapshot { mixer: bed.mixer.counts(), stats: before.clone() };
    let job = Job {
        socket: &bed.generator_socket,
        directory: &plan.directory,
        capture: capture.as_deref(),
        commands: pktgen_commands(generator, case, plan)?,
        // The generator must outlast the peers' work.
        time: plan.time + Duration::from_secs(2),
    };
    let mut running = generator.start(&job)?;
    let sent = from.mixer.generator;
    running.wait_until_sending(|| bed.mixer.counts().generator > sent)?;
    let first = Instant::now();
    let (loaded, more) = run_phase(bed, files, plan.time)?;
    failures.extend(more);
    running.stop()?;
    let mixer = bed.mixer.settled_counts(Duration::from_secs(60))?;
    let seconds = first.elapsed().as_secs_f64();
    let account = await_account(bed, &from)?;
    if account.mixer.generator != mixer.growth_since(&from.mixer).generator {
        failures.push("the generator kept sending after its stop".into());
    }
    std::thread::sleep(Duration::from_secs(1));
    let after = bed.target.stats()?;
    let given = collect_events(bed, first_event, case, victim.as_ref())?;
    check_outcome(case, &account, &given, victim.as_ref(), &mut failures);
    if let Some(victim) = victim {
        victim.close(bed);
    }
    Ok(Outcome {
        case: case.name(),
        what: case.profile.description.into(),
        unloaded,
        loaded,
        seconds,
        failures,
        memory: bed.target.memory()? as i64 - memory as i64,
        events: bed.target.last_event()? - first_event,
        log_bytes: bed.target.log_bytes()? - log,
        gauges: risen_gauges(&before, &after),
        account,
    })
}

/// Returns the account once it adds up, or the last account after 10 s.
fn await_account(bed: &Testbed, from: &Snapshot) -> anyhow::Result<Account> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let to = Snapshot { mixer: bed.mixer.counts(), stats: bed.target.stats()? };
        let account = Account::between(from, &to);
        if account.adds_up() || Instant::now() > until {
            return Ok(account);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn check_outcome(
    case: Case,
    account: &Account,
    events: &[serde_json::Value],
    victim: Option<&VictimStream>,
    failures: &mut Vec<String>,
) {
    if account.unaccounted != 0 {
        failures.push(format!("{} frames of workers have no counted outcome", account.unaccounted));
    }
    if account.lost_before_port != 0 {
        failures
            .push(format!("{} frames were lost between mixer and port", account.lost_before_port));
    }
    let share = account.share(case.profile.expected_counters);
    if !case.profile.expected_counters.is_empty() && share < EXPECTED_SHARE {
        failures.push(format!(
            "only {:.1} % of the frames ended as expected: {:?}",
            share * 100.0,
            account.became
        ));
    }
    let Some(victim) = victim else { return };
    let ended = events.iter().find(|event| victim.is_close_event(event));
    match (case.profile.victim, ended) {
        (VictimOutcome::Closes(why), Some(event)) => {
            let reason = event["reason"].as_str().unwrap_or_default();
            if !reason.to_lowercase().contains(why) {
                failures.push(format!("the stream ended for another reason: {reason}"));
            }
        }
        (VictimOutcome::Closes(_), None) => failures.push("the stream did not end".into()),
        (VictimOutcome::Survives | VictimOutcome::None, Some(event)) => {
            failures.push(format!("the stream ended: {event}"));
        }
        (VictimOutcome::Survives | VictimOutcome::None, None) => {}
    }
}

/// Returns the events after number `after`. If the profile ends the victim's stream, waits up to 60 s for the event of
/// its end.
fn collect_events(
    bed: &Testbed,
    after: u64,
    case: Case,
    victim: Option<&VictimStream>,
) -> anyhow::Result<Vec<serde_json::Value>> {
    // The target's segments acknowledge the forged bytes, which the peer never sent. The peer therefore drops the
    // segments, and the stream ends by the target's time-out.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let given = bed.target.events_after(after)?;
        let ends = matches!(case.profile.victim, VictimOutcome::Closes(_));
        let ended =
            victim.is_none_or(|victim| given.iter().any(|event| victim.is_close_event(event)));
        if !ends || ended || Instant::now() > until {
            return Ok(given);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A live stream of the good peer, into which frames are forged.
struct VictimStream {
    info: StreamInfo,
    /// Identifier of the stream at the target.
    target_id: String,
    flow: Flow,
    position: StreamPosition,
}

impl VictimStream {
    /// Returns true if `event` of the target reports the stream's end.
    fn is_close_event(&self, event: &serde_json::Value) -> bool {
        event["event"] == "stream_closed" && event["stream"] == self.target_id.as_str()
    }

    /// Closes the stream if it is still open.
    fn close(&self, bed: &Testbed) {
        let id = &self.info.id;
        let _: Result<serde_json::Value, _> =
            bed.flooded_peer.client.delete(&format!("/v1/streams/{id}"));
    }
}

fn open_victim(bed: &Testbed) -> anyhow::Result<VictimStream> {
    let to = SocketAddr::new(target_address(FLOODED_NET_OCTET), FILES_PORT);
    let info: StreamInfo = bed
        .flooded_peer
        .client
        .post("/v1/connect", &ConnectSpec::to_remote(to))
        .context("connect")?;
    let flow = Flow { source: info.local.parse()?, destination: info.remote.parse()? };
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let streams: Vec<StreamInfo> = bed.target.client.list("/v1/streams")?;
        let found = streams.iter().find(|stream| stream.remote == info.local);
        if let (Some(position), Some(stream)) = (bed.mixer.stream_position(&flow), found) {
            let at_target = stream.id.to_string();
            return Ok(VictimStream { info, target_id: at_target, flow, position });
        }
        anyhow::ensure!(
            Instant::now() < until,
            "the stream is not seen by the mixer and the target"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs both peers for `time` and polls the API meanwhile. Returns the results, and the peers' failures as violations.
fn run_phase(
    bed: &Testbed,
    files: &TestFiles,
    time: Duration,
) -> anyhow::Result<(Phase, Vec<String>)> {
    let over = AtomicBool::new(false);
    let client = Client::new(&bed.target.socket)?;
    let began = Instant::now();
    let (flooded, other, api) = std::thread::scope(|scope| {
        let flooded = scope.spawn(|| {
            run_peer(&bed.flooded_peer, &bed.target, "flooded", FLOODED_NET_OCTET, files, time)
        });
        let other = scope.spawn(|| {
            run_peer(&bed.other_peer, &bed.target, "other", OTHER_NET_OCTET, files, time)
        });
        let api = scope.spawn(|| poll_api(&client, &over));
        let ended = (flooded.join(), other.join());
        over.store(true, Ordering::Relaxed);
        (ended.0, ended.1, api.join())
    });
    let mut failures = Vec::new();
    let mut take = |name: &str, result: std::thread::Result<anyhow::Result<PeerWork>>| match result
    {
        Ok(Ok(work)) => work,
        Ok(Err(error)) => {
            failures.push(format!("{name}: {error:#}"));
            PeerWork::default()
        }
        Err(_) => {
            failures.push(format!("{name}: panicked"));
            PeerWork::default()
        }
    };
    let (flooded, other) = (take("peer-flooded", flooded), take("peer-other", other));
    let api_ms = match api {
        Ok(Ok(times)) => times,
        Ok(Err(error)) => {
            failures.push(format!("the API: {error:#}"));
            Default::default()
        }
        Err(_) => anyhow::bail!("the thread that polls the API panicked"),
    };
    Ok((Phase { seconds: began.elapsed().as_secs_f64(), flooded, other, api_ms }, failures))
}

/// Polls the API until `over` is set. Returns median and maximum response time, milliseconds.
fn poll_api(client: &Client, over: &AtomicBool) -> anyhow::Result<(f64, f64)> {
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) || times.is_empty() {
        let request_start = Instant::now();
        let _: api::Status = client.get("/v1/status")?;
        times.push(request_start.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(50));
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[times.len() - 1]))
}

/// Returns the gauges of the target's workers that have risen: name, value before, value after. Maxima are omitted.
fn risen_gauges(before: &api::Stats, after: &api::Stats) -> Vec<(String, u64, u64)> {
    let mut changed = Vec::new();
    for (one, two) in before.workers.iter().zip(&after.workers) {
        for (name, &now) in &two.gauges {
            let then = one.gauges.get(name).copied().unwrap_or(0);
            if now > then && !name.ends_with("_max") {
                changed.push((name.to_string(), then, now));
            }
        }
    }
    changed
}

/// Writes the capture file of a profile; `None` if Pktgen generates the frames itself.
fn write_capture(
    generator: &Generator,
    case: Case,
    plan: &Plan,
    victim: Option<&VictimStream>,
) -> anyhow::Result<Option<PathBuf>> {
    use frames::Profile::{ArpFlood, InitFlood, Line64, Line1518, LineImix, NdFlood};
    let profile = case.profile.frames;
    if generator.kind == Kind::Pktgen && matches!(profile, Line64 | LineImix | Line1518) {
        return Ok(None);
    }
    let port = if profile == InitFlood { SCTP_PORT } else { FILES_PORT };
    let v6 = profile == NdFlood;
    let sources = match (v6, matches!(profile, ArpFlood | NdFlood)) {
        // IPv6, ARP and neighbour discovery: the sources are in the flooded network.
        (true, _) => format!("fd{FLOODED_NET_OCTET}::5/64"),
        (false, true) => format!("10.{FLOODED_NET_OCTET}.0.5/24"),
        (false, false) => "198.18.0.1/15".to_owned(),
    };
    let frames = frames::frames(
        profile,
        &frames::Plan {
            source_mac: ROUTER_MAC,
            destination_mac: TARGET_MAC,
            sources: sources.parse()?,
            one_source: case.one_source,
            destination: SocketAddr::new(
                if v6 { target_v6() } else { target_address(FLOODED_NET_OCTET) },
                port,
            ),
            stream: victim.map(|victim| frames::Stream {
                local: victim.flow.destination,
                remote: victim.flow.source,
                next_seq: victim.position.snd_nxt,
                ack: victim.position.rcv_nxt,
                timestamps: victim.position.timestamps,
                // No FPDU was sent on the stream yet, so the next FPDU begins with a marker.
                marker: Some(0),
            }),
            capture: capture::parse(SIW_CAPTURE)?,
        },
        plan.frames,
        1,
    )?;
    let path = plan.directory.join("generator.pcap");
    capture::write(&path, &frames)?;
    Ok(Some(path))
}

/// Returns the profile's Pktgen commands that precede `start`. The target's address replaces the placeholder
/// 198.18.0.1.
fn pktgen_commands(generator: &Generator, case: Case, plan: &Plan) -> anyhow::Result<String> {
    if generator.kind != Kind::Pktgen {
        return Ok(String::new());
    }
    let path = plan.profiles.join(format!("{}.pkt", case.profile.frames.name()));
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("the profile {}", path.display()))?;
    let lines: Vec<&str> = text.lines().take_while(|line| !line.starts_with("start")).collect();
    let target = format!(" dst {} ", target_address(FLOODED_NET_OCTET));
    Ok(lines.join("\n").replace(" dst 198.18.0.1 ", &target))
}

/// Captured frames of a client on soft iWARP (siw).
const SIW_CAPTURE: &[u8] = include_bytes!("../captures/siw-write.pcap");

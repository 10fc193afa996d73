//! One end-to-end measurement, in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dataplane::port::Ports;
use dataplane::{Command, Event, Load, LoadKind, Service, StreamStats, Window};
use ddp::TaggedOffset;
use dpdk::{Eal, EalConfig, Hugepages};
use serde::{Deserialize, Serialize};

use crate::rig::{End, LOCAL, Link, QUEUE, REMOTE, Rig, RigConfig, Side};
use crate::row::{Quantiles, Row};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Octets of writes acknowledged per second.
    Goodput,
    /// The same of RDMAP's Reads.
    Read,
    /// Round trips of an RDMAP Read.
    ReadTrip,
    /// The same of untagged messages or Sends.
    Send,
    /// Round trips of an untagged message.
    Echo,
    /// Round trips of a write with a notice behind it.
    Notify,
    /// Streams opened and closed per second.
    SetUp,
    /// Octets of heap per stream, for both ends.
    Memory,
}

/// A measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// What the row is called.
    pub name: String,
    /// Its group.
    pub group: String,
    /// What is measured.
    pub what: What,
    /// Between whom.
    pub rig: RigConfig,
    /// Octets of a message.
    pub len: u32,
    /// Messages under way per stream.
    pub depth: u32,
    /// How long, after a warm-up of a quarter of it.
    pub seconds: f64,
}

impl Cell {
    /// The row that it makes, still without number.
    pub fn row(&self) -> Row {
        let rig = &self.rig;
        let on = |on| if on { "on" } else { "off" };
        let row = Row::new(&self.group, &self.name, self.unit())
            .with("link", rig.link.name())
            .with("mtu", rig.mtu)
            .with("len", self.len)
            .with("streams", rig.streams)
            .with("depth", self.depth)
            .with("markers", on(rig.markers))
            .with("crc", on(rig.crc))
            .with("checksum", if rig.trusted { "trusted" } else { "software" })
            .with("llp", if rig.sctp { "sctp" } else { "mpa/tcp" })
            .with("ulp", if rig.rdmap { "rdmap" } else { "ddp" })
            .with("slots", rig.slots)
            .with("region", rig.region);
        match (rig.loss_ppm, rig.delay_us) {
            (0, 0) => row,
            (loss, delay) => row
                .with("loss", format!("{} %", f64::from(loss) * 1e-4))
                .with("rtt", format!("{} us", 2 * delay)),
        }
    }

    fn unit(&self) -> &'static str {
        match self.what {
            What::Goodput | What::Read | What::Send => "Gbit/s",
            What::Echo | What::Notify | What::ReadTrip => "us",
            What::SetUp => "streams/s",
            What::Memory => "octets",
        }
    }

    fn service(&self) -> Service {
        match self.what {
            What::Echo | What::Notify => Service::Echo,
            _ => Service::Sink,
        }
    }

    fn load(&self) -> Load {
        let window =
            Window { local: LOCAL, remote: REMOTE, base: TaggedOffset(0), octets: self.rig.region };
        let kind = match self.what {
            What::Read | What::ReadTrip => LoadKind::Read(window),
            What::Send => LoadKind::Send { qn: QUEUE },
            What::Echo => LoadKind::Echo { qn: QUEUE },
            What::Notify => LoadKind::Notify { window, qn: QUEUE },
            What::Goodput | What::SetUp | What::Memory => LoadKind::Write(window),
        };
        Load { kind, len: self.len, count: u64::MAX, depth: self.depth }
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Starts DPDK's environment for a measurement.
pub fn environment(memory_mib: u32) -> anyhow::Result<Ports> {
    let config = EalConfig { hugepages: Hugepages::Auto, memory_mib, ..EalConfig::default() };
    Ok(Ports::new(Eal::start(&config)?))
}

fn memory_mib(rig: &RigConfig) -> u32 {
    // Full rings on both sides and as much again, twice over.
    let frames = u64::from(rig.slots).max(1024) * 16;
    ((frames * (u64::from(rig.mtu) + 512)) >> 20) as u32 + 256
}

/// The other process of a memif: serves until its standard input ends.
pub fn serve(cell: &Cell) -> anyhow::Result<()> {
    let ports = environment(memory_mib(&cell.rig))?;
    let mut end = End::new(&cell.rig, &ports, Side::Asked)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    let ended = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while !ended.is_finished() {
        if !end.serve(cell.service())? {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    Ok(())
}

/// The other process; ends with this value.
struct Other(Child);

impl Other {
    fn start(cell: &Cell) -> anyhow::Result<Other> {
        let mut child = Process::new(std::env::current_exe()?)
            .args(["serve", &serde_json::to_string(cell)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().context("no pipe")?;
        BufReader::new(out).read_line(&mut line)?;
        anyhow::ensure!(line.trim() == "ready", "the other process did not start");
        Ok(Other(child))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends at the end of its input; whatever it says then is of no use any more.
        let _ = self.0.wait();
    }
}

/// Octets of heap in use, where the program counts them.
pub type Heap<'a> = &'a dyn Fn() -> u64;

/// Measures. `heap` is needed for [`What::Memory`] alone.
pub fn measure(cell: &Cell, heap: Option<Heap<'_>>) -> anyhow::Result<Row> {
    let ports = environment(memory_mib(&cell.rig))?;
    let mut row = cell.row();
    row.extra.insert("hugepages".into(), f64::from(u8::from(ports.eal().has_hugepages())));
    let _other = match cell.rig.link {
        Link::Memif => Some(Other::start(cell)?),
        _ => None,
    };
    let mut rig = Rig::new(&cell.rig, &ports, cell.service())?;
    wait_for_link(&mut rig)?;
    match cell.what {
        What::Goodput | What::Read | What::Send => goodput(cell, &mut rig, &mut row)?,
        What::Echo | What::Notify | What::ReadTrip => latency(cell, &mut rig, &mut row)?,
        What::SetUp => set_up(cell, &mut rig, &mut row)?,
        What::Memory => {
            let heap = heap.context("this program does not count its heap")?;
            memory(cell, &mut rig, &mut row, heap)?;
        }
    }
    for (side, end) in [("asking", Some(&rig.asking)), ("asked", rig.asked.as_ref())] {
        let Some(end) = end else { continue };
        row.extra.insert(format!("{side}_drops"), end.drops() as f64);
        row.extra.insert(format!("{side}_tx_stalls"), end.count("tx_stalls") as f64);
    }
    Ok(row)
}

fn wait_for_link(rig: &mut Rig) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !rig.asking.port.link().up {
        anyhow::ensure!(begin.elapsed() < Duration::from_secs(10), "the link stays down");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// What is read at the begin and at the end of the time.
struct Sample {
    at: Instant,
    messages: u64,
    octets: u64,
    /// Frames sent by the asking and the asked worker; zero for one in another process, as below.
    frames: [u64; 2],
    cpu: [f64; 2],
    /// Seconds that the two had something to do.
    busy: [f64; 2],
}

impl Sample {
    fn take(rig: &Rig) -> Sample {
        let counters = |name| rig.asking.count(name);
        let both = |name| {
            [Some(&rig.asking), rig.asked.as_ref()].map(|end| end.map_or(0, |end| end.count(name)))
        };
        Sample {
            messages: counters("load_messages"),
            octets: counters("load_octets"),
            frames: both("tx_frames"),
            cpu: worker_seconds(),
            busy: both("busy_nanoseconds").map(|nanoseconds| nanoseconds as f64 * 1e-9),
            at: Instant::now(),
        }
    }
}

fn goodput(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open(cell.rig.streams)?;
    rig.start(cell.load())?;
    pause(rig, cell.time() / 4)?;
    let before = Sample::take(rig);
    pause(rig, cell.time())?;
    let after = Sample::take(rig);
    let held = rig.asked.as_ref().map_or(0.0, |asked| asked.count("held_octets_max") as f64);
    row.extra.insert("held_octets_max".into(), held);
    if let Some(StreamStats::Tcp(stats)) = rig.asked_stats()? {
        let unlocatable = stats.mpa_rx.unlocatable_max as f64;
        row.extra.insert("unlocatable_octets_max".into(), unlocatable);
        row.extra.insert("located_held_octets_max".into(), (held - unlocatable).max(0.0));
    }
    if let Some(stats) = rig.asking_stats()? {
        let (retransmitted, timeouts, recoveries, kept) = match stats {
            StreamStats::Tcp(stats) => {
                let (tcp, kept) = (stats.tcp, stats.mpa_tx.kept_max);
                (tcp.segments_retransmitted, tcp.timeouts, tcp.fast_recoveries, kept)
            }
            StreamStats::Sctp(session, association) => {
                let (send, kept) = (association.send, session.session.tx.kept_max);
                (send.retransmitted, send.timeouts, send.fast_recoveries, kept)
            }
        };
        row.extra.insert("segments_retransmitted".into(), retransmitted as f64);
        row.extra.insert("timeouts".into(), timeouts as f64);
        row.extra.insert("fast_recoveries".into(), recoveries as f64);
        row.extra.insert("kept_octets_max".into(), kept as f64);
    }
    let report = rig.stop()?;
    let seconds = (after.at - before.at).as_secs_f64();
    let octets = (after.octets - before.octets) as f64;
    anyhow::ensure!(octets > 0.0, "not one message was complete in the time");
    row.sample(octets * 8e-9 / seconds);
    let messages = (after.messages - before.messages) as f64 / seconds;
    row.extra.insert("messages_per_s".into(), messages);
    let frames = |side: usize| (after.frames[side] - before.frames[side]) as f64 / seconds;
    row.extra.insert("frames_per_s".into(), frames(0));
    if rig.asked.is_some() {
        row.extra.insert("asked_frames_per_s".into(), frames(1));
    }
    for (side, name) in ["asking_cpu_ns_per_octet", "asked_cpu_ns_per_octet"].iter().enumerate() {
        let used = after.cpu[side] - before.cpu[side];
        row.extra.insert((*name).into(), used * 1e9 / octets);
        let used = after.busy[side] - before.busy[side];
        row.extra.insert(name.replace("cpu", "busy"), used * 1e9 / octets);
    }
    if let Some(latency) = &report.latency {
        row.latency = quantiles(latency);
    }
    Ok(())
}

fn latency(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open(cell.rig.streams)?;
    rig.start(cell.load())?;
    pause(rig, cell.time() / 4)?;
    rig.stop()?;
    rig.start(cell.load())?;
    pause(rig, cell.time())?;
    let report = rig.stop()?;
    let latency = report.latency.context("a load without round trips")?;
    anyhow::ensure!(!latency.is_empty(), "not one answer came in the time");
    row.sample(latency.value_at_quantile(0.5) as f64 * 1e-3);
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999)] {
        row.extra.insert(format!("{name}_us"), latency.value_at_quantile(quantile) as f64 * 1e-3);
    }
    row.extra.insert("max_us".into(), latency.max() as f64 * 1e-3);
    row.extra.insert("round_trips".into(), latency.len() as f64);
    row.latency = quantiles(&latency);
    Ok(())
}

fn quantiles(histogram: &hdrhistogram::Histogram<u64>) -> Quantiles {
    histogram
        .iter_quantiles(4)
        .map(|point| (point.quantile(), point.value_iterated_to()))
        .filter(|&(quantile, _)| quantile < 1.0)
        .collect()
}

/// Streams are opened, closed, and opened again from one address after the other, so that those in
/// TIME-WAIT pile up as they would.
fn set_up(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    let (warm, time) = (cell.time() / 4, cell.time());
    let begin = Instant::now();
    let (mut asked, mut ended, mut at_warm) = (0, 0u64, None);
    for _ in 0..cell.depth {
        rig.asking.connect(asked)?;
        asked += 1;
    }
    let ended = rig.until("streams", time * 2 + Duration::from_secs(10), |asking, event| {
        match event {
            Event::Established { stream, .. } => {
                asking.tell(Command::Close { stream, abort: false })?;
            }
            Event::Closed { .. } => {
                ended += 1;
                asking.connect(asked)?;
                asked += 1;
            }
            Event::ConnectFailed { reason, .. } => anyhow::bail!("no stream: {reason}"),
            _ => {}
        }
        let now = begin.elapsed();
        let (from, before) = *at_warm.get_or_insert((now, ended));
        if from < warm && now >= warm {
            at_warm = Some((now, ended));
        }
        let rate = (ended - before) as f64 / (now - from).as_secs_f64();
        Ok((now >= warm + time).then_some(rate))
    })?;
    row.sample(ended);
    row.extra.insert("time_wait_recycled".into(), rig.asking.count("time_wait_recycled") as f64);
    row.extra.insert("streams_in_all_states".into(), rig.asking.count("streams") as f64);
    Ok(())
}

/// Silence after which a stream has given back what it needed to begin.
const IDLE: Duration = Duration::from_millis(2500);

fn memory(cell: &Cell, rig: &mut Rig, row: &mut Row, heap: Heap<'_>) -> anyhow::Result<()> {
    let n = cell.rig.streams;
    // The first stream brings what is made once: tables, caches, the ends' own vectors.
    rig.open(1)?;
    let before = heap();
    rig.open(n)?;
    settle(rig, IDLE)?;
    let idle = heap();
    row.sample((idle.saturating_sub(before)) as f64 / f64::from(2 * n));
    row.extra.insert("idle_both_ends_octets".into(), idle.saturating_sub(before) as f64);
    rig.start(cell.load())?;
    settle(rig, cell.time())?;
    let busy = heap();
    rig.stop()?;
    row.extra.insert(
        "busy_octets_per_stream".into(),
        busy.saturating_sub(before) as f64 / f64::from(2 * n),
    );
    row.extra.insert("resident_octets".into(), resident() as f64);
    Ok(())
}

/// Lets time pass while the control side does what it must.
fn pause(rig: &mut Rig, time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        rig.serve()?;
        // Rarely: the cores are the workers'.
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
    Ok(())
}

fn settle(rig: &mut Rig, time: Duration) -> anyhow::Result<()> {
    pause(rig, time)
}

/// Processor time of the asking and the asked worker, in seconds; they are threads of the same name, the
/// asked one made first. Zero where it is in another process.
fn worker_seconds() -> [f64; 2] {
    let mut times: Vec<(u32, f64)> = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            let stat = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
            let thread = entry.file_name().to_str()?.parse().ok()?;
            let nanoseconds: f64 = stat.split_whitespace().next()?.parse().ok()?;
            name.trim().starts_with("worker-").then_some((thread, nanoseconds * 1e-9))
        })
        .collect();
    times.sort_by_key(|&(thread, _)| thread);
    match times[..] {
        [asking] => [asking.1, 0.0],
        [asked, asking, ..] => [asking.1, asked.1],
        [] => [0.0; 2],
    }
}

/// Resident octets of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

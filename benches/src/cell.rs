//! A cell: one end-to-end measurement, in its own process.

mod measures;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use control::appliance::start;
use dataplane::port::PortFactory;
use dataplane::{Load, LoadKind, Order, Pace, Service, Window};
use ddp::TaggedOffset;
use dpdk::Eal;
use serde::{Deserialize, Serialize};

use crate::end_config::{self, EndConfig};
use crate::rig::{Rig, RigEnd};
use crate::rig_config::{Link, MESSAGE_QUEUE, RigConfig, SINK_STAG, Side, source_stag};
use crate::row::Row;

/// The measured quantity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Acknowledged bits of writes per second (goodput).
    Goodput,
    /// Bits of RDMAP Reads per second.
    Read,
    /// Bits per second of streams that write and streams that read, alternating by stream number.
    Mixed,
    /// Bits of untagged messages or Sends per second.
    Send,
    /// Writes per second, and the latencies from post to completion.
    WriteRate,
    /// Untagged messages or Sends per second, and the latencies from post to completion.
    SendRate,
    /// Round trips of an RDMAP Read.
    ReadTrip,
    /// Round trips of an untagged message.
    Echo,
    /// Round trips of a write followed by a notification.
    Notify,
    /// Round trips of untagged messages at a fixed rate, a percentage of the streams' maximum.
    Loaded,
    /// Streams opened and closed per second.
    SetUp,
    /// Heap bytes per stream and end.
    Memory,
}

/// The B side of an A/B cell: another stream between the same two workers, which runs in
/// alternating slices.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BSide {
    /// The measured quantity of the B slices.
    pub what: Measure,
    /// Messages in flight.
    pub depth: u32,
    /// The rig of the B slices. This rig differs from the cell's rig only in its endpoints or its source region.
    pub rig: RigConfig,
}

/// An end-to-end measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the result row, unique in a run.
    pub name: String,
    /// Group of the benchmark plan to which the row belongs.
    pub group: String,
    /// The measured quantity.
    pub what: Measure,
    /// Configuration of both ends and of the link.
    pub rig: RigConfig,
    /// Length of a message, bytes.
    pub len: u32,
    /// Messages in flight per stream.
    pub depth: u32,
    /// Rate of [`Measure::Loaded`], in percent of the maximum.
    #[serde(default)]
    pub load_percent: u32,
    /// True if messages go to random offsets of the region, through any of its STags; false for consecutive offsets.
    #[serde(default)]
    pub random: bool,
    /// The B side of an A/B cell. The row is the ratio A / B of the two rates.
    #[serde(default)]
    pub b_side: Option<Box<BSide>>,
    /// Seconds of the measurement, which follows a warm-up of a quarter of this time.
    pub seconds: f64,
}

impl Cell {
    /// Returns the cell's row, without a value.
    pub fn row(&self) -> Row {
        let rig = &self.rig;
        let on = |on| if on { "on" } else { "off" };
        let idle = |side: Side| if rig.adaptive[side as usize] { "adaptive" } else { "poll" };
        let mut row = Row::new(&self.group, &self.name, self.unit())
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
            .with("source", if rig.unstable { "unstable" } else { "stable" })
            .with("idle", format!("{}, {}", idle(Side::Initiator), idle(Side::Responder)))
            .with("ip", if rig.network.v6 { "6" } else { "4" })
            .with("region", rig.region)
            .with("deviations", self.deviations());
        if let Some(vlan) = rig.network.vlan {
            row = row.with("vlan", vlan);
        }
        if self.what == Measure::Loaded {
            row = row.with("load", format!("{} %", self.load_percent));
        }
        if let Some(b_side) = self.b_side() {
            let other = b_side.row().parameters;
            let differs =
                other.iter().filter(|(name, value)| row.parameters.get(*name) != Some(value));
            let what = format!("{:?}", b_side.what).to_lowercase();
            let what = (b_side.what != self.what).then_some(what);
            let differs = differs.map(|(name, value)| format!("{name}: {value}"));
            let all: Vec<String> = what.into_iter().chain(differs).collect();
            row = row.with("in turns with", all.join(", "));
        }
        if self.random {
            row = row.with("order", "random").with("stags", rig.stags);
        }
        if rig.both {
            row = row.with("directions", "both");
        }
        let link = &rig.impairment;
        if link.rate_mbit > 0 {
            row = row.with("rate", format!("{} Mbit/s", link.rate_mbit)).with("queue", link.queue);
        }
        match (link.loss_ppm, link.delay_us) {
            (0, 0) => row,
            (loss, delay) => row
                .with("loss", format!("{} %", f64::from(loss) * 1e-4))
                .with("rtt", format!("{} us", 2 * delay)),
        }
    }

    /// Returns the deviations of the responder's configuration from the defaults, in one line. The topology is omitted,
    /// and IPsec is one entry.
    fn deviations(&self) -> String {
        let mut all: Vec<String> = Vec::new();
        if self.rig.network.protected {
            all.push("ipsec: aes128gcm16, ESN, transport mode".to_owned());
        }
        let listed = end_config::deviations(&self.rig, Side::Responder).into_iter();
        for (section, lines) in listed.filter(|(section, _)| !section.starts_with("ipsec")) {
            all.extend(lines.lines().map(|line| format!("{section}.{}", line.replace(" = ", "="))));
        }
        all.join(", ")
    }

    fn unit(&self) -> &'static str {
        match self.what {
            _ if self.b_side.is_some() => "",
            Measure::Goodput | Measure::Read | Measure::Mixed | Measure::Send => "Gbit/s",
            Measure::WriteRate | Measure::SendRate => "messages/s",
            Measure::Echo | Measure::Notify | Measure::ReadTrip | Measure::Loaded => "us",
            Measure::SetUp => "streams/s",
            Measure::Memory => "bytes",
        }
    }

    fn service(&self) -> Service {
        match self.what {
            Measure::Echo | Measure::Notify | Measure::Loaded => Service::Echo,
            _ => Service::Sink,
        }
    }

    /// Returns the closed-loop load of a stream.
    fn closed_load(&self, stream: u32) -> Load {
        let order = match self.random {
            true => Order::Random { stags: self.rig.stags.max(1) },
            false => Order::Sequential,
        };
        let (base, bytes) = (TaggedOffset(0), self.rig.region);
        let source = source_stag(self.rig.unstable);
        let write =
            LoadKind::Write(Window { local: source, remote: SINK_STAG, base, bytes, order });
        let read = LoadKind::Read(Window { local: SINK_STAG, remote: source, base, bytes, order });
        let kind = match self.what {
            Measure::Mixed if stream % 2 == 1 => read,
            Measure::Read | Measure::ReadTrip => read,
            Measure::Send | Measure::SendRate => LoadKind::Send { qn: MESSAGE_QUEUE },
            Measure::Echo | Measure::Loaded => LoadKind::Echo { qn: MESSAGE_QUEUE },
            Measure::Notify => {
                let window = Window { local: source, remote: SINK_STAG, base, bytes, order };
                LoadKind::Notify { window, qn: MESSAGE_QUEUE }
            }
            _ => write,
        };
        let timed = matches!(self.what, Measure::WriteRate | Measure::SendRate);
        Load { timed, ..Load::closed(kind, self.len, self.depth) }
    }

    /// Returns the open-loop load of a stream. All streams together post `per_s` messages per second, evenly spaced.
    /// The first message is posted after `lead`.
    fn open_load(&self, stream: u32, per_s: f64, lead: Duration) -> Load {
        let streams = f64::from(self.rig.streams);
        let every = Duration::from_secs_f64(streams / per_s.max(1.0));
        let phase = lead + every.mul_f64(f64::from(stream) / streams);
        Load { pace: Pace::Open { interval: every, phase }, ..self.closed_load(stream) }
    }

    /// Returns the B side as a cell. `None` if the cell is not an A/B cell.
    fn b_side(&self) -> Option<Cell> {
        let BSide { what, depth, rig } = *self.b_side.clone()?;
        Some(Cell { what, depth, rig, b_side: None, ..self.clone() })
    }

    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Returns the bytes of region memory that a measurement needs in addition to pools and queues.
    fn region_bytes(&self) -> u64 {
        let copies = if self.rig.both || self.rig.rdmap { 4 } else { 2 };
        // Upper bound: the B side may have its own source region at either end.
        let copies = copies + if self.b_side.is_some() { 2 } else { 0 };
        self.rig.region.saturating_mul(copies)
    }
}

/// Starts DPDK's EAL for these ends, as the appliance does for the configuration files of one process.
pub fn start_dpdk(products: &[&EndConfig]) -> anyhow::Result<PortFactory> {
    let configs: Vec<_> = products.iter().map(|product| &product.config).collect();
    let config = start::eal_config(&configs).map_err(anyhow::Error::msg)?;
    Ok(PortFactory::new(Eal::start(&config)?))
}

/// Runs the responder of a memif cell until standard input ends.
pub fn serve_responder(cell: &Cell) -> anyhow::Result<()> {
    let [_, responder] = EndConfig::for_both_sides(&cell.rig)?;
    let ports = start_dpdk(&[&responder])?;
    let mut end = RigEnd::new(&cell.rig, &ports, Side::Responder)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    let ended = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while !ended.is_finished() {
        if !end.handle_events(cell.service())? {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    Ok(())
}

/// The responder's process. Dropping the value closes the process's standard input, which ends the process.
struct ResponderProcess(Child);

impl ResponderProcess {
    fn start(cell: &Cell) -> anyhow::Result<ResponderProcess> {
        let mut child = Process::new(std::env::current_exe()?)
            .args(["serve", &serde_json::to_string(cell)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().context("no pipe")?;
        BufReader::new(out).read_line(&mut line)?;
        anyhow::ensure!(line.trim() == "ready", "the other process did not start");
        Ok(ResponderProcess(child))
    }
}

impl Drop for ResponderProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The closed input ends the process. Its exit status is irrelevant.
        let _ = self.0.wait();
    }
}

/// Function that returns the heap bytes in use. Only a program with a counting allocator provides it.
pub type HeapUsage<'a> = &'a dyn Fn() -> u64;

/// Runs the cell and returns its row. `heap` is required for [`Measure::Memory`] only.
pub fn measure_cell(cell: &Cell, heap: Option<HeapUsage<'_>>) -> anyhow::Result<Row> {
    check_available_memory(cell.region_bytes())?;
    let [initiator, responder] = EndConfig::for_both_sides(&cell.rig)?;
    let ports = match cell.rig.link {
        Link::Memif => start_dpdk(&[&initiator])?,
        _ => start_dpdk(&[&initiator, &responder])?,
    };
    let mut row = cell.row();
    row.add_extra("hugepages", f64::from(u8::from(ports.eal().has_hugepages())));
    let _other = match cell.rig.link {
        Link::Memif => Some(ResponderProcess::start(cell)?),
        _ => None,
    };
    let mut rig = Rig::new(&cell.rig, &ports, cell.service())?;
    wait_for_link(&mut rig)?;
    measures::measure(cell, &mut rig, &mut row, heap)?;
    for (side, end) in [("asking", Some(&rig.initiator)), ("asked", rig.responder.as_ref())] {
        let Some(end) = end else { continue };
        row.add_extra(&format!("{side}_drops"), end.drops() as f64);
        row.add_extra(&format!("{side}_tx_stalls"), end.counter("tx_stalls") as f64);
    }
    Ok(row)
}

/// Fails if less than `needed` bytes and a reserve are available. Otherwise the measurement would fail midway or take
/// the memory of other programs.
pub fn check_available_memory(needed: u64) -> anyhow::Result<()> {
    // Bytes for pools, queues and the rest of the system.
    const RESERVED: u64 = 1 << 30;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let available = kib.map_or(u64::MAX, |kib| kib << 10);
    let mib = |bytes: u64| bytes >> 20;
    anyhow::ensure!(
        needed.saturating_add(RESERVED) <= available,
        "the regions need {} MiB, the rest {} MiB, but {} MiB of memory are available",
        mib(needed),
        mib(RESERVED),
        mib(available)
    );
    Ok(())
}

fn wait_for_link(rig: &mut Rig) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !rig.initiator.port.link().up {
        anyhow::ensure!(begin.elapsed() < Duration::from_secs(10), "the link stays down");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

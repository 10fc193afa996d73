//! Cost of unsolicited frames: worker time per frame, nanoseconds, by kind of flood. A generator on the other core
//! fills the ring; the worker receives as many frames as it can.

pub mod frames;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dataplane::io::PortIo;
use dataplane::port::{Mbuf, PortQueue};
use dpdk::Eal;
use serde::{Deserialize, Serialize};

use self::frames::{Kind, LinkAddresses};
use crate::cell::start_dpdk;
use crate::end_config::EndConfig;
use crate::limits::pin_to_core;
use crate::rig::RigEnd;
use crate::rig_config::{RigConfig, Side};
use crate::row::Row;

/// A flood, measured as a row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Flood {
    /// Name of the result row, unique in a run.
    pub name: String,
    /// Group of the benchmark plan to which the row belongs.
    pub group: String,
    /// Kind of the flood.
    pub kind: Kind,
    /// Ring and cores, equal to those of the end-to-end measurements.
    pub rig: RigConfig,
    /// Seconds of the measurement.
    pub seconds: f64,
}

/// Maximum time to open the generator's stream.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of SYN retransmissions.
const SYN_INTERVAL: Duration = Duration::from_millis(50);

impl Flood {
    /// Returns the flood's row, without a value.
    pub fn row(&self) -> Row {
        Row::new(&self.group, &self.name, "ns").with("link", self.rig.link.name())
    }
}

/// The worker's counters at one moment.
struct Sample {
    frames: u64,
    busy: u64,
    busy_turns: u64,
    at: Instant,
}

impl Sample {
    fn collect(end: &RigEnd) -> Sample {
        Sample {
            frames: end.counter("rx_frames"),
            busy: end.counter("busy_nanoseconds"),
            busy_turns: end.counter("turns") - end.counter("idle_turns"),
            at: Instant::now(),
        }
    }
}

/// Measures the flood and returns its row.
pub fn measure(flood: &Flood) -> anyhow::Result<Row> {
    let [initiator, responder] = EndConfig::for_both_sides(&flood.rig)?;
    let ports = start_dpdk(&[&initiator, &responder])?;
    let mut row = flood.row();
    row.add_extra("alone_ns", ns_without_device(flood)?);
    let mut end = RigEnd::new(&flood.rig, &ports, Side::Responder)?;
    let mut port = ports.open(&initiator.port)?;
    let queue = port.take_queues().into_iter().next();
    let queue = queue.ok_or_else(|| anyhow::anyhow!("the generator's port has no queue"))?;
    let ends = LinkAddresses { worker: end.port.info().mac, generator: port.info().mac };
    let generator = GeneratorThread::start(flood, queue, ends, ports.eal().clone());
    let [before, after] = collect_samples(&mut end, &generator, flood.seconds);
    generator.stop()?;
    fill_row(&mut row, &before, &after)?;
    Ok(row)
}

/// Waits until the flood has begun, then for a quarter of the time, and collects one sample before and one after the
/// measurement. Returns early if the generator ends.
fn collect_samples(end: &mut RigEnd, generator: &GeneratorThread, seconds: f64) -> [Sample; 2] {
    let time = Duration::from_secs_f64(seconds);
    while !generator.has_begun() && !generator.thread.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    [time / 4 + Duration::from_millis(100), time].map(|time| {
        let begin = Instant::now();
        while begin.elapsed() < time && !generator.thread.is_finished() {
            while end.poll_event().is_some() {}
            std::thread::sleep(Duration::from_millis(1));
        }
        Sample::collect(end)
    })
}

/// Enters the measured values into `row`.
fn fill_row(row: &mut Row, before: &Sample, after: &Sample) -> anyhow::Result<()> {
    let frames = (after.frames - before.frames) as f64;
    anyhow::ensure!(frames > 0.0, "no frame arrived");
    let (busy, seconds) = ((after.busy - before.busy) as f64, (after.at - before.at).as_secs_f64());
    row.set(busy / frames);
    row.add_extra("frames_per_s", frames / seconds);
    row.add_extra("frames_per_turn", frames / (after.busy_turns - before.busy_turns) as f64);
    row.add_extra("busy_share", busy * 1e-9 / seconds);
    Ok(())
}

/// Returns the nanoseconds per frame of a worker without a device, in full bursts. The program `hot-worker` measures
/// them.
fn ns_without_device(flood: &Flood) -> anyhow::Result<f64> {
    let program = std::env::current_exe()?.with_file_name("hot-worker");
    let seconds = (flood.seconds / 2.0).to_string();
    let output = Command::new(program).args(["--time", &flood.name, &seconds]).output()?;
    anyhow::ensure!(output.status.success(), "hot-worker: {:?}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The thread of the generator.
struct GeneratorThread {
    thread: JoinHandle<anyhow::Result<()>>,
    /// True once the flood begins.
    begun: Arc<AtomicBool>,
    /// Set to true to end the flood.
    over: Arc<AtomicBool>,
}

impl GeneratorThread {
    /// Starts the generator on the rig's first core. The generator opens a stream if the flood needs one, then sends
    /// the flood.
    fn start(flood: &Flood, queue: PortQueue, ends: LinkAddresses, eal: Eal) -> GeneratorThread {
        let over = Arc::new(AtomicBool::new(false));
        let begun = Arc::new(AtomicBool::new(false));
        let (thread_over, thread_begun, flood) = (over.clone(), begun.clone(), flood.clone());
        let thread = std::thread::spawn(move || -> anyhow::Result<()> {
            pin_to_core(flood.rig.cores[0])?;
            let registered = eal.register_thread()?;
            let mut generator = Generator { queue, start: Instant::now() };
            if flood.kind.needs_stream() {
                generator.open_stream(&ends)?;
            }
            thread_begun.store(true, Ordering::Relaxed);
            generator.flood(&ends.flood_frames(flood.kind), &thread_over);
            drop(generator);
            drop(registered);
            Ok(())
        });
        GeneratorThread { thread, begun, over }
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Ends the flood and waits for the thread. Returns its error, if it failed.
    fn stop(self) -> anyhow::Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the generator panicked"))?
    }
}

/// The generator's end of the ring.
struct Generator {
    queue: PortQueue,
    start: Instant,
}

impl Generator {
    fn now(&self) -> base::Instant {
        base::Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        if self.queue.free_tx_slots() == 0 {
            return false;
        }
        let Some(mut buffer) = PortIo::allocate(&mut self.queue, frame.len()) else { return false };
        buffer.data_mut().copy_from_slice(frame);
        self.queue.tx(buffer);
        true
    }

    /// Receives the worker's frames, at most one burst.
    fn receive(&mut self) -> ArrayVec<Mbuf, { dataplane::io::BURST }> {
        let mut frames = ArrayVec::new();
        let now = self.now();
        PortIo::receive(&mut self.queue, now, &mut frames);
        frames
    }

    /// Opens a stream. After the handshake the generator sends only the flood's segments on it.
    fn open_stream(&mut self, ends: &LinkAddresses) -> anyhow::Result<()> {
        let mut last_syn: Option<Instant> = None;
        while self.start.elapsed() < HANDSHAKE_TIMEOUT {
            // The SYN is repeated, because the link may not be up yet.
            if last_syn.is_none_or(|at| at.elapsed() > SYN_INTERVAL) {
                self.send(&ends.gratuitous_arp());
                self.send(&ends.syn());
                last_syn = Some(Instant::now());
            }
            PortIo::flush(&mut self.queue);
            let answers = self.receive();
            if let Some(ack) = answers.iter().find_map(|frame| ends.ack_of(frame.data())) {
                self.send(&ack);
                PortIo::flush(&mut self.queue);
                return Ok(());
            }
        }
        anyhow::bail!("the worker did not answer the generator's SYN")
    }

    fn flood(&mut self, frames: &[Vec<u8>], over: &AtomicBool) {
        let mut at = 0;
        while !over.load(Ordering::Relaxed) {
            while self.send(&frames[at]) {
                at = (at + 1) % frames.len();
            }
            PortIo::flush(&mut self.queue);
            while !self.receive().is_empty() {}
        }
    }
}

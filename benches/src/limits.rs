//! Upper bounds for the throughput of any data plane on this machine. The first bound is copy and CRC on one core. The
//! second is a hand-off of frames between two cores with only the work that placement requires: copy, CRC and TCP
//! checksum.
//!
//! A *kernel* is an implementation of the copy or of the CRC. Which kernel is fastest depends on the frame length and
//! on the cache level that holds the bytes. Each core therefore tries all kernels during the measurement
//! (`KernelChoice`).

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use crc_fast::{CrcAlgorithm, Digest};
use dataplane::checksum;
use dataplane::io::{BURST, PortIo};
use dataplane::memory::{CopyKernel, Memory};
use dataplane::port::{Mbuf, PortQueue};
use serde::{Deserialize, Serialize};
use wire::crc32c;

use crate::cell::start_dpdk;
use crate::end_config::{self, EndConfig};
use crate::rig::stable_region;
use crate::rig_config::RigConfig;
use crate::row::Row;

/// Length of the Ethernet and IPv4 headers of a frame, bytes.
const NETWORK_HEADER_LEN: usize = 14 + 20;
/// Length of the Ethernet, IPv4 and TCP headers of a frame, bytes. The TCP header has the timestamps option.
const HEADERS_LEN: usize = NETWORK_HEADER_LEN + 32;

/// An upper bound to measure. The result is one row of the report.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// Name of the row, unique in a run.
    pub name: String,
    /// Name of the row's group in the plan.
    pub group: String,
    /// Work that the cores do for each frame.
    pub what: LimitKind,
    /// Ring, regions and cores, equal to those of the end-to-end measurements.
    pub rig: RigConfig,
    /// Seconds of the measurement.
    pub seconds: f64,
}

/// Kind of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// One core copies payloads into a region and computes their CRCs.
    CopyCrc,
    /// One core copies from a region into frames and adds CRC and TCP checksum. The other core verifies both and copies
    /// the payload into its region. Ring, pool and regions are those of the end-to-end measurements.
    HandOff,
}

impl Limit {
    /// Returns the row of the report, before the measurement: with parameters, without a value.
    pub fn row(&self) -> Row {
        let row = Row::new(&self.group, &self.name, "Gbit/s");
        let checksum = if self.rig.trusted { "trusted" } else { "software" };
        row.with("mtu", self.rig.mtu).with("region", self.rig.region).with("checksum", checksum)
    }

    fn payload(&self) -> usize {
        usize::from(self.rig.mtu) + 14 - HEADERS_LEN
    }
}

/// Measures the limit. Returns its row; the value is the payload rate in Gbit/s.
pub fn measure(limit: &Limit) -> anyhow::Result<Row> {
    let time = Duration::from_secs_f64(limit.seconds);
    let mut row = limit.row();
    let rate = match limit.what {
        LimitKind::CopyCrc => measure_copy_crc(limit, time)?,
        LimitKind::HandOff => measure_hand_off(limit, time, &mut row)?,
    };
    row.set(rate * 8e-9);
    Ok(row)
}

/// Pins the calling thread to a core. Fails if the process may not use the core.
pub fn pin_to_core(core: usize) -> anyhow::Result<()> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let id = ids.into_iter().find(|id| id.id == core);
    let pinned = id.is_some_and(core_affinity::set_for_current);
    anyhow::ensure!(pinned, "cannot be pinned to core {core}");
    Ok(())
}

/// A CRC32c implementation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CrcKernel {
    /// The implementation that the data path uses: the fastest for the CPU and the length of the input.
    Product,
    /// The CPU's CRC instruction.
    Instruction,
    /// Carry-less multiplication in the widest vector registers.
    Wide,
}

impl CrcKernel {
    const ALL: [CrcKernel; 3] = [CrcKernel::Product, CrcKernel::Instruction, CrcKernel::Wide];

    fn checksum(self, bytes: &[u8]) -> u32 {
        match self {
            CrcKernel::Product => crc32c::update(0, bytes),
            CrcKernel::Instruction => crc32c_hw::update(0, bytes),
            CrcKernel::Wide => {
                let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
                digest.update(bytes);
                digest.finalize() as u32
            }
        }
    }
}

/// Kernels selected for one core: indices into [`CopyKernel::ALL`] and [`CrcKernel::ALL`]. The measuring thread changes
/// them while the core runs.
#[derive(Default)]
struct KernelChoice {
    copy: AtomicU8,
    crc: AtomicU8,
}

impl KernelChoice {
    fn copy(&self) -> CopyKernel {
        CopyKernel::ALL[usize::from(self.copy.load(Ordering::Relaxed))]
    }

    fn crc(&self) -> CrcKernel {
        CrcKernel::ALL[usize::from(self.crc.load(Ordering::Relaxed))]
    }
}

/// Measures one core that only copies payloads and computes their CRCs. Returns payload bytes per second.
fn measure_copy_crc(limit: &Limit, time: Duration) -> anyhow::Result<f64> {
    pin_to_core(limit.rig.cores[0])?;
    let region = end_config::allocate_region(limit.rig.region)?;
    let payload = limit.payload();
    let frames: Vec<Vec<u8>> = (0..1024).map(|_| vec![0x5a; payload]).collect();
    let mut at = 0u64;
    let mut run = |copy: CopyKernel, crc: CrcKernel, time: Duration| {
        let (begin, mut bytes) = (Instant::now(), 0u64);
        while begin.elapsed() < time {
            for frame in &frames {
                black_box(crc.checksum(frame));
                if at + payload as u64 > limit.rig.region {
                    at = 0;
                }
                region.write_with(copy, at, frame);
                at += payload as u64;
                bytes += payload as u64;
            }
        }
        bytes as f64 / begin.elapsed().as_secs_f64()
    };
    let short = time / 20;
    let copies = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let copy = fastest(copies.map(|copy| (copy, run(copy, CrcKernel::Product, short))));
    let copy = copy.unwrap_or(CopyKernel::LibraryPrefetch);
    let crc = fastest(CrcKernel::ALL.into_iter().map(|crc| (crc, run(copy, crc, short))));
    Ok(run(copy, crc.unwrap_or(CrcKernel::Product), time))
}

fn fastest<T>(rates: impl Iterator<Item = (T, f64)>) -> Option<T> {
    rates.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(what, _)| what)
}

/// State shared by the two cores and the measuring thread.
struct SharedState {
    limit: Limit,
    stop: AtomicBool,
    /// Bytes received with correct CRC and checksum and copied into the region.
    received_bytes: AtomicU64,
    sender: KernelChoice,
    receiver: KernelChoice,
}

/// Task of one core. The task returns when `stop` is set.
type CoreTask = Box<dyn FnOnce(&SharedState) -> anyhow::Result<()> + Send>;

/// Measures the hand-off. Returns the payload bytes per second that the second core receives, verifies and copies.
fn measure_hand_off(limit: &Limit, time: Duration, row: &mut Row) -> anyhow::Result<f64> {
    let [initiator, responder] = EndConfig::for_both_sides(&limit.rig)?;
    let ports = start_dpdk(&[&initiator, &responder])?;
    row.add_extra("hugepages", f64::from(u8::from(ports.eal().has_hugepages())));
    let mut opened = Vec::new();
    for product in [initiator, responder] {
        opened.push(ports.open(&product.port)?);
    }
    let mut queues: Vec<PortQueue> = opened.iter_mut().flat_map(|p| p.take_queues()).collect();
    let (from, to) = (queues.remove(0), queues.remove(0));
    let (source, sink) =
        (stable_region(limit.rig.region)?, end_config::allocate_region(limit.rig.region)?);
    let shared = Arc::new(SharedState {
        limit: limit.clone(),
        stop: AtomicBool::new(false),
        received_bytes: AtomicU64::new(0),
        sender: KernelChoice::default(),
        receiver: KernelChoice::default(),
    });
    let run = |core: usize, work: CoreTask| {
        let (shared, eal) = (shared.clone(), ports.eal().clone());
        std::thread::spawn(move || -> anyhow::Result<()> {
            pin_to_core(shared.limit.rig.cores[core])?;
            let registered = eal.register_thread()?;
            let done = work(&shared);
            drop(registered);
            done
        })
    };
    let threads = [
        run(0, Box::new(move |shared| send_frames(shared, from, &source))),
        run(1, Box::new(move |shared| receive_frames(shared, to, &sink))),
    ];
    let rate = select_kernels_and_measure(&shared, time, row);
    shared.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(rate)
}

/// Tries each kernel for a short time on each core and selects the fastest. Then measures for `time` and returns bytes
/// per second.
fn select_kernels_and_measure(shared: &SharedState, time: Duration, row: &mut Row) -> f64 {
    let rate = |time: Duration| {
        let (before, begin) = (shared.received_bytes.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(time);
        let bytes = shared.received_bytes.load(Ordering::Relaxed) - before;
        bytes as f64 / begin.elapsed().as_secs_f64()
    };
    std::thread::sleep(time / 4);
    let short = (time / 16).max(Duration::from_millis(8));
    let best = |what: &AtomicU8, many: usize, available: &dyn Fn(usize) -> bool| {
        let rates = (0..many).filter(|&n| available(n)).map(|n| {
            what.store(n as u8, Ordering::Relaxed);
            // Waits for the frames of the previous kernel to leave the ring.
            std::thread::sleep(short / 4);
            (n, rate(short))
        });
        let best = fastest(rates).unwrap_or(0);
        what.store(best as u8, Ordering::Relaxed);
    };
    let has = |n: usize| CopyKernel::ALL[n].is_available();
    for side in [&shared.receiver, &shared.sender] {
        best(&side.copy, CopyKernel::ALL.len(), &has);
        best(&side.crc, CrcKernel::ALL.len(), &|_| true);
    }
    for (side, name) in [(&shared.sender, "sender"), (&shared.receiver, "receiver")] {
        let (copy, crc) = (side.copy(), side.crc());
        row.parameters.insert(format!("{name}'s ways"), format!("{}, CRC {crc:?}", copy.name()));
    }
    rate(time)
}

fn send_frames(shared: &SharedState, mut queue: PortQueue, source: &Memory) -> anyhow::Result<()> {
    let limit = &shared.limit;
    let (payload, mut at) = (limit.payload() - 4, 0u64);
    while !shared.stop.load(Ordering::Relaxed) {
        let (copy, crc) = (shared.sender.copy(), shared.sender.crc());
        for _ in 0..BURST {
            if PortIo::free_tx_slots(&mut queue) == 0 {
                break;
            }
            let Some(mut frame) = queue.allocate(HEADERS_LEN + payload + 4) else { break };
            if at + payload as u64 > limit.rig.region {
                at = 0;
            }
            let bytes = &mut frame.data_mut()[NETWORK_HEADER_LEN..];
            bytes[..HEADERS_LEN - NETWORK_HEADER_LEN].fill(0);
            let fpdu = &mut bytes[HEADERS_LEN - NETWORK_HEADER_LEN..];
            source.read_with(copy, at, &mut fpdu[..payload]);
            let crc = crc.checksum(&fpdu[..payload]);
            fpdu[payload..].copy_from_slice(&crc32c::to_field(crc));
            if !limit.rig.trusted {
                // Bytes 16 and 17 of a TCP header are the checksum.
                let sum = !checksum::sum(bytes);
                bytes[16..18].copy_from_slice(&sum.to_be_bytes());
            }
            at += payload as u64;
            PortIo::send(&mut queue, frame);
        }
        PortIo::flush(&mut queue);
    }
    Ok(())
}

fn receive_frames(shared: &SharedState, mut queue: PortQueue, sink: &Memory) -> anyhow::Result<()> {
    let limit = &shared.limit;
    let (payload, mut at, mut got) = (limit.payload() - 4, 0u64, 0u64);
    let mut frames: ArrayVec<Mbuf, BURST> = ArrayVec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let (copy, crc) = (shared.receiver.copy(), shared.receiver.crc());
        PortIo::receive(&mut queue, base::Instant::ZERO, &mut frames);
        for frame in &frames {
            let bytes = &frame.data()[NETWORK_HEADER_LEN..];
            if !limit.rig.trusted {
                anyhow::ensure!(checksum::sum(bytes) == 0xffff, "a frame arrived damaged");
            }
            let data = &bytes[HEADERS_LEN - NETWORK_HEADER_LEN..];
            let crc = crc32c::to_field(crc.checksum(&data[..payload]));
            anyhow::ensure!(data[payload..] == crc, "a frame arrived damaged");
            if at + payload as u64 > limit.rig.region {
                at = 0;
            }
            sink.write_with(copy, at, &data[..payload]);
            at += payload as u64;
            got += payload as u64;
        }
        frames.clear();
        PortIo::flush(&mut queue);
        shared.received_bytes.store(got, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_implementations_agree() {
        for len in [0, 64, 1424, 8944] {
            let bytes = vec![0x5a; len];
            let product = CrcKernel::Product.checksum(&bytes);
            assert!(CrcKernel::ALL.iter().all(|crc| crc.checksum(&bytes) == product), "{len}");
        }
    }

    #[test]
    fn fastest_selects_highest_rate() {
        assert_eq!(fastest([("a", 1.0), ("b", 3.0), ("c", 2.0)].into_iter()), Some("b"));
        assert_eq!(fastest(std::iter::empty::<(u8, f64)>()), None);
    }

    #[test]
    fn hand_off_frame_has_checksum_expected_by_receiver() {
        let mut bytes = vec![7u8; 101];
        bytes[16..18].fill(0);
        let sum = !checksum::sum(&bytes);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(checksum::sum(&bytes), 0xffff);
    }
}

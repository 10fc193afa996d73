//! What no data plane can beat here: copy plus CRC on one core, and two cores that hand each other frames and do
//! nothing but copy and CRC them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dataplane::io::{BURST, PortIo};
use dataplane::memory::Memory;
use dataplane::port::{ChecksumMode, Mbuf, PortConfig, PortKind, PortQueue};
use ddp::RegionMemory;
use serde::{Deserialize, Serialize};
use wire::crc32c;

use crate::cell::environment;
use crate::rig::memory;
use crate::row::Row;

/// Octets of a frame around a segment's payload: Ethernet, IPv4 and TCP with timestamps.
const HEADERS: usize = 14 + 20 + 32;

/// A limit to measure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// What the row is called.
    pub name: String,
    /// Its group.
    pub group: String,
    /// What is measured.
    pub what: LimitKind,
    /// Octets of an IP packet.
    pub mtu: u16,
    /// Octets of each region.
    pub region: u64,
    /// Frames that the ring holds.
    pub slots: u16,
    /// How long.
    pub seconds: f64,
    /// The two cores.
    pub cores: [usize; 2],
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// A core that copies payloads into a region and computes their CRCs.
    CopyCrc,
    /// Two cores: one copies from a region into frames with their CRC, the other checks it and copies them
    /// into its region; the ring, the pool and the regions are those of the end-to-end measurements.
    HandOff,
}

impl Limit {
    /// The row that it makes, still without number.
    pub fn row(&self) -> Row {
        let row = Row::new(&self.group, &self.name, "Gbit/s");
        row.with("mtu", self.mtu).with("region", self.region).with("slots", self.slots)
    }

    fn payload(&self) -> usize {
        usize::from(self.mtu) + 14 - HEADERS
    }
}

/// Measures.
pub fn measure(limit: &Limit) -> anyhow::Result<Row> {
    let time = Duration::from_secs_f64(limit.seconds);
    let mut row = limit.row();
    match limit.what {
        LimitKind::CopyCrc => row.sample(copy_crc(limit, time)? * 8e-9),
        LimitKind::HandOff => {
            let rate = hand_off(limit, time, &mut row.extra)?;
            row.sample(rate * 8e-9);
        }
    }
    Ok(row)
}

/// Puts this thread on a core.
pub fn pin(core: usize) -> anyhow::Result<()> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let id = ids.into_iter().find(|id| id.id == core);
    let pinned = id.is_some_and(core_affinity::set_for_current);
    anyhow::ensure!(pinned, "cannot be pinned to core {core}");
    Ok(())
}

/// Octets per second of a core that does what placement cannot do without.
fn copy_crc(limit: &Limit, time: Duration) -> anyhow::Result<f64> {
    pin(limit.cores[0])?;
    let region = memory(limit.region, true)?;
    let payload = limit.payload();
    let frames: Vec<Vec<u8>> = (0..usize::from(limit.slots)).map(|_| vec![0x5a; payload]).collect();
    let (begin, mut octets, mut at) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < time {
        for frame in &frames {
            black_box(crc32c::update(0, frame));
            if at + payload as u64 > limit.region {
                at = 0;
            }
            region.write(at, frame);
            at += payload as u64;
            octets += payload as u64;
        }
    }
    Ok(octets as f64 / begin.elapsed().as_secs_f64())
}

/// Octets per second that arrive, checked and copied.
fn hand_off(
    limit: &Limit,
    time: Duration,
    extra: &mut std::collections::BTreeMap<String, f64>,
) -> anyhow::Result<f64> {
    let ports = environment(512)?;
    extra.insert("hugepages".into(), f64::from(u8::from(ports.eal().has_hugepages())));
    let mut opened = Vec::new();
    for n in 0..2 {
        let kind = PortKind::Ring { link: "limit".to_owned() };
        opened.push(ports.open(&PortConfig {
            checksum: ChecksumMode::Trusted,
            mtu: limit.mtu,
            rx_descriptors: limit.slots,
            tx_descriptors: limit.slots,
            ..PortConfig::new(format!("limit{n}"), kind)
        })?);
    }
    let mut queues: Vec<PortQueue> = opened.iter_mut().flat_map(|p| p.take_queues()).collect();
    let (from, to) = (queues.remove(0), queues.remove(0));
    let (source, sink) = (memory(limit.region, false)?, memory(limit.region, true)?);
    let over = Arc::new(AtomicBool::new(false));
    let got = Arc::new(AtomicU64::new(0));
    let threads = {
        let (limit, eal, over, got) =
            (limit.clone(), ports.eal().clone(), over.clone(), got.clone());
        let (eal2, over2, limit2) = (eal.clone(), over.clone(), limit.clone());
        [
            std::thread::spawn(move || -> anyhow::Result<()> {
                pin(limit.cores[0])?;
                let registered = eal.register_thread()?;
                send_frames(&limit, from, &source, &over)?;
                drop(registered);
                Ok(())
            }),
            std::thread::spawn(move || -> anyhow::Result<()> {
                pin(limit2.cores[1])?;
                let registered = eal2.register_thread()?;
                take_frames(&limit2, to, &sink, &over2, &got)?;
                drop(registered);
                Ok(())
            }),
        ]
    };
    std::thread::sleep(time / 4);
    let (before, begin) = (got.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(time);
    let octets = got.load(Ordering::Relaxed) - before;
    let seconds = begin.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(octets as f64 / seconds)
}

fn send_frames(
    limit: &Limit,
    mut queue: PortQueue,
    source: &Memory,
    over: &AtomicBool,
) -> anyhow::Result<()> {
    let (payload, mut at) = (limit.payload() - 4, 0u64);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            if PortIo::room(&mut queue) == 0 {
                break;
            }
            let Some(mut frame) = queue.allocate(HEADERS + payload + 4) else { break };
            if at + payload as u64 > limit.region {
                at = 0;
            }
            let octets = &mut frame.data_mut()[HEADERS..];
            source.read(at, &mut octets[..payload]);
            let crc = crc32c::update(0, &octets[..payload]);
            octets[payload..].copy_from_slice(&crc32c::to_field(crc));
            at += payload as u64;
            PortIo::send(&mut queue, frame);
        }
        PortIo::flush(&mut queue);
    }
    Ok(())
}

fn take_frames(
    limit: &Limit,
    mut queue: PortQueue,
    sink: &Memory,
    over: &AtomicBool,
    got: &AtomicU64,
) -> anyhow::Result<()> {
    let (payload, mut at, mut octets) = (limit.payload() - 4, 0u64, 0u64);
    let mut frames: ArrayVec<Mbuf, BURST> = ArrayVec::new();
    while !over.load(Ordering::Relaxed) {
        PortIo::receive(&mut queue, wire::Instant::ZERO, &mut frames);
        for frame in &frames {
            let data = &frame.data()[HEADERS..];
            let crc = crc32c::to_field(crc32c::update(0, &data[..payload]));
            anyhow::ensure!(data[payload..] == crc, "a frame arrived broken");
            if at + payload as u64 > limit.region {
                at = 0;
            }
            sink.write(at, &data[..payload]);
            at += payload as u64;
            octets += payload as u64;
        }
        frames.clear();
        PortIo::flush(&mut queue);
        got.store(octets, Ordering::Relaxed);
    }
    Ok(())
}

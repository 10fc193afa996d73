//! A cable that loses, reorders, duplicates and damages frames: a thread that forwards between two `af_packet` ports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use dataplane::port::{ChecksumMode, Port, PortConfig, PortFactory, PortKind, PortQueue, RxBatch};
use dpdk::{Eal, EalConfig, Hugepages, LogLevel};
use link::{Config, Counters, Fate, FaultyLink, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::frame_log::{FrameLog, Outcome};

/// Maximum sleep of the thread while no frame arrives.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// A frame in flight.
struct InFlight(Vec<u8>);

impl Frame for InFlight {
    fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes that may be damaged: the IP packet, whose checksums detect damage. The receiver cannot detect
    /// damage elsewhere, such as in ARP.
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self.0.get(12..14) {
            Some([0x08, 0x00] | [0x86, 0xdd]) => &mut self.0[14..],
            _ => &mut [],
        }
    }

    fn duplicate(&self) -> Option<Self> {
        Some(InFlight(self.0.clone()))
    }
}

/// A running cable. Dropping the value stops the thread.
pub(crate) struct LossyCable {
    config: Arc<Mutex<Config>>,
    counters: Arc<Mutex<[Counters; 2]>>,
    log: Arc<Mutex<FrameLog>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// One end of the cable.
struct CableEnd {
    queue: PortQueue,
    /// Keeps the device open. Declared after `queue`, because fields are dropped in the order of declaration.
    _port: Port,
    /// Frames in flight from this end, and the faults of this direction.
    faults: FaultyLink<InFlight>,
}

impl LossyCable {
    /// Opens the two devices and starts the thread. `seed` determines which frames have faults.
    pub(crate) fn start(devices: [&str; 2], seed: u64) -> Result<LossyCable> {
        let config = |device: &str| PortConfig {
            checksum: ChecksumMode::Software,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            ..PortConfig::new(device, PortKind::AfPacket { device: device.to_owned() })
        };
        let all = devices.map(config);
        let bytes: u64 = all.iter().map(PortConfig::pool_bytes).sum();
        let eal = EalConfig {
            hugepages: Hugepages::Never,
            memory_mib: 64 + (bytes >> 20) as u32,
            log_level: LogLevel::Error,
            ..EalConfig::default()
        };
        let ports = PortFactory::new(Eal::start(&eal)?);
        let open = |index: u64, config: &PortConfig| -> Result<CableEnd> {
            let mut port = ports.open(config)?;
            let queue = port.take_queues().pop().context("a port without a queue")?;
            // With equal seeds, the faults of the two directions would coincide.
            let seed = seed.wrapping_mul(2).wrapping_add(index);
            Ok(CableEnd { queue, _port: port, faults: FaultyLink::new(Config::seeded(seed)) })
        };
        let ends = [open(0, &all[0])?, open(1, &all[1])?];
        let wanted = Arc::new(Mutex::new(Config::default()));
        let counted = Arc::new(Mutex::new([Counters::default(); 2]));
        let over = Arc::new(AtomicBool::new(false));
        let passed = Arc::new(Mutex::new(FrameLog::default()));
        let (shared, record) = ((wanted.clone(), counted.clone(), over.clone()), passed.clone());
        let thread = Some(std::thread::spawn(move || {
            forward(ends, &shared.0, &shared.1, &record, &shared.2);
        }));
        Ok(LossyCable { config: wanted, counters: counted, log: passed, stop: over, thread })
    }

    /// Sets the faults of both directions.
    pub(crate) fn set_faults(&self, config: Config) {
        if let Ok(mut wanted) = self.config.lock() {
            *wanted = config;
        }
    }

    /// Returns the record of the newest frames; `None` if the thread has panicked.
    pub(crate) fn frame_log(&self) -> Option<MutexGuard<'_, FrameLog>> {
        self.log.lock().ok()
    }

    /// Returns the fault counters of each direction: frames from the first device, frames from the second.
    pub(crate) fn counters(&self) -> [Counters; 2] {
        self.counters.lock().map(|counted| *counted).unwrap_or_default()
    }
}

impl Drop for LossyCable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread has no result.
            let _ = thread.join();
        }
    }
}

fn forward(
    mut ends: [CableEnd; 2],
    wanted: &Mutex<Config>,
    counted: &Mutex<[Counters; 2]>,
    passed: &Mutex<FrameLog>,
    over: &AtomicBool,
) {
    let began = Instant::now();
    let now = || base::Instant::from_nanos(began.elapsed().as_nanos() as u64);
    let mut current = Config::default();
    while !over.load(Ordering::Relaxed) {
        if let Ok(wanted) = wanted.lock()
            && *wanted != current
        {
            current = wanted.clone();
            // The random sequences of the ends continue.
            ends.iter_mut().for_each(|end| end.faults.set_config(current.clone()));
        }
        let mut moved = 0;
        for index in 0..2 {
            let mut batch = RxBatch::new();
            moved += ends[index].queue.rx_burst(now(), &mut batch);
            for frame in batch {
                let ended = push_frame(&mut ends[index].faults, now(), frame.data());
                if let Ok(mut passed) = passed.lock() {
                    passed.record(Instant::now(), index, frame.data(), ended);
                }
            }
            while let Some(InFlight(frame)) = ends[index].faults.pop(now()) {
                send_frame(&mut ends[1 - index].queue, &frame);
                moved += 1;
            }
            ends[1 - index].queue.flush();
        }
        if let Ok(mut counted) = counted.lock() {
            *counted = [*ends[0].faults.counters(), *ends[1].faults.counters()];
        }
        if moved == 0 {
            wait_for_frames(&ends);
        }
    }
}

/// Queues a frame for delivery, subject to the faults. Returns its outcome.
fn push_frame(faults: &mut FaultyLink<InFlight>, now: base::Instant, frame: &[u8]) -> Outcome {
    let damaged = faults.counters().corrupted;
    match faults.push(now, InFlight(frame.to_vec())) {
        Fate::Queued(_) if faults.counters().corrupted > damaged => Outcome::Damaged,
        Fate::Queued(_) => Outcome::Carried,
        Fate::Lost | Fate::BlackHole | Fate::TailDrop | Fate::Full => Outcome::Lost,
    }
}

fn send_frame(queue: &mut PortQueue, frame: &[u8]) {
    if queue.free_tx_slots() == 0 {
        queue.flush();
    }
    // Without a free buffer or room in the ring, the frame is lost as on a wire.
    let Some(mut buffer) = queue.alloc() else { return };
    if let Some(room) = buffer.append(frame.len()) {
        room.copy_from_slice(frame);
        queue.tx(buffer);
    }
}

fn wait_for_frames(ends: &[CableEnd; 2]) {
    let fds: Vec<_> = ends.iter().filter_map(|end| end.queue.fd()).collect();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.as_nanos() as _ };
    // An interrupted poll only shortens the wait.
    let _ = poll(&mut fds, Some(&time));
}

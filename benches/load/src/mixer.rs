//! The mixer: connects a load generator and a good peer to one port of an appliance, and counts frames per source.
//!
//! ```text
//!  generator ── vhost-user ──┐
//!                            ├── vhost-user ── appliance
//!  good peer ── memif ───────┘
//! ```
//!
//! A vhost-user port has only one frontend, which is the mixer. The mixer corresponds to a switch with a queue per
//! source in front of a NIC. It serves both sources alternately.
//!
//! When the appliance's receive ring is full, the generator's frames are dropped and counted, because a generator on a
//! wire does not wait. The good peer's frames wait.
//!
//! The mixer is also the router to the generator's addresses. It counts and drops the appliance's frames to these
//! addresses.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use arrayvec::ArrayVec;
use dpdk::{
    DataRoom, Device, DeviceConfig, Eal, IdleFd, Mbuf, MempoolConfig, RxOffloads, RxQueue,
    StartedDevice, TxOffloads, TxQueue,
};
use serde::{Deserialize, Serialize};

use crate::router::Router;
use crate::stream_watch::{Flow, StreamWatch};

/// Maximum number of frames per burst.
const BURST: usize = 64;

/// Descriptors of each ring of the mixer. In the appliance's ring, the good peer's frames queue behind the generator's.
pub const RING_SIZE: u16 = 1024;

/// Pause of the mixing thread after an iteration without frames. Meanwhile the generator on the same core can fill its
/// ring.
const IDLE_PAUSE: Duration = Duration::from_micros(20);

/// Sockets of the three ends.
#[derive(Clone, Debug)]
pub struct Sockets {
    /// Created by the mixer, for the generator's `net_virtio_user` device.
    pub generator: PathBuf,
    /// Created by the mixer, for the good peer's memif client with id 0.
    pub good: PathBuf,
    /// Created by the appliance's vhost-user port.
    pub appliance: PathBuf,
}

/// Hardware addresses of the good peer and of the router.
#[derive(Clone, Copy, Debug)]
pub struct Macs {
    /// Address of the good peer.
    pub good: [u8; 6],
    /// Address of the router to all other addresses.
    pub router: [u8; 6],
}

/// Frames by source and outcome, since the mixer's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCounts {
    /// Frames from the generator.
    pub generator: u64,
    /// Bytes from the generator, without FCS.
    pub generator_bytes: u64,
    /// Frames from the generator that were lost because the appliance's receive ring was full; included in `generator`.
    pub generator_lost: u64,
    /// Frames from the good peer that were put into the appliance's receive ring.
    pub good: u64,
    /// Frames from the appliance to the good peer, multicast included.
    pub to_good: u64,
    /// Frames to the good peer that were lost because its receive ring was full; included in
    /// `to_good`.
    pub to_good_lost: u64,
    /// Frames from the appliance to the generator's addresses.
    pub answers: u64,
    /// The router's replies to ARP requests and neighbour solicitations of the appliance.
    pub router: u64,
    /// The router's replies that were lost because the appliance's receive ring was full or no buffer was free;
    /// included in `router`.
    pub router_lost: u64,
}

impl FrameCounts {
    /// Returns the number of frames put into the appliance's receive ring.
    pub fn frames_to_appliance(&self) -> u64 {
        self.generator - self.generator_lost + self.good + self.router - self.router_lost
    }

    /// Returns the growth since `earlier`.
    pub fn growth_since(&self, earlier: &FrameCounts) -> FrameCounts {
        FrameCounts {
            generator: self.generator - earlier.generator,
            generator_bytes: self.generator_bytes - earlier.generator_bytes,
            generator_lost: self.generator_lost - earlier.generator_lost,
            good: self.good - earlier.good,
            to_good: self.to_good - earlier.to_good,
            to_good_lost: self.to_good_lost - earlier.to_good_lost,
            answers: self.answers - earlier.answers,
            router: self.router - earlier.router,
            router_lost: self.router_lost - earlier.router_lost,
        }
    }
}

/// State shared by the mixing thread and its owner.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    counts: Mutex<FrameCounts>,
    watch: Mutex<StreamWatch>,
    /// Maximum rate of the generator, frames per second; 0 for unlimited.
    rate_limit: AtomicU64,
}

/// A running mixer. Dropping the value stops its thread.
pub struct Mixer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    _devices: [StartedDevice; 3],
}

impl Mixer {
    /// Opens the three ends and starts the mixing thread on `core`.
    pub fn start(eal: &Eal, sockets: &Sockets, macs: Macs, core: usize) -> anyhow::Result<Mixer> {
        let path = |path: &Path| path.display().to_string();
        let appliance = open_end(
            eal,
            "net_virtio_user0",
            &format!("path={},queues=1,queue_size={RING_SIZE}", path(&sockets.appliance)),
        )
        .context("the mixer cannot connect to the appliance's vhost-user port")?;
        let generator =
            open_end(eal, "net_vhost0", &format!("iface={},queues=1", path(&sockets.generator)))
                .context("the mixer cannot serve the generator's socket")?;
        let good = open_end(
            eal,
            "net_memif0",
            &format!(
                "role=server,id=0,socket={},socket-abstract=no,bsize=2048,rsize={}",
                path(&sockets.good),
                RING_SIZE.ilog2()
            ),
        )
        .context("the mixer cannot serve the good peer's memif")?;
        let shared = Arc::new(Shared::default());
        let devices = [appliance.device, generator.device, good.device];
        let mut lines = MixerState {
            appliance: (appliance.rx, appliance.tx),
            generator: generator.rx,
            good: (good.rx, good.tx),
            macs,
            router: Router { mac: macs.router },
            pool: devices[0].pool().clone(),
            pending: Burst::new(),
            counts: FrameCounts::default(),
        };
        let (own, eal) = (shared.clone(), eal.clone());
        let thread = std::thread::Builder::new().name("mixer".into()).spawn(move || {
            // Without pinning or raised priority the mixer is slower but correct.
            core_affinity::set_for_current(core_affinity::CoreId { id: core });
            let registration = eal.register_thread();
            raise_thread_priority();
            let mut pace = TokenBucket::default();
            while !own.stop.load(Ordering::Relaxed) {
                let room = pace.has_tokens(own.rate_limit.load(Ordering::Relaxed), Instant::now());
                let before = lines.counts.generator;
                let moved = lines.move_bursts(&own.watch, room);
                pace.consume(lines.counts.generator - before);
                *own.counts.lock().unwrap_or_else(PoisonError::into_inner) = lines.counts;
                if !moved {
                    std::thread::sleep(IDLE_PAUSE);
                }
            }
            drop(registration);
        })?;
        Ok(Mixer { shared, thread: Some(thread), _devices: devices })
    }

    /// Returns the counts at the end of the last complete iteration.
    pub fn counts(&self) -> FrameCounts {
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts once the generator has been silent for 250 ms. Fails if it still sends after `limit`.
    pub fn settled_counts(&self, limit: Duration) -> anyhow::Result<FrameCounts> {
        let began = Instant::now();
        let mut last = self.counts();
        let mut quiet = 0;
        while quiet < 5 {
            anyhow::ensure!(began.elapsed() < limit, "the generator does not stop");
            std::thread::sleep(Duration::from_millis(50));
            let now = self.counts();
            quiet = if now.generator == last.generator { quiet + 1 } else { 0 };
            last = now;
        }
        Ok(last)
    }

    /// Limits the generator to `rate` frames per second by back pressure; `None` for unlimited.
    pub fn set_rate_limit(&self, rate: Option<u64>) {
        self.shared.rate_limit.store(rate.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the sequence state of a good peer's stream, as observed in its frames. `None` if no frame of the stream
    /// was seen.
    pub fn stream_position(&self, flow: &Flow) -> Option<crate::stream_watch::StreamPosition> {
        self.shared.watch.lock().unwrap_or_else(PoisonError::into_inner).position(flow)
    }
}

impl Drop for Mixer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The result is ignored: a panic of the thread has already printed its message.
            let _ = thread.join();
        }
    }
}

/// An end of the mixer: a device with one RX queue and one TX queue.
struct MixerEnd {
    device: StartedDevice,
    rx: RxQueue,
    tx: TxQueue,
}

fn open_end(eal: &Eal, name: &str, args: &str) -> anyhow::Result<MixerEnd> {
    let device = Device::virtual_device(eal, name, args)?;
    let config = DeviceConfig {
        queues: 1,
        rx_descriptors: RING_SIZE,
        tx_descriptors: RING_SIZE,
        mtu: 1500,
        set_mtu: false,
        rx: RxOffloads::default(),
        tx: TxOffloads::default(),
        rss: None,
        promiscuous: true,
        all_multicast: true,
        idle: IdleFd::None,
        reconnect: false,
        private_files: true,
    };
    let pool = MempoolConfig {
        buffers: 16 * u32::from(RING_SIZE),
        data_room: DataRoom::Bytes(2048),
        numa: None,
    };
    let (device, rx, tx) = device.start(&config, pool)?;
    let (Some(rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
        anyhow::bail!("{name} has no queue")
    };
    Ok(MixerEnd { device, rx, tx })
}

/// State of the mixing thread.
struct MixerState {
    appliance: (RxQueue, TxQueue),
    generator: RxQueue,
    good: (RxQueue, TxQueue),
    macs: Macs,
    router: Router,
    pool: dpdk::Mempool,
    /// The good peer's frames that wait for free space in the appliance's ring.
    pending: Burst,
    counts: FrameCounts,
}

type Burst = ArrayVec<Mbuf, BURST>;

impl MixerState {
    /// Moves one burst of each source. Returns true if there were frames.
    ///
    /// `room` is true if the rate limit allows a whole burst of the generator. Otherwise no burst of the generator is
    /// received.
    fn move_bursts(&mut self, watch: &Mutex<StreamWatch>, room: bool) -> bool {
        // The good peer comes first. Its next burst is received once none of its frames is pending.
        if self.pending.is_empty() && self.good.0.burst(&mut self.pending) > 0 {
            let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
            self.pending.iter().for_each(|frame| watch.observe(frame.data()));
        }
        let good = self.appliance.1.burst(&mut self.pending);
        self.counts.good += good as u64;

        let mut frames = Burst::new();
        let generated = if room { self.generator.burst(&mut frames) } else { 0 };
        self.counts.generator += generated as u64;
        self.counts.generator_bytes += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        self.counts.generator_lost += send_or_drop(&mut self.appliance.1, &mut frames);

        let answered = self.appliance.0.burst(&mut frames);
        let mut for_good = Burst::new();
        for frame in frames.drain(..) {
            self.dispatch(frame, &mut for_good);
        }
        self.counts.to_good += for_good.len() as u64;
        self.counts.to_good_lost += send_or_drop(&mut self.good.1, &mut for_good);
        good + generated + answered > 0
    }

    /// Passes a frame of the appliance to the good peer, answers a request for the router, or counts an answer to the
    /// generator.
    fn dispatch(&mut self, frame: Mbuf, for_good: &mut Burst) {
        let bytes = frame.data();
        let to_group = bytes.first().is_some_and(|first| first & 1 == 1);
        if to_group && let Some(reply) = self.router.answer(bytes) {
            return self.send_reply(&reply);
        }
        if to_group || bytes.starts_with(&self.macs.good) {
            return for_good.push(frame);
        }
        self.counts.answers += 1;
    }

    fn send_reply(&mut self, reply: &[u8]) {
        self.counts.router += 1;
        let mut one = Burst::new();
        if let Some(mut frame) = self.pool.alloc()
            && let Some(room) = frame.append(reply.len())
        {
            room.copy_from_slice(reply);
            one.push(frame);
            self.counts.router_lost += send_or_drop(&mut self.appliance.1, &mut one);
        } else {
            self.counts.router_lost += 1;
        }
    }
}

/// Token bucket for the generator's rate, at least four bursts deep.
#[derive(Debug, Default)]
struct TokenBucket {
    rate: u64,
    refilled_at: Option<Instant>,
    /// Frames that may be received now.
    tokens: f64,
}

impl TokenBucket {
    /// Minimum depth of the bucket, frames.
    const MIN_DEPTH: f64 = 4.0 * BURST as f64;

    /// Returns true if a whole burst may be received at `now`.
    fn has_tokens(&mut self, rate: u64, now: Instant) -> bool {
        if rate == 0 {
            return true;
        }
        if rate != self.rate {
            *self = TokenBucket { rate, refilled_at: None, tokens: 0.0 };
        }
        let since = self.refilled_at.map_or(0.0, |then| now.duration_since(then).as_secs_f64());
        self.refilled_at = Some(now);
        // The depth grows with the rate, so that no tokens are lost if the thread does not run for a millisecond.
        let depth = Self::MIN_DEPTH.max(rate as f64 * 1e-3);
        self.tokens = (self.tokens + since * rate as f64).min(depth);
        self.tokens >= BURST as f64
    }

    fn consume(&mut self, frames: u64) {
        self.tokens -= frames as f64;
    }
}

/// Sends `frames`. Drops frames without free space in the ring and returns their number.
fn send_or_drop(queue: &mut TxQueue, frames: &mut Burst) -> u64 {
    queue.burst(frames);
    let lost = frames.len() as u64;
    frames.clear();
    lost
}

/// Raises the priority of this thread. The generator on the same core busy-polls, and this thread must run when its
/// pause ends.
fn raise_thread_priority() {
    let own = rustix::thread::gettid();
    // Without the privilege the mixer may run late. Frames that are lost because of this are counted.
    let _ = rustix::process::setpriority_process(Some(own), -19);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_admits_frames_at_its_rate() {
        let (mut pace, begin, mut taken) = (TokenBucket::default(), Instant::now(), 0);
        for step in 0..100_000 {
            if pace.has_tokens(1_000_000, begin + Duration::from_micros(10 * step)) {
                pace.consume(BURST as u64);
                taken += BURST as u64;
            }
        }
        assert!((990_000..=1_000_000).contains(&taken), "{taken} frames in a second");
        // After a pause, the tokens are limited by the depth.
        let late = begin + Duration::from_secs(10);
        let mut at_once = 0;
        while pace.has_tokens(1_000_000, late) {
            pace.consume(BURST as u64);
            at_once += BURST;
        }
        assert!(at_once <= 1000, "{at_once} frames at once");
        assert!(TokenBucket::default().has_tokens(0, begin));
    }

    #[test]
    fn counts_since_exclude_earlier_frames() {
        let earlier =
            FrameCounts { generator: 5, generator_lost: 1, good: 2, ..FrameCounts::default() };
        let now = FrameCounts {
            generator: 9,
            generator_lost: 2,
            good: 4,
            router: 1,
            ..FrameCounts::default()
        };
        assert_eq!(now.growth_since(&earlier).frames_to_appliance(), 4 - 1 + 2 + 1);
    }
}

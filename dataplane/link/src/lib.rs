//! Faults of a link: seeded loss, reordering, delay, a slow link, duplication, corruption.
//!
//! [`FaultyLink`] is one direction of a link. Frames enter with [`push`](FaultyLink::push) and leave by
//! [`pop`](FaultyLink::pop) at their delivery time. The caller passes the time: virtual in simulations, real in the
//! appliance's ports with `impair`. With the same seed and the same calls, each frame has the same fate.
//!
//! ```text
//!  push ──> black hole? ──> lost? ──> slow link, tail drop ──> damaged? ──> delay, jitter ──┬─> in order ──> pop
//!                                                                                           └─> late ──────> pop
//! ```
//!
//! While the queue is long, frames may be marked ([`Config::mark_bytes`]) before any are dropped.
//!
//! Not included: re-segmentation and changes of the MTU, which depend on TCP (the `sim` crate has them).
//!
//! Invariants: at most [`Config::max_frames`] frames are inside. Every offered frame, and every duplicate, is
//! delivered, counted as lost, or still inside. Without [`Config::reorder`] the order is kept.
#![forbid(unsafe_code)]

mod config;
mod frame;
mod rng;

pub use config::{BlackHole, BurstLoss, Config, ConfigError, Loss, Probability, Rate, Reorder};
pub use frame::Frame;
pub use rng::Rng;

use core::cmp::Ordering;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use base::{Instant, Nanos};

/// One direction of a link that treats frames as its [`Config`] specifies.
#[derive(Debug)]
pub struct FaultyLink<F> {
    config: Config,
    rng: Rng,
    /// True if the channel is in its bad state (Gilbert-Elliott).
    bad: bool,
    /// Frames offered to the loss model since the last loss by [`Loss::EveryNth`].
    since_nth: u64,
    /// Time at which the slow link has sent all frames accepted so far.
    busy_until: Instant,
    /// Latest delivery time of a frame in `in_order` so far. No later frame is scheduled before this time, so jitter
    /// alone never reorders frames.
    last_in_order: Instant,
    in_order: VecDeque<ScheduledFrame<F>>,
    reordered: BinaryHeap<ScheduledFrame<F>>,
    sequence: u64,
    counters: Counters,
}

/// Fate of an offered frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Accepted; [`FaultyLink::pop`] returns the frame at this time.
    Queued(Instant),
    /// Lost by the loss model.
    Lost,
    /// Lost in a black-hole period.
    BlackHole,
    /// Dropped at the full queue of the slow link.
    TailDrop,
    /// Dropped because [`Config::max_frames`] were inside already.
    Full,
}

/// Counters of a link, in frames; in bytes if the name ends in `bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames passed to [`FaultyLink::push`].
    pub offered: u64,
    /// Bytes of offered frames.
    pub offered_bytes: u64,
    /// Frames returned by [`FaultyLink::pop`].
    pub delivered: u64,
    /// Bytes of delivered frames.
    pub delivered_bytes: u64,
    /// Frames lost by the loss model.
    pub lost: u64,
    /// Frames lost in black-hole periods.
    pub black_holed: u64,
    /// Frames dropped because the slow link's queue was full (tail drop).
    pub tail_dropped: u64,
    /// Frames dropped because [`Config::max_frames`] were inside already.
    pub overflowed: u64,
    /// Frames delayed so that later frames may overtake them.
    pub reordered: u64,
    /// Extra copies scheduled for delivery.
    pub duplicated: u64,
    /// Duplicates not created, because the frame type refused a copy or the link was full.
    pub duplicates_refused: u64,
    /// Frames with one flipped bit.
    pub corrupted: u64,
    /// Frames marked because the slow link's queue was long.
    pub marked: u64,
    /// Largest number of frames inside at one time so far.
    pub frames_max: u64,
}

impl Counters {
    /// Returns the number of offered frames that are never delivered.
    pub fn total_lost(&self) -> u64 {
        self.lost + self.black_holed + self.tail_dropped + self.overflowed
    }
}

impl<F: Frame> FaultyLink<F> {
    /// Returns a link that is idle and, with burst loss, in its good state.
    pub fn new(config: Config) -> Self {
        FaultyLink {
            rng: Rng::new(config.seed),
            bad: false,
            since_nth: 0,
            busy_until: Instant::ZERO,
            last_in_order: Instant::ZERO,
            in_order: VecDeque::new(),
            reordered: BinaryHeap::new(),
            sequence: 0,
            counters: Counters::default(),
            config,
        }
    }

    /// Offers a frame at `now` and returns its fate. A lost frame is dropped at once.
    pub fn push(&mut self, now: Instant, mut frame: F) -> Fate {
        let len = frame.len();
        self.counters.offered += 1;
        self.counters.offered_bytes += len as u64;
        if self.config.black_holes.iter().any(|hole| hole.contains(now)) {
            self.counters.black_holed += 1;
            return Fate::BlackHole;
        }
        if self.draw_loss() {
            self.counters.lost += 1;
            return Fate::Lost;
        }
        if self.is_full() {
            self.counters.overflowed += 1;
            return Fate::Full;
        }
        let waiting = self.queued_bytes(now);
        let Some(sent) = self.transmit(now, len) else {
            self.counters.tail_dropped += 1;
            return Fate::TailDrop;
        };
        if self.config.mark_bytes.is_some_and(|mark| waiting > mark) && frame.mark() {
            self.counters.marked += 1;
        }
        if self.rng.chance(self.config.corrupt) {
            self.corrupt(&mut frame);
        }
        let copy = self.rng.chance(self.config.duplicate).then(|| frame.duplicate());
        let at = self.schedule(sent, frame);
        match copy {
            Some(Some(copy)) if !self.is_full() => {
                self.schedule(sent, copy);
                self.counters.duplicated += 1;
            }
            Some(_) => self.counters.duplicates_refused += 1,
            None => {}
        }
        self.counters.frames_max = self.counters.frames_max.max(self.in_flight() as u64);
        Fate::Queued(at)
    }

    /// Removes and returns the next frame whose delivery time is at or before `now`. The caller repeats the call
    /// until the result is `None`.
    pub fn pop(&mut self, now: Instant) -> Option<F> {
        let next = self.next_delivery().filter(|&at| at <= now)?;
        let late_first = match (self.in_order.front(), self.reordered.peek()) {
            (Some(front), Some(late)) => {
                (late.delivery_time, late.sequence) < (front.delivery_time, front.sequence)
            }
            (front, _) => front.is_none(),
        };
        let due = if late_first { self.reordered.pop() } else { self.in_order.pop_front() }?;
        debug_assert_eq!(due.delivery_time, next);
        self.counters.delivered += 1;
        self.counters.delivered_bytes += due.frame.len() as u64;
        Some(due.frame)
    }

    /// Returns the earliest delivery time; `None` while no frame is inside.
    pub fn next_delivery(&self) -> Option<Instant> {
        let front = self.in_order.front().map(|due| due.delivery_time);
        let late = self.reordered.peek().map(|due| due.delivery_time);
        match (front, late) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Returns the number of frames inside.
    pub fn in_flight(&self) -> usize {
        self.in_order.len() + self.reordered.len()
    }

    /// Returns the number of bytes that wait for the slow link at `now`, including the frame in transmission.
    pub fn queued_bytes(&self, now: Instant) -> u64 {
        self.config.rate.map_or(0, |rate| rate.bytes_in(self.busy_until.saturating_since(now)))
    }

    /// Returns the counters since the link was created.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces the parameters. Frames inside keep their delivery times. The random sequence continues; the new
    /// seed is not used.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    fn is_full(&self) -> bool {
        self.in_flight() >= self.config.max_frames
    }

    fn draw_loss(&mut self) -> bool {
        match self.config.loss {
            Loss::None => false,
            Loss::Random(p) => self.rng.chance(p),
            Loss::EveryNth(n) => {
                self.since_nth += 1;
                let lose = self.since_nth >= n.get();
                if lose {
                    self.since_nth = 0;
                }
                lose
            }
            Loss::Burst(model) => {
                let flip = if self.bad { model.bad_to_good } else { model.good_to_bad };
                self.bad ^= self.rng.chance(flip);
                let p = if self.bad { model.loss_in_bad } else { model.loss_in_good };
                self.rng.chance(p)
            }
        }
    }

    /// Returns the time at which the link will have sent the frame's last bit; `now` if the rate is unlimited. Returns
    /// `None` if the queue has no room. An idle link accepts every frame.
    fn transmit(&mut self, now: Instant, len: usize) -> Option<Instant> {
        let Some(rate) = self.config.rate else { return Some(now) };
        let waiting = self.queued_bytes(now);
        if waiting > 0 && waiting + len as u64 > rate.queue_bytes {
            return None;
        }
        self.busy_until = self.busy_until.max(now) + rate.time_for(len);
        Some(self.busy_until)
    }

    fn corrupt(&mut self, frame: &mut F) {
        let bytes = frame.bytes_mut();
        if bytes.is_empty() {
            return;
        }
        let bit = self.rng.next_below(bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        self.counters.corrupted += 1;
    }

    fn schedule(&mut self, sent: Instant, frame: F) -> Instant {
        let jitter = self.rng.next_below_or_zero(Nanos::from(self.config.jitter).get());
        let mut at = sent + self.config.delay + Duration::from_nanos(jitter);
        let sequence = self.sequence;
        self.sequence += 1;
        if self.rng.chance(self.config.reorder.probability) {
            at += self.config.reorder.delay;
            self.counters.reordered += 1;
            self.reordered.push(ScheduledFrame { delivery_time: at, sequence, frame });
        } else {
            at = at.max(self.last_in_order);
            self.last_in_order = at;
            self.in_order.push_back(ScheduledFrame { delivery_time: at, sequence, frame });
        }
        at
    }
}

/// A frame and its delivery time. The earliest frame compares greatest, so that the heap returns it first.
#[derive(Debug)]
struct ScheduledFrame<F> {
    delivery_time: Instant,
    sequence: u64,
    frame: F,
}

impl<F> Ord for ScheduledFrame<F> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.delivery_time, other.sequence).cmp(&(self.delivery_time, self.sequence))
    }
}

impl<F> PartialOrd for ScheduledFrame<F> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<F> PartialEq for ScheduledFrame<F> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<F> Eq for ScheduledFrame<F> {}

#[cfg(test)]
mod tests;

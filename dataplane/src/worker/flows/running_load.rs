//! A load that the worker itself generates on a stream ([`crate::api::Load`]). A stream has at most one load.
//!
//! A load without a pace ([`Pace::Closed`]) posts whenever one of its messages completes, if its depth and the stream
//! allow. A load with a pace ([`Pace::Open`]) posts when a message is due; the worker polls [`PaceTimers`] once per
//! turn. A load stops posting when its count is reached, when a command stops the load or removes its region, or when a
//! post is refused. The load ends when all posted messages are complete.
//!
//! Messages that complete with their acknowledgement, and RDMA Reads, carry [`Cookie::LOAD`]. Messages that complete
//! with an untagged answer of the peer carry [`Cookie::STACK`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{Cookie, MESSAGE_QUEUE, Message, PostError, Qn, Source, Stag, TaggedOffset};
use hdrhistogram::Histogram;

use crate::api::{
    Load, LoadKind, LoadReport, MAX_LATENCY_NANOS, NOTICE_LEN, Order, Pace, PostFailure, Ticket,
    Window,
};
use crate::memory::Memory;
use crate::worker::flows::lower_layer::LowerLayerMut;

/// Times of the next posts of loads with a pace. Each running load has at most one valid entry. The entry of a load
/// that has ended remains until its time.
#[derive(Default)]
pub(in crate::worker) struct PaceTimers(BinaryHeap<Reverse<(Instant, u32)>>);

impl PaceTimers {
    pub(in crate::worker) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|&Reverse((at, _))| at)
    }

    /// Returns true if the earliest entry is due.
    #[inline]
    pub(in crate::worker) fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// Adds an entry: the load of the stream in `slot` is to be polled at `at`.
    pub(in crate::worker) fn push(&mut self, at: Instant, slot: u32) {
        self.0.push(Reverse((at, slot)));
    }

    /// Removes and returns the time and the slot of the earliest entry, if it is due.
    pub(in crate::worker) fn take_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if !self.is_due(now) {
            return None;
        }
        self.0.pop().map(|Reverse(due)| due)
    }
}

pub(in crate::worker) struct RunningLoad {
    ticket: Ticket,
    load: Load,
    is_rdmap: bool,
    /// Source region of writes.
    memory: Option<Memory>,
    /// Offset in `memory` of the load's [`Window`], the range that its messages read from, in bytes.
    offset: u64,
    /// Payload of each untagged message.
    payload: Arc<[u8]>,
    started_at: Instant,
    /// Time of the newest completion; `started_at` before the first completion.
    last_completion: Instant,
    /// Number of posted messages. A message that will not complete is subtracted again.
    posted: u64,
    completed: u64,
    /// Offset of the next message from the start of the [`Window`], in bytes. Used with sequential order only.
    next_offset: u64,
    /// Post times of the outstanding messages, oldest first. With a pace, their due times instead. Empty if latency is
    /// not recorded.
    outstanding: VecDeque<Instant>,
    latency: Option<Histogram<u64>>,
    /// Time at which the next message is due. Used with a pace only.
    due_at: Instant,
    /// Time of the load's entry in [`PaceTimers`], if any.
    armed_at: Option<Instant>,
    /// State of the generator of random offsets in the [`Window`].
    random: u64,
    /// True if a [`LoadKind::Notify`] has posted a write and must still post the notice that follows.
    notice_pending: bool,
    stopping: bool,
    /// Messages that were due or posted, but will not complete ([`LoadReport::unfinished`]).
    unfinished: u64,
    failure: Option<PostFailure>,
}

/// Maximum number of latency records for due messages that were never posted, to bound the work. Each record counts a
/// group of messages, with the longest wait of the group.
const OVERDUE_STEPS: u64 = 256;

base::prefetch!(RunningLoad:);

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, 3).expect("valid bounds of a histogram")
}

impl RunningLoad {
    /// Creates a load that begins now. `memory` is the source region of writes, and `offset` is the offset in `memory`
    /// of the load's [`Window`], in bytes. `seed` starts the generator of random offsets.
    pub(in crate::worker) fn new(
        ticket: Ticket,
        load: Load,
        rdmap: bool,
        memory: Option<Memory>,
        offset: u64,
        seed: u64,
        now: Instant,
    ) -> Self {
        let untagged = match load.kind {
            LoadKind::Send { .. } | LoadKind::Echo { .. } => load.len as usize,
            LoadKind::Notify { .. } => NOTICE_LEN,
            LoadKind::Write(_) | LoadKind::Read(_) => 0,
        };
        RunningLoad {
            ticket,
            load: Load { depth: load.depth.max(1), ..load },
            is_rdmap: rdmap,
            memory,
            offset,
            payload: vec![0x5a; untagged].into(),
            started_at: now,
            last_completion: now,
            posted: 0,
            completed: 0,
            next_offset: 0,
            outstanding: VecDeque::new(),
            latency: (load.timed || load.kind.has_response()).then(histogram),
            due_at: match load.pace {
                Pace::Closed => now,
                Pace::Open { phase, .. } => now + phase,
            },
            armed_at: None,
            random: seed,
            notice_pending: false,
            stopping: false,
            unfinished: 0,
            failure: None,
        }
    }

    /// Returns the local region: the source of writes or the sink of RDMA Reads. `None` for other loads.
    pub(in crate::worker) fn region(&self) -> Option<Stag> {
        self.load.kind.window().map(|window| window.local)
    }

    pub(in crate::worker) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Stops the load. Outstanding messages still complete, and the notice of a posted write is still posted. Due
    /// messages that were not posted count as unfinished. Their wait until now is recorded.
    pub(in crate::worker) fn stop(&mut self, now: Instant) {
        if !self.stopping {
            self.stopping = true;
            self.count_overdue(now);
        }
    }

    /// Stops the load because its oldest outstanding message will never complete.
    pub(in crate::worker) fn handle_flush(&mut self, now: Instant) {
        self.stop(now);
        self.drop_oldest(now);
        self.fail(PostFailure::Flushed);
    }

    /// Stops the load because none of its outstanding messages will complete.
    pub(in crate::worker) fn abandon(&mut self, now: Instant) {
        self.stop(now);
        while self.posted > self.completed {
            self.drop_oldest(now);
        }
        self.fail(PostFailure::Flushed);
    }

    /// Drops the oldest outstanding message, which will not complete. If the load has a pace, the message's wait until
    /// now is recorded.
    fn drop_oldest(&mut self, now: Instant) {
        if self.posted == self.completed {
            return;
        }
        self.posted -= 1;
        self.unfinished += 1;
        let since = self.outstanding.pop_front();
        if let (Pace::Open { .. }, Some(latency), Some(since)) =
            (self.load.pace, &mut self.latency, since)
        {
            latency.saturating_record((now - since).as_nanos() as u64);
        }
    }

    /// Counts the due messages that were not posted as unfinished, and records their waits. No effect without a pace.
    fn count_overdue(&mut self, now: Instant) {
        let Pace::Open { interval: every, .. } = self.load.pace else { return };
        let every = every.max(Duration::from_nanos(1));
        let first = if self.notice_pending { self.due_at + every } else { self.due_at };
        if first > now {
            return;
        }
        let (longest, every) = ((now - first).as_nanos() as u64, every.as_nanos() as u64);
        let overdue = (longest / every + 1).min(self.load.count - self.posted);
        self.unfinished += overdue;
        let Some(latency) = &mut self.latency else { return };
        let step = overdue.div_ceil(OVERDUE_STEPS).max(1);
        let mut at = 0;
        while at < overdue {
            latency.saturating_record_n(longest - at * every, step.min(overdue - at));
            at += step;
        }
    }

    /// Returns true while an outstanding message awaits an untagged answer of the peer.
    pub(in crate::worker) fn awaits_answer(&self) -> bool {
        let waits = matches!(self.load.kind, LoadKind::Echo { .. } | LoadKind::Notify { .. });
        waits && !self.outstanding.is_empty()
    }

    /// Posts all messages that the load's depth, its pace and the stream allow now.
    pub(in crate::worker) fn post_all(&mut self, lower: &mut LowerLayerMut<'_>, now: Instant) {
        while self.can_post() && self.is_due(now) {
            match self.post(lower, now) {
                Ok(()) => {}
                Err(PostError::Full) => break,
                Err(error) => self.fail(PostFailure::Refused(error)),
            }
        }
    }

    /// Records that an entry with time `at` was removed from [`PaceTimers`]. Returns false if the entry is stale, i.e.
    /// the load has none with this time.
    pub(in crate::worker) fn disarm(&mut self, at: Instant) -> bool {
        let armed = self.armed_at == Some(at);
        if armed {
            self.armed_at = None;
        }
        armed
    }

    fn can_post(&self) -> bool {
        let outstanding = self.posted - self.completed;
        // A posted write must be followed by its notice, without which the peer never answers.
        self.notice_pending
            || (!self.stopping
                && self.posted < self.load.count
                && outstanding < u64::from(self.load.depth))
    }

    /// Returns true if the next message is due. Without a pace, every message is due. The notice that follows a write
    /// is always due.
    fn is_due(&self, now: Instant) -> bool {
        self.notice_pending || matches!(self.load.pace, Pace::Closed) || self.due_at <= now
    }

    /// Returns the time at which to poll the load again, if only the pace delays the next post and the load has no
    /// entry in [`PaceTimers`] yet. A load at its depth limit is resumed by a completion instead.
    pub(in crate::worker) fn arm(&mut self, now: Instant) -> Option<Instant> {
        let waits = self.armed_at.is_none() && self.can_post() && !self.is_due(now);
        self.armed_at = if waits { Some(self.due_at) } else { self.armed_at };
        self.armed_at.filter(|_| waits)
    }

    pub(in crate::worker) fn is_finished(&self) -> bool {
        let done = self.stopping || self.posted >= self.load.count;
        done && !self.notice_pending && self.posted == self.completed
    }

    pub(in crate::worker) fn fail(&mut self, reason: PostFailure) {
        self.stopping = true;
        self.notice_pending &= matches!(reason, PostFailure::NoRegion);
        self.failure.get_or_insert(reason);
    }

    /// Posts the next message, or the notice of a posted write.
    fn post(&mut self, lower: &mut LowerLayerMut<'_>, now: Instant) -> Result<(), PostError> {
        match self.load.kind {
            LoadKind::Write(window) => {
                let at = self.next_position(window);
                self.write(lower, window, at, Cookie::LOAD)?;
                self.advance(at);
            }
            LoadKind::Read(window) => {
                let at = self.next_position(window);
                self.read(lower, window, at)?;
                self.advance(at);
            }
            LoadKind::Send { qn } => self.send(lower, qn, Cookie::LOAD)?,
            LoadKind::Echo { qn } => self.send(lower, qn, Cookie::STACK)?,
            LoadKind::Notify { window, qn } => {
                if !self.notice_pending {
                    let at = self.next_position(window);
                    self.write(lower, window, at, Cookie::STACK)?;
                    self.advance(at);
                    self.notice_pending = true;
                }
                self.send(lower, qn, Cookie::STACK)?;
                self.notice_pending = false;
            }
        }
        self.posted += 1;
        if self.latency.is_some() {
            // The latency of a message posted late counts from its due time.
            self.outstanding.push_back(match self.load.pace {
                Pace::Closed => now,
                Pace::Open { .. } => self.due_at,
            });
        }
        if let Pace::Open { interval: every, .. } = self.load.pace {
            self.due_at += every.max(Duration::from_nanos(1));
        }
        Ok(())
    }

    /// Returns the offset of the next message from the start of `window`, in bytes.
    fn next_position(&mut self, window: Window) -> u64 {
        if let Order::Random { stags } = window.order {
            let (part, len) = (window.stag_bytes(), u64::from(self.load.len));
            let stag = self.random_below(stags.max(1).into());
            return stag * part + self.random_below(part.saturating_sub(len) + 1);
        }
        let fits =
            self.next_offset.checked_add(self.load.len.into()).is_some_and(|e| e <= window.bytes);
        if fits { self.next_offset } else { 0 }
    }

    /// Returns a random number below `bound`, from splitmix64 scaled by multiplication. The bias is at most `bound` /
    /// 2^64.
    fn random_below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u64
    }

    fn advance(&mut self, at: u64) {
        self.next_offset = at + u64::from(self.load.len);
    }

    fn write(
        &self,
        lower: &mut LowerLayerMut<'_>,
        window: Window,
        at: u64,
        cookie: Cookie,
    ) -> Result<(), PostError> {
        let Some(memory) = &self.memory else { return Err(PostError::Closed) };
        let source = Source::Region { memory, offset: self.offset + at, len: self.load.len };
        let (stag, to) = (window.stag_at(at), TaggedOffset(window.base.0 + at));
        if self.is_rdmap {
            let source = source.cloned();
            lower.post_rdmap(WorkRequest::Write { stag, to, source, cookie })
        } else {
            lower.post_borrowed(Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie })
        }
    }

    fn read(
        &self,
        lower: &mut LowerLayerMut<'_>,
        window: Window,
        at: u64,
    ) -> Result<(), PostError> {
        let to = TaggedOffset(window.base.0 + at);
        lower.post_rdmap(WorkRequest::Read {
            sink_stag: window.local,
            sink_to: to,
            source_stag: window.stag_at(at),
            source_to: to,
            len: self.load.len,
            cookie: Cookie::LOAD,
        })
    }

    fn send(&self, lower: &mut LowerLayerMut<'_>, qn: Qn, cookie: Cookie) -> Result<(), PostError> {
        let source = Source::Bytes(self.payload.clone());
        if self.is_rdmap {
            let (solicited, invalidate) = (false, None);
            lower.post_rdmap(WorkRequest::Send { source, solicited, invalidate, cookie })
        } else {
            lower.post(Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie })
        }
    }

    /// Records the completion of `messages` messages. Returns their total length in bytes.
    pub(in crate::worker) fn record_completions(&mut self, messages: u32, now: Instant) -> u64 {
        self.completed = self.posted.min(self.completed + u64::from(messages));
        self.last_completion = now;
        if let Some(latency) = &mut self.latency {
            for posted in self.outstanding.drain(..self.outstanding.len().min(messages as usize)) {
                latency.saturating_record((now - posted).as_nanos() as u64);
            }
        }
        u64::from(messages) * u64::from(self.load.len)
    }

    pub(in crate::worker) fn into_report(self) -> LoadReport {
        LoadReport {
            messages: self.completed,
            bytes: self.completed.saturating_mul(self.load.len.into()),
            nanoseconds: (self.last_completion - self.started_at).as_nanos() as u64,
            latency: self.latency,
            unfinished: self.unfinished,
            failure: self.failure,
        }
    }
}

/// Queue number of RDMAP Sends, for loads and services.
pub(in crate::worker) const SEND_QUEUE: Qn = MESSAGE_QUEUE;

//! Load on a stream that the worker generates itself ([`crate::api::Load`]).
//!
//! A load posts in the turn in which one of its messages completes, as far as its depth and the stream allow. A load
//! with a pace ([`Pace::Open`]) posts when a message is due; due messages are polled once a turn ([`Paced`]). A load
//! ends when all posted messages are complete and it posts no more: its count is reached, it was stopped, or a post
//! was refused. A stream has at most one.
//!
//! Messages that complete when they are acknowledged carry [`Cookie::LOAD`]; messages that complete with the peer's
//! answer carry [`Cookie::STACK`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{Cookie, MESSAGE_QUEUE, Message, PostError, Qn, Source, Stag, TaggedOffset};
use hdrhistogram::Histogram;

use crate::api::{
    LONGEST_LATENCY, Load, LoadKind, LoadReport, NOTICE_LEN, Order, Pace, PostFailure, Ticket,
    Window,
};
use crate::memory::Memory;
use crate::worker::flows::lower::LowerMut;

/// Times at which loads with a pace post next: at most one entry for each, plus stale entries of loads that ended
/// before their time.
#[derive(Default)]
pub(in crate::worker) struct Paced(BinaryHeap<Reverse<(Instant, u32)>>);

impl Paced {
    /// Returns the earliest time.
    pub(in crate::worker) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|&Reverse((at, _))| at)
    }

    /// Returns true if an entry is due.
    #[inline]
    pub(in crate::worker) fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// Adds an entry: the stream in `slot` posts at `at`.
    pub(in crate::worker) fn push(&mut self, at: Instant, slot: u32) {
        self.0.push(Reverse((at, slot)));
    }

    /// Removes and returns the earliest entry, if it is due.
    pub(in crate::worker) fn take_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if !self.is_due(now) {
            return None;
        }
        self.0.pop().map(|Reverse(due)| due)
    }
}

/// A running load.
pub(in crate::worker) struct Running {
    ticket: Ticket,
    load: Load,
    rdmap: bool,
    /// The region that writes are read from.
    memory: Option<Memory>,
    /// Offset of the window in `memory`, bytes.
    offset: u64,
    /// Payload of untagged messages.
    bytes: Arc<[u8]>,
    begun: Instant,
    /// Time of the newest completion; `begun` before the first.
    last: Instant,
    posted: u64,
    complete: u64,
    /// Bytes from the start of the window to the next message.
    next: u64,
    /// Times at which the outstanding messages were posted or due, oldest first; empty if no latency is recorded.
    under_way: VecDeque<Instant>,
    latency: Option<Histogram<u64>>,
    /// Due time of the next message; of a load with a pace.
    due: Instant,
    /// Time of its entry in [`Paced`], if it has one.
    armed: Option<Instant>,
    /// State of the generator of random window positions.
    random: u64,
    /// The write of the current pair is posted, its notice is not.
    half: bool,
    stopping: bool,
    /// See [`LoadReport::unfinished`].
    unfinished: u64,
    failure: Option<PostFailure>,
}

/// Steps in which the waits of due messages that were never posted are recorded. This bounds the work; each step
/// counts with its longest wait.
const OWED_STEPS: u64 = 256;

base::prefetch!(Running:);

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_LATENCY, 3).expect("bounds that a histogram can have")
}

impl Running {
    /// Creates a load that begins now. The pair is the region that writes are read from and the offset of the window
    /// in it; `seed` starts the generator of random positions.
    pub(in crate::worker) fn new(
        ticket: Ticket,
        load: Load,
        rdmap: bool,
        (memory, offset): (Option<Memory>, u64),
        seed: u64,
        now: Instant,
    ) -> Self {
        let untagged = match load.kind {
            LoadKind::Send { .. } | LoadKind::Echo { .. } => load.len as usize,
            LoadKind::Notify { .. } => NOTICE_LEN,
            LoadKind::Write(_) | LoadKind::Read(_) => 0,
        };
        Running {
            ticket,
            load: Load { depth: load.depth.max(1), ..load },
            rdmap,
            memory,
            offset,
            bytes: vec![0x5a; untagged].into(),
            begun: now,
            last: now,
            posted: 0,
            complete: 0,
            next: 0,
            under_way: VecDeque::new(),
            latency: (load.timed || load.kind.is_answered()).then(histogram),
            due: match load.pace {
                Pace::Closed => now,
                Pace::Open { phase, .. } => now + phase,
            },
            armed: None,
            random: seed,
            half: false,
            stopping: false,
            unfinished: 0,
            failure: None,
        }
    }

    /// Returns the local region that the load reads from or writes to, if any.
    pub(in crate::worker) fn region(&self) -> Option<Stag> {
        self.load.kind.window().map(|window| window.local)
    }

    /// Returns the control thread's identifier of the load.
    pub(in crate::worker) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Stops the load. Outstanding messages complete first, and the notice of a pair whose write is posted still
    /// follows. Due messages of a load with a pace that were not posted count as unfinished, with their wait until now.
    pub(in crate::worker) fn stop(&mut self, now: Instant) {
        if !self.stopping {
            self.stopping = true;
            self.count_owed(now);
        }
    }

    /// Stops the load because its oldest outstanding message will never complete.
    pub(in crate::worker) fn flushed(&mut self, now: Instant) {
        self.stop(now);
        self.drop_oldest(now);
        self.fail(PostFailure::Flushed);
    }

    /// Stops the load because none of its outstanding messages will complete.
    pub(in crate::worker) fn abandon(&mut self, now: Instant) {
        self.stop(now);
        while self.posted > self.complete {
            self.drop_oldest(now);
        }
        self.fail(PostFailure::Flushed);
    }

    /// Drops the oldest outstanding message, which will not complete. With a pace, the time that it has waited is
    /// recorded.
    fn drop_oldest(&mut self, now: Instant) {
        if self.posted == self.complete {
            return;
        }
        self.posted -= 1;
        self.unfinished += 1;
        let since = self.under_way.pop_front();
        if let (Pace::Open { .. }, Some(latency), Some(since)) =
            (self.load.pace, &mut self.latency, since)
        {
            latency.saturating_record((now - since).as_nanos() as u64);
        }
    }

    /// Counts messages of a load with a pace that are due and not posted as unfinished, and records their waits.
    fn count_owed(&mut self, now: Instant) {
        let Pace::Open { every, .. } = self.load.pace else { return };
        let every = every.max(Duration::from_nanos(1));
        let first = if self.half { self.due + every } else { self.due };
        if first > now {
            return;
        }
        let (longest, every) = ((now - first).as_nanos() as u64, every.as_nanos() as u64);
        let owed = (longest / every + 1).min(self.load.count - self.posted);
        self.unfinished += owed;
        let Some(latency) = &mut self.latency else { return };
        let step = owed.div_ceil(OWED_STEPS).max(1);
        let mut at = 0;
        while at < owed {
            latency.saturating_record_n(longest - at * every, step.min(owed - at));
            at += step;
        }
    }

    /// Returns true while a message awaits an untagged answer.
    pub(in crate::worker) fn awaits_answer(&self) -> bool {
        let waits = matches!(self.load.kind, LoadKind::Echo { .. } | LoadKind::Notify { .. });
        waits && !self.under_way.is_empty()
    }

    /// Posts all messages that may be posted now.
    pub(in crate::worker) fn post_all(&mut self, lower: &mut LowerMut<'_>, now: Instant) {
        while self.wants_more() && self.is_due(now) {
            match self.post(lower, now) {
                Ok(()) => {}
                Err(PostError::Full) => break,
                Err(error) => self.fail(PostFailure::Refused(error)),
            }
        }
    }

    /// Clears the load's entry in [`Paced`] for `at`, which was taken out. Returns whether it had one.
    pub(in crate::worker) fn disarm(&mut self, at: Instant) -> bool {
        let armed = self.armed == Some(at);
        if armed {
            self.armed = None;
        }
        armed
    }

    fn wants_more(&self) -> bool {
        let under_way = self.posted - self.complete;
        // A posted write is always followed by its notice; otherwise the answer never comes.
        self.half
            || (!self.stopping
                && self.posted < self.load.count
                && under_way < u64::from(self.load.depth))
    }

    /// Returns whether the pace allows the next message by now. The second half of a pair is always due.
    fn is_due(&self, now: Instant) -> bool {
        self.half || matches!(self.load.pace, Pace::Closed) || self.due <= now
    }

    /// Returns the time at which to poll the load again, if only its pace holds it back. A load at its depth is
    /// resumed by a completion.
    pub(in crate::worker) fn arms(&mut self, now: Instant) -> Option<Instant> {
        let waits = self.armed.is_none() && self.wants_more() && !self.is_due(now);
        self.armed = if waits { Some(self.due) } else { self.armed };
        self.armed.filter(|_| waits)
    }

    pub(in crate::worker) fn is_over(&self) -> bool {
        let done = self.stopping || self.posted >= self.load.count;
        done && !self.half && self.posted == self.complete
    }

    pub(in crate::worker) fn fail(&mut self, reason: PostFailure) {
        self.stopping = true;
        self.half &= matches!(reason, PostFailure::NoRegion);
        self.failure.get_or_insert(reason);
    }

    /// Posts the next message, or the second half of a pair.
    fn post(&mut self, lower: &mut LowerMut<'_>, now: Instant) -> Result<(), PostError> {
        match self.load.kind {
            LoadKind::Write(window) => {
                let at = self.place(window);
                self.write(lower, window, at, Cookie::LOAD)?;
                self.moved(at);
            }
            LoadKind::Read(window) => {
                let at = self.place(window);
                self.read(lower, window, at)?;
                self.moved(at);
            }
            LoadKind::Send { qn } => self.send(lower, qn, Cookie::LOAD)?,
            LoadKind::Echo { qn } => self.send(lower, qn, Cookie::STACK)?,
            LoadKind::Notify { window, qn } => {
                if !self.half {
                    let at = self.place(window);
                    self.write(lower, window, at, Cookie::STACK)?;
                    self.moved(at);
                    self.half = true;
                }
                self.send(lower, qn, Cookie::STACK)?;
                self.half = false;
            }
        }
        self.posted += 1;
        if self.latency.is_some() {
            // The latency of a late post counts from its due time.
            self.under_way.push_back(match self.load.pace {
                Pace::Closed => now,
                Pace::Open { .. } => self.due,
            });
        }
        if let Pace::Open { every, .. } = self.load.pace {
            self.due += every.max(Duration::from_nanos(1));
        }
        Ok(())
    }

    /// Returns the offset in the window of the next message.
    fn place(&mut self, window: Window) -> u64 {
        if let Order::Random { stags } = window.order {
            let (part, len) = (window.part(), u64::from(self.load.len));
            let stag = self.draw(stags.max(1).into());
            return stag * part + self.draw(part.saturating_sub(len) + 1);
        }
        let fits = self.next.checked_add(self.load.len.into()).is_some_and(|e| e <= window.bytes);
        if fits { self.next } else { 0 }
    }

    /// Returns a number below `bound`: splitmix64, scaled. The bounds here are far below 2^32, so the bias is at most
    /// one part in 2^32.
    fn draw(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u64
    }

    fn moved(&mut self, at: u64) {
        self.next = at + u64::from(self.load.len);
    }

    fn write(
        &self,
        lower: &mut LowerMut<'_>,
        window: Window,
        at: u64,
        cookie: Cookie,
    ) -> Result<(), PostError> {
        let Some(memory) = &self.memory else { return Err(PostError::Closed) };
        let source = Source::Region { memory, offset: self.offset + at, len: self.load.len };
        let (stag, to) = (window.stag_at(at), TaggedOffset(window.base.0 + at));
        if self.rdmap {
            let source = source.cloned();
            lower.post_rdmap(WorkRequest::Write { stag, to, source, cookie })
        } else {
            lower.post_lent(Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie })
        }
    }

    fn read(&self, lower: &mut LowerMut<'_>, window: Window, at: u64) -> Result<(), PostError> {
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

    fn send(&self, lower: &mut LowerMut<'_>, qn: Qn, cookie: Cookie) -> Result<(), PostError> {
        let source = Source::Bytes(self.bytes.clone());
        if self.rdmap {
            let (solicited, invalidate) = (false, None);
            lower.post_rdmap(WorkRequest::Send { source, solicited, invalidate, cookie })
        } else {
            lower.post(Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie })
        }
    }

    /// Records the completion of `messages` messages; returns their bytes.
    pub(in crate::worker) fn completed(&mut self, messages: u32, now: Instant) -> u64 {
        self.complete = self.posted.min(self.complete + u64::from(messages));
        self.last = now;
        if let Some(latency) = &mut self.latency {
            for posted in self.under_way.drain(..self.under_way.len().min(messages as usize)) {
                latency.saturating_record((now - posted).as_nanos() as u64);
            }
        }
        u64::from(messages) * u64::from(self.load.len)
    }

    pub(in crate::worker) fn into_report(self) -> LoadReport {
        LoadReport {
            messages: self.complete,
            bytes: self.complete.saturating_mul(self.load.len.into()),
            nanoseconds: (self.last - self.begun).as_nanos() as u64,
            latency: self.latency,
            unfinished: self.unfinished,
            failure: self.failure,
        }
    }
}

/// The queue of RDMAP's Sends, for loads.
pub(in crate::worker) const SENDS: Qn = MESSAGE_QUEUE;

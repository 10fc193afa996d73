//! Load on a stream that the worker makes by itself ([`crate::api::Load`]).
//!
//! A load posts in the turn in which something of it completes, as far as its depth and the stream allow. One
//! with a pace ([`Pace::Open`]) posts when a message is due; what is due is asked for once a turn ([`Paced`]).
//! It ends when all that it has posted is complete and it wants no more: because it has reached its
//! count, because it was told so, or because something was refused. A stream has at most one.
//!
//! Messages whose completion counts carry [`LOAD`]; those whose answer counts carry
//! [`NO_TICKET`](super::report::NO_TICKET).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{MESSAGE_QUEUE, Message, PostError, Qn, Source, Stag, StreamId, TaggedOffset};
use hdrhistogram::Histogram;
use tcp_lite::endpoint::UlpKind;

use super::Core;
use super::conn::{Conn, Stage};
use super::lower::Reach;
use super::report::NO_TICKET;
use crate::api::{
    Event, LONGEST_LATENCY, Load, LoadKind, LoadReport, NOTICE_LEN, Order, Pace, PostFailure,
    Ticket, Window,
};
use crate::io::PortIo;
use crate::memory::Memory;

/// The cookie of a load's messages that are complete when they are acknowledged or answered by RDMAP.
pub(super) const LOAD: u64 = u64::MAX - 1;

/// Messages that are due in one turn at most; the rest are posted in the next, and their times tell.
const DUE: usize = 256;

/// When the loads with a pace want to post next: an entry for each at most, besides those of loads that have ended
/// before their time.
#[derive(Default)]
pub(super) struct Paced(BinaryHeap<Reverse<(Instant, u32)>>);

impl Paced {
    /// The earliest moment.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|&Reverse((at, _))| at)
    }

    /// Something is due.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|at| at <= now)
    }
}

/// A load under way.
pub(super) struct Running {
    ticket: Ticket,
    load: Load,
    rdmap: bool,
    /// What writes are read from.
    memory: Option<Memory>,
    /// Offset of the window in it.
    offset: u64,
    /// What untagged messages hold.
    octets: Arc<[u8]>,
    begun: Instant,
    /// Of the newest completion.
    last: Instant,
    posted: u64,
    complete: u64,
    /// Octets from the window's begin to the next message.
    next: u64,
    /// When those were posted, or were due, that are not complete; empty where no times are recorded.
    under_way: VecDeque<Instant>,
    latency: Option<Histogram<u64>>,
    /// When the next message is due; of a load with a pace.
    due: Instant,
    /// The moment of its entry in [`Paced`], if it has one.
    armed: Option<Instant>,
    /// State of the generator of random places.
    random: u64,
    /// The write of the next pair is posted, its notice not.
    half: bool,
    stopping: bool,
    failure: Option<PostFailure>,
}

base::near!(Running:);

impl<Io: PortIo> Core<Io> {
    /// Begins a load. Whatever comes of it, an [`Event::LoadDone`] follows.
    pub(super) fn load(&mut self, stream: StreamId, load: Load, ticket: Ticket, now: Instant) {
        match self.begin_load(stream, load, ticket, now) {
            Ok(slot) => self.go_on_with_load(slot, now),
            Err(reason) => {
                let failed = LoadReport {
                    messages: 0,
                    octets: 0,
                    nanoseconds: 0,
                    latency: None,
                    failure: Some(reason),
                };
                let report = Box::new(failed);
                self.control.send(Event::LoadDone { stream, ticket, report });
            }
        }
    }

    fn begin_load(
        &mut self,
        stream: StreamId,
        load: Load,
        ticket: Ticket,
        now: Instant,
    ) -> Result<u32, PostFailure> {
        let slot = self.streams.find(stream).ok_or(PostFailure::NoStream)?;
        let params =
            self.streams.reach(slot, &mut self.associations).and_then(|lower| lower.params());
        let conn = self.streams.get_mut(slot).ok_or(PostFailure::NoStream)?;
        if conn.load.is_some() {
            return Err(PostFailure::Loaded);
        }
        let params = params.filter(|_| conn.stage == Stage::Established);
        let params = params.ok_or(PostFailure::Refused(PostError::Closed))?;
        let rdmap = params.ulp() != UlpKind::Ddp;
        let (memory, offset) = match load.kind.window() {
            None => (None, 0),
            Some(window) => {
                let entry = self.tables.stag(window.local).ok_or(PostFailure::NoRegion)?;
                let at = window.base.0.checked_sub(entry.base_to.0);
                let end = at.and_then(|at| at.checked_add(window.octets));
                let (Some(at), Some(_)) = (at, end.filter(|&end| end <= entry.len)) else {
                    let (offset, len) = (window.base.0, entry.len);
                    let end = offset.saturating_add(window.octets);
                    let error = PostError::OutOfBounds { offset, end, len };
                    return Err(PostFailure::Refused(error));
                };
                let source = (Some(entry.memory.clone()), entry.memory_offset + at);
                self.tables.add_source(window.local);
                source
            }
        };
        let untagged = match load.kind {
            LoadKind::Send { .. } | LoadKind::Echo { .. } => load.len as usize,
            LoadKind::Notify { .. } => NOTICE_LEN,
            LoadKind::Write(_) | LoadKind::Read(_) => 0,
        };
        conn.load = Some(Box::new(Running {
            ticket,
            load: Load { depth: load.depth.max(1), ..load },
            rdmap,
            memory,
            offset,
            octets: vec![0x5a; untagged].into(),
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
            random: u64::from(slot) + 1,
            half: false,
            stopping: false,
            failure: None,
        }));
        Ok(slot)
    }

    /// Nothing more is posted; what is under way completes first.
    pub(super) fn stop_load(&mut self, stream: StreamId, now: Instant) {
        let Some(slot) = self.streams.find(stream) else { return };
        if let Some(load) = self.streams.get_mut(slot).and_then(|conn| conn.load.as_mut()) {
            load.stopping = true;
            self.go_on_with_load(slot, now);
        }
    }

    /// Stops what reads from a region that goes.
    pub(super) fn stop_loads_from(&mut self, stag: Stag, now: Instant) {
        let slots = self.streams.slots();
        for slot in slots {
            let Some(conn) = self.streams.get_mut(slot) else { continue };
            if conn.loads_from(stag)
                && let Some(load) = &mut conn.load
            {
                load.fail(PostFailure::NoRegion);
                self.go_on_with_load(slot, now);
            }
        }
    }

    /// So many messages with the cookie [`LOAD`] are complete.
    pub(super) fn load_completed(&mut self, slot: u32, messages: u32, now: Instant) {
        if let Some(load) = self.streams.get_mut(slot).and_then(|conn| conn.load.as_mut()) {
            let octets = load.completed(messages, now);
            self.control.counters().load_messages.add(messages.into());
            self.control.counters().load_octets.add(octets);
            self.go_on_with_load(slot, now);
        }
    }

    /// A message with the cookie [`LOAD`] will never be complete.
    pub(super) fn load_flushed(&mut self, slot: u32, now: Instant) {
        if let Some(load) = self.streams.get_mut(slot).and_then(|conn| conn.load.as_mut()) {
            load.posted = load.posted.saturating_sub(1).max(load.complete);
            load.fail(PostFailure::Flushed);
            self.go_on_with_load(slot, now);
        }
    }

    /// True when the stream's load waits for this untagged message; it has been dealt with then.
    pub(super) fn load_answered(&mut self, slot: u32, qn: Qn, now: Instant) -> bool {
        let Some(conn) = self.streams.get_mut(slot) else { return false };
        let Some(load) = &conn.load else { return false };
        let waits = matches!(load.load.kind, LoadKind::Echo { .. } | LoadKind::Notify { .. });
        if !waits || load.under_way.is_empty() {
            return false;
        }
        self.give_buffers(slot, qn, 1);
        self.load_completed(slot, 1, now);
        true
    }

    /// Posts what may be posted, and ends the load if nothing is left to do.
    pub(super) fn go_on_with_load(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let Some(mut load) = conn.load.take() else { return };
        let stream = conn.id;
        let Some(mut lower) = conn.lower.reach(&mut self.associations) else { return };
        while load.wants_more() && load.is_due(now) {
            match load.post(&mut lower, now) {
                Ok(()) => {}
                Err(PostError::Full) => break,
                Err(error) => load.fail(PostFailure::Refused(error)),
            }
        }
        if load.is_over() {
            self.end_load(stream, *load);
        } else if let Some(conn) = self.streams.get_mut(slot) {
            if let Some(at) = load.arms(now) {
                self.paced.0.push(Reverse((at, slot)));
            }
            conn.load = Some(load);
        }
        self.touch(slot);
    }

    /// Posts what is due on streams whose load has a pace. Returns whether there was something.
    pub(super) fn post_due(&mut self, now: Instant) -> bool {
        let mut posted = 0;
        while posted < DUE && self.paced.is_due(now) {
            let Some(Reverse((at, slot))) = self.paced.0.pop() else { break };
            posted += 1;
            let load = self.streams.get_mut(slot).and_then(|conn| conn.load.as_mut());
            // The load that it was for may have ended, and another may run there.
            if let Some(load) = load.filter(|load| load.armed == Some(at)) {
                load.armed = None;
                self.go_on_with_load(slot, now);
            }
        }
        posted > 0
    }

    /// The stream is over, and with it its load.
    pub(super) fn flush_load(&mut self, slot: u32) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        if let Some(mut load) = conn.load.take() {
            load.fail(PostFailure::Flushed);
            let stream = conn.id;
            self.end_load(stream, *load);
        }
    }

    fn end_load(&mut self, stream: StreamId, load: Running) {
        if let Some(window) = load.load.kind.window() {
            self.tables.release_source(window.local);
        }
        let (ticket, report) = (load.ticket, Box::new(load.into_report()));
        self.control.send(Event::LoadDone { stream, ticket, report });
        self.tables.finish_removals(&mut self.control);
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_LATENCY, 3).expect("bounds that a histogram can have")
}

impl Conn {
    /// True while a load reads from the region or writes to it.
    pub(super) fn loads_from(&self, stag: Stag) -> bool {
        let window = self.load.as_ref().and_then(|load| load.load.kind.window());
        window.is_some_and(|window| window.local == stag)
    }
}

impl Running {
    fn wants_more(&self) -> bool {
        let under_way = self.posted - self.complete;
        // The notice of a pair whose write is posted follows whatever happens, or its answer never comes.
        self.half
            || (!self.stopping
                && self.posted < self.load.count
                && under_way < u64::from(self.load.depth))
    }

    /// The next message may be posted by now, as far as the pace says. The second half of a pair may always.
    fn is_due(&self, now: Instant) -> bool {
        self.half || matches!(self.load.pace, Pace::Closed) || self.due <= now
    }

    /// The moment at which it wants to be asked again, if it has a pace and is not held back by its depth: then
    /// a completion asks.
    fn arms(&mut self, now: Instant) -> Option<Instant> {
        let waits = self.armed.is_none() && self.wants_more() && !self.is_due(now);
        self.armed = if waits { Some(self.due) } else { self.armed };
        self.armed.filter(|_| waits)
    }

    fn is_over(&self) -> bool {
        let done = self.stopping || self.posted >= self.load.count;
        done && !self.half && self.posted == self.complete
    }

    fn fail(&mut self, reason: PostFailure) {
        self.stopping = true;
        self.half &= matches!(reason, PostFailure::NoRegion);
        self.failure.get_or_insert(reason);
    }

    /// Posts the next message, or the second half of a pair.
    fn post(&mut self, lower: &mut Reach<'_>, now: Instant) -> Result<(), PostError> {
        match self.load.kind {
            LoadKind::Write(window) => {
                let at = self.place(window);
                self.write(lower, window, at, LOAD)?;
                self.moved(at);
            }
            LoadKind::Read(window) => {
                let at = self.place(window);
                self.read(lower, window, at)?;
                self.moved(at);
            }
            LoadKind::Send { qn } => self.send(lower, qn, LOAD)?,
            LoadKind::Echo { qn } => self.send(lower, qn, NO_TICKET)?,
            LoadKind::Notify { window, qn } => {
                if !self.half {
                    let at = self.place(window);
                    self.write(lower, window, at, NO_TICKET)?;
                    self.moved(at);
                    self.half = true;
                }
                self.send(lower, qn, NO_TICKET)?;
                self.half = false;
            }
        }
        self.posted += 1;
        if self.latency.is_some() {
            // A message that comes late has waited since it was due.
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

    /// Where in the window the next message goes.
    fn place(&mut self, window: Window) -> u64 {
        if let Order::Random { stags } = window.order {
            let (part, len) = (window.part(), u64::from(self.load.len));
            let stag = self.draw(stags.max(1).into());
            return stag * part + self.draw(part.saturating_sub(len) + 1);
        }
        let fits = self.next.checked_add(self.load.len.into()).is_some_and(|e| e <= window.octets);
        if fits { self.next } else { 0 }
    }

    /// A number below `bound`: splitmix64, scaled. The bounds here are far below 2^32, so that no number is
    /// preferred by more than a part in 2^32.
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
        lower: &mut Reach<'_>,
        window: Window,
        at: u64,
        cookie: u64,
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

    fn read(&self, lower: &mut Reach<'_>, window: Window, at: u64) -> Result<(), PostError> {
        let to = TaggedOffset(window.base.0 + at);
        lower.post_rdmap(WorkRequest::Read {
            sink_stag: window.local,
            sink_to: to,
            source_stag: window.stag_at(at),
            source_to: to,
            len: self.load.len,
            cookie: LOAD,
        })
    }

    fn send(&self, lower: &mut Reach<'_>, qn: Qn, cookie: u64) -> Result<(), PostError> {
        let source = Source::Octets(self.octets.clone());
        if self.rdmap {
            let (solicited, invalidate) = (false, None);
            lower.post_rdmap(WorkRequest::Send { source, solicited, invalidate, cookie })
        } else {
            lower.post(Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie })
        }
    }

    /// So many messages are complete; returns their octets.
    fn completed(&mut self, messages: u32, now: Instant) -> u64 {
        self.complete = self.posted.min(self.complete + u64::from(messages));
        self.last = now;
        if let Some(latency) = &mut self.latency {
            for posted in self.under_way.drain(..self.under_way.len().min(messages as usize)) {
                latency.saturating_record((now - posted).as_nanos() as u64);
            }
        }
        u64::from(messages) * u64::from(self.load.len)
    }

    fn into_report(self) -> LoadReport {
        LoadReport {
            messages: self.complete,
            octets: self.complete.saturating_mul(self.load.len.into()),
            nanoseconds: (self.last - self.begun).as_nanos() as u64,
            latency: self.latency,
            failure: self.failure,
        }
    }
}

/// The queue of RDMAP's Sends, as loads name it.
pub(super) const SENDS: Qn = MESSAGE_QUEUE;

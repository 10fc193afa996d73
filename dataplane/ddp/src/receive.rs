//! The data sink: checks, placement at arrival, delivery in order (RFC 5041 §5.3, §5.4, §7.1).
//!
//! ```text
//!   keys ->   delivered         | order        gap          beyond
//!   ----------------------------+-------------------+---[r]----[r]--[E]------->
//!   below `order`: delivered;   in order: checked,   [r]: placed,   [E]: error,
//!   ignored if received again   placed, delivered    recorded       nothing placed
//! ```
//!
//! A segment is validated. If it is in order, its position in its message is checked before it is placed. A segment
//! beyond a gap is placed and leaves a [`Record`]; its position is checked when all earlier segments have arrived.

use core::fmt;
use std::sync::Arc;

use base::{Blank, Lazy, LazyDeque};
use wire::ddp::{HeaderRepr, UNTAGGED_HEADER_LEN, UntaggedRepr};
use wire::{DdpVersion, Qn};

use crate::buffers::{Account, BufferPool, PeerId};
use crate::checks::{Reject, UlpChecks};
use crate::config::{ReceiveMode, StreamConfig};
use crate::counters::Counters;
use crate::error::{ErrorCode, Field, Mismatch, PostError};
use crate::llp::{Disposition, MAX_DDP_HEADER, OrderKey, Ulpdu};
use crate::memory::RegionMemory;
use crate::message::Event;
use crate::stag::{PdId, StagTable, StreamId};

pub(crate) use check::with_control_byte;
use check::{parse, parse_tagged, wrong_version};
use errors::OrderedError;
pub use posted::{Receive, ReceiveSource};
use queue::Queue;
use ranges::STEP_BYTES;
pub(crate) use ranges::{InsertError, Ranges};
use tagged::TaggedMessage;

mod check;
mod errors;
mod posted;
mod queue;
mod ranges;
mod tagged;
#[cfg(test)]
mod tests;

/// The parts of the stream and the worker that a receiver uses.
pub(crate) struct Env<'a, M, C> {
    pub(crate) id: StreamId,
    pub(crate) pd: PdId,
    pub(crate) stags: &'a StagTable<M>,
    pub(crate) buffers: &'a mut BufferPool,
    pub(crate) events: &'a mut LazyDeque<Event>,
    pub(crate) counters: &'a mut Counters,
    /// The ULP's part of the data sink.
    pub(crate) checks: &'a mut C,
}

/// A validated segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    header: HeaderRepr,
    /// Payload length of the segment, bytes.
    len: u32,
    /// Index of an untagged segment's queue.
    queue: u16,
}

/// Record of a segment placed beyond a gap.
#[derive(Clone, Copy, Debug)]
struct Record {
    key: OrderKey,
    segment: Segment,
    /// The first byte of the header, the only copy of its reserved bits.
    control: u8,
}

const _: () = assert!(size_of::<Record>() <= 48);

/// Capacity, in records, that the queue keeps while it has no records.
const IDLE_RECORDS: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    PeerClosed,
    Stopped,
}

/// Receive half of a stream. `E` is the type of the ULP's error codes.
pub(crate) struct Receiver<M, E> {
    state: State,
    version: Option<DdpVersion>,
    /// All segments below this key have been handed over.
    order: OrderKey,
    /// The error with the lowest key. Segments at or beyond it are ignored.
    error: Option<Box<OrderedError<E>>>,
    /// Buffers of the first queue.
    buffers: FirstQueueBuffers,
    /// True to report deliveries of tagged messages as events.
    tagged_events: bool,
    /// Segments beyond a gap, by key.
    records: LazyDeque<Record>,
    max_records: u32,
    unfinished: Lazy<Unfinished<M>>,
    queues: Box<[Queue]>,
    peer: PeerId,
}

base::prefetch!(Receiver<M, E> [M, E]: queues, unfinished);

// A derived implementation would require `M: Clone`.
impl<M, E: fmt::Debug> fmt::Debug for Receiver<M, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Receiver { state, order, error, records, queues, .. } = self;
        let mut out = f.debug_struct("Receiver");
        out.field("state", state).field("order", order).field("error", error);
        out.field("records", records).field("queues", queues).finish_non_exhaustive()
    }
}

/// Kind of the buffers of a receiver's first queue. The type has a size of one byte, because each stream stores a
/// value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FirstQueueBuffers {
    /// Buffers of the worker's pool.
    Pooled,
    /// Posted receives of the stream.
    Posted,
    /// Receives of a source that streams share.
    Shared,
}

/// State of messages that are not complete.
#[derive(Clone, Debug)]
struct Unfinished<M> {
    tagged: Option<TaggedMessage>,
    /// Bytes of the worker's buffers reserved for these messages.
    account: Account,
    /// Receives of the first queue. Index i belongs to the message with MSN next + i, where next is the MSN to be
    /// delivered next. A posted receive is queued before its message begins. With a shared source, an entry is `None`
    /// until its message begins.
    receives: LazyDeque<Option<Receive<M>>>,
    /// The shared source of receives, if it has been set.
    source: Option<Arc<dyn ReceiveSource<M>>>,
}

base::prefetch!(Unfinished<M> [M]: receives);

impl<M> Unfinished<M> {
    /// Returns the account, assigned to the stream's `peer`.
    fn account_of(&mut self, peer: PeerId) -> &mut Account {
        self.account.peer = peer;
        &mut self.account
    }
}

impl<M: Clone + 'static> Blank for Unfinished<M> {
    fn blank() -> &'static Self {
        const {
            &Unfinished {
                tagged: None,
                account: Account::EMPTY,
                receives: LazyDeque::new(),
                source: None,
            }
        }
    }
}

impl<M: RegionMemory, E: Copy> Receiver<M, E> {
    /// Returns a receiver. `receives`: the receive buffers of the first queue.
    pub(crate) fn new(config: &StreamConfig, receives: ReceiveMode) -> Self {
        let mut queues: Box<[Queue]> = config.queues.iter().map(Queue::new).collect();
        match (receives, queues.first_mut()) {
            (ReceiveMode::Posted { max_receives }, Some(first)) => {
                first.set_max_receives(max_receives, false);
            }
            (ReceiveMode::Shared { max_receives }, Some(first)) => {
                first.set_max_receives(max_receives, true);
            }
            (ReceiveMode::Pooled, _) | (_, None) => {}
        }
        Receiver {
            state: State::Open,
            version: config.version.fixed(),
            order: OrderKey(0),
            error: None,
            buffers: match receives {
                ReceiveMode::Pooled => FirstQueueBuffers::Pooled,
                ReceiveMode::Posted { .. } => FirstQueueBuffers::Posted,
                ReceiveMode::Shared { .. } => FirstQueueBuffers::Shared,
            },
            tagged_events: config.tagged_events,
            records: LazyDeque::new(),
            max_records: u32::try_from(config.max_ooo_records).unwrap_or(u32::MAX),
            unfinished: Lazy::new(),
            queues,
            peer: PeerId::default(),
        }
    }

    pub(crate) fn set_peer(&mut self, peer: PeerId) {
        self.peer = peer;
    }

    pub(crate) fn version(&self) -> Option<DdpVersion> {
        self.version
    }

    pub(crate) fn is_peer_closed(&self) -> bool {
        self.state == State::PeerClosed
    }

    /// Returns true if an error was found, even if earlier segments are missing.
    #[inline]
    pub(crate) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Records the peer's close. Returns true if the close interrupts a message or leaves a gap, and `None` if
    /// receiving had already ended.
    pub(crate) fn on_peer_closed(&mut self) -> Option<bool> {
        if self.state != State::Open {
            return None;
        }
        self.state = State::PeerClosed;
        let unfinished =
            self.unfinished.tagged.is_some() || self.queues.iter().any(Queue::has_unfinished);
        Some(unfinished || !self.records.is_empty())
    }

    pub(crate) fn shrink(&mut self) {
        if let Some(unfinished) = self.unfinished.get_mut() {
            unfinished.receives.shrink();
            let is_blank = unfinished.receives.is_blank() && unfinished.account.is_empty();
            if is_blank && unfinished.tagged.is_none() && unfinished.source.is_none() {
                self.unfinished.release();
            }
        }
        self.records.shrink();
        self.queues.iter_mut().for_each(Queue::shrink);
    }

    pub(crate) fn stop(&mut self) {
        self.state = State::Stopped;
        self.records.release();
    }

    pub(crate) fn release(&mut self, buffers: &mut BufferPool) {
        if let Some(unfinished) = self.unfinished.get_mut() {
            for queue in &mut self.queues {
                queue.release(buffers, &mut unfinished.account);
            }
            // The bytes that remain in the account were reserved for ranges of the ULP's messages.
            buffers.release_all(&mut unfinished.account);
        }
    }

    /// Releases `bytes` of the worker's buffers that were reserved for ranges of a ULP's message.
    pub(crate) fn release_range_memory(&mut self, buffers: &mut BufferPool, bytes: u64) {
        if let Some(unfinished) = self.unfinished.get_mut() {
            buffers.release(&mut unfinished.account, bytes, true);
        }
    }

    pub(crate) fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        let index = self.queues.iter().position(|q| q.qn() == qn);
        let index = index.ok_or(PostError::NoSuchQueue(qn.0))?;
        if self.has_receives(index) {
            return Err(PostError::OtherReceiveMode);
        }
        self.queues[index].post(n);
        Ok(())
    }

    /// Returns true if the queue at `index` has receives, posted or shared, instead of pooled buffers.
    #[inline]
    fn has_receives(&self, index: usize) -> bool {
        index == 0 && self.buffers != FirstQueueBuffers::Pooled
    }

    pub(crate) fn posted_buffers(&self, qn: Qn) -> Option<u32> {
        self.queues.iter().find(|q| q.qn() == qn).map(Queue::posted)
    }

    /// Returns the capacity for records.
    #[cfg(test)]
    pub(crate) fn record_capacity(&self) -> usize {
        self.records.capacity()
    }

    /// Returns true if state of unfinished messages or receives is allocated.
    #[cfg(test)]
    pub(crate) fn holds_unfinished_state(&self) -> bool {
        !self.unfinished.is_blank()
    }

    #[cfg(test)]
    pub(crate) fn start_queue_at(&mut self, qn: Qn, msn: wire::Msn) {
        self.queues.iter_mut().filter(|q| q.qn() == qn).for_each(|q| q.start_at(msn));
    }

    pub(crate) fn ulpdu<C: UlpChecks<Code = E>>(
        &mut self,
        key: OrderKey,
        ulpdu: Ulpdu<'_>,
        env: &mut Env<'_, M, C>,
    ) -> Disposition {
        let in_order = key == self.order;
        if in_order
            && self.is_gapless()
            && let Some(header) = ulpdu.front_piece().and_then(parse_tagged)
        {
            return match self.accept_next_tagged(&header, ulpdu, env) {
                Ok(len) => {
                    env.counters.segments_received += 1;
                    self.order = OrderKey(key.0 + 1);
                    Disposition::Placed(len as usize)
                }
                Err(reject) => self.reject(key, reject, ulpdu, env),
            };
        }
        let Ok(at) = self.record_index(key) else {
            // RFC 5041 §7.1: after an error, segments are dropped silently. §5.3: each segment is delivered at most
            // once.
            env.counters.segments_ignored += 1;
            return Disposition::Ignored;
        };
        if !in_order && self.records.len() >= self.max_records as usize {
            env.counters.segments_refused += 1;
            return Disposition::Refused;
        }
        let mut bytes = [0; MAX_DDP_HEADER];
        let seen = ulpdu.copy_prefix(&mut bytes);
        // `segment` is passed by reference. Its fields were just stored individually, and a copy would load several of
        // them at once. The CPU cannot forward such loads from its store buffer: they would wait for all earlier
        // stores, including those of the previous payload.
        let taken = match parse(&bytes[..seen], ulpdu.len()) {
            Ok(header) => {
                let len = (ulpdu.len() - header.len()) as u32;
                let mut segment = Segment { header, len, queue: 0 };
                let taken = self.accept(key, in_order, &mut segment, ulpdu, env);
                if taken.is_ok() && !in_order {
                    self.records.insert(at, Record { key, segment, control: bytes[0] });
                }
                taken.map(|()| len)
            }
            Err(reject) => Err(reject),
        };
        match taken {
            Ok(len) => {
                env.counters.segments_received += 1;
                if in_order {
                    self.order = OrderKey(key.0 + 1);
                    self.deliver_in_order(env);
                } else {
                    let max = &mut env.counters.ooo_records_max;
                    *max = (*max).max(self.records.len() as u64);
                }
                Disposition::Placed(len as usize)
            }
            Err(reject) => self.reject(key, reject, ulpdu, env),
        }
    }

    /// Returns true while the stream is open, no segment waits beyond a gap, and no error was found.
    #[inline]
    fn is_gapless(&self) -> bool {
        self.state == State::Open && self.error.is_none() && self.records.is_empty()
    }

    /// Records that all segments with keys below `before` have arrived. Returns true if
    /// [`deliver_in_order`](Self::deliver_in_order) may have work.
    #[inline]
    pub(crate) fn advance_order(&mut self, before: OrderKey) -> bool {
        self.order = self.order.max(before);
        !self.records.is_blank() || self.error.is_some()
    }

    /// Returns the index at which to insert a record with this key, or an error if its segment is to be ignored.
    #[inline]
    fn record_index(&self, key: OrderKey) -> Result<usize, ()> {
        let beyond_error = self.error.as_ref().is_some_and(|e| e.key <= key);
        if self.state != State::Open || key < self.order || beyond_error {
            return Err(());
        }
        match self.records.back() {
            None => Ok(0),
            Some(back) if back.key < key => Ok(self.records.len()),
            Some(_) => self.records.binary_search_by_key(&key, |r| r.key).err().ok_or(()),
        }
    }

    /// Validates and places one segment. If it is in order, also delivers the message that it completes.
    fn accept<C: UlpChecks<Code = E>>(
        &mut self,
        key: OrderKey,
        in_order: bool,
        segment: &mut Segment,
        ulpdu: Ulpdu<'_>,
        env: &mut Env<'_, M, C>,
    ) -> Result<(), Reject<E>> {
        self.check_version(&segment.header)?;
        let len = segment.len;
        match &segment.header {
            HeaderRepr::Tagged(tagged) => {
                self.accept_tagged(tagged, in_order, segment, ulpdu, env)?;
            }
            HeaderRepr::Untagged(untagged) => {
                let index = self.queues.iter().position(|q| q.qn() == untagged.qn);
                let index = index.ok_or(Reject::Ddp(
                    ErrorCode::InvalidQn,
                    Mismatch::unexpected(Field::Qn, untagged.qn.0.into()),
                ))?;
                segment.queue = index as u16;
                if self.has_receives(index) {
                    return self.accept_into_receive(key, in_order, segment, untagged, ulpdu, env);
                }
                if in_order && self.queues[index].would_complete(untagged) {
                    return self.accept_whole_message(segment, untagged, ulpdu, env);
                }
                self.queues[index].prepare(
                    key,
                    untagged,
                    len,
                    in_order,
                    env.buffers,
                    self.unfinished.account_of(self.peer),
                )?;
                env.checks.admit(&segment.header, len)?;
                let complete = in_order && self.advance_or_grow(segment, env)?;
                let pieces = ulpdu.pieces_from(UNTAGGED_HEADER_LEN);
                self.queues[index].place(untagged, len, pieces);
                self.count_placed(len, in_order, env.counters);
                if complete {
                    self.deliver_assembled(segment, untagged, ulpdu.first_byte(), env);
                }
            }
        }
        Ok(())
    }

    /// Delivers an in-order untagged message of one segment to a queue without an unfinished message. The message never
    /// counts as unfinished.
    fn accept_whole_message<C: UlpChecks<Code = E>>(
        &mut self,
        segment: &Segment,
        header: &UntaggedRepr,
        ulpdu: Ulpdu<'_>,
        env: &mut Env<'_, M, C>,
    ) -> Result<(), Reject<E>> {
        let queue = &mut self.queues[usize::from(segment.queue)];
        queue.admit_whole(header, segment.len, env.buffers)?;
        env.checks.admit(&segment.header, segment.len)?;
        self.version = Some(segment.header.version());
        let mut data = env.buffers.take(segment.len as usize);
        data.reserve(segment.len as usize);
        ulpdu.pieces_from(UNTAGGED_HEADER_LEN).for_each(|piece| data.extend_from_slice(piece));
        queue.consume_buffer();
        self.count_placed(segment.len, true, env.counters);
        self.deliver_untagged(segment, header, ulpdu.first_byte(), data, env);
        Ok(())
    }

    #[inline]
    fn count_placed(&self, len: u32, in_order: bool, counters: &mut Counters) {
        if in_order {
            counters.placed_in_order_bytes += u64::from(len);
        } else {
            counters.placed_out_of_order_bytes += u64::from(len);
        }
    }

    /// Checks that all segments of a stream have one version (RFC 5041 §4.1).
    #[inline]
    fn check_version(&self, header: &HeaderRepr) -> Result<(), Reject<E>> {
        match self.version {
            Some(version) if version != header.version() => {
                Err(wrong_version(header, header.version().bits(), version))
            }
            _ => Ok(()),
        }
    }

    /// Advances the message by its next segment in order. Returns true if the segment completes the message.
    #[inline]
    fn advance_or_grow<C: UlpChecks<Code = E>>(
        &mut self,
        segment: &Segment,
        env: &mut Env<'_, M, C>,
    ) -> Result<bool, Reject<E>> {
        match self.advance_message(segment, env.checks) {
            Ok(complete) => Ok(complete),
            Err(reject) => self.retry_advance(reject, segment, env),
        }
    }

    /// If the segment was rejected only for lack of memory to record its range, reserves more memory and retries.
    /// RFC 5041 §5.2: valid segments are placed in any order of offsets, as long as the peer's share of memory suffices
    /// for the ranges.
    #[cold]
    fn retry_advance<C: UlpChecks<Code = E>>(
        &mut self,
        reject: Reject<E>,
        segment: &Segment,
        env: &mut Env<'_, M, C>,
    ) -> Result<bool, Reject<E>> {
        let Reject::NoRangeRoom = reject else { return Err(reject) };
        let account = self.unfinished.account_of(self.peer);
        if !env.buffers.reserve(account, STEP_BYTES, true) {
            return Err(Reject::Refused);
        }
        match &segment.header {
            HeaderRepr::Tagged(_) => env.checks.grow_ranges(),
            HeaderRepr::Untagged(_) => self.queues[usize::from(segment.queue)].grow_ranges(),
        }
        self.advance_message(segment, env.checks)
    }

    #[inline]
    fn advance_message<C: UlpChecks<Code = E>>(
        &mut self,
        segment: &Segment,
        checks: &mut C,
    ) -> Result<bool, Reject<E>> {
        self.check_version(&segment.header)?;
        self.version = Some(segment.header.version());
        match &segment.header {
            HeaderRepr::Tagged(tagged) => {
                checks.advance(tagged, segment.len)?;
                self.advance_tagged(tagged, segment.len)
            }
            HeaderRepr::Untagged(untagged) => {
                self.queues[usize::from(segment.queue)].advance(untagged, segment.len)
            }
        }
    }

    /// Delivers an untagged message that its queue has reassembled. `control`: the first byte of the segment.
    fn deliver_assembled<C: UlpChecks<Code = E>>(
        &mut self,
        segment: &Segment,
        header: &UntaggedRepr,
        control: u8,
        env: &mut Env<'_, M, C>,
    ) {
        if self.has_receives(segment.queue.into()) {
            return self.deliver_assembled_receive(segment, header, control, env);
        }
        let queue = &mut self.queues[usize::from(segment.queue)];
        let account = self.unfinished.account_of(self.peer);
        let data = queue.deliver(env.buffers, account);
        self.deliver_untagged(segment, header, control, data, env);
    }

    fn deliver_untagged<C: UlpChecks<Code = E>>(
        &self,
        segment: &Segment,
        header: &UntaggedRepr,
        control: u8,
        data: Vec<u8>,
        env: &mut Env<'_, M, C>,
    ) {
        env.checks.on_delivered(header, control, segment.len, None);
        let &UntaggedRepr { rsvd_ulp, qn, msn, .. } = header;
        env.counters.untagged_delivered += 1;
        env.counters.delivered_bytes += data.len() as u64;
        env.events.push_back(Event::UntaggedDelivered { qn, msn, data, rsvd_ulp });
    }

    /// Delivers messages before the first gap or error, and reports the error when all earlier segments have arrived.
    #[inline]
    pub(crate) fn deliver_in_order<C: UlpChecks<Code = E>>(&mut self, env: &mut Env<'_, M, C>) {
        if self.records.is_empty() && self.error.is_none() {
            // The usual case of a busy stream.
            if self.records.capacity() > IDLE_RECORDS {
                self.records.release();
            }
            return;
        }
        self.deliver_records(env);
    }

    #[inline(never)]
    fn deliver_records<C: UlpChecks<Code = E>>(&mut self, env: &mut Env<'_, M, C>) {
        if self.state == State::Stopped {
            return;
        }
        while self.records.front().is_some_and(|r| r.key <= self.order) {
            let Some(record) = self.records.pop_front() else { break };
            self.order = self.order.max(OrderKey(record.key.0 + 1));
            match (self.advance_or_grow(&record.segment, env), &record.segment.header) {
                (Ok(true), HeaderRepr::Tagged(header)) => self.deliver_tagged(header, env),
                (Ok(true), HeaderRepr::Untagged(header)) => {
                    self.deliver_assembled(&record.segment, header, record.control, env);
                }
                (Ok(false), _) => {}
                (Err(reject), header) => {
                    let header = with_control_byte(header.pack().bytes(), record.control);
                    let segment_len = record.segment.len + header.len() as u32;
                    self.reject_at(record.key, reject, header, segment_len);
                }
            }
        }
        if self.records.is_empty() && self.records.capacity() > IDLE_RECORDS {
            self.records.release();
        }
        self.report_reached_error(env);
    }
}

//! The data source: posted messages, cut into segments at the LLP's request (RFC 5041 §5.2, §5.3).
//!
//! There is one record per message, none per segment. Consecutive messages from one region share a handle, so its
//! reference count changes once per run of messages. A message stays queued until its last byte is acknowledged, so any
//! of its segments can be framed again.
//!
//! ```text
//!  queue: | acknowledged in part | sent | being sent | waiting | ... |
//!          front = number `first`        unsent
//! ```
//!
//! `first` is the number of the message at the front. `unsent` is the index of the first message that has not been
//! handed to the LLP completely.

use core::borrow::Borrow;
use std::sync::Arc;

use base::LazyDeque;
use wire::crc32c::Target;
use wire::ddp::{PackedHeader, TAGGED_HEADER_LEN, TaggedRepr, UNTAGGED_HEADER_LEN, UntaggedRepr};
use wire::{DdpVersion, MessageOffset, Msn, Qn, Stag, TaggedOffset};

use crate::cookie::Cookie;
use crate::counters::Counters;
use crate::error::PostError;
use crate::llp::{Outgoing, UlpduToken};
use crate::memory::RegionMemory;
use crate::message::{Event, Message, Source};
use crate::spans::{SpanList, check_bounds};

#[cfg(test)]
mod tests;

/// Lowest MULPDU in effect (RFC 5044 §4.5).
const MIN_MULPDU: usize = 128;

/// An owned or borrowed handle on a region.
pub(crate) trait Handle<M>: Borrow<M> + Sized {
    /// Returns the same list with owned handles.
    fn own(spans: Box<SpanList<Self>>) -> Box<SpanList<M>>;
}

impl<M: RegionMemory> Handle<M> for M {
    fn own(spans: Box<SpanList<M>>) -> Box<SpanList<M>> {
        spans
    }
}

impl<M: RegionMemory> Handle<M> for &M {
    fn own(spans: Box<SpanList<Self>>) -> Box<SpanList<M>> {
        Box::new(spans.map(M::clone))
    }
}

/// A posted message that is not acknowledged completely.
#[derive(Debug)]
struct Posted<M> {
    destination: Destination,
    source: PayloadSource<M>,
    cookie: Cookie,
    /// Payload length of the message, bytes.
    len: u32,
    /// Payload bytes handed to the LLP so far.
    sent: u32,
    state: PostedState,
}

const _: () = assert!(size_of::<Posted<Arc<()>>>() <= 64);

impl<M> Posted<M> {
    /// Returns the header of the segment of `payload_len` bytes at `offset`.
    #[inline(always)]
    fn header(&self, offset: u32, payload_len: u32, version: DdpVersion) -> PackedHeader {
        // RFC 5041 §4.1: only the last segment of a message has L.
        let last = u64::from(offset) + u64::from(payload_len) == u64::from(self.len);
        match self.destination {
            Destination::Tagged { stag, to, rsvd_ulp } => {
                // RFC 5041 §5.2: the TO of a segment is the message's TO plus the segment's offset.
                let to = TaggedOffset(to.0 + u64::from(offset));
                TaggedRepr { last, version, rsvd_ulp, stag, to }.pack()
            }
            Destination::Untagged { qn, msn, rsvd_ulp } => {
                let mo = MessageOffset(offset);
                UntaggedRepr { last, version, rsvd_ulp, qn, msn, mo }.pack()
            }
        }
    }

    /// Returns true if the source's bytes do not change while the message is unacknowledged. `None` if the message's
    /// [`RegionRun`] determines this.
    #[inline]
    fn stability(&self) -> Option<bool> {
        match self.source {
            PayloadSource::Region { .. } => None,
            PayloadSource::Bytes(_) => Some(true),
            PayloadSource::Gather { stable, .. } => Some(stable),
        }
    }
}

impl<M: RegionMemory> Posted<M> {
    /// Returns true if the message is gathered from spans, and one of them is in this region.
    fn gathers_from(&self, memory: &M) -> bool {
        matches!(&self.source, PayloadSource::Gather { spans, .. } if spans.uses_memory(memory))
    }
}

#[derive(Debug)]
enum Destination {
    Tagged {
        stag: Stag,
        to: TaggedOffset,
        rsvd_ulp: u8,
    },
    Untagged {
        qn: Qn,
        /// Valid once the message has begun.
        msn: Msn,
        rsvd_ulp: [u8; 5],
    },
}

#[derive(Debug)]
enum PayloadSource<M> {
    /// The region of the message's [`RegionRun`], from `offset` on.
    Region {
        offset: u64,
    },
    Bytes(Arc<[u8]>),
    /// Up to [`MAX_SPANS`](crate::MAX_SPANS) spans. Each span has its own region handle; no [`RegionRun`] is used.
    Gather {
        spans: Box<SpanList<M>>,
        /// True if the bytes do not change while the message is unacknowledged.
        stable: bool,
    },
}

/// A region handle shared by consecutive messages from that region. Messages whose bytes are not in a region may lie
/// between these messages.
#[derive(Debug)]
struct RegionRun<M> {
    /// Number after the run's last message. The run is removed together with this message, because comparisons with the
    /// numbers of removed messages fail after a wrap.
    end: u32,
    memory: M,
    stable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PostedState {
    Waiting,
    Begun,
    /// Handed to the LLP completely.
    Sent,
    /// No bytes after `sent` are handed to the LLP.
    Truncated,
}

#[derive(Debug)]
pub(crate) struct Sender<M> {
    queue: LazyDeque<Posted<M>>,
    /// Handles of the regions of queued messages, in the order of posting.
    runs: LazyDeque<RegionRun<M>>,
    /// Number of the message at the front; wraps.
    first: u32,
    /// Index of the first message that has not been handed to the LLP completely.
    unsent: u32,
    msns: Msns,
    max_posts: u32,
    closed: bool,
    /// True if the LLP must keep copies of sent bytes even if their memory is stable ([`RegionMemory::is_stable`]).
    copy_sources: bool,
}

base::prefetch!(Sender<M> [M]: queue, runs);

/// MSN of the next message to each queue of the peer.
#[derive(Debug)]
struct Msns {
    /// MSN for queue 0, the queue of most messages.
    first: Msn,
    rest: LazyDeque<(Qn, Msn)>,
}

impl Default for Msns {
    fn default() -> Self {
        Msns { first: Msn::FIRST, rest: LazyDeque::new() }
    }
}

impl Msns {
    /// Returns the next MSN of a queue. RFC 5041 §4.3: the MSN of each queue starts at one.
    fn next_mut(&mut self, qn: Qn) -> &mut Msn {
        if qn.0 == 0 {
            return &mut self.first;
        }
        let at = self.rest.iter().position(|(q, _)| *q == qn).unwrap_or_else(|| {
            self.rest.push_back((qn, Msn::FIRST));
            self.rest.len() - 1
        });
        &mut self.rest[at].1
    }
}

impl<M: RegionMemory> Sender<M> {
    pub(crate) fn new(max_posts: usize, copy_sources: bool) -> Self {
        Sender {
            queue: LazyDeque::new(),
            runs: LazyDeque::new(),
            first: 0,
            unsent: 0,
            msns: Msns::default(),
            max_posts: u32::try_from(max_posts).unwrap_or(u32::MAX),
            closed: false,
            copy_sources,
        }
    }

    pub(crate) fn shrink(&mut self) {
        self.queue.shrink();
        self.runs.shrink();
    }

    /// Posts a message, which owns or borrows its region's handle. The handle is cloned only for the first of
    /// consecutive messages from a region.
    #[inline]
    pub(crate) fn post<N: Handle<M>>(&mut self, message: Message<N>) -> Result<(), PostError> {
        if self.closed {
            return Err(PostError::Closed);
        }
        let len = check(&message)?;
        if self.queue.len() >= self.max_posts as usize {
            return Err(PostError::Full);
        }
        self.push(message, len);
        Ok(())
    }

    /// Flushes messages that have not begun, posts `message` and closes. A partly sent message is truncated if more
    /// than `finish` of its bytes are unsent.
    pub(crate) fn post_last(
        &mut self,
        message: Message<M>,
        finish: u32,
        events: &mut LazyDeque<Event>,
        counters: &mut Counters,
    ) -> Result<(), PostError> {
        if self.closed {
            return Err(PostError::Closed);
        }
        let len = check::<M, M>(&message)?;
        self.flush_unbegun(finish, events, counters);
        self.push(message, len);
        self.closed = true;
        Ok(())
    }

    #[inline]
    fn push<N: Handle<M>>(&mut self, message: Message<N>, len: u32) {
        let (kind, source, cookie) = match message {
            Message::Tagged { stag, to, rsvd_ulp, source, cookie } => {
                (Destination::Tagged { stag, to, rsvd_ulp }, source, cookie)
            }
            Message::Untagged { qn, rsvd_ulp, source, cookie } => {
                (Destination::Untagged { qn, msn: Msn::FIRST, rsvd_ulp }, source, cookie)
            }
        };
        let from = match source {
            Source::Region { memory, offset, .. } => {
                self.assign_run(memory.borrow());
                PayloadSource::Region { offset }
            }
            Source::Bytes(bytes) => PayloadSource::Bytes(bytes),
            Source::Gather(spans) => {
                let spans = N::own(spans);
                let stable = spans.is_stable() && !self.copy_sources;
                PayloadSource::Gather { spans, stable }
            }
        };
        let state = PostedState::Waiting;
        self.queue.push_back(Posted {
            destination: kind,
            source: from,
            cookie,
            len,
            sent: 0,
            state,
        });
    }

    /// Returns true if an unacknowledged message is read from this region.
    pub(crate) fn uses_memory(&self, memory: &M) -> bool {
        let of_run = self.runs.iter().any(|run| run.memory.is_same(memory));
        of_run || self.queue.iter().any(|posted| posted.gathers_from(memory))
    }

    /// Adds the message that is about to be posted to the run of this region, or begins a run.
    #[inline(always)]
    fn assign_run(&mut self, memory: &M) {
        let end = self.first.wrapping_add(self.queue.len() as u32 + 1);
        let last = self.runs.len().wrapping_sub(1);
        if let Some(run) = self.runs.get_mut(last).filter(|run| run.memory.is_same(memory)) {
            run.end = end;
            return;
        }
        let (memory, stable) = (memory.clone(), memory.is_stable() && !self.copy_sources);
        self.runs.push_back(RegionRun { end, memory, stable });
    }

    /// Returns the distance of a message's number from the front of the queue.
    #[inline]
    fn index_of(&self, number: u32) -> u32 {
        number.wrapping_sub(self.first)
    }

    /// Returns the run of a message that is read from a region.
    #[inline(always)]
    fn run_of(&self, number: u32) -> Option<&RegionRun<M>> {
        match self.runs.len() {
            0 | 1 => self.runs.front(),
            _ => self.find_run(number),
        }
    }

    /// Returns the run of a message, for a queue with several runs.
    #[inline(never)]
    fn find_run(&self, number: u32) -> Option<&RegionRun<M>> {
        let before =
            self.runs.partition_point(|run| self.index_of(run.end) <= self.index_of(number));
        self.runs.get(before)
    }

    /// Releases regions from which no queued message is read.
    #[inline]
    fn release_runs(&mut self) {
        while self.runs.front().is_some_and(|run| self.index_of(run.end) as i32 <= 0) {
            self.runs.pop_front();
        }
    }

    /// Removes the messages after the first `keep` from their runs, and releases runs without messages.
    fn truncate_runs(&mut self, keep: u32) {
        let end = self.first.wrapping_add(keep);
        let mut last = self.runs.len();
        while last > 1 && self.index_of(self.runs[last - 2].end) >= keep {
            self.runs.pop_back();
            last -= 1;
        }
        if let Some(run) = self.runs.get_mut(last.wrapping_sub(1))
            && run.end.wrapping_sub(self.first) > keep
        {
            run.end = end;
        }
        self.release_runs();
    }

    /// Flushes messages that have not begun. A partly sent message is completed if at most `finish` of its bytes are
    /// unsent. Otherwise the message is flushed when its sent bytes are acknowledged, and its source is kept until
    /// then.
    fn flush_unbegun(
        &mut self,
        finish: u32,
        events: &mut LazyDeque<Event>,
        counters: &mut Counters,
    ) {
        let mut keep = self.unsent as usize;
        if let Some(begun) = self.queue.get_mut(keep)
            && begun.state == PostedState::Begun
        {
            keep += 1;
            if begun.len - begun.sent > finish {
                begun.state = PostedState::Truncated;
                self.unsent = keep as u32;
            }
        }
        self.truncate_runs(keep as u32);
        for waiting in self.queue.drain(keep..) {
            flush(&waiting, events, counters);
        }
    }

    /// Flushes every message, including sent messages without acknowledgement. No more messages are sent or posted.
    pub(crate) fn fail(&mut self, events: &mut LazyDeque<Event>, counters: &mut Counters) {
        self.closed = true;
        self.first = self.first.wrapping_add(self.queue.len() as u32);
        self.unsent = 0;
        self.runs.release();
        for posted in self.queue.drain(..) {
            flush(&posted, events, counters);
        }
    }

    /// Flushes messages that have not begun, truncates a partly sent message, and closes.
    pub(crate) fn close_now(&mut self, events: &mut LazyDeque<Event>, counters: &mut Counters) {
        self.flush_unbegun(0, events, counters);
        self.closed = true;
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the number of messages posted and not acknowledged completely.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        (self.unsent as usize) < self.queue.len()
    }

    /// Returns how many bytes of the partly sent message were handed to the LLP; 0 if no message is partly sent.
    pub(crate) fn current_sent(&self) -> u32 {
        self.queue.get(self.unsent as usize).map_or(0, |posted| posted.sent)
    }

    #[cfg(test)]
    pub(crate) fn start_queue_at(&mut self, qn: Qn, msn: Msn) {
        *self.msns.next_mut(qn) = msn;
    }

    #[cfg(test)]
    pub(crate) fn run_count(&self) -> usize {
        self.runs.len()
    }

    #[cfg(test)]
    pub(crate) fn start_messages_at(&mut self, number: u32) {
        self.first = number;
    }

    #[inline]
    pub(crate) fn next_len(&self, mulpdu: usize) -> Option<usize> {
        let posted = self.queue.get(self.unsent as usize)?;
        let (header, payload) = segment_size(posted, mulpdu);
        Some(header + payload as usize)
    }

    /// Returns true if the bytes of the next message do not change until they are acknowledged, or if no message waits.
    pub(crate) fn next_is_stable(&self) -> bool {
        let at = self.unsent as usize;
        self.queue
            .get(at)
            .is_none_or(|posted| self.is_stable(posted, self.first.wrapping_add(at as u32)))
    }

    /// Returns the first byte of RsvdULP, RDMAP's control field, if the next message is tagged.
    pub(crate) fn next_tagged_control(&self) -> Option<u8> {
        match self.queue.get(self.unsent as usize)?.destination {
            Destination::Tagged { rsvd_ulp, .. } => Some(rsvd_ulp),
            Destination::Untagged { .. } => None,
        }
    }

    #[inline]
    fn is_stable(&self, posted: &Posted<M>, number: u32) -> bool {
        posted.stability().unwrap_or_else(|| self.is_run_stable(number))
    }

    /// Returns true if the region of a message is stable.
    #[inline]
    fn is_run_stable(&self, number: u32) -> bool {
        self.run_of(number).is_some_and(|run| run.stable)
    }

    // Inlined into the LLP, so that the result is not first stored in memory.
    #[inline(always)]
    pub(crate) fn next(
        &mut self,
        mulpdu: usize,
        version: DdpVersion,
        counters: &mut Counters,
    ) -> Option<Outgoing> {
        let index = self.unsent;
        let posted = self.queue.get_mut(index as usize)?;
        // RFC 5041 §5.2: a segment has at most MULPDU bytes. §5.3: offsets increase, and messages are in the order of
        // posting.
        let (_, payload) = segment_size(posted, mulpdu);
        if posted.state == PostedState::Waiting {
            posted.state = PostedState::Begun;
            if let Destination::Untagged { qn, msn, .. } = &mut posted.destination {
                let next = self.msns.next_mut(*qn);
                *msn = *next;
                *next = next.next();
            }
        }
        let offset = posted.sent;
        posted.sent += payload;
        let header = posted.header(offset, payload, version);
        let stability = posted.stability();
        if posted.sent == posted.len {
            posted.state = PostedState::Sent;
            self.unsent += 1;
        }
        counters.segments_sent += 1;
        counters.sent_bytes += u64::from(payload);
        let token = UlpduToken { message: self.first.wrapping_add(index), offset };
        let stable = stability.unwrap_or_else(|| self.is_run_stable(token.message));
        Some(Outgoing { token, header, payload_len: payload as usize, stable })
    }

    pub(crate) fn reframe(
        &self,
        token: UlpduToken,
        payload_len: usize,
        version: DdpVersion,
    ) -> Outgoing {
        match self.find(token) {
            Some(posted) => {
                let header = posted.header(token.offset, payload_len as u32, version);
                Outgoing {
                    token,
                    header,
                    payload_len,
                    stable: self.is_stable(posted, token.message),
                }
            }
            None => {
                Outgoing { token, header: PackedHeader::default(), payload_len: 0, stable: true }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn read_pieces<'a>(
        &self,
        token: UlpduToken,
        at: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    ) {
        let at = token.offset as usize + at;
        let source = self.find(token).map(|posted| &posted.source);
        if let Some(PayloadSource::Region { offset }) = source
            && let Some(run) = self.run_of(token.message)
        {
            let mut at = offset + at as u64;
            return pieces.for_each(|piece| {
                run.memory.read(at, piece);
                at += piece.len() as u64;
            });
        }
        read_other_source(source, at, pieces);
    }

    #[inline]
    pub(crate) fn read_digested(&self, token: UlpduToken, at: usize, target: &mut Target<'_>) {
        let at = token.offset as usize + at;
        let from = self.find(token).map(|posted| &posted.source);
        match (from, self.run_of(token.message)) {
            (Some(PayloadSource::Region { offset }), Some(run)) => {
                run.memory.read_digested(offset + at as u64, target);
            }
            (Some(PayloadSource::Bytes(bytes)), _) => {
                target.copy(&bytes[at..at + target.source_len()]);
            }
            (Some(PayloadSource::Gather { spans, .. }), _) => digest_gathered(spans, at, target),
            (Some(PayloadSource::Region { .. }) | None, _) => target.fill(|_, out| out.fill(0)),
        }
    }

    #[inline(always)]
    pub(crate) fn on_acknowledged(
        &mut self,
        token: UlpduToken,
        payload_len: usize,
        events: &mut LazyDeque<Event>,
        counters: &mut Counters,
    ) {
        let Some(front) = self.queue.front() else { return };
        let at_end = u64::from(token.offset) + payload_len as u64 == u64::from(front.sent);
        if !at_end || token.message != self.first {
            return;
        }
        // RFC 5041 §5.4: a message is complete when the LLP reports that the whole message is acknowledged.
        match front.state {
            PostedState::Sent => {
                push_sent(front.cookie, events);
                counters.messages_sent += 1;
            }
            PostedState::Truncated => flush(front, events, counters),
            PostedState::Waiting | PostedState::Begun => return,
        }
        self.queue.pop_front();
        self.first = self.first.wrapping_add(1);
        self.unsent -= 1;
        self.release_runs();
    }

    #[inline]
    fn find(&self, token: UlpduToken) -> Option<&Posted<M>> {
        self.queue.get(token.message.wrapping_sub(self.first) as usize)
    }
}

/// Reads pieces of a message whose source is not a single region, from byte `at` of the message on. Not inlined, so
/// that the path for a single region stays short.
#[inline(never)]
fn read_other_source<'a, M: RegionMemory>(
    source: Option<&PayloadSource<M>>,
    mut at: usize,
    pieces: impl Iterator<Item = &'a mut [u8]>,
) {
    pieces.for_each(|piece| {
        let end = at + piece.len();
        match source {
            Some(PayloadSource::Bytes(bytes)) => piece.copy_from_slice(&bytes[at..end]),
            Some(PayloadSource::Gather { spans, .. }) => spans.read(at as u64, piece),
            Some(PayloadSource::Region { .. }) | None => piece.fill(0),
        }
        at = end;
    });
}

/// Reads a gathered message from its byte `at` on, into a target that digests the bytes.
#[cold]
#[inline(never)]
fn digest_gathered<M: RegionMemory>(spans: &SpanList<M>, at: usize, target: &mut Target<'_>) {
    spans.read_digested(at as u64, target);
}

#[inline]
fn check<M: RegionMemory, N: Borrow<M>>(message: &Message<N>) -> Result<u32, PostError> {
    let len = check_source::<M, N>(message.source())?;
    if let Message::Tagged { to, .. } = message {
        check_to(*to, len.into())?;
    }
    Ok(len)
}

/// Returns the length of a source, or an error if it is too long for a message or not all bytes are in the region.
pub(crate) fn check_source<M: RegionMemory, N: Borrow<M>>(
    source: &Source<N>,
) -> Result<u32, PostError> {
    let len = source.len();
    let len32 = message_len(len)?;
    match source {
        Source::Region { memory, offset, .. } => {
            let (end, memory_len) = (offset.saturating_add(len), memory.borrow().len());
            if end > memory_len {
                return Err(PostError::OutOfBounds { offset: *offset, end, len: memory_len });
            }
        }
        Source::Gather(spans) => check_spans::<M, N>(spans)?,
        Source::Bytes(_) => {}
    }
    Ok(len32)
}

/// Checks that all spans are in their regions.
#[cold]
fn check_spans<M: RegionMemory, N: Borrow<M>>(spans: &SpanList<N>) -> Result<(), PostError> {
    let spans = spans.as_slice().iter();
    check_bounds(spans.map(|span| (span.memory.borrow(), span.offset, span.len)))
}

/// Checks that a message has fewer than 2^32 bytes (RFC 5041 §5.2).
fn message_len(len: u64) -> Result<u32, PostError> {
    u32::try_from(len).map_err(|_| PostError::TooLong(len))
}

/// Checks that TO plus length fits into 64 bits.
pub(crate) fn check_to(to: TaggedOffset, len: u64) -> Result<(), PostError> {
    match to.0.checked_add(len) {
        Some(_) => Ok(()),
        None => Err(PostError::ToWrap { to: to.0, len }),
    }
}

/// Reports an acknowledged message. Extends the last event if it has the same cookie.
#[inline]
fn push_sent(cookie: Cookie, events: &mut LazyDeque<Event>) {
    let len = events.len();
    if len > 0
        && let Some(Event::Sent { cookie: last, messages }) = events.get_mut(len - 1)
        && *last == cookie
    {
        *messages += 1;
        return;
    }
    events.push_back(Event::Sent { cookie, messages: 1 });
}

fn flush<M>(posted: &Posted<M>, events: &mut LazyDeque<Event>, counters: &mut Counters) {
    events.push_back(Event::Flushed { cookie: posted.cookie });
    counters.messages_flushed += 1;
}

/// Returns the lengths of header and payload, in bytes, of the message's next segment.
#[inline]
fn segment_size<M>(posted: &Posted<M>, mulpdu: usize) -> (usize, u32) {
    let header = match posted.destination {
        Destination::Tagged { .. } => TAGGED_HEADER_LEN,
        Destination::Untagged { .. } => UNTAGGED_HEADER_LEN,
    };
    let max_payload = u32::try_from(mulpdu.max(MIN_MULPDU) - header).unwrap_or(u32::MAX);
    (header, max_payload.min(posted.len - posted.sent))
}

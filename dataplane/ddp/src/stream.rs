//! One DDP stream: the two halves, what they share, and the LLP's handles on them.

use std::sync::Arc;

use base::{Lazy, LazyDeque};
use wire::crc32c::Target;
use wire::{DdpVersion, Qn};

use crate::buffers::{BufferPool, PeerId};
use crate::checks::{BareDdp, UlpChecks};
use crate::config::{ERROR_QUEUE, StreamConfig};
use crate::cookie::Cookie;
use crate::counters::Counters;
use crate::error::{DdpError, PostError};
use crate::last_message::LastMessage;
use crate::llp::{Disposition, OrderKey, Outgoing, Ulpdu, UlpduSink, UlpduSource, UlpduToken};
use crate::memory::RegionMemory;
use crate::message::{Event, Failure, Message, Source};
use crate::receive::{Env, Receiver};
use crate::send::Sender;
use crate::stag::{PdId, StagTable, StreamId};

#[cfg(test)]
mod tests;

/// The worker's state that a stream borrows while it takes segments.
#[derive(Debug)]
pub struct Context<'a, M> {
    /// The worker's STags.
    pub stags: &'a StagTable<M>,
    /// The worker's untagged buffers.
    pub buffers: &'a mut BufferPool,
}

impl<M> Context<'_, M> {
    /// The same context for a shorter time.
    pub fn reborrow(&mut self) -> Context<'_, M> {
        Context { stags: self.stags, buffers: self.buffers }
    }
}

/// Events that memory is kept for when there are none.
const IDLE_EVENTS: usize = 16;

/// One DDP stream (RFC 5041 §2.3). `C` is the ULP's part in the data sink.
///
/// Before it is dropped, [`release`](Self::release) must give its buffers back to the pool.
#[derive(Debug)]
pub struct Stream<M, C: UlpChecks = BareDdp> {
    id: StreamId,
    pd: PdId,
    receiver: Receiver<C::Code>,
    checks: C,
    sender: Sender<M>,
    events: LazyDeque<Event>,
    counters: Lazy<Counters>,
    failure: Option<Failure>,
    hold_confirmations: bool,
}

base::prefetch!(
    Stream<M, C> [M: RegionMemory, C: UlpChecks]: receiver, sender, events, counters
);

impl<M: RegionMemory> Stream<M> {
    /// A stream of bare DDP that takes and sends from now on (RFC 5041 §6.1).
    pub fn new(id: StreamId, pd: PdId, config: StreamConfig) -> Self {
        Stream::with_checks(id, pd, config, BareDdp)
    }

    /// Bare DDP's last message about this error, for [`post_last`](Self::post_last).
    pub fn last_message(&self, error: &DdpError) -> Message<M> {
        Self::message_of(&LastMessage::from(error))
    }

    /// Bare DDP's last message with this content, for an error of the LLP.
    pub fn message_of(content: &LastMessage) -> Message<M> {
        let source = Source::Bytes(Arc::from(content.emit().as_slice()));
        Message::Untagged { qn: ERROR_QUEUE, rsvd_ulp: [0; 5], source, cookie: Cookie::STACK }
    }
}

impl<M: RegionMemory, C: UlpChecks> Stream<M, C> {
    /// As [`new`](Stream::new), for a ULP that checks segments.
    pub(crate) fn with_checks(id: StreamId, pd: PdId, config: StreamConfig, checks: C) -> Self {
        Stream {
            id,
            pd,
            receiver: Receiver::new(&config),
            checks,
            sender: Sender::new(config.max_posts),
            events: LazyDeque::new(),
            counters: Lazy::new(),
            failure: None,
            hold_confirmations: config.hold_confirmations,
        }
    }

    /// True when the ULP gives the confirmations: see [`StreamConfig::hold_confirmations`].
    pub fn holds_confirmations(&self) -> bool {
        self.hold_confirmations
    }

    /// The ULP's part in the data sink.
    pub(crate) fn checks(&self) -> &C {
        &self.checks
    }

    /// As [`checks`](Self::checks), to change it.
    pub(crate) fn checks_mut(&mut self) -> &mut C {
        &mut self.checks
    }

    /// Its name (RFC 5041 §8.2).
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Moves the stream into another protection domain, before it takes its first segment.
    pub fn set_pd(&mut self, pd: PdId) {
        self.pd = pd;
    }

    /// Sets the peer, before the stream takes its first segment: streams of one peer share what one
    /// peer may have of the worker's buffers. Without it the stream is one of those whose peer is unknown.
    pub fn set_peer(&mut self, peer: PeerId) {
        self.receiver.set_peer(peer);
    }

    /// The version, once it is known.
    pub fn version(&self) -> Option<DdpVersion> {
        self.receiver.version()
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Receive half for the LLP, for as long as `cx` is borrowed from the worker.
    pub fn sink<'a>(&'a mut self, cx: Context<'a, M>) -> Sink<'a, M, C> {
        Sink { stream: self, cx }
    }

    /// Posts a message for sending. Messages go out in the order in which they were posted
    /// (RFC 5041 §5.3).
    pub fn post(&mut self, message: Message<M>) -> Result<(), PostError> {
        self.sender.post(message)
    }

    /// As [`post`](Self::post), with a region that is only lent: a handle on it is taken only if the message
    /// posted last is from another one.
    #[inline]
    pub fn post_lent(&mut self, message: Message<&M>) -> Result<(), PostError> {
        self.sender.post(message)
    }

    /// Posts the last message (RFC 5041 §7.1): what is posted and has not begun is flushed, what
    /// has begun is cut after the segment that is out, and nothing can be posted behind it. Not
    /// subject to the bound on posts.
    pub fn post_last(&mut self, message: Message<M>) -> Result<(), PostError> {
        self.post_last_behind(message, 0)
    }

    /// As [`post_last`](Self::post_last), behind the message that has begun if no more than `finish`
    /// bytes are missing of it.
    pub(crate) fn post_last_behind(
        &mut self,
        message: Message<M>,
        finish: u32,
    ) -> Result<(), PostError> {
        self.sender.post_last(message, finish, &mut self.events, &mut self.counters)
    }

    /// Bytes given to the LLP of the message that is not wholly with it.
    pub(crate) fn begun(&self) -> u32 {
        self.sender.begun()
    }

    /// Whatever comes from now on is ignored.
    pub(crate) fn stop_receiving(&mut self, buffers: Option<&mut BufferPool>) {
        self.receiver.stop();
        if let Some(buffers) = buffers {
            self.receiver.release(buffers);
        }
    }

    /// The ULP's ranges of a message need no room any more.
    pub(crate) fn release_room(&mut self, buffers: &mut BufferPool, bytes: u64) {
        self.receiver.release_room(buffers, bytes);
    }

    /// Adds `n` receive buffers to a queue.
    pub fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        self.receiver.post_buffers(qn, n)
    }

    /// Buffers of a queue that no message has used up, or `None` without such a queue.
    pub fn posted_buffers(&self, qn: Qn) -> Option<u32> {
        self.receiver.posted_buffers(qn)
    }

    /// The next thing that the ULP should know.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if self.events.is_empty() && self.events.capacity() > IDLE_EVENTS {
            self.events.release();
        }
        event
    }

    /// Events that [`poll_event`](Self::poll_event) has not given yet.
    #[inline]
    pub fn pending_events(&self) -> usize {
        self.events.len()
    }

    /// Nothing has been received or sent for a while: frees memory that nothing is in.
    pub fn shrink(&mut self) {
        self.receiver.shrink();
        self.sender.shrink();
        self.events.shrink();
    }

    /// The ULP sends nothing more: posting fails from now on, what is posted still goes out and
    /// receiving goes on (RFC 5041 §6.2.1). The LLP closes its half when
    /// [`has_unsent`](Self::has_unsent) is false.
    pub fn close(&mut self) {
        self.sender.close();
    }

    /// As [`close`](Self::close), but nothing more is given to the LLP: what has not begun is flushed,
    /// and what has begun is cut after the segment that is out. What is out can still be framed again
    /// until it is acknowledged, or until [`fail`](Self::fail).
    pub fn close_now(&mut self) {
        self.sender.close_now(&mut self.events, &mut self.counters);
    }

    /// True after [`close`](Self::close), [`close_now`](Self::close_now),
    /// [`post_last`](Self::post_last) or [`fail`](Self::fail).
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// RDMAP's part of the control field, if the next message to be sent is tagged.
    pub(crate) fn next_tagged_control(&self) -> Option<u8> {
        self.sender.next_tagged_control()
    }

    /// True while a posted message is not wholly with the LLP.
    pub fn has_unsent(&self) -> bool {
        self.sender.has_unsent()
    }

    /// Messages posted and not yet acknowledged whole.
    pub fn outstanding(&self) -> usize {
        self.sender.outstanding()
    }

    /// The peer's LLP closed its half in order: nothing more can come (RFC 5041 §6.2.1).
    pub fn peer_closed(&mut self) {
        if let Some(incomplete) = self.receiver.peer_closed() {
            self.events.push_back(Event::PeerClosed { incomplete });
        }
    }

    /// The stream is over, abortively (RFC 5041 §6.2.2): every outstanding message comes back as
    /// flushed, then the failure is reported, once.
    pub fn fail(&mut self, why: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(why);
        self.receiver.stop();
        self.sender.fail(&mut self.events, &mut self.counters);
        self.events.push_back(Event::Failed(why));
    }

    /// Why the stream is over, if it is.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// True when there is no [`failure`](Self::failure) and no [`error`](Self::error), reported or not.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        self.failure.is_none() && !self.receiver.has_error()
    }

    /// The peer's error that has been reported, if there was one.
    pub fn error(&self) -> Option<&DdpError> {
        self.receiver.reported_error()
    }

    #[cfg(test)]
    pub(crate) fn record_capacity(&self) -> usize {
        self.receiver.record_capacity()
    }

    /// Region handles that the posted messages have.
    #[cfg(test)]
    pub(crate) fn runs_held(&self) -> usize {
        self.sender.runs_held()
    }

    /// As if the messages before this one had been sent and received.
    #[cfg(test)]
    pub(crate) fn start_queue_at(&mut self, qn: Qn, msn: wire::Msn) {
        self.receiver.start_queue_at(qn, msn);
        self.sender.start_queue_at(qn, msn);
    }

    /// As if this many messages had been sent.
    #[cfg(test)]
    pub(crate) fn start_messages_at(&mut self, number: u32) {
        self.sender.start_messages_at(number);
    }

    /// Gives the buffers of unfinished messages back; nothing more is taken after it.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.receiver.stop();
        self.receiver.release(buffers);
    }
}

/// Receive half of a stream, as the LLP uses it.
#[derive(Debug)]
pub struct Sink<'a, M, C: UlpChecks = BareDdp> {
    stream: &'a mut Stream<M, C>,
    cx: Context<'a, M>,
}

impl<M: RegionMemory, C: UlpChecks> UlpduSink for Sink<'_, M, C> {
    #[inline]
    fn ulpdu(&mut self, key: OrderKey, ulpdu: Ulpdu<'_>) -> Disposition {
        if self.stream.receiver.is_peer_closed() {
            // RFC 5041 §6.2.1: data after the graceful end tears the stream down abortively.
            self.stream.counters.segments_ignored += 1;
            self.stream.fail(Failure::DataAfterClose);
            return Disposition::Ignored;
        }
        let (receiver, mut env) = self.parts();
        receiver.ulpdu(key, ulpdu, &mut env)
    }

    #[inline]
    fn order_complete(&mut self, before: OrderKey) {
        self.complete_order(before);
    }
}

impl<M, C: UlpChecks> Sink<'_, M, C> {
    /// [`order_complete`](UlpduSink::order_complete). Returns false when nothing waited for it: nothing was delivered then,
    /// and no error reached.
    #[inline]
    pub(crate) fn complete_order(&mut self, before: OrderKey) -> bool {
        let waited = self.stream.receiver.advance_order(before);
        if waited {
            let (receiver, mut env) = self.parts();
            receiver.catch_up(&mut env);
        }
        waited
    }

    #[inline]
    fn parts(&mut self) -> (&mut Receiver<C::Code>, Env<'_, M, C>) {
        let Stream { id, pd, receiver, checks, events, counters, .. } = &mut *self.stream;
        let (stags, buffers) = (self.cx.stags, &mut *self.cx.buffers);
        (receiver, Env { id: *id, pd: *pd, stags, buffers, events, counters, checks })
    }
}

impl<M: RegionMemory, C: UlpChecks> UlpduSource for Stream<M, C> {
    #[inline]
    fn next_len(&self, mulpdu: usize) -> Option<usize> {
        self.version()?;
        self.sender.next_len(mulpdu)
    }

    fn next_is_stable(&self) -> bool {
        self.sender.next_is_stable()
    }

    #[inline(always)]
    fn next(&mut self, mulpdu: usize) -> Option<Outgoing> {
        let version = self.version()?;
        self.sender.next(mulpdu, version, &mut self.counters)
    }

    fn again(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
        self.sender.again(token, payload_len, self.version().unwrap_or(DdpVersion::V1))
    }

    #[inline]
    fn read_pieces<'a>(
        &self,
        token: UlpduToken,
        at: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    ) {
        self.sender.read_pieces(token, at, pieces);
    }

    #[inline]
    fn read_digested(&self, token: UlpduToken, at: usize, target: &mut Target<'_>) {
        self.sender.read_digested(token, at, target);
    }

    #[inline(always)]
    fn acknowledged(&mut self, token: UlpduToken, payload_len: usize) {
        let Stream { sender, events, counters, .. } = self;
        sender.acknowledged(token, payload_len, events, counters);
    }
}

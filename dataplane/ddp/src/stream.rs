//! One DDP stream: its receive and send halves, their shared state, and the implementation of the LLP interface. RDMAP,
//! a ULP above DDP, checks segments through [`UlpChecks`] before they are placed.

use std::sync::Arc;

use base::{Lazy, LazyDeque};
use wire::crc32c::Target;
use wire::{DdpVersion, Qn};

use crate::buffers::{BufferPool, PeerId};
use crate::checks::{BareDdp, UlpChecks};
use crate::config::{ERROR_QUEUE, ReceiveMode, StreamConfig};
use crate::cookie::Cookie;
use crate::counters::Counters;
use crate::error::{DdpError, PostError};
use crate::last_message::LastMessage;
use crate::llp::{Disposition, OrderKey, Outgoing, Ulpdu, UlpduSink, UlpduSource, UlpduToken};
use crate::memory::RegionMemory;
use crate::message::{Event, Failure, Message, Source};
use crate::receive::{Env, Receive, ReceiveSource, Receiver};
use crate::send::Sender;
use crate::stag::{PdId, StagTable, StreamId};

#[cfg(test)]
mod tests;

/// The worker's state that a stream borrows while it receives segments.
#[derive(Debug)]
pub struct Context<'a, M> {
    /// The worker's STags.
    pub stags: &'a StagTable<M>,
    /// The worker's pool of untagged buffers.
    pub buffers: &'a mut BufferPool,
}

impl<M> Context<'_, M> {
    /// Returns the same context for a shorter lifetime.
    pub fn reborrow(&mut self) -> Context<'_, M> {
        Context { stags: self.stags, buffers: self.buffers }
    }
}

/// Maximum capacity, in events, that an empty event queue retains. A larger queue is freed when it becomes empty.
const IDLE_EVENTS: usize = 16;

/// One DDP stream (RFC 5041 §2.3). `C` checks segments on behalf of the ULP.
///
/// Before a stream is dropped, [`release`](Self::release) must return its buffers to the pool.
#[derive(Debug)]
pub struct Stream<M, C: UlpChecks = BareDdp> {
    id: StreamId,
    pd: PdId,
    receiver: Receiver<M, C::Code>,
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
    /// Returns a stream of bare DDP that is ready to send and receive (RFC 5041 §6.1).
    pub fn new(id: StreamId, pd: PdId, config: StreamConfig) -> Self {
        Stream::with_checks(id, pd, config, BareDdp, ReceiveMode::Pooled)
    }

    /// Returns bare DDP's last message for this error, to be posted with [`post_last`](Self::post_last).
    pub fn last_message(&self, error: &DdpError) -> Message<M> {
        Self::last_message_with(&LastMessage::from(error))
    }

    /// Returns bare DDP's last message with this content, for an error of the LLP.
    pub fn last_message_with(content: &LastMessage) -> Message<M> {
        let source = Source::Bytes(Arc::from(content.emit().as_slice()));
        Message::Untagged { qn: ERROR_QUEUE, rsvd_ulp: [0; 5], source, cookie: Cookie::STACK }
    }
}

impl<M: RegionMemory, C: UlpChecks> Stream<M, C> {
    /// Returns a stream as [`new`](Stream::new) does, for a ULP that checks segments. `receives`: the
    /// receive buffers of the first queue.
    pub(crate) fn with_checks(
        id: StreamId,
        pd: PdId,
        config: StreamConfig,
        checks: C,
        receives: ReceiveMode,
    ) -> Self {
        Stream {
            id,
            pd,
            receiver: Receiver::new(&config, receives),
            checks,
            sender: Sender::new(config.max_posts, config.copy_sources),
            events: LazyDeque::new(),
            counters: Lazy::new(),
            failure: None,
            hold_confirmations: config.hold_confirmations,
        }
    }

    /// Returns true if the ULP confirms received data: see [`StreamConfig::hold_confirmations`].
    pub fn holds_confirmations(&self) -> bool {
        self.hold_confirmations
    }

    /// Returns the ULP's checks of segments.
    pub(crate) fn checks(&self) -> &C {
        &self.checks
    }

    /// Returns the ULP's checks of segments, mutably.
    pub(crate) fn checks_mut(&mut self) -> &mut C {
        &mut self.checks
    }

    /// Returns the stream's identifier (RFC 5041 §8.2).
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the stream's protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Moves the stream into another protection domain. Must precede the stream's first segment.
    pub fn set_pd(&mut self, pd: PdId) {
        self.pd = pd;
    }

    /// Sets the peer. Must precede the stream's first segment. Streams of one peer share that peer's part of the
    /// worker's buffers; streams without a peer share one more part.
    pub fn set_peer(&mut self, peer: PeerId) {
        self.receiver.set_peer(peer);
    }

    /// Returns the DDP version, once it is determined.
    pub fn version(&self) -> Option<DdpVersion> {
        self.receiver.version()
    }

    /// Returns the stream's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the receive half for the LLP. `cx`: the worker's state that the receive half uses.
    pub fn sink<'a>(&'a mut self, cx: Context<'a, M>) -> Sink<'a, M, C> {
        Sink { stream: self, cx }
    }

    /// Posts a message for sending. Messages are sent in the order in which they are posted (RFC 5041 §5.3).
    ///
    /// # Errors
    /// [`PostError::Closed`] after a close; [`PostError::Full`] at the limit of posts; [`PostError::OutOfBounds`] if
    /// the source is not in its region; [`PostError::TooLong`] for 2^32 or more bytes; [`PostError::ToWrap`] if TO plus
    /// length exceeds 64 bits.
    pub fn post(&mut self, message: Message<M>) -> Result<(), PostError> {
        self.sender.post(message)
    }

    /// Posts a message as [`post`](Self::post) does, with a borrowed region. The region handle is cloned only for the
    /// first of consecutive messages from a region.
    ///
    /// # Errors
    /// The errors of [`post`](Self::post).
    #[inline]
    pub fn post_borrowed(&mut self, message: Message<&M>) -> Result<(), PostError> {
        self.sender.post(message)
    }

    /// Posts the last message (RFC 5041 §7.1), which is not subject to the bound on posts. Messages that have not begun
    /// are flushed. A partly sent message is truncated after its last sent segment. No message can be posted after the
    /// last message.
    ///
    /// # Errors
    /// The errors of [`post`](Self::post) except [`PostError::Full`].
    pub fn post_last(&mut self, message: Message<M>) -> Result<(), PostError> {
        self.post_last_after(message, 0)
    }

    /// Posts the last message as [`post_last`](Self::post_last) does, but completes a partly sent message if at most
    /// `finish` of its bytes are unsent.
    pub(crate) fn post_last_after(
        &mut self,
        message: Message<M>,
        finish: u32,
    ) -> Result<(), PostError> {
        self.sender.post_last(message, finish, &mut self.events, &mut self.counters)
    }

    /// Returns how many bytes of the partly sent message were handed to the LLP; 0 if no message is partly sent.
    pub(crate) fn current_sent(&self) -> u32 {
        self.sender.current_sent()
    }

    /// Ignores all segments from now on. With `buffers`, returns the buffers of unfinished messages to the pool.
    pub(crate) fn stop_receiving(&mut self, buffers: Option<&mut BufferPool>) {
        self.receiver.stop();
        if let Some(buffers) = buffers {
            self.receiver.release(buffers);
        }
    }

    /// Releases `bytes` of the worker's buffers that were reserved to record ranges of a ULP's message.
    pub(crate) fn release_range_memory(&mut self, buffers: &mut BufferPool, bytes: u64) {
        self.receiver.release_range_memory(buffers, bytes);
    }

    /// Posts a receive for a message to the first queue.
    pub(crate) fn post_receive(&mut self, receive: Receive<M>) -> Result<(), PostError> {
        self.receiver.post_receive(receive)
    }

    /// Sets the source of receives of the first queue: see [`Receiver::set_receive_source`].
    pub(crate) fn set_receive_source(
        &mut self,
        source: Arc<dyn ReceiveSource<M>>,
    ) -> Result<(), PostError> {
        self.receiver.set_receive_source(source)
    }

    /// Empties the posted receives that use a region: see [`Receiver::revoke_receives`].
    pub(crate) fn revoke_receives(&mut self, memory: &M) {
        self.receiver.revoke_receives(memory);
    }

    /// Removes all posted receives and returns their cookies: see [`Receiver::take_receives`].
    pub(crate) fn take_receives(&mut self) -> Vec<u64> {
        self.receiver.take_receives()
    }

    /// Returns true if an unacknowledged message is read from this region, or a posted receive uses the region.
    pub fn uses_memory(&self, memory: &M) -> bool {
        self.sender.uses_memory(memory) || self.receiver.uses_memory(memory)
    }

    /// Adds `n` receive buffers to a queue, up to 2^31 - 1 unused buffers.
    ///
    /// # Errors
    /// [`PostError::NoSuchQueue`] if the stream has no queue `qn`; [`PostError::OtherReceiveMode`] if the queue has
    /// posted or shared receives.
    pub fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        self.receiver.post_buffers(qn, n)
    }

    /// Returns the number of a queue's unused buffers, or `None` if the stream has no such queue.
    pub fn posted_buffers(&self, qn: Qn) -> Option<u32> {
        self.receiver.posted_buffers(qn)
    }

    /// Returns the next event for the ULP.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if self.events.is_empty() && self.events.capacity() > IDLE_EVENTS {
            self.events.release();
        }
        event
    }

    /// Returns the number of events that [`poll_event`](Self::poll_event) has not returned yet.
    #[inline]
    pub fn pending_events(&self) -> usize {
        self.events.len()
    }

    /// Frees unused memory of an idle stream.
    pub fn shrink(&mut self) {
        self.receiver.shrink();
        self.sender.shrink();
        self.events.shrink();
    }

    /// Ends posting by the ULP: further posts fail. Posted messages are still sent and receiving
    /// continues (RFC 5041 §6.2.1). The LLP closes its direction when [`has_unsent`](Self::has_unsent) is
    /// false.
    pub fn close(&mut self) {
        self.sender.close();
    }

    /// Closes as [`close`](Self::close) does, but the LLP receives no more ULPDUs. Messages that have not begun are
    /// flushed. A partly sent message is truncated after its last sent segment. Sent segments can be framed again until
    /// they are acknowledged, or until [`fail`](Self::fail).
    pub fn close_now(&mut self) {
        self.sender.close_now(&mut self.events, &mut self.counters);
    }

    /// Returns true after [`close`](Self::close), [`close_now`](Self::close_now),
    /// [`post_last`](Self::post_last) or [`fail`](Self::fail).
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns the first byte of RsvdULP, RDMAP's control field, if the next message to send is tagged.
    pub(crate) fn next_tagged_control(&self) -> Option<u8> {
        self.sender.next_tagged_control()
    }

    /// Returns true while a posted message has not been handed to the LLP completely.
    pub fn has_unsent(&self) -> bool {
        self.sender.has_unsent()
    }

    /// Returns the number of messages posted and not yet acknowledged completely.
    pub fn outstanding(&self) -> usize {
        self.sender.outstanding()
    }

    /// Records that the peer's LLP closed its direction gracefully: no more data can arrive (RFC 5041 §6.2.1).
    pub fn on_peer_closed(&mut self) {
        if let Some(incomplete) = self.receiver.on_peer_closed() {
            self.events.push_back(Event::PeerClosed { incomplete });
        }
    }

    /// Ends the stream abortively (RFC 5041 §6.2.2): every outstanding message is flushed, then the failure is
    /// reported, once.
    pub fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(failure);
        self.receiver.stop();
        self.sender.fail(&mut self.events, &mut self.counters);
        self.events.push_back(Event::Failed(failure));
    }

    /// Returns the cause of the failure, if the stream has failed.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Returns true if the stream has no [`failure`](Self::failure) and no [`error`](Self::error), reported or not.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        self.failure.is_none() && !self.receiver.has_error()
    }

    /// Returns the DDP error that has been reported as an event, if any.
    pub fn error(&self) -> Option<&DdpError> {
        self.receiver.reported_error()
    }

    #[cfg(test)]
    pub(crate) fn record_capacity(&self) -> usize {
        self.receiver.record_capacity()
    }

    #[cfg(test)]
    pub(crate) fn holds_unfinished_state(&self) -> bool {
        self.receiver.holds_unfinished_state()
    }

    /// Returns the number of region handles that the posted messages hold.
    #[cfg(test)]
    pub(crate) fn run_count(&self) -> usize {
        self.sender.run_count()
    }

    /// Sets the next MSN of a queue, as if the messages before it had been sent and received.
    #[cfg(test)]
    pub(crate) fn start_queue_at(&mut self, qn: Qn, msn: wire::Msn) {
        self.receiver.start_queue_at(qn, msn);
        self.sender.start_queue_at(qn, msn);
    }

    /// Sets the number of the next message, as if this many had been sent.
    #[cfg(test)]
    pub(crate) fn start_messages_at(&mut self, number: u32) {
        self.sender.start_messages_at(number);
    }

    /// Returns the buffers of unfinished messages to the pool; no segment is accepted afterwards.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.receiver.stop();
        self.receiver.release(buffers);
    }
}

/// Receive half of a stream, used by the LLP.
#[derive(Debug)]
pub struct Sink<'a, M, C: UlpChecks = BareDdp> {
    stream: &'a mut Stream<M, C>,
    cx: Context<'a, M>,
}

impl<M: RegionMemory, C: UlpChecks> UlpduSink for Sink<'_, M, C> {
    #[inline]
    fn ulpdu(&mut self, key: OrderKey, ulpdu: Ulpdu<'_>) -> Disposition {
        if self.stream.receiver.is_peer_closed() {
            // RFC 5041 §6.2.1: data after the peer's graceful close ends the stream abortively.
            self.stream.counters.segments_ignored += 1;
            self.stream.fail(Failure::DataAfterClose);
            return Disposition::Ignored;
        }
        let (receiver, mut env) = self.split();
        receiver.ulpdu(key, ulpdu, &mut env)
    }

    #[inline]
    fn order_complete(&mut self, before: OrderKey) {
        self.complete_order(before);
    }
}

impl<M: RegionMemory, C: UlpChecks> Sink<'_, M, C> {
    /// Does the work of [`order_complete`](UlpduSink::order_complete). Returns false if no record or error was pending:
    /// nothing was delivered or reported.
    #[inline]
    pub(crate) fn complete_order(&mut self, before: OrderKey) -> bool {
        let pending = self.stream.receiver.advance_order(before);
        if pending {
            let (receiver, mut env) = self.split();
            receiver.deliver_in_order(&mut env);
        }
        pending
    }

    #[inline]
    fn split(&mut self) -> (&mut Receiver<M, C::Code>, Env<'_, M, C>) {
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

    fn reframe(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
        self.sender.reframe(token, payload_len, self.version().unwrap_or(DdpVersion::V1))
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
    fn on_acknowledged(&mut self, token: UlpduToken, payload_len: usize) {
        let Stream { sender, events, counters, .. } = self;
        sender.on_acknowledged(token, payload_len, events, counters);
    }
}

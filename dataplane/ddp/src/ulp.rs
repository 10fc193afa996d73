//! The protocol above an LLP: bare DDP, or RDMAP over DDP. [`Ulp`] is the one type that an LLP's endpoint stores.

use std::sync::Arc;

use base::{ErrorNumbers, Prefetch};
use wire::crc32c::Target;
use wire::rdmap::terminate::LAYER_RDMAP;
use wire::{DdpVersion, Qn, Stag};

use crate::buffers::{BufferPool, PeerId};
use crate::config::{MESSAGE_QUEUE, StreamConfig, VersionPolicy};
use crate::cookie::Cookie;
use crate::counters::Counters;
use crate::enhanced::{Agreement, Readiness};
use crate::error::{LAYER_DDP, PostError};
use crate::last_message::LastMessage;
use crate::llp::{Disposition, OrderKey, Outgoing, Ulpdu, UlpduSink, UlpduSource, UlpduToken};
use crate::memory::RegionMemory;
use crate::message::{Event, Failure, Message};
use crate::rdmap::{self, WorkRequest};
use crate::stag::{PdId, StreamId};
use crate::stream::{Context, Sink, Stream};

mod config;
#[cfg(test)]
mod tests;

pub use config::{OpenRequest, Origin, UlpConfig, UlpKind};

/// An event for the ULP, from a stream of either protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UlpEvent {
    /// An event of bare DDP.
    Ddp(Event),
    /// An event of RDMAP.
    Rdmap(rdmap::Event),
}

/// A stream of either protocol. Implements both halves of the LLP interface by delegation. Operations that only one
/// protocol has require a match on the variant.
#[derive(Debug)]
pub enum Ulp<M> {
    /// Bare DDP.
    Ddp(Box<Stream<M>>),
    /// RDMAP over DDP (RFC 5040).
    Rdmap(Box<rdmap::Stream<M>>),
}

impl<M: RegionMemory> Prefetch for Ulp<M> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        match self {
            Ulp::Ddp(stream) => stream.prefetch(steps, hint),
            Ulp::Rdmap(stream) => stream.prefetch(steps, hint),
        }
    }
}

impl<M: RegionMemory> Ulp<M> {
    /// Returns a stream that is ready to send and receive.
    pub fn new(id: StreamId, pd: PdId, config: UlpConfig) -> Self {
        match config {
            UlpConfig::Ddp(config) => Ulp::Ddp(Box::new(Stream::new(id, pd, config))),
            UlpConfig::Rdmap(config) => Ulp::Rdmap(Box::new(rdmap::Stream::new(id, pd, config))),
        }
    }

    /// Returns the stream of an accepted request, with the result of the negotiation (RFC 6581 §9). If this end sends
    /// the ready-to-receive message, the message is posted before any other. `rtr_stag` is the STag that a zero-length
    /// Write or Read names.
    pub fn new_accepted(
        id: StreamId,
        pd: PdId,
        peer: PeerId,
        mut config: UlpConfig,
        agreed: Option<Agreement>,
        rtr_stag: Stag,
    ) -> Self {
        if let (UlpConfig::Rdmap(config), Some(agreed)) = (&mut config, agreed) {
            (config.ird, config.ord) = (agreed.depths.ird, agreed.depths.ord);
            config.rtr_send = matches!(agreed.readiness, Readiness::AwaitsRtr(set) if set.send);
        }
        let mut ulp = Ulp::new(id, pd, config);
        ulp.set_peer(peer);
        if let (Ulp::Rdmap(stream), Some(Readiness::SendsRtr(rtr))) =
            (&mut ulp, agreed.map(|agreed| agreed.readiness))
        {
            // The post is refused only if the stream accepts no operation.
            let _posted = stream.post_ready(rtr, rtr_stag);
        }
        ulp
    }

    /// Returns the protocol above the LLP.
    pub fn kind(&self) -> UlpKind {
        match self {
            Ulp::Ddp(_) => UlpKind::Ddp,
            Ulp::Rdmap(_) => UlpKind::Rdmap,
        }
    }

    /// Returns the stream of bare DDP, or `None` for RDMAP.
    pub fn as_ddp_mut(&mut self) -> Option<&mut Stream<M>> {
        match self {
            Ulp::Ddp(stream) => Some(stream),
            Ulp::Rdmap(_) => None,
        }
    }

    /// Returns the stream's identifier.
    pub fn id(&self) -> StreamId {
        match self {
            Ulp::Ddp(stream) => stream.id(),
            Ulp::Rdmap(stream) => stream.id(),
        }
    }

    /// Moves the stream into another protection domain. Must precede the stream's first segment.
    pub fn set_pd(&mut self, pd: PdId) {
        match self {
            Ulp::Ddp(stream) => stream.set_pd(pd),
            Ulp::Rdmap(stream) => stream.set_pd(pd),
        }
    }

    /// Sets the peer: see [`Stream::set_peer`].
    pub fn set_peer(&mut self, peer: PeerId) {
        match self {
            Ulp::Ddp(stream) => stream.set_peer(peer),
            Ulp::Rdmap(stream) => stream.set_peer(peer),
        }
    }

    /// Returns the DDP version, once it is determined.
    pub fn version(&self) -> Option<DdpVersion> {
        match self {
            Ulp::Ddp(stream) => stream.version(),
            Ulp::Rdmap(stream) => stream.version(),
        }
    }

    /// Returns DDP's counters.
    pub fn counters(&self) -> &Counters {
        match self {
            Ulp::Ddp(stream) => stream.counters(),
            Ulp::Rdmap(stream) => stream.ddp_counters(),
        }
    }

    /// Returns RDMAP's counters, or `None` for bare DDP.
    pub fn rdmap_counters(&self) -> Option<&rdmap::Counters> {
        match self {
            Ulp::Ddp(_) => None,
            Ulp::Rdmap(stream) => Some(stream.counters()),
        }
    }

    /// Returns the receive half for the LLP. `cx`: the worker's state that the receive half uses.
    pub fn sink<'a>(&'a mut self, cx: Context<'a, M>) -> UlpSink<'a, M> {
        match self {
            Ulp::Ddp(stream) => UlpSink::Ddp(stream.sink(cx)),
            Ulp::Rdmap(stream) => UlpSink::Rdmap(stream.sink(cx)),
        }
    }

    /// Returns the next event for the ULP. Events of the ready-to-receive message are dropped.
    #[inline]
    pub fn poll_event(&mut self) -> Option<UlpEvent> {
        match self {
            Ulp::Ddp(stream) => stream.poll_event().map(UlpEvent::Ddp),
            Ulp::Rdmap(stream) => loop {
                match stream.poll_event()? {
                    rdmap::Event::ReadyToReceive
                    | rdmap::Event::Completed { cookie: Cookie::READY, .. }
                    | rdmap::Event::Flushed { cookie: Cookie::READY } => {}
                    event => return Some(UlpEvent::Rdmap(event)),
                }
            },
        }
    }

    /// Posts a message of bare DDP: see [`Stream::post`].
    ///
    /// # Errors
    /// [`PostError::OtherUlp`] on a stream of RDMAP, and the errors of [`Stream::post`].
    pub fn post(&mut self, message: Message<M>) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(stream) => stream.post(message),
            Ulp::Rdmap(_) => Err(PostError::OtherUlp),
        }
    }

    /// Posts a message as [`post`](Self::post) does, with a borrowed region: see [`Stream::post_borrowed`].
    ///
    /// # Errors
    /// The errors of [`post`](Self::post).
    #[inline]
    pub fn post_borrowed(&mut self, message: Message<&M>) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(stream) => stream.post_borrowed(message),
            Ulp::Rdmap(_) => Err(PostError::OtherUlp),
        }
    }

    /// Posts an operation of RDMAP: see [`rdmap::Stream::post`].
    ///
    /// # Errors
    /// [`PostError::OtherUlp`] on a stream of bare DDP, and the errors of [`rdmap::Stream::post`].
    pub fn post_rdmap(&mut self, request: WorkRequest<M>) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(_) => Err(PostError::OtherUlp),
            Ulp::Rdmap(stream) => stream.post(request),
        }
    }

    /// Adds `n` receive buffers to a queue. With RDMAP only [`MESSAGE_QUEUE`] is allowed.
    ///
    /// # Errors
    /// [`PostError::NoSuchQueue`] if the queue does not exist or is not allowed; [`PostError::OtherReceiveMode`] if the
    /// queue has posted or shared receives.
    pub fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(stream) => stream.post_buffers(qn, n),
            Ulp::Rdmap(stream) if qn == MESSAGE_QUEUE => stream.post_buffers(n),
            Ulp::Rdmap(_) => Err(PostError::NoSuchQueue(qn.0)),
        }
    }

    /// Posts a receive of RDMAP: see [`rdmap::Stream::post_receive`].
    ///
    /// # Errors
    /// [`PostError::OtherUlp`] on a stream of bare DDP, and the errors of [`rdmap::Stream::post_receive`].
    pub fn post_receive(&mut self, receive: rdmap::Receive<M>) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(_) => Err(PostError::OtherUlp),
            Ulp::Rdmap(stream) => stream.post_receive(receive),
        }
    }

    /// Sets the source of receives of RDMAP: see [`rdmap::Stream::set_receive_source`].
    ///
    /// # Errors
    /// [`PostError::OtherUlp`] on a stream of bare DDP, and the errors of [`rdmap::Stream::set_receive_source`].
    pub fn set_receive_source(
        &mut self,
        source: Arc<dyn rdmap::ReceiveSource<M>>,
    ) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(_) => Err(PostError::OtherUlp),
            Ulp::Rdmap(stream) => stream.set_receive_source(source),
        }
    }

    /// Empties the posted receives that use a region: see [`rdmap::Stream::revoke_receives`].
    pub fn revoke_receives(&mut self, memory: &M) {
        match self {
            Ulp::Ddp(_) => {}
            Ulp::Rdmap(stream) => stream.revoke_receives(memory),
        }
    }

    /// Returns true if the stream refers to this region: see [`rdmap::Stream::uses_memory`].
    pub fn uses_memory(&self, memory: &M) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.uses_memory(memory),
            Ulp::Rdmap(stream) => stream.uses_memory(memory),
        }
    }

    /// Ends the peer's Reads from a revoked STag: see [`rdmap::Stream::on_stag_revoked`]. Returns false for bare DDP.
    pub fn on_stag_revoked(&mut self, stag: Stag) -> bool {
        match self {
            Ulp::Ddp(_) => false,
            Ulp::Rdmap(stream) => stream.on_stag_revoked(stag),
        }
    }

    /// Records that the initiator is ready: see [`rdmap::Stream::on_peer_ready`].
    pub fn on_peer_ready(&mut self) {
        if let Ulp::Rdmap(stream) = self {
            stream.on_peer_ready();
        }
    }

    /// Returns the number of events that [`poll_event`](Self::poll_event) has not returned yet.
    #[inline]
    pub fn pending_events(&self) -> usize {
        match self {
            Ulp::Ddp(stream) => stream.pending_events(),
            Ulp::Rdmap(stream) => stream.pending_events(),
        }
    }

    /// Frees unused memory of an idle stream.
    pub fn shrink(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.shrink(),
            Ulp::Rdmap(stream) => stream.shrink(),
        }
    }

    /// Closes gracefully: see [`Stream::close`] and [`rdmap::Stream::close`].
    pub fn close(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.close(),
            Ulp::Rdmap(stream) => stream.close(),
        }
    }

    /// Closes at once: the LLP receives no more ULPDUs. See [`Stream::close_now`] and [`rdmap::Stream::close_now`].
    pub fn close_now(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.close_now(),
            Ulp::Rdmap(stream) => stream.close_now(),
        }
    }

    /// Returns true if no more messages or operations can be posted.
    pub fn is_closed(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.is_closed(),
            Ulp::Rdmap(stream) => stream.is_closed(),
        }
    }

    /// Returns true while a posted message or operation has not been handed to the LLP completely.
    pub fn has_unsent(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.has_unsent(),
            Ulp::Rdmap(stream) => stream.has_unsent(),
        }
    }

    /// Returns the number of incomplete messages or operations, RDMAP's responses included.
    pub fn outstanding(&self) -> usize {
        match self {
            Ulp::Ddp(stream) => stream.outstanding(),
            Ulp::Rdmap(stream) => stream.outstanding(),
        }
    }

    /// Records that the peer's LLP closed its direction gracefully.
    pub fn on_peer_closed(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.on_peer_closed(),
            Ulp::Rdmap(stream) => stream.on_peer_closed(),
        }
    }

    /// Ends the stream abortively: see [`Stream::fail`] and [`rdmap::Stream::fail`].
    pub fn fail(&mut self, failure: Failure) {
        match self {
            Ulp::Ddp(stream) => stream.fail(failure),
            Ulp::Rdmap(stream) => stream.fail(failure),
        }
    }

    /// Returns the cause of the failure, if the stream was ended abortively.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Ulp::Ddp(stream) => stream.failure(),
            Ulp::Rdmap(stream) => stream.failure(),
        }
    }

    /// Returns true if the stream has no [`error`](Self::error), no [`terminated_by_peer`](Self::terminated_by_peer)
    /// and no [`failure`](Self::failure).
    #[inline]
    pub fn is_sound(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.is_sound(),
            Ulp::Rdmap(stream) => stream.is_sound(),
        }
    }

    /// Returns true if a received segment may cause the stream to send. RDMAP answers requests, and a received response
    /// may permit the next request.
    #[inline]
    pub fn may_answer(&self) -> bool {
        matches!(self, Ulp::Rdmap(_))
    }

    /// Returns the error that ended reception, once all segments before it have arrived. The LLP then reports it with
    /// [`post_error`](Self::post_error) and closes.
    pub fn error(&self) -> Option<rdmap::Error> {
        match self {
            Ulp::Ddp(stream) => stream.error().cloned().map(rdmap::Error::Ddp),
            Ulp::Rdmap(stream) => stream.error().cloned(),
        }
    }

    /// Returns the peer's Terminate, if the peer has sent one. The LLP must then be closed gracefully.
    pub fn terminated_by_peer(&self) -> Option<&rdmap::Terminate> {
        match self {
            Ulp::Ddp(_) => None,
            Ulp::Rdmap(stream) => stream.terminated_by_peer(),
        }
    }

    /// Returns true while a posted Read or atomic has no response.
    pub fn awaits_response(&self) -> bool {
        match self {
            Ulp::Ddp(_) => false,
            Ulp::Rdmap(stream) => stream.awaits_response(),
        }
    }

    /// Returns true if the ULP confirms received data: see [`StreamConfig::hold_confirmations`].
    pub fn holds_confirmations(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.holds_confirmations(),
            Ulp::Rdmap(stream) => stream.holds_confirmations(),
        }
    }

    /// Returns true while a Read of the peer waits for [`release_read`](Self::release_read).
    pub fn holds_reads(&self) -> bool {
        match self {
            Ulp::Ddp(_) => false,
            Ulp::Rdmap(stream) => stream.holds_reads(),
        }
    }

    /// Returns the number of delivered messages, Writes and atomics of the peer.
    pub fn delivery_count(&self) -> u64 {
        match self {
            Ulp::Ddp(stream) => {
                let counters = stream.counters();
                counters.tagged_delivered + counters.untagged_delivered
            }
            Ulp::Rdmap(stream) => stream.delivery_count(),
        }
    }

    /// Posts bare DDP's last message about [`error`](Self::error). Has no effect for RDMAP: the Terminate was posted
    /// when the error was found.
    pub fn post_error(&mut self) {
        if let Ulp::Ddp(stream) = self
            && let Some(error) = stream.error()
        {
            let message = stream.last_message(error);
            // Posting fails on a closed stream. The error is then not reported to the peer.
            let _posted = stream.post_last(message);
        }
    }

    /// Returns a segment with a last message (bare DDP) or a Terminate (RDMAP) for an LLP error with these numbers.
    /// Meant for an LLP that ends the stream at once. The stream and its posted messages do not change. `None` before
    /// the version is determined.
    pub fn abort_segment(&self, error_type: u8, code: u8) -> Option<Box<[u8]>> {
        let version = self.version()?;
        let message = match self {
            Ulp::Ddp(_) => Stream::<M>::last_message_with(&LastMessage::llp(error_type, code)),
            Ulp::Rdmap(_) => {
                let terminate = rdmap::Error::Llp { error_type, code }.terminate()?;
                rdmap::terminate_message(&terminate, version)
            }
        };
        let version = VersionPolicy::from(version);
        let config = StreamConfig { version, ..StreamConfig::default() };
        let mut alone = Stream::new(self.id(), PdId(0), config);
        alone.post_last(message).ok()?;
        let outgoing = alone.next(usize::from(u16::MAX))?;
        let mut segment = vec![0; outgoing.len()];
        let (header, payload) = segment.split_at_mut(outgoing.header.len());
        outgoing.header.write(header);
        alone.read_payload(outgoing.token, 0, payload);
        Some(segment.into())
    }

    /// Posts a last message or a Terminate for an error of the LLP, with the LLP's numbers.
    pub fn post_llp_error(&mut self, error_type: u8, code: u8) {
        match self {
            Ulp::Ddp(stream) => {
                let message = Stream::<M>::last_message_with(&LastMessage::llp(error_type, code));
                let _posted = stream.post_last(message);
            }
            Ulp::Rdmap(stream) => stream.report_llp_error(error_type, code),
        }
    }

    /// Posts a last message or a Terminate for a local catastrophic error (RFC 5040 §4.8: 0/0/00; RFC 5041
    /// §7.2: 1/0/00).
    pub fn post_local_error(&mut self) {
        match self {
            Ulp::Ddp(stream) => {
                let message = Stream::<M>::last_message_with(&LastMessage::local());
                let _posted = stream.post_last(message);
            }
            Ulp::Rdmap(stream) => stream.terminate_locally(),
        }
    }

    /// Returns the error numbers that [`post_local_error`](Self::post_local_error) sends.
    pub fn local_error_numbers(&self) -> ErrorNumbers {
        match self {
            Ulp::Ddp(_) => ErrorNumbers::new(LAYER_DDP, 0, 0),
            Ulp::Rdmap(_) => ErrorNumbers::new(LAYER_RDMAP, 0, 0),
        }
    }

    /// Releases the oldest held Read of the peer: see [`rdmap::Config::hold_confirmations`].
    pub fn release_read(&mut self) {
        if let Ulp::Rdmap(stream) = self {
            stream.release_read();
        }
    }

    /// Returns the buffers of unfinished messages to the pool; no segment is accepted afterwards.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        match self {
            Ulp::Ddp(stream) => stream.release(buffers),
            Ulp::Rdmap(stream) => stream.release(buffers),
        }
    }
}

/// Receive half of a stream of either protocol.
#[derive(Debug)]
pub enum UlpSink<'a, M> {
    /// Receive half of bare DDP.
    Ddp(Sink<'a, M>),
    /// Receive half of RDMAP.
    Rdmap(rdmap::Sink<'a, M>),
}

impl<M: RegionMemory> UlpduSink for UlpSink<'_, M> {
    fn ulpdu(&mut self, key: OrderKey, ulpdu: Ulpdu<'_>) -> Disposition {
        match self {
            UlpSink::Ddp(sink) => sink.ulpdu(key, ulpdu),
            UlpSink::Rdmap(sink) => sink.ulpdu(key, ulpdu),
        }
    }

    fn order_complete(&mut self, before: OrderKey) {
        match self {
            UlpSink::Ddp(sink) => sink.order_complete(before),
            UlpSink::Rdmap(sink) => sink.order_complete(before),
        }
    }
}

impl<M: RegionMemory> UlpduSource for Ulp<M> {
    fn next_len(&self, mulpdu: usize) -> Option<usize> {
        match self {
            Ulp::Ddp(stream) => stream.next_len(mulpdu),
            Ulp::Rdmap(stream) => stream.next_len(mulpdu),
        }
    }

    fn next_is_stable(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.next_is_stable(),
            Ulp::Rdmap(stream) => stream.next_is_stable(),
        }
    }

    fn next(&mut self, mulpdu: usize) -> Option<Outgoing> {
        match self {
            Ulp::Ddp(stream) => stream.next(mulpdu),
            Ulp::Rdmap(stream) => stream.next(mulpdu),
        }
    }

    fn reframe(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
        match self {
            Ulp::Ddp(stream) => stream.reframe(token, payload_len),
            Ulp::Rdmap(stream) => stream.reframe(token, payload_len),
        }
    }

    #[inline]
    fn read_pieces<'a>(
        &self,
        token: UlpduToken,
        at: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    ) {
        match self {
            Ulp::Ddp(stream) => stream.read_pieces(token, at, pieces),
            Ulp::Rdmap(stream) => stream.read_pieces(token, at, pieces),
        }
    }

    #[inline]
    fn read_digested(&self, token: UlpduToken, at: usize, target: &mut Target<'_>) {
        match self {
            Ulp::Ddp(stream) => stream.read_digested(token, at, target),
            Ulp::Rdmap(stream) => stream.read_digested(token, at, target),
        }
    }

    fn on_acknowledged(&mut self, token: UlpduToken, payload_len: usize) {
        match self {
            Ulp::Ddp(stream) => stream.on_acknowledged(token, payload_len),
            Ulp::Rdmap(stream) => stream.on_acknowledged(token, payload_len),
        }
    }
}

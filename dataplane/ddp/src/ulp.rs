//! What an LLP carries: bare DDP, or RDMAP above it. One type for the LLP's endpoint to store.

use base::Prefetch;
use wire::crc32c::Target;
use wire::{DdpVersion, Qn, Stag};

use crate::buffers::{BufferPool, PeerId};
use crate::config::{MESSAGE_QUEUE, StreamConfig, VersionPolicy};
use crate::cookie::Cookie;
use crate::counters::Counters;
use crate::enhanced::{Agreed, Readiness};
use crate::error::PostError;
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

pub use config::{Open, Origin, UlpConfig, UlpKind};

/// Events of a stream of either kind for its ULP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UlpEvent {
    /// Bare DDP's.
    Ddp(Event),
    /// RDMAP's.
    Rdmap(rdmap::Event),
}

/// A stream of either kind. Implements both halves of the LLP seam by delegation; what the two kinds
/// do not share is reached by a match.
#[derive(Debug)]
pub enum Ulp<M> {
    /// Bare DDP.
    Ddp(Box<Stream<M>>),
    /// RDMAP.
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
    /// A stream that takes and sends from now on.
    pub fn new(id: StreamId, pd: PdId, config: UlpConfig) -> Self {
        match config {
            UlpConfig::Ddp(config) => Ulp::Ddp(Box::new(Stream::new(id, pd, config))),
            UlpConfig::Rdmap(config) => Ulp::Rdmap(Box::new(rdmap::Stream::new(id, pd, config))),
        }
    }

    /// The stream of an accepted request, with what the two ends agreed on (RFC 6581 §9). Where this end is to
    /// send the ready-to-receive message, that is posted before anything else; `rtr_stag` is what an empty
    /// Write or Read names.
    pub fn accepted(
        id: StreamId,
        (pd, peer): (PdId, PeerId),
        mut config: UlpConfig,
        agreed: Option<Agreed>,
        rtr_stag: Stag,
    ) -> Self {
        if let (UlpConfig::Rdmap(config), Some(agreed)) = (&mut config, agreed) {
            (config.ird, config.ord) = (agreed.depths.ird, agreed.depths.ord);
            config.rtr_send = matches!(agreed.readiness, Readiness::Awaits(set) if set.send);
        }
        let mut ulp = Ulp::new(id, pd, config);
        ulp.set_peer(peer);
        if let (Ulp::Rdmap(stream), Some(Readiness::Sends(rtr))) =
            (&mut ulp, agreed.map(|agreed| agreed.readiness))
        {
            // Refused only by a stream that may post nothing at all.
            let _posted = stream.post_ready(rtr, rtr_stag);
        }
        ulp
    }

    /// The protocol above the LLP.
    pub fn kind(&self) -> UlpKind {
        match self {
            Ulp::Ddp(_) => UlpKind::Ddp,
            Ulp::Rdmap(_) => UlpKind::Rdmap,
        }
    }

    /// Bare DDP's stream, if it is one.
    pub fn as_ddp_mut(&mut self) -> Option<&mut Stream<M>> {
        match self {
            Ulp::Ddp(stream) => Some(stream),
            Ulp::Rdmap(_) => None,
        }
    }

    /// Its name.
    pub fn id(&self) -> StreamId {
        match self {
            Ulp::Ddp(stream) => stream.id(),
            Ulp::Rdmap(stream) => stream.id(),
        }
    }

    /// Moves the stream into another protection domain, before it takes its first segment.
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

    /// The version, once it is known.
    pub fn version(&self) -> Option<DdpVersion> {
        match self {
            Ulp::Ddp(stream) => stream.version(),
            Ulp::Rdmap(stream) => stream.version(),
        }
    }

    /// DDP's counters.
    pub fn counters(&self) -> &Counters {
        match self {
            Ulp::Ddp(stream) => stream.counters(),
            Ulp::Rdmap(stream) => stream.ddp_counters(),
        }
    }

    /// RDMAP's counters.
    pub fn rdmap_counters(&self) -> Option<&rdmap::Counters> {
        match self {
            Ulp::Ddp(_) => None,
            Ulp::Rdmap(stream) => Some(stream.counters()),
        }
    }

    /// Receive half for the LLP, for as long as `cx` is borrowed from the worker.
    pub fn sink<'a>(&'a mut self, cx: Context<'a, M>) -> UlpSink<'a, M> {
        match self {
            Ulp::Ddp(stream) => UlpSink::Ddp(stream.sink(cx)),
            Ulp::Rdmap(stream) => UlpSink::Rdmap(stream.sink(cx)),
        }
    }

    /// The next thing that the ULP should know. The ready-to-receive message is no concern of it.
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
    /// [`PostError::OtherUlp`] on a stream of RDMAP, and as there.
    pub fn post(&mut self, message: Message<M>) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(stream) => stream.post(message),
            Ulp::Rdmap(_) => Err(PostError::OtherUlp),
        }
    }

    /// As [`post`](Self::post), with a region that is only lent: see [`Stream::post_lent`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_lent(&mut self, message: Message<&M>) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(stream) => stream.post_lent(message),
            Ulp::Rdmap(_) => Err(PostError::OtherUlp),
        }
    }

    /// Posts an operation of RDMAP: see [`rdmap::Stream::post`].
    ///
    /// # Errors
    /// [`PostError::OtherUlp`] on a stream of bare DDP, and as there.
    pub fn post_rdmap(&mut self, request: WorkRequest<M>) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(_) => Err(PostError::OtherUlp),
            Ulp::Rdmap(stream) => stream.post(request),
        }
    }

    /// Adds `n` receive buffers to a queue; RDMAP's ULP has [`MESSAGE_QUEUE`] alone.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        match self {
            Ulp::Ddp(stream) => stream.post_buffers(qn, n),
            Ulp::Rdmap(stream) if qn == MESSAGE_QUEUE => stream.post_buffers(n),
            Ulp::Rdmap(_) => Err(PostError::NoSuchQueue(qn.0)),
        }
    }

    /// An STag of the worker's table has ended: see [`rdmap::Stream::revoked`].
    pub fn revoked(&mut self, stag: Stag) -> bool {
        match self {
            Ulp::Ddp(_) => false,
            Ulp::Rdmap(stream) => stream.revoked(stag),
        }
    }

    /// The initiator is ready: see [`rdmap::Stream::ready`].
    pub fn ready(&mut self) {
        if let Ulp::Rdmap(stream) = self {
            stream.ready();
        }
    }

    /// Events that [`poll_event`](Self::poll_event) has not given yet.
    #[inline]
    pub fn pending_events(&self) -> usize {
        match self {
            Ulp::Ddp(stream) => stream.pending_events(),
            Ulp::Rdmap(stream) => stream.pending_events(),
        }
    }

    /// Nothing has been received or sent for a while: frees memory that nothing is in.
    pub fn shrink(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.shrink(),
            Ulp::Rdmap(stream) => stream.shrink(),
        }
    }

    /// Graceful: see [`Stream::close`] and [`rdmap::Stream::close`].
    pub fn close(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.close(),
            Ulp::Rdmap(stream) => stream.close(),
        }
    }

    /// Nothing more is given to the LLP.
    pub fn close_now(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.close_now(),
            Ulp::Rdmap(stream) => stream.close_now(),
        }
    }

    /// True when nothing can be posted any more.
    pub fn is_closed(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.is_closed(),
            Ulp::Rdmap(stream) => stream.is_closed(),
        }
    }

    /// True while something posted is not wholly with the LLP.
    pub fn has_unsent(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.has_unsent(),
            Ulp::Rdmap(stream) => stream.has_unsent(),
        }
    }

    /// What is posted and not complete.
    pub fn outstanding(&self) -> usize {
        match self {
            Ulp::Ddp(stream) => stream.outstanding(),
            Ulp::Rdmap(stream) => stream.outstanding(),
        }
    }

    /// The peer's LLP closed its half in order.
    pub fn peer_closed(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.peer_closed(),
            Ulp::Rdmap(stream) => stream.peer_closed(),
        }
    }

    /// The stream is over, abortively.
    pub fn fail(&mut self, why: Failure) {
        match self {
            Ulp::Ddp(stream) => stream.fail(why),
            Ulp::Rdmap(stream) => stream.fail(why),
        }
    }

    /// Why the stream is over, if it was ended abortively.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Ulp::Ddp(stream) => stream.failure(),
            Ulp::Rdmap(stream) => stream.failure(),
        }
    }

    /// True when neither [`error`](Self::error) nor [`terminated_by_peer`](Self::terminated_by_peer) nor
    /// [`failure`](Self::failure) has anything to tell.
    #[inline]
    pub fn is_sound(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.is_sound(),
            Ulp::Rdmap(stream) => stream.is_sound(),
        }
    }

    /// True when a segment of the peer may give it something to send, as in RDMAP a request that is answered, or a response
    /// that another request has waited for.
    #[inline]
    pub fn answers(&self) -> bool {
        matches!(self, Ulp::Rdmap(_))
    }

    /// The error of the peer that the order has reached: the stream says its last word and closes.
    pub fn error(&self) -> Option<rdmap::Error> {
        match self {
            Ulp::Ddp(stream) => stream.error().cloned().map(rdmap::Error::Ddp),
            Ulp::Rdmap(stream) => stream.error().cloned(),
        }
    }

    /// The peer's Terminate, if it sent one: the LLP is to be closed gracefully.
    pub fn terminated_by_peer(&self) -> Option<&rdmap::Terminate> {
        match self {
            Ulp::Ddp(_) => None,
            Ulp::Rdmap(stream) => stream.terminated_by_peer(),
        }
    }

    /// True while a Read or atomic that was posted has no response.
    pub fn awaits_response(&self) -> bool {
        match self {
            Ulp::Ddp(_) => false,
            Ulp::Rdmap(stream) => stream.awaits_response(),
        }
    }

    /// True when the ULP gives the confirmations: see [`StreamConfig::hold_confirmations`].
    pub fn holds_confirmations(&self) -> bool {
        match self {
            Ulp::Ddp(stream) => stream.holds_confirmations(),
            Ulp::Rdmap(stream) => stream.holds_confirmations(),
        }
    }

    /// True while a Read of the peer waits for [`release_read`](Self::release_read).
    pub fn holds_reads(&self) -> bool {
        match self {
            Ulp::Ddp(_) => false,
            Ulp::Rdmap(stream) => stream.holds_reads(),
        }
    }

    /// Messages, Writes and atomics of the peer that were delivered.
    pub fn taken(&self) -> u64 {
        match self {
            Ulp::Ddp(stream) => {
                let counters = stream.counters();
                counters.tagged_delivered + counters.untagged_delivered
            }
            Ulp::Rdmap(stream) => stream.taken(),
        }
    }

    /// Queues the last word about [`error`](Self::error): bare DDP's last message. RDMAP has queued its
    /// Terminate when it found the error.
    pub fn post_error(&mut self) {
        if let Ulp::Ddp(stream) = self
            && let Some(error) = stream.error()
        {
            let message = stream.last_message(error);
            // Posting fails only behind another last message, which then goes out.
            let _posted = stream.post_last(message);
        }
    }

    /// The one segment of a last message or Terminate with these numbers of the LLP, for an LLP that ends the stream at once.
    /// The stream and what is posted on it do not change. `None` before the version is known.
    pub fn abort_segment(&self, error_type: u8, code: u8) -> Option<Box<[u8]>> {
        let version = self.version()?;
        let message = match self {
            Ulp::Ddp(_) => Stream::<M>::message_of(&LastMessage::llp(error_type, code)),
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

    /// Queues the last word about an error of the LLP, with its own numbers: a last message or a
    /// Terminate.
    pub fn post_llp_error(&mut self, error_type: u8, code: u8) {
        match self {
            Ulp::Ddp(stream) => {
                let message = Stream::<M>::message_of(&LastMessage::llp(error_type, code));
                let _posted = stream.post_last(message);
            }
            Ulp::Rdmap(stream) => stream.llp_error(error_type, code),
        }
    }

    /// Queues the last word about a local catastrophic error (RFC 5040 §4.8: 0/0/00; RFC 5041 §7.1: 1/0/00).
    pub fn post_local_error(&mut self) {
        match self {
            Ulp::Ddp(stream) => {
                let message = Stream::<M>::message_of(&LastMessage::local());
                let _posted = stream.post_last(message);
            }
            Ulp::Rdmap(stream) => stream.terminate_locally(),
        }
    }

    /// Layer, type and code of [`post_local_error`](Self::post_local_error).
    pub fn local_error_numbers(&self) -> (u8, u8, u8) {
        match self {
            Ulp::Ddp(_) => (1, 0, 0),
            Ulp::Rdmap(_) => (0, 0, 0),
        }
    }

    /// Answers the peer's oldest Read that is held: see [`rdmap::Config::hold_confirmations`].
    pub fn release_read(&mut self) {
        if let Ulp::Rdmap(stream) = self {
            stream.release_read();
        }
    }

    /// Gives the buffers of unfinished messages back; nothing more is taken after it.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        match self {
            Ulp::Ddp(stream) => stream.release(buffers),
            Ulp::Rdmap(stream) => stream.release(buffers),
        }
    }
}

/// Receive half of a stream of either kind.
#[derive(Debug)]
pub enum UlpSink<'a, M> {
    /// Bare DDP's.
    Ddp(Sink<'a, M>),
    /// RDMAP's.
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

    fn again(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
        match self {
            Ulp::Ddp(stream) => stream.again(token, payload_len),
            Ulp::Rdmap(stream) => stream.again(token, payload_len),
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

    fn acknowledged(&mut self, token: UlpduToken, payload_len: usize) {
        match self {
            Ulp::Ddp(stream) => stream.acknowledged(token, payload_len),
            Ulp::Rdmap(stream) => stream.acknowledged(token, payload_len),
        }
    }
}

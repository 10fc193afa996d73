//! What an LLP carries: bare DDP, or RDMAP above it. One type for the LLP's endpoint to store.

use base::Near;
use wire::DdpVersion;

use crate::buffers::{BufferPool, PeerId};
use crate::config::{StreamConfig, VersionPolicy};
use crate::counters::Counters;
use crate::enhanced::Depths;
use crate::last_message::LastMessage;
use crate::llp::{Disposition, OrderKey, Outgoing, Ulpdu, UlpduSink, UlpduSource, UlpduToken};
use crate::memory::RegionMemory;
use crate::message::{Event, Failure};
use crate::rdmap;
use crate::stag::{PdId, StreamId};
use crate::stream::{Context, Sink, Stream};

/// How a stream of either kind is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UlpConfig {
    /// Bare DDP.
    Ddp(StreamConfig),
    /// RDMAP.
    Rdmap(rdmap::Config),
}

impl UlpConfig {
    /// The version, to be set by what the LLP's start-up found.
    pub fn version_mut(&mut self) -> &mut VersionPolicy {
        match self {
            UlpConfig::Ddp(config) => &mut config.version,
            UlpConfig::Rdmap(config) => &mut config.version,
        }
    }
}

impl UlpConfig {
    /// Reads that this end would take and issue at once. What is negotiated takes their place
    /// (RFC 6581 §9.1).
    pub fn depths(&self) -> Depths {
        match self {
            UlpConfig::Ddp(_) => Depths::NONE,
            UlpConfig::Rdmap(config) => Depths { ird: config.ird, ord: config.ord },
        }
    }
}

impl From<StreamConfig> for UlpConfig {
    fn from(config: StreamConfig) -> Self {
        UlpConfig::Ddp(config)
    }
}

impl From<rdmap::Config> for UlpConfig {
    fn from(config: rdmap::Config) -> Self {
        UlpConfig::Rdmap(config)
    }
}

/// What is spoken above an LLP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UlpKind {
    /// Bare DDP.
    Ddp,
    /// RDMAP.
    Rdmap,
}

impl UlpKind {
    /// That of a configuration.
    pub fn of(config: &UlpConfig) -> UlpKind {
        match config {
            UlpConfig::Ddp(_) => UlpKind::Ddp,
            UlpConfig::Rdmap(_) => UlpKind::Rdmap,
        }
    }

    /// A stable name for people and for machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            UlpKind::Ddp => "ddp",
            UlpKind::Rdmap => "rdmap",
        }
    }
}

/// Whose doing the end of a stream was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// This end's.
    Local,
    /// The peer's.
    Peer,
    /// The network's, or the peer's host's.
    Network,
}

/// What to do when the peer has closed its direction (RFC 5041 §6.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnPeerClose {
    /// Send what is posted, then close.
    Finish,
    /// Stay half open until this end closes, too.
    KeepOpen,
}

/// What a stream of either kind tells its ULP.
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

impl<M: RegionMemory> Near for Ulp<M> {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        match self {
            Ulp::Ddp(stream) => stream.near(steps, hint),
            Ulp::Rdmap(stream) => stream.near(steps, hint),
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

    /// Bare DDP's stream, if it is one.
    pub fn as_ddp_mut(&mut self) -> Option<&mut Stream<M>> {
        match self {
            Ulp::Ddp(stream) => Some(stream),
            Ulp::Rdmap(_) => None,
        }
    }

    /// RDMAP's stream, if it is one.
    pub fn as_rdmap_mut(&mut self) -> Option<&mut rdmap::Stream<M>> {
        match self {
            Ulp::Ddp(_) => None,
            Ulp::Rdmap(stream) => Some(stream),
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

    /// Says who the peer is: see [`Stream::set_peer`].
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

    /// Receive half for the LLP, for as long as the worker lends `cx`.
    pub fn sink<'a>(&'a mut self, cx: Context<'a, M>) -> UlpSink<'a, M> {
        match self {
            Ulp::Ddp(stream) => UlpSink::Ddp(stream.sink(cx)),
            Ulp::Rdmap(stream) => UlpSink::Rdmap(stream.sink(cx)),
        }
    }

    /// The next thing that the ULP should know.
    pub fn poll_event(&mut self) -> Option<UlpEvent> {
        match self {
            Ulp::Ddp(stream) => stream.poll_event().map(UlpEvent::Ddp),
            Ulp::Rdmap(stream) => stream.poll_event().map(UlpEvent::Rdmap),
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

    /// Nothing has come or gone for a while: gives back memory that nothing is in.
    pub fn relax(&mut self) {
        match self {
            Ulp::Ddp(stream) => stream.relax(),
            Ulp::Rdmap(stream) => stream.relax(),
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

    /// Queues the last word about [`error`](Self::error): bare DDP's last message. RDMAP has queued its
    /// Terminate when it found the error.
    pub fn say_error(&mut self) {
        if let Ulp::Ddp(stream) = self
            && let Some(error) = stream.error()
        {
            let message = stream.last_message(error);
            // Posting fails only behind another last message, which then goes out.
            let _posted = stream.post_last(message);
        }
    }

    /// Queues the last word about an error of the LLP, with its own numbers: a last message or a
    /// Terminate.
    pub fn say_llp_error(&mut self, error_type: u8, code: u8) {
        match self {
            Ulp::Ddp(stream) => {
                let message = Stream::<M>::message_of(&LastMessage::llp(error_type, code));
                let _posted = stream.post_last(message);
            }
            Ulp::Rdmap(stream) => stream.llp_error(error_type, code),
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

    fn acknowledged(&mut self, token: UlpduToken, payload_len: usize) {
        match self {
            Ulp::Ddp(stream) => stream.acknowledged(token, payload_len),
            Ulp::Rdmap(stream) => stream.acknowledged(token, payload_len),
        }
    }
}

//! The connection: what its owner sees of it.

use std::sync::Arc;

use wire::Instant;

use super::config::Config;
use super::drop_reason::DropReason;
use super::isn::FourTuple;
use super::segment::Segment;
use super::seq::SeqNumber;
use super::state::State;
use super::stats::{Info, Stats};
use crate::seam::{SegmentSource, SpanSink, TxBatch};

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseReason {
    /// Both sides closed and everything was acknowledged.
    Normal,
    /// The peer reset it (RFC 9293 §3.10.7.4, second check).
    Reset,
    /// The peer refused our SYN with a reset.
    Refused,
    /// No answer to retransmissions, probes or keepalives, or silence in FIN-WAIT-2.
    Timeout,
    /// We aborted it, or closed it before it was established.
    Aborted,
}

/// What the owner has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// ESTABLISHED; the effective MSS is known.
    Connected,
    /// The peer's FIN has come in order: it sends nothing more.
    RemoteClosed,
    /// Nothing more will come or go. With [`CloseReason::Normal`] the state may still be TIME-WAIT: keep
    /// the connection until it is CLOSED.
    Closed(CloseReason),
}

/// A TCP connection. See the [module](super) for the order of calls.
#[derive(Debug)]
pub struct Connection {
    state: State,
    config: Arc<Config>,
    tuple: FourTuple,
    stats: Stats,
    idle_since: Instant,
}

impl Connection {
    /// Active open: SYN-SENT. `iss` comes from an [`IsnGenerator`](super::IsnGenerator); `mss` is what a
    /// segment on this interface can carry, its MTU less the IP and the fixed TCP header (RFC 9293 §3.7.1).
    pub fn connect(
        config: Arc<Config>,
        tuple: FourTuple,
        iss: SeqNumber,
        mss: u16,
        now: Instant,
    ) -> Connection {
        let _ = (iss, mss);
        Connection {
            state: State::SynSent,
            config,
            tuple,
            stats: Stats::default(),
            idle_since: now,
        }
    }

    /// Passive open by `syn`, a segment with SYN and neither ACK nor RST: SYN-RECEIVED (RFC 9293
    /// §3.10.7.2). `iss` and `mss` as for [`connect`](Self::connect).
    pub fn accept(
        config: Arc<Config>,
        tuple: FourTuple,
        iss: SeqNumber,
        mss: u16,
        syn: &Segment<'_>,
        now: Instant,
    ) -> Connection {
        let _ = syn;
        Connection { state: State::SynReceived, ..Self::connect(config, tuple, iss, mss, now) }
    }

    /// A segment of this connection arrived (RFC 9293 §3.10.7). Octets never taken before go up at once.
    /// Answers are sent by the next [`poll_transmit`](Self::poll_transmit).
    ///
    /// # Errors
    /// Why the segment, or all its text, was dropped.
    pub fn input<U: SpanSink + SegmentSource>(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut U,
    ) -> Result<(), DropReason> {
        let _ = (now, seg, up);
        Err(DropReason::Closed)
    }

    /// Writes the segments that are due now: retransmissions, new data as far as the windows allow, and at
    /// most one acknowledgement (more only for peers without SACK that need duplicates).
    pub fn poll_transmit<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) {
        let _ = (now, up, tx);
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Time has passed. Follow it with [`poll_transmit`](Self::poll_transmit).
    pub fn handle_timeout<U: SegmentSource + SpanSink>(&mut self, now: Instant, up: &mut U) {
        let _ = (now, up);
    }

    /// The next thing to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// No more data after what the source has now: a FIN follows it. Data still arrives until the peer
    /// closes too (RFC 9293 §3.10.4).
    pub fn close(&mut self) {}

    /// Ends the connection at once with a reset, which the next [`poll_transmit`](Self::poll_transmit)
    /// sends (RFC 9293 §3.10.5).
    pub fn abort(&mut self) {
        self.state = State::Closed;
    }

    /// The path carries segments of at most `mss` octets (MTU less IP and fixed TCP header): an ICMP
    /// message said so and was checked by the caller, or the interface changed. Never below the
    /// configured minimum, never above what the peer takes.
    pub fn path_mtu(&mut self, mss: u16) {
        let _ = mss;
    }

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// The two ends.
    pub fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    /// Effective maximum segment size: payload octets of a data segment, options deducted (RFC 9293
    /// §3.7.1). Meaningful once connected.
    pub fn emss(&self) -> usize {
        0
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Present condition.
    pub fn info(&self) -> Info {
        let _ = &self.config;
        Info {
            state: self.state,
            emss: 0,
            srtt: None,
            rto: self.config.initial_rto,
            cwnd: 0,
            ssthresh: 0,
            send_window: 0,
            flight: 0,
            receive_window: 0,
            ranges: 0,
            sack: false,
            timestamps: false,
            send_window_shift: None,
            receive_window_shift: 0,
        }
    }

    /// When the last segment of the peer that was not dropped arrived.
    pub fn idle_since(&self) -> Instant {
        self.idle_since
    }

    /// True after several retransmissions without an answer: the neighbour entry or the route may be
    /// wrong (R1 of RFC 9293 §3.8.3).
    pub fn path_suspect(&self) -> bool {
        false
    }

    /// In TIME-WAIT, true when `seg` is a SYN that may open the connection anew: replace this connection
    /// by a new [`accept`](Self::accept) (RFC 9293 §3.6.1 MAY-2).
    pub fn may_reopen(&self, seg: &Segment<'_>) -> bool {
        let _ = seg;
        false
    }
}

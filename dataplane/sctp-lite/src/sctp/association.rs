//! The association: what its owner sees of it. What packets do to it is in `input` and `handshake`, what it
//! sends in `output`, what time does in `timeouts`.

use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use transport::recorder::{Kind, Record, WaitedFor};
use transport::stall::Stall;
use wire::sctp::{Cause, InitHeader, Ports, Tag, Tsn, chunk_type};

use super::config::Config;
use super::cookie::{Cookie, Terms};
use super::liveness::Liveness;
use super::lone::LoneChunk;
use super::path_mtu::PathMtu;
use super::receive::{Receiver, Violation};
use super::secrets::{Ends, Purpose, Secrets};
use super::send::Sender;
use super::state::{State, Transition};
use super::stats::Stats;
use super::timers::{Timer, Timers};
use super::waiting::{Due, Waiting};

/// Most bytes of the reason of an ABORT that are kept.
pub(super) const MAX_REASON: usize = 128;

/// How long the last packet of an association waits for room, and for the next hop's link-layer address, which takes
/// three seconds to be given up (RFC 4861 §10). One that is lost is not sent again either (RFC 9260 §9.1).
const FAREWELL: Duration = Duration::from_secs(5);

/// What a peer did that ends an association.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// In a DATA chunk.
    Data(Violation),
    /// It acknowledged something that was never sent.
    NeverSent,
    /// An INIT ACK with an illegal value, or without a cookie that can be sent back.
    InitAck,
}

/// Why an association ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// By the shutdown sequence: all was acknowledged.
    Shutdown,
    /// The upper layer aborted it.
    Aborted,
    /// The peer aborted it.
    PeerAborted {
        /// Code of the first error cause, if there is one (RFC 9260 §3.3.10).
        cause: Option<u16>,
        /// Upper Layer Abort Reason, the first 128 bytes (RFC 9260 §3.3.10.12).
        reason: Box<[u8]>,
    },
    /// The peer answered the INIT with an ABORT: there is no listener, or it refuses us.
    Refused {
        /// As of [`PeerAborted`](Self::PeerAborted).
        cause: Option<u16>,
    },
    /// The peer has another adaptation than is required, or none (RFC 5043 §7.1).
    OtherAdaptation {
        /// What it indicates.
        seen: Option<u32>,
    },
    /// No answer to retransmissions or heartbeats, or a shutdown that took too long.
    Timeout,
    /// The peer's host does not support SCTP, by an ICMP report (RFC 9260 §10).
    Unreachable,
    /// It was aborted because the peer broke the protocol.
    Fault(Fault),
}

/// What the owner has to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// ESTABLISHED.
    Up {
        /// Pairs of streams: identifiers below this are good both ways.
        streams: u16,
    },
    /// The peer has restarted: it knows nothing of what was before. What was sent and not acknowledged is
    /// forgotten without a word to its source; numbers and windows start anew.
    Restarted {
        /// As of [`Up`](Self::Up).
        streams: u16,
    },
    /// The peer shuts down. What the source still has goes out; nothing arrives any more.
    PeerShutdown,
    /// There is no association any more. `poll_transmit` once more: a last chunk may be due.
    Closed(CloseReason),
}

/// Who the two ends are to each other.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) ends: Ends,
    /// Tag that the peer's packets bear.
    pub(super) local_tag: Tag,
    /// Tag that ours bear; none before the peer has sent it.
    pub(super) peer_tag: Tag,
    /// Our first TSN.
    pub(super) local_tsn: Tsn,
}

/// The handshake under way: that of the open, or of the shutdown.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// The peer's cookie, until COOKIE ACK.
    pub(super) cookie: Box<[u8]>,
    /// What the next INIT asks to be added to the life of its cookie.
    pub(super) preservative: Option<Duration>,
    /// When INIT or COOKIE ECHO went out, once and not again.
    pub(super) sent: Option<Instant>,
    /// Times that INIT, COOKIE ECHO, SHUTDOWN or SHUTDOWN ACK went out again.
    pub(super) attempts: u32,
    /// Stale cookies that the peer has complained of.
    pub(super) stale_cookies: u32,
}

/// An SCTP association. See the [module](super) for the order of calls.
#[derive(Debug)]
pub struct Association {
    pub(super) state: State,
    pub(super) config: Arc<Config>,
    pub(super) secrets: Arc<Secrets>,
    pub(super) identity: Identity,
    /// Pairs of streams; zero before they are agreed on.
    pub(super) streams: u16,
    /// Bytes of a packet that the path is thought to carry.
    pub(super) packet_len: usize,
    pub(super) path: PathMtu,
    /// Meaningful from COOKIE-ECHOED on, both.
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    /// Chunks to send.
    pub(super) due: Due,
    /// Answers, and the last packet.
    pub(super) waiting: Waiting,
    pub(super) handshake: Handshake,
    pub(super) liveness: Liveness,
    pub(super) timers: Timers,
    /// Overall error count (RFC 9260 §8.1).
    pub(super) errors: u32,
    pub(super) stats: Stats,
    events: ArrayVec<Event, 4>,
}

impl Association {
    /// Active open: COOKIE-WAIT. `packet_len` is what a packet can carry at most, the path's MTU less the
    /// headers below SCTP, in bytes.
    pub fn connect(
        config: Arc<Config>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        now: Instant,
    ) -> Association {
        let (local_tag, local_tsn) = secrets.tag(Purpose::Identity, (ends, now.as_nanos()));
        let terms = Terms {
            local_tag,
            peer_tag: Tag::NONE,
            local_tsn: Tsn(local_tsn),
            peer_tsn: Tsn(0),
            peer_rwnd: 0,
            streams: 0,
        };
        let mut association = Self::new(config, secrets, ends, packet_len, &terms, now);
        association.state = State::CookieWait;
        association.setup_due(now);
        association
    }

    /// Passive open by a cookie that [`Listener::input`](super::Listener::input) found good: ESTABLISHED. The
    /// packet that brought it is to be given to [`input`](Self::input) next, which answers it.
    pub fn accept(
        config: Arc<Config>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        cookie: &Cookie,
        now: Instant,
    ) -> Association {
        let mut association = Self::new(config, secrets, ends, packet_len, &cookie.terms, now);
        association.state = State::Established;
        association.heartbeat_after_silence(now);
        association.push_event(Event::Up { streams: cookie.terms.streams });
        association
    }

    fn new(
        config: Arc<Config>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        terms: &Terms,
        now: Instant,
    ) -> Association {
        Association {
            state: State::Closed,
            path: PathMtu::new(packet_len, ends.remote.is_ipv6(), &config),
            receiver: Receiver::new(&config.receive, terms.peer_tsn, terms.streams),
            sender: Sender::new(&config.send, terms.local_tsn, terms.peer_rwnd, packet_len, now),
            config,
            secrets,
            identity: Identity {
                ends,
                local_tag: terms.local_tag,
                peer_tag: terms.peer_tag,
                local_tsn: terms.local_tsn,
            },
            streams: terms.streams,
            packet_len,
            due: Due::default(),
            waiting: Waiting::default(),
            handshake: Handshake::default(),
            liveness: Liveness::new(now),
            timers: Timers::new(),
            errors: 0,
            stats: Stats::default(),
            events: ArrayVec::new(),
        }
    }

    /// Sets the negotiated terms; data may flow.
    pub(super) fn take_terms(&mut self, terms: &Terms, now: Instant) {
        let (config, packet_len) = (&self.config, self.packet_len);
        self.receiver = Receiver::new(&config.receive, terms.peer_tsn, terms.streams);
        let sender = Sender::new(&config.send, terms.local_tsn, terms.peer_rwnd, packet_len, now);
        let before = core::mem::replace(&mut self.sender, sender);
        self.sender.keep_records(before);
        self.identity.local_tag = terms.local_tag;
        self.identity.peer_tag = terms.peer_tag;
        self.identity.local_tsn = terms.local_tsn;
        self.streams = terms.streams;
    }

    /// Our side of an INIT, or of an INIT ACK in the middle of an active open.
    pub(super) fn init_header(&self) -> InitHeader {
        InitHeader {
            tag: self.identity.local_tag,
            a_rwnd: self.config.receive.window,
            outbound_streams: self.config.streams,
            inbound_streams: self.config.streams,
            initial_tsn: self.identity.local_tsn,
        }
    }

    /// The first event that was not polled yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_at(0)
    }

    /// The newest event, if the owner has not polled it.
    pub(crate) fn last_event(&self) -> Option<&Event> {
        self.events.last()
    }

    pub(super) fn push_event(&mut self, event: Event) {
        if self.events.is_full() {
            // Restarts that were not polled: the last one replaces them.
            self.events.pop_at(0);
        }
        self.events.push(event);
    }

    /// Adds a cause to the next ERROR, if there is room for it.
    pub(super) fn complain(&mut self, cause: &Cause<'_>) {
        self.stats.unsent += u64::from(!self.waiting.causes.push(cause));
    }

    /// Makes a transition, if it is legal; returns whether it was.
    pub(super) fn go(&mut self, transition: Transition) -> bool {
        let to = self.state.after(transition);
        self.state = to.unwrap_or(self.state);
        to.is_some()
    }

    // --- the end ------------------------------------------------------------------------------------

    /// Graceful end: what the source has goes out, then the shutdown sequence (RFC 9260 §9.2). Ends at once
    /// on the way up; nothing when it is under way.
    pub fn shutdown(&mut self, now: Instant) {
        if self.state.is_opening() {
            self.abort(now, b"");
        } else if self.go(Transition::Shutdown) {
            self.timers.set(Timer::Guard, now + self.config.shutdown_guard);
        }
    }

    /// Ends the association at once. The peer is sent an ABORT with this reason, at most 128 bytes of it.
    pub fn abort(&mut self, now: Instant, reason: &[u8]) {
        let reason = &reason[..reason.len().min(MAX_REASON)];
        // RFC 9260 §9.1.
        self.abort_with(now, Cause::UserInitiatedAbort(reason), CloseReason::Aborted);
    }

    /// Aborts with this cause.
    pub(super) fn abort_with(&mut self, now: Instant, cause: Cause<'_>, reason: CloseReason) {
        // RFC 9260 §8.5.1 B: with the peer's tag, if it is known; else it knows nothing of us either.
        match self.identity.peer_tag {
            _ if self.state == State::Closed => {}
            Tag::NONE => self.close(reason),
            tag => {
                self.note_abort(now, Kind::ResetSent, cause.code());
                self.close_with(now, LoneChunk::abort(tag, false, &cause), reason);
            }
        }
    }

    /// An ABORT was sent, or has come, with this cause.
    #[cold]
    pub(super) fn note_abort(&mut self, now: Instant, kind: Kind, cause: u16) {
        let record = Record::new(now, kind, 0, cause.into());
        self.sender.record(record.with(chunk_type::ABORT, 0, 0));
    }

    /// Our port, and the peer's as the destination.
    pub fn ports(&self) -> Ports {
        self.identity.ends.ports()
    }

    /// Records what was found above, of one of its streams.
    pub fn record(&mut self, record: Record) {
        self.sender.record(record);
    }

    /// There is no association any more. This is its last packet, if there is room for it in time.
    pub(super) fn close_with(&mut self, now: Instant, farewell: LoneChunk, reason: CloseReason) {
        if self.state != State::Closed {
            self.close(reason);
            self.waiting.farewell = Some(Box::new(farewell));
            self.timers.set(Timer::Farewell, now + FAREWELL);
        }
    }

    /// There is no association any more.
    pub(super) fn close(&mut self, reason: CloseReason) {
        if !self.go(Transition::End) {
            return;
        }
        self.timers.stop_all();
        self.due = Due::default();
        self.waiting.forget_answers();
        self.handshake.cookie = Box::default();
        self.receiver.forget_fragments();
        self.push_event(Event::Closed(reason));
    }

    /// One retransmission or heartbeat more, which awaited this, went unanswered (RFC 9260 §8.1).
    pub(super) fn count_error(&mut self, now: Instant, awaited: WaitedFor) {
        self.errors += 1;
        if self.errors > self.config.max_retransmits {
            self.sender.note_gave_up(now, awaited, self.errors);
            // The peer would most likely not receive an ABORT either; RFC 9260 §8.1: nothing more is sent.
            self.close(CloseReason::Timeout);
        }
    }

    // --- what is known ------------------------------------------------------------------------------

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// True when nothing more will come or go. It becomes true in a bounded time after the end, whether there is
    /// room for the last packet or not, if [`handle_timeout`](Self::handle_timeout) is called.
    pub fn is_done(&self) -> bool {
        self.state == State::Closed && self.waiting.farewell.is_none() && self.events.is_empty()
    }

    /// The two ends.
    pub fn ends(&self) -> &Ends {
        &self.identity.ends
    }

    /// Tag that the peer's packets bear.
    pub fn local_tag(&self) -> Tag {
        self.identity.local_tag
    }

    /// Tag that our packets bear; [`Tag::NONE`] before the peer has sent it.
    pub fn peer_tag(&self) -> Tag {
        self.identity.peer_tag
    }

    /// Pairs of streams; zero before they are agreed on.
    pub fn streams(&self) -> u16 {
        self.streams
    }

    /// When a packet of the peer came last that belonged to the association.
    pub fn last_received(&self) -> Instant {
        self.liveness.last_received
    }

    /// Retransmissions and heartbeats in a row that went unanswered (RFC 9260 §8.1).
    pub fn error_count(&self) -> u32 {
        self.errors
    }

    /// Bytes of the largest packet that the path is known to carry; a longer one (a message from before the
    /// path had narrowed) is for IP to fragment (RFC 9260 §6.9).
    pub fn path_len(&self) -> usize {
        self.packet_len
    }

    /// True when T3-rtx has expired and nothing was acknowledged since.
    pub fn is_timing_out(&self) -> bool {
        self.sender.timeouts_in_a_row() > 0
    }

    /// The association makes no progress. To be called when its timers were handled.
    pub fn stall(&self, now: Instant) -> Option<Stall> {
        let last = self.errors >= self.config.max_retransmits;
        (self.state != State::Closed).then(|| self.sender.stall(now, last)).flatten()
    }

    /// What it counted.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Its receive half.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Its send half.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }
}

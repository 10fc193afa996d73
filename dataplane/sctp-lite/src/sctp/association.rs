//! The type of an association: opening, closing, events and state. `input` and `handshake` process received packets,
//! `output` writes packets, `timeouts` processes expired timers.

use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use transport::recorder::{AwaitedEvent, Kind, Record};
use transport::stall::Stall;
use wire::sctp::{Cause, InitHeader, Ports, Tag, Tsn, chunk_type};

use super::config::Config;
use super::cookie::{Cookie, NegotiatedTerms};
use super::liveness::Liveness;
use super::path_mtu::PathMtu;
use super::pending::{DueChunks, PendingReplies};
use super::receive::{Receiver, Violation};
use super::secrets::{Ends, Purpose, Secrets};
use super::send::Sender;
use super::single_chunk::SingleChunkPacket;
use super::state::{State, Transition};
use super::stats::Stats;
use super::timers::{Timer, Timers};

/// Maximum bytes of an ABORT's Upper Layer Abort Reason that are sent or stored.
pub(super) const MAX_REASON: usize = 128;

/// Maximum time for which the last packet of an association waits for room in a batch or for the next hop's link-layer
/// address. It exceeds the 3 s after which address resolution fails (RFC 4861 §10). A lost last packet is not
/// retransmitted (RFC 9260 §9.1).
const LAST_PACKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Protocol violation by the peer. It ends the association.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A violation in a DATA chunk.
    Data(Violation),
    /// An acknowledgement of data that was never sent.
    NeverSent,
    /// An INIT ACK with an illegal value, without a cookie, or with a cookie that is too long to return.
    InitAck,
}

/// Reason for the end of an association.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The shutdown sequence completed: all data was acknowledged.
    Shutdown,
    /// The upper layer aborted the association.
    Aborted,
    /// The peer aborted the association.
    PeerAborted {
        /// Code of the first error cause, if there is one (RFC 9260 §3.3.10).
        cause: Option<u16>,
        /// Upper Layer Abort Reason, the first 128 bytes (RFC 9260 §3.3.10.12).
        reason: Box<[u8]>,
    },
    /// The peer answered the INIT with an ABORT: it has no listener, or its listener refused.
    Refused {
        /// Code of the first error cause, if there is one (RFC 9260 §3.3.10).
        cause: Option<u16>,
    },
    /// The peer indicates another adaptation than required, or none (RFC 5043 §7.1).
    OtherAdaptation {
        /// The adaptation indication received, if any.
        seen: Option<u32>,
    },
    /// Retransmissions or heartbeats went unanswered, the peer found every cookie stale, or the shutdown exceeded its
    /// time limit.
    Timeout,
    /// ICMP reported that the peer's host does not support SCTP (RFC 9260 §10).
    Unreachable,
    /// This end aborted the association because the peer violated the protocol.
    Fault(Fault),
}

/// Events of an association for its owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The association is ESTABLISHED.
    Up {
        /// Number of stream pairs. Stream identifiers below this number are valid in both directions.
        streams: u16,
    },
    /// The peer restarted and has lost all earlier state. Unacknowledged messages are dropped without notifying their
    /// source. TSNs and windows start anew.
    Restarted {
        /// Number of stream pairs of the restarted association.
        streams: u16,
    },
    /// The peer shuts the association down. The source's remaining messages are sent; no further message is received.
    PeerShutdown,
    /// The association has ended. The owner calls `poll_transmit` until [`Association::is_done`] is true, because a
    /// last packet may be due.
    Closed(CloseReason),
}

/// Addresses, tags and initial TSN of the two ends.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) ends: Ends,
    /// Verification tag that the peer's packets must have.
    pub(super) local_tag: Tag,
    /// Verification tag of this end's packets; [`Tag::NONE`] before the peer has sent it.
    pub(super) peer_tag: Tag,
    /// This end's initial TSN.
    pub(super) local_tsn: Tsn,
}

/// State of the handshake in progress: setup or shutdown.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// The peer's cookie, until the COOKIE ACK arrives.
    pub(super) cookie: Box<[u8]>,
    /// Extension of the cookie's lifetime to request in the next INIT (Cookie Preservative).
    pub(super) preservative: Option<Duration>,
    /// Transmission time of INIT or COOKIE ECHO; `None` after a retransmission, which gives no round-trip sample (RFC
    /// 9260 §6.3.1 C5).
    pub(super) sent: Option<Instant>,
    /// Retransmissions of INIT, COOKIE ECHO, SHUTDOWN or SHUTDOWN ACK.
    pub(super) attempts: u32,
    /// Stale-cookie errors received.
    pub(super) stale_cookies: u32,
}

/// An SCTP association. See the [module](super) for the order of calls.
#[derive(Debug)]
pub struct Association {
    pub(super) state: State,
    pub(super) config: Arc<Config>,
    pub(super) secrets: Arc<Secrets>,
    pub(super) identity: Identity,
    /// Number of stream pairs; zero before it is negotiated.
    pub(super) streams: u16,
    /// Largest SCTP packet that the path is assumed to carry, bytes.
    pub(super) packet_len: usize,
    pub(super) path: PathMtu,
    /// The receive half. Like the send half, it is valid from COOKIE-ECHOED on.
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    pub(super) due_chunks: DueChunks,
    /// Pending replies, and the last packet of a closed association.
    pub(super) pending_replies: PendingReplies,
    pub(super) handshake: Handshake,
    pub(super) liveness: Liveness,
    pub(super) timers: Timers,
    /// Consecutive unanswered retransmissions and HEARTBEATs: the error count of the association (RFC 9260 §8.1).
    pub(super) errors: u32,
    pub(super) stats: Stats,
    events: ArrayVec<Event, 4>,
}

impl Association {
    /// Opens an association actively, in COOKIE-WAIT. `packet_len`: length of the longest SCTP packet, the path MTU
    /// minus the headers below SCTP, bytes.
    pub fn connect(
        config: Arc<Config>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        now: Instant,
    ) -> Association {
        let (local_tag, local_tsn) = secrets.draw_tag(Purpose::Identity, (ends, now.as_nanos()));
        let terms = NegotiatedTerms {
            local_tag,
            peer_tag: Tag::NONE,
            local_tsn: Tsn(local_tsn),
            peer_tsn: Tsn(0),
            peer_rwnd: 0,
            streams: 0,
        };
        let mut association = Self::new(config, secrets, ends, packet_len, &terms, now);
        association.state = State::CookieWait;
        association.queue_setup(now);
        association
    }

    /// Opens an association passively, in ESTABLISHED, from a cookie that [`Listener::input`](super::Listener::input)
    /// accepted. The caller next passes the packet with this cookie to [`input`](Self::input), which queues the COOKIE
    /// ACK.
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
        association.schedule_heartbeat(now);
        association.push_event(Event::Up { streams: cookie.terms.streams });
        association
    }

    fn new(
        config: Arc<Config>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        terms: &NegotiatedTerms,
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
            due_chunks: DueChunks::default(),
            pending_replies: PendingReplies::default(),
            handshake: Handshake::default(),
            liveness: Liveness::new(now),
            timers: Timers::new(),
            errors: 0,
            stats: Stats::default(),
            events: ArrayVec::new(),
        }
    }

    /// Applies the negotiated terms: creates both halves anew. Data may be exchanged from now on.
    pub(super) fn apply_terms(&mut self, terms: &NegotiatedTerms, now: Instant) {
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

    /// Returns the header of this end's INIT, also used for an INIT ACK during an active open.
    pub(super) fn init_header(&self) -> InitHeader {
        InitHeader {
            tag: self.identity.local_tag,
            a_rwnd: self.config.receive.window,
            outbound_streams: self.config.streams,
            inbound_streams: self.config.streams,
            initial_tsn: self.identity.local_tsn,
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_at(0)
    }

    /// Returns the newest event that the owner has not polled.
    pub(crate) fn last_event(&self) -> Option<&Event> {
        self.events.last()
    }

    pub(super) fn push_event(&mut self, event: Event) {
        if self.events.is_full() {
            // Only repeated restarts fill the queue while the owner does not poll. The oldest event is dropped.
            self.events.pop_at(0);
        }
        self.events.push(event);
    }

    /// Adds a cause to the next ERROR. A cause for which there is no room is counted as unsent.
    pub(super) fn queue_error_cause(&mut self, cause: &Cause<'_>) {
        self.stats.unsent += u64::from(!self.pending_replies.causes.push(cause));
    }

    /// Performs a transition. Returns false if it is illegal in this state.
    pub(super) fn transition_to(&mut self, transition: Transition) -> bool {
        let to = self.state.apply(transition);
        self.state = to.unwrap_or(self.state);
        to.is_some()
    }

    // --- shutdown and abort -------------------------------------------------------------------------

    /// Closes gracefully: the source's messages are sent, then the shutdown sequence follows (RFC 9260 §9.2). During
    /// the setup the association is aborted; during a shutdown the call has no effect.
    pub fn shutdown(&mut self, now: Instant) {
        if self.state.is_opening() {
            self.abort(now, b"");
        } else if self.transition_to(Transition::Shutdown) {
            self.timers.set(Timer::Guard, now + self.config.shutdown_guard);
        }
    }

    /// Aborts the association. The ABORT contains `reason`, truncated to 128 bytes. No ABORT is sent if the peer's tag
    /// is unknown.
    pub fn abort(&mut self, now: Instant, reason: &[u8]) {
        let reason = &reason[..reason.len().min(MAX_REASON)];
        // RFC 9260 §9.1: the cause of an ABORT by the upper layer is User-Initiated Abort.
        self.abort_with(now, Cause::UserInitiatedAbort(reason), CloseReason::Aborted);
    }

    /// Aborts the association with an ABORT of this cause, and reports `reason` to the owner.
    pub(super) fn abort_with(&mut self, now: Instant, cause: Cause<'_>, reason: CloseReason) {
        // RFC 9260 §8.5.1 B: the ABORT carries the peer's tag. If the tag is unknown, the peer has no state of this
        // association, and no ABORT is sent.
        match self.identity.peer_tag {
            _ if self.state == State::Closed => {}
            Tag::NONE => self.close(reason),
            tag => {
                self.note_abort(now, Kind::ResetSent, cause.code());
                self.close_with(now, SingleChunkPacket::abort(tag, false, &cause), reason);
            }
        }
    }

    /// Records an ABORT, sent or received, in the flight recorder. `cause`: code of its first error cause.
    #[cold]
    pub(super) fn note_abort(&mut self, now: Instant, kind: Kind, cause: u16) {
        let record = Record::new(now, kind, 0, cause.into());
        self.sender.record(record.with_header(chunk_type::ABORT, 0, 0));
    }

    /// Returns the ports of packets to the peer. The source is this end's port.
    pub fn ports(&self) -> Ports {
        self.identity.ends.ports()
    }

    /// Adds a record of the upper layer about a stream to the flight recorder.
    pub fn record(&mut self, record: Record) {
        self.sender.record(record);
    }

    /// Ends the association. `last_packet` waits up to [`LAST_PACKET_TIMEOUT`] for room in a batch and for the next
    /// hop's address, and is then dropped.
    pub(super) fn close_with(
        &mut self,
        now: Instant,
        last_packet: SingleChunkPacket,
        reason: CloseReason,
    ) {
        if self.state != State::Closed {
            self.close(reason);
            self.pending_replies.last_packet = Some(Box::new(last_packet));
            self.timers.set(Timer::LastPacket, now + LAST_PACKET_TIMEOUT);
        }
    }

    /// Ends the association: stops its timers, and frees due chunks, replies and fragments.
    pub(super) fn close(&mut self, reason: CloseReason) {
        if !self.transition_to(Transition::End) {
            return;
        }
        self.timers.stop_all();
        self.due_chunks = DueChunks::default();
        self.pending_replies.drop_replies();
        self.handshake.cookie = Box::default();
        self.receiver.drop_fragments();
        self.push_event(Event::Closed(reason));
    }

    /// Counts a retransmission or heartbeat without reply (RFC 9260 §8.1); `awaited` is the missing event. Ends the
    /// association above `max_retransmits`.
    pub(super) fn count_error(&mut self, now: Instant, awaited: AwaitedEvent) {
        self.errors += 1;
        if self.errors > self.config.max_retransmits {
            self.sender.note_give_up(now, awaited, self.errors);
            // RFC 9260 §8.1: no ABORT is sent; the peer would most likely not receive it.
            self.close(CloseReason::Timeout);
        }
    }

    // --- queries -----------------------------------------------------------------------------------

    /// Returns the state of the association.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns true if the association is closed, all events are polled, and the last packet is sent or dropped. If
    /// [`handle_timeout`](Self::handle_timeout) is called when due, the result is true within a bounded time after the
    /// end.
    pub fn is_done(&self) -> bool {
        self.state == State::Closed
            && self.pending_replies.last_packet.is_none()
            && self.events.is_empty()
    }

    /// Returns the addresses and ports of the two ends.
    pub fn ends(&self) -> &Ends {
        &self.identity.ends
    }

    /// Returns the verification tag that the peer's packets must have.
    pub fn local_tag(&self) -> Tag {
        self.identity.local_tag
    }

    /// Returns the verification tag for packets to the peer; [`Tag::NONE`] before the peer has sent it.
    pub fn peer_tag(&self) -> Tag {
        self.identity.peer_tag
    }

    /// Returns the number of stream pairs; zero before it is negotiated.
    pub fn streams(&self) -> u16 {
        self.streams
    }

    /// Returns the time of the last packet received from the peer with a valid tag.
    pub fn last_received(&self) -> Instant {
        self.liveness.last_received
    }

    /// Returns the number of consecutive unanswered retransmissions and heartbeats (RFC 9260 §8.1).
    pub fn error_count(&self) -> u32 {
        self.errors
    }

    /// Returns the largest SCTP packet that the path is assumed to carry, bytes. After a reduction, the retransmission
    /// of an earlier message may be longer; IP fragments this packet (RFC 9260 §6.9).
    pub fn path_len(&self) -> usize {
        self.packet_len
    }

    /// Returns true if T3-rtx has expired and no data was acknowledged since, or a window probe is unanswered.
    pub fn is_timing_out(&self) -> bool {
        self.sender.timeouts_in_a_row() > 0
    }

    /// Returns a report if the association makes no progress. The caller processes expired timers first.
    pub fn stall(&self, now: Instant) -> Option<Stall> {
        let last = self.errors >= self.config.max_retransmits;
        (self.state != State::Closed).then(|| self.sender.stall(now, last)).flatten()
    }

    /// Returns the counters of the association.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the receive half.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns the send half.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }
}

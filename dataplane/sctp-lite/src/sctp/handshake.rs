//! INIT, INIT ACK, COOKIE ECHO and COOKIE ACK at an association: the active open (RFC 9260 §5.1), simultaneous opens,
//! and restarts of an existing association (§5.2).

use core::time::Duration;

use base::Instant;
use wire::sctp::{
    CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause, Chunk, Init, InitHeader, Packet, RawChunk, Tag,
    Tsn, padded,
};

use super::association::{Association, CloseReason, Event, Fault};
use super::cookie::{self, Cookie};
use super::drop_reason::DropReason;
use super::input::NextStep;
use super::listener::{InitAck, is_init_alone};
use super::negotiate::{self, InitError};
use super::pending::Reply;
use super::secrets::{Purpose, TieTags};
use super::single_chunk::SingleChunkPacket;
use super::state::{State, Transition};
use super::timers::Timer;

/// Lifetime requested after a stale cookie, in addition to the round-trip time (RFC 9260 §5.2.6: no more than 1 s).
const COOKIE_LIFE_INCREMENT: Duration = Duration::from_secs(1);

/// Action for a returned cookie at an existing association (RFC 9260 §5.2.4, table 12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// A: the peer restarted.
    Restart,
    /// B: both ends opened at the same time.
    Collision,
    /// D: the cookie was received before.
    Duplicate,
    /// C, or a case not in table 12.
    Discard,
}

/// Returns the action of table 12 (RFC 9260 §5.2.4). `ties`: the association's tie tags.
fn cookie_action(local: Tag, peer: Tag, ties: TieTags, cookie: &Cookie) -> Action {
    let (local_matches, peer_matches) =
        (cookie.terms.local_tag == local, cookie.terms.peer_tag == peer);
    match (local_matches, peer_matches) {
        (true, true) => Action::Duplicate,
        (true, false) => Action::Collision,
        (false, false) if cookie.ties == ties && ties != TieTags::NONE => Action::Restart,
        _ => Action::Discard,
    }
}

impl Association {
    /// Processes an INIT at an existing association or during its setup (RFC 9260 §5.2.1, §5.2.2). The association is
    /// unchanged. In SHUTDOWN-ACK-SENT, the SHUTDOWN ACK is sent again instead of an INIT ACK (§9.2).
    ///
    /// An INIT cannot add addresses: the association uses only the source address of the peer's packets, and no
    /// address that an INIT lists.
    pub(super) fn on_init(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        raw: RawChunk<'_>,
    ) -> Result<(), DropReason> {
        if !is_init_alone(packet) {
            return Err(DropReason::BadTag); // §8.5.1 A
        }
        let Ok(Chunk::Init(init)) = Chunk::parse(raw) else { return Err(DropReason::BadChunk) };
        if self.state == State::ShutdownAckSent {
            self.due_chunks.shutdown = true; // §9.2
            return Err(DropReason::UnexpectedChunk);
        }
        let peer = &init.header;
        let offer = match negotiate::check_init(&self.config, &init) {
            Ok(offer) => offer,
            Err(why) => {
                if peer.tag != Tag::NONE {
                    let abort = SingleChunkPacket::abort(peer.tag, false, &why.cause());
                    self.queue_reply(Reply::Chunk(abort));
                }
                return Err(why.drop_reason());
            }
        };
        // During the setup, the INIT ACK has the values of this end's INIT (§5.2.1), otherwise a new tag (§5.2.2).
        let header = match self.state.is_opening() {
            true => self.init_header(),
            false => self.new_identity(now, peer),
        };
        // §5.2.1, §5.2.2: in COOKIE-WAIT, the cookie has no tie tags.
        let ties = match self.state {
            State::CookieWait => TieTags::NONE,
            _ => self.secrets.tie_tags(self.identity.local_tag, self.identity.peer_tag),
        };
        let answer = InitAck::new(&self.config, &header, peer, &offer, ties);
        if self.queue_reply(Reply::InitAck(answer)) {
            self.stats.inits_answered += 1;
        }
        Ok(())
    }

    fn new_identity(&self, now: Instant, peer: &InitHeader) -> InitHeader {
        let subject = (self.identity.ends, peer.tag.0, peer.initial_tsn.0, now.as_nanos());
        let (tag, initial_tsn) = self.secrets.draw_tag(Purpose::Identity, subject);
        let streams = negotiate::streams(self.streams, peer);
        InitHeader {
            tag,
            a_rwnd: self.config.receive.window,
            outbound_streams: streams,
            inbound_streams: streams,
            initial_tsn: Tsn(initial_tsn),
        }
    }

    /// Processes an INIT ACK (RFC 9260 §5.1 C). The caller has verified the packet's tag.
    pub(super) fn on_init_ack(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        init: &Init<'_>,
    ) -> Result<NextStep, DropReason> {
        // An INIT ACK is discarded in states other than COOKIE-WAIT (§5.2.3), and if its packet has other chunks (§3).
        if self.state != State::CookieWait || packet.chunks().count() != 1 {
            return Ok(NextStep::Stop(Some(DropReason::UnexpectedChunk)));
        }
        let (offer, cookie) = match negotiate::check_init_ack(&self.config, init) {
            Ok(judged) => judged,
            Err(why) => {
                self.refuse_init_ack(now, packet.tag(), init.header.tag, why);
                return Ok(NextStep::Stop(Some(why.drop_reason())));
            }
        };
        let echo = COMMON_HEADER_LEN + padded(CHUNK_HEADER_LEN + cookie.len());
        if cookie.len() > self.config.max_cookie || echo > self.sender.packet_len() {
            self.identity.peer_tag = init.header.tag;
            let reason = CloseReason::Fault(Fault::InitAck);
            self.abort_with(now, Cause::OutOfResource, reason);
            return Ok(NextStep::Stop(Some(DropReason::BadInit)));
        }
        self.apply_terms(&negotiate::terms(&self.init_header(), &init.header), now);
        self.sample_setup_rtt(now);
        self.handshake.cookie = cookie.into();
        self.transition_to(Transition::InitAck);
        // §3.2.2: unknown parameters are reported in an ERROR, bundled after the COOKIE ECHO.
        for unknown in &offer.unknown {
            self.queue_error_cause(&Cause::UnrecognizedParameters(unknown));
        }
        self.handshake.attempts = 0;
        self.queue_setup(now); // §5.1.4
        Ok(NextStep::Continue)
    }

    /// Answers an unacceptable INIT ACK with an ABORT (RFC 9260 §3.3.3, §5.1). `seen`: tag of its packet; `initiate`:
    /// its Initiate Tag.
    fn refuse_init_ack(&mut self, now: Instant, seen: Tag, initiate: Tag, error: InitError<'_>) {
        let abort = match error {
            // The T bit is set, because no tag of the peer is known.
            InitError::NoTag => SingleChunkPacket::abort(seen, true, &error.cause()),
            _ => SingleChunkPacket::abort(initiate, false, &error.cause()),
        };
        let reason = match error {
            // The packet is discarded, and the association is unchanged.
            InitError::SmallWindow => {
                self.queue_reply(Reply::Chunk(abort));
                return;
            }
            InitError::Adaptation(seen) => CloseReason::OtherAdaptation { seen },
            _ => CloseReason::Fault(Fault::InitAck),
        };
        self.close_with(now, abort, reason);
    }

    /// Processes a COOKIE ECHO at an existing association or during its setup (RFC 9260 §5.2.4). Returns `Ok` if the
    /// remaining chunks of the packet belong to this association.
    pub(super) fn on_cookie_echo(
        &mut self,
        now: Instant,
        tag: Tag,
        raw: RawChunk<'_>,
    ) -> Result<(), DropReason> {
        let cookie = cookie::check(&self.secrets, &self.identity.ends, now, tag, raw.value());
        let cookie = cookie.ok_or(DropReason::BadCookie)?;
        let ties = self.secrets.tie_tags(self.identity.local_tag, self.identity.peer_tag);
        let action = cookie_action(self.identity.local_tag, self.identity.peer_tag, ties, &cookie);
        // §5.2.4 step 3: a cookie that was received before is also accepted after its expiry.
        if let Some(by) = cookie.staleness_micros().filter(|_| action != Action::Duplicate) {
            let error = SingleChunkPacket::error(cookie.terms.peer_tag, &Cause::StaleCookie(by));
            self.queue_reply(Reply::Chunk(error));
            return Err(DropReason::StaleCookie);
        }
        match action {
            Action::Restart => self.restart_by_peer(now, &cookie),
            Action::Collision => self.on_collision(now, &cookie),
            Action::Duplicate => {
                self.enter_established(now);
                self.due_chunks.cookie_ack = true;
                Ok(())
            }
            Action::Discard => Err(DropReason::BadCookie),
        }
    }

    /// Action A of table 12: restarts the association. In SHUTDOWN-ACK-SENT, the SHUTDOWN ACK is sent again instead,
    /// with an ERROR.
    fn restart_by_peer(&mut self, now: Instant, cookie: &Cookie) -> Result<(), DropReason> {
        if self.state == State::ShutdownAckSent {
            self.due_chunks.shutdown = true;
            self.queue_error_cause(&Cause::CookieWhileShuttingDown);
            return Err(DropReason::UnexpectedChunk);
        }
        if !self.transition_to(Transition::Restart) {
            return Err(DropReason::BadCookie);
        }
        // Congestion control, windows and TSNs start anew.
        self.apply_terms(&cookie.terms, now);
        self.timers.stop_all();
        self.handshake.cookie = Box::default();
        self.pending_replies.causes.clear();
        self.pending_replies.heartbeats = Vec::new();
        self.liveness.heartbeat = super::liveness::Heartbeat::default();
        self.path.restart();
        self.due_chunks = super::pending::DueChunks { cookie_ack: true, ..Default::default() };
        (self.errors, self.handshake.attempts) = (0, 0);
        self.schedule_heartbeat(now);
        self.push_event(Event::Restarted { streams: self.streams });
        Ok(())
    }

    /// Action B of table 12: accepts the cookie of an association that both ends opened at the same time.
    fn on_collision(&mut self, now: Instant, cookie: &Cookie) -> Result<(), DropReason> {
        if self.state.is_opening() {
            self.apply_terms(&cookie.terms, now);
            // The peer's COOKIE ECHO does not acknowledge this end's chunk: no round-trip sample (RFC 9260 §6.3.1).
            self.handshake.sent = None;
            self.enter_established(now);
        } else if self.receiver.stats().chunks == 0
            && self.sender.next_tsn() == self.identity.local_tsn
        {
            // The association is established with the tag of the peer's INIT ACK, but no DATA was received or sent.
            // Both halves can restart with the cookie's terms.
            self.apply_terms(&cookie.terms, now);
        } else {
            return Err(DropReason::BadCookie);
        }
        self.due_chunks.cookie_ack = true;
        Ok(())
    }

    /// Enters ESTABLISHED. Returns false if the transition is illegal, as from ESTABLISHED.
    pub(super) fn enter_established(&mut self, now: Instant) -> bool {
        if !self.transition_to(Transition::Established) {
            return false;
        }
        self.sample_setup_rtt(now);
        self.timers.stop(Timer::Setup);
        self.due_chunks.setup = false;
        self.handshake.cookie = Box::default();
        self.handshake.preservative = None;
        (self.errors, self.handshake.attempts) = (0, 0);
        self.schedule_heartbeat(now);
        self.push_event(Event::Up { streams: self.streams });
        true
    }

    /// Takes a round-trip sample from the reply to INIT or COOKIE ECHO, if that chunk was sent once (RFC 9260 §6.3.1
    /// C5).
    fn sample_setup_rtt(&mut self, now: Instant) {
        if let Some(sent) = self.handshake.sent.take() {
            self.sender.on_rtt_sample(now.saturating_since(sent));
        }
    }

    /// Processes a report of a stale cookie (RFC 9260 §5.2.6): sends a new INIT, which requests a longer lifetime of
    /// the cookie.
    pub(super) fn on_stale_cookie(&mut self, now: Instant) {
        if self.state != State::CookieEchoed {
            return;
        }
        // Each report counts as a retransmission: the setup fails if the peer finds every cookie stale.
        if self.handshake.stale_cookies >= self.config.max_init_retransmits {
            self.close(CloseReason::Timeout);
            return;
        }
        self.handshake.stale_cookies += 1;
        let rtt = self
            .handshake
            .sent
            .take()
            .map_or(COOKIE_LIFE_INCREMENT, |sent| now.saturating_since(sent));
        self.handshake.preservative = Some(rtt + COOKIE_LIFE_INCREMENT);
        self.transition_to(Transition::StaleCookie);
        self.identity.peer_tag = Tag::NONE;
        self.handshake.cookie = Box::default();
        self.pending_replies.causes.clear();
        self.handshake.attempts = 0;
        self.stats.setup_retransmitted += 1;
        self.queue_setup(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sctp::cookie::NegotiatedTerms;

    // RFC 9260 §5.2.4: each row of table 12, and combinations that the table does not contain.
    #[test]
    fn cookie_action_matches_rfc_9260_table_12() {
        let (ours, ties) = (Tag(1), TieTags { local: 5, peer: 6 });
        let cookie = |local, peer, ties| Cookie {
            terms: NegotiatedTerms {
                local_tag: Tag(local),
                peer_tag: Tag(peer),
                local_tsn: Tsn(0),
                peer_tsn: Tsn(0),
                peer_rwnd: 0,
                streams: 0,
            },
            ties,
            staleness: None,
        };
        let other = TieTags { local: 5, peer: 7 };
        let rows = [
            ((9, 9, ties), Tag(2), Action::Restart),
            ((1, 9, ties), Tag(2), Action::Collision),
            ((1, 9, other), Tag(2), Action::Collision),
            ((1, 9, TieTags::NONE), Tag(2), Action::Collision),
            ((1, 9, TieTags::NONE), Tag::NONE, Action::Collision),
            ((9, 2, TieTags::NONE), Tag(2), Action::Discard), // C
            ((1, 2, ties), Tag(2), Action::Duplicate),
            ((1, 2, other), Tag(2), Action::Duplicate),
            ((1, 2, TieTags::NONE), Tag(2), Action::Duplicate),
            // Not in the table.
            ((9, 9, TieTags::NONE), Tag(2), Action::Discard),
            ((9, 9, other), Tag(2), Action::Discard),
            ((9, 2, ties), Tag(2), Action::Discard),
        ];
        for ((local, peer, cookie_ties), theirs, expected) in rows {
            let seen = cookie_action(ours, theirs, ties, &cookie(local, peer, cookie_ties));
            assert_eq!(seen, expected, "{local} {peer} {cookie_ties:?} against {theirs:?}");
        }
    }
}

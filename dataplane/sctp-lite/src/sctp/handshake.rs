//! INIT, INIT ACK, COOKIE ECHO and COOKIE ACK at an association: the active open (RFC 9260 §5.1),
//! collisions with it, and restarts of an existing association (§5.2).

use core::time::Duration;

use base::Instant;
use wire::sctp::{
    CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause, Chunk, Init, InitHeader, Packet, RawChunk, Tag,
    Tsn, padded,
};

use super::association::{Association, CloseReason, Event, Fault};
use super::cookie::{self, Cookie};
use super::drop_reason::DropReason;
use super::input::After;
use super::listener::{InitAck, is_init_alone};
use super::lone::LoneChunk;
use super::negotiate::{self, Unacceptable};
use super::secrets::{Purpose, TieTags};
use super::state::{State, Transition};
use super::timers::Timer;
use super::waiting::Reply;

/// Time added to that of a stale cookie (RFC 9260 §5.2.6: no more than 1 s).
const LONGER: Duration = Duration::from_secs(1);

/// Action for a returned cookie at an existing association (RFC 9260 §5.2.4, table 12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// A: the peer has restarted.
    Restart,
    /// B: both sides opened at the same time.
    Collision,
    /// D: the cookie was received before.
    Duplicate,
    /// C, or a case not in table 12.
    Discard,
}

/// Selects the action by table 12. `ties` are the association's tie tags.
fn action(local: Tag, peer: Tag, ties: TieTags, cookie: &Cookie) -> Action {
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
    /// Processes an INIT at an existing association or one being set up (RFC 9260 §5.2.1, §5.2.2). The
    /// association is unchanged.
    ///
    /// An INIT cannot add addresses: the association uses one address of the peer, the source of its packets,
    /// and no address that an INIT lists.
    pub(super) fn init_arrived(
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
            self.due.shutdown = true; // §9.2
            return Err(DropReason::UnexpectedChunk);
        }
        let peer = &init.header;
        let offer = match negotiate::judge_init(&self.config, &init) {
            Ok(offer) => offer,
            Err(why) => {
                if peer.tag != Tag::NONE {
                    let abort = LoneChunk::abort(peer.tag, false, &why.cause());
                    self.reply_if_free(Reply::Chunk(abort));
                }
                return Err(why.reason());
            }
        };
        // §5.2.1: during the setup with the values of this end's INIT; §5.2.2: otherwise with a new tag.
        let ours = match self.state.is_opening() {
            true => self.init_header(),
            false => self.new_identity(now, peer),
        };
        // §5.2.1, §5.2.2: no tie tags in COOKIE-WAIT.
        let ties = match self.state {
            State::CookieWait => TieTags::NONE,
            _ => self.secrets.tie_tags(self.identity.local_tag, self.identity.peer_tag),
        };
        let answer = InitAck::new(&self.config, &ours, peer, &offer, ties);
        if self.reply_if_free(Reply::InitAck(answer)) {
            self.stats.inits_answered += 1;
        }
        Ok(())
    }

    fn new_identity(&self, now: Instant, peer: &InitHeader) -> InitHeader {
        let what = (self.identity.ends, peer.tag.0, peer.initial_tsn.0, now.as_nanos());
        let (tag, initial_tsn) = self.secrets.tag(Purpose::Identity, what);
        let streams = negotiate::streams(self.streams, peer);
        InitHeader {
            tag,
            a_rwnd: self.config.receive.window,
            outbound_streams: streams,
            inbound_streams: streams,
            initial_tsn: Tsn(initial_tsn),
        }
    }

    /// Processes an INIT ACK (RFC 9260 §5.1 C). The packet's tag is verified.
    pub(super) fn init_ack_arrived(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        init: &Init<'_>,
    ) -> Result<After, DropReason> {
        // §5.2.3; §3: alone in its packet.
        if self.state != State::CookieWait || packet.chunks().count() != 1 {
            return Ok(After::Stop(Some(DropReason::UnexpectedChunk)));
        }
        let (offer, cookie) = match negotiate::judge_init_ack(&self.config, init) {
            Ok(judged) => judged,
            Err(why) => {
                self.refuse_init_ack(now, packet.tag(), init.header.tag, why);
                return Ok(After::Stop(Some(why.reason())));
            }
        };
        let echo = COMMON_HEADER_LEN + padded(CHUNK_HEADER_LEN + cookie.len());
        if cookie.len() > self.config.max_cookie || echo > self.sender.packet_len() {
            self.identity.peer_tag = init.header.tag;
            let reason = CloseReason::Fault(Fault::InitAck);
            self.abort_with(now, Cause::OutOfResource, reason);
            return Ok(After::Stop(Some(DropReason::BadInit)));
        }
        self.take_terms(&negotiate::terms(&self.init_header(), &init.header), now);
        self.measure_setup(now);
        self.handshake.cookie = cookie.into();
        self.go(Transition::InitAck);
        // §3.2.2: reported in an ERROR after the COOKIE ECHO.
        for unknown in &offer.unknown {
            self.complain(&Cause::UnrecognizedParameters(unknown));
        }
        self.handshake.attempts = 0;
        self.setup_due(now); // §5.1.4: at once
        Ok(After::GoOn)
    }

    /// Answers an unacceptable INIT ACK (RFC 9260 §3.3.3, §5.1).
    fn refuse_init_ack(&mut self, now: Instant, seen: Tag, initiate: Tag, why: Unacceptable<'_>) {
        let abort = match why {
            // With the T bit: there is no tag of the peer to use.
            Unacceptable::NoTag => LoneChunk::abort(seen, true, &why.cause()),
            _ => LoneChunk::abort(initiate, false, &why.cause()),
        };
        let reason = match why {
            // The packet is discarded, and the association is unchanged.
            Unacceptable::SmallWindow => {
                self.reply_if_free(Reply::Chunk(abort));
                return;
            }
            Unacceptable::Adaptation(seen) => CloseReason::OtherAdaptation { seen },
            _ => CloseReason::Fault(Fault::InitAck),
        };
        self.close_with(now, abort, reason);
    }

    /// Processes a COOKIE ECHO at an existing association or one being set up (RFC 9260 §5.2.4). Returns `Ok`
    /// if the following chunks belong to this association.
    pub(super) fn cookie_arrived(
        &mut self,
        now: Instant,
        tag: Tag,
        raw: RawChunk<'_>,
    ) -> Result<(), DropReason> {
        let cookie = cookie::check(&self.secrets, &self.identity.ends, now, tag, raw.value());
        let cookie = cookie.ok_or(DropReason::BadCookie)?;
        let ties = self.secrets.tie_tags(self.identity.local_tag, self.identity.peer_tag);
        let action = action(self.identity.local_tag, self.identity.peer_tag, ties, &cookie);
        // §5.2.4 step 3: a cookie received before may be expired.
        if let Some(by) = cookie.staleness().filter(|_| action != Action::Duplicate) {
            let error = LoneChunk::error(cookie.terms.peer_tag, &Cause::StaleCookie(by));
            self.reply_if_free(Reply::Chunk(error));
            return Err(DropReason::StaleCookie);
        }
        match action {
            Action::Restart => self.restart(now, &cookie),
            Action::Collision => self.collide(now, &cookie),
            Action::Duplicate => {
                self.established(now);
                self.due.cookie_ack = true;
                Ok(())
            }
            Action::Discard => Err(DropReason::BadCookie),
        }
    }

    /// Action A: the peer restarted.
    fn restart(&mut self, now: Instant, cookie: &Cookie) -> Result<(), DropReason> {
        if self.state == State::ShutdownAckSent {
            self.due.shutdown = true;
            self.complain(&Cause::CookieWhileShuttingDown);
            return Err(DropReason::UnexpectedChunk);
        }
        if !self.go(Transition::Restart) {
            return Err(DropReason::BadCookie);
        }
        // Congestion control, windows and TSNs start anew.
        self.take_terms(&cookie.terms, now);
        self.timers.stop_all();
        self.handshake.cookie = Box::default();
        self.waiting.causes.clear();
        self.waiting.heartbeats = Vec::new();
        self.liveness.heartbeat = super::liveness::Heartbeat::default();
        self.path.restart();
        self.due = super::waiting::Due { cookie_ack: true, ..Default::default() };
        (self.errors, self.handshake.attempts) = (0, 0);
        self.heartbeat_after_silence(now);
        self.push_event(Event::Restarted { streams: self.streams });
        Ok(())
    }

    /// Action B: both sides opened at the same time.
    fn collide(&mut self, now: Instant, cookie: &Cookie) -> Result<(), DropReason> {
        if self.state.is_opening() {
            self.take_terms(&cookie.terms, now);
            // The peer's COOKIE ECHO does not answer this end's chunk: no round-trip sample
            // (RFC 9260 §6.3.1).
            self.handshake.sent = None;
            self.established(now);
        } else if self.receiver.stats().chunks == 0
            && self.sender.next_tsn() == self.identity.local_tsn
        {
            // Established with the tag of the peer's INIT ACK, and no DATA was received or sent: the TSNs
            // begin with the same values.
            self.take_terms(&cookie.terms, now);
        } else {
            return Err(DropReason::BadCookie);
        }
        self.due.cookie_ack = true;
        Ok(())
    }

    /// Enters ESTABLISHED. Returns whether that is new.
    pub(super) fn established(&mut self, now: Instant) -> bool {
        if !self.go(Transition::Established) {
            return false;
        }
        self.measure_setup(now);
        self.timers.stop(Timer::Setup);
        self.due.setup = false;
        self.handshake.cookie = Box::default();
        self.handshake.preservative = None;
        (self.errors, self.handshake.attempts) = (0, 0);
        self.heartbeat_after_silence(now);
        self.push_event(Event::Up { streams: self.streams });
        true
    }

    /// INIT or COOKIE ECHO was answered: a round-trip sample, if it was sent once (RFC 9260 §6.3.1 C5).
    fn measure_setup(&mut self, now: Instant) {
        if let Some(sent) = self.handshake.sent.take() {
            self.sender.measured(now.saturating_since(sent));
        }
    }

    /// The peer reports a stale cookie (RFC 9260 §5.2.6): sends a new INIT, which requests a longer life.
    pub(super) fn stale_cookie_reported(&mut self, now: Instant) {
        if self.state != State::CookieEchoed {
            return;
        }
        // Each counts as a retransmission: the setup fails if the peer finds every cookie stale.
        if self.handshake.stale_cookies >= self.config.max_init_retransmits {
            self.close(CloseReason::Timeout);
            return;
        }
        self.handshake.stale_cookies += 1;
        let rtt = self.handshake.sent.take().map_or(LONGER, |sent| now.saturating_since(sent));
        self.handshake.preservative = Some(rtt + LONGER);
        self.go(Transition::StaleCookie);
        self.identity.peer_tag = Tag::NONE;
        self.handshake.cookie = Box::default();
        self.waiting.causes.clear();
        self.handshake.attempts = 0;
        self.stats.setup_retransmitted += 1;
        self.setup_due(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sctp::cookie::Terms;

    // RFC 9260 §5.2.4, table 12: each row, and the cases that it lacks.
    #[test]
    fn table_12() {
        let (ours, ties) = (Tag(1), TieTags { local: 5, peer: 6 });
        let cookie = |local, peer, ties| Cookie {
            terms: Terms {
                local_tag: Tag(local),
                peer_tag: Tag(peer),
                local_tsn: Tsn(0),
                peer_tsn: Tsn(0),
                peer_rwnd: 0,
                streams: 0,
            },
            ties,
            stale_by: None,
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
        for ((local, peer, said), theirs, expected) in rows {
            let seen = action(ours, theirs, ties, &cookie(local, peer, said));
            assert_eq!(seen, expected, "{local} {peer} {said:?} against {theirs:?}");
        }
    }
}

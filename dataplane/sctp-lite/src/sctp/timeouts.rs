//! What time does to an association.

use base::{Instant, MaybeInstant};
use transport::recorder::WaitedFor;
use wire::sctp::{Cause, Tag};

use super::association::{Association, CloseReason};
use super::send::Expired;
use super::state::State;
use super::timers::Timer;

impl Association {
    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Closed {
            // That of the last packet.
            return self.timers.next();
        }
        let (receiver, sender) = (self.receiver.poll_timeout(), self.sender.poll_timeout());
        MaybeInstant::from(self.timers.next()).earlier(receiver).earlier(sender).get()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.state == State::Closed {
            if self.timers.expire(Timer::Farewell, now) && self.waiting.farewell.take().is_some() {
                self.stats.unsent += 1;
            }
            return;
        }
        if self.timers.expire(Timer::Setup, now) {
            self.setup_timeout(now);
        }
        if self.timers.expire(Timer::Shutdown, now) {
            // RFC 9260 §9.2: again, Association.Max.Retrans times.
            self.handshake.attempts += 1;
            self.stats.shutdown_retransmitted += 1;
            self.due.shutdown = true;
            self.count_error(now, WaitedFor::Acknowledgement);
        }
        if self.timers.expire(Timer::Guard, now) {
            // RFC 9260 §9.2: T5-shutdown-guard.
            let cause = Cause::UserInitiatedAbort(b"the shutdown took too long");
            self.abort_with(now, cause, CloseReason::Timeout);
        }
        if self.timers.expire(Timer::Heartbeat, now) {
            self.heartbeat_timeout(now);
        }
        if self.timers.expire(Timer::Probe, now) {
            self.probe_timeout(now);
        }
        if self.state.is_opening() || self.state == State::Closed {
            return;
        }
        self.receiver.handle_timeout(now);
        if self.sender.handle_timeout(now) == Expired::T3 {
            let too_long = self.path_after_timeout(now);
            if !self.sender.probes_window() {
                // With the time-out that is set now: the path's change may have made it shorter.
                self.sender.note_timeout(now);
            }
            if too_long {
                // RFC 9260 §8.1: with the time-out the count begins anew. Else the peer of a path that was cut for a moment would
                // be given up sooner than without a suspicion. At most twice in a row.
                self.errors = 0;
            } else {
                self.count_error(now, WaitedFor::Acknowledgement);
            }
        }
    }

    /// T1-init or T1-cookie (RFC 9260 §4 notes 2 and 3).
    fn setup_timeout(&mut self, now: Instant) {
        if self.handshake.attempts >= self.config.max_init_retransmits {
            self.close(CloseReason::Timeout);
            return;
        }
        self.handshake.attempts += 1;
        // One that found no room counts as an attempt, but it did not go out.
        self.stats.setup_retransmitted += u64::from(!self.due.setup);
        self.setup_due(now);
    }

    /// INIT or COOKIE ECHO is to go out. Its timer runs from now on, so that one that never finds room is given
    /// up, too; it starts anew when the chunk goes out.
    pub(super) fn setup_due(&mut self, now: Instant) {
        self.due.setup = true;
        self.timers.set(Timer::Setup, now + self.backed_off());
    }

    /// True when a packet of ours that an ICMP message quotes can be this association's (RFC 9260 §10,
    /// ICMP6): its verification tag is the peer's; or it is zero, and the Initiate Tag of the INIT in it,
    /// `initiate`, ours.
    pub fn is_quoted(&self, tag: Tag, initiate: Option<Tag>) -> bool {
        match initiate {
            Some(initiate) => tag == Tag::NONE && initiate == self.identity.local_tag,
            None => tag != Tag::NONE && tag == self.identity.peer_tag,
        }
    }

    /// ICMP reports that the peer's host does not support SCTP, of a packet that [`is_quoted`](Self::is_quoted)
    /// (RFC 9260 §10, ICMP8); `of_init` when an INIT is what it quotes.
    pub fn protocol_unreachable(&mut self, of_init: bool) {
        if !of_init || self.state == State::CookieWait {
            self.close(CloseReason::Unreachable);
        }
    }
}

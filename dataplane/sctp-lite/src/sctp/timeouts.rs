//! Processing of an association's expired timers.

use base::{Instant, MaybeInstant};
use transport::recorder::AwaitedEvent;
use wire::sctp::{Cause, Tag};

use super::association::{Association, CloseReason};
use super::send::ExpiredTimer;
use super::state::State;
use super::timers::Timer;

impl Association {
    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Closed {
            // After the end of the association, only the timer of its last packet runs.
            return self.timers.next();
        }
        let (receiver, sender) = (self.receiver.poll_timeout(), self.sender.poll_timeout());
        MaybeInstant::from(self.timers.next()).earlier(receiver).earlier(sender).get()
    }

    /// Processes expired timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.state == State::Closed {
            if self.timers.expire(Timer::LastPacket, now)
                && self.pending_replies.last_packet.take().is_some()
            {
                self.stats.unsent += 1;
            }
            return;
        }
        if self.timers.expire(Timer::Setup, now) {
            self.on_setup_timeout(now);
        }
        if self.timers.expire(Timer::Shutdown, now) {
            // RFC 9260 §9.2: retransmitted up to Association.Max.Retrans times.
            self.handshake.attempts += 1;
            self.stats.shutdown_retransmitted += 1;
            self.due_chunks.shutdown = true;
            self.count_error(now, AwaitedEvent::Acknowledgement);
        }
        if self.timers.expire(Timer::Guard, now) {
            // RFC 9260 §9.2: T5-shutdown-guard.
            let cause = Cause::UserInitiatedAbort(b"the shutdown took too long");
            self.abort_with(now, cause, CloseReason::Timeout);
        }
        if self.timers.expire(Timer::Heartbeat, now) {
            self.on_heartbeat_timeout(now);
        }
        if self.timers.expire(Timer::Probe, now) {
            self.on_probe_timeout(now);
        }
        if self.state.is_opening() || self.state == State::Closed {
            return;
        }
        self.receiver.handle_timeout(now);
        if self.sender.handle_timeout(now) == ExpiredTimer::T3 {
            let too_long = self.update_path_after_timeout(now);
            if !self.sender.probes_window() {
                // Recorded after the restart of the timer, because the change of the path MTU may have shortened the
                // RTO.
                self.sender.note_timeout(now);
            }
            if too_long {
                // The packet length may be the cause of the time-out, so the error count (RFC 9260 §8.1) restarts, as
                // does the backoff of the RTO. Otherwise a brief interruption of the path would end the association
                // sooner than without path MTU probing. Such a restart happens at most twice in a row.
                self.errors = 0;
            } else {
                self.count_error(now, AwaitedEvent::Acknowledgement);
            }
        }
    }

    /// Processes the expiry of T1-init or T1-cookie (RFC 9260 §4 notes 2 and 3).
    fn on_setup_timeout(&mut self, now: Instant) {
        if self.handshake.attempts >= self.config.max_init_retransmits {
            self.close(CloseReason::Timeout);
            return;
        }
        self.handshake.attempts += 1;
        // A chunk is still due if the batch had no room for it. This counts as an attempt, but not as a retransmission.
        self.stats.setup_retransmitted += u64::from(!self.due_chunks.setup);
        self.queue_setup(now);
    }

    /// Makes INIT or COOKIE ECHO due. The timer starts now, so that a chunk that cannot be sent also times out. The
    /// timer restarts when the chunk is sent.
    pub(super) fn queue_setup(&mut self, now: Instant) {
        self.due_chunks.setup = true;
        self.timers.set(Timer::Setup, now + self.backed_off_rto());
    }

    /// Returns true if a packet quoted by an ICMP message can be this association's (RFC 9260 §10, ICMP6). An INIT,
    /// whose Initiate Tag is `initiate`, must have this end's Initiate Tag and a verification tag of zero. Any other
    /// packet must have the peer's verification tag.
    pub fn is_quoted(&self, tag: Tag, initiate: Option<Tag>) -> bool {
        match initiate {
            Some(initiate) => tag == Tag::NONE && initiate == self.identity.local_tag,
            None => tag != Tag::NONE && tag == self.identity.peer_tag,
        }
    }

    /// Processes an ICMP report that the peer's host does not support SCTP (RFC 9260 §10, ICMP8). The caller has
    /// checked the quoted packet by [`is_quoted`](Self::is_quoted). `of_init`: true if this packet is an INIT. A report
    /// about an INIT has an effect only in COOKIE-WAIT.
    pub fn protocol_unreachable(&mut self, of_init: bool) {
        if !of_init || self.state == State::CookieWait {
            self.close(CloseReason::Unreachable);
        }
    }
}

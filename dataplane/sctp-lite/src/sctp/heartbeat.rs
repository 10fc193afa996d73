//! HEARTBEATs detect whether an idle peer still replies (RFC 9260 §8.3). An association has a single path, so the error
//! counts of path and association are the same.
//!
//! ```text
//!   idle ---- interval + RTO +- RTO/2 ---> HEARTBEAT sent ---- RTO, doubled for each unanswered ---> one error
//!     ^ ^                                      |                                                    |
//!     | +------------- HEARTBEAT ACK ----------+                                                    |
//!     +---------------------------------------------------------------------------------------------+
//! ```

use core::time::Duration;

use base::Instant;
use transport::recorder::{AwaitedEvent, Kind};
use wire::sctp::{Chunk, Parameter};

use super::association::Association;
use super::secrets::Purpose;
use super::timers::Timer;

/// Length of this end's Heartbeat Info, bytes: a nonce (RFC 9260 §3.3.5: 64 bits or more).
pub(super) const INFO_LEN: usize = 8;

/// Maximum number of pending HEARTBEATs of the peer; further HEARTBEATs are not answered.
const MAX_WAITING: usize = 4;

/// Longest HEARTBEAT value that is answered, bytes.
const MAX_VALUE: usize = 1024;

/// Maximum number of doublings of the time allowed for a HEARTBEAT ACK.
const MAX_BACKOFF: u32 = 6;

impl Association {
    /// Queues the HEARTBEAT ACK for a HEARTBEAT, with `value` unchanged. Returns false if HEARTBEATs are not answered
    /// in the current state.
    pub(super) fn on_heartbeat(&mut self, value: &[u8]) -> bool {
        let answers = self.state.answers_heartbeats();
        let fits = self.pending_replies.heartbeats.len() < MAX_WAITING && value.len() <= MAX_VALUE;
        if answers && fits {
            self.stats.heartbeats_in += 1;
            self.pending_replies.heartbeats.push(value.into());
        }
        // RFC 9260 §3.3.6: the HEARTBEAT ACK repeats the whole value, so it cannot be truncated.
        self.stats.unsent += u64::from(answers && !fits);
        answers
    }

    /// Processes a HEARTBEAT ACK. Returns true if it answers the last HEARTBEAT or path MTU probe.
    pub(super) fn on_heartbeat_ack(&mut self, now: Instant, value: &[u8]) -> bool {
        let info = Chunk::heartbeat_parameters(value).next();
        let Some(Ok(Parameter::HeartbeatInfo(info))) = info else { return false };
        let Ok(bytes) = <[u8; INFO_LEN]>::try_from(info) else { return false };
        let nonce = u64::from_be_bytes(bytes);
        if self.liveness.heartbeat.nonce != Some(nonce) {
            return self.on_probe_acknowledged(now, nonce);
        }
        let heartbeat = &mut self.liveness.heartbeat;
        heartbeat.nonce = None;
        heartbeat.awaited = false;
        heartbeat.unanswered = 0;
        let rtt = now.saturating_since(heartbeat.sent);
        self.stats.heartbeats_answered += 1;
        // RFC 9260 §8.1, §8.3: a HEARTBEAT ACK clears the error count and is a round-trip sample.
        self.errors = 0;
        self.sender.on_rtt_sample(rtt);
        self.schedule_heartbeat(now);
        true
    }

    /// Schedules the next HEARTBEAT: after the interval plus a random time of 0.5 to 1.5 RTO.
    pub(super) fn schedule_heartbeat(&mut self, now: Instant) {
        let Some(interval) = self.config.heartbeat_interval else { return };
        let rto = self.heartbeat_rto();
        // RFC 9260 §8.3: HB.interval plus RTO, with a jitter of +/- 50 % of the RTO.
        let random = self.draw_heartbeat(u64::MAX);
        let jitter = rto.mul_f64((random >> 40) as f64 / (1 << 24) as f64);
        self.timers.set(Timer::Heartbeat, now + interval + rto / 2 + jitter);
    }

    /// Processes the expiry of the heartbeat timer: a HEARTBEAT is due, or the last HEARTBEAT is unanswered.
    pub(super) fn on_heartbeat_timeout(&mut self, now: Instant) {
        let Some(interval) = self.config.heartbeat_interval else { return };
        if !self.state.sends_data() {
            return; // RFC 9260 §8.3: no HEARTBEAT after SHUTDOWN or SHUTDOWN ACK
        }
        // A HEARTBEAT that could not be sent counts as unanswered, so that an association that cannot send also ends.
        if self.liveness.heartbeat.awaited || self.due_chunks.heartbeat {
            self.liveness.heartbeat.awaited = false;
            self.due_chunks.heartbeat = false;
            self.liveness.heartbeat.unanswered += 1;
            self.schedule_heartbeat(now);
            let unanswered = self.liveness.heartbeat.unanswered;
            self.sender.note_count(now, Kind::Unanswered, unanswered, 0);
            self.count_error(now, AwaitedEvent::ProbeAnswer);
        } else if !self.sender.is_idle() || self.liveness.data_sent + interval > now {
            // DATA also elicits a reply (RFC 9260 §8.3: only an idle path is probed).
            self.schedule_heartbeat(now);
        } else {
            self.sender.expire_records(now);
            self.due_chunks.heartbeat = true;
            self.timers.set(Timer::Heartbeat, now + self.heartbeat_rto());
        }
    }

    /// Returns the Heartbeat Info for a HEARTBEAT sent now, and starts the timer for its reply.
    pub(super) fn next_heartbeat(&mut self, now: Instant) -> [u8; INFO_LEN] {
        let nonce = self.next_nonce();
        self.liveness.heartbeat.nonce = Some(nonce);
        self.liveness.heartbeat.sent = now;
        self.liveness.heartbeat.awaited = true;
        self.stats.heartbeats_out += 1;
        self.timers.set(Timer::Heartbeat, now + self.heartbeat_rto());
        nonce.to_be_bytes()
    }

    /// Returns a new nonce, which only the receiver of the HEARTBEAT learns.
    pub(super) fn next_nonce(&mut self) -> u64 {
        self.liveness.heartbeat.count += 1;
        self.draw_heartbeat(self.liveness.heartbeat.count)
    }

    fn heartbeat_rto(&self) -> Duration {
        let doublings = self.liveness.heartbeat.unanswered.min(MAX_BACKOFF);
        (self.sender.rto() * (1 << doublings)).min(self.config.send.max_rto)
    }

    /// Returns a pseudorandom number that only this end can compute. `count`: number of the nonce to draw, or
    /// `u64::MAX` for the jitter of the next HEARTBEAT.
    fn draw_heartbeat(&self, count: u64) -> u64 {
        let tags =
            (self.identity.local_tag.0, self.identity.peer_tag.0, self.liveness.heartbeat.count);
        self.secrets.draw(Purpose::Heartbeat, (tags, count))
    }
}

//! HEARTBEATs: whether an idle peer is still there (RFC 9260 §8.3). A single path, so that the error count of
//! the path is that of the association.
//!
//! ```text
//!   idle ---- interval + RTO +- RTO/2 ---> HEARTBEAT sent ---- RTO, doubled for each unanswered ---> one error
//!     ^                                        |                                                    |
//!     +--------------- HEARTBEAT ACK ----------+ <--------------------------------------------------+
//! ```

use core::time::Duration;

use base::Instant;
use transport::recorder::{Kind, WaitedFor};
use wire::sctp::{Chunk, Parameter};

use super::association::Association;
use super::secrets::Purpose;
use super::timers::Timer;

/// Bytes of our Heartbeat Info: a nonce (RFC 9260 §3.3.5: 64 bits or more).
pub(super) const INFO_LEN: usize = 8;

/// HEARTBEATs that wait to be answered; what comes beyond is not.
const MAX_WAITING: usize = 4;

/// Bytes of a HEARTBEAT that is answered, at most.
const MAX_VALUE: usize = 1024;

/// Doublings of the time that an answer may take.
const MAX_BACKOFF: u32 = 6;

impl Association {
    /// A HEARTBEAT from the peer: `value` is to go back as it is.
    pub(super) fn heartbeat_arrived(&mut self, value: &[u8]) -> bool {
        let answers = self.state.answers_heartbeats();
        let fits = self.waiting.heartbeats.len() < MAX_WAITING && value.len() <= MAX_VALUE;
        if answers && fits {
            self.stats.heartbeats_in += 1;
            self.waiting.heartbeats.push(value.into());
        }
        // RFC 9260 §3.3.6: an answer has all that came, so that it cannot be cut.
        self.stats.unsent += u64::from(answers && !fits);
        answers
    }

    /// A HEARTBEAT ACK; returns whether it answers our last HEARTBEAT, or a probe.
    pub(super) fn heartbeat_acknowledged(&mut self, now: Instant, value: &[u8]) -> bool {
        let info = Chunk::heartbeat_parameters(value).next();
        let Some(Ok(Parameter::HeartbeatInfo(info))) = info else { return false };
        let Ok(bytes) = <[u8; INFO_LEN]>::try_from(info) else { return false };
        let nonce = u64::from_be_bytes(bytes);
        if self.liveness.heartbeat.nonce != Some(nonce) {
            return self.probe_acknowledged(now, nonce);
        }
        let heartbeat = &mut self.liveness.heartbeat;
        heartbeat.nonce = None;
        heartbeat.awaited = false;
        heartbeat.unanswered = 0;
        let rtt = now.saturating_since(heartbeat.sent);
        self.stats.heartbeats_answered += 1;
        // RFC 9260 §8.1, §8.3.
        self.errors = 0;
        self.sender.measured(rtt);
        self.heartbeat_after_silence(now);
        true
    }

    /// The next HEARTBEAT goes out after the interval of silence.
    pub(super) fn heartbeat_after_silence(&mut self, now: Instant) {
        let Some(interval) = self.config.heartbeat_interval else { return };
        let rto = self.heartbeat_rto();
        // RFC 9260 §8.3: RTO + HB.interval, the RTO jittered by half of it.
        let random = self.draw_heartbeat(u64::MAX);
        let jitter = rto.mul_f64((random >> 40) as f64 / (1 << 24) as f64);
        self.timers.set(Timer::Heartbeat, now + interval + rto / 2 + jitter);
    }

    /// The timer has expired: either a HEARTBEAT is due, or the last one went unanswered.
    pub(super) fn heartbeat_timeout(&mut self, now: Instant) {
        let Some(interval) = self.config.heartbeat_interval else { return };
        if !self.state.sends_data() {
            return; // RFC 9260 §8.3: none after SHUTDOWN or SHUTDOWN ACK
        }
        // One that found no room in this time was not answered either: who can send nothing ends, too.
        if self.liveness.heartbeat.awaited || self.due.heartbeat {
            self.liveness.heartbeat.awaited = false;
            self.due.heartbeat = false;
            self.liveness.heartbeat.unanswered += 1;
            self.heartbeat_after_silence(now);
            let unanswered = self.liveness.heartbeat.unanswered;
            self.sender.note_count(now, Kind::Unanswered, unanswered, 0);
            self.count_error(now, WaitedFor::ProbeAnswer);
        } else if !self.sender.is_idle() || self.liveness.data_sent + interval > now {
            // Data ask the same question (RFC 9260 §8.3: only an idle path).
            self.heartbeat_after_silence(now);
        } else {
            self.sender.forget_old_records(now);
            self.due.heartbeat = true;
            self.timers.set(Timer::Heartbeat, now + self.heartbeat_rto());
        }
    }

    /// Our Heartbeat Info for a HEARTBEAT that goes out now.
    pub(super) fn next_heartbeat(&mut self, now: Instant) -> [u8; INFO_LEN] {
        let nonce = self.next_nonce();
        self.liveness.heartbeat.nonce = Some(nonce);
        self.liveness.heartbeat.sent = now;
        self.liveness.heartbeat.awaited = true;
        self.stats.heartbeats_out += 1;
        self.timers.set(Timer::Heartbeat, now + self.heartbeat_rto());
        nonce.to_be_bytes()
    }

    /// A nonce that only the receiver of the HEARTBEAT knows.
    pub(super) fn next_nonce(&mut self) -> u64 {
        self.liveness.heartbeat.count += 1;
        self.draw_heartbeat(self.liveness.heartbeat.count)
    }

    fn heartbeat_rto(&self) -> Duration {
        let doublings = self.liveness.heartbeat.unanswered.min(MAX_BACKOFF);
        (self.sender.rto() * (1 << doublings)).min(self.config.send.max_rto)
    }

    fn draw_heartbeat(&self, what: u64) -> u64 {
        let tags =
            (self.identity.local_tag.0, self.identity.peer_tag.0, self.liveness.heartbeat.count);
        self.secrets.draw(Purpose::Heartbeat, (tags, what))
    }
}

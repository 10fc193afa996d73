//! The timer of segments in flight. It has one purpose at a time (RFC 8985 §8): retransmission time-out (RFC 6298 §5),
//! tail loss probe or reordering time-out (RFC 8985 §7.2, §6.2).

use base::Instant;
use transport::recorder::AwaitedEvent;
use transport::recovery::Phase;
use transport::tlp::{FlightAmount, probe_timeout};

use super::connection::{CloseReason, Connection};
use super::timers::{LossTimer, Timer};

impl Connection {
    /// Restarts the retransmission time-out for the data in flight.
    pub(super) fn restart_rto(&mut self, now: Instant) {
        self.send.outstanding.rto_at = now + self.send.recovery.rtt().rto(&self.config);
        self.set_loss_timer(LossTimer::Rto, self.send.outstanding.rto_at);
    }

    /// Updates the timer after an acknowledgement. `advanced`: the acknowledgement covered new data (RFC 6298 §5.2,
    /// §5.3).
    pub(super) fn loss_timer_after_ack(&mut self, now: Instant, advanced: bool) {
        if self.send.outstanding.board.is_empty() {
            self.timers.stop(Timer::Retransmit);
            self.send.loss_timer = LossTimer::Rto;
            return;
        }
        if advanced {
            self.send.outstanding.rto_at = now + self.send.recovery.rtt().rto(&self.config);
        }
        if let Some(at) = self.send.outstanding.state.reorder_at() {
            return self.set_loss_timer(LossTimer::Reorder, at);
        }
        let kind = self.send.loss_timer;
        if advanced || kind == LossTimer::Reorder || !self.may_schedule_probe() {
            self.schedule(now);
        }
    }

    /// Updates the timer after new data was sent (RFC 6298 §5.1, RFC 8985 §7.2).
    pub(super) fn loss_timer_after_send(&mut self, now: Instant) {
        if !self.timers.is_set(Timer::Retransmit) {
            self.send.outstanding.rto_at = now + self.send.recovery.rtt().rto(&self.config);
        }
        if self.send.loss_timer != LossTimer::Reorder || !self.timers.is_set(Timer::Retransmit) {
            self.schedule(now);
        }
    }

    /// Schedules a tail loss probe, no later than the RTO would expire. If no probe is allowed, sets the RTO.
    fn schedule(&mut self, now: Instant) {
        if !self.may_schedule_probe() {
            return self.set_loss_timer(LossTimer::Rto, self.send.outstanding.rto_at);
        }
        // RFC 8985 §7.2: the PTO depends on the amount in flight.
        let send = &self.send;
        let awaited =
            FlightAmount::new(send.outstanding.board.len(), send.flight(), send.emss() as u64);
        let pto = probe_timeout(send.recovery.rtt(), awaited);
        self.set_loss_timer(LossTimer::Probe, (now + pto).min(self.send.outstanding.rto_at));
    }

    fn set_loss_timer(&mut self, kind: LossTimer, at: Instant) {
        self.send.loss_timer = kind;
        self.timers.set(Timer::Retransmit, at);
    }

    /// Returns true if a tail loss probe is allowed (RFC 8985 §7.2): with SACK, outside recovery, with no segment
    /// SACKed or lost, and without an unanswered time-out. A closed window has window probes instead.
    fn may_schedule_probe(&self) -> bool {
        let send = &self.send;
        self.config.tail_loss_probe
            && send.sack
            && send.outstanding.state.phase() == Phase::Open
            && send.outstanding.board.segs_sacked() == 0
            && !send.outstanding.board.awaits_retransmission()
            && send.recovery.consecutive_timeouts() == 0
            && !send.window.is_closed()
    }

    /// Handles the expiry of [`Timer::Retransmit`] with data in flight.
    pub(super) fn loss_timeout(&mut self, now: Instant) {
        match core::mem::replace(&mut self.send.loss_timer, LossTimer::Rto) {
            LossTimer::Rto => self.retransmit_timeout(now),
            _ if self.send.outstanding.board.is_empty() => {}
            LossTimer::Probe => {
                // RFC 8985 §7.3: after the PTO only the RTO is set, whether or not a probe is sent.
                let measured = self.send.recovery.rtt().srtt().is_some();
                self.send.outstanding.state.on_probe_timeout(measured);
                self.restart_rto(now);
            }
            LossTimer::Reorder => {
                self.send.on_reorder_timeout(now, &self.config, &mut self.stats);
                self.send.outstanding.rto_at = now + self.send.recovery.rtt().rto(&self.config);
                match self.send.outstanding.state.reorder_at() {
                    Some(at) => self.set_loss_timer(LossTimer::Reorder, at),
                    None => self.schedule(now),
                }
            }
        }
    }

    fn retransmit_timeout(&mut self, now: Instant) {
        if self.send.outstanding.board.is_empty() {
            return;
        }
        let closed = self.send.window.is_closed();
        if self.send.probes.on_timeout(closed) && closed {
            // RFC 9293 §3.8.6.1 MUST-37: the peer has answered the last probe, so the silence that R2 limits begins
            // now.
            self.send.progress_at = now;
        }
        // RFC 9293 §3.8.3 MUST-20 (c): after R2 without progress the connection is closed.
        if now.saturating_since(self.send.progress_at) >= self.config.limits.retransmission {
            self.note_gave_up(now, AwaitedEvent::Acknowledgement);
            self.delete(CloseReason::Timeout);
            return;
        }
        if self.is_window_closed_too_long(now) {
            return self.reset_after_silence(now, AwaitedEvent::Window);
        }
        if self.send.window.is_closed() {
            // RFC 9293 §3.8.6.1: the oldest unacknowledged segment probes the window. The time-out is not a sign of
            // congestion.
            self.send.probe_due = true;
            self.send.recovery.rtt_mut().back_off();
        } else {
            self.send.on_timeout(now, &mut self.stats);
            self.update_path_after_timeout(now);
            // Recorded last: the record has the next RTO, and a change of the path MTU may have reset its backoff.
            self.note_timeout(now);
        }
        self.restart_rto(now);
    }
}

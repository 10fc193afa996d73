//! Expiry of a connection's timers (RFC 9293 §3.10.8).

use base::Instant;
use transport::recorder::{AwaitedEvent, Kind, Record, saturating_millis};

use super::connection::{CloseReason, Connection};
use super::state::State;
use super::timers::Timer;
use crate::seam::{SegmentSource, SpanSink};

impl Connection {
    /// Processes expired timers. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn handle_timeout<U: SegmentSource + SpanSink>(&mut self, now: Instant, up: &mut U) {
        for timer in Timer::ALL {
            if !self.timers.expire(timer, now) {
                continue;
            }
            match timer {
                Timer::Retransmit => match self.state {
                    State::SynSent | State::SynReceived => self.syn_timeout(now),
                    _ => self.loss_timeout(now),
                },
                Timer::Persist => self.persist_timeout(now, up.has_data()),
                Timer::DelayedAck => self.recv.ack_now = true,
                Timer::Keepalive => self.keepalive_timeout(now, up.has_data()),
                Timer::Pace => {} // the next `poll_transmit` resumes transmission
                Timer::Wait if self.state == State::TimeWait => self.delete(CloseReason::Normal),
                Timer::Wait => self.reset_after_silence(now, AwaitedEvent::Fin),
            }
        }
    }

    /// Schedules a retransmission of the SYN, or ends the connection (RFC 9293 §3.8.3 MUST-22, MUST-23; RFC 6298 §5.5).
    fn syn_timeout(&mut self, now: Instant) {
        if now.saturating_since(self.send.progress_at) >= self.config.limits.syn {
            self.note_gave_up(now, AwaitedEvent::Acknowledgement);
            self.delete(CloseReason::Timeout);
            return;
        }
        if self.passive
            && self.send.recovery.consecutive_timeouts() >= self.config.limits.syn_ack_retries
        {
            self.delete(CloseReason::Timeout);
            return;
        }
        self.syn.lost = true;
        self.ecn.withdraw();
        self.syn.due = true;
        self.send.recovery.on_unanswered();
        self.note_timeout(now);
        self.timers.set(Timer::Retransmit, now + self.send.recovery.rtt().rto(&self.config));
    }

    /// Schedules a window probe if data is unsent, nothing is in flight and the window is closed or too small.
    fn persist_timeout(&mut self, now: Instant, has_data: bool) {
        if !has_data || !self.send.outstanding.board.is_empty() {
            return;
        }
        if self.is_window_closed_too_long(now) {
            return self.reset_after_silence(now, AwaitedEvent::Window);
        }
        self.send.probe_due = true;
        self.timers.set(Timer::Persist, now + self.send.recovery.rtt().rto(&self.config));
    }

    /// Returns true if the peer's window has been closed for at least the configured limit (RFC 6429 §4).
    pub(super) fn is_window_closed_too_long(&self, now: Instant) -> bool {
        let closed_since = self.stats.closed_since();
        let limit = self.config.limits.zero_window.filter(|_| self.send.window.is_closed());
        let closed_for = |since| now.saturating_since(since);
        limit.zip(closed_since).is_some_and(|(limit, since)| closed_for(since) >= limit)
    }

    /// Schedules a keepalive probe, or ends the connection after the configured number of unanswered probes (RFC 9293
    /// §3.8.4).
    fn keepalive_timeout(&mut self, now: Instant, has_data: bool) {
        let Some(keepalive) = self.config.keepalive else { return };
        if !matches!(self.state, State::Established | State::CloseWait | State::FinWait2) {
            return;
        }
        let idle_until = self.last_received + keepalive.idle;
        if idle_until > now || !self.send.outstanding.board.is_empty() || has_data {
            // RFC 9293 §3.8.4 MUST-26: the connection is not idle, or retransmissions and window probes replace
            // keepalives.
            self.timers.set(Timer::Keepalive, idle_until.max(now + keepalive.interval));
            return;
        }
        if self.keepalive.unanswered > 0 {
            self.note_count(now, Kind::Unanswered, self.keepalive.unanswered.into(), 0);
        }
        if self.keepalive.unanswered >= keepalive.probes {
            self.reset_after_silence(now, AwaitedEvent::ProbeAnswer);
            return;
        }
        self.keepalive.unanswered = self.keepalive.unanswered.saturating_add(1);
        self.keepalive.due = true;
        self.timers.set(Timer::Keepalive, now + keepalive.interval);
    }

    /// Records a retransmission time-out with the next RTO, in milliseconds.
    #[cold]
    pub(super) fn note_timeout(&mut self, now: Instant) {
        let rto = core::time::Duration::from(self.send.recovery.rtt().rto(&self.config));
        let in_a_row = self.send.recovery.consecutive_timeouts();
        self.note_count(now, Kind::Timeout, in_a_row, saturating_millis(rto));
    }

    /// Records that the connection ends because `awaited` did not occur, and the time waited.
    #[cold]
    pub(super) fn note_gave_up(&mut self, now: Instant, awaited: AwaitedEvent) {
        let since = match awaited {
            AwaitedEvent::Acknowledgement => self.send.progress_at,
            AwaitedEvent::Window => self.stats.closed_since().unwrap_or(now),
            AwaitedEvent::ProbeAnswer | AwaitedEvent::Fin => self.last_received,
        };
        let (number, waited) =
            (self.send.una.wire().0, saturating_millis(now.saturating_since(since)));
        let in_a_row = self.send.recovery.consecutive_timeouts();
        let record = Record::new(now, Kind::GaveUp, number, waited).with_count(in_a_row);
        self.record(record.with_awaited_event(awaited));
    }

    pub(super) fn reset_after_silence(&mut self, now: Instant, awaited: AwaitedEvent) {
        self.note_gave_up(now, awaited);
        self.record_and_reset(now);
        self.delete(CloseReason::Timeout);
    }
}

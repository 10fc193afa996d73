//! Timers of the send half. One timer at a time runs for data in flight: T3-rtx (RFC 9260 §6.3.2), the tail loss probe
//! timer (RFC 8985 §7.2) or the reordering timer (RFC 8985 §6.2, §8). The two other timers are the window-probe timer
//! (RFC 9260 §6.1 A) and the pacing timer.

use base::{Instant, MaybeInstant};
use transport::recovery::Phase;
use transport::tlp::{FlightAmount, probe_timeout};

use super::Sender;

/// Purpose of the timer of data in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Kind {
    /// T3-rtx.
    #[default]
    Rto,
    /// Tail loss probe timer.
    Probe,
    /// Reordering timer.
    Reorder,
}

/// Expiry times of the timers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    kind: Kind,
    /// Expiry of the timer of data in flight.
    loss: Option<Instant>,
    /// Expiry of T3-rtx; kept while another timer runs in its place.
    rto_at: Instant,
    /// Expiry of the window-probe timer, set while data waits and none is in flight.
    persist: Option<Instant>,
    /// Time at which pacing permits the next burst.
    pub(super) pace: Option<Instant>,
}

/// Result of [`handle_timeout`](Sender::handle_timeout).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpiredTimer {
    /// No timer expired, or only timers whose expiry is not an error of the association.
    None,
    /// T3-rtx expired: counts towards Association.Max.Retrans and Path.Max.Retrans (RFC 9260 §8.1, §8.2).
    T3,
    /// T3-rtx expired for a window probe, and the peer has sent a SACK since the previous time-out: not counted
    /// (RFC 9260 §6.1 A).
    WindowProbe,
}

impl Sender {
    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let Timers { loss, persist, pace, .. } = &self.timers;
        MaybeInstant::from(*loss).earlier(*persist).earlier(*pace).get()
    }

    /// Processes expired timers. Data may be due afterwards.
    pub fn handle_timeout(&mut self, now: Instant) -> ExpiredTimer {
        let due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        due(&mut self.timers.pace);
        if due(&mut self.timers.persist) {
            self.probe_due = true;
        }
        if due(&mut self.timers.loss) && !self.board.is_empty() {
            return self.on_loss_timeout(now);
        }
        ExpiredTimer::None
    }

    fn on_loss_timeout(&mut self, now: Instant) -> ExpiredTimer {
        match core::mem::take(&mut self.timers.kind) {
            Kind::Rto => {
                let answered = core::mem::take(&mut self.peer_state.sack_received);
                // The peer answers but refuses data that was in flight when its window closed (RFC 9260 §6.2). This
                // data becomes the window probe. If a gap was reported, the missing data was lost instead.
                self.probing |= self.a_rwnd == 0 && answered && self.board.sacked.is_empty();
                let closed = self.probes_window();
                if closed {
                    self.probe_due = true;
                    self.recovery.rtt_mut().back_off();
                    // RFC 8899 §4.3: probes may go unanswered because they are too long for the path.
                    self.peer_state.probes_unanswered += u32::from(!answered);
                } else {
                    self.on_timeout(now);
                }
                self.restart_rto(now);
                if closed && answered { ExpiredTimer::WindowProbe } else { ExpiredTimer::T3 }
            }
            Kind::Probe => {
                // RFC 8985 §7.3: afterwards only T3-rtx runs, whether or not a probe is sent.
                self.state.on_probe_timeout(true);
                self.restart_rto(now);
                ExpiredTimer::None
            }
            Kind::Reorder => {
                self.on_reorder_timeout(now);
                self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
                match self.state.reorder_at() {
                    Some(at) => self.set(Kind::Reorder, at),
                    None => self.set(Kind::Rto, self.timers.rto_at),
                }
                ExpiredTimer::None
            }
        }
    }

    /// Returns true if the peer's window is closed and the data in flight probes it.
    pub(in crate::sctp) fn probes_window(&self) -> bool {
        self.a_rwnd == 0 && self.probing
    }

    /// Restarts T3-rtx with a full RTO.
    pub(super) fn restart_rto(&mut self, now: Instant) {
        self.round.needs_timer = false;
        self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
        self.set(Kind::Rto, self.timers.rto_at);
    }

    /// Updates the timers after an acknowledgement. `advanced`: true if the oldest chunk in flight was acknowledged
    /// (RFC 9260 §6.3.2 R2, R3).
    pub(super) fn set_timer_after_ack(&mut self, now: Instant, advanced: bool) {
        if self.board.is_empty() {
            self.timers.loss = None;
            self.timers.kind = Kind::Rto;
            return;
        }
        if advanced || self.timers.loss.is_none() {
            self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
        }
        if let Some(at) = self.state.reorder_at() {
            return self.set(Kind::Reorder, at);
        }
        if advanced || self.timers.kind == Kind::Reorder || !self.may_schedule_probe() {
            self.schedule(now);
        }
    }

    /// Updates the timers after new chunks were sent (RFC 9260 §6.3.2 R1, RFC 8985 §7.2).
    pub(super) fn set_timer_after_send(&mut self, now: Instant) {
        self.timers.persist = None;
        if self.timers.loss.is_none() {
            self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
            self.peer_state.progress_at = now;
        }
        if self.timers.kind != Kind::Reorder || self.timers.loss.is_none() {
            self.schedule(now);
        }
    }

    /// Returns true if no timer runs for data in flight.
    pub(super) fn are_timers_stopped(&self) -> bool {
        self.timers.loss.is_none()
    }

    /// Starts the window-probe timer with one RTO (RFC 9260 §6.1 A). Called while data waits and none is in flight,
    /// usually because the peer's window is closed.
    pub(super) fn arm_window_probe(&mut self, now: Instant) {
        if self.timers.persist.is_none() && !self.probe_due {
            self.timers.persist = Some(now + self.recovery.rtt().rto(&self.config));
        }
    }

    /// Schedules the tail loss probe, at the latest when T3-rtx would expire. If no probe may be scheduled, schedules
    /// T3-rtx.
    fn schedule(&mut self, now: Instant) {
        if !self.may_schedule_probe() {
            return self.set(Kind::Rto, self.timers.rto_at);
        }
        // RFC 8985 §7.2: the probe time-out (PTO).
        let awaited = FlightAmount::new(self.board.len(), self.board.flight(), self.smss() as u64);
        let pto = probe_timeout(self.recovery.rtt(), awaited);
        self.set(Kind::Probe, (now + pto).min(self.timers.rto_at));
    }

    fn set(&mut self, kind: Kind, at: Instant) {
        self.timers.kind = kind;
        self.timers.loss = Some(at);
    }

    /// Returns true if a tail loss probe may be scheduled (RFC 8985 §7.2): outside of recovery, without a SACKed or
    /// lost chunk, without a time-out since the last progress, and not while the peer's window is closed (window probes
    /// are sent then).
    fn may_schedule_probe(&self) -> bool {
        self.config.tail_loss_probe
            && self.state.phase() == Phase::Open
            && self.board.sacked.is_empty()
            && !self.board.awaits_retransmission()
            && self.recovery.consecutive_timeouts() == 0
            && self.a_rwnd > 0
    }
}

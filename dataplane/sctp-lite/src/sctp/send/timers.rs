//! The timers of chunks in flight: T3-rtx (RFC 9260 §6.3.2), tail loss probe and reordering (RFC 8985 §7.2,
//! §6.2), one at a time (§8); the probe of a closed window (RFC 9260 §6.1 A), and the next burst.

use base::{Instant, MaybeInstant};
use transport::recovery::Phase;
use transport::tlp::{FlightAmount, probe_timeout};

use super::Sender;

/// Purpose of the timer of the chunks in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Kind {
    /// T3-rtx.
    #[default]
    Rto,
    /// A tail loss probe.
    Probe,
    /// The reordering timer.
    Reorder,
}

/// Expiry times of the timers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    kind: Kind,
    /// Expiry of the timer of the chunks in flight.
    loss: Option<Instant>,
    /// Expiry of T3-rtx, unless another timer replaces it.
    rto_at: Instant,
    /// Expiry of the window-probe timer: nothing is in flight, data waits, and the peer's window has no room.
    persist: Option<Instant>,
    /// Time of the next burst.
    pub(super) pace: Option<Instant>,
}

/// Result of [`handle_timeout`](Sender::handle_timeout).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpiredTimer {
    /// No expiry that the owner must count.
    None,
    /// T3-rtx expired: counts towards Association.Max.Retrans and Path.Max.Retrans (RFC 9260 §8.1, §8.2).
    T3,
    /// T3-rtx of a probe expired while the peer keeps its window closed and answers: not counted
    /// (RFC 9260 §6.1 A).
    WindowProbe,
}

impl Sender {
    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let Timers { loss, persist, pace, .. } = &self.timers;
        MaybeInstant::from(*loss).earlier(*persist).earlier(*pace).get()
    }

    /// Processes expired timers; transmission may continue.
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
                // The peer refuses data that was in flight when the window closed (RFC 9260 §6.2): it probes
                // the window from now on. If a gap was reported, the missing data was lost.
                self.probing |= self.a_rwnd == 0 && answered && self.board.sacked.is_empty();
                let closed = self.probes_window();
                if closed {
                    self.probe_due = true;
                    self.recovery.rtt_mut().back_off();
                    // RFC 8899 §4.3: the probes may be too long for the path.
                    self.peer_state.probes_unanswered += u32::from(!answered);
                } else {
                    self.on_timeout(now);
                }
                self.restart_rto(now);
                if closed && answered { ExpiredTimer::WindowProbe } else { ExpiredTimer::T3 }
            }
            Kind::Probe => {
                // RFC 8985 §7.3: afterwards only the time-out remains, whether a probe is sent or not.
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

    /// True if the peer keeps its window closed and the data in flight probes it.
    pub(in crate::sctp) fn probes_window(&self) -> bool {
        self.a_rwnd == 0 && self.probing
    }

    /// Restarts T3-rtx with a full RTO.
    pub(super) fn restart_rto(&mut self, now: Instant) {
        self.round.needs_timer = false;
        self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
        self.set(Kind::Rto, self.timers.rto_at);
    }

    /// Updates the timers after an acknowledgement; `advanced`: the earliest outstanding chunk was
    /// acknowledged (RFC 9260 §6.3.2 R2, R3).
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

    /// True if no timer runs for the chunks in flight.
    pub(super) fn are_timers_stopped(&self) -> bool {
        self.timers.loss.is_none()
    }

    /// Starts the window-probe timer: nothing is in flight, and the peer has no room for the waiting data.
    /// The first probe follows after one RTO (RFC 9260 §6.1 A).
    pub(super) fn arm_window_probe(&mut self, now: Instant) {
        if self.timers.persist.is_none() && !self.probe_due {
            self.timers.persist = Some(now + self.recovery.rtt().rto(&self.config));
        }
    }

    /// Schedules the tail loss probe or T3-rtx, whichever is earlier.
    fn schedule(&mut self, now: Instant) {
        if !self.may_schedule_probe() {
            return self.set(Kind::Rto, self.timers.rto_at);
        }
        // RFC 8985 §7.2
        let awaited = FlightAmount::new(self.board.len(), self.board.flight(), self.smss() as u64);
        let pto = probe_timeout(self.recovery.rtt(), awaited);
        self.set(Kind::Probe, (now + pto).min(self.timers.rto_at));
    }

    fn set(&mut self, kind: Kind, at: Instant) {
        self.timers.kind = kind;
        self.timers.loss = Some(at);
    }

    /// True if a tail loss probe may be scheduled (RFC 8985 §7.2): outside of recovery, while nothing is
    /// SACKed. A closed window has its own probes.
    fn may_schedule_probe(&self) -> bool {
        self.config.tail_loss_probe
            && self.state.phase() == Phase::Open
            && self.board.sacked.is_empty()
            && !self.board.awaits_retransmission()
            && self.recovery.consecutive_timeouts() == 0
            && self.a_rwnd > 0
    }
}

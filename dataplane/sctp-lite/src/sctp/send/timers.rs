//! The timers of chunks in flight: T3-rtx (RFC 9260 §6.3.2), tail loss probe and reordering (RFC 8985 §7.2,
//! §6.2), one at a time (§8); the probe of a closed window (RFC 9260 §6.1 A), and the next burst.

use base::{Instant, MaybeInstant};
use transport::recovery::Phase;
use transport::tlp::{Awaited, probe_timeout};

use super::Sender;

/// What the timer of what is in flight is set for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Kind {
    /// T3-rtx.
    #[default]
    Rto,
    /// A tail loss probe.
    Probe,
    /// Time for reordering has passed.
    Reorder,
}

/// When each of them expires.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    kind: Kind,
    /// Of what is in flight.
    loss: Option<Instant>,
    /// When T3-rtx expires unless another timer replaces it.
    rto_at: Instant,
    /// Nothing is in flight, data waits, and the peer's window does not take it.
    persist: Option<Instant>,
    /// The next burst may leave.
    pub(super) pace: Option<Instant>,
}

/// What time did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expired {
    /// Nothing that its owner has to know.
    Nothing,
    /// T3-rtx: counts towards Association.Max.Retrans and Path.Max.Retrans (RFC 9260 §8.1, §8.2).
    T3,
    /// T3-rtx of a probe of a window that the peer keeps closed, while it answers: counts for nothing
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

    /// Time has passed; sending goes on.
    pub fn handle_timeout(&mut self, now: Instant) -> Expired {
        let due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        due(&mut self.timers.pace);
        if due(&mut self.timers.persist) {
            self.probe_due = true;
        }
        if due(&mut self.timers.loss) && !self.board.is_empty() {
            return self.loss_timeout(now);
        }
        Expired::Nothing
    }

    fn loss_timeout(&mut self, now: Instant) -> Expired {
        match core::mem::take(&mut self.timers.kind) {
            Kind::Rto => {
                let answered = core::mem::take(&mut self.answers.sack_received);
                // What was on its way when the window closed is refused (RFC 9260 §6.2): it probes the window from now on.
                // With a gap reported, what is missing was lost.
                self.probing |= self.a_rwnd == 0 && answered && self.board.sacked.is_empty();
                let closed = self.probes_window();
                if closed {
                    self.probe_due = true;
                    self.recovery.rtt_mut().back_off();
                    // RFC 8899 §4.3: perhaps they are too long for the path.
                    self.answers.probes_unanswered += u32::from(!answered);
                } else {
                    self.on_timeout(now);
                }
                self.restart_rto(now);
                if closed && answered { Expired::WindowProbe } else { Expired::T3 }
            }
            Kind::Probe => {
                // RFC 8985 §7.3: then only the time-out is left, whether a probe is sent or not.
                self.state.on_probe_timeout(true);
                self.restart_rto(now);
                Expired::Nothing
            }
            Kind::Reorder => {
                self.on_reorder_timeout(now);
                self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
                match self.state.reorder_at() {
                    Some(at) => self.set(Kind::Reorder, at),
                    None => self.set(Kind::Rto, self.timers.rto_at),
                }
                Expired::Nothing
            }
        }
    }

    /// The peer keeps its window closed, and what is in flight probes it.
    pub(in crate::sctp) fn probes_window(&self) -> bool {
        self.a_rwnd == 0 && self.probing
    }

    /// A full time-out from now on, for what is in flight.
    pub(super) fn restart_rto(&mut self, now: Instant) {
        self.round.unwatched = false;
        self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
        self.set(Kind::Rto, self.timers.rto_at);
    }

    /// A SACK came; `advanced` when the earliest outstanding chunk was acknowledged (RFC 9260 §6.3.2 R2,
    /// R3).
    pub(super) fn timer_after_ack(&mut self, now: Instant, advanced: bool) {
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

    /// Chunks were sent for the first time (RFC 9260 §6.3.2 R1, RFC 8985 §7.2).
    pub(super) fn timer_after_send(&mut self, now: Instant) {
        self.timers.persist = None;
        if self.timers.loss.is_none() {
            self.timers.rto_at = now + self.recovery.rtt().rto(&self.config);
            self.answers.progress_at = now;
        }
        if self.timers.kind != Kind::Reorder || self.timers.loss.is_none() {
            self.schedule(now);
        }
    }

    /// True while nothing watches over what is in flight.
    pub(super) fn timers_stopped(&self) -> bool {
        self.timers.loss.is_none()
    }

    /// Nothing is in flight and data waits that the peer has no room for: the first probe after one RTO
    /// (RFC 9260 §6.1 A).
    pub(super) fn arm_window_probe(&mut self, now: Instant) {
        if self.timers.persist.is_none() && !self.probe_due {
            self.timers.persist = Some(now + self.recovery.rtt().rto(&self.config));
        }
    }

    /// Probe or time-out, whichever is due.
    fn schedule(&mut self, now: Instant) {
        if !self.may_schedule_probe() {
            return self.set(Kind::Rto, self.timers.rto_at);
        }
        // RFC 8985 §7.2
        let awaited = Awaited::new(self.board.len(), self.board.flight(), self.smss() as u64);
        let pto = probe_timeout(self.recovery.rtt(), awaited);
        self.set(Kind::Probe, (now + pto).min(self.timers.rto_at));
    }

    fn set(&mut self, kind: Kind, at: Instant) {
        self.timers.kind = kind;
        self.timers.loss = Some(at);
    }

    /// RFC 8985 §7.2: outside of recovery, while nothing is SACKed. A closed window is probed otherwise.
    fn may_schedule_probe(&self) -> bool {
        self.config.tail_loss_probe
            && self.state.phase() == Phase::Open
            && self.board.sacked.is_empty()
            && !self.board.awaits_retransmission()
            && self.recovery.timeouts_in_a_row() == 0
            && self.a_rwnd > 0
    }
}

//! What loss recovery keeps while something is in flight: an idle stream does without.

use base::Instant;

use crate::pacing::{Pace, Pacer};
use crate::ranges::Range;
use crate::recovery::Phase;
use crate::seq::ExtSeq;
use crate::tlp::TailLoss;
use crate::usage::Usage;

/// What matters only while something is in flight.
#[derive(Clone, Debug)]
pub struct FlightState {
    pub(super) phase: Phase,
    /// When to look again for what may be lost (RFC 8985 §6.2).
    pub(super) reorder_at: Option<Instant>,
    pub(super) usage: Usage,
    pub(super) tlp: TailLoss,
    pub(super) pacer: Pacer,
    /// The first retransmission of a recovery goes whatever the congestion window.
    pub(super) force: bool,
}

impl Default for FlightState {
    fn default() -> Self {
        FlightState::new()
    }
}

impl FlightState {
    /// Nothing is in flight.
    pub const fn new() -> Self {
        FlightState {
            phase: Phase::Open,
            reorder_at: None,
            usage: Usage::new(),
            tlp: TailLoss::new(),
            pacer: Pacer::new(),
            force: false,
        }
    }

    /// Where recovery stands.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When to look again for what may be lost.
    #[inline]
    pub fn reorder_at(&self) -> Option<Instant> {
        self.reorder_at
    }

    /// No answer to a tail loss probe is to come, and none is to be sent.
    #[inline]
    pub fn is_probe_quiet(&self) -> bool {
        self.tlp.is_quiet()
    }

    /// A tail loss probe is to be sent.
    #[inline]
    pub fn probe_due(&self) -> bool {
        self.tlp.due
    }

    /// The probe timer expired (RFC 8985 §7.3).
    pub fn probe_timeout(&mut self, measured: bool) {
        self.tlp.due = measured && self.tlp.may_probe();
    }

    /// There is nothing to probe with.
    pub fn forget_probe(&mut self) {
        self.tlp.due = false;
    }

    /// A tail loss probe was sent; `end` is SND.NXT after it, `again` what it sent again.
    pub fn probe_sent(&mut self, end: ExtSeq, again: Option<Range>) {
        self.tlp.sent(end, again);
    }

    /// A round trip was measured by other means than an acknowledgement.
    pub fn measured(&mut self) {
        self.tlp.measured();
    }

    /// The next retransmission goes whatever the congestion window.
    #[inline]
    pub fn forces(&self) -> bool {
        self.force
    }

    /// The first retransmission of what is lost goes whatever the window (RFC 6582 §3.2).
    pub fn force(&mut self) {
        self.force = true;
    }

    /// A retransmission was sent.
    #[inline]
    pub fn on_resend(&mut self) {
        self.force = false;
    }

    /// Until when the next burst waits, if it does.
    #[inline]
    pub fn paced_until(&self, now: Instant) -> Option<Instant> {
        self.pacer.wait(now)
    }

    /// `bytes` were sent at `pace`.
    #[inline]
    pub fn on_paced(&mut self, now: Instant, bytes: u64, pace: Pace) {
        self.pacer.on_sent(now, bytes, pace);
    }
}

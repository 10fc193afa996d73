//! State of loss recovery that exists only while data is in flight; an idle stream has none.

use base::Instant;

use crate::cwnd_usage::CwndUsage;
use crate::pacing::{Pace, Pacer};
use crate::ranges::Range;
use crate::recovery::Phase;
use crate::seq::ExtSeq;
use crate::tlp::TailLossProbe;

/// State of loss recovery while data is in flight. The default is the state with nothing in flight.
#[derive(Clone, Debug)]
pub struct FlightState {
    pub(super) phase: Phase,
    /// Expiry of the reordering timer, which triggers the next search for losses (RFC 8985 §6.2).
    pub(super) reorder_at: Option<Instant>,
    pub(super) usage: CwndUsage,
    pub(super) tlp: TailLossProbe,
    pub(super) pacer: Pacer,
    /// True if the next retransmission is sent even if the congestion window is full.
    pub(super) resend_ignores_cwnd: bool,
}

impl Default for FlightState {
    fn default() -> Self {
        FlightState::new()
    }
}

impl FlightState {
    /// Creates the state with nothing in flight.
    pub const fn new() -> Self {
        FlightState {
            phase: Phase::Open,
            reorder_at: None,
            usage: CwndUsage::new(),
            tlp: TailLossProbe::new(),
            pacer: Pacer::new(),
            resend_ignores_cwnd: false,
        }
    }

    /// Returns the phase of loss recovery.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the expiry of the reordering timer; `None` if it is not armed.
    #[inline]
    pub fn reorder_at(&self) -> Option<Instant> {
        self.reorder_at
    }

    /// Returns true if no tail loss probe is outstanding or due.
    #[inline]
    pub fn is_probe_idle(&self) -> bool {
        self.tlp.is_idle()
    }

    /// Returns true if a tail loss probe is to be sent.
    #[inline]
    pub fn is_probe_due(&self) -> bool {
        self.tlp.due
    }

    /// Processes an expiry of the probe timer (RFC 8985 §7.3). A probe becomes due if no probe is outstanding and a
    /// round trip was measured since the last probe. `measured`: a round trip was ever measured.
    pub fn on_probe_timeout(&mut self, measured: bool) {
        self.tlp.due = measured && self.tlp.may_probe();
    }

    /// Cancels a due probe because there is no data to send as the probe.
    pub fn cancel_probe(&mut self) {
        self.tlp.due = false;
    }

    /// Records that a tail loss probe was sent. `end`: SND.NXT after the probe. `resent`: the range that the probe
    /// retransmitted, `None` for new data.
    pub fn on_probe_sent(&mut self, end: ExtSeq, resent: Option<Range>) {
        self.tlp.on_probe_sent(end, resent);
    }

    /// Records a round-trip measurement that is not from an acknowledgement of data, for example from a heartbeat.
    pub fn on_rtt_measured(&mut self) {
        self.tlp.on_rtt_measured();
    }

    /// Returns true if the next retransmission is sent even if the congestion window is full.
    #[inline]
    pub fn resend_ignores_cwnd(&self) -> bool {
        self.resend_ignores_cwnd
    }

    /// Allows the first retransmission of a recovery even if the congestion window is full (RFC 6582 §3.2).
    pub fn allow_resend_beyond_cwnd(&mut self) {
        self.resend_ignores_cwnd = true;
    }

    /// Records that a segment was retransmitted. The next retransmission is subject to the congestion window.
    #[inline]
    pub fn on_resend(&mut self) {
        self.resend_ignores_cwnd = false;
    }

    /// Returns when the next burst may be sent; `None` if pacing does not delay it.
    #[inline]
    pub fn paced_until(&self, now: Instant) -> Option<Instant> {
        self.pacer.next_burst_at(now)
    }

    /// Records that sending pauses until the time of [`FlightState::paced_until`].
    #[inline]
    pub fn on_paced_wait(&mut self) {
        self.pacer.on_wait();
    }

    /// Records that sending pauses for a reason other than pacing: a full window, or nothing in flight and nothing to
    /// send.
    #[inline]
    pub fn on_pause(&mut self) {
        self.pacer.on_pause();
    }

    /// Records that `bytes` were sent at `pace`.
    #[inline]
    pub fn on_paced_sent(&mut self, now: Instant, bytes: u64, pace: Pace) {
        self.pacer.on_sent(now, bytes, pace);
    }
}

#[cfg(test)]
mod tests {
    use base::Nanos;

    use super::*;
    use crate::seq::SeqNumber;

    #[test]
    fn tail_probe_is_due_from_timer_until_sent_or_cancelled() {
        let mut state = FlightState::new();
        state.on_probe_timeout(false);
        assert!(!state.is_probe_due() && state.is_probe_idle(), "no round trip was measured");
        state.on_rtt_measured();
        state.on_probe_timeout(true);
        assert!(state.is_probe_due());
        state.cancel_probe();
        assert!(!state.is_probe_due());
        state.on_probe_timeout(true);
        state.on_probe_sent(ExtSeq::initial(SeqNumber(0)).plus(10), None);
        assert!(!state.is_probe_due() && !state.is_probe_idle(), "an answer is awaited");
    }

    #[test]
    fn paced_burst_delays_next_burst() {
        let mut state = FlightState::new();
        let (now, late) = (Instant::from_millis(5000), Nanos::from_millis(10));
        let pace = Pace { rate: 1_000_000, burst: 2000, max_lateness: late };
        state.on_paced_sent(now, 1000, pace);
        assert_eq!(state.paced_until(now), None);
        state.on_paced_sent(now, 1000, pace);
        let until = state.paced_until(now).unwrap();
        assert_eq!(until, now + Nanos::from_millis(2));
        // A flow whose timer is late may catch up; a flow that paused may not.
        let after = until + Nanos::from_millis(6);
        for (waits, next) in
            [(true, until + Nanos::from_millis(2)), (false, after + Nanos::from_millis(2))]
        {
            let mut state = state.clone();
            state.on_paced_wait();
            if !waits {
                state.on_pause();
            }
            state.on_paced_sent(after, 2000, pace);
            assert_eq!(state.paced_until(until), Some(next), "{waits}");
        }
    }

    #[test]
    fn first_resend_may_exceed_cwnd_once() {
        let mut state = FlightState::new();
        assert!(!state.resend_ignores_cwnd());
        state.allow_resend_beyond_cwnd();
        assert!(state.resend_ignores_cwnd());
        state.on_resend();
        assert!(!state.resend_ignores_cwnd());
    }
}

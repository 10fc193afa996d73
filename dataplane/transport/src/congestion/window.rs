//! The congestion window and slow-start threshold, in bytes, common to all controllers. The window is at most the send
//! window. The controllers decide when to grow and to reduce the window.

use base::Lazy;

use super::hystart::HyStart;

/// Maximum number of segments that one acknowledgement counts for in slow start without pacing: L of RFC 9406 §4.2.
const UNPACED_SEGMENTS_PER_ACK: u64 = 8;

/// Window and threshold, bytes.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) cwnd: u64,
    pub(super) ssthresh: u64,
    pub(super) smss: u16,
    pub(super) send_window: u32,
    /// True if pacing spreads the data that an acknowledgement releases.
    pub(super) paced: bool,
    /// Minimum of the threshold, segments.
    pub(super) floor: u8,
    /// HyStart++, which decides when the first slow start ends.
    pub(super) hystart: Lazy<HyStart>,
}

impl Window {
    /// Starts with a window of `segments` segments of `smss` bytes (RFC 6928).
    pub(super) fn new(smss: usize, segments: u32, send_window: u64) -> Self {
        Window {
            cwnd: smss as u64 * u64::from(segments.max(1)),
            ssthresh: u64::MAX, // RFC 5681 §3.1: arbitrarily high at first
            smss: smss as u16,
            send_window: u32::try_from(send_window).unwrap_or(u32::MAX).max(2 * smss as u32),
            paced: true,
            floor: 2, // RFC 5681 §3.1 (4), RFC 9438 §4.6: two segments
            hystart: Lazy::new(),
        }
    }

    #[inline]
    pub(super) fn smss(&self) -> u64 {
        self.smss.into()
    }

    #[inline]
    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window in slow start for `acked` bytes (RFC 5681 §3.1). With pacing, L of RFC 9406 §4.2 is infinite,
    /// so aggregated acknowledgements do not slow down the growth. The window at most doubles, because no more than a
    /// window was in flight.
    pub(super) fn slow_start(&mut self, acked: u64) {
        let most = if self.paced { self.cwnd } else { UNPACED_SEGMENTS_PER_ACK * self.smss() };
        let divisor = if self.ssthresh == u64::MAX { self.hystart.divisor() } else { 1 };
        let grown = self.cwnd + acked.min(most) / divisor;
        self.cwnd = grown.min(self.ssthresh.max(self.cwnd)).min(self.send_window.into());
    }

    /// Grows the window by `bytes` in congestion avoidance.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.cwnd = (self.cwnd + bytes).min(self.send_window.into());
    }

    /// Sets the threshold after a congestion event, not below the floor.
    pub(super) fn set_threshold(&mut self, bytes: u64) {
        self.ssthresh = bytes.max(u64::from(self.floor) * self.smss());
    }

    /// Raises the threshold to at least three quarters of the window (RFC 2861 §3.2), so that slow start regrows a
    /// reduced window to this size.
    pub(super) fn raise_ssthresh(&mut self) {
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
    }
}

//! Reno's congestion avoidance: one segment more per round trip (RFC 5681 §3.1).

use super::controller::{AckSample, Cause, Controller};
use super::window::Window;

/// Reno's state: the bytes acknowledged since the last growth of the window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    acked: u64,
}

impl NewReno {
    /// Starts with zero bytes acknowledged.
    pub(super) const fn new() -> Self {
        NewReno { acked: 0 }
    }
}

impl Controller for NewReno {
    /// Returns the growth: one segment per acknowledged window (RFC 5681 §3.1, byte counting).
    fn increase(&mut self, window: &Window, ack: &AckSample) -> u64 {
        self.acked += ack.acked;
        if self.acked < window.cwnd {
            return 0;
        }
        self.acked -= window.cwnd;
        self.acked = self.acked.min(window.cwnd);
        window.smss()
    }

    /// Returns half of the bytes in flight (RFC 5681 §3.1 (4)).
    fn reduce(&mut self, _window: &Window, _cause: Cause, flight: u64) -> u64 {
        flight / 2
    }
}

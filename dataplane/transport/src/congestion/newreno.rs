//! Reno's congestion avoidance: one segment more per round trip (RFC 5681 §3.1).

/// Octets acknowledged since the window grew last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    acked: u64,
}

impl NewReno {
    /// Growth of `cwnd` for `acked` octets: a segment per window acknowledged (RFC 5681 §3.1, byte
    /// counting).
    pub(super) fn increase(&mut self, cwnd: u64, smss: u64, acked: u64) -> u64 {
        self.acked += acked;
        if self.acked < cwnd {
            return 0;
        }
        self.acked -= cwnd;
        self.acked = self.acked.min(cwnd);
        smss
    }

    /// Half of what was in flight (RFC 5681 §3.1 (4)).
    pub(super) fn reduce(flight: u64) -> u64 {
        flight / 2
    }
}

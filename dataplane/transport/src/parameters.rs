//! Configured parameters that TCP and SCTP have in common.

use core::time::Duration;
use std::sync::Arc;

use crate::congestion::CongestionControl;

/// Configured parameters that TCP and SCTP have in common.
pub trait Parameters {
    /// Returns the retransmission time-out before the first measurement (RFC 6298 §2.1; RFC 9260 §16, RTO.Initial).
    fn initial_rto(&self) -> Duration;
    /// Returns the smallest retransmission time-out (RFC 6298 §2.4; RTO.Min).
    fn min_rto(&self) -> Duration;
    /// Returns the largest retransmission time-out (RFC 6298 §2.5; RTO.Max).
    fn max_rto(&self) -> Duration;
    /// Returns the choice of congestion controller.
    fn congestion(&self) -> CongestionControl;
    /// Returns the send window, bytes: the limit of unacknowledged data and of the congestion window.
    fn send_window(&self) -> u64;
}

impl<P: Parameters> Parameters for Arc<P> {
    fn initial_rto(&self) -> Duration {
        (**self).initial_rto()
    }
    fn min_rto(&self) -> Duration {
        (**self).min_rto()
    }
    fn max_rto(&self) -> Duration {
        (**self).max_rto()
    }
    fn congestion(&self) -> CongestionControl {
        (**self).congestion()
    }
    fn send_window(&self) -> u64 {
        (**self).send_window()
    }
}

/// Parameters for tests. Default: CUBIC, a send window of 1 GiB, an initial RTO of 1 s, an RTO from 40 ms to 60 s.
#[cfg(test)]
#[derive(Clone, Debug)]
pub(crate) struct TestParameters {
    pub(crate) congestion: CongestionControl,
    pub(crate) send_window: u64,
}

#[cfg(test)]
impl Default for TestParameters {
    fn default() -> Self {
        TestParameters { congestion: CongestionControl::default(), send_window: 1 << 30 }
    }
}

#[cfg(test)]
impl Parameters for TestParameters {
    fn initial_rto(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn min_rto(&self) -> Duration {
        Duration::from_millis(40)
    }
    fn max_rto(&self) -> Duration {
        Duration::from_secs(60)
    }
    fn congestion(&self) -> CongestionControl {
        self.congestion
    }
    fn send_window(&self) -> u64 {
        self.send_window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_behind_arc_are_unchanged() {
        let chosen = TestParameters { congestion: CongestionControl::NewReno, send_window: 77_777 };
        fn all(p: &impl Parameters) -> ([Duration; 3], CongestionControl, u64) {
            ([p.initial_rto(), p.min_rto(), p.max_rto()], p.congestion(), p.send_window())
        }
        let seen = all(&std::sync::Arc::new(chosen.clone()));
        assert_eq!(seen, all(&chosen));
        let times = [1000, 40, 60_000].map(Duration::from_millis);
        assert_eq!(seen, (times, CongestionControl::NewReno, 77_777));
    }
}

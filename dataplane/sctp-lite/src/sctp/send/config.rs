//! Configuration of the send half, with defaults.

use core::time::Duration;

use transport::{CongestionControl, Parameters};

/// Parameters of the send half of an association. Shared by associations and immutable.
#[derive(Clone, PartialEq, Debug)]
pub struct SendConfig {
    /// RTO.Initial, the retransmission time-out before the first round-trip sample (RFC 9260 §16).
    pub initial_rto: Duration,
    /// RTO.Min; RFC 9260 §16 recommends one second. The default is 200 ms, as in Linux TCP.
    pub min_rto: Duration,
    /// RTO.Max, at least 60 s (RFC 9260 §6.3.1 C7).
    pub max_rto: Duration,
    /// Congestion control algorithm.
    pub congestion: CongestionControl,
    /// Initial congestion window, packets; `None`: two to four packets, as in RFC 9260 §7.2.1.
    pub initial_window: Option<u32>,
    /// Send window, bytes. Limits both the congestion window and the unacknowledged data, regardless of the peer's
    /// window.
    pub send_window: u64,
    /// True to spread the packets of a congestion window over the round trip, if the round trip is long enough.
    pub pacing: bool,
    /// Max.Burst (RFC 9260 §16): number of packets that may be sent at once, in addition to the packets acknowledged
    /// since the last transmission. No effect while pacing spreads packets.
    pub max_burst: u32,
    /// True to send a tail loss probe when acknowledgements are overdue (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// True to set the I bit on the last available message, on retransmissions, and while the congestion window is
    /// below two packets (RFC 9260 §6.1).
    pub immediate_sack_at_end: bool,
    /// Maximum number of unacknowledged messages, each of which has a record of 32 bytes. At most 65,535, the reach of
    /// Gap Ack Blocks (RFC 9260 §3.3.4), regardless of the send window.
    pub max_records: usize,
    /// True to record the newest events of each association with their chunk headers ([`transport::recorder`]).
    pub recorder: bool,
}

impl Default for SendConfig {
    fn default() -> Self {
        SendConfig {
            initial_rto: Duration::from_secs(1),
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(60),
            congestion: CongestionControl::Cubic,
            initial_window: None,
            send_window: 4 << 20,
            pacing: true,
            max_burst: 4,
            tail_loss_probe: true,
            immediate_sack_at_end: true,
            max_records: u16::MAX.into(),
            recorder: true,
        }
    }
}

impl SendConfig {
    /// Returns the initial window in packets of at most `smss` bytes of DATA chunks (RFC 9260 §7.2.1).
    pub(super) fn initial_packets(&self, smss: usize) -> u32 {
        const MAX_INITIAL_BYTES: usize = 4404;
        let window = (4 * smss).min(MAX_INITIAL_BYTES.max(2 * smss));
        self.initial_window.unwrap_or((window / smss.max(1)) as u32).max(1)
    }
}

impl Parameters for SendConfig {
    fn initial_rto(&self) -> Duration {
        self.initial_rto
    }
    fn min_rto(&self) -> Duration {
        self.min_rto
    }
    fn max_rto(&self) -> Duration {
        self.max_rto
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
    fn recovery_parameters_match_the_configuration() {
        let (initial_rto, min_rto) = (Duration::from_secs(3), Duration::from_secs(2));
        let max_rto = Duration::from_secs(70);
        let (congestion, send_window) = (CongestionControl::NewReno, 77_777);
        let config = SendConfig {
            initial_rto,
            min_rto,
            max_rto,
            congestion,
            send_window,
            ..SendConfig::default()
        };
        fn parameter_values(p: &impl Parameters) -> ([Duration; 3], CongestionControl, u64) {
            ([p.initial_rto(), p.min_rto(), p.max_rto()], p.congestion(), p.send_window())
        }
        assert_eq!(
            parameter_values(&config),
            ([initial_rto, min_rto, max_rto], congestion, send_window)
        );
    }
}

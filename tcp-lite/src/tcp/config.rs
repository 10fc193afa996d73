//! Configuration of TCP, with defaults. The parser of the configuration file checks the ranges.

use core::time::Duration;

pub use transport::CongestionControl;

/// Keepalive: probing of idle connections (RFC 9293 §3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// Silence of the peer before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection ends, at least 2: one unanswered probe does not prove a
    /// dead connection (RFC 9293 §3.8.4 MUST-29).
    pub probes: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Keepalive {
            idle: Duration::from_secs(2 * 3600), // RFC 9293 §3.8.4 MUST-28
            interval: Duration::from_secs(75),
            probes: 9,
        }
    }
}

/// Initial, minimum and maximum retransmission time-out (RFC 6298).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rto {
    /// Value before the first measurement; 1 s by RFC 6298 §2.1.
    pub initial: Duration,
    /// Minimum. RFC 6298 §2.4 recommends 1 s. The default is 200 ms, as on most hosts, because delayed
    /// acknowledgements take much less.
    pub min: Duration,
    /// Maximum, at least 60 s (RFC 6298 §2.5).
    pub max: Duration,
}

impl Default for Rto {
    fn default() -> Self {
        Rto {
            initial: Duration::from_secs(1),
            min: Duration::from_millis(200),
            max: Duration::from_secs(60),
        }
    }
}

/// Time limits of connections whose peer does not answer, and of closing connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// R2 for data: a connection whose retransmissions make no progress ends after this time. RFC 9293 §3.8.3
    /// recommends at least 100 s.
    pub retransmission: Duration,
    /// R2 for SYN: at least 180 s by RFC 9293 §3.8.3 (MUST-23). The owner of an active open may abort sooner.
    pub syn: Duration,
    /// Number of retransmissions of a SYN-ACK before the connection is dropped. A low number limits the cost of SYNs
    /// with forged addresses (RFC 4987 §3.3).
    pub syn_ack_retries: u32,
    /// Maximum time for which the peer's window may stay closed while data waits and the peer answers probes. `None`:
    /// no limit, as RFC 9293 §3.8.6.1 MUST-37 requires. With a limit, the memory of such a connection is freed (RFC
    /// 6429 §4).
    pub zero_window: Option<Duration>,
    /// Time in TIME-WAIT, twice the MSL (RFC 9293 §3.6.1).
    pub time_wait: Duration,
    /// Silence of the peer in FIN-WAIT-2 after which the connection is reset.
    pub fin_wait_2: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            retransmission: Duration::from_secs(120),
            syn: Duration::from_secs(180),
            syn_ack_retries: 5,
            zero_window: None,
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
        }
    }
}

/// Extensions to offer and accept. All are on by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions {
    /// True to use window scaling (RFC 7323 §2).
    pub window_scale: bool,
    /// True to use SACK (RFC 2018).
    pub sack: bool,
    /// True to use timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// True to use ECN (RFC 3168).
    pub ecn: bool,
}

impl Default for Extensions {
    fn default() -> Self {
        Extensions { window_scale: true, sack: true, timestamps: true, ecn: true }
    }
}

/// Parameters of path MTU discovery (RFC 1191, RFC 8201, RFC 4821).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathMtuConfig {
    /// True to probe the path MTU (RFC 4821). Probing detects black holes, in which routers do not report the MTU, and
    /// raises a lowered MTU again.
    pub probing: bool,
    /// Smallest MTU accepted from an ICMP report about an IPv4 path, 68 to 1280 bytes. For IPv6, this minimum is always
    /// 1280.
    pub min: u16,
    /// Time after a reduction of the path MTU before larger segments are tried again. At least 5 minutes (RFC 1191
    /// §6.3, RFC 8201 §4).
    pub raise: Duration,
}

impl Default for PathMtuConfig {
    fn default() -> Self {
        PathMtuConfig { probing: true, min: 576, raise: Duration::from_secs(600) }
    }
}

/// Timing of acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckConfig {
    /// True to acknowledge data with PSH at the end of its burst, without delay. The setting helps a peer that pushes
    /// each record while its congestion window has two segments: after the loss of one segment, the peer would wait for
    /// the delayed acknowledgement of the other. Off by default.
    pub pushed: bool,
    /// Maximum delay of an acknowledgement, below 500 ms (RFC 9293 §3.8.6.3 MUST-40). Zero disables delayed
    /// acknowledgements.
    pub delay: Duration,
}

impl Default for AckConfig {
    fn default() -> Self {
        AckConfig { pushed: false, delay: Duration::from_millis(40) }
    }
}

/// Parameters of TCP connections. Many connections share one value, which never changes.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Initial, minimum and maximum retransmission time-out.
    pub rto: Rto,
    /// Time limits of connections whose peer does not answer, and of closing connections.
    pub limits: Limits,
    /// Extensions to offer and accept in the SYN.
    pub extensions: Extensions,
    /// Parameters of path MTU discovery.
    pub path_mtu: PathMtuConfig,
    /// Timing of acknowledgements.
    pub acks: AckConfig,
    /// Congestion control algorithm, CUBIC by default.
    pub congestion: CongestionControl,
    /// Initial congestion window in segments, 1 to 10 (RFC 6928).
    pub initial_window: u32,
    /// Send window, bytes. Limits unacknowledged bytes and the congestion window, even if the peer offers more.
    pub send_window: u64,
    /// True to pace transmission: on paths with a long enough RTT, the congestion window is spread over the RTT.
    pub pacing: bool,
    /// True to set PSH on every segment on paths with an RTT of 0.5 ms or more, so that the peer acknowledges each
    /// segment. Off by default.
    pub push_segments: bool,
    /// True to send a tail loss probe when acknowledgements are overdue (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// Initial receive window, bytes, at most 1 GiB (RFC 7323 §2.3). The upper layer's room may reduce it.
    pub receive_window: u32,
    /// Maximum to which the receive window may grow, bytes, at most 1 GiB. The window grows while the peer uses more
    /// than half of it per round trip. Values up to `receive_window` disable growth.
    pub receive_window_limit: u32,
    /// Maximum number of contiguous ranges stored beyond a gap. Data that needs another range is refused.
    pub max_ranges: usize,
    /// Probing of idle connections. `None`, the default, disables it (RFC 9293 §3.8.4 MUST-25).
    pub keepalive: Option<Keepalive>,
    /// Minimum MSS, in bytes with TCP options, at least 13. A smaller MSS of a peer or a path is raised to this value,
    /// so that a peer cannot cause an excessive number of segments.
    pub min_mss: u16,
    /// Maximum number of challenge acknowledgements per second and connection (RFC 5961 §7).
    pub challenge_acks_per_second: u32,
    /// True to record the newest events of each connection, with headers ([`transport::recorder`]).
    pub recorder: bool,
}

/// Minimum of [`Config::max_records`]. A small send window may consist of short segments, each of which needs a
/// record.
const MIN_RECORDS: u64 = 32 * 1024;

/// Default of [`Config::min_mss`]: the maximum of 40 bytes of options (RFC 9293 §3.1) and eight bytes of data. Equals
/// the default of Linux's `tcp_min_snd_mss`.
pub(super) const MIN_MSS: u16 = 40 + 8;

impl Default for Config {
    fn default() -> Self {
        Config {
            rto: Rto::default(),
            limits: Limits::default(),
            extensions: Extensions::default(),
            path_mtu: PathMtuConfig::default(),
            acks: AckConfig::default(),
            congestion: CongestionControl::Cubic,
            initial_window: 10,
            send_window: 4 << 20,
            pacing: true,
            push_segments: false,
            tail_loss_probe: true,
            receive_window: 4 << 20,
            receive_window_limit: 0,
            max_ranges: 256,
            keepalive: None,
            min_mss: MIN_MSS,
            challenge_acks_per_second: 10,
            recorder: true,
        }
    }
}

impl Config {
    /// Returns the maximum number of unacknowledged segments: one per 512 bytes of send window, at least 32,768. Each
    /// segment has a record of 16 bytes.
    #[inline]
    pub fn max_records(&self) -> usize {
        (self.send_window >> 9).max(MIN_RECORDS) as usize
    }

    /// Returns the largest receive window that growth may reach, bytes.
    #[inline]
    pub fn window_limit(&self) -> u64 {
        self.receive_window_limit.max(self.receive_window).into()
    }

    /// Returns the window scale shift to offer: the smallest shift with which the largest receive window fits 16 bits,
    /// at most 14 (RFC 7323 §2.3).
    pub fn window_shift(&self) -> u8 {
        (0..14).find(|s| self.window_limit() >> s <= u64::from(u16::MAX)).unwrap_or(14)
    }
}

impl transport::Parameters for Config {
    fn initial_rto(&self) -> Duration {
        self.rto.initial
    }
    fn min_rto(&self) -> Duration {
        self.rto.min
    }
    fn max_rto(&self) -> Duration {
        self.rto.max
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
    fn window_shift_is_smallest_that_fits() {
        let shift = |receive_window| Config { receive_window, ..Config::default() }.window_shift();
        assert_eq!(shift(65_535), 0);
        assert_eq!(shift(65_536), 1);
        assert_eq!(shift(4 << 20), 7);
        assert_eq!(shift(1 << 30), 14);
    }

    // RFC 7323 §2.3: the SYN fixes the scale, so it must fit the largest window.
    #[test]
    fn window_shift_fits_largest_window() {
        let config = Config { receive_window_limit: 128 << 20, ..Config::default() };
        assert_eq!((config.window_limit(), config.window_shift()), (128 << 20, 12));
        let smaller = Config { receive_window_limit: 1 << 20, ..Config::default() };
        assert_eq!((smaller.window_limit(), smaller.window_shift()), (4 << 20, 7));
    }

    // Checks the bounds of RFC 9293 §3.8.4 (MUST-25, MUST-28), §3.8.6.3 (MUST-40) and §3.8.3 (MUST-23, SHLD-11).
    #[test]
    fn default_config_obeys_rfc_9293_bounds() {
        let config = Config::default();
        assert!(config.keepalive.is_none());
        assert!(Keepalive::default().idle >= Duration::from_secs(7200));
        assert!(config.acks.delay < Duration::from_millis(500));
        assert!(config.limits.syn >= Duration::from_secs(180));
        assert!(config.limits.retransmission >= Duration::from_secs(100));
        assert!(config.rto.max >= Duration::from_secs(60));
    }
}

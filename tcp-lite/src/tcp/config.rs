//! What an operator can choose about TCP, with defaults. Checked where the configuration is read.

use core::time::Duration;

pub use transport::CongestionControl;

/// Probing of idle connections (RFC 9293 §3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection ends; at least 2, because one unanswered probe is
    /// no proof (RFC 9293 §3.8.4 MUST-29).
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

/// The retransmission time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rto {
    /// Before the first measurement; 1 s by RFC 6298 §2.1.
    pub initial: Duration,
    /// Smallest. RFC 6298 §2.4 recommends 1 s; the default is 200 ms, as on most hosts, because delayed
    /// acknowledgements are bounded well below it.
    pub min: Duration,
    /// Largest, at least 60 s (RFC 6298 §2.5).
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

/// When a connection ends that gets no answer, and how long a closed one is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// R2 for data: without progress for this long the connection ends; at least 100 s is recommended
    /// (RFC 9293 §3.8.3).
    pub retransmission: Duration,
    /// R2 for SYN, at least 180 s by RFC 9293 §3.8.3 (MUST-23); an active open may give up sooner.
    pub syn: Duration,
    /// Retransmissions of a SYN and ACK before the peer that asked for it is forgotten: until it answers,
    /// its address may be forged (RFC 4987 §3.3).
    pub syn_ack_retries: u32,
    /// How long a peer that answers probes may keep its window closed while data waits; without end by
    /// RFC 9293 §3.8.6.1 MUST-37, but it may be ended to free memory (RFC 6429 §4).
    pub zero_window: Option<Duration>,
    /// Time in TIME-WAIT, twice the MSL (RFC 9293 §3.6.1).
    pub time_wait: Duration,
    /// Silence in FIN-WAIT-2 after which the connection is reset.
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

/// The extensions that are offered and accepted; all by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions {
    /// Window scaling (RFC 7323 §2).
    pub window_scale: bool,
    /// SACK (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// ECN (RFC 3168).
    pub ecn: bool,
}

impl Default for Extensions {
    fn default() -> Self {
        Extensions { window_scale: true, sack: true, timestamps: true, ecn: true }
    }
}

/// How the path's MTU is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathMtuConfig {
    /// Find it by probes where routers do not report it (RFC 4821): black holes are noticed, and a size
    /// that was lowered is raised again.
    pub probing: bool,
    /// A report of an IPv4 path with a smaller MTU is ignored, bytes, 68 to 1280. IPv6 has its own
    /// minimum of 1280.
    pub min: u16,
    /// Time after which larger segments are tried again over a path that did not carry them; at least 5
    /// minutes (RFC 1191 §6.3, RFC 8201 §4).
    pub raise: Duration,
}

impl Default for PathMtuConfig {
    fn default() -> Self {
        PathMtuConfig { probing: true, min: 576, raise: Duration::from_secs(600) }
    }
}

/// When data is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckConfig {
    /// Acknowledge data with PSH at the end of its burst instead of delaying. A peer that marks each record
    /// and has a window of two segments would wait for the delay when one of them is lost. Off by default.
    pub pushed: bool,
    /// Longest time an acknowledgement is delayed; zero turns delaying off; below 500 ms
    /// (RFC 9293 §3.8.6.3 MUST-40).
    pub delay: Duration,
}

impl Default for AckConfig {
    fn default() -> Self {
        AckConfig { pushed: false, delay: Duration::from_millis(40) }
    }
}

/// The parameters of a connection. Shared by many, never changed.
#[derive(Clone, Debug)]
pub struct Config {
    /// The retransmission time-out.
    pub rto: Rto,
    /// When a connection ends that gets no answer.
    pub limits: Limits,
    /// What is offered and accepted in the SYN.
    pub extensions: Extensions,
    /// How the path's MTU is found.
    pub path_mtu: PathMtuConfig,
    /// When data is acknowledged.
    pub acks: AckConfig,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Initial window in segments, 1 to 10 (RFC 6928).
    pub initial_window: u32,
    /// Send window, bytes: the bound on what is sent and not acknowledged cumulatively, whatever window the peer
    /// offers, and on the congestion window.
    pub send_window: u64,
    /// Spread what the congestion window allows over the round trip, where that is long enough to.
    pub pacing: bool,
    /// Push every segment over paths of half a millisecond and more, so that the peer acknowledges each one.
    /// Off by default.
    pub push_segments: bool,
    /// Ask by a tail loss probe when acknowledgements are overdue (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// Receive window to advertise when the upper layer has the room, bytes, at most 1 GiB
    /// (RFC 7323 §2.3).
    pub receive_window: u32,
    /// The window grows to this size while the peer uses more than half of it in a round trip, bytes, at most 1 GiB;
    /// below `receive_window`: it does not grow.
    pub receive_window_limit: u32,
    /// Most ranges kept beyond a gap in what was received; what would need more is refused.
    pub max_ranges: usize,
    /// Probing of idle connections; off by default (RFC 9293 §3.8.4 MUST-25).
    pub keepalive: Option<Keepalive>,
    /// Least MSS, bytes with options, ≥ 1 + 12: a smaller one of a peer or a path is raised to it. It bounds the segments
    /// per byte that a peer can request.
    pub min_mss: u16,
    /// Challenge acknowledgements per second and connection (RFC 5961 §7).
    pub challenge_acks_per_second: u32,
    /// Keep the newest events of each connection with their headers ([`transport::recorder`]).
    pub recorder: bool,
}

/// Segments that may be unacknowledged however small the send window is: they may be short.
const LEAST_RECORDS: u64 = 32 * 1024;

/// Room for all options of TCP and eight bytes of text (RFC 9293 §3.1); Linux's `tcp_min_snd_mss` is the same.
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
    /// Most unacknowledged segments, each of which takes a record of 16 bytes: as many as fill the send window with
    /// 512 bytes each.
    #[inline]
    pub fn max_records(&self) -> usize {
        (self.send_window >> 9).max(LEAST_RECORDS) as usize
    }

    /// The largest receive window, bytes.
    #[inline]
    pub fn window_limit(&self) -> u64 {
        self.receive_window_limit.max(self.receive_window).into()
    }

    /// The window scale shift to offer: the smallest with which the largest receive window fits 16 bits
    /// (RFC 7323 §2.3: at most 14).
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
    fn shift_is_the_smallest_that_fits() {
        let shift = |receive_window| Config { receive_window, ..Config::default() }.window_shift();
        assert_eq!(shift(65_535), 0);
        assert_eq!(shift(65_536), 1);
        assert_eq!(shift(4 << 20), 7);
        assert_eq!(shift(1 << 30), 14);
    }

    // RFC 7323 §2.3: the scale is fixed by the SYN, so it must do for what the window may become.
    #[test]
    fn the_shift_is_that_of_the_largest_window() {
        let config = Config { receive_window_limit: 128 << 20, ..Config::default() };
        assert_eq!((config.window_limit(), config.window_shift()), (128 << 20, 12));
        let smaller = Config { receive_window_limit: 1 << 20, ..Config::default() };
        assert_eq!((smaller.window_limit(), smaller.window_shift()), (4 << 20, 7));
    }

    // RFC 9293 §3.8.4 MUST-25, MUST-28; §3.8.6.3 MUST-40; §3.8.3 MUST-23, SHLD-11.
    #[test]
    fn defaults_obey_the_bounds() {
        let config = Config::default();
        assert!(config.keepalive.is_none());
        assert!(Keepalive::default().idle >= Duration::from_secs(7200));
        assert!(config.acks.delay < Duration::from_millis(500));
        assert!(config.limits.syn >= Duration::from_secs(180));
        assert!(config.limits.retransmission >= Duration::from_secs(100));
        assert!(config.rto.max >= Duration::from_secs(60));
    }
}

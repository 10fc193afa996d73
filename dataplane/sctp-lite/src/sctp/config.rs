//! Configuration of SCTP, with defaults. The values are checked where the configuration is read.

use core::time::Duration;
use std::sync::Arc;

use wire::sctp::ddp::MIN_MESSAGE;
use wire::sctp::padded;

use super::receive::ReceiveConfig;
use super::send::SendConfig;

/// Smallest packet that a path is assumed to carry, bytes: one DATA chunk with a DDP-SSN and the minimum MULPDU
/// (RFC 5043 §9). It equals 576, the datagram length that every IPv4 host accepts (RFC 1122 §3.3.2), minus the headers
/// of IP and UDP.
pub const MIN_PACKET: usize = 12 + padded(16 + 2 + MIN_MESSAGE);
const _: () = assert!(MIN_PACKET == 576 - 20 - 8);

/// Parameters of an association. Shared by associations and immutable.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Adaptation layer indication sent, and required of the peer (RFC 5061 §4.2.6).
    pub adaptation: u32,
    /// Pairs of streams requested and granted, 1 to 65535.
    pub streams: u16,
    /// Lifetime of a state cookie (Valid.Cookie.Life), 1 s to 10 minutes.
    pub cookie_life: Duration,
    /// Longest extension of a cookie's lifetime granted to a peer (RFC 9260 §3.3.2.1.3).
    pub cookie_extension: Duration,
    /// Longest cookie accepted from a peer, bytes.
    pub max_cookie: usize,
    /// Maximum number of retransmissions of INIT, and of COOKIE ECHO; then the association fails
    /// (Max.Init.Retransmits).
    pub max_init_retransmits: u32,
    /// Maximum number of consecutive unanswered retransmissions and heartbeats (Association.Max.Retrans). One more ends
    /// the association.
    pub max_retransmits: u32,
    /// Idle time between heartbeats, in addition to the RTO (HB.interval); `None`: no heartbeats.
    pub heartbeat_interval: Option<Duration>,
    /// Time limit of a shutdown (T5-shutdown-guard); RFC 9260 §9.2 recommends five times RTO.Max.
    pub shutdown_guard: Duration,
    /// True to probe the path MTU (RFC 8899). Probing detects black holes where routers send no reports, and raises a
    /// reduced size again.
    pub path_mtu_probing: bool,
    /// Minimum path MTU accepted from a report for IPv4, bytes, 68 to 1280. A smaller report counts as this value. The
    /// minimum for IPv6 is 1280. The packet size in use is never below [`MIN_PACKET`].
    pub min_path_mtu: u16,
    /// Time after which sizes that the path did not carry are probed again, at least 5 minutes (PMTU_RAISE_TIMER,
    /// RFC 8899 §5.1.1; RFC 1191 §6.3, RFC 8201 §4).
    pub path_mtu_raise: Duration,
    /// Configuration of the receive half.
    pub receive: Arc<ReceiveConfig>,
    /// Configuration of the send half, retransmission time-outs included.
    pub send: Arc<SendConfig>,
}

impl Default for Config {
    /// Returns the values of RFC 9260 §16 for the parameters listed there. `ReceiveConfig` and `SendConfig` document
    /// where their values differ.
    fn default() -> Self {
        Config {
            adaptation: wire::sctp::ddp::ADAPTATION_DDP,
            streams: 256,
            cookie_life: Duration::from_secs(60),
            cookie_extension: Duration::from_secs(10),
            max_cookie: 4096,
            max_init_retransmits: 8,
            max_retransmits: 10,
            heartbeat_interval: Some(Duration::from_secs(30)),
            shutdown_guard: Duration::from_secs(300),
            path_mtu_probing: true,
            min_path_mtu: 576,
            path_mtu_raise: Duration::from_secs(600),
            receive: Arc::default(),
            send: Arc::default(),
        }
    }
}

//! Configuration of the receive half, with defaults.

use core::time::Duration;

/// Parameters of the receive half of an association.
#[derive(Clone, PartialEq, Debug)]
pub struct ReceiveConfig {
    /// Initial receive window (a_rwnd), bytes, at least 1500 (RFC 9260 §3.3.2). Also limited by the upper layer's free
    /// space.
    pub window: u32,
    /// Maximum of the window, bytes. The window grows while the peer uses more than half of it per round trip. It does
    /// not grow if this limit is not above `window`.
    pub window_limit: u32,
    /// Smallest nonzero window that is advertised, bytes. A smaller window is advertised as zero.
    pub min_window: u32,
    /// Number of packets with data after which a SACK is sent at once; RFC 9260 §6.2: two.
    pub packets_per_sack: u8,
    /// Maximum delay of a SACK (SACK.Delay); RFC 9260 §6.2 recommends at most 200 ms and permits 500 ms.
    pub sack_delay: Duration,
    /// Maximum number of TSN ranges received beyond gaps. A chunk that would begin another range is refused.
    pub max_gaps: usize,
    /// Longest message reassembled from fragments, bytes.
    pub max_message: usize,
    /// Maximum number of fragments of one message.
    pub max_fragments: usize,
    /// Maximum memory for kept fragments, their records included, bytes. A fragment that is next in order may exceed
    /// this limit.
    pub fragments: usize,
}

impl Default for ReceiveConfig {
    fn default() -> Self {
        ReceiveConfig {
            window: 4 << 20,
            window_limit: 0,
            min_window: 1500,
            packets_per_sack: 2,
            sack_delay: Duration::from_millis(40),
            max_gaps: 1024,
            max_message: 64 * 1024,
            max_fragments: 128,
            fragments: 256 * 1024,
        }
    }
}

//! Configuration of the receive half, with defaults.

use core::time::Duration;

/// Parameters of the receive half of an association.
#[derive(Clone, Debug)]
pub struct ReceiveConfig {
    /// Advertised a_rwnd while the upper layer has the room, bytes, at least 1500 (RFC 9260 §3.3.2).
    pub window: u32,
    /// Maximum of the window, bytes: it grows while the peer uses more than half of it in a round trip. Not
    /// above `window`: no growth.
    pub window_limit: u32,
    /// Smallest advertised window, bytes; a smaller one is advertised as closed.
    pub min_window: u32,
    /// Packets with data after which a SACK is sent at once; two in RFC 9260 §6.2.
    pub packets_per_sack: u8,
    /// Longest delay of a SACK (SACK.Delay): at most 200 ms recommended, 500 ms permitted (RFC 9260 §6.2).
    pub sack_delay: Duration,
    /// Ranges kept beyond gaps, at most; a chunk that would need a further one is refused.
    pub max_gaps: usize,
    /// Longest message reassembled from fragments, bytes.
    pub max_message: usize,
    /// Fragments of one message, at most.
    pub max_fragments: usize,
    /// Bytes of fragments kept beyond a gap, their records included. One message in order is kept in
    /// addition.
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

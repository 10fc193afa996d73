//! What an operator can choose about receiving, with defaults.

use core::time::Duration;

/// The parameters of the receive half of an association.
#[derive(Clone, Debug)]
pub struct ReceiveConfig {
    /// The a_rwnd that is advertised when the upper layer has the room, bytes, at least 1500 (RFC 9260
    /// §3.3.2).
    pub window: u32,
    /// It grows to this size while the peer uses more than half of it in a round trip, bytes; below `window`: it does not
    /// grow.
    pub window_limit: u32,
    /// A window below this is advertised as closed, bytes.
    pub least_window: u32,
    /// Packets with data after which a SACK is sent at once; two by RFC 9260 §6.2.
    pub packets_per_sack: u8,
    /// Longest time for which a SACK is delayed (SACK.Delay): at most 200 ms are wanted, and 500 ms allowed
    /// (RFC 9260 §6.2).
    pub sack_delay: Duration,
    /// Most ranges kept beyond a gap; what would need more is refused.
    pub max_gaps: usize,
    /// Longest message that is put together from fragments, bytes.
    pub max_message: usize,
    /// Most fragments of one message.
    pub max_fragments: usize,
    /// Bytes of fragments that are kept beyond a gap, their records included. One message in order is kept
    /// besides.
    pub fragments: usize,
}

impl Default for ReceiveConfig {
    fn default() -> Self {
        ReceiveConfig {
            window: 4 << 20,
            window_limit: 0,
            least_window: 1500,
            packets_per_sack: 2,
            sack_delay: Duration::from_millis(40),
            max_gaps: 1024,
            max_message: 64 * 1024,
            max_fragments: 128,
            fragments: 256 * 1024,
        }
    }
}

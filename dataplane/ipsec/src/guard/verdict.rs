//! Verdicts on packets, and reasons to drop them.

use super::Protection;
use crate::esp::Refusal;
use crate::policy::Denial;
use crate::strength::Strength;

/// Verdict on a packet from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundVerdict {
    /// Accepted in clear.
    Clear,
    /// To be opened with this worker's SA of this SPI: see [`Guard::open`](super::Guard::open).
    Protected(u32),
    /// To be opened by the worker with this number, the owner of the SA.
    OtherWorker(u16),
    /// A fragment in clear, to be reassembled and then matched again. For fragments that are not reassembled see
    /// [`Guard::decide_fragment`](super::Guard::decide_fragment).
    Fragment,
    /// A NAT keepalive: to be dropped (RFC 3948 §2.3).
    Keepalive,
}

/// Verdict on a packet to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboundVerdict {
    /// Sent in clear.
    Clear,
    /// To be sealed: see [`Guard::seal`](super::Guard::seal).
    Protect {
        /// Protection of the SA.
        protection: Protection,
        /// Number of bytes that sealing adds at the front.
        headroom: usize,
        /// Length of the sealed packet, bytes.
        total: usize,
        /// Path MTU in bytes, if a router has reported one.
        path_mtu: Option<u16>,
        /// Strength of the SA.
        strength: Strength,
    },
    /// No SA exists yet: the packet waits for an SA, or is dropped.
    AwaitSa(Protection),
    /// To be sealed by the worker with this number, the owner of the SA.
    OtherWorker(u16),
}

/// Reasons to drop a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpsecDrop {
    /// Denied by the policies.
    Denied(Denial),
    /// Refused by ESP.
    Refused(Refusal),
    /// No SA has the packet's SPI (RFC 4303 §3.4.2). Or the SA has just moved to this worker, and its former owner has
    /// not released the anti-replay window yet.
    UnknownSpi,
    /// The protection has no SA to send with.
    NoSa,
    /// The packet would be sent in clear, or with an SA weaker than its flow requires.
    TooWeak,
    /// The host has already sealed the packet with an SA of this data plane, so the packet would be sealed twice (its
    /// counter is `twice`). Two senders with one SA would repeat sequence numbers.
    AlreadySealed,
}

impl IpsecDrop {
    /// Returns a stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            IpsecDrop::Denied(denied) => denied.name(),
            IpsecDrop::Refused(refused) => refused.name(),
            IpsecDrop::UnknownSpi => "unknown_spi",
            IpsecDrop::NoSa => "no_sa",
            IpsecDrop::TooWeak => "too_weak",
            IpsecDrop::AlreadySealed => "twice",
        }
    }
}

impl From<Denial> for IpsecDrop {
    fn from(denied: Denial) -> IpsecDrop {
        IpsecDrop::Denied(denied)
    }
}

impl From<Refusal> for IpsecDrop {
    fn from(refused: Refusal) -> IpsecDrop {
        IpsecDrop::Refused(refused)
    }
}

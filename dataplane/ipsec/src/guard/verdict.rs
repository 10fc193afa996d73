//! What is to be done with a packet, and why it is dropped.

use super::Protection;
use crate::esp::Refused;
use crate::policy::Denied;
use crate::strength::Strength;

/// What is to be done with a packet from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// It is taken as it is.
    Clear,
    /// It is to be opened by this SA of ours: see [`Guard::open`](super::Guard::open).
    Protected(u32),
    /// It is to be opened by this worker.
    Elsewhere(u16),
    /// It is a fragment in clear. It is put together and looked up then; what is not put together, see [`Guard::piece`](super::Guard::piece).
    Piece,
    /// It keeps the ports of NATs, and nothing else (RFC 3948 §2.3).
    Keepalive,
}

/// What is to be done with a packet to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// It is sent as it is.
    Clear,
    /// It is to be sealed: see [`Guard::seal`](super::Guard::seal).
    Protect {
        /// By an SA of this.
        protection: Protection,
        /// Bytes that it grows by in front.
        ahead: usize,
        /// Bytes of what it becomes.
        total: usize,
        /// Bytes that the path carries, as far as a router has reported it.
        path_mtu: Option<u16>,
        /// How strongly.
        strength: Strength,
    },
    /// There is no SA for it yet: it waits for one, or is dropped.
    Wait(Protection),
    /// It is to be sealed by this worker.
    Elsewhere(u16),
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drop {
    /// By the policies.
    Denied(Denied),
    /// By ESP.
    Refused(Refused),
    /// It came by an SA that there is not (RFC 4303 §3.4.2).
    UnknownSpi,
    /// There is no SA that it may go by.
    NoSa,
    /// It would leave in clear, or by an SA that is weaker than its flow requires.
    TooWeak,
    /// Somebody else has sealed it by an SA of ours: two that send by one would repeat sequence numbers.
    Twice,
}

impl Drop {
    /// Stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Drop::Denied(denied) => denied.name(),
            Drop::Refused(refused) => refused.name(),
            Drop::UnknownSpi => "unknown_spi",
            Drop::NoSa => "no_sa",
            Drop::TooWeak => "too_weak",
            Drop::Twice => "twice",
        }
    }
}

impl From<Denied> for Drop {
    fn from(denied: Denied) -> Drop {
        Drop::Denied(denied)
    }
}

impl From<Refused> for Drop {
    fn from(refused: Refused) -> Drop {
        Drop::Refused(refused)
    }
}

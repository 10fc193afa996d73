//! Identifiers used in all parts of the dataplane, and the transport of a stream.

use core::fmt;

/// A worker thread. The number is also the top 16 bits of the [`ddp::StreamId`]s that the worker owns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(pub u16);

/// A port: index in [`crate::DataplaneConfig::ports`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// An interface: index in [`crate::DataplaneConfig::interfaces`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InterfaceId(pub u16);

/// A listener, numbered by the control thread. A number is not reused within a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u32);

/// Identifier of the command that an event answers. The control thread chooses a number below 2^64 - 16; higher numbers
/// are reserved ([`ddp::Cookie`]). Workers do not interpret the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// The lower layer protocol (LLP) below DDP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Transport {
    /// MPA over TCP (RFC 5044).
    #[default]
    Tcp,
    /// SCTP (RFC 5043).
    Sctp,
}

impl Transport {
    /// Returns the stable name for output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Sctp => "sctp",
        }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

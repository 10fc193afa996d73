//! The protocol above DDP on a listener, and the parameters of RDMAP.

use tcp_lite::mpa::Peer;

use super::{Delivery, QueueSection};

/// The protocol above DDP on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ulp {
    /// Bare DDP.
    Ddp,
    /// RDMAP (RFC 5040), for verbs programs.
    Rdmap(RdmapSection),
}

impl Ulp {
    /// Returns the name in the configuration and in the API: `ddp` or `rdmap`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Ulp::Ddp => "ddp",
            Ulp::Rdmap(_) => "rdmap",
        }
    }

    /// Returns the parameters of RDMAP, if it is used.
    pub fn rdmap(&self) -> Option<&RdmapSection> {
        match self {
            Ulp::Ddp => None,
            Ulp::Rdmap(section) => Some(section),
        }
    }
}

/// RDMAP parameters of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmapSection {
    /// The service that the listener provides to its peers.
    pub service: ServiceKind,
    /// Maximum number of the peer's outstanding Reads and atomics, 0 to 1024.
    pub ird: u16,
    /// Maximum number of our outstanding Reads and atomics, 0 to 1024.
    pub ord: u16,
    /// Kind of peer, which selects the adaptations to its deviations from the specifications.
    pub peer: Peer,
    /// Size of the first Write of perftest's write latency test, which the peer does not announce, bytes.
    pub message_size: u32,
}

/// The service of a listener for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// Advertises its regions; peers write, read and do atomics.
    Region,
    /// Returns every Send.
    Echo,
    /// Discards Sends.
    Sink,
    /// The server of librdmacm's rping.
    Rping,
    /// The servers of perftest with `-R`.
    Perftest,
}

impl ServiceKind {
    /// All services with their words in the configuration.
    pub const WORDS: [(&'static str, ServiceKind); 5] = [
        ("region", ServiceKind::Region),
        ("echo", ServiceKind::Echo),
        ("sink", ServiceKind::Sink),
        ("rping", ServiceKind::Rping),
        ("perftest", ServiceKind::Perftest),
    ];

    /// Returns the name in the configuration and in the API, such as `echo`.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("region", |(word, _)| word)
    }

    /// Returns true if each stream has its own part (slot) of the listener's only region. Such a region is not
    /// advertised.
    pub fn has_slots(self) -> bool {
        match self {
            ServiceKind::Rping | ServiceKind::Perftest => true,
            ServiceKind::Region | ServiceKind::Echo | ServiceKind::Sink => false,
        }
    }

    /// Returns queue 0 with the default receive buffers, for a file without queues; `None` for services without Sends.
    pub(crate) fn default_queue(self) -> Option<QueueSection> {
        let (buffers, buffer_size) = match self {
            ServiceKind::Region => return None,
            ServiceKind::Echo | ServiceKind::Sink => (64, 64 << 10),
            ServiceKind::Rping => (8, 64),
            // Clients of ib_send_bw assume that the server has 512 receive buffers.
            ServiceKind::Perftest => (512, 64 << 10),
        };
        let deliver_to = self.default_delivery().unwrap_or(Delivery::Discard);
        Some(QueueSection { qn: 0, buffers, buffer_size, deliver_to })
    }

    /// Returns the destination of Sends if the service determines it.
    pub(crate) fn default_delivery(self) -> Option<Delivery> {
        match self {
            ServiceKind::Region => None,
            ServiceKind::Echo => Some(Delivery::Echo),
            ServiceKind::Sink | ServiceKind::Rping | ServiceKind::Perftest => {
                Some(Delivery::Discard)
            }
        }
    }
}

/// Maximum number of outstanding Reads and atomics in either direction. Each needs a record; an operation of the peer
/// also needs a buffer.
pub const MAX_DEPTH: u16 = 1024;

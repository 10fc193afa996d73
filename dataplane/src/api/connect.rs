//! Parameters of a connect, and services of streams.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ddp::{PdId, Stag};
use tcp_lite::endpoint::UlpConfig;

use super::IpFields;
use super::program::QueuePairId;
use super::transport::EndpointConfig;
use crate::ids::{InterfaceId, Ticket};

/// Service that handles received messages. The variants use the names of RDMAP: on bare DDP, a Send is an untagged
/// message, and a Write is a tagged message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// The control thread receives Sends and Immediate Data ([`Event::Received`](super::Event::Received),
    /// [`Event::Immediate`](super::Event::Immediate)) and reposts their buffers. Tagged messages of bare DDP cause
    /// events, too; RDMAP's Writes, Reads and atomics do not.
    Control,
    /// Like `Control`, and the control thread also receives [`Event::TaggedDelivered`](super::Event::TaggedDelivered)
    /// for each RDMAP Write with payload and for each atomic.
    Region,
    /// The worker returns each Send as a Send and Immediate Data as Immediate Data. On bare DDP, it returns each
    /// untagged message to the peer's message queue ([`ddp::MESSAGE_QUEUE`]). The control thread receives no messages
    /// except invalidations of STags and bare DDP's last message.
    Echo,
    /// The worker discards Sends and Immediate Data and reposts their buffers. The control thread receives the same
    /// events as with `Echo`.
    Sink,
    /// The queue pair of a local program. The control thread receives events of the stream's start and end, but none of
    /// messages. Requires RDMAP.
    Program(QueuePairId),
}

/// Parameters of a connect.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Chosen by the sender, repeated in the answer.
    pub ticket: Ticket,
    /// Interface for the stream's packets. The worker must have a queue of its port.
    pub interface: InterfaceId,
    /// Local address; `None` lets the worker choose an address of the interface.
    pub local: Option<IpAddr>,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// LLP and its parameters. SCTP streams to one peer share an association if their configurations are the same
    /// object (`Arc`).
    pub endpoint: EndpointConfig,
    /// IP header fields, where they differ from the interface's. A stream that shares an association has the
    /// association's fields. Different fields require a different configuration object.
    pub ip: IpFields,
    /// ULP (DDP or RDMAP), with its receive queues, IRD and ORD.
    pub ulp: UlpConfig,
    /// Service that handles received messages.
    pub service: Service,
    /// Protection domain of the stream.
    pub pd: PdId,
    /// Regions to bind to the stream when it is created. The peer may access them as soon as it receives their
    /// advertisement in the private data. Each region must belong to the stream's protection domain. Each region must
    /// already be bound, usually to an unused stream identifier, so that no other stream can access the region before
    /// this stream is created. Regions that do not meet these conditions are ignored.
    pub stags: Vec<Stag>,
    /// Private data for the peer, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// Time limit of the connect, from address resolution to the established stream.
    pub timeout: Duration,
}

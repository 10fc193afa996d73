//! Reasons why a worker did not perform a command of the control thread.

use ddp::StagError;
use ipsec::sa::SaError;
use tcp_lite::mpa::PrivateDataTooLong;

use super::transport::CloseReason;
use crate::net::icmp::Unreachable;

/// Reason why a stream could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The interface does not exist, or this worker has no queue of its port.
    #[error("the interface is not served by this worker")]
    NoInterface,
    /// The address cannot belong to a peer: multicast, limited broadcast, unspecified, loopback, or port 0.
    #[error("the peer's address cannot belong to another host")]
    BadPeer,
    /// The interface has no route to the peer, or no address of the peer's family.
    #[error("no route to the peer on this interface")]
    NoRoute,
    /// The requested local address does not belong to the interface.
    #[error("the local address is not on this interface")]
    NoSuchAddress,
    /// All local ports for this peer are in use.
    #[error("no source port is free towards this peer")]
    NoPort,
    /// The worker has reached its maximum number of streams.
    #[error("the worker has reached its limit of streams")]
    TooManyStreams,
    /// SCTP in UDP is requested, but no local UDP port is configured for it.
    #[error("this end has no UDP port for SCTP")]
    NoUdpPort,
    /// The QP of the stream is not registered at this worker, or has a stream already.
    #[error("the QP is not registered, or has a stream already")]
    QueuePair,
    /// The worker is draining.
    #[error("the worker is draining")]
    Draining,
    /// The next hop does not answer ARP or neighbour solicitations.
    #[error("no answer to address resolution")]
    Unreachable,
    /// An ICMP error reports the peer as unreachable.
    #[error("{0}")]
    Icmp(Unreachable),
    /// The time-out of the command has expired.
    #[error("no answer to {0} in time")]
    Timeout(ConnectStage),
    /// The connection or association ended before the stream was established.
    #[error("{0}")]
    Closed(CloseReason),
    /// The private data are longer than the MPA request can carry.
    #[error("{0}")]
    PrivateData(PrivateDataTooLong),
    /// The SCTP session could not be opened, because the private data are longer than its Initiate can carry.
    #[error("{0}")]
    Session(sctp_lite::endpoint::OpenError),
}

/// Answer that a connect awaits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectStage {
    /// The link-layer address of the next hop.
    #[error("address resolution")]
    NextHop,
    /// The SYN ACK.
    #[error("the SYN")]
    SynAck,
    /// The MPA reply.
    #[error("the MPA request")]
    MpaReply,
    /// The INIT ACK of SCTP.
    #[error("the INIT")]
    InitAck,
    /// The COOKIE ACK of SCTP.
    #[error("the COOKIE ECHO")]
    CookieAck,
    /// The answer to the Initiate of a session over SCTP.
    #[error("the session's Initiate")]
    SessionReply,
}

/// Reason why a message could not be posted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostFailure {
    /// The stream has ended or never existed.
    #[error("no such stream")]
    NoStream,
    /// The source or sink region does not exist.
    #[error("no such region")]
    NoRegion,
    /// The stream already has a load.
    #[error("the stream has a load already")]
    LoadRunning,
    /// The stream refused the message.
    #[error("{0}")]
    Refused(ddp::PostError),
    /// The stream ended before the peer had acknowledged the whole message.
    #[error("the stream ended before the peer acknowledged the whole message")]
    Flushed,
}

/// Reason why a command failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    /// The STag table refused the command.
    #[error("{0}")]
    Stag(StagError),
    /// Another listener has the same transport, port, interface and address, or the same identifier.
    #[error("the address and port are in use by another listener")]
    ListenerInUse,
    /// The listener does not exist.
    #[error("no such listener")]
    NoListener,
    /// The worker has no queue of the port.
    #[error("the worker has no queue of this port")]
    NoPort,
    /// The program is not registered at this worker, or its number is in use.
    #[error("no such program, or its number is in use")]
    Program,
    /// The completion queue is not registered at this worker, its number is in use, or QPs use it.
    #[error("no such completion queue, its number is in use, or QPs use it")]
    CompletionQueue,
    /// The QP is not registered at this worker, or its number is in use or too high.
    #[error("no such QP, or its number is in use or too high")]
    QueuePair,
    /// The memory window is not registered at this worker, its number is in use, or it cannot be bound as requested.
    #[error("no such memory window, its number is in use, or it cannot be bound")]
    Window,
    /// Memory windows are bound to the region.
    #[error("memory windows are bound to the region")]
    WindowsBound,
    /// The dataplane was started without IPsec.
    #[error("there is no IPsec")]
    NoIpsec,
    /// The SA does not exist.
    #[error("no such SA")]
    NoSa,
    /// The parameters of the SA are invalid.
    #[error("{0}")]
    Sa(SaError),
}

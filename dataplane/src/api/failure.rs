//! Reasons why a worker could not process a command.

use ddp::StagError;
use ipsec::sa::SaError;
use tcp_lite::mpa::PrivateDataTooLong;

use super::transport::CloseReason;
use crate::net::icmp::Unreachable;

/// Reason why a stream could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The interface does not exist or this worker has no queue of its port.
    #[error("the interface is not served by this worker")]
    NoInterface,
    /// The peer's address cannot be another host's: multicast, broadcast, unspecified, loopback, our own, or port
    /// 0.
    #[error("the peer's address is not that of another host")]
    BadPeer,
    /// The interface has no route to the peer, or no address of its family.
    #[error("no route to the peer on this interface")]
    NoRoute,
    /// The local address is not one of the interface's.
    #[error("the local address is not on this interface")]
    NoSuchAddress,
    /// All source ports towards this peer are in use.
    #[error("no source port is free towards this peer")]
    NoPort,
    /// The worker has reached its limit of streams.
    #[error("the worker has reached its limit of streams")]
    TooManyStreams,
    /// SCTP in UDP is requested, but this end has no UDP port for it.
    #[error("this end has no UDP port for SCTP")]
    NoUdpPort,
    /// The worker is draining.
    #[error("the worker is draining")]
    Draining,
    /// The peer, or its gateway, does not answer ARP or neighbour solicitations.
    #[error("no answer to address resolution")]
    Unreachable,
    /// An ICMP error reports the peer as unreachable.
    #[error("{0}")]
    Icmp(Unreachable),
    /// The command's time-out has expired.
    #[error("no answer to {0} in time")]
    Timeout(ConnectStage),
    /// TCP or MPA start-up failed.
    #[error("{0}")]
    Closed(CloseReason),
    /// The private data exceed the request's capacity.
    #[error("{0}")]
    PrivateData(PrivateDataTooLong),
    /// Over SCTP, a session could not be opened: the private data exceed the Initiate's capacity.
    #[error("{0}")]
    Session(sctp_lite::endpoint::OpenError),
}

/// The answer that a connect waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectStage {
    /// The link-layer address of the peer, or of its gateway.
    #[error("address resolution")]
    NextHop,
    /// A SYN ACK.
    #[error("the SYN")]
    SynAck,
    /// MPA's reply.
    #[error("the MPA request")]
    MpaReply,
    /// SCTP's INIT ACK.
    #[error("the INIT")]
    InitAck,
    /// SCTP's COOKIE ACK.
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
    /// The message's region is not in the STag table.
    #[error("no such region")]
    NoRegion,
    /// The stream already has a load.
    #[error("the stream has a load already")]
    LoadRunning,
    /// DDP refused it.
    #[error("{0}")]
    Refused(ddp::PostError),
    /// The stream ended before the peer had received the whole message.
    #[error("the stream ended before the peer had all of it")]
    Flushed,
}

/// Reason why a command failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    /// The STag table refused the command.
    #[error("{0}")]
    Stag(StagError),
    /// A listener on that address and port exists already.
    #[error("the address and port are in use by another listener")]
    ListenerInUse,
    /// The listener does not exist.
    #[error("no such listener")]
    NoListener,
    /// The worker has no queue of the port.
    #[error("the worker has no queue of this port")]
    NoPort,
    /// The dataplane was started without IPsec.
    #[error("there is no IPsec")]
    NoIpsec,
    /// The SA does not exist.
    #[error("no such SA")]
    NoSa,
    /// The SA's parameters are invalid.
    #[error("{0}")]
    Sa(SaError),
}

//! Peers that connected and did not become streams: what the worker reports of them, and what it counts.

use std::net::SocketAddr;

use sctp_lite::endpoint::SctpReason;
use tcp_lite::endpoint::TcpReason;

use super::transport::CloseReason;
use crate::ids::Transport;
use crate::ids::{InterfaceId, ListenerId};

/// How far a peer came and why no further, in two words of closed sets: a counter may have them as labels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandshakeFailure {
    /// The layer at which it ended: `tcp`, `mpa`, `sctp`, `session`, `ddp`, `rdmap`, or `admission` if this end refused.
    pub stage: &'static str,
    /// Why, such as `timeout`.
    pub reason: &'static str,
}

/// A peer that did not become a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandshakeFailed {
    /// The listener that it connected to, if there is one.
    pub listener: Option<ListenerId>,
    /// The interface that it came in by.
    pub interface: InterfaceId,
    /// What was to carry the stream.
    pub transport: Transport,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// How far it came, and why no further.
    pub failure: HandshakeFailure,
    /// What was expected and seen, one sentence.
    pub detail: String,
    /// Failures that were counted and not reported since the last one that was, because there were too many.
    pub unreported: u64,
}

/// How often peers of a listener failed in one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeCount {
    /// The listener, if there is one.
    pub listener: Option<ListenerId>,
    /// In which way.
    pub failure: HandshakeFailure,
    /// How often since the last report of these counts.
    pub count: u64,
}

impl HandshakeFailure {
    /// MPA has judged what the peer sent over a connection that was up.
    pub(crate) fn is_of_start_up(&self) -> bool {
        self.stage == "mpa" && !matches!(self.reason, "reset" | "local_abort" | "connect_refused")
    }

    /// This stage and reason.
    pub const fn new(stage: &'static str, reason: &'static str) -> Self {
        HandshakeFailure { stage, reason }
    }

    /// That of a connection, or of an association or session, which ended like this before its stream was established.
    pub fn of(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::Tcp(reason) => of_tcp(reason),
            CloseReason::Sctp(reason) => of_sctp(reason),
        }
    }
}

fn of_tcp(reason: &tcp_lite::endpoint::CloseReason) -> HandshakeFailure {
    use ddp::lifecycle::CloseReason as Reason;
    let (stage, reason) = match reason {
        Reason::Lower(TcpReason::PeerReset) => ("mpa", "reset"),
        Reason::Lower(TcpReason::TcpTimeout) => ("tcp", "timeout"),
        Reason::Lower(TcpReason::Startup(error)) => ("mpa", error.name()),
        Reason::PeerShutdown => ("mpa", "closed"),
        Reason::NotProtected => ("tcp", "not_protected"),
        other => (stage_above(other).unwrap_or("mpa"), other.name()),
    };
    HandshakeFailure { stage, reason }
}

fn of_sctp(reason: &sctp_lite::endpoint::CloseReason) -> HandshakeFailure {
    use ddp::lifecycle::CloseReason as Reason;
    let (stage, reason) = match reason {
        Reason::Lower(SctpReason::PeerAbort { .. }) => ("session", "reset"),
        Reason::Lower(SctpReason::SctpTimeout) => ("sctp", "timeout"),
        Reason::Lower(SctpReason::NotDdp { .. }) => ("sctp", "adaptation"),
        Reason::Lower(SctpReason::AnswerTimeout) => ("session", "timeout"),
        Reason::Lower(SctpReason::Unsuitable(why)) => ("session", why.name()),
        Reason::Lower(
            reason @ (SctpReason::PeerRestart | SctpReason::NoSctp | SctpReason::SctpFault(_)),
        ) => ("sctp", ddp::lifecycle::LowerReason::name(reason)),
        Reason::PeerShutdown => ("session", "closed"),
        Reason::NotProtected => ("sctp", "not_protected"),
        other => (stage_above(other).unwrap_or("session"), other.name()),
    };
    HandshakeFailure { stage, reason }
}

/// The protocol above the LLP at which a stream ended.
fn stage_above<L>(reason: &ddp::lifecycle::CloseReason<L>) -> Option<&'static str> {
    use ddp::lifecycle::CloseReason as Reason;
    match reason {
        Reason::Ddp(_) | Reason::DdpFailed(_) => Some("ddp"),
        Reason::Rdmap(_) | Reason::Terminated(_) | Reason::InvalidTerminate { .. } => Some("rdmap"),
        _ => None,
    }
}

//! Failed handshakes: connection attempts of peers that did not become streams.

use std::net::SocketAddr;

use sctp_lite::endpoint::SctpReason;
use tcp_lite::endpoint::TcpReason;

use super::transport::CloseReason;
use crate::ids::Transport;
use crate::ids::{InterfaceId, ListenerId};

/// Stage and reason of a failed handshake. Both have a fixed set of values, so that metrics may use them as labels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandshakeFailure {
    /// Stage of the failure: `tcp`, `mpa`, `sctp`, `session`, `ddp`, `rdmap`, or `admission` if this end refused.
    pub stage: &'static str,
    /// Reason of the failure: one identifier, such as `timeout` or `not_protected`.
    pub reason: &'static str,
}

/// A handshake that did not result in a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedHandshake {
    /// Listener that the peer connected to; `None` if none matched.
    pub listener: Option<ListenerId>,
    /// Interface on which the peer's packets arrived.
    pub interface: InterfaceId,
    /// Transport of the attempt.
    pub transport: Transport,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Stage and reason of the failure.
    pub failure: HandshakeFailure,
    /// Description of the failure in one sentence, with expected and received values.
    pub detail: String,
    /// Number of failures since the previous report that were counted, but not reported because of the rate limit.
    pub unreported: u64,
}

/// Number of failures with one stage and reason at a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeCount {
    /// Listener that the peers connected to; `None` if none matched.
    pub listener: Option<ListenerId>,
    /// Stage and reason of the counted failures.
    pub failure: HandshakeFailure,
    /// Number of failures since these counts were last reported.
    pub count: u64,
}

impl HandshakeFailure {
    /// Returns true if the MPA start-up failed over an established connection. The stage is then `mpa`, and the reason
    /// is not a reset, an abort by this end or a refused connect.
    pub(crate) fn is_mpa_startup(&self) -> bool {
        self.stage == "mpa" && !matches!(self.reason, "reset" | "local_abort" | "connect_refused")
    }

    /// Creates a failure from a stage and a reason.
    pub const fn new(stage: &'static str, reason: &'static str) -> Self {
        HandshakeFailure { stage, reason }
    }

    /// Returns the failure for a connection, association or session that ended for this reason before its stream was
    /// established.
    pub fn from_close_reason(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::Tcp(reason) => from_tcp(reason),
            CloseReason::Sctp(reason) => from_sctp(reason),
        }
    }
}

fn from_tcp(reason: &tcp_lite::endpoint::CloseReason) -> HandshakeFailure {
    use ddp::lifecycle::CloseReason as Reason;
    let (stage, reason) = match reason {
        Reason::Lower(TcpReason::PeerReset) => ("mpa", "reset"),
        Reason::Lower(TcpReason::TcpTimeout) => ("tcp", "timeout"),
        Reason::Lower(TcpReason::Startup(error)) => ("mpa", error.name()),
        Reason::PeerShutdown => ("mpa", "closed"),
        Reason::NotProtected => ("tcp", "not_protected"),
        other => (ulp_stage(other).unwrap_or("mpa"), other.name()),
    };
    HandshakeFailure { stage, reason }
}

fn from_sctp(reason: &sctp_lite::endpoint::CloseReason) -> HandshakeFailure {
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
        other => (ulp_stage(other).unwrap_or("session"), other.name()),
    };
    HandshakeFailure { stage, reason }
}

/// Returns the protocol that ended the stream, `ddp` or `rdmap`; `None` for other reasons.
fn ulp_stage<L>(reason: &ddp::lifecycle::CloseReason<L>) -> Option<&'static str> {
    use ddp::lifecycle::CloseReason as Reason;
    match reason {
        Reason::Ddp(_) | Reason::DdpFailed(_) => Some("ddp"),
        Reason::Rdmap(_) | Reason::Terminated(_) | Reason::InvalidTerminate { .. } => Some("rdmap"),
        _ => None,
    }
}

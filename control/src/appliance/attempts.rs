//! Reports failed passive handshakes to the operator.

use std::net::SocketAddr;
use std::time::Instant;

use api::EventKind;
use api::refusal::{Refusal, RefusalKind};
use dataplane::{CloseReason, FailedHandshake, HandshakeFailure, Transport};

use super::env::Env;

/// A peer's attempt to open a stream.
pub(super) struct Attempt<'a> {
    /// Name of the listener, if any.
    pub listener: Option<&'a str>,
    pub transport: Transport,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Env {
    /// Reports that the control thread has refused a peer.
    pub(super) fn report_refusal(
        &mut self,
        attempt: &Attempt<'_>,
        refusal: &Refusal,
        now: Instant,
    ) {
        let reason = refusal.kind.map_or("other", RefusalKind::as_str);
        let failure = HandshakeFailure::new("admission", reason);
        self.report_failed_attempt(attempt, failure, &refusal.sentence, now);
    }

    /// Reports a stream that ended before it was established.
    pub(super) fn report_not_established(
        &mut self,
        attempt: &Attempt<'_>,
        reason: &CloseReason,
        now: Instant,
    ) {
        self.report_failed_attempt(
            attempt,
            HandshakeFailure::from_close_reason(reason),
            &reason.to_string(),
            now,
        );
    }

    fn report_failed_attempt(
        &mut self,
        attempt: &Attempt<'_>,
        failure: HandshakeFailure,
        detail: &str,
        now: Instant,
    ) {
        self.handshakes.count(attempt.listener, failure, 1);
        if let Some(unreported) = self.handshakes.report(now) {
            self.log_attempt(attempt, failure, detail, hint(failure), unreported);
        }
    }

    /// Reports a failed handshake that a worker has counted. `other_transport_listener`: name of a listener that has
    /// the same port over the other transport, if any.
    pub(super) fn report_failed_handshake(
        &mut self,
        listener: Option<&str>,
        failed: &FailedHandshake,
        other_transport_listener: Option<&str>,
    ) {
        let FailedHandshake { transport, local, remote, failure, .. } = *failed;
        let attempt = Attempt { listener, transport, local, remote };
        let elsewhere = other_transport_listener.map(|name| {
            let other = match transport {
                Transport::Tcp => Transport::Sctp,
                Transport::Sctp => Transport::Tcp,
            };
            format!("listener `{name}` has this port over {}: use that", other.name())
        });
        let hint = elsewhere.as_deref().or(hint(failure));
        self.log_attempt(&attempt, failure, &failed.detail, hint, failed.unreported);
    }

    fn log_attempt(
        &mut self,
        attempt: &Attempt<'_>,
        failure: HandshakeFailure,
        detail: &str,
        hint: Option<&str>,
        unreported: u64,
    ) {
        let Attempt { listener, transport, local, remote } = *attempt;
        let HandshakeFailure { stage, reason } = failure;
        let listener_name = listener.unwrap_or("no listener");
        tracing::info!(
            "{remote} to {local} ({listener_name}): no stream: {stage}, {reason}: {detail}"
        );
        self.log.push(EventKind::HandshakeFailed {
            listener: listener.map(str::to_owned),
            transport: transport.name().into(),
            local: local.to_string(),
            remote: remote.to_string(),
            stage: stage.into(),
            reason: reason.into(),
            detail: detail.into(),
            hint: hint.map(str::to_owned),
            unreported,
        });
    }
}

/// Returns a hint for the operator of the passive end. `None` if no hint is known.
fn hint(failure: HandshakeFailure) -> Option<&'static str> {
    if let Some(kind) = RefusalKind::ALL.into_iter().find(|kind| kind.as_str() == failure.reason) {
        return Some(kind.local_hint());
    }
    Some(match (failure.stage, failure.reason) {
        ("tcp" | "sctp", "no_listener") => {
            "no listener has this address, port and transport: ddpctl listeners shows the listeners"
        }
        ("tcp" | "sctp", "not_protected") => {
            "the listener has `require`: see ddpctl ipsec policies and sas for what protects this peer's streams"
        }
        ("tcp" | "sctp", "timeout" | "unreachable") => {
            "packets of one direction are lost: check routes, firewalls and the MTU between the peer and this end"
        }
        (_, "http") => {
            "an HTTP client: the management API is on the Unix socket of [management], this port takes RDMA clients"
        }
        (_, "tls") => "a TLS client: DDP has no TLS; to encrypt it use IPsec",
        (_, "ssh") => "an SSH client: this port takes RDMA clients",
        ("mpa", "not_mpa") => "the peer is no RDMA client: check the port that it was given",
        ("mpa", "both_responders") => {
            "the peer waits for a request too: it is a listener; one end has to connect as the initiator"
        }
        ("mpa", "revision") => {
            "let the peer use another MPA revision, or allow its revision in the listener's section (revisions)"
        }
        ("mpa", "private_data" | "enhanced_data") => {
            "the peer's MPA request breaks RFC 5044 or RFC 6581: see its version"
        }
        ("mpa", "timeout") => {
            "the peer connected and sent no whole MPA request within limits.startup_timeout: a health check, or a client \
             that waits for the server to speak first"
        }
        ("mpa", "closed" | "reset") => {
            "the peer connected and left without an MPA request: a port scanner or a health check, or a client that was \
             stopped"
        }
        ("sctp", "adaptation") => {
            "DDP over SCTP needs the adaptation indication 1 (RFC 5043 §11.1): have the peer's program set it"
        }
        ("sctp", "bad_init") => "the peer's INIT breaks RFC 9260: see its version",
        ("session", "timeout") => {
            "the peer opened an association and sent no Initiate within limits.startup_timeout: it is no DDP client, or \
             its program hangs"
        }
        ("session", "closed" | "reset") => {
            "the peer opened an association and left without an Initiate: a port scanner or a health check"
        }
        ("admission", "peer_refused") => {
            "`allow` and `deny` of the listener and of its interface decide who may connect: change them and ddpctl reload"
        }
        ("admission", "no_room") => {
            "raise limits.pending of the listener or limits.streams_per_peer, or close streams of this peer: ddpctl streams"
        }
        (_, "insufficient_ird") => {
            "raise ird at the end that offers too few Reads, or lower ord at the other"
        }
        (_, "no_rtr") => {
            "the two ends have no ready-to-receive message in common: see peer_to_peer and peer"
        }
        ("ddp" | "rdmap", _) => {
            "the first message was wrong: the peer may speak the other ulp (with ddpctl tcp:// for bare DDP, rdmap:// for RDMAP)"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_hint() {
        for kind in RefusalKind::ALL {
            assert_eq!(
                hint(HandshakeFailure::new("admission", kind.as_str())),
                Some(kind.local_hint())
            );
        }
    }
}

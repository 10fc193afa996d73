//! Explanations of failed active opens for the operator: the request, the failure, and a hint.

use api::refusal::{Refusal, RefusalKind, RefusedStream};
use api::{ApiError, ConnectSpec, UlpChoice};
use base::plural::seconds;
use config::Transport;
use dataplane::{CloseReason, ConnectError, ConnectStage, HandshakeFailure};
use ddp::lifecycle::CloseReason as Ended;
use ddp::{UlpKind, advert};

use super::accept::ulp_label;
use crate::appliance::pending::CONNECT_TIMEOUT;

/// Returns the error of a failed connect, with a hint. The text of a peer's reject is quoted.
pub(super) fn connect_error(spec: &ConnectSpec, reason: &ConnectError) -> ApiError {
    let refusal = refusal_of(reason);
    let quoted = refusal.as_ref().map(|refusal| format!(": {refusal}")).unwrap_or_default();
    let sentence = match reason {
        ConnectError::Timeout(awaited) => {
            let within = seconds(spec.timeout().unwrap_or(CONNECT_TIMEOUT));
            format!("{}: no answer to {awaited} within {within}", spec.remote)
        }
        _ => format!("{}: {reason}{quoted}", spec.remote),
    };
    let error = match reason {
        ConnectError::Closed { .. } => ApiError::peer_refused(sentence),
        ConnectError::Timeout(_) | ConnectError::Unreachable => ApiError::timeout(sentence),
        ConnectError::Icmp(_) => ApiError::peer_refused(sentence),
        ConnectError::BadPeer
        | ConnectError::NoSuchAddress
        | ConnectError::NoRoute
        | ConnectError::NoUdpPort
        | ConnectError::PrivateData(_)
        | ConnectError::Session(_) => ApiError::bad_request(sentence),
        _ => ApiError::unavailable(sentence),
    };
    let kind = refusal.and_then(|refusal| refusal.kind);
    error.with_hint(
        kind.map(|kind| kind.peer_hint(refused_stream(spec))).or_else(|| hint(spec, reason)),
    )
}

/// Returns true if other addresses of the peer need not be tried: the peer's application has rejected the stream, or
/// the cause is local.
pub(super) fn is_final(reason: &ConnectError) -> bool {
    matches!(
        reason,
        ConnectError::Closed(
            CloseReason::Tcp(Ended::RejectedByPeer { .. })
                | CloseReason::Sctp(Ended::RejectedByPeer { .. })
        ) | ConnectError::TooManyStreams
            | ConnectError::NoUdpPort
            | ConnectError::QueuePair
            | ConnectError::Draining
            | ConnectError::PrivateData(_)
            | ConnectError::Session(_)
    )
}

/// Returns true if the peer's advertisement states a ULP other than the requested one.
pub(super) fn is_other_ulp(spec: &ConnectSpec, private_data: &[u8]) -> bool {
    advert::ulp(private_data).is_some_and(|theirs| theirs != ulp_kind(spec))
}

/// Returns the error of a connect that the peer accepted with a ULP other than the requested one (bare DDP instead of
/// RDMAP, or RDMAP instead of bare DDP).
pub(super) fn wrong_ulp_error(spec: &ConnectSpec) -> ApiError {
    let own_ulp = ulp_kind(spec);
    let peer_ulp = match own_ulp {
        UlpKind::Ddp => UlpKind::Rdmap,
        UlpKind::Rdmap => UlpKind::Ddp,
    };
    let sentence =
        format!("the peer speaks {}, and this stream {}", ulp_label(peer_ulp), ulp_label(own_ulp));
    let refusal = Refusal::new(RefusalKind::WrongUlp, sentence);
    let error = ApiError::peer_refused(format!("{}: {refusal}", spec.remote));
    error.with_hint(Some(RefusalKind::WrongUlp.peer_hint(refused_stream(spec))))
}

fn refused_stream(spec: &ConnectSpec) -> RefusedStream {
    RefusedStream::Appliance { ulp: spec.ulp, transport: spec.transport }
}

fn ulp_kind(spec: &ConnectSpec) -> UlpKind {
    match spec.ulp {
        UlpChoice::Ddp => UlpKind::Ddp,
        UlpChoice::Rdmap => UlpKind::Rdmap,
    }
}

/// Returns the refusal in the private data of a peer's reject; `None` for other failures and other private data.
fn refusal_of(reason: &ConnectError) -> Option<Refusal> {
    let ConnectError::Closed(reason) = reason else { return None };
    let private_data = match reason {
        CloseReason::Tcp(Ended::RejectedByPeer { private_data, .. })
        | CloseReason::Sctp(Ended::RejectedByPeer { private_data, .. }) => private_data,
        _ => return None,
    };
    Refusal::decode(private_data)
}

fn hint(spec: &ConnectSpec, reason: &ConnectError) -> Option<&'static str> {
    let reason = match reason {
        ConnectError::Closed(reason) => reason,
        ConnectError::Timeout(ConnectStage::MpaReply | ConnectStage::SessionReply) => {
            return Some(
                "the peer's transport answers and DDP's start-up does not: it may be no RDMA listener",
            );
        }
        ConnectError::Timeout(
            ConnectStage::SynAck | ConnectStage::InitAck | ConnectStage::CookieAck,
        ) => {
            return Some(
                "no packet of the peer came in time: check its address, routes and firewalls",
            );
        }
        ConnectError::Timeout(ConnectStage::NextHop) | ConnectError::Unreachable => {
            return Some("no host on the link has this address: check it, and the interface");
        }
        ConnectError::NoUdpPort => {
            return Some("set udp_encapsulation in [sctp] of this appliance, and restart it");
        }
        _ => return None,
    };
    Some(match (HandshakeFailure::from_close_reason(reason).reason, spec.transport) {
        ("http" | "tls" | "ssh" | "not_mpa", _) => {
            "what answers there is no RDMA listener: check the address and the port"
        }
        ("connect_refused", Transport::Tcp) => {
            "nothing listens there over TCP: check the port, or use SCTP"
        }
        ("connect_refused", Transport::Sctp) => {
            "nothing listens there over SCTP: check the port, or use TCP"
        }
        ("revision", _) => "ask for another MPA revision: --mpa-rev",
        ("not_enhanced", _) => "the peer does not know MPA revision 2: --mpa-rev 1",
        ("both_initiators", _) => "the peer is not a listener: it sent a request of its own",
        ("reset" | "closed", Transport::Tcp) => {
            "the peer ended the connection at the MPA request: try another revision (--mpa-rev), or the other ulp (tcp:// \
             for bare DDP, rdmap:// for RDMAP)"
        }
        ("reset" | "closed" | "turned_away", Transport::Sctp) => {
            "the peer has no room for a session, or does not know its form: try again later, or the other ulp"
        }
        ("timeout", _) => {
            "the peer's transport answers and DDP's start-up does not: it may be no RDMA listener"
        }
        ("adaptation", _) => {
            "what answers there is no DDP over SCTP: check the address and the port"
        }
        ("wrong_ulp", _) => RefusalKind::WrongUlp.peer_hint(refused_stream(spec)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tcp_lite::endpoint::TcpReason;
    use tcp_lite::mpa::{ForeignProtocol, StartupError};

    use super::*;
    use api::ErrorKind;

    fn spec(transport: Transport) -> ConnectSpec {
        ConnectSpec { transport, ..ConnectSpec::to_remote("10.0.0.2:7471".parse().unwrap()) }
    }

    #[test]
    fn the_reason_of_a_reject_is_quoted_with_its_hint_over_both_transports() {
        let text = Refusal::new(RefusalKind::ListenerFull, "the listener has 4 streams");
        let private_data = text.encode();
        let tcp = Ended::RejectedByPeer { private_data: private_data.clone(), enhanced: None };
        let sctp = Ended::RejectedByPeer { private_data, enhanced: None };
        for (transport, reason) in
            [(Transport::Tcp, CloseReason::Tcp(tcp)), (Transport::Sctp, CloseReason::Sctp(sctp))]
        {
            let spec = spec(transport);
            let error = connect_error(&spec, &ConnectError::Closed(reason));
            assert_eq!(error.error, ErrorKind::PeerRefused);
            assert_eq!(
                error.message,
                "10.0.0.2:7471: rejected by the peer: listener_full: the listener has 4 streams"
            );
            let hint = RefusalKind::ListenerFull.peer_hint(refused_stream(&spec));
            assert_eq!(error.hint.as_deref(), Some(hint));
        }
    }

    #[test]
    fn connect_failures_other_than_text_rejects_are_described() {
        let silent = Ended::RejectedByPeer { private_data: vec![1, 2, 255], enhanced: None };
        let reason = ConnectError::Closed(CloseReason::Tcp(silent));
        let error = connect_error(&spec(Transport::Tcp), &reason);
        assert_eq!(
            (error.message.as_str(), error.hint),
            ("10.0.0.2:7471: rejected by the peer", None)
        );
        let http = TcpReason::Startup(StartupError::Foreign(ForeignProtocol::Http));
        let reason = ConnectError::Closed(CloseReason::Tcp(http.into()));
        let error = connect_error(&spec(Transport::Tcp), &reason);
        assert!(error.message.ends_with("the peer does not speak MPA but HTTP"), "{error}");
        assert!(error.hint.is_some_and(|hint| hint.contains("check the address and the port")));
        let error =
            connect_error(&spec(Transport::Sctp), &ConnectError::Timeout(ConnectStage::InitAck));
        assert_eq!(error.error, ErrorKind::Timeout);
        assert_eq!(error.message, "10.0.0.2:7471: no answer to the INIT within 30 s");
        assert!(error.hint.is_some());
        let error = connect_error(&spec(Transport::Sctp), &ConnectError::NoUdpPort);
        assert!(error.hint.is_some_and(|hint| hint.contains("udp_encapsulation")));
    }
}

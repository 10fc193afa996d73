//! Enhanced session messages (RFC 6581 §7).

use super::host::*;
use crate::endpoint::*;
use crate::seam::MessageOutcome;
use crate::session::SessionError;
use base::ErrorNumbers;
use ddp::enhanced::{Depths, EnhancedRepr, NegotiationError, Readiness, Rtr, RtrSet};
use ddp::rdmap;
use wire::sctp::ddp::Function;

fn rdmap_config(ird: u16, ord: u16) -> UlpConfig {
    rdmap::Config { ird, ord, ..rdmap::Config::default() }.into()
}

fn rdmap_host(initiator: bool, ulp: UlpConfig) -> Host {
    Host::with_config(EndpointConfig::default(), initiator, ulp)
}

fn enhanced_data(ird: u16, ord: u16, rtr: Option<RtrSet>, private_data: &[u8]) -> Vec<u8> {
    [&EnhancedRepr { ird, ord, rtr }.emit()[..], private_data].concat()
}

fn depths(host: &Host, session: SessionId) -> Option<Depths> {
    let params = host.upper.slot(session)?.params(0)?;
    params.agreed.map(|agreed| agreed.depths)
}

/// Enhanced Initiate and enhanced Accept have the sender's IRD and ORD before the private data. Both ends then agree on
/// the read depths.
#[test]
fn active_enhanced_initiate_gets_enhanced_accept() {
    let mut host = rdmap_host(true, rdmap_config(8, 16));
    let session = host.open(b"please");
    let initiate = enhanced_data(8, 16, None, b"please");
    assert_eq!(host.sent_controls(), [(0, 0, Function::EnhancedInitiate, initiate)]);
    host.acknowledge_all();
    let accept = enhanced_data(4, 2, None, b"welcome");
    assert_eq!(host.receive(0, 0, Function::EnhancedAccept, &accept), MessageOutcome::Accepted);
    let SessionEvent::Established { private_data, params } = host.events_of(session)[0].clone()
    else {
        panic!("{:?}", host.events);
    };
    let agreed = params.agreed.expect("negotiated");
    assert_eq!((private_data, params.ulp), (b"welcome".to_vec(), UlpKind::Rdmap));
    assert_eq!(agreed.depths, Depths { ird: 8, ord: 4 });
    assert_eq!(agreed.peer, Depths { ird: 4, ord: 2 });
    // RFC 6581 §7: the Terminate has no enhanced form.
    host.shutdown(session);
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
}

#[test]
fn passive_end_answers_in_the_form_of_the_initiate() {
    let mut host = rdmap_host(false, rdmap_config(8, 16));
    host.policy = Policy::Accept(b"welcome".to_vec());
    let initiate = enhanced_data(4, 6, None, b"please");
    assert_eq!(host.receive(0, 0, Function::EnhancedInitiate, &initiate), MessageOutcome::Accepted);
    let session = host.session(0);
    let enhanced = Some(EnhancedRepr { ird: 4, ord: 6, rtr: None });
    let private_data = b"please".to_vec();
    assert_eq!(host.events_of(session)[0], SessionEvent::Request { private_data, enhanced });
    let accept = enhanced_data(6, 4, None, b"welcome");
    assert_eq!(host.sent_controls(), [(0, 0, Function::EnhancedAccept, accept)]);
    assert_eq!(depths(&host, session), Some(Depths { ird: 6, ord: 4 }));
}

/// Any ULP answers a plain Initiate in the plain form.
#[test]
fn plain_initiate_gets_plain_answer() {
    let mut passive = rdmap_host(false, rdmap_config(8, 16));
    passive.receive(0, 0, Function::Initiate, b"please");
    assert_eq!(passive.sent_controls(), [(0, 0, Function::Accept, vec![])]);
    assert_eq!(depths(&passive, passive.session(0)), None);
    passive.policy = Policy::Reject(b"no".to_vec());
    passive.receive(1, 0, Function::Initiate, b"please");
    assert_eq!(passive.sent_controls(), [(1, 0, Function::Reject, b"no".to_vec())]);
    // Bare DDP opens with the plain form, and so does RDMAP without `open_enhanced`.
    let mut bare = Host::new(true);
    bare.open(b"");
    assert_eq!(bare.sent_controls()[0].2, Function::Initiate);
    let mut config = EndpointConfig::default();
    config.session.open_enhanced = false;
    let mut plain = Host::with_config(config, true, rdmap_config(8, 8));
    plain.open(b"");
    assert_eq!(plain.sent_controls()[0].2, Function::Initiate);
}

#[test]
fn enhanced_and_private_data_are_at_most_512_bytes() {
    let mut host = rdmap_host(true, rdmap_config(1, 1));
    for (len, fits) in [(508, true), (509, false)] {
        let open = OpenRequest { pd: PD, ulp: rdmap_config(1, 1), private_data: vec![1; len] };
        assert_eq!(host.upper.open(host.now, StreamId(1), open).is_ok(), fits);
    }
    assert_eq!(host.sent_controls()[0].3.len(), 512);
    let short = host.receive(3, 0, Function::EnhancedInitiate, &[0; 3]);
    assert_eq!((short, host.upper.stats.illegal), (MessageOutcome::Accepted, 1));
}

/// RFC 6581 §7: an enhanced Reject means that a plain Initiate would have been accepted, and contains the required ORD.
/// A Reject by the ULP is plain.
#[test]
fn enhanced_reject_carries_required_ord() {
    let mut passive = rdmap_host(false, rdmap_config(8, 8));
    passive.policy = Policy::Reject(b"no".to_vec());
    passive.receive(0, 0, Function::EnhancedInitiate, &enhanced_data(4, 6, None, b""));
    assert_eq!(passive.sent_controls(), [(0, 0, Function::Reject, b"no".to_vec())]);

    let mut config = EndpointConfig::default();
    config.session.enhanced.required_ord = 5;
    let mut passive = Host::with_config(config, false, rdmap_config(8, 8));
    passive.receive(0, 0, Function::EnhancedInitiate, &enhanced_data(4, 6, None, b""));
    assert_eq!(
        passive.sent_controls(),
        [(0, 0, Function::EnhancedReject, enhanced_data(4, 5, None, b""))]
    );
    let reason = passive.reason(passive.session(0)).expect("rejected");
    let error = NegotiationError::InsufficientIrd { offered: 4, needed: 5 };
    assert_eq!(
        (reason.numbers(), reason),
        (Some(ErrorNumbers::new(2, 0, 6)), CloseReason::Lower(SctpReason::Unsuitable(error)))
    );

    for (function, control, enhanced) in [
        (Function::EnhancedReject, enhanced_data(4, 5, None, b"no"), Some((4, 5))),
        (Function::EnhancedReject, vec![], None),
        // A plain Reject means that a plain Initiate would not have been accepted either.
        (Function::Reject, b"no".to_vec(), None),
    ] {
        let mut active = rdmap_host(true, rdmap_config(8, 8));
        let session = active.open(b"");
        active.send_messages();
        assert_eq!(active.receive(0, 0, function, &control), MessageOutcome::Accepted);
        let private_data = if control.is_empty() { vec![] } else { b"no".to_vec() };
        let enhanced = enhanced.map(|(ird, ord)| EnhancedRepr { ird, ord, rtr: None });
        let reason = CloseReason::RejectedByPeer { private_data, enhanced };
        assert_eq!(active.reason(session), Some(reason));
    }
}

/// An enhanced Initiate requires an enhanced Accept.
#[test]
fn plain_accept_of_enhanced_initiate_is_illegal() {
    let mut host = rdmap_host(true, rdmap_config(8, 8));
    let session = host.open(b"");
    host.send_messages();
    host.receive(0, 0, Function::Accept, b"");
    let error = SessionError::Control { seen: Function::Accept };
    assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::Session(error))));
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
}

/// RFC 6581 §9.1: the RDMAP Terminate has layer 2, type 0 and code 6, and the session ends.
#[test]
fn unacceptable_accept_is_answered_with_terminate_2_0_06() {
    let mut host = rdmap_host(true, rdmap_config(2, 8));
    let session = host.open(b"");
    host.send_messages();
    host.acknowledge_all();
    host.receive(0, 0, Function::EnhancedAccept, &enhanced_data(8, 3, None, b""));
    assert_eq!(host.sent_controls(), [(0, 2, Function::Terminate, vec![])]);
    let terminate = &host.in_flight[0].bytes;
    // After DDP-SSN and DDP header: one byte with layer and type, then the code.
    assert_eq!(terminate[2 + 18..2 + 20], [0x20, 6]);
    host.acknowledge_all();
    let error = NegotiationError::InsufficientIrd { offered: 2, needed: 3 };
    assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::Unsuitable(error))));
}

/// RFC 6581 §9.2: in the peer-to-peer model the active side begins with an empty message (RTR), which is not delivered
/// to the peer's ULP. The passive side sends only after this message.
#[test]
fn passive_end_sends_after_ready_to_receive_message() {
    let mut config = EndpointConfig::default();
    config.session.enhanced.peer_to_peer = true;
    let mut active = Host::with_config(config, true, rdmap_config(4, 4));
    let session = active.open(b"");
    let initiate = enhanced_data(4, 4, Some(RtrSet::ALL), b"");
    assert_eq!(active.sent_controls(), [(0, 0, Function::EnhancedInitiate, initiate.clone())]);
    active.acknowledge_all();

    let mut passive = rdmap_host(false, rdmap_config(4, 4));
    passive.receive(0, 0, Function::EnhancedInitiate, &initiate);
    let passive_session = passive.session(0);
    assert_eq!(passive.upper.slot(passive_session).map(|slot| slot.state()), Some(State::Readying));
    assert!(!passive.is_established(passive_session));
    let accept = passive.sent_controls()[0].clone();
    passive.acknowledge_all();
    assert_eq!(accept.3, enhanced_data(4, 4, Some(RtrSet::ALL), b""));

    active.receive(0, 0, Function::EnhancedAccept, &accept.3);
    let agreed = active.upper.slot(session).and_then(|slot| slot.params(0)?.agreed);
    assert_eq!(agreed.map(|agreed| agreed.readiness), Some(Readiness::SendsRtr(Rtr::Write)));
    active.send_messages();
    assert_eq!(active.in_flight.len(), 1);
    let rtr = active.in_flight[0].bytes.clone();
    passive.receive_raw(0, 16, true, &[&rtr]);
    assert!(passive.is_established(passive_session));
    active.acknowledge_all();
    let quiet =
        |host: &Host, id| host.events_of(id).iter().all(|e| !matches!(e, SessionEvent::Rdmap(_)));
    assert!(quiet(&active, session), "{:?}", active.events);
}

/// A peer that requests the peer-to-peer model and never signals readiness times out.
#[test]
fn missing_ready_to_receive_message_ends_the_session() {
    let initiate = enhanced_data(4, 4, Some(RtrSet::ALL), b"");
    let mut passive = rdmap_host(false, rdmap_config(4, 4));
    passive.receive(0, 0, Function::EnhancedInitiate, &initiate);
    passive.sent_controls();
    passive.acknowledge_all();
    passive.wait(core::time::Duration::from_secs(10));
    assert_eq!(passive.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    passive.acknowledge_all();
    assert_eq!(
        passive.reason(passive.session(0)),
        Some(CloseReason::Lower(SctpReason::AnswerTimeout))
    );
}

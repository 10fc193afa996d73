//! Tests of the negotiation in both roles.

use super::*;

const ORDER: [Rtr; 3] = [Rtr::Write, Rtr::Read, Rtr::Send];
const READ_FIRST: [Rtr; 3] = [Rtr::Read, Rtr::Write, Rtr::Send];
const READ: RtrSet = RtrSet { send: false, write: false, read: true };
const WRITE: RtrSet = RtrSet { send: false, write: true, read: false };
const SEND: RtrSet = RtrSet { send: true, write: false, read: false };

fn repr(ird: u16, ord: u16, rtr: Option<RtrSet>) -> EnhancedRepr {
    EnhancedRepr { ird, ord, rtr }
}

fn depths(ird: u16, ord: u16) -> Depths {
    Depths { ird, ord }
}

/// RFC 6581 §9.1: the responder's IRD covers the initiator's ORD as far as possible, and its ORD is at most the
/// initiator's IRD. 0x3FFF is echoed and does not limit the responder's value.
#[test]
fn responder_limits_ord_to_initiators_ird() {
    let local = depths(16, 8);
    for (requested, replied, used) in [
        ((4, 4), (4, 4), (4, 4)),
        ((128, 128), (16, 8), (16, 8)),
        ((0, 0), (0, 0), (0, 0)),
        ((1, 20), (16, 1), (16, 1)),
        ((NO_LIMIT, 4), (4, NO_LIMIT), (4, 8)),
        ((4, NO_LIMIT), (NO_LIMIT, 4), (16, 4)),
        ((NO_LIMIT, NO_LIMIT), (NO_LIMIT, NO_LIMIT), (16, 8)),
    ] {
        let requested = repr(requested.0, requested.1, None);
        let (reply, agreed) =
            build_reply(&requested, local, &Enhanced::default()).expect("suitable");
        assert_eq!(reply, repr(replied.0, replied.1, None));
        assert_eq!(agreed.depths, depths(used.0, used.1));
        assert_eq!(agreed.peer, Depths::from(requested));
        assert_eq!(agreed.readiness, Readiness::ClientServer);
    }
}

/// RFC 6581 §9.1: a request whose IRD is below `required_ord` is rejected.
#[test]
fn responder_with_unmet_required_ord_rejects() {
    let enhanced = Enhanced { required_ord: 3, ..Enhanced::default() };
    let error = build_reply(&repr(2, 9, None), depths(9, 9), &enhanced);
    assert_eq!(error, Err(NegotiationError::InsufficientIrd { offered: 2, needed: 3 }));
    assert_eq!(error.map(|_| ()).expect_err("insufficient").code(), 6);
    assert!(build_reply(&repr(3, 9, None), depths(9, 9), &enhanced).is_ok());
    assert!(build_reply(&repr(NO_LIMIT, 9, None), depths(9, 9), &enhanced).is_ok());
}

/// RFC 6581 §9.2: the reply has flag A, and the flags of the messages that both ends support. If there is no such
/// message, the reply lists the messages that the responder accepts.
#[test]
fn responder_lists_common_ready_to_receive_messages() {
    let accepted = |asked: RtrSet, ours: RtrSet, ird: u16| {
        let enhanced = Enhanced { rtr: ours, ..Enhanced::default() };
        let asked = repr(4, 4, Some(asked));
        let (reply, agreed) = build_reply(&asked, depths(ird, 4), &enhanced).expect("suitable");
        let set = reply.rtr.expect("A is echoed");
        assert_eq!(agreed.readiness, Readiness::AwaitsRtr(set));
        set
    };
    assert_eq!(accepted(RtrSet::ALL, RtrSet::ALL, 4), RtrSet::ALL);
    assert_eq!(accepted(READ, RtrSet::ALL, 4), READ);
    assert_eq!(accepted(RtrSet::ALL, WRITE, 4), WRITE);
    assert_eq!(accepted(SEND, WRITE, 4), WRITE);
    // An end with IRD 0 accepts no Reads, not even a zero-length Read.
    assert_eq!(accepted(RtrSet::ALL, RtrSet::ALL, 0), RtrSet { read: false, ..RtrSet::ALL });
}

/// RFC 6581 §9.1: an initiator with ORD 0 may still send the zero-length Read.
#[test]
fn rtr_read_raises_responders_ird_to_one() {
    let (reply, agreed) =
        build_reply(&repr(0, 0, Some(READ)), depths(16, 16), &Enhanced::default())
            .expect("suitable");
    assert_eq!((reply.ird, agreed.depths.ird), (1, 1));
    let (reply, _) = build_reply(&repr(0, 0, Some(WRITE)), depths(16, 16), &Enhanced::default())
        .expect("suitable");
    assert_eq!(reply.ird, 0);
}

/// RFC 6581 §9.2: "at least one RTR indication option". In any configuration, a frame with flag A set has at least one
/// of the flags B, C and D.
#[test]
fn negotiation_always_offers_an_rtr_message() {
    let all = [READ, WRITE, SEND, RtrSet::ALL, RtrSet::default()];
    for (ours, theirs, ird) in all
        .into_iter()
        .flat_map(|ours| all.map(|theirs| (ours, theirs)))
        .flat_map(|(ours, theirs)| [0, 1, 4].map(|ird| (ours, theirs, ird)))
    {
        let enhanced = Enhanced { peer_to_peer: true, rtr: ours, ..Enhanced::default() };
        let asked = repr(4, 4, Some(theirs));
        let (reply, _) = build_reply(&asked, depths(ird, 4), &enhanced).expect("suitable");
        let accepted = reply.rtr.expect("A is echoed");
        assert!(!accepted.is_empty(), "{ours:?} {theirs:?} {ird}");
        assert!(!accepted.read || reply.ird > 0);
        assert!(
            build_request(depths(4, ird), &enhanced).rtr.is_some_and(|offered| !offered.is_empty())
        );
    }
}

/// RFC 6581 §9.1, §9.2: an initiator whose ULP does no Reads offers the zero-length Read and sends it if the
/// responder accepts it.
#[test]
fn initiator_without_ord_sends_the_offered_rtr_read() {
    let enhanced = Enhanced { peer_to_peer: true, ..Enhanced::default() };
    let local = depths(4, 0);
    let request = build_request(local, &enhanced);
    assert_eq!(request, repr(4, 0, Some(RtrSet::ALL)));
    let only_read = Enhanced { rtr: READ, ..Enhanced::default() };
    let (reply, there) = build_reply(&request, depths(16, 4), &only_read).expect("suitable");
    let agreed = accept_reply(&request, &reply, local, ORDER).expect("a Read of no bytes");
    assert_eq!(agreed.readiness, Readiness::SendsRtr(Rtr::Read));
    assert_eq!((agreed.depths, there.depths), (depths(4, 1), depths(1, 4)));
    // A Write of no bytes as RTR leaves the initiator's ORD at 0.
    let (reply, _) = build_reply(&request, depths(16, 4), &Enhanced::default()).expect("suitable");
    let agreed = accept_reply(&request, &reply, local, ORDER).expect("a Write of no bytes");
    assert_eq!((agreed.readiness, agreed.depths), (Readiness::SendsRtr(Rtr::Write), depths(4, 0)));
}

/// RFC 6581 §9.1: the initiator's ORD is at most the responder's IRD, and 0x3FFF does not limit it. A responder that
/// would issue more Reads than this end accepts causes error code 6.
#[test]
fn initiator_limits_ord_to_responders_ird() {
    let (asked, here) = (repr(8, 16, None), depths(8, 16));
    for (reply, used) in [
        ((16, 8), Ok((8, 16))),
        ((4, 2), Ok((8, 4))),
        ((0, 0), Ok((8, 0))),
        ((200, 8), Ok((8, 16))),
        ((NO_LIMIT, 8), Ok((8, 16))),
        ((4, NO_LIMIT), Ok((8, 4))),
        ((4, 9), Err(NegotiationError::InsufficientIrd { offered: 8, needed: 9 })),
    ] {
        let reply = repr(reply.0, reply.1, None);
        let agreed = accept_reply(&asked, &reply, here, ORDER);
        assert_eq!(agreed.map(|a| (a.depths.ird, a.depths.ord)), used);
        assert!(agreed.is_err() || agreed.map(|a| a.peer) == Ok(Depths::from(reply)));
    }
}

/// RFC 6581 §9.2: in its order of preference, the initiator sends the first ready-to-receive message that both ends
/// support. If there is none, the error code is 7.
#[test]
fn initiator_sends_its_preferred_common_rtr_message() {
    let pick = |ours: Option<RtrSet>, theirs: Option<RtrSet>, ird: u16, order: [Rtr; 3]| {
        let agreed = accept_reply(&repr(4, 4, ours), &repr(ird, 4, theirs), depths(4, 4), order);
        agreed.map(|agreed| agreed.readiness)
    };
    let all = Some(RtrSet::ALL);
    assert_eq!(pick(all, all, 4, ORDER), Ok(Readiness::SendsRtr(Rtr::Write)));
    assert_eq!(pick(all, all, 4, READ_FIRST), Ok(Readiness::SendsRtr(Rtr::Read)));
    // A Read needs a slot of the responder's IRD, which is 0 here.
    assert_eq!(pick(all, all, 0, READ_FIRST), Ok(Readiness::SendsRtr(Rtr::Write)));
    assert_eq!(pick(all, Some(READ), 0, ORDER), Err(NegotiationError::NoRtr));
    assert_eq!(pick(all, Some(SEND), 4, ORDER), Ok(Readiness::SendsRtr(Rtr::Send)));
    assert_eq!(pick(Some(WRITE), Some(READ), 4, ORDER), Err(NegotiationError::NoRtr));
    assert_eq!(pick(all, Some(RtrSet::default()), 4, ORDER), Err(NegotiationError::NoRtr));
    // One end uses the peer-to-peer model (RTR messages), the other the client-server model. An initiator of the
    // client-server model ignores the responder's RTR messages.
    assert_eq!(pick(all, None, 4, ORDER), Err(NegotiationError::NoRtr));
    assert_eq!(pick(None, all, 4, ORDER), Ok(Readiness::ClientServer));
    assert_eq!(NegotiationError::NoRtr.code(), 7);
}

/// For many values, each end's ORD is at most the other's IRD, unless 0x3FFF lifts the limit.
#[test]
fn negotiated_depths_fit_both_ends() {
    let some = [0, 1, 4, 16, 200, NO_LIMIT];
    for theirs in some.iter().flat_map(|&ird| some.iter().map(move |&ord| depths(ird, ord))) {
        for ours in some.iter().flat_map(|&ird| some.iter().map(move |&ord| depths(ird, ord))) {
            let request = build_request(theirs, &Enhanced::default());
            let (reply, there) =
                build_reply(&request, ours, &Enhanced::default()).expect("no needs");
            let agreement = accept_reply(&request, &reply, theirs, ORDER).expect("fits");
            let fits = |ord: u16, ird: u16, open: bool| ord <= ird || open;
            assert!(fits(agreement.depths.ord, there.depths.ird, theirs.ord == NO_LIMIT));
            assert!(fits(there.depths.ord, agreement.depths.ird, theirs.ird == NO_LIMIT));
        }
    }
}

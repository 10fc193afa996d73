//! Revision 2 over TCP (RFC 6581): Read depths, ready-to-receive messages, and errors sent as Terminates.

use super::net::{Net, Side};
use super::peers::*;
use super::startup::{reply, request};
use crate::endpoint::*;
use crate::mpa::testing::{Stream, hex};
use crate::mpa::{self, Agreement, Depths, Enhanced, EnhancedRepr, Peer, Readiness, Rtr, RtrSet};
use base::ErrorNumbers;
use core::time::Duration;
use ddp::Cookie;

const WRITE: RtrSet = RtrSet { send: false, write: true, read: false };
const READ: RtrSet = RtrSet { send: false, write: false, read: true };
const SEND: RtrSet = RtrSet { send: true, write: false, read: false };

/// Returns a configuration of revision 2 without markers and CRCs, like siw's. `Some(rtr)` selects the peer-to-peer
/// model with these ready-to-receive messages.
pub(super) fn revision_two_config(rtr: Option<RtrSet>, peer: Peer) -> EndpointConfig {
    let enhanced = Enhanced {
        peer_to_peer: rtr.is_some(),
        rtr: rtr.unwrap_or(RtrSet::ALL),
        ..Enhanced::default()
    };
    with_mpa(mpa::Config {
        initiate: Revision::Two,
        markers: false,
        crc: false,
        enhanced,
        peer,
        ..mpa::Config::default()
    })
}

pub(super) fn rdmap(ird: u16, ord: u16) -> UlpConfig {
    rdmap::Config { ird, ord, ..rdmap::Config::default() }.into()
}

fn send(bytes: &[u8]) -> WorkRequest<ddp::VecMemory> {
    let source = ddp::Source::Bytes(bytes.into());
    WorkRequest::send(source, Cookie::user(7))
}

/// Returns FPDUs without markers and CRCs, one for each hexadecimal ULPDU.
fn fpdus(ulpdus: &[&str]) -> Vec<u8> {
    let mut stream = Stream::new(false, false);
    for ulpdu in ulpdus {
        stream.fpdu(&hex(ulpdu));
    }
    stream.bytes
}

fn agreed(node: &Node) -> Agreement {
    node.params().and_then(|params| params.agreed).expect("negotiated")
}

/// RFC 6581 §9.1: the ULP at each end receives the negotiated IRD and ORD of both ends.
#[test]
fn read_depths_are_negotiated_to_both_ends() {
    let a = Node::initiator_with_ulp(revision_two_config(None, Peer::Siw), rdmap(4, 9), b"hi");
    let b = Node::responder_with_ulp(revision_two_config(None, Peer::Siw), rdmap(3, 8));
    let mut net = Net::new(a, b);
    net.run_until(|net| net.a.is_established() && net.b.is_established());
    let enhanced = Some(EnhancedRepr { ird: 4, ord: 9, rtr: None });
    let (revision, private_data) = (Revision::Two, b"hi".to_vec());
    assert_eq!(net.b.events[0], Event::MpaRequest { private_data, revision, enhanced });
    let here = agreed(&net.a);
    assert_eq!((here.depths, here.peer), (Depths { ird: 4, ord: 3 }, Depths { ird: 3, ord: 4 }));
    let there = agreed(&net.b);
    assert_eq!((there.depths, there.peer), (Depths { ird: 3, ord: 4 }, Depths { ird: 4, ord: 9 }));
    assert_eq!(net.a.params().map(|params| params.ulp), Some(UlpKind::Rdmap));
}

/// RFC 6581 §10: bare DDP has no Read depths to negotiate.
#[test]
fn bare_ddp_opens_with_revision_one() {
    let mut net =
        Net::new(Node::initiator(revision_two_config(None, Peer::Siw), b""), Raw::listen());
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.b.up.received, request(0, 1, b""));
}

/// RFC 6581 §9.2: each ready-to-receive message equals siw's byte by byte.
#[test]
fn initiator_sends_the_agreed_rtr_message() {
    // An empty Send, Write and Read Request: DDP and RDMAP control bytes, then the other header fields.
    let send = "4143 00000000 00000000 00000001 00000000";
    let write = "c140 00000001 0000000000000000";
    let read = "4141 00000000 00000001 00000001 00000000\
                00000000 0000000000000000 00000000 00000001 0000000000000000";
    for (rtr, words, fpdu) in [
        (SEND, b"\xc0\x10\0\x10", send),
        (WRITE, b"\x80\x10\x80\x10", write),
        (READ, b"\x80\x10\x40\x10", read),
    ] {
        let a = Node::initiator_with_ulp(
            revision_two_config(Some(RtrSet::ALL), Peer::Siw),
            rdmap(16, 16),
            b"",
        );
        let mut net = Net::new(a, Raw::listen());
        net.b.send_bytes(&reply(0x10, 2, words));
        net.run_until(|net| net.a.is_established());
        net.a.ep().post_rdmap(self::send(b"ulp")).expect("room to post");
        net.run_for(Duration::from_secs(1));
        assert_eq!(net.b.up.received[..24], request(0x10, 2, b"\xc0\x10\xc0\x10"));
        let stripped = fpdu.replace([' ', '\n'], "");
        let expected = fpdus(&[&stripped]);
        let rest = &net.b.up.received[24..];
        assert_eq!(rest[..expected.len()], expected, "{rtr:?}");
        // A ready-to-receive Send uses MSN 1, so the ULP's Send has MSN 2.
        let msn = if rtr == SEND { 2 } else { 1 };
        let ulp = format!("4143000000000000000000{:06x}00000000756c70", msn);
        assert_eq!(rest[expected.len()..], fpdus(&[&stripped, &ulp])[expected.len()..]);
        net.run_for(Duration::from_secs(1));
        let done = net.a.rdmap_events();
        let outcome = rdmap::Outcome::Sent;
        match rtr == READ {
            // The peer here never answers the ready-to-receive Read, so the ULP's Send after that Read does not
            // complete. Completions of ready-to-receive messages are never reported to the ULP.
            true => assert_eq!(done, []),
            false => {
                assert_eq!(done, [rdmap::Event::Completed { cookie: Cookie::user(7), outcome }])
            }
        }
    }
}

/// RFC 6581 §9.2: the ready-to-receive message establishes the responder.
#[test]
fn responder_sends_only_after_rtr_message() {
    // RFC 6581 §9.1: the empty Read is allowed although the initiator's ORD is 0.
    for (rtr, readiness, ord) in
        [(SEND, Rtr::Send, 1), (WRITE, Rtr::Write, 1), (READ, Rtr::Read, 1), (READ, Rtr::Read, 0)]
    {
        let config = revision_two_config(Some(rtr), Peer::Standard);
        let a = Node::initiator_with_ulp(config, rdmap(1, ord), b"");
        let b = Node::responder_with_ulp(revision_two_config(None, Peer::Standard), rdmap(1, 1));
        let mut net = Net::new(a, b);
        net.run_until(|net| net.b.state() == Some(State::Readying));
        assert!(!net.b.is_established(), "{rtr:?}");
        let early = net.b.ep().post_rdmap(send(b"early"));
        assert_eq!(early, Err(PostError::Closed));
        net.run_until(|net| net.b.is_established());
        assert_eq!(agreed(&net.a).readiness, Readiness::SendsRtr(readiness));
        assert_eq!(agreed(&net.b).readiness, Readiness::AwaitsRtr(rtr));
        net.b.ep().post_rdmap(send(b"server first")).expect("room to post");
        net.run_for(Duration::from_secs(1));
        let data = b"server first".to_vec();
        let received = rdmap::Event::Received { data, solicited: false, invalidated: None };
        assert_eq!(net.a.rdmap_events(), [received]);
        let ours = net.b.rdmap_events();
        let completed = |event: &&rdmap::Event| {
            !matches!(event, rdmap::Event::WriteDelivered { .. } | rdmap::Event::ReadServed { .. })
        };
        let outcome = rdmap::Outcome::Sent;
        let done = rdmap::Event::Completed { cookie: Cookie::user(7), outcome };
        assert_eq!(ours.iter().filter(completed).collect::<Vec<_>>(), [&done]);
        // An empty Send of the ULP is delivered, whichever message the start-up used.
        net.a.ep().post_rdmap(send(b"")).expect("room to post");
        net.run_for(Duration::from_secs(1));
        let (data, solicited, invalidated) = (Vec::new(), false, None);
        let empty = rdmap::Event::Received { data, solicited, invalidated };
        assert_eq!(net.b.rdmap_events().last(), Some(&empty));
        net.a.ep().shutdown(net.now);
        net.run();
        assert_eq!(net.b.reason(), Some(CloseReason::PeerShutdown));
        net.a.assert_no_state_left();
        net.b.assert_no_state_left();
    }
}

#[test]
fn missing_rtr_message_times_out_startup() {
    let mut config = revision_two_config(None, Peer::Standard);
    config.mpa.startup_timeout = Duration::from_secs(3);
    let mut net = Net::new(Raw::connect(), Node::responder_with_ulp(config, rdmap(1, 1)));
    net.a.send_bytes(&request(0x10, 2, b"\x80\x01\x80\x01"));
    net.run();
    assert_eq!(
        net.b.reason(),
        Some(CloseReason::Lower(TcpReason::Startup(mpa::StartupError::Timeout)))
    );
    assert_eq!(net.a.up.received, reply(0x10, 2, b"\x80\x01\x80\x01"));
    assert!(!net.b.is_established());
    net.b.assert_no_state_left();
}

/// RFC 6581 §8: errors with codes 5, 6 and 7 are sent with layer 2 and type 0.
#[test]
fn startup_errors_are_sent_as_terminates() {
    let terminate = |code: &str| {
        let ulpdu = format!("41470000000000000002000000010000000020{code}0000");
        fpdus(&[&ulpdu])
    };
    for (words, code) in [(b"\x80\x04\x80\xc8", "06"), (b"\x80\x04\x40\x04", "07")] {
        let a =
            Node::initiator_with_ulp(revision_two_config(Some(WRITE), Peer::Siw), rdmap(4, 4), b"");
        let mut net = Net::new(a, Raw::listen());
        net.b.send_bytes(&reply(0x10, 2, words));
        net.run_for(Duration::from_secs(1));
        assert_eq!(net.b.up.received[24..], terminate(code));
        assert!(!net.a.is_established());
        assert!(net.b.has(tcp::Event::RemoteClosed) && !net.has_reset(Side::A));
        net.b.close();
        net.run();
        let numbers = net.a.reason().and_then(|reason| reason.numbers());
        assert_eq!(numbers, Some(ErrorNumbers::new(2, 0, code.parse().expect("a digit"))));
        net.a.assert_no_state_left();
    }
    // Code 5: a local error of this end.
    let a = Node::initiator_with_ulp(revision_two_config(None, Peer::Siw), rdmap(4, 4), b"");
    let mut net = Net::new(a, Raw::listen());
    net.b.send_bytes(&reply(0x10, 2, b"\0\x04\0\x04"));
    net.run_until(|net| net.a.is_established());
    let now = net.now;
    net.a.with_endpoint(|ep, cx| ep.fail(now, cx));
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.b.up.received[24..], terminate("05"));
    assert_eq!(net.a.ep().state(), State::Failing);
}

/// RFC 6581 §9.1: the ORD of the reject is the required number of Reads.
#[test]
fn request_with_too_few_reads_is_rejected() {
    let mut config = revision_two_config(None, Peer::Siw);
    config.mpa.enhanced.required_ord = 3;
    let a = Node::initiator_with_ulp(revision_two_config(None, Peer::Siw), rdmap(2, 2), b"");
    let mut net = Net::new(a, Node::responder_with_ulp(config, rdmap(8, 8)));
    net.run();
    let error = mpa::StartupError::InsufficientIrd { offered: 2, needed: 3 };
    assert_eq!(net.b.reason(), Some(CloseReason::Lower(TcpReason::Startup(error))));
    assert_eq!(
        net.b.reason().and_then(|reason| reason.numbers()),
        Some(ErrorNumbers::new(2, 0, 6))
    );
    let enhanced = Some(EnhancedRepr { ird: 2, ord: 3, rtr: None });
    let private_data = Vec::new();
    assert_eq!(net.a.reason(), Some(CloseReason::RejectedByPeer { private_data, enhanced }));
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
}

/// siw resets the connection if an FPDU directly follows a start-up frame.
#[test]
fn no_fpdu_is_sent_right_behind_a_startup_frame() {
    let b = Node::responder_with_ulp(revision_two_config(None, Peer::Siw), rdmap(1, 1));
    let mut net = Net::new(Raw::connect(), b);
    net.a.send_bytes(&request(0x10, 2, b"\0\x01\0\x01"));
    net.run_until(|net| net.b.is_established());
    net.b.ep().post_rdmap(send(b"early")).expect("room to post");
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.a.up.received, reply(0x10, 2, b"\0\x01\0\x01"));
    net.a.send_bytes(&fpdus(&["c14000000001 0000000000000000".replace(' ', "").as_str()]));
    net.run_for(Duration::from_secs(1));
    let ulp = fpdus(&["4143000000000000000000000001000000006561726c79"]);
    assert_eq!(net.a.up.received[24..], ulp);
}

/// RFC 5040 §4.8: for other peers, the bits that identify siw's layout of a Terminate are reserved.
#[test]
fn siw_terminate_layout_is_used_for_siw_only() {
    for peer in Peer::ALL {
        let b = Node::responder_with_ulp(revision_two_config(None, peer), rdmap(1, 1));
        let mut net = Net::new(Raw::connect(), b);
        net.a.send_bytes(&request(0x10, 2, b"\0\x01\0\x01"));
        net.run_until(|net| net.b.is_established());
        net.a.send_bytes(&fpdus(&["41470000000000000002000000010000000021020100"]));
        net.run_for(Duration::from_secs(1));
        let expected = if peer == Peer::Siw { None } else { Some(rdmap::Terminate::new(2, 1, 2)) };
        let terminates = net.b.rdmap_events().into_iter().filter_map(|event| match event {
            rdmap::Event::Terminated { by_peer: true, terminate } => Some(terminate),
            _ => None,
        });
        // In siw's layout flag M announces the length of the DDP segment, which is missing here.
        assert_eq!(terminates.collect::<Vec<_>>(), Vec::from_iter(expected), "{}", peer.name());
    }
}

/// Programs on siw may send FPDUs directly after the reply.
#[test]
fn fpdus_right_behind_the_reply_are_accepted() {
    for peer in Peer::ALL {
        let a = Node::initiator_with_ulp(revision_two_config(None, peer), rdmap(1, 1), b"");
        let mut net = Net::new(a, Raw::listen());
        let mut bytes = reply(0x10, 2, b"\0\x01\0\x01");
        bytes.extend(fpdus(&["4143000000000000000000000001000000006561726c79"]));
        net.b.send_bytes(&bytes);
        net.run_for(Duration::from_secs(1));
        let data = b"early".to_vec();
        let received = rdmap::Event::Received { data, solicited: false, invalidated: None };
        assert_eq!(net.a.rdmap_events(), [received]);
    }
}

//! Start-ups captured between two instances of Linux's siw. This end plays either role, and all bytes that it sends
//! must equal siw's.

use super::enhanced::{rdmap, revision_two_config};
use super::net::Net;
use super::peers::*;
use crate::endpoint::*;
use crate::mpa::testing::hex;
use crate::mpa::{EnhancedRepr, Peer, RtrSet};
use core::time::Duration;

/// A captured connection in the peer-to-peer model, up to the initiator's first message.
struct CapturedConnection {
    rtr: RtrSet,
    /// Ready-to-receive messages that the responder accepts.
    takes: RtrSet,
    request: &'static str,
    reply: &'static str,
    ready: &'static str,
    /// The responder's answer to the ready-to-receive message.
    answer: &'static str,
}

const CAPTURED: [CapturedConnection; 2] = [
    CapturedConnection {
        rtr: RtrSet { send: false, write: true, read: true },
        takes: RtrSet { send: false, write: true, read: false },
        request: "4d504120494420526571204672616d65100200048004c004",
        reply: "4d504120494420526570204672616d651002001880048004\
                00007f6aef5900008667970000100000e3c1bb00",
        ready: "000ec14000000001000000000000000000000000",
        answer: "",
    },
    CapturedConnection {
        rtr: RtrSet { send: false, write: false, read: true },
        takes: RtrSet { send: false, write: false, read: true },
        request: "4d504120494420526571204672616d651002000480044004",
        reply: "4d504120494420526570204672616d651002001880044004\
                00007f42dd7d10005aad990000100000c0c62100",
        ready: "002e414100000000000000010000000100000000000000000000000000000000\
                0000000000000001000000000000000000000000",
        answer: "000ec14200000000000000000000000000000000",
    },
];

#[test]
fn initiator_matches_captured_siw_connection() {
    for captured in &CAPTURED {
        let a = Node::initiator_with_ulp(
            revision_two_config(Some(captured.rtr), Peer::Siw),
            rdmap(4, 4),
            b"",
        );
        let mut net = Net::new(a, Raw::listen());
        net.run_for(Duration::from_millis(100));
        assert_eq!(net.b.up.received, hex(captured.request));
        net.b.send_bytes(&hex(captured.reply));
        net.run_for(Duration::from_millis(100));
        let Event::Established { private_data, .. } = &net.a.events[0] else { panic!("up") };
        assert_eq!(private_data[..], hex(captured.reply)[24..]);
        assert_eq!(net.b.up.received[24..], hex(captured.ready));
        net.b.send_bytes(&hex(captured.answer));
        net.run_for(Duration::from_millis(100));
        assert_eq!((net.a.ep().state(), net.a.rdmap_events()), (State::Established, vec![]));
    }
}

#[test]
fn responder_matches_captured_siw_connection() {
    for captured in &CAPTURED {
        let mut config = revision_two_config(None, Peer::Siw);
        config.mpa.enhanced.rtr = captured.takes;
        let mut b = Node::responder_with_ulp(config, rdmap(4, 4));
        b.policy = Policy::Accept(hex(captured.reply)[24..].to_vec());
        let mut net = Net::new(Raw::connect(), b);
        net.a.send_bytes(&hex(captured.request));
        net.run_for(Duration::from_millis(100));
        assert_eq!(net.a.up.received, hex(captured.reply));
        assert_eq!(net.b.state(), Some(State::Readying));
        net.a.send_bytes(&hex(captured.ready));
        net.run_for(Duration::from_millis(100));
        assert!(net.b.is_established());
        assert_eq!(net.a.up.received[44..], hex(captured.answer));
    }
}

/// A captured reject of a program on siw. The reject repeats the request's enhanced data, which precedes the program's
/// own private data.
#[test]
fn reject_matches_captured_siw_reject() {
    let mut b = Node::responder_with_ulp(revision_two_config(None, Peer::Siw), rdmap(4, 4));
    b.policy = Policy::Reject(b"nope".to_vec());
    let mut net = Net::new(Raw::connect(), b);
    net.a.send_bytes(&hex("4d504120494420526571204672616d651002000b0004000470726976617465"));
    net.run_for(Duration::from_millis(100));
    let enhanced = Some(EnhancedRepr { ird: 4, ord: 4, rtr: None });
    let (revision, private_data) = (Revision::Two, b"private".to_vec());
    assert_eq!(net.b.events[0], Event::MpaRequest { private_data, revision, enhanced });
    let rejected = hex("4d504120494420526570204672616d6530020008000400046e6f7065");
    assert_eq!(net.a.up.received, rejected);
}

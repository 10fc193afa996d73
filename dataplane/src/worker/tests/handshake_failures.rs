//! Connection attempts of peers that do not become streams: each is counted, and reported with stage and reason.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sctp_lite::sctp;
use tcp_lite::endpoint::EndpointConfig;
use tcp_lite::mpa::{self, Revision};
use tcp_lite::tcp::{Flags, Segment};

use super::sctp::config;
use super::sctp_frames::{init, sctp_frame_in};
use super::test_host::*;
use crate::api::{
    Command, Event, FailedHandshake, HandshakeCount, HandshakeFailure, ListenerId, SctpConfig,
    Transport,
};
use crate::checksum;
use crate::net::protocol::TCP;

const PORT: u16 = 7471;

#[track_caller]
fn wait_failed_handshake(net: &mut Net) -> FailedHandshake {
    let caller = std::panic::Location::caller();
    net.run_until(&format!("a report at {caller}"), |net| {
        net.hosts[1].take_event(|e| match e {
            Event::HandshakeFailed(failed) => Some(FailedHandshake::clone(failed)),
            _ => None,
        })
    })
}

fn handshake_counts(net: &mut Net) -> Vec<HandshakeCount> {
    let ticket = net.hosts[1].command(0, list_all);
    net.run_until("a list", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Streams { ticket: t, handshakes, .. } if *t == ticket => {
                Some(handshakes.clone())
            }
            _ => None,
        })
    })
}

/// Returns the offset of a frame's TCP segment, its source and its destination.
fn find_segment(frame: &[u8]) -> Option<(usize, IpAddr, IpAddr)> {
    let v4 = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let v6 = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
    match frame[12..14] {
        [8, 0] if frame[23] == TCP => Some((34, v4(26), v4(30))),
        [0x86, 0xdd] if frame[20] == TCP => Some((54, v6(22), v6(38))),
        _ => None,
    }
}

/// Applies `change` to the TCP segment of a frame, and corrects lengths and checksums.
fn rewrite_segment(frame: &[u8], change: impl FnOnce(&mut Segment<'_>)) -> TestFrame {
    let (at, from, to) = find_segment(frame).unwrap();
    let bytes = frame[at..].to_vec();
    let mut segment = Segment::parse(&bytes).unwrap();
    change(&mut segment);
    let mut out = frame[..at].to_vec();
    out.resize(at + segment.wire_len(), 0);
    segment.emit(&mut out[at..]);
    if from.is_ipv4() {
        let len = (out.len() - 14) as u16;
        out[16..18].copy_from_slice(&len.to_be_bytes());
        out[24..26].fill(0);
        let sum = !checksum::sum(&out[14..at]);
        out[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        let len = (out.len() - at) as u16;
        out[18..20].copy_from_slice(&len.to_be_bytes());
    }
    let sum = checksum::segment(from, to, TCP, &out[at..]);
    out[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    TestFrame::new(out)
}

/// Connects from host 0, and delivers a changed segment in place of the MPA request. Host 0's later frames are lost.
fn replace_mpa_request(net: &mut Net, to: IpAddr, change: impl FnOnce(&mut Segment<'_>)) {
    let taken: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
    let captured = taken.clone();
    net.is_lost = Box::new(move |from, frame| {
        let request = from == 0 && frame.windows(16).any(|bytes| bytes == b"MPA ID Req Frame");
        if request {
            captured.borrow_mut().get_or_insert_with(|| frame.to_vec());
        }
        from == 0 && captured.borrow().is_some()
    });
    net.hosts[0].connect(0, (to, PORT).into());
    let request = net.run_until("a request", |_| taken.borrow().clone());
    // Delivers the ACK of the handshake first, without the request.
    net.hosts[1].deliver(rewrite_segment(&request, |s| (s.payload, s.flags) = (b"", Flags::ACK)));
    net.run_until_idle();
    net.hosts[1].deliver(rewrite_segment(&request, change));
}

fn net_with_listener() -> Net {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    net.run_until_idle();
    net
}

#[test]
fn non_mpa_peer_is_reported_by_protocol_over_ipv4_and_ipv6() {
    type Change = fn(&mut Segment<'_>);
    let cases: [(Change, &str, &str); 7] = [
        (
            |s| s.payload = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "http",
            "the peer does not speak MPA but HTTP",
        ),
        (
            |s| s.payload = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
            "tls",
            "the peer does not speak MPA but TLS",
        ),
        (|s| s.payload = b"SSH-2.0-OpenSSH_9.6\r\n", "ssh", "the peer does not speak MPA but SSH"),
        (
            |s| s.payload = b"who are you?",
            "not_mpa",
            "the peer does not speak MPA: its key differs at byte 0",
        ),
        (
            |s| s.payload = b"MPA ID Rep Frame\x40\x01\0\0",
            "both_responders",
            "both ends are MPA responders",
        ),
        (
            |s| (s.payload, s.flags) = (b"", Flags::FIN.with(Flags::ACK)),
            "closed",
            "the peer closed the connection during MPA start-up",
        ),
        (
            |s| (s.payload, s.flags) = (b"", Flags::RST.with(Flags::ACK)),
            "reset",
            "TCP connection reset by the peer",
        ),
    ];
    for to in [v4(2), v6(2)] {
        for (change, reason, detail) in cases {
            let mut net = net_with_listener();
            replace_mpa_request(&mut net, to, change);
            let failed = wait_failed_handshake(&mut net);
            let failure = HandshakeFailure::new("mpa", reason);
            assert_eq!((failed.failure, failed.listener), (failure, Some(ListenerId(7471))));
            assert!(failed.detail.contains(detail), "{}", failed.detail);
            assert_eq!((failed.local, failed.transport), ((to, PORT).into(), Transport::Tcp));
            let peer = if to.is_ipv4() { v4(1) } else { v6(1) };
            assert_eq!((failed.remote.ip(), failed.unreported), (peer, 0));
            let listener = failed.listener;
            assert_eq!(
                handshake_counts(&mut net),
                [HandshakeCount { listener, failure, count: 1 }]
            );
            assert_eq!(handshake_counts(&mut net), [], "the counts were taken before");
        }
    }
}

#[test]
fn wrong_mpa_revision_and_missing_request_are_reported() {
    let mut net = net_with_listener();
    let mpa = mpa::Config { initiate: Revision::Two, ..mpa::Config::default() };
    let two = EndpointConfig { mpa, ..EndpointConfig::default() };
    let mut one_alone = EndpointConfig::default();
    one_alone.mpa.revisions = mpa::Revisions { one: true, ..mpa::Revisions::NONE };
    net.hosts[1].listen_as(9, 10, 10, one_alone);
    let zero = mpa::Config { initiate: Revision::Zero, ..mpa::Config::default() };
    net.hosts[0].connect_as(0, (v4(2), 9).into(), EndpointConfig { mpa: zero, ..two });
    let revision = wait_failed_handshake(&mut net);
    assert_eq!(revision.failure, HandshakeFailure::new("mpa", "revision"));
    assert_eq!(revision.detail, "MPA error 4: MPA revision 0 is not accepted");
    let since = net.now;
    replace_mpa_request(&mut net, v6(2), |s| (s.payload, s.flags) = (b"", Flags::ACK));
    assert_eq!(wait_failed_handshake(&mut net).failure, HandshakeFailure::new("mpa", "timeout"));
    assert!(net.now >= since + Duration::from_secs(10));
}

#[test]
fn a_port_without_a_listener_is_reported_for_both_transports() {
    for to in [v4(2), v6(2)] {
        let mut net = net_with_listener();
        let wrong = SocketAddr::from((to, 80));
        net.hosts[0].connect(0, wrong);
        let refused = wait_failed_handshake(&mut net);
        assert_eq!(refused.failure, HandshakeFailure::new("tcp", "no_listener"));
        assert_eq!((refused.listener, refused.local), (None, wrong));
        // After the refusal of its SYN with ECN, the client sends a SYN without ECN, which is refused, too.
        net.run_until_idle();
        let is_report = |e: &Event| matches!(e, Event::HandshakeFailed(_)).then_some(());
        while net.hosts[1].take_event(is_report).is_some() {}
        net.hosts[0].connect_as(0, wrong, config());
        let refused = wait_failed_handshake(&mut net);
        assert_eq!(refused.failure, HandshakeFailure::new("sctp", "no_listener"));
        assert_eq!((refused.listener, refused.local), (None, wrong));
        assert_eq!(handshake_counts(&mut net).len(), 2);
    }
}

/// A SYN alone is not counted as an attempt: its source address may be forged.
#[test]
fn unanswered_syn_is_not_counted_as_failed_handshake() {
    let mut net = net_with_listener();
    let mut syns = 0;
    net.is_lost = Box::new(move |from, frame| {
        let tcp = find_segment(frame).is_some();
        syns += u32::from(from == 0 && tcp);
        from == 0 && tcp && syns > 1
    });
    net.hosts[0].connect(0, (v4(2), PORT).into());
    net.run_until("a SYN", |net| (net.hosts[1].count("half_open") == 1).then_some(()));
    net.run_until("its end", |net| (net.hosts[1].count("half_open") == 0).then_some(()));
    assert_eq!(handshake_counts(&mut net), []);
}

#[test]
fn refused_init_flood_is_counted_and_reported_within_limit() {
    let mut net = net_with_listener();
    for n in 0..200u16 {
        let frame = sctp_frame_in(1, 2, (1000 + n, 81), 0, &init(1), None);
        net.hosts[1].deliver(frame);
        if n % 16 == 0 {
            net.run_until_idle();
        }
    }
    net.run_until_idle();
    let counted: u64 = handshake_counts(&mut net).iter().map(|count| count.count).sum();
    let aborts = net.hosts[1].count("sctp_aborts_sent");
    assert_eq!(counted, aborts, "every refused INIT is counted");
    assert!(counted > 8, "{counted}");
    let mut reported = 0;
    let is_report = |e: &Event| matches!(e, Event::HandshakeFailed(_)).then_some(());
    while net.hosts[1].take_event(is_report).is_some() {
        reported += 1;
    }
    assert_eq!(reported, 8);
}

fn net_over_sctp(to: IpAddr, client: SctpConfig) -> Net {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen_as(PORT, 200, 200, config());
    net.run_until_idle();
    net.hosts[0].connect_as(0, (to, PORT).into(), client);
    net
}

/// Returns the type of the first chunk of an SCTP packet.
fn first_chunk_type(frame: &[u8]) -> Option<u8> {
    match frame[12..14] {
        [8, 0] if frame[23] == 132 => Some(frame[46]),
        [0x86, 0xdd] if frame[20] == 132 => Some(frame[66]),
        _ => None,
    }
}

#[test]
fn association_without_adaptation_or_session_is_reported() {
    for to in [v4(2), v6(2)] {
        let other = sctp::Config { adaptation: 7, ..sctp::Config::default() };
        let mut net = net_over_sctp(to, SctpConfig { sctp: Arc::new(other), ..config() });
        let refused = wait_failed_handshake(&mut net);
        let failure = HandshakeFailure::new("sctp", "adaptation");
        assert_eq!((refused.failure, refused.listener), (failure, Some(ListenerId(7471))));
        assert_eq!(refused.detail, "adaptation indication 0x00000007 of the peer is not DDP's");

        // The association comes up, but no Initiate follows.
        for (abort, failure) in [(false, "timeout"), (true, "reset")] {
            let mut net = net_over_sctp(to, config());
            // Drops the DATA chunk with the Initiate. Without `abort`, also drops the ABORT that host 0 sends when its
            // attempts are used up.
            net.is_lost = Box::new(move |from, frame| {
                let chunk = first_chunk_type(frame);
                from == 0 && (chunk == Some(0) || !abort && chunk == Some(6))
            });
            net.run_until("an association", |net| {
                (net.hosts[1].count("associations") == 1).then_some(())
            });
            if abort {
                net.hosts[0].command(0, |_| Command::Stop);
            }
            let missed = wait_failed_handshake(&mut net);
            assert_eq!(missed.failure, HandshakeFailure::new("session", failure));
            assert_eq!(
                (missed.listener, missed.local),
                (Some(ListenerId(7471)), (to, PORT).into())
            );
            net.advance(Duration::from_secs(60));
            let all = handshake_counts(&mut net);
            assert_eq!(all.iter().map(|count| count.count).sum::<u64>(), 1, "{all:?}");
        }
    }
}

/// An association that has had a session is not a failed attempt, regardless of how the association ends.
#[test]
fn association_that_had_a_session_is_not_a_failed_handshake() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen_as(PORT, 200, 200, config());
    net.run_until_idle();
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: true });
    net.advance(Duration::from_secs(120));
    assert_eq!(handshake_counts(&mut net), []);
}

/// The listener is removed during the handshake of a peer.
#[test]
fn handshake_aborted_by_listener_removal_is_reported() {
    let mut net = net_with_listener();
    replace_mpa_request(&mut net, v4(2), |s| (s.payload, s.flags) = (b"", Flags::ACK));
    net.run_until_idle();
    let listener = ListenerId(7471);
    net.hosts[1].command(0, |ticket| Command::RemoveListener { listener, ticket });
    assert_eq!(
        wait_failed_handshake(&mut net).failure,
        HandshakeFailure::new("admission", "listener_removed")
    );
}

/// The peer opens more sessions on an association than the listener has credits for.
#[test]
fn session_beyond_credits_is_reported_as_no_room() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen_as(PORT, 100, 1, config());
    net.run_until_idle();
    let shared = crate::api::EndpointConfig::from(config());
    net.open_as(0, 0, 1, (v4(2), PORT).into(), shared.clone());
    net.hosts[0].connect_as(0, (v4(2), PORT).into(), shared);
    let refused = wait_failed_handshake(&mut net);
    assert_eq!(refused.failure, HandshakeFailure::new("admission", "no_room"));
    assert_eq!(handshake_counts(&mut net).len(), 1);
}

//! Ends of streams: graceful close, error, abort, idle time-out (RFC 5041 §6.2, RFC 5044 §7.2, §8).

use super::net::{Fate, Net, Side, has_payload};
use super::peers::*;
use super::startup::{fpdus, reply, request, tagged};
use crate::endpoint::*;
use crate::mpa::{self, Fault};
use crate::tcp;
use base::ErrorNumbers;
use core::cell::Cell;
use core::time::Duration;
use ddp::last_message::LastMessage;
use ddp::{Cookie, DdpVersion, ERROR_QUEUE, EndpointPolicy, ErrorCode, Stag, TaggedOffset};
use std::rc::Rc;

/// Returns a plain TCP program and an endpoint in Full Operation, and the bytes of the FPDUs of `good`, which the
/// endpoint has received.
fn raw_established(good: &[Vec<u8>]) -> (Net<Raw, Node>, Vec<u8>) {
    let mut net = Net::new(Raw::connect(), Node::responder(EndpointConfig::default()));
    net.a.send_bytes(&request(0xc0, 1, &[]));
    net.run_until(|net| net.b.is_established());
    let bytes = fpdus(good);
    net.a.send_bytes(&bytes);
    net.run_for(Duration::from_millis(10));
    (net, bytes)
}

/// Returns the hosts of [`raw_established`] with the single FPDU `good`, and a flag. While the flag is set, the path
/// loses all data segments of the endpoint.
fn lossy_raw_established(
    config: EndpointConfig,
    good: &[u8],
) -> (Net<Raw, Node>, Vec<u8>, Rc<Cell<bool>>) {
    let lossy = Rc::new(Cell::new(false));
    let loses = lossy.clone();
    let net = Net::new(Raw::connect(), Node::responder(config));
    let mut net = net.with_fate(move |side, _, bytes| match side {
        Side::B if loses.get() && has_payload(bytes) => Fate::Drop,
        _ => Fate::Pass,
    });
    net.a.send_bytes(&request(0xc0, 1, &[]));
    net.run_until(|net| net.b.is_established());
    let bytes = fpdus(&[good.to_vec()]);
    net.a.send_bytes(&bytes);
    net.run_for(Duration::from_millis(10));
    (net, bytes, lossy)
}

/// Returns an FPDU with a wrong CRC, to be sent directly after `first`. `first`: the bytes of the FPDU that writes
/// `good` at offset 0.
fn bad_crc_fpdu(first: &[u8]) -> Vec<u8> {
    let mut bad = fpdus(&[write(0, b"good"), write(8, b"wrong")]).split_off(first.len());
    bad[20] ^= 1;
    bad
}

fn write(to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(DdpVersion::V1, to, payload)
}

/// Parses the endpoint's bytes after the MPA reply as a last message. Returns `None` if the bytes are not a last
/// message.
fn last_message(net: &Net<Raw, Node>) -> Option<LastMessage> {
    let received = net.a.up.received.get(20..)?;
    // Marker, length, 18 bytes of header, then the message.
    LastMessage::parse(received.get(4 + 2 + 18..)?).ok()
}

/// After a wrong CRC (MPA error 2) the endpoint sends the last message, then its FIN. The endpoint discards further
/// input until the peer's FIN and sends no reset.
#[test]
fn crc_error_sends_last_message_then_fin() {
    let (mut net, first) = raw_established(&[write(0, b"good")]);
    net.a.send_bytes(&bad_crc_fpdu(&first));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.b.state(), Some(State::Failing));
    assert_eq!(last_message(&net), Some(LastMessage::llp(0, 2)));
    assert!(net.a.has(tcp::Event::RemoteClosed), "the FIN follows");
    assert_eq!(net.b.memory.to_vec()[8..13], [0; 5]);
    // Further data is acknowledged and discarded.
    net.a.send_bytes(&[0x55; 5000]);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.b.stats().mpa_rx.discarded, 5000);
    assert_eq!(net.b.reason(), None);
    net.a.close();
    net.run();
    let reason = net.b.reason().expect("closed");
    assert_eq!((reason.numbers(), reason.name()), (Some(ErrorNumbers::new(2, 0, 2)), "mpa_error"));
    assert!(
        matches!(reason, CloseReason::Lower(TcpReason::Mpa(error)) if matches!(error.fault, Fault::Crc { .. }))
    );
    assert!(!net.has_reset(Side::A) && !net.has_reset(Side::B));
    net.b.assert_no_state_left();
}

/// A peer that does not close after a CRC error is reset after the teardown time-out.
#[test]
fn crc_error_with_lingering_peer_resets_after_timeout() {
    let (mut net, _) = raw_established(&[write(0, b"good")]);
    net.a.send_bytes(&[0xff; 600]);
    net.run_for(Duration::from_millis(4900));
    assert!(!net.has_reset(Side::B));
    net.run_for(Duration::from_millis(300));
    assert!(net.has_reset(Side::B));
    assert_eq!(net.b.reason().map(|r| r.name()), Some("mpa_error"), "the first cause stays");
    net.run();
    net.b.assert_no_state_left();
}

/// A responder that has verified no FPDU must not send an FPDU, not even the last message. An orderly close would
/// report success to the peer (docs/protocol.md §6), so a reset replaces the FIN.
#[test]
fn error_in_the_first_fpdu_sends_no_fpdu() {
    let (mut net, _) = raw_established(&[]);
    net.b.write(0, b"never sent", 9);
    let mut bad = fpdus(&[write(0, b"bad")]);
    bad[10] ^= 1;
    net.a.send_bytes(&bad);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.a.up.received, reply(0xc0, 1, &[]));
    assert!(net.has_reset(Side::B) && !net.a.has(tcp::Event::RemoteClosed));
    assert!(net.a.has(tcp::Event::Closed(tcp::CloseReason::Reset)));
    assert!(net.b.ddp_events().contains(&ddp::Event::Flushed { cookie: Cookie::user(9) }));
    assert_eq!(net.b.reason().and_then(|r| r.numbers()), Some(ErrorNumbers::new(2, 0, 2)));
    net.b.assert_no_state_left();
}

/// A wrong CRC in an FPDU sent together with the request, and a FIN inside the first FPDU, both cause a reset.
#[test]
fn error_before_an_fpdu_is_verified_resets() {
    let mut bad = fpdus(&[write(0, b"bad")]);
    bad[10] ^= 1;
    let part = fpdus(&[write(0, &[1; 100])])[..50].to_vec();
    for (first, closes, code) in [(bad, false, 2), (part, true, 1)] {
        let mut net = Net::new(Raw::connect(), Node::responder(EndpointConfig::default()));
        net.a.send_bytes(&request(0xc0, 1, &[]));
        if closes {
            net.run_until(|net| net.b.is_established());
            net.a.close();
        }
        net.a.send_bytes(&first);
        net.run_for(Duration::from_secs(1));
        assert!(net.has_reset(Side::B) && !net.a.has(tcp::Event::RemoteClosed), "{code}");
        assert_eq!(net.b.reason().and_then(|r| r.numbers()), Some(ErrorNumbers::new(2, 0, code)));
        net.b.assert_no_state_left();
    }
}

/// After our FIN no last message can be sent. The endpoint resets the connection instead, after it has retransmitted
/// data in flight.
#[test]
fn error_behind_our_fin_resets() {
    for in_flight in [false, true] {
        let (mut net, first, lossy) =
            lossy_raw_established(EndpointConfig::default(), &write(0, b"good"));
        if in_flight {
            lossy.set(true);
            net.b.write(0, &[0xd7; 3000], 9);
        }
        let now = net.now;
        net.b.ep().shutdown(now);
        net.run_for(Duration::from_millis(10));
        net.a.send_bytes(&bad_crc_fpdu(&first));
        net.run_for(Duration::from_millis(10));
        assert_eq!(
            net.has_reset(Side::B),
            !in_flight,
            "data in flight is retransmitted before the reset"
        );
        lossy.set(false);
        net.run_for(Duration::from_secs(3));
        net.a.close();
        net.run();
        assert!(net.has_reset(Side::B));
        // RFC 9293 §3.10.7.4: in LAST-ACK the peer's TCP need not report the reset.
        let reset = net.a.has(tcp::Event::Closed(tcp::CloseReason::Reset));
        assert!(reset || in_flight, "{:?}", net.a.events);
        assert_eq!(net.b.reason().map(|r| r.name()), Some("mpa_error"));
        let arrived = net.a.up.received.iter().filter(|byte| **byte == 0xd7).count();
        assert_eq!(arrived, if in_flight { 3000 } else { 0 });
        net.b.assert_no_state_left();
    }
}

/// A FIN inside an FPDU is MPA error 1, which the last message reports.
#[test]
fn fin_inside_an_fpdu_is_mpa_error_1() {
    let (mut net, first) = raw_established(&[write(0, b"good")]);
    let more = fpdus(&[write(0, b"good"), write(8, &[1; 100])]).split_off(first.len());
    net.a.send_bytes(&more[..50]);
    net.a.close();
    net.run();
    assert_eq!(net.b.reason().and_then(|r| r.numbers()), Some(ErrorNumbers::new(2, 0, 1)));
    assert_eq!(last_message(&net), Some(LastMessage::llp(0, 1)));
    net.b.assert_no_state_left();
}

/// A write to an invalid STag: the peer's ULP receives the last message, and both ends report a reason.
#[test]
fn ddp_error_sends_the_last_message() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    net.a.write(0, b"good", 1);
    let source = ddp::Source::Bytes(b"bad"[..].into());
    let (stag, to) = (Stag(0x666), TaggedOffset(0));
    let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(2) };
    net.a.ep().post(message).expect("room");
    net.a.write(100, b"beyond the error", 3);
    net.run();
    assert_eq!(net.b.memory.to_vec()[0..4], *b"good");
    assert_eq!(net.b.memory.to_vec()[100..116], [0; 16]);
    let reason = net.b.reason().expect("closed");
    assert_eq!(reason.numbers(), Some(ErrorNumbers::new(1, 1, 0)));
    let [(queue, bytes)] = &net.a.messages()[..] else { panic!("one message") };
    assert_eq!(*queue, ERROR_QUEUE);
    let last_message = LastMessage::parse(bytes).expect("a last message");
    assert_eq!(last_message.ddp_error(), Some(ErrorCode::InvalidStag));
    assert_eq!(net.a.reason(), Some(CloseReason::PeerShutdown));
    assert!(!net.has_reset(Side::A) && !net.has_reset(Side::B));
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
}

#[test]
fn disabled_last_message_still_ends_the_stream() {
    let config = with_policy(EndpointPolicy { last_message: false, ..EndpointPolicy::default() });
    let mut net = established(EndpointConfig::default(), config);
    let source = ddp::Source::Bytes(b"bad"[..].into());
    let (stag, to) = (Stag(0x666), TaggedOffset(0));
    let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(2) };
    net.a.ep().post(message).expect("room");
    net.run();
    assert_eq!(net.a.messages(), []);
    assert_eq!(net.b.reason().map(|r| r.name()), Some("ddp_error"));
}

/// Data posted before the shutdown is received before the FIN, in both directions.
#[test]
fn shutdown_sends_posted_data_before_fin() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    net.b.send(b"before", 5);
    net.a.write(0, &[9; 100_000], 1);
    net.a.send(b"end", 2);
    let now = net.now;
    net.a.ep().shutdown(now);
    assert_eq!(net.a.state(), Some(State::Closing));
    let source = ddp::Source::Bytes(b"late"[..].into());
    let message =
        Message::Untagged { qn: Qn(0), rsvd_ulp: [0; 5], source, cookie: Cookie::user(0) };
    assert_eq!(net.a.ep().post(message), Err(PostError::Closed));
    net.run();
    assert_eq!(net.b.memory.to_vec()[..100_000], [9; 100_000]);
    assert_eq!(net.b.messages(), [(Qn(0), b"end".to_vec())]);
    assert_eq!(net.a.messages(), [(Qn(0), b"before".to_vec())]);
    assert!(net.b.ddp_events().contains(&ddp::Event::PeerClosed { incomplete: false }));
    assert!(
        net.a.ddp_events().contains(&ddp::Event::Sent { cookie: Cookie::user(2), messages: 1 })
    );
    assert_closed_by_a(&net);
}

/// A responder that may not send yet defers its FIN, so that no posted data is lost.
#[test]
fn shutdown_before_the_first_fpdu_defers_the_fin() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    net.b.send(b"for you", 1);
    let now = net.now;
    net.b.ep().shutdown(now);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.a.state(), Some(State::Established), "no FIN yet");
    net.a.write(0, b"first", 1);
    net.run();
    assert_eq!(net.a.messages(), [(Qn(0), b"for you".to_vec())]);
    assert_eq!(net.b.reason(), Some(CloseReason::LocalShutdown));
    // If the peer closes without having sent an FPDU, the responder's data is flushed.
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    net.b.send(b"for you", 1);
    let now = net.now;
    net.a.ep().shutdown(now);
    net.run();
    assert!(net.b.ddp_events().contains(&ddp::Event::Flushed { cookie: Cookie::user(1) }));
    assert_eq!(net.a.reason(), Some(CloseReason::LocalShutdown));
    net.b.assert_no_state_left();
}

/// If the peer causes an error during our graceful close, the last message replaces unsent data.
#[test]
fn error_during_graceful_close_sends_last_message() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    net.a.write(0, b"first", 1);
    net.run_for(Duration::from_millis(50));
    net.b.write(0, &[1; 900_000], 7);
    let source = ddp::Source::Bytes(b"bad"[..].into());
    let (stag, to) = (Stag(0x666), TaggedOffset(0));
    let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(2) };
    net.a.ep().post(message).expect("room");
    let now = net.now;
    net.b.ep().shutdown(now);
    net.run();
    assert_eq!(net.b.reason().map(|r| r.name()), Some("ddp_error"));
    assert!(net.b.ddp_events().contains(&ddp::Event::Flushed { cookie: Cookie::user(7) }));
    assert_eq!(net.a.messages().len(), 1, "the last message");
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
}

/// Data that is in flight when an error occurs, and lost, is retransmitted. This also holds if no last message follows,
/// because the policy disables it or our FIN has been sent.
#[test]
fn data_in_flight_at_an_error_is_retransmitted() {
    for (last_message, shutdown) in [(false, false), (true, true)] {
        let config = with_policy(EndpointPolicy { last_message, ..EndpointPolicy::default() });
        let (mut net, first, lossy) = lossy_raw_established(config, &write(0, b"good"));
        lossy.set(true);
        net.b.write(0, &[0xd7; 3000], 9);
        if shutdown {
            let now = net.now;
            net.b.ep().shutdown(now);
        }
        net.run_for(Duration::from_millis(1));
        net.a.send_bytes(&bad_crc_fpdu(&first));
        net.run_for(Duration::from_millis(10));
        assert_eq!(net.b.state(), Some(State::Failing));
        lossy.set(false);
        net.run_for(Duration::from_secs(3));
        let arrived = net.a.up.received.iter().filter(|byte| **byte == 0xd7).count();
        assert_eq!(arrived, 3000);
        assert!(net.a.has(tcp::Event::RemoteClosed));
        assert!(
            net.b.ddp_events().contains(&ddp::Event::Sent { cookie: Cookie::user(9), messages: 1 })
        );
        net.a.close();
        net.run();
        assert_eq!(net.b.reason().map(|r| r.name()), Some("mpa_error"));
        net.b.assert_no_state_left();
    }
}

/// RFC 5041 §6.2.1: after the peer's FIN this end may send until its own shutdown.
#[test]
fn half_closed_stream_keeps_sending() {
    let config =
        with_policy(EndpointPolicy { half_closed_timeout: None, ..EndpointPolicy::default() });
    let mut net = established(EndpointConfig::default(), config);
    net.a.send(b"last words", 1);
    let now = net.now;
    net.a.ep().shutdown(now);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.b.state(), Some(State::Established));
    for i in 0..3 {
        net.b.send(b"still here", i);
        net.run_for(Duration::from_secs(3));
    }
    assert_eq!(net.a.messages().len(), 3, "progress keeps the half-closed stream alive");
    let now = net.now;
    net.b.ep().shutdown(now);
    net.run();
    assert_eq!(net.a.reason(), Some(CloseReason::LocalShutdown));
    assert_eq!(net.b.reason(), Some(CloseReason::PeerShutdown));
}

#[test]
fn lingering_peer_is_reset_after_timeout() {
    let config =
        with_policy(EndpointPolicy { half_closed_timeout: None, ..EndpointPolicy::default() });
    let mut net = established(EndpointConfig::default(), config);
    let now = net.now;
    net.a.ep().shutdown(now);
    net.run();
    assert_eq!(net.a.reason(), Some(CloseReason::PeerLingers));
    assert_eq!(net.b.reason(), Some(CloseReason::Lower(TcpReason::PeerReset)));
    net.b.assert_no_state_left();
}

#[test]
fn abort_flushes_posted_work_and_resets() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    net.a.write(0, &[1; 100_000], 42);
    let now = net.now;
    net.a.with_endpoint(|ep, cx| ep.abort(now, cx));
    net.run();
    assert_eq!(net.a.reason(), Some(CloseReason::LocalAbort));
    assert_eq!(net.b.reason(), Some(CloseReason::Lower(TcpReason::PeerReset)));
    assert!(net.a.ddp_events().contains(&ddp::Event::Flushed { cookie: Cookie::user(42) }));
    assert!(matches!(net.a.events.last(), Some(Event::Closed { .. })), "nothing follows Closed");
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
}

#[test]
fn idle_streams_are_closed() {
    let idle_timeout = Some(Duration::from_secs(30));
    let config = with_policy(EndpointPolicy { idle_timeout, ..EndpointPolicy::default() });
    let mut net = established(EndpointConfig::default(), config);
    net.run_for(Duration::from_secs(20));
    net.a.send(b"still here", 1);
    net.run_for(Duration::from_secs(20));
    assert_eq!(net.b.state(), Some(State::Established));
    net.run();
    assert_eq!(net.b.reason(), Some(CloseReason::Idle));
    assert_eq!(net.a.reason(), Some(CloseReason::PeerShutdown));
}

#[test]
fn shutdown_during_startup_aborts_it() {
    let mut net = Net::new(Node::initiator(EndpointConfig::default(), b""), Raw::listen());
    net.run_for(Duration::from_millis(100));
    let now = net.now;
    net.a.ep().shutdown(now);
    net.run_for(Duration::from_millis(100));
    assert!(net.b.has(tcp::Event::RemoteClosed));
    net.b.close();
    net.run();
    assert_eq!(net.a.reason(), Some(CloseReason::LocalShutdown));
    net.a.assert_no_state_left();
}

/// No two close reasons have the same name or sentence. Error numbers and origins are correct.
#[test]
fn close_reasons_are_distinct() {
    let reasons = [
        CloseReason::LocalShutdown,
        CloseReason::PeerShutdown,
        CloseReason::LocalAbort,
        CloseReason::Idle,
        CloseReason::PeerLingers,
        CloseReason::Lower(TcpReason::PeerReset),
        CloseReason::ConnectRefused,
        CloseReason::Lower(TcpReason::TcpTimeout),
        CloseReason::Lower(TcpReason::Startup(mpa::StartupError::Timeout)),
        CloseReason::RejectedByPeer { private_data: Vec::new(), enhanced: None },
        CloseReason::RejectedHere,
        CloseReason::DdpFailed(ddp::Failure::DataAfterClose),
    ];
    let names: std::collections::HashSet<_> = reasons.iter().map(|r| r.name()).collect();
    let words: std::collections::HashSet<_> = reasons.iter().map(|r| r.to_string()).collect();
    assert_eq!((names.len(), words.len()), (reasons.len(), reasons.len()));
    assert_eq!(
        CloseReason::Lower(TcpReason::TcpTimeout).numbers(),
        Some(ErrorNumbers::new(2, 0, 1))
    );
    assert_eq!(CloseReason::Lower(TcpReason::TcpTimeout).origin(), Origin::Network);
    assert_eq!(CloseReason::RejectedHere.origin(), Origin::Local);
    assert_eq!(CloseReason::Lower(TcpReason::PeerReset).origin(), Origin::Peer);
}

//! Streams whose peer has closed its direction: the ULP answers, then closes (RFC 5041 §6.2.1).

use super::net::{Net, Side};
use super::peers::*;
use super::startup::{fpdus, request, tagged};
use crate::endpoint::*;
use crate::tcp;
use core::time::Duration;
use ddp::DdpVersion;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a plain TCP program that has sent a message and its FIN, and an endpoint whose ULP has not closed.
fn half_closed() -> Net<Raw, Node> {
    let mut net = Net::new(Raw::connect(), Node::responder(EndpointConfig::default()));
    net.b.closes = false;
    net.a.send_bytes(&request(0xc0, 1, &[]));
    net.run_until(|net| net.b.is_established());
    net.a.send_bytes(&fpdus(&[tagged(DdpVersion::V1, 0, b"question")]));
    net.a.close();
    net.run_for(SECOND);
    assert!(net.b.ddp_events().contains(&ddp::Event::PeerClosed { incomplete: false }));
    assert_eq!(net.b.state(), Some(State::Established));
    assert!(!net.a.has(tcp::Event::RemoteClosed));
    net
}

#[test]
fn answer_follows_the_peers_fin() {
    let mut net = half_closed();
    net.b.send(&[0xa5; 5000], 1);
    net.run_for(SECOND);
    assert_eq!(net.a.up.received.iter().filter(|byte| **byte == 0xa5).count(), 5000);
    assert!(!net.a.has(tcp::Event::RemoteClosed), "the ULP decides when to close");
    let now = net.now;
    net.b.ep().shutdown(now);
    net.run();
    assert!(net.a.has(tcp::Event::RemoteClosed));
    assert_eq!(net.b.reason(), Some(CloseReason::PeerShutdown));
    assert!(!net.has_reset(Side::A) && !net.has_reset(Side::B));
    net.b.assert_no_state_left();
}

/// The wait for the ULP's close is bounded. The wait ends with a reset, because the ULP's answer may be incomplete.
#[test]
fn half_closed_stream_resets_if_ulp_does_not_close() {
    let mut net = half_closed();
    net.run_for(ddp::HALF_CLOSED_TIMEOUT - SECOND * 2);
    // An acknowledged answer is progress and extends the wait.
    net.b.send(b"late", 1);
    net.run_for(SECOND * 3);
    assert_eq!(net.b.state(), Some(State::Established));
    net.run_for(ddp::HALF_CLOSED_TIMEOUT + SECOND);
    assert!(net.has_reset(Side::B) && !net.a.has(tcp::Event::RemoteClosed));
    assert_eq!(net.b.reason(), Some(CloseReason::UlpTimeout));
    net.b.assert_no_state_left();
}

/// The idle time-out applies only while the peer may send.
#[test]
fn half_closed_stream_is_not_idle() {
    let idle_timeout = Some(SECOND * 3);
    let config = with_policy(ddp::EndpointPolicy { idle_timeout, ..Default::default() });
    let mut net = Net::new(Raw::connect(), Node::responder(config));
    net.b.closes = false;
    net.a.send_bytes(&request(0xc0, 1, &[]));
    net.run_until(|net| net.b.is_established());
    net.a.close();
    net.run_for(SECOND * 10);
    assert_eq!(net.b.state(), Some(State::Established));
}

//! Calls by an endpoint's owner that carry no messages: end of one session, tags, timers, budget for the window.

use super::host::{Host, Policy};
use super::net::{Net, Node, Setup};
use crate::endpoint::upper::UpperCall;
use crate::endpoint::*;
use crate::seam::MessageSink;
use core::time::Duration;

/// RFC 5043 §6.2: another session of the association continues.
#[test]
fn abort_session_terminates_one_session_only() {
    let mut net = Net::established(&Setup::default());
    let (first, now) = (net.a.session(), net.now);
    let second = net.a.open(now, b"");
    net.run_until(|net| net.a.is_established(second) && net.b.established() == 2);
    let (there, now) = (net.b.session(), net.now);
    net.a.with_endpoint(|ep, cx| ep.abort_session(now, first, cx));
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.a.reason(first), Some(CloseReason::LocalAbort));
    assert_eq!(net.b.reason(there), Some(CloseReason::PeerShutdown));
    assert_eq!(net.a.ep().sessions().collect::<Vec<_>>(), [second]);
    assert_eq!(net.b.ep().sessions().count(), 1);
}

#[test]
fn peer_tag_is_known_after_init_ack_or_cookie_echo() {
    let a = Node::initiator(Setup::default(), b"");
    let mut net = Net::new(a, Node::responder(Setup::default()));
    assert_eq!(net.a.ep().peer_tag(), None);
    net.run_until(|net| net.a.established() == 1 && net.b.established() == 1);
    let tags = [net.a.ep().local_tag(), net.b.ep().local_tag()];
    let peers = [net.b.ep().peer_tag(), net.a.ep().peer_tag()];
    assert_eq!(peers, tags.map(Some));
}

/// RFC 5043 §6.1: the answer time-out expires even if no other event of the association occurs.
#[test]
fn unanswered_request_times_out() {
    let setup = Setup::default();
    let a = Node::initiator(setup.clone(), b"");
    let mut b = Node::responder(setup.clone());
    b.policy = Policy::Wait;
    let mut net = Net::new(a, b);
    net.run_for(Duration::from_secs(1));
    let (now, timeout) = (net.now, setup.endpoint.session.answer_timeout);
    let at = net.a.ep().poll_timeout().expect("the session's timer");
    assert!(at > now && at < now + timeout, "{at:?}");
    let session = net.a.ep().sessions().next().expect("a session that awaits a decision");
    net.run_for(timeout);
    assert!(net.a.reason(session).is_some());
}

#[test]
fn window_growth_is_released_at_association_end() {
    let (mut host, _) = Host::established_passive();
    host.with_context(|upper, cx| {
        let mut call = UpperCall::for_receive(upper, cx);
        assert!(call.grow_window(0, 1000) && call.grow_window(1000, 500));
    });
    assert_eq!(host.hold.windows().used(), 1500);
    host.with_context(|upper, cx| upper.release_budgets(cx));
    assert_eq!(host.hold.windows().used(), 0);
}

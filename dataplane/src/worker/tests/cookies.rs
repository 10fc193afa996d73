//! SYN cookies (RFC 4987 §3.6): peers can connect although half-open streams fill the backlog.

use std::time::Duration;

use super::floods::forged_segment;
use super::test_host::*;
use crate::api::{Event, SynCookieMode};
use tcp_lite::tcp::Flags;

const PORT: u16 = 4791;

fn net_with_backlog(mode: SynCookieMode, half_open: u32) -> Net {
    let mut plan = Plan::new(2);
    plan.limits.half_open = half_open;
    plan.limits.syn_cookies = mode;
    Net::new(&[Plan::new(1), plan])
}

/// Sends a SYN from each of `n` addresses that do not answer.
fn flood_syns(net: &mut Net, n: u8) {
    for from in 3..3 + n {
        net.hosts[1].deliver(forged_segment((from, 2000), PORT, Flags::SYN));
    }
    net.turn();
    net.turn();
}

#[test]
fn client_connects_by_cookie_past_a_full_backlog() {
    let mut net = net_with_backlog(SynCookieMode::Auto, 20);
    net.hosts[1].listen_with(PORT, 100, 100);
    flood_syns(&mut net, 60);
    assert_eq!(net.hosts[1].count("half_open"), 20);
    assert_eq!(net.hosts[1].count("cookies_sent"), 40);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    assert_eq!(net.hosts[1].count("cookies_accepted"), 1);
    // RFC 4987 §3.6: the oldest half-open stream was evicted for the new stream.
    assert_eq!(net.hosts[1].count("half_open_evicted"), 1);
    let ticket = net.hosts[0].send(here, &[5; 2000]);
    net.wait_sent(0, ticket);
}

#[test]
fn syn_flood_cannot_exhaust_listener_credits() {
    let mut net = net_with_backlog(SynCookieMode::Auto, 1000);
    net.hosts[1].listen_with(PORT, 100, 4);
    flood_syns(&mut net, 30);
    assert_eq!((net.hosts[1].count("half_open"), net.hosts[1].count("no_credit")), (4, 0));
    for _ in 0..4 {
        net.open(0, 0, 1, (v4(2), PORT).into());
    }
    assert_eq!(net.hosts[1].count("half_open_evicted"), 4);
    // Established streams now hold the credits. A returned cookie could not be accepted, so no cookie is sent.
    let sent = net.hosts[1].count("cookies_sent");
    net.hosts[0].connect(0, (v4(2), PORT).into());
    net.advance(Duration::from_millis(100));
    assert_eq!(net.hosts[1].count("no_credit"), 1);
    assert_eq!(net.hosts[1].count("cookies_sent"), sent);
}

#[test]
fn spoofed_syns_do_not_block_the_spoofed_client() {
    let mut plan = Plan::new(2);
    plan.limits.half_open_per_peer = 4;
    let mut net = Net::new(&[Plan::new(1), plan]);
    net.hosts[1].listen(PORT);
    // The host with the forged address must not receive the SYN-ACKs, because it would answer them with resets.
    net.is_lost = Box::new(|from, frame| from == 1 && frame.len() > 47 && frame[47] == 0x12);
    for port in 0..4 {
        net.hosts[1].deliver(forged_segment((1, 100 + port), PORT, Flags::SYN));
    }
    net.run_until_idle();
    assert_eq!(net.hosts[1].count("half_open"), 4);
    net.is_lost = Box::new(|_, _| false);
    net.open(0, 0, 1, (v4(2), PORT).into());
    assert_eq!(net.hosts[1].count("cookies_accepted"), 1);
}

#[test]
fn syn_cookie_mode_always_keeps_no_half_open_state() {
    let mut net = net_with_backlog(SynCookieMode::Always, 100);
    net.hosts[1].listen(PORT);
    flood_syns(&mut net, 60);
    assert_eq!(net.hosts[1].count("half_open") + net.hosts[1].count("streams"), 0);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    let info = net.hosts[1].cores[0].streams().next().expect("the stream").connection().info();
    assert!(info.sack && info.timestamps && info.ecn && info.send_window_shift.is_some());
    let ticket = net.hosts[0].send(here, &[5; 20_000]);
    net.wait_sent(0, ticket);
    assert_eq!(net.hosts[1].count("cookies_failed"), 0);
}

#[test]
fn mpa_request_returns_cookie_when_third_ack_is_lost() {
    let mut net = net_with_backlog(SynCookieMode::Always, 100);
    net.hosts[1].listen(PORT);
    let mut bare = 0;
    net.is_lost = Box::new(move |from, frame| {
        // Loses the first segment without text: the ACK of the handshake.
        let lost = from == 0 && frame[23] == 6 && frame[47] == 0x10 && bare == 0;
        bare += u32::from(lost);
        lost
    });
    net.open(0, 0, 1, (v4(2), PORT).into());
    assert_eq!(net.hosts[1].count("cookies_accepted"), 1);
}

#[test]
fn forged_cookie_acks_open_no_stream_and_resets_are_limited() {
    let mut net = net_with_backlog(SynCookieMode::Always, 100);
    net.hosts[1].listen(PORT);
    flood_syns(&mut net, 1);
    for n in 0..200u16 {
        net.hosts[1].deliver(forged_segment((3, 3000 + n), PORT, Flags::ACK));
    }
    net.run_until_idle();
    assert_eq!(net.hosts[1].count("cookies_failed"), 200);
    assert_eq!(net.hosts[1].count("streams"), 0);
    assert!(net.hosts[1].count("resets_sent") <= 25);
}

#[test]
fn expired_cookie_is_answered_with_a_reset() {
    let mut net = net_with_backlog(SynCookieMode::Always, 100);
    net.hosts[1].listen(PORT);
    let held = std::rc::Rc::new(std::cell::RefCell::new(None));
    let hold = held.clone();
    net.is_lost = Box::new(move |from, frame| {
        let ours = from == 0 && frame[23] == 6 && frame[47] & 2 == 0;
        if ours && hold.borrow().is_none() {
            *hold.borrow_mut() = Some(TestFrame::new(frame.to_vec()));
        }
        ours
    });
    net.hosts[0].connect(0, (v4(2), PORT).into());
    net.advance(Duration::from_millis(10));
    let ack = held.borrow_mut().take().expect("an acknowledgement");
    net.advance(Duration::from_secs(129));
    let resets = net.hosts[1].count("resets_sent");
    net.hosts[1].deliver(ack);
    net.turn();
    assert_eq!(net.hosts[1].count("cookies_accepted"), 0);
    assert_eq!(net.hosts[1].count("resets_sent"), resets + 1);
    assert!(!net.hosts[1].events.iter().any(|(_, e)| matches!(e, Event::Incoming { .. })));
}

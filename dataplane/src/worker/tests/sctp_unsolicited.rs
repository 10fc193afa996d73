//! Packets of unknown senders: floods of INITs, out-of-the-blue packets, expired cookies.

use std::time::Duration;

use super::paths::divert;
use super::sctp::{PORT, config, list_streams, net, open, pair, wait_connect_failure, write};
use super::sctp_frames::{init, sctp_frame_in};
use super::test_host::{Plan, TestFrame, v4};
use crate::api::{ConnectError, Limits};

/// Builds a frame from host 1 to host 2 with an SCTP packet from this port.
fn sctp_frame(port: u16, tag: u32, chunk: &[u8]) -> TestFrame {
    sctp_frame_in(1, 2, (port, PORT), tag, chunk, None)
}

// RFC 9260 §5.1: no state is kept for an INIT before its cookie is returned.
#[test]
fn init_flood_leaves_no_association_or_half_open_state() {
    let limits = Limits { inits_per_second: 1_000_000, ..Limits::default() };
    let mut net = net(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    let (here, _) = open(&mut net);
    let before = net.hosts[1].count("sctp_cookies_sent");
    for n in 0..2000u32 {
        net.hosts[1].deliver(sctp_frame(10_000 + (n % 50_000) as u16, 0, &init(n + 1)));
        if n % 16 == 0 {
            net.run_until_idle();
        }
    }
    net.run_until_idle();
    assert!(net.hosts[1].count("sctp_cookies_sent") > before + 1000);
    assert_eq!((net.hosts[1].count("associations"), net.hosts[1].count("half_open")), (1, 0));
    write(&mut net, here, 50_000);
}

// RFC 9260 §8.4, §8.5: out-of-the-blue packets are answered within a limit, and guessed tags have no effect.
#[test]
fn out_of_the_blue_packets_end_no_association() {
    let limits = Limits { resets_per_second: 10, ..Limits::default() };
    let mut net = net(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    let (here, _) = open(&mut net);
    let local = list_streams(&mut net, 0)[0].local.port();
    for n in 0..500u32 {
        // DATA without an association; ABORTs and SHUTDOWN COMPLETEs with guessed tags of the association.
        net.hosts[1].deliver(sctp_frame(
            9,
            n,
            &[0, 3, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16, 1, 2, 3, 4],
        ));
        net.hosts[1].deliver(sctp_frame(local, n, &[6, 0, 0, 4]));
        net.hosts[1].deliver(sctp_frame(local, n, &[6, 1, 0, 4]));
        net.hosts[1].deliver(sctp_frame(local, n, &[14, 0, 0, 4]));
        net.run_until_idle();
    }
    assert!(
        net.hosts[1].count("sctp_aborts_sent") <= 20,
        "{}",
        net.hosts[1].count("sctp_aborts_sent")
    );
    assert!(net.hosts[1].count("bad_tag") >= 1400);
    assert_eq!(net.hosts[1].count("associations"), 1);
    write(&mut net, here, 50_000);
}

#[test]
fn init_with_wrong_checksum_is_dropped() {
    let mut net = pair();
    let mut frame = sctp_frame(9, 0, &init(1));
    let at = frame.0.len() - 1;
    frame.0[at] ^= 1;
    net.hosts[1].deliver(frame);
    net.run_until_idle();
    assert_eq!(
        (net.hosts[1].count("bad_checksum"), net.hosts[1].count("sctp_cookies_sent")),
        (1, 0)
    );
}

// RFC 9260 §5.1.5, §8.4: a listener's answers to unknown senders are rate-limited, with a separate limit for answers to
// INITs. A valid cookie does not count against the limit.
#[test]
fn expired_state_cookies_are_answered_within_limit() {
    let limits = Limits { resets_per_second: 10, ..Limits::default() };
    let mut net = net(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    let taken = divert(&mut net, 100);
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    net.run_until_idle();
    let cookie = taken.borrow().iter().find(|frame| frame[46] == 10).expect("a cookie").clone();
    assert!(matches!(wait_connect_failure(&mut net, ticket), ConnectError::Timeout(_)));
    net.is_lost = Box::new(|_, _| false);
    net.advance(Duration::from_secs(90));
    for _ in 0..200 {
        net.hosts[1].deliver(TestFrame::new(cookie.clone()));
        net.run_until_idle();
    }
    let answered = net.hosts[1].count("sctp_aborts_sent");
    assert!((1..=20).contains(&answered), "{answered}");
    assert_eq!(net.hosts[1].count("sctp_cookies_failed"), 200);
    // The limit is exhausted, but peers with valid cookies still connect.
    for _ in 0..5 {
        open(&mut net);
    }
    assert_eq!(net.hosts[1].count("sctp_aborts_sent"), answered);
}

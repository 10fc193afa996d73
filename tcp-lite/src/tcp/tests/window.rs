//! Windows, window probes and silly windows (RFC 9293 §3.8.6).

use super::script::{Script, config, config_with, established, passive};
use super::upper::Batch;
use crate::tcp::{Config, Limit, Limits};
use base::Instant;
use std::time::Duration;

// RFC 9293 §3.8.6: a window of 1500 bytes admits one segment of 1000 bytes, but no second segment.
#[test]
fn sender_stays_within_peer_window() {
    established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 1500
         1.0 write 3000
         1.0 > . 1:1001(1000) ack 1
         1.1 < . 1:1(0) ack 1001 win 2000
         1.1 > . 1001:2001(1000) ack 1
         1.1 > P. 2001:3001(1000) ack 1
         1.2 < . 1:1(0) ack 3001 win 2000",
    );
}

// RFC 9293 §3.8.6.2.1 (2): a record of 500 bytes is sent, because it fits the window completely.
#[test]
fn small_window_is_used_if_all_data_fits() {
    established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 1500
         1.0 record 500
         1.0 write 2000
         1.0 > . 1:501(500) ack 1
         1.0 > . 501:1001(500) ack 1
         1.0 > . 1001:1501(500) ack 1
         1.1 < . 1:1(0) ack 1501 win 1500
         1.1 > P. 1501:2001(500) ack 1
         1.2 < . 1:1(0) ack 2001 win 1500",
    );
}

// RFC 9293 §3.8.6.2.1 (3): with nothing in flight, data is cut to fit a window of half the largest window offered.
#[test]
fn half_of_largest_window_is_used_with_empty_flight() {
    let mut script = super::script::passive(
        config(),
        "S 0:0(0) win 900 <mss 1000>",
        "0 > S. 0:0(0) ack 1
         0 < . 1:1(0) ack 1 win 900",
    );
    script.run(
        "1.0 write 1500
         1.0 > . 1:901(900) ack 1
         1.1 < . 1:1(0) ack 901 win 450
         1.1 > . 901:1351(450) ack 1
         1.2 < . 1:1(0) ack 1351 win 900
         1.2 > P. 1351:1501(150) ack 1",
    );
}

// RFC 9293 §3.8.6.2.1 (4), MUST-38: the override time-out is 200 ms.
#[test]
fn a_silly_window_waits_for_the_override() {
    established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 100
         1.0 write 1500
         1.2 > . 1:101(100) ack 1
         1.3 < . 1:1(0) ack 101 win 20000
         1.3 > . 101:1101(1000) ack 1
         1.3 > P. 1101:1501(400) ack 1",
    );
}

// RFC 9293 §3.8.6.1 MUST-36, SHLD-29, SHLD-30: the first probe is one byte of new data after the RTO. The probe's
// retransmissions follow at growing intervals.
#[test]
fn a_closed_window_is_probed() {
    let script = established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 0
         1.0 write 1500
         1.2 > . 1:2(1) ack 1
         1.2 < . 1:1(0) ack 1 win 0
         1.4 > P. 1:2(1) ack 1
         1.4 < . 1:1(0) ack 1 win 0
         1.8 > P. 1:2(1) ack 1
         1.8 < . 1:1(0) ack 1 win 0
         2.6 > P. 1:2(1) ack 1
         2.7 < . 1:1(0) ack 1 win 5000
         2.7 > P. 1:2(1) ack 1
         2.7 > . 2:1002(1000) ack 1
         2.7 > P. 1002:1501(499) ack 1
         2.8 < . 1:1(0) ack 1501 win 5000",
    );
    assert_eq!(script.conn.stats().window_probes, 4);
    assert_eq!(script.conn.stats().loss.timeouts, 0, "no sign of congestion");
}

// RFC 9293 §3.8.6.1: the peer may accept the byte of a probe although its window stays closed.
#[test]
fn probe_byte_accepted_by_closed_window_is_acknowledged() {
    established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 0
         1.0 write 1500
         1.2 > . 1:2(1) ack 1
         1.2 < . 1:1(0) ack 2 win 0
         1.4 > . 2:3(1) ack 1
         1.5 < . 1:1(0) ack 3 win 20000
         1.5 > . 3:1003(1000) ack 1
         1.5 > P. 1003:1501(498) ack 1",
    );
}

// RFC 9293 §3.8.6.1 MUST-37: answered probes keep the connection open, here for more than 10 minutes.
#[test]
fn answered_window_probes_keep_connection_open() {
    let mut script = established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 0
         1.0 write 1
         1.2 > P. 1:2(1) ack 1",
    );
    let mut at = 1.2;
    let mut interval = 0.2;
    for _ in 0..20 {
        script.run(&format!("{at:.1} < . 1:1(0) ack 1 win 0"));
        at += interval;
        interval = f64::min(interval * 2.0, 60.0);
        script.run(&format!("{at:.1} > P. 1:2(1) ack 1"));
    }
    assert!(at > 600.0);
    script.run(&format!("{at:.1} state ESTABLISHED"));
}

// R2 is 5 s, shorter than the later intervals of probes. Nevertheless, answered probes keep the connection open.
#[test]
fn rare_answered_window_probes_keep_connection_open() {
    let mut config = config();
    config.limits.retransmission = core::time::Duration::from_secs(5);
    let mut script = established(
        config,
        "1.0 < . 1:1(0) ack 1 win 0
         1.0 write 1
         1.2 > P. 1:2(1) ack 1",
    );
    let mut at = 1.2;
    let mut interval = 0.2;
    for _ in 0..20 {
        script.run(&format!("{at:.1} < . 1:1(0) ack 1 win 0"));
        at += interval;
        interval = f64::min(interval * 2.0, 60.0);
        script.run(&format!("{at:.1} > P. 1:2(1) ack 1"));
    }
    // Then a single unanswered probe ends the connection.
    at += interval;
    script.run(&format!("{at:.1} state CLOSED"));
}

// RFC 9293 §3.8.3 MUST-20: unanswered window probes are subject to R2, 120 s by default.
#[test]
fn unanswered_window_probes_end_the_connection() {
    established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 0
         1.0 write 1
         1.2 > P. 1:2(1) ack 1
         1.4 > P. 1:2(1) ack 1
         1.8 > P. 1:2(1) ack 1
         2.6 > P. 1:2(1) ack 1
         4.2 > P. 1:2(1) ack 1
         7.4 > P. 1:2(1) ack 1
         13.8 > P. 1:2(1) ack 1
         26.6 > P. 1:2(1) ack 1
         52.2 > P. 1:2(1) ack 1
         103.4 > P. 1:2(1) ack 1
         163.4 state CLOSED
         163.4 event Closed(Timeout)",
    );
}

/// The reported limit becomes [`Limit::Path`] once the time-out of an unanswered window probe has expired. Ten
/// unanswered probes are a stall; an answer ends the stall.
#[test]
fn unanswered_probes_of_a_closed_window_are_a_stall() {
    let limits = Limits { retransmission: Duration::from_secs(3600), ..Limits::default() };
    let mut script = established(
        Config { limits, ..config() },
        "1.0 < . 1:1(0) ack 1 win 0
         1.0 write 1
         1.2 > P. 1:2(1) ack 1
         1.3 < . 1:1(0) ack 1 win 0",
    );
    let limit = |script: &Script| script.conn.limits(script.now()).limit;
    assert_ne!(limit(&script), Limit::Path);
    let (mut at, mut interval) = (1.2, 0.2);
    for probe in 0..=10 {
        assert_eq!(script.conn.stall(script.now()), None, "{probe} are not answered");
        at += interval;
        interval = f64::min(interval * 2.0, 60.0);
        script.run(&format!("{at:.1} > P. 1:2(1) ack 1"));
        assert_eq!(limit(&script) == Limit::Path, probe > 0, "{probe} are not answered");
    }
    let stall = script.conn.stall(script.now()).expect("a stall");
    assert_eq!((stall.timeouts, stall.last), (10, false));
    script.run(&format!("{at:.1} < . 1:1(0) ack 1 win 0"));
    assert_eq!(script.conn.stall(script.now()), None);
    assert_ne!(limit(&script), Limit::Path);
}

// RFC 9293 §3.8.6 MUST-34, SHLD-15, SHLD-16: data that was sent before the window shrank is retransmitted as far as the
// window allows.
#[test]
fn shrunk_window_limits_retransmissions() {
    established(
        config(),
        "1.0 write 3000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > P. 2001:3001(1000) ack 1
         1.1 < . 1:1(0) ack 1 win 1500
         1.1 write 500
         1.2 > P. 1:1001(1000) ack 1
         1.3 < . 1:1(0) ack 1001 win 1500
         1.3 > P. 1001:2001(1000) ack 1
         1.3 > P. 2001:2501(500) ack 1
         1.4 < . 1:1(0) ack 2501 win 1500
         1.4 > P. 2501:3001(500) ack 1
         1.4 > P. 3001:3501(500) ack 1
         1.5 < . 1:1(0) ack 3501 win 1500",
    );
}

// RFC 9293 §3.8.6 MUST-35: the window is probed with the data in flight.
#[test]
fn a_window_shrunk_to_nothing_is_probed() {
    established(
        config(),
        "1.0 write 1000
         1.0 > P. 1:1001(1000) ack 1
         1.1 < . 1:1(0) ack 1 win 0
         1.2 > P. 1:1001(1000) ack 1
         1.2 < . 1:1(0) ack 1 win 0
         1.6 > P. 1:1001(1000) ack 1
         1.7 < . 1:1(0) ack 1001 win 0",
    );
}

// RFC 9293 §3.10.7.4: a segment with a sequence number below SND.WL1 does not update the window.
#[test]
fn old_segments_do_not_change_the_window() {
    let script = established(
        config(),
        "1.00 < P. 1:11(10) ack 1 win 5000
         1.01 < P. 11:21(10) ack 1 win 6000
         1.01 > . 1:1(0) ack 21
         1.02 < P. 5:25(20) ack 1 win 100
         1.02 > . 1:1(0) ack 25 <sack 5:21>",
    );
    assert_eq!(script.conn.info().send_window, 6000);
}

// RFC 9293 §3.10.7.4: an acknowledgement below SND.UNA does not update the window.
#[test]
fn old_acknowledgements_are_ignored() {
    let script = established(
        config(),
        "1.0 write 100
         1.0 > P. 1:101(100) ack 1
         1.1 < . 1:1(0) ack 101 win 6000
         1.1 < . 1:1(0) ack 51 win 100
         1.1 acked 100",
    );
    assert_eq!(script.conn.info().send_window, 6000);
}

// RFC 9293 §3.8.6 SHLD-16: the window of 1500 bytes excludes the second lost segment until the first is acknowledged.
#[test]
fn lost_segments_beyond_a_shrunk_window_wait() {
    established(
        config(),
        "1.00 write 6000
         1.00 > . 1:1001(1000) ack 1
         1.00 > . 1001:2001(1000) ack 1
         1.00 > . 2001:3001(1000) ack 1
         1.00 > . 3001:4001(1000) ack 1
         1.00 > . 4001:5001(1000) ack 1
         1.00 > P. 5001:6001(1000) ack 1
         1.10 < . 1:1(0) ack 1 win 1500 <sack 1001:2001 3001:6001>
         1.10 > P. 1:1001(1000) ack 1
         1.15 < . 1:1(0) ack 2001 win 1500 <sack 3001:6001>
         1.15 > P. 2001:3001(1000) ack 1
         1.20 < . 1:1(0) ack 6001 win 20000",
    );
}

// RFC 9293 §3.8.6 SHLD-14, §3.8.6.2.2 MUST-39: the right edge does not move while the upper layer has no room. Once
// there is room, the edge moves by at least one segment.
#[test]
fn our_window_closes_and_opens_in_steps() {
    established(
        Config { receive_window: 4000, ..config() },
        "1.0 room 0
         1.0 <+ . 1:1001(1000) ack 1 win 20000
         1.0 < . 1001:2001(1000) ack 1 win 20000
         1.0 > . 1:1(0) ack 2001 win 2000
         1.1 <+ . 2001:3001(1000) ack 1 win 20000
         1.1 < . 3001:4001(1000) ack 1 win 20000
         1.1 > . 1:1(0) ack 4001 win 0
         1.2 room 900
         1.3 room 1000
         1.3 > . 1:1(0) ack 4001 win 1000
         1.4 room 2999
         1.5 room 3000
         1.5 > . 1:1(0) ack 4001 win 3000",
    );
}

// RFC 9293 §3.10.7.4, first check: the data of a window probe is dropped; its acknowledgement is processed.
#[test]
fn probe_of_our_closed_window_has_its_ack_processed() {
    established(
        Config { receive_window: 1000, ..config() },
        "1.0 room 0
         1.0 < . 1:1001(1000) ack 1 win 20000
         1.0 > . 1:1(0) ack 1001 win 0
         1.1 write 100
         1.1 > P. 1:101(100) ack 1001
         1.2 < . 1001:1002(1) ack 101 win 20000 ! OutOfWindow
         1.2 acked 100
         1.2 > . 101:101(0) ack 1001 win 0
         1.2 got 1000",
    );
}

// RFC 9293 appendix A.2: the sequence number of acknowledgements is the right edge of the peer's window, not SND.NXT.
#[test]
fn acknowledgements_stay_in_a_closed_window() {
    established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 0
         1.0 write 10
         1.2 > . 1:2(1) ack 1
         1.3 <+ . 1:101(100) ack 1 win 0
         1.3 < . 101:201(100) ack 1 win 0
         1.3 > . 1:1(0) ack 201",
    );
}

// RFC 9293 §3.9.1.2: a peer that SACKs all but the first segment keeps the congestion window open, so the send window
// limits the data.
#[test]
fn sacked_unacknowledged_data_is_bounded_by_send_window() {
    let narrow = Config { send_window: 4000, ..config() };
    let mut script = established(
        narrow,
        "1.0 write 8000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1
         1.0 > . 3001:4001(1000) ack 1
         1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:4001>
         1.1 > P. 1:1001(1000) ack 1
         1.2 < . 1:1(0) ack 1 win 20000 <sack 1001:4001>",
    );
    assert_eq!(script.conn.stats().bytes_out, 4000);
    script.run(
        "1.25 < . 1:1(0) ack 4001 win 20000
         1.25 > . 4001:5001(1000) ack 1
         1.25 > . 5001:6001(1000) ack 1
         1.25 > . 6001:7001(1000) ack 1
         1.25 > P. 7001:8001(1000) ack 1",
    );
}

// The maximum number of records on the scoreboard is derived from the send window. This maximum suffices for a full
// send window, also with segments of 536 bytes.
#[test]
fn records_suffice_for_the_send_window() {
    for (window, mss) in [(4 << 20, 1000), (48 << 20, 1000), (24 << 20, 536)] {
        let config = config_with(config(), |c| {
            c.extensions.window_scale = true;
            c.pacing = false;
            c.send_window = window;
            // The whole window is sent at once.
            c.initial_window = 1 << 20;
        });
        let syn = format!("S 0:0(0) win 65535 <mss {mss},sackOK,wscale 14>");
        let opening = "0 > S. 0:0(0) ack 1
             0 < . 1:1(0) ack 1 win 65535
             0 event Connected";
        let mut peer = passive(config, &syn, opening);
        peer.up.len = window + 100_000;
        let mut batch = Batch::new(usize::MAX);
        peer.conn.poll_transmit(Instant::ZERO, &mut peer.up, &mut batch);
        let flight = peer.conn.info().flight;
        assert!(
            (window - mss..=window).contains(&flight),
            "{flight} of {window}, segments of {mss}"
        );
    }
}

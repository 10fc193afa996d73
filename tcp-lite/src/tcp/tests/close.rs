//! Closing (RFC 9293 §3.6, §3.10.4, §3.10.5, §3.10.7.4 eighth check).

use super::script::PEER_ISS;
use super::script::{active, config, established};
use crate::tcp::{Config, Flags, Segment, SeqNumber};

// RFC 9293 §3.6, figure 12: this end closes first.
#[test]
fn active_close_enters_time_wait() {
    established(
        config(),
        "1.0 close
         1.0 > F. 1:1(0) ack 1
         1.0 state FIN-WAIT-1
         1.1 < . 1:1(0) ack 2 win 20000
         1.1 state FIN-WAIT-2
         1.2 < F. 1:1(0) ack 2 win 20000
         1.2 > . 2:2(0) ack 2
         1.2 state TIME-WAIT
         1.2 event RemoteClosed
         1.2 event Closed(Normal)
         61.1 state TIME-WAIT
         61.2 state CLOSED
         61.2 event none",
    );
}

// RFC 9293 §3.6, figure 12: the peer closes first.
#[test]
fn passive_close_ends_after_last_ack() {
    established(
        config(),
        "1.0 < F. 1:1(0) ack 1 win 20000
         1.0 > . 1:1(0) ack 2
         1.0 state CLOSE-WAIT
         1.0 event RemoteClosed
         1.10 write 100
         1.10 > P. 1:101(100) ack 2
         1.15 close
         1.15 > F. 101:101(0) ack 2
         1.15 state LAST-ACK
         1.25 < . 2:2(0) ack 102 win 20000
         1.25 state CLOSED
         1.25 acked 100
         1.25 event Closed(Normal)",
    );
}

// RFC 9293 §3.6, figure 13: both ends close at the same time.
#[test]
fn simultaneous_close_enters_time_wait_via_closing() {
    established(
        config(),
        "1.0 close
         1.0 > F. 1:1(0) ack 1
         1.1 < F. 1:1(0) ack 1 win 20000
         1.1 > . 2:2(0) ack 2
         1.1 state CLOSING
         1.1 event RemoteClosed
         1.15 < . 2:2(0) ack 2 win 20000
         1.15 state TIME-WAIT
         1.15 event Closed(Normal)
         61.2 state CLOSED",
    );
}

// RFC 9293 §3.10.7.4, eighth check: the peer's FIN also acknowledges our FIN, so FIN-WAIT-2 is skipped.
#[test]
fn fin_that_acknowledges_our_fin_skips_fin_wait_2() {
    established(
        config(),
        "1.0 close
         1.0 > F. 1:1(0) ack 1
         1.1 < F. 1:1(0) ack 2 win 20000
         1.1 > . 2:2(0) ack 2
         1.1 state TIME-WAIT",
    );
}

// RFC 9293 §3.10.4: after CLOSE all queued data is sent, and the last data segment carries the FIN.
#[test]
fn the_fin_follows_all_data() {
    established(
        config(),
        "1.0 batch 0
         1.0 write 1500
         1.0 close
         1.0 batch 9
         1.0 > . 1:1001(1000) ack 1
         1.0 > FP. 1001:1501(500) ack 1
         1.0 state FIN-WAIT-1
         1.1 < . 1:1(0) ack 1502 win 20000
         1.1 state FIN-WAIT-2
         1.1 acked 1500",
    );
}

// RFC 9293 §3.6: data is received in FIN-WAIT-2. The state ends with a reset only after 60 s without data.
#[test]
fn half_closed_connection_still_receives() {
    established(
        config(),
        "1 close
         1 > F. 1:1(0) ack 1
         1 < . 1:1(0) ack 2 win 20000
         1 state FIN-WAIT-2
         50.00 < P. 1:101(100) ack 2 win 20000
         50.00 got 100
         50.04 > . 2:2(0) ack 101
         109.00 state FIN-WAIT-2
         110.00 > R. 2:2(0) ack 101
         110.00 state CLOSED
         110.00 event Closed(Timeout)",
    );
}

// RFC 9293 §3.10.7.4, eighth check: a FIN beyond a gap is SACKed with the data before it.
#[test]
fn out_of_order_fin_waits_for_the_gap() {
    established(
        config(),
        "1.0 < FP. 101:201(100) ack 1 win 20000
         1.0 > . 1:1(0) ack 1 <sack 101:202>
         1.0 state ESTABLISHED
         1.1 < . 1:101(100) ack 1 win 20000
         1.1 > . 1:1(0) ack 202
         1.1 got 200
         1.1 state CLOSE-WAIT
         1.1 event RemoteClosed",
    );
}

#[test]
fn out_of_order_fin_without_text_waits_for_the_gap() {
    established(
        config(),
        "1.0 < F. 101:101(0) ack 1 win 20000
         1.0 > . 1:1(0) ack 1
         1.0 state ESTABLISHED
         1.1 < . 102:102(0) ack 1 win 20000
         1.2 < . 1:101(100) ack 1 win 20000
         1.2 > . 1:1(0) ack 102
         1.2 state CLOSE-WAIT",
    );
}

// Data beyond the peer's FIN, or a FIN at another sequence number, contradicts the first FIN and is dropped.
#[test]
fn bytes_past_the_fin_are_dropped() {
    established(
        config(),
        "1.0 < F. 101:101(0) ack 1 win 20000
         1.0 > . 1:1(0) ack 1
         1.1 < . 51:151(100) ack 1 win 20000 ! PastFin
         1.1 spans 50:100
         1.1 > . 1:1(0) ack 1 <sack 51:102>
         1.2 < F. 81:81(0) ack 1 win 20000 ! PastFin
         1.2 > . 1:1(0) ack 1 <sack 51:102>
         1.3 < P. 1:51(50) ack 1 win 20000
         1.3 > . 1:1(0) ack 102
         1.3 state CLOSE-WAIT
         1.4 < P. 102:152(50) ack 1 win 20000 ! PastFin
         1.4 > . 1:1(0) ack 102
         1.4 got 100",
    );
}

#[test]
fn fin_inside_received_data_is_refused() {
    established(
        config(),
        "1.0 < . 101:201(100) ack 1 win 20000
         1.0 > . 1:1(0) ack 1 <sack 101:201>
         1.1 < F. 151:151(0) ack 1 win 20000 ! PastFin
         1.1 > . 1:1(0) ack 1 <sack 101:201>
         1.1 state ESTABLISHED",
    );
}

// RFC 9293 §3.10.7.4: a repeated FIN is acknowledged. In TIME-WAIT it restarts the 2 MSL time-out.
#[test]
fn a_repeated_fin_restarts_time_wait() {
    established(
        config(),
        "1 < F. 1:1(0) ack 1 win 20000
         1 > . 1:1(0) ack 2
         1 close
         1 > F. 1:1(0) ack 2
         1 < F. 1:1(0) ack 1 win 20000 ! OutOfWindow
         1 > . 2:2(0) ack 2
         1 state LAST-ACK",
    );
    established(
        config(),
        "1 close
         1 > F. 1:1(0) ack 1
         1 < F. 1:1(0) ack 2 win 20000
         1 > . 2:2(0) ack 2
         1 state TIME-WAIT
         50 < F. 1:1(0) ack 2 win 20000 ! OutOfWindow
         50 > . 2:2(0) ack 2
         109 state TIME-WAIT
         110 state CLOSED",
    );
}

// RFC 9293 §3.6: the FIN is retransmitted until it is acknowledged.
#[test]
fn a_lost_fin_is_sent_again() {
    established(
        config(),
        "1.0 close
         1.0 > F. 1:1(0) ack 1
         1.2 > F. 1:1(0) ack 1
         1.6 > F. 1:1(0) ack 1
         1.7 < . 1:1(0) ack 2 win 20000
         1.7 state FIN-WAIT-2",
    );
}

// RFC 9293 §3.10.5: ABORT sends a reset unless both FINs were sent.
#[test]
fn abort_resets_unless_both_fins_are_sent() {
    let to_state = [
        ("ESTABLISHED", "1 idle", true),
        ("CLOSE-WAIT", "1 < F. 1:1(0) ack 1 win 20000\n1 > . 1:1(0) ack 2", true),
        ("FIN-WAIT-1", "1 close\n1 > F. 1:1(0) ack 1", true),
        ("FIN-WAIT-2", "1 close\n1 > F. 1:1(0) ack 1\n1 < . 1:1(0) ack 2 win 20000", true),
        (
            "CLOSING",
            "1 close\n1 > F. 1:1(0) ack 1\n1 < F. 1:1(0) ack 1 win 20000\n1 > . 2:2(0) ack 2",
            false,
        ),
        (
            "LAST-ACK",
            "1 < F. 1:1(0) ack 1 win 20000\n1 > . 1:1(0) ack 2\n1 close\n1 > F. 1:1(0) ack 2",
            false,
        ),
    ];
    for (state, steps, resets) in to_state {
        let mut script = established(config(), steps);
        script.run(&format!("1 state {state}"));
        let mss_and_fin = (state.starts_with("FIN"), state == "CLOSE-WAIT");
        let seq = if mss_and_fin.0 { 2 } else { 1 };
        let ack = if mss_and_fin.1 { 2 } else { 1 };
        let reset = format!("1.05 > R. {seq}:{seq}(0) ack {ack}");
        script.run(&format!("1.05 abort\n{}", if resets { &reset } else { "" }));
        script.run("1.05 state CLOSED");
        let mut last = None;
        while let Some(event) = script.conn.poll_event() {
            last = Some(format!("{event:?}"));
        }
        assert_eq!(last.as_deref(), Some("Closed(Aborted)"), "{state}");
        script.run("2 < P. 1:11(10) ack 1 win 20000 ! Closed");
    }
}

// A second close has no effect, nor has a close or abort after the peer's reset.
#[test]
fn second_close_has_no_effect() {
    established(
        config(),
        "1 close
         1 > F. 1:1(0) ack 1
         1 close
         1 < R 1:1(0) win 0
         1 state CLOSED
         1 event Closed(Reset)
         1 close
         1 abort
         1 event none",
    );
}

// RFC 9293 §3.6.1 MAY-2, RFC 6191 §2: only a SYN without ACK and with a higher sequence number may reopen.
#[test]
fn later_syn_reopens_from_time_wait() {
    let script = established(
        config(),
        "1 close
         1 > F. 1:1(0) ack 1
         1 < F. 1:101(100) ack 2 win 20000
         1 > . 2:2(0) ack 102",
    );
    let syn = |seq: u32, flags| Segment {
        seq: SeqNumber(PEER_ISS.wrapping_add(seq)),
        flags,
        ..Segment::default()
    };
    assert!(script.conn.may_reopen(&syn(5000, Flags::SYN)));
    assert!(!script.conn.may_reopen(&syn(50, Flags::SYN)));
    assert!(!script.conn.may_reopen(&syn(5000, Flags::SYN.with(Flags::ACK))));
    assert!(!script.conn.may_reopen(&syn(5000, Flags::ACK)));
    let fresh = active(Config::default(), "0 > S 0:0(0)");
    assert!(!fresh.conn.may_reopen(&syn(5000, Flags::SYN)));
}

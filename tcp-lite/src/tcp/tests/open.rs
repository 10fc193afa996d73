//! Connection establishment (RFC 9293 §3.5, §3.10.7.2, §3.10.7.3).

use super::script::{active, config, config_with, established, passive};
use std::time::Duration;

// RFC 9293 §3.5, figure 6: three-way handshake, opened by this end.
#[test]
fn active_open_completes_handshake() {
    active(
        config(),
        "0.0 > S 0:0(0) win 10000 <mss 1000,sackOK>
         0.0 state SYN-SENT
         0.1 < S. 0:0(0) ack 1 win 5000 <mss 800,sackOK>
         0.1 > . 1:1(0) ack 1 win 10000
         0.1 state ESTABLISHED
         0.1 event Connected
         0.1 emss 800",
    );
}

// RFC 9293 §3.10.7.2: three-way handshake, opened by the peer.
#[test]
fn passive_open_completes_handshake() {
    passive(
        config(),
        "S 0:0(0) win 5000 <mss 800,sackOK>",
        "0.0 > S. 0:0(0) ack 1 win 10000 <mss 1000,sackOK>
         0.0 state SYN-RECEIVED
         0.1 < . 1:1(0) ack 1 win 5000
         0.1 state ESTABLISHED
         0.1 event Connected
         0.1 emss 800",
    );
}

// RFC 9293 §3.5, figure 7: the two SYNs cross, and each end answers with a SYN-ACK.
#[test]
fn simultaneous_open_completes_by_syn_ack() {
    active(
        config(),
        "0.0 > S 0:0(0) win 10000 <mss 1000,sackOK>
         0.1 < S 0:0(0) win 5000 <mss 800,sackOK>
         0.1 state SYN-RECEIVED
         0.1 > S. 0:0(0) ack 1 win 10000 <mss 1000,sackOK>
         0.2 < S. 0:0(0) ack 1 win 5000 <mss 800,sackOK>
         0.2 state ESTABLISHED
         0.2 event Connected
         0.2 write 100
         0.2 > P. 1:101(100) ack 1",
    );
}

// RFC 9293 §3.5: in a simultaneous open, an acknowledgement without SYN suffices.
#[test]
fn simultaneous_open_completed_by_an_ack() {
    active(
        config(),
        "0.0 > S 0:0(0)
         0.1 < S 0:0(0) win 5000
         0.1 > S. 0:0(0) ack 1
         0.2 < . 1:1(0) ack 1 win 5000
         0.2 state ESTABLISHED",
    );
}

// RFC 9293 §3.5, figure 8: an old duplicate SYN is answered with a SYN-ACK, and its sender answers with a reset.
#[test]
fn old_duplicate_syn_is_reset_by_its_owner() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.1 < R 1:1(0) win 0
         0.1 state CLOSED
         0.1 event Closed(Reset)",
    );
}

// RFC 9293 §3.10.7.3, first check: an unacceptable acknowledgement in SYN-SENT is answered with a reset, unless the
// segment is a reset.
#[test]
fn unacceptable_ack_in_syn_sent_is_reset() {
    active(
        config(),
        "0.0 > S 0:0(0)
         0.1 < S. 0:0(0) ack 2 win 5000 ! BadAck
         0.1 > R 2:2(0)
         0.2 < . 0:0(0) ack 0 win 5000 ! BadAck
         0.2 > R 0:0(0)
         0.3 < R. 0:0(0) ack 2 win 0 ! BadAck
         0.3 state SYN-SENT",
    );
}

// RFC 9293 §3.10.7.3, second check: a reset without an acknowledgement is dropped.
#[test]
fn reset_in_syn_sent_refuses_only_with_valid_ack() {
    active(
        config(),
        "0.0 > S 0:0(0)
         0.1 < R 0:0(0) win 0 ! BlindReset
         0.1 state SYN-SENT
         0.2 < R. 0:0(0) ack 1 win 0
         0.2 state CLOSED
         0.2 event Closed(Refused)",
    );
}

// RFC 9293 §3.10.7.3, fifth check: a segment with neither SYN nor RST is dropped without an answer.
#[test]
fn neither_syn_nor_reset_in_syn_sent_is_dropped() {
    active(
        config(),
        "0.0 > S 0:0(0)
         0.1 < . 1:11(10) ack 1 win 5000 ! NoAck
         0.1 state SYN-SENT",
    );
}

// RFC 9293 §3.10.7.3, fourth check: data on the SYN-ACK is processed.
#[test]
fn text_on_the_syn_ack_is_taken() {
    active(
        config(),
        "0.0 > S 0:0(0)
         0.1 < S. 0:50(50) ack 1 win 5000
         0.1 > . 1:1(0) ack 51
         0.1 got 50",
    );
}

// RFC 9293 §3.10.7.2: data on a SYN is ignored. The peer retransmits it.
#[test]
fn text_on_a_syn_is_not_acknowledged() {
    passive(
        config(),
        "S 0:50(50) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.1 < P. 1:51(50) ack 1 win 5000
         0.1 got 50
         0.14 > . 1:1(0) ack 51",
    );
}

// RFC 9293 §3.10.7.4, SYN-RECEIVED: a repeated SYN shows that our SYN-ACK was lost.
#[test]
fn a_repeated_syn_is_answered_again() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.5 < S 0:0(0) win 5000 ! UnexpectedSyn
         0.5 > S. 0:0(0) ack 1
         0.5 state SYN-RECEIVED",
    );
}

// RFC 9293 §3.10.7.4, fourth check: another SYN in the window ends a passive connection. LISTEN is a state of the
// listener, not of a connection.
#[test]
fn another_syn_in_syn_received_returns_to_listen() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.5 < S 100:100(0) win 5000 ! UnexpectedSyn
         0.5 state CLOSED
         0.5 event Closed(Reset)",
    );
}

// RFC 9293 §3.10.7.4, first check: segments outside the window do not change SYN-RECEIVED. Such segments, except
// resets, are answered with an acknowledgement. A reset in the window, but not at RCV.NXT, is answered with a
// challenge ACK (RFC 5961 §3.2).
#[test]
fn segments_outside_the_window_keep_syn_received() {
    // The window of our SYN-ACK is 10000.
    let steps = "0.0 > S. 0:0(0) ack 1 win 10000
         0.1 < S 10001:10001(0) win 5000 ! UnexpectedSyn
         0.1 > . 1:1(0) ack 1 win 10000
         0.1 < S 4000000:4000000(0) win 5000 ! UnexpectedSyn
         0.1 > . 1:1(0) ack 1
         0.1 < S. 50000:50000(0) ack 1 win 5000 ! UnexpectedSyn
         0.1 > . 1:1(0) ack 1
         0.1 < . 50000:50000(0) ack 1 win 5000 ! OutOfWindow
         0.1 > . 1:1(0) ack 1
         0.1 < F. 50000:50000(0) ack 1 win 5000 ! OutOfWindow
         0.1 > . 1:1(0) ack 1
         0.1 < P. 50000:50100(100) ack 1 win 5000 ! OutOfWindow
         0.1 > . 1:1(0) ack 1
         0.1 < R 50000:50000(0) win 0 ! OutOfWindow
         0.1 < R. 50000:50000(0) ack 1 win 0 ! OutOfWindow
         0.1 < R 100:100(0) win 0 ! BlindReset
         0.1 > . 1:1(0) ack 1
         0.1 state SYN-RECEIVED";
    let mut half_open = passive(config(), "S 0:0(0) win 5000", steps);
    half_open.run(
        "0.2 < . 1:1(0) ack 1 win 5000
         0.2 state ESTABLISHED
         0.2 event Connected",
    );
    // The same holds after a simultaneous open.
    active(config(), &format!("0.0 > S 0:0(0)\n0.0 < S 0:0(0) win 5000\n{steps}"));
}

// RFC 9293 §3.10.7.4, first check, RFC 5961 §7: the rate limit of challenge ACKs applies in SYN-RECEIVED.
#[test]
fn answers_in_syn_received_are_limited() {
    let limited = config_with(config(), |c| c.challenge_acks_per_second = 1);
    passive(
        limited,
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.1 < S 50000:50000(0) win 5000 ! UnexpectedSyn
         0.1 > . 1:1(0) ack 1
         0.1 < S 50000:50000(0) win 5000 ! UnexpectedSyn
         0.1 < . 50000:50000(0) ack 1 win 5000 ! OutOfWindow
         0.1 state SYN-RECEIVED",
    );
}

// RFC 9293 §3.5.1: a restarted peer answers our acknowledgement with a reset. Its next SYN can then open a new
// connection.
#[test]
fn restarted_peer_resets_syn_received() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.1 < S 900000:900000(0) win 5000 ! UnexpectedSyn
         0.1 > . 1:1(0) ack 1
         0.1 < R 1:1(0) win 0
         0.1 state CLOSED",
    );
}

// RFC 9293 §3.10.7.4, fifth check: the reset has the sequence number of the unacceptable acknowledgement.
#[test]
fn unacceptable_ack_in_syn_received_is_reset() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.1 < . 1:1(0) ack 0 win 5000 ! BadAck
         0.1 > R 0:0(0)
         0.2 < . 1:1(0) ack 2 win 5000 ! BadAck
         0.2 > R 2:2(0)
         0.2 state SYN-RECEIVED
         0.3 < . 1:1(0) ack 1 win 5000
         0.3 state ESTABLISHED",
    );
}

// RFC 9293 §3.10.7.4, second check: a reset in SYN-RECEIVED after an active open means connection refused.
#[test]
fn reset_after_simultaneous_open_refuses() {
    active(
        config(),
        "0.0 > S 0:0(0)
         0.1 < S 0:0(0) win 5000
         0.1 > S. 0:0(0) ack 1
         0.2 < R 1:1(0) win 0
         0.2 event Closed(Refused)",
    );
}

// RFC 9293 §3.8.3 MUST-22, RFC 6298 §5.5: the RTO doubles with each time-out.
#[test]
fn syn_is_retransmitted_with_backoff() {
    active(
        config(),
        "0.0 > S 0:0(0)
         1.0 > S 0:0(0)
         3.0 > S 0:0(0)
         7.0 > S 0:0(0)
         7.1 < S. 0:0(0) ack 1 win 5000
         7.1 > . 1:1(0) ack 1",
    );
}

// RFC 6298 §5.7, RFC 5681 §3.1: the SYN was retransmitted, and no timestamp identifies the answered SYN.
#[test]
fn lost_syn_starts_data_with_one_segment_and_3_s_rto() {
    active(
        config(),
        "0.0 > S 0:0(0)
         1.0 > S 0:0(0)
         1.1 < S. 0:0(0) ack 1 win 5000 <mss 1000>
         1.1 > . 1:1(0) ack 1
         2.0 write 3000
         2.0 > . 1:1001(1000) ack 1
         5.0 > P. 1:1001(1000) ack 1",
    );
}

// RFC 9293 §3.8.3 MUST-23: the SYN is retransmitted for at least three minutes.
#[test]
fn the_open_times_out_after_three_minutes() {
    let mut script = active(config(), "0 > S 0:0(0)");
    script.run(
        "1 > S 0:0(0)
         3 > S 0:0(0)
         7 > S 0:0(0)
         15 > S 0:0(0)
         31 > S 0:0(0)
         63 > S 0:0(0)
         123 > S 0:0(0)
         182.9 state SYN-SENT
         183 state CLOSED
         183 event Closed(Timeout)",
    );
}

// RFC 9293 §3.10.4, §3.10.5: CLOSE and ABORT in SYN-SENT delete the connection.
#[test]
fn close_or_abort_in_syn_sent_deletes_without_reset() {
    for what in ["close", "abort"] {
        active(
            config(),
            &format!(
                "0.0 > S 0:0(0)
                 0.1 {what}
                 0.1 state CLOSED
                 0.1 event Closed(Aborted)
                 0.2 < S. 0:0(0) ack 1 win 5000 ! Closed"
            ),
        );
    }
}

// RFC 9293 §3.10.4: CLOSE in SYN-RECEIVED takes effect in ESTABLISHED.
#[test]
fn close_in_syn_received_waits() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.1 close
         0.1 state SYN-RECEIVED
         0.2 < . 1:1(0) ack 1 win 5000
         0.2 > F. 1:1(0) ack 1
         0.2 state FIN-WAIT-1",
    );
}

// RFC 9293 §3.10.5: ABORT in SYN-RECEIVED sends a reset.
#[test]
fn abort_in_syn_received_resets() {
    passive(
        config(),
        "S 0:0(0) win 0",
        "0.0 > S. 0:0(0) ack 1
         0.1 abort
         0.1 > R. 1:1(0) ack 1
         0.1 state CLOSED",
    );
}

// RFC 9293 §3.10.7.4: the segment that acknowledges our SYN may carry data and a FIN.
#[test]
fn last_handshake_ack_may_carry_text_and_fin() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0.0 > S. 0:0(0) ack 1
         0.1 < F. 1:51(50) ack 1 win 5000
         0.1 > . 1:1(0) ack 52
         0.1 state CLOSE-WAIT
         0.1 event Connected
         0.1 event RemoteClosed
         0.1 got 50",
    );
}

// A full batch delays data and acknowledgement. A segment of the next batch carries both.
#[test]
fn full_batch_delays_answers_without_loss() {
    established(
        config_with(config(), |c| c.acks.delay = Duration::ZERO),
        "0.0 batch 0
         0.1 < P. 1:11(10) ack 1 win 5000
         0.1 write 100
         0.2 batch 10
         0.2 > P. 1:101(100) ack 11",
    );
}

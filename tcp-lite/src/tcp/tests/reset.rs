//! Resets and challenge ACKs (RFC 9293 §3.5.2, §3.5.3, §3.10.7.1, RFC 5961).

use super::script::{config, established};
use super::upper::Batch;
use crate::tcp::{Config, Flags, Segment, SeqNumber, reset_for};

fn answer_to(flags: Flags, payload: &[u8]) -> Option<(u32, u32, Flags)> {
    let seg = Segment {
        src_port: 5,
        dst_port: 7,
        seq: SeqNumber(u32::MAX),
        ack: SeqNumber(300),
        flags,
        payload,
        ..Segment::default()
    };
    let mut batch = Batch::new(1);
    let sent = reset_for(&seg, &mut batch);
    assert_eq!(sent, !batch.segments.is_empty());
    let bytes = batch.segments.pop()?;
    let reply = Segment::parse(&bytes).unwrap();
    assert_eq!((reply.src_port, reply.dst_port), (7, 5));
    Some((reply.seq.0, reply.ack.0, reply.flags))
}

// RFC 9293 §3.10.7.1: the reset for a segment with ACK has sequence number SEG.ACK. The reset for a segment without ACK
// has sequence number zero and acknowledges the whole segment. A reset is never answered.
#[test]
fn segments_without_connection_are_reset() {
    let rst_ack = Flags::RST.with(Flags::ACK);
    assert_eq!(answer_to(Flags::ACK, b"abc"), Some((300, 0, Flags::RST)));
    assert_eq!(answer_to(Flags::SYN, b""), Some((0, 0, rst_ack)));
    assert_eq!(answer_to(Flags::SYN.with(Flags::FIN), b"abc"), Some((0, 4, rst_ack)));
    assert_eq!(answer_to(Flags::RST, b""), None);
    assert_eq!(answer_to(rst_ack, b""), None);
}

#[test]
fn full_batch_sends_no_reset() {
    let seg = Segment { src_port: 1, dst_port: 2, ..Segment::default() };
    assert!(!reset_for(&seg, &mut Batch::new(0)));
}

/// All synchronized states: name, steps from ESTABLISHED to the state, the peer's next sequence number, and the close
/// reason after a reset.
const STATES: [(&str, &str, u32, &str); 7] = [
    ("ESTABLISHED", "", 1, "Reset"),
    ("CLOSE-WAIT", "1 < F. 1:1(0) ack 1 win 20000\n1 > . 1:1(0) ack 2", 2, "Reset"),
    ("FIN-WAIT-1", "1 close\n1 > F. 1:1(0) ack 1", 1, "Reset"),
    ("FIN-WAIT-2", "1 close\n1 > F. 1:1(0) ack 1\n1 < . 1:1(0) ack 2 win 20000", 1, "Reset"),
    (
        "CLOSING",
        "1 close\n1 > F. 1:1(0) ack 1\n1 < F. 1:1(0) ack 1 win 20000\n1 > . 2:2(0) ack 2",
        2,
        "Normal",
    ),
    (
        "LAST-ACK",
        "1 < F. 1:1(0) ack 1 win 20000\n1 > . 1:1(0) ack 2\n1 close\n1 > F. 1:1(0) ack 2",
        2,
        "Normal",
    ),
    (
        "TIME-WAIT",
        "1 close\n1 > F. 1:1(0) ack 1\n1 < F. 1:1(0) ack 2 win 20000\n1 > . 2:2(0) ack 2",
        2,
        "Normal",
    ),
];

// RFC 9293 §3.10.7.4, second check, 2): a reset at RCV.NXT is accepted in every synchronized state.
#[test]
fn an_exact_reset_ends_the_connection() {
    for (state, steps, nxt, reason) in STATES {
        let mut script = established(config(), steps);
        script.run(&format!(
            "1.05 state {state}
             1.05 < R {nxt}:{nxt}(0) win 0
             1.05 state CLOSED"
        ));
        let mut last = None;
        while let Some(event) = script.conn.poll_event() {
            last = Some(format!("{event:?}"));
        }
        assert_eq!(last.unwrap(), format!("Closed({reason})"), "{state}");
    }
}

// RFC 9293 §3.10.7.4, second check, 3), RFC 5961 §3.2: a reset elsewhere in the window is answered with a challenge ACK
// in every synchronized state.
#[test]
fn a_reset_in_the_window_is_challenged() {
    for (state, steps, nxt, _) in STATES {
        let mut script = established(config(), steps);
        let seq = nxt + 1;
        let ours = if ["ESTABLISHED", "CLOSE-WAIT"].contains(&state) { 1 } else { 2 };
        script.run(&format!(
            "1.05 state {state}
             1.05 < R {seq}:{seq}(0) win 0 ! BlindReset
             1.05 > . {ours}:{ours}(0) ack {nxt}
             1.05 state {state}"
        ));
        assert_eq!(script.conn.stats().challenge_acks, 1);
    }
}

// RFC 9293 §3.10.7.4, second check, 1): a reset outside the window is not answered.
#[test]
fn a_reset_outside_the_window_is_dropped() {
    established(
        config(),
        "1 < R 10001:10001(0) win 0 ! OutOfWindow
         1 < R 0:0(0) win 0 ! OutOfWindow
         1 state ESTABLISHED",
    );
}

// RFC 9293 §3.10.7.4, fourth check, RFC 5961 §4.2: a SYN with any sequence number is answered with a challenge ACK in
// every synchronized state.
#[test]
fn a_syn_is_challenged() {
    for (state, steps, nxt, _) in STATES {
        let mut script = established(config(), steps);
        let ours = if ["ESTABLISHED", "CLOSE-WAIT"].contains(&state) { 1 } else { 2 };
        for seq in [0, nxt, 50_000] {
            script.run(&format!(
                "1.05 < S {seq}:{seq}(0) win 0 ! UnexpectedSyn
                 1.05 > . {ours}:{ours}(0) ack {nxt}
                 1.05 state {state}"
            ));
        }
    }
}

// RFC 5961 §7: the number of challenge ACKs per second is limited, here to 3.
#[test]
fn challenges_are_limited() {
    let limited = Config { challenge_acks_per_second: 3, ..config() };
    let mut script = established(limited, "1 idle");
    for _ in 0..3 {
        script.run(
            "1.1 < R 100:100(0) win 0 ! BlindReset
             1.1 > . 1:1(0) ack 1",
        );
    }
    script.run(
        "1.1 < R 100:100(0) win 0 ! BlindReset
         1.1 < S 100:100(0) win 0 ! UnexpectedSyn
         1.1 < . 1:1(0) ack 7777 win 0 ! BadAck
         2.2 < R 100:100(0) win 0 ! BlindReset
         2.2 > . 1:1(0) ack 1",
    );
    assert_eq!(script.conn.stats().challenge_acks, 4);
}

// RFC 9293 §3.10.7.4, first check: empty segments outside the window are answered at a limited rate, so that two ends
// cannot answer each other for ever.
#[test]
fn answers_to_empty_segments_are_limited() {
    let limited = Config { challenge_acks_per_second: 2, ..config() };
    established(
        limited,
        "1.1 < . 50000:50000(0) ack 1 win 20000 ! OutOfWindow
         1.1 > . 1:1(0) ack 1
         1.1 < . 50000:50000(0) ack 1 win 20000 ! OutOfWindow
         1.1 > . 1:1(0) ack 1
         1.1 < . 50000:50000(0) ack 1 win 20000 ! OutOfWindow",
    );
}

// RFC 9293 §3.5.1, figure 9: an end that has lost its state answers our challenge ACK with a reset.
#[test]
fn half_open_connection_is_reset_after_challenge() {
    established(
        config(),
        "1.0 < S 90000:90000(0) win 1000 ! UnexpectedSyn
         1.0 > . 1:1(0) ack 1
         1.1 < R 1:1(0) win 0
         1.1 state CLOSED",
    );
}

//! Undo of spurious loss detections (RFC 3522, RFC 3708, RFC 4015). A peer cannot forge the evidence that causes an
//! undo.

use super::script::{Script, config, established, passive, timestamped};

// RFC 3522 §3.2: the acknowledgement of a retransmitted segment echoes the timestamp of the original, so the time-out
// was spurious.
#[test]
fn echo_of_original_timestamp_undoes_timeout() {
    let script = timestamped(
        "1.00 write 1976
         1.00 > . 1:989(988) ack 1
         1.00 > P. 989:1977(988) ack 1
         1.30 > P. 1:989(988) ack 1
         1.30 cwnd 988
         1.35 < . 1:1(0) ack 989 win 20000 <TS val 9 ecr 1000>
         1.35 cwnd 9880
         1.36 < . 1:1(0) ack 1977 win 20000 <TS val 9 ecr 1000>",
    );
    let stats = script.conn.stats();
    assert_eq!((stats.loss.undone_by_timestamp, stats.loss.timeouts), (1, 1));
    assert_eq!(stats.loss.segments_retransmitted, 1);
    assert_eq!(script.conn.info().ssthresh, u64::MAX);
}

// RFC 3522 §3.2: the acknowledgement echoes the timestamp of the retransmission, so the original was lost.
#[test]
fn echo_of_resend_timestamp_does_not_undo() {
    let script = timestamped(
        "1.00 write 1976
         1.00 > . 1:989(988) ack 1
         1.00 > P. 989:1977(988) ack 1
         1.30 > P. 1:989(988) ack 1
         1.40 < . 1:1(0) ack 989 win 20000 <TS val 9 ecr 1300>
         1.40 > P. 989:1977(988) ack 1
         1.50 < . 1:1(0) ack 1977 win 20000 <TS val 9 ecr 1400>",
    );
    assert_eq!(script.conn.stats().loss.undone_by_timestamp, 0);
}

// RFC 3708 §3 A: a D-SACK of more data than was ever retransmitted is ignored.
#[test]
fn d_sack_of_more_than_was_resent_is_ignored() {
    let mut script = established(
        config(),
        "1.0 write 8000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1
         1.0 > . 3001:4001(1000) ack 1
         1.0 > . 4001:5001(1000) ack 1
         1.0 > . 5001:6001(1000) ack 1
         1.0 > . 6001:7001(1000) ack 1
         1.0 > P. 7001:8001(1000) ack 1",
    );
    for _ in 0..5 {
        script.run("1.1 < . 1:1(0) ack 4001 win 20000 <sack 1:4001>");
    }
    script.run(
        "1.1 < . 1:1(0) ack 4001 win 20000 <sack 5001:8001>
         1.1 > P. 4001:5001(1000) ack 1
         1.2 < . 1:1(0) ack 8001 win 20000 <sack 1:4001>",
    );
    let stats = script.conn.stats();
    assert_eq!(
        (stats.loss.d_sacks_in, stats.loss.undone_by_d_sack, stats.loss.fast_recoveries),
        (6, 0, 1)
    );
}

/// Returns a connection that has sent ten segments over a path with a round trip of 100 ms. The first segment is lost
/// or late, and was retransmitted after three others were SACKed.
pub(super) fn recovering() -> Script {
    established(
        config(),
        "1.0 write 10000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1
         1.0 > . 3001:4001(1000) ack 1
         1.0 > . 4001:5001(1000) ack 1
         1.0 > . 5001:6001(1000) ack 1
         1.0 > . 6001:7001(1000) ack 1
         1.0 > . 7001:8001(1000) ack 1
         1.0 > . 8001:9001(1000) ack 1
         1.0 > P. 9001:10001(1000) ack 1
         1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:4001>
         1.1 > P. 1:1001(1000) ack 1",
    )
}

fn undone_counts(script: &Script) -> (u64, u64) {
    (script.conn.stats().loss.undone_by_d_sack, script.conn.stats().loss.fast_recoveries)
}

// RFC 3708 §3 A.4: D-SACKs of segments that were sent once report copies made by the network. Such D-SACKs are not
// evidence of a spurious retransmission, even if the sizes are equal.
#[test]
fn network_duplicates_do_not_undo_recovery() {
    let mut script = recovering();
    let reduced = script.conn.info().cwnd;
    script.run(
        "1.11 < . 1:1(0) ack 1 win 20000 <sack 2001:3001 1001:4001>
         1.12 < . 1:1(0) ack 1 win 20000 <sack 1001:2001 1001:4001>
         1.20 < . 1:1(0) ack 10001 win 20000
         1.20 cwnd 7000
         1.21 < . 1:1(0) ack 10001 win 20000 <sack 8001:9001>",
    );
    assert!(script.conn.info().cwnd <= reduced);
    assert_eq!((undone_counts(&script), script.conn.info().ssthresh), ((0, 1), 7000));
}

// RFC 3708 §3 A.4: a D-SACK for a copy of a needed retransmission undoes nothing, whether the copy is real or only
// claimed by the peer. The first acknowledgement of the range arrived a round trip after the retransmission.
#[test]
fn duplicate_of_needed_resend_does_not_undo() {
    let mut script = recovering();
    script.run(
        "1.20 < . 1:1(0) ack 10001 win 20000
         1.20 < . 1:1(0) ack 10001 win 20000 <sack 1:1001>
         1.21 < . 1:1(0) ack 10001 win 20000 <sack 1:1001>",
    );
    assert_eq!((undone_counts(&script), script.conn.info().ssthresh), ((0, 1), 7000));
    // RFC 3708 §3 A.1: the D-SACK arrives in the segment that acknowledges the range.
    let mut script = recovering();
    script.run("1.20 < . 1:1(0) ack 10001 win 20000 <sack 1:1001>");
    assert_eq!((undone_counts(&script), script.conn.info().ssthresh), ((0, 1), 7000));
}

// RFC 3708 §3 B.1: the first segment was late, not lost, so the recovery is undone.
#[test]
fn needless_recovery_is_undone_despite_network_duplicates() {
    let mut script = recovering();
    script.run(
        "1.12 < . 1:1(0) ack 1 win 20000 <sack 2001:3001 1001:4001>
         1.13 < . 1:1(0) ack 4001 win 20000
         1.14 < . 1:1(0) ack 4001 win 20000 <sack 3001:4001>
         1.20 < . 1:1(0) ack 10001 win 20000 <sack 1:1001>",
    );
    assert_eq!((undone_counts(&script), script.conn.info().ssthresh), ((1, 1), u64::MAX));
}

// RFC 3708 §3 B.1: both retransmissions must be reported. Two reports of the same retransmission do not suffice.
#[test]
fn d_sack_repeated_for_one_range_does_not_undo() {
    let run = |second: &str| {
        let mut script = recovering();
        script.run(&format!(
            "1.10 < . 1:1(0) ack 1 win 20000 <sack 5001:10001 1001:4001>
             1.10 > P. 4001:5001(1000) ack 1
             1.11 < . 1:1(0) ack 4001 win 20000 <sack 5001:10001>
             1.12 < . 1:1(0) ack 10001 win 20000
             1.20 < . 1:1(0) ack 10001 win 20000 <sack 1:1001>
             1.21 < . 1:1(0) ack 10001 win 20000 <sack {second}>",
        ));
        undone_counts(&script).0
    };
    assert_eq!(run("1:1001"), 0);
    assert_eq!(run("4001:5001"), 1);
}

// RFC 8985 §6.2 step 4: D-SACKs of segments that were sent once do not widen the reordering window, which stays a
// quarter of a round trip.
#[test]
fn network_duplicates_do_not_widen_reo_wnd() {
    passive(
        config(),
        "S 0:0(0) win 20000 <mss 1000,sackOK>",
        "0.0 > S. 0:0(0) ack 1
         0.1 < . 1:1(0) ack 1 win 20000
         1.0 write 4000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1
         1.0 > P. 3001:4001(1000) ack 1
         1.1 < . 1:1(0) ack 1001 win 20000
         1.1 < . 1:1(0) ack 1001 win 20000 <sack 1:1001>
         1.1 < . 1:1(0) ack 1001 win 20000 <sack 2001:3001>
         1.125 > P. 1001:2001(1000) ack 1",
    );
}

//! RFC 3522, RFC 3708, RFC 4015: what was no loss is undone, and a peer cannot make us believe so.

use super::script::{config, established, timestamped};

// RFC 3522 §3.2: the acknowledgement of a retransmitted segment echoes the timestamp of the original.
#[test]
fn an_older_timestamp_undoes_a_timeout() {
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
    assert_eq!((stats.undone_by_timestamp, stats.timeouts), (1, 1));
    assert_eq!(stats.segments_retransmitted, 1);
    assert_eq!(script.conn.info().ssthresh, u64::MAX);
}

// The timestamp of the retransmission proves nothing.
#[test]
fn the_retransmissions_timestamp_undoes_nothing() {
    let script = timestamped(
        "1.00 write 1976
         1.00 > . 1:989(988) ack 1
         1.00 > P. 989:1977(988) ack 1
         1.30 > P. 1:989(988) ack 1
         1.40 < . 1:1(0) ack 989 win 20000 <TS val 9 ecr 1300>
         1.40 > P. 989:1977(988) ack 1
         1.50 < . 1:1(0) ack 1977 win 20000 <TS val 9 ecr 1400>",
    );
    assert_eq!(script.conn.stats().undone_by_timestamp, 0);
}

// RFC 3708 §4: a peer that tells of more than was ever sent twice is not believed.
#[test]
fn d_sacks_of_nothing_are_not_believed() {
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
    assert_eq!((stats.d_sacks_in, stats.undone_by_d_sack, stats.fast_recoveries), (6, 0, 1));
}

//! Loss recovery (RFC 5681, RFC 6675, RFC 6582, RFC 8985, RFC 2018 §5).

use super::script::{config, config_with, established};
use crate::tcp::{Config, CongestionControl};

fn reno_config() -> Config {
    Config { congestion: CongestionControl::NewReno, ..config() }
}

fn config_without_sack() -> Config {
    config_with(reno_config(), |c| c.extensions.sack = false)
}

/// Steps that send ten segments of 1000 bytes, a whole initial window.
const TEN_SEGMENTS: &str = "1.0 write 10000
    1.0 > . 1:1001(1000) ack 1
    1.0 > . 1001:2001(1000) ack 1
    1.0 > . 2001:3001(1000) ack 1
    1.0 > . 3001:4001(1000) ack 1
    1.0 > . 4001:5001(1000) ack 1
    1.0 > . 5001:6001(1000) ack 1
    1.0 > . 6001:7001(1000) ack 1
    1.0 > . 7001:8001(1000) ack 1
    1.0 > . 8001:9001(1000) ack 1
    1.0 > P. 9001:10001(1000) ack 1";

fn with_ten_segments(config: Config, steps: &str) -> super::script::Script {
    let mut script = established(config, TEN_SEGMENTS);
    script.run(steps);
    script
}

// RFC 8985 §6.2, RFC 6937: once three segments above a hole are SACKed, the hole is retransmitted. The congestion
// window is halved by the end of the recovery.
#[test]
fn sack_triggers_fast_retransmit() {
    let script = with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:2001>
         1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:3001>
         1.1 cwnd 10000
         1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:4001>
         1.1 > P. 1:1001(1000) ack 1
         1.1 cwnd 7000
         1.2 < . 1:1(0) ack 10001 win 20000
         1.2 cwnd 5000
         1.2 acked 10000",
    );
    assert_eq!(script.conn.stats().loss.fast_recoveries, 1);
    assert_eq!(script.conn.stats().loss.segments_lost, 1);
    assert_eq!(script.conn.stats().loss.segments_retransmitted, 1);
}

// RFC 6675 §5 (2): one acknowledgement with enough SACKed data suffices, because a receiver may acknowledge a burst
// once.
#[test]
fn single_sack_of_burst_triggers_fast_retransmit() {
    with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:10001>
         1.1 > P. 1:1001(1000) ack 1",
    );
}

// RFC 6675 §4, NextSeg (1): lost segments are retransmitted in order of sequence number, as far as the congestion
// window allows.
#[test]
fn several_holes_are_repaired_in_one_round_trip() {
    with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000 <sack 3001:4001 5001:10001>
         1.1 > P. 1:1001(1000) ack 1
         1.1 > P. 1001:2001(1000) ack 1
         1.1 > P. 2001:3001(1000) ack 1
         1.1 > P. 4001:5001(1000) ack 1
         1.2 < . 1:1(0) ack 2001 win 20000 <sack 3001:4001 5001:10001>
         1.2 < . 1:1(0) ack 10001 win 20000",
    );
}

// RFC 6675 §4, SetPipe, RFC 6937: no more bytes are retransmitted than have left the network.
#[test]
fn retransmissions_fit_the_reduced_window() {
    with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000 <sack 2001:3001 4001:5001 6001:8001>
         1.1 > P. 1:1001(1000) ack 1
         1.1 > P. 1001:2001(1000) ack 1
         1.1 > P. 3001:4001(1000) ack 1
         1.15 < . 1:1(0) ack 1 win 20000 <sack 2001:3001 4001:5001 6001:9001>
         1.15 > P. 5001:6001(1000) ack 1
         1.25 < . 1:1(0) ack 10001 win 20000",
    );
}

// RFC 6675 §4, NextSeg (2): new data is sent when no lost segment awaits retransmission.
#[test]
fn new_data_follows_retransmissions_in_recovery() {
    with_ten_segments(
        reno_config(),
        "1.05 write 3000
         1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:8001>
         1.1 > P. 1:1001(1000) ack 1
         1.1 > . 10001:11001(1000) ack 1
         1.1 > . 11001:12001(1000) ack 1
         1.2 < . 1:1(0) ack 10001 win 20000
         1.2 > P. 12001:13001(1000) ack 1
         1.3 < . 1:1(0) ack 13001 win 20000",
    );
}

// RFC 8985 §6.2: a retransmission is lost if a segment sent after it was SACKed.
#[test]
fn lost_retransmission_is_repeated_in_recovery() {
    let script = with_ten_segments(
        reno_config(),
        "1.05 write 4000
         1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:9001>
         1.1 > P. 1:1001(1000) ack 1
         1.1 > . 10001:11001(1000) ack 1
         1.1 > . 11001:12001(1000) ack 1
         1.1 > . 12001:13001(1000) ack 1
         1.15 < . 1:1(0) ack 1 win 20000 <sack 1001:11001>
         1.15 > P. 1:1001(1000) ack 1
         1.15 > P. 13001:14001(1000) ack 1
         1.2 < . 1:1(0) ack 1 win 20000 <sack 1001:14001>
         1.2 > P. 1:1001(1000) ack 1
         1.3 < . 1:1(0) ack 14001 win 20000",
    );
    assert_eq!(script.conn.stats().loss.fast_recoveries, 1);
    assert_eq!(script.conn.stats().loss.timeouts, 0);
}

// RFC 8985 §9.1, example 1: the lost tail is retransmitted without a time-out.
#[test]
fn ack_of_retransmission_reveals_lost_tail() {
    let script = with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:9001>
         1.1 > P. 1:1001(1000) ack 1
         1.2 < . 1:1(0) ack 9001 win 20000
         1.2 > P. 9001:10001(1000) ack 1
         1.3 < . 1:1(0) ack 10001 win 20000",
    );
    assert_eq!(script.conn.stats().loss.timeouts, 0);
}

// RFC 5681 §3.2, RFC 3042: limited transmit, with and without SACK.
#[test]
fn first_two_dup_acks_send_new_data() {
    for config in [reno_config(), config_without_sack()] {
        let sack = config.extensions.sack;
        let mut script = with_ten_segments(config, "1.05 write 5000");
        for (i, until) in [2001, 3001].iter().enumerate() {
            let options = if sack { format!("<sack 1001:{until}>") } else { String::new() };
            let (start, end) = (10_001 + i * 1000, 11_001 + i * 1000);
            script.run(&format!(
                "1.1 < . 1:1(0) ack 1 win 20000 {options}
                 1.1 > . {start}:{end}(1000) ack 1"
            ));
        }
        let options = if sack { "<sack 1001:4001>" } else { "" };
        script.run(&format!(
            "1.1 < . 1:1(0) ack 1 win 20000 {options}
             1.1 > P. 1:1001(1000) ack 1"
        ));
        assert_eq!(script.conn.info().ssthresh, 5000);
    }
}

// RFC 5681 §3.2 (2): three duplicate acknowledgements start recovery. RFC 6582 §3.2 (3): after a partial
// acknowledgement the next hole is retransmitted.
#[test]
fn newreno_recovers_without_sack() {
    let script = with_ten_segments(
        config_without_sack(),
        "1.1 < . 1:1(0) ack 1 win 20000
         1.1 < . 1:1(0) ack 1 win 20000
         1.1 < . 1:1(0) ack 1 win 20000
         1.1 > P. 1:1001(1000) ack 1
         1.1 cwnd 5000
         1.1 < . 1:1(0) ack 1 win 20000
         1.2 < . 1:1(0) ack 5001 win 20000
         1.2 > P. 5001:6001(1000) ack 1
         1.3 < . 1:1(0) ack 10001 win 20000
         1.3 acked 10000",
    );
    assert_eq!(script.conn.stats().loss.fast_recoveries, 1);
    assert_eq!(script.conn.stats().loss.duplicate_acks_in, 4);
}

// RFC 5681 §2: acknowledgements with data, with a new window, or with nothing in flight are not duplicates.
#[test]
fn acks_with_text_or_new_window_are_not_duplicates() {
    let script = with_ten_segments(
        config_without_sack(),
        "1.1 < . 1:1(0) ack 1 win 20000
         1.1 < . 1:1(0) ack 1 win 20001
         1.1 < . 1:1(0) ack 1 win 20002
         1.1 < . 1:1(0) ack 1 win 20003
         1.1 < P. 1:11(10) ack 1 win 20003
         1.12 < . 11:11(0) ack 10001 win 20003
         1.14 > . 10001:10001(0) ack 11
         1.2 < . 11:11(0) ack 10001 win 20003
         1.2 < . 11:11(0) ack 10001 win 20003
         1.2 < . 11:11(0) ack 10001 win 20003",
    );
    assert_eq!(script.conn.stats().loss.duplicate_acks_in, 1);
    assert_eq!(script.conn.stats().loss.fast_recoveries, 0);
}

// RFC 6675 §2: with SACK, an acknowledgement without new SACK information is not a duplicate.
#[test]
fn with_sack_bare_duplicate_is_not_a_dup_ack() {
    let script = with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000
         1.1 < . 1:1(0) ack 1 win 20000
         1.1 < . 1:1(0) ack 1 win 20000
         1.1 < . 1:1(0) ack 1 win 20000",
    );
    assert_eq!(script.conn.stats().loss.fast_recoveries, 0);
}

// RFC 2018 §5: invalid SACK blocks, and blocks below SND.UNA (RFC 2883), are ignored.
#[test]
fn invalid_sack_blocks_are_skipped() {
    let script = with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 2001 win 20000 <sack 1:1001 1001:2001>
         1.1 < . 1:1(0) ack 2001 win 20000 <sack 5001:50001 4001:3001>
         1.1 < . 1:1(0) ack 2001 win 20000 <sack 3001:3001 1500:2500>",
    );
    assert_eq!(script.conn.stats().loss.duplicate_acks_in, 0);
    assert_eq!(script.conn.stats().loss.fast_recoveries, 0);
}

// RFC 6675 §5.1, RFC 2018 §8: after a time-out, slow start retransmits all data that is not SACKed.
#[test]
fn timeout_does_not_resend_sacked_data() {
    with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000 <sack 2001:4001>
         1.1025 > P. 1:1001(1000) ack 1
         1.3025 > P. 1:1001(1000) ack 1
         1.3025 cwnd 1000
         1.4 < . 1:1(0) ack 1001 win 20000 <sack 2001:4001>
         1.4 > P. 1001:2001(1000) ack 1
         1.4 > P. 4001:5001(1000) ack 1
         1.5 < . 1:1(0) ack 10001 win 20000",
    );
}

// RFC 2018 §8: the peer acknowledges only the first segment although it SACKed all others, so it has reneged. The
// time-out discards the SACK information.
#[test]
fn reneged_data_is_resent_after_timeout() {
    with_ten_segments(
        reno_config(),
        "1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:10001>
         1.1 > P. 1:1001(1000) ack 1
         1.2 < . 1:1(0) ack 1001 win 20000
         1.4 > P. 1001:2001(1000) ack 1
         1.5 < . 1:1(0) ack 2001 win 20000
         1.5 > P. 2001:3001(1000) ack 1
         1.5 > P. 3001:4001(1000) ack 1
         1.6 < . 1:1(0) ack 10001 win 20000",
    );
}

// RFC 5681 §3.1: in slow start, the congestion window grows by the acknowledged bytes, here 2000.
#[test]
fn slow_start_grows_by_acknowledged_bytes() {
    let mut script = with_ten_segments(Config { pacing: false, ..reno_config() }, "");
    script.run(
        "1.05 write 20000
         1.1 < . 1:1(0) ack 2001 win 40000
         1.1 > . 10001:11001(1000) ack 1
         1.1 > . 11001:12001(1000) ack 1
         1.1 > . 12001:13001(1000) ack 1
         1.1 > . 13001:14001(1000) ack 1
         1.1 cwnd 12000",
    );
}

// RFC 5681 §3.1, RFC 7661: the congestion window grows only if it is used.
#[test]
fn an_unused_window_does_not_grow() {
    established(
        config(),
        "1.0 write 1000
         1.0 > P. 1:1001(1000) ack 1
         1.1 < . 1:1(0) ack 1001 win 20000
         1.1 cwnd 10000",
    );
}

// RFC 5681 §4.1: after an idle period longer than the RTO, the congestion window is at most the
// initial window.
#[test]
fn idle_restart_returns_to_initial_window() {
    let mut script = with_ten_segments(reno_config(), "");
    script.run(
        "1.05 write 2000
         1.1 < . 1:1(0) ack 10001 win 40000
         1.1 > . 10001:11001(1000) ack 1
         1.1 > P. 11001:12001(1000) ack 1
         1.1 cwnd 20000
         1.2 < . 1:1(0) ack 12001 win 40000
         9.0 write 1000
         9.0 > P. 12001:13001(1000) ack 1
         9.0 cwnd 10000",
    );
}

// RFC 5681 §3.1: the congestion window limits the flight although the peer's window is larger.
#[test]
fn the_initial_window_is_ten_segments() {
    let mut script = established(config(), "0.5 < . 1:1(0) ack 1 win 60000");
    script.run(TEN_SEGMENTS);
    script.run("1.0 write 1000");
}

// Only the unacknowledged part of the segment is retransmitted.
#[test]
fn a_partly_acknowledged_segment_is_cut() {
    established(
        config(),
        "1.0 write 1000
         1.0 > P. 1:1001(1000) ack 1
         1.1 < . 1:1(0) ack 401 win 20000
         1.1 acked 400
         1.3 > P. 401:1001(600) ack 1
         1.4 < . 1:1(0) ack 1001 win 20000",
    );
}

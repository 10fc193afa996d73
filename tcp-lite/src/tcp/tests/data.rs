//! Received data and its acknowledgement (RFC 9293 §3.8.6.3, §3.10.7.4 seventh check, RFC 5681 §4.2, RFC 2018 §4).

use super::script::{config, config_with, established};
use crate::tcp::Config;
use std::time::Duration;

fn config_without_sack() -> Config {
    config_with(config(), |c| c.extensions.sack = false)
}

// RFC 9293 §3.8.6.3 MUST-40, SHLD-18: the delay is 40 ms here.
#[test]
fn single_segment_is_acknowledged_after_the_delay() {
    established(
        config(),
        "1.00 < P. 1:101(100) ack 1 win 20000
         1.00 got 100
         1.04 > . 1:1(0) ack 101 win 9900",
    );
}

// RFC 9293 §3.8.6.3 SHLD-19: a third segment alone is acknowledged after the delay of 40 ms.
#[test]
fn every_second_segment_is_acknowledged_at_once() {
    established(
        config(),
        "1.00 < . 1:1001(1000) ack 1 win 20000
         1.01 < . 1001:2001(1000) ack 1 win 20000
         1.01 > . 1:1(0) ack 2001 win 10000
         1.02 < . 2001:3001(1000) ack 1 win 20000
         1.06 > . 1:1(0) ack 3001",
    );
}

// RFC 9293 §3.10.7.4 MUST-58, MUST-59: acknowledgements of segments that arrive together are aggregated.
#[test]
fn a_burst_gets_one_acknowledgement() {
    established(
        config(),
        "1 <+ . 1:1001(1000) ack 1 win 20000
         1 <+ . 1001:2001(1000) ack 1 win 20000
         1 <+ . 2001:3001(1000) ack 1 win 20000
         1 <+ . 3001:4001(1000) ack 1 win 20000
         1 < P. 4001:5001(1000) ack 1 win 20000
         1 > . 1:1(0) ack 5001 win 10000",
    );
}

// RFC 9293 §3.10.7.4: no separate acknowledgement is sent if a data segment carries it.
#[test]
fn acknowledgement_is_piggybacked_on_data() {
    established(
        config(),
        "1.00 < P. 1:101(100) ack 1 win 20000
         1.01 write 50
         1.01 > P. 1:51(50) ack 101
         1.10 < . 101:101(0) ack 51 win 20000
         2.00 state ESTABLISHED",
    );
}

// A delay of zero disables delayed acknowledgements.
#[test]
fn without_delay_every_segment_is_acknowledged() {
    established(
        config_with(config(), |c| c.acks.delay = Duration::ZERO),
        "1 < P. 1:101(100) ack 1 win 20000
         1 > . 1:1(0) ack 101",
    );
}

// RFC 9293 §3.10.7.4 SHLD-31, RFC 5681 §4.2: the bytes of a segment beyond a gap are handed to the upper layer at once
// (`spans`). This segment, and the one that fills the gap, are acknowledged at once.
#[test]
fn bytes_beyond_a_gap_are_handed_up_at_once() {
    established(
        config(),
        "1 < . 1001:2001(1000) ack 1 win 20000
         1 spans 1000:2000
         1 > . 1:1(0) ack 1 win 10000 <sack 1001:2001>
         1 got 0
         2 < . 1:1001(1000) ack 1 win 20000
         2 spans 0:1000
         2 got 2000
         2 > . 1:1(0) ack 2001 win 10000",
    );
}

// RFC 2018 §4: the first block contains the segment received last; the others follow, most recent first.
#[test]
fn sack_blocks_report_the_most_recent_first() {
    established(
        config(),
        "1 < . 101:201(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 101:201>
         1 < . 301:401(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 301:401 101:201>
         1 < . 501:601(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 501:601 301:401 101:201>
         1 < . 201:251(50) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 101:251 501:601 301:401>
         1 < . 701:801(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 701:801 101:251 501:601 301:401>
         1 < . 901:951(50) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 901:951 701:801 101:251 501:601>",
    );
}

// RFC 2018 §4: after a duplicate beyond the gap, the block that contains it is first, behind the D-SACK block.
#[test]
fn a_duplicate_beyond_the_gap_reports_its_block() {
    established(
        config(),
        "1 < . 101:201(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 101:201>
         1 < . 301:401(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 301:401 101:201>
         1 < . 101:201(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 101:201 101:201 301:401>",
    );
}

// RFC 2018 §3: with timestamps, the options have room for three SACK blocks.
#[test]
fn timestamps_leave_room_for_three_sack_blocks() {
    let mut script = super::script::passive(
        config_with(config(), |c| c.extensions.timestamps = true),
        "S 0:0(0) win 20000 <mss 1000,sackOK,TS val 7 ecr 0>",
        "0 > S. 0:0(0) ack 1
         0 < . 1:1(0) ack 1 win 20000 <TS val 7 ecr 0>",
    );
    script.run(
        "1 < . 101:201(100) ack 1 win 20000 <TS val 7 ecr 0>
         1 > . 1:1(0) ack 1 win 10000 <TS val 1000 ecr 7,sack 101:201>
         1 <+ . 301:401(100) ack 1 win 20000 <TS val 7 ecr 0>
         1 <+ . 501:601(100) ack 1 win 20000 <TS val 7 ecr 0>
         1 < . 701:801(100) ack 1 win 20000 <TS val 7 ecr 0>
         1 > . 1:1(0) ack 1 win 10000 <TS val 1000 ecr 7,sack 701:801 501:601 301:401>",
    );
}

// The data segment is followed by a pure acknowledgement with the SACK blocks.
#[test]
fn sack_blocks_are_never_sent_on_data() {
    established(
        config(),
        "1 <+ . 101:201(100) ack 1 win 20000
         1 write 50
         1 > P. 1:51(50) ack 1
         1 > . 51:51(0) ack 1 <sack 101:201>",
    );
}

// RFC 5681 §4.2: a peer without SACK counts duplicate acknowledgements, so each segment beyond a gap is answered with
// one.
#[test]
fn without_sack_each_segment_beyond_a_gap_gets_a_dup_ack() {
    established(
        config_without_sack(),
        "1 <+ . 1001:2001(1000) ack 1 win 20000
         1 <+ . 2001:3001(1000) ack 1 win 20000
         1 < . 3001:4001(1000) ack 1 win 20000
         1 > . 1:1(0) ack 1
         1 > . 1:1(0) ack 1
         1 > . 1:1(0) ack 1
         2 < . 1:1001(1000) ack 1 win 20000
         2 > . 1:1(0) ack 4001",
    );
}

// RFC 9293 §3.10.7.4: a segment that overlaps received data is trimmed to its new bytes.
#[test]
fn straddling_segment_hands_up_only_new_bytes() {
    established(
        config(),
        "1 <+ . 101:201(100) ack 1 win 20000
         1 <+ . 301:401(100) ack 1 win 20000
         1 spans 100:200 300:400
         1 < . 51:451(400) ack 1 win 20000
         1 spans 50:100 200:300 400:450
         1 > . 1:1(0) ack 1 <sack 101:201 51:451>
         2 < . 1:501(500) ack 1 win 20000
         2 spans 0:50 450:500
         2 got 500
         2 > . 1:1(0) ack 501 <sack 51:451>",
    );
}

// RFC 9293 §3.10.7.4: a duplicate is not passed to the upper layer. A partial duplicate is trimmed.
#[test]
fn duplicates_are_acknowledged_at_once() {
    let script = established(
        config(),
        "1.00 < P. 1:101(100) ack 1 win 20000
         1.04 > . 1:1(0) ack 101
         1.10 < P. 1:101(100) ack 1 win 20000 ! OutOfWindow
         1.10 > . 1:1(0) ack 101 <sack 1:101>
         1.20 < P. 51:151(100) ack 1 win 20000
         1.20 > . 1:1(0) ack 151 <sack 51:101>
         1.20 spans 0:100 100:150",
    );
    assert_eq!(script.conn.stats().recv.bytes_duplicate, 150);
    assert_eq!(script.conn.stats().recv.bytes, 150);
}

// RFC 9293 §3.10.7.4: a segment of 1200 bytes exceeds a window of 1000 bytes; the bytes beyond the window are dropped.
#[test]
fn bytes_beyond_the_window_are_trimmed() {
    established(
        Config { receive_window: 1000, ..config() },
        "1 room 0
         1 < . 1:1201(1200) ack 1 win 20000
         1 spans 0:1000
         1 > . 1:1(0) ack 1001 win 0",
    );
}

// Bytes that the upper layer refuses are treated as never received.
#[test]
fn refused_bytes_are_not_acknowledged() {
    let script = established(
        config(),
        "1 take none
         1 < . 1:1001(1000) ack 1 win 20000 ! Refused
         1 > . 1:1(0) ack 1 win 10000
         1 < . 2001:3001(1000) ack 1 win 20000 ! Refused
         1 > . 1:1(0) ack 1 win 10000
         1 take all
         2 < . 1:1001(1000) ack 1 win 20000
         2 got 1000
         2.04 > . 1:1(0) ack 1001",
    );
    assert_eq!(script.conn.stats().recv.bytes_refused, 2000);
}

// The upper layer accepts a part at the front, in the middle and at the end; the peer retransmits the rest.
#[test]
fn partly_taken_segment_is_completed_by_resend() {
    established(
        config(),
        "1 take 0:300
         1 < . 1:1001(1000) ack 1 win 20000
         1 > . 1:1(0) ack 301
         1 got 300
         2 take 500:700
         2 < . 301:1001(700) ack 1 win 20000
         2 > . 1:1(0) ack 301 <sack 501:701>
         3 take 700:2000
         3 < . 301:1001(700) ack 1 win 20000
         3 > . 1:1(0) ack 301 <sack 501:701 501:1001>
         4 take all
         4 < . 301:1001(700) ack 1 win 20000
         4 got 1000
         4 > . 1:1(0) ack 1001 <sack 501:1001>",
    );
}

// With `max_ranges` stored ranges, a new range is refused without a call of the upper layer. Bytes in order, and bytes
// that touch a stored range, are still passed to the upper layer.
#[test]
fn out_of_order_ranges_are_bounded() {
    established(
        Config { max_ranges: 2, ..config() },
        "1 <+ . 101:201(100) ack 1 win 20000
         1 < . 301:401(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 301:401 101:201>
         1 < . 501:601(100) ack 1 win 20000 ! Refused
         1 > . 1:1(0) ack 1 <sack 301:401 101:201>
         1 spans 100:200 300:400
         1 < . 401:501(100) ack 1 win 20000
         1 > . 1:1(0) ack 1 <sack 301:501 101:201>
         1 < . 1:101(100) ack 1 win 20000
         1 > . 1:1(0) ack 201 <sack 301:501>",
    );
}

// RFC 9293 §3.8.5, RFC 6093: the urgent pointer is ignored.
#[test]
fn urgent_bytes_are_ordinary_bytes() {
    established(
        config(),
        "1.00 < PU. 1:101(100) ack 1 win 20000
         1.00 got 100
         1.04 > . 1:1(0) ack 101",
    );
}

// RFC 9293 §3.10.7.4, fifth check: the data of a segment without ACK is not passed to the upper layer.
#[test]
fn a_segment_without_ack_is_dropped() {
    established(
        config(),
        "1 < P 1:101(100) win 20000 ! NoAck
         1 got 0",
    );
}

// RFC 9293 §3.9.1.2 MUST-61: PSH on the last segment of the available data.
#[test]
fn push_is_on_the_last_segment() {
    established(
        config(),
        "1 write 2500
         1 > . 1:1001(1000) ack 1
         1 > . 1001:2001(1000) ack 1
         1 > P. 2001:2501(500) ack 1
         1 < . 1:1(0) ack 2501 win 20000
         1 acked 2500",
    );
}

// RFC 9293 §3.7.4 MUST-17: Nagle's algorithm is not used.
#[test]
fn small_segments_are_not_held_back() {
    established(
        config(),
        "1 write 10
         1 > P. 1:11(10) ack 1
         1 write 10
         1 > P. 11:21(10) ack 1
         1 < . 1:1(0) ack 21 win 20000",
    );
}

// RFC 9293 §3.10.7.4, RFC 5961 §5: an acknowledgement of data never sent, or a too old acknowledgement, is answered. An
// acknowledgement below SND.UNA, but within the largest window offered, is ignored.
#[test]
fn out_of_range_acks_are_answered_or_ignored() {
    established(
        config(),
        "1 write 100
         1 > P. 1:101(100) ack 1
         1 < . 1:1(0) ack 102 win 20000 ! BadAck
         1 > . 101:101(0) ack 1
         1 < . 1:1(0) ack 101 win 20000
         1 acked 100
         2 < P. 1:11(10) ack 1 win 20000
         2 got 10
         2.04 > . 101:101(0) ack 11
         3 < P. 11:21(10) ack -20001 win 20000 ! BadAck
         3 > . 101:101(0) ack 11",
    );
}

// Each segment has PSH if the minimum round trip is long, regardless of queueing delay. First path: 0.1 ms, later 100
// ms, so only the last segment has PSH. Second path: always 10 ms, so each segment has PSH.
#[test]
fn psh_on_each_segment_depends_on_min_rtt() {
    let config = config_with(config_without_sack(), |c| c.push_segments = true);
    established(
        config.clone(),
        "1.0000 write 2000
         1.0000 > . 1:1001(1000) ack 1
         1.0000 > P. 1001:2001(1000) ack 1
         1.0001 < . 1:1(0) ack 2001 win 20000
         1.1000 write 2000
         1.1000 > . 2001:3001(1000) ack 1
         1.1000 > P. 3001:4001(1000) ack 1
         1.2000 < . 1:1(0) ack 4001 win 20000
         1.2000 write 2000
         1.2000 > . 4001:5001(1000) ack 1
         1.2000 > P. 5001:6001(1000) ack 1",
    );
    established(
        config,
        "1.00 write 1000
         1.00 > P. 1:1001(1000) ack 1
         1.01 < . 1:1(0) ack 1001 win 20000
         1.01 write 2000
         1.01 > P. 1001:2001(1000) ack 1
         1.01 > P. 2001:3001(1000) ack 1",
    );
}

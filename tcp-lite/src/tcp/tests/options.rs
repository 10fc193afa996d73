//! Options: MSS (RFC 9293 §3.7.1, RFC 1191), window scale, timestamps and PAWS (RFC 7323), SACK (RFC 2018 §2).

use super::script::{active, config, config_with, established, passive};
use crate::tcp::{Config, Extensions, Flags, Options, Segment, SeqNumber, Timestamps};

fn config_with_all_extensions() -> Config {
    let extensions = Extensions { timestamps: true, window_scale: true, ..config().extensions };
    Config { extensions, receive_window: 1 << 20, ..config() }
}

// RFC 9293 §3.7.1 SHLD-5, RFC 7323 §2.2, §3.2, RFC 2018 §2: MSS, window scale, timestamps and SACK.
#[test]
fn syn_offers_all_extensions() {
    active(
        config_with_all_extensions(),
        "0 > S 0:0(0) win 65535 <mss 1000,sackOK,TS val 0 ecr 0,wscale 5>
         0.1 < S. 0:0(0) ack 1 win 5000 <mss 800,sackOK,TS val 9 ecr 0,wscale 3>
         0.1 > . 1:1(0) ack 1 win 32768 <TS val 100 ecr 9>
         0.1 emss 788",
    );
}

// RFC 7323 §2.2, §3.2, RFC 2018 §2: the SYN-ACK has only options that the SYN has.
#[test]
fn the_answer_repeats_only_what_was_offered() {
    passive(
        config_with_all_extensions(),
        "S 0:0(0) win 5000 <mss 800>",
        "0 > S. 0:0(0) ack 1 win 65535 <mss 1000>
         0 < . 1:1(0) ack 1 win 5000
         0 write 10
         0 > P. 1:11(10) ack 1 win 65535 <>",
    );
    passive(
        config_with_all_extensions(),
        "S 0:0(0) win 5000 <mss 800,sackOK,TS val 3 ecr 0,wscale 3>",
        "0 > S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,TS val 0 ecr 3,wscale 5>",
    );
}

// A disabled option is not accepted if the peer offers it.
#[test]
fn disabled_extensions_are_not_negotiated() {
    let off = config_with(config(), |c| c.extensions.sack = false);
    passive(
        off,
        "S 0:0(0) win 5000 <mss 800,sackOK,TS val 3 ecr 0,wscale 3>",
        "0 > S. 0:0(0) ack 1 win 10000 <mss 1000>",
    );
}

// RFC 9293 §3.7.1 MUST-15: the default MSS for IPv4.
#[test]
fn missing_mss_option_means_536() {
    passive(
        config(),
        "S 0:0(0) win 5000",
        "0 > S. 0:0(0) ack 1
         0 < . 1:1(0) ack 1 win 5000
         0 emss 536",
    );
}

// RFC 9293 §3.7.1 MUST-16: the effective MSS is the lesser of the peer's MSS and our interface's MSS (1000). A peer's
// MSS below 48 is raised to 48.
#[test]
fn effective_mss_is_smaller_mss_minus_options() {
    for (mss, emss) in
        [(9000, 1000), (700, 700), (88, 88), (87, 87), (48, 48), (47, 48), (1, 48), (0, 48)]
    {
        passive(
            config(),
            &format!("S 0:0(0) win 5000 <mss {mss}>"),
            &format!(
                "0 > S. 0:0(0) ack 1
                 0 < . 1:1(0) ack 1 win 5000
                 0 emss {emss}"
            ),
        );
    }
}

// RFC 6691 §2, RFC 7323 §3.2: the peer's MSS includes TCP options, so timestamps reduce the payload.
#[test]
fn timestamps_are_deducted_from_the_least_mss() {
    let config = config_with(config(), |c| c.extensions.timestamps = true);
    passive(
        config,
        "S 0:0(0) win 20000 <mss 48,sackOK,TS val 100 ecr 0>",
        "0 > S. 0:0(0) ack 1 win 10000 <mss 1000,sackOK,TS val 0 ecr 100>
         0 < . 1:1(0) ack 1 win 20000 <TS val 100 ecr 0>
         0 emss 36
         1 write 80
         1 > . 1:37(36) ack 1 <TS val 1000 ecr 100>
         1 > . 37:73(36) ack 1 <TS val 1000 ecr 100>
         1 > P. 73:81(8) ack 1 <TS val 1000 ecr 100>",
    );
}

// RFC 7323 §2.2, §2.3: the window of a SYN is not scaled. A shift above 14 is treated as 14.
#[test]
fn windows_are_scaled_after_the_syns() {
    for (offered, used) in [(0, 0), (7, 7), (14, 14), (15, 14), (255, 14)] {
        let script = passive(
            config_with_all_extensions(),
            &format!("S 0:0(0) win 5000 <mss 800,wscale {offered}>"),
            "0 > S. 0:0(0) ack 1 win 65535 <mss 1000,wscale 5>",
        );
        assert_eq!(script.conn.info().send_window, 5000);
        let mut script = script;
        script.run("0 < . 1:1(0) ack 1 win 100");
        assert_eq!(script.conn.info().send_window, 100 << used);
    }
}

/// Runs `steps` on an established connection with timestamps. The peer's TSval is 100 at time 0.
fn with_timestamps(steps: &str) {
    let config = config_with(config(), |c| c.extensions.timestamps = true);
    let mut script = passive(
        config,
        "S 0:0(0) win 20000 <mss 1000,sackOK,TS val 100 ecr 0>",
        "0 > S. 0:0(0) ack 1 win 10000 <mss 1000,sackOK,TS val 0 ecr 100>
         0 < . 1:1(0) ack 1 win 20000 <TS val 100 ecr 0>",
    );
    script.run(steps);
}

// RFC 7323 §4.3 (A): a delayed acknowledgement echoes the timestamp of the first segment that it acknowledges.
#[test]
fn delayed_acks_echo_the_earliest_timestamp() {
    with_timestamps(
        "1 <+ . 1:101(100) ack 1 win 20000 <TS val 101 ecr 0>
         1 <+ . 101:201(100) ack 1 win 20000 <TS val 102 ecr 0>
         1 < . 201:301(100) ack 1 win 20000 <TS val 103 ecr 0>
         1 > . 1:1(0) ack 301 win 9700 <TS val 1000 ecr 101>",
    );
}

// RFC 7323 §4.3 (B), (C): an acknowledgement of data beyond a gap echoes the last timestamp in order. An
// acknowledgement of the segment that fills the gap echoes the timestamp of that segment.
#[test]
fn timestamp_echo_around_a_gap_follows_rfc_7323() {
    with_timestamps(
        "1 <+ . 1:101(100) ack 1 win 20000 <TS val 101 ecr 0>
         1 < . 101:201(100) ack 1 win 20000 <TS val 102 ecr 0>
         1 > . 1:1(0) ack 201 win 9800 <TS val 1000 ecr 101>
         2 < . 301:401(100) ack 1 win 20000 <TS val 103 ecr 0>
         2 > . 1:1(0) ack 201 win 9800 <TS val 2000 ecr 101,sack 301:401>
         3 < . 201:301(100) ack 1 win 20000 <TS val 104 ecr 0>
         3 > . 1:1(0) ack 401 win 9600 <TS val 3000 ecr 104>",
    );
}

// RFC 7323 §5.3 R1: a segment with an old timestamp is dropped and answered with an acknowledgement, even if it is in
// order.
#[test]
fn old_timestamps_are_dropped() {
    with_timestamps(
        "1.00 < P. 1:101(100) ack 1 win 20000 <TS val 101 ecr 0>
         1.04 > . 1:1(0) ack 101 win 9900 <TS val 1040 ecr 101>
         2.00 < P. 101:201(100) ack 1 win 20000 <TS val 100 ecr 0> ! OldTimestamp
         2.00 > . 1:1(0) ack 101 win 9900 <TS val 2000 ecr 101>
         2.00 got 100
         3.00 < P. 101:201(100) ack 1 win 20000 <TS val 101 ecr 0>
         3.00 got 200
         3.04 > . 1:1(0) ack 201 win 9800 <TS val 3040 ecr 101>",
    );
}

// RFC 7323 §5.3 R1: the timestamp of a reset is not checked.
#[test]
fn a_reset_needs_no_timestamp() {
    with_timestamps(
        "1 < R 1:1(0) win 0
         1 state CLOSED",
    );
}

// RFC 7323 §3.2: a segment without the negotiated timestamp is dropped, and the connection continues.
#[test]
fn a_missing_timestamp_is_dropped_silently() {
    with_timestamps(
        "1 < P. 1:101(100) ack 1 win 20000 ! NoTimestamp
         2 state ESTABLISHED
         2 got 0",
    );
}

// RFC 7323 §5.5: after 24 days any timestamp is accepted.
#[test]
fn ts_recent_expires_after_24_days() {
    with_timestamps(
        "1000 < P. 1:101(100) ack 1 win 20000 <TS val 200 ecr 0>
         1000.04 > . 1:1(0) ack 101 win 9900 <TS val 1000040 ecr 200>
         2073000 < P. 101:201(100) ack 1 win 20000 <TS val 199 ecr 0> ! OldTimestamp
         2073000 > . 1:1(0) ack 101 win 9900 <TS val 2073000000 ecr 200>
         2074700 < P. 101:201(100) ack 1 win 20000 <TS val 199 ecr 0>
         2074700 got 200
         2074700.04 > . 1:1(0) ack 201 win 9800 <TS val 2074700040 ecr 199>",
    );
}

// RFC 7323 §3.2: a timestamp is ignored if timestamps were not negotiated.
#[test]
fn an_unexpected_timestamp_is_ignored() {
    established(
        config(),
        "1.00 < P. 1:101(100) ack 1 win 20000 <TS val 1 ecr 0>
         1.00 got 100
         1.04 > . 1:1(0) ack 101 win 9900 <>",
    );
}

// RFC 7323 §4.1: the echoed timestamp shows which transmission was acknowledged.
#[test]
fn retransmissions_are_measured_by_timestamps() {
    let config = config_with(config(), |c| c.extensions.timestamps = true);
    let mut script = passive(
        config,
        "S 0:0(0) win 20000 <mss 1000,TS val 100 ecr 0>",
        "0.0 > S. 0:0(0) ack 1 win 10000 <mss 1000,TS val 0 ecr 100>
         0.1 < . 1:1(0) ack 1 win 20000 <TS val 100 ecr 0>
         1.0 write 100
         1.0 > P. 1:101(100) ack 1
         1.3 > P. 1:101(100) ack 1
         1.4 < . 1:1(0) ack 101 win 20000 <TS val 101 ecr 1300>",
    );
    // The sample is 100 ms, from the retransmission. SRTT = 7/8 * 100 + 1/8 * 100.
    assert_eq!(script.conn.info().srtt.unwrap().as_millis(), 100);
    script.run("2 state ESTABLISHED");
}

// RFC 1191 §6.4: segments in flight that are too long are cut and retransmitted at once. Segments of new data do not
// exceed the new MSS. The MSS never exceeds the peer's MSS, and is at least 48.
#[test]
fn a_smaller_path_mtu_cuts_segments() {
    established(
        config(),
        "1 write 2500
         1 > . 1:1001(1000) ack 1
         1 > . 1001:2001(1000) ack 1
         1 > P. 2001:2501(500) ack 1
         1 mtu 600
         1 emss 600
         1 > P. 1:601(600) ack 1
         1 > P. 601:1001(400) ack 1
         1 > P. 1001:1601(600) ack 1
         1 > P. 1601:2001(400) ack 1
         1.1 < . 1:1(0) ack 2501 win 20000
         1.1 acked 2500
         1.2 write 700
         1.2 > . 2501:3101(600) ack 1
         1.2 > P. 3101:3201(100) ack 1
         1.3 < . 1:1(0) ack 3201 win 20000
         1.4 mtu 9000
         1.4 emss 1000
         1.5 mtu 1
         1.5 emss 48",
    );
}

// The source address of a SYN may be forged, so a SYN-ACK should not be longer than the SYN (amplification). All
// options of a SYN take at most 20 bytes.
#[test]
fn full_syn_options_take_twenty_bytes() {
    let timestamps = Some(Timestamps { val: 0x0102_0304, ecr: 5 });
    for sack_permitted in [false, true] {
        for timestamps in [None, timestamps] {
            let options = Options {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted,
                timestamps,
                ..Options::default()
            };
            let segment = Segment {
                src_port: 1,
                dst_port: 2,
                seq: SeqNumber(3),
                ack: SeqNumber(4),
                flags: Flags::SYN,
                window: 5,
                options: options.clone(),
                payload: &[],
                ce: false,
                text_crc: None,
            };
            let mut bytes = [0xaa; 60];
            let len = segment.emit(&mut bytes);
            assert_eq!(len, segment.wire_len());
            assert!(len <= 20 + 20, "{len} bytes of {options:?}");
            assert_eq!(Segment::parse(&bytes[..len]).unwrap().options, options);
        }
    }
}

//! Retransmission and keepalive (RFC 6298 §5, RFC 9293 §3.8.3, §3.8.4).

use super::script::{active, config, config_with, established, passive, timestamped};
use crate::tcp::{Config, Keepalive, Rto};
use std::time::Duration;

// RFC 6298 §5.1, §5.4, §5.5: the RTO doubles with each time-out.
#[test]
fn timeout_resends_oldest_segment_with_backoff() {
    let script = established(
        config(),
        "1.0 write 2000
         1.0 > . 1:1001(1000) ack 1
         1.0 > P. 1001:2001(1000) ack 1
         1.2 > P. 1:1001(1000) ack 1
         1.6 > P. 1:1001(1000) ack 1
         2.4 > P. 1:1001(1000) ack 1
         2.5 < . 1:1(0) ack 1001 win 20000
         2.5 > P. 1001:2001(1000) ack 1
         2.6 < . 1:1(0) ack 2001 win 20000",
    );
    assert_eq!(script.conn.stats().loss.timeouts, 3);
}

// RFC 6298 §5.2, §5.3: an acknowledgement of new data restarts the timer. An acknowledgement of all data stops it.
#[test]
fn acknowledgements_restart_and_stop_the_timer() {
    established(
        config(),
        "1.0 write 2000
         1.0 > . 1:1001(1000) ack 1
         1.0 > P. 1001:2001(1000) ack 1
         1.0 timer 1.200
         1.1 < . 1:1(0) ack 1001 win 20000
         1.1 timer 1.300
         1.2 < . 1:1(0) ack 2001 win 20000
         1.2 timer none",
    );
}

// RFC 6298 §3 (Karn's algorithm): the backed-off RTO is used until there is a new sample.
#[test]
fn resent_segment_gives_no_rtt_sample() {
    established(
        config(),
        "1.0 write 1000
         1.0 > P. 1:1001(1000) ack 1
         1.2 > P. 1:1001(1000) ack 1
         1.3 < . 1:1(0) ack 1001 win 20000
         2.0 write 1000
         2.0 > P. 1001:2001(1000) ack 1
         2.4 > P. 1001:2001(1000) ack 1
         2.5 < . 1:1(0) ack 2001 win 20000",
    );
}

// RFC 7323 §4.1, §4.3: a duplicate does not update TS.Recent. The acknowledgement with D-SACK therefore echoes an old
// timestamp. The acknowledgement ends the backoff (RFC 6298 §5), because no data was lost.
#[test]
fn ack_with_d_sack_gives_no_rtt_sample() {
    let script = timestamped(
        "1.00 write 988
         1.00 > P. 1:989(988) ack 1
         1.30 > P. 1:989(988) ack 1
         1.90 > P. 1:989(988) ack 1
         2.00 < . 1:1(0) ack 989 win 20000 <sack 1:989,TS val 9 ecr 1000>",
    );
    let info = script.conn.info();
    assert_eq!(info.srtt, Some(Duration::from_millis(100)));
    assert_eq!(info.rto, Duration::from_millis(300));
}

// RFC 7323 §4.1: the echoed timestamp identifies the second SYN-ACK and gives a sample. The RTO is therefore not set to
// 3 s (RFC 6298 §5.7).
#[test]
fn a_lost_syn_is_measured_by_its_timestamp() {
    let script = |stamps: &str| {
        passive(
            config_with(config(), |c| c.extensions.timestamps = true),
            "S 0:0(0) win 20000 <mss 1000,sackOK,TS val 7 ecr 0>",
            &format!(
                "0.00 > S. 0:0(0) ack 1
                 1.00 > S. 0:0(0) ack 1
                 1.05 < . 1:1(0) ack 1 win 20000 <TS val 8 ecr {stamps}>"
            ),
        )
    };
    assert_eq!(script("1000").conn.info().srtt, Some(Duration::from_millis(50)));
    // Without a matching echo, a sample could only begin at the first SYN-ACK, and would include the time-out. No
    // sample is taken, and the RTO is 3 s.
    assert_eq!(script("0").conn.info().srtt, None);
    assert_eq!(script("0").conn.info().rto, Duration::from_secs(3));
}

// RFC 6298 §5.7: the answer to the fourth SYN echoes the timestamp of an earlier SYN, as Linux does. The echo gives no
// round-trip sample, and the RTO for data is 3 s.
#[test]
fn active_handshake_with_retransmissions_takes_no_sample_of_time_outs() {
    for echoed in [0, 1000, 3000] {
        let script = active(
            config_with(config(), |c| c.extensions.timestamps = true),
            &format!(
                "0.0 > S 0:0(0)
                 1.0 > S 0:0(0)
                 3.0 > S 0:0(0)
                 7.0 > S 0:0(0)
                 7.1 < S. 0:0(0) ack 1 win 5000 <mss 1000,TS val 7 ecr {echoed}>
                 7.1 > . 1:1(0) ack 1
                 7.2 write 100
                 7.2 > P. 1:101(100) ack 1
                 10.2 > P. 1:101(100) ack 1"
            ),
        );
        assert_eq!(script.conn.info().srtt, None, "echo {echoed}");
    }
}

// The peer answers the fourth SYN only when its own timer expires, 5 s later. The answer echoes the timestamp of that
// SYN, but is not a round-trip sample.
#[test]
fn late_answer_to_a_repeated_syn_is_not_measured() {
    let script = active(
        config_with(config(), |c| c.extensions.timestamps = true),
        "0.0 > S 0:0(0)
         1.0 > S 0:0(0)
         3.0 > S 0:0(0)
         7.0 > S 0:0(0)
         12.0 < S. 0:0(0) ack 1 win 5000 <mss 1000,TS val 7 ecr 7000>
         12.0 > . 1:1(0) ack 1",
    );
    assert_eq!(script.conn.info().rto, Duration::from_secs(3));
}

// RFC 7323 §4.3 (2), §5.3 R1: a repeated SYN updates TS.Recent, which the SYN-ACK echoes. An old duplicate of the SYN
// does not update it.
#[test]
fn answer_to_a_repeated_syn_echoes_its_timestamp() {
    passive(
        config_with(config(), |c| c.extensions.timestamps = true),
        "S 0:0(0) win 20000 <mss 1000,sackOK,TS val 7 ecr 0>",
        "0.0 > S. 0:0(0) ack 1 <mss 1000,sackOK,TS val 0 ecr 7>
         0.5 < S 0:0(0) win 20000 <mss 1000,sackOK,TS val 507 ecr 0> ! UnexpectedSyn
         0.5 > S. 0:0(0) ack 1 <mss 1000,sackOK,TS val 500 ecr 507>
         0.6 < S 0:0(0) win 20000 <mss 1000,sackOK,TS val 300 ecr 0> ! UnexpectedSyn
         0.6 > S. 0:0(0) ack 1 <mss 1000,sackOK,TS val 600 ecr 507>",
    );
}

// RFC 9293 §3.8.3 MUST-20, SHLD-10, SHLD-11: the path is suspect after three retransmissions. The connection ends at
// the first expiry after R2, 120 s by default.
#[test]
fn silent_peer_times_out_after_r2() {
    let mut script = established(config(), "1 write 1\n1 > P. 1:2(1) ack 1");
    script.run("1.2 > P. 1:2(1) ack 1\n1.6 > P. 1:2(1) ack 1");
    assert!(!script.conn.is_path_suspect());
    script.run("2.4 > P. 1:2(1) ack 1");
    assert!(script.conn.is_path_suspect());
    script.run(
        "4.0 > P. 1:2(1) ack 1
         7.2 > P. 1:2(1) ack 1
         13.6 > P. 1:2(1) ack 1
         26.4 > P. 1:2(1) ack 1
         52.0 > P. 1:2(1) ack 1
         103.2 > P. 1:2(1) ack 1
         163.1 state ESTABLISHED
         163.2 state CLOSED
         163.2 event Closed(Timeout)",
    );
}

// RFC 9293 §3.8.3 MUST-21: R2 is configurable.
#[test]
fn configured_r2_limits_retransmission() {
    established(
        config_with(config(), |c| c.limits.retransmission = Duration::from_secs(1)),
        "1 write 1
         1 > P. 1:2(1) ack 1
         1.2 > P. 1:2(1) ack 1
         1.6 > P. 1:2(1) ack 1
         2.4 state CLOSED",
    );
}

fn keepalive() -> Config {
    let keepalive =
        Keepalive { idle: Duration::from_secs(100), interval: Duration::from_secs(10), probes: 3 };
    Config { keepalive: Some(keepalive), ..config() }
}

// RFC 9293 §3.8.4 MUST-26, SHLD-12: the probe has sequence number SND.NXT - 1 and no data.
#[test]
fn an_idle_connection_is_probed() {
    established(
        keepalive(),
        "100 > . 0:0(0) ack 1
         100 < . 1:1(0) ack 1 win 20000
         150 < P. 1:11(10) ack 1 win 20000
         150.04 > . 1:1(0) ack 11
         249.9 state ESTABLISHED
         250 > . 0:0(0) ack 11
         250 < . 11:11(0) ack 1 win 20000
         250 state ESTABLISHED",
    );
}

// RFC 9293 §3.8.4 MUST-29: a single unanswered probe does not end the connection.
#[test]
fn several_unanswered_probes_end_the_connection() {
    established(
        keepalive(),
        "100 > . 0:0(0) ack 1
         110 > . 0:0(0) ack 1
         120 > . 0:0(0) ack 1
         120 state ESTABLISHED
         130 > R. 1:1(0) ack 1
         130 event Closed(Timeout)",
    );
}

// RFC 9293 §3.8.4 MUST-26: no keepalive is sent while data is unacknowledged. The idle time of 100 s begins with the
// last segment received.
#[test]
fn no_keepalive_while_data_is_outstanding() {
    established(
        Config { rto: Rto { min: Duration::from_secs(50), ..Rto::default() }, ..keepalive() },
        "80 write 1
         80 > P. 1:2(1) ack 1
         130 > P. 1:2(1) ack 1
         135 < . 1:1(0) ack 2 win 20000
         235 > . 1:1(0) ack 1",
    );
}

// RFC 9293 §3.8.4 MUST-25: keepalives are sent only if configured.
#[test]
fn keepalive_is_off_by_default() {
    established(config(), "100000 state ESTABLISHED\n100000 timer none");
}

// RFC 9293 §3.10.7.4, first check: a keepalive probe of the peer is outside the window, and is answered with an
// acknowledgement.
#[test]
fn keepalives_are_answered() {
    established(
        config(),
        "100 < . 0:0(0) ack 1 win 20000 ! OutOfWindow
         100 > . 1:1(0) ack 1",
    );
}

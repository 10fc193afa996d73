//! Tests of the flight recorder of a connection: which events it records, and the fields of their records.

use std::time::Duration;

use base::Instant;
use transport::recorder::{AwaitedEvent, Kind, Record};

use super::script::{Script, active, config, config_with, established, passive, timestamped};
use super::upper::Batch;
use crate::tcp::{Config, Flags, Keepalive, State};

fn kinds(script: &Script) -> Vec<Kind> {
    script.conn.records().0.iter().map(Record::kind).collect()
}

#[test]
fn spurious_timeout_is_recorded_with_its_undo() {
    let script = timestamped(
        "1.00 write 1976
         1.00 > . 1:989(988) ack 1
         1.00 > P. 989:1977(988) ack 1
         1.30 > P. 1:989(988) ack 1
         1.35 < . 1:1(0) ack 989 win 20000 <TS val 9 ecr 1000>
         1.36 < . 1:1(0) ack 1977 win 20000 <TS val 9 ecr 1000>",
    );
    assert_eq!(kinds(&script), [Kind::Timeout, Kind::Resent, Kind::Undone]);
    let records = script.conn.records().0;
    let millis: Vec<u64> = records.iter().map(|record| record.at().as_millis()).collect();
    assert_eq!(millis, [1300, 1300, 1350]);
    // `count`: the first time-out in a row. `answer`: the next RTO, 600 ms, twice the RTO that expired.
    assert_eq!((records[0].count, records[0].answer), (1, 600));
    assert_eq!(records[0].number, records[1].number, "the unacknowledged segment is sent again");
    let push = Flags::PSH.with(Flags::ACK).0;
    assert_eq!((records[1].flags(), records[1].len, records[1].count), (push, 988, 1));
    // Number 1: the echoed timestamp was the reason to undo. The congestion window is 9880 bytes again.
    assert_eq!((records[2].number, records[2].answer), (1, 9880));
}

#[test]
fn fin_is_recorded_only_after_other_events() {
    let close = "1.1 < F. 1:1(0) ack 1 win 20000
         1.1 > . 1:1(0) ack 2
         1.2 close
         1.2 > F. 1:1(0) ack 2";
    let mut quiet = established(config(), "");
    quiet.run(close);
    assert_eq!(kinds(&quiet), [], "an orderly close allocates no memory");
    // The peer's window closes and opens.
    let mut script = established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 0
         1.05 < . 1:1(0) ack 1 win 20000",
    );
    script.run(close);
    let expected = [
        Kind::WindowClosed,
        Kind::WindowOpened,
        Kind::FinReceived,
        Kind::State,
        Kind::FinSent,
        Kind::State,
    ];
    assert_eq!(kinds(&script), expected);
    let records = script.conn.records().0;
    // A `State` record has the old state in `number` and the new state in `answer`.
    let state = |at: usize| [records[at].number, records[at].answer].map(State::from_number);
    assert_eq!(state(3), [Some(State::Established), Some(State::CloseWait)]);
    assert_eq!(state(5), [Some(State::CloseWait), Some(State::LastAck)]);
    assert_eq!((records[0].window, records[1].window), (0, 20000));
    assert!(records[4].flags() & Flags::FIN.0 != 0 && records[4].window > 0);
}

/// Expires timers until none is set, at most `times` times, while the peer is silent.
fn expire(script: &mut Script, times: u32) {
    for _ in 0..times {
        let Some(at) = script.conn.poll_timeout() else { break };
        script.conn.handle_timeout(at, &mut script.up);
        script.conn.poll_transmit(at, &mut script.up, &mut Batch::new(usize::MAX));
    }
}

#[test]
fn abort_is_recorded_once() {
    let mut script = established(config(), "");
    let now = Instant::from_millis(5);
    script.conn.abort(now);
    // The reset is recorded when it is scheduled, before it is sent.
    assert_eq!(kinds(&script), [Kind::ResetSent]);
    let mut batch = Batch::new(usize::MAX);
    script.conn.poll_transmit(now, &mut script.up, &mut batch);
    assert_eq!(batch.segments.len(), 1);
    let records = script.conn.records().0;
    assert_eq!((records.len(), records[0].at()), (1, now));
    assert_eq!(records[0].flags(), Flags::RST.with(Flags::ACK).0);
}

#[test]
fn accepted_half_open_connection_records_no_event() {
    let mut script = passive(config(), "S 0:0(0) win 20000 <mss 1000>", "0 > S. 0:0(0) ack 1");
    expire(&mut script, 3);
    script.conn.abort(Instant::from_millis(60000));
    let mut batch = Batch::new(usize::MAX);
    script.conn.poll_transmit(Instant::from_millis(60000), &mut script.up, &mut batch);
    assert_eq!(
        (batch.segments.len(), kinds(&script)),
        (1, vec![]),
        "the peer's address may be forged"
    );
    // The peer's address is not forged if this end opens the connection.
    let mut script = active(config(), "0 > S 0:0(0)");
    expire(&mut script, 1);
    assert_eq!(kinds(&script), [Kind::Timeout]);
}

#[test]
fn gave_up_is_recorded_with_awaited_event() {
    let secs = Duration::from_secs;
    let changed = |zero_window, retransmission| {
        config_with(config(), |c: &mut Config| {
            c.limits.zero_window = zero_window;
            c.limits.retransmission = retransmission;
            let (idle, interval) = (secs(10), secs(1));
            c.keepalive = Some(Keepalive { idle, interval, probes: 2 });
        })
    };
    let closed = "1.0 < . 1:1(0) ack 1 win 0";
    // Configuration, steps before the peer becomes silent, bytes to be sent then, and the event that does not occur.
    for (config, steps, len, awaited) in [
        (changed(None, secs(5)), "", 100, AwaitedEvent::Acknowledgement),
        // The peer closed its window and then became silent.
        (changed(None, secs(5)), closed, 100, AwaitedEvent::Acknowledgement),
        (changed(Some(secs(600)), secs(5)), closed, 100, AwaitedEvent::Acknowledgement),
        (changed(Some(secs(3)), secs(500)), closed, 100, AwaitedEvent::Window),
        (changed(None, secs(500)), "", 0, AwaitedEvent::ProbeAnswer),
    ] {
        let mut script = established(config, steps);
        script.up.len += len;
        let from = Instant::from_millis(1000);
        script.conn.poll_transmit(from, &mut script.up, &mut Batch::new(usize::MAX));
        expire(&mut script, 100);
        assert_eq!(script.conn.state(), State::Closed);
        let records = script.conn.records().0;
        let gave_up = records.iter().find(|record| record.kind() == Kind::GaveUp);
        assert_eq!(gave_up.and_then(Record::awaited_event), Some(awaited), "{:?}", kinds(&script));
    }
    let mut script = established(
        config_with(changed(None, secs(500)), |c| c.keepalive = None),
        "1.0 close
         1.0 > F. 1:1(0) ack 1
         1.1 < . 1:1(0) ack 2 win 20000",
    );
    expire(&mut script, 100);
    let gave_up = script.conn.records().0[0];
    let seen = (gave_up.awaited_event(), gave_up.answer);
    assert_eq!(seen, (Some(AwaitedEvent::Fin), 60_000), "{:?}", kinds(&script));
}

#[test]
fn tail_probe_with_fin_records_flag_but_no_extra_byte() {
    let config = config_with(config(), |c| c.tail_loss_probe = true);
    let mut script = established(
        config,
        "1.0 write 100
         1.0 > P. 1:101(100) ack 1
         1.1 < . 1:1(0) ack 101 win 20000",
    );
    // The source has more data than the congestion window allows. After the poll, 300 bytes remain.
    script.up.len += 60_000;
    let from = Instant::from_millis(2000);
    script.conn.poll_transmit(from, &mut script.up, &mut Batch::new(usize::MAX));
    script.up.len = script.up.filled + 300;
    script.conn.close();
    expire(&mut script, 1);
    let probe = script.conn.records().0.into_iter().find(|r| r.kind() == Kind::TailProbe).unwrap();
    assert_eq!((probe.len, probe.flags() & Flags::FIN.0), (300, Flags::FIN.0), "{probe:?}");
}

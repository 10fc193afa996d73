//! What the flight recorder keeps of a connection.

use transport::recorder::{Kind, Record};

use super::script::{Script, config, established, timestamped};
use crate::tcp::{Flags, State};

fn kinds(script: &Script) -> Vec<Kind> {
    script.conn.records().0.iter().map(Record::kind).collect()
}

#[test]
fn a_spurious_time_out_is_recorded_from_its_begin_to_its_undoing() {
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
    // The next time-out comes after twice the first one; it was the first in a row.
    assert_eq!((records[0].count, records[0].answer), (1, 600));
    assert_eq!(records[0].number, records[1].number, "what was unacknowledged is sent again");
    let push = Flags::PSH.with(Flags::ACK).0;
    assert_eq!((records[1].flags(), records[1].len, records[1].count), (push, 988, 1));
    // By a timestamp.
    assert_eq!((records[2].number, records[2].answer), (1, 9880));
}

#[test]
fn a_fin_is_recorded_once_something_else_was() {
    let close = "1.1 < F. 1:1(0) ack 1 win 20000
         1.1 > . 1:1(0) ack 2
         1.2 close
         1.2 > F. 1:1(0) ack 2";
    let mut quiet = established(config(), "");
    quiet.run(close);
    assert_eq!(kinds(&quiet), [], "an orderly close takes no memory");
    // A window that closes, and opens.
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
    let state = |at: usize| [records[at].number, records[at].answer].map(State::numbered);
    assert_eq!(state(3), [Some(State::Established), Some(State::CloseWait)]);
    assert_eq!(state(5), [Some(State::CloseWait), Some(State::LastAck)]);
    assert_eq!((records[0].window, records[1].window), (0, 20000));
    assert!(records[4].flags() & Flags::FIN.0 != 0 && records[4].window > 0);
}

//! Flight records of window changes, probes and retransmissions.

use transport::recorder::{Kind, Record};
use wire::sctp::chunk_type;

use super::*;

fn kinds(side: &Side) -> Vec<Kind> {
    side.sender.records().0.iter().map(Record::kind).collect()
}

#[test]
fn window_close_probes_and_open_are_recorded() {
    let mut side = side_with(config(), 4000);
    side.source.push(10, 1000);
    let sent = side.numbers().len() as u32;
    side.try_sack(sent, 0, &[], &[]).unwrap();
    side.send();
    assert_eq!(kinds(&side), [Kind::WindowClosed]);
    side.try_sack(sent, 0, &[], &[]).unwrap();
    assert_eq!(kinds(&side).len(), 1, "an unchanged window is not recorded");
    side.expire();
    assert_eq!(side.numbers(), [sent]);
    side.wait(MS);
    side.try_sack(sent, 3000, &[], &[]).unwrap();
    assert_eq!(kinds(&side), [Kind::WindowClosed, Kind::WindowProbe, Kind::WindowOpened]);
    let records = side.sender.records().0;
    assert_eq!((records[0].flags(), records[0].window), (chunk_type::SACK, 0));
    assert_eq!((records[1].flags(), records[1].number), (chunk_type::DATA, tsn(sent).0));
    assert_eq!(records[1].len, 1000);
    assert_eq!((records[2].window, records[2].answer), (3000, tsn(sent).sub(1).0));
    assert_eq!(records[2].at(), side.now);
}

#[test]
fn a_tail_probe_of_new_data_is_recorded_with_its_first_chunk() {
    let mut side = super::loss::side_with_rtt(5);
    side.source.push(1, 100);
    side.source.push(1, 200);
    side.expire();
    assert_eq!(side.numbers(), [6, 7]);
    let probe = side.sender.records().0[0];
    let header = (probe.kind(), probe.flags(), probe.number, probe.len);
    assert_eq!(header, (Kind::TailProbe, chunk_type::DATA, tsn(6).0, 100));
}

#[test]
fn disabled_recorder_has_no_records() {
    let mut side = side_with(SendConfig { recorder: false, ..config() }, 4000);
    side.source.push(10, 1000);
    let sent = side.numbers().len() as u32;
    side.try_sack(sent, 0, &[], &[]).unwrap();
    assert_eq!(kinds(&side), []);
}

#[test]
fn retransmissions_and_probes_are_recorded_by_kind() {
    let mut side = super::loss::side_with_rtt(5);
    side.wait(40 * MS);
    side.sack(1, &[(2, 4)]);
    assert_eq!(side.numbers(), [1]);
    assert!(kinds(&side).contains(&Kind::Resent), "{:?}", kinds(&side));
    let mut tail = super::loss::side_with_rtt(5);
    tail.expire();
    assert_eq!(tail.numbers(), [5]);
    assert_eq!(kinds(&tail), [Kind::TailProbe]);
}

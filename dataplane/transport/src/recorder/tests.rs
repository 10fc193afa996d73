//! Tests of the flight recorder: encoding, coalescing, expiry and bounds.

use super::*;

fn at(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

#[test]
fn every_record_field_round_trips() {
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, number, "{kind:?} has its own place");
        for (word, half, byte) in
            [(0, 0, 0), (u32::MAX, u16::MAX, u8::MAX), (0x0102_0304, 0x0506, 7)]
        {
            let micros = u64::from(word) << 16 | 9;
            let record = Record::new(at(micros), kind, word, !word);
            let record = record.with_header(byte, half, half.into()).with_count(word);
            assert_eq!((record.at(), record.kind(), record.flags()), (at(micros), kind, byte));
            assert_eq!((record.number, record.answer, record.count), (word, !word, word));
            assert_eq!((record.window, record.len), (half, half));
        }
    }
}

#[test]
fn full_recorder_keeps_newest_and_counts_dropped() {
    let mut recorder = Recorder::default();
    assert_eq!(recorder.records(), (vec![], 0));
    for number in 0..100 {
        recorder.add(Record::new(at(u64::from(number)), Kind::Timeout, number, 0));
    }
    let (records, left_out) = recorder.records();
    let numbers: Vec<u32> = records.iter().map(|record| record.number).collect();
    assert_eq!((numbers, left_out), ((84..100).collect(), 84));
}

#[test]
fn consecutive_resends_share_a_record_with_first_header() {
    let mut recorder = Recorder::default();
    for kind in [Kind::Marked, Kind::Resent] {
        for number in 0..1000 {
            recorder.add(Record::new(at(5), kind, number, 0));
        }
    }
    recorder.add(Record::new(at(6), Kind::Timeout, 7, 0));
    recorder.add(Record::new(at(7), Kind::Timeout, 7, 0));
    recorder.add(Record::new(at(8), Kind::Resent, 7, 0));
    let (records, left_out) = recorder.records();
    let seen: Vec<_> = records.iter().map(|r| (r.kind(), r.number, r.count)).collect();
    let expected = [
        (Kind::Marked, 0, 1000),
        (Kind::Resent, 0, 1000),
        (Kind::Timeout, 7, 1),
        (Kind::Timeout, 7, 1),
        (Kind::Resent, 7, 1),
    ];
    assert_eq!((seen.as_slice(), left_out), (expected.as_slice(), 0));
}

#[test]
fn shrink_after_retention_keeps_two_newest_records() {
    let mut recorder = Recorder::default();
    for number in 0..20 {
        recorder.add(Record::new(at(7), Kind::Timeout, number, 0));
    }
    recorder.shrink(at(6) + RETENTION);
    assert_eq!(recorder.records().0.len(), MAX_RECORDS);
    for _ in 0..2 {
        recorder.shrink(at(7) + RETENTION);
        let (records, left_out) = recorder.records();
        let numbers: Vec<u32> = records.iter().map(|record| record.number).collect();
        assert_eq!((numbers, left_out), (vec![18, 19], 18));
        assert_eq!(recorder.0.as_ref().unwrap().records.capacity(), MIN_RECORDS);
    }
    recorder.add(Record::new(at(7), Kind::Timeout, 20, 0));
    assert_eq!((recorder.records().0.len(), recorder.records().1), (3, 18));
}

#[test]
fn record_coalesces_for_a_minute_then_expires_after_another() {
    let mut recorder = Recorder::default();
    for number in 0..2 {
        recorder.add(Record::new(at(0), Kind::Timeout, number, 0));
    }
    let hour = Duration::from_secs(3600);
    recorder.add(Record::new(at(0), Kind::TailProbe, 2, 0));
    recorder.add(Record::new(at(0) + hour, Kind::TailProbe, 3, 0));
    let just = COALESCE_TIME - Duration::from_micros(1);
    recorder.add(Record::new(at(0) + hour + just, Kind::TailProbe, 4, 0));
    let seen = |recorder: &Recorder| -> Vec<_> {
        recorder.records().0.iter().map(|r| (r.kind(), r.number, r.count)).collect()
    };
    let probes = [(Kind::TailProbe, 2, 1), (Kind::TailProbe, 3, 2)];
    assert_eq!(seen(&recorder)[2..], probes, "probes an hour apart have separate records");
    // The newest record counted its last event a second ago.
    recorder.shrink(at(0) + hour + COALESCE_TIME + Duration::from_secs(1));
    assert_eq!(seen(&recorder).len(), 4);
    recorder.shrink(at(0) + hour + COALESCE_TIME + RETENTION);
    assert_eq!(seen(&recorder), probes);
}

#[test]
fn gave_up_record_has_its_awaited_event() {
    use AwaitedEvent::*;
    for what in [Acknowledgement, Window, ProbeAnswer, Fin] {
        let record = Record::new(at(5), Kind::GaveUp, 1, 2).with_awaited_event(what);
        assert_eq!(record.awaited_event(), Some(what));
    }
    assert_eq!(Record::new(at(5), Kind::Timeout, 1, 2).awaited_event(), None);
}

#[test]
fn recorder_memory_is_eight_bytes_empty_and_bounded_full() {
    assert_eq!(size_of::<Recorder>(), 8);
    const { assert!(size_of::<RecordLog>() + MAX_RECORDS * size_of::<Record>() <= 416) };
    let mut recorder = Recorder::default();
    for number in 0..100 {
        recorder.add(Record::new(at(5), Kind::Timeout, number, 0));
        let capacity = recorder.0.as_ref().unwrap().records.capacity();
        assert!(capacity <= MAX_RECORDS, "{capacity} of {number}");
    }
}

//! The mark of omitted entries in `ddpctl why`'s output.

use api::StreamId;

use super::*;

#[test]
fn worker_events_do_not_shift_omission_mark() {
    let event = |word: &str, after_us| FlightEvent {
        after_us,
        event: word.into(),
        detail: "as it was".into(),
        header: None,
    };
    let mut events = vec![event("timeout", 1), event("retransmission", 2)];
    // `stalled` is the control thread's first event.
    events.push(event("stalled", 9));
    events.extend((10..18).map(|at| event("error", at)));
    let flight = Flight {
        stream: StreamId(7),
        listener: None,
        job: None,
        program: None,
        local: "10.0.0.1:7471".into(),
        remote: "10.0.0.9:5000".into(),
        began_us: 0,
        end: None,
        sentences: vec![],
        events,
        left_out: 9,
        recorder_left_out: 0,
        counters: Default::default(),
    };
    let text = format_flight(&flight);
    let (before, after) = text.split_once("  (9 events are left out)\n").unwrap();
    let errors = |part: &str| part.lines().filter(|line| line.contains(" error ")).count();
    assert_eq!((errors(before), errors(after)), (5, 3), "{text}");
}

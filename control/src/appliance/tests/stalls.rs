//! Streams without progress: events and notes.

use api::Severity;
use dataplane::Stall;
use ddp::lifecycle::CloseReason as Ended;
use sctp_lite::endpoint::SctpReason;

use super::super::streams::MAX_STALL_NOTES;
use super::*;

fn stall(bench: &mut Bench, id: u64, seconds: u64, last: bool) {
    let stall = Stall { timeouts: 10, silent: Duration::from_secs(seconds), last };
    bench.event(Event::Stalled { stream: StreamId(id), stall });
}

fn notes(bench: &Bench) -> Vec<String> {
    bench.core.status(bench.now).notes
}

fn stalls(bench: &Bench) -> Vec<EventKind> {
    bench.logged_events(|kind| {
        matches!(kind, EventKind::StreamStalled { .. } | EventKind::StreamResumed { .. })
    })
}

const NOTE: &str = "the peer's host is gone or hangs, or the path is cut: check both; ddpctl why 0000000000000001 shows what \
     was sent, ddpctl streams close 0000000000000001 --abort ends it";

#[test]
fn stalled_stream_has_event_and_note_until_it_resumes() {
    let mut bench = bench();
    bench.now += Duration::from_secs(1000);
    bench.accept_stream(1, "10.0.0.2");
    stall(&mut bench, 1, 30, false);
    let note = |seconds: u64| {
        let begin = "stream 0000000000000001 to 10.0.0.2:5000 makes no progress: nothing was acknowledged for";
        vec![format!("{begin} {seconds} s; {NOTE}")]
    };
    assert_eq!(notes(&bench), note(30));
    bench.now += Duration::from_secs(60);
    assert_eq!(notes(&bench), note(90), "since the last progress, as of now");
    bench.event(Event::Resumed { stream: StreamId(1) });
    assert_eq!(notes(&bench), [""; 0]);
    let events = stalls(&bench);
    let [EventKind::StreamStalled { remote, timeouts, seconds, reason, hint, .. }, resumed] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((remote.as_str(), *timeouts, *seconds), ("10.0.0.2:5000", 10, 30));
    assert_eq!(reason, "nothing was acknowledged for 30 s, 10 time-outs in a row");
    assert_eq!(hint, NOTE);
    assert!(matches!(resumed, EventKind::StreamResumed { seconds: 90, .. }), "{resumed:?}");
    assert_eq!([events[0].severity(), resumed.severity()], [Severity::Warning, Severity::Info]);
    assert_eq!(events[0].stream(), Some(api::StreamId(1)));
}

/// The end of the stream reports the time without acknowledgement, over both transports, and removes the note.
#[test]
fn end_of_stalled_stream_reports_stall_duration() {
    let tcp = CloseReason::Lower(TcpReason::TcpTimeout);
    let sctp = dataplane::CloseReason::Sctp(Ended::Lower(SctpReason::SctpTimeout));
    for (reason, begin, key) in [
        (tcp.into(), "TCP connection lost: no answer", "[tcp] user_timeout"),
        (sctp, "SCTP association lost: no answer", "[sctp] max_retransmits"),
    ] {
        let mut bench = bench();
        bench.now += Duration::from_secs(1000);
        bench.request_stream(1, "10.0.0.2");
        bench.acknowledge();
        let params = match &reason {
            dataplane::CloseReason::Tcp(_) => PARAMS,
            dataplane::CloseReason::Sctp(_) => {
                StreamParams::Sctp(sctp_lite::endpoint::StreamParams {
                    ulp: UlpKind::Ddp,
                    mulpdu: 1400,
                    ddp_version: None,
                    agreed: None,
                })
            }
        };
        bench.establish_stream_with(1, "10.0.0.2", None, &[], params);
        stall(&mut bench, 1, 102, true);
        let named = |kind: &EventKind| {
            matches!(kind, EventKind::StreamStalled { reason, .. }
                if reason.ends_with(&format!("; the next one ends the stream ({key})")))
        };
        assert!(bench.is_logged(named), "{:?}", stalls(&bench));
        bench.now += Duration::from_secs(100);
        let (stream, stats) = (StreamId(1), Box::default());
        bench.event(Event::Closed { stream, reason, stats });
        assert_eq!(notes(&bench), [""; 0]);
        let closed = bench.logged_events(|kind| matches!(kind, EventKind::StreamClosed { .. }));
        let [EventKind::StreamClosed { reason, .. }] = &closed[..] else { panic!("{closed:?}") };
        assert!(reason.starts_with(begin), "{reason}");
        assert!(reason.ends_with("; nothing was acknowledged for 202 s"), "{reason}");
    }
}

/// The first `MAX_NOTES` stalled streams, by ID, have one note each. One more note counts the others.
#[test]
fn notes_on_many_stalled_streams_are_bounded() {
    const OTHERS: usize = 2;
    let mut bench = bench();
    bench.now += Duration::from_secs(1000);
    for id in 1..=(MAX_STALL_NOTES + OTHERS) as u64 {
        bench.accept_stream(id, &format!("10.0.0.{}", id + 1));
        stall(&mut bench, id, 30, false);
    }
    let assert_notes = |bench: &Bench, first: u64, last_note: &str| {
        let found = notes(bench);
        assert_eq!(found.len(), MAX_STALL_NOTES + 1, "{found:?}");
        for (id, note) in (first..).zip(&found[..MAX_STALL_NOTES]) {
            assert!(note.starts_with(&format!("stream {id:016x} to ")), "stream {id}: {note}");
        }
        assert_eq!(found[MAX_STALL_NOTES], last_note);
    };
    assert_notes(&bench, 1, "2 more streams without progress: ddpctl events --severity warning");
    // A resumed stream makes room for the note of another one.
    bench.event(Event::Resumed { stream: StreamId(1) });
    assert_notes(&bench, 2, "1 more stream without progress: ddpctl events --severity warning");
    // Without others, there is no such note.
    bench.event(Event::Resumed { stream: StreamId(2) });
    let found = notes(&bench);
    assert_eq!(found.len(), MAX_STALL_NOTES);
    assert!(found.iter().all(|note| note.starts_with("stream ")), "{found:?}");
}

#[test]
fn note_on_a_stalled_stream_names_its_link_that_is_down() {
    let mut bench = bench();
    bench.now += Duration::from_secs(1000);
    for id in 1..=4 {
        bench.accept_stream(id, &format!("10.0.0.{}", id + 1));
        stall(&mut bench, id, 30, false);
    }
    let down = "the link of port `p` is down (interface `i`)";
    bench.core.on_link(0, false, bench.now);
    stall(&mut bench, 1, 40, false);
    let found = notes(&bench);
    let of_stream_1 = found.iter().find(|note| note.starts_with("stream 0000000000000001 "));
    assert!(of_stream_1.is_some_and(|note| note.contains(down)), "{found:?}");
    assert_eq!(found.len(), 5, "four streams and the link: {found:?}");
}

#[test]
fn stall_events_of_an_unknown_stream_have_no_effect() {
    let mut bench = bench();
    bench.now += Duration::from_secs(1000);
    bench.accept_stream(1, "10.0.0.2");
    stall(&mut bench, 1, 30, false);
    stall(&mut bench, 99, 30, false);
    bench.event(Event::Resumed { stream: StreamId(99) });
    assert_eq!(notes(&bench).len(), 1, "the note on stream 1");
}

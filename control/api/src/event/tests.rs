//! Tests of the event log: bounds, lost events, waiting readers, and filters.

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Waker};

use super::*;

fn delivered(stream: u64) -> EventKind {
    EventKind::TaggedDelivered { stream: StreamId(stream), region: "r".into(), to: 0, len: 1 }
}

fn message(stream: u64, queue: u32, bytes: usize) -> EventKind {
    let (stream, data) = (StreamId(stream), vec![0; bytes]);
    EventKind::Message { stream, listener: None, queue, msn: 1, rsvd_ulp: 0, data }
}

fn failed(stream: u64) -> EventKind {
    let (layer, code, reason) = ("ddp".into(), "1/02".into(), "why".into());
    EventKind::StreamError { stream: StreamId(stream), layer, code, reason }
}

fn refused(listener: &str) -> EventKind {
    let (listener, remote, reason) = (Some(listener.into()), "192.0.2.1:9".into(), "why".into());
    EventKind::StreamRefused { listener, remote, reason, hint: None }
}

fn established(stream: u64, listener: Option<&str>) -> EventKind {
    let (stream, listener) = (StreamId(stream), listener.map(str::to_owned));
    EventKind::StreamEstablished { stream, listener, remote: "192.0.2.1:9".into() }
}

fn closed(stream: u64) -> EventKind {
    let (stream, reason) = (StreamId(stream), "closed by the peer".into());
    EventKind::StreamClosed { stream, reason, placed: 0, sent: 0 }
}

fn seqs(page: &EventPage) -> Vec<u64> {
    page.events.iter().map(|event| event.seq).collect()
}

#[test]
fn rings_are_bounded_in_events_and_deliveries_in_bytes() {
    let (log, all) = (EventLog::new(3, 10), EventFilter::default());
    for _ in 0..5 {
        log.push(EventKind::Draining);
    }
    let page = log.read(0, 10, &all);
    assert_eq!((seqs(&page), page.lost, page.next), (vec![3, 4, 5], 2, 5));
    assert_eq!(log.read(3, 10, &all).lost, 0);
    // Two messages have 16 bytes of data, which exceeds the limit of 10. Only the newest message is kept.
    log.push(message(7, 0, 8));
    log.push(message(7, 0, 8));
    let page = log.read(0, 10, &all);
    assert_eq!((seqs(&page), page.lost), (vec![3, 4, 5, 7], 3));
    // A reader may have a sequence number above the newest, as after a restart of the appliance. It then reads only
    // later events.
    assert_eq!(log.read(99, 10, &all), EventPage { events: vec![], next: 7, lost: 0 });
}

#[test]
fn flood_of_one_event_class_keeps_other_classes() {
    let log = EventLog::new(16, 1 << 20);
    log.push(failed(1));
    log.push(refused("in"));
    // 70 puts cause four events each.
    for stream in 2..72 {
        log.push(established(stream, Some("in")));
        log.push(delivered(stream));
        log.push(closed(stream));
        log.push(EventKind::JobFinished { job: stream, error: None });
    }
    // A port scan causes 100 failed attempts.
    for _ in 0..100 {
        log.push(refused("in"));
    }
    let page = log.read(0, 1000, &EventFilter::default());
    assert_eq!(page.events.len(), 1 + 16 + 16 + 16);
    assert_eq!(page.events[0].kind, failed(1), "the only error");
    assert_eq!(page.lost, 2 + 280 + 100 - 49);
    let severe = EventFilter { severity: Severity::Error, ..EventFilter::default() };
    let page = log.read(0, 1000, &severe);
    assert_eq!((seqs(&page), page.lost), (vec![1], 0), "no error was lost");
}

#[test]
fn stream_and_job_events_keep_operator_changes() {
    let (log, region) = (EventLog::new(4, 1 << 20), || "r".to_owned());
    let changes = [
        EventKind::Started { appliance: "a".into() },
        EventKind::RegionAdded { region: region() },
        EventKind::RegionAccess { region: region(), access: "r".into() },
        EventKind::Reloaded { changes: vec![] },
    ];
    for change in &changes {
        log.push(change.clone());
    }
    for stream in 0..100 {
        log.push(established(stream, None));
        log.push(failed(stream));
        log.push(EventKind::StagInvalidated { region: region() });
        log.push(EventKind::LinkChanged { port: "p".into(), up: stream % 2 == 0 });
        log.push(closed(stream));
    }
    let page = log.read(0, 4, &EventFilter::default());
    assert_eq!(page.events.into_iter().map(|event| event.kind).collect::<Vec<_>>(), changes);
}

#[test]
fn lost_events_are_counted_once_over_all_pages() {
    let (log, all) = (EventLog::new(4, 1 << 20), EventFilter::default());
    for stream in 0..6 {
        log.push(delivered(stream));
        log.push(EventKind::Draining);
    }
    let (mut after, mut lost, mut read) = (0, 0, 0);
    while after < log.last_seq() {
        let page = log.read(after, 3, &all);
        (after, lost, read) = (page.next, lost + page.lost, read + page.events.len());
    }
    assert_eq!((read, lost), (8, 4));
}

// Of two events that are appended at the same time, a waiting reader must receive the newer.
#[test]
fn concurrent_pushes_wake_readers_of_the_newest_event() {
    const ROUNDS: u32 = 5000;
    let (log, barrier) = (EventLog::new(8, 1024), Barrier::new(2));
    let mut missed = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                barrier.wait();
                log.push(closed(1));
                barrier.wait();
            }
        });
        for _ in 0..ROUNDS {
            barrier.wait();
            log.push(closed(2));
            barrier.wait();
            let newest = pin!(log.wait(log.last_seq() - 1));
            missed += u32::from(newest.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    });
    assert_eq!(missed, 0);
}

#[test]
fn filter_selects_events() {
    let log = EventLog::new(16, 1 << 20);
    log.push_with_time(1000, established(1, Some("in")));
    log.push_with_time(2000, established(2, Some("out")));
    log.push_with_time(3000, delivered(1));
    log.push_with_time(4000, failed(1));
    log.push_with_time(5000, failed(2));
    log.push_with_time(6000, refused("in"));
    log.push_with_time(7000, message(2, 5, 1));
    log.push_with_time(8000, closed(1));
    // The stream has ended, so the log no longer has its listener.
    log.push_with_time(9000, failed(1));
    log.push_with_time(9500, EventKind::JobFinished { job: 1, error: Some("why".into()) });
    log.push_with_time(9600, EventKind::LinkChanged { port: "p".into(), up: false });
    log.push_with_time(9700, EventKind::LinkChanged { port: "p".into(), up: true });
    let read = |filter: EventFilter| seqs(&log.read(0, 100, &filter));
    let all = EventFilter::default;
    assert_eq!(read(EventFilter { severity: Severity::Error, ..all() }), [4, 5, 9, 10]);
    assert_eq!(read(EventFilter { severity: Severity::Warning, ..all() }), [4, 5, 6, 9, 10, 11]);
    assert_eq!(read(EventFilter { stream: Some(StreamId(2)), ..all() }), [2, 5, 7]);
    // Events that name only a stream match the listener of this stream.
    assert_eq!(read(EventFilter { listener: Some("in".into()), ..all() }), [1, 3, 4, 6, 8]);
    assert_eq!(read(EventFilter { since_us: 8000, ..all() }), [8, 9, 10, 11, 12]);
    assert_eq!(read(EventFilter { messages: true, ..all() }), [7]);
    assert_eq!(read(EventFilter { queue: Some(4), ..all() }), [0; 0]);
    let both = EventFilter { severity: Severity::Error, listener: Some("out".into()), ..all() };
    assert_eq!(read(both), [5]);
}

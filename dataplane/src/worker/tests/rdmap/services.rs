//! Services of the worker and the control thread that process delivered data.

use super::*;

#[test]
fn the_region_service_is_notified_of_writes_and_atomics() {
    let mut b = bench();
    let (here, there) = b.open(Service::Region);
    let source = Source::Bytes([1; 100].into());
    let to = TaggedOffset(40);
    b.post(here, WorkRequest::Write { stag: REGION, to, source, cookie: Cookie::user(0) });
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    b.post(
        here,
        WorkRequest::Atomic { op, stag: REGION, to: TaggedOffset(800), cookie: Cookie::user(0) },
    );
    for expected in [(there, REGION, 40, 100), (there, REGION, 800, 8)] {
        let delivered = b.net.run_until("delivery", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::TaggedDelivered { stream, stag, to, len, .. } => {
                    Some((*stream, *stag, to.0, *len))
                }
                _ => None,
            })
        });
        assert_eq!(delivered, expected);
    }
}

#[test]
fn echo_service_answers_without_the_control_thread() {
    let mut b = bench();
    let (here, _) = b.open(Service::Echo);
    for n in 0..200_u8 {
        let sent = vec![n; usize::from(n) * 9];
        b.post(here, send_request(&sent));
        assert_eq!(b.wait_received(0), sent);
        b.net.hosts[0].command(0, |_| Command::PostBuffers {
            stream: here,
            qn: ddp::Qn(0),
            buffers: 1,
        });
    }
    let immediate =
        WorkRequest::Immediate { data: [9; 8], solicited: true, cookie: Cookie::user(0) };
    b.post(here, immediate);
    let back = b.net.run_until("the immediate data", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Immediate { data, solicited, .. } => Some((*data, *solicited)),
            _ => None,
        })
    });
    assert_eq!(back, ([9; 8], true));
    // The second host's control thread has received only events about the stream itself.
    let quiet = |e: &Event| matches!(e, Event::Established { .. } | Event::Done { .. });
    assert!(b.net.hosts[1].events.iter().all(|(_, e)| quiet(e)), "{:?}", b.net.hosts[1].events);
}

/// The number of receive buffers bounds the memory that the Echo service holds for a peer, even if the peer
/// acknowledges nothing.
#[test]
fn echo_buffers_are_bounded_without_acknowledgements() {
    let mut b = bench();
    let (here, there) = b.open(Service::Echo);
    b.post(here, send_request(b"first"));
    assert_eq!(b.wait_received(0), b"first");
    b.net.advance(Duration::from_secs(1));
    // From now on the answers are lost; acknowledgements still arrive.
    b.net.is_lost = Box::new(|from, frame| from == 1 && frame.len() > 100);
    for n in 0..40 {
        b.post(here, send_request(&[n; 400]));
        b.net.advance(Duration::from_millis(20));
    }
    let of_peer = |e: &Event| match e {
        Event::RdmapError { stream, error } if *stream == there => Some(error.clone()),
        _ => None,
    };
    let error = b.net.hosts[1]
        .take_event(of_peer)
        .expect("an error: the peer sends more messages than there are buffers");
    assert!(matches!(error, rdmap::Error::Ddp(_)), "{error}");
}

#[test]
fn echo_answers_beyond_queue_depth_wait_in_order() {
    let mut b = bench();
    let config = rdmap::Config { max_operations: 1, recv_buffers: 8, ..rdmap::Config::default() };
    let (here, _) = b.open_as(mpa(), config.into(), Service::Echo);
    for round in 0..4_u8 {
        for n in 0..8_u8 {
            b.post(here, send_request(&[round * 8 + n; 10]));
        }
        for n in 0..8_u8 {
            assert_eq!(b.wait_received(0), [round * 8 + n; 10]);
        }
        let (qn, buffers) = (ddp::Qn(0), 8);
        b.net.hosts[0].command(0, |_| Command::PostBuffers { stream: here, qn, buffers });
        b.net.run_until_idle();
    }
    assert_eq!(b.net.hosts[1].count("streams"), 1);
}

#[test]
fn sink_service_consumes_messages_without_the_control_thread() {
    let mut b = bench();
    let (here, _) = b.open(Service::Sink);
    let mut last = None;
    for n in 0..100_u8 {
        let ticket = b.post(here, send_request(&[n; 4000]));
        // At most eight messages are outstanding: the Sink service has no more receive buffers.
        if n % 8 == 7 {
            b.wait_outcome(ticket);
        }
        last = Some(ticket);
    }
    b.wait_outcome(last.expect("some"));
    let quiet = |e: &Event| matches!(e, Event::Established { .. } | Event::Done { .. });
    assert!(b.net.hosts[1].events.iter().all(|(_, e)| quiet(e)));
}

#[test]
fn an_empty_write_is_not_reported_to_the_region() {
    let mut b = bench();
    let (here, _) = b.open(Service::Region);
    let (stag, to) = (Stag(77), TaggedOffset(3));
    let source = Source::Bytes([].into());
    let empty = b.post(here, WorkRequest::Write { stag, to, source, cookie: Cookie::user(0) });
    assert_eq!(b.wait_outcome(empty), Outcome::Written);
    b.post(here, send_request(b"behind it"));
    assert_eq!(b.wait_received(1), b"behind it");
    assert!(!b.net.hosts[1].events.iter().any(|(_, e)| matches!(e, Event::TaggedDelivered { .. })));
}

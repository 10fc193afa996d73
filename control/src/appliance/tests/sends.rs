//! Untagged messages of API clients.

use api::{ConnectSpec, ErrorKind, MpaChoice, SendSpec, Sent, Via};
use ddp::{Message, Msn, Qn};

use super::*;

fn send(bench: &mut Bench, wait: Duration) -> (Pending, Ticket) {
    let via = Via::Stream(api::StreamId(5));
    let wait_reply_us = wait.as_micros() as u64;
    let spec = SendSpec { via, queue: 0, data: b"ping".to_vec(), wait_reply_us };
    let pending = bench.call(Request::Send(spec));
    (pending, posted_ticket(bench))
}

/// Sends a message on a new stream, which ends with the message.
fn send_alone(bench: &mut Bench) -> (Pending, Ticket) {
    let via = Via::Connect(spec());
    let spec = SendSpec { via, queue: 0, data: b"once".to_vec(), wait_reply_us: 0 };
    let pending = bench.call(Request::Send(spec));
    let commands = bench.all_commands();
    let [Command::Connect(connect)] = &commands[..] else { panic!("{commands:?}") };
    bench.establish_stream(5, "10.0.0.9", Some(connect.ticket), &[]);
    (pending, posted_ticket(bench))
}

fn posted_ticket(bench: &mut Bench) -> Ticket {
    let commands = bench.all_commands();
    let [Command::Post { message: Message::Untagged { qn: Qn(0), .. }, ticket, .. }] =
        &commands[..]
    else {
        panic!("{commands:?}")
    };
    *ticket
}

/// Returns a bench with the opened stream 5.
fn bench_with_stream() -> Bench {
    let mut bench = bench();
    let _pending = bench.call(Request::Connect(spec()));
    let commands = bench.all_commands();
    let [Command::Connect(connect)] = &commands[..] else { panic!("{commands:?}") };
    bench.establish_stream(5, "10.0.0.9", Some(connect.ticket), &[]);
    for command in bench.all_commands() {
        if let Command::ListStreams { ticket, .. } = command {
            bench.report_list(ticket, vec![], true);
        }
    }
    bench
}

fn spec() -> ConnectSpec {
    let (remote, mpa) = (remote("10.0.0.9"), MpaChoice::default());
    ConnectSpec { mpa, ..ConnectSpec::to_remote(remote) }
}

fn reply(bench: &mut Bench, data: &[u8]) {
    let (stream, data) = (StreamId(5), data.to_vec());
    let event = Event::Untagged { stream, qn: Qn(0), msn: Msn(1), data, rsvd_ulp: [0; 5] };
    bench.event(event);
}

fn expect_sent(pending: &mut Pending) -> Sent {
    let Ok(Reply::Sent(sent)) = answer(pending) else { panic!("not sent") };
    sent
}

#[test]
fn send_is_answered_when_acknowledged() {
    let mut bench = bench_with_stream();
    let (mut pending, ticket) = send(&mut bench, Duration::ZERO);
    assert!(is_unanswered(&mut pending));
    bench.now += Duration::from_millis(3);
    bench.event(Event::Sent { stream: StreamId(5), ticket });
    // Bare DDP cannot confirm: the answer follows after 250 ms without an error of the peer.
    bench.advance(Duration::from_millis(249));
    assert!(is_unanswered(&mut pending));
    bench.advance(Duration::from_millis(1));
    assert_eq!(
        expect_sent(&mut pending),
        Sent { bytes: 4, time_us: 3000, reply: None, confirmed: false }
    );
}

#[test]
fn reply_may_precede_or_follow_the_acknowledgement() {
    for reply_first in [false, true] {
        let mut bench = bench_with_stream();
        let (mut pending, ticket) = send(&mut bench, Duration::from_secs(1));
        let acknowledged = Event::Sent { stream: StreamId(5), ticket };
        if reply_first {
            reply(&mut bench, b"pong");
            bench.event(acknowledged);
        } else {
            bench.event(acknowledged);
            reply(&mut bench, b"pong");
        }
        assert_eq!(expect_sent(&mut pending).reply.as_deref(), Some(&b"pong"[..]));
        assert_eq!(bench.core.jobs().echoes().len(), 1);
        let give_back = bench.all_commands();
        assert!(
            matches!(give_back[..], [Command::PostBuffers { buffers: 1, .. }]),
            "{give_back:?}"
        );
        assert!(!bench.is_logged(|kind| matches!(kind, EventKind::Message { .. })));
    }
}

// docs/protocol.md §4: an echo arrives on queue 0, whichever queue the message was sent to.
#[test]
fn reply_to_other_queue_is_accepted_on_queue_0() {
    let mut bench = bench_with_stream();
    let (via, data) = (Via::Stream(api::StreamId(5)), b"ping".to_vec());
    let mut pending =
        bench.call(Request::Send(SendSpec { via, queue: 3, data, wait_reply_us: 1_000_000 }));
    let commands = bench.all_commands();
    let [Command::Post { message: Message::Untagged { qn: Qn(3), .. }, ticket, .. }] =
        &commands[..]
    else {
        panic!("{commands:?}")
    };
    bench.event(Event::Sent { stream: StreamId(5), ticket: *ticket });
    reply(&mut bench, b"pong");
    assert_eq!(expect_sent(&mut pending).reply.as_deref(), Some(&b"pong"[..]));
}

#[test]
fn unawaited_message_is_logged() {
    let mut bench = bench_with_stream();
    reply(&mut bench, b"news");
    assert!(
        bench.is_logged(|kind| matches!(kind, EventKind::Message { data, .. } if data == b"news"))
    );
}

#[test]
fn missing_reply_times_out() {
    let mut bench = bench_with_stream();
    let (mut pending, ticket) = send(&mut bench, Duration::from_secs(1));
    bench.event(Event::Sent { stream: StreamId(5), ticket });
    assert_eq!(bench.core.poll_timeout(), Some(bench.now + Duration::from_secs(1)));
    bench.advance(Duration::from_millis(999));
    assert!(is_unanswered(&mut pending));
    bench.advance(Duration::from_millis(1));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::Timeout);
    assert_eq!(bench.core.poll_timeout(), None);
}

#[test]
fn stream_end_answers_all_waiting_clients() {
    let mut bench = bench_with_stream();
    let (mut waiting, ticket) = send(&mut bench, Duration::from_secs(1));
    bench.event(Event::Sent { stream: StreamId(5), ticket });
    let (mut unsent, _) = send(&mut bench, Duration::ZERO);
    bench.close_stream(5, CloseReason::Lower(TcpReason::PeerReset));
    for pending in [&mut waiting, &mut unsent] {
        assert_eq!(answer(pending).unwrap_err().error, ErrorKind::PeerRefused);
    }
}

#[test]
fn stream_opened_for_one_send_is_closed_after_it() {
    let mut bench = bench();
    let (mut pending, ticket) = send_alone(&mut bench);
    bench.event(Event::Sent { stream: StreamId(5), ticket });
    assert!(is_unanswered(&mut pending));
    assert!(matches!(bench.all_commands()[..], [Command::Close { abort: false, .. }]));
    bench.close_stream(5, CloseReason::LocalShutdown);
    let sent = expect_sent(&mut pending);
    assert_eq!((sent.bytes, sent.confirmed), (4, true));
}

// RFC 5041 §7.2: the peer's DDP refuses a message that its TCP has acknowledged.
#[test]
fn send_refused_after_acknowledgement_is_reported_as_failed() {
    for opened in [false, true] {
        let mut bench = if opened { bench() } else { bench_with_stream() };
        let (mut pending, ticket) = match opened {
            true => send_alone(&mut bench),
            false => send(&mut bench, Duration::ZERO),
        };
        bench.event(Event::Sent { stream: StreamId(5), ticket });
        bench.close_stream(5, CloseReason::Lower(TcpReason::PeerReset));
        let error = answer(&mut pending).unwrap_err();
        assert_eq!(error.error, ErrorKind::PeerRefused, "{error}");
    }
}

/// The peer acknowledges all data but neither closes nor sends an error.
#[test]
fn send_to_peer_that_never_closes_is_unconfirmed() {
    let mut bench = bench();
    let (mut pending, ticket) = send_alone(&mut bench);
    bench.event(Event::Sent { stream: StreamId(5), ticket });
    bench.close_stream(5, CloseReason::PeerLingers);
    assert!(!expect_sent(&mut pending).confirmed);
}

#[test]
fn send_on_unknown_stream_is_refused() {
    let mut bench = bench();
    let via = Via::Stream(api::StreamId(9));
    let spec = SendSpec { via, queue: 0, data: vec![], wait_reply_us: 0 };
    let mut pending = bench.call(Request::Send(spec));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::NotFound);
}

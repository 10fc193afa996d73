//! All legal sequences (RFC 5043 §6.2 to §6.6), message by message.

use super::host::*;
use crate::endpoint::upper::UpperCall;
use crate::endpoint::*;
use crate::seam::{MessageOutcome, MessageSink, MessageSource, ReceivedMessage};
use crate::session::{Session, SessionData};
use core::time::Duration;
use ddp::{Cookie, VecMemory};
use wire::sctp::ddp::{Function, PPID_SEGMENT};

const SECOND: Duration = Duration::from_secs(1);

/// RFC 5043 §6.2, active side: Initiate, Accept, segments in both directions, both Terminates.
#[test]
fn active_session_runs_from_initiate_to_both_terminates() {
    let mut host = Host::new(true);
    let session = host.open(b"please");
    assert_eq!(host.sent_controls(), [(0, 0, Function::Initiate, b"please".to_vec())]);
    assert!(host.in_flight[0].immediate, "the I bit requests an immediate SACK");
    assert_eq!(host.post(session, write_message(0, b"x", 1)), Err(ddp::PostError::Closed));
    host.acknowledge_all();
    assert_eq!(host.receive(0, 0, Function::Accept, b"welcome"), MessageOutcome::Accepted);
    let SessionEvent::Established { private_data, params } = host.events_of(session)[0].clone()
    else {
        panic!("{:?}", host.events);
    };
    assert_eq!((private_data, params.ulp), (b"welcome".to_vec(), UlpKind::Ddp));
    assert_eq!((params.agreed, params.mulpdu), (None, 1418));
    host.post(session, write_message(7, b"hello", 1)).expect("room");
    assert_eq!(host.sent_controls(), []);
    assert_eq!(host.in_flight[0].ppid, PPID_SEGMENT);
    assert_eq!(host.in_flight[0].bytes, segment(1, 7, b"hello"));
    assert_eq!(host.receive_write(0, 1, 100, b"there"), MessageOutcome::Accepted);
    assert_eq!(host.memory.to_vec()[100..105], *b"there");
    host.acknowledge_all();
    assert!(
        host.ddp_events(session)
            .contains(&ddp::Event::Sent { cookie: Cookie::user(1), messages: 1 })
    );
    host.shutdown(session);
    assert_eq!(host.sent_controls(), [(0, 2, Function::Terminate, vec![])]);
    // The peer's direction continues until the peer's Terminate.
    assert_eq!(host.receive_write(0, 2, 200, b"more"), MessageOutcome::Accepted);
    host.acknowledge_all();
    assert_eq!(host.reason(session), None);
    assert_eq!(host.receive(0, 3, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.reason(session), Some(CloseReason::LocalShutdown));
    assert_eq!(host.memory.to_vec()[200..204], *b"more");
    host.assert_nothing_left();
}

/// RFC 5043 §6.2, passive side. §6.6: no segment is sent before the Accept is acknowledged.
#[test]
fn passive_session_sends_after_accept_is_acknowledged() {
    let mut host = Host::new(false);
    host.policy = Policy::Wait;
    assert_eq!(host.receive(3, 0, Function::Initiate, b"please"), MessageOutcome::Accepted);
    let session = host.session(3);
    let request = SessionEvent::Request { private_data: b"please".to_vec(), enhanced: None };
    assert_eq!(host.events_of(session), [request]);
    assert_eq!(host.sent_controls(), []);
    host.accept(session, b"welcome");
    host.post(session, write_message(0, b"early", 1)).expect("accepted");
    assert_eq!(host.sent_controls(), [(3, 0, Function::Accept, b"welcome".to_vec())]);
    assert_eq!(host.in_flight.len(), 1, "the segment waits");
    host.acknowledge_all();
    assert_eq!(host.sent_controls(), []);
    assert_eq!(host.in_flight[0].bytes, segment(1, 0, b"early"));
    host.acknowledge_all();
    // The peer terminates first, then this end.
    assert_eq!(host.receive(3, 1, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.sent_controls(), [(3, 2, Function::Terminate, vec![])]);
    assert_eq!(host.reason(session), None);
    host.acknowledge_all();
    assert_eq!(host.reason(session), Some(CloseReason::PeerShutdown));
    host.assert_nothing_left();
}

/// RFC 5043 §6.2: one Terminate, from either side, suffices.
#[test]
fn single_terminate_ends_the_session() {
    let (mut host, session) = Host::established_active();
    host.shutdown(session);
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    host.acknowledge_all();
    // The acknowledgement was progress, so the time-out restarts once.
    host.wait(SECOND * 5);
    assert_eq!(host.reason(session), None);
    host.wait(SECOND * 5);
    assert_eq!(host.reason(session), Some(CloseReason::LocalShutdown));
    // Messages may still arrive, so this end does not reuse these streams yet; others are available.
    assert_eq!(host.open(b"").stream, 1);
    // The peer can conclude that no message is outstanding, and begins another session on these streams.
    assert_eq!(host.receive(0, 0, Function::Initiate, b"next"), MessageOutcome::Accepted);
    assert!(host.is_established(host.session(0)));
    assert_ne!(host.session(0), session);
}

/// While this end still waits for the peer's Terminate, the peer's next Initiate on the same streams ends the session.
#[test]
fn next_initiate_ends_the_wait_for_peer_terminate() {
    let (mut host, session) = Host::established_passive();
    host.shutdown(session);
    assert_eq!(host.receive_write(0, 1, 0, b"last"), MessageOutcome::Accepted);
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    // This end's Terminate is not acknowledged yet, so the next Initiate is refused.
    assert_eq!(host.receive(0, 0, Function::Initiate, b""), MessageOutcome::Refused);
    host.acknowledge_all();
    assert_eq!(host.reason(session), None);
    assert_eq!(host.receive(0, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    assert_eq!(host.reason(session), Some(CloseReason::LocalShutdown));
    assert!(host.is_established(host.session(0)));
}

/// RFC 5043 §6.3: the ULP's Reject carries private data.
#[test]
fn rejected_session_reports_private_data() {
    let mut host = Host::new(true);
    let session = host.open(b"");
    host.send_messages();
    assert_eq!(host.receive(0, 0, Function::Reject, b"no"), MessageOutcome::Accepted);
    let (private_data, enhanced) = (b"no".to_vec(), None);
    let reason = CloseReason::RejectedByPeer { private_data, enhanced };
    assert_eq!(host.reason(session), Some(reason));
    // RFC 5043 §6.6: the streams are not reused before the Initiate is acknowledged.
    assert_eq!(host.open(b"").stream, 1);
    host.acknowledge(1);
    assert_eq!(host.open(b"").stream, 0);

    let mut host = Host::new(false);
    host.policy = Policy::Reject(b"not now".to_vec());
    assert_eq!(host.receive(5, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    assert_eq!(host.reason(host.session(5)), Some(CloseReason::RejectedHere));
    assert_eq!(host.sent_controls(), [(5, 0, Function::Reject, b"not now".to_vec())]);
    // The next Initiate arrives before the Reject is acknowledged.
    assert_eq!(host.receive(5, 0, Function::Initiate, b""), MessageOutcome::Refused);
    host.acknowledge_all();
    host.assert_nothing_left();
    assert_eq!(host.receive(5, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    assert_eq!(host.sessions().len(), 2);
}

/// RFC 5043 §6.4: a request above the limit is answered with a Terminate.
#[test]
fn pending_requests_are_bounded() {
    let mut config = EndpointConfig::default();
    config.session.max_pending = 2;
    let mut host = Host::with_config(config, false, stream_config().into());
    host.policy = Policy::Wait;
    for stream in 0..3 {
        assert_eq!(host.receive(stream, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    }
    assert_eq!(host.sessions().len(), 2);
    assert_eq!(host.upper.stats.turned_away, 1);
    assert_eq!(host.sent_controls(), [(2, 0, Function::Terminate, vec![])]);
    host.acknowledge_all();
    // RFC 5043 §5.2.3: a decision frees room for another request.
    host.accept(host.session(0), b"");
    assert_eq!(host.receive(2, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    assert_eq!(host.sessions().len(), 3);
}

/// RFC 5043 §6.4, active side: the peer answers the Initiate with a Terminate.
#[test]
fn terminate_as_answer_reports_turned_away() {
    let mut host = Host::new(true);
    let session = host.open(b"");
    host.send_messages();
    assert_eq!(host.receive(0, 0, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::TurnedAway)));
    assert_eq!(host.sent_controls(), []);
    host.acknowledge_all();
    host.assert_nothing_left();
}

#[test]
fn unanswered_initiate_and_undecided_request_time_out() {
    let mut host = Host::new(true);
    let session = host.open(b"");
    host.send_messages();
    host.wait(SECOND * 10);
    assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::AnswerTimeout)));
    // RFC 5043 §6.1: no legal sequence has a Terminate between the Initiate and its answer.
    assert_eq!(host.sent_controls(), []);
    host.acknowledge_all();
    assert_eq!(host.sent_controls(), []);
    // §6.2: the Terminate follows the Accept, and this end sends no other message.
    assert_eq!(host.receive(0, 0, Function::Accept, b""), MessageOutcome::Accepted);
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    host.acknowledge_all();
    assert_eq!(host.receive(0, 1, Function::Terminate, b""), MessageOutcome::Accepted);
    host.assert_nothing_left();

    // §6.3, §6.4: with any other answer the sequence is complete.
    for answer in [Function::Reject, Function::Terminate] {
        let mut host = Host::new(true);
        let session = host.open(b"");
        host.send_messages();
        host.acknowledge_all();
        host.wait(SECOND * 10);
        assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::AnswerTimeout)));
        // §6.6: the streams are not reused before the answer.
        let next = host.open(b"");
        assert_eq!((session.stream, next.stream), (0, 1));
        host.send_messages();
        assert_eq!(host.receive(0, 0, answer, b""), MessageOutcome::Accepted);
        assert_eq!(host.sent_controls(), []);
        assert_eq!(host.open(b"").stream, 0);
    }

    let mut host = Host::new(false);
    host.policy = Policy::Wait;
    host.receive(0, 0, Function::Initiate, b"");
    host.wait(SECOND * 10);
    assert_eq!(host.reason(host.session(0)), Some(CloseReason::Lower(SctpReason::AnswerTimeout)));
    assert_eq!(host.sent_controls(), [(0, 0, Function::Terminate, vec![])]);
    host.acknowledge_all();
    host.assert_nothing_left();
}

#[test]
fn active_end_cancels_before_the_answer() {
    // Before the Initiate was sent.
    let mut host = Host::new(true);
    let session = host.open(b"");
    host.shutdown(session);
    assert_eq!(
        (host.sent_controls(), host.reason(session)),
        (vec![], Some(CloseReason::LocalShutdown))
    );
    host.assert_nothing_left();

    // After the Initiate was sent: the sequence is the same as after an answer time-out.
    let mut host = Host::new(true);
    let session = host.open(b"");
    host.send_messages();
    host.shutdown(session);
    host.acknowledge_all();
    assert_eq!(
        (host.sent_controls(), host.reason(session)),
        (vec![], Some(CloseReason::LocalShutdown))
    );
    assert_eq!(host.receive(0, 0, Function::Accept, b""), MessageOutcome::Accepted);
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);

    let mut host = Host::new(false);
    host.policy = Policy::Wait;
    host.receive(0, 0, Function::Initiate, b"");
    assert_eq!(host.receive(0, 1, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.reason(host.session(0)), Some(CloseReason::Lower(SctpReason::Cancelled)));
    assert_eq!(host.sent_controls(), [(0, 0, Function::Terminate, vec![])]);
    host.acknowledge_all();
    host.assert_nothing_left();
}

/// RFC 5043 §6.1: a Terminate takes effect when all earlier messages have arrived.
#[test]
fn early_terminate_takes_effect_at_its_ssn() {
    let (mut host, session) = Host::established_passive();
    assert_eq!(host.receive(0, 3, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.receive_write(0, 2, 10, b"b"), MessageOutcome::Accepted);
    assert_eq!(host.sent_controls(), [], "not in order yet");
    assert_eq!(host.receive_write(0, 1, 0, b"a"), MessageOutcome::Accepted);
    let delivered = |to, len| ddp::Event::TaggedDelivered {
        stag: STAG,
        to: ddp::TaggedOffset(to),
        len,
        rsvd_ulp: 0,
    };
    let closed = ddp::Event::PeerClosed { incomplete: false };
    assert_eq!(host.ddp_events(session), [delivered(0, 1), delivered(10, 1), closed]);
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
}

/// RFC 5043 §6.1: DDP-SSNs have no gaps.
#[test]
fn ssns_start_at_zero_in_each_session() {
    let (mut host, mut session) = Host::established_active();
    for round in 0..3 {
        for ssn in 1..=5_u16 {
            host.post(session, write_message(0, b"x", 1)).expect("room");
            host.send_messages();
            let bytes = &host.in_flight[0].bytes;
            assert_eq!(bytes[..2], ssn.to_be_bytes());
            host.acknowledge_all();
        }
        host.shutdown(session);
        assert_eq!(host.sent_controls(), [(0, 6, Function::Terminate, vec![])]);
        host.acknowledge_all();
        host.receive(0, 1, Function::Terminate, b"");
        host.assert_nothing_left();
        session = host.open(&[round]);
        assert_eq!(host.sent_controls(), [(0, 0, Function::Initiate, vec![round])]);
        host.acknowledge_all();
        host.receive(0, 0, Function::Accept, b"");
    }
}

/// The time-out of a graceful close restarts whenever the peer has made progress.
#[test]
fn graceful_close_is_extended_while_the_peer_progresses() {
    let (mut host, session) = Host::established_active();
    for cookie in 0..3 {
        host.post(session, write_message(0, b"x", cookie)).expect("room");
    }
    host.shutdown(session);
    host.send_messages();
    let teardown = ddp::EndpointPolicy::default().teardown_timeout;
    for _ in 0..3 {
        host.wait(teardown - Duration::from_millis(1));
        host.acknowledge(1);
        host.wait(Duration::from_millis(1));
        assert_eq!(host.reason(session), None);
    }
    host.wait(teardown);
    assert_eq!(host.reason(session), Some(CloseReason::PeerLingers));
}

/// Returns an active end with two established sessions, on streams 0 and 1.
fn two_sessions() -> (Host, SessionId, SessionId) {
    let (mut host, first) = Host::established_active();
    let second = host.open(b"");
    host.send_messages();
    host.acknowledge_all();
    host.receive(1, 0, Function::Accept, b"");
    (host, first, second)
}

/// RFC 5043 §11.2: a message that does not fit the rest of a packet is the first message of the next packet. No shorter
/// message overtakes it.
#[test]
fn message_too_long_for_packet_opens_the_next_packet() {
    let (mut host, first, second) = two_sessions();
    host.post(first, write_message(0, &[7; 1000], 1)).expect("room");
    host.post(second, write_message(0, b"x", 2)).expect("room");
    let mut call = UpperCall::for_transmit(&mut host.upper, u64::MAX);
    let mut next = |room: usize| {
        let written = call.next(MAX_MESSAGE, &mut vec![0; room]);
        written.map(|written| written.message.stream)
    };
    assert_eq!(
        [next(100), next(MAX_MESSAGE), next(100), next(MAX_MESSAGE)],
        [None, Some(0), Some(1), None]
    );
}

/// Sessions with data alternate, regardless of the amount.
#[test]
fn sessions_with_data_alternate() {
    let (mut host, first, second) = two_sessions();
    for cookie in 0..3 {
        host.post(first, write_message(0, b"x", cookie)).expect("room");
    }
    host.post(second, write_message(0, b"x", 3)).expect("room");
    host.send_messages();
    let streams: Vec<_> = host.in_flight.iter().map(|flying| flying.message.stream).collect();
    assert_eq!(streams, [0, 1, 0, 0]);
}

/// The association is lost after this end's Terminate. The end of the session is graceful only if the Terminate was
/// acknowledged.
#[test]
fn association_loss_after_graceful_end_is_not_reported() {
    for (acknowledged, reason) in
        [(true, CloseReason::LocalShutdown), (false, CloseReason::Lower(SctpReason::SctpTimeout))]
    {
        let (mut host, session) = Host::established_active();
        host.shutdown(session);
        assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
        if acknowledged {
            host.acknowledge_all();
        }
        assert_eq!(
            host.upper.kept_bytes() == 0,
            acknowledged,
            "the Terminate is kept until acknowledged"
        );
        let now = host.now;
        host.with_context(|upper, cx| {
            upper.on_association_lost(SctpReason::SctpTimeout.into(), now, cx)
        });
        host.settle();
        assert_eq!(host.reason(session), Some(reason));
        assert_eq!(host.upper.kept_bytes(), 0, "no copy remains");
    }
}

/// The memory for copies of unacknowledged messages is bounded. While no copy is kept, one message is sent regardless
/// of the bound.
#[test]
fn copies_of_unacknowledged_messages_are_bounded() {
    let (mut host, session) = Host::established_active();
    for cookie in 0..2 {
        let memory = VecMemory::new(100);
        let source = ddp::Source::Region { memory, offset: 0, len: 100 };
        let (to, cookie) = (ddp::TaggedOffset(0), Cookie::user(cookie));
        let message = ddp::Message::Tagged { stag: STAG, to, rsvd_ulp: 0, source, cookie };
        host.post(session, message).expect("room");
    }
    let mut call = UpperCall::for_transmit(&mut host.upper, 1);
    let mut out = [0; MAX_MESSAGE];
    assert!(call.next(MAX_MESSAGE, &mut out).is_some() && !call.keep_limit.has_refused());
    assert!(call.next(MAX_MESSAGE, &mut out).is_none() && call.keep_limit.has_refused());
    let mut call = UpperCall::for_transmit(&mut host.upper, u64::MAX);
    assert!(call.next(MAX_MESSAGE, &mut out).is_some());
}

/// The worker's budget limits the memory for fragments. Without the worker's context, as during transmission, no memory
/// is granted.
#[test]
fn fragment_memory_is_bounded_by_worker_budget() {
    let (mut host, _) = Host::established_passive();
    let largest = host.hold.guaranteed_bytes();
    let held = host.with_context(|upper, cx| {
        let mut call = UpperCall::for_receive(upper, cx);
        assert_eq!(call.max_hold(), largest);
        assert!(call.hold(1000, true));
        call.release(400);
        cx.hold.used()
    });
    assert_eq!(held, 600);
    let mut call = UpperCall::for_transmit(&mut host.upper, u64::MAX);
    assert_eq!((call.max_hold(), call.hold(1, true), call.grow_window(0, 1)), (0, false, false));
}

/// Events queued before a pause are also withheld until the session is resumed.
#[test]
fn paused_session_reports_no_events() {
    let (mut host, session) = Host::established_passive();
    let (now, bytes) = (host.now, segment(1, 0, b"a"));
    host.with_context(|upper, cx| {
        let pieces: &[&[u8]] = &[&bytes];
        let received = ReceivedMessage { stream: 0, ppid: PPID_SEGMENT, unordered: true, pieces };
        let taken = UpperCall::for_receive(upper, cx).deliver(now, received);
        assert_eq!(taken, MessageOutcome::Accepted);
        upper.pause(0, Some(0));
        upper.settle_all(now, cx);
        assert_eq!(upper.poll_event(), None);
        upper.pause(0, None);
    });
    host.settle();
    let to = ddp::TaggedOffset(0);
    let delivered = ddp::Event::TaggedDelivered { stag: STAG, to, len: 1, rsvd_ulp: 0 };
    assert_eq!(host.ddp_events(session), [delivered]);
}

/// A session whose Initiate was never sent ends without a message, even if ended repeatedly.
#[test]
fn session_without_sent_initiate_sends_no_terminate() {
    let data = SessionData { private_data: Vec::new(), enhanced: None };
    let mut session = Session::new_active(0, &data, 1000);
    assert!(!session.terminate_now(), "the peer never received the Initiate");
    for _ in 0..2 {
        assert!(!session.has_data(None::<&Ulp<VecMemory>>, false) && session.is_free());
        session.terminate_now();
    }
}

/// RFC 5043 §11.3: an aborted session sends a Terminate, its outstanding messages still arrive, and other sessions
/// continue.
#[test]
fn session_abort_leaves_other_sessions_open() {
    let (mut host, first) = Host::established_active();
    let second = host.open(b"");
    host.send_messages();
    host.acknowledge_all();
    host.receive(1, 0, Function::Accept, b"");
    let unstable = ddp::Source::Region { memory: host.memory.clone(), offset: 0, len: 4 };
    for source in [ddp::Source::Bytes(b"kept"[..].into()), unstable] {
        let to = ddp::TaggedOffset(0);
        let message =
            ddp::Message::Tagged { stag: STAG, to, rsvd_ulp: 0, source, cookie: Cookie::user(9) };
        host.post(first, message).expect("room");
    }
    host.send_messages();
    host.post(first, write_message(0, b"never", 10)).expect("room");
    host.abort(first);
    assert_eq!(host.reason(first), Some(CloseReason::LocalAbort));
    let flushed: Vec<_> = host.ddp_events(first).into_iter().take(3).collect();
    let flushed_event = |cookie| ddp::Event::Flushed { cookie };
    assert_eq!(
        flushed,
        [
            flushed_event(Cookie::user(9)),
            flushed_event(Cookie::user(9)),
            flushed_event(Cookie::user(10))
        ]
    );
    // Retransmissions repeat the original bytes, although the source has changed.
    for flying in host.in_flight.clone() {
        assert_eq!(host.rewrite(flying.message), flying.bytes);
    }
    assert_eq!(host.sent_controls(), [(0, 4, Function::Terminate, vec![])]);
    assert_eq!(host.last_message(), Some(ddp::last_message::LastMessage::llp(0, 5)));
    assert_eq!(host.receive_write(0, 1, 50, b"ignored"), MessageOutcome::Accepted);
    assert!(!host.upper.take_abort(), "the peer has the last message");
    assert_eq!(host.memory.to_vec()[50..57], [0; 7]);
    host.acknowledge_all();
    host.receive(0, 2, Function::Terminate, b"");
    host.post(second, write_message(0, b"alive", 11)).expect("a live session");
    host.send_messages();
    host.acknowledge_all();
    assert!(
        host.ddp_events(second)
            .contains(&ddp::Event::Sent { cookie: Cookie::user(11), messages: 1 })
    );
    assert_eq!(host.open(b"").stream, 0, "the streams are free again");
}

/// RFC 5043 §11.2: an untagged message is not delayed. A segment that fills a packet is sent in a separate packet.
#[test]
fn short_message_is_sent_without_delay() {
    use crate::endpoint::upper::UpperCall;
    use crate::seam::MessageSource;
    let (mut host, session) = Host::established_active();
    host.post(session, send_message(b"small", 1)).expect("room");
    host.post(session, write_message(0, &[7; 5000], 2)).expect("room");
    let mut up = UpperCall::for_transmit(&mut host.upper, u64::MAX);
    let mut room = [0; MAX_MESSAGE];
    let small =
        up.next(MAX_MESSAGE, &mut room[..300]).expect("written at once into the available room");
    assert_eq!(small.message.len, 2 + 18 + 5);
    assert!(up.has_data());
    assert_eq!(up.next(MAX_MESSAGE, &mut room[..1000]), None, "it fills a packet");
    let large = up.next(MAX_MESSAGE, &mut room).expect("a separate packet");
    assert_eq!(usize::from(large.message.len), MAX_MESSAGE - 16);
    assert!(!large.immediate);
}

/// RFC 5043 §9: the MULPDU is at least 516 bytes if they fit the packet, and leaves room for control chunks in longer
/// packets.
#[test]
fn segment_size_leaves_room_for_control_chunks() {
    use crate::session::mulpdu;
    assert_eq!(mulpdu(1436, 16), 1418);
    assert_eq!(mulpdu(8936, 16), 8918);
    assert_eq!(mulpdu(528, 16), 516);
    assert_eq!(mulpdu(520, 16), 516);
    assert_eq!(mulpdu(516, 16), 514, "limited by the packet");
    assert_eq!(mulpdu(65_535, 16), 65_000);
}

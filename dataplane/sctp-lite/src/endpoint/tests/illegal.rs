//! Violations of the legal sequences (RFC 5043 §6.1): the session is terminated, and its error is counted and reported.

use super::host::*;
use crate::endpoint::*;
use crate::seam::MessageOutcome;
use crate::session::SessionError;
use base::ErrorNumbers;
use ddp::last_message::LastMessage;
use wire::sctp::ddp::{BadControl, Function, PPID_CONTROL, PPID_SEGMENT};

/// Sends an illegal message in an established session.
type IllegalMessage = fn(&mut Host) -> MessageOutcome;

fn control(function: Function, ssn: u16) -> Vec<u8> {
    [ssn.to_be_bytes(), function.code().to_be_bytes()].concat()
}

/// Each violation terminates an established session, on the passive and the active side.
#[test]
fn violation_in_established_session_terminates_it() {
    let cases: [(IllegalMessage, SessionError); 17] = [
        (
            |host| host.receive(0, 1, Function::Initiate, b""),
            SessionError::Control { seen: Function::Initiate },
        ),
        (
            |host| host.receive(0, 1, Function::Accept, b""),
            SessionError::Control { seen: Function::Accept },
        ),
        (
            |host| host.receive(0, 1, Function::Reject, b""),
            SessionError::Control { seen: Function::Reject },
        ),
        (
            |host| host.receive(0, 1, Function::EnhancedAccept, &[0; 4]),
            SessionError::Control { seen: Function::EnhancedAccept },
        ),
        (|host| host.receive_write(0, 0, 0, b"x"), SessionError::Ssn { expected: 1, seen: 0 }),
        (
            |host| {
                host.receive_write(0, 1, 0, b"x");
                host.receive_write(0, 1, 0, b"x")
            },
            SessionError::Ssn { expected: 2, seen: 1 },
        ),
        (
            |host| {
                host.receive_write(0, 5, 0, b"x");
                host.receive_write(0, 5, 0, b"x")
            },
            SessionError::Ssn { expected: 1, seen: 5 },
        ),
        (
            |host| host.receive_write(0, 32_768, 0, b"x"),
            SessionError::Ssn { expected: 1, seen: 32_768 },
        ),
        (|host| host.receive_raw(0, PPID_SEGMENT, true, &[&[7]]), SessionError::Short { seen: 1 }),
        (
            |host| host.receive_raw(0, PPID_CONTROL, true, &[&[0, 1, 0]]),
            SessionError::BadControl(BadControl::Short(3)),
        ),
        (
            |host| host.receive_raw(0, PPID_CONTROL, true, &[&[0, 1, 0, 9]]),
            SessionError::BadControl(BadControl::Function(9)),
        ),
        (
            |host| host.receive(0, 1, Function::Terminate, b"x"),
            SessionError::BadControl(BadControl::TerminateWithPrivateData),
        ),
        (
            |host| host.receive_raw(0, 18, true, &[&segment(1, 0, b"x")]),
            SessionError::Ppid { seen: 18 },
        ),
        (
            |host| host.receive_raw(0, PPID_SEGMENT, false, &[&segment(1, 0, b"x")]),
            SessionError::Ordered,
        ),
        (
            |host| host.receive_write(0, 1, 0, &[1; 16 * 1024]),
            SessionError::Oversized { limit: 16 * 1024, seen: 16 * 1024 + 14 },
        ),
        (
            |host| {
                host.receive_write(0, 3, 0, b"x");
                host.receive(0, 2, Function::Terminate, b"")
            },
            SessionError::AfterTerminate { terminate: 2, seen: 3 },
        ),
        (
            |host| {
                host.receive(0, 3, Function::Terminate, b"");
                host.receive_write(0, 4, 0, b"x")
            },
            SessionError::AfterTerminate { terminate: 3, seen: 4 },
        ),
    ];
    for (wrong, error) in cases {
        for side in [Host::established_active, Host::established_passive] {
            let (mut host, session) = side();
            assert_eq!(wrong(&mut host), MessageOutcome::Accepted, "{error}");
            assert_eq!(host.upper.stats.illegal, 1, "{error}");
            // A Terminate alone would signal a graceful end (docs/protocol.md §6).
            assert_eq!(host.sent_controls(), [(0, 2, Function::Terminate, vec![])], "{error}");
            assert_eq!(host.last_message(), Some(LastMessage::llp(0, 5)), "{error}");
            host.acknowledge_all();
            assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::Session(error))));
            // Later segments are not placed.
            host.receive_write(0, 10, 500, b"late");
            assert_eq!(host.memory.to_vec()[500..504], [0; 4]);
            // The owner can open another session on other streams.
            assert_ne!(host.open(b"").stream, 0);
        }
    }
}

/// A message that is not a legal answer to the Initiate fails the session.
#[test]
fn illegal_answer_to_initiate_fails_the_session() {
    let cases: [(Vec<u8>, u32, SessionError); 6] = [
        (
            control(Function::Initiate, 0),
            PPID_CONTROL,
            SessionError::Control { seen: Function::Initiate },
        ),
        (
            [control(Function::EnhancedAccept, 0), vec![0; 4]].concat(),
            PPID_CONTROL,
            SessionError::Control { seen: Function::EnhancedAccept },
        ),
        (
            control(Function::EnhancedReject, 0),
            PPID_CONTROL,
            SessionError::Control { seen: Function::EnhancedReject },
        ),
        (segment(0, 0, b"x"), PPID_SEGMENT, SessionError::EarlySegment),
        (
            [control(Function::Accept, 0), vec![0; 513]].concat(),
            PPID_CONTROL,
            SessionError::BadControl(BadControl::PrivateDataTooLong(513)),
        ),
        (segment(1, 0, b"x"), 3, SessionError::Ppid { seen: 3 }),
    ];
    for (bytes, ppid, error) in cases {
        let mut host = Host::new(true);
        let session = host.open(b"");
        host.send_messages();
        assert_eq!(host.receive_raw(0, ppid, true, &[&bytes]), MessageOutcome::Accepted);
        assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::Session(error))));
        // RFC 5043 §6.6: any answer proves that the Initiate has arrived.
        assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
        host.acknowledge_all();
    }
}

/// RFC 5043 §6.1: messages that overtake the answer to the Initiate are refused, and accepted when retransmitted.
#[test]
fn messages_ahead_of_the_answer_are_refused_until_it_arrives() {
    let mut host = Host::new(true);
    let session = host.open(b"");
    host.send_messages();
    host.acknowledge_all();
    assert_eq!(host.receive_write(0, 1, 0, b"early"), MessageOutcome::Refused);
    assert_eq!(host.receive(0, 2, Function::Terminate, b""), MessageOutcome::Refused);
    assert_eq!(host.memory.to_vec()[..5], [0; 5]);
    assert_eq!(host.receive(0, 0, Function::Accept, b""), MessageOutcome::Accepted);
    assert_eq!(host.receive(0, 2, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.receive_write(0, 1, 0, b"early"), MessageOutcome::Accepted);
    assert_eq!(host.memory.to_vec()[..5], *b"early");
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    host.acknowledge_all();
    assert_eq!(host.reason(session), Some(CloseReason::PeerShutdown));
}

/// RFC 5043 §6.6: the SACK of the Initiate permits the active side to send. Segments and a following Terminate are
/// refused before the decision, and accepted after an Accept.
#[test]
fn segments_before_the_decision_are_refused_until_accept() {
    let mut host = Host::new(false);
    host.policy = Policy::Wait;
    assert_eq!(host.receive(0, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    let session = host.session(0);
    for _ in 0..2 {
        assert_eq!(host.receive_write(0, 1, 0, b"early"), MessageOutcome::Refused);
        assert_eq!(host.receive(0, 2, Function::Terminate, b""), MessageOutcome::Refused);
    }
    assert_eq!((host.memory.to_vec()[0], host.reason(session)), (0, None));
    host.accept(session, b"");
    assert_eq!(host.receive_write(0, 1, 0, b"early"), MessageOutcome::Accepted);
    assert_eq!(host.receive(0, 2, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.memory.to_vec()[..5], *b"early");
    assert_eq!(host.sent_controls(), [(0, 0, Function::Accept, vec![])]);
    host.acknowledge_all();
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    host.acknowledge_all();
    assert_eq!(host.reason(session), Some(CloseReason::PeerShutdown));
}

/// Before the decision the active side may send segments and cancel. Any other control message ends the session.
#[test]
fn control_message_before_decision_ends_the_session() {
    let cases: [(IllegalMessage, SessionError); 2] = [
        (
            |host| host.receive(0, 1, Function::Accept, b""),
            SessionError::Control { seen: Function::Accept },
        ),
        (
            |host| host.receive(0, 2, Function::Initiate, b""),
            SessionError::Control { seen: Function::Initiate },
        ),
    ];
    for (wrong, error) in cases {
        let mut host = Host::new(false);
        host.policy = Policy::Wait;
        host.receive(0, 0, Function::Initiate, b"");
        let session = host.session(0);
        assert_eq!(wrong(&mut host), MessageOutcome::Accepted);
        assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::Session(error))));
        assert_eq!(host.sent_controls(), [(0, 0, Function::Terminate, vec![])]);
        assert_eq!(host.memory.to_vec()[0], 0);
    }
}

#[test]
fn messages_without_a_session_are_unmatched() {
    let illegal: [IllegalMessage; 5] = [
        |host| host.receive(0, 0, Function::Accept, b""),
        |host| host.receive_write(0, 0, 0, b"x"),
        |host| host.receive_raw(0, PPID_CONTROL, true, &[&[0, 0, 0, 77]]),
        |host| host.receive_raw(0, PPID_CONTROL, false, &[&control(Function::Initiate, 0)]),
        |host| host.receive(0, 0, Function::EnhancedInitiate, &[1, 2, 3]),
    ];
    for wrong in illegal {
        let mut host = Host::new(false);
        assert_eq!(wrong(&mut host), MessageOutcome::Accepted);
        assert_eq!((host.upper.stats.illegal, host.sessions().len()), (1, 0));
        assert_eq!(host.sent_controls(), [(0, 0, Function::Terminate, vec![])]);
        host.acknowledge_all();
        // A Terminate is not answered by another Terminate, so that two ends cannot loop.
        assert_eq!(host.receive(0, 1, Function::Terminate, b""), MessageOutcome::Accepted);
        assert_eq!(host.sent_controls(), []);
        assert_eq!(host.upper.occupied_slots(), 0);
    }
    let mut host = Host::new(false);
    assert_eq!(host.receive(0, 4, Function::Terminate, b""), MessageOutcome::Accepted);
    // RFC 5043 §6.1: the Initiate before this message may still arrive.
    assert_eq!(host.receive_write(0, 1, 0, b"x"), MessageOutcome::Refused);
    assert_eq!((host.upper.stats.unmatched_terminates, host.upper.stats.early_messages), (1, 1));
    assert_eq!((host.sent_controls(), host.upper.occupied_slots()), (vec![], 0));
}

/// Both ends open a session on the same streams, and both sessions fail.
#[test]
fn simultaneous_initiates_on_one_stream_both_fail() {
    let mut host = Host::new(true);
    let session = host.open(b"");
    assert_eq!(host.receive(0, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    let error = SessionError::Control { seen: Function::Initiate };
    assert_eq!(host.sent_controls(), [(0, 0, Function::Initiate, vec![])]);
    assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::Session(error))));
    host.acknowledge_all();
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    host.acknowledge_all();
    host.receive(0, 1, Function::Terminate, b"");
    host.assert_nothing_left();
}

/// RFC 5041 §7.1: the last message reports the DDP error.
#[test]
fn ddp_error_sends_last_message_then_terminate() {
    let (mut host, session) = Host::established_passive();
    assert_eq!(host.receive_write(0, 1, REGION as u64, b"x"), MessageOutcome::Accepted);
    assert_eq!(host.sent_controls(), [(0, 2, Function::Terminate, vec![])]);
    assert_eq!(host.in_flight.len(), 2, "the last message precedes the Terminate");
    assert_eq!(host.receive_write(0, 2, 0, b"x"), MessageOutcome::Accepted);
    assert_eq!(host.memory.to_vec()[0], 0);
    host.acknowledge_all();
    let reason = host.reason(session).expect("an ended session");
    assert_eq!((reason.name(), reason.numbers()), ("ddp_error", Some(ErrorNumbers::new(1, 1, 1))));
    host.receive(0, 3, Function::Terminate, b"");
    host.assert_nothing_left();
}

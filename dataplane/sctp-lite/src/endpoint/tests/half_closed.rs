//! Half-closed sessions: after the peer's Terminate the ULP responds, then closes (RFC 5041 §6.2.1). Also tests ends of
//! sessions that must not look graceful to the peer (docs/protocol.md §6).

use super::host::*;
use crate::endpoint::*;
use crate::seam::MessageOutcome;
use core::time::Duration;
use ddp::last_message::LastMessage;
use wire::sctp::ddp::{Function, PPID_SEGMENT};

/// Returns the last message that reports a local failure.
fn failed_last_message() -> Option<LastMessage> {
    Some(LastMessage::llp(0, 5))
}

/// Returns a session whose peer has sent a message and its Terminate. The ULP has not closed it yet.
fn half_closed_session() -> (Host, SessionId) {
    let (mut host, session) = Host::established_passive();
    host.closes = false;
    assert_eq!(host.receive_write(0, 1, 0, b"question"), MessageOutcome::Accepted);
    assert_eq!(host.receive(0, 2, Function::Terminate, b""), MessageOutcome::Accepted);
    assert_eq!(host.sent_controls(), []);
    let closed = ddp::Event::PeerClosed { incomplete: false };
    assert!(host.ddp_events(session).contains(&closed));
    (host, session)
}

#[test]
fn posts_after_peer_terminate_are_sent() {
    let (mut host, session) = half_closed_session();
    host.post(session, send_message(b"answer", 1)).expect("room");
    assert_eq!(host.sent_controls(), []);
    assert_eq!(host.in_flight[0].ppid, PPID_SEGMENT);
    assert!(host.in_flight[0].bytes.ends_with(b"answer"));
    // One Terminate suffices (RFC 5043 §6.2), but the streams stay in use while this end still sends.
    assert_eq!(host.receive(0, 0, Function::Initiate, b""), MessageOutcome::Refused);
    host.shutdown(session);
    assert_eq!(host.sent_controls(), [(0, 2, Function::Terminate, vec![])]);
    host.acknowledge_all();
    assert_eq!(host.reason(session), Some(CloseReason::PeerShutdown));
    assert_eq!(host.receive(0, 0, Function::Initiate, b""), MessageOutcome::Accepted);
}

/// The wait for the ULP's close is limited. Its expiry is reported to the peer as an error, because the ULP's responses
/// are missing.
#[test]
fn ulp_close_timeout_is_reported_to_the_peer() {
    let (mut host, session) = half_closed_session();
    let second = Duration::from_secs(1);
    host.wait(ddp::HALF_CLOSED_TIMEOUT - second);
    // An acknowledged message counts as progress.
    host.post(session, send_message(b"late", 1)).expect("room");
    host.send_messages();
    host.acknowledge_all();
    host.wait(second);
    assert_eq!(host.reason(session), None);
    host.wait(ddp::HALF_CLOSED_TIMEOUT);
    assert_eq!(host.reason(session), Some(CloseReason::UlpTimeout));
    assert_eq!(host.sent_controls(), [(0, 3, Function::Terminate, vec![])]);
    assert_eq!(host.last_message(), failed_last_message());
    host.acknowledge_all();
    host.assert_nothing_left();
}

/// After this end's Terminate no last message can be sent, so the association is aborted.
#[test]
fn error_after_local_terminate_aborts_the_association() {
    let cases: [fn(&mut Host) -> MessageOutcome; 2] = [
        |host| host.receive_write(0, 1, REGION as u64, b"outside"),
        |host| host.receive_write(0, 1, 0, &[1; 16 * 1024]),
    ];
    for wrong in cases {
        let (mut host, session) = Host::established_passive();
        host.shutdown(session);
        assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
        host.acknowledge_all();
        assert_eq!(wrong(&mut host), MessageOutcome::Accepted);
        assert!(host.upper.take_abort());
    }
}

/// A segment that arrives after this end's graceful close is acknowledged but not placed, so the association is
/// aborted.
#[test]
fn segment_after_orderly_end_aborts_the_association() {
    let (mut host, session) = Host::established_passive();
    host.shutdown(session);
    assert_eq!(host.sent_controls(), [(0, 1, Function::Terminate, vec![])]);
    host.acknowledge_all();
    let teardown = ddp::EndpointPolicy::default().teardown_timeout;
    host.wait(teardown);
    host.wait(teardown);
    assert_eq!(host.reason(session), Some(CloseReason::LocalShutdown));
    assert!(!host.upper.take_abort());
    assert_eq!(host.receive_write(0, 1, 0, b"late"), MessageOutcome::Accepted);
    assert_eq!(host.memory.to_vec()[..4], [0; 4]);
    assert!(host.upper.take_abort());
}

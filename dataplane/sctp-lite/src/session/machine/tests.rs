//! Messages that a session sends, and messages received around its end.

use ddp::{
    Cookie, Message as DdpMessage, PdId, Source, Stag, Stream, StreamConfig, StreamId,
    TaggedOffset, VecMemory,
};

use super::*;
use crate::session::MAX_OUTSTANDING;
use crate::session::message::Control;

/// Returns a source of `messages` small segments.
fn source(messages: u64) -> Stream<VecMemory> {
    let config = StreamConfig { max_posts: MAX_OUTSTANDING, ..Default::default() };
    let mut stream = Stream::new(StreamId(1), PdId(1), config);
    for cookie in 0..messages {
        let source = Source::Bytes(b"x"[..].into());
        let (stag, to, cookie) = (Stag(1), TaggedOffset(0), Cookie::user(cookie));
        let message = DdpMessage::Tagged { stag, to, rsvd_ulp: 0, source, cookie };
        stream.post(message).expect("room");
    }
    stream
}

/// Returns an active session whose Initiate is acknowledged and accepted.
fn open_session() -> Session {
    let data = SessionData { private_data: Vec::new(), enhanced: None };
    let (mut session, mut out) = (Session::new_active(3, &data, 516), [0; 1436]);
    let initiate = session.next(None::<&mut Stream<VecMemory>>, false, 516, &mut out);
    acknowledge(&mut session, initiate.expect("a due Initiate").message);
    let accepted =
        SessionChange::Accepted(SessionData { private_data: Vec::new(), enhanced: None });
    assert_eq!(
        receive_control(&mut session, 0, Function::Accept),
        ArrivalResult::Accepted(accepted)
    );
    session
}

fn acknowledge(session: &mut Session, message: MessageRef) {
    session.on_acknowledged(None::<&mut Stream<VecMemory>>, message);
}

/// Passes a control message from the peer to the session.
fn receive_control(session: &mut Session, ssn: u16, function: Function) -> ArrivalResult {
    let control = Control { function, private_data: Vec::new(), enhanced: None };
    let message = Message { ssn: DdpSsn(ssn), body: Body::Control(Box::new(control)) };
    session.receive(&Ok(message), Some(DdpSsn(ssn)), None::<&mut ddp::UlpSink<'_, VecMemory>>)
}

/// Sends this end's Terminate and acknowledges it.
fn terminate(session: &mut Session) {
    let sent = session.next(None::<&mut Stream<VecMemory>>, false, 516, &mut [0; 1436]);
    acknowledge(session, sent.expect("the Terminate is due").message);
    assert!(session.is_own_done());
}

// RFC 5043 §6.2: a session that has no data and is not ended sends nothing.
#[test]
fn terminate_is_sent_only_when_the_session_ends() {
    let mut session = open_session();
    let next = |session: &mut Session| {
        session.next(None::<&mut Stream<VecMemory>>, false, 516, &mut [0; 1436])
    };
    assert!(next(&mut session).is_none());
    assert!(session.terminate_now());
    assert!(next(&mut session).is_some());
    assert_eq!(session.terminate_state, TerminateState::Sent);
}

// RFC 5043 §10: with 32,767 messages outstanding, the Terminate waits for an acknowledgement.
#[test]
fn terminate_waits_for_room_among_the_outstanding_messages() {
    for ends in [Session::terminate_now as fn(&mut Session) -> bool, |session| {
        session.close();
        true
    }] {
        let mut session = open_session();
        let (mut source, mut out) = (source(MAX_OUTSTANDING as u64), [0; 1436]);
        let mut send = || session.next(Some(&mut source), false, 516, &mut out);
        let sent: Vec<_> =
            (0..MAX_OUTSTANDING).map(|_| send().expect("a segment").message).collect();
        assert!(ends(&mut session));
        assert!(!session.has_data(None::<&Stream<VecMemory>>, false));
        assert!(session.next(None::<&mut Stream<VecMemory>>, false, 516, &mut out).is_none());
        session.on_acknowledged(Some(&mut source), sent[0]);
        assert!(session.has_data(None::<&Stream<VecMemory>>, false));
        assert!(session.next(None::<&mut Stream<VecMemory>>, false, 516, &mut out).is_some());
        assert_eq!(session.terminate_state, TerminateState::Sent);
    }
}

// RFC 5043 §6.2, §6.6: after this end's Terminate is acknowledged, the peer may begin another session on these
// streams, unless a message of the old session is missing.
#[test]
fn next_session_supersedes_an_ended_one_without_a_gap() {
    let mut session = open_session();
    session.terminate_now();
    assert_eq!(
        receive_control(&mut session, 0, Function::Initiate),
        ArrivalResult::Refused,
        "not acknowledged"
    );
    terminate(&mut session);
    assert_eq!(receive_control(&mut session, 0, Function::Initiate), ArrivalResult::Superseded);
    // A message beyond a gap arrives.
    assert_eq!(
        receive_control(&mut session, 2, Function::Terminate),
        ArrivalResult::Accepted(SessionChange::Nothing)
    );
    assert_eq!(receive_control(&mut session, 0, Function::Initiate), ArrivalResult::Refused);
}

// RFC 5043 §6.1: an Initiate that arrives after this end's Terminate belongs to the terminated session and begins no
// other session.
#[test]
fn late_initiate_of_failed_session_begins_no_session() {
    let mut session = Session::new_failed(3, 516);
    terminate(&mut session);
    assert_eq!(
        receive_control(&mut session, 0, Function::Initiate),
        ArrivalResult::Accepted(SessionChange::Nothing)
    );
}

// RFC 5043 §6.6: no message is sent between the opening message and its acknowledgement, and none after the
// Terminate.
#[test]
fn segments_follow_opening_message_and_precede_terminate() {
    let (mut source, mut out) = (source(3), [0; 1436]);
    let data = SessionData { private_data: Vec::new(), enhanced: None };
    let mut session = Session::new_active(3, &data, 516);
    let mut next = |session: &mut Session| session.next(Some(&mut source), false, 516, &mut out);
    let initiate = next(&mut session).expect("a due Initiate");
    assert!(next(&mut session).is_none(), "the Initiate is not acknowledged");
    session.on_acknowledged(None::<&mut Stream<VecMemory>>, initiate.message);
    assert!(next(&mut session).is_some());
    session.phase = Phase::Open;
    assert!(session.terminate_now());
    assert!(next(&mut session).is_some(), "the Terminate");
    assert_eq!(session.terminate_state, TerminateState::Sent);
    assert!(next(&mut session).is_none(), "no message follows the Terminate");
}

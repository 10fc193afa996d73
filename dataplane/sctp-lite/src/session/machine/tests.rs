//! What a session sends when, whatever its source has.

use ddp::{
    Cookie, Message, PdId, Source, Stag, Stream, StreamConfig, StreamId, TaggedOffset, VecMemory,
};

use super::*;

/// A source of `messages` small segments.
fn source(messages: u64) -> Stream<VecMemory> {
    let mut stream = Stream::new(StreamId(1), PdId(1), StreamConfig::default());
    for cookie in 0..messages {
        let source = Source::Bytes(b"x"[..].into());
        let (stag, to, cookie) = (Stag(1), TaggedOffset(0), Cookie::of(cookie));
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie };
        stream.post(message).expect("room");
    }
    stream
}

// RFC 5043 §6.6: nothing behind the first message until the peer has it, and nothing behind the Terminate.
#[test]
fn segments_stay_between_the_first_message_and_the_last() {
    let (mut source, mut out) = (source(3), [0; 1436]);
    let data = SessionData { private_data: Vec::new(), enhanced: None };
    let mut session = Session::active(3, &data, 516);
    let mut next = |session: &mut Session| session.next(Some(&mut source), false, 516, &mut out);
    let initiate = next(&mut session).expect("it is due");
    assert!(next(&mut session).is_none(), "the Initiate is not acknowledged");
    session.acknowledged(None::<&mut Stream<VecMemory>>, initiate.message);
    assert!(next(&mut session).is_some());
    session.phase = Phase::Open;
    assert!(session.end());
    assert!(next(&mut session).is_some(), "the Terminate");
    assert_eq!(session.last, Last::Sent);
    assert!(next(&mut session).is_none(), "nothing follows it");
}

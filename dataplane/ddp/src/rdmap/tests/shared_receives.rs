//! Receives of a source that streams share: each message takes one receive when its first segment arrives.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use crate::Span;
use crate::llp::Disposition::{Ignored, Placed, Refused};

/// Distance between the memory of consecutive receives, bytes.
const STRIDE: u64 = 64;

/// A source with a list of receives.
#[derive(Debug, Default)]
struct Source(Mutex<VecDeque<Receive<VecMemory>>>);

impl ReceiveSource<VecMemory> for Source {
    fn take(&self, stags: &StagTable<VecMemory>) -> Option<Receive<VecMemory>> {
        assert!(stags.get(STAG).is_some(), "the table of the worker");
        self.0.lock().unwrap().pop_front()
    }
}

impl Source {
    /// Adds the receive with this cookie, of 32 bytes at offset `cookie * STRIDE` in the region of a stream.
    fn add(&self, end: &End, cookie: u64) {
        let span = Span { memory: end.memory.clone(), offset: cookie * STRIDE, len: 32 };
        self.0.lock().unwrap().push_back(Receive { cookie, spans: span.into() });
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

fn shared(max_receives: u32) -> Config {
    Config { receives: ReceiveMode::Shared { max_receives }, ..config() }
}

/// Returns a stream and its source, which has receives with these cookies.
fn end_with(cookies: impl IntoIterator<Item = u64>) -> (End, Arc<Source>) {
    let (mut end, source) = (End::with_config(shared(4)), Arc::<Source>::default());
    cookies.into_iter().for_each(|cookie| source.add(&end, cookie));
    end.stream.set_receive_source(source.clone()).unwrap();
    (end, source)
}

fn into(cookie: u64, len: u32) -> Event {
    Event::ReceivedInto { cookie, len, solicited: false, invalidated: None }
}

/// Returns one segment of a Send.
fn part(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    untagged_with(Opcode::Send, None, 0, msn, mo, last, payload)
}

fn placed(end: &End, cookie: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    end.memory.read(cookie * STRIDE, &mut bytes);
    bytes
}

#[test]
fn messages_take_receives_in_the_order_of_their_first_segments() {
    let (mut b, source) = end_with([7, 3, 5, 9]);
    // Segments of the third, the second and the first message arrive in this order. Each message has two segments.
    assert_eq!(b.input_at(4, &part(3, 0, false, b"th")), Placed(2));
    assert_eq!(b.input_at(3, &part(2, 2, true, b"o")), Placed(1));
    assert_eq!(b.input_at(0, &part(1, 0, false, b"fi")), Placed(2));
    assert_eq!(source.len(), 1, "each message has taken one receive");
    assert_eq!(b.input_at(2, &part(2, 0, false, b"tw")), Placed(2));
    assert_eq!(b.input_at(5, &part(3, 2, true, b"ird")), Placed(3));
    assert_eq!(b.input_at(1, &part(1, 2, true, b"rst")), Placed(3));
    assert_eq!(b.events(), [into(5, 5), into(3, 3), into(7, 5)]);
    let all = [(5, b"first\0".to_vec()), (3, b"two\0".to_vec()), (7, b"third\0".to_vec())];
    for (cookie, bytes) in all {
        assert_eq!(placed(&b, cookie, bytes.len()), bytes);
    }
    // The next message has one segment and is in order.
    assert_eq!(b.input_at(6, &untagged(Opcode::Send, 0, 4, b"last")), Placed(4));
    assert_eq!((b.events(), source.len()), (vec![into(9, 4)], 0));
    assert_eq!(b.pool.high_water(), 0);
}

#[test]
fn immediate_data_takes_a_receive_and_the_ready_message_takes_none() {
    let config = Config { rtr_send: true, ..shared(4) };
    let (mut b, source) = (End::with_config(config), Arc::<Source>::default());
    source.add(&b, 1);
    b.stream.set_receive_source(source.clone()).unwrap();
    // Until the first message has arrived, it may be the ready-to-receive message, which takes no receive. The receives
    // of later messages are therefore undecided, and these messages are refused.
    assert_eq!(b.input_at(1, &untagged(Opcode::Send, 0, 2, b"x")), Refused);
    assert_eq!(b.input_at(0, &untagged(Opcode::Send, 0, 1, b"")), Placed(0));
    assert_eq!((b.events(), source.len()), (vec![Event::ReadyToReceive], 1));
    assert_eq!(b.input_at(1, &untagged(Opcode::Immediate, 0, 2, b"12345678")), Placed(8));
    let data = *b"12345678";
    assert_eq!(b.events(), [Event::ImmediateInto { cookie: 1, data, solicited: false }]);
    assert_eq!(placed(&b, 1, 8), [0; 8]);
}

// RFC 5041 §7.1 (2): as with posted receives, a missing receive is an error only in order.
#[test]
fn empty_source_refuses_beyond_a_gap_and_ends_the_stream_in_order() {
    let (mut b, source) = end_with([]);
    assert_eq!(b.input_at(1, &untagged(Opcode::Send, 0, 2, b"two")), Refused);
    source.add(&b, 1);
    source.add(&b, 2);
    assert_eq!(b.input_at(1, &untagged(Opcode::Send, 0, 2, b"two")), Placed(3));
    assert_eq!(b.input_at(0, &untagged(Opcode::Send, 0, 1, b"one")), Placed(3));
    assert_eq!(b.events(), [into(2, 3), into(1, 3)]);
    assert_eq!(b.input_at(2, &untagged(Opcode::Send, 0, 3, b"")), Ignored);
    assert_eq!(b.terminate_numbers(), (1, 2, 2));
}

#[test]
fn messages_before_the_source_are_refused() {
    let mut b = End::with_config(shared(4));
    assert_eq!(b.input_at(0, &untagged(Opcode::Send, 0, 1, b"one")), Refused);
    let source = Arc::<Source>::default();
    source.add(&b, 0);
    b.stream.set_receive_source(source).unwrap();
    assert_eq!(b.input_at(0, &untagged(Opcode::Send, 0, 1, b"one")), Placed(3));
    assert_eq!(b.events(), [into(0, 3)]);
}

// RFC 5042 §6.4.3.1: a peer cannot take all receives that streams share.
#[test]
fn stream_takes_at_most_its_maximum() {
    let (mut b, source) = end_with(0..10);
    for msn in [4, 2, 3] {
        assert_eq!(b.input_at(msn.into(), &part(msn, 0, true, b"x")), Placed(1));
    }
    assert_eq!(b.input_at(5, &part(5, 0, true, b"x")), Refused, "beyond four messages");
    assert_eq!(source.len(), 7);
    assert_eq!(b.input_at(0, &part(1, 0, false, b"x")), Placed(1));
    assert_eq!(b.input_at(1, &part(1, 1, true, b"y")), Placed(1));
    assert_eq!(b.events().len(), 4);
    assert_eq!(b.input_at(5, &part(5, 0, true, b"x")), Placed(1));
    assert_eq!(source.len(), 5);
}

#[test]
fn end_flushes_the_taken_receives_only() {
    let (mut b, source) = end_with(0..5);
    b.input_at(2, &part(3, 0, false, b"x"));
    b.input_at(0, &part(1, 0, false, b"x"));
    let memory = b.memory.clone();
    assert!(b.stream.uses_memory(&memory));
    b.stream.fail(crate::Failure::Aborted);
    let flushed = [1, 0].map(|cookie| Event::ReceiveFlushed { cookie });
    assert_eq!(b.events()[..2], flushed, "in the order of messages");
    assert_eq!(source.len(), 3);
    assert_eq!(Arc::strong_count(&source), 1, "the stream has released its source");
}

#[test]
fn revoked_memory_is_taken_from_begun_messages() {
    let (mut b, _source) = end_with(0..2);
    b.input_at(0, &part(1, 0, false, b"ab"));
    let memory = b.memory.clone();
    b.stream.revoke_receives(&memory);
    assert_eq!(b.input_at(1, &part(1, 2, true, b"cd")), Ignored);
    assert_eq!(placed(&b, 0, 4), b"ab\0\0");
    assert_eq!(b.terminate_numbers(), (1, 2, 4));
}

#[test]
fn modes_of_receives_exclude_each_other() {
    let (mut b, source) = end_with([0]);
    let receive = source.0.lock().unwrap().pop_front().unwrap();
    assert_eq!(b.stream.post_receive(receive), Err(PostError::OtherReceiveMode));
    assert_eq!(b.stream.post_buffers(1), Err(PostError::OtherReceiveMode));
    for config in [config(), super::receives::posted(4)] {
        let mut b = End::with_config(config);
        let refused = b.stream.set_receive_source(source.clone());
        assert_eq!(refused, Err(PostError::OtherReceiveMode));
    }
}

//! Tests that messages in one piece take the fast path, and have the same effect as messages in several pieces, which
//! take the slow path.

use super::host::*;
use crate::endpoint::upper::UpperCall;
use crate::endpoint::*;
use crate::seam::{MessageOutcome, MessageSink, MessageSource, ReceivedMessage};
use ddp::rdmap;
use proptest::prelude::*;
use wire::ddp::{UNTAGGED_HEADER_LEN, UntaggedRepr};
use wire::sctp::ddp::{ControlRepr, DdpSsn, Function, PPID_CONTROL, PPID_SEGMENT};

const SESSIONS: u16 = 2;

/// A message of the peer. The test fills in its DDP-SSN.
#[derive(Clone, Debug)]
struct Message {
    stream: u16,
    /// Difference from the next DDP-SSN in order.
    ssn: i16,
    body: Vec<u8>,
    ppid: u32,
    unordered: bool,
    cut: usize,
}

#[derive(Clone, Debug)]
enum Step {
    /// Messages in one packet.
    Messages(Vec<Message>),
    Post(u16, usize),
    Pull,
    Acknowledge,
    Pause(u16, Option<u32>),
    Shutdown(u16),
}

/// Returns a host with two sessions that the peer opened.
fn host(ulp: &UlpConfig) -> Host {
    let mut config = EndpointConfig::default();
    config.session.max_segment = 400;
    let mut host = Host::with_config(config, false, ulp.clone());
    for stream in 0..SESSIONS {
        assert_eq!(host.receive(stream, 0, Function::Initiate, b""), MessageOutcome::Accepted);
    }
    host.send_messages();
    host.acknowledge_all();
    host
}

/// Returns the live session on a stream.
fn session(host: &Host, stream: u16) -> Option<SessionId> {
    host.upper.live_slots().map(|slot| slot.id).find(|id| id.stream == stream)
}

/// Delivers the messages of a packet, each in one piece (`unsplit`) or in two.
fn packet(
    host: &mut Host,
    messages: &[Message],
    next: &mut [u16; 2],
    unsplit: bool,
) -> Vec<MessageOutcome> {
    let now = host.now;
    let taken = host.with_context(|upper, cx| {
        let mut taken = Vec::new();
        let mut up = UpperCall::for_receive(upper, cx);
        for message in messages {
            let mut bytes = message.body.clone();
            let next = &mut next[usize::from(message.stream % SESSIONS)];
            if let Some(ssn) = bytes.first_chunk_mut() {
                *ssn = next.wrapping_add_signed(message.ssn).to_be_bytes();
            }
            let (front, back) = bytes.split_at(message.cut.min(bytes.len()));
            let (one, two) = ([&bytes[..]], [front, back]);
            let &Message { stream, ppid, unordered, .. } = message;
            let pieces: &[&[u8]] = if unsplit { &one } else { &two };
            taken.push(up.deliver(now, ReceivedMessage { stream, ppid, unordered, pieces }));
            *next = next.wrapping_add(u16::from(taken.last() == Some(&MessageOutcome::Accepted)));
        }
        taken
    });
    host.settle();
    taken
}

fn step(host: &mut Host, step: &Step, next: &mut [u16; 2], unsplit: bool) -> String {
    match step {
        Step::Messages(messages) => {
            return format!("{:?}", packet(host, messages, next, unsplit));
        }
        Step::Post(stream, len) => {
            if let Some(session) = session(host, *stream) {
                let _ = host.post(session, write_message(0, &vec![7; *len], 1));
            }
        }
        Step::Pull => host.send_messages(),
        Step::Acknowledge => host.acknowledge_all(),
        Step::Pause(stream, most) => host.upper.pause(*stream, *most),
        Step::Shutdown(stream) => {
            if let Some(session) = session(host, *stream) {
                host.shutdown(session);
            }
        }
    }
    host.settle();
    String::new()
}

/// Returns sessions, memory, new events and outstanding messages as text.
fn describe_state(host: &mut Host) -> String {
    let events = core::mem::take(&mut host.events);
    let memory = &host.memory.to_vec()[..2000];
    format!("{:?} {events:?} {:?} {memory:?}", host.upper, host.in_flight)
}

fn any_message() -> impl Strategy<Value = Message> {
    let to = prop_oneof![20 => 0u64..1000, 1 => any::<u64>()];
    let payload = || prop::collection::vec(any::<u8>(), 0..300);
    let tagged = (to, payload()).prop_map(|(to, payload)| segment(0, to, &payload));
    let untagged = (1u32..4, 0u32..3, payload()).prop_map(|(msn, qn, payload)| {
        let mut header = [0; UNTAGGED_HEADER_LEN];
        let (version, mo) = (ddp::DdpVersion::V1, wire::MessageOffset(0));
        let (qn, msn) = (wire::Qn(qn), wire::Msn(msn));
        let rsvd_ulp = [0x43, 0, 0, 0, 0];
        UntaggedRepr { last: true, version, rsvd_ulp, qn, msn, mo }.emit(&mut header);
        [&[0, 0][..], &header, &payload].concat()
    });
    let control = prop_oneof![Just(Function::Terminate), Just(Function::Initiate)]
        .prop_map(|function| {
            let repr = ControlRepr { ssn: DdpSsn(0), function, private_data: b"" };
            let mut bytes = vec![0; repr.wire_len()];
            repr.emit(&mut bytes);
            (bytes, PPID_CONTROL)
        })
        .boxed();
    let segment =
        prop_oneof![12 => tagged, 2 => untagged].prop_map(|bytes| (bytes, PPID_SEGMENT)).boxed();
    let rest =
        prop::collection::vec(any::<u8>(), 0..500).prop_map(|bytes| (bytes, PPID_SEGMENT)).boxed();
    let body = prop_oneof![40 => segment, 1 => control, 1 => rest];
    let stream = prop_oneof![30 => 0u16..SESSIONS, 1 => 0u16..PAIRS + 2];
    let ssn = prop_oneof![20 => Just(0i16), 2 => 1i16..4, 1 => any::<i16>()];
    let ppid = prop_oneof![40 => Just(None), 1 => any::<u32>().prop_map(Some)];
    (stream, ssn, body, ppid, prop::bool::weighted(0.98), 0usize..40).prop_map(
        |(stream, ssn, (body, known), ppid, unordered, cut)| Message {
            stream,
            ssn,
            body,
            ppid: ppid.unwrap_or(known),
            unordered,
            cut,
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let some = prop::collection::vec(any_message(), 1..5);
    prop_oneof![
        20 => any_message().prop_map(|message| Step::Messages(vec![message])),
        5 => some.prop_map(Step::Messages),
        2 => (0..SESSIONS, 1usize..2000).prop_map(|(stream, len)| Step::Post(stream, len)),
        2 => Just(Step::Pull),
        2 => Just(Step::Acknowledge),
        1 => (0..SESSIONS, proptest::option::of(0u32..3)).prop_map(|(s, n)| Step::Pause(s, n)),
        1 => (0..SESSIONS).prop_map(Step::Shutdown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn message_pieces_do_not_change_the_result(
        steps in prop::collection::vec(any_step(), 1..40),
        rdmap: bool,
    ) {
        let ulp: UlpConfig = match rdmap {
            true => rdmap::Config { ird: 4, ord: 4, ..rdmap::Config::default() }.into(),
            false => stream_config().into(),
        };
        let (mut one, mut two) = (host(&ulp), host(&ulp));
        let (mut next, mut then) = ([1; 2], [1; 2]);
        for each in &steps {
            let taken = step(&mut one, each, &mut next, true);
            prop_assert_eq!(taken, step(&mut two, each, &mut then, false));
            prop_assert_eq!(describe_state(&mut one), describe_state(&mut two));
        }
    }

    /// A message of `next_len` bytes is written if the room is sufficient. With one byte less, no message is written.
    #[test]
    fn next_len_predicts_the_following_message(lens in prop::collection::vec(1usize..4000, 1..8)) {
        let (mut host, session) = Host::established_active();
        for len in lens {
            host.post(session, write_message(0, &vec![7; len], 1)).expect("room");
        }
        let mut up = UpperCall::for_transmit(&mut host.upper, u64::MAX);
        let mut room = [0; MAX_MESSAGE];
        let mut known = None;
        while let Some(written) = up.next(MAX_MESSAGE, &mut room[..known.unwrap_or(MAX_MESSAGE)]) {
            if let Some(len) = known {
                prop_assert_eq!(usize::from(written.message.len), len);
            }
            known = written.next_len.map(usize::from);
            prop_assert_eq!(known.is_some(), up.has_data());
            if let Some(len) = known {
                prop_assert_eq!(up.next(MAX_MESSAGE, &mut room[..len - 1]), None);
            }
        }
    }
}

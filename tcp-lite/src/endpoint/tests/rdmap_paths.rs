//! RDMAP over paths with loss, reordering and re-segmentation, with and without markers. Both ends post operations at
//! the same time. Checks the same properties as `streams.rs` for bare DDP.

use super::enhanced::{rdmap, revision_two_config};
use super::net::{Fate, Net};
use super::peers::*;
use super::streams::seeded_random;
use crate::endpoint::*;
use crate::mpa::Peer;
use core::time::Duration;
use ddp::rdmap::{AtomicOp, Event as RdmapEvent, Outcome};
use ddp::{Cookie, RegionMemory, Source, TaggedOffset, VecMemory};
use proptest::prelude::*;

/// Offsets in each end's memory: bytes that the peer reads, bytes that the peer writes, the sink of this end's Reads,
/// and the counter of the peer's atomics (64 bits).
const READ_FROM: usize = 0;
const WRITTEN: usize = 256 << 10;
const READ_TO: usize = 512 << 10;
const COUNTER: u64 = 900_000;

#[derive(Clone, Debug)]
enum Op {
    Send(usize),
    Write(usize),
    Read(usize),
    Add(u64),
    Immediate,
}

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (0usize..4000).prop_map(Op::Send),
        (0usize..15_000).prop_map(Op::Write),
        (0usize..15_000).prop_map(Op::Read),
        any::<u64>().prop_map(Op::Add),
        Just(Op::Immediate),
    ];
    prop::collection::vec(op, 0..most)
}

#[derive(Clone, Debug)]
struct Path {
    seed: u64,
    loss: u64,
    delay: u64,
    split: u64,
    markers: bool,
    ord: u16,
}

fn paths() -> impl Strategy<Value = Path> {
    (any::<u64>(), 0u64..8, 0u64..30, 0u64..50, any::<bool>(), 1u16..5).prop_map(
        |(seed, loss, delay, split, markers, ord)| Path { seed, loss, delay, split, markers, ord },
    )
}

fn faulty_net(path: &Path) -> Net<Node, Node> {
    let mut config = revision_two_config(None, Peer::Standard);
    (config.mpa.markers, config.mpa.crc) = (path.markers, true);
    let a = Node::initiator_with_ulp(config.clone(), rdmap(4, path.ord), b"");
    let mut roll = seeded_random(path.seed);
    let path = path.clone();
    let b = Node::responder_with_ulp(config, rdmap(4, path.ord));
    Net::new(a, b).with_fate(move |_, _, segment| {
        let what = roll(100);
        if what < path.loss {
            Fate::Drop
        } else if what < path.loss + path.delay {
            Fate::Delay(Duration::from_micros(roll(3000)))
        } else if what < path.loss + path.delay + path.split {
            Fate::Split((0..3).map(|_| roll(segment.len() as u64) as usize).collect())
        } else {
            Fate::Pass
        }
    })
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}

/// Expected results of one end's operations.
#[derive(Default)]
struct Expected {
    outcomes: Vec<(Cookie, Outcome)>,
    messages: Vec<Vec<u8>>,
    written: Vec<u8>,
    read: Vec<u8>,
    counter: u64,
}

fn post(node: &mut Node, ops: &[Op], peer: &[u8]) -> Expected {
    let mut expected = Expected::default();
    for (i, op) in ops.iter().enumerate() {
        let cookie = Cookie::user(i as u64);
        let at = |base: usize, done: usize| TaggedOffset((base + done) as u64);
        let source = |data: &[u8]| Source::<VecMemory>::Bytes(data.into());
        let (request, outcome) = match *op {
            Op::Send(len) => {
                let data = bytes(i, len);
                expected.messages.push(data.clone());
                let (solicited, invalidate) = (i % 2 == 0, None);
                let source = source(&data);
                (WorkRequest::Send { source, solicited, invalidate, cookie }, Outcome::Sent)
            }
            Op::Write(len) => {
                let (stag, to, data) = (STAG, at(WRITTEN, expected.written.len()), bytes(i, len));
                expected.written.extend(&data);
                (WorkRequest::Write { stag, to, source: source(&data), cookie }, Outcome::Written)
            }
            Op::Read(len) => {
                let done = expected.read.len();
                expected.read.extend(&peer[READ_FROM + done..][..len]);
                let (sink_stag, source_stag) = (STAG, STAG);
                let (sink_to, source_to) = (at(READ_TO, done), at(READ_FROM, done));
                let len = len as u32;
                let read =
                    WorkRequest::Read { sink_stag, sink_to, source_stag, source_to, len, cookie };
                (read, Outcome::Read { len })
            }
            Op::Add(add) => {
                let original = expected.counter;
                expected.counter = original.wrapping_add(add);
                let (op, stag) = (AtomicOp::FetchAdd { add, mask: 0 }, STAG);
                let to = TaggedOffset(COUNTER);
                (WorkRequest::Atomic { op, stag, to, cookie }, Outcome::Atomic { original })
            }
            Op::Immediate => {
                let data = [i as u8; 8];
                expected.messages.push(data.to_vec());
                (WorkRequest::Immediate { data, solicited: false, cookie }, Outcome::Sent)
            }
        };
        expected.outcomes.push((cookie, outcome));
        node.ep().post_rdmap(request).expect("room");
    }
    expected
}

fn outcomes(node: &Node) -> Vec<(Cookie, Outcome)> {
    let of = |event: RdmapEvent| match event {
        RdmapEvent::Completed { cookie, outcome } => Some((cookie, outcome)),
        _ => None,
    };
    node.rdmap_events().into_iter().filter_map(of).collect()
}

fn received(node: &Node) -> Vec<Vec<u8>> {
    let of = |event: RdmapEvent| match event {
        RdmapEvent::Received { data, .. } => Some(data),
        RdmapEvent::Immediate { data, .. } => Some(data.to_vec()),
        _ => None,
    };
    node.rdmap_events().into_iter().filter_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// RFC 5040 §5.5, RFC 7306 §7: every operation of both ends is performed once, completes in order, and leaves no
    /// state.
    #[test]
    fn any_path_completes_every_rdmap_operation(path in paths(), of_a in ops(14), of_b in ops(8)) {
        let mut net = faulty_net(&path);
        net.run_until(|net| net.a.is_established() && net.b.is_established());
        prop_assert!(net.a.is_established() && net.b.is_established());
        let (at_a, at_b) = (bytes(1000, WRITTEN), bytes(2000, WRITTEN));
        net.a.memory.write(READ_FROM as u64, &at_a);
        net.b.memory.write(READ_FROM as u64, &at_b);
        // RFC 5044 §7.1.2 (4): the responder sends nothing before the initiator's first FPDU.
        let mut of_a = of_a;
        of_a.insert(0, Op::Send(5));
        let a = post(&mut net.a, &of_a, &at_b);
        let b = post(&mut net.b, &of_b, &at_a);
        net.run_until(|net| {
            outcomes(&net.a).len() == of_a.len() && outcomes(&net.b).len() == of_b.len()
        });
        for (own, far, expected) in [(&net.a, &net.b, &a), (&net.b, &net.a, &b)] {
            prop_assert_eq!(&outcomes(own), &expected.outcomes);
            prop_assert_eq!(&received(far), &expected.messages);
            let (own, far) = (own.memory.to_vec(), far.memory.to_vec());
            prop_assert!(far[WRITTEN..][..expected.written.len()] == expected.written);
            prop_assert!(own[READ_TO..][..expected.read.len()] == expected.read);
            prop_assert_eq!(far[COUNTER as usize..][..8].to_vec(), expected.counter.to_ne_bytes());
            // No other byte was written.
            prop_assert!(far[WRITTEN + expected.written.len()..READ_TO].iter().all(|o| *o == 0));
            prop_assert!(own[READ_TO + expected.read.len()..COUNTER as usize].iter().all(|o| *o == 0));
        }
        let now = net.now;
        net.a.ep().shutdown(now);
        net.run();
        prop_assert_eq!(net.a.reason(), Some(CloseReason::LocalShutdown));
        net.a.assert_no_state_left();
        net.b.assert_no_state_left();
    }
}

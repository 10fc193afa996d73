//! Tests that predicted packets take the fast path, and that the fast path has the same effect as the slow path.

use core::time::Duration;
use std::sync::Arc;

use proptest::prelude::*;
use wire::sctp::{Data, Packet, PacketBuilder, SackHeader, Tag};

use super::rig::{Rig, data, packet, push_data};
use crate::sctp::receive::ReceiveConfig;
use crate::sctp::{Config, InputResult};

/// A DATA chunk of the peer. [`PLAIN`] has the predicted values.
#[derive(Clone, Debug)]
struct Chunk {
    /// Offset from the next TSN.
    tsn: i32,
    stream: u16,
    begin: bool,
    end: bool,
    immediate: bool,
    len: usize,
}

const PLAIN: Chunk =
    Chunk { tsn: 0, stream: 1, begin: true, end: true, immediate: false, len: 100 };

#[derive(Clone, Debug)]
enum Step {
    Packet {
        chunks: Vec<Chunk>,
        has_right_tag: bool,
        sack: bool,
        heartbeat: bool,
    },
    /// Packet whose last chunk is truncated by this many bytes.
    Truncated(usize),
    TrailingBytes(usize),
    Wait(u64),
    Write(usize),
    Poll,
    Takes(bool),
    Room(u32),
    Shutdown,
}

/// Returns the number of the peer's next TSN, counted from 1 as by [`data`].
fn next(rig: &Rig) -> u32 {
    let cumulative = rig.association.receiver.cumulative_tsn();
    cumulative.distance_from(data(1).tsn.sub(1)) + 1
}

fn push(b: &mut PacketBuilder<'_>, first: u32, chunk: &Chunk) {
    let Chunk { tsn, stream, begin, end, immediate, len } = *chunk;
    let mut header = data(1);
    header.tsn = header.tsn.add(first.wrapping_sub(1).wrapping_add_signed(tsn));
    (header.stream, header.begin, header.end, header.immediate) = (stream, begin, end, immediate);
    // `PacketBuilder` refuses to write a DATA chunk without user data, so its bytes are written directly.
    match len {
        0 => b.push_chunk(0, header.emit(0)[1], &header.emit(0)[4..]).expect("room"),
        _ => push_data(b, &header, &vec![tsn as u8; len]),
    }
}

fn bytes(rig: &Rig, step: &Step) -> Vec<u8> {
    let (first, tag) = (next(rig), rig.association.local_tag());
    match step {
        Step::Packet { chunks, has_right_tag: right, sack, heartbeat } => {
            let tag = if *right { tag } else { Tag(tag.0 ^ 1) };
            packet(tag, |b| {
                if *sack {
                    let cumulative = rig.association.sender().next_tsn().sub(1);
                    b.sack(SackHeader { cumulative, a_rwnd: 65_536 }, &[], &[]).expect("room");
                }
                chunks.iter().for_each(|chunk| push(b, first, chunk));
                if *heartbeat {
                    b.heartbeat(b"well?").expect("room");
                }
            })
        }
        Step::Truncated(by) => {
            let mut bytes = packet(tag, |b| push(b, first, &PLAIN));
            bytes.truncate(bytes.len() - by);
            bytes
        }
        Step::TrailingBytes(more) => {
            let mut bytes = packet(tag, |b| push(b, first, &Chunk { len: 97, ..PLAIN }));
            bytes.extend(core::iter::repeat_n(0, *more));
            bytes
        }
        _ => unreachable!("no packet"),
    }
}

/// Processes a packet by the fast path if `may_predict` and the packet is predicted, otherwise by the slow path.
/// Returns true for the fast path.
fn input(rig: &mut Rig, bytes: &[u8], may_predict: bool) -> (bool, InputResult) {
    let packet = Packet::new(bytes).expect("a common header");
    let chunk: Option<Data<'_>> =
        rig.association.predicted_chunk(&packet, &rig.upper).filter(|_| may_predict);
    (chunk.is_some(), rig.association.input_on_path(chunk, rig.now, &packet, &mut rig.upper))
}

/// Performs a step. Returns its immediate effects.
fn step(rig: &mut Rig, step: &Step, may_predict: bool) -> String {
    match step {
        Step::Packet { .. } | Step::Truncated(_) | Step::TrailingBytes(_) => {
            let bytes = bytes(rig, step);
            return format!("{:?}", input(rig, &bytes, may_predict).1);
        }
        Step::Wait(ms) => return format!("{:?}", rig.wait(Duration::from_millis(*ms))),
        Step::Poll => return format!("{:?} {:?}", rig.packets(), rig.event()),
        Step::Write(len) => {
            let number = rig.upper.queue.len() as u64;
            rig.upper.queue.push_back((number, *len));
        }
        Step::Takes(takes) => rig.upper.accepts = *takes,
        Step::Room(room) => rig.upper.room = *room,
        Step::Shutdown => rig.association.shutdown(rig.now),
    }
    String::new()
}

fn any_chunk() -> impl Strategy<Value = Chunk> {
    let rare = || prop::bool::weighted(0.05);
    let tsn = prop_oneof![12 => Just(0), 1 => -3..6, 1 => any::<i32>()];
    let len = prop_oneof![20 => 1usize..300, 1 => Just(0)];
    let stream = prop_oneof![20 => 0u16..4, 1 => 9u16..12];
    (tsn, stream, rare(), rare(), rare(), len).prop_map(
        |(tsn, stream, middle, open, immediate, len)| {
            let (begin, end) = (!middle, !open);
            Chunk { tsn, stream, begin, end, immediate, len }
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let rare = || prop::bool::weighted(0.05);
    let chunks = prop_oneof![
        10 => any_chunk().prop_map(|chunk| vec![chunk]),
        1 => prop::collection::vec(any_chunk(), 0..4),
    ];
    let packet = (chunks, prop::bool::weighted(0.97), rare(), rare()).prop_map(
        |(chunks, tag, sack, heartbeat)| Step::Packet {
            chunks,
            has_right_tag: tag,
            sack,
            heartbeat,
        },
    );
    prop_oneof![
        30 => packet,
        1 => (0usize..116).prop_map(Step::Truncated),
        1 => (0usize..8).prop_map(Step::TrailingBytes),
        2 => (0u64..300).prop_map(Step::Wait),
        2 => (1usize..1000).prop_map(Step::Write),
        6 => Just(Step::Poll),
        1 => any::<bool>().prop_map(Step::Takes),
        1 => (0u32..6000).prop_map(Step::Room),
        2 => Just(Step::Room(u32::MAX)),
        2 => Just(Step::Takes(true)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    // State, replies, events, timers and delivered messages are the same on the fast path and on the slow path.
    #[test]
    fn fast_and_slow_path_have_equal_effects(
        steps in prop::collection::vec(any_step(), 1..80),
        window in 1000u32..20_000,
        shutdown: bool,
    ) {
        let receive =
            ReceiveConfig { window, window_limit: 4 * window, ..ReceiveConfig::default() };
        let config = || Config { receive: Arc::new(receive.clone()), ..Config::default() };
        let (mut short, mut long) = (Rig::with(config()), Rig::with(config()));
        let last = [Step::Shutdown, Step::Poll, Step::Wait(1000)];
        for one in steps.iter().chain(last.iter().filter(|_| shutdown)) {
            prop_assert_eq!(step(&mut short, one, true), step(&mut long, one, false));
            prop_assert_eq!(format!("{:?}", short.association), format!("{:?}", long.association));
            prop_assert_eq!(format!("{:?}", short.upper), format!("{:?}", long.upper));
        }
    }
}

/// Returns true if `last`, the third of three packets, takes the fast path.
fn takes_fast_path(last: &Step, prepare: impl FnOnce(&mut Rig)) -> bool {
    let mut rig = Rig::established();
    for first in [true, false] {
        let bytes = bytes(&rig, &single_chunk(PLAIN));
        // RFC 9260 §5.1: the first DATA chunk is acknowledged at once, by the slow path.
        assert_eq!(input(&mut rig, &bytes, true).0, !first);
    }
    prepare(&mut rig);
    let bytes = bytes(&rig, last);
    input(&mut rig, &bytes, true).0
}

fn single_chunk(chunk: Chunk) -> Step {
    Step::Packet { chunks: vec![chunk], has_right_tag: true, sack: false, heartbeat: false }
}

#[test]
fn in_order_data_takes_the_fast_path() {
    for chunk in [
        PLAIN,
        Chunk { immediate: true, ..PLAIN },
        Chunk { stream: 9, ..PLAIN },
        Chunk { len: 1, ..PLAIN },
        Chunk { len: 1436, ..PLAIN },
    ] {
        assert!(takes_fast_path(&single_chunk(chunk.clone()), |_| {}), "{chunk:?}");
    }
    assert!(takes_fast_path(&single_chunk(PLAIN), |rig| drop(rig.packets())));
    // Padding of the last chunk may be missing.
    assert!(takes_fast_path(&Step::TrailingBytes(0), |_| {}));
}

#[test]
fn any_deviation_takes_the_slow_path() {
    for chunk in [
        Chunk { tsn: 1, ..PLAIN },
        Chunk { tsn: -1, ..PLAIN },
        Chunk { stream: 10, ..PLAIN },
        Chunk { begin: false, ..PLAIN },
        Chunk { end: false, ..PLAIN },
        Chunk { len: 0, ..PLAIN },
    ] {
        assert!(!takes_fast_path(&single_chunk(chunk.clone()), |_| {}), "{chunk:?}");
    }
    let with = |tag, sack, heartbeat| Step::Packet {
        chunks: vec![PLAIN],
        has_right_tag: tag,
        sack,
        heartbeat,
    };
    let two = Chunk { tsn: 1, ..PLAIN };
    for step in [
        with(false, false, false),
        with(true, true, false),
        with(true, false, true),
        Step::Packet {
            chunks: vec![PLAIN, two],
            has_right_tag: true,
            sack: false,
            heartbeat: false,
        },
        Step::Packet { chunks: vec![], has_right_tag: true, sack: false, heartbeat: false },
        Step::Truncated(1),
        Step::TrailingBytes(1),
        Step::TrailingBytes(4),
    ] {
        assert!(!takes_fast_path(&step, |_| {}), "{step:?}");
    }
    // A gap, a held fragment, a closed window or a shutdown in progress also prevents the prediction.
    let gap = |rig: &mut Rig| {
        let bytes = bytes(rig, &single_chunk(Chunk { tsn: 1, ..PLAIN }));
        assert!(!input(rig, &bytes, true).0);
    };
    assert!(!takes_fast_path(&single_chunk(PLAIN), gap));
    let fragment = |rig: &mut Rig| {
        let bytes = bytes(rig, &single_chunk(Chunk { end: false, ..PLAIN }));
        assert!(!input(rig, &bytes, true).0);
    };
    assert!(!takes_fast_path(&single_chunk(PLAIN), fragment));
    assert!(!takes_fast_path(&single_chunk(PLAIN), |rig| rig.upper.room = 0));
    assert!(!takes_fast_path(&single_chunk(PLAIN), |rig| rig.association.shutdown(rig.now)));
}

//! Properties of two streams back to back, for any messages, MULPDU and arrival order (RFC 5041 §5.3, §5.4). Tests of
//! the end of a stream (§6.2).

use std::sync::Arc;

use proptest::prelude::*;

use crate::last_message::LastMessage;
use crate::llp::Disposition::{Ignored, Placed, Refused};
use crate::llp::{Outgoing, UlpduSource};
use crate::testing::*;
use crate::*;

// Literals of the DDP header (RFC 5041 §4): in the first byte of a segment, 0x80 is flag T (tagged), 0x40 is flag L
// (last segment of its message), and the two lowest bits are the version. A tagged header has 14 bytes, an untagged
// header 18 bytes.

/// A message to be sent, and its expected effect in the models.
#[derive(Clone, Debug)]
enum Plan {
    Tagged { at: u64, data: Vec<u8> },
    Untagged { data: Vec<u8> },
}

fn plan() -> impl Strategy<Value = Plan> {
    let data = prop_oneof![Just(0usize), 1usize..64, 200usize..900];
    (any::<bool>(), 0u64..LEN, data, any::<u8>()).prop_map(|(tagged, at, len, seed)| {
        let data: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i as u8)).collect();
        if tagged {
            Plan::Tagged { at: at.min(LEN - data.len() as u64), data }
        } else {
            Plan::Untagged { data }
        }
    })
}

impl Plan {
    fn message(&self, cookie: u64) -> Message<VecMemory> {
        match self {
            Plan::Tagged { at, data } => Message::Tagged {
                stag: STAG,
                to: TaggedOffset(BASE + at),
                rsvd_ulp: 0xab,
                source: Source::Bytes(Arc::from(data.as_slice())),
                cookie: Cookie::user(cookie),
            },
            Plan::Untagged { data } => Message::Untagged {
                qn: QUEUE,
                rsvd_ulp: [1, 2, 3, 4, 5],
                source: Source::Bytes(Arc::from(data.as_slice())),
                cookie: Cookie::user(cookie),
            },
        }
    }
}

fn sender(version: VersionPolicy) -> Stream<VecMemory> {
    Stream::new(StreamId(1), PdId(0), StreamConfig { version, ..config() })
}

/// Returns a configuration with enough buffers and records for all messages of a test case.
fn wide_config() -> StreamConfig {
    StreamConfig {
        queues: vec![QueueConfig { qn: QUEUE, buffers: 64, buffer_size: 1024 }],
        max_ooo_records: 256,
        ..StreamConfig::default()
    }
}

fn segment_bytes(stream: &Stream<VecMemory>, out: &Outgoing) -> Vec<u8> {
    let mut segment = out.header.bytes().to_vec();
    segment.resize(out.len(), 0);
    stream.read_payload(out.token, 0, &mut segment[out.header.len()..]);
    segment
}

/// Returns the segments of all messages in the order of sending.
fn segments(plans: &[Plan], mulpdus: &[usize]) -> Vec<Vec<u8>> {
    let mut sender = sender(VersionPolicy::V1);
    let mut out = Vec::new();
    let mut mulpdus = mulpdus.iter().cycle();
    for (i, plan) in plans.iter().enumerate() {
        sender.post(plan.message(i as u64)).unwrap();
        while let Some(o) = sender.next(*mulpdus.next().unwrap()) {
            out.push(segment_bytes(&sender, &o));
        }
    }
    out
}

/// Returns the events of a receiver that delivers all messages completely and in order.
fn model(plans: &[Plan]) -> Vec<Event> {
    let mut msn = 0;
    plans
        .iter()
        .map(|plan| match plan {
            Plan::Tagged { at, data } => tagged_delivered(*at, data.len() as u64),
            Plan::Untagged { data } => {
                msn += 1;
                untagged_delivered(msn, data)
            }
        })
        .collect()
}

/// Removes the tagged messages that overlap an earlier tagged message.
fn without_overlap(plans: Vec<Plan>) -> Vec<Plan> {
    let mut used = vec![false; LEN as usize];
    plans
        .into_iter()
        .filter(|plan| match plan {
            Plan::Tagged { at, data } => {
                let slots = &mut used[*at as usize..*at as usize + data.len()];
                let free = slots.iter().all(|b| !b);
                slots.iter_mut().for_each(|b| *b |= free);
                free
            }
            Plan::Untagged { .. } => true,
        })
        .collect()
}

/// Returns the region after all tagged messages are placed.
fn region_model(plans: &[Plan]) -> Vec<u8> {
    let mut region = vec![0; LEN as usize];
    for plan in plans {
        if let Plan::Tagged { at, data } = plan {
            region[*at as usize..*at as usize + data.len()].copy_from_slice(data);
        }
    }
    region
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    // RFC 5041 §5.2, §5.3, §5.4: for any messages, MULPDU, order of arrival, keys, and times of `order_complete`, the
    // region ends up with the sent bytes. Deliveries are in order, complete, at most once and never too early.
    #[test]
    fn any_arrival_order_delivers_once_in_order(
        plans in proptest::collection::vec(plan(), 1..14),
        mulpdus in proptest::collection::vec(128usize..600, 1..4),
        priorities in proptest::collection::vec(any::<u16>(), 64),
        spread in 0u16..=u16::MAX,
        stride in 1u64..600,
        dense: bool,
    ) {
        let plans = without_overlap(plans);
        let sent = segments(&plans, &mulpdus);
        let key = |i: usize| if dense { i as u64 } else { 20 + i as u64 * stride };
        // Arrival order: each segment is delayed by at most `spread` / 2000 segments.
        let late = |i: usize| u64::from(priorities[i % 64]) * u64::from(spread) / u64::from(u16::MAX);
        let mut arrival: Vec<usize> = (0..sent.len()).collect();
        arrival.sort_by_key(|i| *i as u64 * 2000 + late(*i));

        let mut rig = Rig::with_config(wide_config());
        let mut arrived = vec![false; sent.len()];
        let mut events = Vec::new();
        for (n, i) in arrival.iter().enumerate() {
            let payload = sent[*i].len() - if sent[*i][0] & 0x80 != 0 { 14 } else { 18 };
            prop_assert_eq!(rig.input(key(*i), &sent[*i]), Placed(payload));
            arrived[*i] = true;
            let prefix = arrived.iter().take_while(|a| **a).count();
            if !dense && (n % 3 == 0 || n + 1 == arrival.len()) {
                rig.complete_order(key(prefix));
            }
            events.extend(rig.events());
            // RFC 5041 §5.4: no message is delivered before all segments up to its last have arrived.
            let whole = sent[..prefix].iter().filter(|s| s[0] & 0x40 != 0).count();
            prop_assert!(events.len() <= whole);
        }
        prop_assert_eq!(events, model(&plans));
        prop_assert_eq!(rig.region(0, LEN as usize), region_model(&plans));
        // No byte outside the region is written: the memory has 32 bytes before it and 32 bytes after it.
        let all = rig.memory.to_vec();
        let end = all.len() - 32;
        prop_assert!(all[..32].iter().chain(&all[end..]).all(|b| *b == 0));
        prop_assert_eq!(rig.pool.in_use(), 0);
    }

    // One segment in error at any position, in any arrival order: all messages before it are delivered, and the error
    // report follows directly. Neither the segment in error nor segments beyond it that arrive later are placed.
    #[test]
    fn error_at_any_position_ends_delivery_there(
        plans in proptest::collection::vec(plan(), 1..10),
        wrong in any::<proptest::sample::Index>(),
        priorities in proptest::collection::vec(any::<u16>(), 64),
    ) {
        let plans = without_overlap(plans);
        let mut sent = segments(&plans, &[300]);
        let wrong = wrong.index(sent.len());
        // Version 3 is undefined.
        sent[wrong][0] |= 3;
        let mut arrival: Vec<usize> = (0..sent.len()).collect();
        arrival.sort_by_key(|i| priorities[*i % 64]);

        let mut rig = Rig::with_config(wide_config());
        let mut seen_wrong = false;
        let mut placed = vec![false; sent.len()];
        for i in arrival {
            let disposition = rig.input(i as u64, &sent[i]);
            let ignored = i == wrong || (seen_wrong && i > wrong);
            prop_assert_eq!(disposition == Ignored, ignored);
            placed[i] = !ignored;
            seen_wrong |= i == wrong;
        }
        let whole = sent[..wrong].iter().filter(|s| s[0] & 0x40 != 0).count();
        let events = rig.events();
        prop_assert_eq!(&events[..whole], &model(&plans)[..whole]);
        prop_assert_eq!(events.len(), whole + 1);
        let Event::Error(error) = &events[whole] else { panic!("no error at the end") };
        prop_assert_eq!(error.key.0, wrong as u64);
        prop_assert_eq!(rig.pool.in_use(), 0);
        let mut region = vec![0; LEN as usize];
        for (segment, _) in sent.iter().zip(&placed).filter(|(s, p)| **p && s[0] & 0x80 != 0) {
            let to = u64::from_be_bytes(segment[6..14].try_into().unwrap());
            let at = (to - BASE) as usize;
            let payload = &segment[14..];
            // The TO of a zero-length segment may be outside the region.
            if !payload.is_empty() {
                region[at..at + payload.len()].copy_from_slice(payload);
            }
        }
        prop_assert_eq!(rig.region(0, LEN as usize), region);
    }

    // For any bytes in any order: no panic, no byte outside the region is written, and all bounds are kept.
    #[test]
    fn hostile_segments_stay_within_region_and_pool(
        hostile in proptest::collection::vec(
            (0u64..40, proptest::collection::vec(any::<u8>(), 0..60), 0u8..8), 0..80,
        ),
    ) {
        let mut rig = Rig::with_config(StreamConfig { max_ooo_records: 8, ..config() });
        rig.pool = BufferPool::new(1024);
        for (key, mut bytes, repair) in hostile {
            // Makes some segments valid for the first checks: version; STag and TO of a tagged segment; queue, MSN and
            // MO of an untagged segment.
            if bytes.len() >= 18 {
                if repair & 1 != 0 {
                    bytes[0] = bytes[0] & 0xc0 | 1;
                }
                if repair & 2 != 0 && bytes[0] & 0x80 != 0 {
                    bytes[2..6].copy_from_slice(&STAG.0.to_be_bytes());
                    let to = BASE + u64::from(bytes[13]) * 17;
                    bytes[6..14].copy_from_slice(&to.to_be_bytes());
                } else if repair & 2 != 0 {
                    bytes[6..16].fill(0);
                    bytes[13] = bytes[17] % 5;
                    bytes[14..17].fill(0);
                }
            }
            let _ = rig.input(key, &bytes);
            if repair & 4 != 0 {
                rig.complete_order(key / 2);
            }
            prop_assert!(rig.pool.in_use() <= 1024);
            prop_assert!(rig.stream.counters().ooo_records_max <= 8);
        }
        let all = rig.memory.to_vec();
        let end = all.len() - 32;
        prop_assert!(all[..32].iter().chain(&all[end..]).all(|b| *b == 0));
        let errors = rig.events().iter().filter(|e| matches!(e, Event::Error(_))).count();
        prop_assert!(errors <= 1);
        rig.stream.release(&mut rig.pool);
        prop_assert_eq!(rig.pool.in_use(), 0);
    }
}

// RFC 5041 §6.2.1: the peer's close should be reported (SHOULD), and sending continues.
#[test]
fn peer_close_is_indicated_and_sending_continues() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &tagged(0, true, b"a"));
    rig.stream.on_peer_closed();
    rig.stream.on_peer_closed();
    assert_eq!(rig.events(), [tagged_delivered(0, 1), Event::PeerClosed { incomplete: false }]);
    let plan = Plan::Untagged { data: vec![1] };
    rig.stream.post(plan.message(3)).unwrap();
    let out = rig.stream.next(128).unwrap();
    rig.stream.on_acknowledged(out.token, 1);
    assert_eq!(rig.events(), [Event::Sent { cookie: Cookie::user(3), messages: 1 }]);
}

#[test]
fn peer_close_within_a_message_is_reported_incomplete() {
    for segment in [tagged(0, false, b"a"), untagged(1, 0, false, b"a")] {
        let mut rig = Rig::new();
        let _ = rig.input(0, &segment);
        rig.stream.on_peer_closed();
        assert_eq!(rig.events(), [Event::PeerClosed { incomplete: true }]);
    }
}

// RFC 5041 §6.2.1: data after the graceful end of the LLP ends the stream abortively.
#[test]
fn data_after_the_peers_close_fails_the_stream() {
    let mut rig = Rig::new();
    rig.stream.post(Plan::Untagged { data: vec![1] }.message(3)).unwrap();
    rig.stream.on_peer_closed();
    assert_eq!(rig.input(0, &tagged(0, true, b"a")), Ignored);
    assert_eq!(rig.region(0, 1), [0]);
    let expected = [
        Event::PeerClosed { incomplete: false },
        Event::Flushed { cookie: Cookie::user(3) },
        Event::Failed(Failure::DataAfterClose),
    ];
    assert_eq!(rig.events(), expected);
    assert_eq!(rig.stream.failure(), Some(Failure::DataAfterClose));
}

// RFC 5041 §6.2.1: after the ULP's close, the stream still receives.
#[test]
fn a_stream_closed_for_sending_still_receives() {
    let mut rig = Rig::new();
    rig.stream.close();
    assert_eq!(rig.input(0, &tagged(0, true, b"a")), Placed(1));
    assert_eq!(rig.events(), [tagged_delivered(0, 1)]);
}

// RFC 5041 §6.2, §6.2.2: DDP does not end a stream by itself, so the ULP may still send after an error.
#[test]
fn ulp_may_send_after_an_error() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &tagged(LEN, true, b"x"));
    let error = rig.error();
    assert!(!rig.stream.is_closed() && rig.stream.failure().is_none());
    rig.stream.post(Plan::Untagged { data: vec![1] }.message(3)).unwrap();
    let last = rig.stream.last_message(&error);
    rig.stream.post_last(last).unwrap();
    assert_eq!(rig.events(), [Event::Flushed { cookie: Cookie::user(3) }]);
    let out = rig.stream.next(1500).unwrap();
    let segment = segment_bytes(&rig.stream, &out);
    // docs/protocol.md: the last message is sent to the error queue, which has a buffer for it.
    let mut peer = Rig::new();
    assert_eq!(peer.input(0, &segment), Placed(8 + 14));
    let events = peer.events();
    let [Event::UntaggedDelivered { qn, msn, data, rsvd_ulp }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((*qn, *msn, *rsvd_ulp), (ERROR_QUEUE, Msn(1), [0; 5]));
    let content = LastMessage::parse(data).unwrap();
    assert_eq!(content, LastMessage::from(&error));
    assert_eq!(content.ddp_error(), Some(ErrorCode::BaseOrBounds));
    assert_eq!(content.segment_len, 15);
}

// RFC 5041 §6.2.2: the loss of the LLP is reported, and no further segment is accepted.
#[test]
fn a_lost_llp_is_reported() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, false, b"a"));
    rig.stream.fail(Failure::LlpLost);
    assert_eq!(rig.events(), [Event::Failed(Failure::LlpLost)]);
    assert_eq!(rig.input(1, &untagged(1, 1, true, b"b")), Ignored);
    rig.complete_order(9);
    assert_eq!(rig.events(), []);
    rig.stream.release(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
}

// A full pool does not affect tagged segments.
#[test]
fn a_full_pool_refuses_no_tagged_segment() {
    let mut rig = Rig::new();
    rig.pool = BufferPool::new(0);
    assert_eq!(rig.input(0, &untagged(1, 0, true, b"x")), Refused);
    assert_eq!(rig.input(0, &tagged(0, true, b"x")), Placed(1));
}

// RFC 5041 §8.3.2 (5), RFC 5042 §6.4.3.1: a peer begins messages on many streams, in order and beyond gaps, and never
// completes them. The messages of another peer all fit into the remaining buffers. At the end all buffers are released.
#[test]
fn unfinished_messages_leave_room_for_other_peers() {
    let mut pool = BufferPool::new(32 * 256);
    let mut attackers: Vec<Rig> = (0..200)
        .map(|_| {
            let mut rig = Rig::new();
            rig.stream.set_peer(PeerId::from_address([192, 0, 2, 66].into()));
            rig
        })
        .collect();
    let mut got = 0;
    for rig in &mut attackers {
        core::mem::swap(&mut pool, &mut rig.pool);
        got += usize::from(rig.input(0, &untagged(1, 0, false, b"never ends")) == Placed(10));
        for ahead in 2..4u32 {
            let _ = rig.input(ahead.into(), &untagged(ahead, 0, false, b"never begins"));
        }
        core::mem::swap(&mut pool, &mut rig.pool);
    }
    assert!((8..=16).contains(&got), "the attacker has {got} of 32 buffers in order");
    let mut victim = Rig::new();
    victim.stream.set_peer(PeerId::from_address([192, 0, 2, 1].into()));
    core::mem::swap(&mut pool, &mut victim.pool);
    for n in 0..100u32 {
        let at = u64::from(n) * 2;
        assert_eq!(victim.input(at, &untagged(n + 1, 0, false, &[n as u8; 200])), Placed(200));
        assert_eq!(victim.input(at + 1, &untagged(n + 1, 200, true, &[n as u8; 56])), Placed(56));
        assert_eq!(victim.events(), [untagged_delivered(n + 1, &[n as u8; 256])]);
        victim.stream.post_buffers(QUEUE, 1).unwrap();
    }
    assert_eq!(victim.stream.counters().segments_refused, 0);
    for rig in &mut attackers {
        rig.stream.release(&mut victim.pool);
    }
    assert_eq!(victim.pool.in_use(), 0);
}

// RFC 5041 §8.3.2 (5), RFC 5042 §6.4.3.1: posted buffers belong to one stream, their memory to the worker. Refusals to
// a greedy stream are counted, and messages in order on other streams are delivered.
#[test]
fn greedy_stream_is_counted_and_starves_no_other() {
    let (mut greedy, mut other) = (Rig::new(), Rig::new());
    greedy.pool = BufferPool::new(1024);
    let taken: Vec<_> = (1..4)
        .map(|n| greedy.input(n.into(), &untagged(n + 1, 0, false, b"and never the first")))
        .collect();
    assert_eq!(taken, [Placed(19), Refused, Refused]);
    core::mem::swap(&mut greedy.pool, &mut other.pool);
    assert_eq!(other.stream.posted_buffers(QUEUE), Some(4));
    assert_eq!(other.input(0, &untagged(1, 0, true, b"a")), Placed(1));
    assert_eq!(other.events(), [untagged_delivered(1, b"a")]);
    let refused = |rig: &Rig| rig.stream.counters().segments_refused;
    assert_eq!((refused(&greedy), refused(&other)), (2, 0));
    assert_eq!((other.pool.refused_share(), other.pool.refused_full()), (2, 0));
    greedy.stream.release(&mut other.pool);
    assert_eq!(other.pool.in_use(), 0);
}

#[test]
fn counters_match_sent_and_received_segments() {
    let mut rig = Rig::new();
    let _ = rig.input(1, &tagged(4, true, &[1; 40]));
    let _ = rig.input(0, &untagged(1, 0, true, &[2; 4]));
    let _ = rig.input(1, &tagged(0, true, b"again"));
    let counters = *rig.stream.counters();
    assert_eq!((counters.segments_received, counters.segments_ignored), (2, 1));
    let bytes = (counters.placed_in_order_bytes, counters.placed_out_of_order_bytes);
    assert_eq!(bytes, (4, 40));
    assert_eq!((counters.tagged_delivered, counters.untagged_delivered), (1, 1));
    assert_eq!(counters.delivered_bytes, 44);
    let mut sender = sender(VersionPolicy::V0);
    sender.post(Plan::Untagged { data: vec![0; 200] }.message(0)).unwrap();
    let out: Vec<_> = core::iter::from_fn(|| sender.next(128)).collect();
    out.iter().for_each(|o| sender.on_acknowledged(o.token, o.payload_len));
    let counters = sender.counters();
    assert_eq!((counters.segments_sent, counters.sent_bytes, counters.messages_sent), (2, 200, 1));
}

/// The size of an idle stream is bounded. The records of a long gap are freed when the gap is closed.
#[test]
fn idle_stream_size_is_bounded() {
    let size = size_of::<Stream<VecMemory>>();
    assert!(size <= 440, "{size}");
    let mut rig = Rig::new();
    for key in 1..1000 {
        assert_eq!(rig.input(key, &tagged(0, true, b"x")), Placed(1));
    }
    assert!(rig.stream.record_capacity() >= 999);
    let _ = rig.input(0, &tagged(0, true, b"x"));
    assert_eq!(rig.events().len(), 1000);
    assert!(rig.stream.record_capacity() <= 16);
}

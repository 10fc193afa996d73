//! Data transfer over paths that lose, reorder and re-segment.

use super::net::{Fate, Net, Side, has_payload};
use super::peers::*;
use crate::endpoint::*;
use crate::mpa::{self, Revision};
use core::time::Duration;
use ddp::{BufferPool, Cookie, VecMemory};
use proptest::prelude::*;

pub(super) fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

/// Returns a generator of pseudo-random numbers below its argument, determined by the seed.
pub(super) fn seeded_random(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |sides| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % sides
    }
}

/// With an MPA-aware sender and markers, data beyond a loss is placed on arrival. Only bytes whose FPDU boundaries are
/// unknown are held.
#[test]
fn loss_with_markers_places_out_of_order() {
    let mut roll = seeded_random(3);
    let mut net = established(EndpointConfig::default(), EndpointConfig::default()).with_fate(
        move |side, _, segment| match roll(50) {
            0 if side == Side::A && has_payload(segment) => Fate::Drop,
            1 => Fate::Delay(Duration::from_micros(700)),
            _ => Fate::Pass,
        },
    );
    let data = bytes(1, 900_000);
    for (i, chunk) in data.chunks(64 * 1024).enumerate() {
        net.a.write(i as u64 * 64 * 1024, chunk, i as u64);
    }
    net.run_until(|net| net.a.ddp_events().len() == 14);
    assert_eq!(net.b.memory.to_vec()[..900_000], data);
    let stats = net.b.stats();
    assert!(stats.mpa_rx.placed_out_of_order > 50_000);
    assert_eq!(stats.mpa_rx.held_max, stats.mpa_rx.unlocatable_max);
    assert!(stats.mpa_rx.held_max < 64 * 1024);
    assert_eq!((stats.mpa_rx.held, stats.mpa_rx.alignment_lost), (0, 0));
    let total = stats.mpa_rx.placed_in_order + stats.mpa_rx.placed_out_of_order;
    assert_eq!(total, 900_000, "each byte is placed once");
    assert_eq!(net.a.stats().mpa_tx.kept_max, 0, "stable bytes are framed again");
}

/// Bytes beyond a gap are held within `hold_limit` and refused above it.
#[test]
fn loss_without_markers_holds_within_the_budget() {
    let without = mpa::Config { markers: false, hold_limit: 20_000, ..mpa::Config::default() };
    let mut roll = seeded_random(4);
    let mut net = established(EndpointConfig::default(), with_mpa(without)).with_fate(
        move |side, _, segment| {
            let hit = side == Side::A && has_payload(segment) && roll(40) == 0;
            if hit { Fate::Drop } else { Fate::Pass }
        },
    );
    let data = bytes(2, 500_000);
    net.a.write(0, &data, 1);
    net.run_until(|net| net.a.ddp_events().len() == 1);
    assert_eq!(net.b.memory.to_vec()[..500_000], data);
    let stats = net.b.stats().mpa_rx;
    assert_eq!(stats.placed_out_of_order, 0);
    assert!(stats.held_max > 1448 && stats.held_max <= 20_000 + 1448);
}

/// The source changes during the transfer. Retransmissions contain the bytes of the first transmission.
#[test]
fn changing_source_is_resent_with_first_bytes() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default()).with_fate(
        |side, n, _| if side == Side::A && n % 7 == 3 { Fate::Drop } else { Fate::Pass },
    );
    let memory = VecMemory::from_vec(vec![1; 200_000]);
    let source = ddp::Source::Region { memory: memory.clone(), offset: 0, len: 200_000 };
    let to = ddp::TaggedOffset(0);
    let message = Message::Tagged { stag: STAG, to, rsvd_ulp: 0, source, cookie: Cookie::user(1) };
    net.a.ep().post(message).expect("room");
    for value in 2..50 {
        net.run_for(Duration::from_micros(600));
        ddp::RegionMemory::write(&memory, 0, &[value; 200_000]);
    }
    net.run_until(|net| net.a.ddp_events().len() == 1);
    // The CRC of every FPDU was valid in every transmission.
    assert_eq!(net.b.stats().mpa_rx.bad_crc_dropped, 0);
    assert!(net.b.memory.to_vec()[..200_000].iter().all(|byte| *byte > 0));
    let stats = net.a.stats();
    assert!(stats.tcp.loss.segments_retransmitted > 0 && stats.mpa_tx.kept_max > 0);
    assert_eq!(stats.mpa_tx.kept, 0);
}

/// The path MTU shrinks during the transfer: new FPDUs are smaller, and old FPDUs are cut.
#[test]
fn smaller_path_mtu_shrinks_new_fpdus() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    let data = bytes(5, 300_000);
    net.a.write(0, &data, 1);
    net.run_for(Duration::from_millis(1));
    let now = net.now;
    net.a.ep().set_path_mss(now, 600);
    let before = net.log.len();
    let mut net =
        net.with_fate(
            |side, _, segment| {
                if side == Side::A && segment.len() > 620 { Fate::Drop } else { Fate::Pass }
            },
        );
    net.run_until(|net| net.a.ddp_events().len() == 1);
    assert_eq!(net.b.memory.to_vec()[..300_000], data);
    assert!(net.log[before..].iter().any(|(side, s)| *side == Side::A && s.len() > 500));
    assert!(net.a.ep().params().is_some_and(|p| p.mulpdu < 600));
}

/// draft-culley-iwarp-mpa-03 §7.3: a small message does not wait for the acknowledgement of an earlier message.
#[test]
fn small_message_is_sent_without_nagle_delay() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    net.run_for(Duration::from_millis(100));
    let before = net.payloads(Side::A).len();
    net.a.send(b"one", 1);
    net.transmit();
    net.a.send(b"two", 2);
    net.transmit();
    assert_eq!(net.payloads(Side::A).len(), before + 2);
}

/// A worker without free receive buffers slows the peer down. No message is lost.
#[test]
fn empty_buffer_pool_slows_peer_without_loss() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    // The pool has room for one message of the queue at a time.
    net.b.buffers = BufferPool::new(16 * 1024);
    let messages: Vec<Vec<u8>> = (0..20).map(|i| bytes(i, 9000)).collect();
    for (i, message) in messages.iter().enumerate() {
        net.a.send(message, i as u64);
    }
    let mut net =
        net.with_fate(
            |side, n, _| {
                if side == Side::A && n % 11 == 5 { Fate::Drop } else { Fate::Pass }
            },
        );
    net.run_until(|net| net.a.ddp_events().len() == 20 && net.b.messages().len() == 20);
    let got: Vec<Vec<u8>> = net.b.messages().into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(got, messages);
}

/// An FPDU that DDP refused and TCP acknowledged is passed to DDP again. The peer's FIN is handled only afterwards.
#[test]
fn blocked_message_is_delivered_before_the_fin() {
    let without = mpa::Config { markers: false, ..mpa::Config::default() };
    let mut net = established(EndpointConfig::default(), with_mpa(without));
    net.b.buffers = BufferPool::new(0);
    let mut lost = false;
    let mut net = net.with_fate(move |side, _, segment| {
        let first = side == Side::A && has_payload(segment) && !lost;
        lost |= first;
        if first { Fate::Drop } else { Fate::Pass }
    });
    net.a.write(0, &bytes(1, 1400), 1);
    net.a.send(&bytes(2, 9000), 2);
    let now = net.now;
    net.a.ep().shutdown(now);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.b.memory.to_vec()[..1400], bytes(1, 1400), "the gap was closed");
    assert_eq!((net.b.state(), net.b.messages().len()), (Some(State::Established), 0));
    net.b.buffers = BufferPool::new(1 << 20);
    net.run();
    assert_eq!(net.b.messages(), [(Qn(0), bytes(2, 9000))]);
    assert_eq!(net.b.reason(), Some(CloseReason::PeerShutdown));
    net.b.assert_no_state_left();
}

/// Heap memory is measured by `benches/tests/idle_stream.rs`.
#[test]
fn endpoint_size_is_at_most_1664_bytes() {
    assert!(size_of::<Endpoint<VecMemory>>() <= 1664, "{}", size_of::<Endpoint<VecMemory>>());
}

#[derive(Clone, Debug)]
struct Path {
    seed: u64,
    loss: u64,
    delay: u64,
    split: u64,
    markers: bool,
    initiate: Revision,
}

fn paths() -> impl Strategy<Value = Path> {
    let forms = prop_oneof![Just(Revision::Draft), Just(Revision::Zero), Just(Revision::One)];
    (any::<u64>(), 0u64..8, 0u64..30, 0u64..50, any::<bool>(), forms).prop_map(
        |(seed, loss, delay, split, markers, initiate)| Path {
            seed,
            loss,
            delay,
            split,
            markers,
            initiate,
        },
    )
}

fn faulty_net(path: &Path) -> Net<Node, Node> {
    let mpa = mpa::Config { markers: path.markers, initiate: path.initiate, ..Default::default() };
    let mut roll = seeded_random(path.seed);
    let path = path.clone();
    pair(with_mpa(mpa.clone()), with_mpa(mpa)).with_fate(move |_, _, segment| {
        let what = roll(100);
        let long = segment.len() as u64;
        if what < path.loss {
            Fate::Drop
        } else if what < path.loss + path.delay {
            Fate::Delay(Duration::from_micros(roll(3000)))
        } else if what < path.loss + path.delay + path.split {
            Fate::Split((0..3).map(|_| roll(long) as usize).collect())
        } else {
            Fate::Pass
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Over any path, both regions receive the written bytes, messages are delivered once and in order, and no state
    /// remains.
    #[test]
    fn any_path_delivers_messages_in_order_once(path in paths(), sizes in prop::collection::vec(0usize..20_000, 1..12)) {
        let mut net = faulty_net(&path);
        net.run_until(|net| net.a.is_established() && net.b.is_established());
        prop_assert!(net.a.is_established() && net.b.is_established());
        let mut at = 0;
        for (i, size) in sizes.iter().enumerate() {
            let data = bytes(i as u32, *size);
            net.a.write(at as u64, &data, i as u64);
            net.b.write(at as u64, &data, i as u64);
            net.a.send(&data[..size.min(&9000).to_owned()], 100 + i as u64);
            at += size;
        }
        let n = sizes.len();
        net.run_until(|net| net.a.ddp_events().len() >= 3 * n && net.b.ddp_events().len() >= 3 * n);
        let expected: Vec<u8> =
            sizes.iter().enumerate().flat_map(|(i, size)| bytes(i as u32, *size)).collect();
        prop_assert_eq!(&net.b.memory.to_vec()[..at], &expected[..]);
        prop_assert_eq!(&net.a.memory.to_vec()[..at], &expected[..]);
        let messages: Vec<Vec<u8>> = net.b.messages().into_iter().map(|(_, bytes)| bytes).collect();
        let sent: Vec<Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(i, size)| bytes(i as u32, (*size).min(9000)))
            .collect();
        prop_assert_eq!(messages, sent);
        let delivered = |node: &Node| -> Vec<u64> {
            node.ddp_events().iter().filter_map(|event| match event {
                ddp::Event::TaggedDelivered { len, .. } => Some(*len),
                _ => None,
            }).collect()
        };
        let lens: Vec<u64> = sizes.iter().map(|size| *size as u64).collect();
        prop_assert_eq!(delivered(&net.a), lens.clone());
        prop_assert_eq!(delivered(&net.b), lens);
        let now = net.now;
        net.a.ep().shutdown(now);
        net.run();
        net.a.assert_no_state_left();
        net.b.assert_no_state_left();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// RFC 5044 §4.5, RFC 5041 §3 (1), (2): EMSS grows and shrinks while segments are lost. Retransmitted bytes are
    /// unchanged. Once losses and changes have ended, segments begin with an FPDU again.
    #[test]
    fn path_mtu_changes_keep_bytes_and_fpdu_alignment(
        seed: u64,
        loss in 0u64..6,
        markers: bool,
        changes in prop::collection::vec((100u16..1460, 100u64..4000), 1..12),
    ) {
        let mpa = mpa::Config { markers, ..Default::default() };
        let mut roll = seeded_random(seed);
        let net = pair(with_mpa(mpa.clone()), with_mpa(mpa));
        let mut net = net.with_fate(move |_, _, _| if roll(100) < loss { Fate::Drop } else { Fate::Pass });
        net.run_until(|net| net.a.is_established() && net.b.is_established());
        let data = bytes(3, 200_000);
        net.a.write(0, &data, 1);
        for (mss, wait) in changes {
            net.run_for(Duration::from_micros(wait));
            let now = net.now;
            net.a.ep().set_path_mss(now, mss);
        }
        net.run_until(|net| net.a.ddp_events().len() == 1);
        prop_assert_eq!(&net.b.memory.to_vec()[..200_000], &data[..]);
        let mut stream = std::collections::BTreeMap::new();
        for (side, segment) in &net.log {
            if *side == Side::A {
                let seq = u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]);
                let header = usize::from(segment[12] >> 4) * 4;
                for (i, byte) in segment[header..].iter().enumerate() {
                    let first = *stream.entry(seq.wrapping_add(i as u32)).or_insert(*byte);
                    prop_assert_eq!(first, *byte, "sent again with another byte");
                }
            }
        }
        let now = net.now;
        net.a.ep().set_path_mss(now, 1460);
        let mut net = net.with_fate(|_, _, _| Fate::Pass);
        let lost = net.b.ep().stats().mpa_rx.alignment_lost;
        net.a.write(0, &data, 2);
        net.run_until(|net| net.a.ddp_events().len() == 2);
        prop_assert_eq!(net.b.ep().stats().mpa_rx.alignment_lost, lost);
    }
}

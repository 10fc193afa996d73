//! The receive half alone, chunk by chunk.

use std::collections::BTreeSet;

use core::time::Duration;

use proptest::prelude::*;
use wire::sctp::{Chunk, DataHeader, Packet, Ports, Tag};

use super::*;

const FIRST: u32 = u32::MAX - 20;
const MS: Duration = Duration::from_millis(1);

/// A sink that accepts all messages, or refuses all if `refuse` is true.
struct Sink {
    messages: Vec<(u16, bool, Vec<u8>)>,
    refuse: bool,
    room: u32,
    /// `None`: all fragments are held. `Some(n)`: no fragment is held, and `max_hold` returns `n` bytes.
    max_hold: Option<u64>,
}

impl MessageSink for Sink {
    fn deliver(&mut self, _: Instant, message: ReceivedMessage<'_>) -> MessageOutcome {
        if self.refuse {
            return MessageOutcome::Refused;
        }
        self.messages.push((message.stream, message.unordered, message.pieces.concat()));
        MessageOutcome::Accepted
    }

    fn hold(&mut self, _bytes: usize, _in_order: bool) -> bool {
        self.max_hold.is_none()
    }

    fn max_hold(&self) -> u64 {
        self.max_hold.unwrap_or(u64::MAX)
    }

    fn free_space(&self) -> u32 {
        self.room
    }
}

struct Side {
    receiver: Receiver,
    sink: Sink,
    now: Instant,
}

fn config() -> ReceiveConfig {
    ReceiveConfig { window: 100_000, ..ReceiveConfig::default() }
}

fn side_with(config: &ReceiveConfig) -> Side {
    let sink = Sink { messages: Vec::new(), refuse: false, room: u32::MAX, max_hold: None };
    Side {
        receiver: Receiver::new(&Arc::new(config.clone()), Tsn(FIRST), 4),
        sink,
        now: Instant::from_millis(1000),
    }
}

fn side() -> Side {
    side_with(&config())
}

/// Returns the peer's `n`th TSN.
fn tsn(n: u32) -> Tsn {
    Tsn(FIRST).add(n)
}

fn whole(n: u32) -> DataHeader {
    DataHeader {
        tsn: tsn(n),
        stream: 1,
        ppid: 16,
        unordered: true,
        begin: true,
        end: true,
        ..DataHeader::default()
    }
}

/// Returns the header of the peer's `n`th chunk, a fragment with the flags B and E as in `flags`.
fn fragment(n: u32, flags: &str) -> DataHeader {
    DataHeader { begin: flags.contains('B'), end: flags.contains('E'), ..whole(n) }
}

impl Side {
    /// Receives a packet with these chunks.
    fn packet(&mut self, chunks: &[(DataHeader, &[u8])]) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for (header, payload) in chunks {
            let data = Data { header: *header, payload };
            arrivals.push(self.receiver.on_data(self.now, &data, &mut self.sink));
        }
        self.receiver.end_packet(self.now);
        arrivals
    }

    /// Receives a packet with one whole message.
    fn receive_whole(&mut self, n: u32) -> Arrival {
        self.packet(&[(whole(n), &[n as u8; 8])])[0]
    }

    fn due(&self) -> bool {
        self.receiver.sack_due(self.sink.room)
    }

    /// Writes the SACK into a packet of `room` bytes. Returns cumulative TSN, a_rwnd, blocks and duplicates.
    fn sack_in(&mut self, room: usize) -> (Tsn, u32, Vec<(u16, u16)>, Vec<Tsn>) {
        let mut out = vec![0; room];
        let ports = Ports { source: 1, destination: 2 };
        let mut packet = PacketBuilder::new(&mut out, ports, Tag(7));
        self.receiver.write_sack(self.sink.room, &mut packet).unwrap();
        let len = packet.finish();
        let read = Packet::new(&out[..len]).unwrap();
        let raw = read.chunks().next().unwrap().unwrap();
        let Ok(Chunk::Sack(sack)) = Chunk::parse(raw) else { panic!("no SACK") };
        let blocks = sack.gaps().map(|b| (b.start, b.end)).collect();
        (sack.header.cumulative, sack.header.a_rwnd, blocks, sack.duplicates().collect())
    }

    fn sack(&mut self) -> (Tsn, u32, Vec<(u16, u16)>, Vec<Tsn>) {
        self.sack_in(1500)
    }
}

// RFC 9260 §6.2: a SACK for every second packet, or after the delay.
#[test]
fn every_second_packet_is_acknowledged_at_once() {
    let mut side = side();
    assert_eq!(side.receive_whole(0), Arrival::Delivered);
    assert!(!side.due() && side.receiver.is_unacknowledged());
    assert_eq!(side.receiver.poll_timeout(), Some(side.now + 40 * MS));
    side.receive_whole(1);
    assert!(side.due());
    assert_eq!(side.sack(), (tsn(1), 100_000, vec![], vec![]));
    assert!(!side.due() && !side.receiver.is_unacknowledged());
    assert_eq!(side.receiver.poll_timeout(), None);
    // A packet with many chunks counts once.
    let chunks: Vec<_> = (2..12).map(|n| (whole(n), &[1u8; 4][..])).collect();
    side.packet(&chunks);
    assert!(!side.due());
    side.receiver.handle_timeout(side.now + 39 * MS);
    assert!(!side.due());
    side.receiver.handle_timeout(side.now + 40 * MS);
    assert!(side.due());
    assert_eq!(side.sack().0, tsn(11));
}

// RFC 9260 §6.2: SACK.Delay is at most 200 ms by default.
#[test]
fn the_default_delay_is_within_bounds() {
    let config = ReceiveConfig::default();
    assert!(config.sack_delay <= 200 * MS && config.packets_per_sack == 2);
}

// RFC 9260 §3.3.1, §6.2: a chunk with the I bit is acknowledged without delay.
#[test]
fn i_bit_causes_immediate_sack() {
    let mut side = side();
    side.packet(&[(DataHeader { immediate: true, ..whole(0) }, b"x")]);
    assert!(side.due());
}

// RFC 9260 §6.7: a packet that opens a gap, lies beyond a gap or fills a gap is acknowledged at once. §3.3.4: blocks
// are relative to the cumulative TSN.
#[test]
fn gaps_are_reported_at_once() {
    let mut side = side();
    side.receive_whole(0);
    side.sack();
    side.receive_whole(2);
    assert!(side.due());
    assert_eq!(side.sack(), (tsn(0), 100_000, vec![(2, 2)], vec![]));
    side.receive_whole(3);
    assert_eq!(side.sack().2, [(2, 3)]);
    side.receive_whole(5);
    assert_eq!(side.sack().2, [(2, 3), (5, 5)]);
    side.receive_whole(1);
    assert!(side.due());
    assert_eq!(side.sack(), (tsn(3), 100_000, vec![(2, 2)], vec![]));
    side.receive_whole(4);
    assert_eq!(side.sack(), (tsn(5), 100_000, vec![], vec![]));
    assert_eq!(side.sink.messages.len(), 6, "each was delivered on arrival");
}

// RFC 9260 §6.2: a packet with only duplicates is acknowledged at once. Each duplicate is reported in one SACK, up to a
// limit.
#[test]
fn duplicates_are_reported() {
    let mut side = side();
    side.receive_whole(0);
    side.receive_whole(2);
    side.sack();
    assert_eq!(side.receive_whole(0), Arrival::Duplicate);
    assert!(side.due());
    assert_eq!(side.receive_whole(2), Arrival::Duplicate);
    assert_eq!(side.sack().3, [tsn(0), tsn(2)]);
    assert_eq!(side.sack().3, []);
    for _ in 0..100 {
        side.receive_whole(2);
    }
    assert_eq!(side.sack().3.len(), MAX_DUPLICATES);
    assert_eq!(side.sink.messages.len(), 2);
}

// RFC 9260 §6.2: a DATA chunk without user data aborts the association and is not acknowledged.
#[test]
fn no_user_data_aborts() {
    let mut side = side();
    assert_eq!(side.packet(&[(whole(0), b"")]), [Arrival::Abort(Violation::NoUserData)]);
    assert_eq!(side.receiver.cumulative_tsn(), tsn(0).sub(1));
}

// RFC 9260 §6.5: DATA for a stream that does not exist is acknowledged and discarded.
#[test]
fn an_invalid_stream_is_acknowledged_and_discarded() {
    let mut side = side();
    let header = DataHeader { stream: 4, ..whole(0) };
    assert_eq!(side.packet(&[(header, b"abc")]), [Arrival::InvalidStream]);
    assert_eq!(side.sack().0, tsn(0));
    assert!(side.sink.messages.is_empty());
}

// RFC 9260 §3.3.4: a TSN beyond the reach of a Gap Ack Block, or beyond the limit of ranges, is refused.
#[test]
fn chunk_beyond_gap_block_reach_is_refused() {
    let mut side = side_with(&ReceiveConfig { max_gaps: 3, ..config() });
    assert_eq!(side.receive_whole(65_535), Arrival::Refused(Refusal::BeyondWindow));
    assert_eq!(side.receive_whole(1 << 31), Arrival::Duplicate, "before the next TSN");
    assert_eq!(side.receive_whole(65_534), Arrival::Delivered);
    assert_eq!(side.sack().2, [(65_535, 65_535)]);
    side.receive_whole(10);
    side.receive_whole(20);
    assert_eq!(side.receive_whole(30), Arrival::Refused(Refusal::TooManyGaps));
    assert_eq!(side.receive_whole(11), Arrival::Delivered, "adjacent to a range");
    assert_eq!(side.receive_whole(0), Arrival::Delivered);
    assert_eq!(side.receiver.stats().refused, 2);
    assert_eq!(side.receiver.stats().gaps_max, 3);
}

// RFC 9260 §6.7: a SACK that is too long for its packet reports the blocks with the lowest TSNs.
#[test]
fn sack_in_small_packet_has_the_lowest_blocks() {
    let mut side = side();
    for n in 0..10 {
        side.receive_whole(1 + 2 * n);
    }
    // The packet has room for common header, SACK and two blocks.
    assert_eq!(side.sack_in(12 + 16 + 8).2, [(2, 2), (4, 4)]);
}

// RFC 9260 §6.2: a closed window refuses data beyond the highest TSN received. Data that fills a gap is accepted, and
// the SACK is immediate.
#[test]
fn closed_window_refuses_new_data_and_accepts_gap_fill() {
    let mut side = side();
    side.receive_whole(0);
    side.receive_whole(2);
    side.sack();
    side.sink.room = 0;
    assert_eq!(side.receive_whole(3), Arrival::Refused(Refusal::WindowClosed));
    assert!(side.due());
    assert_eq!(side.sack(), (tsn(0), 0, vec![(2, 2)], vec![]));
    assert_eq!(side.receive_whole(1), Arrival::Delivered);
    assert_eq!(side.receive_whole(3), Arrival::Refused(Refusal::WindowClosed));
    side.sack();
    // RFC 9260 §6.2: one update when the window has opened by more than a quarter.
    side.sink.room = 25_000;
    assert!(!side.due());
    side.sink.room = 25_001;
    assert!(side.due());
    assert_eq!(side.sack().1, 25_001);
    assert!(!side.due());
    assert_eq!(side.receive_whole(3), Arrival::Delivered);
}

// RFC 1122 §4.2.3.3: a window below `min_window` is advertised as zero (silly window avoidance).
#[test]
fn a_silly_window_is_closed() {
    let mut side = side();
    side.sink.room = 1499;
    assert_eq!(side.receiver.advertised_window(side.sink.room), 0);
    side.sink.room = 1500;
    assert_eq!(side.receiver.advertised_window(side.sink.room), 1500);
}

// A refused message has no effect, like a lost message.
#[test]
fn refused_message_is_not_acknowledged() {
    let mut side = side();
    side.receive_whole(0);
    side.sink.refuse = true;
    assert_eq!(side.receive_whole(1), Arrival::Refused(Refusal::NotTaken));
    assert_eq!(side.receive_whole(3), Arrival::Refused(Refusal::NotTaken));
    assert_eq!(side.sack(), (tsn(0), 100_000, vec![], vec![]));
    side.sink.refuse = false;
    assert_eq!(side.receive_whole(3), Arrival::Delivered);
    assert_eq!(side.receive_whole(1), Arrival::Delivered);
    assert_eq!(side.sack(), (tsn(1), 100_000, vec![(2, 2)], vec![]));
}

// RFC 9260 §6.9: reassembly by TSN in any order; each fragment is acknowledged on arrival.
#[test]
fn fragments_are_joined() {
    let mut side = side();
    let kinds = [("B", 'a'), ("", 'b'), ("", 'c'), ("E", 'd')];
    let part = |n: u32| (fragment(n, kinds[n as usize].0), [kinds[n as usize].1 as u8; 100]);
    let order = [2, 0, 3, 1];
    for (i, n) in order.into_iter().enumerate() {
        let (header, payload) = part(n);
        let arrival = side.packet(&[(header, &payload)])[0];
        let last = i == 3;
        assert_eq!(arrival, if last { Arrival::Delivered } else { Arrival::Held });
        assert_eq!(side.receiver.held() > 0, !last);
    }
    let want: Vec<u8> = "abcd".bytes().flat_map(|b| [b; 100]).collect();
    assert_eq!(side.sink.messages, [(1, true, want)]);
    assert_eq!(side.sack(), (tsn(3), 100_000, vec![], vec![]));
    side.receive_whole(4);
    assert_eq!(side.sink.messages.len(), 2);
}

// RFC 9260 §6.2 B, C: kept fragments reduce the window.
#[test]
fn kept_fragments_close_the_window() {
    let mut side = side();
    side.packet(&[(fragment(0, "B"), &[0; 1000])]);
    let (_, a_rwnd, ..) = side.sack();
    assert!(a_rwnd <= 99_000 && a_rwnd > 98_000, "{a_rwnd}");
    side.packet(&[(fragment(1, "E"), &[0; 1000])]);
    assert_eq!(side.sack().1, 100_000);
}

// Each fragment restarts the measurement of the window's use: fragments have separate limits, so a larger window would
// not help.
#[test]
fn fragments_do_not_widen_the_window() {
    let config = ReceiveConfig { window_limit: 400_000, ..config() };
    for fragments in [false, true] {
        let mut side = side_with(&config);
        side.receiver.start_measurement(side.now);
        for n in 0..80 {
            let flags = if n % 2 == 0 { "B" } else { "E" };
            let header = if fragments { fragment(n, flags) } else { whole(n) };
            side.packet(&[(header, &[0; 1000])]);
        }
        side.now += core::time::Duration::from_millis(11);
        assert_eq!(side.receiver.is_half_used(), !fragments);
        if !fragments {
            let usage = side.receiver.usage(side.now, Nanos::from_millis(10));
            assert_eq!((usage, side.receiver.next_window()), (WindowUsage::Tight, Some(200_000)));
        }
    }
}

// RFC 9260 §6.9: a reassembled ordered message is still marked as ordered. A message refused at its last fragment is
// delivered after the retransmission.
#[test]
fn message_refused_at_last_fragment_is_retransmitted() {
    let mut side = side();
    let ordered = |n, flags| DataHeader { unordered: false, ssn: 7, ..fragment(n, flags) };
    side.packet(&[(ordered(0, "B"), b"one")]);
    side.sink.refuse = true;
    let last = side.packet(&[(ordered(1, "E"), b"two")]);
    assert_eq!(last, [Arrival::Refused(Refusal::NotTaken)]);
    assert_eq!(side.sack().0, tsn(0), "acknowledged chunks stay acknowledged");
    side.sink.refuse = false;
    side.packet(&[(ordered(1, "E"), b"two")]);
    assert_eq!(side.sink.messages, [(1, false, b"onetwo".to_vec())]);
    assert_eq!(side.receiver.held(), 0);
}

// RFC 9260 §6.9: adjacent fragments that cannot belong to one message end the association.
#[test]
fn fragments_that_do_not_fit_abort() {
    let abort = Arrival::Abort(Violation::Fragments);
    for (first, second) in [("B", "B"), ("B", "BE"), ("", "B"), ("E", ""), ("E", "E")] {
        let mut side = side();
        side.receive_whole(0);
        side.packet(&[(fragment(2, first), b"x")]);
        assert_eq!(side.packet(&[(fragment(3, second), b"y")])[0], abort, "{first} {second}");
        let mut side = side_with(&config());
        side.receive_whole(0);
        side.packet(&[(fragment(3, second), b"y")]);
        assert_eq!(side.packet(&[(fragment(2, first), b"x")])[0], abort, "{second} {first}");
    }
    // A fragment after a whole message must have the B bit. A fragment before a whole message must have the E bit.
    let mut side = side();
    side.receive_whole(0);
    assert_eq!(side.packet(&[(fragment(1, "E"), b"x")])[0], abort);
    side.receive_whole(3);
    assert_eq!(side.packet(&[(fragment(2, "B"), b"x")])[0], abort);
    assert_eq!(
        side_with(&config()).packet(&[(fragment(0, ""), b"x")])[0],
        abort,
        "the first chunk has no B bit"
    );
    // The fragments of a message have the same stream, U flag, SSN and PPID.
    let begin = fragment(0, "B");
    let wrong = [
        DataHeader { stream: 2, ..fragment(1, "E") },
        DataHeader { unordered: false, ..fragment(1, "E") },
        DataHeader { ppid: 17, ..fragment(1, "E") },
    ];
    for header in wrong {
        let mut side = side_with(&config());
        side.packet(&[(begin, b"x")]);
        assert_eq!(side.packet(&[(header, b"y")])[0], abort, "{header:?}");
    }
    // RFC 9260 §6.6: the SSN of an unordered chunk is ignored.
    let mut side = side_with(&config());
    side.packet(&[(begin, b"x")]);
    let other = DataHeader { ssn: 9, ..fragment(1, "E") };
    assert_eq!(side.packet(&[(other, b"y")])[0], Arrival::Delivered);
}

#[test]
fn a_message_that_is_too_long_aborts() {
    let mut side = side_with(&ReceiveConfig { max_message: 300, ..config() });
    side.packet(&[(fragment(0, "B"), &[0; 200])]);
    let next = side.packet(&[(fragment(1, ""), &[0; 101])]);
    assert_eq!(next, [Arrival::Abort(Violation::MessageTooLong)]);
    let mut side = side_with(&ReceiveConfig { max_fragments: 3, ..config() });
    side.packet(&[(fragment(0, "B"), b"x"), (fragment(1, ""), b"x"), (fragment(2, ""), b"x")]);
    let next = side.packet(&[(fragment(3, "E"), b"x")]);
    assert_eq!(next, [Arrival::Abort(Violation::MessageTooLong)]);
}

/// A fragment without room in the worker's budget is refused. If the fragment is next in order and its message could
/// never be held, the association is aborted.
#[test]
fn fragment_beyond_worker_budget_is_refused() {
    let arrival = |most: usize, n: u32| {
        let mut side = side();
        side.packet(&[(fragment(0, "B"), &[0; 100])]);
        side.sink.max_hold = Some(most as u64);
        side.packet(&[(fragment(n, ""), &[0; 100])])[0]
    };
    let both = 2 * holds_fragment(100);
    assert_eq!(arrival(both, 1), Arrival::Refused(Refusal::HoldBudget));
    assert_eq!(arrival(both - 1, 1), Arrival::Abort(Violation::MessageTooLong));
    assert_eq!(arrival(both - 1, 2), Arrival::Refused(Refusal::HoldBudget), "beyond a gap");
}

/// Returns the bytes accounted for one fragment of `len` bytes.
fn holds_fragment(len: usize) -> usize {
    let mut side = side();
    side.packet(&[(fragment(0, "B"), &vec![0; len])]);
    side.receiver.held()
}

/// Fragments beyond gaps fill their limit. Fragments in order are still kept, so that retransmissions complete all
/// messages.
#[test]
fn fragments_beyond_budget_are_refused_without_a_stall() {
    let mut side = side_with(&ReceiveConfig { fragments: 1000, ..config() });
    // Messages of three fragments each; the first fragment is missing.
    let flags = |n: u32| ["B", "", "E"][n as usize % 3];
    let mut refused = Vec::new();
    for n in (0..30).filter(|n| n % 3 != 0) {
        match side.packet(&[(fragment(n, flags(n)), &[n as u8; 50])])[0] {
            Arrival::Held => {}
            Arrival::Refused(Refusal::TooManyFragments) => refused.push(n),
            other => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(side.receiver.held(), 8 * 114);
    assert!(!refused.is_empty());
    // The peer retransmits unacknowledged chunks in order.
    for n in 0..30 {
        side.packet(&[(fragment(n, flags(n)), &[n as u8; 50])]);
    }
    assert_eq!(side.sink.messages.len(), 10);
    assert_eq!(side.sack().0, tsn(29));
    assert_eq!(side.receiver.held(), 0);
}

proptest! {
    /// With any order, duplicates and refusals, the acknowledged TSNs equal a model set of accepted TSNs. Each message
    /// is delivered once, and no acknowledged TSN is withdrawn.
    #[test]
    fn acknowledged_tsns_equal_accepted_tsns(
        steps in prop::collection::vec((0u32..60, prop::bool::weighted(0.1), any::<bool>()), 1..200),
        max_gaps in 1usize..12,
    ) {
        let mut side = side_with(&ReceiveConfig { max_gaps, ..config() });
        let mut model = BTreeSet::new();
        for (n, refuse, acknowledge) in steps {
            side.sink.refuse = refuse;
            let arrival = side.receive_whole(n);
            prop_assert_eq!(arrival == Arrival::Duplicate, model.contains(&n));
            if arrival == Arrival::Delivered {
                prop_assert!(!refuse);
                model.insert(n);
            }
            if acknowledge {
                let (cumulative, _, blocks, _) = side.sack();
                let mut reported: BTreeSet<u32> = (0..cumulative.add(1).distance_from(tsn(0))).collect();
                let mut last = 1;
                for (start, end) in blocks {
                    prop_assert!(last < start && start <= end, "sorted, with gaps, above the next TSN");
                    last = end + 1;
                    reported.extend((start..=end).map(|i| cumulative.add(u32::from(i)).distance_from(tsn(0))));
                }
                prop_assert_eq!(&reported, &model);
            }
        }
        prop_assert_eq!(side.sink.messages.len(), model.len());
        prop_assert!(side.receiver.stats().gaps_max <= max_gaps as u64);
    }

    /// With any fragmentation, and fragments repeated and in any order, whole messages are delivered.
    #[test]
    fn fragments_in_any_order_are_reassembled(
        lens in prop::collection::vec(1u32..6, 1..12),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
    ) {
        let mut side = side();
        let mut chunks = Vec::new();
        for (message, len) in lens.iter().enumerate() {
            for i in 0..*len {
                let n = chunks.len() as u32;
                let header = DataHeader { begin: i == 0, end: i + 1 == *len, ..whole(n) };
                chunks.push((header, [message as u8, i as u8]));
            }
        }
        let order: Vec<_> = picks.iter().map(|p| p.index(chunks.len())).chain(0..chunks.len()).collect();
        for i in order {
            let (header, payload) = &chunks[i];
            let arrival = side.packet(&[(*header, payload)])[0];
            prop_assert!(!matches!(arrival, Arrival::Abort(_) | Arrival::Refused(_)), "{:?}", arrival);
        }
        let mut messages: Vec<_> = side.sink.messages.iter().map(|(.., m)| m.clone()).collect();
        messages.sort();
        let want: Vec<Vec<u8>> = lens.iter().enumerate()
            .map(|(m, len)| (0..*len).flat_map(|i| [m as u8, i as u8]).collect()).collect();
        prop_assert_eq!(messages, want);
        prop_assert_eq!(side.receiver.held(), 0);
        prop_assert!(!side.receiver.has_gaps());
    }

    /// Arbitrary TSNs and flags cause no panic, and limits hold.
    #[test]
    fn hostile_chunks_stay_within_bounds(
        chunks in prop::collection::vec(
            (prop_oneof![0u32..40, any::<u32>()], any::<u8>(), 0u16..6, 0usize..40), 1..300),
    ) {
        let config = ReceiveConfig { max_gaps: 4, max_message: 200, fragments: 600, ..config() };
        let mut side = side_with(&config);
        for (n, flags, stream, len) in chunks {
            let header = DataHeader {
                stream,
                unordered: flags & 1 != 0,
                begin: flags & 2 != 0,
                end: flags & 4 != 0,
                immediate: flags & 8 != 0,
                ..whole(n)
            };
            let before = side.receiver.cumulative_tsn();
            side.packet(&[(header, &vec![0; len])]);
            prop_assert!(!side.receiver.cumulative_tsn().before(before));
            prop_assert!(side.receiver.gap_blocks().count() <= 4);
            prop_assert!(side.receiver.held() <= 600 + 200 + 128 * 64);
            prop_assert!(side.sack().2.iter().all(|(start, end)| start <= end && *start > 1));
        }
    }
}

//! Property tests of the order of arrival. Any segmentation and order hand up the same ULPDUs, deliver in order and
//! leave no state.

use super::*;

/// A stream, and its segments in order of arrival.
#[derive(Clone, Debug)]
struct Arrival {
    stream: Stream,
    segments: Vec<Range<usize>>,
}

fn streams() -> impl Strategy<Value = Stream> {
    let lens = prop::collection::vec(
        prop_oneof![0usize..60, 60usize..600, 600usize..3000, 480usize..520],
        1..14,
    );
    (lens, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(lens, markers, crc, from_marker)| {
            let mut stream = Stream { from_marker, ..Stream::new(markers, crc) };
            for (i, len) in lens.iter().enumerate() {
                stream.fpdu(&ulpdu(i, *len));
            }
            stream
        },
    )
}

/// Generates arrivals cut at any bytes, as by a middlebox or a sender that is not MPA-aware.
fn arbitrary_arrivals() -> impl Strategy<Value = Arrival> {
    streams()
        .prop_flat_map(|stream| {
            let n = stream.bytes.len();
            (Just(stream), prop::collection::vec(0..=n, 0..30))
        })
        .prop_flat_map(|(stream, mut cuts)| {
            cuts.extend([0, stream.bytes.len()]);
            shuffled_arrivals(stream, cuts)
        })
}

/// Generates arrivals cut at FPDU boundaries, as by an MPA-aware sender that packs FPDUs.
fn aligned_arrivals() -> impl Strategy<Value = Arrival> {
    streams()
        .prop_flat_map(|stream| {
            let n = stream.fpdus.len();
            (Just(stream), prop::collection::vec(any::<bool>(), n))
        })
        .prop_flat_map(|(stream, keep)| {
            let b = stream.boundaries();
            let mut cuts = vec![0, stream.bytes.len()];
            cuts.extend(b.iter().zip(keep).filter(|(_, keep)| *keep).map(|(at, _)| *at));
            shuffled_arrivals(stream, cuts)
        })
}

fn shuffled_arrivals(stream: Stream, mut cuts: Vec<usize>) -> impl Strategy<Value = Arrival> {
    cuts.sort_unstable();
    cuts.dedup();
    let segments: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    Just(segments)
        .prop_shuffle()
        .prop_map(move |segments| Arrival { stream: stream.clone(), segments })
}

/// Passes every segment to the receiver until the whole stream is accepted, in at most `rounds` rounds.
fn offer_all(bench: &mut Bench, arrival: &Arrival, rounds: usize) {
    for _ in 0..rounds {
        for segment in &arrival.segments {
            bench.arrive(segment.clone());
            bench.receiver.retry(&mut bench.sink, &mut bench.budget);
        }
        if bench.is_taken(0..arrival.stream.bytes.len()) {
            return;
        }
    }
    panic!("not all bytes were ever taken");
}

fn all_fpdus(stream: &Stream) -> Vec<usize> {
    (0..stream.fpdus.len()).collect()
}

/// Returns the FPDUs that must be handed up once the bytes marked in `taken` have arrived (RFC 5044 §6).
fn locatable_fpdus(stream: &Stream, taken: &[bool]) -> Vec<usize> {
    let b = stream.boundaries();
    let mut up: Vec<usize> = Vec::new();
    for i in 0..stream.fpdus.len() {
        let whole = taken[b[i]..b[i + 1]].iter().all(|taken| *taken);
        let marked = stream.markers && (b[i]..b[i + 1]).any(|at| at.is_multiple_of(512));
        let follows = i == 0 || up.last() == Some(&(i - 1));
        if whole && (marked || follows) {
            up.push(i);
        }
    }
    up
}

proptest! {
    /// draft-culley-iwarp-mpa-03 §7.4.1, for any segmentation and any order.
    #[test]
    fn any_arrival_order_hands_up_the_same_ulpdus(arrival in arbitrary_arrivals()) {
        let mut bench = Bench::new(&arrival.stream, &large_hold_config());
        offer_all(&mut bench, &arrival, 1);
        prop_assert_eq!(bench.handed_up(&arrival.stream), all_fpdus(&arrival.stream));
        prop_assert_eq!(bench.receiver.error(), None);
        prop_assert_eq!(bench.sink.complete, START + arrival.stream.bytes.len() as u64);
        prop_assert_eq!((bench.budget.used(), bench.stats().unlocatable), (0, 0));
    }

    /// Segments are refused for lack of room, and retransmitted.
    #[test]
    fn little_hold_room_still_completes_the_transfer(arrival in arbitrary_arrivals(), room in 0u64..700) {
        let mut bench = Bench::new(&arrival.stream, &Config::default());
        bench.budget = HoldBudget::new(room);
        let rounds = arrival.segments.len() + 2;
        offer_all(&mut bench, &arrival, rounds);
        prop_assert_eq!(bench.handed_up(&arrival.stream), all_fpdus(&arrival.stream));
        prop_assert_eq!(bench.budget.used(), 0);
    }

    /// The sink refuses some ULPDUs once.
    #[test]
    fn refused_ulpdus_are_handed_up_again(arrival in arbitrary_arrivals(), which in prop::collection::vec(any::<bool>(), 14)) {
        let mut bench = Bench::new(&arrival.stream, &large_hold_config());
        for ((at, _), refuse) in arrival.stream.fpdus.iter().zip(which) {
            if refuse {
                bench.sink.refuse.insert(START + *at as u64);
            }
        }
        let rounds = 2 * arrival.stream.fpdus.len() + 2;
        offer_all(&mut bench, &arrival, rounds);
        while bench.receiver.is_blocked() {
            bench.receiver.retry(&mut bench.sink, &mut bench.budget);
        }
        prop_assert_eq!(bench.handed_up(&arrival.stream), all_fpdus(&arrival.stream));
    }

    /// Segments have markers and begin with FPDUs. If the previous segment is missing, only the FPDUs before a
    /// segment's first marker are held.
    #[test]
    fn aligned_marked_sender_holds_only_unlocatable_bytes(arrival in aligned_arrivals()) {
        prop_assume!(arrival.stream.markers);
        let b = arrival.stream.boundaries();
        let mut bench = Bench::new(&arrival.stream, &large_hold_config());
        for segment in &arrival.segments {
            let known = segment.start == 0 || bench.handed_up(&arrival.stream)
                .iter().any(|i| b[*i + 1] == segment.start);
            bench.arrive(segment.clone());
            let up = bench.handed_up(&arrival.stream);
            let marker = segment.start.next_multiple_of(512);
            for i in 0..arrival.stream.fpdus.len() {
                if segment.contains(&b[i]) && (known || b[i + 1] > marker) {
                    prop_assert!(up.contains(&i), "FPDU {} can be located", i);
                }
            }
            prop_assert_eq!(bench.stats().held, bench.stats().unlocatable);
        }
        prop_assert_eq!(bench.stats().held_max, bench.stats().unlocatable_max);
        prop_assert_eq!(bench.stats().alignment_lost, 0);
    }

    /// With CRCs, an FPDU with a damaged byte is not handed up, in any order of arrival.
    #[test]
    fn damaged_byte_is_never_handed_up(arrival in arbitrary_arrivals(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        prop_assume!(arrival.stream.crc);
        let mut bench = Bench::new(&arrival.stream, &large_hold_config());
        let at = at.index(bench.bytes.len());
        bench.bytes[at] ^= 1 << bit;
        for _ in 0..3 {
            for segment in &arrival.segments {
                bench.arrive(segment.clone());
            }
        }
        let up = bench.handed_up(&arrival.stream);
        let b = arrival.stream.boundaries();
        let hit = b.partition_point(|start| *start <= at) - 1;
        prop_assert!(!up.contains(&hit));
        prop_assert_eq!(bench.sink.complete, START + b[hit] as u64);
    }

    /// RFC 5044 §6, RFC 5041 §5.3: for any segmentation, order, duplicates and overlaps, exactly the locatable FPDUs
    /// are handed up. An FPDU is locatable if it contains a marker, follows a handed-up FPDU, or begins the stream. All
    /// other bytes are held.
    #[test]
    fn each_arrival_hands_up_exactly_locatable_fpdus(
        stream in streams(),
        arrivals in prop::collection::vec((any::<prop::sample::Index>(), 1usize..4000), 1..60),
        aligned in any::<bool>(),
    ) {
        let b = stream.boundaries();
        let n = stream.bytes.len();
        let mut bench = Bench::new(&stream, &large_hold_config());
        let snap = |at: usize| b[b.partition_point(|start| *start <= at) - 1];
        let segments = arrivals.into_iter().map(|(at, len)| {
            let at = at.index(n);
            let (from, to) = (at, (at + len).min(n));
            if aligned { snap(from)..b[b.partition_point(|end| *end < to)] } else { from..to }
        });
        let steps = (0..n).step_by(700).map(|at| at..(at + 700).min(n));
        for segment in segments.chain(steps) {
            bench.arrive(segment);
            let expected = locatable_fpdus(&stream, &bench.taken);
            prop_assert_eq!(bench.handed_up(&stream), expected.clone());
            let taken = bench.taken.iter().filter(|taken| **taken).count();
            let placed: usize = expected.iter().map(|i| b[i + 1] - b[*i]).sum();
            prop_assert_eq!(bench.stats().held as usize, taken - placed);
        }
        prop_assert_eq!(bench.handed_up(&stream), all_fpdus(&stream));
        prop_assert_eq!(bench.budget.used(), 0);
    }

    /// Arbitrary bytes cause no panic, and the held bytes stay within the limit.
    #[test]
    fn random_stream_bytes_do_not_panic_the_receiver(
        bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1..6000),
        cuts in prop::collection::vec(0usize..6000, 0..40),
        seed in any::<u64>(),
        markers in any::<bool>(),
        crc in any::<bool>(),
    ) {
        let stream = Stream { bytes, ..Stream::new(markers, crc) };
        let n = stream.bytes.len();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (n + 1)).chain([0, n]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut segments: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        segments.sort_by_key(|s| (s.start as u64).wrapping_mul(seed | 1));
        let config = Config { hold_limit: 2000, max_fpdu: 4000, ..Config::default() };
        let mut bench = Bench::new(&stream, &config);
        for segment in segments.iter().chain(&segments) {
            bench.arrive(segment.clone());
            prop_assert!(bench.stats().held <= 2000 + 4000);
        }
        bench.receiver.discard(&mut bench.budget);
        prop_assert_eq!(bench.budget.used(), 0);
    }
}

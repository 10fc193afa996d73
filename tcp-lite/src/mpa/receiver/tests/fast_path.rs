//! Compares the fast path (a span of one FPDU, or of whole FPDUs) with the slow path (FPDUs in pieces). Both hand up
//! equal ULPDUs, and report equal errors at equal stream offsets.

use super::*;
use crate::mpa::testing::bitwise_crc;

/// Fault that a test puts into one FPDU.
#[derive(Clone, Copy, Debug)]
enum Damage {
    None,
    /// A flipped bit in the byte at this offset of the FPDU.
    Bit(usize),
    /// A number of words added to FPDUPTR of the marker with this index. The CRC is valid.
    Pointer(usize, u16),
}

fn damaged(mut stream: Stream, fpdu: usize, damage: Damage) -> Stream {
    let b = stream.boundaries();
    let (from, to) = (b[fpdu], b[fpdu + 1]);
    match damage {
        Damage::None => {}
        Damage::Bit(at) => stream.bytes[from + at % (to - from)] ^= 1 << (at % 8),
        Damage::Pointer(n, by) => {
            let markers: Vec<usize> =
                (from..to - 4).filter(|at| stream.markers && at % 512 == 0).collect();
            if let Some(at) = markers.get(n % markers.len().max(1)) {
                let seen = u16::from_be_bytes([stream.bytes[at + 2], stream.bytes[at + 3]]);
                let wrong = seen.wrapping_add(by.wrapping_mul(4)).to_be_bytes();
                stream.bytes[at + 2..at + 4].copy_from_slice(&wrong);
                let crc = bitwise_crc(&stream.bytes[from..to - 4]).to_le_bytes();
                if stream.crc {
                    stream.bytes[to - 4..to].copy_from_slice(&crc);
                }
            }
        }
    }
    stream
}

fn damages() -> impl Strategy<Value = Damage> {
    prop_oneof![
        2 => Just(Damage::None),
        3 => (0usize..4000).prop_map(Damage::Bit),
        3 => (0usize..8, prop_oneof![1u16..4, any::<u16>()]).prop_map(|(n, by)| Damage::Pointer(n, by)),
    ]
}

/// Returns the visible state of a receiver as text.
fn describe(bench: &Bench) -> String {
    let stats = bench.receiver.stats();
    format!(
        "{:?} complete {} next {} error {:?} fpdus {} placed {}",
        bench.sink.received.iter().map(|(at, u)| (*at, u.len())).collect::<Vec<_>>(),
        bench.sink.complete,
        bench.receiver.next_offset(),
        bench.receiver.error(),
        stats.fpdus,
        stats.placed_in_order,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fast_and_slow_path_agree(
        lens in prop::collection::vec(prop_oneof![0usize..60, 60usize..600, 600usize..3000, 480usize..520], 1..8),
        (markers, crc, zero) in any::<(bool, bool, bool)>(),
        (which, damage) in (0usize..8, damages()),
        max_fpdu in prop_oneof![Just(65536u32), 1024u32..3000],
        cuts in prop::collection::vec(1usize..3000, 8),
    ) {
        let mut stream = Stream { from_marker: zero, ..Stream::new(markers, crc) };
        for (i, len) in lens.iter().enumerate() {
            stream.fpdu(&ulpdu(i, *len));
        }
        let stream = damaged(stream, which % lens.len(), damage);
        let b = stream.boundaries();
        let config = Config { max_fpdu, ..large_hold_config() };
        // One span per FPDU, one span for all, and two spans per FPDU.
        let (mut one, mut all, mut two) =
            (Bench::new(&stream, &config), Bench::new(&stream, &config), Bench::new(&stream, &config));
        all.arrive(0..stream.bytes.len());
        for (i, pair) in b.windows(2).enumerate() {
            one.arrive(pair[0]..pair[1]);
            let cut = pair[0] + cuts[i] % (pair[1] - pair[0]);
            two.arrive(pair[0]..cut).arrive(cut..pair[1]);
        }
        prop_assert_eq!(describe(&one), describe(&two));
        prop_assert_eq!(describe(&all), describe(&two));
    }
}

/// RFC 5044 §8: an error beyond a gap is reported once the gap is closed.
#[test]
fn error_ahead_of_a_gap_is_reported_when_the_fast_path_closes_it() {
    let stream = damaged(stream(true, &[900, 900, 900, 900]), 2, Damage::Pointer(0, 1));
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[0]..b[1]);
    bench.arrive(b[2]..b[3]);
    assert_eq!(bench.receiver.error(), None, "reported ahead of the gap");
    bench.arrive(b[1]..b[2]);
    assert!(matches!(bench.receiver.error(), Some(MpaError { fault: Fault::Marker { .. }, .. })));
    bench.arrive(b[3]..b[4]);
    assert_eq!(bench.handed_up(&stream), [0, 1]);
}

/// RFC 5044 §8: code 3 requires a valid CRC. Both faults together are therefore code 2, on the fast and the slow path.
#[test]
fn wrong_crc_precedes_wrong_marker() {
    for cut in [false, true] {
        let good = stream(true, &[900, 900]);
        let b = good.boundaries();
        let mut stream = damaged(good, 1, Damage::Pointer(0, 1));
        let last = stream.bytes.len() - 1;
        stream.bytes[last] ^= 1;
        let mut bench = Bench::new(&stream, &Config::default());
        bench.arrive(b[0]..b[1]);
        if cut {
            bench.arrive(b[1]..b[1] + 100).arrive(b[1] + 100..b[2]);
        } else {
            bench.arrive(b[1]..b[2]);
        }
        assert!(matches!(bench.receiver.error(), Some(MpaError { fault: Fault::Crc { .. }, .. })));
    }
}

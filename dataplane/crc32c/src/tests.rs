//! Compares every path with a table-driven CRC, for every length and alignment.

use super::{Digest, Engine, Inserts, Path, Sum, Target, crc_sum, update};

const MAX_LEN: usize = 4096;
const ALIGNMENTS: usize = 64;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (0x82f6_3b78 * (value & 1));
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
};

fn crc_by_table(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// Computes the Internet checksum as in RFC 1071 §4.1, word by word, without the final complement.
fn sum_by_words(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for word in bytes.chunks(2) {
        sum += u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn fold_equals_sum_of_halves_with_carries() {
    let by_steps = |mut sum: u64| {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    };
    let edges = [0, 1, 0xffff, 0x1_0000, 0xffff_0001, 0xffff_ffff, 1 << 32, u64::MAX];
    let random = noise(1 << 16, 7);
    let random = random.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    for sum in edges.into_iter().chain(random.clone()).chain(random.map(|sum| sum >> (sum % 64))) {
        assert_eq!(crate::sum::fold(sum), by_steps(sum), "{sum:#x}");
    }
}

/// Returns bytes of a linear congruential generator.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns the rest of `bytes` from the first address that is a multiple of 64.
fn aligned(bytes: &mut [u8]) -> &mut [u8] {
    let at = bytes.as_ptr().align_offset(ALIGNMENTS);
    &mut bytes[at..]
}

/// Returns the engines that this CPU supports.
fn engines() -> impl Iterator<Item = Engine> {
    Path::ALL.into_iter().filter_map(Engine::with_path)
}

/// Calls `case` with bytes of every length and alignment, their alignment, and their expected CRC after bytes whose CRC
/// is `crc`. The content is the same for every alignment.
fn for_each_case(crc: u32, mut case: impl FnMut(&[u8], usize, u32)) {
    let plain = noise(MAX_LEN, 7);
    let mut expected = vec![crc];
    for byte in &plain {
        expected.push(crc_by_table(expected[expected.len() - 1], &[*byte]));
    }
    let mut room = vec![0; MAX_LEN + 2 * ALIGNMENTS];
    let room = aligned(&mut room);
    for alignment in 0..ALIGNMENTS {
        room.fill(0xa5);
        room[alignment..alignment + MAX_LEN].copy_from_slice(&plain);
        for (len, expected) in expected.iter().enumerate() {
            case(&room[alignment..alignment + len], alignment, *expected);
        }
    }
}

#[test]
fn crc_matches_check_value_on_every_path() {
    for engine in engines() {
        assert_eq!(engine.update(0, b"123456789"), 0xe306_9283, "{engine:?}");
        assert_eq!(engine.update(0, &[]), 0);
        // Test vector of RFC 7143 appendix A.4: 32 bytes of zeros.
        assert_eq!(engine.update(0, &[0; 32]), 0x8a91_36aa);
    }
}

#[test]
fn crc_matches_table_at_every_length_and_alignment() {
    for engine in engines() {
        for crc in [0, 0x1234_5678] {
            for_each_case(crc, |bytes, at, expected| {
                assert_eq!(engine.update(crc, bytes), expected, "{engine:?} {at} {}", bytes.len());
            });
        }
    }
}

#[test]
fn crc_and_sum_match_at_every_length_and_alignment() {
    let plain = noise(MAX_LEN, 7);
    let sums: Vec<u16> = (0..=MAX_LEN).map(|len| sum_by_words(&plain[..len])).collect();
    let odd: Vec<u16> = {
        let shifted: Vec<u8> = [0x9c].into_iter().chain(plain).collect();
        (0..=MAX_LEN).map(|len| sum_by_words(&shifted[..=len])).collect()
    };
    for engine in engines() {
        for_each_case(3, |bytes, at, expected| {
            let (crc, sum) = engine.crc_sum(3, Sum::default(), bytes);
            assert_eq!((crc, sum.value()), (expected, sums[bytes.len()]), "{engine:?} {at}");
            let (crc, sum) = engine.crc_sum(3, Sum::default().add_bytes(&[0x9c]), bytes);
            assert_eq!((crc, sum.value()), (expected, odd[bytes.len()]), "{engine:?} {at} odd");
        });
    }
}

/// The copy is complete, no byte outside of it is written, and CRC and sum equal the results of separate passes.
#[test]
fn copy_is_exact_at_every_length_and_alignment() {
    let mut room = vec![0; MAX_LEN + 4 * ALIGNMENTS];
    let room = aligned(&mut room);
    for engine in engines() {
        for_each_case(1, |bytes, at, expected| {
            // The alignment of the destination varies.
            let to = ALIGNMENTS + (at * 5 + bytes.len()) % ALIGNMENTS;
            let end = to + bytes.len();
            let start =
                if at % 2 == 0 { Sum::default() } else { Sum::default().add_bytes(&[0x9c]) };
            for fused in [false, true] {
                room[to - ALIGNMENTS..end + ALIGNMENTS].fill(0xee);
                let room = &mut room[to - ALIGNMENTS..end + ALIGNMENTS];
                let copy = &mut room[ALIGNMENTS..ALIGNMENTS + bytes.len()];
                if fused {
                    let (crc, sum) = engine.copy_crc_sum(1, start, bytes, copy);
                    assert_eq!((crc, sum), (expected, start.add_bytes(bytes)), "{engine:?} {at}");
                } else {
                    assert_eq!(engine.copy_crc(1, bytes, copy), expected, "{engine:?} {at}");
                }
                assert!(copy == bytes, "{engine:?} {at} {}", bytes.len());
                let (before, after) = (&room[..ALIGNMENTS], &room[ALIGNMENTS + bytes.len()..]);
                assert!(before.iter().chain(after).all(|byte| *byte == 0xee), "{engine:?} {at}");
            }
        });
    }
}

/// Returns a reference copy, made byte by byte: `len` bytes with inserted words, and the number of source bytes in it.
fn copy_with_words(source: &[u8], len: usize, first: usize, number: u16) -> (Vec<u8>, usize) {
    let (mut copy, mut at) = (Vec::new(), 0);
    for i in 0..len {
        let behind = i.wrapping_sub(first);
        if i >= first && behind % Inserts::INTERVAL < Inserts::LEN {
            let number = usize::from(number) + behind / Inserts::INTERVAL * Inserts::INTERVAL;
            let [high, low] = (number as u16).to_be_bytes();
            copy.push([0, 0, high, low][behind % Inserts::INTERVAL]);
        } else {
            copy.push(source[at]);
            at += 1;
        }
    }
    (copy, at)
}

/// With words inserted at any position, every path gives the bytes, CRC and sum of the reference, and writes no byte
/// outside the copy.
#[test]
fn copy_with_inserts_matches_reference_on_every_path() {
    let source = noise(9000, 13);
    let mut room = vec![0; 9000 + 2 * ALIGNMENTS];
    let lens = (0..700).chain(1380..1460).chain([4092, 8884, 8948]);
    for (i, len) in lens.enumerate() {
        for first in (0..70).chain((i % 4..600).step_by(31)).chain(505..516) {
            let number = (first * 77 + i) as u16;
            let inserts = Inserts::new(first as u32, number);
            let (expected, taken) = copy_with_words(&source, len, first, number);
            assert_eq!(inserts.source_len(len), taken, "{len} {first}");
            let start = if i % 2 == 0 { Sum::default() } else { Sum::default().add_bytes(&[0x9c]) };
            let crc = reference_crc(1, &expected);
            for engine in engines() {
                for summed in [false, true] {
                    let room = &mut room[..len + 2 * ALIGNMENTS];
                    room.fill(0xee);
                    let copy = &mut room[ALIGNMENTS..ALIGNMENTS + len];
                    // SAFETY: the source has at least the bytes that the copy reads, and does not overlap it.
                    let (c, sum) = unsafe {
                        let from = source.as_ptr();
                        match summed {
                            true => engine.copy_inserting::<true>(1, start, from, copy, inserts),
                            false => engine.copy_inserting::<false>(1, start, from, copy, inserts),
                        }
                    };
                    assert!(copy == expected, "{engine:?} {len} {first}");
                    assert_eq!(c, crc, "{engine:?} {len} {first}");
                    let all = if summed { start.add_bytes(&expected) } else { start };
                    assert_eq!(sum, all, "{engine:?} {len} {first}");
                    let (before, after) = (&room[..ALIGNMENTS], &room[ALIGNMENTS + len..]);
                    assert!(before.iter().chain(after).all(|byte| *byte == 0xee), "{engine:?}");
                }
            }
        }
    }
}

/// Returns the CRC by [`crc_by_table`], or for at least 700 bytes by the CRC instruction, which another test checks.
fn reference_crc(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < 700 { crc_by_table(crc, bytes) } else { crc32c_hw::update(crc, bytes) }
}

/// A target has the same bytes and digest whether it is filled at once or piece by piece, and reports the length of its
/// source.
#[test]
fn target_filled_at_once_or_in_pieces_is_equal() {
    let source = noise(2000, 19);
    for len in [0, 3, 4, 300, 1440] {
        for (first, number) in [(usize::MAX, 0), (0, 9), (211, 0xfff0), (212, 0xfff0)] {
            for summed in [false, true] {
                let (expected, taken) = copy_with_words(&source, len, first, number);
                let mut before = Digest::new(summed);
                before.add(b"odd");
                let mut digest = before;
                digest.add(&expected);
                for whole in [true, false] {
                    let mut to = vec![0xee; len];
                    let mut target = match u32::try_from(first) {
                        Ok(first) => {
                            Target::with_inserts(&mut to, Inserts::new(first, number), before)
                        }
                        Err(_) => Target::new(&mut to, before),
                    };
                    assert_eq!(target.source_len(), taken);
                    if whole {
                        target.copy(&source[..taken]);
                    } else {
                        target.fill(|at, out| out.copy_from_slice(&source[at..at + out.len()]));
                    }
                    assert_eq!(target.into_digest(), digest, "{len} {first} {whole}");
                    assert!(to == expected, "{len} {first} {whole}");
                }
            }
        }
    }
}

/// Bytes split at any position, or into pieces of any equal length, have the CRC and the sum of the whole.
#[test]
fn crc_of_split_bytes_matches_whole_on_every_path() {
    let bytes = noise(1500, 11);
    let (crc, sum) = (crc_by_table(0, &bytes), sum_by_words(&bytes));
    let mut to = vec![0; bytes.len()];
    for engine in engines() {
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(engine.update(engine.update(0, a), b), crc, "{engine:?} {cut}");
            let (c, s) = engine.crc_sum(0, Sum::default(), a);
            let (c, s) = engine.crc_sum(c, s, b);
            assert_eq!((c, s.value()), (crc, sum), "{engine:?} {cut}");
            let (c, s) = engine.copy_crc_sum(0, Sum::default(), a, &mut to[..cut]);
            let (c, s) = engine.copy_crc_sum(c, s, b, &mut to[cut..]);
            assert_eq!((c, s.value()), (crc, sum), "{engine:?} {cut}");
            assert!(to == bytes);
        }
        for len in 1..300 {
            let mut state = (0, Sum::default());
            for piece in bytes.chunks(len) {
                state = engine.crc_sum(state.0, state.1, piece);
            }
            assert_eq!((state.0, state.1.value()), (crc, sum), "{engine:?} {len}");
        }
    }
}

/// Tries lengths around the limit of one pass with a sum. Bytes of all ones give the largest sums.
#[test]
fn crc_and_sum_match_beyond_one_pass() {
    for fill in [None, Some(0xff), Some(0)] {
        let mut bytes = noise((2 << 16) + 9, 5);
        if let Some(fill) = fill {
            bytes.fill(fill);
        }
        let mut to = vec![1; bytes.len()];
        for len in [65_535, 65_536, 65_537, 65_539, 65_540, 131_071, 131_073, bytes.len()] {
            let (bytes, to) = (&bytes[..len], &mut to[..len]);
            let expected = (crc_by_table(0, bytes), sum_by_words(bytes));
            for engine in engines() {
                let (crc, sum) = engine.crc_sum(0, Sum::default(), bytes);
                assert_eq!((crc, sum.value()), expected, "{engine:?} {len}");
                let (crc, sum) = engine.copy_crc_sum(0, Sum::default(), bytes, to);
                assert_eq!((crc, sum.value()), expected, "{engine:?} {len}");
                assert_eq!(engine.copy_crc(0, bytes, to), expected.0);
                assert!(to == bytes);
            }
        }
    }
}

/// Checks the free functions on both sides of the lengths at which they change the path.
#[test]
fn dispatched_functions_match_around_thresholds() {
    let bytes = noise(1000, 3);
    let mut to = vec![0; bytes.len()];
    for len in 0..=bytes.len() {
        let (bytes, to) = (&bytes[..len], &mut to[..len]);
        let expected = (crc_by_table(9, bytes), sum_by_words(bytes));
        assert_eq!(update(9, bytes), expected.0);
        let (crc, sum) = crc_sum(9, Sum::default(), bytes);
        assert_eq!((crc, sum.value()), expected);
        let expected = (crc_by_table(0, bytes), sum_by_words(bytes));
        for (summed, cut) in [(false, 0), (true, 0), (true, len / 3), (false, len - len / 3)] {
            to.fill(0xee);
            let mut digest = Digest::new(summed);
            digest.add(&bytes[..cut]);
            to[..cut].copy_from_slice(&bytes[..cut]);
            digest.copy(&bytes[cut..], &mut to[cut..]);
            assert_eq!(digest.crc(), expected.0, "{len} {summed} {cut}");
            assert_eq!(digest.sum().map(Sum::value), summed.then_some(expected.1), "{len} {cut}");
            assert!(to == bytes);
            digest.add_to_sum(&[1]);
            assert_eq!(digest.crc(), expected.0);
            let more = [bytes, &[1]].concat();
            assert_eq!(digest.sum().map(Sum::value), summed.then(|| sum_by_words(&more)));
        }
    }
}

/// The digest of numbers equals the digest of their bytes, at any position in the message.
#[test]
fn numbers_digest_like_their_bytes() {
    let words = [0x0102_0304_f5f6_f7f8, 0, u64::MAX, 0x8000_0000_0000_0001_u64];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    for summed in [false, true] {
        for before in [&b""[..], b"odd", b"even"] {
            let (mut digest, mut expected) = (Digest::new(summed), Digest::new(summed));
            digest.add(before);
            digest.add_numbers(words);
            expected.add(before);
            expected.add(&bytes);
            assert_eq!(digest, expected);
        }
    }
}

/// Sums of parts, and of a header's fields, are combined correctly for any lengths.
#[test]
fn concatenated_sums_match_sum_of_whole() {
    let bytes = noise(64, 17);
    for cut in 0..=bytes.len() {
        let (a, b) = bytes.split_at(cut);
        let sum = Sum::default().add_bytes(a).concat(Sum::default().add_bytes(b));
        assert_eq!(sum, Sum::default().add_bytes(&bytes), "{cut}");
    }
    let fields = [u64::from(u32::MAX), 0x0102_0304, 0xffff];
    let bytes: Vec<u8> =
        [&[0xff; 4][..], &[1, 2, 3, 4], &[0xff; 2]].into_iter().flatten().copied().collect();
    assert_eq!(Sum::from_fields(fields.iter().sum()).value(), sum_by_words(&bytes));
}

#[test]
fn copy_with_length_mismatch_panics() {
    for engine in engines() {
        let copy = || engine.copy_crc(0, &[0; 100], &mut [0; 99]);
        assert!(std::panic::catch_unwind(copy).is_err());
        let copy = || engine.copy_crc_sum(0, Sum::default(), &[0; 100], &mut [0; 101]);
        assert!(std::panic::catch_unwind(copy).is_err());
    }
}

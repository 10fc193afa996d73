//! Tests of span lists: bounds, copies across span borders, digests.

use core::iter::once;

use proptest::prelude::*;
use wire::crc32c::Digest;

use super::*;
use crate::VecMemory;

fn span(memory: &VecMemory, offset: u64, len: u32) -> Span<VecMemory> {
    Span { memory: memory.clone(), offset, len }
}

#[test]
fn list_is_bounded_in_spans_and_bytes() {
    let memory = VecMemory::new(8);
    let list = |n, len| SpanList::new((0..n).map(|_| span(&memory, 0, len)));
    assert_eq!(list(0, 5).unwrap().len(), 0);
    assert!(list(MAX_SPANS, 0).unwrap().is_empty());
    assert_eq!(list(MAX_SPANS, 5).unwrap().as_slice().len(), MAX_SPANS);
    assert_eq!(list(MAX_SPANS + 1, 0).unwrap_err(), PostError::TooManySpans);
    assert_eq!(list(1, u32::MAX).unwrap().len(), u32::MAX);
    assert_eq!(list(2, 1 << 31).unwrap_err(), PostError::TooLong(1 << 32));
    let sum = u64::from(u32::MAX) * MAX_SPANS as u64;
    assert_eq!(list(MAX_SPANS, u32::MAX).unwrap_err(), PostError::TooLong(sum));
    assert!(PostError::TooManySpans.to_string().contains(&MAX_SPANS.to_string()));
}

#[test]
fn each_span_is_checked_against_its_region() {
    let (short, long) = (VecMemory::new(8), VecMemory::new(100));
    let list =
        |offset, len| SpanList::new([span(&long, 50, 50), span(&short, offset, len)]).unwrap();
    assert_eq!(list(4, 4).check_bounds(), Ok(()));
    assert_eq!(list(8, 0).check_bounds(), Ok(()));
    for (offset, len, end) in [(5, 4, 9), (9, 0, 9), (u64::MAX, 2, u64::MAX)] {
        let error = PostError::OutOfBounds { offset, end, len: 8 };
        assert_eq!(list(offset, len).check_bounds(), Err(error));
    }
}

#[test]
fn bytes_beyond_the_list_are_zero_and_dropped() {
    let memory = VecMemory::from_vec(vec![7; 8]);
    let list = SpanList::new([span(&memory, 0, 2), span(&memory, 4, 1)]).unwrap();
    let mut out = [1; 4];
    list.read(1, &mut out);
    assert_eq!(out, [7, 7, 0, 0]);
    list.write(2, &[9, 9, 9]);
    assert_eq!(memory.to_vec(), [7, 7, 7, 7, 9, 7, 7, 7]);
}

proptest! {
    // Compares reads, digests and writes across span borders with a model that lists the position of each byte.
    #[test]
    fn spans_are_read_and_written_like_one_piece(
        lens in proptest::collection::vec(0u32..50, 0..=MAX_SPANS),
        from in 0usize..300, len in 0usize..300, cuts in proptest::collection::vec(0usize..300, 0..4),
    ) {
        let memory = VecMemory::from_vec((0..512).map(|i| (i * 7 + i / 256) as u8).collect());
        let (mut spans, mut places, mut at) = (Vec::new(), Vec::new(), 3);
        for len in lens {
            spans.push(span(&memory, at, len));
            places.extend(at as usize..at as usize + len as usize);
            at += u64::from(len) + 5;
        }
        let list = SpanList::new(spans).unwrap();
        prop_assert_eq!(list.len() as usize, places.len());
        let from = from.min(places.len());
        let end = (from + len).min(places.len());
        let bytes = memory.to_vec();
        let expected: Vec<u8> = places[from..end].iter().map(|at| bytes[*at]).collect();
        let mut out = vec![0xee; end - from];
        list.read(from as u64, &mut out);
        prop_assert_eq!(&out, &expected);
        let mut copied = vec![0xee; end - from];
        let mut target = Target::new(&mut copied, Digest::new(true));
        list.read_digested(from as u64, &mut target);
        let digest = target.into_digest();
        let mut reference = vec![0; end - from];
        let mut target = Target::new(&mut reference, Digest::new(true));
        target.copy(&expected);
        prop_assert_eq!(digest.crc(), target.into_digest().crc());
        prop_assert_eq!(&copied, &expected);
        // The same range is written in pieces.
        let written: Vec<u8> = (from..end).map(|i| !(i as u8)).collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(end - from)).collect();
        cuts.sort_unstable();
        let bounds = once(0).chain(cuts.iter().copied()).zip(cuts.iter().copied().chain(once(end - from)));
        let pieces: Vec<&[u8]> = bounds.map(|(start, end)| &written[start..end]).collect();
        let mut model = bytes;
        places[from..end].iter().zip(&written).for_each(|(at, byte)| model[*at] = *byte);
        list.write_pieces(from as u64, end - from, pieces.into_iter());
        prop_assert_eq!(memory.to_vec(), model);
    }
}

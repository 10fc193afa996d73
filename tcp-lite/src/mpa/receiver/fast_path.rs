//! Fast path: whole, consecutive FPDUs in order, with no held bytes. Most spans of a busy stream qualify. The first
//! FPDU that does not qualify takes the slow path ([`take_slow_path`](Receiver::take_slow_path)), as does the rest of
//! the span.

use super::{Pass, Receiver, Span};
use crate::mpa::framing::Framing;
use crate::seam::SpanOutcome;
use core::ops::Range;
use ddp::llp::{Disposition, OrderKey, Ulpdu, UlpduSink};
use smallvec::SmallVec;
use wire::crc32c;
use wire::mpa::{CRC_LEN, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, Marker};

use ddp::HoldBudget;

/// Result of the fast path for a span.
struct FastPathEnd {
    /// All FPDUs before this stream offset were passed to DDP.
    offset: u64,
    /// End of the FPDU at `offset`, if the sink has refused it for lack of room.
    refused: Option<u64>,
}

impl Receiver {
    /// Processes bytes before the first error. `crc` as in [`take_span`](Self::take_span).
    pub(super) fn take_bytes(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crc: Option<u32>,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> SpanOutcome {
        let plain = offset == self.next
            && !bytes.is_empty()
            && self.pieces.is_empty()
            && !self.blocked
            && self.first_error.is_none();
        if !plain {
            return self.take_slow_path(offset, bytes, sink, budget);
        }
        let end = offset + bytes.len() as u64;
        let FastPathEnd { offset: at, refused } = self.hand_up_all(bytes, crc, sink);
        if at == end {
            return SpanOutcome::All;
        }
        let bytes = &bytes[(at - offset) as usize..];
        let taken = match refused {
            Some(end) => self.keep_refused(at, bytes, (end - at) as usize, budget),
            None => self.take_slow_path(at, bytes, sink, budget),
        };
        match taken {
            SpanOutcome::Part(rest) => SpanOutcome::Part(offset..rest.end.max(at)),
            SpanOutcome::All => SpanOutcome::All,
        }
    }

    /// Processes a span that is exactly the next FPDU in order, if nothing is held and no error was found. This is the
    /// most frequent case on a receiver of bulk data. Returns `None`, without effect, for any other span.
    #[inline]
    pub(super) fn take_single_fpdu(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crc: Option<u32>,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> Option<SpanOutcome> {
        // `has_handed_up_in_order`: the sink has then been notified that everything before `next` is complete, and need
        // not be notified again.
        let plain = offset == self.next
            && self.has_handed_up_in_order()
            && self.pieces.is_blank()
            && self.first_error.is_none()
            && !(self.failed || self.blocked);
        if !plain {
            return None;
        }
        let place = self.locate_next_fpdu(offset, bytes)?;
        if place.end != offset + bytes.len() as u64 {
            return None;
        }
        let fpdu = self.verify_fpdu(place, offset, bytes, crc)?;
        if self.hand_up_whole(&fpdu, offset, bytes, sink) {
            return Some(SpanOutcome::All);
        }
        Some(self.keep_refused(offset, bytes, bytes.len(), budget))
    }

    /// Hands up the next FPDU in order, which ends at `end`. Returns false if the sink has no room.
    #[inline(always)]
    fn hand_up_next(&mut self, end: u64, ulpdu: Ulpdu<'_>, sink: &mut impl UlpduSink) -> bool {
        match sink.ulpdu(OrderKey(self.next), ulpdu) {
            Disposition::Placed(n) => self.placed_in_order += n as u64,
            Disposition::Ignored => {}
            Disposition::Refused => return false,
        }
        self.fpdus += 1;
        self.next = end;
        sink.order_complete(OrderKey(end));
        true
    }

    /// Keeps the next FPDU in order, the first `len` bytes of `bytes`, for which the sink has no room.
    pub(super) fn keep_refused(
        &mut self,
        offset: u64,
        bytes: &[u8],
        len: usize,
        budget: &mut HoldBudget,
    ) -> SpanOutcome {
        let refused = Some(offset + len as u64);
        let pass = Pass {
            located: true,
            refused_end: refused,
            begins_aligned: true,
            ..Pass::empty_at(offset)
        };
        let extent_end = offset + bytes.len() as u64;
        self.keep_rest(Span { offset, bytes, extent_end, in_order: true }, &pass, budget)
    }

    /// Hands up `fpdu`, the next FPDU in order. `bytes` begin at stream offset `start`. Returns false if the sink has
    /// no room.
    #[inline(always)]
    fn hand_up_whole(
        &mut self,
        fpdu: &VerifiedFpdu,
        start: u64,
        bytes: &[u8],
        sink: &mut impl UlpduSink,
    ) -> bool {
        let ulpdu = &bytes[fpdu.ulpdu.clone()];
        if !self.checks.framing.has_markers() {
            return self.hand_up_next(fpdu.end, Ulpdu::new(&[ulpdu]), sink);
        }
        let at = start + fpdu.ulpdu.start as u64;
        let pieces = split_at_markers(self.checks.framing, at, ulpdu);
        self.hand_up_next(fpdu.end, Ulpdu::new(&pieces), sink)
    }

    /// Hands up the consecutive FPDUs at the start of `bytes`, which begin with the next FPDU in order.
    fn hand_up_all(
        &mut self,
        bytes: &[u8],
        crc: Option<u32>,
        sink: &mut impl UlpduSink,
    ) -> FastPathEnd {
        let start = self.next;
        sink.order_complete(OrderKey(start));
        let (mut refused, end) = (None, start + bytes.len() as u64);
        while self.next < end
            && let Some(fpdu) = self.next_whole_fpdu(start, bytes, crc)
        {
            if !self.hand_up_whole(&fpdu, start, bytes, sink) {
                refused = Some(fpdu.end);
                break;
            }
        }
        if self.next > start
            && let Some(pieces) = self.pieces.get_mut()
        {
            pieces.bad_crc_tries = 0;
        }
        FastPathEnd { offset: self.next, refused }
    }

    /// Returns the next FPDU in order if `bytes`, at stream offset `start`, contain the whole FPDU and the FPDU is
    /// valid.
    #[inline]
    fn next_whole_fpdu(&self, start: u64, bytes: &[u8], crc: Option<u32>) -> Option<VerifiedFpdu> {
        self.verify_fpdu(self.locate_next_fpdu(start, bytes)?, start, bytes, crc)
    }

    /// Returns the position of the next FPDU in order, if `bytes` contain its length field.
    #[inline]
    fn locate_next_fpdu(&self, start: u64, bytes: &[u8]) -> Option<FpduLayout> {
        let framing = self.checks.framing;
        let header = framing.header_offset(self.next);
        let length = bytes.get(header.checked_sub(start)? as usize..)?.first_chunk()?;
        let ulpdu_len = u16::from_be_bytes(*length).into();
        Some(FpduLayout { header, ulpdu_len, end: framing.fpdu_end(self.next, ulpdu_len) })
    }

    /// Returns the next FPDU in order, at the given position, if `bytes` contain the whole FPDU and the FPDU is valid.
    #[inline(always)]
    fn verify_fpdu(
        &self,
        FpduLayout { header, ulpdu_len, end }: FpduLayout,
        start: u64,
        bytes: &[u8],
        crc: Option<u32>,
    ) -> Option<VerifiedFpdu> {
        let framing = self.checks.framing;
        let fpdu = self.next;
        let at = (header - start) as usize;
        let whole = bytes.get((fpdu - start) as usize..(end - start) as usize)?;
        if whole.len() as u64 > u64::from(self.checks.max_fpdu) {
            return None;
        }
        if self.checks.crc {
            // RFC 5044 §4.4, §8: the CRC, which also covers the markers, is checked before the
            // markers.
            let (covered, field) = whole.split_at(whole.len() - CRC_LEN);
            let crc = crc.filter(|_| whole.len() == bytes.len());
            if field != crc.map_or_else(|| crc32c::field(covered), crc32c::to_field) {
                return None;
            }
        }
        let mut ulpdu_end = at + LENGTH_LEN + ulpdu_len;
        if framing.has_markers() {
            if !markers_match(framing, fpdu, header, whole) {
                return None;
            }
            ulpdu_end = (framing.ulpdu_end(end, ulpdu_len) - start) as usize;
        }
        Some(VerifiedFpdu { ulpdu: at + LENGTH_LEN..ulpdu_end, end })
    }
}

/// Position of an FPDU in the stream according to its length field.
struct FpduLayout {
    /// Stream offset of the length field.
    header: u64,
    ulpdu_len: usize,
    /// Stream offset of the FPDU's end.
    end: u64,
}

/// A whole, verified FPDU in a span.
struct VerifiedFpdu {
    /// Range of the ULPDU, markers included, in the span's bytes.
    ulpdu: Range<usize>,
    /// Stream offset of the FPDU's end.
    end: u64,
}

/// Returns true if every marker of the FPDU points to its ULPDU_Length field (RFC 5044 §4.2, §8 code 3).
fn markers_match(framing: Framing, fpdu: u64, header: u64, whole: &[u8]) -> bool {
    let first = framing.next_marker(fpdu);
    let mut rest = whole.get((first - fpdu) as usize..).unwrap_or_default();
    // A marker in front of the length field has a negative distance, and its FPDUPTR is 0.
    let mut distance = first as i64 - header as i64;
    while let Some((marker, _)) = rest.split_first_chunk() {
        if Marker::parse(marker).fpduptr() != distance.max(0) as u16 {
            return false;
        }
        distance += MARKER_INTERVAL as i64;
        rest = rest.get(MARKER_INTERVAL as usize..).unwrap_or_default();
    }
    rest.is_empty()
}

/// Returns the pieces of `bytes`, at stream offset `at`, between markers.
fn split_at_markers(framing: Framing, at: u64, bytes: &[u8]) -> SmallVec<[&[u8]; 24]> {
    let mut pieces = SmallVec::new();
    let first = if framing.is_marker(at) { 0 } else { framing.bytes_to_marker(at) };
    let (front, rest) = bytes.split_at(first.min(bytes.len()));
    if !front.is_empty() {
        pieces.push(front);
    }
    for interval in rest.chunks(MARKER_INTERVAL as usize) {
        let piece = &interval[interval.len().min(MARKER_LEN)..];
        if !piece.is_empty() {
            pieces.push(piece);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::mpa::testing::{Stream, ulpdu};

    const START: u64 = 36;

    /// Each whole FPDU of a span is found in order. An FPDU without its last byte is not found.
    #[test]
    fn fast_path_finds_consecutive_whole_fpdus() {
        for (markers, crc) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut stream = Stream::new(markers, crc);
            for len in [0, 1, 100, 502, 900, 1400] {
                stream.fpdu(&ulpdu(len, len));
            }
            let mut receiver = Receiver::new(&Config::default(), &stream.params(), START);
            for (i, end) in stream.boundaries()[1..].iter().enumerate() {
                assert!(receiver.next_whole_fpdu(START, &stream.bytes[..end - 1], None).is_none());
                let fpdu =
                    receiver.next_whole_fpdu(START, &stream.bytes, None).expect("it is whole");
                assert_eq!(fpdu.end, START + *end as u64);
                let at = START + fpdu.ulpdu.start as u64;
                let bytes = &stream.bytes[fpdu.ulpdu];
                let pieces = split_at_markers(receiver.checks.framing, at, bytes);
                assert_eq!(pieces.concat(), stream.fpdus[i].1, "{markers} {crc}");
                receiver.next = fpdu.end;
            }
        }
    }

    #[test]
    fn known_crc_is_used_only_for_fpdu_filling_span() {
        for markers in [false, true] {
            let mut stream = Stream::new(markers, true);
            stream.fpdu(&ulpdu(1, 900));
            let one = stream.bytes.clone();
            stream.fpdu(&ulpdu(2, 900));
            let receiver = Receiver::new(&Config::default(), &stream.params(), START);
            let of = |bytes: &[u8]| Some(crc32c::update(0, &bytes[..bytes.len() - CRC_LEN]));
            assert!(receiver.next_whole_fpdu(START, &one, of(&one)).is_some());
            let mut wrong = one.clone();
            wrong[600] ^= 1;
            assert!(receiver.next_whole_fpdu(START, &wrong, of(&wrong)).is_none());
            wrong = stream.bytes.clone();
            assert!(receiver.next_whole_fpdu(START, &wrong, of(&wrong)).is_some());
            wrong[600] ^= 1;
            assert!(receiver.next_whole_fpdu(START, &wrong, of(&one)).is_none());
        }
    }

    /// RFC 5044 §8 code 3: any marker of the FPDU may be wrong.
    #[test]
    fn single_wrong_marker_fails_verification() {
        for len in [300, 1400] {
            let mut stream = Stream::new(true, false);
            stream.fpdu(&ulpdu(1, len));
            let receiver = Receiver::new(&Config::default(), &stream.params(), START);
            assert!(receiver.next_whole_fpdu(START, &stream.bytes, None).is_some());
            for marker in (0..stream.bytes.len()).step_by(512) {
                let mut bytes = stream.bytes.clone();
                bytes[marker + 3] ^= 4;
                assert!(receiver.next_whole_fpdu(START, &bytes, None).is_none(), "{marker}");
            }
        }
    }
}

//! Layout of FPDUs in the stream: markers, pads, lengths.
//!
//! ```text
//!  Framing::start
//!  v
//!  |M| 508 bytes of FPDUs        |M| 508 bytes of FPDUs        |M| ...
//!  0  4                          512                           1024
//!
//! an FPDU that begins where a marker is due:
//!  |M|len|ULPDU ...|M|... ULPDU|pad|CRC|
//!  ^ ^                                 ^
//!  | header                            end; a marker due here belongs to the next FPDU
//!  fpdu
//! ```
//!
//! Positions are stream offsets. Length field, ULPDU and pad together are a multiple of four bytes, as is the CRC. A
//! marker therefore never splits the length field or the CRC.

use super::MAX_MULPDU;
use wire::mpa::{
    CRC_LEN, FPDU_OVERHEAD, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, MIN_MULPDU, fpdu_len, pad_len,
};

const MARKER: u64 = MARKER_LEN as u64;
const INTERVAL_PAYLOAD: u64 = MARKER_INTERVAL - MARKER;

/// Start of Full Operation and marker positions, for one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing(u32);

/// Highest bit of [`Framing`]: the direction has markers.
const MARKERS_BIT: u32 = 1 << 31;
/// Second highest bit of [`Framing`]: FPDUPTR counts from the first byte of the FPDU. The bits below it are the start
/// of Full Operation.
const DRAFT_POINTERS_BIT: u32 = 1 << 30;
const START_BITS: u32 = DRAFT_POINTERS_BIT - 1;

impl Framing {
    /// Creates the framing of a direction whose Full Operation begins at stream offset `start`, which is below 2^30.
    pub fn new(start: u64, markers: bool) -> Self {
        debug_assert!(start < DRAFT_POINTERS_BIT.into());
        Framing(start as u32 & START_BITS | if markers { MARKERS_BIT } else { 0 })
    }

    /// Returns this framing with FPDUPTR as in the first draft (draft-culley-iwarp-mpa-03 §7.1).
    pub fn with_draft_pointers(self) -> Self {
        Framing(self.0 | DRAFT_POINTERS_BIT)
    }

    /// Returns the stream offset of the first byte of Full Operation.
    pub fn start(&self) -> u64 {
        u64::from(self.0 & START_BITS)
    }

    /// Returns true if this direction carries markers.
    pub fn has_markers(&self) -> bool {
        self.0 & MARKERS_BIT != 0
    }

    /// Returns true if a marker is located at `at` (RFC 5044 §4.3).
    #[inline]
    pub fn is_marker(&self, at: u64) -> bool {
        self.has_markers() && (at - self.start()).is_multiple_of(MARKER_INTERVAL)
    }

    /// Returns the position of the first marker at or after `at`. Requires markers.
    #[inline]
    pub fn next_marker(&self, at: u64) -> u64 {
        debug_assert!(self.has_markers());
        self.start() + (at - self.start()).next_multiple_of(MARKER_INTERVAL)
    }

    /// Returns the position of the ULPDU_Length field of the FPDU that begins at `fpdu`.
    #[inline]
    pub fn header_offset(&self, fpdu: u64) -> u64 {
        // RFC 5044 §4.3: a marker between FPDUs belongs to the following FPDU.
        if self.is_marker(fpdu) { fpdu + MARKER } else { fpdu }
    }

    /// Returns the position from which FPDUPTR counts in the markers of the FPDU that begins at `fpdu`: the
    /// ULPDU_Length field (RFC 5044 §4.3). In the first draft it is the first byte of the FPDU, even if that byte
    /// belongs to a marker (draft-culley-iwarp-mpa-03 §7.1).
    #[inline]
    pub fn pointer_origin(&self, fpdu: u64) -> u64 {
        if self.0 & DRAFT_POINTERS_BIT != 0 { fpdu } else { self.header_offset(fpdu) }
    }

    /// Returns the first byte of the FPDU whose ULPDU_Length field is at `header`.
    #[inline]
    pub fn fpdu_start(&self, header: u64) -> u64 {
        if self.has_markers() && (header - self.start()) % MARKER_INTERVAL == MARKER {
            header - MARKER
        } else {
            header
        }
    }

    /// Returns the end of the FPDU that begins at `fpdu` with `ulpdu_len` bytes of ULPDU.
    #[inline]
    pub fn fpdu_end(&self, fpdu: u64, ulpdu_len: usize) -> u64 {
        self.skip(self.header_offset(fpdu), fpdu_len(ulpdu_len) as u64)
    }

    /// Returns the end of the ULPDU, of `ulpdu_len` bytes, in the FPDU that ends at `end`.
    #[inline]
    pub fn ulpdu_end(&self, end: u64, ulpdu_len: usize) -> u64 {
        let crc = end - CRC_LEN as u64;
        let before = crc - MARKER;
        // The four bytes before the CRC are either a marker, or pad, ULPDU or length field.
        let padded = if self.is_marker(before) { before } else { crc };
        padded - pad_len(ulpdu_len) as u64
    }

    /// Returns the position after `n` > 0 bytes, counted from `at` on without markers. A marker at the returned
    /// position is not skipped.
    #[inline]
    pub fn skip(&self, at: u64, n: u64) -> u64 {
        if !self.has_markers() {
            return at + n;
        }
        let within = (at - self.start()) % MARKER_INTERVAL;
        let at = if within == 0 { at + MARKER } else { at };
        let left = MARKER_INTERVAL - within.max(MARKER);
        if n <= left {
            return at + n;
        }
        at + n + MARKER * (1 + (n - left - 1) / INTERVAL_PAYLOAD)
    }

    /// Returns the number of bytes from `at` to the next marker; `usize::MAX` without markers. `at` must not be inside
    /// a marker.
    #[inline]
    pub fn bytes_to_marker(&self, at: u64) -> usize {
        if !self.has_markers() {
            return usize::MAX;
        }
        (MARKER_INTERVAL - (at - self.start()) % MARKER_INTERVAL) as usize
    }

    /// Returns the length of an FPDU at `fpdu` with `ulpdu_len` bytes of ULPDU, markers included.
    #[inline]
    pub fn fpdu_total_len(&self, fpdu: u64, ulpdu_len: usize) -> usize {
        (self.fpdu_end(fpdu, ulpdu_len) - fpdu) as usize
    }
}

/// Returns MULPDU, bytes: the largest ULPDU whose FPDU fits a segment of `emss` bytes at any position relative to the
/// markers (RFC 5044 §4.5). The result is clamped to the range from 128 to 64,768 (§3).
pub fn mulpdu(emss: usize, markers: bool) -> usize {
    let interval = MARKER_INTERVAL as usize;
    let markers = if markers { MARKER_LEN * emss.div_ceil(interval) } else { 0 };
    let overhead = FPDU_OVERHEAD + markers + emss % 4;
    emss.saturating_sub(overhead).clamp(MIN_MULPDU, MAX_MULPDU)
}

/// Returns true if the first length field in a segment's payload matches a payload of exactly one FPDU, with or
/// without markers. A hint only: other bytes, or several FPDUs, may match by chance.
#[inline]
pub fn looks_like_one_fpdu(text: &[u8]) -> bool {
    // RFC 5044 §4.3: FPDUPTR is 0 in a marker in front of the length field.
    let at = if text.starts_with(&[0; MARKER_LEN]) { MARKER_LEN } else { 0 };
    let Some(&[high, low]) = text.get(at..at + LENGTH_LEN) else { return false };
    let fpdu = fpdu_len(u16::from_be_bytes([high, low]).into());
    let least = text.len() / MARKER_INTERVAL as usize;
    text.len().checked_sub(fpdu).is_some_and(|markers| {
        markers == 0
            || markers % MARKER_LEN == 0 && (least..least + 2).contains(&(markers / MARKER_LEN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpa::testing::{Stream, ulpdu};
    use proptest::prelude::*;

    /// Checks the formulas of RFC 5044 §4.5 at EMSS values of Ethernet and at the edges of marker intervals.
    #[test]
    fn mulpdu_follows_rfc_5044_formulas() {
        assert_eq!(mulpdu(1460, false), 1454);
        assert_eq!(mulpdu(1460, true), 1460 - (6 + 12));
        assert_eq!(mulpdu(1448, true), 1448 - (6 + 12));
        assert_eq!(mulpdu(1447, true), 1447 - (6 + 12 + 3));
        assert_eq!(mulpdu(8948, true), 8948 - (6 + 72));
        assert_eq!(mulpdu(512, true), 512 - 10);
        assert_eq!(mulpdu(513, true), 513 - (6 + 8 + 1));
    }

    /// RFC 5044 §3, §4.5: MULPDU is 128 to 64,768 bytes.
    #[test]
    fn mulpdu_stays_in_its_range() {
        assert_eq!(mulpdu(1, true), 128);
        assert_eq!(mulpdu(135, false), 128);
        assert_eq!(mulpdu(140, false), 134);
        assert_eq!(mulpdu(65_495, false), 64_768);
        assert_eq!(mulpdu(1 << 20, true), 64_768);
    }

    /// RFC 5044 §4.3: if Full Operation begins at offset 11, markers are at 11, 523 and 1035.
    #[test]
    fn markers_match_rfc_5044_example() {
        let framing = Framing::new(11, true);
        let found: Vec<u64> = (11..1100).filter(|at| framing.is_marker(*at)).collect();
        assert_eq!(found, [11, 523, 1035]);
        assert_eq!(framing.next_marker(12), 523);
        assert_eq!(framing.next_marker(523), 523);
    }

    /// RFC 5044 figure 4: an FPDU with 16 bytes of ULPDU, and a pad of two.
    #[test]
    fn marker_inside_an_fpdu_extends_it() {
        let framing = Framing::new(0, true);
        let fpdu = 512 - 12;
        assert_eq!(framing.header_offset(fpdu), fpdu);
        assert_eq!(framing.fpdu_end(fpdu, 16), fpdu + 2 + 16 + 2 + 4 + 4);
    }

    #[test]
    fn marker_after_the_crc_belongs_to_next_fpdu() {
        let framing = Framing::new(0, true);
        // 2 + 502 + 4 of CRC is 508, a multiple of four: with the marker in front the FPDU ends exactly at 512.
        assert_eq!(framing.fpdu_end(0, 502), 512);
        assert_eq!(framing.header_offset(512), 516);
        assert_eq!(framing.fpdu_start(516), 512);
        assert_eq!(framing.fpdu_start(520), 520);
    }

    #[test]
    fn single_fpdu_is_recognized_at_any_marker_phase() {
        for (markers, phase) in [(false, 0)].into_iter().chain((0..128).map(|phase| (true, phase)))
        {
            for len in [1, 18, 128, 490, 1000, 1428, 1434, 8900] {
                let mut stream = Stream::new(markers, true);
                stream.fpdu(&ulpdu(7, 4 * phase + 14));
                let first = stream.bytes.len();
                stream.fpdu(&ulpdu(3, len));
                let text = &stream.bytes[first..];
                assert!(looks_like_one_fpdu(text), "{markers} {phase} {len}");
                let two = [text, text].concat();
                assert!(len < 18 || !looks_like_one_fpdu(&two), "{markers} {phase} {len}");
                assert!(len < 18 || !looks_like_one_fpdu(&text[..text.len() / 2]));
            }
        }
        assert!(!looks_like_one_fpdu(&[]) && !looks_like_one_fpdu(&[0; 5]));
    }

    proptest! {
        /// `skip` is correct for any start of Full Operation, position and number of bytes.
        #[test]
        fn skip_agrees_with_a_byte_by_byte_walk(start in 0u64..5000, words in 0u64..600, n in 1u64..3000, markers: bool) {
            let framing = Framing::new(start, markers);
            let at = start + words * 4;
            let mut walk = at;
            let mut left = n;
            while left > 0 {
                if framing.is_marker(walk) {
                    walk += 4;
                } else {
                    walk += 1;
                    left -= 1;
                }
            }
            prop_assert_eq!(framing.skip(at, n), walk);
        }

        #[test]
        fn ulpdu_end_agrees_with_skip(phase in 0u64..256, len in 1usize..3000, markers: bool) {
            let framing = Framing::new(36, markers);
            let fpdu = 36 + 4 * phase;
            let begin = framing.header_offset(fpdu) + LENGTH_LEN as u64;
            let end = framing.fpdu_end(fpdu, len);
            prop_assert_eq!(framing.ulpdu_end(end, len), framing.skip(begin, len as u64));
            prop_assert_eq!(framing.ulpdu_end(framing.fpdu_end(fpdu, 0), 0), begin);
        }

        /// RFC 5044 §4.5: an FPDU with a ULPDU of MULPDU bytes fits EMSS, wherever it begins between two markers.
        #[test]
        fn mulpdu_fits_emss(emss in 160usize..65_000, phase in 0u64..128, markers: bool) {
            let framing = Framing::new(0, markers);
            let n = mulpdu(emss, markers);
            prop_assert!(framing.fpdu_total_len(phase * 4, n) <= emss);
        }
    }
}

//! Locates and verifies FPDUs, without side effects, in contiguous bytes of the stream. The bytes are in several
//! slices: held bytes and newly received bytes.

use super::super::error::Fault;
use super::super::framing::Framing;
use core::ops::Range;
use smallvec::SmallVec;
use wire::crc32c;
use wire::mpa::{CRC_LEN, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, Marker};

/// Verification parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checks {
    pub(super) framing: Framing,
    /// True if CRCs are verified.
    pub(super) crc: bool,
    /// True with revision 0: FPDUPTR may count from a marker directly before the length field instead of from the
    /// field itself.
    pub(super) draft_pointers: bool,
    /// Largest FPDU, in bytes with markers.
    pub(super) max_fpdu: u32,
}

/// Bytes `start..end` of the stream, as consecutive slices.
#[derive(Debug)]
pub(super) struct Extent<'a> {
    start: u64,
    end: u64,
    /// The slices, each with the stream offset of its first byte.
    slices: SmallVec<[(u64, &'a [u8]); 4]>,
}

/// Result of [`Extent::inspect`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inspection {
    /// A whole, verified FPDU that ends at `end`.
    Fpdu { end: u64, ulpdu_len: usize },
    /// The extent ends inside the FPDU.
    Incomplete,
    /// A faulty FPDU that ends at `end` according to its length field.
    Bad { fault: Fault, end: u64 },
}

/// Result of [`Extent::locate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Location {
    /// Start of the first FPDU to which a marker points.
    pub(super) start: Option<u64>,
    /// True if a marker shows that the extent begins inside an FPDU.
    pub(super) begins_inside: bool,
}

impl<'a> Extent<'a> {
    /// Creates an empty extent at `start`.
    pub(super) fn new(start: u64) -> Self {
        Extent { start, end: start, slices: SmallVec::new() }
    }

    /// Appends the next bytes of the stream.
    pub(super) fn push(&mut self, bytes: &'a [u8]) {
        self.slices.push((self.end, bytes));
        self.end += bytes.len() as u64;
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Locates the first FPDU by the extent's markers (RFC 5044 §6 (2)). Only `new_bytes` is newly received; the older
    /// bytes alone located no FPDU. Markers that can neither be in `new_bytes` nor point into it are skipped.
    pub(super) fn locate(&self, checks: &Checks, new_bytes: &Range<u64>) -> Location {
        let framing = checks.framing;
        let mut located = Location::default();
        let first = new_bytes.start.saturating_sub(MARKER_LEN as u64 - 1).max(self.start);
        let last = self.end.min(new_bytes.end + u64::from(checks.max_fpdu) + MARKER_LEN as u64);
        let mut at = framing.next_marker(first);
        while at + MARKER_LEN as u64 <= last {
            let fpdu = self
                .marker_at(at)
                .header_offset(at, checks)
                .map(|header| framing.fpdu_start(header));
            match fpdu {
                Some(fpdu) if fpdu < self.start => located.begins_inside = true,
                Some(fpdu) if self.may_contain(checks, fpdu, at) => {
                    located.start = Some(fpdu);
                    return located;
                }
                _ => {}
            }
            // The marker is invalid, or points to before the extent. The next marker may point into the extent.
            at += MARKER_INTERVAL;
        }
        located
    }

    /// Returns false if `marker` points to an FPDU at `fpdu` that would end at or before the marker. The marker is then
    /// wrong.
    fn may_contain(&self, checks: &Checks, fpdu: u64, marker: u64) -> bool {
        let header = checks.framing.header_offset(fpdu);
        if header + LENGTH_LEN as u64 > self.end {
            return true;
        }
        checks.framing.fpdu_end(fpdu, self.length_at(header)) > marker
    }

    /// Returns the ULPDU_Length field at `header`.
    fn length_at(&self, header: u64) -> usize {
        let mut length = [0; LENGTH_LEN];
        self.copy(header, &mut length);
        usize::from(u16::from_be_bytes(length))
    }

    /// Verifies the FPDU that begins at `fpdu`, a position in the extent or its end.
    pub(super) fn inspect(&self, checks: &Checks, fpdu: u64) -> Inspection {
        let framing = checks.framing;
        let header = framing.header_offset(fpdu);
        if header + LENGTH_LEN as u64 > self.end {
            return Inspection::Incomplete;
        }
        // RFC 5044 §6: ULPDU_Length shows whether the FPDU is complete.
        let ulpdu_len = self.length_at(header);
        let end = framing.fpdu_end(fpdu, ulpdu_len);
        if end - fpdu > u64::from(checks.max_fpdu) {
            let seen = (end - fpdu) as u32;
            return Inspection::Bad { fault: Fault::TooLong { limit: checks.max_fpdu, seen }, end };
        }
        if end > self.end {
            return Inspection::Incomplete;
        }
        // RFC 5044 §4.4, §8: the CRC is checked before the markers. With CRCs off the field is not examined.
        let wrong = if checks.crc { self.check_crc(fpdu, end) } else { None };
        match wrong.or_else(|| self.check_markers(checks, fpdu, header, end)) {
            Some(fault) => Inspection::Bad { fault, end },
            None => Inspection::Fpdu { end, ulpdu_len },
        }
    }

    /// Returns the ULPDU of a verified FPDU, in pieces split at markers and slices.
    pub(super) fn ulpdu(
        &self,
        framing: Framing,
        fpdu: u64,
        ulpdu_len: usize,
    ) -> SmallVec<[&'a [u8]; 24]> {
        let mut pieces = SmallVec::new();
        let mut at = framing.header_offset(fpdu) + LENGTH_LEN as u64;
        let mut left = ulpdu_len;
        while left > 0 {
            if framing.is_marker(at) {
                at += MARKER_LEN as u64;
            }
            let n = framing.bytes_to_marker(at).min(left);
            self.for_each_slice(at, at + n as u64, |slice| pieces.push(slice));
            at += n as u64;
            left -= n;
        }
        pieces
    }

    fn check_crc(&self, fpdu: u64, end: u64) -> Option<Fault> {
        let field = end - CRC_LEN as u64;
        let mut crc = 0;
        // RFC 5044 §4.4: the CRC covers all bytes before the field, all markers included.
        self.for_each_slice(fpdu, field, |slice| crc = crc32c::update(crc, slice));
        let mut seen = [0; CRC_LEN];
        self.copy(field, &mut seen);
        (seen != crc32c::to_field(crc))
            .then(|| Fault::Crc { expected: crc, seen: u32::from_le_bytes(seen) })
    }

    /// Returns a fault if a marker of the FPDU does not point to its ULPDU_Length field (RFC 5044 §8 code 3).
    fn check_markers(&self, checks: &Checks, fpdu: u64, header: u64, end: u64) -> Option<Fault> {
        if !checks.framing.has_markers() {
            return None;
        }
        let mut at = checks.framing.next_marker(fpdu);
        while at < end {
            let seen = self.marker_at(at);
            if seen.header_offset(at, checks) != Some(header) {
                let expected = at.saturating_sub(header) as u16;
                return Some(Fault::Marker { marker: at, expected, seen: seen.pointer() });
            }
            at += MARKER_INTERVAL;
        }
        None
    }

    fn marker_at(&self, at: u64) -> ReceivedMarker {
        let mut bytes = [0; MARKER_LEN];
        self.copy(at, &mut bytes);
        ReceivedMarker(Marker::parse(&bytes))
    }

    fn copy(&self, at: u64, out: &mut [u8]) {
        let mut done = 0;
        self.for_each_slice(at, at + out.len() as u64, |slice| {
            out[done..done + slice.len()].copy_from_slice(slice);
            done += slice.len();
        });
        debug_assert_eq!(done, out.len());
    }

    fn for_each_slice(&self, from: u64, to: u64, mut f: impl FnMut(&'a [u8])) {
        debug_assert!(self.start <= from && to <= self.end);
        let first = self.slices.partition_point(|(at, bytes)| at + bytes.len() as u64 <= from);
        for (at, bytes) in &self.slices[first..] {
            if *at >= to {
                break;
            }
            let begin = from.saturating_sub(*at) as usize;
            let stop = ((to - at) as usize).min(bytes.len());
            if begin < stop {
                f(&bytes[begin..stop]);
            }
        }
    }
}

/// A marker as received, which may be wrong.
struct ReceivedMarker(Marker);

impl ReceivedMarker {
    fn pointer(&self) -> u16 {
        self.0.fpduptr()
    }

    /// Returns the position of the ULPDU_Length field to which the marker points, if the pointer is valid.
    fn header_offset(&self, at: u64, checks: &Checks) -> Option<u64> {
        let framing = checks.framing;
        let back = u64::from(self.pointer());
        if back == 0 {
            return Some(at + MARKER_LEN as u64);
        }
        // RFC 5044 §4.2: the pointer is the distance back to the length field, at most the length of an FPDU.
        let near = back <= u64::from(checks.max_fpdu);
        let target = at.checked_sub(back).filter(|at| near && *at >= framing.start())?;
        if !framing.is_marker(target) {
            return Some(target);
        }
        // draft-culley-iwarp-mpa-03 §7.1 counts FPDUPTR "from the beginning of the FPDU", which may mean a marker
        // directly before the length field. No length field is located on a marker, so each FPDUPTR gives only one
        // possible FPDU.
        checks.draft_pointers.then_some(target + MARKER_LEN as u64)
    }
}

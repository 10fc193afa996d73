//! SACK chunks (RFC 9260 §3.3.4).
//!
//! ```text
//!  value
//!   0  |    cumulative TSN ack    |     8  | gap ack blocks N | duplicate TSNs M |
//!   4  |         a_rwnd           |    12  | N times start, end (16 bits each); M times TSN |
//! ```

use super::Tsn;
use super::raw::{chunk_type, emit_chunk_header};
use crate::be;

/// Bytes of a SACK chunk without blocks and duplicates, chunk header included; each block or duplicate adds 4.
pub const SACK_FIXED_LEN: usize = super::CHUNK_HEADER_LEN + field::LISTS;

pub(super) mod field {
    pub(in super::super) const CUMULATIVE: usize = 0;
    pub(in super::super) const A_RWND: usize = 4;
    pub(in super::super) const GAPS: usize = 8;
    pub(in super::super) const DUPLICATES: usize = 10;
    pub(in super::super) const LISTS: usize = 12;
    /// Bytes of a gap ack block or of a duplicate TSN.
    pub(in super::super) const ENTRY: usize = 4;

    const _: () = assert!(super::SACK_FIXED_LEN == 16);
}

/// Fixed fields of a SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SackHeader {
    /// Cumulative TSN Ack: this TSN and all before it were received.
    pub cumulative: Tsn,
    /// Advertised receiver window credit, in bytes.
    pub a_rwnd: u32,
}

/// A gap ack block: TSNs `cumulative + start ..= cumulative + end` were received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GapBlock {
    /// Offset of the first TSN from `cumulative`.
    pub start: u16,
    /// Offset of the last TSN from `cumulative`.
    pub end: u16,
}

impl GapBlock {
    pub(super) fn emit(self) -> [u8; field::ENTRY] {
        let ([a, b], [c, d]) = (self.start.to_be_bytes(), self.end.to_be_bytes());
        [a, b, c, d]
    }
}

/// A received SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sack<'a> {
    /// Fixed fields before the two lists.
    pub header: SackHeader,
    gaps: &'a [u8],
    duplicates: &'a [u8],
}

impl<'a> Sack<'a> {
    /// Parses a chunk's value; `None` if the value is shorter than its fixed fields and both lists.
    pub(super) fn parse(value: &'a [u8]) -> Option<Sack<'a>> {
        let lists = value.get(field::LISTS..)?;
        let gaps = usize::from(be::u16(value, field::GAPS)) * field::ENTRY;
        let duplicates = usize::from(be::u16(value, field::DUPLICATES)) * field::ENTRY;
        let lists = lists.get(..gaps + duplicates)?;
        let (gaps, duplicates) = lists.split_at(gaps);
        let header = SackHeader {
            cumulative: Tsn(be::u32(value, field::CUMULATIVE)),
            a_rwnd: be::u32(value, field::A_RWND),
        };
        Some(Sack { header, gaps, duplicates })
    }

    /// Returns the gap ack blocks as received: they may be inverted, overlap or touch.
    pub fn gaps(&self) -> impl ExactSizeIterator<Item = GapBlock> + Clone + use<'a> {
        self.gaps
            .chunks_exact(field::ENTRY)
            .map(|entry| GapBlock { start: be::u16(entry, 0), end: be::u16(entry, 2) })
    }

    /// Returns the duplicate TSNs.
    pub fn duplicates(&self) -> impl ExactSizeIterator<Item = Tsn> + Clone + use<'a> {
        self.duplicates.chunks_exact(field::ENTRY).map(|entry| Tsn(be::u32(entry, 0)))
    }
}

/// Writes a SACK chunk at the front of `out` and returns its length. Entries that do not fit are omitted: duplicates
/// first, then the blocks furthest from the cumulative TSN (RFC 9260 §6.7). Returns `None` if not even the fixed fields
/// fit.
pub(super) fn emit(
    header: SackHeader,
    gaps: &[GapBlock],
    duplicates: &[Tsn],
    out: &mut [u8],
) -> Option<usize> {
    let room = out.len().checked_sub(SACK_FIXED_LEN)?.min(usize::from(u16::MAX) - SACK_FIXED_LEN);
    let room = room / field::ENTRY;
    let gaps = &gaps[..gaps.len().min(room)];
    let duplicates = &duplicates[..duplicates.len().min(room - gaps.len())];
    let len = SACK_FIXED_LEN + (gaps.len() + duplicates.len()) * field::ENTRY;
    emit_chunk_header(chunk_type::SACK, 0, len, out);
    let value = &mut out[super::CHUNK_HEADER_LEN..len];
    be::put(value, field::CUMULATIVE, &header.cumulative.0.to_be_bytes());
    be::put(value, field::A_RWND, &header.a_rwnd.to_be_bytes());
    be::put(value, field::GAPS, &(gaps.len() as u16).to_be_bytes());
    be::put(value, field::DUPLICATES, &(duplicates.len() as u16).to_be_bytes());
    let entries = gaps.iter().map(|gap| gap.emit());
    let entries = entries.chain(duplicates.iter().map(|tsn| tsn.0.to_be_bytes()));
    for (entry, room) in entries.zip(value[field::LISTS..].chunks_exact_mut(field::ENTRY)) {
        room.copy_from_slice(&entry);
    }
    Some(len)
}

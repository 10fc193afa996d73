//! Copies with non-temporal stores, which fill memory without reading it into a cache first.
//!
//! An ordinary store that misses the cache first reads the line from memory. If the written bytes do not stay in a
//! cache anyway, this read is wasted and delays the stores.
//!
//! Copied bytes are visible to other cores before any later store of this core. The last byte becomes visible after all
//! others. Programs that poll the last byte must not rely on this order, because shorter pieces are copied by memcpy.

use std::ptr;

/// Length of a cache line, bytes. Non-temporal stores write whole lines only.
const LINE: usize = 64;

/// Copies `len` bytes by non-temporal stores.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`, and the two ranges do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // Ordinary stores up to the first line boundary.
    let first = to.align_offset(LINE).min(len);
    // The last byte is written by an ordinary store after the fence.
    let whole = len.saturating_sub(first + 1) / LINE * LINE;
    let end = first + whole;
    // SAFETY: `first <= len`; `len` bytes can be read at `from` and written at `to` without overlap (caller).
    unsafe { ptr::copy_nonoverlapping(from, to, first) };
    // SAFETY: `first + whole <= len`, and `whole` is a multiple of a line. `to + first` is line-aligned unless `whole`
    // is 0.
    unsafe { lines(from.wrapping_add(first), to.wrapping_add(first), whole) };
    fence();
    // SAFETY: `end <= len`, so the last `len - end` bytes of the caller's two ranges begin at `from + end` and `to +
    // end`.
    unsafe { ptr::copy_nonoverlapping(from.add(end), to.add(end), len - end) };
}

/// Copies the concatenated `pieces` to `to`. A line shared by two pieces is assembled first and stored once.
///
/// # Panics
/// If the pieces have more than `room` bytes in total.
///
/// # Safety
/// `room` bytes can be written at `to`, and the pieces do not overlap them.
pub(super) unsafe fn copy_pieces<'a>(
    mut to: *mut u8,
    mut room: usize,
    pieces: impl Iterator<Item = &'a [u8]>,
) {
    let mut partial = PartialLine { bytes: [0; 3 * LINE], len: 0 };
    for piece in pieces {
        assert!(piece.len() <= room, "pieces extend outside a region");
        room -= piece.len();
        let mut rest = piece;
        // Bytes up to the next line boundary: a whole line, except before the first boundary.
        let line = LINE - to.addr() % LINE;
        if partial.len > 0 || line < LINE {
            rest = partial.fill(rest, line);
            if rest.is_empty() {
                continue;
            }
            // SAFETY: `partial` holds the next `line` bytes for `to`, and they were deducted from `room`. If they are a
            // whole line, `to` is line-aligned.
            unsafe {
                match line {
                    LINE => lines(partial.line().as_ptr(), to, LINE),
                    _ => ptr::copy_nonoverlapping(partial.line().as_ptr(), to, line),
                }
                to = to.add(line);
            }
            partial.len = 0;
        }
        // The last line is held back: the next piece may share it, and the last line of all pieces is copied by
        // ordinary stores.
        let whole = rest.len().saturating_sub(1) / LINE * LINE;
        // SAFETY: `whole` bytes remain in the piece and were deducted from `room`. `to` is line-aligned.
        unsafe {
            lines(rest.as_ptr(), to, whole);
            to = to.add(whole);
        }
        partial.hold_end(piece, rest.len() - whole);
    }
    fence();
    // SAFETY: `partial.len` held bytes remain, and they were deducted from `room`.
    unsafe { ptr::copy_nonoverlapping(partial.line().as_ptr(), to, partial.len) };
}

/// The first bytes of an incomplete line, in the middle third of a buffer of three lines. Copies into it have the fixed
/// length of a line where possible, because these are faster than copies of variable length. Such a copy may extend
/// into an outer third, whose bytes are ignored.
struct PartialLine {
    bytes: [u8; 3 * LINE],
    /// Number of bytes stored so far, at most a line.
    len: usize,
}

impl PartialLine {
    /// Returns the line. Only its first `len` bytes are valid.
    #[inline]
    fn line(&self) -> &[u8] {
        &self.bytes[LINE..2 * LINE]
    }

    /// Copies the last `len` bytes of `piece`, at most a line, into the line. Requires that no bytes are held.
    #[inline]
    fn hold_end(&mut self, piece: &[u8], len: usize) {
        self.len = len;
        match piece.last_chunk::<LINE>() {
            Some(end) => self.bytes[len..][..LINE].copy_from_slice(end),
            None => self.bytes[LINE..][..len].copy_from_slice(&piece[piece.len() - len..]),
        }
    }

    /// Appends the first bytes of `piece` until `line` bytes are held. Returns the rest of `piece`.
    #[inline]
    fn fill<'a>(&mut self, piece: &'a [u8], line: usize) -> &'a [u8] {
        let at = LINE + self.len;
        let taken = (line - self.len).min(piece.len());
        match piece.first_chunk::<LINE>() {
            Some(first) => self.bytes[at..][..LINE].copy_from_slice(first),
            None => self.bytes[at..][..taken].copy_from_slice(&piece[..taken]),
        }
        self.len += taken;
        &piece[taken..]
    }
}

/// Copies whole lines by stores that are unordered with later stores until a [`fence`].
///
/// # Safety
/// `len` is a multiple of a line. `len` bytes can be read at `from` and written at `to`, and the two ranges do not
/// overlap. `to` is line-aligned unless `len` is 0.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    const VECTOR_LEN: usize = size_of::<__m128i>();
    for at in (0..len).step_by(LINE) {
        // SAFETY: `at + 64 <= len`; `to + at` is line-aligned.
        unsafe {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let parts: [__m128i; LINE / VECTOR_LEN] =
                std::array::from_fn(|i| _mm_loadu_si128(from.add(i)));
            parts.into_iter().enumerate().for_each(|(i, part)| _mm_stream_si128(to.add(i), part));
        }
    }
}

/// Copies whole lines by ordinary stores.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`, and the two ranges do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees that `len` bytes can be read and written and do not overlap.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `sfence` is part of SSE, which every x86-64 CPU has.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Copying pieces of any lengths gives the same bytes as a single copy, and no byte outside is written.
        #[test]
        fn streamed_pieces_equal_single_copy(
            at in 0usize..130,
            lens in prop::collection::vec(prop_oneof![0usize..140, Just(508), Just(64), Just(128)], 0..20),
        ) {
            let bytes: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut rest = &bytes[..];
            let pieces: Vec<&[u8]> = lens.iter().map(|len| rest.split_off(..*len).unwrap_or_default()).collect();
            let (mut one, mut many) = (vec![0xee; 300 + bytes.len()], vec![0xee; 300 + bytes.len()]);
            // Both copies begin at the same offset within a line.
            let begin = |room: &[u8]| room.as_ptr().align_offset(LINE) + at;
            let (to_one, to_many) = (begin(&one), begin(&many));
            // SAFETY: `to_one` and `to_many` are below 194, and both buffers have 300 bytes more than `bytes`.
            unsafe {
                copy(bytes.as_ptr(), one.as_mut_ptr().add(to_one), bytes.len());
                copy_pieces(many.as_mut_ptr().add(to_many), bytes.len(), pieces.into_iter());
            }
            for (room, to) in [(&one, to_one), (&many, to_many)] {
                prop_assert_eq!(&room[to..to + bytes.len()], &bytes[..]);
                let mut beside = room[..to].iter().chain(&room[to + bytes.len()..]);
                prop_assert!(beside.all(|byte| *byte == 0xee));
            }
        }
    }
}

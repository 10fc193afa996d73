//! Copies whose stores pass the caches by: memory is filled without being read into a cache first.
//!
//! Of a store that misses, the CPU reads the line before it changes it. Where the bytes that a peer places do not stay in
//! a cache anyway, that read is for nothing, and stores wait for it.
//!
//! What is copied is visible to other cores before anything that this core stores afterwards, and its last byte after all others:
//! programs that wait for it may rely on no more than that of a memcpy, but find no less.

use std::ptr;

/// A line, which such stores fill whole.
const LINE: usize = 64;

/// Copies `len` bytes.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`, and they do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // Up to a line's begin.
    let first = to.align_offset(LINE).min(len);
    // At least one byte is left for the end.
    let whole = len.saturating_sub(first + 1) / LINE * LINE;
    let end = first + whole;
    // SAFETY: `first` is at most `len`.
    unsafe { ptr::copy_nonoverlapping(from, to, first) };
    // SAFETY: these lines are inside of the caller's bytes, and begin at `to`'s.
    unsafe { lines(from.wrapping_add(first), to.wrapping_add(first), whole) };
    fence();
    // SAFETY: `end` is at most `len`.
    unsafe { ptr::copy_nonoverlapping(from.add(end), to.add(end), len - end) };
}

/// Copies `pieces`, one behind the other. A line that two of them share is put together and stored once.
///
/// # Panics
/// If they have more than `room` bytes together.
///
/// # Safety
/// `room` bytes can be written at `to`, and the pieces are not among them.
pub(super) unsafe fn copy_pieces<'a>(
    mut to: *mut u8,
    mut room: usize,
    pieces: impl Iterator<Item = &'a [u8]>,
) {
    let mut held = Held { bytes: [0; 3 * LINE], len: 0 };
    for piece in pieces {
        assert!(piece.len() <= room, "pieces go on outside a region");
        room -= piece.len();
        let mut left = piece;
        // Fewer than a line only before the first that is filled.
        let line = LINE - to.addr() % LINE;
        if held.len > 0 || line < LINE {
            left = held.take(left, line);
            if left.is_empty() {
                continue;
            }
            // SAFETY: the bytes held are the caller's next ones, and with more than a line's begin they are a line.
            unsafe {
                match line {
                    LINE => lines(held.line().as_ptr(), to, LINE),
                    _ => ptr::copy_nonoverlapping(held.line().as_ptr(), to, line),
                }
                to = to.add(line);
            }
            held.len = 0;
        }
        // At least one byte is left for the end, or for the line that the next piece shares.
        let whole = left.len().saturating_sub(1) / LINE * LINE;
        // SAFETY: these are the caller's next bytes, and `to` begins a line.
        unsafe {
            lines(left.as_ptr(), to, whole);
            to = to.add(whole);
        }
        held.hold_end(piece, left.len() - whole);
    }
    fence();
    // SAFETY: the last of the caller's bytes.
    unsafe { ptr::copy_nonoverlapping(held.line().as_ptr(), to, held.len) };
}

/// The first bytes of a line. In front of it and behind it there is room for another, so that nearly all are put there by copies that
/// are as long as a line.
struct Held {
    bytes: [u8; 3 * LINE],
    /// At most a line.
    len: usize,
}

impl Held {
    /// The line; its first bytes are those that are held.
    #[inline]
    fn line(&self) -> &[u8] {
        &self.bytes[LINE..2 * LINE]
    }

    /// Holds the last `len` bytes of `piece`, at most a line; nothing is held before.
    #[inline]
    fn hold_end(&mut self, piece: &[u8], len: usize) {
        self.len = len;
        match piece.last_chunk::<LINE>() {
            Some(end) => self.bytes[len..][..LINE].copy_from_slice(end),
            None => self.bytes[LINE..][..len].copy_from_slice(&piece[piece.len() - len..]),
        }
    }

    /// Takes the first bytes of `piece` until `line` are held, and returns the others.
    #[inline]
    fn take<'a>(&mut self, piece: &'a [u8], line: usize) -> &'a [u8] {
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

/// Copies whole lines, in no order with later stores before a [`fence`].
///
/// # Safety
/// `len`, a multiple of a line, bytes can be read at `from` and written at `to`, where a line begins unless there are none, and they do
/// not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    const PART: usize = size_of::<__m128i>();
    for at in (0..len).step_by(LINE) {
        // SAFETY: a line from `at` on is inside of the caller's bytes, and begins one at `to`.
        unsafe {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let parts: [__m128i; LINE / PART] =
                std::array::from_fn(|i| _mm_loadu_si128(from.add(i)));
            parts.into_iter().enumerate().for_each(|(i, part)| _mm_stream_si128(to.add(i), part));
        }
    }
}

/// The same without such stores.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Pieces of any length come where one copy of them would, and nothing beside them is written.
        #[test]
        fn pieces_are_copied_as_one(
            at in 0usize..130,
            lens in prop::collection::vec(prop_oneof![0usize..140, Just(508), Just(64), Just(128)], 0..20),
        ) {
            let bytes: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut rest = &bytes[..];
            let pieces: Vec<&[u8]> = lens.iter().map(|len| rest.split_off(..*len).unwrap_or_default()).collect();
            let (mut one, mut many) = (vec![0xee; 300 + bytes.len()], vec![0xee; 300 + bytes.len()]);
            // The same place in a line.
            let begin = |room: &[u8]| room.as_ptr().align_offset(LINE) + at;
            let (to_one, to_many) = (begin(&one), begin(&many));
            // SAFETY: both have room for the bytes and for what is in front of them.
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

//! Header of an area: the shared memory that holds the queues or the doorbells of a session.
//!
//! The appliance creates an area and writes the header. The program maps the area and checks the header, so that two
//! builds with different layouts do not share memory. The messages of the session give the offset of each structure.
//!
//! ```text
//!  word  0       1         2        3 .. 10               11 .. 15   16 ..
//!       | magic | version | length | sizes of structures | zero     | structures |
//! ```
//!
//! The length of the area is in bytes. The sizes are those that the writer uses ([`Size`]). The offset of each
//! structure is a multiple of 128 bytes.

use crate::shared::{LINE_WORDS, Ordering, Word};
use crate::version::{OLDEST, VERSION};
use crate::{MAX_UNITS, UNIT_WORDS, completion, doorbell, ring, work};

/// Magic number: the first eight bytes of an area.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DDPVERBS");
/// Words of the header of an area.
pub const HEADER_WORDS: usize = LINE_WORDS;
/// Maximum length of an area in bytes (1 TiB).
pub const MAX_BYTES: u64 = 1 << 40;

const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 1;
const LENGTH_AT: usize = 2;
const SIZES_AT: usize = 3;

/// A size that both sides must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Bytes of a unit of a ring.
    Unit,
    /// Maximum number of units of a descriptor.
    DescriptorUnits,
    /// Bytes of the header of a ring.
    RingHeader,
    /// Bytes of an entry of a completion queue.
    Completion,
    /// Bytes of the header of a completion queue.
    CompletionHeader,
    /// Bytes of the doorbells of one program at one worker.
    Doorbell,
    /// Maximum number of SGEs of a descriptor.
    Sges,
    /// Maximum number of bytes of inline data.
    Inline,
}

const SIZES: [(Size, u64); 8] = [
    (Size::Unit, UNIT_WORDS as u64 * 8),
    (Size::DescriptorUnits, MAX_UNITS as u64),
    (Size::RingHeader, ring::HEADER_WORDS as u64 * 8),
    (Size::Completion, completion::ENTRY_WORDS as u64 * 8),
    (Size::CompletionHeader, completion::HEADER_WORDS as u64 * 8),
    (Size::Doorbell, doorbell::WORDS as u64 * 8),
    (Size::Sges, work::MAX_SGES as u64),
    (Size::Inline, work::MAX_INLINE as u64),
];

const _: () = {
    assert!(SIZES_AT + SIZES.len() <= HEADER_WORDS);
    assert!(UNIT_WORDS * 8 == 64 && completion::ENTRY_WORDS * 8 == 64);
    assert!(ring::HEADER_WORDS * 8 == 256 && completion::HEADER_WORDS * 8 == 128);
    assert!(doorbell::WORDS * 8 == 4352);
};

/// Reason why an area cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AreaError {
    /// The memory is shorter than the header, or longer than [`MAX_BYTES`].
    #[error("{0} words are not the length of an area")]
    Words(usize),
    /// The memory is not an area: it does not begin with [`MAGIC`].
    #[error("not an area of a session: it begins with {0:#018x}")]
    Magic(u64),
    /// This crate does not support the version of the area.
    #[error("version {0} of the layout; versions {OLDEST} to {VERSION} can be used")]
    Version(u64),
    /// The area's length differs from the mapped memory.
    #[error("the area has {written} bytes, the mapping {mapped}")]
    Length {
        /// Length in the header, bytes.
        written: u64,
        /// Length of the mapping, bytes.
        mapped: u64,
    },
    /// A [`Size`] in the area's header differs from that of this crate.
    #[error("size `{size:?}` is {written} in the area and {ours} here")]
    Size {
        /// The size that differs.
        size: Size,
        /// Value in the area's header.
        written: u64,
        /// Value of this crate.
        ours: u64,
    },
    /// A reserved word of the header is not zero.
    #[error("word {0} of the area's header is reserved and not zero")]
    Reserved(usize),
    /// The offset of a structure is not a multiple of 128 bytes or lies in the header, or the structure ends beyond the
    /// area.
    #[error("{words} words at byte {offset} are not within the area or not aligned")]
    Part {
        /// Offset in bytes from the beginning of the area.
        offset: u64,
        /// Words of the structure.
        words: usize,
    },
}

/// Writes the header of a new area. All words of `area` must be zero. The magic number is written last.
pub fn write(area: &[Word], version: u32) -> Result<(), AreaError> {
    let length = length(area)?;
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(AreaError::Version(version.into()));
    }
    area[VERSION_AT].store(version.into(), Ordering::Relaxed);
    area[LENGTH_AT].store(length, Ordering::Relaxed);
    for (word, (_, bytes)) in area[SIZES_AT..].iter().zip(SIZES) {
        word.store(bytes, Ordering::Relaxed);
    }
    area[MAGIC_AT].store(MAGIC, Ordering::Release);
    Ok(())
}

/// Checks the header of an area that the other side wrote. Returns the version of the layout. Each word is loaded once.
pub fn check(area: &[Word]) -> Result<u32, AreaError> {
    let mapped = length(area)?;
    let magic = area[MAGIC_AT].load(Ordering::Acquire);
    if magic != MAGIC {
        return Err(AreaError::Magic(magic));
    }
    let read = |at: usize| area[at].load(Ordering::Relaxed);
    let written = read(VERSION_AT);
    let known = u32::try_from(written).ok().filter(|version| (OLDEST..=VERSION).contains(version));
    let version = known.ok_or(AreaError::Version(written))?;
    let written = read(LENGTH_AT);
    if written != mapped {
        return Err(AreaError::Length { written, mapped });
    }
    for (at, (size, ours)) in SIZES.into_iter().enumerate() {
        let written = read(SIZES_AT + at);
        if written != ours {
            return Err(AreaError::Size { size, written, ours });
        }
    }
    match (SIZES_AT + SIZES.len()..HEADER_WORDS).find(|&at| read(at) != 0) {
        Some(at) => Err(AreaError::Reserved(at)),
        None => Ok(version),
    }
}

/// Returns the `words` words at byte `offset` of an area: the memory of one structure. The caller must ensure that
/// structures do not overlap.
pub fn part(area: &[Word], offset: u64, words: usize) -> Result<&[Word], AreaError> {
    let wrong = AreaError::Part { offset, words };
    let line = LINE_WORDS as u64 * 8;
    if offset < HEADER_WORDS as u64 * 8 || !offset.is_multiple_of(line) {
        return Err(wrong);
    }
    let start = usize::try_from(offset / 8).map_err(|_| wrong)?;
    let end = start.checked_add(words).ok_or(wrong)?;
    area.get(start..end).ok_or(wrong)
}

fn length(area: &[Word]) -> Result<u64, AreaError> {
    let bytes = area.len() as u64 * 8;
    if area.len() < HEADER_WORDS || bytes > MAX_BYTES {
        return Err(AreaError::Words(area.len()));
    }
    Ok(bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn area(words: usize) -> Vec<Word> {
        let area: Vec<Word> = (0..words).map(|_| Word::new(0)).collect();
        write(&area, VERSION).expect("a header");
        area
    }

    #[test]
    fn written_header_is_accepted() {
        assert_eq!(check(&area(64)), Ok(VERSION));
        assert_eq!(check(&area(HEADER_WORDS)), Ok(VERSION));
    }

    #[test]
    fn each_word_that_differs_is_refused_with_its_error() {
        for at in 0..HEADER_WORDS {
            let area = area(64);
            let written = area[at].load(Ordering::Relaxed) + 1;
            area[at].store(written, Ordering::Relaxed);
            let expected = match at {
                MAGIC_AT => AreaError::Magic(written),
                VERSION_AT => AreaError::Version(written),
                LENGTH_AT => AreaError::Length { written, mapped: 512 },
                _ => match SIZES.get(at - SIZES_AT) {
                    Some(&(size, ours)) => AreaError::Size { size, written, ours },
                    None => AreaError::Reserved(at),
                },
            };
            assert_eq!(check(&area), Err(expected));
        }
    }

    #[test]
    fn version_above_32_bits_and_short_memory_are_refused() {
        let long = area(64);
        long[VERSION_AT].store(1 << 32 | u64::from(VERSION), Ordering::Relaxed);
        assert!(matches!(check(&long), Err(AreaError::Version(_))));
        let short: Vec<Word> = (1..HEADER_WORDS).map(|_| Word::new(0)).collect();
        assert_eq!(check(&short), Err(AreaError::Words(15)));
        assert_eq!(write(&short, VERSION), Err(AreaError::Words(15)));
        assert_eq!(write(&long, VERSION + 1), Err(AreaError::Version(u64::from(VERSION) + 1)));
    }

    #[test]
    fn part_is_aligned_behind_header_and_within_area() {
        let area = area(64);
        assert_eq!(part(&area, 128, 48).map(<[Word]>::len), Ok(48));
        assert_eq!(part(&area, 384, 16).map(<[Word]>::len), Ok(16));
        for (offset, words) in [
            (0, 1),
            (64, 1),
            (136, 1),
            (128, 49),
            (512, 1),
            (640, 0),
            (u64::MAX - 127, 1),
            (128, usize::MAX),
        ] {
            let refused = part(&area, offset, words).err();
            assert_eq!(refused, Some(AreaError::Part { offset, words }));
        }
    }
}

//! The unit in which rings store descriptors: 64 bytes.

use arrayvec::ArrayVec;

/// Length of a unit, words of 8 bytes.
pub const UNIT_WORDS: usize = 8;
/// Maximum number of units of a descriptor.
pub const MAX_UNITS: usize = 5;

/// One unit of a descriptor: 64 bytes.
pub type Unit = [u64; UNIT_WORDS];
/// A private copy of one descriptor: 1 to [`MAX_UNITS`] units. Bits 0 to 7 of the first word are the number of units.
pub type Units = ArrayVec<Unit, MAX_UNITS>;

const _: () = assert!(size_of::<Unit>() == 64);

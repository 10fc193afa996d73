//! Words of shared memory, and checks common to all queues.

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{Ordering, fence};

/// A word of shared memory, 8 bytes.
pub type Word = AtomicU64;

/// Minimum distance, in words, between two words that different sides write: 128 bytes, because processors prefetch
/// cache lines in pairs.
pub const LINE_WORDS: usize = 16;

#[cfg(not(loom))]
const _: () = assert!(size_of::<Word>() == 8 && align_of::<Word>() == 8);

/// Reason why memory cannot hold a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CapacityError {
    /// The capacity is not a power of two, or out of range.
    #[error("a queue needs a power of two of entries between {least} and {most}, not {capacity}")]
    Capacity {
        /// The requested number of entries.
        capacity: usize,
        /// Smallest valid capacity, entries.
        least: usize,
        /// Largest valid capacity, entries.
        most: usize,
    },
    /// The memory does not have exactly the length of the queue.
    #[error("{words} words of memory, where the layout has {needed}")]
    Length {
        /// Length of the memory, words.
        words: usize,
        /// Words of a queue of this capacity.
        needed: usize,
    },
}

/// Smallest number of entries of a queue.
pub(crate) const MIN_CAPACITY: usize = 2;

/// The two parts of a queue's memory: header words and entries of 8 words.
pub(crate) struct Parts<'a> {
    pub(crate) header: &'a [Word],
    pub(crate) entries: Entries<'a>,
}

/// Splits the memory of a queue into `header` words and `capacity` entries. `most`: largest valid capacity.
pub(crate) fn split(
    words: &[Word],
    header: usize,
    capacity: usize,
    most: usize,
) -> Result<Parts<'_>, CapacityError> {
    let least = MIN_CAPACITY;
    if !capacity.is_power_of_two() || !(least..=most).contains(&capacity) {
        return Err(CapacityError::Capacity { capacity, least, most });
    }
    let needed = header + capacity * 8;
    if words.len() != needed {
        return Err(CapacityError::Length { words: words.len(), needed });
    }
    let (header, entries) = words.split_at(header);
    Ok(Parts { header, entries: Entries(entries.as_chunks().0) })
}

/// The entries of a queue, 8 words each. Their number is a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries<'a>(&'a [[Word; 8]]);

impl<'a> Entries<'a> {
    pub(crate) fn capacity(self) -> u64 {
        self.0.len() as u64
    }

    /// Returns the entry of `index`, which counts entries and is not reduced modulo the capacity.
    #[inline]
    pub(crate) fn at(self, index: u64) -> &'a [Word; 8] {
        // The mask keeps any index in bounds.
        &self.0[index as usize & (self.0.len() - 1)]
    }
}

/// Validates `index`, read from the other side: at most `most` beyond `base`, and not below `last`, the value read
/// before. Returns `None` if it is invalid.
#[inline]
pub(crate) fn checked(index: u64, base: u64, last: u64, most: u64) -> Option<u64> {
    let distance = index.wrapping_sub(base);
    (distance <= most && distance >= last.wrapping_sub(base)).then_some(index)
}

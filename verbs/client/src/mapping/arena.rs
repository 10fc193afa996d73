//! The arena: the registered memory of this program. Offsets and lengths are bytes.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;

use super::{Mapping, MappingError};

/// Bytes copied by one access.
const WORD: usize = size_of::<u64>();

/// The mapped arena.
#[derive(Debug)]
pub(crate) struct Arena(Mapping);

impl Arena {
    /// Maps an arena of `len` bytes.
    pub(crate) fn map(file: BorrowedFd<'_>, len: u64) -> Result<Arena, MappingError> {
        Ok(Arena(Mapping::new(file, len..len.saturating_add(1))?))
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.0.start.as_ptr() as u64
    }

    /// Returns a pointer to a byte, or to the end.
    ///
    /// # Panics
    /// If `at` is behind the end.
    pub(crate) fn pointer(&self, at: usize) -> *mut u8 {
        assert!(at <= self.0.len);
        // SAFETY: `at` lies inside the mapping or at its end.
        unsafe { self.0.start.as_ptr().add(at) }
    }

    /// Returns bytes as atomics.
    ///
    /// # Panics
    /// If they are not within the arena.
    pub(crate) fn atomics(&self, at: usize, len: usize) -> &[AtomicU8] {
        self.check(at, len);
        // SAFETY: the bytes lie inside the mapping, which outlives the reference; atomics may be changed by others.
        unsafe { std::slice::from_raw_parts(self.pointer(at).cast(), len) }
    }

    /// Copies bytes of the arena to `to`.
    ///
    /// # Panics
    /// If they are not within the arena.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        let (head, words, tail) = self.split(at, to.len());
        let (first, rest) = to.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(words.len() * WORD);
        read_bytes(head, first);
        for (word, to) in words.iter().zip(middle.as_chunks_mut::<WORD>().0) {
            *to = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        read_bytes(tail, last);
    }

    /// Copies `bytes` into the arena.
    ///
    /// # Panics
    /// If they do not fit at `at`.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let (head, words, tail) = self.split(at, bytes.len());
        let (first, rest) = bytes.split_at(head.len());
        let (middle, last) = rest.split_at(words.len() * WORD);
        write_bytes(head, first);
        for (word, from) in words.iter().zip(middle.as_chunks::<WORD>().0) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        write_bytes(tail, last);
    }

    /// Frees the pages of these bytes, which read as zeros.
    pub(crate) fn discard(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.0.discard(at, len)
    }

    /// Splits bytes into those before the first aligned word, the words, and those behind them. Copies of all threads
    /// access the same aligned words.
    fn split(&self, at: usize, len: usize) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        let bytes = self.atomics(at, len);
        // SAFETY: 8 aligned bytes of shared memory are a valid word, whatever they contain. Accesses of different sizes
        // may race, as they do with the appliance's copies: bytes are then a mix, which the documentation states.
        unsafe { bytes.align_to() }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at <= self.0.len && len <= self.0.len - at, "{len} bytes at {at} of the arena");
    }
}

fn read_bytes(from: &[AtomicU8], to: &mut [u8]) {
    from.iter().zip(to).for_each(|(from, to)| *to = from.load(Ordering::Relaxed));
}

fn write_bytes(to: &[AtomicU8], from: &[u8]) {
    to.iter().zip(from).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
}

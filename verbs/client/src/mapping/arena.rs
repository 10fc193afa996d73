//! The arena: the mapped memory from which a session's buffers and regions are allocated. Offsets and lengths are in
//! bytes.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;

use super::{Mapping, MappingError};

/// Bytes that one access of an aligned word copies.
const WORD: usize = size_of::<u64>();

/// The session's arena, mapped until drop.
#[derive(Debug)]
pub(crate) struct Arena {
    mapping: Mapping,
    descriptor: OwnedFd,
    /// Dropped after `mapping`, because fields are dropped in the order of their declaration.
    file: MappedFile,
}

/// Drop guard: its drop records in the [`ArenaFile`] that the arena is no longer mapped.
#[derive(Debug)]
struct MappedFile(Arc<ArenaFile>);

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.0.unmapped.store(true, Ordering::Release);
    }
}

/// The memory file of an arena. The program may have mapped its pages at any address, also after the end of the
/// session.
#[derive(Debug)]
pub(crate) struct ArenaFile {
    id: FileId,
    /// Addresses of the session's mapping of the whole arena.
    mapped: Range<usize>,
    /// True once the mapping at `mapped` has ended. Other memory may then be at these addresses.
    unmapped: AtomicBool,
    /// True once the session has ended: the appliance no longer accesses the pages.
    ended: AtomicBool,
}

/// Identity of a file: its device and inode.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    /// Major and minor number of the device.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
}

impl ArenaFile {
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Returns true if the session's mapping of the whole arena contains the address.
    pub(crate) fn has_mapped(&self, address: usize) -> bool {
        self.mapped.contains(&address) && !self.unmapped.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl AsFd for Arena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Arena {
    /// Maps an arena, whose file must have exactly `len` bytes.
    pub(crate) fn map(file: BorrowedFd<'_>, len: u64) -> Result<Arena, MappingError> {
        let mapping = Mapping::new(file, len..len.saturating_add(1))?;
        let found = rustix::fs::fstat(file)?;
        let start = mapping.start.as_ptr().addr();
        let device = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
        let descriptor = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
        let file = ArenaFile {
            id: FileId { device, inode: found.st_ino },
            mapped: start..start + mapping.len,
            unmapped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        Ok(Arena { mapping, descriptor, file: MappedFile(Arc::new(file)) })
    }

    pub(crate) fn file(&self) -> &Arc<ArenaFile> {
        &self.file.0
    }

    /// Returns the virtual address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.mapping.start.as_ptr() as u64
    }

    /// Returns a pointer to the byte at offset `at`, or to the end of the arena.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub(crate) fn pointer(&self, at: usize) -> *mut u8 {
        assert!(at <= self.mapping.len);
        // SAFETY: `at <= len`, so the pointer is inside the mapping or at its end.
        unsafe { self.mapping.start.as_ptr().add(at) }
    }

    /// Returns `len` bytes from offset `at` as atomics.
    ///
    /// # Panics
    /// If the bytes are not within the arena.
    pub(crate) fn atomics(&self, at: usize, len: usize) -> &[AtomicU8] {
        self.check(at, len);
        // SAFETY: the bytes lie inside the mapping, checked above, which outlives the reference. They are atomics, so
        // that other threads and processes may write them while the shared reference exists.
        unsafe { std::slice::from_raw_parts(self.pointer(at).cast(), len) }
    }

    /// Copies `to.len()` bytes from offset `at` of the arena to `to`.
    ///
    /// # Panics
    /// If the bytes are not within the arena.
    #[cfg(test)]
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        read(self.atomics(at, to.len()), to);
    }

    /// Copies `bytes` to offset `at` of the arena.
    ///
    /// # Panics
    /// If the bytes at `at` are not within the arena.
    #[cfg(test)]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        write(self.atomics(at, bytes.len()), bytes);
    }

    /// Frees the pages of `len` bytes from offset `at`: whole pages, which read as zeros afterwards.
    pub(crate) fn discard(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.mapping.discard(at, len)
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at <= self.mapping.len && len <= self.mapping.len - at,
            "{len} bytes at {at} of the arena"
        );
    }
}

/// Copies shared bytes to `to`, which has the same length.
pub(crate) fn read(from: &[AtomicU8], to: &mut [u8]) {
    let (head, words, tail) = split(from);
    let (first, rest) = to.split_at_mut(head.len());
    let (middle, last) = rest.split_at_mut(words.len() * WORD);
    read_bytes(head, first);
    for (word, to) in words.iter().zip(middle.as_chunks_mut::<WORD>().0) {
        *to = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    read_bytes(tail, last);
}

/// Copies bytes to shared bytes of the same length.
pub(crate) fn write(to: &[AtomicU8], bytes: &[u8]) {
    let (head, words, tail) = split(to);
    let (first, rest) = bytes.split_at(head.len());
    let (middle, last) = rest.split_at(words.len() * WORD);
    write_bytes(head, first);
    for (word, from) in words.iter().zip(middle.as_chunks::<WORD>().0) {
        word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
    write_bytes(tail, last);
}

/// Splits shared bytes into the bytes before the first aligned word, the aligned words, and the bytes after the last.
/// Concurrent copies therefore access the same aligned words.
fn split(bytes: &[AtomicU8]) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
    // SAFETY: the words are aligned and within `bytes`, and 8 bytes with any contents are a valid `AtomicU64`. Two
    // racing copies with different ends can access a word both as bytes and as a whole. Rust's memory model does not
    // define such a race, but on the supported processors each access is atomic and the result is a mix of old and new
    // bytes.
    unsafe { bytes.align_to() }
}

fn read_bytes(from: &[AtomicU8], to: &mut [u8]) {
    from.iter().zip(to).for_each(|(from, to)| *to = from.load(Ordering::Relaxed));
}

fn write_bytes(to: &[AtomicU8], from: &[u8]) {
    to.iter().zip(from).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_no_mapped_addresses_after_its_arena_is_unmapped() {
        let arena = Arena::map(crate::tests::world::sealed_file(8192).as_fd(), 8192).unwrap();
        let (file, start) = (arena.file().clone(), arena.pointer(0).addr());
        assert!(file.has_mapped(start) && file.has_mapped(start + 8191));
        drop(arena);
        assert!(!file.has_mapped(start));
    }
}

//! Mapped memory: the arena, and the areas of queues and doorbells. The `unsafe` code of the Rust interface is in this
//! module, in `registration` and `signals`, and in two functions of `region`.
//!
//! The memory files come from the appliance and are checked. A file that can shrink is refused, because an access
//! beyond its end would raise SIGBUS. Other processes access the same bytes at any time. References into a mapping are
//! therefore to atomics only.
#![allow(unsafe_code)]

mod area;
mod arena;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use verbs_layout::CapacityError;
use verbs_layout::doorbell::DoorbellError;
use verbs_layout::session::AreaError;

pub(crate) use area::{Area, CompletionConsumer, DoorbellRinger, RingProducer};
pub(crate) use arena::{Arena, ArenaFile, FileId, read, write};

/// Reason why a memory file of the appliance is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MappingError {
    #[error("a memory file of {found} bytes, not {expected}")]
    Length { found: u64, expected: u64 },
    #[error("a memory file that can shrink")]
    Unsealed,
    #[error("a memory file cannot be mapped: {0}")]
    System(#[from] Errno),
    #[error(transparent)]
    Area(#[from] AreaError),
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
}

/// A memory file that is sealed against shrinking, mapped readable and writable, and unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is memory of the process and not bound to a thread. The pointer is valid until drop in any thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference the memory is accessible only as atomics or raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole file, whose size in bytes must be in `lengths`.
    fn new(file: BorrowedFd<'_>, lengths: Range<u64>) -> Result<Mapping, MappingError> {
        // The seals are checked before the size is read: until then the file can shrink. The call fails with EINVAL for
        // a file that is not a memory file.
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| MappingError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MappingError::Unsealed);
        }
        let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        if !lengths.contains(&size) {
            return Err(MappingError::Length { found: size, expected: lengths.start });
        }
        let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: no address is requested and `FIXED` is not set, so no existing mapping is replaced.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len })
    }

    /// Frees the pages of `len` bytes from offset `at`: whole pages, which read as zeros afterwards.
    fn discard(&self, at: usize, len: usize) -> Result<(), Errno> {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: the bytes lie inside the mapping, checked above. References into the mapping are to atomics, whose
        // values may change.
        unsafe { rustix::mm::madvise(self.start.as_ptr().add(at).cast(), len, Advice::LinuxRemove) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of `mmap`. No reference into the mapping outlives the value, which is
        // being dropped.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

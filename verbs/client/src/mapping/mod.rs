//! Mapped memory: the arena, and the areas of queues and doorbells. All `unsafe` code of the Rust interface is in this
//! module.
//!
//! The memory files come from the appliance and are checked: a file that can shrink is refused, because an access
//! behind its end would raise SIGBUS. Other processes access the same bytes at any time, so that there are no
//! references into a mapping except to atomics.
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
pub(crate) use arena::Arena;

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

/// A sealed memory file, mapped readable and writable, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value and not to a thread; the pointer is valid until drop.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives atomics and raw pointers only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole file, whose size must be in `lengths`.
    fn new(file: BorrowedFd<'_>, lengths: Range<u64>) -> Result<Mapping, MappingError> {
        let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        if !lengths.contains(&size) {
            return Err(MappingError::Length { found: size, expected: lengths.start });
        }
        // Files of other types have no seals: EINVAL.
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| MappingError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MappingError::Unsealed);
        }
        let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: no address is requested, so that no existing mapping is replaced.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len })
    }

    /// Frees the pages of these bytes, whole pages within the mapping. They read as zeros.
    fn discard(&self, at: usize, len: usize) -> Result<(), Errno> {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: the bytes lie inside the mapping, checked above. References into it are to atomics, which may change.
        unsafe { rustix::mm::madvise(self.start.as_ptr().add(at).cast(), len, Advice::LinuxRemove) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

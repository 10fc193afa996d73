//! Arenas: the registered memory of local programs. A program maps its arena at addresses of its choice; the appliance
//! maps a view of each memory region.
//!
//! ```text
//!  arena (memfd)           |  a  |     b     |   free   |  c  |  ...
//!  view of a region        |  c  |  a  |                           parts in any order, contiguous in the view
//! ```
//!
//! An arena is sparse: a page is allocated when the program first uses it, or when a view that contains it is
//! created. The size of an arena is sealed. The pages of a view are present, and locked if `RLIMIT_MEMLOCK` allows
//! it. The program can still free pages (`MADV_REMOVE`). A worker's next access to such a page takes a page fault and
//! reads zeros.
//!
//! The memory of a view is stable (`RegionMemory::is_stable`): sent bytes are not copied for retransmission. Verbs
//! forbid a program to change a posted source before its completion. If the program changes the source, retransmissions
//! differ from the first transmission. Only the stream of the post is affected.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::map::{Mapping, allocation_error, system_error};
use super::{Inner, Maps, Memory, MemoryError, Progress, checked_len, free_thread};

/// The memfd that holds a program's registered memory.
#[derive(Debug)]
pub struct Arena {
    file: OwnedFd,
    len: u64,
}

/// Options of [`Arena::view`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViewConfig {
    /// True if workers may write to the view: the view holds receive buffers or sinks of Reads, or peers have write
    /// access.
    pub writable: bool,
    /// True to lock the pages in memory (`mlock`).
    pub lock: bool,
}

impl Arena {
    /// Creates an arena of `len` bytes, a multiple of the page size. `name` appears in `/proc/PID/maps` of the program,
    /// has at most 249 bytes and no NUL.
    ///
    /// # Errors
    /// The length or the name is refused, or the memfd cannot be created.
    pub fn create(name: &str, len: u64) -> Result<Arena, MemoryError> {
        checked_len(len)?;
        if !len.is_multiple_of(page_size()) {
            return Err(MemoryError::ArenaRange { start: 0, end: len, len });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags).map_err(|error| match error {
            Errno::INVAL => MemoryError::Name { name: name.to_owned() },
            error => system_error("making a memory file", error),
        })?;
        rustix::fs::ftruncate(&file, len).map_err(|e| allocation_error(len as usize, e))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)
            .map_err(|e| system_error("sealing a memory file", e))?;
        Ok(Arena { file, len })
    }

    /// Returns the memfd, which the program maps. Its size is sealed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always returns false: [`create`](Self::create) refuses a length of 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps these parts of the arena one after the other, makes their pages present, and locks them if
    /// [`ViewConfig::lock`] is true. Parts are whole pages and may overlap. Blocks, for seconds if they are large: must
    /// not be called on a worker. `go_on` is called before each piece of at most 16 MiB and after the last piece. The
    /// call fails if `go_on` returns false.
    ///
    /// # Errors
    /// A part is not within the arena, `parts` is empty, the memory is not available, the bound of `maps` is reached,
    /// or `go_on` has returned false ([`MemoryError::Cancelled`]). A failure to lock is not an error.
    pub fn view(
        &self,
        parts: &[Range<u64>],
        config: ViewConfig,
        maps: &Maps,
        go_on: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Memory, MemoryError> {
        let mut total = 0u64;
        for part in parts {
            let &Range { start, end } = part;
            let is_whole = start.is_multiple_of(page_size()) && end.is_multiple_of(page_size());
            if !is_whole || start >= end || end > self.len {
                return Err(MemoryError::ArenaRange { start, end, len: self.len });
            }
            total = total.saturating_add(end - start);
        }
        checked_len(total)?;
        free_thread::start_thread();
        let permit = maps.permit(parts.len() as u64)?;
        let mapping = Mapping::view(self.file.as_fd(), parts, config.writable)?.with_permit(permit);
        let mut statements = Vec::new();
        let locked = config.lock && mapping.lock(&mut statements);
        mapping.prefault_view(config.writable, &mut |done| match go_on(Progress {
            done: done.min(total),
            total,
        }) {
            true => Ok(()),
            false => Err(MemoryError::Cancelled),
        })?;
        Ok(Memory(Arc::new(Inner {
            mapping,
            len: total,
            stable: true,
            writable: config.writable,
            shared: None,
            locked,
            huge: false,
            is_deferred: true,
            statements,
            charge: OnceLock::new(),
        })))
    }
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

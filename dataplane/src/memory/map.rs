//! One mapping: made, pre-faulted, locked, copied to and from, unmapped. The crate's only unsafe code.
//! Lengths and offsets are bytes; the caller has checked them, debug builds check again.

pub(super) mod kernel;
pub(super) mod pieces;
mod stream;

use std::ffi::c_void;
use std::io::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use wire::crc32c::Target;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

use self::pieces::{Call, called, pieces};
use super::{Continue, MemoryError};

/// The size of a page in bytes that a length is rounded up to with reserved hugepages.
const HUGE_PAGE: usize = 2 << 20;

/// The memory behind a piece is most often copied next, so each copy prefetches as many bytes as the piece has.
///
/// They begin this many bytes behind the piece's begin, or at its end if that lies further. The gap between the end of
/// a small piece and there was prefetched by the pieces before it, if these are of the same message or of a message
/// that lies before it in memory; otherwise nothing prefetches it.
const AHEAD: usize = 4096;

/// The most bytes that are prefetched for one piece: the CPU has few fill buffers and stalls when they are full, and
/// its own prefetcher loads the rest of a long copy.
const MOST: usize = 1536;

/// Mappings of so many bytes and more do not stay in a core's caches while peers fill them: long pieces are written past
/// the caches. A program that reads them finds them in memory, as with a NIC that does not write to a cache.
const STREAMED: usize = 8 << 20;

/// The fewest bytes that are written so: of a short piece the part lines at its ends cost more than the others save.
pub(super) const LEAST_STREAMED: usize = 4096;

/// Readable and writable memory of this process, mapped for as long as the value lives.
pub(super) struct Mapping {
    start: NonNull<u8>,
    /// Bytes mapped, at least those requested.
    len: usize,
}

// SAFETY: the mapping belongs to the value and not to a thread; the pointer stays valid until drop.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference bytes are only copied in and out by raw pointer. Two copies may
// race, also with other processes: the bytes are then a mix, which every user of a region expects.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed memory, in transparent hugepages where there are any. No page is present yet.
    pub(super) fn anonymous(len: usize) -> Result<Mapping, MemoryError> {
        let mapping =
            Mapping::map_anonymous(len, MapFlags::PRIVATE).map_err(|e| refused(len, e))?;
        mapping.advise_huge();
        Ok(mapping)
    }

    /// Private zeroed memory in reserved hugepages, populated: a reserved page that is missing would kill on first touch.
    /// `None` where not enough are free.
    pub(super) fn huge(
        len: usize,
        go_on: Continue<'_>,
        statements: &mut Vec<String>,
    ) -> Result<Option<Mapping>, MemoryError> {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        match Mapping::map_anonymous(len.next_multiple_of(HUGE_PAGE), flags) {
            Ok(mapping) => match mapping.populate(go_on) {
                Ok(()) => return Ok(Some(mapping)),
                Err(MemoryError::Cancelled) => return Err(MemoryError::Cancelled),
                Err(_) => drop(mapping),
            },
            Err(Errno::NOMEM | Errno::INVAL | Errno::NODEV | Errno::PERM) => {}
            Err(error) => return Err(refused(len, error)),
        }
        statements.push(format!(
            "{} hugepages of 2 MiB are not free: the region uses ordinary memory, in transparent \
             hugepages where the kernel has them (reserve some with vm.nr_hugepages)",
            len.div_ceil(HUGE_PAGE)
        ));
        Ok(None)
    }

    /// A mapping of no bytes.
    pub(super) fn none() -> Mapping {
        Mapping { start: NonNull::dangling(), len: 0 }
    }

    /// Bytes, as mapped.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A memory file whose size is sealed, mapped; local programs map it through the descriptor. No page is present yet.
    pub(super) fn shared(name: &str, len: usize) -> Result<(Mapping, OwnedFd), MemoryError> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| match error {
                Errno::INVAL => MemoryError::Name { name: name.to_owned() },
                error => system("making a memory file", error),
            })?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| refused(len, e))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(|e| system("sealing a memory file", e))?;
        // SAFETY: no address is asked for, so nothing that exists is replaced; the file is `len` long
        // and sealed, so no access inside the mapping can meet its end.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, rw(), MapFlags::SHARED, fd.as_fd(), 0)
        }
        .map_err(|e| refused(len, e))?;
        let mapping = Mapping::from_raw(start, len);
        mapping.advise_huge();
        Ok((mapping, fd))
    }

    /// Locks the pages that are present and those to come; where the limit forbids it, adds a statement and returns
    /// false. To be called before the pages are made: then the call is short.
    pub(super) fn lock(&self, statements: &mut Vec<String>) -> bool {
        called(Call::Lock, self.len);
        // SAFETY: the range is this mapping, which stays mapped; locking changes no byte.
        let locked = unsafe {
            rustix::mm::mlock_with(self.start.as_ptr().cast(), self.len, MlockFlags::ONFAULT)
        };
        if let Err(error) = locked {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            let limit = limit.map_or("unlimited".to_owned(), |bytes| format!("{bytes} bytes"));
            statements.push(format!(
                "{} bytes are not locked in memory and may be paged out: {error} (RLIMIT_MEMLOCK is \
                 {limit}; raise it with LimitMEMLOCK= or ulimit -l, or grant CAP_IPC_LOCK)",
                self.len
            ));
        }
        locked.is_ok()
    }

    /// True if pieces of [`LEAST_STREAMED`] bytes and more are written past the caches.
    pub(super) fn is_streamed(&self) -> bool {
        self.len >= STREAMED
    }

    /// Copies `bytes` to `at`, and expects as many to follow there.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len && at <= self.len - bytes.len());
        if bytes.len() >= LEAST_STREAMED && self.is_streamed() {
            // SAFETY: as below.
            return unsafe {
                stream::copy(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len())
            };
        }
        // SAFETY: the destination lies inside the mapping, checked above; `bytes` cannot overlap it,
        // because no reference into a mapping is ever made. Others may race: bytes have no
        // invalid values, and the copy is not relied on to be one.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
        }
        let (ahead, len) = self.ahead(at, bytes.len());
        dpdk::prefetch::write(ahead, len);
    }

    /// Copies `pieces`, one behind the other, past the caches to `at`, where there is `room` for them.
    pub(super) fn write_streamed<'a>(
        &self,
        at: usize,
        room: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) {
        assert!(room <= self.len && at <= self.len - room);
        // SAFETY: as in `write`.
        unsafe { stream::copy_pieces(self.start.as_ptr().add(at), room, pieces) };
    }

    /// Copies from `at` into all of `out`, and expects as many to be wanted next.
    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        assert!(out.len() <= self.len && at <= self.len - out.len());
        // SAFETY: the source lies inside the mapping, checked above; `out` cannot overlap it, because
        // no reference into a mapping is ever made. Others may race, as in `write`.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr().add(at), out.as_mut_ptr(), out.len());
        }
        let (ahead, len) = self.ahead(at, out.len());
        dpdk::prefetch::read(ahead, len);
    }

    /// Copies into `target`, as [`read`](Self::read); `target` takes the bytes copied.
    pub(super) fn read_digested(&self, at: usize, target: &mut Target<'_>) {
        let len = target.source_len();
        assert!(len <= self.len && at <= self.len - len);
        // SAFETY: as in `read`. Each byte that counts is loaded once, stored and digested from there, so the digest is of
        // the copy, also if others write meanwhile; were it not, the peer would find a wrong CRC and no memory be at risk.
        unsafe { target.copy_from(self.start.as_ptr().add(at)) };
        let (ahead, len) = self.ahead(at, len);
        dpdk::prefetch::read(ahead, len);
    }

    /// What to prefetch when `len` bytes at `at` have been copied: as many, [`MOST`] at most.
    fn ahead(&self, at: usize, len: usize) -> (*const u8, usize) {
        let from = (at + len.max(AHEAD)).min(self.len);
        (self.start.as_ptr().wrapping_add(from), len.min(self.len - from).min(MOST))
    }

    /// Replaces the 64 bits at `at`, a multiple of 8, by what `update` makes of them, in one step for
    /// all who do so; returns what they were.
    pub(super) fn fetch_update(&self, at: usize, update: impl Fn(u64) -> u64) -> u64 {
        assert!(at.is_multiple_of(8) && self.len >= 8 && at <= self.len - 8);
        // SAFETY: the eight bytes lie inside the mapping, checked above, which outlives the reference;
        // a mapping begins at a page, so they are aligned. Who else changes them through an atomic is
        // in order with this one. Plain copies may race as they do among themselves (see `Sync`): a
        // peer that mixes them with atomics gets a mix of bytes (RFC 7306 §5), and an atomic has no
        // invalid values.
        let value = unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) };
        let mut original = value.load(Ordering::Relaxed);
        loop {
            let new = update(original);
            match value.compare_exchange_weak(original, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(original) => return original,
                Err(seen) => original = seen,
            }
        }
    }

    #[cfg(test)]
    pub(super) fn start_address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    fn map_anonymous(len: usize, flags: MapFlags) -> Result<Mapping, Errno> {
        // SAFETY: no address is asked for, so nothing that exists is replaced.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, rw(), flags)? };
        Ok(Mapping::from_raw(start, len))
    }

    fn from_raw(start: *mut c_void, len: usize) -> Mapping {
        let start =
            NonNull::new(start.cast()).expect("the kernel maps nothing at address 0 unasked");
        let mapping = Mapping { start, len };
        mapping.leave_out_of_core_dumps();
        mapping
    }

    /// Core dumps leave the bytes of peers out.
    fn leave_out_of_core_dumps(&self) {
        // SAFETY: the range is this mapping; the advice concerns core dumps and changes no byte.
        let asked = unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump)
        };
        debug_assert!(asked.is_ok(), "{asked:?}");
    }

    /// Asks for transparent hugepages; a kernel without them says no, and nothing is lost.
    fn advise_huge(&self) {
        // SAFETY: the range is this mapping; the advice changes how it is backed and no byte.
        let asked = unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage)
        };
        debug_assert!(matches!(asked, Ok(()) | Err(Errno::INVAL)), "{asked:?}");
    }

    /// Makes every page present and writable, so that no later access faults for want of memory.
    pub(super) fn prefault(&self, go_on: Continue<'_>) -> Result<(), MemoryError> {
        let len = self.len;
        self.populate(&mut |done| {
            // The OOM killer ends a process that populates more memory than there is, if memory is overcommitted.
            let left = (len as u64).saturating_sub(done);
            if left > 0 && available().is_some_and(|bytes| bytes < left) {
                return Err(refused(len, Errno::NOMEM));
            }
            go_on(done)
        })
    }

    /// `go_on` is called before each piece, and at the end.
    fn populate(&self, go_on: Continue<'_>) -> Result<(), MemoryError> {
        for piece in pieces(self.len) {
            go_on(piece.start as u64)?;
            self.populate_piece(piece.start, piece.len())?;
        }
        go_on(self.len as u64)
    }

    fn populate_piece(&self, at: usize, len: usize) -> Result<(), MemoryError> {
        called(Call::Populate, len);
        // SAFETY: the range is a part of this mapping; populating for writing changes no byte.
        let populated = unsafe {
            let start = self.start.as_ptr().add(at).cast();
            rustix::mm::madvise(start, len, Advice::LinuxPopulateWrite)
        };
        match populated {
            Ok(()) => Ok(()),
            // Before Linux 5.14.
            Err(Errno::INVAL) => {
                self.touch(at, len);
                Ok(())
            }
            Err(error) => Err(refused(self.len, error)),
        }
    }

    fn touch(&self, from: usize, len: usize) {
        for at in (from..from + len).step_by(4096) {
            // SAFETY: `at` lies inside the mapping; it is new, nobody else has its bytes yet.
            unsafe { self.start.as_ptr().add(at).write_volatile(0) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unmapping from the end leaves one range at any time.
        for piece in pieces(self.len).rev() {
            called(Call::Unmap, piece.len());
            // SAFETY: the range is the last part of what is still mapped, and no pointer into it is kept anywhere.
            let unmapped = unsafe {
                let start = self.start.as_ptr().add(piece.start).cast();
                rustix::mm::munmap(start, piece.len())
            };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

fn rw() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

fn system(what: &'static str, error: Errno) -> MemoryError {
    MemoryError::System { what, error: Error::from(error) }
}

fn refused(len: usize, error: Errno) -> MemoryError {
    match error {
        Errno::NOMEM | Errno::FAULT | Errno::FBIG => {
            MemoryError::NoMemory { len: len as u64, available: available().unwrap_or(0) }
        }
        error => system("mapping memory", error),
    }
}

/// Bytes that the kernel thinks can be had without swapping, if it reports that.
fn available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map(|kib| kib * 1024)
}

//! A mapping of region memory: creation, pre-faulting, locking, copies in and out, unmapping. Not included: access
//! rights, and the memory's lifetime ([`Memory`](super::Memory)). Lengths and offsets are in bytes. Each copy asserts,
//! in release builds too, that its bytes lie inside the mapping.

pub(super) mod kernel;
pub(super) mod maps;
pub(super) mod pieces;
mod stream;

use std::ffi::c_void;
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use wire::crc32c::Target;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};
use verbs_layout::Word;

use self::maps::{Permit, Slot};
use self::pieces::{KernelCall, pieces, record_call};
use super::{MemoryError, ProgressCallback};

/// Length of a reserved hugepage, bytes. The length of a mapping in reserved hugepages is a multiple of it.
const HUGE_PAGE: usize = 2 << 20;

/// Minimum distance in bytes from the start of a copied piece to the start of the range that is prefetched after the
/// copy. After a piece longer than this distance, the range begins at the end of the piece.
///
/// A transfer usually copies ascending addresses, so each copy prefetches memory for a later copy: as many bytes as the
/// piece has, at most [`MAX_PREFETCH`]. Earlier copies have prefetched the bytes between the piece and the range,
/// except in the first `PREFETCH_DISTANCE` bytes of a transfer.
const PREFETCH_DISTANCE: usize = 4096;

/// Maximum number of bytes prefetched for one piece. Prefetches of more cache lines than the CPU has line fill
/// buffers would stall the CPU. The hardware prefetcher loads the rest of a long copy.
const MAX_PREFETCH: usize = 1536;

/// Mappings of at least this many bytes do not stay in a core's caches while peers fill them, so long pieces are
/// written by non-temporal stores. Programs then read the data from memory, as with a NIC whose DMA bypasses the
/// caches.
const MIN_STREAMED_MAPPING: usize = 8 << 20;

/// Shortest piece in bytes that is written by non-temporal stores. In shorter pieces the partial cache lines at both
/// ends cost more than the whole lines save.
pub(super) const MIN_STREAMED_LEN: usize = 4096;

/// A range of mapped memory of this process, writable except in a read-only view. On drop the range is unmapped; if it
/// is a slot of a slab, only its pages are freed.
pub(super) struct Mapping {
    start: NonNull<u8>,
    /// Length of the mapping in bytes, at least the requested length.
    len: usize,
    hold: Hold,
}

/// Resources that a mapping owns, released after the mapping is unmapped or, for a slot, after its pages are freed.
enum Hold {
    /// No resource: the mapping is empty, or does not count against the bound of mappings ([`maps::Maps`]).
    Nothing,
    /// A whole mapping that counts against the bound of mappings.
    Counted { _permit: Permit },
    /// A slot of a slab. Its pages are freed on drop, and the slab stays mapped.
    Part { _slot: Slot },
}

// SAFETY: the mapping belongs to the value and not to a thread; the pointer is valid until drop.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference, bytes are only copied in and out by raw pointer or updated as atomics, and no
// slice of them exists. Two copies may race, also with other processes. The bytes are then a mix of both, which every
// user of a region must expect.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps private zeroed memory, in transparent hugepages where available. No page is present yet.
    pub(super) fn anonymous(len: usize) -> Result<Mapping, MemoryError> {
        let mapping =
            Mapping::map_anonymous(len, MapFlags::PRIVATE).map_err(|e| allocation_error(len, e))?;
        mapping.advise(Advice::LinuxHugepage);
        Ok(mapping)
    }

    /// Maps and populates private zeroed memory in reserved hugepages. If too few hugepages are free, returns `None`
    /// and adds a message for the operator to `statements`. Pages are populated here, because a later first access
    /// would end the process with SIGBUS if no hugepage is free.
    pub(super) fn huge(
        len: usize,
        go_on: ProgressCallback<'_>,
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
            Err(error) => return Err(allocation_error(len, error)),
        }
        statements.push(format!(
            "{} hugepages of 2 MiB are not free: the region uses ordinary memory, in transparent \
             hugepages where the kernel has them (reserve some with vm.nr_hugepages)",
            len.div_ceil(HUGE_PAGE)
        ));
        Ok(None)
    }

    pub(super) fn empty() -> Mapping {
        Mapping { start: NonNull::dangling(), len: 0, hold: Hold::Nothing }
    }

    /// Maps a slab: private zeroed memory in ordinary pages, because the pages of each slot are freed separately. No
    /// page is present yet.
    pub(super) fn slab(len: usize) -> Result<Mapping, MemoryError> {
        let mapping =
            Mapping::map_anonymous(len, MapFlags::PRIVATE).map_err(|e| allocation_error(len, e))?;
        mapping.advise(Advice::LinuxNoHugepage);
        Ok(mapping)
    }

    /// Attaches the permit, which is released after the memory is unmapped.
    pub(super) fn with_permit(mut self, permit: Permit) -> Mapping {
        self.hold = Hold::Counted { _permit: permit };
        self
    }

    /// Returns the `len` bytes at `at` of this slab, which stays mapped until `slot` is dropped. `at` is a multiple of
    /// the page size, and the pages of these bytes belong to no other slot.
    pub(super) fn slot(&self, at: usize, len: usize, slot: Slot) -> Mapping {
        assert!(len <= self.len && at <= self.len - len);
        // SAFETY: `at` lies inside the mapping or at its end, checked above.
        let start = unsafe { self.start.add(at) };
        Mapping { start, len, hold: Hold::Part { _slot: slot } }
    }

    /// Returns the address of the first byte.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Creates and maps a memfd whose size is sealed. Local programs map it through the returned descriptor. No page is
    /// present yet.
    pub(super) fn shared(name: &str, len: usize) -> Result<(Mapping, OwnedFd), MemoryError> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| match error {
                Errno::INVAL => MemoryError::Name { name: name.to_owned() },
                error => system_error("making a memory file", error),
            })?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| allocation_error(len, e))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)
            .map_err(|e| system_error("sealing a memory file", e))?;
        // SAFETY: no address is requested, so no existing mapping is replaced; the file is `len` long and sealed,
        // so no access inside the mapping passes the end of the file.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, read_write(), MapFlags::SHARED, fd.as_fd(), 0)
        }
        .map_err(|e| allocation_error(len, e))?;
        let mapping = Mapping::from_raw(start, len);
        mapping.advise(Advice::LinuxHugepage);
        Ok((mapping, fd))
    }

    /// Maps parts of a program's arena one after the other: the first byte of each part follows the last byte of the
    /// previous part. No page is made present. Offsets and lengths of `parts` are multiples of the page size and lie
    /// within the file, whose size is sealed.
    pub(super) fn view(
        file: BorrowedFd<'_>,
        parts: &[Range<u64>],
        writable: bool,
    ) -> Result<Mapping, MemoryError> {
        let len = parts.iter().map(|part| part.end - part.start).sum::<u64>() as usize;
        // SAFETY: no address is requested, so no existing mapping is replaced. The range has no access rights.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let mapping = Mapping::from_raw(start.map_err(|e| allocation_error(len, e))?, len);
        let rights = if writable { read_write() } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let mut at = 0;
        for part in parts {
            let len = (part.end - part.start) as usize;
            // SAFETY: `at..at + len` lies inside the new range, whose length is the sum of all parts. Only this part of
            // the range is replaced. The file is sealed, so no access inside the mapping passes its end.
            unsafe {
                let place = mapping.start.as_ptr().add(at).cast();
                rustix::mm::mmap(place, len, rights, flags, file, part.start)
            }
            .map_err(|e| allocation_error(len, e))?;
            at += len;
        }
        mapping.exclude_from_core_dumps();
        Ok(mapping)
    }

    /// Returns the mapped memory as words that this process and a program access atomically.
    pub(super) fn words(&self) -> &[Word] {
        let start = self.start.as_ptr().cast::<Word>();
        // SAFETY: these words lie inside the mapping, which outlives the reference, and a mapping is page-aligned. They
        // are atomics, so that writes of the program do not break the shared reference. A mapping with queues is never
        // region memory, so this process does not copy to it by pointer.
        unsafe { std::slice::from_raw_parts(start, self.len / size_of::<Word>()) }
    }

    /// Locks present and future pages. If the kernel refuses, usually because of RLIMIT_MEMLOCK, adds a message for the
    /// operator to `statements` and returns false. Called before the pages are populated: the kernel then has no
    /// present pages to visit. A slot returns true at once, because its slab is already locked.
    pub(super) fn lock(&self, statements: &mut Vec<String>) -> bool {
        if let Hold::Part { .. } = self.hold {
            return true;
        }
        record_call(KernelCall::Lock, self.len);
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

    /// Returns true if pieces of at least [`MIN_STREAMED_LEN`] bytes are written by non-temporal stores.
    pub(super) fn is_streamed(&self) -> bool {
        self.len >= MIN_STREAMED_MAPPING
    }

    /// Copies `bytes` to offset `at`. Prefetches memory for the next write, unless the copy uses non-temporal stores.
    ///
    /// # Panics
    /// If the bytes do not lie inside the mapping.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len && at <= self.len - bytes.len());
        if bytes.len() >= MIN_STREAMED_LEN && self.is_streamed() {
            // SAFETY: the destination lies inside the mapping, checked above. `bytes` cannot overlap the destination,
            // because no slice of a mapping is ever created.
            return unsafe {
                stream::copy(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len())
            };
        }
        // SAFETY: the destination lies inside the mapping, checked above. `bytes` cannot overlap the destination,
        // because no slice of a mapping is ever created. Other copies may race: bytes have no invalid values, and no
        // caller relies on an atomic copy.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
        }
        let (ahead, len) = self.prefetch_range(at, bytes.len());
        dpdk::prefetch::write(ahead, len);
    }

    /// Copies the concatenated `pieces`, at most `room` bytes in total, to offset `at` by non-temporal stores.
    ///
    /// # Panics
    /// If `room` bytes at `at` do not lie inside the mapping, or the pieces have more than `room` bytes in total.
    pub(super) fn write_streamed<'a>(
        &self,
        at: usize,
        room: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) {
        assert!(room <= self.len && at <= self.len - room);
        // SAFETY: `room` bytes at `at` lie inside the mapping, checked above. The pieces cannot overlap these bytes,
        // because no slice of a mapping is ever created.
        unsafe { stream::copy_pieces(self.start.as_ptr().add(at), room, pieces) };
    }

    /// Copies the bytes at offset `at` to `out` and prefetches memory for the next read.
    ///
    /// # Panics
    /// If the bytes do not lie inside the mapping.
    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        assert!(out.len() <= self.len && at <= self.len - out.len());
        // SAFETY: the source lies inside the mapping, checked above. `out` cannot overlap the source, because no
        // slice of a mapping is ever created. Other copies may race, as in `write`.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr().add(at), out.as_mut_ptr(), out.len());
        }
        let (ahead, len) = self.prefetch_range(at, out.len());
        dpdk::prefetch::read(ahead, len);
    }

    /// Copies the bytes at offset `at` to `target`, which computes their digest, and prefetches memory for the next
    /// read.
    ///
    /// # Panics
    /// If the bytes do not lie inside the mapping.
    pub(super) fn read_digested(&self, at: usize, target: &mut Target<'_>) {
        let len = target.source_len();
        assert!(len <= self.len && at <= self.len - len);
        // SAFETY: the source lies inside the mapping, checked above, and cannot overlap `target`, as in `read`. Each
        // byte is loaded once and digested as stored, so the digest matches the copy even if others write meanwhile.
        // A mismatch would only produce a wrong CRC and no invalid access.
        unsafe { target.copy_from(self.start.as_ptr().add(at)) };
        let (ahead, len) = self.prefetch_range(at, len);
        dpdk::prefetch::read(ahead, len);
    }

    /// Returns start and length of the range to prefetch after a copy of `len` bytes at `at`. The length is `len`, at
    /// most [`MAX_PREFETCH`], and the range does not pass the end of the mapping.
    fn prefetch_range(&self, at: usize, len: usize) -> (*const u8, usize) {
        let from = (at + len.max(PREFETCH_DISTANCE)).min(self.len);
        (self.start.as_ptr().wrapping_add(from), len.min(self.len - from).min(MAX_PREFETCH))
    }

    /// Atomically replaces the 64-bit word at `at`, a multiple of 8, by `update` of the old value. Returns the old
    /// value.
    ///
    /// # Panics
    /// If `at` is not a multiple of 8, or the word does not lie inside the mapping.
    pub(super) fn fetch_update(&self, at: usize, update: impl Fn(u64) -> u64) -> u64 {
        assert!(at.is_multiple_of(8) && self.len >= 8 && at <= self.len - 8);
        // SAFETY: the eight bytes lie inside the mapping (checked above), which outlives the reference. They are
        // aligned, because a mapping is page-aligned. Plain copies may race with this access, as they do among
        // themselves (see `Sync`). A peer that mixes copies with atomics reads a mix of bytes (RFC 7306 §5). An atomic
        // has no invalid values.
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

    fn map_anonymous(len: usize, flags: MapFlags) -> Result<Mapping, Errno> {
        // SAFETY: no address is requested, so no existing mapping is replaced.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, read_write(), flags)? };
        Ok(Mapping::from_raw(start, len))
    }

    fn from_raw(start: *mut c_void, len: usize) -> Mapping {
        let start =
            NonNull::new(start.cast()).expect("the kernel never chooses address 0 for a mapping");
        let mapping = Mapping { start, len, hold: Hold::Nothing };
        mapping.exclude_from_core_dumps();
        mapping
    }

    /// Excludes the mapping, which holds peers' bytes, from core dumps.
    fn exclude_from_core_dumps(&self) {
        // SAFETY: the range is this mapping; the advice concerns core dumps and changes no byte.
        let advised = unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump)
        };
        debug_assert!(advised.is_ok(), "{advised:?}");
    }

    /// Advises for or against transparent hugepages. A kernel without support returns EINVAL, which is ignored.
    fn advise(&self, advice: Advice) {
        // SAFETY: the range is this mapping; the advice changes how the range is backed, and no byte.
        let advised = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, advice) };
        debug_assert!(matches!(advised, Ok(()) | Err(Errno::INVAL)), "{advised:?}");
    }

    /// Makes every page present and writable, so that no later access faults for lack of memory.
    pub(super) fn prefault(&self, on_progress: ProgressCallback<'_>) -> Result<(), MemoryError> {
        let len = self.len;
        self.populate(&mut |done| {
            // With memory overcommit, populating more than is available would invoke the OOM killer.
            let remaining = (len as u64).saturating_sub(done);
            if remaining > 0 && available_memory().is_some_and(|bytes| bytes < remaining) {
                return Err(allocation_error(len, Errno::NOMEM));
            }
            on_progress(done)
        })
    }

    /// Populates all pieces. Before each piece and at the end, calls `on_progress` with the number of populated bytes.
    fn populate(&self, on_progress: ProgressCallback<'_>) -> Result<(), MemoryError> {
        for piece in pieces(self.len) {
            on_progress(piece.start as u64)?;
            self.populate_piece(piece.start, piece.len())?;
        }
        on_progress(self.len as u64)
    }

    /// Makes every page of a view present, so that no later access faults unless the program frees pages. Other
    /// processes may use the bytes meanwhile.
    pub(super) fn prefault_view(
        &self,
        writable: bool,
        on_progress: ProgressCallback<'_>,
    ) -> Result<(), MemoryError> {
        let advice = match writable {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        for piece in pieces(self.len) {
            on_progress(piece.start as u64)?;
            self.advise_populate(piece.start, piece.len(), advice)
                .map_err(|error| allocation_error(self.len, error))?;
        }
        on_progress(self.len as u64)
    }

    fn advise_populate(&self, at: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        record_call(KernelCall::Populate, len);
        // SAFETY: the range is a part of this mapping; populating changes no byte.
        unsafe { rustix::mm::madvise(self.start.as_ptr().add(at).cast(), len, advice) }
    }

    fn populate_piece(&self, at: usize, len: usize) -> Result<(), MemoryError> {
        let populated = self.advise_populate(at, len, Advice::LinuxPopulateWrite);
        match populated {
            Ok(()) => Ok(()),
            // Kernels before Linux 5.14 lack MADV_POPULATE_WRITE.
            Err(Errno::INVAL) => {
                self.touch_pages(at, len);
                Ok(())
            }
            Err(error) => Err(allocation_error(self.len, error)),
        }
    }

    fn touch_pages(&self, from: usize, len: usize) {
        for at in (from..from + len).step_by(4096) {
            // SAFETY: `at` lies inside the mapping, whose bytes are still zero and not accessed by anyone else, because
            // the mapping is new.
            unsafe { self.start.as_ptr().add(at).write_volatile(0) };
        }
    }
}

impl Mapping {
    /// Frees the pages of a slot. Pages that become present again contain zeros.
    fn free_pages(&self) {
        // SAFETY: the range belongs to this slot and begins at a page boundary. The kernel rounds its end up to a whole
        // page, and these pages belong to no other slot. No pointer into them remains.
        let freed = unsafe {
            let start = self.start.as_ptr().cast();
            rustix::mm::madvise(start, self.len, Advice::LinuxDontneedLocked)
        };
        if freed.is_err() {
            self.zero();
        }
    }

    /// Zeroes the bytes of a slot whose pages the kernel does not free. Kernels before Linux 5.18 cannot free locked
    /// pages; the pages stay present until the slab is unmapped.
    pub(super) fn zero(&self) {
        // SAFETY: the bytes belong to this mapping, and no other code accesses them.
        unsafe { self.start.as_ptr().write_bytes(0, self.len) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Hold::Part { .. } = self.hold {
            return self.free_pages();
        }
        // Unmapping from the end keeps the rest one contiguous range.
        for piece in pieces(self.len).rev() {
            record_call(KernelCall::Unmap, piece.len());
            // SAFETY: the range is the end of the remaining mapping, and no pointer into it remains.
            let unmapped = unsafe {
                let start = self.start.as_ptr().add(piece.start).cast();
                rustix::mm::munmap(start, piece.len())
            };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

fn read_write() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

pub(super) fn system_error(action: &'static str, error: Errno) -> MemoryError {
    MemoryError::System { what: action, error: Error::from(error) }
}

pub(super) fn allocation_error(len: usize, error: Errno) -> MemoryError {
    match error {
        Errno::NOMEM | Errno::FAULT | Errno::FBIG => {
            MemoryError::NoMemory { len: len as u64, available: available_memory().unwrap_or(0) }
        }
        error => system_error("mapping memory", error),
    }
}

/// Returns the bytes that the kernel estimates to be available without swapping (`MemAvailable`); `None` if unknown.
fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map(|kib| kib * 1024)
}

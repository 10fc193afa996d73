//! Region memory: the memory that peers write to and read from.
//!
//! A [`Memory`] is a handle on one mapping, cheap to clone and shared by all workers' replicas of the STag table. The
//! mapping is freed with the last handle. It is pre-faulted when it is created, so that a worker's access does not
//! cause a page fault, and locked if RLIMIT_MEMLOCK allows. One exception: a local program can punch holes into shared
//! memory. A worker's next access to a hole takes a page fault and reads zeros. [`Memory::statements`] lists requested
//! properties that are missing.
//!
//! The mapping never grows, shrinks or moves. Pages are populated and freed piece by piece, so that calls of the kernel
//! do not block the rest of the process. Large memory is freed on a dedicated thread. Small memory is a slot in a
//! shared mapping, and the number of mappings is bounded ([`Maps`]).
//!
//! Peers, local programs and other workers may access the same bytes at the same time. So no references into a mapping
//! exist except to atomics. All other access is by copies through raw pointers, after a check that offset and length
//! lie inside the mapping.
//!
//! All `unsafe` code of the crate is in this module. Not included: access rights of peers (`ddp`), and writing a
//! staged file back (`control`).

mod arena;
mod free_thread;
mod map;
mod queue_area;
pub mod ring;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use arena::{Arena, ViewConfig};
use arrayvec::ArrayVec;
use ddp::memory::{AtomicError, RegionMemory};
use free_thread::MemoryResources;
pub use map::kernel::CopyKernel;
pub use map::maps::{Maps, SHARED_MAPS, SLOTS, SMALL_MEMORY};
use map::{MIN_STREAMED_LEN, Mapping};
pub use queue_area::{
    CompletionProducer, DoorbellScanner, QueueArea, QueueError, RingConsumer, SharedRing,
};
use verbs_layout::session::AreaError;
use wire::crc32c::Target;

/// Backing of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private memory of this process, in transparent hugepages where available.
    Anonymous,
    /// Private memory in reserved hugepages. If too few are free, the memory is `Anonymous`, and [`Memory::statements`]
    /// has a message.
    Huge,
    /// A memfd with a sealed size, which local programs can map through its descriptor. `name` appears in
    /// `/proc/PID/maps`.
    Shared {
        /// Name, at most 249 bytes, no NUL.
        name: String,
    },
    /// Private memory initialised from a file. The caller writes the memory back to the file.
    Staged {
        /// The file. If it is shorter than the region, zeros fill the rest.
        path: PathBuf,
    },
}

/// Parameters of a region's memory.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Kind of the pages, and their initial content.
    pub backing: Backing,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// True if peers may write to the region, or if it is the data sink of our Reads and atomics. The bytes of these
    /// regions, and of `Shared` regions, can change while a message is being sent from them, so sent bytes are copied
    /// for retransmission.
    pub remote_write: bool,
    /// True to lock the pages in memory (`mlock`).
    pub lock: bool,
}

/// Reason why memory could not be prepared. Its text is one sentence for the operator.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The requested length is 0.
    #[error("a region of 0 bytes cannot be made; give it a size of at least 1")]
    Empty,
    /// The length exceeds the address space.
    #[error("a region of {len} bytes is larger than this machine can address")]
    TooLarge {
        /// Requested length, bytes.
        len: u64,
    },
    /// The machine has too little memory.
    #[error(
        "{len} bytes of memory are not available (available: {available}); make the region smaller or add memory"
    )]
    NoMemory {
        /// Requested length, bytes.
        len: u64,
        /// Available bytes (`MemAvailable` of `/proc/meminfo`).
        available: u64,
    },
    /// The process would have too many mappings.
    #[error(
        "memory mappings: {number} more needed, and {in_use} of the {bound} that vm.max_map_count leaves to regions and jobs \
         are in use: remove regions, or raise vm.max_map_count (sysctl -w) and restart"
    )]
    TooManyMaps {
        /// Mappings requested.
        number: u64,
        /// Mappings in use.
        in_use: u64,
        /// Maximum number of mappings.
        bound: u64,
    },
    /// The name of the memfd is invalid.
    #[error("the shared memory name {name:?} is too long or contains a NUL byte")]
    Name {
        /// The rejected name.
        name: String,
    },
    /// The file of a staged region cannot be read.
    #[error("the file {path} cannot be read: {error}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file is longer than the region.
    #[error(
        "the file {path} has {file_len} bytes, more than the region's {len}; make the region larger"
    )]
    FileTooLong {
        /// Path of the file.
        path: PathBuf,
        /// Length of the file in bytes.
        file_len: u64,
        /// Length of the region in bytes.
        len: u64,
    },
    /// The file ended before the length in its metadata.
    #[error(
        "the file {path} ended after {read} of its {file_len} bytes: it became shorter, or its stated length is wrong, as in \
         /proc and /sys; copy it first"
    )]
    FileTooShort {
        /// Path of the file.
        path: PathBuf,
        /// Length in bytes from its metadata.
        file_len: u64,
        /// Bytes read before the end.
        read: u64,
    },
    /// The requested range does not lie within the program's arena.
    #[error("bytes {start} to {end} are not whole pages within an arena of {len} bytes")]
    ArenaRange {
        /// Offset of the first byte.
        start: u64,
        /// Offset of the byte after the last.
        end: u64,
        /// Length of the arena in bytes.
        len: u64,
    },
    /// The length of an area of queues is refused.
    #[error("an area of {len} bytes for queues: {error}")]
    QueueArea {
        /// Requested length, bytes.
        len: u64,
        /// The layout's error.
        error: AreaError,
    },
    /// The caller cancelled the preparation.
    #[error("cancelled while its memory was prepared")]
    Cancelled,
    /// Another system call failed.
    #[error("{what} failed: {error}")]
    System {
        /// The failed action, in words.
        what: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Callback that receives the number of bytes ready so far, before each piece of the memory and at the end. An error
/// cancels the preparation.
type ProgressCallback<'a> = &'a mut dyn FnMut(u64) -> Result<(), MemoryError>;

/// Progress of a preparation: the region's bytes are populated, then the bytes of a staged file are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Number of bytes populated and read so far.
    pub done: u64,
    /// Number of bytes to populate and to read, at least 1.
    pub total: u64,
}

/// A handle on a region's memory. Clones refer to the same memory.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    mapping: Mapping,
    len: u64,
    /// True if sent bytes need no copy for retransmission: see [`RegionMemory::is_stable`].
    stable: bool,
    /// False for a view whose bytes only the program writes.
    writable: bool,
    /// The memfd of `Shared` memory.
    shared: Option<OwnedFd>,
    locked: bool,
    /// True if the mapping is in reserved hugepages.
    huge: bool,
    /// True if the memory is freed on the free thread.
    is_deferred: bool,
    statements: Vec<String>,
    /// Value attached by the caller, dropped after the mapping; see [`Memory::with_charge`].
    charge: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Memory {
    /// Prepares memory as [`prepare`](Self::prepare) does, without progress reports, cancellation or bound of mappings.
    ///
    /// # Errors
    /// The length is refused, the memory is not available, or the file cannot be read or is longer than the region.
    pub fn new(config: &MemoryConfig) -> Result<Memory, MemoryError> {
        Memory::prepare(config, &Maps::default(), &mut |_| true)
    }

    /// Returns memory of 0 bytes, which needs no mapping.
    pub fn empty() -> Memory {
        Memory(Arc::new(Inner {
            mapping: Mapping::empty(),
            len: 0,
            stable: false,
            writable: true,
            shared: None,
            locked: false,
            huge: false,
            is_deferred: false,
            statements: Vec::new(),
            charge: OnceLock::new(),
        }))
    }

    /// Maps, locks, pre-faults and fills the memory. The call blocks, for seconds if the memory is large, so workers
    /// must not use it. `go_on` is called before each piece of at most 16 MiB and after the last piece. If it returns
    /// false, the preparation ends.
    ///
    /// # Errors
    /// The length is refused, the memory is not available, the bound of `maps` is reached, the file cannot be read or
    /// is longer than the region, or `go_on` returned false ([`MemoryError::Cancelled`]).
    pub fn prepare(
        config: &MemoryConfig,
        maps: &Maps,
        go_on: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Memory, MemoryError> {
        let len = checked_len(config.len)?;
        if len >= free_thread::MIN_DEFERRED_BYTES {
            free_thread::start_thread();
        }
        let file = match &config.backing {
            Backing::Staged { path } => Some(StagedFile::open(path, len)?),
            _ => None,
        };
        let total = config.len + file.as_ref().map_or(0, |file| file.len);
        let mut go_on = |done: u64| match go_on(Progress { done: done.min(total), total }) {
            true => Ok(()),
            false => Err(MemoryError::Cancelled),
        };
        let mut statements = Vec::new();
        let Mapped { mapping, shared, populated } =
            map(config, len, maps, &mut go_on, &mut statements)?;
        let locked = config.lock && mapping.lock(&mut statements);
        if !populated {
            mapping.prefault(&mut go_on)?;
        }
        if let Some(file) = file {
            file.read_into(&mapping, &mut |read| go_on(config.len + read))?;
        }
        let huge = populated;
        let stable = shared.is_none() && !config.remote_write;
        Ok(Memory(Arc::new(Inner {
            mapping,
            len: config.len,
            stable,
            writable: true,
            shared,
            locked,
            huge,
            is_deferred: len >= free_thread::MIN_DEFERRED_BYTES,
            statements,
            charge: OnceLock::new(),
        })))
    }

    /// Attaches `charge`, such as a share of a memory budget. The charge is dropped after the last handle was dropped
    /// and the memory was unmapped. A memory has at most one charge: a second charge is dropped at once.
    pub fn with_charge(self, charge: impl Any + Send + Sync) -> Memory {
        // If a charge is attached already, `set` drops the new one.
        let _ = self.0.charge.set(Box::new(charge));
        self
    }

    /// Drops this handle. If it is the last one, the memory is freed before the call returns. The call blocks, so
    /// workers must not use it.
    pub fn free(self) {
        if let Some(mut inner) = Arc::into_inner(self.0) {
            inner.take_resources().free();
        }
    }

    #[cfg(test)]
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns true if the memory is in reserved hugepages.
    pub fn is_huge(&self) -> bool {
        self.0.huge
    }

    /// Returns the memfd of a `Shared` region, to be passed to local programs. Its size is sealed.
    pub fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.shared.as_ref().map(AsFd::as_fd)
    }

    /// Returns true if the pages are locked, so that they cannot be paged out.
    pub fn is_locked(&self) -> bool {
        self.0.locked
    }

    /// Returns one sentence for the operator about each requested property that is missing (hugepages, locking).
    pub fn statements(&self) -> &[String] {
        &self.0.statements
    }

    /// Returns true if `offset..offset + len` lies inside the memory.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.0.len)
    }

    /// Writes as [`RegionMemory::write`] does, with the given copy kernel, which the CPU must support. For benchmarks.
    pub fn write_with(&self, kernel: CopyKernel, offset: u64, bytes: &[u8]) {
        let at = self.check(offset, bytes.len());
        self.0.mapping.write_with(kernel, at, bytes);
    }

    /// Reads as [`RegionMemory::read`] does, with the given copy kernel, which the CPU must support. For benchmarks.
    pub fn read_with(&self, kernel: CopyKernel, offset: u64, out: &mut [u8]) {
        let at = self.check(offset, out.len());
        self.0.mapping.read_with(kernel, at, out);
    }

    fn check(&self, offset: u64, len: usize) -> usize {
        assert!(
            self.contains(offset, len as u64),
            "copy of {len} bytes at {offset} outside a region of {} bytes",
            self.0.len
        );
        offset as usize
    }
}

/// Waits until all memory whose last handle was dropped before this call is freed. Blocks. For tests and fuzz targets.
#[doc(hidden)]
pub fn wait_for_frees() {
    free_thread::wait();
}

impl Inner {
    /// Takes the resources to be freed and leaves an empty mapping.
    fn take_resources(&mut self) -> MemoryResources {
        let mapping = std::mem::replace(&mut self.mapping, Mapping::empty());
        MemoryResources { mapping, shared: self.shared.take(), charge: self.charge.take() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The last handle may be dropped by a worker or by the control thread, which must not wait for the kernel.
        if self.is_deferred {
            free_thread::free_deferred(self.take_resources());
        }
    }
}

impl RegionMemory for Memory {
    fn len(&self) -> u64 {
        self.0.len
    }

    #[inline]
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let at = self.check(offset, bytes.len());
        self.0.mapping.write(at, bytes);
    }

    #[inline]
    fn write_pieces<'a>(
        &self,
        offset: u64,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        if self.0.mapping.is_streamed() {
            if len >= MIN_STREAMED_LEN && pieces.clone().nth(1).is_some() {
                let room = (self.0.len - self.check(offset, 0) as u64) as usize;
                return self.0.mapping.write_streamed(offset as usize, room, pieces);
            }
        } else if (MIN_GATHER_LEN..=MAX_GATHER_LEN).contains(&len)
            && pieces.clone().nth(1).is_some()
        {
            return self.write_gathered(offset, pieces);
        }
        let mut at = offset;
        for piece in pieces {
            self.write(at, piece);
            at += piece.len() as u64;
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        let at = self.check(offset, out.len());
        self.0.mapping.read(at, out);
    }

    fn read_digested(&self, offset: u64, target: &mut Target<'_>) {
        let at = self.check(offset, target.source_len());
        self.0.mapping.read_digested(at, target);
    }

    fn fetch_update_u64(
        &self,
        offset: u64,
        update: impl Fn(u64) -> u64,
    ) -> Result<u64, AtomicError> {
        if !self.contains(offset, 8) {
            return Err(AtomicError::OutOfBounds);
        }
        // Mappings are page-aligned, so an aligned offset is an aligned address.
        if !offset.is_multiple_of(8) {
            return Err(AtomicError::Unaligned);
        }
        Ok(self.0.mapping.fetch_update(offset as usize, update))
    }

    fn is_stable(&self) -> bool {
        self.0.stable
    }

    fn is_writable(&self) -> bool {
        self.0.writable
    }
}

/// Minimum length in bytes of a payload in several pieces that is gathered in a buffer and copied as one piece. On some
/// CPUs memcpy copies this many bytes with a string instruction, which fills cache lines without fetching them first.
/// The saving exceeds the cost of the additional copy in the L1 cache. Shorter copies and copies by non-temporal stores
/// are not gathered, because they would save nothing.
const MIN_GATHER_LEN: usize = 8192;

/// Maximum number of bytes that are gathered: one jumbo frame.
const MAX_GATHER_LEN: usize = 9216;

impl Memory {
    /// Writes `pieces` in one copy if they have at most [`MAX_GATHER_LEN`] bytes in total, otherwise in several. Not
    /// inlined, so that other paths do not reserve its stack buffer.
    #[inline(never)]
    fn write_gathered<'a>(&self, offset: u64, pieces: impl Iterator<Item = &'a [u8]>) {
        let mut whole = ArrayVec::<u8, MAX_GATHER_LEN>::new();
        let mut at = offset;
        for piece in pieces {
            if whole.try_extend_from_slice(piece).is_err() {
                // `pieces` may have more bytes than the `len` by which the caller selected this path.
                self.write(at, &whole);
                at += whole.len() as u64;
                whole.clear();
                self.write(at, piece);
                at += piece.len() as u64;
            }
        }
        self.write(at, &whole);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("len", &self.0.len)
            .field("stable", &self.0.stable)
            .field("shared", &self.0.shared.is_some())
            .finish()
    }
}

/// A new mapping of a region, with its memfd and the state of its pages.
struct Mapped {
    mapping: Mapping,
    /// The memfd of `Shared` memory.
    shared: Option<OwnedFd>,
    /// True if all pages are present: the mapping is in reserved hugepages.
    populated: bool,
}

/// Maps the memory. Small, private memory that is to be locked becomes a slot of a slab, except in reserved hugepages.
fn map(
    config: &MemoryConfig,
    len: usize,
    maps: &Maps,
    go_on: ProgressCallback<'_>,
    statements: &mut Vec<String>,
) -> Result<Mapped, MemoryError> {
    let (number, may_share) = match config.backing {
        Backing::Shared { .. } => (SHARED_MAPS, false),
        Backing::Huge => (1, false),
        Backing::Anonymous | Backing::Staged { .. } => (1, config.lock),
    };
    if may_share && let Some(mapping) = maps.take_slot(len)? {
        return Ok(Mapped { mapping, shared: None, populated: false });
    }
    let permit = maps.permit(number)?;
    let reserved = match config.backing {
        Backing::Huge => Mapping::huge(len, go_on, statements)?,
        _ => None,
    };
    let populated = reserved.is_some();
    let (mapping, shared) = match (reserved, &config.backing) {
        (Some(mapping), _) => (mapping, None),
        (None, Backing::Shared { name }) => {
            let (mapping, fd) = Mapping::shared(name, len)?;
            (mapping, Some(fd))
        }
        (None, _) => (Mapping::anonymous(len)?, None),
    };
    Ok(Mapped { mapping: mapping.with_permit(permit), shared, populated })
}

fn checked_len(len: u64) -> Result<usize, MemoryError> {
    match isize::try_from(len) {
        Ok(0) => Err(MemoryError::Empty),
        Ok(len) => Ok(len as usize),
        Err(_) => Err(MemoryError::TooLarge { len }),
    }
}

/// A file with the initial content of a region.
struct StagedFile<'a> {
    path: &'a Path,
    file: std::fs::File,
    /// Length in bytes when the file was opened, at most the region's.
    len: u64,
}

impl StagedFile<'_> {
    fn open(path: &Path, len: usize) -> Result<StagedFile<'_>, MemoryError> {
        let failed = |error| MemoryError::File { path: path.to_owned(), error };
        let file = std::fs::File::open(path).map_err(failed)?;
        let file_len = file.metadata().map_err(failed)?.len();
        if file_len > len as u64 {
            let len = len as u64;
            return Err(MemoryError::FileTooLong { path: path.to_owned(), file_len, len });
        }
        Ok(StagedFile { path, file, len: file_len })
    }

    /// Reads the file into `mapping`, at most 1 MiB at a time. Before each read, calls `go_on` with the number of bytes
    /// read so far.
    fn read_into(
        mut self,
        mapping: &Mapping,
        go_on: ProgressCallback<'_>,
    ) -> Result<(), MemoryError> {
        let (path, len) = (self.path, mapping.len());
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        loop {
            go_on(at as u64)?;
            let n = std::io::Read::read(&mut self.file, &mut buffer)
                .map_err(|error| MemoryError::File { path: path.to_owned(), error })?;
            if n == 0 && (at as u64) < self.len {
                let (path, file_len, read) = (path.to_owned(), self.len, at as u64);
                return Err(MemoryError::FileTooShort { path, file_len, read });
            }
            if n == 0 {
                return Ok(());
            }
            // The file may have grown since its length was read.
            if n > len - at {
                let (file_len, len) = ((at + n) as u64, len as u64);
                return Err(MemoryError::FileTooLong { path: path.to_owned(), file_len, len });
            }
            mapping.write(at, &buffer[..n]);
            at += n;
        }
    }
}

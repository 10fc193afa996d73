//! Memory of regions: what peers place into and read from.
//!
//! A [`Memory`] is a handle on one mapping, cheap to clone and shared by all workers' replicas of the
//! STag table; the mapping goes when the last handle does. It is pre-faulted when it is made, so that a
//! worker never faults, and locked as far as the limit allows; [`Memory::statements`] says what could not
//! be had. It never grows, shrinks or moves. Pages are made and freed piece by piece, and large memory is freed by a
//! thread of its own: the rest of the process goes on meanwhile.
//!
//! Peers, local programs and other workers may touch the same bytes at the same moment. So there is no
//! reference to them anywhere, only copies through raw pointers, with both ends checked first.
//!
//! All `unsafe` code of the crate is in this module. Not here: which peer may touch what (`ddp`), and
//! writing a staged file back (`control`).

mod freed;
mod map;
pub mod ring;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use ddp::memory::{AtomicError, RegionMemory};
use freed::Freed;
pub use map::kernel::CopyKernel;
use map::{LEAST_STREAMED, Mapping};
use wire::crc32c::Target;

/// Backing of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private memory of this process, in transparent hugepages where the kernel has them.
    Anonymous,
    /// Private memory in reserved hugepages; without any, as `Anonymous`, and the statement says so.
    Huge,
    /// A memory file that local programs can map through its descriptor; its size is sealed.
    /// `name` shows in `/proc/PID/maps`.
    Shared {
        /// Name, at most 249 bytes, no NUL.
        name: String,
    },
    /// Private memory with the content of a file, which somebody else writes back.
    Staged {
        /// The file; one that is shorter than the region is as if zeros followed.
        path: PathBuf,
    },
}

/// How a region's memory is made.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Backing.
    pub backing: Backing,
    /// Bytes, at least 1.
    pub len: u64,
    /// True when peers may write to it, or what they answer may be put there. With `Shared`, or with this,
    /// its bytes can change under a message that is being sent from it.
    pub remote_write: bool,
    /// Lock it in memory (`mlock`).
    pub lock: bool,
}

/// Why memory could not be had. Each is one sentence for the operator.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A region needs bytes.
    #[error("a region of 0 bytes cannot be made; give it a size of at least 1")]
    Empty,
    /// More than an address space holds.
    #[error("a region of {len} bytes is larger than this machine can address")]
    TooLarge {
        /// Bytes asked for.
        len: u64,
    },
    /// More than the machine has.
    #[error(
        "{len} bytes of memory are not to be had (available: {available}); make the region smaller or add memory"
    )]
    NoMemory {
        /// Bytes asked for.
        len: u64,
        /// Bytes that `/proc/meminfo` calls available.
        available: u64,
    },
    /// The name of the shared object is not one.
    #[error("the shared memory name {name:?} is too long or holds a NUL byte")]
    Name {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error("the file {path} cannot be read: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file does not fit.
    #[error(
        "the file {path} has {file_len} bytes, more than the region's {len}; make the region larger"
    )]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        file_len: u64,
        /// The region's.
        len: u64,
    },
    /// The file's length is not that of its metadata, or it became shorter.
    #[error(
        "the file {path} ended after {read} of its {file_len} bytes: it became shorter, or its length says nothing, as in \
         /proc and /sys; copy it first"
    )]
    FileTooShort {
        /// The file.
        path: PathBuf,
        /// Its bytes, as it says.
        file_len: u64,
        /// Bytes that were read.
        read: u64,
    },
    /// The preparation was cancelled.
    #[error("cancelled while its memory was prepared")]
    Cancelled,
    /// Anything else the system refused.
    #[error("{what} failed: {error}")]
    System {
        /// The call, in words.
        what: &'static str,
        /// Why.
        error: std::io::Error,
    },
}

/// Called with the bytes that are ready, before each piece of the memory and at the end; an error ends the preparation.
type Continue<'a> = &'a mut dyn FnMut(u64) -> Result<(), MemoryError>;

/// Progress of a preparation: bytes of work done, and bytes in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Done.
    pub done: u64,
    /// Bytes in all, at least 1.
    pub of: u64,
}

/// A handle on a region's bytes. Clones are the same memory.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    mapping: Mapping,
    len: u64,
    stable: bool,
    shared: Option<OwnedFd>,
    locked: bool,
    /// True if the mapping is in reserved hugepages.
    huge: bool,
    statements: Vec<String>,
    /// Dropped after the mapping.
    charge: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Memory {
    /// Prepares a region to the end, as [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// As there.
    pub fn new(config: &MemoryConfig) -> Result<Memory, MemoryError> {
        Memory::prepare(config, &mut |_| true)
    }

    /// Maps, locks, pre-faults and fills the memory. Blocks, for seconds if it is large: never call it on a worker.
    /// `go_on` is called for each piece of at most 16 MiB; when it returns false the preparation ends.
    ///
    /// # Errors
    /// The memory or the file is not to be had, or `go_on` has ended it ([`MemoryError::Cancelled`]).
    pub fn prepare(
        config: &MemoryConfig,
        go_on: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Memory, MemoryError> {
        let len = checked_len(config.len)?;
        if len >= freed::LARGE {
            freed::start();
        }
        let file = match &config.backing {
            Backing::Staged { path } => Some(StagedFile::open(path, len)?),
            _ => None,
        };
        let of = config.len + file.as_ref().map_or(0, |file| file.len);
        let mut go_on = |done: u64| match go_on(Progress { done: done.min(of), of }) {
            true => Ok(()),
            false => Err(MemoryError::Cancelled),
        };
        let mut statements = Vec::new();
        let reserved = match config.backing {
            Backing::Huge => Mapping::huge(len, &mut go_on, &mut statements)?,
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
        let locked = config.lock && mapping.lock(&mut statements);
        if !populated {
            mapping.prefault(&mut go_on)?;
        }
        if let Some(file) = file {
            file.read_into(&mapping, &mut |read| go_on(config.len + read))?;
        }
        let huge = populated;
        let stable = shared.is_none() && !config.remote_write;
        let (len, charge) = (config.len, OnceLock::new());
        let inner = Inner { mapping, len, stable, shared, locked, huge, statements, charge };
        Ok(Memory(Arc::new(inner)))
    }

    /// Drops `charge` when the last handle is gone and the memory is unmapped. Memory has one charge: a second one is
    /// dropped at once.
    pub fn charged(self, charge: impl Any + Send + Sync) -> Memory {
        // The first one stays, as documented.
        let _ = self.0.charge.set(Box::new(charge));
        self
    }

    /// Drops this handle; if it is the last one, the memory is free when the call returns. Blocks: never call it on a
    /// worker.
    pub fn free(self) {
        if let Some(mut inner) = Arc::into_inner(self.0) {
            inner.take().free();
        }
    }

    /// True when it lies in hugepages that were reserved before.
    pub fn is_huge(&self) -> bool {
        self.0.huge
    }

    /// The memory file of a `Shared` region, to be sent to a local program. Its size is sealed.
    pub fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.shared.as_ref().map(AsFd::as_fd)
    }

    /// True when its bytes cannot be paged out.
    pub fn is_locked(&self) -> bool {
        self.0.locked
    }

    /// Requested properties that are missing (hugepages, locking), one sentence each.
    pub fn statements(&self) -> &[String] {
        &self.0.statements
    }

    /// True when `offset..offset + len` lies inside.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.0.len)
    }

    /// [`RegionMemory::write`] by this kernel, which the CPU has; for benchmarks.
    pub fn write_by(&self, kernel: CopyKernel, offset: u64, bytes: &[u8]) {
        let at = self.check(offset, bytes.len());
        self.0.mapping.write_by(kernel, at, bytes);
    }

    /// [`RegionMemory::read`] by this kernel, which the CPU has; for benchmarks.
    pub fn read_by(&self, kernel: CopyKernel, offset: u64, out: &mut [u8]) {
        let at = self.check(offset, out.len());
        self.0.mapping.read_by(kernel, at, out);
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

impl Inner {
    /// Takes the mapping, to be freed; a mapping of no bytes is left.
    fn take(&mut self) -> Freed {
        let mapping = std::mem::replace(&mut self.mapping, Mapping::none());
        Freed { mapping, shared: self.shared.take(), charge: self.charge.take() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The last handle may be a worker's or the control thread's.
        if self.mapping.len() >= freed::LARGE {
            freed::hand_over(self.take());
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
            if len >= LEAST_STREAMED && pieces.clone().nth(1).is_some() {
                let room = (self.0.len - self.check(offset, 0) as u64) as usize;
                return self.0.mapping.write_streamed(offset as usize, room, pieces);
            }
        } else if (TOGETHER..=MOST_TOGETHER).contains(&len) && pieces.clone().nth(1).is_some() {
            return self.write_together(offset, pieces);
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

    fn atomic_u64(&self, offset: u64, update: impl Fn(u64) -> u64) -> Result<u64, AtomicError> {
        if !self.contains(offset, 8) {
            return Err(AtomicError::OutOfBounds);
        }
        // A mapping begins at a page.
        if !offset.is_multiple_of(8) {
            return Err(AtomicError::Unaligned);
        }
        Ok(self.0.mapping.fetch_update(offset as usize, update))
    }

    fn is_stable(&self) -> bool {
        self.0.stable
    }
}

/// From so many bytes on, pieces are put together and copied as one. So long a copy is a string instruction on some CPUs,
/// which takes the lines that it fills without fetching them first; that is worth more than another copy in the first
/// cache costs. Of shorter copies it is not, nor where stores pass the caches by.
const TOGETHER: usize = 8192;

/// Most bytes that are put together: a jumbo frame's.
const MOST_TOGETHER: usize = 9216;

impl Memory {
    /// Writes `pieces`, of [`MOST_TOGETHER`] bytes at most, in one copy. Not inlined: its room on the stack is
    /// nothing for the ways that do not want it.
    #[inline(never)]
    fn write_together<'a>(&self, offset: u64, pieces: impl Iterator<Item = &'a [u8]>) {
        let mut whole = ArrayVec::<u8, MOST_TOGETHER>::new();
        let mut at = offset;
        for piece in pieces {
            if whole.try_extend_from_slice(piece).is_err() {
                // More than was given, which is allowed.
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

fn checked_len(len: u64) -> Result<usize, MemoryError> {
    match isize::try_from(len) {
        Ok(0) => Err(MemoryError::Empty),
        Ok(len) => Ok(len as usize),
        Err(_) => Err(MemoryError::TooLarge { len }),
    }
}

/// A file whose content a region begins with.
struct StagedFile<'a> {
    path: &'a Path,
    file: std::fs::File,
    /// Bytes, when it was opened; at most the region's.
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

    /// `go_on` is called with the bytes read, before each piece.
    fn read_into(mut self, mapping: &Mapping, go_on: Continue<'_>) -> Result<(), MemoryError> {
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

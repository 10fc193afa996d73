//! Memory of the session's arena: buffers, and memory regions that register parts of them for RDMA.
//!
//! ```text
//!  arena (mapped once)  |   buffer A    |  free  | buffer B |
//!  regions                | region 1 |             | 2 |        several regions may register parts of one buffer
//!                           | region 3  |
//! ```
//!
//! For concurrent access by peers, workers and threads see the section *Memory* of the crate's documentation.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use verbs_layout::work::{Remote, Sge};
use verbs_session::message::{Answer, Call, MemoryAccess};

use crate::domain::ProtectionDomain;
use crate::error::Error;
use crate::lock::lock;
use crate::session::Session;

/// A range of the arena in whole pages, all zero at first. Clones refer to the same memory, which can be allocated
/// again once the last clone and all of its regions are dropped.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Pages>);

#[derive(Debug)]
struct Pages {
    session: Session,
    /// Offset of the first byte in the arena, in bytes.
    start: u64,
    /// Length in bytes, a multiple of the page size.
    len: u64,
    /// True after a failed deregistration. The appliance may still access the pages, so they are never allocated again.
    withheld: AtomicBool,
}

impl Session {
    /// Allocates a buffer of `len` bytes, rounded up to whole pages. A page takes physical memory only once it is
    /// accessed or registered.
    ///
    /// # Errors
    /// `len` is 0, the arena has no free range of this length, the process is a forked child, or the session has ended.
    pub fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        let link = self.link();
        if link.is_ended() {
            return Err(link.disconnected());
        }
        if link.is_forked() {
            return Err(Error::Forked);
        }
        let requested = len as u64;
        if requested == 0 {
            return Err(Error::Argument("a buffer has at least 1 byte"));
        }
        let whole = requested.checked_next_multiple_of(page_size());
        let range = whole.and_then(|len| lock(&link.ranges).take(len));
        let range = range.ok_or(Error::ArenaFull(requested))?;
        Ok(Buffer(Arc::new(Pages {
            session: self.clone(),
            start: range.start,
            len: range.end - range.start,
            withheld: AtomicBool::new(false),
        })))
    }
}

impl Buffer {
    /// Returns the length in bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Returns false: a buffer has at least one page.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the virtual address of the first byte.
    pub fn address(&self) -> u64 {
        self.0.session.link().arena.address() + self.0.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let link = self.session.link();
        if self.withheld.load(Ordering::Relaxed) || link.is_forked() || link.is_ended() {
            return;
        }
        // The next buffer must read as zeros. Pages that could not be discarded are therefore never allocated again.
        if link.arena.discard(self.start as usize, self.len as usize).is_ok() {
            lock(&link.ranges).put(self.start..self.start + self.len);
        }
    }
}

/// A memory region: bytes of a [`Buffer`] that the appliance may access. Its STag is the lkey in SGEs and the rkey for
/// peers. The tagged offset (TO) of a byte is its virtual address.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: ProtectionDomain,
    buffer: Buffer,
    /// Offset of the first byte in the buffer.
    start: usize,
    len: usize,
    stag: u32,
    /// True until a deregistration was tried.
    registered: bool,
}

impl ProtectionDomain {
    /// Allocates a buffer and registers its first `len` bytes.
    ///
    /// # Errors
    /// The errors of [`Session::allocate`] and [`register`](Self::register).
    pub fn alloc(&self, len: usize, access: MemoryAccess) -> Result<MemoryRegion, Error> {
        let buffer = self.session().allocate(len)?;
        self.register(&buffer, 0..len, access)
    }

    /// Registers the bytes `range` of a buffer. Regions of one buffer may overlap.
    ///
    /// # Errors
    /// The range is empty or not within the buffer, the buffer belongs to another session, the appliance refuses the
    /// region, or the session has ended.
    pub fn register(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        access: MemoryAccess,
    ) -> Result<MemoryRegion, Error> {
        let link = self.session().link();
        if !std::ptr::eq(link, buffer.0.session.link()) {
            return Err(Error::Argument("the buffer is one of another session"));
        }
        if range.start >= range.end || range.end > buffer.len() {
            return Err(Error::Argument("the range is empty or not within the buffer"));
        }
        let page = page_size();
        let first = buffer.0.start + range.start as u64;
        let end = buffer.0.start + range.end as u64;
        let len = range.end - range.start;
        let answer = link.call(Call::RegisterMemory {
            pd: self.number(),
            address: link.arena.address() + first,
            len: len as u64,
            offset: first % page,
            parts: vec![(first - first % page, end.next_multiple_of(page))],
            access,
        });
        let stag = match answer? {
            (Answer::Registered { stag }, descriptors) if descriptors.is_empty() => stag,
            _ => return Err(link.violation("the answer is not the one of the call")),
        };
        Ok(MemoryRegion {
            domain: self.clone(),
            buffer: buffer.clone(),
            start: range.start,
            len,
            stag,
            registered: true,
        })
    }
}

impl MemoryRegion {
    /// Returns the STag: the lkey in SGEs, and the rkey that a peer needs.
    pub fn stag(&self) -> u32 {
        self.stag
    }

    /// Returns the virtual address of the first byte, which is also its TO.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.start as u64
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the protection domain of the region.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the buffer of the region, for example to register another part of it.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns an SGE for the bytes `range` of the region.
    ///
    /// # Errors
    /// The range is not within the region, or has 2³² bytes or more.
    pub fn sge(&self, range: Range<usize>) -> Result<Sge, Error> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::Argument("the range is not within the region"));
        }
        let len = u32::try_from(range.end - range.start);
        let len = len.map_err(|_| Error::Argument("an SGE has less than 2³² bytes"))?;
        Ok(Sge { address: self.address() + range.start as u64, len, lkey: self.stag })
    }

    /// Returns the STag and TO by which a peer accesses the byte at offset `at`, which is not checked.
    pub fn remote(&self, at: usize) -> Remote {
        Remote { stag: self.stag, to: self.address().wrapping_add(at as u64) }
    }

    /// Copies `to.len()` bytes from offset `at` of the region to `to`.
    ///
    /// # Panics
    /// If the bytes are not within the region.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        self.check(at, to.len());
        self.link().arena.read(self.offset(at), to);
    }

    /// Copies `bytes` to offset `at` of the region.
    ///
    /// # Panics
    /// If the bytes at `at` are not within the region.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        self.link().arena.write(self.offset(at), bytes);
    }

    /// Returns the bytes of the region as atomics. Peers, workers and other threads may change them at any time.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.link().arena.atomics(self.offset(0), self.len)
    }

    /// Returns a pointer to the first byte, valid until the region is dropped. See the crate's
    /// [rules of concurrent access](crate#memory).
    pub fn as_ptr(&self) -> *mut u8 {
        self.link().arena.pointer(self.offset(0))
    }

    /// Deregisters the memory and reports errors, which a drop ignores. Blocks until no worker accesses the memory any
    /// more.
    ///
    /// # Errors
    /// The appliance refuses the call, for example because memory windows are bound to the region, or the session has
    /// ended. The memory is then not allocated again.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.remove()
    }

    fn remove(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.registered) {
            return Ok(());
        }
        let removed = self.link().call_done(Call::DeregisterMemory { stag: self.stag });
        if removed.is_err() {
            // The appliance may still write to the pages: no other buffer may get them.
            self.buffer.0.withheld.store(true, Ordering::Relaxed);
        }
        removed
    }

    fn link(&self) -> &crate::link::Link {
        self.domain.session().link()
    }

    /// Returns the offset in the arena of the byte at offset `at` of the region.
    fn offset(&self, at: usize) -> usize {
        self.buffer.0.start as usize + self.start + at
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of the region");
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // On an error `remove` keeps the pages from being allocated again.
        let _ = self.remove();
    }
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

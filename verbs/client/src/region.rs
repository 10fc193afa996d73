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
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use verbs_layout::work::{Remote, Sge};
use verbs_session::message::{Answer, Call, MemoryAccess, RefusalKind};

use crate::domain::ProtectionDomain;
use crate::error::Error;
use crate::lock::lock;
use crate::mapping;
use crate::registration::{self, Held};
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
        let range = whole.and_then(|len| {
            let range = lock(&link.ranges).take(len);
            range.or_else(|| {
                registration::reclaim(link).ok()?;
                lock(&link.ranges).take(len)
            })
        });
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

/// A memory region: bytes of a [`Buffer`], or other memory of the program, that the appliance may access. Its STag is
/// the lkey in SGEs and the rkey for peers. The tagged offset (TO) of a byte is its virtual address.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: ProtectionDomain,
    memory: Memory,
    len: usize,
    stag: u32,
    /// True until the region is deregistered, or cannot be used any more.
    registered: bool,
}

#[derive(Debug)]
enum Memory {
    Buffer {
        buffer: Buffer,
        /// Offset of the first byte in the buffer.
        start: usize,
    },
    /// Memory that the program has allocated.
    Program(Held),
}

impl ProtectionDomain {
    /// Allocates a buffer and registers its first `len` bytes.
    ///
    /// # Errors
    /// The errors of [`Session::allocate`] and [`register_buffer`](Self::register_buffer).
    pub fn alloc(&self, len: usize, access: MemoryAccess) -> Result<MemoryRegion, Error> {
        let buffer = self.session().allocate(len)?;
        self.register_buffer(&buffer, 0..len, access)
    }

    /// Registers the bytes `range` of a buffer. Regions of one buffer may overlap.
    ///
    /// # Errors
    /// The range is empty or not within the buffer, the buffer belongs to another session, the appliance refuses the
    /// region, or the session has ended.
    pub fn register_buffer(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        access: MemoryAccess,
    ) -> Result<MemoryRegion, Error> {
        let link = self.session().link();
        if !std::ptr::eq(link, buffer.0.session.link()) {
            return Err(Error::Argument("the buffer belongs to another session"));
        }
        if range.start >= range.end || range.end > buffer.len() {
            return Err(Error::Argument("the range is empty or not within the buffer"));
        }
        let page = page_size();
        let first = buffer.0.start + range.start as u64;
        let end = buffer.0.start + range.end as u64;
        let len = range.end - range.start;
        let parts = vec![(first - first % page, end.next_multiple_of(page))];
        let stag = self.call_register(link.arena.address() + first, len, parts, access)?;
        let memory = Memory::Buffer { buffer: buffer.clone(), start: range.start };
        Ok(MemoryRegion { domain: self.clone(), memory, len, stag, registered: true })
    }

    /// Registers memory that the program has allocated: heap, stack, static data, or a private mapping. The pages of
    /// the range are replaced by pages of the session's arena, with the same bytes, addresses and rights. The arena
    /// pages stay in place after the deregistration. While pages are copied, all other threads of the process are
    /// stopped by a real-time signal.
    ///
    /// Shared mappings (`MAP_SHARED`) are refused. With `access.local_write` the memory must be writable.
    ///
    /// # Errors
    /// The range is empty, [`Error::Memory`], the arena is full, the appliance refuses the region, or the session has
    /// ended.
    ///
    /// # Safety
    /// The memory is mapped during the call, and no other thread changes its mapping or its rights. If the program
    /// unmaps it before the region is dropped, it must not call [`MemoryRegion::read`], [`MemoryRegion::write`] or
    /// [`MemoryRegion::bytes`] any more. Peers, workers and other threads may change the bytes while the region exists,
    /// so the program must not use references to them, except references to atomics.
    #[allow(unsafe_code)]
    pub unsafe fn register(
        &self,
        address: NonNull<u8>,
        length: usize,
        access: MemoryAccess,
    ) -> Result<MemoryRegion, Error> {
        let link = self.session().link();
        if link.is_ended() {
            return Err(link.disconnected());
        }
        if link.is_forked() {
            return Err(Error::Forked);
        }
        if length == 0 {
            return Err(Error::Argument("a region has at least 1 byte"));
        }
        // SAFETY: the memory is mapped during the call, as this function's `# Safety` section requires.
        let (held, parts) =
            unsafe { registration::hold(link, address, length, access.local_write) }?;
        let start = held.address().as_ptr().expose_provenance() as u64;
        match self.call_register(start, length, parts, access) {
            Ok(stag) => {
                let memory = Memory::Program(held);
                Ok(MemoryRegion {
                    domain: self.clone(),
                    memory,
                    len: length,
                    stag,
                    registered: true,
                })
            }
            Err(error) => {
                held.release(link);
                Err(error)
            }
        }
    }

    fn call_register(
        &self,
        address: u64,
        len: usize,
        parts: crate::replacements::Parts,
        access: MemoryAccess,
    ) -> Result<u32, Error> {
        let link = self.session().link();
        let answer = link.call(Call::RegisterMemory {
            pd: self.number(),
            address,
            len: len as u64,
            offset: address % page_size(),
            parts,
            access,
        });
        match answer? {
            (Answer::Registered { stag }, descriptors) if descriptors.is_empty() => Ok(stag),
            _ => Err(link.violation("the answer does not match the call")),
        }
    }
}

impl MemoryRegion {
    /// Returns the STag: the lkey in SGEs, and the rkey that a peer needs.
    pub fn stag(&self) -> u32 {
        self.stag
    }

    /// Returns the virtual address of the first byte, which is also its TO.
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Buffer { buffer, start } => buffer.address() + *start as u64,
            Memory::Program(held) => held.address().as_ptr().addr() as u64,
        }
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

    /// Returns the buffer of the region, for example to register another part of it. Returns `None` for memory that the
    /// program has allocated.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.memory {
            Memory::Buffer { buffer, .. } => Some(buffer),
            Memory::Program(_) => None,
        }
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

    /// Returns the STag and TO by which a peer accesses the byte at offset `at`. The offset is not checked.
    pub fn remote(&self, at: usize) -> Remote {
        Remote { stag: self.stag, to: self.address().wrapping_add(at as u64) }
    }

    /// Copies `to.len()` bytes from offset `at` of the region to `to`.
    ///
    /// # Panics
    /// If the bytes are not within the region.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        mapping::read(self.atomics(at, to.len()), to);
    }

    /// Copies `bytes` to offset `at` of the region.
    ///
    /// # Panics
    /// If the bytes at `at` are not within the region.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        mapping::write(self.atomics(at, bytes.len()), bytes);
    }

    /// Returns the bytes of the region as atomics. Peers, workers and other threads may change them at any time.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.atomics(0, self.len)
    }

    /// Returns a pointer to the first byte, valid until the region is dropped. See the crate's
    /// [rules of concurrent access](crate#memory).
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Buffer { buffer, start } => {
                self.link().arena.pointer(buffer.0.start as usize + start)
            }
            Memory::Program(held) => held.address().as_ptr(),
        }
    }

    /// Deregisters the memory and reports errors, which a drop ignores. Blocks until no worker accesses the memory any
    /// more.
    ///
    /// # Errors
    /// The appliance refuses the call, for example because memory windows are bound to the region, or the session has
    /// ended. The memory is then not allocated again.
    pub fn deregister(mut self) -> Result<(), Error> {
        let removed = self.try_deregister();
        self.abandon();
        removed
    }

    /// Deregisters the memory like [`deregister`](Self::deregister). If memory windows are bound to the region, it
    /// stays registered, and can be deregistered later.
    ///
    /// # Errors
    /// [`Error::Refused`] of the kind [`RefusalKind::InUse`]: memory windows are bound to the region. Other errors of
    /// [`deregister`](Self::deregister), after which the region cannot be used any more.
    pub fn try_deregister(&mut self) -> Result<(), Error> {
        if !self.registered {
            return Ok(());
        }
        let removed = self.link().call_done(Call::DeregisterMemory { stag: self.stag });
        match &removed {
            Ok(()) => {
                self.registered = false;
                if let Memory::Program(held) = &self.memory {
                    held.release(self.link());
                }
            }
            Err(Error::Refused(refusal)) if refusal.kind == RefusalKind::InUse => {}
            Err(_) => self.abandon(),
        }
        removed
    }

    /// Ends the use of a region that could not be deregistered. The appliance may still write to its pages, so they are
    /// not allocated again.
    fn abandon(&mut self) {
        if std::mem::take(&mut self.registered)
            && let Memory::Buffer { buffer, .. } = &self.memory
        {
            buffer.0.withheld.store(true, Ordering::Relaxed);
        }
    }

    fn link(&self) -> &crate::link::Link {
        self.domain.session().link()
    }

    /// Returns `len` bytes from offset `at` of the region.
    #[allow(unsafe_code)]
    fn atomics(&self, at: usize, len: usize) -> &[AtomicU8] {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of the region");
        match &self.memory {
            Memory::Buffer { buffer, start } => {
                self.link().arena.atomics(buffer.0.start as usize + start + at, len)
            }
            // SAFETY: the bytes lie inside the region, checked above. Their memory is mapped: the `# Safety` section of
            // `register` forbids this call otherwise.
            Memory::Program(held) => unsafe { held.atomics(at, len) },
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // An error is ignored: `abandon` keeps the pages from being allocated again.
        let _ = self.try_deregister();
        self.abandon();
    }
}

fn page_size() -> u64 {
    crate::page::size() as u64
}

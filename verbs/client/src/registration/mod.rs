//! Registration of memory that the program has allocated: heap, stack, static data and mappings.
//!
//! The pages of the range are replaced by pages of the arena, at the same addresses and with the same bytes and rights:
//!
//! ```text
//!  addresses of the program    | anonymous |  arena  |  anonymous  |      before
//!                              | anon. |      arena      |  anon.  |      after a registration in the middle
//!  arena (memory file)         | ... | other new pages | unused | first new page | unused | ...
//! ```
//!
//! The last row shows one new range of pages. Its first page by address follows the others in the arena, for the reason
//! in the last item:
//!
//! - `/proc/self/maps` shows which pages already belong to the arena. Such pages are not copied again: overlapping and
//!   repeated registrations share them. Pages stay in place when a region is deregistered.
//! - While pages are copied, all other threads are stopped ([`threads`]), so that no write is lost.
//! - Pages of the arena that the program has unmapped, and that no region holds, are freed later ([`mod@reclaim`]).
//! - A forked child gets private copies ([`fork`]).
//! - Shared mappings (`MAP_SHARED`) are refused: a replacement would no longer share the memory with other processes or
//!   files.
//! - The first page of a new range is a mapping of its own. It precedes the other pages of the range by address, and
//!   follows them in the arena. `mremap` in `realloc` therefore cannot extend registered memory into arena pages of
//!   another range: it fails, and `realloc` copies. A mapping that has shrunk to one page, and a range of one page, can
//!   be extended by one page, which is unused in the arena. An extension by more pages is not prevented.
#![allow(unsafe_code)]

mod fork;
mod reclaim;
mod replace;
mod threads;
mod vma;

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::mm::ProtFlags;
use rustix::process::Pid;

use crate::error::Error;
use crate::link::Link;
use crate::lock::lock;
use crate::mapping::ArenaFile;
use crate::replacements::Parts;
use replace::Piece;
use vma::{Maps, Vma};

/// Reason why memory cannot be registered.
#[derive(Clone, Copy, Debug)]
struct Failure {
    error: Errno,
    reason: &'static str,
}

impl Failure {
    fn new(error: Errno, reason: &'static str) -> Failure {
        Failure { error, reason }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Memory { reason: failure.reason, error: failure.error }
    }
}

/// State of the process. Its lock serialises replacements.
static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

#[derive(Debug)]
struct Process {
    id: Pid,
    maps: Maps,
    /// Arenas of all sessions, also of ended ones: the program may still have mapped their pages.
    arenas: Vec<Arc<ArenaFile>>,
}

impl Process {
    /// Returns the state of this process, which is new after a fork.
    fn of(state: &mut Option<Process>) -> Result<&mut Process, Failure> {
        let id = rustix::process::getpid();
        let arenas = match state.take() {
            Some(process) if process.id == id => return Ok(state.insert(process)),
            Some(process) => process.arenas,
            None => Vec::new(),
        };
        let maps = Maps::open();
        let maps = maps.map_err(|e| Failure::new(e, "the list of mappings cannot be opened"))?;
        Ok(state.insert(Process { id, maps, arenas }))
    }

    /// Returns the program's mappings of arena pages, except each session's own mapping of its whole arena. A forked
    /// child has none until it registers memory itself.
    fn replaced_memory(&self) -> Result<Vec<Vma>, Errno> {
        if self.id != rustix::process::getpid() {
            return Ok(Vec::new());
        }
        let mut vmas = self.maps.list(0..usize::MAX)?;
        vmas.retain(|vma| {
            self.arenas.iter().any(|arena| {
                vma.is_shared && vma.file == Some(arena.id()) && !arena.has_mapped(vma.range.start)
            })
        });
        Ok(vmas)
    }
}

/// Registered memory of the program for one memory region. Its pages belong to the arena.
#[derive(Debug)]
pub(crate) struct Held {
    address: NonNull<u8>,
    /// Key in [`Replacements`](crate::replacements::Replacements).
    key: u64,
}

// SAFETY: the memory belongs to the process and is not bound to a thread.
unsafe impl Send for Held {}
// SAFETY: through a shared reference the memory is accessible only as atomics or raw pointers.
unsafe impl Sync for Held {}

impl Held {
    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns `len` bytes from offset `at` as atomics.
    ///
    /// # Safety
    /// `at + len` is at most the length of the registration, whose memory stays mapped while the result is used.
    pub(crate) unsafe fn atomics(&self, at: usize, len: usize) -> &[AtomicU8] {
        // SAFETY: the bytes are mapped while the result is used, as this function requires. They are atomics, so that
        // other threads and processes may write them while the shared reference exists.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr().add(at).cast(), len) }
    }

    /// Ends the region's use of its arena pages.
    pub(crate) fn release(&self, link: &Link) {
        lock(&link.replacements).release(self.key);
    }
}

/// Replaces the pages of a range by pages of the session's arena, except those that already belong to the arena.
/// Returns the registered memory and its arena ranges. Fails if the memory is not readable or, with `writable`, not
/// writable.
///
/// # Safety
/// The range is memory of the program. Its mappings and their rights do not change during the call.
pub(crate) unsafe fn hold(
    link: &Link,
    address: NonNull<u8>,
    len: usize,
    writable: bool,
) -> Result<(Held, Parts), Error> {
    let page = crate::page::size();
    let start = address.as_ptr().expose_provenance();
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let end = end.ok_or(Failure::new(Errno::FAULT, "the range is not within the address space"))?;
    let range = start - start % page..end;
    fork::install()?;
    let mut state = lock(&PROCESS);
    let process = Process::of(&mut state)?;
    let arena = link.arena.file();
    if !process.arenas.iter().any(|other| Arc::ptr_eq(other, arena)) {
        process.arenas.push(arena.clone());
    }
    if lock(&link.replacements).is_reclaim_due() {
        // An error is ignored: a later registration reclaims the pages.
        let _ = reclaim::reclaim(link, process);
    }
    let mut plan = Plan::new(link, process, &range, writable);
    if matches!(plan, Err(Error::ArenaFull(_))) && reclaim::reclaim(link, process).is_ok() {
        plan = Plan::new(link, process, &range, writable);
    }
    let mut plan = plan?;
    // SAFETY: the pieces are private mappings of the program, found by `Plan`, and their arena pages are newly
    // allocated.
    unsafe { replace::replace(link.arena.as_fd(), &plan.pieces, &mut plan.replaced) }?;
    let parts = std::mem::take(&mut plan.parts);
    let key = lock(&link.replacements).hold(parts.clone());
    Ok((Held { address, key }, parts))
}

/// Returns the signal that stops threads; `None` if the program uses all real-time signals.
pub(crate) fn stop_signal() -> Option<std::ffi::c_int> {
    let _serialised = lock(&PROCESS);
    threads::prepare().ok()
}

/// Frees the ranges of the session's arena that the program has not mapped and no region uses.
///
/// # Errors
/// The other threads of the process cannot be stopped, or its mappings cannot be listed.
pub(crate) fn reclaim(link: &Link) -> Result<(), Error> {
    let mut state = lock(&PROCESS);
    let process = Process::of(&mut state)?;
    Ok(reclaim::reclaim(link, process)?)
}

/// Frees an unused range of the arena with its pages.
fn give_back(link: &Link, range: Range<u64>) {
    let (at, len) = (range.start as usize, (range.end - range.start) as usize);
    // The pages are discarded because the next buffer in this range must read as zeros. After an error the next reclaim
    // tries again.
    match link.arena.discard(at, len) {
        Ok(()) => lock(&link.ranges).put(range),
        Err(_) => lock(&link.replacements).add_taken(&range),
    }
}

/// Arena ranges of a registration, and the memory to replace for it. On drop, allocated ranges without a replaced piece
/// are freed.
struct Plan<'a> {
    link: &'a Link,
    /// Arena ranges of the region.
    parts: Parts,
    /// Memory to replace, in the order of its addresses.
    pieces: Vec<Piece>,
    /// Number of pieces that are replaced already, from the first on.
    replaced: usize,
    /// Allocated arena ranges, each with the index of its first piece.
    allocated: Vec<(Range<u64>, usize)>,
}

impl<'a> Plan<'a> {
    /// Finds the memory to replace, and allocates arena ranges for it.
    fn new(
        link: &'a Link,
        process: &Process,
        range: &Range<usize>,
        writable: bool,
    ) -> Result<Plan<'a>, Error> {
        let vmas = process.maps.list(range.clone());
        let vmas = vmas.map_err(|e| Failure::new(e, "the list of mappings cannot be read"))?;
        let found = classify(process, link.arena.file(), &vmas, range, writable)?;
        let (parts, pieces, allocated) = (Parts::new(), Vec::new(), Vec::new());
        let mut plan = Plan { link, parts, pieces, replaced: 0, allocated };
        for found in found {
            match found {
                Found::Arena(start, end) => add(&mut plan.parts, start, end),
                Found::Other(memory, rights, page) => {
                    let first = plan.pieces.len();
                    plan.allocate(&memory, rights, page)?;
                    for piece in &plan.pieces[first..] {
                        let from = range.start.max(piece.address);
                        let to = range.end.min(piece.address + piece.len);
                        if from < to {
                            let offset = |address| piece.offset + (address - piece.address) as u64;
                            add(&mut plan.parts, offset(from), offset(to));
                        }
                    }
                }
            }
        }
        Ok(plan)
    }

    /// Allocates pages of the arena for memory to replace, in one or two pieces. Pages of the memory have `page` bytes.
    fn allocate(
        &mut self,
        memory: &Range<usize>,
        rights: ProtFlags,
        page: usize,
    ) -> Result<(), Error> {
        // In the arena, the first page follows the other pages, with an unused page before and after it: see the
        // module's documentation.
        let unused = crate::page::size();
        let len = memory.end - memory.start;
        let first = page.min(len);
        let others = len - first;
        let before = if others > 0 { others + unused } else { 0 };
        let taken = lock(&self.link.ranges).take((before + first + unused) as u64);
        let taken = taken.ok_or(Error::ArenaFull(len as u64))?;
        self.allocated.push((taken.clone(), self.pieces.len()));
        let offset = taken.start + before as u64;
        self.pieces.push(Piece { address: memory.start, len: first, offset, rights });
        if others > 0 {
            let (address, offset) = (memory.start + first, taken.start);
            self.pieces.push(Piece { address, len: others, offset, rights });
        }
        Ok(())
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        for (range, first) in self.allocated.drain(..) {
            if first < self.replaced {
                lock(&self.link.replacements).add_taken(&range);
            } else {
                give_back(self.link, range);
            }
        }
    }
}

/// A part of the range to register.
enum Found {
    /// Pages that already belong to the arena: start and end offset.
    Arena(u64, u64),
    /// Pages to replace: addresses, rights, and size of a page.
    Other(Range<usize>, ProtFlags, usize),
}

/// Splits a range into pages of the arena and pages to replace.
fn classify(
    process: &Process,
    arena: &ArenaFile,
    vmas: &[Vma],
    range: &Range<usize>,
    writable: bool,
) -> Result<Vec<Found>, Failure> {
    let mut found = Vec::with_capacity(vmas.len());
    let mut at = range.start;
    for vma in vmas {
        if vma.range.start > at {
            break;
        }
        if !vma.rights.contains(ProtFlags::READ) {
            return Err(Failure::new(Errno::FAULT, "the program may not read the memory"));
        }
        if writable && !vma.rights.contains(ProtFlags::WRITE) {
            let reason = "the program may not write to the memory, which is to be registered with local write";
            return Err(Failure::new(Errno::FAULT, reason));
        }
        let (from, to) = (range.start.max(vma.range.start), range.end.min(vma.range.end));
        at = to;
        let of_arena = |file: &ArenaFile| vma.is_shared && vma.file == Some(file.id());
        if of_arena(arena) {
            let offset = |address: usize| vma.offset + (address - vma.range.start) as u64;
            found.push(Found::Arena(offset(from), offset(to)));
            continue;
        }
        if vma.is_shared {
            match process.arenas.iter().find(|file| of_arena(file)) {
                // Pages of the arena of an ended session are replaced like private memory: only this process still
                // uses them.
                Some(file) if file.is_ended() => {}
                Some(_) => {
                    let reason = "the memory is registered with another session of the program";
                    return Err(Failure::new(Errno::BUSY, reason));
                }
                None => {
                    let reason = "the memory is mapped with MAP_SHARED, and other processes or files would no longer \
                                  share it";
                    return Err(Failure::new(Errno::INVAL, reason));
                }
            }
        }
        // Mappings of huge pages can be replaced only in whole huge pages.
        let page = vma.page.max(crate::page::size());
        let from = (from - from % page).max(vma.range.start);
        let to = to.next_multiple_of(page).min(vma.range.end);
        if is_end_of_stack(&vma.range, from, &raw const at as usize) {
            let reason =
                "the memory includes the lowest page of the stack, which could then not grow";
            return Err(Failure::new(Errno::FAULT, reason));
        }
        found.push(Found::Other(from..to, vma.rights, page));
    }
    if at < range.end {
        return Err(Failure::new(Errno::FAULT, "a part of the memory is not mapped"));
    }
    Ok(found)
}

/// Returns true if `from` is the lowest address of the mapping that contains `here`, the stack in use. The kernel
/// extends only a stack's own mapping at its low end, not a mapping of the arena that replaces it.
fn is_end_of_stack(mapping: &Range<usize>, from: usize, here: usize) -> bool {
    mapping.contains(&here) && from == mapping.start
}

/// Adds an arena range, and merges it with the previous one if they are adjacent.
fn add(parts: &mut Parts, start: u64, end: u64) {
    match parts.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => parts.push((start, end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_page_of_the_stack_in_use_is_not_replaced() {
        let stack = 0x7000..0x9000;
        assert!(is_end_of_stack(&stack, 0x7000, 0x7800));
        assert!(!is_end_of_stack(&stack, 0x8000, 0x7800), "the stack can grow");
        assert!(!is_end_of_stack(&stack, 0x7000, 0x9000), "the memory is not a stack in use");
    }
}

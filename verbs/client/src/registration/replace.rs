//! Replaces memory of the program by pages of the arena while all other threads are stopped.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Failure, threads};

/// Memory to replace: whole pages, all with the same rights.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Address of the first page.
    pub(super) address: usize,
    /// Length in bytes.
    pub(super) len: usize,
    /// Offset of the new pages in the arena.
    pub(super) offset: u64,
    /// Access rights of the memory.
    pub(super) rights: ProtFlags,
}

/// Copies the pieces to the arena and maps its pages in their place, while all other threads are stopped. Counts the
/// replaced pieces, also if a later one fails.
///
/// # Safety
/// The pieces are private mappings of the program. Their arena ranges are whole pages that nothing else uses.
pub(super) unsafe fn replace(
    arena: BorrowedFd<'_>,
    pieces: &[Piece],
    replaced: &mut usize,
) -> Result<(), Failure> {
    if pieces.is_empty() {
        return Ok(());
    }
    check_limit(pieces)?;
    threads::prepare()?;
    let caller = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let masked = threads::Masked::new();
    let mut result = Ok(());
    let mut work = || {
        result = threads::stop(caller).and_then(|_stopped| {
            // SAFETY: the caller of `replace` guarantees the pieces. All other threads are stopped, and the current
            // stack is in none of the pieces: `is_near` below selects the stack.
            pieces.iter().try_for_each(|piece| unsafe { copy(arena, piece) })?;
            for piece in pieces {
                // SAFETY: as above, and all pieces have been copied.
                unsafe { map(arena, piece)? };
                *replaced += 1;
            }
            Ok(())
        });
    };
    let here = &raw const masked as usize;
    if pieces.iter().any(|piece| is_near(&(piece.address..piece.address + piece.len), here)) {
        // SAFETY: `work` needs less than [`STACK`] bytes of stack and does not unwind.
        unsafe { on_other_stack(&mut work)? };
    } else {
        work();
    }
    drop(masked);
    result
}

/// Fails if the pieces are beyond the limit of file sizes (RLIMIT_FSIZE): a write there raises SIGXFSZ, which ends the
/// process.
fn check_limit(pieces: &[Piece]) -> Result<(), Failure> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let end = pieces.iter().map(|piece| piece.offset + piece.len as u64).max();
    if limit.is_some_and(|limit| end > Some(limit)) {
        let reason = "the limit of file sizes (ulimit -f) is less than the arena needs";
        return Err(Failure::new(Errno::FBIG, reason));
    }
    Ok(())
}

/// Returns true if the memory may be a part of the current stack: if it is within 256 MiB of `here`, an address in that
/// stack.
pub(super) fn is_near(memory: &Range<usize>, here: usize) -> bool {
    const STACK: usize = 256 << 20;
    memory.start < here.saturating_add(STACK) && here.saturating_sub(STACK) < memory.end
}

/// Copies the bytes of a piece to its pages of the arena.
///
/// # Safety
/// The requirements of [`replace`]. No other thread writes to the piece, and the current stack is not in it.
unsafe fn copy(arena: BorrowedFd<'_>, piece: &Piece) -> Result<(), Failure> {
    let mut done = 0;
    while done < piece.len {
        // SAFETY: the bytes are in a mapping of the process, and no thread writes to them during the call. Only the
        // kernel reads them, and reports pages that are not readable as EFAULT.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                ptr::with_exposed_provenance(piece.address + done),
                piece.len - done,
            )
        };
        match rustix::io::pwrite(arena, bytes, piece.offset + done as u64) {
            Ok(0) => return Err(failed(Errno::IO)),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Maps the pages of the arena in the place of a piece.
///
/// # Safety
/// The requirements of [`replace`], and the pages have the bytes of the piece.
unsafe fn map(arena: BorrowedFd<'_>, piece: &Piece) -> Result<(), Failure> {
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
    // SAFETY: the range is a private mapping of the program, as the caller requires. The new pages have the bytes and
    // the rights of the old ones.
    let mapped = unsafe {
        let address = ptr::with_exposed_provenance_mut(piece.address);
        rustix::mm::mmap(address, piece.len, piece.rights, flags, arena, piece.offset)
    };
    mapped.map(drop).map_err(failed)
}

fn failed(error: Errno) -> Failure {
    match error {
        Errno::FAULT => Failure::new(error, "the memory cannot be read"),
        error => Failure::new(error, "the memory cannot be replaced"),
    }
}

/// Length of the stack of [`on_other_stack`], bytes.
const STACK: usize = 256 << 10;

/// Runs `work` on a separate stack, in a thread that exists only for the call, while the calling thread waits in the
/// kernel. Both threads use the same thread-local storage.
///
/// # Safety
/// `work` needs less than [`STACK`] bytes of stack and does not unwind.
pub(super) unsafe fn on_other_stack(work: &mut dyn FnMut()) -> Result<(), Failure> {
    extern "C" fn run(work: *mut std::ffi::c_void) -> std::ffi::c_int {
        // SAFETY: `clone` below passes a pointer to the `work` of the calling thread, which waits until this function
        // has returned.
        let work = unsafe { &mut *work.cast::<&mut dyn FnMut()>() };
        work();
        0
    }
    let failed = |error| Failure::new(error, "a stack cannot be allocated");
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::STACK;
    // SAFETY: no address is requested, so no existing mapping is replaced.
    let stack = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), STACK, rights, flags) };
    let stack = stack.map_err(failed)?;
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_VFORK;
    let mut work = work;
    // SAFETY: the stack is new memory, its end is aligned to 16 bytes. With `CLONE_VFORK` the calling thread continues
    // when the new one has ended, so that `work` and the stack are valid for as long as they are used.
    let result = unsafe {
        let top = stack.cast::<u8>().add(STACK).cast();
        libc::clone(run, top, flags, (&raw mut work).cast())
    };
    let result = match result {
        // SAFETY: the C library returns a valid pointer to the errno of the calling thread.
        ..0 => Err(failed(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))),
        _ => Ok(()),
    };
    // SAFETY: the thread that has used the stack has ended.
    let _ = unsafe { rustix::mm::munmap(stack, STACK) };
    result
}

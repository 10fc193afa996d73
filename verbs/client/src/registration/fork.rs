//! `fork`: the child gets private copies of the memory that registrations have replaced.
//!
//! Pages of the arena are shared mappings: without the copies, a child would write to the memory of its parent.
//!
//! ```text
//!  parent: prepare: locks PROCESS, lists the replaced memory, creates a pipe
//!          fork ------------------------------> child: copies the memory to private pages, closes the pipe
//!          waits until the child closes the pipe
//!          unlocks PROCESS                              unlocks PROCESS
//! ```
//!
//! The forking thread of the parent waits, so that the child of a single-threaded program has the bytes at the time of
//! the `fork`. Other threads of the parent, and peers, may change bytes until the child has copied them. After `vfork`
//! and `posix_spawn` nothing is copied: the child only executes another program.

use std::cell::UnsafeCell;
use std::io::{PipeReader, PipeWriter};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{MutexGuard, Once};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::vma::Vma;
use super::{Failure, PROCESS, Process, replace};
use crate::lock::lock;

/// A `fork` in progress.
struct Fork {
    /// Lock of [`PROCESS`], held until `parent` or `child` has run.
    _process: MutexGuard<'static, Option<Process>>,
    /// Replaced memory of the program.
    memory: Vec<Vma>,
    /// Ends of the pipe: reading, writing.
    pipe: Option<(PipeReader, PipeWriter)>,
}

struct State(UnsafeCell<Option<Fork>>);

// SAFETY: only `prepare`, `parent` and `child` access the state, all in the forking thread while `PROCESS` is locked.
unsafe impl Sync for State {}

static STATE: State = State(UnsafeCell::new(None));

/// Installs the handlers of `fork` at the first call. Forked children inherit them.
pub(super) fn install() -> Result<(), Failure> {
    static ONCE: Once = Once::new();
    static ERROR: AtomicI32 = AtomicI32::new(0);
    ONCE.call_once(|| {
        // SAFETY: the handlers do not unwind.
        let error = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        ERROR.store(error, Ordering::Relaxed);
    });
    match ERROR.load(Ordering::Relaxed) {
        0 => Ok(()),
        error => {
            let reason = "the handlers of fork cannot be installed";
            Err(Failure::new(Errno::from_raw_os_error(error), reason))
        }
    }
}

extern "C" fn prepare() {
    let process = lock(&PROCESS);
    let memory = process.as_ref().map_or_else(|| Ok(Vec::new()), Process::replaced_memory);
    let memory = memory.unwrap_or_else(|error| {
        report(error);
        Vec::new()
    });
    let pipe = if memory.is_empty() {
        None
    } else {
        // Without a pipe the parent does not wait.
        std::io::pipe().ok()
    };
    // SAFETY: `PROCESS` is locked, so no other thread forks and accesses the state.
    unsafe { *STATE.0.get() = Some(Fork { _process: process, memory, pipe }) };
}

extern "C" fn parent() {
    // SAFETY: `prepare` has locked `PROCESS` for this `fork`.
    let Some(fork) = (unsafe { (*STATE.0.get()).take() }) else { return };
    let Some((reading, writing)) = fork.pipe else { return };
    drop(writing);
    // Waits for the end of the pipe: then the child has copied the memory or has ended, or the `fork` has failed.
    while rustix::event::poll(&mut [PollFd::new(&reading, PollFlags::IN)], None) == Err(Errno::INTR)
    {
    }
}

extern "C" fn child() {
    // SAFETY: as in `parent`. The child has one thread.
    let Some(fork) = (unsafe { (*STATE.0.get()).take() }) else { return };
    for vma in &fork.memory {
        let mut work = || {
            // SAFETY: `vma` is a mapping of this process. This is the child's only thread, and does not use the mapping
            // during the call.
            if let Err(error) = unsafe { make_private(vma) } {
                report(error);
            }
        };
        let here = &raw const fork as usize;
        if replace::is_near(&vma.range, here) {
            // SAFETY: `work` needs less than 256 KiB of stack and does not unwind.
            if let Err(failure) = unsafe { replace::on_other_stack(&mut work) } {
                report(failure.error);
            }
        } else {
            work();
        }
    }
}

/// Replaces a mapping by private memory with the same bytes and rights.
///
/// # Safety
/// `vma` is a mapping of this process that no thread uses during the call.
unsafe fn make_private(vma: &Vma) -> Result<(), Errno> {
    let len = vma.range.len();
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of the copy, so it does not overlap the old mapping. `len` bytes of both
    // are mapped, and the old ones readable. `mremap` then replaces the old mapping, which no thread uses.
    unsafe {
        let copy = rustix::mm::mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE)?;
        let old = ptr::with_exposed_provenance_mut::<u8>(vma.range.start);
        if !vma.rights.contains(ProtFlags::READ) {
            rustix::mm::mprotect(old.cast(), len, MprotectFlags::READ)?;
        }
        ptr::copy_nonoverlapping(old, copy.cast(), len);
        if vma.rights != rights {
            rustix::mm::mprotect(copy, len, MprotectFlags::from_bits_retain(vma.rights.bits()))?;
        }
        rustix::mm::mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, old.cast())?;
    }
    Ok(())
}

/// Reports on stderr that memory stays shared with the parent. Allocates nothing.
fn report(error: Errno) {
    let mut digits = [0u8; 10];
    let mut rest = error.raw_os_error().unsigned_abs();
    let mut at = digits.len();
    while rest > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let text = b"ddpd: registered memory in a forked child stays shared with its parent: error ";
    let _ = rustix::io::write(rustix::stdio::stderr(), text);
    let _ = rustix::io::write(rustix::stdio::stderr(), &digits[at..]);
    let _ = rustix::io::write(rustix::stdio::stderr(), b"\n");
}

//! Shared memory is unmapped when no worker is in a burst.
//!
//! The memif driver unmaps the memory of a peer that is gone in the interrupt thread, whatever the workers do, and a
//! worker that is in the middle of a burst would end the process. The driver marks the port as not connected before,
//! so it is enough to wait for the bursts that have begun. It offers no place to do so but its call of `munmap`: this
//! program's own definition, which comes before the C library's for all that is loaded, waits there.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use crate::gate::Gate;
use crate::interrupts;

/// The gates of all devices whose driver unmaps memory.
static GATES: Mutex<Vec<Arc<Gate>>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread closes a gate itself, and what is unmapped is that device's.
    static CLOSES: Cell<bool> = const { Cell::new(false) };
}

/// From now on unmapping waits for those who pass this gate.
pub(crate) fn waits_for(gate: &Arc<Gate>) {
    GATES.lock().unwrap_or_else(PoisonError::into_inner).push(gate.clone());
}

/// The device is gone.
pub(crate) fn no_longer_waits_for(gate: &Arc<Gate>) {
    GATES.lock().unwrap_or_else(PoisonError::into_inner).retain(|one| !Arc::ptr_eq(one, gate));
}

/// Runs `change`, which closes the gate of its device: what it unmaps is not waited for.
pub(crate) fn without_waiting<T>(change: impl FnOnce() -> T) -> T {
    let before = CLOSES.replace(true);
    let result = change();
    CLOSES.set(before);
    result
}

/// Whether drivers call the function below. A program that is linked so that it keeps its symbols to itself
/// would have them call the C library's.
pub(crate) fn is_guarded() -> bool {
    let ours: unsafe extern "C" fn(*mut c_void, usize) -> c_int = munmap;
    // SAFETY: looks up a name.
    let theirs = unsafe { sys::ddpd_munmap_of_drivers() };
    theirs == ours as *mut c_void
}

/// Waits for the bursts that have begun in the interrupt thread, for nothing elsewhere; then unmaps.
///
/// # Safety
///
/// As of munmap(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(start: *mut c_void, bytes: usize) -> c_int {
    if interrupts::is_here() && !CLOSES.get() {
        let gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        gates.iter().for_each(|gate| gate.wait_for_polls());
    }
    // SAFETY: as of the caller.
    unsafe { sys::ddpd_munmap(start, bytes) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;

    const PAGE: usize = 4096;

    fn page() -> usize {
        // SAFETY: a new mapping.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        start.unwrap() as usize
    }

    /// Unmaps as a driver does, which finds the function by its name.
    fn unmap(page: usize) {
        // SAFETY: looks up a name.
        let found = unsafe { sys::ddpd_munmap_of_drivers() };
        // SAFETY: the C library's function, or the one above: both are of this type.
        let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int =
            unsafe { std::mem::transmute(found) };
        // SAFETY: a mapping of the test's own.
        assert_eq!(unsafe { munmap(page as *mut c_void, PAGE) }, 0);
    }

    #[test]
    fn drivers_find_the_guard() {
        assert!(is_guarded());
    }

    // Without the guard the reader below meets memory that is gone, and the process ends.
    #[test]
    fn memory_stays_until_the_burst_is_over() {
        let gate = Arc::new(Gate::open());
        waits_for(&gate);
        for _ in 0..200 {
            let page = page();
            let (begun, order) = (AtomicBool::new(false), AtomicUsize::new(0));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let left = gate.pass(|| {
                        begun.store(true, Ordering::Release);
                        for turn in 0..100_000 {
                            let cell = (page + turn % PAGE) as *const u8;
                            // SAFETY: the page is mapped while this thread has passed the gate.
                            assert_eq!(unsafe { cell.read_volatile() }, 0);
                        }
                        order.fetch_add(1, Ordering::SeqCst)
                    });
                    assert_eq!(left, Some(0), "the burst ended before the memory was gone");
                });
                scope.spawn(|| {
                    interrupts::pretend();
                    while !begun.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    unmap(page);
                    assert_eq!(order.fetch_add(1, Ordering::SeqCst), 1);
                });
            });
        }
        no_longer_waits_for(&gate);
    }

    #[test]
    fn what_a_closed_device_unmaps_is_not_waited_for() {
        let gate = Arc::new(Gate::open());
        waits_for(&gate);
        thread::scope(|scope| {
            scope.spawn(|| {
                interrupts::pretend();
                gate.closed(|_| without_waiting(|| unmap(page())));
            });
        });
        no_longer_waits_for(&gate);
    }

    #[test]
    fn other_threads_wait_for_nothing() {
        let gate = Arc::new(Gate::open());
        waits_for(&gate);
        assert_eq!(gate.pass(|| unmap(page())), Some(()));
        no_longer_waits_for(&gate);
    }
}

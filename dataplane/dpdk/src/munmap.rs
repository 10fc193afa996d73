//! Delays the unmapping of shared memory until the workers' bursts have ended.
//!
//! The memif driver unmaps the memory of a disconnected peer in DPDK's interrupt thread, while a worker may be in the
//! middle of a burst. An access to unmapped memory would end the process. The driver marks the port as disconnected
//! before it unmaps the memory, so later bursts do not access it. Waiting for the bursts in progress is therefore
//! enough.
//!
//! The driver calls `munmap` and offers no other hook for the wait. This program therefore defines `munmap` itself, and
//! waits there. This definition takes precedence over the C library's for all loaded libraries.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use crate::gate::Gate;
use crate::interrupts;

/// Gates of all devices whose driver unmaps memory.
static GATES: Mutex<Vec<Arc<Gate>>> = Mutex::new(Vec::new());

thread_local! {
    /// True while this thread has closed a gate and may unmap memory of that gate's device.
    static CLOSING_OWN_GATE: Cell<bool> = const { Cell::new(false) };
}

/// Registers a gate. From then on, the interrupt thread waits for polls inside [`Gate::pass`] before it unmaps memory.
pub(crate) fn register(gate: &Arc<Gate>) {
    GATES.lock().unwrap_or_else(PoisonError::into_inner).push(gate.clone());
}

/// Unregisters the gate of a removed device.
pub(crate) fn unregister(gate: &Arc<Gate>) {
    GATES.lock().unwrap_or_else(PoisonError::into_inner).retain(|one| !Arc::ptr_eq(one, gate));
}

/// Runs `change`, which closes its device's gate itself. Calls of `munmap` inside `change` do not wait for polls: the
/// closed gate would block them forever.
pub(crate) fn without_waiting<T>(change: impl FnOnce() -> T) -> T {
    let before = CLOSING_OWN_GATE.replace(true);
    let result = change();
    CLOSING_OWN_GATE.set(before);
    result
}

/// Returns true if drivers call [`munmap`] of this module. If the program does not export its symbols, drivers call the
/// C library's function.
pub(crate) fn is_guarded() -> bool {
    let ours: unsafe extern "C" fn(*mut c_void, usize) -> c_int = munmap;
    // SAFETY: the call has no arguments; it only looks up a symbol.
    let theirs = unsafe { sys::ddpd_munmap_of_drivers() };
    theirs == ours as *mut c_void
}

/// Unmaps memory. DPDK's interrupt thread first waits for bursts in progress, except inside [`without_waiting`]. Other
/// threads do not wait.
///
/// # Safety
///
/// As for munmap(2): the range is not accessed afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(start: *mut c_void, bytes: usize) -> c_int {
    if interrupts::is_interrupt_thread() && !CLOSING_OWN_GATE.get() {
        let gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        gates.iter().for_each(|gate| gate.wait_for_polls());
    }
    // SAFETY: guaranteed by the caller.
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
        // SAFETY: the kernel selects the address of the new mapping.
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

    /// Unmaps a page as a driver does: with the function that the symbol `munmap` resolves to.
    fn unmap(page: usize) {
        // SAFETY: the call has no arguments; it only looks up a symbol.
        let found = unsafe { sys::ddpd_munmap_of_drivers() };
        // SAFETY: the symbol is the C library's function or the function above; both have this type.
        let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int =
            unsafe { std::mem::transmute(found) };
        // SAFETY: the test owns the mapping and does not use it afterwards.
        assert_eq!(unsafe { munmap(page as *mut c_void, PAGE) }, 0);
    }

    #[test]
    fn drivers_call_guarded_munmap() {
        assert!(is_guarded());
    }

    // Without the guard, the reader below would access unmapped memory and end the process.
    #[test]
    fn munmap_waits_for_burst_in_progress() {
        let gate = Arc::new(Gate::open());
        register(&gate);
        for _ in 0..200 {
            let page = page();
            let (begun, order) = (AtomicBool::new(false), AtomicUsize::new(0));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let left = gate.pass(|| {
                        begun.store(true, Ordering::Release);
                        for turn in 0..100_000 {
                            let cell = (page + turn % PAGE) as *const u8;
                            // SAFETY: the page stays mapped while this closure runs inside [`Gate::pass`].
                            assert_eq!(unsafe { cell.read_volatile() }, 0);
                        }
                        order.fetch_add(1, Ordering::SeqCst)
                    });
                    assert_eq!(left, Some(0), "the burst ended before the memory was unmapped");
                });
                scope.spawn(|| {
                    interrupts::assume_interrupt_thread();
                    while !begun.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    unmap(page);
                    assert_eq!(order.fetch_add(1, Ordering::SeqCst), 1);
                });
            });
        }
        unregister(&gate);
    }

    #[test]
    fn munmap_by_closed_device_does_not_wait() {
        let gate = Arc::new(Gate::open());
        register(&gate);
        thread::scope(|scope| {
            scope.spawn(|| {
                interrupts::assume_interrupt_thread();
                gate.with_closed(|_| without_waiting(|| unmap(page())));
            });
        });
        unregister(&gate);
    }

    #[test]
    fn munmap_outside_interrupt_thread_does_not_wait() {
        let gate = Arc::new(Gate::open());
        register(&gate);
        assert_eq!(gate.pass(|| unmap(page())), Some(()));
        unregister(&gate);
    }
}

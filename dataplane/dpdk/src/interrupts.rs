//! Work for the environment's interrupt thread.
//!
//! The memif driver does half of its work there (connections, lost peers), and does not guard that against
//! a device that is started, stopped or removed elsewhere at the same time: 22.11 frees things twice then. In
//! that thread one comes after the other.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::mpsc::{SyncSender, sync_channel};

use dpdk_sys as sys;

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is the interrupt thread. It is known once [`run`] has run something in it.
pub(crate) fn is_here() -> bool {
    IS_HERE.get()
}

/// From now on this thread is taken for the interrupt thread.
#[cfg(test)]
pub(crate) fn pretend() {
    IS_HERE.set(true);
}

struct Job<F, T> {
    work: F,
    done: SyncSender<T>,
}

/// Runs `work` in the interrupt thread and returns what it returns. Must not be called from that thread. Where
/// DPDK has no memory for it, `work` runs here.
pub(crate) fn run<T: Send, F: FnOnce() -> T + Send>(work: F) -> T {
    let (done, result) = sync_channel(1);
    let job = Box::into_raw(Box::new(Job { work, done }));
    // SAFETY: `ring` is called once with the job, which is its own then. What the job borrows lives on, since
    // this function does not return before.
    let code = unsafe { sys::rte_eal_alarm_set(1, Some(ring::<F, T>), job.cast()) };
    if code != 0 {
        // SAFETY: the alarm was not set, so the job is still ours.
        unsafe { carry_out::<F, T>(job.cast()) };
    }
    result.recv().expect("the job sends before it drops its end")
}

unsafe extern "C" fn ring<F: FnOnce() -> T, T>(job: *mut c_void) {
    IS_HERE.set(true);
    // SAFETY: as of the caller.
    unsafe { carry_out::<F, T>(job) };
}

/// `job` is what `run` made, and is used up.
unsafe fn carry_out<F: FnOnce() -> T, T>(job: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `run`, and given up there.
    let Job { work, done } = *unsafe { Box::from_raw(job.cast::<Job<F, T>>()) };
    let result = work();
    // The receiver waits.
    let sent = done.send(result);
    debug_assert!(sent.is_ok());
}

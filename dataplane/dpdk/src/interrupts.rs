//! Work for the environment's interrupt thread.
//!
//! The memif driver does half of its work there (connections, lost peers), and does not guard that against
//! a device that is started, stopped or removed elsewhere at the same time: 22.11 frees things twice then. In
//! that thread one comes after the other.

use std::ffi::c_void;
use std::sync::mpsc::{SyncSender, sync_channel};

use dpdk_sys as sys;

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
        unsafe { ring::<F, T>(job.cast()) };
    }
    result.recv().expect("the job sends before it drops its end")
}

unsafe extern "C" fn ring<F: FnOnce() -> T, T>(job: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `run`, and given up there.
    let Job { work, done } = *unsafe { Box::from_raw(job.cast::<Job<F, T>>()) };
    let result = work();
    // The receiver waits.
    let sent = done.send(result);
    debug_assert!(sent.is_ok());
}

//! Execution of work on the environment's interrupt thread.
//!
//! The memif driver handles connections and lost peers on that thread. The driver does not synchronise this work with
//! the start, stop or removal of the device on another thread: release 22.11 then frees memory twice. On the interrupt
//! thread these calls and the driver's work are serialised.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::mpsc::{SyncSender, sync_channel};

use dpdk_sys as sys;

thread_local! {
    static IS_INTERRUPT_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the calling thread is the interrupt thread and [`run`] has already run work on it.
pub(crate) fn is_interrupt_thread() -> bool {
    IS_INTERRUPT_THREAD.get()
}

/// Treats the calling thread as the interrupt thread from now on.
#[cfg(test)]
pub(crate) fn assume_interrupt_thread() {
    IS_INTERRUPT_THREAD.set(true);
}

struct Job<F, T> {
    work: F,
    result_sender: SyncSender<T>,
}

/// Runs `work` on the interrupt thread and returns its result. Must not be called on that thread. If DPDK has no memory
/// for the alarm, `work` runs on the calling thread.
pub(crate) fn run<T: Send, F: FnOnce() -> T + Send>(work: F) -> T {
    let (done, result) = sync_channel(1);
    let job = Box::into_raw(Box::new(Job { work, result_sender: done }));
    // SAFETY: DPDK calls `on_alarm` once with the job, which `on_alarm` then owns. Borrows in `work` stay valid,
    // because this function returns only after `work` has run.
    let code = unsafe { sys::rte_eal_alarm_set(1, Some(on_alarm::<F, T>), job.cast()) };
    if code != 0 {
        // SAFETY: the alarm was not set, so the job is still ours.
        unsafe { run_job::<F, T>(job.cast()) };
    }
    result.recv().expect("the job sends its result")
}

unsafe extern "C" fn on_alarm<F: FnOnce() -> T, T>(job: *mut c_void) {
    IS_INTERRUPT_THREAD.set(true);
    // SAFETY: DPDK calls this function once, with the job that `run` passed.
    unsafe { run_job::<F, T>(job) };
}

/// Runs and frees `job`, which [`run`] created.
unsafe fn run_job<F: FnOnce() -> T, T>(job: *mut c_void) {
    // SAFETY: `run` created the pointer by `Box::into_raw` and gave up ownership.
    let Job { work, result_sender: done } = *unsafe { Box::from_raw(job.cast::<Job<F, T>>()) };
    let result = work();
    // `run` waits for the result, so sending cannot fail.
    let sent = done.send(result);
    debug_assert!(sent.is_ok());
}

//! Signals of the library's threads. The program's handlers run on the program's threads only: threads of the library
//! block all signals but the real-time ones, one of which stops them during a registration of memory. A thread inherits
//! its mask, so the caller blocks signals while it starts a thread.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Calls `body` with all signals but the real-time ones blocked in this thread.
pub fn with_blocked<R>(body: impl FnOnce() -> R) -> R {
    let mut previous = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` and `previous` are valid for writes, and `sigfillset` initialises `all` before it is read.
    let is_blocked = unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), previous.as_mut_ptr()) == 0
    };
    let result = body();
    if is_blocked {
        // SAFETY: the call above has succeeded and has thus initialised `previous`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, previous.as_ptr(), std::ptr::null_mut())
        };
    }
    result
}

//! Signals of the library's threads. The program's handlers run on the program's threads only, and signals that the
//! program blocks stay blocked: threads of the library block all signals but the one that stops them during a
//! registration of memory. A thread inherits its mask, so the caller blocks signals while it starts a thread.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::registration::stop_signal;

/// Calls `body` with all signals blocked in this thread, except the one that stops threads.
pub fn with_blocked<R>(body: impl FnOnce() -> R) -> R {
    let stop = stop_signal();
    let mut previous = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` and `previous` are valid for writes, and `sigfillset` initialises `all` before it is read.
    let is_blocked = unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        if let Some(stop) = stop {
            libc::sigdelset(all.as_mut_ptr(), stop);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the blocked signals of the calling thread, as bits from signal 1 on.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        u64::from_str_radix(mask, 16).unwrap()
    }

    #[test]
    fn real_time_signals_of_the_program_stay_blocked_in_threads_of_the_library() {
        let before = blocked();
        let inside = with_blocked(|| std::thread::spawn(blocked).join().unwrap());
        assert_eq!(blocked(), before);
        let bits = |signals: std::ops::RangeInclusive<i32>| {
            signals.fold(0u64, |bits, signal| bits | 1 << (signal - 1))
        };
        let real_time = bits(libc::SIGRTMIN()..=libc::SIGRTMAX());
        let stop = 1 << (stop_signal().unwrap() - 1);
        assert_eq!(inside & real_time, real_time & !stop);
        assert_eq!(inside & bits(1..=8), bits(1..=8));
    }
}

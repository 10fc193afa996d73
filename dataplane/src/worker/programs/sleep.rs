//! Wake-ups of a sleeping worker by programs, and notifications of completions to programs.

use std::os::fd::{AsFd, BorrowedFd};

use super::Programs;

impl Programs {
    /// Sends the notifications of completions that programs have requested.
    #[inline]
    pub(in crate::worker) fn notify(&mut self) {
        for program in self.programs.iter_mut().flatten() {
            program.completions.notify();
        }
    }

    /// Returns true if programs need service: doorbells, ready QPs, remaining receives, failed CQs, notices of SRQs,
    /// removals of programs or regions.
    #[inline]
    pub(in crate::worker) fn have_work(&self) -> bool {
        !self.revocations.is_empty()
            || self.programs.iter().flatten().any(|program| {
                program.removal.is_some()
                    || !program.ready.is_empty()
                    || !program.late.is_empty()
                    || program.completions.have_failed()
                    || program.notices.is_set()
                    || program.doorbells.is_rung()
            })
    }

    /// Prepares a sleep: from now on, programs wake the worker. Returns false if a program needs service before the
    /// sleep.
    pub(in crate::worker) fn arm(&mut self) -> bool {
        let mut may_sleep = self.revocations.is_empty();
        for program in self.programs.iter_mut().flatten() {
            may_sleep &= program.ready.is_empty() && !program.completions.have_failed();
            may_sleep &=
                program.late.is_empty() && !program.notices.is_set() && program.removal.is_none();
            may_sleep &= program.doorbells.prepare_sleep();
        }
        may_sleep
    }

    /// Ends a sleep: programs do not wake the worker any more.
    pub(in crate::worker) fn disarm(&mut self) {
        for program in self.programs.iter_mut().flatten() {
            program.doorbells.wake();
            program.can_wake &= program.wake.drain();
        }
    }

    /// Returns the file descriptors on which programs send wake-ups.
    pub(in crate::worker) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let programs = self.programs.iter().flatten();
        programs.filter(|program| program.can_wake).map(|program| program.wake.as_fd())
    }
}

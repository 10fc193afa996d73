//! State needed to recreate an `af_packet` device: its arguments, its set-up, and duplicates of its sockets. An idle
//! worker waits on a duplicate, whose descriptor number stays the same when the device is recreated.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};

use crate::error::Error;
use crate::types::DeviceConfig;

/// Arguments and set-up of an `af_packet` device.
pub(crate) struct Recipe {
    /// Arguments of the driver (devargs).
    pub(crate) args: String,
    /// Set-up that is applied again after the device is recreated.
    pub(crate) config: DeviceConfig,
    /// Duplicates of the driver's sockets, by queue; empty if their order is uncertain.
    sockets: Mutex<Vec<OwnedFd>>,
}

impl Recipe {
    pub(crate) fn new(args: String, config: DeviceConfig) -> Recipe {
        Recipe { args, config, sockets: Mutex::default() }
    }

    /// Duplicates the driver's sockets. Returns descriptors that are valid as long as this value exists, or `None` for
    /// every queue if a socket is unknown or cannot be duplicated.
    pub(crate) fn copy(&self, sockets: Vec<Option<RawFd>>) -> Vec<Option<RawFd>> {
        let copies: Option<Vec<OwnedFd>> = sockets.iter().map(|fd| copy((*fd)?)).collect();
        let Some(copies) = copies else { return vec![None; sockets.len()] };
        let numbers = copies.iter().map(|fd| Some(fd.as_raw_fd())).collect();
        *self.sockets() = copies;
        numbers
    }

    pub(crate) fn sockets(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Redirects the duplicates to a descriptor that never signals. Otherwise they would keep the driver's sockets and
    /// their fanout group alive in the kernel.
    pub(crate) fn release(&self) -> Result<(), Error> {
        let never = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| call_error("eventfd", e))?;
        self.sockets().iter_mut().try_for_each(|copy| redirect(copy, never.as_fd()))
    }

    /// Redirects each duplicate to the new socket of its queue. A duplicate whose new socket is unknown is unchanged.
    pub(crate) fn adopt(&self, sockets: &[Option<RawFd>]) -> Result<(), Error> {
        self.sockets().iter_mut().zip(sockets).try_for_each(|(copy, fd)| match fd {
            // SAFETY: the driver has just opened the descriptor, and does not close it while the lock on devices is
            // held.
            Some(fd) => redirect(copy, unsafe { BorrowedFd::borrow_raw(*fd) }),
            None => Ok(()),
        })
    }
}

fn copy(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: the driver has just opened the descriptor, and does not close it while the lock on devices is held.
    fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0).ok()
}

/// Makes `copy` a duplicate of `to`. Its descriptor number stays the same.
fn redirect(copy: &mut OwnedFd, to: BorrowedFd<'_>) -> Result<(), Error> {
    dup3(to, copy, DupFlags::CLOEXEC).map_err(|error| call_error("dup3", error))
}

fn call_error(call: &str, error: rustix::io::Errno) -> Error {
    Error::new(format!("{call} fails"), error.raw_os_error())
}

//! Packet sockets that are bound again: the interface of Linux under an `af_packet` device was deleted and made again,
//! or moved to another network namespace and back.
//!
//! The kernel unbinds the sockets of such an interface for ever, and a member of a fanout group cannot be bound a second
//! time. So DPDK's device is removed and made again with the same arguments and the same pool, behind a closed
//! [`Gate`](crate::gate::Gate). Its queues stay valid: they ask the handle for DPDK's number of the device in each burst,
//! and an idle worker polls a descriptor of ours, which leads to the new socket from then on.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};

use crate::device::{self, Started};
use crate::error::Error;
use crate::handle::{AF_PACKET, Handle, NO_PORT, new_sockets};
use crate::host;
use crate::types::DeviceConfig;

const ENOTSUP: i32 = 95;

/// How an `af_packet` device was made and set up.
pub(crate) struct Recipe {
    /// The driver's arguments.
    pub(crate) args: String,
    /// Its set-up.
    pub(crate) config: DeviceConfig,
    /// Copies of the driver's sockets, by queue; empty where it is not certain which they are.
    sockets: Mutex<Vec<OwnedFd>>,
}

impl Recipe {
    pub(crate) fn new(args: String, config: DeviceConfig) -> Recipe {
        Recipe { args, config, sockets: Mutex::default() }
    }

    /// Copies the driver's sockets. Returns descriptors that are valid as long as this value.
    pub(crate) fn copy(&self, sockets: Vec<Option<RawFd>>) -> Vec<Option<RawFd>> {
        let copies: Option<Vec<OwnedFd>> = sockets.iter().map(|fd| copy((*fd)?)).collect();
        let Some(copies) = copies else { return vec![None; sockets.len()] };
        let numbers = copies.iter().map(|fd| Some(fd.as_raw_fd())).collect();
        *self.sockets() = copies;
        numbers
    }

    fn sockets(&self) -> std::sync::MutexGuard<'_, Vec<OwnedFd>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of the driver's sockets: the kernel would keep them, and their fanout group, for the copies.
    fn release(&self) -> Result<(), Error> {
        let never = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed("eventfd", e))?;
        self.sockets().iter_mut().try_for_each(|copy| redirect(copy, never.as_fd()))
    }

    /// Redirects the copies to the new sockets.
    fn adopt(&self, sockets: &[Option<RawFd>]) -> Result<(), Error> {
        self.sockets().iter_mut().zip(sockets).try_for_each(|(copy, fd)| match fd {
            // SAFETY: the driver has just opened it, and the devices are locked.
            Some(fd) => redirect(copy, unsafe { BorrowedFd::borrow_raw(*fd) }),
            None => Ok(()),
        })
    }
}

fn copy(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: the driver has just opened it, and the devices are locked.
    fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0).ok()
}

/// Makes `copy` lead to `to`. Its number stays.
fn redirect(copy: &mut OwnedFd, to: BorrowedFd<'_>) -> Result<(), Error> {
    dup3(to, copy, DupFlags::CLOEXEC).map_err(|error| failed("dup3", error))
}

fn failed(call: &str, error: rustix::io::Errno) -> Error {
    Error::new(format!("{call} fails"), error.raw_os_error())
}

impl Started {
    /// True if [`remake`](Self::remake) is possible: an `af_packet` device.
    pub fn can_remake(&self) -> bool {
        self.handle.recipe().is_some()
    }

    /// Whether the sockets of an `af_packet` device are bound to the interface with this index; true where that is not
    /// known, and false while there is no device.
    pub fn is_bound_to(&self, index: u32) -> bool {
        let Some(recipe) = self.handle.recipe() else { return true };
        self.handle.port() != NO_PORT
            && recipe.sockets().iter().all(|fd| host::is_bound_to(fd.as_fd(), index))
    }

    /// Removes an `af_packet` device and makes it again under the same name: its sockets are bound to the interface
    /// that has the name now. Workers receive and send nothing meanwhile. Counters of the device begin at 0.
    ///
    /// # Errors
    /// The device is of another kind, or DPDK or the kernel refuses. There is no device then, the queues receive and
    /// send nothing, and the call may be repeated.
    pub fn remake(&self) -> Result<(), Error> {
        let handle = &*self.handle;
        let what = || format!("device {} cannot be made again", handle.name());
        let (Some(recipe), Some(gate)) = (handle.recipe(), handle.gate()) else {
            return Err(Error::new(what(), ENOTSUP));
        };
        let _lock = handle.eal().lock_devices();
        gate.closed(|started| {
            let had_started = std::mem::replace(started, false);
            remove(handle, had_started);
            recipe.release()?;
            let before = host::sockets(AF_PACKET);
            let port = device::plug("vdev", handle.name(), &recipe.args)?;
            handle.set_port(port);
            let set_up = device::configure(handle, &recipe.config, self.pool())
                .and_then(|()| handle.start_driver())
                .and_then(|()| {
                    device::receive_groups(port, &recipe.config);
                    let queues = recipe.config.queues;
                    recipe.adopt(&device::by_queue(new_sockets(AF_PACKET, &before), queues))
                });
            match set_up {
                Ok(()) => *started = true,
                Err(_) => remove(handle, true),
            }
            set_up
        })
    }
}

/// Removes DPDK's device, if there is one.
fn remove(handle: &Handle, started: bool) {
    let port = handle.port();
    if port == NO_PORT {
        return;
    }
    // SAFETY: the port is ours, and no queue is polled: the gate is closed.
    unsafe {
        if started {
            sys::rte_eth_dev_stop(port);
        }
        sys::ddpd_port_remove(port);
    }
    handle.set_port(NO_PORT);
}

//! Rebinding of packet sockets after the Linux interface under an `af_packet` device was recreated, or moved to
//! another network namespace and back.
//!
//! The kernel unbinds the sockets of such an interface permanently, and a member of a fanout group cannot be bound a
//! second time. DPDK's device is therefore removed and recreated with the same arguments and the same pool, behind a
//! closed [`Gate`](crate::gate::Gate). Its queues stay valid, because they read the device's port number from the
//! handle in each burst. An idle worker polls a duplicate of the socket, which is redirected to the new socket.

use std::os::fd::AsFd;

use dpdk_sys as sys;

use crate::device::{self, StartedDevice};
use crate::error::Error;
use crate::handle::{AF_PACKET, Handle, NO_PORT, new_sockets};
use crate::host;

const ENOTSUP: i32 = 95;

impl StartedDevice {
    /// Returns true if [`recreate`](Self::recreate) is possible: for an `af_packet` device.
    pub fn can_recreate(&self) -> bool {
        self.handle.recipe().is_some()
    }

    /// Returns true if all sockets of an `af_packet` device are bound to the interface with this index. Also true if
    /// the sockets are unknown or the device is of another kind. False while no device exists after a failed
    /// [`recreate`](Self::recreate).
    pub fn is_bound_to(&self, index: u32) -> bool {
        let Some(recipe) = self.handle.recipe() else { return true };
        self.handle.port() != NO_PORT
            && recipe.sockets().iter().all(|fd| host::is_bound_to(fd.as_fd(), index))
    }

    /// Removes an `af_packet` device and recreates it under the same name. Its sockets are then bound to the interface
    /// that has the name now. During the call, workers receive and send no frames. The device's counters restart at 0.
    ///
    /// # Errors
    /// The device is of another kind, and is unchanged. Otherwise DPDK or the kernel has refused the recreation: no
    /// device exists, the queues receive and send no frames, and the call may be repeated.
    pub fn recreate(&self) -> Result<(), Error> {
        let handle = &*self.handle;
        let failure = || format!("device {} cannot be recreated", handle.name());
        let (Some(recipe), Some(gate)) = (handle.recipe(), handle.gate()) else {
            return Err(Error::new(failure(), ENOTSUP));
        };
        let _lock = handle.eal().lock_devices();
        gate.with_closed(|started| {
            let had_started = std::mem::replace(started, false);
            remove(handle, had_started);
            recipe.release()?;
            let before = host::sockets(AF_PACKET);
            let port = device::hotplug_add("vdev", handle.name(), &recipe.args)?;
            handle.set_port(port);
            let set_up = device::configure(handle, &recipe.config, self.pool())
                .and_then(|()| handle.start_driver())
                .and_then(|()| {
                    device::enable_multicast(port, &recipe.config);
                    let queues = recipe.config.queues;
                    recipe.adopt(&device::sockets_by_queue(new_sockets(AF_PACKET, &before), queues))
                });
            match set_up {
                Ok(()) => *started = true,
                Err(_) => remove(handle, true),
            }
            set_up
        })
    }
}

/// Stops and removes DPDK's device, if it exists.
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

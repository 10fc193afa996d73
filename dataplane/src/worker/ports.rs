//! The ports of one worker: their receive and transmit queues, and the received frames that are not processed yet.

pub(super) mod port_queues;

use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;

use crate::api::WorkerId;
use crate::io::{BURST, PortIo, PortProperties};
use crate::net::icmp::{Quote, Report};
use crate::worker::ports::port_queues::PortQueues;

pub(crate) struct PortSlot<Io: PortIo> {
    pub(crate) io: PortQueues<Io>,
    /// Properties of the port that are common to all workers.
    pub(crate) facts: Arc<PortProperties>,
    /// Received frames that are not processed yet. Frames that an idle worker receives stay here until the next turn.
    received: ArrayVec<Io::Frame, BURST>,
}

impl<Io: PortIo> PortSlot<Io> {
    /// Creates the slot of a port. `io` has this worker's queues of the port.
    pub(crate) fn new(io: Io, facts: Arc<PortProperties>) -> Self {
        PortSlot { io: PortQueues::new(io), facts, received: ArrayVec::new() }
    }

    /// Receives frames. Returns true if there are any frames to process.
    #[inline]
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        self.io.receive(now, &mut self.received);
        !self.received.is_empty()
    }

    #[inline]
    pub(super) fn take_received(&mut self) -> ArrayVec<Io::Frame, BURST> {
        core::mem::take(&mut self.received)
    }
}

/// The ports by index; `None` for a port without a queue of this worker.
pub(super) struct Ports<Io: PortIo>(Vec<Option<PortSlot<Io>>>);

impl<Io: PortIo> Ports<Io> {
    /// Stores the ports, which are in the order of their indices.
    pub(super) fn new(ports: Vec<Option<PortSlot<Io>>>) -> Self {
        Ports(ports)
    }

    /// Returns the number of ports, including ports without a queue of this worker.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the port with this index, if this worker has a queue of it.
    #[inline]
    pub(super) fn get(&self, port: usize) -> Option<&PortSlot<Io>> {
        self.0.get(port)?.as_ref()
    }

    /// Returns the port with this index mutably, if this worker has a queue of it.
    #[inline]
    pub(super) fn get_mut(&mut self, port: usize) -> Option<&mut PortSlot<Io>> {
        self.0.get_mut(port)?.as_mut()
    }

    /// Returns this worker's queues of all ports.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Io> {
        self.0.iter().flatten().map(|slot| slot.io.queues())
    }

    /// Returns this worker's queues of all ports mutably.
    pub(super) fn queues_mut(&mut self) -> impl Iterator<Item = &mut Io> {
        self.0.iter_mut().flatten().map(|slot| slot.io.queues_mut())
    }

    /// Receives frames from all ports for the next turn. Returns true if there are any, including looped frames.
    pub(super) fn receive_all(&mut self, now: Instant) -> bool {
        let mut received = false;
        for slot in self.0.iter_mut().flatten() {
            received |= slot.receive(now) || slot.io.looped() > 0;
        }
        received
    }

    /// Returns the worker that owns the flow of an ICMP error, according to the port's steering; `None` if this worker
    /// has no queue of the port.
    pub(super) fn report_owner(&self, port: usize, report: &Report) -> Option<WorkerId> {
        let steering = &self.get(port)?.facts.steering;
        Some(match report.quote {
            Quote::Tcp(_) => steering.owner(report.remote, report.local),
            Quote::Sctp(_) | Quote::SctpInit(_) | Quote::Esp(..) => {
                steering.owner_by_ports(report.remote, report.local)
            }
        })
    }

    /// Holds all sent frames from now on, until they are sealed or policies let them pass in clear.
    pub(super) fn hold(&mut self) {
        self.0.iter_mut().flatten().for_each(|slot| slot.io.hold());
    }

    /// Passes sent frames to the devices. Returns true if the devices have accepted all of them.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        let mut flushed = true;
        for slot in self.0.iter_mut().flatten() {
            flushed &= slot.io.flush();
        }
        flushed
    }
}

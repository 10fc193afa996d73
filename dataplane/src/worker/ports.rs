//! The ports of one worker: its queues of each, and frames that have arrived.

use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;

use super::outlet::Outlet;
use crate::api::WorkerId;
use crate::io::{BURST, PortFacts, PortIo};
use crate::net::icmp::{Quote, Report};

/// A port of this worker.
pub(crate) struct PortSlot<Io: PortIo> {
    /// Its queues.
    pub(crate) io: Outlet<Io>,
    /// What is the same for all workers.
    pub(crate) facts: Arc<PortFacts>,
    /// Frames received for the next turn.
    arrived: ArrayVec<Io::Frame, BURST>,
}

impl<Io: PortIo> PortSlot<Io> {
    /// These queues of a port.
    pub(crate) fn new(io: Io, facts: Arc<PortFacts>) -> Self {
        PortSlot { io: Outlet::new(io), facts, arrived: ArrayVec::new() }
    }

    /// Looks for frames. Returns whether there are any.
    #[inline]
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        self.io.receive(now, &mut self.arrived);
        !self.arrived.is_empty()
    }

    /// The frames that have arrived.
    #[inline]
    pub(super) fn take_arrived(&mut self) -> ArrayVec<Io::Frame, BURST> {
        core::mem::take(&mut self.arrived)
    }
}

/// The ports, by place.
pub(super) struct Ports<Io: PortIo>(Vec<Option<PortSlot<Io>>>);

impl<Io: PortIo> Ports<Io> {
    /// `None` for ports that this worker has no queue of.
    pub(super) fn new(ports: Vec<Option<PortSlot<Io>>>) -> Self {
        Ports(ports)
    }

    /// All ports, those without a queue of this worker included.
    #[inline]
    pub(super) fn places(&self) -> usize {
        self.0.len()
    }

    /// The port at a place, if this worker has a queue of it.
    #[inline]
    pub(super) fn get(&self, port: usize) -> Option<&PortSlot<Io>> {
        self.0.get(port)?.as_ref()
    }

    /// The same, to send.
    #[inline]
    pub(super) fn get_mut(&mut self, port: usize) -> Option<&mut PortSlot<Io>> {
        self.0.get_mut(port)?.as_mut()
    }

    /// The queues of this worker.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Io> {
        self.0.iter().flatten().map(|slot| slot.io.queues())
    }

    /// The same, to change them.
    pub(super) fn queues_mut(&mut self) -> impl Iterator<Item = &mut Io> {
        self.0.iter_mut().flatten().map(|slot| slot.io.queues_mut())
    }

    /// Polls for frames and keeps them for the next turn. Returns whether there are any.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let mut arrived = false;
        for slot in self.0.iter_mut().flatten() {
            arrived |= slot.receive(now);
        }
        arrived
    }

    /// The worker of the flow that a report is about, as far as its ports tell.
    pub(super) fn owner_of(&self, port: usize, report: &Report) -> Option<WorkerId> {
        let steering = &self.get(port)?.facts.steering;
        Some(match report.quote {
            Quote::Tcp(_) => steering.owner(report.remote, report.local),
            Quote::Sctp(_) | Quote::SctpInit(_) | Quote::Esp(..) => {
                steering.owner_by_ports(report.remote, report.local)
            }
        })
    }

    /// What is sent is held from now on, to be protected.
    pub(super) fn hold(&mut self) {
        self.0.iter_mut().flatten().for_each(|slot| slot.io.hold());
    }

    /// Passes what was sent to the devices. Returns whether they took all.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        let mut flushed = true;
        for slot in self.0.iter_mut().flatten() {
            flushed &= slot.io.flush();
        }
        flushed
    }
}

//! The ports of one worker: its queues of each, and frames that have arrived.

use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;

use crate::io::{BURST, PortFacts, PortIo};

/// A port of this worker.
pub(crate) struct PortSlot<Io: PortIo> {
    /// Its queues.
    pub(crate) io: Io,
    /// What is the same for all workers.
    pub(crate) facts: Arc<PortFacts>,
    /// Frames that wait for the next turn.
    arrived: ArrayVec<Io::Frame, BURST>,
}

impl<Io: PortIo> PortSlot<Io> {
    /// These queues of a port.
    pub(crate) fn new(io: Io, facts: Arc<PortFacts>) -> Self {
        PortSlot { io, facts, arrived: ArrayVec::new() }
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
        self.0.iter().flatten().map(|slot| &slot.io)
    }

    /// One burst of a port, if there is any frame.
    #[inline]
    pub(super) fn receive(
        &mut self,
        port: usize,
        now: Instant,
    ) -> Option<ArrayVec<Io::Frame, BURST>> {
        let slot = self.0.get_mut(port)?.as_mut()?;
        slot.io.receive(now, &mut slot.arrived);
        if slot.arrived.is_empty() {
            return None;
        }
        Some(core::mem::take(&mut slot.arrived))
    }

    /// Looks for frames, which wait for the next turn. Returns whether there are any.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let mut arrived = false;
        for slot in self.0.iter_mut().flatten() {
            slot.io.receive(now, &mut slot.arrived);
            arrived |= !slot.arrived.is_empty();
        }
        arrived
    }

    /// Gives what was sent to the devices. Returns whether they took all.
    pub(super) fn flush(&mut self) -> bool {
        let mut flushed = true;
        for slot in self.0.iter_mut().flatten() {
            flushed &= slot.io.flush();
        }
        flushed
    }
}

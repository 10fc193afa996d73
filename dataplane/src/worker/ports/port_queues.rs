//! The transmit side of a worker's port. If IPsec policies are configured, frames are held in clear until the turn's
//! streams were served. They are then protected in one place, whoever sends them.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;
use ipsec::strength::Strength;

use crate::capture::Tap;
use crate::io::{BURST, PortIo};

/// Frames held, at most.
const MAX_HELD: usize = 1024;

/// The queues of a port.
pub(crate) struct PortQueues<Io: PortIo> {
    io: Io,
    /// Frames awaiting protection, oldest first; `None` if frames are not held.
    held: Option<VecDeque<(Io::Frame, Strength)>>,
}

impl<Io: PortIo> PortQueues<Io> {
    /// Wraps a port's queues; frames are not held.
    pub(in crate::worker) fn new(io: Io) -> Self {
        PortQueues { io, held: None }
    }

    /// Holds all frames sent from now on.
    pub(in crate::worker) fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Takes the frame that has been held longest, with the protection that it requires.
    pub(in crate::worker) fn take_held(&mut self) -> Option<(Io::Frame, Strength)> {
        self.held.as_mut()?.pop_front()
    }

    /// Sends a frame that was held, or needs no protection.
    pub(in crate::worker) fn send_now(&mut self, frame: Io::Frame) {
        self.io.send(frame);
    }

    /// Returns the queues.
    pub(in crate::worker) fn queues(&self) -> &Io {
        &self.io
    }

    /// Returns the queues mutably.
    pub(in crate::worker) fn queues_mut(&mut self) -> &mut Io {
        &mut self.io
    }
}

impl<Io: PortIo> PortIo for PortQueues<Io> {
    type Frame = Io::Frame;

    #[inline]
    fn receive(&mut self, now: Instant, out: &mut ArrayVec<Io::Frame, BURST>) {
        self.io.receive(now, out);
    }

    #[inline]
    fn allocate(&mut self, len: usize) -> Option<Io::Frame> {
        self.io.allocate(len)
    }

    #[inline]
    fn free_tx_slots(&mut self) -> usize {
        match &self.held {
            None => self.io.free_tx_slots(),
            // Held frames count against the room.
            Some(held) => self.io.free_tx_slots().min(MAX_HELD).saturating_sub(held.len()),
        }
    }

    #[inline]
    fn send(&mut self, frame: Io::Frame) {
        self.send_protected(frame, Strength::CLEAR);
    }

    #[inline]
    fn send_protected(&mut self, frame: Io::Frame, min_strength: Strength) {
        match &mut self.held {
            None => self.io.send(frame),
            Some(held) => held.push_back((frame, min_strength)),
        }
    }

    #[inline]
    fn offer(&mut self) {
        if self.held.is_none() {
            self.io.offer();
        }
    }

    #[inline]
    fn flush(&mut self) -> bool {
        self.io.flush()
    }

    fn can_wake(&self) -> bool {
        self.io.can_wake()
    }

    fn arm(&mut self) {
        self.io.arm();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.io.descriptor()
    }

    fn disarm(&mut self) {
        self.io.disarm();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.io.poll_timeout()
    }

    #[inline]
    fn tap(&mut self) -> Option<&mut Tap> {
        self.io.tap()
    }

    fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.io.set_tap(tap);
    }
}

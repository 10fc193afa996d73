//! A worker's queues of a port. Received frames pass unchanged. If IPsec is configured, sent frames are held
//! unencrypted until the turn has served its streams. The frames of all senders are then sealed by the same code.
//! Frames to own addresses wait in a loopback queue.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;
use ipsec::strength::Strength;

use crate::capture::{Direction, Fate, Tap};
use crate::io::{BURST, Frame, PortIo};

/// Maximum number of held frames per port. [`PortIo::free_tx_slots`] returns 0 when it is reached.
const MAX_HELD: usize = 1024;

/// Maximum number of frames per port in the loopback queue.
const MAX_LOOPED: usize = 512;

/// A worker's queues of one port, the frames held for IPsec, and the frames between addresses of the appliance.
pub(crate) struct PortQueues<Io: PortIo> {
    io: Io,
    /// Loopback queue: frames to own addresses, oldest first, in buffers of this port.
    looped: VecDeque<Io::Frame>,
    /// Held frames, oldest first, each with the minimum protection that it requires. `None` if frames are not held.
    held: Option<VecDeque<(Io::Frame, Strength)>>,
}

impl<Io: PortIo> PortQueues<Io> {
    /// Wraps a port's queues. Frames are not held until [`hold`](Self::hold).
    pub(in crate::worker) fn new(io: Io) -> Self {
        PortQueues { io, looped: VecDeque::new(), held: None }
    }

    pub(in crate::worker) fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Removes and returns the oldest held frame, with the minimum protection that it requires.
    pub(in crate::worker) fn take_held(&mut self) -> Option<(Io::Frame, Strength)> {
        self.held.as_mut()?.pop_front()
    }

    /// Sends a frame that was sealed or passes in clear, without holding it.
    pub(in crate::worker) fn send_now(&mut self, frame: Io::Frame) {
        self.io.send(frame);
    }

    /// Returns the number of frames in the loopback queue.
    #[inline]
    pub(in crate::worker) fn looped(&self) -> usize {
        self.looped.len()
    }

    /// Removes and returns the oldest frames of the loopback queue, at most `max`.
    pub(in crate::worker) fn take_looped(&mut self, max: usize) -> ArrayVec<Io::Frame, BURST> {
        let count = self.looped.len().min(max).min(BURST);
        self.looped.drain(..count).collect()
    }

    pub(in crate::worker) fn queues(&self) -> &Io {
        &self.io
    }

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
            // Each held frame will take an entry of the ring.
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
    fn free_loopback_slots(&self) -> usize {
        MAX_LOOPED.saturating_sub(self.looped.len())
    }

    #[cold]
    fn loop_back(&mut self, frame: Io::Frame) {
        if let Some(tap) = self.io.tap() {
            tap.record(Direction::Out, Fate::Passed, frame.bytes());
        }
        self.looped.push_back(frame);
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

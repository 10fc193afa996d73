//! An in-memory port for workers without a device. Its rings and frames are vectors.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;
use dataplane::io::{BURST, Frame, PortIo};
use dataplane::net::path::TxChecksum;
use dataplane::port::RxChecksum;

/// Capacity of the transmit ring, frames.
const ROOM: usize = 256;

/// A frame whose bytes are in a vector.
pub(crate) struct VectorFrame(pub(crate) Vec<u8>);

impl Frame for VectorFrame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    fn expand(&mut self, _: usize, _: usize) -> bool {
        false
    }

    fn trim(&mut self, front: usize, len: usize) {
        self.0.drain(..front);
        self.0.truncate(len);
    }

    fn hash(&self) -> Option<u32> {
        None
    }

    fn checksum(&self) -> RxChecksum {
        RxChecksum::Unknown
    }

    fn offload(&mut self, _: TxChecksum, _: usize, _: usize, _: bool) {}
}

/// The two rings of the port.
#[derive(Default)]
pub(crate) struct VectorPort {
    pub(crate) received: VecDeque<VectorFrame>,
    pub(crate) sent: Vec<VectorFrame>,
}

impl PortIo for VectorPort {
    type Frame = VectorFrame;

    fn receive(&mut self, _: Instant, out: &mut ArrayVec<VectorFrame, BURST>) {
        let count = self.received.len().min(out.remaining_capacity());
        out.extend(self.received.drain(..count));
    }

    fn allocate(&mut self, len: usize) -> Option<VectorFrame> {
        Some(VectorFrame(vec![0; len]))
    }

    fn free_tx_slots(&mut self) -> usize {
        ROOM - self.sent.len()
    }

    fn send(&mut self, frame: VectorFrame) {
        self.sent.push(frame);
    }

    fn flush(&mut self) -> bool {
        self.sent.is_empty()
    }

    fn can_wake(&self) -> bool {
        false
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

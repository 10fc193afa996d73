//! A port that neither receives nor sends: all packets of the worker are to its own addresses.

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;
use dataplane::io::{BURST, Frame, PortIo};
use dataplane::net::path::TxChecksum;
use dataplane::port::RxChecksum;

#[derive(Default)]
pub(crate) struct LonePort;

#[derive(Clone, Debug)]
pub(crate) struct FrameBuffer(Vec<u8>);

impl Frame for FrameBuffer {
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

    fn trim(&mut self, _: usize, _: usize) {}

    fn hash(&self) -> Option<u32> {
        None
    }

    fn checksum(&self) -> RxChecksum {
        RxChecksum::Unknown
    }

    fn offload(&mut self, _: TxChecksum, _: usize, _: usize, _: bool) {}
}

impl PortIo for LonePort {
    type Frame = FrameBuffer;

    fn receive(&mut self, _: Instant, _: &mut ArrayVec<FrameBuffer, BURST>) {}

    fn allocate(&mut self, len: usize) -> Option<FrameBuffer> {
        let mut bytes = Vec::with_capacity(2048);
        bytes.resize(len, 0);
        Some(FrameBuffer(bytes))
    }

    fn free_tx_slots(&mut self) -> usize {
        BURST
    }

    fn send(&mut self, _: FrameBuffer) {}

    fn flush(&mut self) -> bool {
        true
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

//! In-memory queues of a worker, in place of a device, for the programs `hot-worker` and `hot-programs`.

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;
use dataplane::io::{BURST, Frame, PortIo};
use dataplane::net::path::TxChecksum;
use dataplane::port::RxChecksum;

/// Capacity of a frame for transmission, bytes.
const FRAME_CAPACITY: usize = 10_240;

/// A frame. Received frames are shared, so that releasing them costs nothing.
#[derive(Clone, Debug)]
pub enum FrameBuffer {
    /// Received frame.
    Shared(&'static [u8]),
    /// Frame for transmission.
    Owned {
        /// Buffer of `FRAME_CAPACITY` bytes.
        buffer: Box<[u8]>,
        /// Length of the frame, at the start of the buffer, in bytes.
        len: usize,
    },
}

impl Frame for FrameBuffer {
    fn bytes(&self) -> &[u8] {
        match self {
            FrameBuffer::Shared(bytes) => bytes,
            FrameBuffer::Owned { buffer, len } => &buffer[..*len],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            FrameBuffer::Shared(_) => &mut [],
            FrameBuffer::Owned { buffer, len } => &mut buffer[..*len],
        }
    }

    fn truncate(&mut self, new_len: usize) {
        match self {
            FrameBuffer::Shared(bytes) => *bytes = &bytes[..new_len],
            FrameBuffer::Owned { len, .. } => *len = new_len.min(*len),
        }
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

/// In-memory queues without a bound, in place of a port.
#[derive(Default)]
pub struct FramePort {
    frames: &'static [&'static [u8]],
    next_frame: usize,
    remaining: usize,
    /// Buffers of the frames sent while `keep_sent` is true, and the lengths of these frames.
    sent: Vec<(Box<[u8]>, usize)>,
    keep_sent: bool,
    /// Buffers that are not in use. Like packet buffers of a pool, they are not cleared.
    spare: Vec<Box<[u8]>>,
}

impl PortIo for FramePort {
    type Frame = FrameBuffer;

    fn receive(&mut self, _: Instant, out: &mut ArrayVec<FrameBuffer, BURST>) {
        while self.remaining > 0 && !out.is_full() {
            out.push(FrameBuffer::Shared(self.frames[self.next_frame]));
            self.next_frame = (self.next_frame + 1) % self.frames.len();
            self.remaining -= 1;
        }
    }

    fn allocate(&mut self, len: usize) -> Option<FrameBuffer> {
        let buffer = self.spare.pop().unwrap_or_else(new_buffer);
        Some(FrameBuffer::Owned { buffer, len })
    }

    fn free_tx_slots(&mut self) -> usize {
        BURST
    }

    fn send(&mut self, frame: FrameBuffer) {
        if let FrameBuffer::Owned { buffer, len } = frame {
            match self.keep_sent {
                true => self.sent.push((buffer, len)),
                false => self.spare.push(buffer),
            }
        }
    }

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

impl FramePort {
    /// Sets the frames that arrive from now on. They are repeated until `count` have been received.
    pub fn set_arrivals(&mut self, frames: &'static [&'static [u8]], count: usize) {
        (self.frames, self.next_frame, self.remaining) = (frames, 0, count);
    }

    /// Lets `count` more frames arrive.
    pub fn continue_arrivals(&mut self, count: usize) {
        self.remaining = count;
    }

    /// Returns the number of frames that the worker has not received yet.
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Selects whether sent frames are kept for [`take_sent`](Self::take_sent).
    pub fn keep_sent(&mut self, keep: bool) {
        self.keep_sent = keep;
    }

    /// Takes the sent frames.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        self.sent
            .drain(..)
            .map(|(buffer, len)| {
                let mut frame = buffer.into_vec();
                frame.truncate(len);
                frame
            })
            .collect()
    }

    /// Allocates at least `count` buffers for sent frames, so that no allocation is counted.
    pub fn reserve_buffers(&mut self, count: usize) {
        let missing = count.saturating_sub(self.spare.len());
        self.spare.extend((0..missing).map(|_| new_buffer()));
        self.sent.reserve(count);
    }
}

fn new_buffer() -> Box<[u8]> {
    vec![0; FRAME_CAPACITY].into()
}

/// Leaks the frames, so that they are valid until the process ends.
pub fn leak_frames(frames: Vec<Vec<u8>>) -> &'static [&'static [u8]] {
    let frames: Vec<&'static [u8]> = frames.into_iter().map(|f| &*f.leak()).collect();
    frames.leak()
}

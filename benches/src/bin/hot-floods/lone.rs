//! A worker on in-memory queues, without a device or a second core, so that its instructions can be counted. The worker
//! has the appliance's configuration.

pub(crate) mod share;

use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use dataplane::io::{BURST, Frame, PortIo};
use dataplane::net::path::TxChecksum;
use dataplane::port::RxChecksum;
use dataplane::{Command, DrivenWorker, Ticket};

use benches::end_config::EndConfig;
use benches::floods::frames::{Kind, LinkAddresses};
use benches::rig_config::{RigConfig, Side};

/// A frame. Received frames are shared, so that releasing them costs nothing.
#[derive(Clone, Debug)]
pub(crate) enum FrameBuffer {
    /// Received frame.
    Shared(&'static [u8]),
    /// Frame for transmission.
    Owned(Vec<u8>),
}

impl Frame for FrameBuffer {
    fn bytes(&self) -> &[u8] {
        match self {
            FrameBuffer::Shared(bytes) => bytes,
            FrameBuffer::Owned(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            FrameBuffer::Shared(_) => &mut [],
            FrameBuffer::Owned(bytes) => bytes,
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            FrameBuffer::Shared(bytes) => *bytes = &bytes[..len],
            FrameBuffer::Owned(bytes) => bytes.truncate(len),
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
pub(crate) struct FramePort {
    frames: &'static [&'static [u8]],
    next_frame: usize,
    remaining: usize,
    /// Frames sent while `keep_sent` is true.
    sent: Vec<Vec<u8>>,
    keep_sent: bool,
    spare: Vec<Vec<u8>>,
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
        let mut bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(2048));
        bytes.resize(len, 0);
        Some(FrameBuffer::Owned(bytes))
    }

    fn free_tx_slots(&mut self) -> usize {
        BURST
    }

    fn send(&mut self, frame: FrameBuffer) {
        if let FrameBuffer::Owned(bytes) = frame {
            match self.keep_sent {
                true => self.sent.push(bytes),
                false => self.spare.push(bytes),
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

/// The responder's worker, under a flood.
pub(crate) struct FloodedWorker {
    /// The worker. Each call of `turn` runs one iteration of its loop.
    pub(crate) worker: DrivenWorker<FramePort>,
    /// Virtual time.
    pub(crate) now: Instant,
    /// Link-layer addresses of worker and generator.
    pub(crate) addresses: LinkAddresses,
}

impl FloodedWorker {
    /// Returns a worker with its listener, and with a stream if this kind of flood needs it.
    pub(crate) fn new(kind: Kind) -> anyhow::Result<FloodedWorker> {
        let rig = kind.adapt_rig(RigConfig::default());
        let mut product = EndConfig::new(&rig, Side::Responder)?;
        // A fixed hash secret, because the number of peers per hash bucket affects the instruction count.
        product.dataplane.secret = [0x5a; 32].into();
        let now = Instant::from_millis(1000);
        let ends = LinkAddresses { worker: [2, 0, 0, 0, 0, 1], generator: [2, 0, 0, 0, 0, 2] };
        let mut worker = product.driven_worker(ends.worker, FramePort::default(), now)?;
        if let Some(listener) = product.listener {
            let listener = Arc::new(listener);
            let sent = worker.handle.send(Command::AddListener { listener, ticket: Ticket(1) });
            anyhow::ensure!(sent.is_ok(), "the command ring is full");
        }
        let mut lone = FloodedWorker { worker, now, addresses: ends };
        lone.run_turns(4);
        if kind.needs_stream() {
            lone.open_stream()?;
        }
        Ok(lone)
    }

    fn open_stream(&mut self) -> anyhow::Result<()> {
        let ends = self.addresses;
        self.exchange_frame(ends.gratuitous_arp());
        let answers = self.exchange_frame(ends.syn());
        let ack = answers.iter().find_map(|frame| ends.ack_of(frame));
        self.exchange_frame(ack.ok_or_else(|| anyhow::anyhow!("the SYN was not answered"))?);
        Ok(())
    }

    fn exchange_frame(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let frames = leak_frames(vec![frame]);
        if let Some(wire) = self.worker.port(0) {
            (wire.frames, wire.next_frame, wire.remaining, wire.keep_sent) = (frames, 0, 1, true);
        }
        self.run_turns(4);
        let Some(wire) = self.worker.port(0) else { return Vec::new() };
        wire.keep_sent = false;
        mem::take(&mut wire.sent)
    }

    fn run_turns(&mut self, n: u32) {
        for _ in 0..n {
            self.now += std::time::Duration::from_micros(1);
            self.worker.turn(self.now);
        }
    }

    /// Sets the frames that arrive from now on, repeated in a loop.
    pub(crate) fn set_flood(&mut self, frames: &'static [&'static [u8]]) {
        if let Some(wire) = self.worker.port(0) {
            (wire.frames, wire.next_frame) = (frames, 0);
        }
    }

    /// Receives `frames` frames, one burst per turn. A turn takes 6.4 µs of virtual time.
    pub(crate) fn receive_frames(&mut self, frames: usize) {
        if let Some(wire) = self.worker.port(0) {
            wire.remaining = frames;
        }
        for _ in 0..frames.div_ceil(BURST) {
            self.now += std::time::Duration::from_nanos(6400);
            self.worker.turn(self.now);
        }
    }
}

/// Leaks the frames, so that they are valid until the process ends.
pub(crate) fn leak_frames(frames: Vec<Vec<u8>>) -> &'static [&'static [u8]] {
    let frames: Vec<&'static [u8]> = frames.into_iter().map(|f| &*f.leak()).collect();
    frames.leak()
}

//! A worker on in-memory queues, without device and second core, so that its instructions can be
//! counted. Its configuration is the appliance's.

pub(crate) mod share;

use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use dataplane::io::{BURST, Frame, PortFacts, PortIo};
use dataplane::net::path::TxChecksum;
use dataplane::port::{ChecksumBy, RxChecksum};
use dataplane::steering::Steering;
use dataplane::{Command, DrivenWorker, Ticket, WorkerId};

use benches::floods::frames::{Ends, Kind, Mac};
use benches::product::Product;
use benches::setup::{RigConfig, Side};

/// A frame. Received frames are shared, so that their release costs nothing.
#[derive(Clone, Debug)]
pub(crate) enum Buffer {
    /// Received frame.
    Shared(&'static [u8]),
    /// Frame for transmission.
    Own(Vec<u8>),
}

impl Frame for Buffer {
    fn bytes(&self) -> &[u8] {
        match self {
            Buffer::Shared(bytes) => bytes,
            Buffer::Own(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::Shared(_) => &mut [],
            Buffer::Own(bytes) => bytes,
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Buffer::Shared(bytes) => *bytes = &bytes[..len],
            Buffer::Own(bytes) => bytes.truncate(len),
        }
    }

    fn stretch(&mut self, _: usize, _: usize) -> bool {
        false
    }

    fn cut(&mut self, _: usize, _: usize) {}

    fn hash(&self) -> Option<u32> {
        None
    }

    fn checksum(&self) -> RxChecksum {
        RxChecksum::Unknown
    }

    fn offload(&mut self, _: TxChecksum, _: usize, _: usize, _: bool) {}
}

/// Unbounded queues in place of a port.
#[derive(Default)]
pub(crate) struct Wire {
    frames: &'static [&'static [u8]],
    next: usize,
    left: usize,
    /// Frames sent since the last [`Lone::sent`], if `keeps`.
    sent: Vec<Vec<u8>>,
    keeps: bool,
    spare: Vec<Vec<u8>>,
}

impl PortIo for Wire {
    type Frame = Buffer;

    fn receive(&mut self, _: Instant, out: &mut ArrayVec<Buffer, BURST>) {
        while self.left > 0 && !out.is_full() {
            out.push(Buffer::Shared(self.frames[self.next]));
            self.next = (self.next + 1) % self.frames.len();
            self.left -= 1;
        }
    }

    fn allocate(&mut self, len: usize) -> Option<Buffer> {
        let mut bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(2048));
        bytes.resize(len, 0);
        Some(Buffer::Own(bytes))
    }

    fn room(&mut self) -> usize {
        BURST
    }

    fn send(&mut self, frame: Buffer) {
        if let Buffer::Own(bytes) = frame {
            match self.keeps {
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

/// The asked side's worker.
pub(crate) struct Lone {
    /// The worker, driven turn by turn.
    pub(crate) worker: DrivenWorker<Wire>,
    /// Virtual time.
    pub(crate) now: Instant,
    /// Link-layer addresses of worker and generator.
    pub(crate) ends: Ends,
}

impl Lone {
    /// Returns a worker with its listener, and with the stream that this kind of flood needs.
    pub(crate) fn new(kind: Kind) -> anyhow::Result<Lone> {
        let rig = kind.rig(RigConfig::default());
        let mut product = Product::new(&rig, Side::Asked)?;
        // A fixed secret makes the hashes equal in each run. The number of peers per bucket changes
        // the instruction count.
        product.dataplane.secret = [0x5a; 32].into();
        let now = Instant::from_millis(1000);
        let ends = Ends { to: [2, 0, 0, 0, 0, 1], from: [2, 0, 0, 0, 0, 2] };
        let mut worker = worker(&product, ends.to, now)?;
        if let Some(listener) = product.listener {
            let listener = Arc::new(listener);
            let sent = worker.handle.send(Command::AddListener { listener, ticket: Ticket(1) });
            anyhow::ensure!(sent.is_ok(), "the command ring is full");
        }
        let mut lone = Lone { worker, now, ends };
        lone.turns(4);
        if kind.needs_stream() {
            lone.open()?;
        }
        Ok(lone)
    }

    fn open(&mut self) -> anyhow::Result<()> {
        let ends = self.ends;
        self.exchange(ends.introduction());
        let answers = self.exchange(ends.syn());
        let ack = answers.iter().find_map(|frame| ends.acknowledge(frame));
        self.exchange(ack.ok_or_else(|| anyhow::anyhow!("the SYN was not answered"))?);
        Ok(())
    }

    fn exchange(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let frames = shared(vec![frame]);
        if let Some(wire) = self.worker.port(0) {
            (wire.frames, wire.next, wire.left, wire.keeps) = (frames, 0, 1, true);
        }
        self.turns(4);
        let Some(wire) = self.worker.port(0) else { return Vec::new() };
        wire.keeps = false;
        mem::take(&mut wire.sent)
    }

    fn turns(&mut self, n: u32) {
        for _ in 0..n {
            self.now += std::time::Duration::from_micros(1);
            self.worker.turn(self.now);
        }
    }

    /// Sets the frames that arrive from now on, in a loop.
    pub(crate) fn flood_with(&mut self, frames: &'static [&'static [u8]]) {
        if let Some(wire) = self.worker.port(0) {
            (wire.frames, wire.next) = (frames, 0);
        }
    }

    /// Lets `frames` frames arrive, one burst per turn of 6.4 µs.
    pub(crate) fn take(&mut self, frames: usize) {
        if let Some(wire) = self.worker.port(0) {
            wire.left = frames;
        }
        for _ in 0..frames.div_ceil(BURST) {
            self.now += std::time::Duration::from_nanos(6400);
            self.worker.turn(self.now);
        }
    }
}

/// Returns a worker with one port of this link-layer address.
fn worker(product: &Product, mac: Mac, now: Instant) -> anyhow::Result<DrivenWorker<Wire>> {
    let workers = vec![WorkerId(0)];
    let facts = PortFacts {
        mac,
        tx_checksum: TxChecksum::SOFTWARE,
        rx_checksum: ChecksumBy::Software,
        rx_sctp_checksum: ChecksumBy::Software,
        device_hash: false,
        steering: Steering::software(&workers),
        workers,
    };
    Ok(DrivenWorker::new(&product.dataplane, [(facts, Wire::default())], now)?)
}

/// Leaks the frames, which are valid for the rest of the process.
pub(crate) fn shared(frames: Vec<Vec<u8>>) -> &'static [&'static [u8]] {
    let frames: Vec<&'static [u8]> = frames.into_iter().map(|f| &*f.leak()).collect();
    frames.leak()
}

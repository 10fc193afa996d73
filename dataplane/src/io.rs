//! Frames as a worker gets and gives them. Two implementations: the queues of a DPDK port, and vectors
//! in tests, where the same worker runs without EAL and in virtual time.

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;
use ipsec::strength::Strength;

use crate::api::WorkerId;
use crate::capture::Tap;
use crate::net::neighbour::Mac;
use crate::net::path::TxChecksum;
use crate::port::{ChecksumBy, RxChecksum};
use crate::steering::Steering;

mod queue;

/// Frames taken from a queue at a time.
pub use crate::port::BURST;

/// A packet buffer with a frame in it, Ethernet header first.
pub trait Frame: Send {
    /// The frame.
    fn bytes(&self) -> &[u8];

    /// The frame, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Keeps the first `len` bytes.
    fn truncate(&mut self, len: usize);

    /// Adds this many bytes of arbitrary content in front and behind. False, and nothing has changed, without so much
    /// room.
    fn stretch(&mut self, front: usize, back: usize) -> bool;

    /// Takes the first `front` bytes away and keeps `len` of those behind them.
    fn cut(&mut self, front: usize, len: usize);

    /// Prefetches the frame, which will be read soon.
    fn prefetch(&self) {}

    /// Prefetches its headers only, which are read while earlier frames are still unhandled.
    fn prefetch_headers(&self) {}

    /// The device's RSS hash, under the key of the port's steering.
    fn hash(&self) -> Option<u32>;

    /// The device's verdict on the checksum of TCP or SCTP, where [`PortFacts`] say that it verifies that protocol's.
    fn checksum(&self) -> RxChecksum;

    /// The device is to fill in these checksums, of one protocol above IP at most, behind headers of these lengths.
    fn offload(&mut self, how: TxChecksum, l2: usize, l3: usize, v6: bool);
}

/// One worker's queues of one port.
pub trait PortIo {
    /// Its packet buffers. They may be freed by any worker.
    type Frame: Frame;

    /// Takes what has arrived, at most what `out` has room for.
    fn receive(&mut self, now: Instant, out: &mut ArrayVec<Self::Frame, BURST>);

    /// A buffer of `len` bytes of arbitrary content, or `None` when the pool is empty.
    fn allocate(&mut self, len: usize) -> Option<Self::Frame>;

    /// Frames that [`send`](Self::send) will take now. Zero: the transmit ring is full.
    fn room(&mut self) -> usize;

    /// Queues a frame, for which there is [`room`](Self::room).
    fn send(&mut self, frame: Self::Frame);

    /// The same for a frame that is sent under at least this protection by IPsec, or dropped. Queues that seal nothing have no
    /// such frames.
    #[inline]
    fn send_under(&mut self, frame: Self::Frame, _: Strength) {
        self.send(frame);
    }

    /// Gives what is queued to the device ahead of the next [`flush`](Self::flush), as far as it takes it.
    fn offer(&mut self) {}

    /// Gives what is queued to the device, as far as it takes it. Returns false when something is left.
    fn flush(&mut self) -> bool;

    /// An idle worker learns of what arrives: [`descriptor`](Self::descriptor) is not `None` for ever.
    fn can_wake(&self) -> bool;

    /// The worker is about to sleep: from now to [`rested`](Self::rested), what arrives makes
    /// [`descriptor`](Self::descriptor) readable. What came before may not, so the worker polls once more.
    fn rest(&mut self) {}

    /// Readable when frames have arrived; `None` when the device has no such thing.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The worker has waited for [`descriptor`](Self::descriptor), or not, and will poll.
    fn rested(&mut self) {}

    /// When frames arrive by themselves next: those that an impaired link holds back.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The capture of this queue, while one runs. What is sent is recorded here, what is received by the worker, which
    /// knows what becomes of it.
    #[inline]
    fn tap(&mut self) -> Option<&mut Tap> {
        None
    }

    /// Begins a capture, or ends it.
    fn set_tap(&mut self, _: Option<Box<Tap>>) {}
}

/// What is the same for all workers of a port.
#[derive(Clone, Debug)]
pub struct PortFacts {
    /// Link-layer address.
    pub mac: Mac,
    /// Who fills in checksums on the way out.
    pub tx_checksum: TxChecksum,
    /// Who verifies TCP checksums of received frames.
    pub rx_checksum: ChecksumBy,
    /// Who verifies SCTP checksums of received frames: never nobody. Those of packets in UDP are always software's.
    pub rx_sctp_checksum: ChecksumBy,
    /// [`Frame::hash`] is that of the steering.
    pub device_hash: bool,
    /// Which worker owns which flow.
    pub steering: Steering,
    /// The workers that have a queue, in the order of the queues.
    pub workers: Vec<WorkerId>,
}

//! The interface between a worker and a port's queues. The queues of a DPDK port implement this interface. In tests,
//! queues in ordinary memory implement it, so tests run the same worker without EAL and in virtual time. Lengths are in
//! bytes.

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;
use ipsec::strength::Strength;

use crate::api::WorkerId;
use crate::capture::Tap;
use crate::net::neighbour::Mac;
use crate::net::path::TxChecksum;
use crate::port::{ChecksumSite, RxChecksum};
use crate::steering::Steering;

mod queue;

/// Maximum number of frames in one received burst.
pub use crate::port::BURST;

/// A packet buffer with a frame in it, Ethernet header first.
pub trait Frame: Send {
    /// Returns the frame's bytes.
    fn bytes(&self) -> &[u8];

    /// Returns the frame's bytes, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Truncates the frame to its first `len` bytes.
    fn truncate(&mut self, len: usize);

    /// Extends the frame by `front` bytes at its start and `back` bytes at its end, of arbitrary content. Returns
    /// false, and changes nothing, if the buffer has no room.
    fn expand(&mut self, front: usize, back: usize) -> bool;

    /// Removes the first `front` bytes and keeps the next `len`.
    fn trim(&mut self, front: usize, len: usize);

    /// Prefetches the frame into the CPU's caches, for a read that follows soon.
    fn prefetch(&self) {}

    /// Prefetches only the headers, which are parsed before the rest of the frame.
    fn prefetch_headers(&self) {}

    /// Returns the RSS hash that the device reported, computed with the key of the port's steering.
    fn hash(&self) -> Option<u32>;

    /// Returns the result of the device's TCP or SCTP checksum verification. Valid for the protocols that the device
    /// verifies according to [`PortProperties`].
    fn checksum(&self) -> RxChecksum;

    /// Requests checksum offload for the IP header and at most one protocol above IP. `l2` and `l3` are the lengths
    /// of the Ethernet and IP headers in bytes. `v6` is true for IPv6.
    fn offload(&mut self, checksums: TxChecksum, l2: usize, l3: usize, v6: bool);
}

/// One worker's queues of one port.
pub trait PortIo {
    /// Packet buffer of the port. Any worker may free it.
    type Frame: Frame;

    /// Appends received frames to `out`, up to its capacity.
    fn receive(&mut self, now: Instant, out: &mut ArrayVec<Self::Frame, BURST>);

    /// Allocates a buffer of `len` bytes of arbitrary content; `None` if the pool is empty.
    fn allocate(&mut self, len: usize) -> Option<Self::Frame>;

    /// Returns the number of frames that [`send`](Self::send) accepts now; 0 if the transmit ring stays full after a
    /// flush.
    fn free_tx_slots(&mut self) -> usize;

    /// Queues a frame for transmission. Requires a slot: [`free_tx_slots`](Self::free_tx_slots) above 0.
    fn send(&mut self, frame: Self::Frame);

    /// Queues a frame that must be sent under at least this IPsec protection, or dropped. The default ignores the
    /// protection, because queues without IPsec never receive such frames.
    #[inline]
    fn send_protected(&mut self, frame: Self::Frame, _: Strength) {
        self.send(frame);
    }

    /// Returns the number of frames that [`loop_back`](Self::loop_back) accepts now. The default is 0, for queues
    /// without loopback.
    #[inline]
    fn free_loopback_slots(&self) -> usize {
        0
    }

    /// Queues a frame to be received by this worker in a later iteration of its loop. Requires a slot:
    /// [`free_loopback_slots`](Self::free_loopback_slots) above 0. The default drops the frame.
    #[inline]
    fn loop_back(&mut self, frame: Self::Frame) {
        drop(frame);
    }

    /// Passes queued frames to the device now, as far as it accepts them, instead of at the next
    /// [`flush`](Self::flush). The default does nothing.
    fn offer(&mut self) {}

    /// Passes queued frames to the device. Returns false if the device did not accept all of them.
    fn flush(&mut self) -> bool;

    /// Returns true if arriving frames can end a sleep: [`descriptor`](Self::descriptor) is not always `None`.
    fn can_wake(&self) -> bool;

    /// Arms the wake-up before a sleep: until [`disarm`](Self::disarm), arriving frames make
    /// [`descriptor`](Self::descriptor) readable. Frames that arrived before the call do not always make the
    /// descriptor readable, so the worker polls once more before it sleeps.
    fn arm(&mut self) {}

    /// Returns the descriptor that is readable once frames have arrived; `None` if the device has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Disarms the wake-up; the worker polls again. Called whether or not the worker slept.
    fn disarm(&mut self) {}

    /// Returns the earliest arrival time of the frames that a simulated link (impairment) delays; `None` if no frame
    /// is delayed.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns the capture that runs on this queue, if any. The queue records sent frames. The worker records
    /// received frames, because the worker determines the drop reason.
    #[inline]
    fn tap(&mut self) -> Option<&mut Tap> {
        None
    }

    /// Starts the given capture on this queue, or ends the running one if `None`.
    fn set_tap(&mut self, _: Option<Box<Tap>>) {}
}

/// Properties of a port that are the same for all of its workers.
#[derive(Clone, Debug)]
pub struct PortProperties {
    /// Link-layer address.
    pub mac: Mac,
    /// Site (device or worker) that computes each checksum of sent frames.
    pub tx_checksum: TxChecksum,
    /// Site (device or worker) that verifies the TCP checksums of received frames.
    pub rx_checksum: ChecksumSite,
    /// Site that verifies the SCTP checksums of received frames, never [`ChecksumSite::Skipped`]. SCTP in UDP is
    /// always verified in software.
    pub rx_sctp_checksum: ChecksumSite,
    /// True if [`Frame::hash`] is the hash that `steering` uses.
    pub device_hash: bool,
    /// Map from flow to owning worker.
    pub steering: Steering,
    /// Workers with a queue of this port, in queue order.
    pub workers: Vec<WorkerId>,
}

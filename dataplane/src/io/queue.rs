//! Implements [`PortIo`] and [`Frame`] for the queues and packet buffers of a DPDK port, and derives [`PortProperties`]
//! from its [`PortInfo`].

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;

use super::{BURST, Frame, PortIo, PortProperties};
use crate::api::WorkerId;
use crate::capture::Tap;
use crate::net::path::TxChecksum;
use crate::port::{ChecksumSite, Mbuf, PortInfo, PortQueue, RxChecksum, TxChecksums, TxL4};
use crate::steering::{SYMMETRIC_KEY, Steering};

/// Maximum number of bytes of a frame that are prefetched. More requests than the CPU has line fill buffers would
/// stall the CPU. The hardware prefetcher loads the bytes that follow.
const MAX_PREFETCH: usize = 1536;

/// Bytes prefetched for the headers of a frame.
const HEADERS: usize = 128;

impl Frame for Mbuf {
    fn bytes(&self) -> &[u8] {
        self.data()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }

    fn truncate(&mut self, len: usize) {
        Mbuf::truncate(self, len);
    }

    fn expand(&mut self, front: usize, back: usize) -> bool {
        let room = self.headroom() >= front && self.tailroom() >= back;
        room && self.prepend(front).is_some() && self.append(back).is_some()
    }

    fn trim(&mut self, front: usize, len: usize) {
        if self.trim_front(front) {
            Mbuf::truncate(self, len);
        }
    }

    fn prefetch(&self) {
        self.prefetch_data(MAX_PREFETCH);
    }

    fn prefetch_headers(&self) {
        self.prefetch_data(HEADERS);
    }

    fn hash(&self) -> Option<u32> {
        self.rss_hash()
    }

    fn checksum(&self) -> RxChecksum {
        self.rx_l4_checksum()
    }

    fn offload(&mut self, how: TxChecksum, l2: usize, l3: usize, v6: bool) {
        let l4 = match (how.tcp, how.sctp) {
            (ChecksumSite::Device, _) => TxL4::Tcp,
            (_, ChecksumSite::Device) => TxL4::Sctp,
            _ => TxL4::None,
        };
        self.set_tx_checksums(TxChecksums {
            ipv6: v6,
            ip: how.ip_by_device,
            l4,
            l2_len: l2 as u16,
            l3_len: l3 as u16,
        });
    }
}

impl PortIo for PortQueue {
    type Frame = Mbuf;

    fn receive(&mut self, now: Instant, out: &mut ArrayVec<Mbuf, BURST>) {
        self.rx_burst(now, out);
    }

    fn allocate(&mut self, len: usize) -> Option<Mbuf> {
        let mut frame = self.alloc()?;
        frame.append(len)?;
        Some(frame)
    }

    fn free_tx_slots(&mut self) -> usize {
        if PortQueue::free_tx_slots(self) == 0 {
            PortQueue::flush(self);
        }
        PortQueue::free_tx_slots(self)
    }

    fn send(&mut self, frame: Mbuf) {
        self.tx(frame);
    }

    fn offer(&mut self) {
        PortQueue::offer(self);
    }

    fn flush(&mut self) -> bool {
        PortQueue::flush(self);
        self.pending() == 0
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.fd()
    }

    fn can_wake(&self) -> bool {
        PortQueue::can_wake(self)
    }

    fn arm(&mut self) {
        PortQueue::arm(self);
    }

    fn disarm(&mut self) {
        PortQueue::disarm(self);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        PortQueue::poll_timeout(self)
    }

    fn tap(&mut self) -> Option<&mut Tap> {
        PortQueue::tap(self)
    }

    fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        PortQueue::set_tap(self, tap);
    }
}

impl PortProperties {
    /// Returns the properties of an open port whose queue `i` belongs to `workers[i]`.
    pub(crate) fn new(info: &PortInfo, workers: &[WorkerId]) -> PortProperties {
        let table = info.rss.queues.iter().map(|&queue| workers[usize::from(queue)]).collect();
        PortProperties {
            mac: info.mac,
            tx_checksum: TxChecksum {
                ip_by_device: info.checksums.tx_ip == ChecksumSite::Device,
                tcp: info.checksums.tx_tcp,
                sctp: info.checksums.tx_sctp,
            },
            rx_checksum: info.checksums.rx_tcp,
            rx_sctp_checksum: info.checksums.rx_sctp,
            device_hash: info.rss.in_device,
            steering: Steering::new(&SYMMETRIC_KEY, table),
            workers: workers.to_vec(),
        }
    }

    /// Returns the properties without checksum offload and device hashes, for a port with IPsec. On such a port the
    /// device sees ESP packets, so its checksums and hashes would apply to the outer packet.
    #[must_use]
    pub(crate) fn without_offloads(self) -> PortProperties {
        let software = |by| match by {
            ChecksumSite::Device => ChecksumSite::Software,
            other => other,
        };
        let (tcp, sctp) = (software(self.tx_checksum.tcp), software(self.tx_checksum.sctp));
        PortProperties {
            tx_checksum: TxChecksum { ip_by_device: false, tcp, sctp },
            rx_checksum: software(self.rx_checksum),
            rx_sctp_checksum: software(self.rx_sctp_checksum),
            device_hash: false,
            ..self
        }
    }
}

//! Frames and simulated devices of the test hosts.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use base::Instant;

use crate::capture::{Direction, Fate, Tap};
use crate::io::{BURST, Frame, PortIo};
use crate::net::path::TxChecksum;
use crate::port::{ChecksumSite, RxChecksum};

/// A frame in a vector, with metadata of the device.
#[derive(Clone, Debug)]
pub(super) struct TestFrame(pub(super) Vec<u8>, pub(super) DeviceMetadata);

/// Checksum metadata of a frame that a device and its driver exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceMetadata {
    /// The device's verdict on the TCP or SCTP checksum of a received frame.
    pub(super) verdict: RxChecksum,
    /// Offload request of a frame to send: checksums, lengths of link and IP header in bytes, true for IPv6.
    offload_request: Option<(TxChecksum, usize, usize, bool)>,
}

impl TestFrame {
    pub(super) fn new(bytes: Vec<u8>) -> TestFrame {
        TestFrame::with_verdict(bytes, RxChecksum::Unknown)
    }

    /// Creates a received frame with this verdict of the device.
    pub(super) fn with_verdict(bytes: Vec<u8>, verdict: RxChecksum) -> TestFrame {
        TestFrame(bytes, DeviceMetadata { verdict, offload_request: None })
    }

    /// Computes the requested checksums, like a device with offload of IPv4 and SCTP. Asserts that SCTP's
    /// checksum is requested only for unfragmented packets directly in IP, with the field at zero (RFC 9260 §6.8).
    fn fill_checksums(&mut self) {
        let Some((how, l2, l3, v6)) = self.1.offload_request.take() else { return };
        let frame = &mut self.0;
        let tagged = frame[12..14] == [0x81, 0];
        assert_eq!(l2, if tagged { 18 } else { 14 });
        assert_eq!(frame[l2 - 2..l2], if v6 { [0x86, 0xdd] } else { [8, 0] });
        let (protocol, len, offset) = match v6 {
            true => (frame[l2 + 6], 40, 0),
            false => (frame[l2 + 9], 20, frame[l2 + 6] & 0x3f | frame[l2 + 7]),
        };
        assert_eq!((l3, offset), (len, 0), "no fragment");
        let (ip, packet) = frame[l2..].split_at_mut(l3);
        if how.ip_by_device && !v6 {
            assert_eq!(ip[10..12], [0; 2], "the field is zero");
            let sum = !crate::checksum::sum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        assert_ne!(how.tcp, ChecksumSite::Device);
        assert_eq!(how.sctp == ChecksumSite::Device, protocol == 132, "{how:?} of {protocol}");
        if how.sctp == ChecksumSite::Device {
            assert_eq!(packet[8..12], [0; 4], "the field is zero");
            wire::sctp::fill_checksum(packet);
        }
    }
}

impl Frame for TestFrame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
    fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
    fn expand(&mut self, front: usize, back: usize) -> bool {
        self.0.splice(..0, vec![0xdd; front]);
        self.0.resize(self.0.len() + back, 0xdd);
        true
    }
    fn trim(&mut self, front: usize, len: usize) {
        self.0.drain(..front);
        self.0.truncate(len);
    }
    fn hash(&self) -> Option<u32> {
        None
    }
    fn checksum(&self) -> RxChecksum {
        self.1.verdict
    }
    fn offload(&mut self, how: TxChecksum, l2: usize, l3: usize, v6: bool) {
        self.1.offload_request = Some((how, l2, l3, v6));
    }
}

/// Returns the verdict of a device that verifies the checksums of unfragmented SCTP packets directly in IP. Its verdict
/// on all other packets is "bad", which the worker must ignore.
pub(super) fn verdict(frame: &[u8]) -> RxChecksum {
    let at = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let ip = &frame[at..];
    let packet = match frame[at - 2..at] {
        [8, 0] if ip[9] == 132 && ip[6] & 0x3f | ip[7] == 0 => {
            &ip[20..usize::from(u16::from_be_bytes([ip[2], ip[3]]))]
        }
        [0x86, 0xdd] if ip[6] == 132 => &ip[40..],
        _ => return RxChecksum::Bad,
    };
    match wire::sctp::Packet::new(packet).is_ok_and(|packet| packet.checksum_ok()) {
        true => RxChecksum::Good,
        false => RxChecksum::Bad,
    }
}

/// Device queues in vectors. `room` is the capacity of the transmit ring in frames. No buffer is free while the ring
/// has `buffers` frames or more.
#[derive(Debug)]
pub(super) struct TestIo {
    pub(super) rx: VecDeque<TestFrame>,
    pub(super) tx: Vec<TestFrame>,
    pub(super) room: usize,
    pub(super) buffers: usize,
    pub(super) tap: Option<Box<Tap>>,
    /// Number of frames waiting at each call of `offer`.
    pub(super) offers: Vec<usize>,
}

impl PortIo for TestIo {
    type Frame = TestFrame;

    fn receive(&mut self, _: Instant, out: &mut ArrayVec<TestFrame, BURST>) {
        let n = self.rx.len().min(out.remaining_capacity());
        out.extend(self.rx.drain(..n));
    }
    fn allocate(&mut self, len: usize) -> Option<TestFrame> {
        (self.tx.len() < self.buffers).then(|| TestFrame::new(vec![0xdd; len]))
    }
    fn free_tx_slots(&mut self) -> usize {
        self.room.saturating_sub(self.tx.len())
    }
    fn send(&mut self, mut frame: TestFrame) {
        assert!(self.free_tx_slots() > 0, "sent without room");
        if let Some(tap) = &mut self.tap {
            tap.record(Direction::Out, Fate::Passed, &frame.0);
        }
        frame.fill_checksums();
        self.tx.push(frame);
    }
    fn offer(&mut self) {
        self.offers.push(self.tx.len());
    }
    fn flush(&mut self) -> bool {
        self.tx.is_empty()
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
    fn tap(&mut self) -> Option<&mut Tap> {
        self.tap.as_deref_mut()
    }
    fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.tap = tap;
    }
}

//! Packets of one association, written in place. A packet is built in a packet buffer, after the room for its headers,
//! which are filled in last. Packets that exceed the path MTU are sent in IP fragments (RFC 9260 §6.9).

use base::Instant;
use ipsec::strength::Strength;
use sctp_lite::endpoint::Endpoint;
use sctp_lite::sctp::State;
use sctp_lite::seam::TxBatch;
use wire::sctp::fill_checksum;

use crate::api::{Counters, Stall};
use crate::io::{Frame, PortIo};
use crate::memory::Memory;
use crate::net::fragment::{self, IdentificationGenerator};
use crate::net::path::TxChecksum;
use crate::net::protocol::UDP_HEADER;
use crate::net::sctp_path::SctpPath;
use crate::port::ChecksumSite;
use crate::worker::flows::carrier::{CarrierEndpoint, Refusal, TransmitContext, TransmitOutcome};
use crate::worker::flows::flow_info::path_mtu;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::transmit::segment_batch::{free_slots, reserve_payload};

/// Batch of one association's packets, written into a port's transmit queue while the association is served.
pub(in crate::worker) struct PacketBatch<'a, Io: PortIo> {
    io: &'a mut Io,
    path: &'a SctpPath,
    checksum: TxChecksum,
    counters: &'a Counters,
    /// Length of the longest packet that is sent without fragmentation, in bytes.
    max_unfragmented: usize,
    /// IP identifications for fragmented packets.
    identifications: Option<&'a mut IdentificationGenerator>,
    /// True if the current packet is a path MTU probe, which is never fragmented.
    probe: bool,
    frame: Option<Io::Frame>,
    sent: usize,
    quota: usize,
    /// Maximum bytes of copies of unacknowledged data ([`TxBatch::keep_limit`]).
    keep_limit: u64,
    /// True if many streams share the port ([`TxBatch::is_shared`]).
    shared: bool,
    min_strength: Strength,
    looped: bool,
    refused: Option<Refusal>,
}

impl<'a, Io: PortIo> PacketBatch<'a, Io> {
    /// Creates a batch of at most `quota` packets along `path`.
    pub(in crate::worker) fn new(
        io: &'a mut Io,
        path: &'a SctpPath,
        checksum: TxChecksum,
        quota: usize,
        counters: &'a Counters,
    ) -> Self {
        let looped = path.path.is_loopback();
        let checksum = match looped {
            true => TxChecksum::LOOPBACK,
            false => path.checksum_offload(checksum),
        };
        let (frame, ids, probe) = (None, None, false);
        let (whole, sent, keep_limit, refused) = (usize::MAX, 0, u64::MAX, None);
        PacketBatch {
            io,
            path,
            checksum,
            counters,
            max_unfragmented: whole,
            identifications: ids,
            probe,
            frame,
            sent,
            quota,
            keep_limit,
            shared: false,
            min_strength: Strength::CLEAR,
            looped,
            refused,
        }
    }

    /// Fragments packets longer than `whole` bytes, the capacity of the path (RFC 9260 §6.9).
    fn fragment_above(mut self, whole: usize, ids: &'a mut IdentificationGenerator) -> Self {
        self.max_unfragmented = whole;
        self.identifications = Some(ids);
        self
    }

    /// Sets the minimum IPsec protection of the packets. Packets without this protection are dropped.
    pub(in crate::worker) fn require_strength(&mut self, min_strength: Strength) {
        self.min_strength = min_strength;
    }

    pub(in crate::worker) fn has_sent(&self) -> bool {
        self.sent > 0
    }

    fn send(&mut self, frame: Io::Frame) {
        match self.looped {
            false => self.io.send_protected(frame, self.min_strength),
            true => {
                self.io.loop_back(frame);
                self.counters.frames.looped_frames.add(1);
            }
        }
    }

    /// Returns the maximum number of frames for a packet of `len` bytes: one, unless it is fragmented. Fragment lengths
    /// are multiples of eight bytes, each fragment may have an IPv6 fragment header, and the first fragment contains
    /// the UDP header.
    fn max_frames(&self, len: usize) -> usize {
        let min_fragment = self.max_unfragmented.saturating_sub(15).max(8);
        if len <= self.max_unfragmented { 1 } else { (len + UDP_HEADER).div_ceil(min_fragment) }
    }

    /// Sends a packet in fragments. If a fragment gets no buffer or no slot, the remaining fragments are not sent. The
    /// packet is then lost, as if the network had dropped it.
    #[cold]
    fn send_fragmented(&mut self, mut frame: Io::Frame) {
        let path = &self.path.path;
        let Some(ids) = &mut self.identifications else { return };
        // RFC 9260 §6.8: the checksum covers the whole packet, so a device cannot compute it over fragments.
        if self.checksum.sctp == ChecksumSite::Device {
            fill_checksum(&mut frame.bytes_mut()[path.header_len()..]);
        }
        self.path.finish(frame.bytes_mut(), TxChecksum::SOFTWARE);
        let (source, destination) = path.addresses();
        let id = ids.next(source, destination);
        let whole = frame.bytes();
        let mtu = self.path.mtu_overhead() + self.max_unfragmented;
        for piece in fragment::fragments(path, whole.len() - path.header_len(), mtu) {
            let room = free_slots(self.io, self.looped) > 0;
            let len = fragment::frame_len(path, &piece);
            let Some(mut out) = room.then(|| self.io.allocate(len)).flatten() else {
                return self.counters.frames.tx_no_buffer.add(1);
            };
            fragment::emit(path, whole, &piece, id, out.bytes_mut());
            self.counters.frames.tx_frames.add(1);
            self.counters.frames.tx_bytes.add(len as u64);
            self.send(out);
        }
        self.counters.ip.tx_cut.add(1);
    }
}

impl<Io: PortIo> TxBatch for PacketBatch<'_, Io> {
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.sent == self.quota {
            self.refused = Some(Refusal::Quota);
            return None;
        }
        if free_slots(self.io, self.looped) < self.max_frames(len) {
            self.refused = Some(Refusal::RingFull);
            return None;
        }
        self.probe = false;
        let header = self.path.header_len();
        let room = reserve_payload(&mut self.frame, self.io, header, len);
        if room.is_none() {
            self.refused = Some(Refusal::NoBuffer);
        }
        room
    }

    fn forbid_fragmentation(&mut self) {
        self.probe = true;
    }

    fn needs_checksum(&self) -> bool {
        self.checksum.sctp == ChecksumSite::Software
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn keep_limit(&self) -> u64 {
        self.keep_limit
    }

    fn report_keep_limited(&mut self) {
        self.counters.memory.keep_waits.add(1);
    }

    fn commit(&mut self, len: usize) {
        let Some(mut frame) = self.frame.take() else { return };
        frame.truncate(self.path.header_len() + len);
        if len > self.max_unfragmented && !self.probe {
            self.sent += 1;
            return self.send_fragmented(frame);
        }
        self.path.finish(frame.bytes_mut(), self.checksum);
        if self.checksum.needs_device_for_sctp() {
            let path = &self.path.path;
            frame.offload(self.checksum, path.l2_len(), path.l3_len(), path.is_v6());
        }
        self.counters.frames.tx_frames.add(1);
        self.counters.frames.tx_bytes.add(frame.bytes().len() as u64);
        self.sent += 1;
        self.send(frame);
    }
}

impl CarrierEndpoint for Endpoint<Memory> {
    type Path = SctpPath;
    const KIND: CarrierKind = CarrierKind::Association;
    const SUSPENDS_TIMERS: bool = true;

    fn ports(&self) -> (u16, u16) {
        let ports = self.association().ports();
        (ports.source, ports.destination)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }

    fn kept(&self) -> u64 {
        self.kept()
    }

    fn bytes_acknowledged(&self) -> u64 {
        self.association().sender().stats().bytes_acknowledged
    }

    fn path_suspect(&self) -> bool {
        self.is_path_suspect()
    }

    fn is_timing_out(&self) -> bool {
        self.association().is_timing_out()
    }

    fn is_closed(&self) -> bool {
        self.association().state() == State::Closed
    }

    fn stall(&self, now: Instant) -> Option<Stall> {
        self.association().stall(now)
    }

    fn path_len(&self) -> usize {
        self.association().path_len()
    }

    fn confirmed_path(&self, path: &SctpPath) -> Option<(usize, u16)> {
        let len = self.association().confirmed_path_len()?;
        Some((len, path_mtu(self, path)))
    }

    fn limit_path(&mut self, path: &SctpPath, mtu: u16, now: Instant) -> bool {
        let sctp = self.association();
        let limit = path.packet_limit(mtu).max(sctp.min_path_len());
        let less = limit < sctp.path_len();
        if less {
            self.set_path_mtu(now, limit);
        }
        less
    }

    fn transmit<Io: PortIo>(
        &mut self,
        path: &SctpPath,
        out: TransmitContext<'_, Io>,
        now: Instant,
    ) -> TransmitOutcome {
        let whole = self.association().path_len();
        let mut packets = PacketBatch::new(out.io, path, out.checksum, out.quota, out.counters);
        packets.require_strength(out.min_strength);
        let mut packets = packets.fragment_above(whole, out.identifications);
        packets.keep_limit = out.keep_limit;
        packets.shared = out.shared;
        self.poll_transmit(now, &mut packets);
        TransmitOutcome { has_sent: packets.has_sent(), refusal: packets.refused }
    }
}

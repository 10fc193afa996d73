//! Received packets between the stages of a burst. The first stage parses a packet and determines its flow and hash.
//! The second stage looks up the slot of its stream or association.

use std::ops::Range;

use arrayvec::ArrayVec;
use ipsec::strength::Strength;

use crate::flow::{FlowHash, FlowKey};
use crate::io::{BURST, Frame};
use crate::mesh::{IpsecState, Message};
use crate::net::demux::L4Check;
use crate::net::ecn;
use crate::net::header_prediction;
use crate::net::neighbour::Mac;
use crate::port::{ChecksumSite, RxChecksum};

/// A received frame, or a packet reassembled from fragments.
pub(in crate::worker) enum Packet<F> {
    Frame(F),
    Reassembled(Vec<u8>),
}

impl<F: Frame> Packet<F> {
    pub(in crate::worker) fn bytes(&self) -> &[u8] {
        match self {
            Packet::Frame(frame) => frame.bytes(),
            Packet::Reassembled(bytes) => bytes,
        }
    }

    pub(in crate::worker) fn prefetch(&self) {
        if let Packet::Frame(frame) = self {
            frame.prefetch();
        }
    }

    /// Returns the result of the device's TCP or SCTP checksum verification; `Unknown` for a reassembled packet.
    pub(in crate::worker) fn checksum(&self) -> RxChecksum {
        match self {
            Packet::Frame(frame) => frame.checksum(),
            Packet::Reassembled(_) => RxChecksum::Unknown,
        }
    }

    /// Returns the state of the TCP or SCTP checksum, which is verified at the site `by`. Returns `None` if the device
    /// has found the checksum wrong.
    #[inline]
    pub(in crate::worker) fn l4_check(&self, by: ChecksumSite) -> Option<L4Check> {
        match by {
            ChecksumSite::Skipped => Some(L4Check::Good),
            ChecksumSite::Software => Some(L4Check::Unknown),
            ChecksumSite::Device => match self.checksum() {
                RxChecksum::Good => Some(L4Check::Good),
                RxChecksum::Unknown => Some(L4Check::Unknown),
                RxChecksum::Bad => None,
            },
        }
    }

    pub(in crate::worker) fn hash(&self) -> Option<u32> {
        match self {
            Packet::Frame(frame) => frame.hash(),
            Packet::Reassembled(_) => None,
        }
    }

    /// Converts the packet into a message to the owner of its flow or SA. `ipsec` is the packet's IPsec state.
    pub(in crate::worker) fn into_message(self, port: usize, ipsec: IpsecState) -> Message<F> {
        match self {
            Packet::Frame(frame) => Message::Frame { port, frame, ipsec },
            Packet::Reassembled(bytes) => Message::Reassembled { port, bytes, ipsec },
        }
    }

    /// Returns the bytes mutably, for decryption in place.
    pub(in crate::worker) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Packet::Frame(frame) => frame.bytes_mut(),
            Packet::Reassembled(bytes) => bytes,
        }
    }

    /// Removes the first `front` bytes and keeps the next `len`, like [`Frame::trim`].
    pub(in crate::worker) fn cut(&mut self, front: usize, len: usize) {
        match self {
            Packet::Frame(frame) => frame.trim(front, len),
            Packet::Reassembled(bytes) => {
                bytes.drain(..front);
                bytes.truncate(len);
            }
        }
    }
}

/// A received packet and the IPsec protection under which it was received.
pub(in crate::worker) struct Received<F> {
    pub(in crate::worker) packet: Packet<F>,
    pub(in crate::worker) strength: Strength,
}

impl<F> Received<F> {
    /// Returns a packet that was received without IPsec.
    #[inline]
    pub(in crate::worker) fn in_clear(packet: Packet<F>) -> Self {
        Received { packet, strength: Strength::CLEAR }
    }
}

/// Origin of a packet, which determines if it may be forwarded to the worker that owns its flow. A packet is forwarded
/// at most once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum Forwarding {
    /// The packet was received from a port. If another worker owns its flow, the packet is forwarded to that worker.
    Allowed,
    /// Another worker has forwarded the packet to this worker.
    Done,
    /// A stream of this worker has sent the packet to an address of the appliance. The packet is not forwarded, because
    /// the stream at the other end belongs to this worker, too. Its checksums are not verified.
    Looped,
}

/// A received TCP segment or SCTP packet between the stages of a burst.
pub(in crate::worker) struct Arrival<F> {
    pub(in crate::worker) frame: Packet<F>,
    /// Index of the receiving port.
    pub(in crate::worker) port: u16,
    pub(in crate::worker) flow: FlowKey,
    pub(in crate::worker) hash: FlowHash,
    /// Byte range of the TCP segment or SCTP packet within the frame.
    pub(in crate::worker) span: Range<usize>,
    pub(in crate::worker) source_mac: Mac,
    pub(in crate::worker) kind: ArrivalKind,
    /// True if the previous arrival in the burst belongs to the same flow.
    pub(in crate::worker) same_flow: bool,
    /// Slot of the stream or association; `None` before the look-up and for unmatched packets.
    pub(in crate::worker) slot: Option<u32>,
    /// IPsec protection under which the packet was received.
    pub(in crate::worker) strength: Strength,
}

#[derive(Clone, Copy)]
pub(in crate::worker) enum ArrivalKind {
    /// A TCP segment.
    Segment {
        /// True if the packet's ECN field is CE: a router signals congestion (RFC 3168).
        ce: bool,
        /// State of the TCP checksum.
        check: L4Check,
    },
    /// An SCTP packet.
    Packet {
        /// The peer's UDP port, if the packet was encapsulated in UDP.
        udp: Option<u16>,
        /// State of the CRC32c.
        check: L4Check,
    },
}

impl<F> Arrival<F> {
    pub(in crate::worker) fn is_sctp(&self) -> bool {
        matches!(self.kind, ArrivalKind::Packet { .. })
    }
}

pub(in crate::worker) type Arrivals<F> = ArrayVec<Arrival<F>, BURST>;

/// Header prediction within a burst. If the last arrival came from the same port and has matching headers, the frame
/// has the same flow and owner. Such a frame is appended to `arrivals` without a look-up. Any other frame is returned.
/// `check` is the state of the TCP checksum, `strength` the frame's IPsec protection, and `sctp` the site that verifies
/// SCTP checksums.
#[inline]
pub(in crate::worker) fn push_if_predicted<F: Frame>(
    port: usize,
    frame: Packet<F>,
    check: L4Check,
    strength: Strength,
    sctp: ChecksumSite,
    arrivals: &mut Arrivals<F>,
) -> Option<Packet<F>> {
    // Frames that other workers forward may have arrived on any port. The port determines the interface of the flow, so
    // the ports must be equal.
    let Some(last) = arrivals.last().filter(|last| usize::from(last.port) == port) else {
        return Some(frame);
    };
    if last.is_sctp() && !has_same_ports(&frame, last) {
        return Some(frame);
    }
    let predicted =
        header_prediction::predicted_segment(frame.bytes(), last.frame.bytes(), last.span.start);
    let Some(span) = predicted else { return Some(frame) };
    let kind = match last.kind {
        ArrivalKind::Segment { .. } => {
            ArrivalKind::Segment { ce: ecn::is_marked(frame.bytes()), check }
        }
        // `udp` is `None` here: SCTP in UDP begins at another offset, so its headers do not match.
        ArrivalKind::Packet { udp, .. } => match frame.l4_check(sctp) {
            Some(check) => ArrivalKind::Packet { udp, check },
            // The slow path drops the frame and counts it with all other bad checksums.
            None => return Some(frame),
        },
    };
    let arrival = Arrival {
        frame,
        port: last.port,
        flow: last.flow,
        hash: last.hash,
        span,
        source_mac: last.source_mac,
        kind,
        same_flow: true,
        slot: None,
        strength,
    };
    arrivals.push(arrival);
    None
}

/// Returns true if the SCTP ports of `frame`, read at the offset of the last packet, equal the ports of `last`. In a
/// flood from many ports, this check saves the comparison of the headers.
#[inline]
fn has_same_ports<F: Frame>(frame: &Packet<F>, last: &Arrival<F>) -> bool {
    let ports = |bytes: &[u8]| bytes.get(last.span.start..)?.first_chunk::<4>().copied();
    ports(frame.bytes()) == ports(last.frame.bytes())
}

//! Received packets between the stages of a burst: parsed, with their flow and its hash, and then looked up.

use std::ops::Range;

use arrayvec::ArrayVec;
use ipsec::strength::Strength;

use crate::flow::{FlowHash, FlowKey};
use crate::io::{BURST, Frame};
use crate::mesh::{Cover, Message};
use crate::net::alike;
use crate::net::ecn;
use crate::net::neighbour::Mac;
use crate::port::{ChecksumBy, RxChecksum};

/// A frame as it came, or what fragments were put together to.
pub(super) enum Packet<F> {
    Frame(F),
    Whole(Vec<u8>),
}

impl<F: Frame> Packet<F> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Packet::Frame(frame) => frame.bytes(),
            Packet::Whole(bytes) => bytes,
        }
    }

    pub(super) fn prefetch(&self) {
        if let Packet::Frame(frame) = self {
            frame.prefetch();
        }
    }

    /// What the device reports of the checksum: nothing of a packet that was put together here.
    pub(super) fn checksum(&self) -> RxChecksum {
        match self {
            Packet::Frame(frame) => frame.checksum(),
            Packet::Whole(_) => RxChecksum::Unknown,
        }
    }

    /// Whether a checksum that is verified so is to be verified in software; `None`: the device has found it wrong.
    #[inline]
    pub(super) fn is_unverified(&self, by: ChecksumBy) -> Option<bool> {
        match by {
            ChecksumBy::Nobody => Some(false),
            ChecksumBy::Software => Some(true),
            ChecksumBy::Device => match self.checksum() {
                RxChecksum::Good => Some(false),
                RxChecksum::Unknown => Some(true),
                RxChecksum::Bad => None,
            },
        }
    }

    pub(super) fn hash(&self) -> Option<u32> {
        match self {
            Packet::Frame(frame) => frame.hash(),
            Packet::Whole(_) => None,
        }
    }

    /// To be taken, or opened, by another worker.
    pub(super) fn message(self, port: usize, cover: Cover) -> Message<F> {
        match self {
            Packet::Frame(frame) => Message::Frame { port, frame, cover },
            Packet::Whole(bytes) => Message::Whole { port, bytes, cover },
        }
    }

    /// The bytes, to be opened.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Packet::Frame(frame) => frame.bytes_mut(),
            Packet::Whole(bytes) => bytes,
        }
    }

    /// As [`Frame::cut`].
    pub(super) fn cut(&mut self, front: usize, len: usize) {
        match self {
            Packet::Frame(frame) => frame.cut(front, len),
            Packet::Whole(bytes) => {
                bytes.drain(..front);
                bytes.truncate(len);
            }
        }
    }
}

/// A segment or an SCTP packet on its way through the stages.
pub(super) struct Arrival<F> {
    pub(super) frame: Packet<F>,
    /// The port it came in by.
    pub(super) port: u16,
    pub(super) flow: FlowKey,
    pub(super) hash: FlowHash,
    /// Where in the frame it is.
    pub(super) span: Range<usize>,
    pub(super) source_mac: Mac,
    pub(super) carries: Carries,
    /// It is of the same flow as the arrival before it.
    pub(super) follows: bool,
    /// Of its stream or association.
    pub(super) slot: Option<u32>,
    /// Protection by IPsec under which it came.
    pub(super) strength: Strength,
}

/// What an arrival is.
#[derive(Clone, Copy)]
pub(super) enum Carries {
    /// A TCP segment.
    Segment {
        /// Its packet was marked on the way (RFC 3168).
        ce: bool,
        /// Its checksum is to be verified in software.
        unverified: bool,
    },
    /// An SCTP packet.
    Packet {
        /// The peer's UDP port, if it came in UDP.
        udp: Option<u16>,
        /// Its checksum is to be verified in software.
        unverified: bool,
    },
}

impl<F> Arrival<F> {
    pub(super) fn is_sctp(&self) -> bool {
        matches!(self.carries, Carries::Packet { .. })
    }
}

pub(super) type Arrivals<F> = ArrayVec<Arrival<F>, BURST>;

/// Takes a frame whose headers are the same as those of the last arrival, from the same port: it is of the same flow
/// then, and this worker owns it still. Returns any other. `unverified`: its checksum if it is TCP's; `strength`: its protection
/// by IPsec; `sctp`: who verifies SCTP's.
#[inline]
pub(super) fn take_alike<F: Frame>(
    port: usize,
    frame: Packet<F>,
    (unverified, strength): (bool, Strength),
    sctp: ChecksumBy,
    arrivals: &mut Arrivals<F>,
) -> Option<Packet<F>> {
    // Frames from other workers are of any port, and the port identifies the interface.
    let alike = arrivals.last().filter(|last| usize::from(last.port) == port).and_then(|last| {
        if last.is_sctp() && !has_ports_of(&frame, last) {
            return None;
        }
        let span = alike::segment(frame.bytes(), last.frame.bytes(), last.span.start)?;
        Some((last.flow, last.hash, last.source_mac, last.carries, span))
    });
    let Some((flow, hash, source_mac, last, span)) = alike else { return Some(frame) };
    let carries = match last {
        Carries::Segment { .. } => {
            Carries::Segment { ce: ecn::is_marked(frame.bytes()), unverified }
        }
        // Not in UDP: what is in it begins elsewhere.
        Carries::Packet { udp, .. } => match frame.is_unverified(sctp) {
            Some(unverified) => Carries::Packet { udp, unverified },
            // It is dropped where all such are.
            None => return Some(frame),
        },
    };
    let (port, follows, slot) = (port as u16, true, None);
    arrivals.push(Arrival {
        frame,
        port,
        flow,
        hash,
        span,
        source_mac,
        carries,
        follows,
        slot,
        strength,
    });
    None
}

/// Where an SCTP packet not in UDP has its ports, those of `last` are. In a flood they differ, and no more is compared.
#[inline]
fn has_ports_of<F: Frame>(frame: &Packet<F>, last: &Arrival<F>) -> bool {
    let ports = |bytes: &[u8]| bytes.get(last.span.start..)?.first_chunk::<4>().copied();
    ports(frame.bytes()) == ports(last.frame.bytes())
}

//! SAs and counters for the operator.

use super::{Guard, Protection, SaId};
use crate::crypto::Algorithm;
use crate::policy::Direction;
use crate::sa::{Mode, Shape, Use};

/// An SA as shown to the operator, without its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaInfo {
    /// Identifier in the data plane, never reused.
    pub id: SaId,
    /// SPI, which identifies the SA at its receiver.
    pub spi: u32,
    /// Direction of the SA's packets.
    pub direction: Direction,
    /// Protection that the SA belongs to.
    pub protection: Protection,
    /// Cipher and integrity algorithm.
    pub algorithm: Algorithm,
    /// Transport or tunnel mode.
    pub mode: Mode,
    /// True if the SA's packets are encapsulated in UDP.
    pub udp: bool,
    /// The last sequence number sent, or the highest received.
    pub sequence: u64,
    /// Bytes and packets counted so far.
    pub used: Use,
}

/// Counters of the packets that a worker sealed and opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sealed.
    pub sealed: u64,
    /// Bytes of packets before they were sealed.
    pub sealed_bytes: u64,
    /// Packets opened.
    pub opened: u64,
    /// Bytes of packets after they were opened.
    pub opened_bytes: u64,
    /// Notices dropped because too many were pending, or audit events exceeded the rate.
    pub notices_lost: u64,
}

impl Guard {
    /// Returns the SAs of this worker.
    pub fn sas(&self) -> impl Iterator<Item = SaInfo> {
        let info = |id, spi, direction, protection, shape: Shape, sequence, used| SaInfo {
            id,
            spi,
            direction,
            protection,
            algorithm: shape.algorithm,
            mode: shape.mode,
            udp: shape.udp,
            sequence,
            used,
        };
        let inbound = self.inbound.iter().filter_map(move |(&spi, known)| {
            let sa = known.sa.as_ref()?;
            let (of, shape) = (known.protection, sa.shape());
            Some(info(known.id, spi, Direction::In, of, shape, sa.top(), sa.used()))
        });
        let outbound = (0..).zip(&self.protections).flat_map(move |(at, protected)| {
            protected.outbound.iter().map(move |(id, sa)| {
                let (of, sequence) = (Protection(at), sa.sequence());
                info(*id, sa.spi(), Direction::Out, of, sa.shape(), sequence, sa.used())
            })
        });
        inbound.chain(outbound)
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        Counts { notices_lost: self.notices.lost(), ..self.counts }
    }
}

//! What an operator sees of the SAs.

use super::{Guard, Protection, SaId};
use crate::crypto::Algorithm;
use crate::policy::Direction;
use crate::sa::{Mode, Shape, Use};

/// An SA as the operator sees it: no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaInfo {
    /// Which it is.
    pub id: SaId,
    /// Its name at its receiver.
    pub spi: u32,
    /// Which way it carries packets.
    pub direction: Direction,
    /// Whose it is.
    pub protection: Protection,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The mode.
    pub mode: Mode,
    /// It has UDP around it.
    pub udp: bool,
    /// The last sequence number sent, or the highest received.
    pub sequence: u64,
    /// What has been used of it.
    pub used: Use,
}

/// How many packets went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sealed.
    pub sealed: u64,
    /// Bytes of those before.
    pub sealed_bytes: u64,
    /// Packets opened.
    pub opened: u64,
    /// Bytes of those after.
    pub opened_bytes: u64,
    /// Notices that were not kept.
    pub notices_lost: u64,
}

impl Guard {
    /// The SAs that this worker has.
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
            let sa = known.ours.as_ref()?;
            let (of, shape) = (known.protection, sa.shape());
            Some(info(known.id, spi, Direction::In, of, shape, sa.top(), sa.used()))
        });
        let outbound = (0..).zip(&self.protected).flat_map(move |(at, protected)| {
            protected.outbound.iter().map(move |(id, sa)| {
                let (of, sequence) = (Protection(at), sa.sequence());
                info(*id, sa.spi(), Direction::Out, of, sa.shape(), sequence, sa.used())
            })
        });
        inbound.chain(outbound)
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        Counts { notices_lost: self.notices.lost(), ..self.counts }
    }
}

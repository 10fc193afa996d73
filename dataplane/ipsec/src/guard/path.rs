//! What flows are to know of their protection: whether there is any, how strong it is, and what it leaves of the path's MTU.

use std::net::IpAddr;
use std::time::Duration;

use base::Instant;

use super::{Direction, Guard, Protected, Protection};
use crate::policy::{Decision, Flow};
use crate::sa::Mode;
use crate::strength::Strength;

/// A path MTU that a router reported is forgotten after this (RFC 1191 §6.3, RFC 8201 §4).
const PATH_MTU_AGE: Duration = Duration::from_secs(600);
/// A router quotes a packet that is among the last so many of its SA, or it is not believed.
const QUOTED: u64 = 1 << 16;

impl Guard {
    /// What protects a flow that we send, if anything.
    pub fn protection(&mut self, flow: &Flow) -> Option<Protection> {
        match self.flows.decide(flow, Direction::Out) {
            Decision::Protect(protection) => Some(protection),
            Decision::Bypass | Decision::Denied(_) => None,
        }
    }

    /// The weakest protection of a flow, both ways. `None` where it is not protected, or has no SA yet.
    pub fn strength(&mut self, flow: &Flow) -> Option<Strength> {
        let protection = self.protection(flow)?;
        if self.flows.decide(flow, Direction::In) != Decision::Protect(protection) {
            return None;
        }
        let of = &self.protected[usize::from(protection.0)];
        let out = of.shape?.algorithm.into();
        Some(of.weakest?.min(out))
    }

    /// True unless a packet of a flow may leave or come less than so strongly protected: policies protect it, both ways by the
    /// same SAs, and no SA that is there is weaker. A missing SA is no defect: nothing passes until there is one.
    pub fn keeps(&mut self, flow: &Flow, least: Strength) -> bool {
        let Some(protection) = self.protection(flow) else { return false };
        if self.flows.decide(flow, Direction::In) != Decision::Protect(protection) {
            return false;
        }
        let of = &self.protected[usize::from(protection.0)];
        let out = of.shapes.last().map(|(_, shape)| Strength::from(shape.algorithm));
        [out, of.weakest].into_iter().flatten().all(|has| has >= least)
    }

    /// The longest packet of a flow, bytes, that fits `mtu` as it goes out, with a header of `header` bytes. `None` where
    /// its header alone does not fit.
    pub fn largest(
        &mut self,
        flow: &Flow,
        mtu: usize,
        header: usize,
        now: Instant,
    ) -> Option<usize> {
        let protected = self.protection(flow).map(|of| &self.protected[usize::from(of.0)]);
        let Some(protected @ Protected { shape: Some(shape), .. }) = protected else {
            return Some(mtu);
        };
        let path = protected.path_mtu(now).map_or(usize::MAX, usize::from);
        shape.largest(mtu.min(path), header)
    }

    /// A router reports that the path carries no more than `mtu` bytes, and quotes a packet of this SA to `destination` (RFC 4301
    /// §8.2.1). It is believed of a packet that was sent not long ago: an attacker would have to guess its SPI and number.
    /// Returns whether it is.
    pub fn too_big(&mut self, spi: u32, sequence: u32, mtu: u16, now: Instant) -> bool {
        for protected in &mut self.protected {
            for (_, sa) in &protected.outbound {
                // How far behind the last one the quoted one is.
                let behind = u64::from((sa.sequence() as u32).wrapping_sub(sequence));
                if sa.spi() == spi && behind < QUOTED.min(sa.sequence()) {
                    let known = protected.path_mtu(now).unwrap_or(u16::MAX);
                    protected.path_mtu = Some((mtu.min(known), now + PATH_MTU_AGE));
                    return true;
                }
            }
        }
        false
    }

    /// The other end of the tunnel that a flow goes by, if it does.
    pub fn tunnel(&mut self, flow: &Flow) -> Option<IpAddr> {
        let protection = self.protection(flow)?;
        match self.protected[usize::from(protection.0)].shape?.mode {
            Mode::Transport => None,
            Mode::Tunnel(tunnel) => Some(tunnel.destination),
        }
    }
}

impl Protected {
    /// What a router reported of the path, unless that was long ago.
    #[inline]
    pub(super) fn path_mtu(&self, now: Instant) -> Option<u16> {
        self.path_mtu.filter(|(_, until)| now < *until).map(|(mtu, _)| mtu)
    }
}

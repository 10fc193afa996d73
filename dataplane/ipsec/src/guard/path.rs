//! Properties of a flow: its protection, strength, path MTU and tunnel peer.

use std::net::IpAddr;
use std::time::Duration;

use base::Instant;

use super::{Direction, Guard, Protection, ProtectionState};
use crate::policy::{Decision, Flow};
use crate::sa::Mode;
use crate::strength::Strength;

/// Age at which a path MTU reported by a router expires (RFC 1191 §6.3, RFC 8201 §4).
const PATH_MTU_AGE: Duration = Duration::from_secs(600);
/// Number of an SA's most recent packets. A router's report that quotes an older packet is not trusted.
const QUOTE_WINDOW: u64 = 1 << 16;

impl Guard {
    /// Returns the protection that the policies require for packets sent on a flow, if any.
    pub fn protection(&mut self, flow: &Flow) -> Option<Protection> {
        match self.flows.decide(flow, Direction::Out) {
            Decision::Protect(protection) => Some(protection),
            Decision::Bypass | Decision::Denied(_) => None,
        }
    }

    /// Returns the strength of a flow's protection: the weaker of its outbound and its inbound strength. The outbound
    /// strength is that of the newest SA, or of the SA removed last if none is left. The inbound strength is that of
    /// the weakest SA. Returns `None` if the policies do not require the same protection in both directions, if there
    /// never was an outbound SA, or if there is no inbound SA.
    pub fn strength(&mut self, flow: &Flow) -> Option<Strength> {
        let protection = self.protection(flow)?;
        if self.flows.decide(flow, Direction::In) != Decision::Protect(protection) {
            return None;
        }
        let state = &self.protections[usize::from(protection.0)];
        let out = state.shape?.algorithm.into();
        Some(state.weakest?.min(out))
    }

    /// Returns true if no packet of a flow can be sent or accepted with less than this strength. Policies must require
    /// the same protection in both directions. The newest outbound SA, with which packets are sent, and all inbound SAs
    /// must have this strength. A missing SA is allowed, because no packet passes until one exists.
    pub fn guarantees(&mut self, flow: &Flow, min_strength: Strength) -> bool {
        let Some(protection) = self.protection(flow) else { return false };
        if self.flows.decide(flow, Direction::In) != Decision::Protect(protection) {
            return false;
        }
        let state = &self.protections[usize::from(protection.0)];
        let out = state.shapes.last().map(|(_, shape)| Strength::from(shape.algorithm));
        [out, state.weakest].into_iter().flatten().all(|has| has >= min_strength)
    }

    /// Returns the length of the longest packet of a flow, in bytes, that fits `mtu` and a reported path MTU after
    /// sealing. The packet's first `header` bytes are the IP header. Returns `mtu` if the flow has no protection or
    /// no SA yet, and `None` if the header alone does not fit.
    pub fn max_packet_len(
        &mut self,
        flow: &Flow,
        mtu: usize,
        header: usize,
        now: Instant,
    ) -> Option<usize> {
        let protected = self.protection(flow).map(|of| &self.protections[usize::from(of.0)]);
        let Some(protected @ ProtectionState { shape: Some(shape), .. }) = protected else {
            return Some(mtu);
        };
        let path = protected.path_mtu(now).map_or(usize::MAX, usize::from);
        shape.max_packet_len(mtu.min(path), header)
    }

    /// Records a router's report of a path MTU of `mtu` bytes that quotes a packet of the SA with this SPI (RFC 4301
    /// §8.2.1). The lowest MTU of the unexpired reports applies, and each report restarts its expiry. Returns true if
    /// the report is trusted: the quoted packet was sent recently, so that an attacker would have to guess SPI and
    /// sequence number.
    pub fn handle_too_big(&mut self, spi: u32, sequence: u32, mtu: u16, now: Instant) -> bool {
        for protected in &mut self.protections {
            for (_, sa) in &protected.outbound {
                // Distance of the quoted packet from the last packet sent.
                let distance = u64::from((sa.sequence() as u32).wrapping_sub(sequence));
                if sa.spi() == spi && distance < QUOTE_WINDOW.min(sa.sequence()) {
                    let known = protected.path_mtu(now).unwrap_or(u16::MAX);
                    protected.path_mtu = Some((mtu.min(known), now + PATH_MTU_AGE));
                    return true;
                }
            }
        }
        false
    }

    /// Returns the peer's address of a flow's tunnel; `None` in transport mode, and before the first outbound SA.
    pub fn tunnel_peer(&mut self, flow: &Flow) -> Option<IpAddr> {
        let protection = self.protection(flow)?;
        match self.protections[usize::from(protection.0)].shape?.mode {
            Mode::Transport => None,
            Mode::Tunnel(tunnel) => Some(tunnel.destination),
        }
    }
}

impl ProtectionState {
    /// Returns the path MTU that a router reported, unless it has expired.
    #[inline]
    pub(super) fn path_mtu(&self, now: Instant) -> Option<u16> {
        self.path_mtu.filter(|(_, until)| now < *until).map(|(mtu, _)| mtu)
    }
}

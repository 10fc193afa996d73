//! Being a host of a link: its own addresses are announced, other hosts that use them are found (RFC 5227; duplicate
//! address detection of RFC 4862 §5.4), and the multicast groups that neighbour discovery needs are reported, so that
//! switches that look into MLD pass them on (RFC 3810).
//!
//! Addresses are configured by hand and used at once. RFC 5227 §2.1 and RFC 4862 §5.4 would have a host wait for
//! seconds at each start; here the probes go out beside the traffic, and a conflict is told to the operator, as long as
//! it lasts: after each sign of one the probes are repeated.

use core::time::Duration;
use std::net::{IpAddr, Ipv6Addr};

use base::{Instant, MaybeInstant};
use smoltcp::wire::IpProtocol;

use super::demux::ICMPV6;
use super::interface::{Interface, group_mac, solicited_node};
use super::{Outbox, arp, checksum, nd, path};
use crate::api::DropReason;

/// Rounds of probes (RFC 5227 §1.1: PROBE_NUM).
const ROUNDS: u8 = 3;
/// Between two of them at the start, and at most as much again (PROBE_MIN, PROBE_MAX).
const FIRST: Duration = Duration::from_secs(1);
/// Between two of them after a conflict, between two announcements that defend an address, and between two reports of
/// it (RFC 5227 §1.1: DEFEND_INTERVAL).
const LATER: Duration = Duration::from_secs(10);
/// The longest time after which a query is answered, of those that a querier may ask for.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// All routers that speak MLDv2 (RFC 3810 §5.2.14).
const REPORTS_TO: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Types of ICMPv6 (RFC 3810 §5).
const QUERY: u8 = 130;
const REPORT: u8 = 143;
/// Records of a report: the state, and that it has changed to this (RFC 3810 §5.2.12): to exclude no source.
const MODE_IS_EXCLUDE: u8 = 2;
const CHANGE_TO_EXCLUDE: u8 = 4;
/// IPv6's hop-by-hop header with a router alert for MLD (RFC 2711), padded to eight bytes; the next header is ICMPv6.
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];

/// What is due on the links, by the interface's place.
#[derive(Debug, Default)]
pub struct Presence {
    links: Vec<Link>,
    /// The earliest of all.
    next: MaybeInstant,
}

#[derive(Debug, Default)]
struct Link {
    /// When the next round of probes is due.
    probe: MaybeInstant,
    /// Rounds that were made, since the start or the last conflict.
    rounds: u8,
    /// When a querier is answered.
    answer: MaybeInstant,
    /// The addresses that were seen elsewhere, and when that was reported, and they were defended, the last time.
    conflicts: Vec<(IpAddr, Instant)>,
    /// Makes the times of this host differ from those of others.
    jitter: u32,
}

impl Link {
    /// At most `most`, another one each time.
    fn jitter(&mut self, most: Duration) -> Duration {
        self.jitter = self.jitter.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        most.mul_f64(f64::from(self.jitter >> 8) / f64::from(1 << 24))
    }
}

impl Presence {
    /// Nothing is due on so many links.
    pub fn new(interfaces: &[Interface]) -> Self {
        let link = |interface: &Interface| {
            let [.., b, c, d, e] = interface.mac;
            Link { jitter: u32::from_be_bytes([b, c, d, e]), ..Link::default() }
        };
        Presence { links: interfaces.iter().map(link).collect(), next: MaybeInstant::NONE }
    }

    /// Probes the addresses of this interface and reports its groups, from now on.
    pub fn begin(&mut self, at: usize, now: Instant) {
        let Some(link) = self.links.get_mut(at) else { return };
        (link.probe, link.rounds) = (Some(now).into(), 0);
        self.plan();
    }

    /// When [`poll`](Self::poll) is to be called next.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next.get()
    }

    /// Sends what is due.
    #[cold]
    pub fn poll(&mut self, interfaces: &[Interface], now: Instant, out: &mut Outbox) {
        for (link, interface) in self.links.iter_mut().zip(interfaces) {
            if link.probe.get().is_some_and(|at| at <= now) {
                link.round(interface, now, out);
            }
            if link.answer.get().is_some_and(|at| at <= now) {
                link.answer = MaybeInstant::NONE;
                report(interface, MODE_IS_EXCLUDE, out);
            }
        }
        self.plan();
    }

    /// Another host uses `address`, which is ours. Returns whether that is to be reported: once in a while for each.
    #[cold]
    pub fn conflict(
        &mut self,
        at: usize,
        interface: &Interface,
        address: IpAddr,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        let Some(link) = self.links.get_mut(at) else { return false };
        match link.conflicts.iter_mut().find(|(disputed, _)| *disputed == address) {
            Some((_, last)) if now.saturating_since(*last) < LATER => return false,
            Some((_, last)) => *last = now,
            None => link.conflicts.push((address, now)),
        }
        if let IpAddr::V4(address) = address {
            // RFC 5227 §2.4 (b), (c): it is defended, and not given up.
            arp::announce(interface, address, out);
        }
        (link.probe, link.rounds) = (Some(now + LATER).into(), 0);
        self.plan();
        true
    }

    /// A query of MLD (RFC 3810 §5.1): answered at a random time within what it allows. That it came with a router alert
    /// is not verified.
    ///
    /// # Errors
    /// It is none.
    #[cold]
    pub fn query(
        &mut self,
        at: usize,
        (source, hop_limit): (Ipv6Addr, u8),
        message: &[u8],
        now: Instant,
    ) -> Result<(), DropReason> {
        // RFC 3810 §6.2
        if message.len() < 24 || hop_limit != 1 || !source.is_unicast_link_local() {
            return Err(DropReason::IcmpIgnored);
        }
        let link = self.links.get_mut(at).ok_or(DropReason::IcmpIgnored)?;
        let most = Duration::from_millis(u16::from_be_bytes([message[4], message[5]]).into());
        if link.answer.get().is_none() {
            link.answer = Some(now + link.jitter(most.min(LONGEST_DELAY))).into();
            self.plan();
        }
        Ok(())
    }

    fn plan(&mut self) {
        let all = self.links.iter().flat_map(|link| [link.probe.get(), link.answer.get()]);
        self.next = all.flatten().min().into();
    }
}

impl Link {
    /// One round: a probe for each address. At the start besides announcements, unless another host has the address, and
    /// twice the groups (RFC 3810 §9.1: Robustness Variable).
    fn round(&mut self, interface: &Interface, now: Instant, out: &mut Outbox) {
        for address in interface.addresses() {
            match address {
                IpAddr::V4(address) => arp::probe(interface, address, out),
                IpAddr::V6(address) => nd::probe(interface, address, out),
            }
        }
        if self.conflicts.is_empty() {
            // RFC 5227 §2.3: ANNOUNCE_NUM is two.
            if self.rounds != 1 {
                announce(interface, out);
            }
            if self.rounds < 2 {
                report(interface, CHANGE_TO_EXCLUDE, out);
            }
        }
        self.rounds += 1;
        let pause = match self.conflicts[..] {
            [] => FIRST + self.jitter(FIRST),
            _ => LATER,
        };
        self.probe = (self.rounds < ROUNDS).then_some(now + pause).into();
    }
}

/// Announces an interface's addresses on its link.
pub fn announce(interface: &Interface, out: &mut Outbox) {
    for address in interface.addresses() {
        match address {
            IpAddr::V4(address) => arp::announce(interface, address, out),
            IpAddr::V6(address) => nd::announce(interface, address, out),
        }
    }
}

/// True for a query of MLD.
pub fn is_query(message: &[u8]) -> bool {
    message.first() == Some(&QUERY)
}

/// Tells the link's routers and switches which groups this host listens to: the solicited-node groups of its addresses
/// (RFC 3810 §5.2).
fn report(interface: &Interface, record: u8, out: &mut Outbox) {
    let ours = || {
        interface.addresses().filter_map(|address| match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        })
    };
    let mut groups: Vec<Ipv6Addr> = ours().map(solicited_node).collect();
    groups.sort_unstable();
    groups.dedup();
    let Some(source) = ours().find(Ipv6Addr::is_unicast_link_local) else { return };
    // As many as fit into the smallest packet of IPv6.
    for groups in groups.chunks(60) {
        let mut message = vec![REPORT, 0, 0, 0, 0, 0];
        message.extend_from_slice(&(groups.len() as u16).to_be_bytes());
        for group in groups {
            message.extend_from_slice(&[record, 0, 0, 0]);
            message.extend_from_slice(&group.octets());
        }
        let addresses = (IpAddr::V6(source), IpAddr::V6(REPORTS_TO));
        let sum = checksum::segment(addresses.0, addresses.1, ICMPV6, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let (to, len) = (group_mac(REPORTS_TO), ROUTER_ALERT.len() + message.len());
        out.frame(interface.port, |bytes| {
            path::ip_frame(bytes, interface, to, addresses, (IpProtocol::HopByHop, 1), len, |p| {
                let (alert, rest) = p.split_at_mut(ROUTER_ALERT.len());
                alert.copy_from_slice(&ROUTER_ALERT);
                rest.copy_from_slice(&message);
            });
        });
    }
}

#[cfg(test)]
mod tests;

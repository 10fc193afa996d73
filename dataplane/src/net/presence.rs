//! Being a host of a link: its own addresses are announced, other hosts that use them are found (RFC 5227; duplicate
//! address detection of RFC 4862 §5.4), and the multicast groups that neighbour discovery needs are reported
//! ([`groups`]).
//!
//! Addresses are configured by hand and used at once. RFC 5227 §2.1 and RFC 4862 §5.4 would have a host wait for
//! seconds at each start; here the probes go out beside the traffic, and a conflict is told to the operator, as long as
//! it lasts: after each sign of one the probes are repeated.

mod groups;

use core::time::Duration;
use std::net::{IpAddr, Ipv6Addr};

use base::{Instant, MaybeInstant};

use self::groups::{Groups, Query};
use super::interface::Interface;
use super::{Outbox, arp, nd};
use crate::drops::DropReason;

pub use self::groups::is_query;

/// Rounds of probes (RFC 5227 §1.1: PROBE_NUM).
const ROUNDS: u8 = 3;
/// Between two of them at the start, and at most as much again (PROBE_MIN, PROBE_MAX).
const FIRST: Duration = Duration::from_secs(1);
/// Rounds of announcements (RFC 4861 §10: MAX_NEIGHBOR_ADVERTISEMENT), of which IPv4 has two (RFC 5227 §1.1:
/// ANNOUNCE_NUM).
const ANNOUNCEMENTS: u8 = 3;
const ANNOUNCEMENTS_V4: u8 = 2;
/// Between two of them (RFC 5227 §1.1: ANNOUNCE_INTERVAL; RFC 4861 §7.2.6: at least RetransTimer).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Between two of them after a conflict, between two announcements that defend an address, and between two reports of
/// it (RFC 5227 §1.1: DEFEND_INTERVAL).
const LATER: Duration = Duration::from_secs(10);

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
    /// When the next round of announcements is due.
    announce: MaybeInstant,
    /// Rounds of announcements that were made.
    announced: u8,
    /// When it last began.
    begun: MaybeInstant,
    /// The groups that are reported.
    groups: Groups,
    /// The addresses that were seen elsewhere, and when that was reported, and they were defended, the last time.
    conflicts: Vec<(IpAddr, Instant)>,
    jitter: Jitter,
}

/// Makes the times of this host differ from those of others.
#[derive(Debug, Default)]
struct Jitter(u32);

impl Jitter {
    /// Less than `most`, another one each time.
    fn below(&mut self, most: Duration) -> Duration {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        most.mul_f64(f64::from(self.0 >> 8) / f64::from(1 << 24))
    }
}

impl Presence {
    /// Nothing is due on so many links.
    pub fn new(interfaces: &[Interface]) -> Self {
        let link = |interface: &Interface| {
            let [.., b, c, d, e] = interface.mac;
            Link { jitter: Jitter(u32::from_be_bytes([b, c, d, e])), ..Link::default() }
        };
        Presence { links: interfaces.iter().map(link).collect(), next: MaybeInstant::NONE }
    }

    /// Probes and announces the addresses of this interface and reports its groups, from now on: at the start, and
    /// when its link comes up. A link that flaps makes one round a second at most.
    pub fn begin(&mut self, at: usize, now: Instant) {
        let Some(link) = self.links.get_mut(at) else { return };
        let start = match link.begun.get() {
            Some(begun) if begun > now => begun,
            Some(begun) => now.max(begun + FIRST),
            None => now,
        };
        link.begun = Some(start).into();
        // A conflict that is over does not keep addresses from being announced.
        link.conflicts.retain(|(_, last)| now.saturating_since(*last) < LATER);
        (link.probe, link.rounds) = (Some(start).into(), 0);
        (link.announce, link.announced) = (Some(start).into(), 0);
        link.groups.begin(start);
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
            if link.announce.get().is_some_and(|at| at <= now) {
                link.announce(interface, now, out);
            }
            link.groups.poll(interface, now, out);
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
        link.announce = MaybeInstant::NONE;
        self.plan();
        true
    }

    /// A query of MLD, with its source and hop limit: it is answered later, if it `may` be.
    ///
    /// # Errors
    /// It is none, or is not for us, or there are too many.
    #[cold]
    pub fn query(
        &mut self,
        at: usize,
        interface: &Interface,
        from: (Ipv6Addr, u8),
        message: &[u8],
        may: impl FnOnce() -> bool,
        now: Instant,
    ) -> Result<(), DropReason> {
        let link = self.links.get_mut(at).ok_or(DropReason::IcmpIgnored)?;
        let query = Query::read(from, message)?;
        if !may() {
            return Err(DropReason::RateLimited);
        }
        link.groups.query(interface, &query, &mut link.jitter, now)?;
        self.plan();
        Ok(())
    }

    fn plan(&mut self) {
        let all = self
            .links
            .iter()
            .flat_map(|link| [link.probe.get(), link.announce.get(), link.groups.poll_timeout()]);
        self.next = all.flatten().min().into();
    }
}

impl Link {
    /// One round: a probe for each address. At the start besides the groups, unless another host has an address.
    fn round(&mut self, interface: &Interface, now: Instant, out: &mut Outbox) {
        for address in interface.addresses() {
            match address {
                IpAddr::V4(address) => arp::probe(interface, address, out),
                IpAddr::V6(address) => nd::probe(interface, address, out),
            }
        }
        if self.conflicts.is_empty() {
            self.groups.announce(interface, now, out);
        }
        self.rounds += 1;
        let pause = match self.conflicts[..] {
            [] => FIRST + self.jitter.below(FIRST),
            _ => LATER,
        };
        self.probe = (self.rounds < ROUNDS).then_some(now + pause).into();
    }

    /// One round of announcements, unless another host has an address (RFC 5227 §2.3, RFC 4861 §7.2.6).
    fn announce(&mut self, interface: &Interface, now: Instant, out: &mut Outbox) {
        self.announce = MaybeInstant::NONE;
        if !self.conflicts.is_empty() {
            return;
        }
        for address in interface.addresses() {
            match address {
                IpAddr::V4(address) if self.announced < ANNOUNCEMENTS_V4 => {
                    arp::announce(interface, address, out);
                }
                IpAddr::V4(_) => {}
                IpAddr::V6(address) => nd::announce(interface, address, out),
            }
        }
        self.announced += 1;
        if self.announced < ANNOUNCEMENTS {
            self.announce = Some(now + ANNOUNCE_INTERVAL).into();
        }
    }
}

/// Announces all addresses of an interface.
#[cfg(test)]
pub(super) fn announce(interface: &Interface, out: &mut Outbox) {
    for address in interface.addresses() {
        match address {
            IpAddr::V4(address) => arp::announce(interface, address, out),
            IpAddr::V6(address) => nd::announce(interface, address, out),
        }
    }
}

#[cfg(test)]
mod tests;

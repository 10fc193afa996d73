//! Presence of the interfaces on their links. This module announces the interfaces' addresses, and detects other hosts
//! that use these addresses (RFC 5227; duplicate address detection of RFC 4862 §5.4). It also reports the multicast
//! groups of neighbour discovery (MLD).
//!
//! Addresses are static and used at once. RFC 5227 §2.1 and RFC 4862 §5.4 require that a host probes its addresses for
//! seconds before it uses them. This host sends the probes while it uses the addresses. A conflict is reported to the
//! operator at most every ten seconds while it lasts. After each report the addresses are probed again, which shows
//! whether the conflict persists.

mod mld;

use core::time::Duration;
use std::net::IpAddr;

use base::{Instant, MaybeInstant};

use self::mld::{MldState, Query};
use super::icmp::ReceivedIcmpv6;
use super::interface::Interface;
use super::{Outbox, arp, nd};
use crate::drops::DropReason;

pub use self::mld::is_query;

/// Number of rounds of probes (RFC 5227 §1.1: PROBE_NUM).
const PROBE_NUM: u8 = 3;
/// Minimum interval between two rounds of probes without a conflict, and between two [starts](Presence::start) of the
/// presence on one link. A random time up to the same length is added between rounds (RFC 5227 §1.1: PROBE_MIN,
/// PROBE_MAX).
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of rounds of announcements (RFC 4861 §10: MAX_NEIGHBOR_ADVERTISEMENT). IPv4 addresses are announced only in
/// the first two rounds (RFC 5227 §1.1: ANNOUNCE_NUM).
const ANNOUNCEMENTS: u8 = 3;
const ANNOUNCEMENTS_V4: u8 = 2;
/// Interval between rounds of announcements (RFC 5227 §1.1: ANNOUNCE_INTERVAL; RFC 4861 §7.2.6: at least RetransTimer).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between rounds of probes during a conflict. Also the minimum interval between two reports of the conflict,
/// and between two announcements that defend an IPv4 address (RFC 5227 §1.1: DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// State of all links of a worker's interfaces, by interface index.
#[derive(Debug, Default)]
pub struct Presence {
    links: Vec<Link>,
    /// The earliest due time of all links.
    next_due: MaybeInstant,
}

#[derive(Debug, Default)]
struct Link {
    /// Due time of the next round of probes, if a round remains.
    probe: MaybeInstant,
    /// Number of rounds of probes since the start or the last reported conflict.
    rounds: u8,
    /// Due time of the next round of announcements, if a round remains.
    announce: MaybeInstant,
    /// Number of rounds of announcements sent since the start.
    announced: u8,
    /// Time from which the last [`start`](Presence::start) takes effect; in the future if the start was delayed.
    started: MaybeInstant,
    /// State of the multicast group reports.
    groups: MldState,
    /// Addresses in conflict, each with the time of its last report. An IPv4 address was also defended by an
    /// announcement at that time (RFC 5227 §2.4).
    conflicts: Vec<(IpAddr, Instant)>,
    jitter: Jitter,
}

/// Pseudo-random source, seeded with the MAC address, so that the hosts on a link do not send at the same time.
#[derive(Debug, Default)]
struct Jitter(u32);

impl Jitter {
    /// Returns a pseudo-random time below `limit`.
    fn random_below(&mut self, limit: Duration) -> Duration {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        limit.mul_f64(f64::from(self.0 >> 8) / f64::from(1 << 24))
    }
}

impl Presence {
    /// Creates the state of the links of `interfaces`. No packet is due before [`start`](Self::start).
    pub fn new(interfaces: &[Interface]) -> Self {
        let link = |interface: &Interface| {
            let [.., b, c, d, e] = interface.mac;
            Link { jitter: Jitter(u32::from_be_bytes([b, c, d, e])), ..Link::default() }
        };
        Presence { links: interfaces.iter().map(link).collect(), next_due: MaybeInstant::NONE }
    }

    /// Starts to probe and announce the addresses of the interface at index `at`, and to report its groups. Called when
    /// the worker starts and when the link comes up. A flapping link causes at most one start per second.
    pub fn start(&mut self, at: usize, now: Instant) {
        let Some(link) = self.links.get_mut(at) else { return };
        let start = match link.started.get() {
            Some(begun) if begun > now => begun,
            Some(begun) => now.max(begun + PROBE_INTERVAL),
            None => now,
        };
        link.started = Some(start).into();
        // A conflict without a report in the last ten seconds is assumed to have ended, and does not prevent
        // announcements.
        link.conflicts.retain(|(_, last)| now.saturating_since(*last) < DEFEND_INTERVAL);
        (link.probe, link.rounds) = (Some(start).into(), 0);
        (link.announce, link.announced) = (Some(start).into(), 0);
        link.groups.start(start);
        self.update_next();
    }

    /// Returns the due time of the next [`poll`](Self::poll); `None` if nothing is due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_due.get()
    }

    /// Sends the probes, announcements and MLD reports that are due.
    #[cold]
    pub fn poll(&mut self, interfaces: &[Interface], now: Instant, out: &mut Outbox) {
        for (link, interface) in self.links.iter_mut().zip(interfaces) {
            if link.probe.get().is_some_and(|at| at <= now) {
                link.send_probes(interface, now, out);
            }
            if link.announce.get().is_some_and(|at| at <= now) {
                link.announce(interface, now, out);
            }
            link.groups.poll(interface, now, out);
        }
        self.update_next();
    }

    /// Handles a conflict: another host uses our `address` on the interface at index `at`. Returns true if the conflict
    /// must be reported to the operator: at most every ten seconds per address.
    #[cold]
    pub fn handle_conflict(
        &mut self,
        at: usize,
        interface: &Interface,
        address: IpAddr,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        let Some(link) = self.links.get_mut(at) else { return false };
        match link.conflicts.iter_mut().find(|(disputed, _)| *disputed == address) {
            Some((_, last)) if now.saturating_since(*last) < DEFEND_INTERVAL => return false,
            Some((_, last)) => *last = now,
            None => link.conflicts.push((address, now)),
        }
        if let IpAddr::V4(address) = address {
            // RFC 5227 §2.4 (b), (c): the host defends the address and keeps it.
            arp::announce(interface, address, out);
        }
        (link.probe, link.rounds) = (Some(now + DEFEND_INTERVAL).into(), 0);
        link.announce = MaybeInstant::NONE;
        self.update_next();
        true
    }

    /// Processes an MLD query on the interface at index `at`. Schedules the answer if `may_answer` returns true.
    ///
    /// # Errors
    /// The message is not a valid query, is for other groups, or exceeds the rate limit.
    #[cold]
    pub fn handle_query(
        &mut self,
        at: usize,
        interface: &Interface,
        received: &ReceivedIcmpv6<'_>,
        may_answer: impl FnOnce() -> bool,
        now: Instant,
    ) -> Result<(), DropReason> {
        let link = self.links.get_mut(at).ok_or(DropReason::IcmpIgnored)?;
        let query = Query::read(received)?;
        if !may_answer() {
            return Err(DropReason::RateLimited);
        }
        link.groups.handle_query(interface, &query, &mut link.jitter, now)?;
        self.update_next();
        Ok(())
    }

    fn update_next(&mut self) {
        let all = self
            .links
            .iter()
            .flat_map(|link| [link.probe.get(), link.announce.get(), link.groups.poll_timeout()]);
        self.next_due = all.flatten().min().into();
    }
}

impl Link {
    /// Sends one round of probes, one for each address. Without a conflict, also sends the next unsolicited MLD report.
    fn send_probes(&mut self, interface: &Interface, now: Instant, out: &mut Outbox) {
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
            [] => PROBE_INTERVAL + self.jitter.random_below(PROBE_INTERVAL),
            _ => DEFEND_INTERVAL,
        };
        self.probe = (self.rounds < PROBE_NUM).then_some(now + pause).into();
    }

    /// Sends one round of announcements, unless an address is in conflict (RFC 5227 §2.3, RFC 4861 §7.2.6).
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

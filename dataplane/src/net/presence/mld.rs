//! Multicast Listener Discovery (MLD): reports to the link's routers the solicited-node groups that neighbour discovery
//! needs. Switches with MLD snooping then forward packets to these groups. The reports use version 2 (RFC 3810), or
//! version 1 (RFC 2710) while a querier supports only version 1 (RFC 3810 §8.2.1).
//!
//! ```text
//!                 query of 24 bytes
//!     version 2 ----------------------> version 1 --+
//!         ^                                 ^       | query of 24 bytes
//!         +-- time-out without 24-byte query+-------+
//! ```
//!
//! No message reports the end of a membership (Done in version 1), because the groups belong to configured addresses:
//! the interface has them as long as the worker runs. A version 1 report by another host does not suppress ours,
//! because a switch with MLD snooping needs our report to learn which of its ports leads to us.
//!
//! Version 2 has one timer per interface, version 1 one per group. The router alert of a query is not verified.

use core::time::Duration;
use std::net::{IpAddr, Ipv6Addr};

use base::{Instant, MaybeInstant};
use smoltcp::wire::IpProtocol;

use super::Jitter;
use crate::checksum;
use crate::drops::DropReason;
use crate::net::icmp::ReceivedIcmpv6;
use crate::net::interface::{Interface, group_mac, solicited_node};
use crate::net::path::IpHeader;
use crate::net::protocol::ICMPV6;
use crate::net::{Outbox, path};

/// Number of unsolicited reports (RFC 3810 §9.1: Robustness Variable). Version 1 mode ends after the same number of
/// query intervals without a version 1 query.
const ROBUSTNESS: u8 = 2;
/// Assumed interval between queries; version 1 queries do not state it (RFC 3810 §9.2: Query Interval).
const QUERY_INTERVAL: Duration = Duration::from_secs(125);
/// Maximum delay of an answer, even if the querier allows more.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// The group of all MLDv2-capable routers, the destination of reports (RFC 3810 §5.2.14).
const MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// ICMPv6 types of a query, a version 2 report and a version 1 report (RFC 3810 §5, §5.2; RFC 2710 §3.1).
const QUERY: u8 = 130;
const REPORT: u8 = 143;
const REPORT_V1: u8 = 131;
/// Bytes of a version 1 query or report, and minimum bytes of a version 2 query (RFC 3810 §8.1).
const V1_LEN: usize = 24;
const QUERY_LEN: usize = 28;
/// Offsets in a message of the maximum response delay (milliseconds) and of the group.
const DELAY: usize = 4;
const GROUP: usize = 8;
/// Record types of a version 2 report (RFC 3810 §5.2.12): filter mode EXCLUDE, and a change to that mode. Without a
/// source list, both mean membership.
const MODE_IS_EXCLUDE: u8 = 2;
const CHANGE_TO_EXCLUDE: u8 = 4;
/// A hop-by-hop options header with a router alert for MLD (RFC 2711), padded to eight bytes. Its next header is
/// ICMPv6.
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];

/// State of the reports on one link.
#[derive(Debug, Default)]
pub(super) struct MldState {
    /// Number of unsolicited reports still to be sent.
    unsolicited_left: u8,
    /// End of version 1 mode (RFC 3810 §8.2.1: Older Version Querier Present timer); none in version 2 mode.
    v1_until: MaybeInstant,
    /// Version 2: due time of the report of all groups.
    report_due: MaybeInstant,
    /// Version 1: due time of each group's report, at most one entry per group.
    group_reports_due: Vec<(Ipv6Addr, Instant)>,
}

impl MldState {
    /// Requests the unsolicited reports, which [`announce`](Self::announce) sends. Called when the worker starts and
    /// when the link comes up.
    pub(super) fn start(&mut self, now: Instant) {
        self.expire(now);
        self.unsolicited_left = ROBUSTNESS;
    }

    /// Returns the due time of the next [`poll`](Self::poll); `None` if no answer is pending.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let answers = self.group_reports_due.iter().map(|(_, at)| *at);
        answers.chain(self.report_due.get()).min()
    }

    /// Sends the due answers to queries.
    pub(super) fn poll(&mut self, interface: &Interface, now: Instant, out: &mut Outbox) {
        self.expire(now);
        self.group_reports_due.retain(|&(group, at)| {
            if at <= now {
                send_report_v1(interface, group, out);
            }
            at > now
        });
        if self.report_due.get().is_some_and(|at| at <= now) {
            self.report_due = MaybeInstant::NONE;
            send_report(interface, MODE_IS_EXCLUDE, out);
        }
    }

    /// Sends the next of the [`ROBUSTNESS`] unsolicited reports, if any remains (RFC 3810 §6.1, RFC 2710 §4).
    pub(super) fn announce(&mut self, interface: &Interface, now: Instant, out: &mut Outbox) {
        self.expire(now);
        let Some(left) = self.unsolicited_left.checked_sub(1) else { return };
        self.unsolicited_left = left;
        if self.v1_until.get().is_none() {
            return send_report(interface, CHANGE_TO_EXCLUDE, out);
        }
        for group in groups(interface) {
            send_report_v1(interface, group, out);
        }
    }

    /// Schedules the answer to a query at a random time within the query's maximum delay. A version 1 query starts or
    /// prolongs version 1 mode.
    ///
    /// # Errors
    /// [`DropReason::IcmpIgnored`]: the query is for a group that the interface has not joined.
    pub(super) fn handle_query(
        &mut self,
        interface: &Interface,
        query: &Query,
        jitter: &mut Jitter,
        now: Instant,
    ) -> Result<(), DropReason> {
        self.expire(now);
        if query.is_v1 {
            self.enter_v1(now + u32::from(ROBUSTNESS) * QUERY_INTERVAL + query.delay);
        }
        let mut queried = groups(interface);
        queried.retain(|group| query.group.is_unspecified() || *group == query.group);
        if queried.is_empty() {
            return Err(DropReason::IcmpIgnored);
        }
        let max_delay = query.delay.min(MAX_DELAY);
        if self.v1_until.get().is_none() {
            let at = now + jitter.random_below(max_delay);
            self.report_due =
                Some(self.report_due.get().map_or(at, |before| before.min(at))).into();
            return Ok(());
        }
        for group in queried {
            let at = now + jitter.random_below(max_delay);
            match self.group_reports_due.iter_mut().find(|(waits, _)| *waits == group) {
                // RFC 2710 §4: a pending report is rescheduled only if it is due after the query's maximum delay.
                Some((_, before)) if *before > now + max_delay => *before = at,
                Some(_) => {}
                None => self.group_reports_due.push((group, at)),
            }
        }
        Ok(())
    }

    /// Enters or prolongs version 1 mode, until `until` (RFC 3810 §8.2.1, §9.12). On entry, pending version 2 reports
    /// are discarded.
    fn enter_v1(&mut self, until: Instant) {
        if self.v1_until.get().is_none() {
            (self.report_due, self.unsolicited_left) = (MaybeInstant::NONE, 0);
        }
        self.v1_until = Some(until).into();
    }

    /// Returns to version 2 mode if version 1 mode has expired. Pending version 1 reports are discarded.
    fn expire(&mut self, now: Instant) {
        if self.v1_until.get().is_some_and(|until| until <= now) {
            self.v1_until = MaybeInstant::NONE;
            self.group_reports_due.clear();
            self.unsolicited_left = 0;
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    is_v1: bool,
    delay: Duration,
    /// The queried group; the unspecified address for all groups.
    group: Ipv6Addr,
}

impl Query {
    /// Parses a query and checks its length, source and hop limit (RFC 3810 §6.2, §8.1).
    ///
    /// # Errors
    /// [`DropReason::IcmpIgnored`].
    pub(super) fn read(received: &ReceivedIcmpv6<'_>) -> Result<Query, DropReason> {
        let ReceivedIcmpv6 { source, hop_limit, message, .. } = *received;
        let older = message.len() == V1_LEN;
        let on_link = hop_limit == 1 && source.is_unicast_link_local();
        if !on_link || !(older || message.len() >= QUERY_LEN) {
            return Err(DropReason::IcmpIgnored);
        }
        let mut group = [0; 16];
        group.copy_from_slice(&message[GROUP..V1_LEN]);
        // For delays from 32.768 s, version 2 encodes an exponent. Interpreted as a plain number, such a value is also
        // longer than [`MAX_DELAY`].
        let delay = u16::from_be_bytes([message[DELAY], message[DELAY + 1]]);
        Ok(Query { is_v1: older, delay: Duration::from_millis(delay.into()), group: group.into() })
    }
}

/// Returns true if the ICMPv6 message is an MLD query.
pub fn is_query(message: &[u8]) -> bool {
    message.first() == Some(&QUERY)
}

/// Returns the groups to report: the solicited-node groups, without duplicates. The all-nodes group is never reported
/// (RFC 3810 §6).
fn groups(interface: &Interface) -> Vec<Ipv6Addr> {
    let mut groups: Vec<Ipv6Addr> = addresses(interface).map(solicited_node).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn addresses(interface: &Interface) -> impl Iterator<Item = Ipv6Addr> + '_ {
    interface.addresses().filter_map(|address| match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    })
}

/// Sends a version 2 report of all groups, with record type `record` (RFC 3810 §5.2).
fn send_report(interface: &Interface, record: u8, out: &mut Outbox) {
    // A report of 60 groups fits into the minimum IPv6 MTU of 1280 bytes.
    for groups in groups(interface).chunks(60) {
        let mut message = vec![REPORT, 0, 0, 0, 0, 0];
        message.extend_from_slice(&(groups.len() as u16).to_be_bytes());
        for group in groups {
            message.extend_from_slice(&[record, 0, 0, 0]);
            message.extend_from_slice(&group.octets());
        }
        send(interface, MLDV2_ROUTERS, message, out);
    }
}

/// Sends a version 1 report of `group`, addressed to the group itself (RFC 2710 §3, §4).
fn send_report_v1(interface: &Interface, group: Ipv6Addr, out: &mut Outbox) {
    let mut message = vec![0; V1_LEN];
    message[0] = REPORT_V1;
    message[GROUP..].copy_from_slice(&group.octets());
    send(interface, group, message, out);
}

/// Fills in the checksum of an MLD message and sends the message (RFC 3810 §5). The source is a link-local address, the
/// hop limit is 1, and a router alert is added. The checksum field must be zero.
fn send(interface: &Interface, destination: Ipv6Addr, mut message: Vec<u8>, out: &mut Outbox) {
    let Some(source) = addresses(interface).find(Ipv6Addr::is_unicast_link_local) else { return };
    let (to, len) = (group_mac(destination), ROUTER_ALERT.len() + message.len());
    let (source, destination) = (IpAddr::V6(source), IpAddr::V6(destination));
    let sum = checksum::segment(source, destination, ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = IpHeader { source, destination, protocol: IpProtocol::HopByHop, hop_limit: 1 };
    out.push_frame(interface.port, |bytes| {
        path::write_ip_frame(bytes, interface, to, header, len, |p| {
            let (alert, rest) = p.split_at_mut(ROUTER_ALERT.len());
            alert.copy_from_slice(&ROUTER_ALERT);
            rest.copy_from_slice(&message);
        });
    });
}

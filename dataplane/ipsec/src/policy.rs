//! The security policy database (RFC 4301 §4.4.1): an ordered list that decides whether a packet is protected,
//! passes in clear, or is dropped.
//!
//! IKE, neighbour discovery and multicast listener discovery always pass, because without them no SA could be
//! established and no neighbour resolved. IKE is UDP at our port 500, or at our port 4500 with the non-ESP marker or a
//! NAT keepalive. Port 4500 alone is not enough: any program may send from it. In a list from [`Spd::new`], packets
//! that match no policy are dropped (§4.4.1), but pass if the list is empty.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::ip::{self, SCTP, TCP, UDP, UpperLayer, Visibility};
use crate::sa::UDP_HEADER;

/// Maximum number of policies of one database. A look-up, once per flow, may compare all of them.
pub const MAX_POLICIES: usize = 1024;

const ICMP: u8 = 1;
const DCCP: u8 = 33;
const ICMPV6: u8 = 58;
/// UDP port of IKE (RFC 7296 §2).
const IKE: u16 = 500;
/// UDP port of ESP in UDP (RFC 3948 §2.1), and of IKE with NAT traversal.
pub const NAT_PORT: u16 = 4500;
/// First bytes of IKE at [`NAT_PORT`], where ESP has its SPI (RFC 3948 §2.2).
const NON_ESP_MARKER: [u8; 4] = [0; 4];
/// Payload of a NAT keepalive (RFC 3948 §2.3).
pub(crate) const KEEPALIVE: [u8; 1] = [0xff];
/// Types of neighbour discovery: router and neighbour solicitations and advertisements, redirects (RFC 4861 §4).
const ND_TYPES: RangeInclusive<u8> = 133..=137;
/// Types of multicast listener discovery (RFC 2710 §3, RFC 3810 §5). Without MLD reports, switches with MLD snooping
/// would not forward neighbour discovery to us.
const MLD_TYPES: [u8; 4] = [130, 131, 132, 143];

/// Selector of packets. A packet matches if all fields match (RFC 4301 §4.4.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Our addresses.
    pub local: IpNet,
    /// The peer's addresses, of the same family.
    pub remote: IpNet,
    /// The protocol above IP; `None` matches any.
    pub protocol: Option<u8>,
    /// Our ports, for protocols that have ports. The full range also matches packets without ports.
    pub local_ports: RangeInclusive<u16>,
    /// The peer's ports.
    pub remote_ports: RangeInclusive<u16>,
}

/// The properties of a packet or a flow that selectors match. Ports are `None` for protocols without ports, and if the
/// packet does not contain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// The protocol above IP.
    pub protocol: u8,
    /// Our port, then the peer's.
    pub ports: Option<(u16, u16)>,
    /// Type of an ICMP or ICMPv6 message.
    pub icmp: Option<u8>,
    /// True for IKE at our UDP port 4500: the datagram begins with the non-ESP marker, or is a NAT keepalive
    /// (RFC 3948 §2.2, §2.3).
    pub ike: bool,
}

impl Flow {
    /// Returns the flow of a packet, which comes from the peer if `inbound`, otherwise from this host. `None` if
    /// `packet` is not an IP packet.
    #[inline]
    pub fn parse(packet: &[u8], inbound: bool) -> Option<Flow> {
        Flow::parse_with_visibility(packet, inbound).map(|(flow, _)| flow)
    }

    /// Returns the flow of a packet, and the visibility of its upper-layer header. The ports of a fragment are not
    /// read: later fragments have none.
    #[inline]
    pub fn parse_with_visibility(packet: &[u8], inbound: bool) -> Option<(Flow, Visibility)> {
        let (source, destination) = ip::addresses(packet)?;
        let UpperLayer { protocol, at, end, visibility: part } = ip::upper_layer(packet)?;
        let above = packet.get(at..end)?;
        let ports = match above {
            &[s0, s1, d0, d1, ..] if has_ports(protocol) => {
                Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])))
            }
            _ => None,
        };
        let icmp = matches!(protocol, ICMP | ICMPV6).then(|| above.first().copied()).flatten();
        let ((local, remote), ports) = match inbound {
            true => ((destination, source), ports.map(|(from, to)| (to, from))),
            false => ((source, destination), ports),
        };
        let nat = protocol == UDP && ports.is_some_and(|(local, _)| local == NAT_PORT);
        let ike = nat && is_ike(above);
        Some((Flow { local, remote, protocol, ports, icmp, ike }, part))
    }
}

/// Returns true for an IKE datagram at UDP port 4500. Its UDP length does not exceed the received bytes, and its
/// payload begins with the non-ESP marker or is a NAT keepalive.
fn is_ike(datagram: &[u8]) -> bool {
    let Some(&[high, low]) = datagram.get(4..6) else { return false };
    // RFC 768: the UDP length ends the datagram. The IP packet may be longer.
    let len = usize::from(u16::from_be_bytes([high, low]));
    let payload = datagram.get(UDP_HEADER..len).unwrap_or_default();
    payload == KEEPALIVE || payload.starts_with(&NON_ESP_MARKER)
}

/// Returns true for a protocol whose header begins with two ports.
const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP)
}

impl Selector {
    fn matches(&self, flow: &Flow) -> bool {
        let ports = match flow.ports {
            Some((local, remote)) => {
                self.local_ports.contains(&local) && self.remote_ports.contains(&remote)
            }
            // RFC 4301 §4.4.1.1: a missing port matches only a policy for all ports.
            None => is_all(&self.local_ports) && is_all(&self.remote_ports),
        };
        ports && self.matches_fragment(flow, Visibility::Whole)
    }

    /// Returns true if all fields except the ports match; later fragments have no ports. A hidden protocol is not
    /// compared.
    fn matches_fragment(&self, flow: &Flow, visibility: Visibility) -> bool {
        let hidden = visibility == Visibility::Hidden;
        self.protocol.is_none_or(|protocol| hidden || protocol == flow.protocol)
            && self.local.contains(&flow.local)
            && self.remote.contains(&flow.remote)
    }

    /// Returns true if this selector matches every packet that `other` matches.
    fn covers(&self, other: &Selector) -> bool {
        let within = |outer: &RangeInclusive<u16>, inner: &RangeInclusive<u16>| {
            outer.start() <= inner.start() && inner.end() <= outer.end()
        };
        self.local.contains(&other.local)
            && self.remote.contains(&other.remote)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && within(&self.local_ports, &other.local_ports)
            && within(&self.remote_ports, &other.remote_ports)
    }
}

fn is_all(ports: &RangeInclusive<u16>) -> bool {
    *ports == (0..=u16::MAX)
}

/// Action of a policy on a packet; `T` identifies the required protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Packets are sent with an SA of this protection, and accepted only if they arrive with one.
    Protect(T),
    /// Packets pass in clear.
    Bypass,
    /// Packets are dropped.
    Discard,
}

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the peer.
    In,
    /// To the peer.
    Out,
}

/// A policy of a security policy database (RFC 4301 §4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy<T> {
    /// Direction of the packets (RFC 4301 §4.4.1: SPD-I, SPD-O); `None`: both.
    pub direction: Option<Direction>,
    /// Selector of the packets.
    pub selector: Selector,
    /// Action on the packets.
    pub action: Action<T>,
}

/// Reasons why policies drop a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denial {
    /// A policy discards the packet.
    Discarded,
    /// No policy matches the packet.
    NoPolicy,
    /// The packet arrived in clear, although a policy requires protection (RFC 4301 §5.2).
    Unprotected,
    /// The packet arrived with an SA of another protection than its policy requires, or its policy requires no
    /// protection.
    WrongProtection,
}

impl Denial {
    /// Returns a stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Denial::Discarded => "policy_discarded",
            Denial::NoPolicy => "no_policy",
            Denial::Unprotected => "unprotected",
            Denial::WrongProtection => "wrong_protection",
        }
    }
}

/// Errors in a list of policies. Policies are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The list has more than [`MAX_POLICIES`] policies.
    #[error("{0} policies: at most {MAX_POLICIES} are supported")]
    TooMany(usize),
    /// The policy's networks are of two families.
    #[error("policy {0}: its networks are of two address families")]
    Families(usize),
    /// A range of ports is empty.
    #[error("policy {0}: a range of ports ends before it begins")]
    Ports(usize),
    /// The policy has ports, but its protocol has none.
    #[error(
        "policy {0}: it has ports, but its protocol is not TCP (6), UDP (17), SCTP (132) or DCCP (33)"
    )]
    PortsWithoutProtocol(usize),
    /// The policy has no effect: an earlier policy matches all packets that its selector matches.
    #[error("policy {later}: the earlier policy {earlier} matches all of its packets")]
    Shadowed {
        /// Number of the earlier policy, from 0.
        earlier: usize,
        /// Number of the policy without effect, from 0.
        later: usize,
    },
}

/// Treatment of packets that match no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// True if unmatched packets from peers pass.
    pub inbound: bool,
    /// True if unmatched packets to peers pass.
    pub outbound: bool,
}

impl Unmatched {
    /// Unmatched packets pass.
    pub const PASS: Unmatched = Unmatched { inbound: true, outbound: true };
    /// Unmatched packets are dropped (RFC 4301 §4.4.1).
    pub const DROP: Unmatched = Unmatched { inbound: false, outbound: false };

    fn passes(self, direction: Direction) -> bool {
        match direction {
            Direction::In => self.inbound,
            Direction::Out => self.outbound,
        }
    }
}

/// An ordered list of at most [`MAX_POLICIES`] policies. The first policy that matches a packet decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spd<T> {
    policies: Vec<Policy<T>>,
    unmatched: Unmatched,
}

impl<T: PartialEq> Spd<T> {
    /// Returns a checked list.
    ///
    /// # Errors
    /// All errors of the list.
    pub fn new(policies: Vec<Policy<T>>) -> Result<Spd<T>, Vec<PolicyError>> {
        let mut errors = Vec::new();
        if policies.len() > MAX_POLICIES {
            return Err(vec![PolicyError::TooMany(policies.len())]);
        }
        for (at, policy) in policies.iter().enumerate() {
            let selector = &policy.selector;
            let both = [&selector.local_ports, &selector.remote_ports];
            if selector.local.addr().is_ipv4() != selector.remote.addr().is_ipv4() {
                errors.push(PolicyError::Families(at));
            }
            if both.iter().any(|ports| ports.is_empty()) {
                errors.push(PolicyError::Ports(at));
            } else if both.iter().any(|ports| !is_all(ports))
                && !selector.protocol.is_some_and(has_ports)
            {
                errors.push(PolicyError::PortsWithoutProtocol(at));
            }
            let takes_all = |earlier: &Policy<T>| {
                let direction =
                    earlier.direction.is_none() || earlier.direction == policy.direction;
                direction && earlier.selector.covers(selector)
            };
            let earlier = policies[..at].iter().position(takes_all);
            errors.extend(earlier.map(|earlier| PolicyError::Shadowed { earlier, later: at }));
        }
        let unmatched = if policies.is_empty() { Unmatched::PASS } else { Unmatched::DROP };
        if errors.is_empty() { Ok(Spd { policies, unmatched }) } else { Err(errors) }
    }

    /// Returns a list of the kernel's policies, without the checks of [`new`](Self::new): earlier policies may shadow a
    /// policy. Policies beyond [`MAX_POLICIES`] are omitted, and then unmatched packets are dropped.
    pub fn from_checked(mut policies: Vec<Policy<T>>, unmatched: Unmatched) -> Spd<T> {
        let is_complete = policies.len() <= MAX_POLICIES;
        policies.truncate(MAX_POLICIES);
        Spd { policies, unmatched: if is_complete { unmatched } else { Unmatched::DROP } }
    }

    /// Returns the decision on packets of this flow (RFC 4301 §5.1, §5.2).
    pub fn decide(&self, flow: &Flow, direction: Direction) -> Decision<&T> {
        if always_passes(flow) {
            return Decision::Bypass;
        }
        let found = self.policies_for(direction).find(|policy| policy.selector.matches(flow));
        match found.map(|policy| &policy.action) {
            Some(Action::Protect(protection)) => Decision::Protect(protection),
            Some(Action::Bypass) => Decision::Bypass,
            Some(Action::Discard) => Decision::Denied(Denial::Discarded),
            None if self.unmatched.passes(direction) => Decision::Bypass,
            None => Decision::Denied(Denial::NoPolicy),
        }
    }

    fn policies_for(&self, direction: Direction) -> impl Iterator<Item = &Policy<T>> {
        self.policies.iter().filter(move |p| p.direction.is_none_or(|of| of == direction))
    }

    /// Decides on a packet in clear whose ports are not visible, for example a fragment that this worker does not
    /// reassemble (RFC 4301 §7.4). The packet is dropped if a policy that protects or drops may match it. If no policy
    /// may match it, it counts as unmatched.
    ///
    /// # Errors
    /// The packet must be dropped.
    pub fn decide_fragment(
        &self,
        flow: &Flow,
        visibility: Visibility,
        direction: Direction,
    ) -> Result<(), Denial> {
        let passes = self.unmatched.passes(direction);
        let mut verdict = if passes { Ok(()) } else { Err(Denial::NoPolicy) };
        let fits = |policy: &&Policy<T>| policy.selector.matches_fragment(flow, visibility);
        for policy in self.policies_for(direction).filter(fits) {
            match &policy.action {
                Action::Protect(_) => return Err(Denial::Unprotected),
                Action::Discard => return Err(Denial::Discarded),
                Action::Bypass => verdict = Ok(()),
            }
            // The policy certainly matches the packet, so later policies do not apply.
            if visibility != Visibility::Hidden && policy.selector.matches(flow) {
                break;
            }
        }
        verdict
    }
}

/// Decision on the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<T> {
    /// Packets are sent with an SA of this protection, and accepted only if they arrive with one.
    Protect(T),
    /// Packets pass in clear.
    Bypass,
    /// Packets are dropped.
    Denied(Denial),
}

/// Returns true for IKE, neighbour discovery and multicast listener discovery, in both directions.
fn always_passes(flow: &Flow) -> bool {
    match (flow.protocol, flow.ports, flow.icmp) {
        // Only our port is compared: the peer may use any port.
        (UDP, Some((IKE, _)), _) => true,
        (UDP, Some((NAT_PORT, _)), _) => flow.ike,
        (ICMPV6, _, Some(kind)) => ND_TYPES.contains(&kind) || MLD_TYPES.contains(&kind),
        _ => false,
    }
}

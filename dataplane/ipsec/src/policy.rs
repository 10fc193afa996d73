//! The security policy database (RFC 4301 §4.4.1): an ordered list that says of each packet whether it is protected, passes
//! as it is, or is dropped.
//!
//! IKE and neighbour discovery pass whatever the list says: without them there would be no SA and no neighbour. IKE is UDP at our
//! port 500, and at our port 4500 a datagram with the non-ESP marker or a NAT keepalive; any program of the host may send from
//! 4500. What no policy names is dropped once there is a list (§4.4.1), and passes where there is none.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::ip::{self, Part, SCTP, TCP, UDP, Upper};
use crate::sa::UDP_HEADER;

/// Policies of one database at most: each look-up may look at all of them, once per flow.
pub const MOST: usize = 1024;

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
const DISCOVERY: RangeInclusive<u8> = 133..=137;
/// Types of multicast listener discovery (RFC 2710 §3, RFC 3810 §5): switches that watch it would keep neighbour
/// discovery from us.
const GROUPS: [u8; 4] = [130, 131, 132, 143];

/// Which packets: all of these must fit (RFC 4301 §4.4.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Our addresses.
    pub local: IpNet,
    /// The peer's, of the same family.
    pub remote: IpNet,
    /// The protocol above IP; `None` is any.
    pub protocol: Option<u8>,
    /// Our ports, of protocols that have some; all of them fit what has none.
    pub local_ports: RangeInclusive<u16>,
    /// The peer's ports.
    pub remote_ports: RangeInclusive<u16>,
}

/// What a packet, or a flow, is selected by. Ports are `None` for protocols without, and where they cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// The protocol above IP.
    pub protocol: u8,
    /// Our port and the peer's.
    pub ports: Option<(u16, u16)>,
    /// Type of an ICMP message.
    pub icmp: Option<u8>,
    /// UDP at our port 4500 that is IKE's: it begins with the non-ESP marker, or is a NAT keepalive (RFC 3948 §2.2, §2.3).
    pub ike: bool,
}

impl Flow {
    /// Of a packet, which comes from the peer if `inbound`, else from us; see [`Flow::see`].
    #[inline]
    pub fn read(packet: &[u8], inbound: bool) -> Option<Flow> {
        Flow::see(packet, inbound).map(|(flow, _)| flow)
    }

    /// The same, with how much of the packet can be seen. Of what is not whole the ports are not read: only the first fragment
    /// has them.
    #[inline]
    pub fn see(packet: &[u8], inbound: bool) -> Option<(Flow, Part)> {
        let (source, destination) = ip::addresses(packet)?;
        let Upper { protocol, at, end, part } = ip::upper(packet)?;
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

/// True for a UDP datagram at port 4500 that is IKE's: not shorter than its length field says, and with one of the two payloads
/// that are not ESP.
fn is_ike(datagram: &[u8]) -> bool {
    let Some(&[high, low]) = datagram.get(4..6) else { return false };
    // RFC 768: the receiver reads so many bytes, whatever IP carries behind them.
    let len = usize::from(u16::from_be_bytes([high, low]));
    let payload = datagram.get(UDP_HEADER..len).unwrap_or_default();
    payload == KEEPALIVE || payload.starts_with(&NON_ESP_MARKER)
}

/// True for a protocol whose header begins with two ports.
const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP)
}

impl Selector {
    fn fits(&self, flow: &Flow) -> bool {
        let ports = match flow.ports {
            Some((local, remote)) => {
                self.local_ports.contains(&local) && self.remote_ports.contains(&remote)
            }
            // RFC 4301 §4.4.1.1: a port that is not there fits only a policy that asks for none.
            None => is_all(&self.local_ports) && is_all(&self.remote_ports),
        };
        ports && self.fits_part(flow, Part::Whole)
    }

    /// Without the ports, which only the first fragment of a packet has, and without the protocol where it is hidden.
    fn fits_part(&self, flow: &Flow, part: Part) -> bool {
        let hidden = part == Part::Hidden;
        self.protocol.is_none_or(|protocol| hidden || protocol == flow.protocol)
            && self.local.contains(&flow.local)
            && self.remote.contains(&flow.remote)
    }

    /// Every packet that fits `other` fits this one.
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

/// What is done with a packet; `T` names the protection that a policy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// It goes by an SA of this protection, and comes by one.
    Protect(T),
    /// It passes as it is.
    Bypass,
    /// It is dropped.
    Discard,
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the peer.
    In,
    /// To the peer.
    Out,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy<T> {
    /// For packets of this direction (RFC 4301 §4.4.1: SPD-I, SPD-O); `None`: of both.
    pub direction: Option<Direction>,
    /// Which packets.
    pub selector: Selector,
    /// What becomes of them.
    pub action: Action<T>,
}

/// Why a packet is not taken, or not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denied {
    /// A policy drops it.
    Discarded,
    /// No policy names it.
    NoPolicy,
    /// It came in clear, and a policy protects it (RFC 4301 §5.2).
    Unprotected,
    /// It came by an SA of another protection than its policy asks for, or of none that it asks for.
    WrongProtection,
}

impl Denied {
    /// Stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Denied::Discarded => "policy_discarded",
            Denied::NoPolicy => "no_policy",
            Denied::Unprotected => "unprotected",
            Denied::WrongProtection => "wrong_protection",
        }
    }
}

/// What is wrong with a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There are too many.
    #[error("{0} policies: at most {MOST} are supported")]
    TooMany(usize),
    /// Its networks are of two families.
    #[error("policy {0}: its networks are of two address families")]
    Families(usize),
    /// A range of ports without ports in it.
    #[error("policy {0}: a range of ports has its last before its first")]
    Ports(usize),
    /// Ports of a protocol that has none.
    #[error(
        "policy {0}: it has ports, but not the protocol of TCP (6), UDP (17), SCTP (132) or DCCP (33)"
    )]
    PortsOfOthers(usize),
    /// No packet comes so far.
    #[error("policy {later}: policy {earlier} before it takes all of its packets")]
    Shadowed {
        /// The one that takes them.
        earlier: usize,
        /// The one that gets none.
        later: usize,
    },
}

/// What becomes of packets that no policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unselected {
    /// Those from peers pass.
    pub inbound: bool,
    /// Those to peers pass.
    pub outbound: bool,
}

impl Unselected {
    /// They pass.
    pub const PASS: Unselected = Unselected { inbound: true, outbound: true };
    /// They are dropped (RFC 4301 §4.4.1).
    pub const DROP: Unselected = Unselected { inbound: false, outbound: false };

    fn passes(self, direction: Direction) -> bool {
        match direction {
            Direction::In => self.inbound,
            Direction::Out => self.outbound,
        }
    }
}

/// An ordered list of policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spd<T> {
    policies: Vec<Policy<T>>,
    unselected: Unselected,
}

impl<T: PartialEq> Spd<T> {
    /// A checked list; places in errors count from 0.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(policies: Vec<Policy<T>>) -> Result<Spd<T>, Vec<PolicyError>> {
        let mut wrong = Vec::new();
        if policies.len() > MOST {
            return Err(vec![PolicyError::TooMany(policies.len())]);
        }
        for (at, policy) in policies.iter().enumerate() {
            let selector = &policy.selector;
            let both = [&selector.local_ports, &selector.remote_ports];
            if selector.local.addr().is_ipv4() != selector.remote.addr().is_ipv4() {
                wrong.push(PolicyError::Families(at));
            }
            if both.iter().any(|ports| ports.is_empty()) {
                wrong.push(PolicyError::Ports(at));
            } else if both.iter().any(|ports| !is_all(ports))
                && !selector.protocol.is_some_and(has_ports)
            {
                wrong.push(PolicyError::PortsOfOthers(at));
            }
            let takes_all = |earlier: &Policy<T>| {
                let direction =
                    earlier.direction.is_none() || earlier.direction == policy.direction;
                direction && earlier.selector.covers(selector)
            };
            let earlier = policies[..at].iter().position(takes_all);
            wrong.extend(earlier.map(|earlier| PolicyError::Shadowed { earlier, later: at }));
        }
        let unselected = if policies.is_empty() { Unselected::PASS } else { Unselected::DROP };
        if wrong.is_empty() { Ok(Spd { policies, unselected }) } else { Err(wrong) }
    }

    /// A list as another holder of policies has it, where some may get no packet. What does not fit in (more than [`MOST`])
    /// is left out, and then nothing passes that no policy selects.
    pub fn of_others(mut policies: Vec<Policy<T>>, unselected: Unselected) -> Spd<T> {
        let whole = policies.len() <= MOST;
        policies.truncate(MOST);
        Spd { policies, unselected: if whole { unselected } else { Unselected::DROP } }
    }

    /// What is done with packets of this flow (RFC 4301 §5.1, §5.2).
    pub fn decide(&self, flow: &Flow, direction: Direction) -> Decision<&T> {
        if always_passes(flow) {
            return Decision::Bypass;
        }
        let found = self.of(direction).find(|policy| policy.selector.fits(flow));
        match found.map(|policy| &policy.action) {
            Some(Action::Protect(protection)) => Decision::Protect(protection),
            Some(Action::Bypass) => Decision::Bypass,
            Some(Action::Discard) => Decision::Denied(Denied::Discarded),
            None if self.unselected.passes(direction) => Decision::Bypass,
            None => Decision::Denied(Denied::NoPolicy),
        }
    }

    fn of(&self, direction: Direction) -> impl Iterator<Item = &Policy<T>> {
        self.policies.iter().filter(move |p| p.direction.is_none_or(|of| of == direction))
    }

    /// The same of a packet in clear of which only a part is seen, a fragment for one, and which is not put together here (RFC
    /// 4301 §7.4): it passes if no policy that protects or drops may have selected its packet.
    ///
    /// # Errors
    /// It is dropped.
    pub fn piece(&self, flow: &Flow, part: Part, direction: Direction) -> Result<(), Denied> {
        let passes = self.unselected.passes(direction);
        let mut verdict = if passes { Ok(()) } else { Err(Denied::NoPolicy) };
        let fits = |policy: &&Policy<T>| policy.selector.fits_part(flow, part);
        for policy in self.of(direction).filter(fits) {
            match &policy.action {
                Action::Protect(_) => return Err(Denied::Unprotected),
                Action::Discard => return Err(Denied::Discarded),
                Action::Bypass => verdict = Ok(()),
            }
            // This one takes the packet, whatever is not seen of it.
            if part != Part::Hidden && policy.selector.fits(flow) {
                break;
            }
        }
        verdict
    }
}

/// What is done with the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<T> {
    /// They go by an SA of this protection, and come by one.
    Protect(T),
    /// They pass as they are.
    Bypass,
    /// They are dropped.
    Denied(Denied),
}

/// True for IKE, neighbour discovery and multicast listener discovery, in both directions.
fn always_passes(flow: &Flow) -> bool {
    match (flow.protocol, flow.ports, flow.icmp) {
        // By our port alone: the peer chooses its own.
        (UDP, Some((IKE, _)), _) => true,
        (UDP, Some((NAT_PORT, _)), _) => flow.ike,
        (ICMPV6, _, Some(kind)) => DISCOVERY.contains(&kind) || GROUPS.contains(&kind),
        _ => false,
    }
}

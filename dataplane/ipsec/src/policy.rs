//! The security policy database (RFC 4301 §4.4.1): an ordered list that says of each packet whether it is protected, passes
//! as it is, or is dropped.
//!
//! IKE (UDP ports 500 and 4500) and neighbour discovery pass whatever the list says: without them there would be no SA and
//! no neighbour. What no policy names is dropped once there is a list (§4.4.1), and passes where there is none.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// Policies of one database at most: each look-up may look at all of them, once per flow.
pub const MOST: usize = 1024;

const ICMPV6: u8 = 58;
const UDP: u8 = 17;
/// IKE, and IKE beside ESP in UDP (RFC 7296 §2, RFC 3948 §2.2).
const IKE: [u16; 2] = [500, 4500];
/// Types of neighbour discovery: router and neighbour solicitations and advertisements, redirects (RFC 4861 §4).
const DISCOVERY: RangeInclusive<u8> = 133..=137;

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
        ports
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
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

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy<T> {
    /// Which packets.
    pub selector: Selector,
    /// What becomes of them.
    pub action: Action<T>,
}

/// Why a packet is not taken, or not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// An ordered list of policies.
#[derive(Clone, Debug)]
pub struct Spd<T> {
    policies: Vec<Policy<T>>,
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
                && !matches!(selector.protocol, Some(6 | 17 | 33 | 132))
            {
                wrong.push(PolicyError::PortsOfOthers(at));
            }
            let earlier = policies[..at].iter().position(|p| p.selector.covers(selector));
            wrong.extend(earlier.map(|earlier| PolicyError::Shadowed { earlier, later: at }));
        }
        if wrong.is_empty() { Ok(Spd { policies }) } else { Err(wrong) }
    }

    /// What is done with a packet that we send.
    ///
    /// # Errors
    /// It must not be sent.
    pub fn outbound(&self, flow: &Flow) -> Result<Option<&T>, Denied> {
        if self.policies.is_empty() || always_passes(flow) {
            return Ok(None);
        }
        match self.find(flow).map(|policy| &policy.action) {
            Some(Action::Protect(protection)) => Ok(Some(protection)),
            Some(Action::Bypass) => Ok(None),
            Some(Action::Discard) => Err(Denied::Discarded),
            None => Err(Denied::NoPolicy),
        }
    }

    /// Whether a packet is taken that came by an SA of this protection, or in clear (RFC 4301 §5.2).
    ///
    /// # Errors
    /// It is dropped.
    pub fn inbound(&self, flow: &Flow, by: Option<&T>) -> Result<(), Denied> {
        if by.is_none() && (self.policies.is_empty() || always_passes(flow)) {
            return Ok(());
        }
        match (self.find(flow).map(|policy| &policy.action), by) {
            (Some(Action::Protect(asked)), Some(by)) if asked == by => Ok(()),
            (Some(Action::Protect(_)), None) => Err(Denied::Unprotected),
            (Some(Action::Bypass), None) => Ok(()),
            (Some(Action::Discard), _) => Err(Denied::Discarded),
            (Some(_), Some(_)) => Err(Denied::WrongProtection),
            (None, _) => Err(Denied::NoPolicy),
        }
    }

    fn find(&self, flow: &Flow) -> Option<&Policy<T>> {
        self.policies.iter().find(|policy| policy.selector.fits(flow))
    }
}

/// IKE and neighbour discovery.
fn always_passes(flow: &Flow) -> bool {
    match (flow.protocol, flow.ports, flow.icmp) {
        (UDP, Some((local, remote)), _) => IKE.contains(&local) || IKE.contains(&remote),
        (ICMPV6, _, Some(kind)) => DISCOVERY.contains(&kind),
        _ => false,
    }
}

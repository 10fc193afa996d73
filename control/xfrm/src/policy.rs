//! One policy of the kernel, and its entry in our list.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use ipsec::policy::{Action, Direction, Flow, Selector};
use netlink_packet_core::Emitable as _;
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::{
    Address, Mark, Selector as KernelSelector, UserPolicyInfo, UserTemplate, XFRM_SELECTOR_LEN,
};

use crate::message::Attributes;

/// Types of ICMPv6 that our policy database always lets pass.
const ALWAYS_PASS: [RangeInclusive<u16>; 3] = [130..=132, 133..=137, 143..=143];
/// Protocols whose ports our policy database reads: TCP, UDP, DCCP, SCTP.
const WITH_PORTS: [u8; 4] = [IPPROTO_TCP, IPPROTO_UDP, IPPROTO_DCCP, IPPROTO_SCTP];
const PORTS: RangeInclusive<u16> = 0..=u16::MAX;

/// Identity of a policy in the kernel.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    selector: [u8; XFRM_SELECTOR_LEN],
    direction: u8,
    mark: (u32, u32),
    if_id: u32,
}

impl Key {
    pub(crate) fn new(selector: &KernelSelector, direction: u8, attributes: &Attributes) -> Key {
        let mut bytes = [0; XFRM_SELECTOR_LEN];
        selector.emit(&mut bytes);
        let mark = (attributes.mark.value, attributes.mark.mask);
        Key { selector: bytes, direction, mark, if_id: attributes.if_id }
    }
}

/// Properties that an SA shares with the template that it serves. Both directions of a CHILD_SA have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub(crate) reqid: u32,
    pub(crate) tunnel: bool,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
}

impl Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { reqid, tunnel, local, remote } = self;
        let mode = if *tunnel { "tunnel" } else { "transport" };
        write!(f, "{mode} {local} - {remote}, reqid {reqid}")
    }
}

/// Requirements of a policy on its SAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    pub(crate) ends: Ends,
    /// Required SPI; 0: any.
    pub(crate) spi: u32,
}

/// Result of the translation of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The policy has no effect on our packets.
    Ignored,
    /// The policy is not in our list, for this reason.
    Skipped(String),
    /// The policy is in our list. `refused`: the reason if it is not served as the kernel has it.
    Listed { selector: Selector, action: Action<Wants>, refused: Option<String> },
}

/// A policy in the kernel's form.
pub(crate) struct Kernel {
    pub(crate) info: UserPolicyInfo,
    pub(crate) templates: Vec<UserTemplate>,
    pub(crate) direction: Direction,
    mark: Mark,
    if_id: u32,
    labelled: bool,
}

impl Kernel {
    /// Returns `None` for a policy that is not for packets to or from us: of another type or direction, or of a
    /// socket.
    pub(crate) fn new(info: UserPolicyInfo, attributes: Attributes) -> Option<Kernel> {
        let direction = match info.direction {
            XFRM_POLICY_IN => Direction::In,
            XFRM_POLICY_OUT => Direction::Out,
            _ => return None,
        };
        // include/net/xfrm.h: the low bits of the index are the direction; higher values mark policies of
        // sockets.
        let of_socket = info.index & 7 >= u32::from(XFRM_POLICY_MAX);
        if of_socket || attributes.policy_type != XFRM_POLICY_TYPE_MAIN {
            return None;
        }
        let Attributes { templates, mark, if_id, labelled, .. } = attributes;
        Some(Kernel { info, templates, direction, mark, if_id, labelled })
    }

    pub(crate) fn read(&self) -> Reading {
        let selector = &self.info.selector;
        // Our packets carry neither a mark nor an interface of the kernel.
        let Mark { value, mask } = self.mark;
        if value != 0 {
            return Reading::Skipped(format!("mark {value:#x}/{mask:#x}: our packets have none"));
        }
        if self.if_id != 0 {
            return Reading::Skipped(format!("it is of XFRM interface {}", self.if_id));
        }
        // The device may be our TAP: a policy that protects or drops applies to all devices.
        if selector.ifindex != 0
            && self.templates.is_empty()
            && self.info.action != XFRM_POLICY_BLOCK
        {
            return Reading::Skipped(format!("it is of the kernel's device {}", selector.ifindex));
        }
        let nets = networks(selector, self.direction);
        let Some((local, remote)) = nets else {
            return Reading::Skipped("its selector is neither of IPv4 nor of IPv6".into());
        };
        let (action, mut refused) = match self.action(local, remote) {
            Ok(action) => (action, None),
            // A policy that protects must never let packets pass in clear.
            Err(reason) => (Action::Discard, Some(reason)),
        };
        let protocol = Some(selector.proto).filter(|protocol| *protocol != 0);
        let (ports, action) = match ports(selector) {
            Ports::Are { source, destination } => ((source, destination), action),
            Ports::AlwaysPass => return Reading::Ignored,
            Ports::Unsupported(reason) if action == Action::Bypass => {
                return Reading::Skipped(reason);
            }
            // All ports of the protocol instead: the policy drops more than it requires, never less.
            Ports::Unsupported(reason) => {
                refused.get_or_insert(reason);
                ((PORTS, PORTS), Action::Discard)
            }
        };
        let (local_ports, remote_ports) = match self.direction {
            Direction::Out => ports,
            Direction::In => (ports.1, ports.0),
        };
        let selector = Selector { local, remote, protocol, local_ports, remote_ports };
        Reading::Listed { selector, action, refused }
    }

    fn action(&self, local: IpNet, remote: IpNet) -> Result<Action<Wants>, String> {
        match self.info.action {
            XFRM_POLICY_ALLOW => {}
            XFRM_POLICY_BLOCK => return Ok(Action::Discard),
            other => return Err(format!("action {other} is not known")),
        }
        if self.labelled {
            return Err("security labels are not supported".into());
        }
        match &self.templates[..] {
            [] => Ok(Action::Bypass),
            [template] => wants(template, self.direction, local, remote).map(Action::Protect),
            _ => Err("more than one template: only ESP alone is supported".into()),
        }
    }

    /// Returns a description of the policy's templates for operators.
    pub(crate) fn template_summary(&self) -> String {
        let of = |template: &UserTemplate| {
            let protocol = match template.id.proto {
                IPPROTO_ESP => "esp".to_owned(),
                IPPROTO_AH => "ah".to_owned(),
                IPPROTO_COMP => "ipcomp".to_owned(),
                other => format!("protocol {other}"),
            };
            let mode = match template.mode {
                XFRM_MODE_TRANSPORT => "transport".to_owned(),
                XFRM_MODE_TUNNEL => "tunnel".to_owned(),
                XFRM_MODE_BEET => "beet".to_owned(),
                other => format!("mode {other}"),
            };
            let address = |of| {
                address(template.family, of).map_or_else(|| "?".to_owned(), |ip| ip.to_string())
            };
            let (from, to) = (address(&template.saddr), address(&template.id.daddr));
            format!("{protocol} {mode} {from} - {to} reqid {}", template.reqid)
        };
        self.templates.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

impl Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selector = &self.info.selector;
        let direction = match self.direction {
            Direction::In => "in",
            Direction::Out => "out",
        };
        let net = |of, prefix| {
            address(selector.family, of)
                .map_or_else(|| "?".to_owned(), |address| format!("{address}/{prefix}"))
        };
        let source = net(&selector.saddr, selector.prefixlen_s);
        let destination = net(&selector.daddr, selector.prefixlen_d);
        write!(f, "{direction} {source} - {destination}")?;
        if selector.proto != 0 {
            write!(f, " protocol {}", selector.proto)?;
        }
        let ports = [
            ("source", selector.sport, selector.sport_mask),
            ("destination", selector.dport, selector.dport_mask),
        ];
        for (name, port, mask) in ports.into_iter().filter(|(_, _, mask)| *mask != 0) {
            match mask {
                u16::MAX => write!(f, " {name} port {port}")?,
                _ => write!(f, " {name} port {port}/{mask:#06x}")?,
            }
        }
        Ok(())
    }
}

/// Returns the address of a field for either family.
pub(crate) fn address(family: u16, address: &Address) -> Option<IpAddr> {
    match family {
        AF_INET => Some(address.to_ipv4().into()),
        AF_INET6 => Some(address.to_ipv6().into()),
        _ => None,
    }
}

/// Returns our network and the peer's.
fn networks(selector: &KernelSelector, direction: Direction) -> Option<(IpNet, IpNet)> {
    let net = |of, prefix| Some(IpNet::new(address(selector.family, of)?, prefix).ok()?.trunc());
    let source = net(&selector.saddr, selector.prefixlen_s)?;
    let destination = net(&selector.daddr, selector.prefixlen_d)?;
    Some(match direction {
        Direction::Out => (source, destination),
        Direction::In => (destination, source),
    })
}

enum Ports {
    Are { source: RangeInclusive<u16>, destination: RangeInclusive<u16> },
    AlwaysPass,
    Unsupported(String),
}

fn ports(selector: &KernelSelector) -> Ports {
    let (source, destination) =
        ((selector.sport, selector.sport_mask), (selector.dport, selector.dport_mask));
    if source.1 == 0 && destination.1 == 0 {
        return Ports::Are { source: PORTS, destination: PORTS };
    }
    // ICMP has its type and code in place of ports.
    if matches!(selector.proto, IPPROTO_ICMP | IPPROTO_ICMPV6) {
        let whole = source.1 == u16::MAX && selector.proto == IPPROTO_ICMPV6;
        return match whole && ALWAYS_PASS.iter().any(|types| types.contains(&source.0)) {
            true => Ports::AlwaysPass,
            false => Ports::Unsupported(format!(
                "types of ICMP are not supported (type {}, code {})",
                source.0, destination.0
            )),
        };
    }
    if selector.proto != 0 && !WITH_PORTS.contains(&selector.proto) {
        return Ports::Unsupported(format!("ports of protocol {} are not read", selector.proto));
    }
    let range = |(port, mask)| match mask {
        0 => Some(PORTS),
        u16::MAX => Some(port..=port),
        _ => None,
    };
    match (range(source), range(destination)) {
        (Some(source), Some(destination)) => Ports::Are { source, destination },
        _ => Ports::Unsupported("masks of ports are not supported, only one port or all".into()),
    }
}

fn wants(
    template: &UserTemplate,
    direction: Direction,
    local: IpNet,
    remote: IpNet,
) -> Result<Wants, String> {
    match template.id.proto {
        IPPROTO_ESP => {}
        IPPROTO_AH => return Err("AH is not supported, only ESP".into()),
        IPPROTO_COMP => return Err("IPComp is not supported, only ESP".into()),
        other => return Err(format!("protocol {other} is not supported, only ESP")),
    }
    if template.optional != 0 {
        return Err("optional protection (level use) is not supported".into());
    }
    let family = match template.family {
        AF_UNSPEC if local.addr().is_ipv4() => AF_INET,
        AF_UNSPEC => AF_INET6,
        family => family,
    };
    let (Some(source), Some(destination)) =
        (address(family, &template.saddr), address(family, &template.id.daddr))
    else {
        return Err("its template is neither of IPv4 nor of IPv6".into());
    };
    let (ours, peers) = match direction {
        Direction::Out => (source, destination),
        Direction::In => (destination, source),
    };
    let (tunnel, local, remote) = match template.mode {
        XFRM_MODE_TUNNEL if ours.is_unspecified() || peers.is_unspecified() => {
            return Err("the tunnel has an end without an address".into());
        }
        XFRM_MODE_TUNNEL => (true, ours, peers),
        XFRM_MODE_TRANSPORT => {
            (false, transport_end(ours, local, "our")?, transport_end(peers, remote, "the peer's")?)
        }
        XFRM_MODE_BEET => return Err("mode BEET is not supported".into()),
        other => return Err(format!("mode {other} is not supported, only transport and tunnel")),
    };
    let ends = Ends { reqid: template.reqid, tunnel, local, remote };
    Ok(Wants { ends, spi: template.id.spi })
}

/// Returns one end of a transport mode SA. Packets keep their addresses, so that they are the SA's.
fn transport_end(template: IpAddr, net: IpNet, whose: &str) -> Result<IpAddr, String> {
    if net.prefix_len() != net.max_prefix_len() {
        return Err(format!("transport mode with {whose} network {net}: only one host each"));
    }
    match template {
        end if end.is_unspecified() || end == net.addr() => Ok(net.addr()),
        end => Err(format!("transport mode with {whose} address {end}, but packets of {net}")),
    }
}

/// True when the selector matches the flow.
pub(crate) fn fits(selector: &Selector, flow: &Flow) -> bool {
    let ports = match flow.ports {
        Some((local, remote)) => {
            selector.local_ports.contains(&local) && selector.remote_ports.contains(&remote)
        }
        None => selector.local_ports == PORTS && selector.remote_ports == PORTS,
    };
    ports
        && selector.protocol.is_none_or(|protocol| protocol == flow.protocol)
        && selector.local.contains(&flow.local)
        && selector.remote.contains(&flow.remote)
}

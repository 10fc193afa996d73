//! One policy of the kernel, and its translation for the data plane's list.
//!
//! The data plane cannot express every policy of the kernel. A policy whose protection is unsupported drops the packets
//! that it selects. A policy is omitted if it selects none of the data plane's packets, or if it lets packets pass and
//! its selector is unsupported. *Invariant:* an entry may drop more packets than the kernel's policy, never fewer. Only
//! packets of neighbor and multicast listener discovery always pass.

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

/// ICMPv6 types of neighbor and multicast listener discovery, which the data plane's policy database always lets pass.
const ND_TYPES: [RangeInclusive<u16>; 3] = [130..=132, 133..=137, 143..=143];
/// Protocols whose ports the data plane's policy database reads: TCP, UDP, DCCP, SCTP.
const PORT_PROTOCOLS: [u8; 4] = [IPPROTO_TCP, IPPROTO_UDP, IPPROTO_DCCP, IPPROTO_SCTP];
const ANY_PORT: RangeInclusive<u16> = 0..=u16::MAX;

/// Identity of a policy in the kernel.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PolicyKey {
    selector: [u8; XFRM_SELECTOR_LEN],
    direction: u8,
    mark: (u32, u32),
    if_id: u32,
}

impl PolicyKey {
    pub(crate) fn new(
        selector: &KernelSelector,
        direction: u8,
        attributes: &Attributes,
    ) -> PolicyKey {
        let mut bytes = [0; XFRM_SELECTOR_LEN];
        selector.emit(&mut bytes);
        let mark = (attributes.mark.value, attributes.mark.mask);
        PolicyKey { selector: bytes, direction, mark, if_id: attributes.if_id }
    }
}

/// Properties that an SA has in common with the policy template that it serves. They are equal for both directions of a
/// CHILD_SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SaEndpoints {
    pub(crate) reqid: u32,
    /// True for tunnel mode, false for transport mode.
    pub(crate) tunnel: bool,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
}

impl Display for SaEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SaEndpoints { reqid, tunnel, local, remote } = self;
        let mode = if *tunnel { "tunnel" } else { "transport" };
        write!(f, "{mode} {local} - {remote}, reqid {reqid}")
    }
}

/// Requirements of a policy on its SAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SaRequirements {
    pub(crate) endpoints: SaEndpoints,
    /// Required SPI; 0 is any.
    pub(crate) spi: u32,
}

/// Result of the translation of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// The policy has no effect on the data plane's packets.
    Ignored,
    /// The policy is not in the data plane's list, for this reason.
    Skipped(String),
    /// The policy is in the data plane's list. `refused` is the reason if this entry differs from the kernel's policy.
    Listed { selector: Selector, action: Action<SaRequirements>, refused: Option<String> },
}

/// A policy as the kernel has it, for the packets to or from this host.
pub(crate) struct KernelPolicy {
    pub(crate) info: UserPolicyInfo,
    pub(crate) templates: Vec<UserTemplate>,
    pub(crate) direction: Direction,
    mark: Mark,
    if_id: u32,
    labelled: bool,
}

impl KernelPolicy {
    /// Creates the policy from the content of a message. `None` for policies that do not apply to all packets to or
    /// from this host: policies of another type or direction, and policies of a single socket.
    pub(crate) fn new(info: UserPolicyInfo, attributes: Attributes) -> Option<KernelPolicy> {
        let direction = match info.direction {
            XFRM_POLICY_IN => Direction::In,
            XFRM_POLICY_OUT => Direction::Out,
            _ => return None,
        };
        // include/net/xfrm.h: the low 3 bits of the index are the direction. Values from XFRM_POLICY_MAX mark policies
        // of sockets.
        let of_socket = info.index & 7 >= u32::from(XFRM_POLICY_MAX);
        if of_socket || attributes.policy_type != XFRM_POLICY_TYPE_MAIN {
            return None;
        }
        let Attributes { templates, mark, if_id, labelled, .. } = attributes;
        Some(KernelPolicy { info, templates, direction, mark, if_id, labelled })
    }

    pub(crate) fn translate(&self) -> Translation {
        let selector = &self.info.selector;
        // The data plane's packets have neither a mark nor an XFRM interface.
        let Mark { value, mask } = self.mark;
        if value != 0 {
            return Translation::Skipped(format!(
                "mark {value:#x}/{mask:#x}: our packets have none"
            ));
        }
        if self.if_id != 0 {
            return Translation::Skipped(format!("it is of XFRM interface {}", self.if_id));
        }
        // The device may be the appliance's TAP, so a policy that protects or drops is applied as if it were for all
        // devices.
        if selector.ifindex != 0
            && self.templates.is_empty()
            && self.info.action != XFRM_POLICY_BLOCK
        {
            return Translation::Skipped(format!(
                "it is of the kernel's device {}",
                selector.ifindex
            ));
        }
        let nets = parse_networks(selector, self.direction);
        let Some((local, remote)) = nets else {
            return Translation::Skipped("its selector is neither of IPv4 nor of IPv6".into());
        };
        let (action, mut refused) = match self.translate_action(local, remote) {
            Ok(action) => (action, None),
            // A policy that requires protection must never let packets pass in the clear.
            Err(reason) => (Action::Discard, Some(reason)),
        };
        let protocol = Some(selector.proto).filter(|protocol| *protocol != 0);
        let (ports, action) = match translate_ports(selector) {
            PortSelector::Ranges { source, destination } => ((source, destination), action),
            PortSelector::AlwaysPass => return Translation::Ignored,
            PortSelector::Unsupported(reason) if action == Action::Bypass => {
                return Translation::Skipped(reason);
            }
            // Extended to all ports of the protocol: the entry may drop more packets than the kernel's policy, never
            // fewer.
            PortSelector::Unsupported(reason) => {
                refused.get_or_insert(reason);
                ((ANY_PORT, ANY_PORT), Action::Discard)
            }
        };
        let (local_ports, remote_ports) = match self.direction {
            Direction::Out => ports,
            Direction::In => (ports.1, ports.0),
        };
        let selector = Selector { local, remote, protocol, local_ports, remote_ports };
        Translation::Listed { selector, action, refused }
    }

    fn translate_action(
        &self,
        local: IpNet,
        remote: IpNet,
    ) -> Result<Action<SaRequirements>, String> {
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
            [template] => {
                translate_template(template, self.direction, local, remote).map(Action::Protect)
            }
            _ => Err("more than one template: only ESP alone is supported".into()),
        }
    }

    /// Returns a description of the policy's templates, for operators.
    pub(crate) fn template_summary(&self) -> String {
        let describe = |template: &UserTemplate| {
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
                parse_address(template.family, of)
                    .map_or_else(|| "?".to_owned(), |ip| ip.to_string())
            };
            let (from, to) = (address(&template.saddr), address(&template.id.daddr));
            format!("{protocol} {mode} {from} - {to} reqid {}", template.reqid)
        };
        self.templates.iter().map(describe).collect::<Vec<_>>().join(", ")
    }
}

impl Display for KernelPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selector = &self.info.selector;
        let direction = match self.direction {
            Direction::In => "in",
            Direction::Out => "out",
        };
        let net = |of, prefix| {
            parse_address(selector.family, of)
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

/// Decodes an address field of `family`; `None` if it is neither IPv4 nor IPv6.
pub(crate) fn parse_address(family: u16, address: &Address) -> Option<IpAddr> {
    match family {
        AF_INET => Some(address.to_ipv4().into()),
        AF_INET6 => Some(address.to_ipv6().into()),
        _ => None,
    }
}

/// Returns the local and the remote network of a selector. `None` if an address or a prefix length is invalid.
fn parse_networks(selector: &KernelSelector, direction: Direction) -> Option<(IpNet, IpNet)> {
    let net =
        |of, prefix| Some(IpNet::new(parse_address(selector.family, of)?, prefix).ok()?.trunc());
    let source = net(&selector.saddr, selector.prefixlen_s)?;
    let destination = net(&selector.daddr, selector.prefixlen_d)?;
    Some(match direction {
        Direction::Out => (source, destination),
        Direction::In => (destination, source),
    })
}

enum PortSelector {
    Ranges { source: RangeInclusive<u16>, destination: RangeInclusive<u16> },
    AlwaysPass,
    Unsupported(String),
}

fn translate_ports(selector: &KernelSelector) -> PortSelector {
    let (source, destination) =
        ((selector.sport, selector.sport_mask), (selector.dport, selector.dport_mask));
    if source.1 == 0 && destination.1 == 0 {
        return PortSelector::Ranges { source: ANY_PORT, destination: ANY_PORT };
    }
    // For ICMP, the port fields of the selector contain type and code.
    if matches!(selector.proto, IPPROTO_ICMP | IPPROTO_ICMPV6) {
        let whole = source.1 == u16::MAX && selector.proto == IPPROTO_ICMPV6;
        return match whole && ND_TYPES.iter().any(|types| types.contains(&source.0)) {
            true => PortSelector::AlwaysPass,
            false => PortSelector::Unsupported(format!(
                "types of ICMP are not supported (type {}, code {})",
                source.0, destination.0
            )),
        };
    }
    if selector.proto != 0 && !PORT_PROTOCOLS.contains(&selector.proto) {
        return PortSelector::Unsupported(format!(
            "ports of protocol {} are not read",
            selector.proto
        ));
    }
    let range = |(port, mask)| match mask {
        0 => Some(ANY_PORT),
        u16::MAX => Some(port..=port),
        _ => None,
    };
    match (range(source), range(destination)) {
        (Some(source), Some(destination)) => PortSelector::Ranges { source, destination },
        _ => PortSelector::Unsupported(
            "masks of ports are not supported, only one port or all".into(),
        ),
    }
}

fn translate_template(
    template: &UserTemplate,
    direction: Direction,
    local: IpNet,
    remote: IpNet,
) -> Result<SaRequirements, String> {
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
        (parse_address(family, &template.saddr), parse_address(family, &template.id.daddr))
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
        XFRM_MODE_TRANSPORT => (
            false,
            transport_endpoint(ours, local, "our")?,
            transport_endpoint(peers, remote, "the peer's")?,
        ),
        XFRM_MODE_BEET => return Err("mode BEET is not supported".into()),
        other => return Err(format!("mode {other} is not supported, only transport and tunnel")),
    };
    let ends = SaEndpoints { reqid: template.reqid, tunnel, local, remote };
    Ok(SaRequirements { endpoints: ends, spi: template.id.spi })
}

/// Returns one endpoint of a transport mode SA. Packets keep their addresses, so the endpoint is the selector's only
/// address. The template's address must equal it or be unspecified.
fn transport_endpoint(template: IpAddr, net: IpNet, whose: &str) -> Result<IpAddr, String> {
    if net.prefix_len() != net.max_prefix_len() {
        return Err(format!("transport mode with {whose} network {net}: only one host each"));
    }
    match template {
        end if end.is_unspecified() || end == net.addr() => Ok(net.addr()),
        end => Err(format!("transport mode with {whose} address {end}, but packets of {net}")),
    }
}

pub(crate) fn matches_flow(selector: &Selector, flow: &Flow) -> bool {
    let ports = match flow.ports {
        Some((local, remote)) => {
            selector.local_ports.contains(&local) && selector.remote_ports.contains(&remote)
        }
        None => selector.local_ports == ANY_PORT && selector.remote_ports == ANY_PORT,
    };
    ports
        && selector.protocol.is_none_or(|protocol| protocol == flow.protocol)
        && selector.local.contains(&flow.local)
        && selector.remote.contains(&flow.remote)
}

//! Neighbour discovery (RFC 4861) of a host with static addresses and routes: neighbour solicitations and
//! advertisements. Router discovery and redirects are ignored.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::{
    EthernetAddress, Icmpv6Message, Icmpv6Packet, IpProtocol, NdiscNeighborFlags, NdiscRepr,
};

use super::Outbox;
use super::icmp::ReceivedIcmpv6;
use super::interface::{ALL_NODES, Interface, group_mac, solicited_node};
use super::neighbour::{Claim, ClaimKind, Mac};
use super::path::{self, IpHeader};
use super::protocol::ICMPV6;
use crate::checksum;
use crate::drops::DropReason;

/// Hop limit of all messages. Because routers decrement the hop limit, a received 255 proves that the sender is on this
/// link (RFC 4861 §7.1).
const HOP_LIMIT: u8 = 255;

/// Processes a solicitation or an advertisement in a frame from `sender`. Answers a solicitation of our address if
/// `may_answer` returns true. Returns the sender's claim to its address; the claim is a conflict if the address is
/// ours.
///
/// # Errors
/// The drop reason: the message is invalid, exceeds the rate limit, or contains no claim. An answer may have been sent.
pub fn input(
    interface: &Interface,
    sender: Mac,
    received: &ReceivedIcmpv6<'_>,
    may_answer: impl FnOnce() -> bool,
    out: &mut Outbox,
) -> Result<Claim, DropReason> {
    // RFC 4861 §7.1.1, §7.1.2: validation.
    let packet =
        Icmpv6Packet::new_checked(received.message).map_err(|_| DropReason::NeighbourDiscovery)?;
    if received.hop_limit != HOP_LIMIT || packet.msg_code() != 0 {
        return Err(DropReason::NeighbourDiscovery);
    }
    if !matches!(packet.msg_type(), Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert)
    {
        return Err(DropReason::IcmpIgnored);
    }
    match NdiscRepr::parse(&packet).map_err(|_| DropReason::NeighbourDiscovery)? {
        NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
            let mac = link_layer(lladdr.as_ref().map(|a| a.as_bytes()))?;
            handle_solicitation(interface, sender, received, target_addr, mac, may_answer, out)
        }
        NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } => {
            let mac = link_layer(lladdr.as_ref().map(|a| a.as_bytes()))?;
            if interface.has_address(target_addr.into()) {
                // The link may loop our own announcements back.
                return match sender == interface.mac {
                    true => Err(DropReason::NeighbourIgnored),
                    false => Ok(Claim {
                        address: target_addr.into(),
                        mac: mac.unwrap_or(sender),
                        kind: ClaimKind::Conflict,
                    }),
                };
            }
            handle_advertisement(interface, received.destination, flags, target_addr, mac)
        }
        _ => Err(DropReason::IcmpIgnored),
    }
}

#[inline]
fn handle_solicitation(
    interface: &Interface,
    sender: Mac,
    received: &ReceivedIcmpv6<'_>,
    target: Ipv6Addr,
    mac: Option<Mac>,
    may_answer: impl FnOnce() -> bool,
    out: &mut Outbox,
) -> Result<Claim, DropReason> {
    let ReceivedIcmpv6 { source, destination, .. } = *received;
    if target.is_multicast()
        || (source.is_unspecified() && (mac.is_some() || destination != solicited_node(target)))
    {
        return Err(DropReason::NeighbourDiscovery);
    }
    if !interface.has_address(target.into()) {
        return Err(DropReason::NeighbourIgnored);
    }
    if !may_answer() {
        return Err(DropReason::RateLimited);
    }
    if source.is_unspecified() {
        if sender == interface.mac {
            // The link has looped our own probe back.
            return Err(DropReason::NeighbourIgnored);
        }
        // RFC 4862 §5.4.3: another host performs duplicate address detection for our address. RFC 4861 §7.2.4: the
        // answer is sent to all nodes.
        advertise(interface, target, ALL_NODES, group_mac(ALL_NODES), false, out);
        return Err(DropReason::NeighbourIgnored);
    }
    let target_mac = mac.or_else(|| interface.neighbours.get(source.into()));
    if let Some(mac) = target_mac {
        advertise(interface, target, source, mac, true, out);
    }
    match mac {
        Some(mac) if interface.is_on_link(source.into()) => {
            Ok(Claim { address: source.into(), mac, kind: ClaimKind::Solicitation })
        }
        _ => Err(DropReason::NeighbourIgnored),
    }
}

fn handle_advertisement(
    interface: &Interface,
    destination: Ipv6Addr,
    flags: NdiscNeighborFlags,
    target: Ipv6Addr,
    mac: Option<Mac>,
) -> Result<Claim, DropReason> {
    let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
    if target.is_multicast() || (destination.is_multicast() && solicited) {
        return Err(DropReason::NeighbourDiscovery);
    }
    if !interface.is_on_link(target.into()) {
        return Err(DropReason::NeighbourIgnored);
    }
    // RFC 4861 §7.2.5: an advertisement without the link-layer address option only confirms the cached address.
    let target_mac = mac.or_else(|| interface.neighbours.get(target.into()));
    let mac = target_mac.ok_or(DropReason::NeighbourIgnored)?;
    let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
    let kind = if solicited { ClaimKind::Answer { overrides } } else { ClaimKind::Announcement };
    Ok(Claim { address: target.into(), mac, kind })
}

/// Sends a solicitation of `target`: to `mac`, the last known address, or to the target's solicited-node group if
/// `None`.
pub fn solicit(
    interface: &Interface,
    source: Ipv6Addr,
    target: Ipv6Addr,
    mac: Option<Mac>,
    out: &mut Outbox,
) {
    let group = solicited_node(target);
    let (destination, to) = mac.map_or((group, group_mac(group)), |mac| (target, mac));
    let lladdr = Some(EthernetAddress(interface.mac).into());
    let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr };
    write(interface, &repr, source, destination, to, out);
}

/// Sends a probe, which reveals other hosts that use our address (RFC 4862 §5.4.2).
pub fn probe(interface: &Interface, address: Ipv6Addr, out: &mut Outbox) {
    let group = solicited_node(address);
    let repr = NdiscRepr::NeighborSolicit { target_addr: address, lladdr: None };
    write(interface, &repr, Ipv6Addr::UNSPECIFIED, group, group_mac(group), out);
}

/// Sends an announcement of our address to all nodes (RFC 4861 §7.2.6).
pub fn announce(interface: &Interface, address: Ipv6Addr, out: &mut Outbox) {
    advertise(interface, address, ALL_NODES, group_mac(ALL_NODES), false, out);
}

fn advertise(
    interface: &Interface,
    target: Ipv6Addr,
    destination: Ipv6Addr,
    to: Mac,
    solicited: bool,
    out: &mut Outbox,
) {
    let mut flags = NdiscNeighborFlags::OVERRIDE;
    flags.set(NdiscNeighborFlags::SOLICITED, solicited);
    let lladdr = Some(EthernetAddress(interface.mac).into());
    let repr = NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr };
    write(interface, &repr, target, destination, to, out);
}

fn write(
    interface: &Interface,
    repr: &NdiscRepr<'_>,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    to: Mac,
    out: &mut Outbox,
) {
    let (source, destination) = (IpAddr::V6(source), IpAddr::V6(destination));
    let protocol = IpProtocol::Icmpv6;
    let header = IpHeader { source, destination, protocol, hop_limit: HOP_LIMIT };
    out.push_frame(interface.port, |bytes| {
        path::write_ip_frame(bytes, interface, to, header, repr.buffer_len(), |m| {
            repr.emit(&mut Icmpv6Packet::new_unchecked(&mut *m));
            m[2..4].fill(0);
            let sum = checksum::segment(source, destination, ICMPV6, m);
            m[2..4].copy_from_slice(&sum.to_be_bytes());
        });
    });
}

fn link_layer(option: Option<&[u8]>) -> Result<Option<Mac>, DropReason> {
    let Some(bytes) = option else { return Ok(None) };
    match Mac::try_from(bytes) {
        Ok(mac) if mac[0] & 1 == 0 && mac != [0; 6] => Ok(Some(mac)),
        _ => Err(DropReason::NeighbourDiscovery),
    }
}

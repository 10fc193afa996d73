//! ARP (RFC 826) over Ethernet and IPv4: parses received packets, and writes requests, replies, probes and
//! announcements. The neighbour cache and the schedule of probes are not included ([`super::neighbour`],
//! [`super::presence`]).

use std::net::{IpAddr, Ipv4Addr};

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol};

use super::Outbox;
use super::interface::{BROADCAST, Interface};
use super::neighbour::{Claim, ClaimKind, Mac};
use super::path::write_ethernet;
use crate::drops::DropReason;

/// Bytes of an ARP packet for Ethernet and IPv4.
const LEN: usize = 28;
/// Bytes of the longest Ethernet header: 14, and 4 of a VLAN tag.
const MAX_ETHERNET_LEN: usize = 18;

/// Processes an ARP packet. Answers a request for our address if `may_answer` returns true. Returns the sender's claim
/// to its address; the claim is a conflict if the address is ours.
///
/// # Errors
/// The drop reason: the packet is malformed, exceeds the rate limit, or contains no claim. An answer may have been
/// sent.
pub fn input(
    interface: &Interface,
    bytes: &[u8],
    may_answer: impl FnOnce() -> bool,
    out: &mut Outbox,
) -> Result<Claim, DropReason> {
    let packet = ArpPacket::new_checked(bytes).map_err(|_| DropReason::Arp)?;
    if packet.hardware_len() != 6 || packet.protocol_len() != 4 {
        return Err(DropReason::Arp);
    }
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr: sender,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).map_err(|_| DropReason::Arp)?
    else {
        return Err(DropReason::Arp);
    };
    let mac = source_hardware_addr.0;
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(DropReason::Arp);
    }
    let for_us = interface.has_address(target.into());
    if interface.has_address(sender.into()) {
        // The link may loop our own broadcasts back.
        return match mac == interface.mac {
            true => Err(DropReason::NeighbourIgnored),
            false => Ok(Claim { address: sender.into(), mac, kind: ClaimKind::Conflict }),
        };
    }
    if operation == ArpOperation::Request && for_us {
        if sender.is_unspecified() && mac == interface.mac {
            // The link has looped our own probe back.
            return Err(DropReason::NeighbourIgnored);
        }
        if !may_answer() {
            return Err(DropReason::RateLimited);
        }
        // RFC 5227 §2.1.1: probes, whose sender has no address yet, are answered, too.
        write(interface, ArpOperation::Reply, target, mac, sender, mac, out);
    }
    if sender.is_unspecified()
        || interface.is_broadcast(sender)
        || !interface.is_on_link(sender.into())
    {
        return Err(DropReason::NeighbourIgnored);
    }
    let kind = match operation {
        _ if sender == target => ClaimKind::Announcement,
        ArpOperation::Request if for_us => ClaimKind::Solicitation,
        ArpOperation::Reply if for_us => ClaimKind::Answer { overrides: true },
        _ => return Err(DropReason::NeighbourIgnored),
    };
    Ok(Claim { address: IpAddr::V4(sender), mac, kind })
}

/// Sends a request for `target`: to `mac`, the last known address, or by broadcast if `None`.
pub fn request(
    interface: &Interface,
    source: Ipv4Addr,
    target: Ipv4Addr,
    mac: Option<Mac>,
    out: &mut Outbox,
) {
    let to = mac.unwrap_or(BROADCAST);
    write(interface, ArpOperation::Request, source, [0; 6], target, to, out);
}

/// Sends a probe, which reveals other hosts that use our address (RFC 5227 §2.1.1).
pub fn probe(interface: &Interface, address: Ipv4Addr, out: &mut Outbox) {
    let unspecified = Ipv4Addr::UNSPECIFIED;
    write(interface, ArpOperation::Request, unspecified, [0; 6], address, BROADCAST, out);
}

/// Sends an announcement of our address (RFC 5227 §3).
pub fn announce(interface: &Interface, address: Ipv4Addr, out: &mut Outbox) {
    write(interface, ArpOperation::Request, address, [0; 6], address, BROADCAST, out);
}

/// Writes an ARP frame from `interface`. `source`: the sender's protocol address in the packet. `target_mac` and
/// `target`: the packet's target addresses. `to`: destination of the Ethernet frame.
fn write(
    interface: &Interface,
    operation: ArpOperation,
    source: Ipv4Addr,
    target_mac: Mac,
    target: Ipv4Addr,
    to: Mac,
    out: &mut Outbox,
) {
    out.push_frame(interface.port, |bytes| {
        let begin = bytes.len();
        bytes.resize(begin + MAX_ETHERNET_LEN + LEN, 0);
        let frame = &mut bytes[begin..];
        let at = write_ethernet(frame, interface, to, EthernetProtocol::Arp);
        let repr = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(interface.mac),
            source_protocol_addr: source,
            target_hardware_addr: EthernetAddress(target_mac),
            target_protocol_addr: target,
        };
        repr.emit(&mut ArpPacket::new_unchecked(&mut frame[at..]));
        bytes.truncate(begin + at + LEN);
    });
}

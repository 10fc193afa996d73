//! Traffic shared with the host's kernel. If an interface shares its port with the kernel, unmatched frames go to the
//! kernel. The kernel's frames are sent from the port after the frames of streams.
//!
//! The worker processes TCP segments and SCTP packets that belong to its streams and associations, or whose destination
//! port is a listener's or in the local port range of opened streams. The worker also processes ICMP errors about
//! packets from these ports, echo requests, and ARP requests and neighbour solicitations for its addresses.
//! Announcements of neighbours and routers, ARP requests for other addresses and MLD queries go to both the worker and
//! the kernel. All other traffic goes to the kernel.

use std::net::SocketAddr;

use base::Instant;
use smoltcp::wire::{ArpOperation, ArpPacket, Icmpv4Message, Icmpv6Message};

use crate::api::{Counters, DropReason, Transport};
use crate::host::HostPort;
use crate::io::{Frame, PortIo};
use crate::net::demux::{self, Kind};
use crate::net::icmp::{self, Icmp, Quote, Report};
use crate::net::interface::Interface;
use crate::net::link::Link;
use crate::worker::arrival::Arrival;
use crate::worker::protect::is_classified;
use crate::worker::receive::partial_checksums;
use crate::worker::receive::unmatched_budget::UnmatchedBudget;
use crate::worker::{Core, Env};

/// Maximum number of the kernel's frames sent per interface and turn.
const MAX_FRAMES_PER_TURN: usize = 32;

/// The worker's ends of the rings to the host's kernel, by interface.
#[derive(Debug)]
pub(in crate::worker) struct HostPorts {
    ports: Vec<Option<HostPort>>,
    /// Limit on frames passed to the kernel.
    pub(in crate::worker) budget: UnmatchedBudget,
}

impl HostPorts {
    /// Stores the worker's ends of the rings by interface; `None` for interfaces that are not shared.
    pub(in crate::worker) fn new(ports: Vec<Option<HostPort>>, now: Instant) -> Self {
        let ports = if ports.iter().all(Option::is_none) { Vec::new() } else { ports };
        HostPorts { ports, budget: UnmatchedBudget::new(now) }
    }

    /// Returns true if no interface is shared with the kernel.
    #[inline]
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    pub(in crate::worker) fn is_shared(&self, interface: usize) -> bool {
        self.ports.get(interface).is_some_and(Option::is_some)
    }

    /// Returns true if the kernel has frames to be sent.
    #[inline]
    pub(in crate::worker) fn has_frames(&self) -> bool {
        self.ports.iter().flatten().any(|port| port.next_len().is_some())
    }

    /// Wakes the thread that serves the kernel if this turn has passed frames to the kernel, and adds the numbers of
    /// lost frames to the counters. Called at the end of each turn.
    #[inline]
    pub(in crate::worker) fn end_turn(&mut self, counters: &Counters) {
        for port in self.ports.iter_mut().flatten() {
            port.wake();
            let (lost, sent_lost) = port.take_lost();
            counters.host.host_lost.add(lost);
            counters.host.host_sent_lost.add(sent_lost);
        }
    }

    fn push_frame(
        &mut self,
        interface: usize,
        frame: &[u8],
        now: Instant,
    ) -> Result<(), DropReason> {
        let port = self.ports.get_mut(interface).and_then(Option::as_mut);
        if !self.budget.take(now) {
            return Err(DropReason::HostFull);
        }
        match port.is_some_and(|port| port.push(frame)) {
            true => Ok(()),
            false => Err(DropReason::HostFull),
        }
    }
}

/// Recipient of a packet other than TCP and SCTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Recipient {
    /// The worker alone.
    Worker,
    /// The worker. The host's kernel receives a copy.
    Both,
    /// The host's kernel alone.
    Host,
}

/// Returns true if a frame that was refused for this reason is well-formed and may be for the kernel.
fn may_be_for_host(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::EtherType
            | DropReason::NotOurMac
            | DropReason::NotOurAddress
            | DropReason::Fragment
            | DropReason::HopByHop
            | DropReason::ExtensionHeader
            | DropReason::IpProtocol
    )
}

impl<Io: PortIo> Core<Io> {
    /// Handles a frame that demultiplexing has refused. Passes it to the kernel if the interface is shared, and drops
    /// it otherwise.
    #[cold]
    pub(in crate::worker) fn handle_refused_frame(
        &mut self,
        port: usize,
        frame: &[u8],
        reason: DropReason,
    ) {
        if reason == DropReason::L4Checksum
            && let Some(source) = partial_checksums::partial_udp_checksum_source(frame)
        {
            self.env.record_partial_checksum(port as u16, source);
        }
        if self.env.host.is_empty() {
            return self.env.control.counters().drops.count(reason);
        }
        let interfaces = self.env.network.interfaces();
        let target = may_be_for_host(reason).then(|| Link::read(frame).ok()).flatten();
        let recipient = target.and_then(|link| {
            let interface = link.find_interface(port, interfaces)?;
            self.env.host.is_shared(interface).then_some((interface, link.destination))
        });
        let reason = match recipient {
            // A unicast frame to another MAC address is not for this host.
            Some((interface, mac)) if mac == interfaces[interface].mac || mac[0] & 1 != 0 => {
                if !self.env.network.is_guarded() || is_classified(frame) {
                    return self.env.send_to_host(interface, frame);
                }
                DropReason::IpsecUnclassified
            }
            _ => reason,
        };
        self.env.control.counters().drops.count(reason);
    }

    /// Returns true if an unmatched packet is for the kernel: its interface is shared, its local port is not used by
    /// this data plane, and the packet was not looped back.
    pub(in crate::worker) fn is_for_host(&self, arrival: &Arrival<Io::Frame>) -> bool {
        let transport = if arrival.is_sctp() { Transport::Sctp } else { Transport::Tcp };
        let interface = usize::from(arrival.flow.interface);
        self.env.host.is_shared(interface)
            && !self.env.is_our_port(transport, interface, arrival.flow.local)
            && !self.env.network.interface(interface).has_address(arrival.flow.remote.ip())
    }

    /// Returns the recipient of a demultiplexed packet other than TCP and SCTP.
    pub(in crate::worker) fn recipient(&self, found: &demux::Packet, frame: &[u8]) -> Recipient {
        if !self.env.host.is_shared(found.interface) {
            return Recipient::Worker;
        }
        let interface = self.env.network.interface(found.interface);
        match &found.kind {
            Kind::Tcp { .. } | Kind::Sctp { .. } | Kind::Fragment(_) => Recipient::Worker,
            Kind::Arp(range) => match ArpPacket::new_checked(&frame[range.clone()]) {
                // The kernel may have addresses that the worker does not have.
                Ok(packet) if packet.operation() == ArpOperation::Request => {
                    if targets_our_address(interface, packet.target_protocol_addr()) {
                        Recipient::Worker
                    } else {
                        Recipient::Both
                    }
                }
                Ok(_) => Recipient::Both,
                Err(_) => Recipient::Worker,
            },
            Kind::Icmp4 { message, .. } => {
                let message = &frame[message.clone()];
                match message.first().map(|&kind| Icmpv4Message::from(kind)) {
                    Some(Icmpv4Message::EchoRequest) => Recipient::Worker,
                    Some(Icmpv4Message::DstUnreachable) => {
                        self.error_recipient(icmp::parse_v4(found.interface, interface, message))
                    }
                    _ => Recipient::Host,
                }
            }
            Kind::Icmp6 { destination, message, .. } => {
                let message = &frame[message.clone()];
                match message.first().map(|&kind| Icmpv6Message::from(kind)) {
                    Some(Icmpv6Message::NeighborSolicit) => Recipient::Worker,
                    Some(Icmpv6Message::EchoRequest) if !destination.is_multicast() => {
                        Recipient::Worker
                    }
                    Some(Icmpv6Message::MldQuery) => Recipient::Both,
                    Some(kind) if kind.is_ndisc() => Recipient::Both,
                    Some(
                        Icmpv6Message::DstUnreachable
                        | Icmpv6Message::PktTooBig
                        | Icmpv6Message::ParamProblem,
                    ) => self.error_recipient(icmp::parse_v6(found.interface, interface, message)),
                    _ => Recipient::Host,
                }
            }
        }
    }

    /// Returns the recipient of an ICMP error: the worker if the error is malformed, or quotes a packet from a port
    /// that this data plane uses or an ESP packet; otherwise the host's kernel.
    fn error_recipient(&self, parsed: Result<Icmp, DropReason>) -> Recipient {
        match parsed {
            Ok(Icmp::Error(report)) if !self.quotes_our_flow(&report) => Recipient::Host,
            Ok(_) | Err(DropReason::Icmp) => Recipient::Worker,
            // The worker does not use this error. It quotes another protocol, a later fragment or a foreign source
            // address, or its code is ignored, or its MTU is implausible.
            Err(_) => Recipient::Host,
        }
    }

    pub(in crate::worker) fn quotes_our_flow(&self, report: &Report) -> bool {
        let transport = match report.quote {
            Quote::Tcp(_) => Transport::Tcp,
            Quote::Sctp(_) | Quote::SctpInit(_) => Transport::Sctp,
            // On a shared port, only workers send ESP.
            Quote::Esp(..) => return true,
        };
        self.env.is_our_port(transport, report.interface, report.local)
    }

    /// Sends frames of the kernel while the transmit rings have room. Returns true if any was sent.
    pub(in crate::worker) fn transmit_host_frames(&mut self) -> bool {
        if !self.env.host.has_frames() {
            return false;
        }
        self.env.transmit_host_frames()
    }
}

impl<Io: PortIo> Env<Io> {
    /// Returns true if the port belongs to a listener or is in the local range of opened streams.
    fn is_our_port(&self, transport: Transport, interface_index: usize, local: SocketAddr) -> bool {
        let interface = self.network.interface(interface_index);
        interface.local_ports.contains(local.port())
            || self.admission.listeners().find(transport, interface.id, local).is_some()
    }

    /// Passes a frame to the kernel alone.
    pub(in crate::worker) fn send_to_host(&mut self, interface: usize, frame: &[u8]) {
        let counters = self.control.counters();
        match self.host.push_frame(interface, frame, self.now) {
            Ok(()) => {
                counters.host.host_frames.add(1);
                counters.host.host_bytes.add(frame.len() as u64);
            }
            Err(reason) => counters.drops.count(reason),
        }
    }

    /// Passes a copy of a frame to the kernel; the worker also processes the frame.
    pub(in crate::worker) fn copy_to_host(&mut self, interface: usize, frame: &[u8]) {
        let counters = self.control.counters();
        match self.host.push_frame(interface, frame, self.now) {
            Ok(()) => counters.host.host_copies.add(1),
            Err(_) => counters.host.host_copies_lost.add(1),
        }
    }

    /// Passes the kernel an ICMP error about a frame that the kernel has sent.
    pub(in crate::worker) fn report_to_host(&mut self, interface: usize, frame: &[u8]) {
        let counters = self.control.counters();
        match self.host.push_frame(interface, frame, self.now) {
            Ok(()) => counters.ipsec.host_too_long.add(1),
            Err(_) => counters.host.host_copies_lost.add(1),
        }
    }

    fn transmit_host_frames(&mut self) -> bool {
        let (counters, mut sent) = (self.control.counters(), false);
        for (at, port) in self.host.ports.iter_mut().enumerate() {
            let Some(port) = port else { continue };
            let interface = self.network.interface(at);
            let Some(slot) = self.ports.get_mut(interface.port) else { continue };
            for _ in 0..MAX_FRAMES_PER_TURN {
                let Some(len) = port.next_len() else { break };
                let (tag, max_len) =
                    (interface.vlan, ETHERNET_HEADER_LEN + usize::from(interface.mtu));
                if slot.io.free_tx_slots() == 0 {
                    break;
                }
                let tagged = len + if tag.is_some() { VLAN_TAG_LEN } else { 0 };
                let fits = (ETHERNET_HEADER_LEN..=max_len).contains(&len);
                let frame = if fits { slot.io.allocate(tagged) } else { None };
                let Some(bytes) = port.pop() else { break };
                let Some(mut frame) = frame else {
                    counters.host.host_sent_lost.add(1);
                    continue;
                };
                write_frame(frame.bytes_mut(), &bytes, tag);
                counters.host.host_sent.add(1);
                counters.frames.tx_frames.add(1);
                counters.frames.tx_bytes.add(tagged as u64);
                slot.io.send(frame);
                sent = true;
            }
        }
        sent
    }
}

/// Returns true if the target of an ARP request is an address of this interface.
fn targets_our_address(interface: &Interface, target: &[u8]) -> bool {
    <[u8; 4]>::try_from(target).is_ok_and(|target| interface.has_address(target.into()))
}

const ETHERNET_HEADER_LEN: usize = 14;
const VLAN_TAG_LEN: usize = 4;
/// Length of both MAC addresses in bytes. A VLAN tag follows them.
const MAC_ADDRESSES_LEN: usize = 12;

/// Writes a frame to `out`, with VLAN tag `tag` if given. `out` has the length of the result.
fn write_frame(out: &mut [u8], frame: &[u8], tag: Option<u16>) {
    let (addresses, rest) = frame.split_at(MAC_ADDRESSES_LEN.min(frame.len()));
    let begin = match tag {
        Some(identifier) => {
            out[MAC_ADDRESSES_LEN..MAC_ADDRESSES_LEN + 2].copy_from_slice(&[0x81, 0x00]);
            out[MAC_ADDRESSES_LEN + 2..MAC_ADDRESSES_LEN + VLAN_TAG_LEN]
                .copy_from_slice(&identifier.to_be_bytes());
            MAC_ADDRESSES_LEN + VLAN_TAG_LEN
        }
        None => MAC_ADDRESSES_LEN,
    };
    out[..MAC_ADDRESSES_LEN].copy_from_slice(addresses);
    out[begin..].copy_from_slice(rest);
}

//! Dialogues of two network stacks without TCP: neighbour resolution, echo, ICMP errors, and ignored packets.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::demux::{L4Check, demux};
use super::icmp::{IcmpErrorKind, Quote};
use super::neighbour::{ClaimKind, Mac};
use super::path::IpHeader;
use super::*;
use crate::checksum;
use crate::ids::{InterfaceId, PortId};
use crate::net::interface::InterfaceConfig;
use ipnet::IpNet;
use smoltcp::wire::IpProtocol;

const NOW: Instant = Instant::from_millis(1000);

/// Returns the interface configuration of host `n`, with addresses 10.0.0.n and 2001:db8::n.
pub(super) fn config(n: u8, vlan: Option<u16>) -> InterfaceConfig {
    InterfaceConfig {
        ip: Default::default(),
        local_ports: Default::default(),
        host: false,
        name: String::new(),
        port: PortId(0),
        vlan,
        addresses: vec![
            IpNet::new_assert(IpAddr::from([10, 0, 0, n]), 24),
            IpNet::new_assert(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()).into(), 64),
        ],
        routes: Vec::new(),
        mtu: 1500,
    }
}

struct Host {
    stack: Stack,
    out: Outbox,
}

impl Host {
    fn new(n: u8, vlan: Option<u16>) -> Self {
        let interface = Interface::new(InterfaceId(0), &config(n, vlan), mac(n), 64, [n; 16]);
        Host { stack: Stack::new(vec![interface], 20, Instant::ZERO), out: Outbox::default() }
    }

    fn resolve(&mut self, address: IpAddr) -> Resolution {
        self.stack.resolve(0, address, NOW, &mut self.out)
    }

    fn take(&mut self) -> Vec<Vec<u8>> {
        let frames = self.out.iter().map(|(_, f)| f.to_vec()).collect();
        self.out.clear();
        frames
    }

    /// Processes a frame as a worker does, and updates the neighbour cache if the frame contains a neighbour's claim.
    fn input(&mut self, frame: &[u8]) -> Result<Notice, DropReason> {
        let packet = demux(frame, 0, L4Check::Unknown, &self.stack.interfaces)?;
        let notice = self.stack.handle_control(&packet, frame, NOW, &mut self.out)?;
        if let Notice::Neighbour(index, claim) = notice {
            self.stack.handle_claim(index, &claim, NOW)?;
        }
        Ok(notice)
    }

    fn cached_mac(&self, address: IpAddr) -> Option<Mac> {
        self.stack.interfaces[0].neighbours.get(address)
    }
}

fn mac(n: u8) -> Mac {
    [2, 0, 0, 0, 0, n]
}

fn v4(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn v6(n: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n).into()
}

#[test]
fn two_hosts_resolve_each_other() {
    for vlan in [None, Some(7)] {
        for (a_addr, b_addr) in [(v4(1), v4(2)), (v6(1), v6(2))] {
            let (mut a, mut b) = (Host::new(1, vlan), Host::new(2, vlan));
            assert_eq!(a.resolve(b_addr), Resolution::Wait { solicit: true });
            let [question] = &a.take()[..] else { panic!("one question") };
            assert!(matches!(b.input(question), Ok(Notice::Neighbour(..))));
            // B has learned A's link-layer address from the solicitation.
            assert_eq!(b.cached_mac(a_addr), Some(mac(1)));
            let [answer] = &b.take()[..] else { panic!("one answer") };
            assert!(a.input(answer).is_ok());
            assert_eq!(a.resolve(b_addr), Resolution::Known(mac(2)));
            assert!(a.take().is_empty() && b.take().is_empty());
        }
    }
}

#[test]
fn link_local_neighbours_resolve() {
    let (mut a, mut b) = (Host::new(1, None), Host::new(2, None));
    let b_addr = interface::link_local(mac(2)).into();
    assert_eq!(a.resolve(b_addr), Resolution::Wait { solicit: true });
    b.input(&a.take()[0]).unwrap();
    a.input(&b.take()[0]).unwrap();
    assert_eq!(a.resolve(b_addr), Resolution::Known(mac(2)));
}

#[test]
fn solicitations_for_other_hosts_are_ignored() {
    for address in [v4(3), v6(3)] {
        let (mut a, mut b) = (Host::new(1, None), Host::new(2, None));
        a.resolve(address);
        let mut question = a.take().remove(0);
        question[..6].copy_from_slice(&if address.is_ipv4() { [0xff; 6] } else { mac(2) });
        assert!(b.input(&question).is_err());
        assert!(b.take().is_empty());
    }
}

#[test]
fn announcements_are_processed_without_being_trusted() {
    let (mut a, b) = (Host::new(1, None), Host::new(2, None));
    let mut out = Outbox::default();
    presence::announce(&b.stack.interfaces[0], &mut out);
    let frames: Vec<_> = out.iter().map(|(_, f)| f.to_vec()).collect();
    assert_eq!(frames.len(), 3, "IPv4, IPv6 and link-local");
    for frame in frames {
        assert_eq!(a.input(&frame), Err(DropReason::NeighbourIgnored));
    }
    assert!(a.stack.interfaces[0].neighbours.is_empty());
}

#[test]
fn a_forged_advertisement_neither_makes_nor_moves_an_entry() {
    for address in [v4(2), v6(2)] {
        let (mut a, mut b, mut mallory) =
            (Host::new(1, None), Host::new(2, None), Host::new(2, None));
        mallory.stack.interfaces[0].mac = mac(66);
        a.resolve(address);
        let question = a.take().remove(0);
        b.input(&question).unwrap();
        mallory.input(&question).unwrap();
        a.input(&b.take()[0]).unwrap();
        // A late answer from another host with the same IP address does not change the cached link-layer address.
        assert!(a.input(&mallory.take()[0]).is_ok());
        assert_eq!(a.cached_mac(address), Some(mac(2)));
    }
}

#[test]
fn own_address_claimed_by_other_host_is_a_conflict() {
    let mut a = Host::new(1, None);
    let twin = Host::new(1, None);
    let mut out = Outbox::default();
    presence::announce(&twin.stack.interfaces[0], &mut out);
    let arp = out.iter().next().unwrap().1.to_vec();
    assert_eq!(
        a.input(&arp),
        Err(DropReason::NeighbourIgnored),
        "our own announcement, looped back by the link"
    );
    let mut other = arp.clone();
    other[6..12].copy_from_slice(&mac(9));
    other[22..28].copy_from_slice(&mac(9));
    assert_eq!(a.input(&other), Ok(Notice::Conflict(0, v4(1), mac(9), true)));
}

fn ping(host: &Host, v6: bool, len: usize) -> Vec<u8> {
    let (from, to) = if v6 { (self::v6(1), self::v6(2)) } else { (v4(1), v4(2)) };
    let mut request = vec![0xa5; 8 + len];
    request[..8].copy_from_slice(&[if v6 { 128 } else { 8 }, 0, 0, 0, 1, 2, 3, 4]);
    let sum = if v6 {
        checksum::segment(from, to, protocol::ICMPV6, &request)
    } else {
        !checksum::sum(&request)
    };
    request[2..4].copy_from_slice(&sum.to_be_bytes());
    let protocol = if v6 { IpProtocol::Icmpv6 } else { IpProtocol::Icmp };
    let mut out = Vec::new();
    let interface = &host.stack.interfaces[0];
    let header = IpHeader { source: from, destination: to, protocol, hop_limit: 64 };
    path::write_ip_frame(&mut out, interface, mac(2), header, request.len(), |p| {
        p.copy_from_slice(&request);
    });
    out
}

#[test]
fn echo_is_answered_byte_for_byte_up_to_the_rate_limit() {
    for v6 in [false, true] {
        let (a, mut b) = (Host::new(1, None), Host::new(2, None));
        let request = ping(&a, v6, 57);
        assert_eq!(b.input(&request), Ok(Notice::Echoed));
        let [reply] = &b.take()[..] else { panic!("one reply") };
        let header = if v6 { 54 } else { 34 };
        assert_eq!(reply[header], if v6 { 129 } else { 0 });
        assert_eq!(reply[header + 4..], request[header + 4..]);
        assert_eq!((&reply[..6], &reply[6..12]), (&mac(1)[..], &mac(2)[..]));
        // The reply is dropped only because A accepts no echo replies. A wrong checksum would give another drop reason.
        let mut a = a;
        assert_eq!(a.input(reply), Err(DropReason::IcmpIgnored));
        assert_eq!(b.input(&request), Ok(Notice::Echoed));
        assert_eq!(b.input(&request), Err(DropReason::RateLimited));
    }
}

/// Returns a frame with an ICMP report that a TCP segment from port 7 of host 2 was too big for `mtu`. The quoted IP
/// packet has 1480 bytes over IPv4, and 1500 over IPv6.
fn too_big(v6: bool, mtu: u32) -> Vec<u8> {
    report(v6, mtu, IpProtocol::Tcp, &[0, 7, 0, 8, 1, 2, 3, 4])
}

/// Returns a frame with an ICMP packet-too-big report that quotes a packet of protocol `quoted` from host 2. The
/// packet's payload begins with `quote`.
fn report(v6: bool, mtu: u32, quoted: IpProtocol, quote: &[u8]) -> Vec<u8> {
    let a = Host::new(1, None);
    let (us, peer) = if v6 { (self::v6(2), self::v6(1)) } else { (v4(2), v4(1)) };
    let mut inner = Vec::new();
    let interface = &a.stack.interfaces[0];
    let header = IpHeader { source: us, destination: peer, protocol: quoted, hop_limit: 64 };
    path::write_ip_frame(&mut inner, interface, mac(1), header, 1460, |p| {
        p[..quote.len()].copy_from_slice(quote);
    });
    let mut message = vec![if v6 { 2 } else { 3 }, if v6 { 0 } else { 4 }, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(&inner[14..14 + if v6 { 40 } else { 20 } + quote.len()]);
    let sum = if v6 {
        checksum::segment(peer, us, protocol::ICMPV6, &message)
    } else {
        !checksum::sum(&message)
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut out = Vec::new();
    let protocol = if v6 { IpProtocol::Icmpv6 } else { IpProtocol::Icmp };
    let header = IpHeader { source: peer, destination: us, protocol, hop_limit: 64 };
    path::write_ip_frame(&mut out, interface, mac(2), header, message.len(), |p| {
        p.copy_from_slice(&message);
    });
    out
}

#[test]
fn packet_too_big_is_accepted_within_bounds() {
    for (v6, least) in [(false, 68), (true, 1280)] {
        let mut b = Host::new(2, None);
        let (us, peer) = if v6 { (self::v6(2), self::v6(1)) } else { (v4(2), v4(1)) };
        let expected = Report {
            interface: 0,
            local: (us, 7).into(),
            remote: (peer, 8).into(),
            quote: Quote::Tcp(0x01020304),
            kind: IcmpErrorKind::TooBig(1400),
        };
        assert_eq!(b.input(&too_big(v6, 1400)), Ok(Notice::Icmp(expected)));
        // RFC 5927 §7: a reported MTU is ignored if it is at least the interface's MTU, below the legal minimum, or at
        // least the length of the quoted packet.
        for mtu in [1500, 9000, least - 1, 1480 + if v6 { 20 } else { 0 }] {
            assert_eq!(b.input(&too_big(v6, mtu)), Err(DropReason::IcmpSize), "{mtu}");
        }
    }
}

// RFC 9260 §10: an error quotes the verification tag, at the offset of TCP's sequence number. For an INIT, the initiate
// tag is returned instead. RFC 6951 §5.5: in UDP all offsets are eight bytes larger.
#[test]
fn icmp_errors_on_sctp_return_tag() {
    let packet = [0, 7, 0, 8, 1, 2, 3, 4];
    let init = [&[0, 7, 0, 8, 0, 0, 0, 0, 9, 9, 9, 9, 1, 0, 0, 20][..], &[5, 6, 7, 8]].concat();
    let cookie = [&[0, 7, 0, 8, 0, 0, 0, 0, 9, 9, 9, 9, 10, 0, 0, 20][..], &[5, 6, 7, 8]].concat();
    for v6 in [false, true] {
        let mut b = Host::new(2, None);
        let mut quote = |protocol, bytes: &[u8]| match b.input(&report(v6, 1400, protocol, bytes)) {
            Ok(Notice::Icmp(Report { quote, local, .. })) => {
                assert_eq!(local.port(), 7);
                Ok(quote)
            }
            other => Err(other.unwrap_err()),
        };
        assert_eq!(quote(protocol::SCTP, &packet), Ok(Quote::Sctp(0x01020304)));
        assert_eq!(quote(protocol::SCTP, &init), Ok(Quote::SctpInit(0x05060708)));
        assert_eq!(quote(protocol::SCTP, &init[..8]), Err(DropReason::IcmpNotBelieved));
        assert_eq!(quote(protocol::SCTP, &cookie), Err(DropReason::IcmpNotBelieved));
        let in_udp = [&[0x26, 0xab, 1, 1, 0, 16, 0, 0], &packet[..]].concat();
        assert_eq!(quote(IpProtocol::Udp, &in_udp), Err(DropReason::IcmpNotBelieved));
        let mut b = Host::new(2, None);
        b.stack.interfaces[0].encapsulation = Some(9899);
        let mut quote = |bytes: &[u8]| b.input(&report(v6, 1400, IpProtocol::Udp, bytes));
        let notice = quote(&in_udp);
        let Ok(Notice::Icmp(notice)) = notice else { panic!("{notice:?}") };
        assert_eq!(notice.quote, Quote::Sctp(0x01020304));
        assert_eq!(
            quote(&in_udp[..8]),
            Err(DropReason::Icmp),
            "the quotation is too short to identify the flow"
        );
    }
}

// RFC 1191 §5, Table 7-1: if a router reports no MTU, the largest plateau below the packet's length is assumed.
#[test]
fn missing_mtu_uses_next_plateau() {
    let mut b = Host::new(2, None);
    let notice = b.input(&too_big(false, 0));
    let Ok(Notice::Icmp(report)) = notice else { panic!("{notice:?}") };
    assert_eq!(report.kind, IcmpErrorKind::TooBig(1006));
    // IPv6 has no such rule: routers always report the MTU (RFC 4443 §3.2), so a report of 0 is ignored.
    assert_eq!(b.input(&too_big(true, 0)), Err(DropReason::IcmpSize));
}

// RFC 792, RFC 1122 §3.2.2.1; RFC 4443 §3.1, §3.4: the code of an error decides whether it is hard or soft.
#[test]
fn unreachable_codes_map_to_hard_or_soft_errors() {
    use icmp::Unreachable::{self, Port, Prohibited, Protocol};
    const HOST_UNREACHABLE: Unreachable = Unreachable::Host;
    let v4 = [
        (0, HOST_UNREACHABLE),
        (1, HOST_UNREACHABLE),
        (2, Protocol),
        (3, Port),
        (5, HOST_UNREACHABLE),
        (9, Prohibited),
    ];
    let v6 = [
        (1, 0, HOST_UNREACHABLE),
        (1, 1, Prohibited),
        (1, 3, HOST_UNREACHABLE),
        (1, 4, Port),
        (4, 1, Protocol),
    ];
    let v4 = v4.map(|(code, what)| (false, 3, code, what));
    let cases = v4.into_iter().chain(v6.map(|(kind, code, what)| (true, kind, code, what)));
    for (v6, kind, code, what) in cases {
        let mut b = Host::new(2, None);
        let mut frame = too_big(v6, 0);
        let at = if v6 { 54 } else { 34 };
        frame[at..at + 4].copy_from_slice(&[kind, code, 0, 0]);
        let (us, peer) = if v6 { (self::v6(2), self::v6(1)) } else { (self::v4(2), self::v4(1)) };
        let sum = match v6 {
            true => checksum::segment(peer, us, protocol::ICMPV6, &frame[at..]),
            false => !checksum::sum(&frame[at..]),
        };
        frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
        let notice = b.input(&frame);
        let Ok(Notice::Icmp(report)) = notice else { panic!("{notice:?} for {kind}/{code}") };
        assert_eq!(report.kind, IcmpErrorKind::Unreachable(what), "{kind}/{code}");
        assert_eq!(what.is_hard(), what != HOST_UNREACHABLE);
    }
}

#[test]
fn errors_past_the_rate_limit_are_dropped() {
    let mut b = Host::new(2, None);
    let results: Vec<_> = (0..4).map(|_| b.input(&too_big(false, 1400))).collect();
    assert!(results[0].is_ok());
    assert_eq!(results[3], Err(DropReason::IcmpRateLimited));
}

#[test]
fn neighbour_discovery_from_off_link_is_refused() {
    // RFC 4861 §7.1.1: a hop limit below 255 shows that a router has forwarded the message.
    let (mut a, mut b) = (Host::new(1, None), Host::new(2, None));
    a.resolve(v6(2));
    let mut question = a.take().remove(0);
    question[21] = 254;
    assert_eq!(b.input(&question), Err(DropReason::NeighbourDiscovery));
    assert!(b.take().is_empty());
}

#[test]
fn a_probe_for_our_address_is_answered_to_all_nodes() {
    // RFC 4862 §5.4.3: a probe has the unspecified address as source.
    let mut b = Host::new(2, None);
    let IpAddr::V6(target) = v6(2) else { unreachable!() };
    let group = interface::solicited_node(target);
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    let (source, destination) = (Ipv6Addr::UNSPECIFIED.into(), group.into());
    let sum = checksum::segment(source, destination, protocol::ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::new();
    let a = Host::new(1, None);
    let (mac, interface) = (interface::group_mac(group), &a.stack.interfaces[0]);
    let header = IpHeader { source, destination, protocol: IpProtocol::Icmpv6, hop_limit: 255 };
    path::write_ip_frame(&mut frame, interface, mac, header, message.len(), |p| {
        p.copy_from_slice(&message);
    });
    assert_eq!(b.input(&frame), Err(DropReason::NeighbourIgnored));
    let [answer] = &b.take()[..] else { panic!("one answer") };
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
}

#[test]
fn claims_from_off_the_link_are_ignored() {
    let (mut a, mut b) = (Host::new(1, None), Host::new(2, None));
    a.resolve(v4(2));
    let mut question = a.take().remove(0);
    question[28..32].copy_from_slice(&Ipv4Addr::new(172, 16, 0, 1).octets());
    assert_eq!(b.input(&question), Err(DropReason::NeighbourIgnored));
    assert!(b.stack.interfaces[0].neighbours.is_empty());
    let weak = Claim { address: v4(9), mac: mac(9), kind: ClaimKind::Announcement };
    assert_eq!(b.stack.handle_claim(0, &weak, NOW), Err(DropReason::NeighbourIgnored));
}

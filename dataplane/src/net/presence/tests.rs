//! Tests of hosts that start on a link, and of address conflicts.

mod mld;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv6Packet, IpProtocol, Ipv6Packet, NdiscRepr,
};

use super::*;
use crate::net::demux::{L4Check, demux};
use crate::net::interface::{group_mac, link_local, solicited_node};
use crate::net::neighbour::Mac;
use crate::net::{Notice, Stack};

const START: Instant = Instant::from_millis(5000);
const V4: &str = "10.0.0.1";
const V6: &str = "2001:db8::1";

struct Host {
    stack: Stack,
    out: Outbox,
    now: Instant,
}

impl Host {
    fn new(mac: Mac) -> Host {
        Host::with_addresses(mac, [V4, V6])
    }

    fn with_addresses(mac: Mac, addresses: [&str; 2]) -> Host {
        let interface = Interface::with_addresses(None, mac, addresses);
        let mut stack = Stack::new(vec![interface], 20, START);
        stack.bring_up(0, START);
        Host { stack, out: Outbox::default(), now: START }
    }

    /// Advances time to `end`. Returns the frames that the host sends up to `end`, each with its time since [`START`].
    fn run_until(&mut self, end: Instant) -> Vec<(Duration, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(at) = self.stack.poll_timeout().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.stack.poll(self.now, &mut self.out, |_, _| {});
            all.extend(self.take().into_iter().map(|f| (self.now.saturating_since(START), f)));
        }
        self.now = end;
        all
    }

    fn take(&mut self) -> Vec<Vec<u8>> {
        let frames = self.out.iter().map(|(_, f)| f.to_vec()).collect();
        self.out.clear();
        frames
    }

    fn input(&mut self, frame: &[u8]) -> Result<Notice, DropReason> {
        let packet = demux(frame, 0, L4Check::Unknown, &self.stack.interfaces)?;
        self.stack.handle_control(&packet, frame, self.now, &mut self.out)
    }
}

const OWN_MAC: Mac = [2, 0, 0, 0, 0, 1];
const OTHER_MAC: Mac = [2, 0, 0, 0, 0, 9];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ObservedFrame {
    Probe(IpAddr),
    Announcement(IpAddr),
    Report,
}

fn classify(frame: &[u8]) -> ObservedFrame {
    if frame[12..14] == [8, 6] {
        let packet = ArpPacket::new_checked(&frame[14..]).unwrap();
        let ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_protocol_addr: source,
            target_protocol_addr: target,
            ..
        } = ArpRepr::parse(&packet).unwrap()
        else {
            panic!("{packet}")
        };
        assert_eq!(frame[..6], [0xff; 6]);
        return match source.is_unspecified() {
            true => ObservedFrame::Probe(target.into()),
            false => {
                assert_eq!(source, target);
                ObservedFrame::Announcement(target.into())
            }
        };
    }
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    assert_eq!(frame[..6], group_mac(ip.dst_addr()));
    if ip.next_header() == IpProtocol::HopByHop {
        return ObservedFrame::Report;
    }
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    match NdiscRepr::parse(&icmp).unwrap() {
        NdiscRepr::NeighborSolicit { target_addr, lladdr: None } => {
            assert!(ip.src_addr().is_unspecified());
            assert_eq!(ip.dst_addr(), solicited_node(target_addr));
            ObservedFrame::Probe(target_addr.into())
        }
        NdiscRepr::NeighborAdvert { target_addr, .. } => {
            ObservedFrame::Announcement(target_addr.into())
        }
        other => panic!("{other:?}"),
    }
}

fn addresses() -> [IpAddr; 3] {
    [V4.parse().unwrap(), V6.parse().unwrap(), link_local(OWN_MAC).into()]
}

/// Returns the distinct times of the frames that `which` selects.
fn times(frames: &[(Duration, Vec<u8>)], which: impl Fn(ObservedFrame) -> bool) -> Vec<Duration> {
    let mut times: Vec<_> =
        frames.iter().filter(|(_, frame)| which(classify(frame))).map(|(at, _)| *at).collect();
    times.dedup();
    times
}

// RFC 5227 §1.1, §2.3, RFC 4861 §7.2.6, RFC 3810 §9.1: number and intervals of probes, announcements and reports.
#[test]
fn addresses_are_probed_three_times_and_announced_two_seconds_apart() {
    let mut host = Host::new(OWN_MAC);
    let frames = host.run_until(START + Duration::from_secs(60));
    for address in addresses() {
        let probes = times(&frames, |seen| seen == ObservedFrame::Probe(address));
        let [zero, one, two] = probes[..] else { panic!("{probes:?}") };
        assert_eq!(zero, Duration::ZERO);
        for pause in [one, two - one] {
            assert!(pause >= PROBE_INTERVAL && pause <= 2 * PROBE_INTERVAL, "{probes:?}");
        }
        let announced = times(&frames, |seen| seen == ObservedFrame::Announcement(address));
        let rounds = if address.is_ipv4() { 2 } else { 3 };
        let seconds: Vec<_> = announced.iter().map(Duration::as_secs_f64).collect();
        assert_eq!(seconds, [0.0, 2.0, 4.0][..rounds], "{address}");
    }
    assert_eq!(times(&frames, |seen| seen == ObservedFrame::Report).len(), 2);
    let all = frames.len();
    assert_eq!(all, 3 * 3 + 2 + 2 * 3 + 2);
    assert_eq!(host.stack.poll_timeout(), None);
    let last =
        |frames: &[(Duration, Vec<u8>)]| times(frames, |s| matches!(s, ObservedFrame::Probe(_)))[2];
    let other = Host::new(OTHER_MAC).run_until(START + Duration::from_secs(60));
    assert_ne!(
        last(&other),
        last(&frames),
        "hosts that start at the same time send at different times"
    );
}

/// Announcements sent while the link is down are lost, so they are repeated when the link comes up. A flapping link
/// causes at most one round per second.
#[test]
fn link_that_comes_up_announces_its_addresses_again_and_is_bounded() {
    let mut host = Host::new(OWN_MAC);
    host.run_until(START + Duration::from_secs(60));
    let address = addresses()[0];
    let mac: Mac = [2, 0, 0, 0, 0, 7];
    host.stack.interfaces[0].mac = mac;
    let up = host.now;
    host.stack.bring_up(0, up);
    let frames = host.run_until(up + Duration::from_secs(60));
    let at = times(&frames, |seen| seen == ObservedFrame::Announcement(address));
    let seconds: Vec<_> = at.iter().map(|at| (*at - (up - START)).as_secs_f64()).collect();
    assert_eq!(seconds, [0.0, 2.0]);
    assert!(frames.iter().all(|(_, frame)| frame[6..12] == mac));
    let mut rounds = 0;
    for _ in 0..100 {
        host.stack.bring_up(0, host.now);
        let frames = host.run_until(host.now + Duration::from_millis(100));
        rounds += times(&frames, |seen| seen == ObservedFrame::Announcement(address)).len();
    }
    assert!((1..=11).contains(&rounds), "{rounds} rounds in ten seconds of flapping");
}

// RFC 5227 §2.4, RFC 4862 §5.4.4: the other host's answer to a probe reveals the conflict.
#[test]
fn address_conflict_is_detected_by_either_host() {
    for address in [V4, V6] {
        let (mut host, mut twin) = (Host::new(OWN_MAC), Host::new(OTHER_MAC));
        let address: IpAddr = address.parse().unwrap();
        twin.run_until(START);
        let probes = host.run_until(START);
        let (_, probe) =
            probes.iter().find(|(_, f)| classify(f) == ObservedFrame::Probe(address)).unwrap();
        let _ = twin.input(probe);
        let answers = twin.take();
        let [answer] = &answers[..] else { panic!("{}", answers.len()) };
        assert_eq!(host.input(answer), Ok(Notice::Conflict(0, address, OTHER_MAC, true)));
        // An IPv4 address is defended by one announcement. The conflict is reported at most once in ten seconds.
        let defended = host.take();
        assert_eq!(defended.len(), usize::from(address.is_ipv4()));
        assert_eq!(host.input(answer), Ok(Notice::Conflict(0, address, OTHER_MAC, false)));
        assert!(host.take().is_empty());
        // Three more rounds of probes follow at intervals of ten seconds, without announcements.
        let again = host.run_until(START + Duration::from_secs(100));
        assert!(again.iter().all(|(_, frame)| matches!(classify(frame), ObservedFrame::Probe(_))));
        let mut times: Vec<_> = again.iter().map(|(at, _)| at.as_secs()).collect();
        times.dedup();
        assert_eq!(times, [10, 20, 30]);
        assert_eq!(host.input(answer), Ok(Notice::Conflict(0, address, OTHER_MAC, true)));
        // The twin has received only a probe so far. For the twin, the defending announcement is a conflict.
        if let [announcement] = &defended[..] {
            assert_eq!(twin.input(announcement), Ok(Notice::Conflict(0, address, OWN_MAC, true)));
        }
    }
}

#[test]
fn own_frames_are_not_a_conflict() {
    let mut host = Host::new(OWN_MAC);
    for (_, frame) in host.run_until(START + Duration::from_secs(60)) {
        match classify(&frame) {
            // A report is sent to the routers' group, and this host is not a member of that group.
            ObservedFrame::Report => assert!(host.input(&frame).is_err()),
            seen => assert_eq!(host.input(&frame), Err(DropReason::NeighbourIgnored), "{seen:?}"),
        }
    }
    assert!(host.take().is_empty());
}

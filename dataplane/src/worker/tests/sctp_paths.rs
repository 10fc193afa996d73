//! Associations over paths whose MTU falls while data are in flight.

use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory, Stag, StreamId};
use sctp_lite::endpoint::EndpointConfig;
use sctp_lite::sctp;
use smoltcp::wire::IpProtocol;

use super::paths::TakenFrames;
use super::test_host::*;
use crate::api::{Event, SctpConfig};
use crate::checksum;
use crate::memory::Memory;
use crate::net::path::{self, IpHeader};
use crate::net::protocol::ICMPV6;
use crate::worker::flows::lower_layer::LowerLayer;

const PORT: u16 = 7471;
const TCP_PORT: u16 = 7472;
const UDP: u16 = 9899;

/// Variant of the association: address family, encapsulation, workers, checksum offload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Variant {
    v6: bool,
    udp: bool,
    workers: u16,
    /// True if the devices compute and verify SCTP checksums.
    device: bool,
}

const VARIANTS: [Variant; 7] = [
    Variant { v6: false, udp: false, workers: 1, device: false },
    Variant { v6: true, udp: false, workers: 1, device: false },
    Variant { v6: false, udp: true, workers: 1, device: false },
    Variant { v6: true, udp: true, workers: 1, device: false },
    Variant { v6: false, udp: false, workers: 3, device: false },
    Variant { v6: false, udp: false, workers: 1, device: true },
    Variant { v6: true, udp: true, workers: 1, device: true },
];

impl Variant {
    fn config(self, sctp: sctp::Config) -> SctpConfig {
        let udp = self.udp.then_some(UDP);
        SctpConfig { sctp: Arc::new(sctp), endpoint: Arc::new(EndpointConfig::default()), udp }
    }

    /// Creates two hosts with a stream over this variant.
    fn open(self, sctp: sctp::Config) -> (Net, StreamId) {
        let plan = |n| {
            let udp = self.udp.then_some(UDP);
            Plan { udp, workers: self.workers, offloads_sctp: self.device, ..Plan::new(n) }
        };
        let mut net = Net::new(&[plan(1), plan(2)]);
        net.hosts[1].listen_as(PORT, 200, 200, self.config(sctp.clone()));
        net.run_until_idle();
        let peer = if self.v6 { v6(2) } else { v4(2) };
        let (here, _) = net.open_as(0, 0, 1, (peer, PORT).into(), self.config(sctp));
        net.run_until_idle();
        (net, here)
    }
}

/// Loses the frames of host 0 that exceed a path MTU of `mtu`. Returns recordings of the lost frames of host 0, and of
/// its other frames.
fn narrow_path(net: &mut Net, mtu: usize) -> (TakenFrames, TakenFrames) {
    let (long, short) = (TakenFrames::default(), TakenFrames::default());
    let (l, s) = (long.clone(), short.clone());
    net.is_lost = Box::new(move |from, frame| {
        let lost = from == 0 && frame.len() - 14 > mtu;
        if from == 0 {
            let kept = if lost { &l } else { &s };
            kept.borrow_mut().push(frame.to_vec());
        }
        lost
    });
    (long, short)
}

/// Builds a router's ICMP report about a frame of host 0 that exceeds a path MTU of `mtu`.
fn too_big_report(mtu: u16, frame: &[u8]) -> TestFrame {
    let v6 = frame[12..14] != [8, 0];
    assert!(v6 || frame[20] & 0x40 == 0x40, "a router fragments packets without DF");
    let mut message = if v6 { vec![2, 0, 0, 0, 0, 0] } else { vec![3, 4, 0, 0, 0, 0] };
    message.extend(mtu.to_be_bytes());
    // Quotes more than eight bytes of the IP payload, so that the quote of a packet in UDP includes SCTP's header.
    message.extend(&frame[14..][..if v6 { 1000 } else { 20 + 32 }]);
    let host = Host::new(&Plan::new(2));
    let (interface, mac) = (host.cores[0].env.network.interface(0), [2, 0, 0, 0, 0, 1]);
    let (source, destination) = if v6 { (self::v6(2), self::v6(1)) } else { (v4(2), v4(1)) };
    let protocol = if v6 { IpProtocol::Icmpv6 } else { IpProtocol::Icmp };
    let mut out = Vec::new();
    let header = IpHeader { source, destination, protocol, hop_limit: 64 };
    path::write_ip_frame(&mut out, interface, mac, header, message.len(), |p| {
        p.copy_from_slice(&message);
        let sum = match v6 {
            true => checksum::segment(source, destination, ICMPV6, p),
            false => !checksum::sum(p),
        };
        p[2..4].copy_from_slice(&sum.to_be_bytes());
    });
    TestFrame::new(out)
}

/// Begins a write of `len` bytes from host 0 to a region of host 1. Returns the region.
fn begin_write(net: &mut Net, stream: StreamId, len: usize) -> Memory {
    let from = net.hosts[0].region(1, len, Access::NONE);
    let to = net.hosts[1].region(2, len, Access::REMOTE_WRITE);
    from.write(0, &pattern(len));
    net.hosts[0].write(stream, (Stag(1), &from), Stag(2), len as u32);
    to
}

/// Runs until the message is delivered. Calls `each` before each turn.
fn run_until_delivered(net: &mut Net, mut each: impl FnMut(&mut Net)) {
    net.run_until("delivery", |net| {
        each(net);
        let bad = net.hosts[0]
            .take_event(|e| matches!(e, Event::Closed { .. }).then(|| format!("{e:?}")));
        assert_eq!(bad, None);
        net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
    });
}

// RFC 9260 §6.9, §7.3: data sent before a router reports a smaller path MTU are retransmitted in IP fragments. New data
// are sent in packets that fit. The peer accepts both, and the association continues.
#[test]
fn packets_in_flight_are_fragmented_when_path_mtu_falls() {
    for variant in VARIANTS {
        let (mut net, here) = variant.open(sctp::Config::default());
        let (long, short) = narrow_path(&mut net, 1300);
        let len = 400_000;
        let to = begin_write(&mut net, here, len);
        run_until_delivered(&mut net, |net| {
            for frame in long.borrow_mut().drain(..).collect::<Vec<_>>() {
                net.hosts[0].deliver(too_big_report(1300, &frame));
            }
        });
        assert!(read_memory(&to) == pattern(len), "{variant:?}");
        let (cut, whole) = (net.hosts[0].count("tx_cut"), net.hosts[1].count("reassembled"));
        assert!(cut > 0 && whole == cut, "{variant:?}: {whole} of {cut}");
        assert_eq!(net.hosts[0].count("path_mtu_updates"), 1);
        // Only earlier packets are fragmented: the first congestion window, and packets in flight when the report
        // arrives.
        let full = short.borrow().iter().filter(|f| f.len() > 1250).count();
        assert!(full > 200 && cut < 30, "{variant:?}: {full} whole, {cut} cut");
        net.run_until_idle();
        assert_eq!(net.hosts[1].count("reassembly_bytes"), 0);
    }
}

// RFC 8899 §4.6.1, RFC 9260 §10: a report without the right verification tag has no effect.
#[test]
fn packet_too_big_with_wrong_tag_is_ignored() {
    for variant in VARIANTS {
        let (mut net, here) = variant.open(sctp::Config::default());
        let whole = path_len(&net);
        let (long, _) = narrow_path(&mut net, 1300);
        begin_write(&mut net, here, 10_000);
        net.run_until("a long packet", |_| (!long.borrow().is_empty()).then_some(()));
        let frame = long.borrow()[0].clone();
        let tag = 14 + if variant.v6 { 40 } else { 20 } + if variant.udp { 8 } else { 0 } + 4;
        for bit in 0..32 {
            let mut guess = frame.clone();
            guess[tag + bit / 8] ^= 1 << (bit % 8);
            net.hosts[0].deliver(too_big_report(1300, &guess));
            // Most of these reports, one per millisecond, are within the rate limit.
            net.advance(Duration::from_millis(1));
        }
        net.run_until_idle();
        let host = &net.hosts[0];
        let (ignored, limited) =
            (host.count("icmp_not_in_flight"), host.count("icmp_rate_limited"));
        assert!(ignored > 0 && ignored + limited == 32, "{variant:?}: {ignored} and {limited}");
        assert_eq!((host.count("path_mtu_updates"), path_len(&net)), (0, whole), "{variant:?}");
        net.hosts[0].deliver(too_big_report(1300, &frame));
        net.advance(Duration::from_secs(1));
        assert_eq!(net.hosts[0].count("path_mtu_updates"), 1, "{variant:?}");
    }
}

// Lost fragments are repaired by retransmission of their packet, in new fragments.
#[test]
fn lost_fragments_are_retransmitted_in_new_fragments() {
    for v6 in [false, true] {
        let (mut net, here) = Variant { v6, ..VARIANTS[0] }.open(sctp::Config::default());
        let (long, _) = narrow_path(&mut net, 1300);
        let to = begin_write(&mut net, here, 100_000);
        net.hosts[0].cores[0].turn(net.now);
        net.turn();
        let frame = long.borrow()[0].clone();
        net.hosts[0].deliver(too_big_report(1300, &frame));
        let mut n = 0;
        net.is_lost = Box::new(move |from, frame| {
            let cut = if v6 { frame[20] == 44 } else { frame[20] & 0x20 != 0 };
            n += u32::from(cut);
            from == 0 && (frame.len() - 14 > 1300 || cut && n.is_multiple_of(3))
        });
        run_until_delivered(&mut net, |_| ());
        assert!(read_memory(&to) == pattern(100_000));
        net.advance(Duration::from_secs(20));
        assert_eq!(net.hosts[1].count("reassembly_bytes"), 0);
    }
}

// A packet waits until the transmit ring, which has four entries, has room for its fragments.
#[test]
fn fragmented_packet_waits_for_transmit_ring_room() {
    let plan = |n, room| Plan { room, ..Plan::new(n) };
    let mut net = Net::new(&[plan(1, 4), plan(2, 256)]);
    let config = VARIANTS[0].config(sctp::Config::default());
    net.hosts[1].listen_as(PORT, 200, 200, config.clone());
    net.run_until_idle();
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config);
    let (long, _) = narrow_path(&mut net, 700);
    let to = begin_write(&mut net, here, 50_000);
    run_until_delivered(&mut net, |net| {
        for frame in long.borrow_mut().drain(..).collect::<Vec<_>>() {
            net.hosts[0].deliver(too_big_report(700, &frame));
        }
    });
    assert!(read_memory(&to) == pattern(50_000));
    assert!(net.hosts[0].count("tx_cut") > 0);
}

/// Returns the maximum length of an SCTP packet, in bytes, that host 0's associations assume for their path.
fn path_len(net: &Net) -> usize {
    let all = &net.hosts[0].cores[0].associations;
    let mut slots = (0..16).filter_map(|at| Some(all.get(at)?.endpoint()));
    let len = slots.next().expect("an association").association().path_len();
    assert!(slots.all(|other| other.association().path_len() == len));
    len
}

// RFC 8899 §4.3, §5: without reports the association detects the black hole, continues, and finds the largest size that
// passes.
#[test]
fn association_recovers_from_a_pmtu_black_hole() {
    for variant in VARIANTS {
        let (mut net, here) = variant.open(sctp::Config::default());
        let mtu = 1450;
        narrow_path(&mut net, mtu);
        let to = begin_write(&mut net, here, 300_000);
        run_until_delivered(&mut net, |_| ());
        assert!(read_memory(&to) == pattern(300_000), "{variant:?}");
        let headers_len = if variant.v6 { 40 } else { 20 } + if variant.udp { 8 } else { 0 };
        // The search completes during the next messages of the session.
        for _ in 0..8 {
            let ticket = net.hosts[0].send(here, &[7; 3000]);
            net.wait_sent(0, ticket);
            net.advance(Duration::from_millis(100));
        }
        assert_eq!(path_len(&net), mtu - headers_len, "{variant:?}");
        // RFC 9260 §7.3, RFC 1191 §3: another association to the peer uses the result, and so does TCP.
        assert_eq!(net.hosts[0].count("path_mtus"), 1);
        if !variant.udp && variant.workers == 1 {
            let peer = if variant.v6 { v6(2) } else { v4(2) };
            let known = net.hosts[0].cores[0].env.network.path_mtu((0, peer), net.now);
            assert_eq!(known, Some(mtu as u16));
            let config = variant.config(sctp::Config::default());
            net.open_as(0, 0, 1, (peer, PORT).into(), config);
            assert_eq!(net.hosts[0].count("associations"), 2);
            assert_eq!(path_len(&net), mtu - headers_len, "{variant:?}");
            net.hosts[1].listen(TCP_PORT);
            net.run_until_idle();
            let (stream, _) = net.open(0, 0, 1, (peer, TCP_PORT).into());
            assert_eq!(path_mss(&net, stream), mtu - headers_len - 20, "{variant:?}");
        }
    }
}

/// Returns the MSS that host 0 assumes for the path of a TCP stream.
fn path_mss(net: &Net, stream: StreamId) -> usize {
    let conns = &net.hosts[0].cores[0].streams;
    let conn = conns.find_stream(stream).and_then(|slot| conns.get(slot)).expect("a live stream");
    match &conn.lower {
        LowerLayer::Tcp(carrier) => carrier.endpoint().connection().path_mss().into(),
        LowerLayer::Sctp(_) => panic!("a stream over TCP"),
    }
}

// RFC 8899 §4.3: a peer that is unreachable for a while looks like a black hole. After its return, new streams begin
// with the MTU of the interface.
#[test]
fn peer_outage_does_not_lower_the_shared_path_mtu() {
    for (v6, outage_seconds) in [(false, 1), (true, 1), (false, 240), (true, 240)] {
        let variant = Variant { v6, ..VARIANTS[0] };
        let (mut net, here) = variant.open(sctp::Config::default());
        net.hosts[1].listen(TCP_PORT);
        net.run_until_idle();
        let peer = if v6 { self::v6(2) } else { v4(2) };
        let (over_tcp, _) = net.open(0, 0, 1, (peer, TCP_PORT).into());
        net.run_until_idle();
        let (full_len, full_mss) = (path_len(&net), path_mss(&net, over_tcp));
        // The next hop answers neighbour discovery, but nothing else arrives.
        net.is_lost = Box::new(move |_, frame| {
            let asks_for_neighbours = frame[12..14] == [8, 6] || (v6 && frame[20] == 58);
            !asks_for_neighbours
        });
        net.hosts[0].send(here, &[1; 4000]);
        net.hosts[0].send(over_tcp, &[2; 4000]);
        net.run_until("a lower path MTU over SCTP", |net| (path_len(net) < full_len).then_some(()));
        net.run_until("a lower MSS over TCP", |net| {
            (path_mss(net, over_tcp) < full_mss).then_some(())
        });
        net.advance(Duration::from_secs(outage_seconds));
        assert_eq!(net.hosts[0].count("path_mtus"), 0, "{variant:?}");
        // The longer outage exceeds the association's limit of retransmissions.
        assert_eq!(net.hosts[0].count("associations"), u64::from(outage_seconds == 1));
        net.is_lost = Box::new(|_, _| false);
        let (_, _) =
            net.open_as(0, 0, 1, (peer, PORT).into(), variant.config(sctp::Config::default()));
        let (second, _) = net.open(0, 0, 1, (peer, TCP_PORT).into());
        assert_eq!(path_mss(&net, second), full_mss, "{variant:?}");
        let all = &net.hosts[0].cores[0].associations;
        let mut newest = (0..16)
            .rev()
            .filter_map(|at| Some(all.get(at)?.endpoint()))
            .map(|e| e.association().path_len());
        assert_eq!(newest.next(), Some(full_len), "{variant:?}");
    }
}

// RFC 5043 §9: a small path MTU discovered by TCP remains cached. An association reduces its packets only to its
// minimum packet size.
#[test]
fn path_mtu_below_sctp_minimum_stays_cached() {
    let variant = VARIANTS[0];
    let (mut net, here) =
        variant.open(sctp::Config { min_path_mtu: 68, ..sctp::Config::default() });
    let mtu = 500;
    let now = net.now;
    net.hosts[0].cores[0].env.network.learn_path_mtu((0, v4(2)), mtu, now);
    net.is_lost = Box::new(|from, frame| from == 0 && frame[12..14] == [8, 0]);
    net.hosts[0].send(here, &[1; 1000]);
    net.advance(Duration::from_secs(10));
    assert_eq!(path_len(&net), sctp::MIN_PACKET);
    let core = &net.hosts[0].cores[0];
    assert_eq!(core.env.network.path_mtu((0, v4(2)), net.now), Some(mtu));
    let stats = core.associations.get(0).expect("the association").endpoint().association().stats();
    assert_eq!((stats.path_mtu_reductions, stats.path_mtu_black_holes), (1, 0));
}

// RFC 8899 §6.2.1.4: a report about a probe bounds the search by the reported size. Probes are not fragmented.
#[test]
fn path_mtu_probes_are_not_fragmented_and_reports_end_search() {
    let (mut net, here) = VARIANTS[0].open(sctp::Config::default());
    let (long, _) = narrow_path(&mut net, 1300);
    let to = begin_write(&mut net, here, 100_000);
    run_until_delivered(&mut net, |net| {
        for frame in long.borrow_mut().drain(..).collect::<Vec<_>>() {
            // Only probes are answered with reports.
            if frame[14 + 20 + 12] == 4 {
                net.hosts[0].deliver(too_big_report(1300, &frame));
            }
        }
    });
    assert!(read_memory(&to) == pattern(100_000));
    for _ in 0..4 {
        let ticket = net.hosts[0].send(here, &[7; 3000]);
        net.wait_sent(0, ticket);
        net.advance(Duration::from_millis(100));
        for frame in long.borrow_mut().drain(..).collect::<Vec<_>>() {
            net.hosts[0].deliver(too_big_report(1300, &frame));
        }
    }
    // The remaining difference to the reported size is too small for another probe.
    assert_eq!(path_len(&net), 1280 - 20);
    let association = net.hosts[0].cores[0].associations.get(0).expect("the association");
    let stats = association.endpoint().association().stats();
    assert_eq!((stats.path_mtu_probes, stats.path_mtu_probes_lost), (2, 0));
    assert_eq!(stats.path_mtu_black_holes, 1);
}

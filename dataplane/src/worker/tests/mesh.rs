//! Several workers: ownership of flows, and frames that arrive at another worker.

use std::collections::BTreeSet;

use ddp::{Access, RegionMemory, Stag};
use ipsec::strength::Strength;
use tcp_lite::tcp::Flags;

use super::floods::forged_segment;
use super::test_host::*;
use crate::api::Event;
use crate::flow::FlowKey;
use crate::net::demux::L4Check;
use crate::port::ChecksumSite;
use crate::worker::arrival::{Arrival, ArrivalKind, Arrivals, Packet, push_if_predicted};

const PORT: u16 = 4791;
const SINK: Stag = Stag(9);

fn net(rss: Rss, workers: u16) -> Net {
    Net::new(&[Plan { workers, rss, ..Plan::new(1) }, Plan { workers, rss, ..Plan::new(2) }])
}

/// Opens a stream from each worker and writes over it. Returns the workers that own the remote ends.
fn write_from_all(net: &mut Net, remote: std::net::IpAddr) -> BTreeSet<u16> {
    net.hosts[1].listen(PORT);
    let len = 100_000;
    let mut owners = BTreeSet::new();
    for worker in 0..net.hosts[0].cores.len() {
        let stag = Stag(SINK.0 + worker as u32);
        let sink = net.hosts[1].region(stag.0, len, Access::REMOTE_WRITE);
        let source = net.hosts[0].region(1000 + worker as u32, len, Access::NONE);
        source.write(0, &pattern(len));
        let (here, there) = net.open(0, worker, 1, (remote, PORT).into());
        assert_eq!(usize::from(here.worker()), worker);
        owners.insert(there.worker());
        let ticket =
            net.hosts[0].write(here, (Stag(1000 + worker as u32), &source), stag, len as u32);
        net.wait_sent(0, ticket);
        assert!(read_memory(&sink) == pattern(len), "worker {worker}");
    }
    owners
}

#[test]
fn rss_leaves_only_neighbour_announcements_to_the_mesh() {
    let mut net = net(Rss::Device, 3);
    write_from_all(&mut net, v4(2));
    write_from_all_v6(&mut net);
    // The mesh carries ARP and neighbour discovery, a few messages each, and no segments.
    let mesh_count = |what| (0..2).map(|h| net.hosts[h].count(what)).sum::<u64>();
    assert_eq!(mesh_count("mesh_in"), 0);
    let announcements = mesh_count("mesh_news_in");
    assert!((1..60).contains(&announcements), "{announcements} messages");
    let segments = net.hosts[1].count("segments");
    assert!(segments > 100, "{segments} segments");
}

fn write_from_all_v6(net: &mut Net) {
    for worker in 0..net.hosts[0].cores.len() {
        let (here, _) = net.open(0, worker, 1, (v6(2), PORT).into());
        let ticket = net.hosts[0].send(here, &[1; 3000]);
        net.wait_sent(0, ticket);
    }
}

#[test]
fn frames_without_rss_reach_their_worker_through_the_mesh() {
    let mut net = net(Rss::None, 2);
    write_from_all(&mut net, v4(2));
    // At least one flow belongs to the second worker of each host.
    for host in 0..2 {
        let moved = net.hosts[host].count("mesh_in");
        assert!(moved > 5, "host {host}: {moved} messages");
        assert_eq!(net.hosts[host].count("mesh_full"), 0);
    }
    // Each worker serves its own stream, whichever worker received the frames.
    for core in &net.hosts[0].cores {
        assert_eq!(core.streams.len(), 1);
    }
}

#[test]
fn listeners_on_every_worker_share_the_load() {
    let mut net = net(Rss::Device, 4);
    net.hosts[1].listen(PORT);
    let owners: BTreeSet<u16> =
        (0..32).map(|n| net.open(0, n % 4, 1, (v4(2), PORT).into()).1.worker()).collect();
    assert_eq!(owners.len(), 4, "{owners:?}");
}

#[test]
fn full_mesh_ring_drops_and_counts_frames() {
    let mut plan = Plan { workers: 2, rss: Rss::None, ..Plan::new(2) };
    plan.limits.mesh = 2;
    let mut net = Net::new(&[Plan { workers: 2, ..Plan::new(1) }, plan]);
    net.hosts[1].listen(PORT);
    let len = 200_000;
    // TCP retransmits the frames that the full mesh ring has dropped.
    for worker in 0..2 {
        let stag = Stag(SINK.0 + worker as u32);
        let sink = net.hosts[1].region(stag.0, len, Access::REMOTE_WRITE);
        let source = net.hosts[0].region(1000 + worker as u32, len, Access::NONE);
        source.write(0, &pattern(len));
        let (here, there) = net.open(0, worker, 1, (v4(2), PORT).into());
        let ticket =
            net.hosts[0].write(here, (Stag(1000 + worker as u32), &source), stag, len as u32);
        net.wait_sent(0, ticket);
        assert!(read_memory(&sink) == pattern(len));
        if there.worker() == 1 {
            assert!(net.hosts[1].count("mesh_full") > 0);
        }
    }
    let events = net.hosts[1].events.iter();
    assert!(!events.clone().any(|(_, e)| matches!(e, Event::Error { .. } | Event::Closed { .. })));
}

#[test]
fn header_prediction_requires_the_same_port() {
    let mut frame = forged_segment((1, 700), PORT, Flags::ACK);
    frame.0.resize(64, 0);
    let flow = FlowKey { interface: 0, local: (v4(2), PORT).into(), remote: (v4(1), 700).into() };
    let host = Host::new(&Plan::new(2));
    let mut arrivals = Arrivals::new();
    arrivals.push(Arrival {
        frame: Packet::Frame(frame.clone()),
        port: 1,
        flow,
        hash: host.cores[0].streams.flows().hash(&flow),
        span: 34..58,
        source_mac: [2, 0, 0, 0, 0, 1],
        kind: ArrivalKind::Segment { ce: false, check: L4Check::Unknown },
        same_flow: false,
        slot: None,
        strength: Strength::CLEAR,
    });
    // A frame that another worker forwards may have arrived on another port than the preceding frame in the burst.
    assert!(
        push_if_predicted(
            0,
            Packet::Frame(frame.clone()),
            L4Check::Unknown,
            Strength::CLEAR,
            ChecksumSite::Software,
            &mut arrivals
        )
        .is_some()
    );
    assert_eq!(arrivals.len(), 1);
    assert!(
        push_if_predicted(
            1,
            Packet::Frame(frame),
            L4Check::Unknown,
            Strength::CLEAR,
            ChecksumSite::Software,
            &mut arrivals
        )
        .is_none()
    );
    assert_eq!((arrivals[1].port, arrivals[1].flow, arrivals[1].span.clone()), (1, flow, 34..58));
}

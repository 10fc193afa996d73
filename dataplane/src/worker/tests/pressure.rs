//! Streams wait for exhausted resources (event ring, transmit ring, packet buffers) and lose no data.

use std::time::Duration;

use ddp::{Access, RegionMemory, Stag};

use super::test_host::*;
use crate::api::Event;
use crate::net::path::{IpHeader, write_ip_frame};
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::transmit::prefetch::PREFETCH_THRESHOLD;

const PORT: u16 = 4791;
const SINK: Stag = Stag(9);
const SOURCE: Stag = Stag(8);

#[test]
fn stalled_control_thread_slows_the_peer_and_loses_no_event() {
    let mut plan = Plan::new(2);
    plan.limits.events = 64;
    let mut net = Net::new(&[Plan::new(1), plan]);
    net.hosts[1].listen(PORT);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.run_until_idle();
    net.hosts[1].takes_events = false;
    for n in 0..250u32 {
        net.hosts[0].send(here, &n.to_be_bytes());
    }
    net.advance(Duration::from_secs(2));
    assert!(net.hosts[1].count("event_waits") > 0);
    assert_eq!(net.hosts[1].count("event_stalls"), 0, "one stream alone does not fill the ring");
    assert_eq!(net.hosts[1].cores[0].port_mut(0).rx.len(), 0, "the worker still receives frames");
    net.hosts[1].takes_events = true;
    for n in 0..250u32 {
        let data = net.run_until("a message", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Untagged { data, .. } => Some(data.clone()),
                _ => None,
            })
        });
        assert_eq!(data, n.to_be_bytes());
    }
}

/// Runs `streams` streams at once through a port with `room` ring entries and `buffers` packet buffers. Returns the
/// number of times that the ring was full and that the pool was empty, and the maximum number of blocked streams.
fn run_constrained(streams: u32, room: usize, buffers: usize) -> (u64, u64, usize) {
    let plan = |n| Plan { room, ..Plan::new(n) };
    let mut net = Net::new(&[plan(1), plan(2)]);
    net.hosts[0].cores[0].port_mut(0).buffers = buffers;
    net.hosts[1].listen_with(PORT, streams, streams);
    let len = 1_000_000 / streams as usize;
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    source.write(0, &pattern(len));
    let ends: Vec<_> = (0..streams).map(|_| net.open(0, 0, 1, (v4(2), PORT).into()).0).collect();
    let mut writes = Vec::new();
    for (n, here) in ends.into_iter().enumerate() {
        let stag = Stag(SINK.0 + n as u32);
        let sink = net.hosts[1].region(stag.0, len, Access::REMOTE_WRITE);
        let ticket = net.hosts[0].write(here, (SOURCE, &source), stag, len as u32);
        writes.push((ticket, sink));
    }
    let mut longest = 0;
    net.run_until("a line", |net| {
        let core = &net.hosts[0].cores[0];
        let schedule = core.env.schedules.get(CarrierKind::Connection);
        let (blocked, ready) = (schedule.blocked(0).len(), schedule.ready().len());
        longest = longest.max(blocked);
        (longest > 0 && blocked + ready == 0).then_some(())
    });
    for (ticket, sink) in writes {
        net.wait_sent(0, ticket);
        assert!(read_memory(&sink) == pattern(len));
    }
    (net.hosts[0].count("tx_stalls"), net.hosts[0].count("tx_no_buffer"), longest)
}

#[test]
fn small_transmit_ring_delays_but_delivers_all() {
    let (stalls, ..) = run_constrained(5, 3, 4096);
    assert!(stalls > 0);
}

/// More streams than [`PREFETCH_THRESHOLD`], so that streams are prefetched.
#[test]
fn many_blocked_streams_share_a_small_transmit_ring() {
    let many = PREFETCH_THRESHOLD as u32 + 44;
    let (stalls, _, longest) = run_constrained(many, 3, 4096);
    assert!(stalls > 0);
    assert!(longest > PREFETCH_THRESHOLD / 2, "{longest}");
}

#[test]
fn small_buffer_pool_delays_but_delivers_all() {
    let (_, empty, _) = run_constrained(5, 256, 2);
    assert!(empty > 0);
}

#[test]
fn streams_are_served_round_robin() {
    let mut net = Net::new(&[Plan { room: 16, ..Plan::new(1) }, Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let len = 1 << 20;
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    let streams: Vec<_> = (0..4)
        .map(|n| {
            net.hosts[1].region(SINK.0 + n, len, Access::REMOTE_WRITE);
            net.open(0, 0, 1, (v4(2), PORT).into()).0
        })
        .collect();
    net.run_until_idle();
    for (n, &stream) in streams.iter().enumerate() {
        net.hosts[0].write(stream, (SOURCE, &source), Stag(SINK.0 + n as u32), len as u32);
    }
    // With equal shares, the other streams are nearly complete when the first stream is complete.
    net.run_until("the first", |net| {
        net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
    });
    let begin = net.hosts[0].count("tx_bytes");
    for _ in 0..3 {
        net.run_until("the others", |net| {
            net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
        });
    }
    let more = net.hosts[0].count("tx_bytes") - begin;
    assert!(more < len as u64, "{more} bytes after the first of four streams was complete");
}

#[test]
fn packet_too_big_about_a_segment_in_flight_lowers_the_mss() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let len = 100_000;
    net.hosts[1].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.run_until_idle();
    // From now on, a router on the path carries packets of at most 1000 bytes and reports the first packet that it
    // drops.
    net.is_lost = Box::new(|from, frame| from == 0 && frame.len() > 1014);
    net.hosts[0].write(here, (SOURCE, &source), SINK, len as u32);
    net.hosts[0].cores[0].turn(net.now);
    let big = net.hosts[0].cores[0].port_mut(0).tx.iter().find(|f| f.0.len() > 1014).cloned();
    let big = big.expect("a full segment");
    let report = |mtu: u16, segment: &[u8]| {
        let mut message = vec![3, 4, 0, 0, 0, 0];
        message.extend(mtu.to_be_bytes());
        message.extend(&segment[14..42]);
        let sum = !crate::checksum::sum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let host = Host::new(&Plan::new(2));
        let mut out = Vec::new();
        let (interface, mac) = (host.cores[0].env.network.interface(0), [2, 0, 0, 0, 0, 1]);
        let protocol = smoltcp::wire::IpProtocol::Icmp;
        let header = IpHeader { source: v4(2), destination: v4(1), protocol, hop_limit: 64 };
        write_ip_frame(&mut out, interface, mac, header, message.len(), |p| {
            p.copy_from_slice(&message);
        });
        TestFrame::new(out)
    };
    // RFC 5927 §4.1: an error about a segment that is not in flight is ignored.
    let mut never = big.0.clone();
    never[38] ^= 0x40;
    net.hosts[0].deliver(report(1000, &never));
    net.turn();
    assert_eq!(net.hosts[0].count("icmp_not_in_flight"), 1);
    net.hosts[0].deliver(report(1000, &big.0));
    net.run_until("delivery", |net| {
        net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
    });
    assert_eq!(net.hosts[0].count("path_mtu_updates"), 1);
}

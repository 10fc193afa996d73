//! Data from a source that may change are copied when they are sent. The memory for these copies is bounded per worker.
//! A peer that acknowledges no data does not reduce the share of other streams.

use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory, Stag, StreamId};

use super::test_host::*;
use crate::api::{EndpointConfig, Event, Limits, SctpConfig, Ticket};
use crate::memory::Memory;

const PORT: u16 = 4791;
/// A region that peers may write: data sent from it is copied.
const SOURCE: Stag = Stag(8);
const SINK: Stag = Stag(100);
const LEN: usize = 1 << 20;
const BUDGET: usize = 64 << 10;
const SEGMENT: u64 = 1500;

fn tcp() -> EndpointConfig {
    tcp_lite::endpoint::EndpointConfig::default().into()
}

fn sctp() -> EndpointConfig {
    let (sctp, endpoint) = (Arc::default(), Arc::default());
    SctpConfig { sctp, endpoint, udp: None }.into()
}

/// Creates hosts. Host 0 writes to the others from a region that may change.
fn net(hosts: u8, endpoint: fn() -> EndpointConfig, keep_bytes: usize) -> (Net, Memory) {
    let limits = Limits { keep_bytes, ..Limits::default() };
    let writer = Plan { limits, ..Plan::new(1) };
    let plans: Vec<_> = std::iter::once(writer).chain((2..=hosts).map(Plan::new)).collect();
    let mut net = Net::new(&plans);
    for host in &mut net.hosts[1..] {
        host.listen_as(PORT, 100, 100, endpoint());
    }
    let source = net.hosts[0].region(SOURCE.0, LEN, Access::REMOTE_WRITE);
    source.write(0, &pattern(LEN));
    net.run_until_idle();
    (net, source)
}

/// Writes the whole source over one stream. Returns the ticket and the destination.
fn write(net: &mut Net, source: &Memory, to: usize, stream: StreamId, n: u32) -> (Ticket, Memory) {
    let stag = Stag(SINK.0 + n);
    let sink = net.hosts[to].region(stag.0, LEN, Access::REMOTE_WRITE);
    (net.hosts[0].write(stream, (SOURCE, source), stag, LEN as u32), sink)
}

/// Runs four flows to one peer with this budget. Returns the maximum number of bytes kept, and the number of waits.
fn transfer(endpoint: fn() -> EndpointConfig, keep_bytes: usize) -> (u64, u64) {
    let (mut net, source) = net(2, endpoint, keep_bytes);
    // Each stream has its own configuration and therefore its own association.
    let streams: Vec<_> =
        (0..4).map(|_| net.open_as(0, 0, 1, (v4(2), PORT).into(), endpoint()).0).collect();
    let writes: Vec<_> =
        (0..).zip(streams).map(|(n, stream)| write(&mut net, &source, 1, stream, n)).collect();
    for (ticket, sink) in writes {
        net.wait_sent(0, ticket);
        assert!(read_memory(&sink) == pattern(LEN));
    }
    assert_eq!(net.hosts[0].count("kept_bytes"), 0);
    (net.hosts[0].count("kept_bytes_max"), net.hosts[0].count("keep_waits"))
}

#[test]
fn copies_of_sent_data_stay_within_budget_and_all_arrive() {
    for endpoint in [tcp, sctp] {
        let (max_kept, waits) = transfer(endpoint, BUDGET);
        assert!(max_kept <= BUDGET as u64 + 4 * SEGMENT, "{max_kept}");
        assert!(waits > 0);
        // With a larger budget more bytes are kept: the smaller budget has limited the flows.
        let (max_kept, waits) = transfer(endpoint, 64 << 20);
        assert!(max_kept > BUDGET as u64 + 4 * SEGMENT && waits == 0, "{max_kept} {waits}");
    }
}

#[test]
fn unacknowledging_peer_leaves_other_peers_their_share() {
    for endpoint in [tcp, sctp] {
        let (mut net, source) = net(3, endpoint, BUDGET);
        let open = |net: &mut Net, to: u8| {
            net.open_as(0, 0, to.into(), (v4(to + 1), PORT).into(), endpoint()).0
        };
        let silent: Vec<_> = (0..20).map(|_| open(&mut net, 1)).collect();
        let good = open(&mut net, 2);
        for (n, stream) in (0..).zip(silent) {
            write(&mut net, &source, 1, stream, n);
        }
        for _ in 0..20 {
            net.turn();
        }
        net.is_lost = Box::new(|from, _| from == 1);
        net.advance(Duration::from_millis(5));
        let (ticket, sink) = write(&mut net, &source, 2, good, 50);
        net.wait_sent(0, ticket);
        assert!(read_memory(&sink) == pattern(LEN));
        let max_kept = net.hosts[0].count("kept_bytes_max");
        assert!(max_kept <= BUDGET as u64 + 21 * SEGMENT, "{max_kept}");
        assert!(net.hosts[0].count("kept_bytes") > 0, "copies for the silent peer");
        // The copies are freed when the streams end.
        net.run_until("the end of all streams with the silent peer", |net| {
            let closed = |e: &&(usize, Event)| matches!(e.1, Event::Closed { .. });
            (net.hosts[0].events.iter().filter(closed).count() == 20).then_some(())
        });
        net.advance(Duration::from_secs(1));
        assert_eq!(net.hosts[0].count("kept_bytes"), 0);
    }
}

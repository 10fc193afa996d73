//! Streams' counters are summed while the workers list the streams; each stream is counted once.

use api::Stats;
use dataplane::{AssociationInfo, AssociationStats, FlowInfo};

use super::bench::seen;
use super::*;

fn stats(pending: &mut Pending) -> Stats {
    let Ok(Reply::Stats(stats)) = answer(pending) else { panic!("no stats") };
    stats
}

/// Returns a sum of worker 0's streams.
fn counted(stats: &Stats, name: &str) -> u64 {
    stats.workers[0].counters[name]
}

fn ends(bench: &mut Bench, id: u64, acknowledged: u64) {
    let (stream, stats) = (StreamId(id), Box::new(seen(id, acknowledged).stats));
    bench.event(Event::Closed { stream, reason: CloseReason::PeerShutdown.into(), stats });
}

#[test]
fn a_stream_that_ends_while_the_others_are_listed_is_counted_once() {
    let mut bench = bench();
    for id in [1, 2, 3] {
        bench.accepted(id, "10.0.0.2");
    }
    let mut pending = bench.call(Request::Stats);
    let lists = bench.lists();
    assert!(lists.iter().all(|(_, which)| *which == Listed::Everything), "{lists:?}");
    // Stream 1 is listed and ends, 2 ends before it is listed, 3 continues.
    bench.listed(lists[0].0, vec![seen(1, 10)], false);
    ends(&mut bench, 1, 11);
    ends(&mut bench, 2, 200);
    bench.listed(lists[0].0, vec![seen(3, 3000)], true);
    bench.listed(lists[1].0, vec![], true);
    assert_eq!(counted(&stats(&mut pending), "tcp_bytes_acknowledged"), 3210);

    // The final counts of stream 1 appear in the next count.
    let mut pending = bench.call(Request::Stats);
    let lists = bench.lists();
    bench.listed(lists[0].0, vec![seen(3, 3000)], true);
    bench.listed(lists[1].0, vec![], true);
    assert_eq!(counted(&stats(&mut pending), "tcp_bytes_acknowledged"), 3211);
}

/// Returns an association that has received this many packets.
fn association(packets: u64) -> AssociationInfo {
    let mut stats = AssociationStats::default();
    stats.endpoint.sctp.packets_in = packets;
    AssociationInfo {
        association: StreamId(9),
        interface: InterfaceId(0),
        local: remote("10.0.0.1"),
        remote: remote("10.0.0.9"),
        udp: None,
        state: "established",
        sessions: 1,
        streams: 1,
        age: Duration::ZERO,
        flow: FlowInfo::default(),
        unanswered: 0,
        stats,
    }
}

#[test]
fn an_association_that_ends_while_others_are_listed_is_counted_once() {
    let mut bench = bench();
    let mut pending = bench.call(Request::Stats);
    let lists = bench.lists();
    let (ticket, associations) = (lists[0].0, vec![association(4)]);
    let (streams, handshakes) = (vec![], vec![]);
    bench.event(Event::Streams { ticket, streams, associations, handshakes, last: false });
    let (association, stats_at_end) = (StreamId(9), Box::new(association(5).stats));
    bench.event(Event::AssociationClosed { association, stats: stats_at_end });
    bench.listed(ticket, vec![], true);
    bench.listed(lists[1].0, vec![], true);
    assert_eq!(counted(&stats(&mut pending), "sctp_packets_in"), 4);
}

/// The workers list once for all clients that request meanwhile, and once more, because these may
/// be aware of later events.
#[test]
fn clients_that_ask_at_the_same_time_share_a_count() {
    let mut bench = bench();
    let mut first = bench.call(Request::Stats);
    let lists = bench.lists();
    assert_eq!(lists.len(), WORKERS);
    let mut others = [bench.call(Request::Stats), bench.call(Request::Stats)];
    assert_eq!(bench.lists(), []);
    for (ticket, _) in lists {
        bench.listed(ticket, vec![], true);
    }
    stats(&mut first);
    assert!(others.iter_mut().all(unanswered));
    let lists = bench.lists();
    assert_eq!(lists.len(), WORKERS);
    for (ticket, _) in lists {
        bench.listed(ticket, vec![], true);
    }
    for other in &mut others {
        stats(other);
    }
    assert_eq!(bench.lists(), []);
}

#[test]
fn one_stream_is_asked_for_alone() {
    let mut bench = bench();
    bench.accepted(1, "10.0.0.2");
    let mut pending = bench.call(Request::Stream(api::StreamId(1)));
    let lists = bench.lists();
    assert!(lists.iter().all(|(_, which)| *which == Listed::Stream(StreamId(1))), "{lists:?}");
    bench.listed(lists[0].0, vec![seen(1, 10)], true);
    bench.listed(lists[1].0, vec![], true);
    let Ok(Reply::Stream(info)) = answer(&mut pending) else { panic!("no stream") };
    assert_eq!(info.counters["tcp_bytes_acknowledged"], 10);
}

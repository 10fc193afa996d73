//! Sums of streams' counters: streams may end while the workers list them, and must be counted once.

use api::Stats;
use dataplane::{AssociationInfo, AssociationStats, FlowInfo};

use super::bench::stream_info;
use super::*;

fn stats(pending: &mut Pending) -> Stats {
    let Ok(Reply::Stats(stats)) = answer(pending) else { panic!("no stats") };
    stats
}

/// Returns a counter of worker 0, summed over its streams.
fn counter_sum(stats: &Stats, name: &str) -> u64 {
    stats.workers[0].counters[name]
}

fn end_stream(bench: &mut Bench, id: u64, acknowledged: u64) {
    let (stream, stats) = (StreamId(id), Box::new(stream_info(id, acknowledged).stats));
    bench.event(Event::Closed { stream, reason: CloseReason::PeerShutdown.into(), stats });
}

#[test]
fn stream_ending_during_a_count_is_counted_once() {
    let mut bench = bench();
    for id in [1, 2, 3] {
        bench.accept_stream(id, "10.0.0.2");
    }
    let mut pending = bench.call(Request::Stats);
    let lists = bench.take_lists();
    assert!(lists.iter().all(|(_, which)| *which == StreamSelection::All), "{lists:?}");
    // Stream 1 is listed and then ends, stream 2 ends before it is listed, stream 3 continues.
    bench.report_list(lists[0].0, vec![stream_info(1, 10)], false);
    end_stream(&mut bench, 1, 11);
    end_stream(&mut bench, 2, 200);
    bench.report_list(lists[0].0, vec![stream_info(3, 3000)], true);
    bench.report_list(lists[1].0, vec![], true);
    assert_eq!(counter_sum(&stats(&mut pending), "tcp_bytes_acknowledged"), 3210);

    // The next count has the final counters of stream 1.
    let mut pending = bench.call(Request::Stats);
    let lists = bench.take_lists();
    bench.report_list(lists[0].0, vec![stream_info(3, 3000)], true);
    bench.report_list(lists[1].0, vec![], true);
    assert_eq!(counter_sum(&stats(&mut pending), "tcp_bytes_acknowledged"), 3211);
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
fn association_ending_during_a_count_is_counted_once() {
    let mut bench = bench();
    let mut pending = bench.call(Request::Stats);
    let lists = bench.take_lists();
    let (ticket, associations) = (lists[0].0, vec![association(4)]);
    let (streams, handshakes) = (vec![], vec![]);
    bench.event(Event::Streams { ticket, streams, associations, handshakes, last: false });
    let (association, stats_at_end) = (StreamId(9), Box::new(association(5).stats));
    bench.event(Event::AssociationClosed { association, stats: stats_at_end });
    bench.report_list(ticket, vec![], true);
    bench.report_list(lists[1].0, vec![], true);
    assert_eq!(counter_sum(&stats(&mut pending), "sctp_packets_in"), 4);
}

/// Clients that request counters during a count share the next count, because the current count may lack recent events.
#[test]
fn concurrent_stats_requests_share_a_count() {
    let mut bench = bench();
    let mut first = bench.call(Request::Stats);
    let lists = bench.take_lists();
    assert_eq!(lists.len(), WORKERS);
    let mut others = [bench.call(Request::Stats), bench.call(Request::Stats)];
    assert_eq!(bench.take_lists(), []);
    for (ticket, _) in lists {
        bench.report_list(ticket, vec![], true);
    }
    stats(&mut first);
    assert!(others.iter_mut().all(is_unanswered));
    let lists = bench.take_lists();
    assert_eq!(lists.len(), WORKERS);
    for (ticket, _) in lists {
        bench.report_list(ticket, vec![], true);
    }
    for other in &mut others {
        stats(other);
    }
    assert_eq!(bench.take_lists(), []);
}

#[test]
fn stream_query_requests_only_that_stream() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let mut pending = bench.call(Request::Stream(api::StreamId(1)));
    let lists = bench.take_lists();
    assert!(
        lists.iter().all(|(_, which)| *which == StreamSelection::Stream(StreamId(1))),
        "{lists:?}"
    );
    bench.report_list(lists[0].0, vec![stream_info(1, 10)], true);
    bench.report_list(lists[1].0, vec![], true);
    let Ok(Reply::Stream(info)) = answer(&mut pending) else { panic!("no stream") };
    assert_eq!(info.counters["tcp_bytes_acknowledged"], 10);
}

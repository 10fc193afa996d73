//! Runs: consecutive segments of new data that are sent with one set of checks. Tests each reason that ends a run, and
//! that runs send the same segments as single sends. A property in `channel` tests this for arbitrary transfers.

use super::script::{Script, config, config_with, established};
use super::upper::Batch;
use crate::tcp::output::switch;
use crate::tcp::{Config, Limit};
use base::Instant;

/// Executes `steps` with and without runs, and compares the final states. `in_runs`: expected number of segments sent
/// in runs.
fn run_with_and_without_runs(config: Config, in_runs: u64, steps: &str) -> Script {
    let before = switch::segments();
    let script = established(config.clone(), steps);
    assert_eq!(switch::segments() - before, in_runs, "segments in runs");
    let single = switch::without_runs(|| established(config, steps));
    assert_eq!(format!("{:?}", script.conn), format!("{:?}", single.conn));
    script
}

fn limit(script: &Script) -> Limit {
    script.conn.limits(Instant::from_millis(10_000)).limit
}

/// Returns a configuration whose initial window is ten segments of 1000 bytes.
fn ten_segments() -> Config {
    config_with(config(), |c| (c.initial_window, c.pacing) = (10, false))
}

#[test]
fn end_of_data_ends_run_with_psh() {
    let script = run_with_and_without_runs(
        ten_segments(),
        4,
        "1.0 write 3500
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1
         1.0 > P. 3001:3501(500) ack 1",
    );
    assert_eq!(limit(&script), Limit::Application);
}

#[test]
fn full_cwnd_ends_run() {
    let script = run_with_and_without_runs(
        config_with(ten_segments(), |c| c.initial_window = 3),
        3,
        "1.0 write 5000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1",
    );
    assert_eq!(limit(&script), Limit::CongestionWindow);
}

// RFC 9293 §3.8.6.2.1: a segment is not sent if only half of it fits the peer's window. The recorded limit is
// then the application, because the source declines to cut the segment.
#[test]
fn full_peer_window_ends_run() {
    let script = run_with_and_without_runs(
        ten_segments(),
        2,
        "1.0 < . 1:1(0) ack 1 win 2500
         1.0 write 5000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1",
    );
    assert_eq!(limit(&script), Limit::Application);
    let script = run_with_and_without_runs(
        ten_segments(),
        2,
        "1.0 < . 1:1(0) ack 1 win 2000
         1.0 write 5000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1",
    );
    assert_eq!(limit(&script), Limit::PeerWindow);
}

#[test]
fn full_send_window_ends_run() {
    let script = run_with_and_without_runs(
        config_with(ten_segments(), |c| c.send_window = 3000),
        3,
        "1.0 write 5000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1",
    );
    assert_eq!(limit(&script), Limit::SendWindow);
}

#[test]
fn record_limit_ends_run() {
    let config = config_with(ten_segments(), |c| c.initial_window = 1 << 20);
    let records = config.max_records();
    let fill = || {
        let mut peer = established(config.clone(), "0.5 < . 1:1(0) ack 1 win 65000");
        (peer.up.len, peer.up.record) = (50_000, 1);
        let mut batch = Batch::new(usize::MAX);
        peer.conn.poll_transmit(Instant::from_millis(600), &mut peer.up, &mut batch);
        (batch.segments, format!("{:?}", peer.conn))
    };
    let before = switch::segments();
    let (segments, state) = fill();
    assert_eq!((segments.len(), switch::segments() - before), (records, records as u64));
    assert!((segments, state) == switch::without_runs(fill));
}

#[test]
fn full_batch_ends_run() {
    let script = run_with_and_without_runs(
        ten_segments(),
        2,
        "1.0 batch 2
         1.0 write 5000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1",
    );
    assert_eq!(limit(&script), Limit::Port);
}

// RFC 6675 §4: a lost segment is retransmitted first, not in a run. New data sent while the loss may still prove
// spurious is not in a run either.
#[test]
fn lost_segment_prevents_run() {
    run_with_and_without_runs(
        ten_segments(),
        5,
        "1.0 write 5000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 > . 2001:3001(1000) ack 1
         1.0 > . 3001:4001(1000) ack 1
         1.0 > P. 4001:5001(1000) ack 1
         1.1 <+ . 1:1(0) ack 1 win 20000 <sack 1001:2001>
         1.1 <+ . 1:1(0) ack 1 win 20000 <sack 1001:3001>
         1.1 < . 1:1(0) ack 1 win 20000 <sack 1001:4001>
         1.1 > P. 1:1001(1000) ack 1
         1.2 < . 1:1(0) ack 5001 win 20000
         1.3 write 1000
         1.3 > P. 5001:6001(1000) ack 1",
    );
}

// With pacing, a burst is at most an eighth of the congestion window.
#[test]
fn pacing_ends_run() {
    let paced = config_with(ten_segments(), |c| (c.pacing, c.initial_window) = (true, 12));
    let script = run_with_and_without_runs(
        paced,
        3,
        "1.000 write 1000
         1.000 > P. 1:1001(1000) ack 1
         1.010 < . 1:1(0) ack 1001 win 20000
         1.010 write 13000
         1.010 > . 1001:2001(1000) ack 1
         1.010 > . 2001:3001(1000) ack 1",
    );
    assert_eq!(limit(&script), Limit::Pacing);
}

// RFC 9293 §3.9.1.2: the last data segment carries the FIN. A run cannot write the FIN, so no run begins once a FIN is
// queued.
#[test]
fn queued_fin_prevents_run() {
    run_with_and_without_runs(
        config_with(ten_segments(), |c| c.initial_window = 2),
        2,
        "1.0 write 4000
         1.0 > . 1:1001(1000) ack 1
         1.0 > . 1001:2001(1000) ack 1
         1.0 close
         1.1 < . 1:1(0) ack 2001 win 20000
         1.1 > . 2001:3001(1000) ack 1
         1.1 > FP. 3001:4001(1000) ack 1",
    );
}

#[test]
fn run_carries_pending_acknowledgement() {
    run_with_and_without_runs(
        ten_segments(),
        2,
        "1.0 < . 1:1001(1000) ack 1 win 20000
         1.0 write 2000
         1.0 > . 1:1001(1000) ack 1001
         1.0 > P. 1001:2001(1000) ack 1001
         1.1 idle",
    );
}

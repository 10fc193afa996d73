//! Two workers of one process whose ports are connected by a ring of 1024 frames in each direction. Delays are
//! microseconds, bursts have at most 32 frames, and frames are lost only if the ring overflows. No spurious
//! retransmission or time-out may occur.
#![allow(clippy::print_stdout, reason = "the figures are what a reader wants to see")]

use core::time::Duration;
use std::sync::Arc;

use sim::host::HostConfig;
use sim::pair::{Config, Cost, Pair};
use sim::path;
use sim::transfer::{self, Load, Timeouts};
use tcp_lite::tcp;

const BYTES: u64 = 16 << 20;
/// Capacity of a ring, frames.
const RING: usize = 1024;

fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// Runs a transfer at MTU 1500. `sender` and `receiver` are the processing times of a frame at the client and at the
/// server.
fn run(
    delay: Duration,
    sender: Duration,
    receiver: Duration,
    window: u32,
    bidirectional: bool,
) -> Pair {
    let ring = link::Config { delay, max_frames: RING, ..link::Config::default() };
    let mut host = HostConfig { region: BYTES as usize, ..HostConfig::default() };
    host.endpoint.tcp = Arc::new(tcp::Config { receive_window: window, ..tcp::Config::default() });
    let cost = |per_frame| Cost { per_poll: ns(100), per_frame, ..Cost::default() };
    let config = Config {
        client: host.clone(),
        server: host,
        forward: path::Config::new(1500, ring.clone()),
        backward: path::Config::new(1500, ring),
        icmp: false,
        cost: [cost(sender), cost(receiver)],
    };
    let load = |bytes| Load { bytes, max_message: 1 << 20, ..Load::default() };
    let back = if bidirectional { BYTES } else { 0 };
    let title = format!("{delay:?}, {sender:?} and {receiver:?} a frame, window {window}");
    let (pair, times) = transfer::run_timed(config, &load(BYTES), &load(back), Timeouts::default())
        .unwrap_or_else(|wrong| panic!("{title}: {wrong}"));
    let (tx, rx) = (pair.client.stats().tcp, pair.server.stats().tcp);
    println!(
        "{title}: {:.1} Gbit/s, resent {}, needless {}, time-outs {}, ring overflowed {}",
        BYTES as f64 * 8.0 / times.total.as_secs_f64() / 1e9,
        tx.loss.bytes_retransmitted,
        rx.recv.bytes_duplicate,
        tx.loss.timeouts,
        pair.forward.link_counters().overflowed,
    );
    pair
}

fn assert_no_retransmission(pair: &Pair) {
    for path in [&pair.forward, &pair.backward] {
        assert_eq!(path.link_counters().total_lost(), 0, "{:?}", path.link_counters());
    }
    for host in [&pair.client, &pair.server] {
        let tcp = host.stats().tcp;
        assert_eq!((tcp.loss.bytes_retransmitted, tcp.loss.timeouts), (0, 0), "{tcp:?}");
        assert_eq!(tcp.recv.bytes_duplicate, 0, "{tcp:?}");
    }
}

#[test]
fn ring_larger_than_window_needs_no_retransmission() {
    for delay in [1, 5, 20] {
        for (sender, receiver) in [(200, 200), (150, 400), (400, 150)] {
            for both in [false, true] {
                let delay = Duration::from_micros(delay);
                assert_no_retransmission(&run(delay, ns(sender), ns(receiver), 1 << 20, both));
            }
        }
    }
}

#[test]
fn stalled_core_causes_no_retransmission() {
    // The receiver processes a full burst more slowly than the path's round trip, so acknowledgements arrive in bursts.
    for receiver in [2_000, 10_000] {
        assert_no_retransmission(&run(
            Duration::from_micros(2),
            ns(100),
            ns(receiver),
            1 << 20,
            false,
        ));
    }
}

#[test]
fn overflowing_ring_retransmits_lost_bytes_only() {
    for delay in [1, 20] {
        let pair = run(Duration::from_micros(delay), ns(150), ns(400), 8 << 20, false);
        let (tx, rx) = (pair.client.stats().tcp, pair.server.stats().tcp);
        assert!(pair.forward.link_counters().overflowed > 0, "the ring did not overflow");
        assert_eq!((tx.loss.timeouts, rx.recv.bytes_duplicate), (0, 0), "{tx:?}");
    }
}

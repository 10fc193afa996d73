//! Congestion control in virtual time: DCTCP (RFC 8257) over a queue that marks packets, and a controller that sets
//! only a pacing rate.
//!
//! `cargo test -p sim --test controllers -- --nocapture` prints the results.
#![allow(clippy::print_stdout, reason = "the figures are what a reader wants to see")]

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use link::Rate;
use sim::dumbbell::{Dumbbell, FlowConfig, jain};
use sim::host::HostConfig;
use sim::path;
use tcp_lite::tcp::{self, CongestionControl, Connection};

const BITS_PER_SECOND: u64 = 200_000_000;
const RTT: Duration = Duration::from_millis(2);
/// Bandwidth-delay product, bytes.
const BDP: u64 = BITS_PER_SECOND / 8 * 2 / 1000;
/// Marking threshold in bytes. The example in RFC 8257 §3.1 is more than a seventh of the BDP.
const K: u64 = BDP / 3;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn flow(congestion: CongestionControl, seed: u64) -> FlowConfig {
    let mut host = HostConfig::default();
    host.endpoint.tcp = Arc::new(tcp::Config { congestion, ..tcp::Config::default() });
    let path = |seed| {
        let jitter = Duration::from_micros(20);
        let link = link::Config { delay: RTT / 2, jitter, ..link::Config::seeded(seed) };
        path::Config::new(1500, link)
    };
    FlowConfig { host, forward: path(seed), backward: path(!seed), start: ms(0) }
}

fn bottleneck(queue_bytes: u64, mark_bytes: Option<u64>) -> link::Config {
    let rate =
        Rate { bits_per_second: NonZeroU64::new(BITS_PER_SECOND).expect("not zero"), queue_bytes };
    link::Config { rate: Some(rate), mark_bytes, ..link::Config::default() }
}

fn connection(net: &Dumbbell, n: usize) -> &Connection {
    net.flows[n].client.endpoint().expect("a stream").connection()
}

/// Samples, one per millisecond, and totals of the measured time.
struct Samples {
    /// Congestion window of the first flow, bytes.
    windows: Vec<u64>,
    alphas: Vec<f64>,
    /// Bytes received by each flow.
    shares: Vec<u64>,
    /// Utilization of the link, from 0 to 1.
    used: f64,
    dropped: u64,
    marked: u64,
}

fn run(
    title: &str,
    link: link::Config,
    flows: Vec<FlowConfig>,
    warm_up: u64,
    time: u64,
) -> Samples {
    let mut net = Dumbbell::new(link, flows);
    net.run_for(ms(warm_up)).expect("virtual time advances");
    let before = (net.bottleneck().tail_dropped, net.bottleneck().marked);
    let mut shares = vec![0; net.flows.len()];
    let (mut windows, mut alphas) = (Vec::new(), Vec::new());
    for _ in 0..time {
        let received = net.measure(ms(1)).expect("virtual time advances");
        shares.iter_mut().zip(received).for_each(|(sum, n)| *sum += n);
        windows.push(connection(&net, 0).info().cwnd);
        alphas.extend(connection(&net, 0).marked_fraction());
    }
    net.verify().unwrap_or_else(|wrong| panic!("{title}: {wrong}"));
    let sum = shares.iter().sum::<u64>() as f64;
    let used = sum * 8.0 / (BITS_PER_SECOND as f64 * time as f64 / 1e3);
    let (dropped, marked) =
        (net.bottleneck().tail_dropped - before.0, net.bottleneck().marked - before.1);
    let alpha = alphas.iter().sum::<f64>() / alphas.len() as f64;
    println!(
        "{title}: {used:.3} of the link, window {} to {} bytes, alpha {alpha:.3}, {dropped} dropped, {marked} marked",
        windows.iter().min().expect("some"),
        windows.iter().max().expect("some"),
    );
    Samples { windows, alphas, shares, used, dropped, marked }
}

// RFC 8257 §3.3: the window settles where the queue is about as long as the marking threshold. The link is full, and
// alpha is steady.
#[test]
fn dctcp_keeps_the_queue_at_the_threshold() {
    let flows = vec![flow(CongestionControl::Dctcp, 1)];
    let seen = run("DCTCP, one flow", bottleneck(8 * BDP, Some(K)), flows, 1000, 2000);
    assert!(seen.marked > 0);
    assert_eq!(seen.dropped, 0);
    assert!(seen.used > 0.9, "{}", seen.used);
    let (least, most) = (seen.windows.iter().min(), seen.windows.iter().max());
    assert!(*least.expect("a sample") > BDP * 8 / 10, "{least:?}, the path takes {BDP}");
    assert!(*most.expect("a sample") < (BDP + K) * 13 / 10, "{most:?}, marks from {}", BDP + K);
    let mean = seen.alphas.iter().sum::<f64>() / seen.alphas.len() as f64;
    assert!((0.02..0.6).contains(&mean), "{mean}");
    assert!(seen.alphas.iter().all(|alpha| (alpha - mean).abs() < 0.15), "around {mean}");
}

#[test]
fn dctcp_flows_share_fairly_with_a_short_queue() {
    let flows = (0..4).map(|seed| flow(CongestionControl::Dctcp, seed)).collect();
    let seen = run("DCTCP, four flows", bottleneck(8 * BDP, Some(K)), flows, 2000, 6000);
    assert_eq!(seen.dropped, 0);
    assert!(seen.used > 0.9, "{}", seen.used);
    assert!(jain(&seen.shares) > 0.9, "{:?}", seen.shares);
}

// RFC 8257 §3.5, §5: without marks, DCTCP responds to loss like conventional TCP.
#[test]
fn dctcp_without_marks_equals_newreno() {
    let run_unmarked = |congestion| {
        let link = bottleneck(BDP, None);
        let seen = run("no marks", link, vec![flow(congestion, 7)], 0, 4000);
        (seen.windows, seen.shares, seen.dropped)
    };
    let (dctcp, newreno) =
        (run_unmarked(CongestionControl::Dctcp), run_unmarked(CongestionControl::NewReno));
    assert!(newreno.2 > 0, "nothing was lost");
    assert_eq!(dctcp, newreno);
}

// RFC 8257 §3.5: with losses in addition to marks, the flow uses more than 60 % of the link, and losses reduce the
// window.
#[test]
fn dctcp_with_losses_and_marks_completes() {
    let link = link::Config {
        loss: link::Loss::Random(link::Probability::new(0.0002).expect("a part of one")),
        ..bottleneck(8 * BDP, Some(K))
    };
    let flows = vec![flow(CongestionControl::Dctcp, 3)];
    let seen = run("DCTCP with losses", link, flows, 1000, 3000);
    assert!(seen.marked > 0 && seen.used > 0.6, "{}", seen.used);
    assert!(seen.windows.iter().any(|&window| window < BDP), "no loss reduced the window");
}

// A controller that sets only a pacing rate fills the link. The congestion window is never the limit.
#[test]
fn rate_based_controller_fills_the_link() {
    let flows = vec![flow(CongestionControl::RateDriven, 5)];
    let seen = run("by rate", bottleneck(8 * BDP, None), flows, 1000, 3000);
    assert!(seen.used > 0.9, "{}", seen.used);
    assert!(seen.windows.iter().all(|&window| window == tcp::Config::default().send_window));
    assert!(seen.dropped < 50, "{}", seen.dropped);
}

// Random losses slow down a loss-based controller, but not a rate-driven controller.
#[test]
fn random_loss_does_not_slow_rate_based_controller() {
    let used = |congestion| {
        let link = link::Config {
            loss: link::Loss::Random(link::Probability::new(0.01).expect("a part of one")),
            ..bottleneck(8 * BDP, None)
        };
        run(&format!("{congestion:?}, 1 % lost"), link, vec![flow(congestion, 9)], 1000, 3000).used
    };
    let (by_rate, by_loss) =
        (used(CongestionControl::RateDriven), used(CongestionControl::NewReno));
    assert!(by_rate > 0.85 && by_rate > 1.2 * by_loss, "{by_rate}, {by_loss}");
}

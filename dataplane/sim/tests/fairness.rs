//! Fairness of TCP flows that share one slow link, in virtual time.
//!
//! The link carries 20 Mbit/s, and its queue holds 20 ms of traffic; the test of pacing has a faster link. Paths have a
//! little jitter, so that the flows do not synchronize. `cargo test -p sim --test fairness -- --nocapture` prints the
//! shares.
#![allow(clippy::print_stdout, reason = "the shares are what a reader wants to see")]

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use link::Rate;
use sim::dumbbell::{Dumbbell, FlowConfig, jain};
use sim::host::HostConfig;
use sim::path;
use tcp_lite::tcp::{self, CongestionControl};

const BITS_PER_SECOND: u64 = 20_000_000;
const BDP: u64 = BITS_PER_SECOND / 8 / 50;
const SEEDS: u64 = 3;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn flow(congestion: CongestionControl, rtt: Duration, start: Duration, seed: u64) -> FlowConfig {
    let mut host = HostConfig::default();
    host.endpoint.tcp = Arc::new(tcp::Config { congestion, ..tcp::Config::default() });
    let path = |seed| {
        let jitter = Duration::from_micros(200);
        let link = link::Config { delay: rtt / 2, jitter, ..link::Config::seeded(seed) };
        path::Config::new(1500, link)
    };
    FlowConfig { host, forward: path(seed), backward: path(!seed), start }
}

/// Results of one run.
#[derive(Debug)]
struct Outcome {
    /// Rate of each flow, Mbit/s.
    shares: Vec<f64>,
    jain: f64,
    /// Packets that the queue of the link dropped, warm-up included.
    dropped: u64,
    /// Packets that the queue of the link marked CE, warm-up included.
    marked: u64,
}

impl Outcome {
    fn smallest_share(&self) -> f64 {
        self.shares.iter().copied().fold(f64::MAX, f64::min) / self.shares.iter().sum::<f64>()
    }
}

fn run(
    title: &str,
    flows: impl Fn(u64) -> Vec<FlowConfig>,
    warm_up: Duration,
    measured: Duration,
) -> Vec<Outcome> {
    run_marked(title, flows, warm_up, measured, None)
}

/// Runs the flows for `warm_up`, then measures for `measured`. Prints and returns one outcome per seed. `marks`: queue
/// length in bytes above which packets are marked.
fn run_marked(
    title: &str,
    flows: impl Fn(u64) -> Vec<FlowConfig>,
    warm_up: Duration,
    measured: Duration,
    marks: Option<u64>,
) -> Vec<Outcome> {
    let rate = Rate {
        bits_per_second: NonZeroU64::new(BITS_PER_SECOND).expect("not zero"),
        queue_bytes: BDP,
    };
    let bottleneck =
        link::Config { rate: Some(rate), mark_bytes: marks, ..link::Config::default() };
    let run_seed = |seed| {
        let mut net = Dumbbell::new(bottleneck.clone(), flows(100 * seed));
        net.run_for(warm_up).expect("virtual time advances");
        let bytes = net.measure(measured).expect("virtual time advances");
        net.verify().unwrap_or_else(|wrong| panic!("{title}, seed {seed}: {wrong}"));
        let mbit = |&o: &u64| o as f64 * 8.0 / measured.as_secs_f64() / 1e6;
        let (dropped, marked) = (net.bottleneck().tail_dropped, net.bottleneck().marked);
        let shares = bytes.iter().map(mbit).collect();
        let outcome = Outcome { shares, jain: jain(&bytes), dropped, marked };
        let used = outcome.shares.iter().sum::<f64>() * 1e6 / BITS_PER_SECOND as f64;
        assert!(used > 0.85, "{title}, seed {seed}: only {used:.2} of the link used: {outcome:?}");
        outcome
    };
    let outcomes: Vec<Outcome> = (0..SEEDS).map(run_seed).collect();
    for Outcome { shares, jain, dropped, marked } in &outcomes {
        let shares: Vec<String> = shares.iter().map(|s| format!("{s:.2}")).collect();
        // Cargo shows this line with `--nocapture`, or if the test fails.
        println!(
            "{title}: {} Mbit/s, Jain {jain:.3}, {dropped} dropped, {marked} marked",
            shares.join(" + ")
        );
    }
    outcomes
}

use CongestionControl::{Cubic, NewReno};

fn equal_flows(congestion: CongestionControl, n: u64) -> impl Fn(u64) -> Vec<FlowConfig> {
    move |seed| (0..n).map(|i| flow(congestion, ms(20), ms(0), seed + i)).collect()
}

#[test]
fn two_cubic_flows_share_fairly() {
    for o in run("two CUBIC, 20 ms", equal_flows(Cubic, 2), ms(10_000), ms(50_000)) {
        assert!(o.jain >= 0.9, "{o:?}");
    }
}

#[test]
fn two_newreno_flows_share_fairly() {
    for o in run("two NewReno, 20 ms", equal_flows(NewReno, 2), ms(10_000), ms(50_000)) {
        assert!(o.jain >= 0.9, "{o:?}");
    }
}

#[test]
fn five_cubic_flows_share_fairly() {
    for o in run("five CUBIC, 20 ms", equal_flows(Cubic, 5), ms(10_000), ms(50_000)) {
        assert!(o.jain >= 0.9, "{o:?}");
    }
}

// RFC 9438 §4.3, §5.1: on paths where Reno performs well, CUBIC leaves Reno its share.
#[test]
fn cubic_leaves_newreno_a_fair_share() {
    let flows =
        |seed| vec![flow(Cubic, ms(20), ms(0), seed), flow(NewReno, ms(20), ms(0), seed + 1)];
    for o in run("CUBIC + NewReno, 20 ms", flows, ms(10_000), ms(50_000)) {
        assert!(o.smallest_share() >= 0.3, "{o:?}");
    }
}

// Flows whose round-trip times differ by a factor of four do not share evenly. The share of a Reno flow is about
// proportional to the inverse square of its round-trip time. Outside the Reno-friendly region, the share of a CUBIC
// flow is about proportional to the inverse of its round-trip time (RFC 9438 §3.3, §5.6).
#[test]
fn four_to_one_rtts_leave_the_longer_flow_a_share() {
    for (congestion, bound) in [(Cubic, 0.1), (NewReno, 0.05)] {
        let flows = move |seed| {
            vec![flow(congestion, ms(10), ms(0), seed), flow(congestion, ms(40), ms(0), seed + 1)]
        };
        let title = format!("{congestion:?}, 10 and 40 ms");
        for o in run(&title, flows, ms(10_000), ms(50_000)) {
            assert!(o.smallest_share() >= bound, "{o:?}");
            assert!(o.shares[0] > o.shares[1], "the flow with the shorter RTT is faster: {o:?}");
        }
    }
}

#[test]
fn late_flow_gets_its_share() {
    for congestion in [Cubic, NewReno] {
        let flows = move |seed| {
            let late = flow(congestion, ms(20), ms(20_000), seed + 1);
            vec![flow(congestion, ms(20), ms(0), seed), late]
        };
        let title = format!("{congestion:?}, the second 20 s later");
        for o in run(&title, flows, ms(40_000), ms(40_000)) {
            assert!(o.jain >= 0.9, "{o:?}");
        }
    }
}

#[test]
fn ecn_marks_share_as_fairly_as_drops() {
    let marks = Some(BDP / 2);
    for o in run_marked("two CUBIC with ECN", equal_flows(Cubic, 2), ms(10_000), ms(50_000), marks)
    {
        assert!(o.jain >= 0.9 && o.marked > 0, "{o:?}");
        // Slow start may fill the queue before the first mark is echoed.
        assert!(o.dropped < 100, "{o:?}");
    }
}

// A paced and an unpaced stream share a path whose round-trip time is mostly queueing delay. If pacing sent whole
// windows as bursts, the paced stream would receive less than half of the rate.
#[test]
fn pacing_costs_no_share_on_short_paths() {
    const BITS_PER_SECOND: u64 = 200_000_000;
    for (micros, what) in [(100, "paced + unpaced, 0.1 ms"), (300, "paced + unpaced, 0.3 ms")] {
        let shares: Vec<f64> =
            (0..8).map(|seed| short_path(micros, BITS_PER_SECOND, 100 * seed)).collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        let shown: Vec<String> = shares.iter().map(|s| format!("{s:.3}")).collect();
        println!("{what}: mean {mean:.3} of {}", shown.join(" "));
        assert!((0.455..0.54).contains(&mean), "{what}: {mean}");
    }
}

/// Returns the share of a paced stream that competes with an unpaced stream, from 0 to 1. `micros` is the round-trip
/// time without queueing, in microseconds. The queue holds 10 ms of traffic.
fn short_path(micros: u64, bits_per_second: u64, seed: u64) -> f64 {
    let flow_with_pacing = |pacing, seed| {
        let rtt = Duration::from_micros(micros);
        let mut flow = flow(Cubic, rtt, ms(0), seed);
        let tcp = tcp::Config { pacing, ..tcp::Config::default() };
        flow.host.endpoint.tcp = Arc::new(tcp);
        for path in [&mut flow.forward, &mut flow.backward] {
            path.link.jitter = rtt / 20;
        }
        flow
    };
    let rate = Rate {
        bits_per_second: NonZeroU64::new(bits_per_second).expect("not zero"),
        queue_bytes: bits_per_second / 8 / 100,
    };
    let bottleneck = link::Config { rate: Some(rate), ..link::Config::default() };
    let mut net = Dumbbell::new(
        bottleneck,
        vec![flow_with_pacing(true, seed), flow_with_pacing(false, seed + 1)],
    );
    net.run_for(ms(2_000)).expect("virtual time advances");
    let bytes = net.measure(ms(10_000)).expect("virtual time advances");
    net.verify().unwrap_or_else(|wrong| panic!("{micros} µs, seed {seed}: {wrong}"));
    bytes[0] as f64 / bytes.iter().sum::<u64>() as f64
}

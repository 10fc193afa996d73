//! A sender whose worker loses its core for milliseconds after each iteration, as when a polling worker shares its
//! core. Pacing must not reduce the rate by more than 30 %. Time is virtual. `cargo test -p sim --test late_polls --
//! --nocapture` prints the rates.
#![allow(clippy::print_stdout, reason = "the rates are what a reader wants to see")]

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use ddp::VecMemory;
use link::Rate;
use sim::end::{End, Setup};
use sim::host::HostConfig;
use sim::pair::{Config, Cost, Pair};
use sim::path;
use sim::sctp::SctpConfig;

const TIME: Duration = Duration::from_secs(4);
const REGION: u64 = 64 << 20;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn tcp(pacing: bool) -> HostConfig {
    let mut host = HostConfig { region: REGION as usize, ..HostConfig::default() };
    host.endpoint.tcp = Arc::new(tcp_lite::tcp::Config { pacing, ..Default::default() });
    host
}

fn sctp(pacing: bool) -> SctpConfig {
    let mut host = SctpConfig { region: REGION as usize, ..SctpConfig::default() };
    Arc::make_mut(&mut host.sctp.send).pacing = pacing;
    host
}

/// Returns the rate in Mbit/s over four seconds, on a link of 1 Gbit/s with round-trip time `rtt` without queueing. The
/// client's worker has no CPU for `preempted` after each iteration.
fn rate<S: Setup>(host: S, server: S, rtt: Duration, preempted: Duration) -> f64 {
    let rate = Rate {
        bits_per_second: NonZeroU64::new(1_000_000_000).expect("not zero"),
        queue_bytes: 8 << 20,
    };
    let link = link::Config { delay: rtt / 2, rate: Some(rate), ..link::Config::seeded(1) };
    let mut pair = Pair::new(Config {
        client: host,
        server,
        forward: path::Config::new(1500, link.clone()),
        backward: path::Config::new(1500, link),
        icmp: false,
        cost: [Cost { preempted, ..Cost::default() }, Cost::default()],
    });
    pair.client.connect(pair.now).expect("empty private data fits");
    pair.run_until(Duration::from_secs(5), |pair| pair.client.is_established()).expect("opens");
    let source = VecMemory::new(REGION as usize).into_stable();
    let began = pair.now;
    let mut posted = 0;
    while pair.now.saturating_since(began) < TIME {
        while posted < pair.client.totals().bytes_acknowledged + REGION {
            let at = posted % REGION;
            pair.client.write_to(0, &source, at..at + (1 << 20), at);
            posted += 1 << 20;
        }
        pair.run_for(ms(100)).expect("virtual time advances");
    }
    pair.client.totals().bytes_acknowledged as f64 * 8e-6 / TIME.as_secs_f64()
}

fn compare<S: Setup>(title: &str, host: impl Fn(bool) -> S) {
    // The list omits pauses of 10 ms at a round-trip time of 20 ms. HyStart++ (RFC 9406) mistakes them for queueing
    // delay and ends slow start, with and without pacing.
    for (rtt, lost) in [(1, 4), (1, 10), (1, 20), (20, 4), (20, 20)] {
        let [paced, unpaced] =
            [true, false].map(|pacing| rate(host(pacing), host(pacing), ms(rtt), ms(lost)));
        println!("{title}, {rtt} ms, turns {lost} ms apart: {paced:.0} paced, {unpaced:.0} not");
        assert!(paced > 0.7 * unpaced, "{title}, {rtt} ms, {lost} ms: {paced} of {unpaced}");
    }
}

#[test]
fn pacing_costs_no_rate_with_late_polls_over_tcp() {
    compare("TCP", tcp);
}

#[test]
fn pacing_costs_no_rate_with_late_polls_over_sctp() {
    compare("SCTP", sctp);
}

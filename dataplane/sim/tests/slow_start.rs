//! Slow start with receivers that acknowledge 32 or 44 segments at once, over TCP and SCTP, in virtual time.
//!
//! Such a receiver merges segments (GRO, interrupt moderation). Its acknowledgements slow down a sender whose window
//! grows by only a few segments per acknowledgement. A sender with pacing does not need this limit (RFC 9406 §4.2; RFC
//! 9260 §7.2.1, RFC 3465). `cargo test -p sim --test slow_start -- --nocapture` prints the times.
#![allow(clippy::print_stdout, reason = "the times are what a reader wants to see")]

use core::time::Duration;

use ddp::VecMemory;
use link::{Loss, Probability};
use sim::end::{End, Setup};
use sim::host::{Host, HostConfig};
use sim::pair::{Config, Pair};
use sim::path;
use sim::sctp::{SctpConfig, SctpHost};
use sim::stretch_ack;

/// Length of the region and of the queued messages in bytes. Tests end before all of them are sent.
const BYTES: u64 = 64 << 20;
/// Window of 1000 full segments, bytes.
const WINDOW: u64 = 1000 * 1400;
/// Maximum hold time of an acknowledgement. It models a receiver that flushes merged segments at the end of each burst.
const HOLD: Duration = Duration::from_micros(20);

trait Window {
    fn cwnd(&self) -> u64;
}

impl Window for Host {
    fn cwnd(&self) -> u64 {
        self.endpoint().map_or(0, |e| e.connection().info().cwnd)
    }
}

impl Window for SctpHost {
    fn cwnd(&self) -> u64 {
        self.endpoint().map_or(0, |e| e.association().sender().cwnd())
    }
}

fn link(rtt: Duration) -> link::Config {
    link::Config { delay: rtt / 2, ..link::Config::default() }
}

/// Returns a connected pair whose client has queued its messages. The path to the client forwards one acknowledgement
/// per `segments` segments.
fn pair<S: Setup>(client: S, server: S, rtt: Duration, segments: u32) -> Pair<S> {
    let mut backward = path::Config::new(1500, link(rtt));
    backward.stretch = Some(stretch_ack::Config { segments, hold: HOLD });
    let mut pair = Pair::new(Config {
        client,
        server,
        forward: path::Config::new(1500, link(rtt)),
        backward,
        icmp: false,
        cost: Default::default(),
    });
    pair.client.connect(pair.now).expect("empty private data fits");
    pair.run_until(Duration::from_secs(1), |pair| pair.client.is_established()).expect("opens");
    let source = VecMemory::new(BYTES as usize).into_stable();
    for at in (0..BYTES).step_by(1 << 20) {
        pair.client.write_to(0, &source, at..at + (1 << 20), at);
    }
    pair
}

/// Returns the milliseconds until the client's congestion window is at least `bytes`.
fn millis_to_window<S: Setup<Host: Window>>(pair: &mut Pair<S>, bytes: u64) -> f64 {
    let began = pair.now;
    pair.run_until(Duration::from_secs(2), |pair| pair.client.cwnd() >= bytes).expect("grows");
    pair.now.saturating_since(began).as_secs_f64() * 1e3
}

fn tcp(pacing: bool) -> HostConfig {
    let mut host = HostConfig { region: BYTES as usize, ..HostConfig::default() };
    let mut tcp = tcp_lite::tcp::Config { pacing, ..Default::default() };
    tcp.acks.delay = Duration::ZERO;
    host.endpoint.tcp = std::sync::Arc::new(tcp);
    host
}

fn sctp(pacing: bool) -> SctpConfig {
    let mut host = SctpConfig { region: BYTES as usize, ..SctpConfig::default() };
    std::sync::Arc::make_mut(&mut host.sctp.send).pacing = pacing;
    host
}

/// Returns the milliseconds from the start to a congestion window of 1000 segments, at a round-trip time of 0.2 ms.
fn initial_slow_start_millis<S: Setup<Host: Window> + Clone>(
    title: &str,
    host: &S,
    segments: u32,
) -> f64 {
    let mut pair = pair(host.clone(), host.clone(), Duration::from_micros(200), segments);
    let took = millis_to_window(&mut pair, WINDOW);
    println!("{title}, {segments} at once, 0.2 ms: {took:.2} ms to 1000 segments");
    took
}

/// Returns the milliseconds from the first acknowledgement after a time-out to a congestion window of 1000 segments, at
/// a round-trip time of 2 ms.
fn timeout_slow_start_millis<S: Setup<Host: Window> + Clone>(
    title: &str,
    host: &S,
    segments: u32,
) -> f64 {
    const RTT: Duration = Duration::from_millis(2);
    let mut pair = pair(host.clone(), host.clone(), RTT, segments);
    millis_to_window(&mut pair, 2 * WINDOW);
    let lost = Loss::Random(Probability::ALWAYS);
    pair.forward.set_link(link::Config { loss: lost, ..link(RTT) });
    pair.run_until(Duration::from_secs(2), |pair| pair.client.totals().timeouts > 0)
        .expect("times out");
    assert!(pair.client.cwnd() < 3000, "{}", pair.client.cwnd());
    pair.forward.set_link(link(RTT));
    let acknowledged = pair.client.totals().bytes_acknowledged;
    // The segment retransmitted at the time-out may be lost as well. The time then counts from the acknowledgement of a
    // later segment.
    pair.run_until(Duration::from_secs(2), |pair| {
        pair.client.totals().bytes_acknowledged > acknowledged
    })
    .expect("virtual time advances");
    let took = millis_to_window(&mut pair, WINDOW);
    println!("{title}, {segments} at once, 2 ms, after a time-out: {took:.1} ms to 1000 segments");
    took
}

// By doubling, the window grows from 10 to 1000 segments in seven round trips of 0.2 ms. SCTP begins with three packets
// and needs nine round trips. The receiver adds up to 20 µs to each round trip.
#[test]
fn stretch_acks_do_not_slow_initial_slow_start() {
    for segments in [32, 44] {
        let took = initial_slow_start_millis("TCP", &tcp(true), segments);
        assert!((1.2..1.8).contains(&took), "TCP, {segments}: {took} ms");
        let took = initial_slow_start_millis("SCTP", &sctp(true), segments);
        assert!((1.6..2.4).contains(&took), "SCTP, {segments}: {took} ms");
    }
}

// By doubling, the window grows from 1 to 1000 segments in ten round trips of 2 ms. Pacing delays the last segments of
// a window by half a round trip.
#[test]
fn stretch_acks_do_not_slow_slow_start_after_timeout() {
    for segments in [32, 44] {
        let took = timeout_slow_start_millis("TCP", &tcp(true), segments);
        assert!((16.0..35.0).contains(&took), "TCP, {segments}: {took} ms");
        let took = timeout_slow_start_millis("SCTP", &sctp(true), segments);
        assert!((16.0..35.0).contains(&took), "SCTP, {segments}: {took} ms");
    }
}

// RFC 9406 §4.2: without pacing, one acknowledgement increases the window by at most eight segments, to limit bursts.
#[test]
fn unpaced_slow_start_growth_is_bounded() {
    let took = initial_slow_start_millis("TCP unpaced", &tcp(false), 32);
    assert!((2.5..8.0).contains(&took), "TCP: {took} ms");
    let took = initial_slow_start_millis("SCTP unpaced", &sctp(false), 32);
    assert!(took > 2.5, "SCTP: {took} ms");
}

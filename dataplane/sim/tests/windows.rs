//! Growth of receive windows over TCP and SCTP, in virtual time: the rate on long paths, and cases in which windows
//! must not grow. `cargo test -p sim --test windows -- --nocapture` prints the rates.
#![allow(clippy::print_stdout, reason = "the rates are what a reader wants to see")]

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use ddp::VecMemory;
use link::{Loss, Probability, Rate};
use sim::end::{End, Setup};
use sim::host::{Host, HostConfig};
use sim::pair::{Config, Pair};
use sim::path;
use sim::sctp::{SctpConfig, SctpHost};

/// Default receive window of the appliance, bytes.
const WINDOW: u64 = 4 << 20;
const LIMIT: u64 = 128 << 20;
const SEND: u64 = 128 << 20;

const GIGABITS: u64 = 10;
const MTU: usize = 9000;
/// Length of the region in bytes. Writes wrap around at its end.
const REGION: u64 = 16 << 20;
const MESSAGE: u64 = 1 << 20;

trait Window: End {
    /// Returns the bytes by which the receive window has grown beyond its configured size.
    fn growth(&self) -> u64;
    /// Returns the right edge of the receive window as a stream offset. `None` while data is missing, and over SCTP.
    fn edge(&self) -> Option<u64>;
    fn pause(&mut self, most_events: Option<u32>);
    /// Returns the number of requests that the budget for window growth refused.
    fn window_refusals(&self) -> u64;
}

impl Window for Host {
    fn growth(&self) -> u64 {
        self.endpoint().map_or(0, |e| e.connection().window_growth())
    }

    fn edge(&self) -> Option<u64> {
        let connection = self.endpoint()?.connection();
        let info = connection.info();
        (info.ranges == 0).then(|| connection.stats().recv.bytes + info.receive_window)
    }

    fn pause(&mut self, most_events: Option<u32>) {
        Host::pause(self, most_events);
    }

    fn window_refusals(&self) -> u64 {
        self.windows().refused()
    }
}

impl Window for SctpHost {
    fn growth(&self) -> u64 {
        let window = |e: &sctp_lite::endpoint::Endpoint<VecMemory>| {
            u64::from(e.association().receiver().max_window())
        };
        self.endpoint().map_or(0, window).saturating_sub(WINDOW)
    }

    fn edge(&self) -> Option<u64> {
        None
    }

    fn pause(&mut self, most_events: Option<u32>) {
        SctpHost::pause(self, most_events);
    }

    fn window_refusals(&self) -> u64 {
        self.windows().refused()
    }
}

fn tcp(limit: u64) -> HostConfig {
    let mut host = HostConfig { mtu: MTU, region: REGION as usize, ..HostConfig::default() };
    host.endpoint.tcp = Arc::new(tcp_lite::tcp::Config {
        receive_window: WINDOW as u32,
        receive_window_limit: limit as u32,
        send_window: SEND,
        ..Default::default()
    });
    host
}

fn sctp(limit: u64) -> SctpConfig {
    let mut host = SctpConfig { mtu: MTU, region: REGION as usize, ..SctpConfig::default() };
    let receive = Arc::make_mut(&mut host.sctp.receive);
    (receive.window, receive.window_limit) = (WINDOW as u32, limit as u32);
    Arc::make_mut(&mut host.sctp.send).send_window = SEND;
    host
}

/// Returns one direction of a path: 10 Gbit/s, and a queue of one bandwidth-delay product.
fn path(rtt: Duration) -> path::Config {
    let bits_per_second = NonZeroU64::new(GIGABITS * 1_000_000_000).expect("a rate");
    let queue_bytes = bits_per_second.get() / 8 * rtt.as_micros() as u64 / 1_000_000;
    let rate = Some(Rate { bits_per_second, queue_bytes });
    let link =
        link::Config { delay: rtt / 2, rate, max_frames: 1 << 20, ..link::Config::default() };
    path::Config::new(MTU, link)
}

/// Returns a pair with an established stream.
fn pair<S: Setup>(host: &S, forward: path::Config, backward: path::Config) -> Pair<S> {
    let mut pair = Pair::new(Config {
        client: host.clone(),
        server: host.clone(),
        forward,
        backward,
        icmp: false,
        cost: Default::default(),
    });
    pair.client.connect(pair.now).expect("empty private data fits");
    pair.run_until(Duration::from_secs(2), |pair| pair.client.is_established()).expect("opens");
    pair
}

/// Posts `messages` messages of 1 MiB.
fn write<H: End>(client: &mut H, source: &VecMemory, messages: u64) {
    for n in 0..messages {
        let at = n * MESSAGE % REGION;
        client.write_to(0, source, at..at + MESSAGE, at);
    }
}

fn source() -> VecMemory {
    VecMemory::new(REGION as usize).into_stable()
}

/// Advances virtual time by `time`. Checks that the server's receive window never shrinks.
fn run_checking_window<S: Setup<Host: Window>>(pair: &mut Pair<S>, time: Duration) {
    let until = pair.now + time;
    let (mut growth, mut edge) = (pair.server.growth(), 0);
    let over = |pair: &Pair<S>| {
        let now = pair.server.growth();
        assert!(now >= growth, "the window shrank from {growth} to {now}");
        growth = now;
        if let Some(at) = pair.server.edge() {
            assert!(at >= edge, "the right edge went from {edge} to {at}");
            edge = at;
        }
        pair.now >= until
    };
    pair.run_until(time + Duration::from_secs(1), over).expect("virtual time advances");
}

/// Returns the rate in Gbit/s over `measured` round trips, after `warm` round trips. Also prints the rate and the
/// growth of the window.
fn rate<S: Setup<Host: Window>>(
    title: &str,
    host: &S,
    rtt: Duration,
    warm: u32,
    measured: u32,
) -> f64 {
    let mut pair = pair(host, path(rtt), path(rtt));
    let bytes =
        GIGABITS * 1_000_000_000 / 8 * u64::from(warm + measured) * rtt.as_millis() as u64 / 1000;
    write(&mut pair.client, &source(), bytes / MESSAGE + 1);
    run_checking_window(&mut pair, warm * rtt);
    let before = pair.server.totals().bytes_in;
    run_checking_window(&mut pair, measured * rtt);
    let bits = (pair.server.totals().bytes_in - before) as f64 * 8.0;
    let rate = bits / (measured * rtt).as_secs_f64() / 1e9;
    let (grown, resent) = (pair.server.growth() >> 20, pair.client.totals().retransmitted);
    println!(
        "{title}, {} ms: {rate:.2} Gbit/s, grown by {grown} MiB, {resent} sent again",
        rtt.as_millis()
    );
    rate
}

const TEN: Duration = Duration::from_millis(10);
const HUNDRED: Duration = Duration::from_millis(100);

// A fixed window of 4 MiB would limit the rate to 3.3 Gbit/s.
#[test]
fn grown_window_fills_ten_gigabits_at_10_ms_rtt() {
    assert!(rate("TCP", &tcp(LIMIT), TEN, 30, 10) > 9.5);
    assert!(rate("SCTP", &sctp(LIMIT), TEN, 30, 10) > 9.5);
}

// A fixed window of 4 MiB would limit the rate to 0.33 Gbit/s.
#[test]
fn grown_window_fills_ten_gigabits_at_100_ms_rtt() {
    assert!(rate("TCP", &tcp(LIMIT), HUNDRED, 20, 4) > 9.0);
    assert!(rate("SCTP", &sctp(LIMIT), HUNDRED, 20, 4) > 9.0);
}

/// Runs a server that 100 times accepts at least 1 MiB and then stops reading for 20 ms, at a round-trip time of 10 ms.
fn slow_reader<S: Setup<Host: Window>>(host: &S) -> Pair<S> {
    let mut pair = pair(host, path(TEN), path(TEN));
    write(&mut pair.client, &source(), 600);
    for _ in 0..100 {
        let target = pair.server.totals().bytes_in + MESSAGE;
        pair.run_until(Duration::from_secs(5), |pair| pair.server.totals().bytes_in >= target)
            .expect("virtual time advances");
        pair.server.pause(Some(1000));
        run_checking_window(&mut pair, 2 * TEN);
        pair.server.pause(None);
    }
    pair
}

#[test]
fn slow_reader_does_not_grow_the_window() {
    assert_eq!(slow_reader(&tcp(LIMIT)).server.growth(), 0);
    assert_eq!(slow_reader(&sctp(LIMIT)).server.growth(), 0);
}

/// Runs a client that writes 1 MiB 50 times, each 10 ms after delivery of the previous write, at a round-trip time of
/// 10 ms. Returns the growth of the server's window.
fn slow_writer<S: Setup<Host: Window>>(host: &S) -> u64 {
    let (mut pair, source) = (pair(host, path(TEN), path(TEN)), source());
    for n in 1..=50 {
        write(&mut pair.client, &source, 1);
        pair.run_until(Duration::from_secs(5), |pair| pair.server.totals().tagged_delivered >= n)
            .expect("arrives");
        pair.now += TEN;
    }
    pair.server.growth()
}

#[test]
fn slow_writer_does_not_grow_the_window() {
    assert_eq!(slow_writer(&tcp(LIMIT)), 0);
    assert_eq!(slow_writer(&sctp(LIMIT)), 0);
}

/// Returns the growth of the server's window within the budget of `host`, and true if the budget refused further
/// growth.
fn growth_within_budget<S: Setup<Host: Window>>(host: &S) -> (u64, bool) {
    let mut pair = pair(host, path(TEN), path(TEN));
    write(&mut pair.client, &source(), 200);
    run_checking_window(&mut pair, 30 * TEN);
    (pair.server.growth(), pair.server.window_refusals() > 0)
}

// A window's total growth may not exceed the budget that is left afterwards. Of 20 MiB, 4 MiB are granted. The next
// step, to 12 MiB in total, would leave only 8 MiB.
#[test]
fn window_growth_stays_within_worker_budget() {
    let windows = 20 << 20;
    assert_eq!(growth_within_budget(&HostConfig { windows, ..tcp(LIMIT) }), (4 << 20, true));
    assert_eq!(growth_within_budget(&SctpConfig { windows, ..sctp(LIMIT) }), (4 << 20, true));
}

/// Transfers 256 MiB over TCP at a round-trip time of 10 ms with 0.1 % loss. Returns the bytes refused by the server,
/// the bytes retransmitted by the client, and the growth of the server's window.
fn run_lossy_transfer(markers: bool) -> (u64, u64, u64) {
    let mut host = tcp(LIMIT);
    host.endpoint.mpa.markers = markers;
    host.endpoint.mpa.hold_limit = 256 << 10;
    let mut forward = path(TEN);
    forward.link.loss = Loss::Random(Probability::from_percent(0.1).expect("a percentage"));
    let mut pair = pair(&host, forward, path(TEN));
    write(&mut pair.client, &source(), 256);
    pair.run_until(Duration::from_secs(60), |pair| pair.server.totals().tagged_delivered >= 256)
        .expect("arrives");
    let (client, server) = (pair.client.stats().tcp, pair.server.stats().tcp);
    let result = (server.recv.bytes_refused, client.loss.bytes_retransmitted, pair.server.growth());
    println!("markers {markers}: refused, sent again, grown: {result:?}");
    result
}

// With markers, the window may exceed the hold limit, because data beyond a gap is placed at once. No byte is refused,
// and only lost bytes are retransmitted.
#[test]
fn grown_window_causes_no_retransmission_storm() {
    let (refused, resent, _) = run_lossy_transfer(true);
    assert_eq!(refused, 0);
    assert!(resent < (256 << 20) / 500, "{resent}");
}

// Without markers, data beyond a gap must be held. The window is therefore limited by the hold limit and does not grow.
#[test]
fn window_without_markers_stays_below_hold_limit() {
    let (_, resent, grown) = run_lossy_transfer(false);
    assert_eq!(grown, 0);
    assert!(resent < (256 << 20) / 500, "{resent}");
}

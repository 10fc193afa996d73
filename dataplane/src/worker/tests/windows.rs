//! The worker's budget bounds the growth of auto-tuned receive windows. The growth is returned to the budget
//! when a stream ends.

use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory, Stag};

use super::test_host::*;
use crate::api::{Command, EndpointConfig, Limits, SctpConfig, Ticket};
use crate::memory::Memory;

const PORT: u16 = 4791;
const SOURCE: Stag = Stag(8);
const SINK: Stag = Stag(100);
const LEN: usize = 1 << 20;
const STREAMS: u32 = 8;
/// Initial receive window in bytes.
const WINDOW: u32 = 16 << 10;
/// Maximum receive window in bytes.
const LIMIT: u32 = 512 << 10;

fn tcp() -> EndpointConfig {
    let tcp = tcp_lite::tcp::Config {
        receive_window: WINDOW,
        receive_window_limit: LIMIT,
        ..tcp_lite::tcp::Config::default()
    };
    let endpoint = tcp_lite::endpoint::EndpointConfig { tcp: Arc::new(tcp), ..Default::default() };
    endpoint.into()
}

fn sctp() -> EndpointConfig {
    let receive = sctp_lite::sctp::receive::ReceiveConfig {
        window: WINDOW,
        window_limit: LIMIT,
        ..Default::default()
    };
    let sctp = sctp_lite::sctp::Config { receive: Arc::new(receive), ..Default::default() };
    SctpConfig { sctp: Arc::new(sctp), endpoint: Arc::default(), udp: None }.into()
}

/// Runs eight streams at once to a worker with this budget. Returns the maximum total growth of their windows in bytes,
/// and the number of refused growths.
fn transfer(endpoint: fn() -> EndpointConfig, window_bytes: usize) -> (u64, u64) {
    let limits = Limits { window_bytes, ..Limits::default() };
    let mut net = Net::new(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    net.turn_time = Duration::from_micros(200);
    net.hosts[1].listen_as(PORT, 100, 100, endpoint());
    let source = net.hosts[0].region(SOURCE.0, LEN, Access::NONE);
    source.write(0, &pattern(LEN));
    net.run_until_idle();
    // Each stream has its own configuration and therefore its own association.
    let streams: Vec<_> =
        (0..STREAMS).map(|_| net.open_as(0, 0, 1, (v4(2), PORT).into(), endpoint()).0).collect();
    let writes: Vec<(Ticket, Memory)> = (0..)
        .zip(&streams)
        .map(|(n, &stream)| {
            let stag = Stag(SINK.0 + n);
            let sink = net.hosts[1].region(stag.0, LEN, Access::REMOTE_WRITE);
            (net.hosts[0].write(stream, (SOURCE, &source), stag, LEN as u32), sink)
        })
        .collect();
    let mut max_growth = 0;
    for (ticket, sink) in writes {
        net.wait_sent(0, ticket);
        max_growth = max_growth.max(net.hosts[1].count("window_bytes"));
        assert!(read_memory(&sink) == pattern(LEN));
    }
    for stream in streams {
        net.hosts[0].command(0, |_| Command::Close { stream, abort: true });
    }
    net.advance(Duration::from_secs(1));
    assert_eq!(net.hosts[1].count("window_bytes"), 0, "released with the streams");
    (max_growth, net.hosts[1].count("window_refusals"))
}

#[test]
fn receive_windows_of_many_streams_stay_within_budget() {
    for endpoint in [tcp, sctp] {
        let budget = 256 << 10;
        let (max_growth, refusals) = transfer(endpoint, budget);
        assert!(max_growth > budget as u64 / 4 && max_growth <= budget as u64, "{max_growth}");
        assert!(refusals > 0);
        // With a larger budget the windows grow more: the smaller budget has limited them.
        let (max_growth, _) = transfer(endpoint, 64 << 20);
        assert!(max_growth > budget as u64, "{max_growth}");
    }
}

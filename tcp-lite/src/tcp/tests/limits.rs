//! Limits of the sender (application, peer's window and others), and the time spent in each.

use super::script::{Script, config, config_with, established};
use crate::tcp::{Config, Limit};
use base::Instant;

/// Returns the sender's limit at `ms` milliseconds, and the time in each limit of [`Limit::ALL`], rounded to multiples
/// of 10 ms.
fn limits(script: &Script, ms: u64) -> (Limit, [u64; 7]) {
    let info = script.conn.limits(Instant::ZERO + core::time::Duration::from_millis(ms));
    (info.limit, info.times.map(|time| (time.get() / 1_000_000 + 5) / 10 * 10))
}

#[test]
fn sender_without_data_is_application_limited() {
    let script = established(
        config(),
        "1.0 write 500
         1.0 > P. 1:501(500) ack 1
         1.1 < . 1:1(0) ack 501 win 5000",
    );
    assert_eq!(limits(&script, 2000), (Limit::Application, [0; 7]));
}

#[test]
fn closed_peer_window_limits_until_it_opens() {
    let script = established(
        config(),
        "1.0 < . 1:1(0) ack 1 win 1000
         1.0 write 2000
         1.0 > . 1:1001(1000) ack 1
         1.1 < . 1:1(0) ack 1001 win 0
         1.2 < . 1:1(0) ack 1001 win 2000
         1.2 > P. 1001:2001(1000) ack 1
         1.3 < . 1:1(0) ack 2001 win 2000",
    );
    assert_eq!(limits(&script, 1300), (Limit::Application, [0, 200, 0, 0, 0, 0, 0]));
}

#[test]
fn send_window_limit_is_distinct_from_peer_window() {
    let limited = |change: fn(&mut Config)| {
        let script = established(
            config_with(config(), change),
            "1.0 < . 1:1(0) ack 1 win 9000
             1.0 write 3000
             1.0 > . 1:1001(1000) ack 1
             1.0 > . 1001:2001(1000) ack 1
             1.1 < . 1:1(0) ack 2001 win 9000
             1.1 > P. 2001:3001(1000) ack 1
             1.2 < . 1:1(0) ack 3001 win 9000",
        );
        limits(&script, 1300)
    };
    let by_window = limited(|config| (config.send_window, config.initial_window) = (2000, 4));
    assert_eq!(by_window, (Limit::Application, [0, 0, 100, 0, 0, 0, 0]));
}

#[test]
fn full_cwnd_is_congestion_window_limited() {
    let script = established(
        config_with(config(), |config| config.initial_window = 1),
        "1.0 < . 1:1(0) ack 1 win 9000
         1.0 write 3000
         1.0 > . 1:1001(1000) ack 1
         1.1 < . 1:1(0) ack 1001 win 9000
         1.1 > . 1001:2001(1000) ack 1
         1.1 > P. 2001:3001(1000) ack 1",
    );
    assert_eq!(limits(&script, 1150), (Limit::Application, [0, 0, 0, 100, 0, 0, 0]));
}

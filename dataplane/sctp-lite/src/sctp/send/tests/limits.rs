//! The sender reports which limit stopped transmission.

use super::*;
use transport::limits::Limit;

fn current_limit(side: &Side) -> Limit {
    side.sender.limits(side.now).limit
}

#[test]
fn each_sender_limit_is_reported() {
    let wide = SendConfig { initial_window: Some(100), ..config() };
    let mut side = side_with(wide.clone(), 4000);
    side.source.push(3, 1000);
    side.send();
    assert_eq!(
        (current_limit(&side), side.sender.history.limits.is_blank()),
        (Limit::Application, true)
    );
    side.source.push(100, 1000);
    side.send();
    assert_eq!(current_limit(&side), Limit::PeerWindow);
    side.wait(20 * MS);
    let since = side.sender.limits(side.now).times[Limit::PeerWindow as usize];
    assert!(Duration::from(since).abs_diff(20 * MS) < 2 * MS, "{since:?}");

    let mut side = side_with(SendConfig { send_window: 4000, ..wide.clone() }, ROOM);
    side.source.push(100, 1000);
    side.send();
    assert_eq!(current_limit(&side), Limit::SendWindow);

    let mut side = side_with(SendConfig { initial_window: Some(2), ..config() }, ROOM);
    side.source.push(100, 1000);
    side.send();
    assert_eq!(current_limit(&side), Limit::CongestionWindow);

    let mut side = side_with(SendConfig { max_burst: 4, ..wide }, ROOM);
    side.source.push(100, usize::MAX);
    side.send();
    assert_eq!(current_limit(&side), Limit::Pacing);

    let mut side =
        side_with(SendConfig { initial_window: Some(50), ..SendConfig::default() }, ROOM);
    side.sender.on_rtt_sample(50 * MS);
    side.source.push(40, usize::MAX);
    side.send();
    assert_eq!(current_limit(&side), Limit::Pacing);
    // The rate is at least one and less than four congestion windows per round trip.
    let rate = side.sender.pacing_rate().expect("a paced sender");
    assert!((1..4).contains(&(rate / (20 * side.sender.cwnd()))), "{rate}");
    assert_eq!(in_flight(1).sender.pacing_rate(), None);
}

#[test]
fn full_batch_is_reported_as_port_limit() {
    let mut side = side_with(SendConfig { initial_window: Some(100), ..config() }, ROOM);
    side.source.push(100, usize::MAX);
    assert!(side.packet().is_some());
    side.sender.end_round(side.now, &mut side.source);
    assert_eq!(current_limit(&side), Limit::Port);
}

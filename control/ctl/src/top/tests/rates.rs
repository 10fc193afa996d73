//! Rates from two samples, and the schedule of the requests.

use super::super::sample::{Totals, rate};
use super::*;
use crate::top::screen::PollSchedule;

#[test]
fn rate_is_difference_over_elapsed_time() {
    let ms = Duration::from_millis;
    assert_eq!(rate(1000, 3000, ms(500)), Some(4000.0));
    assert_eq!(rate(5, 5, ms(500)), Some(0.0));
    assert_eq!(rate(3000, 1000, ms(500)), None, "the counter decreased");
    assert_eq!(rate(0, 1, Duration::ZERO), None);
    assert_eq!(rate(0, u64::MAX, Duration::from_secs(1)), Some(u64::MAX as f64));
}

#[test]
fn rates_need_two_samples() {
    let mut state = state_after_samples(1);
    assert_eq!((state.totals, state.rx.len()), (Totals::default(), 0));
    assert!(state.table.rows.iter().all(|row| row.cells[2].text == "-"));
    state = state_after_samples(2);
    let totals = Totals { rx: Some(125e6), tx: Some(1.25e6), drops: Some(4.0) };
    assert_eq!(
        (state.totals, &state.rx, &state.tx),
        (totals, &[125_000_000].into(), &[1_250_000].into())
    );
    let cells: Vec<[&str; 2]> = state
        .table
        .rows
        .iter()
        .map(|row| [row.cells[2].text.as_str(), row.cells[3].text.as_str()])
        .collect();
    assert_eq!(cells, [["0 ", "16.0 M"], ["8.0 M", "0 "], ["0 ", "0 "]]);
}

/// Counters of another process are not comparable, even if they are larger.
#[test]
fn restarted_appliance_has_no_rates() {
    let start = Instant::now();
    for (pid, uptime) in [(8, 9000.0), (7, 1.0)] {
        let mut state = State::new(View::Streams, Duration::from_secs(1));
        state.handle_sample(Ok(sample(start, 0)));
        let mut again = sample(start, 5);
        (again.status.pid, again.status.uptime_seconds) = (pid, uptime);
        state.handle_sample(Ok(again));
        assert_eq!((state.totals, state.rx.len()), (Totals::default(), 0), "{pid} {uptime}");
        assert!(state.table.rows.iter().all(|row| row.cells[2].text == "-"));
    }
}

#[test]
fn new_stream_has_no_rate() {
    let (mut state, start) = (state_after_samples(1), Instant::now());
    let mut second = sample(start + Duration::from_secs(1), 1);
    let streams = &mut second.streams.as_mut().unwrap().value;
    streams.push(stream(0x0400_0000, "10.77.0.9:1", 1 << 30, 0));
    state.handle_sample(Ok(second));
    let new = state.table.rows.iter().find(|row| row.id == "0000000004000000").unwrap();
    assert_eq!((new.cells[2].text.as_str(), new.load), ("-", 0.0));
}

#[test]
fn rate_history_is_bounded() {
    assert_eq!(state_after_samples(500).rx.len(), 300);
}

#[test]
fn polling_takes_at_most_a_third_of_time() {
    let (start, ms) = (Instant::now(), Duration::from_millis);
    let (second, mut pace) = (ms(1000), PollSchedule::new(start));
    assert!(pace.is_due(start, false));
    pace.record_request(start);
    assert!(!pace.is_due(start + 20 * second, false), "one request at a time");
    pace.record_answer(start + ms(10), second, true);
    assert!(!pace.is_due(start + ms(999), false) && pace.is_due(start + second, false));
    assert!(!pace.is_due(start + 9 * second, true), "a pause");
    pace.request_now();
    assert!(pace.is_due(start + ms(11), true), "a key requests a sample");
    // The request takes 800 ms, so a pause of 1.6 s follows.
    pace.record_request(start + second);
    pace.record_answer(start + ms(1800), second, true);
    assert!(!pace.is_due(start + ms(3399), false) && pace.is_due(start + ms(3400), false));
}

#[test]
fn silence_is_counted_from_the_last_answer() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let mut pace = PollSchedule::new(start);
    pace.record_request(start);
    pace.record_answer(start + second, second, true);
    assert_eq!(pace.silent_for(start + 3 * second, false), None);
    pace.record_request(start + 3 * second);
    assert_eq!(pace.silent_for(start + 4 * second, false), None);
    assert_eq!(pace.silent_for(start + 5 * second, false), Some(4 * second));
    pace.record_answer(start + 8 * second, second, false);
    assert_eq!(pace.silent_for(start + 8 * second, true), Some(7 * second));
    assert!(pace.is_due(start + 9 * second, false), "requests continue");
}

//! Stalls of a polling core. A thread on each core only reads the clock. A gap of at least 500 ns between two readings
//! is a stall, caused by another program, an interrupt or another virtual machine.
//!
//! Stalls are a lower bound for tail latencies. A message that arrives during a stall waits until the stall ends, with
//! any data plane.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::limits::pin_to_core;
use crate::row::Row;

/// Minimum length of a stall. Shorter gaps are the cost of reading the clock.
const MIN_STALL: Duration = Duration::from_nanos(500);
/// Maximum number of recorded stalls per core. A measurement with more stalls fails, because the quantiles would be too
/// low without the omitted stalls.
const MAX_STALLS: usize = 1 << 20;
/// Assumed round trip of an echo without a stall, a lower bound.
const MIN_ECHO_TIME: Duration = Duration::from_micros(2);

/// Measurement of the stalls of two cores. The stalls of both are combined, because a message needs both cores.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stalls {
    /// Name of the row, unique in a run.
    pub name: String,
    /// Name of the row's group in the plan.
    pub group: String,
    /// Numbers of the two measured cores.
    pub cores: [usize; 2],
    /// Seconds of the measurement.
    pub seconds: f64,
}

impl Stalls {
    /// Returns the row of the report, before the measurement: without a value.
    pub fn row(&self) -> Row {
        Row::new(&self.group, &self.name, "us")
    }

    /// Measures the stalls. The row's value is the 99.9 % quantile, microseconds, of the time that an open-loop message
    /// waits for stalls of both cores.
    pub fn measure(&self) -> anyhow::Result<Row> {
        let time = Duration::from_secs_f64(self.seconds);
        let threads = self.cores.map(|core| std::thread::spawn(move || record_stalls(core, time)));
        let mut stalls = Vec::new();
        for thread in threads {
            let seen =
                thread.join().map_err(|_| anyhow::anyhow!("the thread of a core panicked"))?;
            stalls.extend(seen?);
        }
        stalls.sort_unstable();
        let mut row = self.row();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        row.set(us(open_loop_quantile(&stalls, time, 0.001)));
        row.add_extra(
            "echo_p99_9_us",
            us(closed_loop_quantile(&stalls, time, 0.001).max(MIN_ECHO_TIME)),
        );
        let taken: Duration = stalls.iter().sum();
        row.add_extra("cores_taken", taken.as_secs_f64() / time.as_secs_f64());
        row.add_extra("stalls_per_s", stalls.len() as f64 / time.as_secs_f64());
        row.add_extra("longest_us", us(stalls.last().copied().unwrap_or_default()));
        Ok(row)
    }
}

/// Records the stalls of a core for `time`.
fn record_stalls(core: usize, time: Duration) -> anyhow::Result<Vec<Duration>> {
    pin_to_core(core)?;
    let mut stalls = Vec::with_capacity(MAX_STALLS);
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < time {
        let now = Instant::now();
        if now - last >= MIN_STALL {
            anyhow::ensure!(stalls.len() < MAX_STALLS, "core {core} stalls too often");
            stalls.push(now - last);
        }
        last = now;
    }
    Ok(stalls)
}

/// Returns the time `w` such that a message that arrives at a random moment waits longer than `w` with probability
/// `share`. `stalls` of a measurement of length `time` are in ascending order.
fn open_loop_quantile(stalls: &[Duration], time: Duration, share: f64) -> Duration {
    // Messages that arrive in the first s - w of a stall of length s > w wait longer than w. Finds the w for which the
    // sum of s - w over all stalls longer than w is `share * time`.
    let most = time.mul_f64(share);
    let mut sum = Duration::ZERO;
    for (count, &stall) in (0..).zip(stalls.iter().rev().chain([&Duration::ZERO])) {
        // For w from `stall` to the shortest of the `count` stalls in `sum`, the sum of s - w is `sum - count * w`.
        if count > 0 && sum.saturating_sub(stall * count) >= most {
            return (sum - most) / count;
        }
        sum += stall;
    }
    Duration::ZERO
}

/// Returns the shortest wait among the worst `share` of closed-loop echoes. Each stall delays one echo, because only
/// one echo is in flight. `stalls` of a measurement of length `time` are in ascending order.
fn closed_loop_quantile(stalls: &[Duration], time: Duration, share: f64) -> Duration {
    let echoes = time.saturating_sub(stalls.iter().sum()).div_duration_f64(MIN_ECHO_TIME);
    let hit = (echoes * share).ceil() as usize;
    hit.checked_sub(1).and_then(|at| stalls.iter().rev().nth(at)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(times: &[u64]) -> Vec<Duration> {
        times.iter().map(|&time| Duration::from_millis(time)).collect()
    }

    #[test]
    fn random_moment_waits_for_rest_of_stall() {
        assert_eq!(open_loop_quantile(&[], SECOND, 0.001), Duration::ZERO);
        // A stall of 11 ms within a second: only the first millisecond, 0.1 % of all moments, waits longer than 10 ms.
        assert_eq!(open_loop_quantile(&ms(&[11]), SECOND, 0.001), Duration::from_millis(10));
        assert_eq!(open_loop_quantile(&ms(&[1, 11]), SECOND, 0.001), Duration::from_millis(10));
        // Each of two equal stalls contributes its first millisecond, together 0.2 % of all moments.
        assert_eq!(open_loop_quantile(&ms(&[11, 11]), SECOND, 0.002), Duration::from_millis(10));
        // 0.5 % of a second is 5 ms, and (8 - w) + (5 - w) = 5 for w = 4.
        assert_eq!(open_loop_quantile(&ms(&[5, 8]), SECOND, 0.005), Duration::from_millis(4));
        // All stalls together take less than 1 % of the time, so the quantile is zero.
        assert_eq!(open_loop_quantile(&ms(&[1]), SECOND, 0.01), Duration::ZERO);
    }

    #[test]
    fn each_stall_delays_one_echo() {
        // The stalls take 180.3 ms. The remaining time allows 409,850 echoes of 2 µs, and the slowest 0.1 % are 410.
        let stalls: Vec<_> = (1..=600).map(Duration::from_micros).collect();
        assert_eq!(closed_loop_quantile(&stalls, SECOND, 0.001), Duration::from_micros(191));
        assert_eq!(closed_loop_quantile(&stalls[..300], SECOND, 0.001), Duration::ZERO);
    }

    /// Two threads share a core, so that one of them is always stalled.
    #[test]
    fn shared_core_stalls() {
        let core = core_affinity::get_core_ids().unwrap().first().unwrap().id;
        let (name, group) = ("x".into(), "g".into());
        let row = Stalls { name, group, cores: [core; 2], seconds: 0.1 }.measure().unwrap();
        assert!(row.not_run.is_none());
        assert!(row.extra["cores_taken"] > 0.5, "{row:?}");
        assert!(row.value.unwrap() > 100.0 && row.extra["echo_p99_9_us"] >= 2.0, "{row:?}");
    }
}

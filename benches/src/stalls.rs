//! How long a thread that polls on a core is kept from it. Each core does nothing but read the clock; a gap between two readings is a
//! stall: another program, an interrupt, or another virtual machine. About the least that a tail can be: a message that
//! needs the core waits as long, whatever the data plane does.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::limits::pin;
use crate::row::Row;

/// Shorter gaps are those of the readings themselves.
const LEAST: Duration = Duration::from_nanos(500);
/// Stalls of a core that are kept. With more there is no row: its tails would be too low.
const MOST: usize = 1 << 20;
/// What an echo takes that no stall hits, at least.
const ECHO: Duration = Duration::from_micros(2);

/// Both cores at once, as both are needed at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stalls {
    /// What the row is called.
    pub name: String,
    /// Its group.
    pub group: String,
    /// The cores.
    pub cores: [usize; 2],
    /// How long.
    pub seconds: f64,
}

impl Stalls {
    /// The row that it makes, still without number.
    pub fn row(&self) -> Row {
        Row::new(&self.group, &self.name, "us")
    }

    /// Measures. The value is what one in a thousand messages waits that come at times of their own and need both cores
    /// then.
    pub fn measure(&self) -> anyhow::Result<Row> {
        let time = Duration::from_secs_f64(self.seconds);
        let threads = self.cores.map(|core| std::thread::spawn(move || watch(core, time)));
        let mut stalls = Vec::new();
        for thread in threads {
            let seen = thread.join().map_err(|_| anyhow::anyhow!("a core was not watched"))?;
            stalls.extend(seen?);
        }
        stalls.sort_unstable();
        let mut row = self.row();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        row.set(us(waited(&stalls, time, 0.001)));
        row.also("echo_p99_9_us", us(of_echoes(&stalls, time, 0.001).max(ECHO)));
        let taken: Duration = stalls.iter().sum();
        row.also("cores_taken", taken.as_secs_f64() / time.as_secs_f64());
        row.also("stalls_per_s", stalls.len() as f64 / time.as_secs_f64());
        row.also("longest_us", us(stalls.last().copied().unwrap_or_default()));
        Ok(row)
    }
}

/// The stalls of a core.
fn watch(core: usize, time: Duration) -> anyhow::Result<Vec<Duration>> {
    pin(core)?;
    let mut stalls = Vec::with_capacity(MOST);
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < time {
        let now = Instant::now();
        if now - last >= LEAST {
            anyhow::ensure!(stalls.len() < MOST, "core {core} is taken away all the time");
            stalls.push(now - last);
        }
        last = now;
    }
    Ok(stalls)
}

/// What this share of all moments still has to wait at least until no stall is under way. `stalls` are in ascending order.
fn waited(stalls: &[Duration], time: Duration, share: f64) -> Duration {
    // Of a stall s, all but the last w wait longer than w: find w at which the sum of s - w is the share.
    let most = time.mul_f64(share);
    let mut sum = Duration::ZERO;
    for (count, &stall) in (0..).zip(stalls.iter().rev().chain([&Duration::ZERO])) {
        // Down to this stall's length w, `sum - count * w` is above it.
        if count > 0 && sum.saturating_sub(stall * count) >= most {
            return (sum - most) / count;
        }
        sum += stall;
    }
    Duration::ZERO
}

/// What this share of echoes has waited at least, one echo after the other: a stall hits one. `stalls` are in ascending order.
fn of_echoes(stalls: &[Duration], time: Duration, share: f64) -> Duration {
    let echoes = time.saturating_sub(stalls.iter().sum()).div_duration_f64(ECHO);
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
    fn a_moment_waits_for_the_rest_of_a_stall() {
        assert_eq!(waited(&[], SECOND, 0.001), Duration::ZERO);
        // One of 11 ms in a second: a thousandth of the moments is in its first millisecond.
        assert_eq!(waited(&ms(&[11]), SECOND, 0.001), Duration::from_millis(10));
        assert_eq!(waited(&ms(&[1, 11]), SECOND, 0.001), Duration::from_millis(10));
        // Of two, each has half of them.
        assert_eq!(waited(&ms(&[11, 11]), SECOND, 0.002), Duration::from_millis(10));
        // 5 ms above w in both: (8 - w) + (5 - w) = 5.
        assert_eq!(waited(&ms(&[5, 8]), SECOND, 0.005), Duration::from_millis(4));
        // All stalls together are less than the share.
        assert_eq!(waited(&ms(&[1]), SECOND, 0.01), Duration::ZERO);
    }

    #[test]
    fn a_stall_hits_one_echo() {
        // 180 ms are taken; in the rest there is time for 409,850 echoes, of which the 410 slowest count.
        let stalls: Vec<_> = (1..=600).map(Duration::from_micros).collect();
        assert_eq!(of_echoes(&stalls, SECOND, 0.001), Duration::from_micros(191));
        assert_eq!(of_echoes(&stalls[..300], SECOND, 0.001), Duration::ZERO);
    }

    /// Two threads on one core: one of them is always kept from it.
    #[test]
    fn a_core_that_is_shared_stalls() {
        let core = core_affinity::get_core_ids().unwrap().first().unwrap().id;
        let (name, group) = ("x".into(), "g".into());
        let row = Stalls { name, group, cores: [core; 2], seconds: 0.1 }.measure().unwrap();
        assert!(row.not_run.is_none());
        assert!(row.extra["cores_taken"] > 0.5, "{row:?}");
        assert!(row.value.unwrap() > 100.0 && row.extra["echo_p99_9_us"] >= 2.0, "{row:?}");
    }
}

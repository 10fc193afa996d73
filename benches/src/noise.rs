//! Checks for disturbances. The two cores must be close to each other and not shared with other programs.
//!
//! On a virtual machine neither is guaranteed: the host moves the virtual cores, and other machines may use the sibling
//! hardware threads. The cores are checked before and after each measurement, independently of its result. A noisy
//! measurement is marked and kept, because ratios of A/B measurements remain meaningful.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limits::pin_to_core;

/// Maximum round trip of a cache line between the cores, nanoseconds. If a round trip takes longer, the cores are too
/// far from each other and absolute numbers are meaningless.
pub const NOISY_NS: f64 = 150.0;
/// Minimum copy rate relative to the highest rate of the run. A lower rate indicates that another program uses the same
/// physical core.
pub const NOISY_COPY_SHARE: f64 = 0.85;
/// Duration of each of the two checks, round trip and copy rate.
const CHECK_TIME: Duration = Duration::from_millis(5);

/// Results of the checks of the cores during a run.
pub struct NoiseMonitor {
    cores: [usize; 2],
    /// Round trips of a cache line between the cores, nanoseconds.
    pub ping_pong: Vec<f64>,
    /// Copy rates of the slower core within its L1 cache, GB/s.
    pub copies: Vec<f64>,
    /// Maximum of `copies`, GB/s.
    best_copy: f64,
}

impl NoiseMonitor {
    /// Checks the cores for half a second to find their best copy rate.
    pub fn new(cores: [usize; 2]) -> NoiseMonitor {
        let mut watch =
            NoiseMonitor { cores, ping_pong: Vec::new(), copies: Vec::new(), best_copy: 0.0 };
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(500) {
            watch.check_quiet();
        }
        watch
    }

    /// Checks the cores. Returns true if round trip and copy rate are within [`NOISY_NS`] and [`NOISY_COPY_SHARE`].
    pub fn check_quiet(&mut self) -> bool {
        let distance = measure_ping_pong(self.cores, CHECK_TIME).ok();
        self.ping_pong.extend(distance);
        let copied = measure_copy_rate(self.cores, CHECK_TIME).ok();
        self.copies.extend(copied);
        self.best_copy = self.best_copy.max(copied.unwrap_or(0.0));
        distance.is_some_and(|ns| ns <= NOISY_NS)
            && copied.is_some_and(|rate| rate >= self.best_copy * NOISY_COPY_SHARE)
    }

    /// Returns the copy rate of the last check, GB/s. `None` before the first check.
    pub fn last_copy_rate(&self) -> Option<f64> {
        self.copies.last().copied()
    }

    /// Returns true if the copy rate `copied`, GB/s, is too low relative to the best rate so far. The check
    /// is repeated for all repetitions at the end of a run, because the best rate may have been measured late.
    pub fn is_below_best(&self, copied: f64) -> bool {
        copied < self.best_copy * NOISY_COPY_SHARE
    }
}

#[repr(align(128))]
struct CacheLine(AtomicU64);

/// Returns the round-trip time of a cache line between the cores, nanoseconds. The result is the median of batches of
/// `ROUNDS` round trips, so that interruptions of a core do not affect it.
fn measure_ping_pong(cores: [usize; 2], time: Duration) -> anyhow::Result<f64> {
    const ROUNDS: u64 = 1000;
    let line = Arc::new(CacheLine(AtomicU64::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let (there, ends) = (line.clone(), over.clone());
    let other = std::thread::spawn(move || -> anyhow::Result<()> {
        pin_to_core(cores[1])?;
        while !ends.load(Ordering::Relaxed) {
            let seen = there.0.load(Ordering::Acquire);
            if seen % 2 == 1 {
                there.0.store(seen + 1, Ordering::Release);
            } else {
                spin_loop();
            }
        }
        Ok(())
    });
    let here = std::thread::spawn(move || -> anyhow::Result<f64> {
        pin_to_core(cores[0])?;
        let (begin, mut samples) = (Instant::now(), Vec::new());
        let mut next = 0;
        while begin.elapsed() < time {
            let from = Instant::now();
            for _ in 0..ROUNDS {
                line.0.store(next + 1, Ordering::Release);
                while line.0.load(Ordering::Acquire) != next + 2 {
                    spin_loop();
                    if begin.elapsed() > time * 4 {
                        anyhow::bail!("the other core does not answer");
                    }
                }
                next += 2;
            }
            samples.push(from.elapsed().as_nanos() as f64 / ROUNDS as f64);
        }
        Ok(crate::row::median(&samples))
    });
    let result = here.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    over.store(true, Ordering::Relaxed);
    other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    result
}

/// Measures the copy rate of both cores within their L1 caches, at the same time. Returns the rate of the slower core,
/// GB/s. A core's rate is the median of many short rounds.
fn measure_copy_rate(cores: [usize; 2], time: Duration) -> anyhow::Result<f64> {
    const LEN: usize = 8192;
    const ROUNDS: usize = 64;
    let copy = move |core: usize| -> anyhow::Result<f64> {
        pin_to_core(core)?;
        let (from, mut to, mut rounds) = (vec![1u8; LEN], vec![0u8; LEN], Vec::new());
        let begin = Instant::now();
        while begin.elapsed() < time {
            let round = Instant::now();
            for _ in 0..ROUNDS {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
            rounds.push((ROUNDS * LEN) as f64 / round.elapsed().as_nanos() as f64);
        }
        Ok(crate::row::median(&rounds))
    };
    let threads = cores.map(|core| std::thread::spawn(move || copy(core)));
    let mut least = f64::MAX;
    for thread in threads {
        least = least.min(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_cores_are_not_quiet() {
        let (ping_pong, copies) = (Vec::new(), Vec::new());
        let mut watch = NoiseMonitor { cores: [usize::MAX; 2], ping_pong, copies, best_copy: 0.0 };
        assert!(!watch.check_quiet());
        assert!(watch.ping_pong.is_empty() && watch.copies.is_empty());
        watch.best_copy = 100.0;
        assert!(watch.is_below_best(80.0) && !watch.is_below_best(90.0));
    }
}

//! The service manager's watchdog. It is fed while all serving threads make progress.
//!
//! A separate thread checks the serving threads at half the manager's interval (`WATCHDOG_USEC`). It feeds the watchdog
//! if every worker and every control thread has completed an iteration of its loop (a turn) since the last feed. An
//! idle worker still iterates, and each check wakes the control threads. A stuck thread is logged once. The checks then
//! become more frequent, so that the watchdog is fed as soon as all threads iterate again. The checks and the feed take
//! no lock and send no request, so no other thread can block them.

use std::fmt;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::Counters;

use super::Service;
use crate::waker::Waker;

/// Checks per interval while a thread is stuck.
const CHECKS_WHEN_STUCK: u32 = 20;

/// Returns the watchdog interval from the environment. Returns `None` without a watchdog, if the watchdog is for
/// another process, or if a value is invalid (logged).
pub fn interval_from_env() -> Option<Duration> {
    let value = |name| std::env::var(name).ok();
    match interval(
        value("WATCHDOG_USEC").as_deref(),
        value("WATCHDOG_PID").as_deref(),
        process::id(),
    ) {
        Ok(interval) => interval,
        Err(sentence) => {
            tracing::warn!("{sentence}: the watchdog is not fed");
            None
        }
    }
}

/// Returns the interval from the values of `WATCHDOG_USEC` and `WATCHDOG_PID`. `own` is the ID of this process. `None`
/// if `WATCHDOG_USEC` is absent or 0, or if `WATCHDOG_PID` names another process.
///
/// # Errors
/// A value is not a number. The error is one sentence.
pub fn interval(
    usec: Option<&str>,
    pid: Option<&str>,
    own: u32,
) -> Result<Option<Duration>, String> {
    let Some(usec) = usec else { return Ok(None) };
    let number = |name: &str, text: &str| {
        text.parse::<u64>().map_err(|_| format!("{name} is `{}`, no number", text.escape_debug()))
    };
    if let Some(pid) = pid
        && number("WATCHDOG_PID", pid)? != u64::from(own)
    {
        return Ok(None);
    }
    let usec = number("WATCHDOG_USEC", usec)?;
    Ok((usec > 0).then(|| Duration::from_micros(usec)))
}

/// Progress of a control thread.
#[derive(Debug, Default)]
pub struct Pulse {
    turns: AtomicU64,
    stopping: AtomicBool,
    ended: AtomicBool,
}

impl Pulse {
    /// Counts a turn. `stopping`: the workers are being stopped, and their turns are no longer checked.
    pub fn count_turn(&self, stopping: bool) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.stopping.store(stopping, Ordering::Relaxed);
    }

    /// Marks the normal end of the thread. The watchdog then ignores the thread.
    pub fn mark_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Threads of one appliance.
#[derive(Clone, Debug)]
pub struct WatchedAppliance {
    /// Name of the appliance, for the log.
    pub appliance: String,
    /// Turns of its control thread.
    pub control: Arc<Pulse>,
    /// Wakes the control thread.
    pub waker: Waker,
    /// Counters of its workers, which include turns.
    pub workers: Vec<Arc<Counters>>,
}

/// A thread without a turn since the last feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    appliance: String,
    /// Index of the worker; `None` for the control thread.
    worker: Option<usize>,
    /// Turns counted so far.
    turns: u64,
    /// Time since the check that first observed this number of turns.
    since: Duration,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stuck { appliance, worker, turns, since } = self;
        write!(f, "appliance {appliance}: ")?;
        match worker {
            Some(worker) => write!(f, "worker {worker}")?,
            None => f.write_str("the control thread")?,
        }
        let since = since.as_secs_f64();
        write!(f, " has made no progress for {since:.1} s; its last turn was {turns}")
    }
}

/// Observed turns of one thread.
#[derive(Clone, Copy, Debug)]
struct TurnObservation {
    /// Number of the thread's turns when the watchdog was last fed.
    turns_at_feed: u64,
    /// Number of the thread's turns at the last check.
    turns: u64,
    /// Time at which this number of turns was first observed.
    observed_at: Instant,
}

impl TurnObservation {
    /// Updates the observation. If the thread has completed no turn since the last feed, returns the time since its
    /// last turn was observed. Otherwise returns `None`.
    fn update(&mut self, turns: u64, now: Instant) -> Option<Duration> {
        if turns != self.turns {
            (self.turns, self.observed_at) = (turns, now);
        }
        (self.turns == self.turns_at_feed).then(|| now.saturating_duration_since(self.observed_at))
    }
}

/// All watched threads and their last observations.
#[derive(Debug)]
pub struct Watchdog {
    /// Each appliance with the observations of its control thread and of its workers.
    watched: Vec<(WatchedAppliance, TurnObservation, Vec<TurnObservation>)>,
}

impl Watchdog {
    /// Returns a watchdog that is considered fed at `now`.
    pub fn new(watched: Vec<WatchedAppliance>, now: Instant) -> Watchdog {
        let seen = |turns| TurnObservation { turns_at_feed: turns, turns, observed_at: now };
        let watched = watched.into_iter().map(|watched| {
            let control = seen(watched.control.turns.load(Ordering::Relaxed));
            let workers = watched.workers.iter().map(|worker| seen(worker.run.turns.get()));
            let workers = workers.collect();
            watched.waker.wake();
            (watched, control, workers)
        });
        Watchdog { watched: watched.collect() }
    }

    /// Returns the threads without a turn since the last feed. If there are none, the check is recorded as a feed.
    pub fn check(&mut self, now: Instant) -> Vec<Stuck> {
        let mut stuck = Vec::new();
        for (watched, control, workers) in &mut self.watched {
            let WatchedAppliance { appliance, control: pulse, waker, workers: counters } = watched;
            if pulse.ended.load(Ordering::Relaxed) {
                continue;
            }
            let mut found = |worker, since: Option<Duration>, turns| {
                let appliance = appliance.clone();
                stuck.extend(since.map(|since| Stuck { appliance, worker, turns, since }));
            };
            found(None, control.update(pulse.turns.load(Ordering::Relaxed), now), control.turns);
            waker.wake();
            if pulse.stopping.load(Ordering::Relaxed) {
                continue;
            }
            for (at, (seen, counters)) in workers.iter_mut().zip(counters).enumerate() {
                let since = seen.update(counters.run.turns.get(), now);
                found(Some(at), since, seen.turns);
            }
        }
        if stuck.is_empty() {
            for (_, control, workers) in &mut self.watched {
                control.turns_at_feed = control.turns;
                workers.iter_mut().for_each(|seen| seen.turns_at_feed = seen.turns);
            }
        }
        stuck
    }
}

/// The thread that feeds the watchdog. Dropping it ends the thread.
#[derive(Debug)]
pub struct Feeder {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Feeder {
    /// Starts feeding at half of `interval`. Calls `report` once for each stuck thread; again only after a feed.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start(
        service: Service,
        watched: Vec<WatchedAppliance>,
        interval: Duration,
        mut report: impl FnMut(&Stuck) + Send + 'static,
    ) -> std::io::Result<Feeder> {
        let (stop, stopped) = channel::<()>();
        let mut watchdog = Watchdog::new(watched, Instant::now());
        let run = move || {
            let mut reported: Vec<(String, Option<usize>)> = Vec::new();
            let mut wait = interval / 2;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let stuck = watchdog.check(Instant::now());
                if stuck.is_empty() {
                    service.feed();
                    reported.clear();
                    wait = interval / 2;
                    continue;
                }
                for thread in &stuck {
                    let key = (thread.appliance.clone(), thread.worker);
                    if !reported.contains(&key) {
                        report(thread);
                        reported.push(key);
                    }
                }
                wait = interval / CHECKS_WHEN_STUCK;
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(run)?;
        Ok(Feeder { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the watchdog's thread panicked");
        }
    }
}

//! The load `connect`: streams are opened repeatedly and reset once established. The duration of an open is measured
//! from its request, or from its due time if the load has a rate, until the control thread receives `Established`.

use std::time::{Duration, Instant};

use api::{BenchLoad, JobState};

use super::run::Run;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::pending::Task;

impl Run {
    /// Opens all streams that are due, while fewer than `spec.streams` are open or being opened.
    pub(super) fn open_more(&mut self, id: u64, now: Instant, out: &mut Effects) {
        while self.has_room() {
            let since = match self.open_interval() {
                None => now,
                Some(_) if self.next_open_at > now => return,
                Some(every) => {
                    let due = self.next_open_at;
                    self.next_open_at += every;
                    due
                }
            };
            self.open_one(id, since, out);
        }
    }

    /// Opens a stream. `since`: time from which the duration of the open is measured.
    pub(super) fn open_one(&mut self, id: u64, since: Instant, out: &mut Effects) {
        self.opening += 1;
        let (spec, task) = (Box::new(self.spec.connect.clone()), Task::Bench(id, since));
        out.push(Effect::Open { spec, task, start_key: false });
    }

    /// Returns the time at which the next stream is due, if the load has a rate and another stream is allowed.
    pub(super) fn next_open(&self) -> Option<Instant> {
        self.open_interval().filter(|_| self.has_room()).map(|_| self.next_open_at)
    }

    /// Counts an established stream, and records the duration of its open.
    pub(super) fn count_open(&mut self, since: Instant, now: Instant) {
        self.results.messages += 1;
        self.results.record(now.saturating_duration_since(since), 1);
        if let Some(started) = self.started {
            self.results.nanoseconds = now.duration_since(started).as_nanos() as u64;
        }
    }

    /// Counts the streams that were due but not opened by the end, and records their waiting times until `now`. More
    /// than 256 such streams are recorded in at most 256 groups, each with the waiting time of its first stream.
    pub(super) fn count_unopened(&mut self, now: Instant) {
        let Some(every) = self.open_interval() else { return };
        let Some(longest) = now.checked_duration_since(self.next_open_at) else { return };
        let every = every.as_nanos().max(1) as u64;
        let owed = longest.as_nanos() as u64 / every + 1;
        let step = owed.div_ceil(256);
        self.results.unfinished += owed;
        for at in (0..owed).step_by(step as usize) {
            let wait = longest.saturating_sub(Duration::from_nanos(at * every));
            self.results.record(wait, step.min(owed - at));
        }
    }

    /// Returns true if no stream is open or being opened.
    pub(super) fn is_idle(&self) -> bool {
        self.opening == 0 && self.streams.is_empty()
    }

    fn has_room(&self) -> bool {
        let open_streams = self.opening + self.streams.len() as u32;
        let connects = self.spec.load == BenchLoad::Connect;
        connects && self.state == JobState::Running && open_streams < self.spec.streams
    }

    /// Returns the interval of opens if the load is `connect` with a rate.
    fn open_interval(&self) -> Option<Duration> {
        let rate = self.spec.rate.filter(|_| self.spec.load == BenchLoad::Connect)?;
        Some(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX))
    }
}

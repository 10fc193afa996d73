//! The load `connect`: streams are opened and, as soon as they stand, reset, again and again. The time of each is that from
//! the request, or from when it was due, until this thread knows that the stream stands.

use std::time::{Duration, Instant};

use super::run::Run;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::pending::Task;
use api::{BenchLoad, JobState};

impl Run {
    /// Opens what may be opened now.
    pub(super) fn open_more(&mut self, id: u64, now: Instant, out: &mut Effects) {
        while self.has_room() {
            let since = match self.every() {
                None => now,
                Some(_) if self.due > now => return,
                Some(every) => {
                    let due = self.due;
                    self.due += every;
                    due
                }
            };
            self.open_one(id, since, out);
        }
    }

    /// Opens a stream, which is wanted since a moment.
    pub(super) fn open_one(&mut self, id: u64, since: Instant, out: &mut Effects) {
        self.opening += 1;
        let (spec, task) = (Box::new(self.spec.connect.clone()), Task::Bench(id, since));
        out.push(Effect::Open { spec, task, start_key: false });
    }

    /// When the next stream is due, if it may be opened then.
    pub(super) fn next_open(&self) -> Option<Instant> {
        self.every().filter(|_| self.has_room()).map(|_| self.due)
    }

    /// A stream stands.
    pub(super) fn count_open(&mut self, since: Instant, now: Instant) {
        self.results.messages += 1;
        self.results.record(now.saturating_duration_since(since), 1);
        if let Some(started) = self.started {
            self.results.nanoseconds = now.duration_since(started).as_nanos() as u64;
        }
    }

    /// No more streams are opened: those that were due and were not have waited until now.
    pub(super) fn count_owed(&mut self, now: Instant) {
        let Some(every) = self.every() else { return };
        let Some(longest) = now.checked_duration_since(self.due) else { return };
        let every = every.as_nanos().max(1) as u64;
        let owed = longest.as_nanos() as u64 / every + 1;
        let step = owed.div_ceil(256);
        self.results.unfinished += owed;
        for at in (0..owed).step_by(step as usize) {
            let wait = longest.saturating_sub(Duration::from_nanos(at * every));
            self.results.record(wait, step.min(owed - at));
        }
    }

    /// Streams that are being opened or have not ended.
    pub(super) fn is_idle(&self) -> bool {
        self.opening == 0 && self.streams.is_empty()
    }

    fn has_room(&self) -> bool {
        let here = self.opening + self.streams.len() as u32;
        let connects = self.spec.load == BenchLoad::Connect;
        connects && self.state == JobState::Running && here < self.spec.streams
    }

    /// From one stream to the next, of an open loop.
    fn every(&self) -> Option<Duration> {
        let rate = self.spec.rate.filter(|_| self.spec.load == BenchLoad::Connect)?;
        Some(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX))
    }
}

//! Failed passive handshakes: events for operators, and counters of all failures.
//!
//! A worker reports a limited number of failures per second and counts all of them. Its counts arrive with its list of
//! streams. [`Handshakes`] adds up these counts. It also counts the failures that the control thread finds itself,
//! and limits the reports of them. There are at most `MAX_COUNTERS` counters, plus one for each value of
//! [`HandshakeFailure`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::HandshakeFailure;

use api::HandshakeInfo;

/// Maximum number of counters with a listener's name. Further listeners' failures are counted under an empty name.
const MAX_COUNTERS: usize = 4096;
/// Maximum number of reports per second for failures found by the control thread.
const MAX_REPORTS: u32 = 32;
/// Period to which [`MAX_REPORTS`] applies.
const PERIOD: Duration = Duration::from_secs(1);

/// Failed handshakes, per listener and failure.
#[derive(Default)]
pub(super) struct Handshakes {
    counts: BTreeMap<(String, HandshakeFailure), u64>,
    /// Start of the current period. `None` before the first failure.
    since: Option<Instant>,
    /// Number of reports in the current period, at most [`MAX_REPORTS`].
    reported: u32,
    /// Failures since the last report that were not reported.
    unreported: u64,
}

impl Handshakes {
    /// Adds `count` failures of a listener. Without a listener the name is empty.
    pub(super) fn count(&mut self, listener: Option<&str>, failure: HandshakeFailure, count: u64) {
        let mut key = (listener.unwrap_or_default().to_owned(), failure);
        if self.counts.len() >= MAX_COUNTERS && !self.counts.contains_key(&key) {
            key.0.clear();
        }
        *self.counts.entry(key).or_default() += count;
    }

    /// Decides whether a failure is reported. Returns the number of unreported failures since the last report, or
    /// `None` if the period already has [`MAX_REPORTS`] reports.
    pub(super) fn report(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (self.since, self.reported) = (Some(now), 0);
        }
        if self.reported >= MAX_REPORTS {
            self.unreported += 1;
            return None;
        }
        self.reported += 1;
        Some(std::mem::take(&mut self.unreported))
    }

    /// Returns all counters for the API.
    pub(super) fn infos(&self) -> Vec<HandshakeInfo> {
        let counts = self.counts.iter();
        let info = |((listener, failure), &count): (&(String, HandshakeFailure), &u64)| {
            let HandshakeFailure { stage, reason } = *failure;
            let (stage, reason) = (stage.to_owned(), reason.to_owned());
            HandshakeInfo { listener: listener.clone(), stage, reason, count }
        };
        counts.map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESET: HandshakeFailure = HandshakeFailure::new("mpa", "reset");

    #[test]
    fn reports_are_limited_and_counters_are_bounded() {
        let (mut all, now) = (Handshakes::default(), Instant::now());
        let reported = (0..100).filter(|_| all.report(now).is_some()).count();
        assert_eq!(reported, MAX_REPORTS as usize);
        assert_eq!(all.report(now + PERIOD), Some(100 - u64::from(MAX_REPORTS)));
        for number in 0..2 * MAX_COUNTERS {
            all.count(Some(&number.to_string()), RESET, 1);
        }
        let infos = all.infos();
        assert_eq!(infos.len(), MAX_COUNTERS + 1);
        assert_eq!(infos[0].listener, "");
        assert_eq!(infos[0].count, MAX_COUNTERS as u64);
    }
}

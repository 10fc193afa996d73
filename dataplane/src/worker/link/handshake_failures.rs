//! Failed handshakes of peers. All are counted, and a limited number per second is also reported individually.
//!
//! Any host that reaches a port can cause failures at any rate. The rate limit therefore applies before a report takes
//! room in the event ring. The number of counts is bounded by the listeners and the kinds of failure. The control
//! thread receives the counts with the answer to [`Command::ListStreams`](crate::api::Command::ListStreams).

use core::time::Duration;

use base::Instant;
use hashbrown::HashMap;

use crate::api::{HandshakeCount, HandshakeFailure, ListenerId};

/// Maximum number of reports of one worker per [`PERIOD`].
const MAX_REPORTS: u32 = 32;
/// Maximum number of reports for one kind of failure per [`PERIOD`], so that a flood of one kind leaves room for
/// reports of other kinds.
const MAX_REPORTS_PER_KIND: u32 = 8;
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of pairs of listener and failure that are counted separately. Beyond this number, failures of new
/// pairs are counted without the listener.
const MAX_COUNTS: usize = 4096;

#[derive(Debug, Default)]
pub(in crate::worker) struct HandshakeFailures {
    /// Counts of failures since they were last taken.
    counts: HashMap<(Option<ListenerId>, HandshakeFailure), u64>,
    /// Start of the current period. The next two fields count the reports in this period.
    period_start: Instant,
    reported: u32,
    reported_by_kind: HashMap<HandshakeFailure, u32>,
    /// Number of unreported failures since the last report.
    unreported: u64,
}

impl HandshakeFailures {
    /// Counts a failure. If the failure is to be reported, returns the number of unreported failures since the last
    /// report; otherwise `None`. `may_report` is false while the event ring is nearly full.
    pub(in crate::worker) fn record(
        &mut self,
        listener: Option<ListenerId>,
        failure: HandshakeFailure,
        may_report: bool,
        now: Instant,
    ) -> Option<u64> {
        self.count(listener, failure);
        if now.saturating_since(self.period_start) >= PERIOD {
            (self.period_start, self.reported) = (now, 0);
            self.reported_by_kind.clear();
        }
        let kind_reports = self.reported_by_kind.entry(failure).or_default();
        if !may_report || self.reported >= MAX_REPORTS || *kind_reports >= MAX_REPORTS_PER_KIND {
            self.unreported += 1;
            return None;
        }
        (*kind_reports, self.reported) = (*kind_reports + 1, self.reported + 1);
        Some(core::mem::take(&mut self.unreported))
    }

    /// Returns the counts, and sets them to zero.
    pub(in crate::worker) fn take_counts(&mut self) -> Vec<HandshakeCount> {
        let counts = self.counts.drain();
        counts
            .map(|((listener, failure), count)| HandshakeCount { listener, failure, count })
            .collect()
    }

    fn count(&mut self, listener: Option<ListenerId>, failure: HandshakeFailure) {
        let mut key = (listener, failure);
        if self.counts.len() >= MAX_COUNTS && !self.counts.contains_key(&key) {
            key.0 = None;
        }
        *self.counts.entry(key).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESET: HandshakeFailure = HandshakeFailure::new("mpa", "reset");
    const HTTP: HandshakeFailure = HandshakeFailure::new("mpa", "http");

    #[test]
    fn handshake_failures_are_all_counted_and_few_reported() {
        let mut all = HandshakeFailures::default();
        let (now, listener) = (Instant::ZERO + Duration::from_secs(9), Some(ListenerId(1)));
        let reported = (0..100).filter(|_| all.record(listener, RESET, true, now).is_some());
        assert_eq!(reported.count(), MAX_REPORTS_PER_KIND as usize);
        // Another kind may still be reported. Its report includes the number of unreported failures so far.
        assert_eq!(all.record(listener, HTTP, true, now), Some(92));
        assert_eq!(all.record(listener, HTTP, false, now), None, "the ring is nearly full");
        let later = now + PERIOD;
        assert_eq!(all.record(None, RESET, true, later), Some(1));
        let mut counts = all.take_counts();
        counts.sort_unstable_by_key(|c| (c.listener.map(|l| l.0), c.failure));
        let counts: Vec<_> = counts.iter().map(|c| (c.listener, c.failure, c.count)).collect();
        assert_eq!(counts, [(None, RESET, 1), (listener, HTTP, 2), (listener, RESET, 100)]);
        assert_eq!(all.take_counts(), []);
    }

    #[test]
    fn failure_kinds_share_the_report_limit() {
        let mut all = HandshakeFailures::default();
        let kinds = ["a", "b", "c", "d", "e", "f"].map(|kind| HandshakeFailure::new("mpa", kind));
        let now = Instant::ZERO + PERIOD;
        let reported = (0..600).filter(|n| all.record(None, kinds[n % 6], true, now).is_some());
        assert_eq!(reported.count(), MAX_REPORTS as usize);
    }

    #[test]
    fn failure_counts_are_bounded_per_listener() {
        let mut all = HandshakeFailures::default();
        for number in 0..2 * MAX_COUNTS as u32 {
            all.count(Some(ListenerId(number)), RESET);
        }
        let counts = all.take_counts();
        assert_eq!(counts.len(), MAX_COUNTS + 1);
        assert_eq!(counts.iter().map(|c| c.count).sum::<u64>(), 2 * MAX_COUNTS as u64);
    }
}

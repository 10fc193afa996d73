//! Peers that did not become streams: what operators are told of each, and the counts of all.
//!
//! A worker reports so many of them in a second and counts the rest; its counts come with the lists of its streams.
//! What the control thread refuses is counted, and limited, here. The words of [`HandshakeFailure`] and the names of the
//! listeners bound the number of counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::HandshakeFailure;

use api::HandshakeInfo;

/// Counters that there are at most; beyond, failures are counted as those of no listener.
const COUNTERS: usize = 4096;
/// Failures that the control thread finds itself and reports, in a second.
const REPORTS: u32 = 32;
const PERIOD: Duration = Duration::from_secs(1);

/// How often handshakes failed, by listener and failure.
#[derive(Default)]
pub(super) struct Handshakes {
    counts: BTreeMap<(String, HandshakeFailure), u64>,
    /// Begin of the period, and what was reported in it.
    since: Option<Instant>,
    reported: u32,
    /// Not reported since the last report.
    unreported: u64,
}

impl Handshakes {
    /// Counts `count` more of a listener; those without one have none's name.
    pub(super) fn count(&mut self, listener: Option<&str>, failure: HandshakeFailure, count: u64) {
        let mut key = (listener.unwrap_or_default().to_owned(), failure);
        if self.counts.len() >= COUNTERS && !self.counts.contains_key(&key) {
            key.0.clear();
        }
        *self.counts.entry(key).or_default() += count;
    }

    /// If one more may be reported now, how many were not since the last one that was.
    pub(super) fn report(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (self.since, self.reported) = (Some(now), 0);
        }
        if self.reported >= REPORTS {
            self.unreported += 1;
            return None;
        }
        self.reported += 1;
        Some(std::mem::take(&mut self.unreported))
    }

    /// All counts.
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
        assert_eq!(reported, REPORTS as usize);
        assert_eq!(all.report(now + PERIOD), Some(100 - u64::from(REPORTS)));
        for number in 0..2 * COUNTERS {
            all.count(Some(&number.to_string()), RESET, 1);
        }
        let infos = all.infos();
        assert_eq!(infos.len(), COUNTERS + 1);
        assert_eq!(infos[0].listener, "");
        assert_eq!(infos[0].count, COUNTERS as u64);
    }
}

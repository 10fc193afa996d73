//! Results of a bench: sums of the workers' reports, and a histogram of latencies.

use std::time::Duration;

use dataplane::{LoadReport, MAX_LATENCY_NANOS};
use hdrhistogram::Histogram;

use api::LatencyInfo;

/// Sums of the workers' reports.
pub(super) struct Results {
    /// Number of completed messages; for the load `connect`, of established streams.
    pub(super) messages: u64,
    /// Bytes of the completed messages.
    pub(super) bytes: u64,
    /// Number of messages that did not complete, or were due but not posted. For `connect`: of streams that were due
    /// but not opened.
    pub(super) unfinished: u64,
    /// Duration of the longest load of a stream, nanoseconds.
    pub(super) nanoseconds: u64,
    latency: Histogram<u64>,
}

impl Results {
    pub(super) fn new() -> Results {
        let latency = Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, 3);
        let latency = latency.expect("bounds that a histogram can have");
        Results { messages: 0, bytes: 0, unfinished: 0, nanoseconds: 0, latency }
    }

    pub(super) fn add(&mut self, report: &LoadReport) {
        self.messages += report.messages;
        self.bytes += report.bytes;
        self.unfinished += report.unfinished;
        self.nanoseconds = self.nanoseconds.max(report.nanoseconds);
        if let Some(latency) = &report.latency {
            let added = self.latency.add(latency);
            debug_assert!(added.is_ok(), "the bounds are the same");
        }
    }

    /// Records `count` messages with this latency.
    pub(super) fn record(&mut self, time: Duration, count: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record_n(nanos, count);
    }

    pub(super) fn latency(&self) -> Option<LatencyInfo> {
        let times = &self.latency;
        let at = |quantile| times.value_at_quantile(quantile);
        (!times.is_empty()).then(|| LatencyInfo {
            count: times.len(),
            min_ns: times.min(),
            mean_ns: times.mean() as u64,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: times.max(),
        })
    }
}

//! Samples of the target's counters and gauges by name, and their differences.

use std::collections::BTreeMap;

use anyhow::Result;
use api::Stats;
use load::testbed::Appliance;

/// Worker counters of frame outcomes, in addition to the drop reasons (docs/api.md, stats). Each received frame counts
/// once, in one of these counters or as a drop.
const TERMINAL_COUNTERS: [&str; 12] = [
    "segments",
    "sctp_packets",
    "cookies_sent",
    "sctp_cookies_sent",
    "fragments",
    "echo_replies",
    "group_queries",
    "neighbour_claims",
    "icmp_errors",
    "mesh_out",
    "host_frames",
    "nat_keepalives_in",
];

/// Worker counters of received frames. `mesh_*` count frames and messages from other workers.
const RECEIVE_COUNTERS: [&str; 3] = ["rx_frames", "mesh_in", "mesh_news_in"];

/// Values of counters or gauges by name.
pub(crate) type CounterMap = BTreeMap<String, u64>;

/// Counters, gauges, memory and log size at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Monotonic counters, summed over workers: worker counters by name, `drop:NAME`, `error:NAME`, `control:NAME`.
    pub(crate) counters: CounterMap,
    /// Gauges by name, summed over workers.
    pub(crate) gauges: CounterMap,
    /// Resident set size, bytes.
    pub(crate) memory: u64,
    /// Length of the log file, bytes.
    pub(crate) log: u64,
}

impl Sample {
    /// Reads the current values of an appliance.
    pub(crate) fn collect(appliance: &Appliance) -> Result<Sample> {
        let stats = appliance.stats()?;
        Ok(Sample {
            memory: appliance.memory()?,
            log: appliance.log_bytes()?,
            ..from_stats(&stats)
        })
    }

    /// Returns the growth of each counter since `before`; counters without growth are omitted.
    pub(crate) fn growth_since(&self, before: &Sample) -> CounterMap {
        let grown = self.counters.iter().filter_map(|(name, now)| {
            let more = now.saturating_sub(before.counters.get(name).copied().unwrap_or(0));
            (more > 0).then(|| (name.clone(), more))
        });
        grown.collect()
    }
}

fn from_stats(stats: &Stats) -> Sample {
    let mut sample = Sample::default();
    let mut add = |prefix: &str, counters: &api::Counters| {
        for (name, n) in counters {
            *sample.counters.entry(format!("{prefix}{name}")).or_default() += n;
        }
    };
    add("control:", &stats.control);
    for worker in &stats.workers {
        add("", &worker.counters);
        add("drop:", &worker.drops);
        add("error:", &worker.errors);
    }
    for worker in &stats.workers {
        for (name, n) in &worker.gauges {
            *sample.gauges.entry(name.to_string()).or_default() += n;
        }
    }
    sample
}

/// Returns received frames minus frames with a counted outcome; 0 unless there is a defect.
pub(crate) fn unaccounted_frames(counted: &CounterMap) -> i64 {
    let sum = |names: &[&str]| -> u64 { names.iter().filter_map(|&name| counted.get(name)).sum() };
    let drops: u64 =
        counted.iter().filter(|(name, _)| name.starts_with("drop:")).map(|(_, n)| n).sum();
    sum(&RECEIVE_COUNTERS) as i64 - (sum(&TERMINAL_COUNTERS) + drops) as i64
}

/// Returns the refusals by reason: drops, protocol errors, refused streams and sessions, failed cookies, evicted state.
pub(crate) fn refusal_counters(counted: &CounterMap) -> CounterMap {
    const OTHER_REFUSALS: [&str; 8] = [
        "control:streams_refused",
        "cookies_failed",
        "sctp_cookies_failed",
        "reassembly_evicted",
        "reassembly_timeouts",
        "sessions_refused",
        "half_open_evicted",
        "icmp_soft_errors",
    ];
    let is_one = |name: &str| {
        name.starts_with("drop:") || name.starts_with("error:") || OTHER_REFUSALS.contains(&name)
    };
    counted.iter().filter(|(name, _)| is_one(name)).map(|(name, n)| (name.clone(), *n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(entries: &[(&str, u64)]) -> CounterMap {
        entries.iter().map(|&(name, n)| (name.to_owned(), n)).collect()
    }

    #[test]
    fn frame_without_counter_is_unaccounted() {
        let counted = [("rx_frames", 10), ("segments", 3), ("drop:net_no_stream", 7)];
        assert_eq!(unaccounted_frames(&numbers(&counted)), 0);
        assert_eq!(unaccounted_frames(&numbers(&counted[..2])), 7);
        let refused = refusal_counters(&numbers(&counted));
        assert_eq!(refused, numbers(&counted[2..]));
    }

    #[test]
    fn difference_lists_grown_counters_only() {
        let before = Sample { counters: numbers(&[("a", 5), ("b", 1)]), ..Sample::default() };
        let now = Sample { counters: numbers(&[("a", 5), ("b", 3), ("c", 1)]), ..before.clone() };
        assert_eq!(now.growth_since(&before), numbers(&[("b", 2), ("c", 1)]));
    }
}

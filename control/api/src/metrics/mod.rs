//! The counters, gauges and histograms as text for Prometheus.
//!
//! | metric | labels | from |
//! |---|---|---|
//! | `ddpd_build_info` | `version`, `dpdk` | the program |
//! | `process_...` | | the process, by Prometheus' conventions |
//! | `ddpd_worker_NAME` | `worker` | a worker's counters and gauges |
//! | `ddpd_drops_total` | `worker`, `reason` | frames and segments that a worker dropped |
//! | `ddpd_protocol_errors_total` | `worker`, `error` | protocol errors on a worker's streams |
//! | `ddpd_streams_ended_total` | `worker`, `reason` | ended streams of a worker |
//! | `ddpd_handshake_failures_total` | `listener`, `stage`, `reason` | failed handshakes of peers |
//! | `ddpd_api_refused_total` | `role` | calls refused because of the caller's role |
//! | `ddpd_port_NAME` | `port` | a port's counters |
//! | `ddpd_listener_NAME` | `listener` | a listener's counters |
//! | `ddpd_region_NAME` | `region` | a region's counters |
//! | `ddpd_control_NAME` | | the control thread's counters |
//! | `ddpd_NAME_seconds`, `ddpd_NAME_frames` | `le` | histograms, of all workers together |
//! | `ddpd_NAME` | | the appliance's gauges |
//!
//! Names end with their unit (`_bytes`, `_seconds`), and names of counters with `_total`. Maxima are gauges.
//! At most [`MAX_SERIES`] listeners and as many regions have their own series. The counters of all others are summed
//! under the label [`OTHERS_LABEL`].
//!
//! Each scrape builds a registry from one snapshot of the appliance's counters. Only the `process_...` metrics are read
//! at the scrape itself.

mod format;
mod histogram;
mod names;
mod process;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;

use base::metric::Unit;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

pub use self::format::Format;
use self::names::MetricDescription;
use crate::{CounterName, Counters, HandshakeInfo, Stats, WorkerStats};

/// Maximum number of listeners with their own series. The same maximum applies to regions.
pub const MAX_SERIES: usize = 200;
/// Label value for the sum over all further listeners or regions.
pub const OTHERS_LABEL: &str = "(others)";

type Labels = Vec<(&'static str, String)>;
type CounterFamily = Family<Labels, Counter>;

/// Returns the metrics of the snapshot as text.
pub fn render(stats: &Stats, format: Format) -> Result<String, fmt::Error> {
    let mut all = Registry::default();
    process::register(&mut all);
    let registry = all.sub_registry_with_prefix("ddpd");
    let dpdk = stats.dpdk_version.clone().unwrap_or_default();
    let build = Info::new([("version", env!("CARGO_PKG_VERSION").to_owned()), ("dpdk", dpdk)]);
    registry.register("build", "Versions of the program and of libdpdk", build);
    let counters: Vec<(String, Counters)> = stats
        .workers
        .iter()
        .map(|worker| (worker.worker.to_string(), worker_counters(worker)))
        .collect();
    let workers: Vec<(String, &Counters)> =
        counters.iter().map(|(worker, counters)| (worker.clone(), counters)).collect();
    register_each(registry, "worker", &workers, true);
    let gauges: Vec<(String, &Counters)> =
        stats.workers.iter().map(|worker| (worker.worker.to_string(), &worker.gauges)).collect();
    register_each(registry, "worker", &gauges, false);
    let ports: Vec<(String, &Counters)> =
        stats.ports.iter().map(|port| (port.port.clone(), &port.counters)).collect();
    register_each(registry, "port", &ports, true);
    for (owner, of) in [("listener", &stats.listeners), ("region", &stats.regions)] {
        let bounded = bound_series(of);
        let sources: Vec<(String, &Counters)> =
            bounded.iter().map(|(name, counters)| (name.clone(), counters)).collect();
        register_each(registry, owner, &sources, true);
    }
    for (name, &value) in &stats.control {
        let meaning = MetricDescription::describe("the control thread", name, true);
        register(registry, "control_", &meaning, &[(Vec::new(), value)]);
    }
    type CounterField = fn(&WorkerStats) -> &Counters;
    let by_name: [(&str, &str, &'static str, CounterField); 3] = [
        (
            "drops",
            "Frames and segments dropped, by reason; `ddpctl explain REASON` explains a reason",
            "reason",
            |worker| &worker.drops,
        ),
        ("protocol_errors", "Protocol errors, by layer and code", "error", |worker| &worker.errors),
        ("streams_ended", "Streams that ended, by reason", "reason", |worker| &worker.ends),
    ];
    for (name, sentence, label, of) in by_name {
        let family = CounterFamily::default();
        for worker in &stats.workers {
            for (of_what, &value) in of(worker) {
                let labels =
                    vec![("worker", worker.worker.to_string()), (label, of_what.to_string())];
                family.get_or_create(&labels).inc_by(value);
            }
        }
        registry.register(name, sentence, family);
    }
    let handshakes = CounterFamily::default();
    for failed in &stats.handshakes {
        let HandshakeInfo { listener, stage, reason, count } = failed.clone();
        let labels = vec![("listener", listener), ("stage", stage), ("reason", reason)];
        handshakes.get_or_create(&labels).inc_by(count);
    }
    let sentence = "Peers that connected but did not become streams, by listener and reason";
    registry.register("handshake_failures", sentence, handshakes);
    let refused = CounterFamily::default();
    for (role, &count) in &stats.api_refused {
        refused.get_or_create(&vec![("role", role.to_string())]).inc_by(count);
    }
    let sentence = "Calls of the API refused because of the caller's role, by that role";
    registry.register("api_refused", sentence, refused);

    for histogram in &stats.histograms {
        histogram::register(registry, histogram);
    }

    for (name, &value) in &stats.gauges {
        let meaning = MetricDescription::describe("the appliance", name, false);
        register(registry, "", &meaning, &[(Vec::new(), value)]);
    }
    let mut text = String::new();
    encode(&mut text, &all)?;
    Ok(format.convert(text))
}

/// Returns a worker's counters, except counters that share their name with a gauge of the worker. Such a counter is the
/// maximum over single streams; the gauge is the maximum of the whole worker and replaces it.
fn worker_counters(worker: &WorkerStats) -> Counters {
    let own = |name: &CounterName| worker.gauges.contains_key(name);
    let counters = worker.counters.iter().filter(|(name, _)| !own(name));
    counters.map(|(name, value)| (name.clone(), *value)).collect()
}

/// Returns the first [`MAX_SERIES`] entries in name order, and the sum of all others under [`OTHERS_LABEL`].
fn bound_series(of: &BTreeMap<String, Counters>) -> BTreeMap<String, Counters> {
    let mut shown: BTreeMap<String, Counters> = of
        .iter()
        .take(MAX_SERIES)
        .map(|(name, counters)| (name.clone(), counters.clone()))
        .collect();
    for counters in of.values().skip(MAX_SERIES) {
        let others = shown.entry(OTHERS_LABEL.to_owned()).or_default();
        for (name, value) in counters {
            let sum = others.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*value);
        }
    }
    shown
}

/// Registers one metric family for each counter name in `sources`. In a family, each value has the label `owner` with
/// the name of its source. `grows` is true if values without a descriptor are counters, false if they are gauges.
fn register_each(
    registry: &mut Registry,
    owner: &'static str,
    sources: &[(String, &Counters)],
    grows: bool,
) {
    let mut names: Vec<&CounterName> =
        sources.iter().flat_map(|(_, counters)| counters.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let meaning = MetricDescription::describe(owner, name, grows);
        let values: Vec<(Labels, u64)> = sources
            .iter()
            .filter_map(|(id, counters)| Some((vec![(owner, id.clone())], *counters.get(name)?)))
            .collect();
        register(registry, &format!("{owner}_"), &meaning, &values);
    }
}

/// Registers one metric with its values: as counter or gauge, and in seconds if the values are nanoseconds.
fn register(
    registry: &mut Registry,
    prefix: &str,
    meaning: &MetricDescription,
    values: &[(Labels, u64)],
) {
    match (meaning.is_monotonic, meaning.unit) {
        (true, Unit::Nanoseconds) => {
            register_as::<Counter<f64, AtomicU64>>(registry, prefix, meaning, values);
        }
        (true, _) => register_as::<Counter>(registry, prefix, meaning, values),
        (false, Unit::Nanoseconds) => {
            register_as::<Gauge<f64, AtomicU64>>(registry, prefix, meaning, values);
        }
        (false, _) => register_as::<Gauge>(registry, prefix, meaning, values),
    }
}

/// A metric that receives its value once, because the registry is built for a single scrape.
trait SetOnce: Metric + Clone + Default {
    fn set_value(&self, value: u64);
}

impl SetOnce for Counter {
    fn set_value(&self, value: u64) {
        self.inc_by(value);
    }
}

impl SetOnce for Gauge {
    fn set_value(&self, value: u64) {
        self.set(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

impl SetOnce for Counter<f64, AtomicU64> {
    fn set_value(&self, value: u64) {
        self.inc_by(to_seconds(value));
    }
}

impl SetOnce for Gauge<f64, AtomicU64> {
    fn set_value(&self, value: u64) {
        self.set(to_seconds(value));
    }
}

fn register_as<V: SetOnce>(
    registry: &mut Registry,
    prefix: &str,
    meaning: &MetricDescription,
    values: &[(Labels, u64)],
) where
    Family<Labels, V>: Metric,
{
    if let [(labels, value)] = values
        && labels.is_empty()
    {
        let alone = V::default();
        alone.set_value(*value);
        return register_with_suffix(registry, prefix, meaning, alone);
    }
    let family = Family::<Labels, V>::default();
    for (labels, value) in values {
        family.get_or_create(labels).set_value(*value);
    }
    register_with_suffix(registry, prefix, meaning, family);
}

fn register_with_suffix(
    registry: &mut Registry,
    prefix: &str,
    meaning: &MetricDescription,
    metric: impl Metric,
) {
    let name = format!("{prefix}{}", meaning.name);
    match meaning.suffix() {
        Some(unit) => registry.register_with_unit(name, meaning.help.clone(), unit, metric),
        None => registry.register(name, meaning.help.clone(), metric),
    }
}

fn to_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::metric::Descriptor;

    use crate::{HistogramInfo, PortStats};

    const RX_FRAMES: &Descriptor = &base::descriptor!(rx_frames, Counter, [], " Frames received.");
    const BUSY: &Descriptor =
        &base::descriptor!(busy_nanoseconds, Counter, [Nanoseconds], " Time with work.");

    fn counters(list: &[(&str, u64)]) -> Counters {
        list.iter().map(|&(name, value)| (name.into(), value)).collect()
    }

    #[test]
    fn snapshot_is_rendered_with_labels() {
        let stats = Stats {
            workers: vec![
                WorkerStats {
                    worker: 0,
                    counters: [(RX_FRAMES.into(), 7), ("kept_bytes_max".into(), 5)].into(),
                    gauges: counters(&[("neighbours", 3), ("kept_bytes_max", 6)]),
                    drops: counters(&[("bad_checksum", 2)]),
                    errors: counters(&[("ddp_1_02", 1)]),
                    ends: counters(&[("peer_reset", 6)]),
                },
                WorkerStats {
                    worker: 1,
                    counters: [
                        (RX_FRAMES.into(), 9),
                        ("polls_total".into(), 3),
                        (BUSY.into(), 1_500_000_000),
                        ("held_bytes_max".into(), 8),
                    ]
                    .into(),
                    ..WorkerStats::default()
                },
            ],
            ports: vec![PortStats { port: "p\"0".into(), counters: counters(&[("rx-bytes", 5)]) }],
            control: counters(&[("api_requests", 4)]),
            gauges: counters(&[("streams", 2), ("region_memory", u64::MAX)]),
            handshakes: vec![HandshakeInfo {
                listener: "in".into(),
                stage: "mpa".into(),
                reason: "http".into(),
                count: 3,
            }],
            api_refused: counters(&[("view", 9)]),
            histograms: vec![HistogramInfo {
                name: "echo".into(),
                unit: "seconds".into(),
                help: "Echoes".into(),
                buckets: vec![(0.001, 2), (0.002, 3)],
                beyond: 1,
                sum: 0.5,
            }],
            listeners: (0..MAX_SERIES as u64 + 2)
                .map(|at| (format!("l{at:03}"), counters(&[("accepted", at)])))
                .collect(),
            regions: [("inbox".to_owned(), counters(&[("placed_bytes", 11)]))].into(),
            dpdk_version: Some("DPDK 22.11".into()),
        };
        let text = render(&stats, Format::OpenMetrics).unwrap();
        for line in [
            "ddpd_worker_rx_frames_total{worker=\"0\"} 7",
            "ddpd_worker_rx_frames_total{worker=\"1\"} 9",
            "ddpd_worker_polls_all_total{worker=\"1\"} 3",
            "ddpd_worker_neighbours{worker=\"0\"} 3",
            "# TYPE ddpd_worker_neighbours gauge",
            "ddpd_drops_total{worker=\"0\",reason=\"bad_checksum\"} 2",
            "ddpd_protocol_errors_total{worker=\"0\",error=\"ddp_1_02\"} 1",
            "ddpd_streams_ended_total{worker=\"0\",reason=\"peer_reset\"} 6",
            "ddpd_handshake_failures_total{listener=\"in\",stage=\"mpa\",reason=\"http\"} 3",
            "# TYPE ddpd_handshake_failures counter",
            "ddpd_api_refused_total{role=\"view\"} 9",
            "# TYPE ddpd_echo_seconds histogram",
            "ddpd_echo_seconds_bucket{le=\"0.001\"} 2",
            "ddpd_echo_seconds_bucket{le=\"0.002\"} 5",
            "ddpd_echo_seconds_bucket{le=\"+Inf\"} 6",
            "ddpd_echo_seconds_count 6",
            "ddpd_echo_seconds_sum 0.5",
            "ddpd_port_rx_bytes_total{port=\"p\\\"0\"} 5",
            "ddpd_control_api_requests_total 4",
            "ddpd_streams 2",
            "ddpd_worker_kept_max_bytes{worker=\"0\"} 6",
            "ddpd_region_memory 9223372036854775807",
            "ddpd_worker_busy_seconds_total{worker=\"1\"} 1.5",
            "# UNIT ddpd_worker_busy_seconds seconds",
            "ddpd_worker_held_max_bytes{worker=\"1\"} 8",
            "ddpd_listener_accepted_total{listener=\"l199\"} 199",
            "ddpd_listener_accepted_total{listener=\"(others)\"} 401",
            "ddpd_region_placed_bytes_total{region=\"inbox\"} 11",
            "# TYPE ddpd_worker_rx_frames counter",
            "# HELP ddpd_worker_rx_frames Frames received.",
            "# EOF",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
        let mut types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let all = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), all, "a metric occurs twice");
    }

    #[test]
    fn empty_snapshot_has_process_metrics() {
        let text = render(&Stats::default(), Format::OpenMetrics).unwrap();
        assert!(text.ends_with("# EOF\n"));
        for name in ["ddpd_build_info{version=", "process_cpu_seconds_total ", "process_open_fds "]
        {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in\n{text}");
        }
    }
}

//! The counters in OpenMetrics text, for Prometheus.
//!
//! | metric | labels | from |
//! |---|---|---|
//! | `ddpd_worker_NAME_total` | `worker` | a worker's counters |
//! | `ddpd_worker_NAME` | `worker` | its values that go up and down |
//! | `ddpd_drops_total` | `worker`, `reason` | its drops |
//! | `ddpd_protocol_errors_total` | `worker`, `error` | its protocol errors |
//! | `ddpd_handshake_failures_total` | `listener`, `stage`, `reason` | peers that did not become streams |
//! | `ddpd_port_NAME_total` | `port` | a port's counters |
//! | `ddpd_control_NAME_total` | | the control thread's counters |
//! | `ddpd_NAME` | | values that go up and down |
//!
//! The registry is made for each scrape from one snapshot, so that all values are of one moment.

use std::fmt;

use base::metric::Descriptor;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

use crate::api::{Counters, HandshakeInfo, Stats};

/// The content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type CounterFamily = Family<Labels, Counter>;

/// The snapshot as text.
pub fn render(stats: &Stats) -> Result<String, fmt::Error> {
    let described = &stats.described;
    let mut registry = Registry::with_prefix("ddpd");
    let workers: Vec<(String, &Counters)> =
        stats.workers.iter().map(|worker| (worker.worker.to_string(), &worker.counters)).collect();
    register_each::<Counter>(&mut registry, "worker", &workers, &described.worker);
    let gauges: Vec<(String, &Counters)> =
        stats.workers.iter().map(|worker| (worker.worker.to_string(), &worker.gauges)).collect();
    register_each::<Gauge>(&mut registry, "worker", &gauges, &described.worker);
    let ports: Vec<(String, &Counters)> =
        stats.ports.iter().map(|port| (port.port.clone(), &port.counters)).collect();
    register_each::<Counter>(&mut registry, "port", &ports, &described.port);
    register_control(&mut registry, &stats.control, &described.control);

    let (drops, errors) = (CounterFamily::default(), CounterFamily::default());
    for worker in &stats.workers {
        let id = worker.worker.to_string();
        for (reason, &value) in &worker.drops {
            let labels = vec![("worker", id.clone()), ("reason", reason.clone())];
            drops.get_or_create(&labels).inc_by(value);
        }
        for (error, &value) in &worker.errors {
            let labels = vec![("worker", id.clone()), ("error", error.clone())];
            errors.get_or_create(&labels).inc_by(value);
        }
    }
    registry.register("drops", "Frames and segments dropped, by reason", drops);
    registry.register("protocol_errors", "Protocol errors, by layer and code", errors);

    let handshakes = CounterFamily::default();
    for failed in &stats.handshakes {
        let HandshakeInfo { listener, stage, reason, count } = failed.clone();
        let labels = vec![("listener", listener), ("stage", stage), ("reason", reason)];
        handshakes.get_or_create(&labels).inc_by(count);
    }
    let sentence = "Peers that connected and did not become streams, by listener and reason";
    registry.register("handshake_failures", sentence, handshakes);

    for (name, &value) in &stats.gauges {
        let gauge: Gauge = Gauge::default();
        gauge.take(value);
        registry.register(metric_name(name), help("the appliance", name, &described.gauges), gauge);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// A metric that gets its value once.
trait Value: Metric + Clone + Default {
    fn take(&self, value: u64);
}

impl Value for Counter {
    fn take(&self, value: u64) {
        self.inc_by(value);
    }
}

impl Value for Gauge {
    fn take(&self, value: u64) {
        self.set(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

/// One family per name, labelled with whose value it is.
fn register_each<V: Value>(
    registry: &mut Registry,
    owner: &'static str,
    sources: &[(String, &Counters)],
    described: &[&Descriptor],
) where
    Family<Labels, V>: Metric,
{
    let mut names: Vec<&String> =
        sources.iter().flat_map(|(_, counters)| counters.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let family = Family::<Labels, V>::default();
        for (id, counters) in sources {
            if let Some(&value) = counters.get(name) {
                family.get_or_create(&vec![(owner, id.clone())]).take(value);
            }
        }
        registry.register(
            format!("{owner}_{}", metric_name(name)),
            help(owner, name, described),
            family,
        );
    }
}

fn register_control(registry: &mut Registry, counters: &Counters, described: &[&Descriptor]) {
    for (name, &value) in counters {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        let help = help("control", name, described);
        registry.register(format!("control_{}", metric_name(name)), help, counter);
    }
}

/// What a counter's descriptor says; the encoder adds the full stop. Errors, by their number, have none.
fn help(owner: &str, name: &str, described: &[&Descriptor]) -> String {
    match described.iter().find(|counter| counter.name == name) {
        Some(counter) => counter.help.trim_end_matches('.').to_owned(),
        None => format!("{} of {owner}", name.replace('_', " ")),
    }
}

/// What is not a letter or digit becomes `_`; the encoder adds `_total` itself.
fn metric_name(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    name.strip_suffix("_total").map_or(name.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Described, PortStats, WorkerStats};

    const RX_FRAMES: Descriptor = base::descriptor!(rx_frames, Counter, [], " Frames received.");

    fn counters(list: &[(&str, u64)]) -> Counters {
        list.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn a_snapshot_is_written_with_labels() {
        let stats = Stats {
            workers: vec![
                WorkerStats {
                    worker: 0,
                    counters: counters(&[("rx_frames", 7)]),
                    gauges: counters(&[("neighbours", 3)]),
                    drops: counters(&[("bad_checksum", 2)]),
                    errors: counters(&[("ddp_1_02", 1)]),
                },
                WorkerStats {
                    worker: 1,
                    counters: counters(&[("rx_frames", 9), ("polls_total", 3)]),
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
            described: Described { worker: vec![&RX_FRAMES], ..Described::default() },
        };
        let text = render(&stats).unwrap();
        for line in [
            "ddpd_worker_rx_frames_total{worker=\"0\"} 7",
            "ddpd_worker_rx_frames_total{worker=\"1\"} 9",
            "ddpd_worker_polls_total{worker=\"1\"} 3",
            "ddpd_worker_neighbours{worker=\"0\"} 3",
            "# TYPE ddpd_worker_neighbours gauge",
            "ddpd_drops_total{worker=\"0\",reason=\"bad_checksum\"} 2",
            "ddpd_protocol_errors_total{worker=\"0\",error=\"ddp_1_02\"} 1",
            "ddpd_handshake_failures_total{listener=\"in\",stage=\"mpa\",reason=\"http\"} 3",
            "# TYPE ddpd_handshake_failures counter",
            "ddpd_port_rx_bytes_total{port=\"p\\\"0\"} 5",
            "ddpd_control_api_requests_total 4",
            "ddpd_streams 2",
            "ddpd_region_memory 9223372036854775807",
            "# TYPE ddpd_worker_rx_frames counter",
            "# HELP ddpd_worker_rx_frames Frames received.",
            "# EOF",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn an_empty_snapshot_is_text_too() {
        assert!(render(&Stats::default()).unwrap().ends_with("# EOF\n"));
    }
}

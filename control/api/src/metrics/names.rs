//! Names of metrics by the conventions of Prometheus: the base unit is a suffix and appears once in a name.

use base::metric::{Kind, Unit};
use prometheus_client::registry::Unit as Suffix;

use crate::CounterName;

/// Description of a metric, from the descriptor of its counter. Without a descriptor, the description is derived from
/// the name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MetricDescription {
    /// Name without unit. The encoder appends the unit, and `_total` for counters.
    pub(super) name: String,
    pub(super) unit: Unit,
    /// True if the value never decreases.
    pub(super) is_monotonic: bool,
    pub(super) help: String,
}

impl MetricDescription {
    /// Returns the description of a counter of `owner`. `grows` is for counters without a descriptor: true if the value
    /// never decreases. A name that ends in `_max` is a gauge in any case.
    pub(super) fn describe(owner: &str, counter: &CounterName, grows: bool) -> MetricDescription {
        let name: &str = counter;
        let (unit, rises, help) = match counter.descriptor() {
            Some(counter) => {
                let help = counter.help.trim_end_matches('.').to_owned();
                (counter.unit, counter.kind == Kind::Counter, help)
            }
            // Counters of devices, for example, have no descriptor.
            None => {
                let bytes = name.split(['_', '-']).any(|word| word == "bytes");
                let unit = if bytes { Unit::Bytes } else { Unit::Count };
                let help = format!("{} of {owner}", name.replace('_', " "));
                (unit, grows && !name.ends_with("_max"), help)
            }
        };
        MetricDescription { name: base_name(name), unit, is_monotonic: rises, help }
    }

    pub(super) fn suffix(&self) -> Option<Suffix> {
        match self.unit {
            Unit::Count => None,
            Unit::Bytes => Some(Suffix::Bytes),
            Unit::Nanoseconds => Some(Suffix::Seconds),
        }
    }
}

/// Returns the name without its unit, with `_` for characters other than letters and digits. The word `total` becomes
/// `all`, because counters have the suffix `_total`.
fn base_name(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let kept = words.filter(|word| !matches!(*word, "bytes" | "nanoseconds" | ""));
    let kept: Vec<&str> = kept.map(|word| if word == "total" { "all" } else { word }).collect();
    // `d_sack` becomes `dsack`, because linters of metric names read a separate `d` as the unit days.
    if kept.is_empty() { name.to_owned() } else { kept.join("_").replace("d_sack", "dsack") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_suffix_is_appended_once() {
        let of = |name: &str, grows| {
            let meaning = MetricDescription::describe("port", &name.into(), grows);
            (meaning.name, meaning.unit, meaning.is_monotonic)
        };
        assert_eq!(of("rx_frames", true), ("rx_frames".into(), Unit::Count, true));
        assert_eq!(
            of("tcp_bytes_out_of_order", true),
            ("tcp_out_of_order".into(), Unit::Bytes, true)
        );
        assert_eq!(of("tcp_d_sacks_in", true).0, "tcp_dsacks_in");
        assert_eq!(of("link_lost_total", true), ("link_lost_all".into(), Unit::Count, true));
        assert_eq!(of("held_bytes_max", true), ("held_max".into(), Unit::Bytes, false));
        assert_eq!(of("region_memory", false), ("region_memory".into(), Unit::Count, false));
        const BUSY: &base::metric::Descriptor =
            &base::descriptor!(busy_nanoseconds, Counter, [Nanoseconds], " Time with work.");
        let busy = MetricDescription::describe("worker", &BUSY.into(), true);
        let expected = MetricDescription {
            name: "busy".into(),
            unit: Unit::Nanoseconds,
            is_monotonic: true,
            help: "Time with work".into(),
        };
        assert_eq!(busy, expected);
    }
}

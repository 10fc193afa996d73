//! Histogram metrics whose buckets were counted outside of the metrics library.

use std::fmt;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::HistogramInfo;

/// A histogram: pairs of inclusive upper bound and count, and the sum of all values. The last bucket has no upper
/// bound.
#[derive(Debug)]
struct HistogramMetric {
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl EncodeMetric for HistogramMetric {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let count = self.buckets.iter().map(|(_, n)| n).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Registers a histogram as a metric with its name and unit.
pub(super) fn register(registry: &mut Registry, histogram: &HistogramInfo) {
    let HistogramInfo { name, unit, help, buckets, beyond, sum } = histogram;
    let mut buckets = buckets.clone();
    buckets.push((f64::INFINITY, *beyond));
    let unit = match unit.as_str() {
        "seconds" => Unit::Seconds,
        other => Unit::Other(other.to_owned()),
    };
    registry.register_with_unit(name, help, unit, HistogramMetric { buckets, sum: *sum });
}

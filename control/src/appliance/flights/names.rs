//! Names of layers and text of durations in records.

use std::time::Duration;

use base::ErrorNumbers;

/// Returns the layer of a Terminate (RFC 5040 §4.8).
pub(super) fn layer_name(numbers: ErrorNumbers) -> &'static str {
    match (numbers.layer, numbers.error_type) {
        (0, _) => "RDMAP",
        (1, _) => "DDP",
        (2, 0) => "MPA",
        (2, _) => "the lower layer",
        _ => "unknown",
    }
}

pub(super) fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

//! Words that several parts of a record use.

use std::time::Duration;

/// Returns the name of a Terminate's layer (RFC 5040 §4.8).
pub(super) fn layer_name(layer: u8, kind: u8) -> &'static str {
    match (layer, kind) {
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

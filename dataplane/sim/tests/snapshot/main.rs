//! Goodput, retransmitted bytes and held bytes over many kinds of paths, compared with `snapshots/*.txt`. A change of
//! behaviour shows as a diff.
//!
//! `SIM_BLESS=1 cargo test -p sim --test snapshot` rewrites the files.

mod duplicates;
mod matrix;
mod paths;
mod sctp;

use std::path::Path;

use sim::host::HostConfig;
use sim::pair::Pair;
use sim::snapshot;

fn compare(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(file);
    snapshot::compare(&path, text).unwrap_or_else(|what| panic!("{what}"));
}

/// Checks the server's invariants after a transfer. `aligned`: segments arrived as sent, each beginning with an FPDU.
fn verify(pair: &Pair, aligned: bool) -> Result<(), String> {
    let HostConfig { endpoint, hold, .. } = pair.server.config();
    let mpa = &endpoint.mpa;
    let rx = pair.server.stats().mpa_rx;
    // One incomplete FPDU in order may be held in addition to the budget.
    if rx.held_max > u64::from(mpa.hold_limit).min(*hold) + u64::from(mpa.max_fpdu) {
        return Err(format!("more was held than the budget: {rx:?}"));
    }
    if aligned && mpa.markers && rx.held_max != rx.unlocatable_max {
        return Err(format!("located bytes were held: {rx:?}"));
    }
    if aligned && !mpa.markers && rx.placed_out_of_order != 0 {
        return Err(format!("placed ahead of a gap without markers: {rx:?}"));
    }
    Ok(())
}

/// Returns the last columns of a line: the client's retransmitted bytes, the server's duplicate bytes, the client's
/// time-outs, and MPA counters of the server.
fn outcome(pair: &Pair) -> [String; 7] {
    let (tx, rx) = (pair.client.stats(), pair.server.stats());
    [
        tx.tcp.loss.bytes_retransmitted,
        rx.tcp.recv.bytes_duplicate,
        tx.tcp.loss.timeouts,
        rx.mpa_rx.held_max,
        rx.mpa_rx.unlocatable_max,
        rx.mpa_rx.placed_out_of_order,
        rx.mpa_rx.refused,
    ]
    .map(|count| count.to_string())
}

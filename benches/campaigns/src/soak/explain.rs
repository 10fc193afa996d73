//! Explanation of a failed stream: both appliances' records of it, and the outcome of its frames on the cable.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::{Client, Flight, Why};

use super::ops::Worker;
use crate::frame_log::Summary;
use crate::lossy_cable::LossyCable;

/// Maximum number of printed lines per list; the newest are printed.
const MAX_LINES: usize = 40;

/// Returns the explanation of a worker's last stream, which began at `began`, and the longest outage of the stream's
/// frames on the cable.
pub(super) fn explain(worker: &Worker, lossy: &LossyCable, began: Instant) -> (String, Duration) {
    let mut ends = worker.addresses.clone();
    let mut text = String::new();
    let mut cut = Duration::ZERO;
    let (target, peer) = ((&worker.target, "the target"), (&worker.peer, "the peer"));
    let (here, there) = if worker.last_at_target { (target, peer) } else { (peer, target) };
    if let Some(what) = &worker.last_id {
        ends.extend(append_records(here.0, here.1, what, &mut text));
    }
    for end in &ends {
        // The other end lists the stream under this address.
        append_records(there.0, there.1, &end.to_string(), &mut text);
    }
    if let Some(passed) = lossy.frame_log() {
        let is_one = |end: SocketAddr| ends.contains(&end);
        let done = passed.summary_since(began, |from, to| is_one(from) || is_one(to));
        append_cable(&ends, &done, &mut text);
        cut = done.longest_outage;
        let all = Summary { lines: Vec::new(), ..passed.summary_since(began, |_, _| true) };
        // Writing into a `String` cannot fail.
        let _ = writeln!(text, "  of all frames on the cable: {}", format_summary(&all));
    }
    (text, cut)
}

/// Appends to `text` the records that appliance `name` has of the stream, job or address `what`. Returns the local
/// address of the newest recorded stream, if any.
fn append_records(at: &Client, name: &str, what: &str, text: &mut String) -> Vec<SocketAddr> {
    let why: Why = match at.get(&format!("/v1/why/{what}")) {
        Ok(why) => why,
        Err(error) => {
            let _ = writeln!(text, "  {name} has no record of {what}: {error}");
            return Vec::new();
        }
    };
    let sentences = why.sentences.iter().rev().take(3).rev();
    for sentence in sentences {
        let _ = writeln!(text, "  {name}, {what}: {sentence}");
    }
    let Some(flight) = why.streams.last() else { return Vec::new() };
    append_flight(name, flight, text);
    flight.local.parse().into_iter().collect()
}

fn append_flight(name: &str, flight: &Flight, text: &mut String) {
    let Flight { stream, local, remote, .. } = flight;
    let _ = writeln!(text, "  {name}, stream {stream}, {local} to {remote}:");
    for sentence in &flight.sentences {
        let _ = writeln!(text, "    {sentence}");
    }
    for event in &flight.events[flight.events.len().saturating_sub(MAX_LINES)..] {
        let seconds = event.after_us as f64 / 1e6;
        let _ = writeln!(text, "    {seconds:10.6} s {:<18} {}", event.event, event.detail);
    }
}

fn append_cable(ends: &[SocketAddr], done: &Summary, text: &mut String) {
    if ends.is_empty() {
        return;
    }
    let names: Vec<_> = ends.iter().map(SocketAddr::to_string).collect();
    let _ = writeln!(text, "  of the frames of {}: {}", names.join(" and "), format_summary(done));
    for line in &done.lines[done.lines.len().saturating_sub(MAX_LINES)..] {
        let _ = writeln!(text, "    {line}");
    }
}

fn format_summary(done: &Summary) -> String {
    format!(
        "{} carried, {} lost or damaged, at most {} in a row of one direction, longest outage {} ms",
        done.carried,
        done.lost,
        done.longest_loss_run,
        done.longest_outage.as_millis()
    )
}

//! `ddpctl why`: what happened to a stream, a job or a peer.

use std::fmt::Write as _;

use super::exit::{Exit, Failure};
use super::{Output, path_segment};
use crate::api::{Client, Flight, Why};

pub(super) fn why(what: &str, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let why: Why = client.get(&format!("/v1/why/{}", path_segment(what)))?;
    if why.sentences.is_empty() && why.streams.is_empty() && !output.json {
        let message = format!("nothing is recorded of {what}: it ended in order, or long ago");
        return Err(Failure::new(Exit::Failed, message));
    }
    output.answer(&why, told)
}

fn told(why: &Why) -> String {
    let mut text = String::new();
    for sentence in &why.sentences {
        text += sentence;
        text += "\n";
    }
    for flight in &why.streams {
        if !text.is_empty() {
            text += "\n";
        }
        text += &of_stream(flight);
    }
    text
}

fn of_stream(flight: &Flight) -> String {
    let mut text = flight.sentences.join("\n") + "\n";
    if let Some(key) = flight.end.as_ref().and_then(|end| end.key.as_ref()) {
        text += &format!("Key: {key}\n");
    }
    for (at, event) in flight.events.iter().enumerate() {
        // Where the middle ones are missing.
        if at == KEPT && flight.left_out > 0 {
            text += &format!("  ({} events are left out)\n", flight.left_out);
        }
        let seconds = event.after_us as f64 / 1e6;
        // Into a string nothing fails.
        let _ = writeln!(text, "  {seconds:>10.6} s  {:<12} {}", event.event, event.detail);
    }
    text
}

/// Events at the beginning of which none is left out.
const KEPT: usize = 6;

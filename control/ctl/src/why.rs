//! `ddpctl why`: explains the history of a stream, a job, a peer or a local program.

mod pcapng;

use std::fmt::Write as _;
use std::path::Path;

use api::{Client, Flight, FlightEvent, Why};

use super::exit::{Exit, Failure};
use super::{Output, path_segment};

pub(super) fn explain(
    what: &str,
    file: Option<&Path>,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let why: Why = client.get(&format!("/v1/why/{}", path_segment(what)))?;
    match file {
        Some(file) => write_pcapng(what, file, &why, output),
        None => output.print_answer(&why, format_explanation),
    }
}

/// Writes the recorded headers as pcapng to `file`, or to the standard output if `file` is `-`. In the second case the
/// summary is written to the standard error.
fn write_pcapng(
    what: &str,
    file: &Path,
    why: &Why,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let (bytes, headers) = pcapng::pcapng_file(why);
    if headers == 0 {
        let message = format!(
            "no header is recorded of {what}: a worker keeps those of retransmissions, probes, resets, FINs and of windows \
             that close or open"
        );
        return Err(Failure::new(Exit::Failed, message));
    }
    let sentence = format!("{headers} headers written");
    if file.as_os_str() == "-" {
        output.out.write_all(&bytes)?;
        return Ok(writeln!(output.err, "ddpctl: {sentence}")?);
    }
    std::fs::write(file, bytes)
        .map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", file.display())))?;
    output.print_done(format!("{sentence}; {}", file.display()))
}

fn format_explanation(why: &Why) -> String {
    let mut text = String::new();
    for sentence in &why.sentences {
        text += sentence;
        text += "\n";
    }
    for flight in &why.streams {
        if !text.is_empty() {
            text += "\n";
        }
        text += &format_flight(flight);
    }
    text
}

fn format_flight(flight: &Flight) -> String {
    let mut text = flight.sentences.join("\n") + "\n";
    if let Some(key) = flight.end.as_ref().and_then(|end| end.key.as_ref()) {
        text += &format!("Key: {key}\n");
    }
    if flight.recorder_left_out > 0 {
        text +=
            &format!("  ({} older events of the worker are left out)\n", flight.recorder_left_out);
    }
    let mut of_control = 0;
    for event in &flight.events {
        if FlightEvent::OF_CONTROL_THREAD.contains(&event.event.as_str()) {
            // The omitted events follow the first events of the control thread.
            if of_control == FIRST_EVENTS && flight.left_out > 0 {
                text += &format!("  ({} events are left out)\n", flight.left_out);
            }
            of_control += 1;
        }
        let seconds = event.after_us as f64 / 1e6;
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  {seconds:>10.6} s  {:<18} {}", event.event, event.detail);
    }
    text
}

/// Number of the control thread's first events, which are never left out.
const FIRST_EVENTS: usize = 6;

#[cfg(test)]
mod tests;

//! Packet dialogues: the peer's packets and the required packets of the stack, one behaviour per text file.
//! `dialogues/README.md` describes the format.

mod association;
mod endpoint_subject;
mod run;
mod segments;
mod tcp_subject;

use ::dialogue::script::{Script, ScriptError};

pub use ::dialogue::files;
pub use run::Batch;

/// Reads and plays the dialogue in `text`.
///
/// # Errors
/// The first line that is invalid, or from which the stack deviates.
pub fn play(text: &str) -> Result<(), ScriptError> {
    let script = Script::parse(text)?;
    let stack = script.settings.iter().find(|s| s.key == "stack");
    match stack.map(|s| s.value.as_str()) {
        Some("tcp") => segments::play::<tcp_subject::TcpSubject>(&script),
        Some("mpa") => segments::play::<endpoint_subject::EndpointSubject>(&script),
        Some("sctp") => association::play(&script),
        other => Err(ScriptError {
            line: stack.map_or(1, |s| s.line),
            message: format!("`set stack` is {other:?}, not one of tcp, mpa, sctp"),
        }),
    }
}

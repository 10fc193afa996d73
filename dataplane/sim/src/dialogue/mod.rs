//! Packet dialogues: the peer's packets and the required packets of the stack, one behaviour per text file.
//! `dialogues/README.md` describes the format.

mod association;
pub mod chunks;
mod endpoint_subject;
pub mod exchange;
mod messages;
pub mod received_packet;
mod run;
pub mod script;
mod segments;
pub mod streams;
mod tcp_subject;

use std::fs;
use std::path::{Path, PathBuf};

use script::{Script, ScriptError};

pub use run::Batch;

/// Reads and plays the dialogue in `text`.
///
/// # Errors
/// The first line that is invalid or not met.
pub fn play(text: &str) -> Result<(), ScriptError> {
    let script = Script::parse(text)?;
    let stack = script.settings.iter().find(|s| s.key == "stack");
    match stack.map(|s| s.value.as_str()) {
        Some("tcp") => segments::play::<tcp_subject::TcpSubject>(&script),
        Some("mpa") => segments::play::<endpoint_subject::EndpointSubject>(&script),
        Some("sctp") => association::play(&script),
        other => Err(ScriptError {
            line: stack.map_or(1, |s| s.line),
            message: format!("`set stack` is {other:?}, none of tcp, mpa, sctp"),
        }),
    }
}

/// Returns all `*.script` files below `directory`, sorted.
///
/// # Errors
/// A directory cannot be read.
pub fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|e| e == "script") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

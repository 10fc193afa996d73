//! Packet dialogues: the packets of one side and the required packets of the other, one behaviour per text file.
//! `dataplane/sim/dialogues/README.md` describes the format.
//!
//! This crate has the format, the encoding of packets to send, and the comparison with received packets. The crate has
//! neither a clock nor network interfaces: `sim` plays the files against this project's stack in virtual time, `iwspec`
//! against another host in real time. Encodings come from `oracle`, which shares no code with the stack.
#![forbid(unsafe_code)]

pub mod chunks;
pub mod exchange;
mod messages;
pub mod received_packet;
pub mod script;
pub mod segment;
pub mod streams;

use std::path::{Path, PathBuf};

/// Returns all `*.script` files below `directory`, sorted.
///
/// # Errors
/// A directory cannot be read.
pub fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
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

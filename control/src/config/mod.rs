//! The configuration file: TOML, read raw, then checked into types that cannot be wrong.
//!
//! Every error of a file is reported, not only the first one; each is one sentence that names the
//! file, the line, the key and the remedy. [`Document`] keeps the lines for errors that show later:
//! [`together`] finds what several files of one process say against each other, and
//! [`Document::environment`] what the machine lacks (devices, hugepages, permissions).

mod check;
mod devices;
mod document;
mod environment;
mod errors;
mod machine;
mod network;
mod objects;
mod ports;
mod rdmap;
mod reader;
mod sctp;
mod together;
mod tuning;
mod types;
mod values;

#[cfg(test)]
mod tests;

use std::path::Path;

pub use document::{Document, listener_from_json, region_from_json};

pub use errors::{ConfigError, ConfigErrors};
pub use machine::Finding;
pub use rdmap::{MAX_DEPTH, RdmapSection, ServiceKind, Ulp};
pub use sctp::SctpSection;
pub use together::{one_ended_links, together};
pub use types::*;
pub(crate) use values::{parse_u64, show_size};

/// The API's socket where nothing else is said, for `ddpd` and for `ddpctl`.
pub const DEFAULT_SOCKET: &str = "/run/ddpd/ddpd.sock";

impl Config {
    /// Reads and checks one file.
    pub fn load(file: &Path) -> Result<Self, ConfigErrors> {
        Ok(Document::read(file)?.config)
    }
}

/// Reads and checks the files of one process, each alone and against each other.
pub fn load_all<P: AsRef<Path>>(files: &[P]) -> Result<Vec<Document>, ConfigErrors> {
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for file in files {
        match Document::read(file.as_ref()) {
            Ok(document) => documents.push(document),
            Err(more) => errors.extend(more.0),
        }
    }
    errors.extend(together(&documents));
    if errors.is_empty() { Ok(documents) } else { Err(ConfigErrors(errors)) }
}

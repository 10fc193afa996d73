//! The running configuration in the API, and its differences from the file.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lossy_path;

/// What runs, key by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigInfo {
    /// The configuration file, as given to `ddpd`.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub file: PathBuf,
    /// Its tables, in the order of a file.
    pub sections: Vec<SectionInfo>,
}

/// One table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SectionInfo {
    /// `tcp`, `listener.limits`; empty for the keys of the whole file.
    pub section: String,
    /// Which one of several: the `name` of a port, an interface, a region or a listener, and below it a route's `to` or
    /// a queue's `qn`.
    pub of: Vec<String>,
    /// Keys that have a value.
    pub keys: Vec<KeyInfo>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeyInfo {
    /// Its name.
    pub key: String,
    /// Its value, as the file would have it. A secret is shown as `…`.
    pub value: Value,
    /// Where the value came from.
    #[serde(flatten)]
    pub origin: ValueOrigin,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "origin", rename_all = "snake_case")]
pub enum ValueOrigin {
    /// The configuration file.
    File {
        /// The line as it was when the value was taken from there, from 1.
        line: u32,
    },
    /// The program's default.
    Default,
    /// The command line of `ddpd`.
    CommandLine,
    /// A request of the API.
    Api {
        /// Its method and path.
        call: String,
    },
}

/// Differences between the running configuration and the file as it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDiff {
    /// The file.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub file: PathBuf,
    /// Differences; none if both say the same.
    pub differences: Vec<Difference>,
}

/// One key, or one table, that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// As [`SectionInfo::section`].
    pub section: String,
    /// As [`SectionInfo::of`].
    pub of: Vec<String>,
    /// The key; none where a whole table is on one side only.
    pub key: Option<String>,
    /// What runs; for a table an object with its keys. None if it is in the file only.
    pub running: Option<Value>,
    /// Where that came from.
    pub origin: Option<ValueOrigin>,
    /// What the file has. None if it only runs.
    pub file: Option<Value>,
    /// The file's line.
    pub line: Option<u32>,
    /// What makes the difference go away.
    pub when: When,
}

/// What brings a difference between file and running state into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// A reload.
    Reload,
    /// A restart.
    Restart,
    /// The API made it: a reload leaves it, a restart ends it unless the running state is saved.
    Api,
}

/// A saved configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Saved {
    /// Where.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub file: PathBuf,
    /// How long it is.
    pub bytes: u64,
}

//! The running configuration in the API, and its differences from the configuration file.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lossy_path;

/// The running configuration, key by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigInfo {
    /// Path of the configuration file, as given to `ddpd`.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub file: PathBuf,
    /// Tables of the configuration, in the order of a file.
    pub sections: Vec<SectionInfo>,
}

/// One table of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SectionInfo {
    /// Name of the table, such as `tcp` or `listener.limits`. Empty for keys outside of tables.
    pub section: String,
    /// Identity of a table that can occur several times: `name` of the port, interface, region or listener, followed by
    /// `to` of a route or `qn` of a queue. Empty for other tables.
    #[serde(rename = "of")]
    pub identity: Vec<String>,
    /// Keys that have a value.
    pub keys: Vec<KeyInfo>,
}

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeyInfo {
    /// Name of the key.
    pub key: String,
    /// Value, as in the file. A secret is shown as `…`.
    pub value: Value,
    /// Origin of the value.
    #[serde(flatten)]
    pub origin: ValueOrigin,
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "origin", rename_all = "snake_case")]
pub enum ValueOrigin {
    /// The configuration file.
    File {
        /// Line in the file at the time of loading, from 1.
        line: u32,
    },
    /// The program's default.
    Default,
    /// The command line of `ddpd`.
    CommandLine,
    /// A call of the API.
    Api {
        /// Method and path of the call.
        call: String,
    },
}

/// Differences between the running configuration and the present file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDiff {
    /// Path of the file.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub file: PathBuf,
    /// Differences. Empty if the running configuration equals the file.
    pub differences: Vec<Difference>,
}

/// A key or table that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Name of the table, as [`SectionInfo::section`].
    pub section: String,
    /// Identity of the table, as in the running configuration.
    #[serde(rename = "of")]
    pub identity: Vec<String>,
    /// Name of the key. `null` for a whole table that only one side has.
    pub key: Option<String>,
    /// Running value; for a table an object with its keys. `null` if only the file has it.
    pub running: Option<Value>,
    /// Origin of the running value; for a table, origin of its first key. `null` if only the file has it.
    pub origin: Option<ValueOrigin>,
    /// Value in the file; for a table an object with its keys. `null` if the file does not have it.
    pub file: Option<Value>,
    /// Line of the key or table in the file. `null` if the file does not contain that key or table.
    pub line: Option<u32>,
    /// Action that removes the difference.
    pub when: When,
}

/// Action that removes a difference between the file and the running configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// A reload.
    Reload,
    /// A restart.
    Restart,
    /// A restart. The API made the change: a reload keeps it, and a restart reverts it unless the running configuration
    /// was saved.
    Api,
}

/// Result of saving the running configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Saved {
    /// Path of the written file.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub file: PathBuf,
    /// Length of the file, bytes.
    pub bytes: u64,
}

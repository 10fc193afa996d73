//! The transport below DDP, as named in files, requests and URLs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Transport below DDP (the LLP).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// MPA over TCP (RFC 5044).
    #[default]
    Tcp,
    /// SCTP (RFC 5043).
    Sctp,
}

impl Transport {
    /// All transports with their words in the configuration.
    pub const WORDS: [(&'static str, Transport); 2] =
        [("tcp", Transport::Tcp), ("sctp", Transport::Sctp)];

    /// Returns the word in the configuration and in the API: `tcp` or `sctp`.
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Sctp => "sctp",
        }
    }
}

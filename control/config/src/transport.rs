//! What carries DDP, as files, requests and URLs name it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A lower layer.
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
    /// All of them with their words.
    pub const WORDS: [(&'static str, Transport); 2] =
        [("tcp", Transport::Tcp), ("sctp", Transport::Sctp)];

    /// The word that stands for it.
    pub fn word(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Sctp => "sctp",
        }
    }
}

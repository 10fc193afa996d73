//! The number of a stream or association in requests and replies.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Number of a stream or association. In JSON and text: 16 hexadecimal digits, the first four of which are the worker's
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for StreamId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() <= 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(text, 16) {
            Ok(id) if digits => Ok(Self(id)),
            _ => Err(format!("`{text}` is no stream number: it has up to 16 hexadecimal digits")),
        }
    }
}

impl Serialize for StreamId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StreamId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for StreamId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "StreamId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Number of a stream or association: 16 hexadecimal digits, the first four for the worker. Requests may omit leading zeros.",
            "pattern": "^[0-9A-Fa-f]{1,16}$",
        })
    }
}

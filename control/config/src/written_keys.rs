//! Formats the values of keys as in a file.

use std::time::Duration;

use serde_json::{Value, json};

/// Keys with their values.
pub(super) type Keys = Vec<(&'static str, Value)>;

/// Adds a key with its formatted value; an empty text means no value.
pub(super) fn push(keys: &mut Keys, key: &'static str, shown: &str) {
    if shown.is_empty() {
        return;
    }
    let value = shown.parse::<toml::Value>().ok().and_then(|v| serde_json::to_value(v).ok());
    debug_assert!(value.is_some(), "{key}: {shown} is no TOML value");
    keys.push((key, value.unwrap_or_else(|| json!(shown))));
}

pub(super) fn eal_args(arguments: &[String], keys: &mut Keys) {
    if !arguments.is_empty() {
        keys.push(("eal_args", json!(arguments)));
    }
}

/// Writes nothing: the section's own table is written separately.
pub(super) fn in_own_table<T>(_: &T, _: &mut Keys) {}

pub(super) fn time(time: Duration) -> Value {
    json!(humantime::format_duration(time).to_string())
}

pub(super) fn time_or_off(limit: Option<Duration>) -> Value {
    limit.map_or_else(|| json!("off"), time)
}

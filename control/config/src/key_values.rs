//! Formats the values of keys as in a file.

use std::time::Duration;

use serde_json::{Value, json};

/// Keys with their values.
pub(super) type KeyValues = Vec<(&'static str, Value)>;

/// Adds a key with its formatted value. Omits a key whose text is empty, because it has no value.
pub(super) fn push(keys: &mut KeyValues, key: &'static str, shown: &str) {
    if shown.is_empty() {
        return;
    }
    let value = shown.parse::<toml::Value>().ok().and_then(|v| serde_json::to_value(v).ok());
    debug_assert!(value.is_some(), "{key}: {shown} is no TOML value");
    keys.push((key, value.unwrap_or_else(|| json!(shown))));
}

pub(super) fn eal_args(arguments: &[String], keys: &mut KeyValues) {
    if !arguments.is_empty() {
        keys.push(("eal_args", json!(arguments)));
    }
}

/// Adds nothing: the keys of a sub-table are written as a separate table.
pub(super) fn skip<T>(_: &T, _: &mut KeyValues) {}

pub(super) fn time_value(time: Duration) -> Value {
    json!(humantime::format_duration(time).to_string())
}

pub(super) fn time_or_off_value(limit: Option<Duration>) -> Value {
    limit.map_or_else(|| json!("off"), time_value)
}

//! The JSON Schema (2020-12) of the configuration, generated from the descriptors of the keys. The schema refuses
//! unknown keys, wrong types, wrong words and integers out of range. It does not check rules between keys, nor the
//! range of sizes and times; `ddpd check` does.

use serde_json::{Map, Value, json};

use super::keys::Key;
use super::reference::LISTS;
use super::rule::Shape;

/// Keys that are always required in their section.
const REQUIRED_KEYS: [(&str, &[&str]); 7] = [
    ("", &["port", "interface"]),
    ("port", &["name", "kind"]),
    ("interface", &["name", "port", "addresses"]),
    ("interface.routes", &["to", "via"]),
    ("region", &["name", "access"]),
    ("listener", &["name", "interface", "port"]),
    ("listener.queue", &["qn"]),
];

/// Returns the schema of the whole file.
pub fn file_schema(keys: &[Key]) -> Value {
    let mut root = table_schema("");
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("ddpd.toml");
    for key in keys {
        let mut place = &mut root;
        let mut path = String::new();
        for part in key.section.split('.').filter(|part| !part.is_empty()) {
            path = if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
            let list = LISTS.contains(&path.as_str());
            let new = if list {
                json!({"type": "array", "items": table_schema(&path)})
            } else {
                table_schema(&path)
            };
            let properties = as_object(&mut place["properties"]);
            let below = properties.entry(part).or_insert(new);
            place = if list { &mut below["items"] } else { below };
        }
        let mut value = value_schema(&key.shape);
        let description = format!("{}{}", key.help, key.describe_default());
        as_object(&mut value).insert("description".into(), description.into());
        as_object(&mut place["properties"]).insert(key.name.into(), value);
    }
    for needed in ["port", "interface"] {
        root["properties"][needed]["minItems"] = json!(1);
    }
    root
}

/// Returns the schema of one section and its sub-tables, as the API accepts them: a null member means that the key is
/// absent.
pub fn section_schema(keys: &[Key], section: &str) -> Value {
    let mut root = file_schema(keys);
    let mut found = root["properties"][section].take();
    let mut found = if LISTS.contains(&section) { found["items"].take() } else { found.take() };
    allow_null(&mut found);
    found
}

fn allow_null(table: &mut Value) {
    let required = table.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(properties) = table.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, value) in properties {
        allow_null(value);
        if let Some(items) = value.get_mut("items") {
            allow_null(items);
        }
        if !required.contains(&json!(name)) {
            let own = value.take();
            *value = json!({"anyOf": [own, {"type": "null"}]});
        }
    }
}

fn table_schema(section: &str) -> Value {
    let mut table = json!({"type": "object", "additionalProperties": false, "properties": {}});
    if let Some((_, required)) = REQUIRED_KEYS.iter().find(|(of, _)| *of == section) {
        table["required"] = json!(required);
    }
    table
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("the schema is an object")
}

/// Pattern of a number of bytes, without a unit or with a decimal or binary unit.
const SIZE_PATTERN: &str = r"^[0-9]+(\.[0-9]+)? *([kKmMgGtTpPeE][iI]?)?[bB]?$";
/// Pattern of a time: numbers, each with a unit.
const DURATION_PATTERN: &str =
    r"^ *(0|[0-9]+(\.[0-9]+)? *[a-zA-Zµ]+( *[0-9]+(\.[0-9]+)? *[a-zA-Zµ]+)*) *$";

fn value_schema(shape: &Shape) -> Value {
    match shape {
        Shape::Boolean => json!({"type": "boolean"}),
        Shape::Integer { min, max } => {
            json!({"type": "integer", "minimum": *min as i64, "maximum": *max as i64})
        }
        Shape::PowerOfTwo { min, max } => {
            let powers = (0..16).map(|shift| 1u16 << shift);
            json!({"enum": powers.filter(|power| (min..=max).contains(&power)).collect::<Vec<_>>()})
        }
        Shape::Size { min, max } => json!({"anyOf": [
            {"type": "integer", "minimum": min, "maximum": max},
            {"type": "string", "pattern": SIZE_PATTERN},
        ]}),
        Shape::Duration { .. } => json!({"type": "string", "pattern": DURATION_PATTERN}),
        Shape::Words(words) => json!({"enum": words}),
        Shape::Name => json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}),
        Shape::Text(_) => json!({"type": "string", "minLength": 1}),
        Shape::Number(_) => json!({"anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "minLength": 1},
        ]}),
        Shape::List(element) => json!({"type": "array", "items": value_schema(element)}),
        Shape::OneOrMore(element) => {
            json!({"anyOf": [value_schema(element), {"type": "array", "items": value_schema(element)}]})
        }
        Shape::OrOff(shape) => json!({"anyOf": [value_schema(shape), {"const": "off"}]}),
    }
}

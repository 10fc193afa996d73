//! Generates the text of a configuration file: a new text, or the present text with edited values, which keeps comments
//! and order.

use std::path::Path;

use serde_json::Value as Json;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table as TomlTable, Value};

use super::document::{Document, listener_from_json, region_from_json};
use super::key_values::KeyValues;
use super::reference::{LISTS, header};
use super::source::identity_key;
use super::to_tables::{Secrets, WrittenTable};
use super::{Config, ListenerSection, RegionSection};

/// Returns a text for `file` that contains this configuration. `text`: the present text, which is edited if possible.
///
/// # Errors
/// No file can describe this configuration. The error is one sentence.
pub fn file_text(config: &Config, file: &Path, text: &str) -> Result<String, String> {
    let wanted = config.to_tables(Secrets::InClear);
    let is_it = |text: &str| {
        Document::parse(file, text)
            .is_ok_and(|document| document.config.to_tables(Secrets::InClear) == wanted)
    };
    if let Some(edited) = edit_text(file, text, config, &wanted).filter(|text| is_it(text)) {
        return Ok(edited);
    }
    let whole = render(&wanted);
    match Document::parse(file, &whole) {
        Ok(_) if is_it(&whole) => Ok(whole),
        Ok(_) => {
            Err("the running configuration cannot be written as a file with the same meaning"
                .into())
        }
        Err(errors) => {
            Err(format!("the running configuration cannot be written as a file: {errors}"))
        }
    }
}

/// Returns the tables as the text of a file.
pub(crate) fn render(tables: &[WrittenTable]) -> String {
    let mut text = String::new();
    for table in tables {
        let keys =
            table.keys.iter().map(|&(name, ref value)| RenderedKey { name, value, comment: None });
        render_table(&mut text, table.section, keys);
    }
    text
}

/// A key of a table for [`render_table`].
pub struct RenderedKey<'k> {
    /// Name of the key.
    pub name: &'k str,
    /// Value of the key. Keys whose value TOML cannot express are omitted.
    pub value: &'k Json,
    /// Comment that follows the key on its line.
    pub comment: Option<String>,
}

/// Appends a table with its keys to a text.
pub fn render_table<'k>(
    text: &mut String,
    section: &str,
    keys: impl Iterator<Item = RenderedKey<'k>>,
) {
    let mut lines = String::new();
    for RenderedKey { name, value, comment } in keys {
        let Some(value) = json_to_toml(value) else { continue };
        let line = format!("{name} = {value}");
        lines += &match comment {
            Some(comment) => format!("{line:<38} # {comment}\n"),
            None => line + "\n",
        };
    }
    if lines.is_empty() {
        return;
    }
    if !section.is_empty() {
        let space = if text.is_empty() { "" } else { "\n" };
        *text += &format!("{space}{}\n", header(section));
    }
    *text += &lines;
}

/// Returns a value as TOML; `None` if TOML cannot express it.
pub fn json_to_toml(json: &Json) -> Option<String> {
    toml_value(json).map(|value| value.to_string())
}

/// Returns a section's header for use in messages, such as `[tcp]` or `[[port]]`. For the top level, returns the words
/// "the file's".
pub fn table_header(section: &str) -> String {
    if section.is_empty() { "the file's".to_owned() } else { header(section) }
}

/// Returns `text` with all values that differ from `wanted` changed; `None` if the text cannot be edited.
fn edit_text(file: &Path, text: &str, config: &Config, wanted: &[WrittenTable]) -> Option<String> {
    let have = Document::parse(file, text).ok()?.config.to_tables(Secrets::InClear);
    let mut document: DocumentMut = text.parse().ok()?;
    let root = document.as_table_mut();
    let same =
        |a: &WrittenTable, b: &WrittenTable| a.section == b.section && a.identity == b.identity;
    for removed in have.iter().filter(|table| !wanted.iter().any(|other| same(table, other))) {
        remove_table(root, removed)?;
    }
    for table in wanted {
        match have.iter().find(|other| same(table, other)) {
            Some(was) => update_table(root, was, table)?,
            None => {
                let keys = keys_of_new_table(config, table);
                if !keys.is_empty() {
                    let place = open_table(root, table.section, &table.identity)?;
                    keys.iter().try_for_each(|(key, json)| set_value(place, key, json))?;
                }
            }
        }
    }
    Some(document.to_string())
}

fn update_table(root: &mut TomlTable, was: &WrittenTable, table: &WrittenTable) -> Option<()> {
    if was.keys == table.keys {
        return Some(());
    }
    let place = open_table(root, table.section, &table.identity)?;
    for (key, _) in was.keys.iter().filter(|(key, _)| !table.keys.iter().any(|(k, _)| k == key)) {
        place.remove(key);
    }
    let changed = table.keys.iter().filter(|entry| !was.keys.contains(entry));
    for (key, json) in changed {
        set_value(place, key, json)?;
    }
    Some(())
}

/// Sets the value of a key; whitespace and comments around it remain. `None` if TOML cannot express the value.
fn set_value(place: &mut TomlTable, key: &str, json: &Json) -> Option<()> {
    let mut new = toml_value(json)?;
    match place.get_mut(key) {
        // Replaces the value in place: `insert` would remove the comments above the key.
        Some(item) => {
            if let Some(old) = item.as_value() {
                *new.decor_mut() = old.decor().clone();
            }
            *item = Item::Value(new);
        }
        None => {
            place.insert(key, Item::Value(new));
        }
    }
    Some(())
}

fn remove_table(root: &mut TomlTable, removed: &WrittenTable) -> Option<()> {
    let (outer, name) = removed.section.rsplit_once('.').unwrap_or(("", removed.section));
    if !LISTS.contains(&removed.section) {
        // The enclosing table may have been removed already.
        if let Some(place) = find_table(root, outer, &removed.identity) {
            place.remove(name);
        }
        return Some(());
    }
    let (last, enclosing) = removed.identity.split_last()?;
    let Some(list) = find_table(root, outer, enclosing).and_then(|place| place.get_mut(name))
    else {
        return Some(());
    };
    let list = list.as_array_of_tables_mut()?;
    let key = identity_key(removed.section);
    list.retain(|table| !has_identity(table, key, last));
    Some(())
}

fn has_identity(table: &TomlTable, key: &str, name: &str) -> bool {
    let value = table.get(key).and_then(Item::as_value);
    value.is_some_and(|value| match value {
        Value::String(text) => text.value() == name,
        Value::Integer(number) => number.value().to_string() == name,
        _ => false,
    })
}

/// Returns the table of this section, if it exists. `identity`: names (or other identities) of the list elements on its
/// path, outermost first.
fn find_table<'t>(
    root: &'t mut TomlTable,
    section: &str,
    identity: &[String],
) -> Option<&'t mut TomlTable> {
    walk_to_table(root, section, identity, false)
}

/// Returns the table of this section; creates it if missing. `identity`: names (or other identities) of the list
/// elements on its path, outermost first.
fn open_table<'t>(
    root: &'t mut TomlTable,
    section: &str,
    identity: &[String],
) -> Option<&'t mut TomlTable> {
    walk_to_table(root, section, identity, true)
}

fn walk_to_table<'t>(
    root: &'t mut TomlTable,
    section: &str,
    identity: &[String],
    make: bool,
) -> Option<&'t mut TomlTable> {
    let (mut place, mut path, mut identities) = (root, String::new(), identity.iter());
    for part in section.split('.').filter(|part| !part.is_empty()) {
        path = if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
        if !make && !place.contains_key(part) {
            return None;
        }
        place = if LISTS.contains(&path.as_str()) {
            let (name, key) = (identities.next()?, identity_key(&path));
            let list = place.entry(part).or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
            let list = list.as_array_of_tables_mut()?;
            let at = list.iter().position(|table| has_identity(table, key, name));
            let at = match at {
                Some(at) => at,
                None if !make => return None,
                None => {
                    list.push(TomlTable::new());
                    list.len() - 1
                }
            };
            list.get_mut(at)?
        } else {
            place.entry(part).or_insert(Item::Table(TomlTable::new())).as_table_mut()?
        };
    }
    Some(place)
}

fn toml_value(json: &Json) -> Option<Value> {
    match json {
        Json::Bool(value) => Some((*value).into()),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Some(integer.into()),
            None => number.as_f64().map(Value::from),
        },
        Json::String(text) => Some(text.as_str().into()),
        Json::Array(items) => {
            let items: Option<Vec<Value>> = items.iter().map(toml_value).collect();
            Some(items?.into_iter().collect())
        }
        Json::Null | Json::Object(_) => None,
    }
}

/// Returns the keys of a new table. For a region or a listener, only the keys that differ from the default.
fn keys_of_new_table(config: &Config, table: &WrittenTable) -> KeyValues {
    let name = table.identity.first();
    let region = config.regions.iter().find(|region| Some(&region.name) == name);
    let listener = config.listeners.iter().find(|listener| Some(&listener.name) == name);
    let needed = |key: &str| match (table.section, region, listener) {
        ("region", Some(region), _) => region_needs_key(region, key),
        (section, _, Some(listener)) if section.starts_with("listener") => {
            listener_needs_key(listener, table, key)
        }
        _ => true,
    };
    table.keys.iter().filter(|(key, _)| needed(key)).cloned().collect()
}

/// Returns true if the region would be different or invalid without the key.
fn region_needs_key(region: &RegionSection, key: &str) -> bool {
    let alone = Config::tables_of_region(region);
    region_from_json(&api_body(&[alone], "region", "", key)).ok().as_ref() != Some(region)
}

fn listener_needs_key(listener: &ListenerSection, table: &WrittenTable, key: &str) -> bool {
    let all = Config::listener_tables(listener);
    let queue = table.identity.get(1).map_or("", String::as_str);
    let body = api_body(&all, table.section, queue, key);
    listener_from_json(&body).ok().as_ref() != Some(listener)
}

/// Returns the tables of one region or listener as an API request. Omits the key `without` of the table `section`; for
/// a table of queues, of the queue with the number `queue`.
fn api_body(tables: &[WrittenTable], section: &str, queue: &str, without: &str) -> Json {
    let mut body = serde_json::Map::new();
    for table in tables {
        let number = table.identity.get(1).map_or("", String::as_str);
        let left = |key: &str| table.section == section && number == queue && key == without;
        let keys = table.keys.iter().filter(|(key, _)| !left(key));
        let object: serde_json::Map<_, _> =
            keys.map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        match table.section.rsplit_once('.') {
            None => body.extend(object),
            Some((_, "queue")) => {
                let list = body.entry("queue").or_insert_with(|| Json::Array(Vec::new()));
                list.as_array_mut().into_iter().for_each(|l| l.push(Json::Object(object.clone())));
            }
            Some((_, name)) => drop(body.insert(name.to_owned(), Json::Object(object))),
        }
    }
    Json::Object(body)
}

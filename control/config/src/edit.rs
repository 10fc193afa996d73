//! Generates the text of a file from tables: from scratch, or by editing a text so that its
//! comments and order remain.

use std::path::Path;

use serde_json::Value as Json;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table as TomlTable, Value};

use super::document::{Document, listener_from_json, region_from_json};
use super::reference::{LISTS, header};
use super::source::identity_key;
use super::written::{Secrets, Table};
use super::written_keys::Keys;
use super::{Config, ListenerSection, RegionSection};

/// Returns a text for `file` that reads as this configuration. `text`: the present text, which is
/// edited if possible.
///
/// # Errors
/// One sentence: no file describes this configuration.
pub fn file_text(config: &Config, file: &Path, text: &str) -> Result<String, String> {
    let wanted = config.written(Secrets::Written);
    let is_it = |text: &str| {
        Document::parse(file, text)
            .is_ok_and(|document| document.config.written(Secrets::Written) == wanted)
    };
    if let Some(edited) = edited(file, text, config, &wanted).filter(|text| is_it(text)) {
        return Ok(edited);
    }
    let whole = render(&wanted);
    match Document::parse(file, &whole) {
        Ok(_) if is_it(&whole) => Ok(whole),
        Ok(_) => Err("what runs cannot be written as a file that says the same".into()),
        Err(errors) => Err(format!("what runs cannot be written as a file: {errors}")),
    }
}

/// Returns the tables as a file.
pub(crate) fn render(tables: &[Table]) -> String {
    let mut text = String::new();
    for table in tables {
        let keys = table.keys.iter().map(|(key, value)| (*key, value, None));
        render_table(&mut text, table.section, keys);
    }
    text
}

/// Adds a table with its keys to a text, each with a comment behind it if it has one.
pub fn render_table<'k>(
    text: &mut String,
    section: &str,
    keys: impl Iterator<Item = (&'k str, &'k Json, Option<String>)>,
) {
    let mut lines = String::new();
    for (key, json, comment) in keys {
        let Some(value) = toml_of(json) else { continue };
        let line = format!("{key} = {value}");
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
pub fn toml_of(json: &Json) -> Option<String> {
    value(json).map(|value| value.to_string())
}

/// Returns `[tcp]` or `[[port]]`; for the keys of the whole file, `the file's`.
pub fn header_of(section: &str) -> String {
    if section.is_empty() { "the file's".to_owned() } else { header(section) }
}

/// Returns `text` with the differing values changed; `None` if it is not in the usual form.
fn edited(file: &Path, text: &str, config: &Config, wanted: &[Table]) -> Option<String> {
    let have = Document::parse(file, text).ok()?.config.written(Secrets::Written);
    let mut document: DocumentMut = text.parse().ok()?;
    let root = document.as_table_mut();
    let same = |a: &Table, b: &Table| a.section == b.section && a.of == b.of;
    for gone in have.iter().filter(|table| !wanted.iter().any(|other| same(table, other))) {
        remove(root, gone)?;
    }
    for table in wanted {
        match have.iter().find(|other| same(table, other)) {
            Some(was) => change(root, was, table)?,
            None => {
                let keys = of_new(config, table);
                if !keys.is_empty() {
                    let place = open(root, table.section, &table.of)?;
                    keys.iter().try_for_each(|(key, json)| set(place, key, json))?;
                }
            }
        }
    }
    Some(document.to_string())
}

fn change(root: &mut TomlTable, was: &Table, table: &Table) -> Option<()> {
    if was.keys == table.keys {
        return Some(());
    }
    let place = open(root, table.section, &table.of)?;
    for (key, _) in was.keys.iter().filter(|(key, _)| !table.keys.iter().any(|(k, _)| k == key)) {
        place.remove(key);
    }
    let changed = table.keys.iter().filter(|entry| !was.keys.contains(entry));
    for (key, json) in changed {
        set(place, key, json)?;
    }
    Some(())
}

/// Sets the value of a key; its surroundings remain.
fn set(place: &mut TomlTable, key: &str, json: &Json) -> Option<()> {
    let mut new = value(json)?;
    if let Some(old) = place.get(key).and_then(Item::as_value) {
        *new.decor_mut() = old.decor().clone();
    }
    place.insert(key, Item::Value(new));
    Some(())
}

fn remove(root: &mut TomlTable, gone: &Table) -> Option<()> {
    let (outer, name) = gone.section.rsplit_once('.').unwrap_or(("", gone.section));
    if !LISTS.contains(&gone.section) {
        // The enclosing table may have been removed itself.
        if let Some(place) = find(root, outer, &gone.of) {
            place.remove(name);
        }
        return Some(());
    }
    let (last, of) = gone.of.split_last()?;
    let Some(list) = find(root, outer, of).and_then(|place| place.get_mut(name)) else {
        return Some(());
    };
    let list = list.as_array_of_tables_mut()?;
    let key = identity_key(gone.section);
    list.retain(|table| !is_called(table, key, last));
    Some(())
}

fn is_called(table: &TomlTable, key: &str, name: &str) -> bool {
    let value = table.get(key).and_then(Item::as_value);
    value.is_some_and(|value| match value {
        Value::String(text) => text.value() == name,
        Value::Integer(number) => number.value().to_string() == name,
        _ => false,
    })
}

/// Returns the table with this section and these names, if it exists.
fn find<'t>(root: &'t mut TomlTable, section: &str, of: &[String]) -> Option<&'t mut TomlTable> {
    walk(root, section, of, false)
}

/// Returns the table with this section and these names, created if missing.
fn open<'t>(root: &'t mut TomlTable, section: &str, of: &[String]) -> Option<&'t mut TomlTable> {
    walk(root, section, of, true)
}

fn walk<'t>(
    root: &'t mut TomlTable,
    section: &str,
    of: &[String],
    make: bool,
) -> Option<&'t mut TomlTable> {
    let (mut place, mut path, mut of) = (root, String::new(), of.iter());
    for part in section.split('.').filter(|part| !part.is_empty()) {
        path = if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
        if !make && !place.contains_key(part) {
            return None;
        }
        place = if LISTS.contains(&path.as_str()) {
            let (name, key) = (of.next()?, identity_key(&path));
            let list = place.entry(part).or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
            let list = list.as_array_of_tables_mut()?;
            let at = list.iter().position(|table| is_called(table, key, name));
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

fn value(json: &Json) -> Option<Value> {
    match json {
        Json::Bool(value) => Some((*value).into()),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Some(integer.into()),
            None => number.as_f64().map(Value::from),
        },
        Json::String(text) => Some(text.as_str().into()),
        Json::Array(items) => {
            let items: Option<Vec<Value>> = items.iter().map(value).collect();
            Some(items?.into_iter().collect())
        }
        Json::Null | Json::Object(_) => None,
    }
}

/// Returns the keys of a new table; of a region or a listener only those that differ from the
/// default.
fn of_new(config: &Config, table: &Table) -> Keys {
    let name = table.of.first();
    let region = config.regions.iter().find(|region| Some(&region.name) == name);
    let listener = config.listeners.iter().find(|listener| Some(&listener.name) == name);
    let needed = |key: &str| match (table.section, region, listener) {
        ("region", Some(region), _) => region_needs(region, key),
        (section, _, Some(listener)) if section.starts_with("listener") => {
            listener_needs(listener, table, key)
        }
        _ => true,
    };
    table.keys.iter().filter(|(key, _)| needed(key)).cloned().collect()
}

/// Returns true if the region differs or is invalid without the key.
fn region_needs(region: &RegionSection, key: &str) -> bool {
    let alone = Config::tables_of_region(region);
    region_from_json(&body(&[alone], "region", "", key)).ok().as_ref() != Some(region)
}

fn listener_needs(listener: &ListenerSection, table: &Table, key: &str) -> bool {
    let all = Config::tables_of_listener(listener);
    let queue = table.of.get(1).map_or("", String::as_str);
    let body = body(&all, table.section, queue, key);
    listener_from_json(&body).ok().as_ref() != Some(listener)
}

/// Returns the tables of one region or listener as the API accepts them, without one key.
fn body(tables: &[Table], section: &str, queue: &str, without: &str) -> Json {
    let mut body = serde_json::Map::new();
    for table in tables {
        let number = table.of.get(1).map_or("", String::as_str);
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

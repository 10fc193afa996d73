//! Reads a TOML table key by key and reports all of its errors.
//!
//! serde stops at the first error, but an operator needs all of them. Each section is therefore read explicitly:
//! [`Section::optional`] and similar functions read a key by a rule of [`super::values`], and [`Section::finish`]
//! reports unknown keys.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{ErrorSink, SectionSpan};
use super::rule::ParseValue;

/// Reader of one table of the file. Records which keys were read or marked as known.
pub(super) struct Section<'s, 'i> {
    sink: &'s ErrorSink,
    table: Option<&'s DeTable<'i>>,
    known: Vec<&'static str>,
    span: SectionSpan,
}

impl<'s, 'i> Section<'s, 'i> {
    /// Creates the reader of the whole document.
    pub(super) fn root(sink: &'s ErrorSink, table: &'s DeTable<'i>) -> Self {
        Self::new(sink, Some(table), String::new(), 0)
    }

    fn new(sink: &'s ErrorSink, table: Option<&'s DeTable<'i>>, path: String, at: usize) -> Self {
        let keys = table.iter().flat_map(|table| table.iter());
        let keys = keys.map(|(key, _)| (key.get_ref().to_string(), key.span().start)).collect();
        Self { sink, table, known: Vec::new(), span: SectionSpan { path, offset: at, keys } }
    }

    /// Marks the key as known, and returns its value; `None` if the key is absent.
    fn value_once(&mut self, key: &'static str) -> Option<&'s Spanned<DeValue<'i>>> {
        self.known.push(key);
        self.table?.get(key)
    }

    /// Returns true if the key is present.
    pub(super) fn contains(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Returns the key's value, or `None` if the key is absent. Reports a wrong value and returns `None`.
    pub(super) fn optional<T>(&mut self, key: &'static str, rule: impl ParseValue<T>) -> Option<T> {
        let value = self.value_once(key)?;
        match rule.parse(value.get_ref()) {
            Ok(value) => Some(value),
            Err(message) => {
                self.report(key, message);
                None
            }
        }
    }

    /// Returns the key's value, or `default` if the key is absent. Reports a wrong value and returns `default`.
    pub(super) fn or_default<T>(
        &mut self,
        key: &'static str,
        default: T,
        rule: impl ParseValue<T>,
    ) -> T {
        self.optional(key, rule).unwrap_or(default)
    }

    /// Returns the key's value. Reports a missing key with `remedy`, an imperative without full stop. `None` after a
    /// report.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        remedy: &str,
        rule: impl ParseValue<T>,
    ) -> Option<T> {
        if !self.contains(key) {
            self.known.push(key);
            self.report(key, format!("is missing: {remedy}"));
            return None;
        }
        self.optional(key, rule)
    }

    /// Reads the elements of an array. An error has the line of its element.
    pub(super) fn list<T>(&mut self, key: &'static str, rule: impl ParseValue<T>) -> Vec<T> {
        let Some(value) = self.value_once(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            let kind = value.get_ref().type_str();
            self.report(
                key,
                format!("is {}, but must be a list: write it in [ ]", with_article(kind)),
            );
            return Vec::new();
        };
        let mut items = Vec::new();
        for item in array {
            match rule.parse(item.get_ref()) {
                Ok(item) => items.push(item),
                Err(message) => {
                    self.sink.report_offset(item.span().start, self.span.full_key(key), message);
                }
            }
        }
        items
    }

    /// Returns the reader of a sub-table, which is empty if the key is missing. A value that is not a table is reported
    /// and treated as missing.
    pub(super) fn table(&mut self, key: &'static str) -> Section<'s, 'i> {
        let path = self.span.full_key(key);
        let at = self.span.key_offset(key);
        let table = match self.value_once(key).map(Spanned::get_ref) {
            None => None,
            Some(DeValue::Table(table)) => Some(table),
            Some(other) => {
                let kind = with_article(other.type_str());
                self.report(key, format!("is {kind}, but must be a table: write [{path}]"));
                None
            }
        };
        Section::new(self.sink, table, path, at)
    }

    /// Returns the readers of the tables in an array of tables; none if the key is missing.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<Section<'s, 'i>> {
        let path = self.span.full_key(key);
        let wrong = |kind| {
            format!("is {}, but must be tables: begin each with [[{path}]]", with_article(kind))
        };
        let array = match self.value_once(key).map(Spanned::get_ref) {
            None => return Vec::new(),
            Some(DeValue::Array(array)) => array,
            Some(other) => {
                self.report(key, wrong(other.type_str()));
                return Vec::new();
            }
        };
        let mut sections = Vec::new();
        for item in array {
            match item.get_ref() {
                DeValue::Table(table) => {
                    let at = item.span().start;
                    sections.push(Section::new(self.sink, Some(table), path.clone(), at));
                }
                other => self.sink.report_offset(item.span().start, &path, wrong(other.type_str())),
            }
        }
        sections
    }

    /// Reports an error about one of the section's keys, or about the section (empty key).
    pub(super) fn report(&self, key: &str, message: impl Into<String>) {
        self.sink.report_key(&self.span, key, message);
    }

    /// Marks keys as known without reading them, if another error already explains why they do not apply.
    pub(super) fn mark_known(&mut self, keys: &[&'static str]) {
        self.known.extend_from_slice(keys);
    }

    /// Returns true if the key's value is a list without elements.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.value(key).and_then(DeValue::as_array).is_some_and(|array| array.is_empty())
    }

    pub(super) fn is_list(&self, key: &str) -> bool {
        self.value(key).is_some_and(|value| value.as_array().is_some())
    }

    pub(super) fn is_string(&self, key: &str) -> bool {
        self.value(key).is_some_and(DeValue::is_str)
    }

    /// Returns the key's value if it is a string, without further checks.
    pub(super) fn string(&self, key: &str) -> Option<String> {
        self.value(key).and_then(DeValue::as_str).map(str::to_owned)
    }

    fn value(&self, key: &str) -> Option<&'s DeValue<'i>> {
        self.table?.get(key).map(Spanned::get_ref)
    }

    /// Reports present keys that do not apply, with the reason.
    pub(super) fn refuse_keys(&mut self, keys: &[&'static str], reason: &str) {
        for &key in keys {
            if self.value_once(key).is_some() {
                self.report(key, format!("has no meaning {reason}: remove it"));
            }
        }
    }

    /// Reports every unknown key. Returns the positions of all keys.
    pub(super) fn finish(self) -> SectionSpan {
        for (key, _) in &self.span.keys {
            if self.known.contains(&key.as_str()) {
                continue;
            }
            let remedy = match nearest_key(key, &self.known) {
                Some(known) => format!("did you mean `{known}`?"),
                None if self.span.path.is_empty() => {
                    format!("remove it; the sections are {}", self.known.join(", "))
                }
                None => format!("remove it; the keys here are {}", self.known.join(", ")),
            };
            self.report(key, format!("is not a known key: {remedy}"));
        }
        self.span
    }
}

/// Adds the indefinite article: `an integer`, `a string`.
pub(super) fn with_article(kind: &str) -> String {
    let an = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if an { "an" } else { "a" })
}

/// Returns the known key that is most similar to the unknown key, if the difference is small.
fn nearest_key<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let limit = (key.len() / 3).max(1);
    let near = known.iter().map(|&k| (strsim::osa_distance(key, k), k)).min()?;
    (near.0 <= limit).then_some(near.1)
}

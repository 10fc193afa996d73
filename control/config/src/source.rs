//! The text of a configuration's file, and the lines of its keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::Config;

/// Address of a key: section, [`WrittenTable::identity`](super::WrittenTable::identity), name. An empty name identifies
/// the table itself.
pub type KeyPath = (String, Vec<String>, String);

/// The text of a file and the lines of its keys.
#[derive(Clone, Debug, Default)]
pub struct Source {
    text: Arc<str>,
    lines: Arc<BTreeMap<KeyPath, u32>>,
    /// The log filter of the command line, if any.
    log_override: Option<String>,
    /// True if the API has set a log filter, which then applies instead.
    log_by_api: bool,
}

/// Sources are always equal, so that comparisons of configurations ignore text and lines.
impl PartialEq for Source {
    fn eq(&self, _: &Source) -> bool {
        true
    }
}

impl Source {
    pub(super) fn new(text: &str, table: &DeTable<'_>) -> Source {
        let newlines = text.bytes().enumerate().filter(|&(_, b)| b == b'\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(newlines).collect();
        let mut walk = LineWalker { starts, lines: BTreeMap::new() };
        walk.visit_table("", &[], table);
        Source {
            text: text.into(),
            lines: Arc::new(walk.lines),
            log_override: None,
            log_by_api: false,
        }
    }

    /// Returns the text of the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the line of a key, from 1; `None` if the file lacks the key. `identity`: list elements on the path to
    /// its table, outermost first.
    pub fn line(&self, section: &str, identity: &[String], key: &str) -> Option<u32> {
        let line = |section: &str, identity: &[String], key: &str| {
            self.lines.get(&(section.to_owned(), identity.to_vec(), key.to_owned())).copied()
        };
        line(section, identity, key).or_else(|| {
            // The file may define the default route by `gateway` or by an `[[interface.routes]]`.
            let default = ["0.0.0.0/0", "::/0"].into_iter().filter(|_| key == "gateway");
            let mut routes = default.map(|to| [identity, &[to.to_owned()]].concat());
            routes.find_map(|identity| line("interface.routes", &identity, "to"))
        })
    }
}

impl Config {
    /// Sets the log filter of the command line, which takes precedence over the filter of the file.
    pub fn override_log(&mut self, filter: &str) {
        self.management.log = filter.to_owned();
        self.source.log_override = Some(filter.to_owned());
    }

    /// Sets the log filter of an API request, which applies until the next reload.
    pub fn set_log(&mut self, filter: String) {
        self.management.log = filter;
        self.source.log_by_api = true;
    }

    /// Copies the log filter of the command line from the running configuration to this new configuration and applies
    /// it.
    pub fn keep_overridden(&mut self, running: &Config) {
        if let Some(filter) = &running.source.log_override {
            self.override_log(filter);
        }
    }

    /// Copies the record of the command line's log filter from the source `before`. The filter in effect is unchanged.
    pub fn keep_log_override(&mut self, before: &Source) {
        self.source.log_override.clone_from(&before.log_override);
    }

    /// Returns true if the key's value was set on the command line.
    pub fn is_overridden(&self, section: &str, key: &str) -> bool {
        let Source { log_override, log_by_api, .. } = &self.source;
        (section, key) == ("management", "log") && log_override.is_some() && !log_by_api
    }

    /// Returns true if the key's value was set by an API request.
    pub fn is_set_by_api(&self, section: &str, key: &str) -> bool {
        (section, key) == ("management", "log") && self.source.log_by_api
    }
}

struct LineWalker {
    /// Byte offset of each line's start.
    starts: Vec<usize>,
    lines: BTreeMap<KeyPath, u32>,
}

impl LineWalker {
    fn record(&mut self, section: &str, identity: &[String], key: &str, at: usize) {
        let line = self.starts.partition_point(|&start| start <= at);
        let place = (section.to_owned(), identity.to_vec(), key.to_owned());
        self.lines.insert(place, u32::try_from(line).unwrap_or(u32::MAX));
    }

    fn visit_table(&mut self, section: &str, identity: &[String], table: &DeTable<'_>) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let inner = if section.is_empty() { name.into() } else { format!("{section}.{name}") };
            match value.get_ref() {
                DeValue::Table(table) => {
                    self.record(&inner, identity, "", key.span().start);
                    self.visit_table(&inner, identity, table);
                }
                DeValue::Array(items)
                    if items.iter().any(|i| matches!(i.get_ref(), DeValue::Table(_))) =>
                {
                    for item in items {
                        let DeValue::Table(table) = item.get_ref() else { continue };
                        let identity = [identity, &[table_identity(&inner, table)]].concat();
                        self.record(&inner, &identity, "", item.span().start);
                        self.visit_table(&inner, &identity, table);
                    }
                }
                _ => self.record(section, identity, name, key.span().start),
            }
        }
    }
}

/// Returns the value that identifies a table in its list; empty if missing.
fn table_identity(section: &str, table: &DeTable<'_>) -> String {
    let key = identity_key(section);
    match table.get(key).map(|value| value.get_ref()) {
        Some(DeValue::String(text)) => text.to_string(),
        Some(DeValue::Integer(number)) => number.as_str().to_owned(),
        _ => String::new(),
    }
}

/// Returns the key whose value identifies a table in its list.
pub(super) fn identity_key(section: &str) -> &'static str {
    match section {
        "interface.routes" => "to",
        "listener.queue" => "qn",
        _ => "name",
    }
}

//! The running configuration, the origin of each value, and differences from the file.

use std::collections::HashMap;

use serde_json::Value;

use api::{ConfigDiff, ConfigInfo, Difference, KeyInfo, SectionInfo, ValueOrigin, When};
use config::{self, Config, KeyPath, Secrets, Source, WrittenTable};

/// A change of a region or listener by the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ApiChange {
    /// The API added the region or listener.
    Added,
    /// The API changed the access of the region.
    Access,
}

pub(super) struct RunningConfig {
    pub config: Config,
    /// Changes by the API, by section (`region` or `listener`) and name.
    pub api_changes: HashMap<(&'static str, String), ApiChange>,
}

/// Configuration-file line of each running value that is from the file.
#[derive(Debug, Default)]
pub(super) struct ValueLines(HashMap<KeyPath, u32>);

fn place(table: &WrittenTable, key: &str) -> KeyPath {
    (table.section.to_owned(), table.identity.clone(), key.to_owned())
}

fn line(source: &Source, table: &WrittenTable, key: &str) -> Option<u32> {
    source.line(table.section, &table.identity, key)
}

fn find_table<'t>(tables: &'t [WrittenTable], wanted: &WrittenTable) -> Option<&'t WrittenTable> {
    tables.iter().find(|table| table.section == wanted.section && table.identity == wanted.identity)
}

fn value<'t>(table: &'t WrittenTable, key: &str) -> Option<&'t Value> {
    table.keys.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
}

impl ValueLines {
    /// Returns the lines of a configuration that is completely from its file.
    pub(super) fn from_config(config: &Config) -> ValueLines {
        let mut lines = ValueLines::default();
        lines.update(config, config);
        lines
    }

    /// Updates the lines after a reload of `file`. A value of `running` that equals the file's is attributed to the
    /// file.
    pub(super) fn update(&mut self, running: &Config, file: &Config) {
        let file_tables = file.to_tables(Secrets::InClear);
        let mut lines = HashMap::new();
        for table in running.to_tables(Secrets::InClear) {
            let other = find_table(&file_tables, &table);
            for (key, running) in &table.keys {
                let same = other.and_then(|other| value(other, key)) == Some(running);
                let place = place(&table, key);
                let line = match same {
                    true => line(&file.source, &table, key),
                    false => self.0.get(&place).copied(),
                };
                lines.extend(line.map(|line| (place, line)));
            }
        }
        self.0 = lines;
    }

    fn origin(&self, running: &RunningConfig, table: &WrittenTable, key: &str) -> ValueOrigin {
        if let Some(call) = running.api_call(table, key) {
            return ValueOrigin::Api { call };
        }
        if running.config.is_overridden(table.section, key) {
            return ValueOrigin::CommandLine;
        }
        match self.0.get(&place(table, key)) {
            Some(&line) => ValueOrigin::File { line },
            None => ValueOrigin::Default,
        }
    }
}

impl RunningConfig {
    fn api_change(&self, table: &WrittenTable) -> Option<ApiChange> {
        let section = table.section.split('.').next().unwrap_or_default();
        let section = ["region", "listener"].into_iter().find(|name| *name == section)?;
        self.api_changes.get(&(section, table.identity.first()?.clone())).copied()
    }

    /// Returns the API call that set a value, if any.
    fn api_call(&self, table: &WrittenTable, key: &str) -> Option<String> {
        if self.config.is_set_by_api(table.section, key) {
            return Some("POST /v1/log".into());
        }
        let name = table.identity.first()?;
        match self.api_change(table)? {
            ApiChange::Added if table.section == "region" => Some("POST /v1/regions".into()),
            ApiChange::Added => Some("POST /v1/listeners".into()),
            ApiChange::Access if key == "access" => Some(format!("POST /v1/regions/{name}/access")),
            ApiChange::Access => None,
        }
    }

    /// Returns every key with its value and origin.
    pub(super) fn info(&self, lines: &ValueLines) -> ConfigInfo {
        let tables = self.config.to_tables(Secrets::Hidden);
        let section = |table: &WrittenTable| {
            let key = |(key, value): &(&'static str, Value)| KeyInfo {
                key: (*key).to_owned(),
                value: value.clone(),
                origin: lines.origin(self, table, key),
            };
            SectionInfo {
                section: table.section.to_owned(),
                identity: table.identity.clone(),
                keys: table.keys.iter().map(key).collect(),
            }
        };
        ConfigInfo {
            file: self.config.file.clone(),
            sections: tables.iter().filter(|table| !table.keys.is_empty()).map(section).collect(),
        }
    }

    /// Returns the differences between running configuration and file.
    pub(super) fn diff(&self, lines: &ValueLines, file: &Config) -> ConfigDiff {
        let running = self.config.to_tables(Secrets::InClear);
        let file_tables = file.to_tables(Secrets::InClear);
        let mut differences = Vec::new();
        for table in &running {
            match find_table(&file_tables, table) {
                Some(other) => self.diff_keys(lines, table, other, file, &mut differences),
                None => differences.push(Difference {
                    running: Some(table_object(table)),
                    origin: table.keys.first().map(|(key, _)| lines.origin(self, table, key)),
                    ..self.difference(table, None)
                }),
            }
        }
        for table in file_tables.iter().filter(|table| find_table(&running, table).is_none()) {
            differences.push(Difference {
                file: Some(table_object(table)),
                line: line(&file.source, table, ""),
                ..self.difference(table, None)
            });
        }
        ConfigDiff { file: self.config.file.clone(), differences }
    }

    fn diff_keys(
        &self,
        lines: &ValueLines,
        table: &WrittenTable,
        other: &WrittenTable,
        file: &Config,
        differences: &mut Vec<Difference>,
    ) {
        let mut keys: Vec<&'static str> = table.keys.iter().map(|(key, _)| *key).collect();
        keys.extend(other.keys.iter().map(|(key, _)| *key).filter(|k| value(table, k).is_none()));
        for key in keys {
            let (running_value, file_value) = (value(table, key), value(other, key));
            if running_value == file_value || self.config.is_overridden(table.section, key) {
                continue;
            }
            differences.push(Difference {
                running: running_value.map(|value| redact(key, value)),
                origin: running_value.map(|_| lines.origin(self, table, key)),
                file: file_value.map(|value| redact(key, value)),
                line: line(&file.source, table, key),
                ..self.difference(table, Some(key))
            });
        }
    }

    fn difference(&self, table: &WrittenTable, key: Option<&str>) -> Difference {
        Difference {
            section: table.section.to_owned(),
            identity: table.identity.clone(),
            key: key.map(str::to_owned),
            running: None,
            origin: None,
            file: None,
            line: None,
            when: self.effective_when(table, key),
        }
    }

    fn effective_when(&self, table: &WrittenTable, key: Option<&str>) -> When {
        let section = table.section.split('.').next().unwrap_or_default();
        match (section, key, self.api_change(table)) {
            ("region" | "listener", _, Some(ApiChange::Added)) => When::Api,
            // A call that revokes access also changes `clear_between_peers`.
            ("region", Some("access" | "clear_between_peers"), Some(ApiChange::Access)) => {
                When::Api
            }
            ("region", None, _) | ("listener", _, _) => When::Reload,
            ("region", Some(_), _) => When::Restart,
            (_, Some(key), _) => {
                let keys = config::keys();
                let at_once =
                    |k: &config::Key| k.section == table.section && k.name == key && k.reload;
                if keys.iter().any(at_once) { When::Reload } else { When::Restart }
            }
            (_, None, _) => When::Restart,
        }
    }
}

/// Returns a table as a JSON object, with secrets hidden.
fn table_object(table: &WrittenTable) -> Value {
    let keys = table.keys.iter().map(|(key, value)| ((*key).to_owned(), redact(key, value)));
    Value::Object(keys.collect())
}

fn redact(key: &str, value: &Value) -> Value {
    if key == "secret" { Value::from("\u{2026}") } else { value.clone() }
}

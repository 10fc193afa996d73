//! The running configuration, the origin of each value, and the differences from the file.

use std::collections::HashMap;

use serde_json::Value;

use api::{ConfigDiff, ConfigInfo, Difference, KeyInfo, SectionInfo, ValueOrigin, When};
use config::{self, Config, Place, Secrets, Source, Table};

/// Change of a region or a listener by the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByApi {
    /// The API added it.
    Added,
    /// The API changed the rights of its peers.
    Access,
}

/// The running configuration.
pub(super) struct Running {
    pub config: Config,
    /// Changes by the API: section `region` or `listener`, and name.
    pub by_api: HashMap<(&'static str, String), ByApi>,
}

/// Lines of the file from which the running values were taken.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<Place, u32>);

fn place(table: &Table, key: &str) -> Place {
    (table.section.to_owned(), table.of.clone(), key.to_owned())
}

fn line(source: &Source, table: &Table, key: &str) -> Option<u32> {
    source.line(table.section, &table.of, key)
}

fn find<'t>(tables: &'t [Table], like: &Table) -> Option<&'t Table> {
    tables.iter().find(|table| table.section == like.section && table.of == like.of)
}

fn value<'t>(table: &'t Table, key: &str) -> Option<&'t Value> {
    table.keys.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
}

impl Lines {
    /// Returns the lines of a configuration whose values all come from its file.
    pub(super) fn of(config: &Config) -> Lines {
        let mut lines = Lines::default();
        lines.update(config, config);
        lines
    }

    /// Updates the lines after a reload of `file`: values of `running` that equal the file's come
    /// from it.
    pub(super) fn update(&mut self, running: &Config, file: &Config) {
        let theirs = file.written(Secrets::Written);
        let mut lines = HashMap::new();
        for table in running.written(Secrets::Written) {
            let other = find(&theirs, &table);
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

    fn origin(&self, running: &Running, table: &Table, key: &str) -> ValueOrigin {
        if let Some(call) = running.call(table, key) {
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

impl Running {
    fn by_api(&self, table: &Table) -> Option<ByApi> {
        let section = table.section.split('.').next().unwrap_or_default();
        let section = ["region", "listener"].into_iter().find(|name| *name == section)?;
        self.by_api.get(&(section, table.of.first()?.clone())).copied()
    }

    /// Returns the API request that set a value.
    fn call(&self, table: &Table, key: &str) -> Option<String> {
        if self.config.is_set_by_api(table.section, key) {
            return Some("POST /v1/log".into());
        }
        let name = table.of.first()?;
        match self.by_api(table)? {
            ByApi::Added if table.section == "region" => Some("POST /v1/regions".into()),
            ByApi::Added => Some("POST /v1/listeners".into()),
            ByApi::Access if key == "access" => Some(format!("POST /v1/regions/{name}/access")),
            ByApi::Access => None,
        }
    }

    /// Returns every key with its value and its origin.
    pub(super) fn info(&self, lines: &Lines) -> ConfigInfo {
        let tables = self.config.written(Secrets::Hidden);
        let section = |table: &Table| {
            let key = |(key, value): &(&'static str, Value)| KeyInfo {
                key: (*key).to_owned(),
                value: value.clone(),
                origin: lines.origin(self, table, key),
            };
            SectionInfo {
                section: table.section.to_owned(),
                of: table.of.clone(),
                keys: table.keys.iter().map(key).collect(),
            }
        };
        ConfigInfo {
            file: self.config.file.clone(),
            sections: tables.iter().filter(|table| !table.keys.is_empty()).map(section).collect(),
        }
    }

    /// Returns the differences from the file.
    pub(super) fn diff(&self, lines: &Lines, file: &Config) -> ConfigDiff {
        let running = self.config.written(Secrets::Written);
        let theirs = file.written(Secrets::Written);
        let mut differences = Vec::new();
        for table in &running {
            match find(&theirs, table) {
                Some(other) => self.keys(lines, table, other, file, &mut differences),
                None => differences.push(Difference {
                    running: Some(object(table)),
                    origin: table.keys.first().map(|(key, _)| lines.origin(self, table, key)),
                    ..self.difference(table, None)
                }),
            }
        }
        for table in theirs.iter().filter(|table| find(&running, table).is_none()) {
            differences.push(Difference {
                file: Some(object(table)),
                line: line(&file.source, table, ""),
                ..self.difference(table, None)
            });
        }
        ConfigDiff { file: self.config.file.clone(), differences }
    }

    fn keys(
        &self,
        lines: &Lines,
        table: &Table,
        other: &Table,
        file: &Config,
        differences: &mut Vec<Difference>,
    ) {
        let mut keys: Vec<&'static str> = table.keys.iter().map(|(key, _)| *key).collect();
        keys.extend(other.keys.iter().map(|(key, _)| *key).filter(|k| value(table, k).is_none()));
        for key in keys {
            let (ours, theirs) = (value(table, key), value(other, key));
            if ours == theirs || self.config.is_overridden(table.section, key) {
                continue;
            }
            differences.push(Difference {
                running: ours.map(|value| hidden(key, value)),
                origin: ours.map(|_| lines.origin(self, table, key)),
                file: theirs.map(|value| hidden(key, value)),
                line: line(&file.source, table, key),
                ..self.difference(table, Some(key))
            });
        }
    }

    fn difference(&self, table: &Table, key: Option<&str>) -> Difference {
        Difference {
            section: table.section.to_owned(),
            of: table.of.clone(),
            key: key.map(str::to_owned),
            running: None,
            origin: None,
            file: None,
            line: None,
            when: self.when(table, key),
        }
    }

    fn when(&self, table: &Table, key: Option<&str>) -> When {
        let section = table.section.split('.').next().unwrap_or_default();
        match (section, key, self.by_api(table)) {
            ("region" | "listener", _, Some(ByApi::Added)) => When::Api,
            // A revoked right is reported with this key, too.
            ("region", Some("access" | "clear_between_peers"), Some(ByApi::Access)) => When::Api,
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

/// Returns a table as one value.
fn object(table: &Table) -> Value {
    let keys = table.keys.iter().map(|(key, value)| ((*key).to_owned(), hidden(key, value)));
    Value::Object(keys.collect())
}

fn hidden(key: &str, value: &Value) -> Value {
    if key == "secret" { Value::from("\u{2026}") } else { value.clone() }
}

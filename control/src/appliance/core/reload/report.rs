//! The report of a reload, and the running configuration after it.

use std::sync::Arc;

use api::{ApiError, ConfigDiff, ConfigInfo, ReloadReport, Reply, When};
use config::{self, Config};

use super::Difference;
use crate::appliance::core::Core;
use crate::appliance::env::Origin;
use crate::appliance::regions::DeclaredRegion;
use crate::appliance::running_config::{ApiChange, RunningConfig};

impl Core {
    /// Returns the part of the running configuration that is from the file, without changes by the API.
    pub(super) fn running_from_file(&self) -> Config {
        let running = &self.env.context.config;
        let is_from_file = |origin: Origin| origin == Origin::Configuration;
        let regions = self.regions.declared().filter(|region| is_from_file(region.origin));
        let listeners = self.listeners.declared().filter(|(_, origin)| is_from_file(*origin));
        Config {
            regions: regions.map(|region| region.section.clone()).collect(),
            listeners: listeners.map(|(section, _)| section.clone()).collect(),
            ..running.clone()
        }
    }

    /// Returns the complete running configuration, including changes by the API.
    fn running(&self) -> RunningConfig {
        let mut config = self.env.context.config.clone();
        let mut running = Vec::new();
        let mut by_api = std::collections::HashMap::new();
        for DeclaredRegion { section, origin, has_full_access } in self.regions.declared() {
            let change = match (origin, has_full_access) {
                (Origin::Api, _) => Some(ApiChange::Added),
                (Origin::Configuration, false) => Some(ApiChange::Access),
                (Origin::Configuration, true) => None,
            };
            by_api.extend(change.map(|did| (("region", section.name.clone()), did)));
            running.push(self.regions.running_section(section));
        }
        let order = |name: &str, known: &[&str]| {
            known.iter().position(|other| *other == name).unwrap_or(usize::MAX)
        };
        let known: Vec<&str> = config.regions.iter().map(|r| r.name.as_str()).collect();
        running.sort_by_key(|region| order(&region.name, &known));
        let known: Vec<&str> = config.listeners.iter().map(|l| l.name.as_str()).collect();
        let mut listeners = Vec::new();
        for (section, origin) in self.listeners.declared() {
            let added = (origin == Origin::Api).then_some(ApiChange::Added);
            by_api.extend(added.map(|did| (("listener", section.name.clone()), did)));
            listeners.push(section.clone());
        }
        listeners.sort_by_key(|listener| order(&listener.name, &known));
        (config.regions, config.listeners) = (running, listeners);
        RunningConfig { config, api_changes: by_api }
    }

    /// Makes the file the running configuration, except for keys that need a restart.
    pub(super) fn adopt_file(&mut self, file: Config) {
        // The regions are in the order of the file, with their running values, so a value that the reload did not apply
        // still differs from the file. Regions that are not live are omitted.
        let running = self.running_from_file();
        let facts = &mut self.env.context.config;
        facts.regions = file
            .regions
            .iter()
            .filter_map(|region| running.regions.iter().find(|r| r.name == region.name).cloned())
            .collect();
        facts.listeners = file.listeners.clone();
        self.env.files = Arc::new(facts.directories());
        self.reloads.lines.update(&self.running().config, &file);
        let mut source = file.source;
        std::mem::swap(&mut self.env.context.config.source, &mut source);
        self.env.context.config.keep_log_override(&source);
        self.apply_log_filter();
    }

    pub(in crate::appliance::core) fn config_info(&self) -> ConfigInfo {
        self.running().info(&self.reloads.lines)
    }

    pub(in crate::appliance::core) fn config_diff(&self) -> Result<ConfigDiff, ApiError> {
        Ok(self.running().diff(&self.reloads.lines, &self.read_file()?))
    }

    /// Returns the running configuration as the text of a file named `file`.
    pub(in crate::appliance::core) fn config_text(
        &self,
        file: &std::path::Path,
    ) -> Result<Reply, ApiError> {
        let config = self.running().config;
        let text = config::file_text(&config, file, config.source.text());
        let text = text.map_err(ApiError::conflict)?;
        Ok(Reply::Text { text, running: config.file, files: Arc::clone(&self.env.files) })
    }

    pub(super) fn report(&self, config: &Config, difference: &Difference) -> ReloadReport {
        let mut report =
            ReloadReport { needs_restart: difference.needs_restart.clone(), ..Default::default() };
        let applied = &mut report.applied;
        if difference.limits_changed {
            let keys = self.env.context.config.differences(config, true);
            let keys = keys
                .iter()
                .flat_map(|(section, keys)| keys.iter().map(move |key| format!("{section}.{key}")));
            applied.push(format!("{} changed", keys.collect::<Vec<_>>().join(", ")));
        }
        let sentences = |kind, names: Vec<&String>, what| {
            let sentence = move |name: &String| format!("{kind} `{name}` {what}");
            names.into_iter().map(sentence).collect::<Vec<_>>()
        };
        let Difference { listeners_removed, regions_added, listeners_changed, .. } = difference;
        let Difference { listeners_added, regions_removed, .. } = difference;
        applied.extend(sentences("listener", listeners_removed.iter().collect(), "removed"));
        applied.extend(sentences(
            "region",
            regions_added.iter().map(|r| &r.name).collect(),
            "added",
        ));
        applied.extend(sentences(
            "listener",
            listeners_changed.iter().map(|l| &l.name).collect(),
            "changed",
        ));
        applied.extend(sentences(
            "listener",
            listeners_added.iter().map(|l| &l.name).collect(),
            "added",
        ));
        applied.extend(sentences("region", regions_removed.iter().collect(), "removed"));
        report.kept = self.kept_api_changes(config);
        report
    }

    /// Returns one sentence for each change by the API that the reload keeps although the file does not contain it.
    fn kept_api_changes(&self, config: &Config) -> Vec<String> {
        let diff = self.running().diff(&self.reloads.lines, config);
        let by_api = diff.differences.iter().filter(|difference| difference.when == When::Api);
        let mut kept = Vec::new();
        for difference in by_api {
            let Some(name) = difference.identity.first() else { continue };
            let kind = difference.section.split('.').next().unwrap_or_default();
            let sentence = match difference.key.as_deref() {
                None if difference.section != kind => continue,
                None => format!("{kind} `{name}` was added by the API: it stays"),
                Some("access") => format!(
                    "region `{name}` has access {} by the API: it stays",
                    difference.running.clone().unwrap_or_default()
                ),
                Some(_) => continue,
            };
            kept.push(sentence);
        }
        kept
    }
}

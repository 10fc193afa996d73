//! Applying a changed configuration file to a running appliance.
//!
//! Three steps: the file is read and compared; the memory of new regions is made; then everything is
//! applied at once. A refusal in the first two steps changes nothing and says all that is wrong. Regions and
//! listeners that the API added are left alone.
//!
//! At run time change: regions (added, removed when unused), listeners (added, removed, changed) and the
//! bounds on streams, regions and region memory. Everything else is named as needing a restart.

use std::collections::HashMap;

use dataplane::Sources;

use super::Core;
use crate::api::{Answer, ApiError, EventKind, ReloadReport, Reply};
use crate::appliance::env::Origin;
use crate::appliance::listeners::check_interface_of;
use crate::appliance::loader::{Loaded, Wanted};
use crate::appliance::pending::Loading;
use crate::appliance::regions::Regions;
use crate::config::{self, Config, ListenerSection, RegionSection};

/// A reload on its way.
pub(super) struct ReloadPlan {
    config: Config,
    difference: Difference,
    answer: Option<Answer>,
    /// Regions whose memory is being made, by the number of the request.
    waiting: HashMap<u64, RegionSection>,
    loaded: Vec<(RegionSection, Loaded)>,
    refusals: Vec<String>,
}

/// What is different in the file.
#[derive(Debug, Default, PartialEq)]
pub(in crate::appliance) struct Difference {
    pub regions_added: Vec<RegionSection>,
    pub regions_removed: Vec<String>,
    pub listeners_added: Vec<ListenerSection>,
    pub listeners_removed: Vec<String>,
    pub listeners_changed: Vec<ListenerSection>,
    pub limits_changed: bool,
    /// Sentences.
    pub needs_restart: Vec<String>,
}

impl Core {
    /// Reads the configuration file again and applies what can change.
    pub fn reload_from_file(&mut self, answer: Option<Answer>) {
        let file = self.env.facts.config.file.clone();
        match Config::load(&file) {
            Ok(config) => self.reload(config, answer),
            Err(errors) => {
                self.refuse_reload(answer, ApiError::bad_request(errors.to_string()));
            }
        }
    }

    /// Applies what can change.
    pub(in crate::appliance) fn reload(&mut self, config: Config, answer: Option<Answer>) {
        if !self.env.is_running() {
            let error = ApiError::unavailable("the appliance is draining");
            return self.refuse_reload(answer, error);
        }
        if self.reload.is_some() {
            let error = ApiError::conflict("a reload is going on already");
            return self.refuse_reload(answer, error);
        }
        let difference = difference(&self.env.facts.config, &config);
        let mut refusals = self.refusals(&difference);
        refusals.extend(self.over_memory(&difference, &config));
        if !refusals.is_empty() {
            return self.refuse_reload(answer, ApiError::conflict(refusals.join("\n")));
        }
        let mut waiting = HashMap::new();
        for section in &difference.regions_added {
            let id = self.env.load(Wanted::Region(section.clone()), Loading::Reload);
            waiting.insert(id, section.clone());
        }
        let (loaded, refusals) = (Vec::new(), Vec::new());
        let plan = ReloadPlan { config, difference, answer, waiting, loaded, refusals };
        self.reload = Some(Box::new(plan));
        self.apply_if_loaded();
    }

    pub(super) fn on_reload_loaded(&mut self, id: u64, result: Result<Loaded, String>) {
        let Some(plan) = &mut self.reload else { return };
        let Some(section) = plan.waiting.remove(&id) else { return };
        match result {
            Ok(loaded) => plan.loaded.push((section, loaded)),
            Err(sentence) => plan.refusals.push(sentence),
        }
        self.apply_if_loaded();
    }

    fn refuse_reload(&mut self, answer: Option<Answer>, error: ApiError) {
        self.env.warn(format!("the configuration is not reloaded: {}", error.message));
        if let Some(answer) = answer {
            answer.send(Err(error));
        }
    }

    /// What of the difference cannot be done, all of it.
    fn refusals(&self, difference: &Difference) -> Vec<String> {
        let mut refusals = Vec::new();
        for name in &difference.regions_removed {
            let users = self.regions.users_of(name);
            if users > 0 {
                refusals.push(format!("region `{name}` cannot go: {users} streams use it"));
            }
            if let Some(listener) = self.listeners.of_api_naming(name) {
                refusals.push(format!("region `{name}` cannot go: listener `{listener}` names it"));
            }
        }
        for section in &difference.regions_added {
            if let Err(error) = self.regions.may_add(&self.env, section) {
                refusals.push(error.message);
            }
        }
        for section in difference.listeners_added.iter().chain(&difference.listeners_changed) {
            if let Err(error) = check_interface_of(&self.env, section) {
                refusals.push(format!("listener `{}`: {}", section.name, error.message));
            }
            if let Some(other) = self.listeners.of_api_at(section) {
                refusals.push(format!(
                    "listener `{}` cannot have port {}: listener `{other}` has it",
                    section.name, section.port
                ));
            }
        }
        refusals
    }

    /// All new regions together are to fit under the ceiling that is to be.
    fn over_memory(&self, difference: &Difference, config: &Config) -> Option<String> {
        let added = difference.regions_added.iter().map(Regions::counted);
        let added = added.fold(0u64, u64::saturating_add);
        let key = config.limits.memory;
        if added == 0 && key == self.env.facts.config.limits.memory {
            return None;
        }
        let what = format!("the file's {} new regions", difference.regions_added.len());
        Some(self.env.budget.check(&what, added, Some(key)).err()?.to_string())
    }

    fn apply_if_loaded(&mut self) {
        let Some(plan) = self.reload.take_if(|plan| plan.waiting.is_empty()) else { return };
        let ReloadPlan { config, difference, answer, loaded, refusals, .. } = *plan;
        if !refusals.is_empty() {
            return self.refuse_reload(answer, ApiError::conflict(refusals.join("\n")));
        }
        let report = self.apply(config, difference, loaded);
        for sentence in &report.needs_restart {
            tracing::warn!("reload: {sentence}");
        }
        self.env.log.push(EventKind::Reloaded { changes: report.applied.clone() });
        if let Some(answer) = answer {
            answer.send(Ok(Reply::Reload(report)));
        }
    }

    fn apply(
        &mut self,
        config: Config,
        difference: Difference,
        loaded: Vec<(RegionSection, Loaded)>,
    ) -> ReloadReport {
        let mut report = ReloadReport { needs_restart: difference.needs_restart, applied: vec![] };
        if difference.limits_changed {
            self.env.facts.config.apply_reload(&config);
            self.env.budget.follow(config.limits.memory);
            report.applied.push("limits changed".into());
        }
        for name in difference.listeners_removed {
            self.listeners.remove(&mut self.env, &name, None);
            report.applied.push(format!("listener `{name}` removed"));
        }
        for (section, loaded) in loaded {
            let sentence = format!("region `{}` added", section.name);
            match self.register_region(section, loaded, Origin::Configuration, None) {
                Ok(()) => report.applied.push(sentence),
                Err(error) => report.needs_restart.push(error.message),
            }
        }
        for section in difference.listeners_changed {
            let sentence = format!("listener `{}` changed", section.name);
            self.apply_listener(section, sentence, &mut report);
        }
        for section in difference.listeners_added {
            let sentence = format!("listener `{}` added", section.name);
            self.apply_listener(section, sentence, &mut report);
        }
        for name in difference.regions_removed {
            self.regions.deregister(&mut self.env, &name, Sources::Wait, None);
            report.applied.push(format!("region `{name}` removed"));
        }
        self.env.facts.config.regions = config.regions;
        self.env.facts.config.listeners = config.listeners;
        report
    }

    /// A listener that cannot be as the file says (its regions are in use in different domains) needs
    /// a restart.
    fn apply_listener(
        &mut self,
        section: ListenerSection,
        sentence: String,
        report: &mut ReloadReport,
    ) {
        match self.change_listener(section) {
            Ok(()) => report.applied.push(sentence),
            Err(error) => report.needs_restart.push(error.message),
        }
    }
}

/// Compares two configurations.
pub(in crate::appliance) fn difference(old: &Config, new: &Config) -> Difference {
    let mut found = Difference::default();
    for region in &new.regions {
        match old.regions.iter().find(|r| r.name == region.name) {
            None => found.regions_added.push(region.clone()),
            Some(was) if was != region => found.needs_restart.push(format!(
                "region `{}` is defined differently: remove it, reload, and add it again, or restart",
                region.name
            )),
            Some(_) => {}
        }
    }
    let gone = |name: &String| !new.regions.iter().any(|r| r.name == *name);
    found.regions_removed = old.regions.iter().map(|r| r.name.clone()).filter(gone).collect();
    for listener in &new.listeners {
        match old.listeners.iter().find(|l| l.name == listener.name) {
            None => found.listeners_added.push(listener.clone()),
            Some(was) if was != listener => found.listeners_changed.push(listener.clone()),
            Some(_) => {}
        }
    }
    let gone = |name: &String| !new.listeners.iter().any(|l| l.name == *name);
    found.listeners_removed = old.listeners.iter().map(|l| l.name.clone()).filter(gone).collect();
    found.limits_changed = !old.differences(new, true).is_empty();
    found.needs_restart.extend(needs_restart(old, new));
    found
}

fn needs_restart(old: &Config, new: &Config) -> Vec<String> {
    let by_key = old.differences(new, false);
    let differs = |section: &str| by_key.iter().any(|(name, _)| *name == section);
    let sections = [
        ("name".to_owned(), old.name != new.name),
        (by_key_name("memory"), differs("memory")),
        ("[workers]".to_owned(), old.workers != new.workers),
        ("[[port]]".to_owned(), old.ports != new.ports),
        ("[[interface]]".to_owned(), old.interfaces != new.interfaces),
        (by_key_name("tcp"), differs("tcp")),
        (by_key_name("mpa"), differs("mpa")),
        (by_key_name("sctp"), differs("sctp")),
        (by_key_name("limits"), differs("limits")),
        (by_key_name("management"), differs("management")),
    ];
    let changed = sections.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(name, _)| format!("{name} has changed: in force after a restart")).collect()
}

/// A section without the keys that a reload applies: `[limits] other than streams, regions and region_memory`.
fn by_key_name(section: &str) -> String {
    let keys = config::keys();
    let applied = keys.iter().filter(|key| key.section == section && key.reload);
    let names: Vec<&str> = applied.map(|key| key.name).collect();
    match names.as_slice() {
        [] => format!("[{section}]"),
        [one] => format!("[{section}] other than {one}"),
        [first @ .., last] => {
            format!("[{section}] other than {} and {last}", first.join(", "))
        }
    }
}

//! Applying a changed configuration file to a running appliance, whole or not at all.
//!
//! ```text
//!  file --read--> compared with what runs --foreseen--> memory of new regions --applied--> all workers have it
//!                                  |  refused                |  refused           |  refused: undone
//!                                  v                         v                    v
//!                               nothing is changed, and the answer says all that is wrong
//! ```
//!
//! 1. The running part of the file is compared with the file on disk ([`difference`]).
//! 2. Every foreseeable failure is checked before anything is changed ([`foresee`]).
//! 3. The memory of new regions is made.
//! 4. Regions and listeners are added and changed on the workers. If a worker refuses, or a file cannot be opened
//!    after all, the steps so far are undone.
//! 5. Steps that cannot fail come last: listeners and regions that the file no longer has are removed, and the file
//!    becomes the running configuration. Keys that need a restart keep their running values, and the next reload
//!    reports them again.
//!
//! A reload applies regions (added, removed when unused), listeners (added, removed, changed), the
//! peers that interfaces admit, and the bounds on streams, regions and region memory. Objects that
//! the API added stay.

mod difference;
mod foresee;
mod sentences;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api::{Answer, ApiError, EventKind, RegionInfo, ReloadReport, Reply};
use config::beneath::{Directories, Parent};
use config::{Backing, Config, ListenerSection, RegionSection};
use dataplane::Sources;

use self::difference::Difference;
pub(in crate::appliance) use self::difference::difference;
use self::foresee::Steps;
use super::Core;
use crate::appliance::env::Origin;
use crate::appliance::loader::{Loaded, Wanted};
use crate::appliance::notes::Cause;
use crate::appliance::pending::Loading;
use crate::appliance::regions::preparing;

/// A reload in progress.
pub(super) struct ReloadPlan {
    config: Config,
    difference: Difference,
    steps: Steps,
    report: ReloadReport,
    answer: Option<Answer>,
    stage: Stage,
    refusals: Vec<String>,
}

enum Stage {
    /// The loader makes memory.
    Loading {
        /// Regions whose memory is awaited, by the number of the load request.
        waiting: HashMap<u64, RegionSection>,
        loaded: Vec<(RegionSection, Loaded)>,
        /// Files of new regions that did not exist before.
        new_files: Vec<Parent>,
    },
    /// The workers have received the additions and changes.
    Applying {
        /// Additions and changes that are not yet acknowledged.
        awaited: HashSet<Added>,
        /// Undo steps, in the order of the steps that they undo.
        done: Vec<Undo>,
    },
}

/// An addition or change that the workers acknowledge.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Added {
    Region(String),
    Listener(String),
    /// The admitted peers of a listener.
    Peers(String),
}

/// Undoes one step.
enum Undo {
    Limits(Box<Config>),
    AddRegion(String),
    AddListener(String),
    /// Restores a listener that was changed or removed.
    OldListener(Box<ListenerSection>),
}

impl Core {
    /// Reads the configuration file again and applies what can change.
    pub fn reload_from_file(&mut self, answer: Option<Answer>) {
        self.reloads.begun += 1;
        // Even if the configuration is refused: the signal may follow a log rotation.
        self.env.writer.follow(Arc::clone(&self.env.files));
        match self.read_file() {
            Ok(config) => self.reload(config, answer),
            Err(error) => self.refuse_reload(answer, error),
        }
    }

    /// Reads the file from disk. Values of the command line override it.
    pub(super) fn read_file(&self) -> Result<Config, ApiError> {
        let running = &self.env.facts.config;
        let mut config = Config::load(&running.file)
            .map_err(|errors| ApiError::bad_request(errors.to_string()))?;
        config.keep_overridden(running);
        Ok(config)
    }

    /// Returns the report of a reload without applying it.
    pub(super) fn try_reload(&self) -> ReloadReport {
        let planned = self.read_file().and_then(|config| {
            self.may_reload()?;
            Ok(config)
        });
        let report = match planned {
            Ok(config) => {
                let difference = difference(&self.running_of_file(), &config);
                let steps = self.foresee(&config, &difference);
                let report = self.report(&config, &difference);
                ReloadReport { refused: steps.refusals, ..report }
            }
            Err(error) => ReloadReport { refused: vec![error.message], ..Default::default() },
        };
        ReloadReport { dry_run: true, ..report }
    }

    /// Returns the directories that may hold files under this configuration.
    fn files_of(&self, config: &Config) -> Directories {
        self.env.facts.config.directories_with(config)
    }

    fn may_reload(&self) -> Result<(), ApiError> {
        if !self.env.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if self.reloads.plan.is_some() {
            return Err(ApiError::conflict("a reload is going on already"));
        }
        Ok(())
    }

    /// Applies the differences that need no restart.
    pub(in crate::appliance) fn reload(&mut self, config: Config, answer: Option<Answer>) {
        if let Err(error) = self.may_reload() {
            return self.refuse_reload(answer, error);
        }
        let difference = difference(&self.running_of_file(), &config);
        let steps = self.foresee(&config, &difference);
        if !steps.refusals.is_empty() {
            return self.refuse_reload(answer, ApiError::conflict(steps.refusals.join("\n")));
        }
        let report = self.report(&config, &difference);
        let mut waiting = HashMap::new();
        let mut new_files = Vec::new();
        let files = Arc::new(self.files_of(&config));
        for section in &difference.regions_added {
            if let Backing::File { path, .. } = &section.backing {
                // The load reports why the directory cannot be opened.
                let parent = files.parent(path).ok();
                new_files.extend(parent.filter(|parent| parent.is_there().is_ok_and(|is| !is)));
            }
            let wanted = Wanted::Region(section.clone());
            let id = self.env.load_below(Arc::clone(&files), wanted, Loading::Reload);
            waiting.insert(id, section.clone());
        }
        let stage = Stage::Loading { waiting, loaded: Vec::new(), new_files };
        let refusals = Vec::new();
        let plan = ReloadPlan { config, difference, steps, report, answer, stage, refusals };
        self.reloads.plan = Some(Box::new(plan));
        self.apply_if_loaded();
    }

    pub(super) fn on_reload_loaded(&mut self, id: u64, result: Result<Loaded, String>) {
        let Some(plan) = &mut self.reloads.plan else { return };
        let Stage::Loading { waiting, loaded, .. } = &mut plan.stage else { return };
        let Some(section) = waiting.remove(&id) else { return };
        match result {
            Ok(memory) => loaded.push((section, memory)),
            Err(sentence) => plan.refusals.push(sentence),
        }
        self.apply_if_loaded();
    }

    /// Lists the regions whose memory a reload is making.
    pub(super) fn preparing_for_reload(&self) -> Vec<RegionInfo> {
        let Some(plan) = &self.reloads.plan else { return Vec::new() };
        let Stage::Loading { waiting, .. } = &plan.stage else { return Vec::new() };
        let info =
            |(&number, section)| preparing(&self.env, number, section, Origin::Configuration);
        waiting.iter().map(info).collect()
    }

    fn refuse_reload(&mut self, answer: Option<Answer>, error: ApiError) {
        self.env.warn(format!("the configuration is not reloaded: {}", error.message));
        if let Some(answer) = answer {
            answer.send(Err(error));
        }
    }

    fn apply_if_loaded(&mut self) {
        let Some(plan) = self.reloads.plan.take_if(
            |plan| matches!(&plan.stage, Stage::Loading { waiting, .. } if waiting.is_empty()),
        ) else {
            return;
        };
        let mut plan = *plan;
        let applying = Stage::Applying { awaited: HashSet::new(), done: Vec::new() };
        let Stage::Loading { loaded, new_files, .. } = std::mem::replace(&mut plan.stage, applying)
        else {
            return;
        };
        if !plan.refusals.is_empty() {
            drop(loaded);
            new_files.iter().for_each(remove_if_empty);
            let error = ApiError::conflict(plan.refusals.join("\n"));
            return self.refuse_reload(plan.answer, error);
        }
        if let Err(error) = self.apply(&mut plan, loaded) {
            plan.refusals.push(error.message);
        }
        self.reloads.plan = Some(Box::new(plan));
        self.commit_if_answered();
    }

    /// Performs the steps that can fail, in order, until one fails.
    fn apply(
        &mut self,
        plan: &mut ReloadPlan,
        loaded: Vec<(RegionSection, Loaded)>,
    ) -> Result<(), ApiError> {
        let Stage::Applying { awaited, done } = &mut plan.stage else { return Ok(()) };
        self.env.use_directories(self.files_of(&plan.config));
        if plan.difference.limits_changed {
            done.push(Undo::Limits(Box::new(self.env.facts.config.clone())));
            self.env.facts.config.apply_reload(&plan.config);
            self.env.budget.follow(&plan.config.limits);
        }
        for name in &plan.steps.removed_first {
            done.extend(self.listeners.section_of(name).map(Undo::old));
            self.listeners.remove(&mut self.env, name, None);
        }
        for (section, loaded) in loaded {
            let name = section.name.clone();
            self.register_region(section, loaded, Origin::Configuration, None)?;
            awaited.insert(Added::Region(name.clone()));
            done.push(Undo::AddRegion(name));
        }
        for section in &plan.steps.order {
            let name = section.name.clone();
            let old = self.listeners.section_of(&name);
            let sent = self.change_listener(section.clone())?;
            if sent {
                awaited.insert(Added::Listener(name.clone()));
            }
            done.push(old.map_or(Undo::AddListener(name), Undo::old));
        }
        // No stream ends. Handshakes of peers that are no longer admitted are aborted.
        awaited.extend(self.listeners.send_peers(&mut self.env).into_iter().map(Added::Peers));
        Ok(())
    }

    /// Records that all workers have the peers of a listener, or that one refused them.
    pub(super) fn on_peers_set(&mut self, listener: String, outcome: Result<(), String>) {
        self.on_added(&Added::Peers(listener), outcome);
    }

    /// Records that all workers have a region or a listener. If one refused it, it has been
    /// removed.
    pub(super) fn on_added(&mut self, added: &Added, outcome: Result<(), String>) {
        let Some(plan) = &mut self.reloads.plan else { return };
        let Stage::Applying { awaited, .. } = &mut plan.stage else { return };
        if awaited.remove(added) {
            plan.refusals.extend(outcome.err().map(|reason| match added {
                Added::Region(name) => format!("region `{name}`: {reason}"),
                Added::Peers(name) => format!("listener `{name}`, allow and deny: {reason}"),
                // The reason includes the listener's name.
                Added::Listener(_) => reason,
            }));
            self.commit_if_answered();
        }
    }

    fn commit_if_answered(&mut self) {
        let Some(plan) = self.reloads.plan.take_if(
            |plan| matches!(&plan.stage, Stage::Applying { awaited, .. } if awaited.is_empty()),
        ) else {
            return;
        };
        if plan.refusals.is_empty() {
            self.commit(*plan);
        } else {
            self.undo(*plan);
        }
    }

    fn commit(&mut self, plan: ReloadPlan) {
        let ReloadPlan { config, difference, steps, report, answer, .. } = plan;
        let first = &steps.removed_first;
        for name in difference.listeners_removed.iter().filter(|name| !first.contains(name)) {
            self.listeners.remove(&mut self.env, name, None);
        }
        for name in &difference.regions_removed {
            self.regions.deregister(&mut self.env, name, Sources::Wait, None);
        }
        self.took_file(config);
        self.flights.trim(self.recorder_bounds());
        for sentence in &report.needs_restart {
            tracing::warn!("reload: {sentence}");
        }
        match &report.needs_restart[..] {
            [] => self.env.notes.clear(&Cause::Restart),
            keys => {
                let sentence = format!(
                    "changes in the configuration file that wait for a restart: {}; `ddpctl reload --dry-run` names them",
                    keys.len()
                );
                self.env.notes.set(Cause::Restart, sentence, None);
            }
        }
        self.env.log.push(EventKind::Reloaded { changes: report.applied.clone() });
        if let Some(answer) = answer {
            answer.send(Ok(Reply::Reload(report)));
        }
    }

    fn undo(&mut self, plan: ReloadPlan) {
        let ReloadPlan { stage, answer, refusals, .. } = plan;
        let Stage::Applying { done, .. } = stage else { return };
        let mut left = Vec::new();
        self.env.use_directories(self.env.facts.config.directories());
        for step in done.into_iter().rev() {
            match step {
                Undo::Limits(old) => {
                    self.env.facts.config = *old;
                    self.env.budget.follow(&self.env.facts.config.limits);
                }
                Undo::AddRegion(name) => {
                    if self.regions.is_live(&name) {
                        self.regions.deregister(&mut self.env, &name, Sources::Abort, None);
                    }
                }
                Undo::AddListener(name) => self.listeners.remove(&mut self.env, &name, None),
                Undo::OldListener(old) => {
                    let name = old.name.clone();
                    if let Err(error) = self.change_listener(*old) {
                        left.push(format!(
                            "listener `{name}` is not as it was: {}; reload again",
                            error.message
                        ));
                    }
                }
            }
        }
        self.listeners.send_peers(&mut self.env);
        let undone = match left.is_empty() {
            true => "what was done of it is undone".to_owned(),
            false => left.join("\n"),
        };
        let error = ApiError::conflict(format!("{}\n{undone}", refusals.join("\n")));
        self.refuse_reload(answer, error);
    }
}

impl Undo {
    fn old(section: ListenerSection) -> Undo {
        Undo::OldListener(Box::new(section))
    }
}

/// Removes the empty file of a region whose addition was refused.
fn remove_if_empty(file: &Parent) {
    if let Err(error) = file.remove_if_empty() {
        tracing::warn!("a file that was made for a refused reload cannot be removed: {error}");
    }
}

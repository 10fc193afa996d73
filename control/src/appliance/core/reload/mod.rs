//! Reload: applies a changed configuration file to the running appliance, completely or not at all.
//!
//! ```text
//!  file --> compare with the running configuration --> check --> create memory of new regions --> apply on workers
//!                                                        | refused    | refused                        | refused: undo
//!                                                        v            v                                v
//!                                               nothing is changed, and the answer contains all reasons
//! ```
//!
//! 1. [`difference`] compares the file with the part of the running configuration that came from the file.
//! 2. [`plan`] predicts failures before the first change.
//! 3. The memory of new regions is created.
//! 4. Regions and listeners are added and changed on the workers. If a worker refuses, or a file cannot be opened
//!    despite the check, the steps so far are undone.
//! 5. Steps that cannot fail are last: listeners and regions that the file no longer has are removed, and the file
//!    becomes the running configuration. Keys that need a restart keep their running values; the next reload
//!    reports them again.
//!
//! A reload applies regions (added, or removed if unused), listeners (added, removed, changed), the peers that
//! interfaces admit, and all keys marked as reloadable. Objects that the API added remain.

mod difference;
mod plan;
mod report;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api::{ApiError, EventKind, RegionInfo, ReloadReport, Reply, Responder};
use config::directories::{Directories, ParentDirectory};
use config::{Backing, Config, ListenerSection, RegionSection};
use dataplane::SourceRemoval;

use self::difference::Difference;
pub(in crate::appliance) use self::difference::difference;
use self::plan::Steps;
use super::Core;
use crate::appliance::env::Origin;
use crate::appliance::loader::{LoadTask, LoadedMemory};
use crate::appliance::notes::Cause;
use crate::appliance::pending::Loading;
use crate::appliance::regions::preparing_info;

/// A reload in progress, after the checks.
pub(super) struct ReloadPlan {
    config: Config,
    difference: Difference,
    steps: Steps,
    report: ReloadReport,
    answer: Option<Responder>,
    stage: Stage,
    /// Failures since the checks, one sentence each. If there are any, the reload is undone.
    refusals: Vec<String>,
}

/// Stage of a reload.
enum Stage {
    /// The loader creates memory.
    Loading {
        /// Regions whose memory is not ready, by the number of the memory request.
        waiting: HashMap<u64, RegionSection>,
        loaded: Vec<(RegionSection, LoadedMemory)>,
        /// Files that did not exist before the reload and that it creates for new regions.
        new_files: Vec<ParentDirectory>,
    },
    /// The workers are applying the additions and changes.
    Applying {
        /// Additions and changes that the workers have not yet answered.
        awaited: HashSet<Addition>,
        /// Actions that undo the steps performed so far, in the order of the steps.
        done: Vec<Undo>,
    },
}

/// An addition or change that the workers must confirm.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Addition {
    Region(String),
    Listener(String),
    /// The admitted peers of a listener.
    Peers(String),
}

/// Reversal of one step.
enum Undo {
    /// Restores the running configuration.
    Config(Box<Config>),
    /// Removes a region that was added.
    AddRegion(String),
    /// Removes a listener that was added.
    AddListener(String),
    /// Restores a changed or removed listener.
    OldListener(Box<ListenerSection>),
}

impl Core {
    /// Reads the configuration file and applies the changes that need no restart.
    pub fn reload_from_file(&mut self, answer: Option<Responder>) {
        self.reloads.begun += 1;
        // Files are reopened even if the reload is refused, because the operator may have requested it after a log
        // rotation.
        self.env.writer.reopen_moved_files(Arc::clone(&self.env.files));
        match self.read_file() {
            Ok(config) => self.reload(config, answer),
            Err(error) => self.refuse_reload(answer, error),
        }
    }

    /// Reads the configuration file. Values of the command line replace values of the file.
    pub(super) fn read_file(&self) -> Result<Config, ApiError> {
        let running = &self.env.context.config;
        let mut config = Config::load(&running.file)
            .map_err(|errors| ApiError::bad_request(errors.to_string()))?;
        config.keep_overridden(running);
        Ok(config)
    }

    /// Returns the report that a reload would give now, without reloading.
    pub(super) fn dry_run(&self) -> ReloadReport {
        let planned = self.read_file().and_then(|config| {
            self.check_reload_allowed()?;
            Ok(config)
        });
        let report = match planned {
            Ok(config) => {
                let difference = difference(&self.running_from_file(), &config);
                let steps = self.plan_steps(&config, &difference);
                let report = self.report(&config, &difference);
                ReloadReport { refused: steps.refusals, ..report }
            }
            Err(error) => ReloadReport { refused: vec![error.message], ..Default::default() },
        };
        ReloadReport { dry_run: true, ..report }
    }

    /// Returns the directories below which files may be opened after a reload to `config`.
    fn directories_of(&self, config: &Config) -> Directories {
        self.env.context.config.directories_after_reload(config)
    }

    fn check_reload_allowed(&self) -> Result<(), ApiError> {
        if !self.env.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if self.reloads.plan.is_some() {
            return Err(ApiError::conflict("a reload is going on already"));
        }
        Ok(())
    }

    /// Applies all differences that need no restart.
    pub(in crate::appliance) fn reload(&mut self, config: Config, answer: Option<Responder>) {
        if let Err(error) = self.check_reload_allowed() {
            return self.refuse_reload(answer, error);
        }
        let difference = difference(&self.running_from_file(), &config);
        let steps = self.plan_steps(&config, &difference);
        if !steps.refusals.is_empty() {
            return self.refuse_reload(answer, ApiError::conflict(steps.refusals.join("\n")));
        }
        let report = self.report(&config, &difference);
        let mut waiting = HashMap::new();
        let mut new_files = Vec::new();
        let files = Arc::new(self.directories_of(&config));
        for section in &difference.regions_added {
            if let Backing::File { path, .. } = &section.backing {
                // If the directory cannot be opened, loading the region reports the error.
                let parent = files.parent(path).ok();
                new_files.extend(parent.filter(|parent| parent.exists().is_ok_and(|is| !is)));
            }
            let wanted = LoadTask::Region(section.clone());
            let id = self.env.load_with_directories(Arc::clone(&files), wanted, Loading::Reload);
            waiting.insert(id, section.clone());
        }
        let stage = Stage::Loading { waiting, loaded: Vec::new(), new_files };
        let refusals = Vec::new();
        let plan = ReloadPlan { config, difference, steps, report, answer, stage, refusals };
        self.reloads.plan = Some(Box::new(plan));
        self.apply_if_loaded();
    }

    pub(super) fn on_reload_loaded(&mut self, id: u64, result: Result<LoadedMemory, String>) {
        let Some(plan) = &mut self.reloads.plan else { return };
        let Stage::Loading { waiting, loaded, .. } = &mut plan.stage else { return };
        let Some(section) = waiting.remove(&id) else { return };
        match result {
            Ok(memory) => loaded.push((section, memory)),
            Err(sentence) => plan.refusals.push(sentence),
        }
        self.apply_if_loaded();
    }

    /// Lists the regions whose memory the reload is creating.
    pub(super) fn preparing_infos(&self) -> Vec<RegionInfo> {
        let Some(plan) = &self.reloads.plan else { return Vec::new() };
        let Stage::Loading { waiting, .. } = &plan.stage else { return Vec::new() };
        let info =
            |(&number, section)| preparing_info(&self.env, number, section, Origin::Configuration);
        waiting.iter().map(info).collect()
    }

    fn refuse_reload(&mut self, answer: Option<Responder>, error: ApiError) {
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

    /// Performs the steps that can fail, in order, up to the first failure.
    fn apply(
        &mut self,
        plan: &mut ReloadPlan,
        loaded: Vec<(RegionSection, LoadedMemory)>,
    ) -> Result<(), ApiError> {
        let Stage::Applying { awaited, done } = &mut plan.stage else { return Ok(()) };
        self.env.set_directories(self.directories_of(&plan.config));
        done.push(Undo::Config(Box::new(self.env.context.config.clone())));
        if plan.difference.limits_changed {
            self.env.context.config.apply_reload(&plan.config);
            self.env.budget.set_limits(&plan.config.limits);
        }
        // The new regions must be known before the listeners change: a listener's keepalive depends on its regions.
        self.env.context.config.regions.extend(plan.difference.regions_added.iter().cloned());
        for name in &plan.steps.removed_first {
            done.extend(self.listeners.section_of(name).map(Undo::restore_listener));
            self.listeners.remove(&mut self.env, name, None);
        }
        for (section, loaded) in loaded {
            let name = section.name.clone();
            self.register_region(section, loaded, Origin::Configuration, None)?;
            awaited.insert(Addition::Region(name.clone()));
            done.push(Undo::AddRegion(name));
        }
        for section in &plan.steps.order {
            let name = section.name.clone();
            let old = self.listeners.section_of(&name);
            let sent = self.change_listener(section.clone())?;
            if sent {
                awaited.insert(Addition::Listener(name.clone()));
            }
            done.push(old.map_or(Undo::AddListener(name), Undo::restore_listener));
        }
        // New peer lists do not end streams. They abort handshakes with peers that are no longer admitted.
        awaited.extend(self.listeners.send_peers(&mut self.env).into_iter().map(Addition::Peers));
        self.programs.send_peers(&mut self.env);
        Ok(())
    }

    /// Handles the result of a change of a listener's admitted peers: `Ok` if all workers have applied the change.
    pub(super) fn on_peers_set(&mut self, listener: String, outcome: Result<(), String>) {
        self.on_addition_done(&Addition::Peers(listener), outcome);
    }

    /// Handles the workers' result of an addition or change. A refused addition has already been removed.
    pub(super) fn on_addition_done(&mut self, added: &Addition, outcome: Result<(), String>) {
        let Some(plan) = &mut self.reloads.plan else { return };
        let Stage::Applying { awaited, .. } = &mut plan.stage else { return };
        if awaited.remove(added) {
            plan.refusals.extend(outcome.err().map(|reason| match added {
                Addition::Region(name) => format!("region `{name}`: {reason}"),
                Addition::Peers(name) => format!("listener `{name}`, allow and deny: {reason}"),
                // The reason already includes the listener's name.
                Addition::Listener(_) => reason,
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
            self.regions.deregister(&mut self.env, name, SourceRemoval::Wait, None);
        }
        self.adopt_file(config);
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
        let mut remaining = Vec::new();
        self.env.set_directories(self.env.context.config.directories());
        for step in done.into_iter().rev() {
            match step {
                Undo::Config(old) => {
                    self.env.context.config = *old;
                    self.env.budget.set_limits(&self.env.context.config.limits);
                }
                Undo::AddRegion(name) => {
                    if self.regions.is_live(&name) {
                        self.regions.deregister(&mut self.env, &name, SourceRemoval::Abort, None);
                    }
                }
                Undo::AddListener(name) => self.listeners.remove(&mut self.env, &name, None),
                Undo::OldListener(old) => {
                    let name = old.name.clone();
                    if let Err(error) = self.change_listener(*old) {
                        remaining.push(format!(
                            "listener `{name}` is not as it was: {}; reload again",
                            error.message
                        ));
                    }
                }
            }
        }
        self.listeners.send_peers(&mut self.env);
        self.programs.send_peers(&mut self.env);
        let undone = match remaining.is_empty() {
            true => "what was done of it is undone".to_owned(),
            false => remaining.join("\n"),
        };
        let error = ApiError::conflict(format!("{}\n{undone}", refusals.join("\n")));
        self.refuse_reload(answer, error);
    }
}

impl Undo {
    fn restore_listener(section: ListenerSection) -> Undo {
        Undo::OldListener(Box::new(section))
    }
}

/// Removes the file that a refused reload created for a region, if the file is empty.
fn remove_if_empty(file: &ParentDirectory) {
    if let Err(error) = file.remove_if_empty() {
        tracing::warn!("a file that was made for a refused reload cannot be removed: {error}");
    }
}

//! Predicts the failures of a reload and orders its steps, before the first change.
//!
//! A listener needs an address and port that no other listener uses. If it divides a region into slots, one per
//! stream, no other listener may use that region. Therefore removed listeners that block another listener are removed
//! first, and changed listeners are ordered so that each finds its address and region free. Protection domains are
//! predicted step by step, as [`Regions::domain_for`](crate::appliance::regions::Regions::domain_for) will assign them.

use std::collections::HashMap;

use config::directories::Directories;
use config::{Backing, Config, Delivery, Limits, ListenerSection, show_size};
use ddp::PdId;

use super::Difference;
use crate::appliance::core::Core;
use crate::appliance::listeners::{check_advertisement, check_interface_of, conflict};
use crate::appliance::loader::check_writable;
use crate::appliance::regions::Regions;

/// Steps of a reload that can fail, and the reasons to refuse the reload.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Removed listeners that block a changed or added listener.
    pub removed_first: Vec<String>,
    /// Changed and added listeners, in the order in which they are applied.
    pub order: Vec<ListenerSection>,
    /// All reasons to refuse the reload, one sentence each.
    pub refusals: Vec<String>,
}

impl Core {
    /// Returns the steps of a reload that applies `difference`, and the reasons to refuse it. Changes nothing.
    pub(super) fn plan_steps(&self, config: &Config, difference: &Difference) -> Steps {
        let mut steps = Steps::default();
        let files = self.directories_of(config);
        self.check_removed_regions(difference, &mut steps.refusals);
        self.check_added_regions(config, difference, &files, &mut steps.refusals);
        steps.refusals.extend(self.check_memory_ceiling(config, difference));
        let sections = difference.listeners_changed.iter().chain(&difference.listeners_added);
        for section in sections.clone() {
            self.check_listener(difference, section, &files, &mut steps.refusals);
        }
        let mut existing = self.listeners.sections();
        let (removed, kept): (Vec<_>, Vec<_>) =
            existing.drain(..).partition(|l| difference.listeners_removed.contains(&l.name));
        let is_blocking =
            |old: &&ListenerSection| sections.clone().any(|new| conflict(new, old).is_some());
        let (removed_first, removed_last): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|old| is_blocking(&old));
        steps.removed_first = removed_first.into_iter().map(|listener| listener.name).collect();
        let existing = [kept, removed_last].concat();
        self.order_listeners(existing, sections.cloned().collect(), &mut steps);
        steps
    }

    fn check_removed_regions(&self, difference: &Difference, refusals: &mut Vec<String>) {
        for name in &difference.regions_removed {
            let users = self.regions.user_count(name);
            if users > 0 {
                refusals.push(format!("region `{name}` cannot go: {users} streams use it"));
            }
            if let Some(listener) = self.listeners.api_listener_of_region(name) {
                refusals.push(format!("region `{name}` cannot go: listener `{listener}` names it"));
            }
        }
    }

    /// Returns a refusal if the new regions and the allowed streams do not fit under the new memory ceiling.
    fn check_memory_ceiling(&self, config: &Config, difference: &Difference) -> Option<String> {
        let added = difference.regions_added.iter().map(Regions::charged_len);
        let added = added.fold(0u64, u64::saturating_add);
        let limits_key = |limits: &Limits| (limits.memory, limits.streams);
        if added == 0 && limits_key(&config.limits) == limits_key(&self.env.context.config.limits) {
            return None;
        }
        let subject = match difference.regions_added.len() {
            0 => "limits.memory and limits.streams of the file".to_owned(),
            added => format!("the file's {added} new regions"),
        };
        Some(self.env.budget.check(&subject, added, Some(&config.limits)).err()?.to_string())
    }

    fn check_added_regions(
        &self,
        config: &Config,
        difference: &Difference,
        files: &Directories,
        refusals: &mut Vec<String>,
    ) {
        let limits = &config.limits;
        for section in &difference.regions_added {
            let may_add = self.regions.check_addition_with(&self.env, section, limits);
            let checks = [may_add, self.listeners.check_file(section)];
            refusals.extend(checks.into_iter().filter_map(Result::err).map(|e| e.message));
            if let Backing::File { path, .. } = &section.backing {
                let region = format!("region {}", section.name);
                push_refusal(&region, check_writable(path, files), refusals);
            }
        }
        // `check_addition_with` has checked each new region alone. If there are several, their sum is checked here.
        // Removed regions count, because they are freed only after the new regions are added.
        let added = difference.regions_added.len();
        let (number, max_regions) = (self.regions.len() + added, limits.regions);
        if added > 1 && number > max_regions as usize {
            refusals.push(format!(
                "there would be {number} regions, and limits.regions is {max_regions}: remove some first, or raise it"
            ));
        }
        let sizes = difference.regions_added.iter().filter_map(|region| region.size);
        let bytes = sizes.fold(self.regions.memory(), u64::saturating_add);
        if added > 1 && bytes > limits.region_memory {
            refusals.push(format!(
                "the regions would have {} together, and limits.region_memory is {}: remove some first, or raise it",
                show_size(bytes),
                show_size(limits.region_memory)
            ));
        }
    }

    /// Checks one changed or added listener, independently of the other changed or added listeners.
    fn check_listener(
        &self,
        difference: &Difference,
        section: &ListenerSection,
        files: &Directories,
        refusals: &mut Vec<String>,
    ) {
        let name = &section.name;
        let with_listener_name =
            |message: String| match message.contains(&format!("listener `{name}`")) {
                true => message,
                false => format!("listener `{name}`: {message}"),
            };
        let added = difference.listeners_added.iter().any(|listener| listener.name == *name);
        if added && self.listeners.section_of(name).is_some() {
            refusals.push(format!(
                "listener `{name}` cannot be added: the API has added one of this name; remove it first"
            ));
        }
        let mut checks = vec![check_interface_of(&self.env, section), check_advertisement(section)];
        checks.push(self.listeners.check_change(section));
        if added || self.listeners.changes_service(section) {
            checks.push(self.regions.check_slots(section));
        }
        refusals.extend(
            checks.into_iter().filter_map(Result::err).map(|e| with_listener_name(e.message)),
        );
        for queue in &section.queues {
            if let Delivery::File { path } = &queue.deliver_to
                && !self.listeners.has_file_open(name, path)
            {
                let queue = format!("listener `{name}`, queue {}", queue.qn);
                push_refusal(&queue, check_writable(path, files), refusals);
            }
        }
    }

    /// Orders the listeners so that the address and region of each are free when it is applied. Adds a refusal if no
    /// order is possible, or if the regions of a listener cannot share one protection domain.
    fn order_listeners(
        &self,
        mut existing: Vec<ListenerSection>,
        mut pending: Vec<ListenerSection>,
        steps: &mut Steps,
    ) {
        let mut domains = HashMap::new();
        while !pending.is_empty() {
            let blocked_by = |new: &ListenerSection| {
                let others = existing.iter().filter(|old| old.name != new.name);
                others.filter_map(|old| conflict(new, old)).next()
            };
            let Some(at) = pending.iter().position(|new| blocked_by(new).is_none()) else {
                steps.refusals.extend(pending.iter().filter_map(blocked_by));
                return;
            };
            let section = pending.remove(at);
            existing.retain(|old| old.name != section.name);
            steps.refusals.extend(self.assign_domain(&section, &existing, &mut domains));
            existing.push(section.clone());
            steps.order.push(section);
        }
    }

    /// Assigns the listener's regions to one protection domain. Returns a refusal if they cannot share a domain.
    fn assign_domain(
        &self,
        section: &ListenerSection,
        existing: &[ListenerSection],
        domains: &mut HashMap<String, PredictedDomain>,
    ) -> Option<String> {
        let mut fixed: Option<(PredictedDomain, &String)> = None;
        let mut free = None;
        for name in &section.regions {
            let known = domains.get(name).copied();
            // A new region has its own domain until a listener lists it.
            let domain = known
                .or_else(|| self.regions.pd_of(name).map(PredictedDomain::Existing))
                .unwrap_or(PredictedDomain::New(domains.len()));
            let is_fixed = self.regions.user_count(name) > 0
                || existing.iter().any(|listener| listener.regions.contains(name));
            match fixed {
                Some((other, first)) if is_fixed && other != domain => {
                    return Some(format!(
                        "listener `{}`: regions `{first}` and `{name}` are in use in different \
                         protection domains",
                        section.name
                    ));
                }
                None if is_fixed => fixed = Some((domain, name)),
                _ => free = free.or(Some(domain)),
            }
        }
        let domain = fixed.map(|(domain, _)| domain).or(free)?;
        domains.extend(section.regions.iter().map(|name| (name.clone(), domain)));
        None
    }
}

/// Predicted protection domain: an existing domain, or a new domain with a number that distinguishes it from other new
/// domains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PredictedDomain {
    Existing(PdId),
    New(usize),
}

/// Adds a refusal that starts with `subject` if `result` is an error.
fn push_refusal(subject: &str, result: Result<(), String>, refusals: &mut Vec<String>) {
    refusals.extend(result.err().map(|error| format!("{subject}: {error}")));
}

//! Predicts the failures of a reload, and orders its steps, before anything is changed.
//!
//! A listener needs an address and port, and for pieces a region, that no other listener uses. Removed listeners
//! therefore go first where they block another one, and changed listeners are ordered so that each finds its
//! address and region free. The protection domains of the regions are followed step by step, as
//! [`Regions::domain_for`](crate::appliance::regions::Regions) will assign them.

use std::collections::HashMap;

use config::beneath::Directories;
use config::{Backing, Config, Delivery, Limits, ListenerSection, show_size};
use ddp::PdId;

use super::Difference;
use crate::appliance::core::Core;
use crate::appliance::listeners::{check_advertisement, check_interface_of, stands_in_the_way};
use crate::appliance::loader::writable;
use crate::appliance::regions::Regions;

/// The steps of a reload that can fail.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Removed listeners that block a changed or added one.
    pub removed_first: Vec<String>,
    /// Changed and added listeners, in the order of their steps.
    pub order: Vec<ListenerSection>,
    /// All reasons for which the reload must be refused, one sentence each.
    pub refusals: Vec<String>,
}

impl Core {
    pub(super) fn foresee(&self, config: &Config, difference: &Difference) -> Steps {
        let mut steps = Steps::default();
        let files = self.files_of(config);
        self.regions_that_go(difference, &mut steps.refusals);
        self.regions_that_come(config, difference, &files, &mut steps.refusals);
        steps.refusals.extend(self.over_memory(config, difference));
        let sections = difference.listeners_changed.iter().chain(&difference.listeners_added);
        for section in sections.clone() {
            self.listener_alone(difference, section, &files, &mut steps.refusals);
        }
        let mut standing = self.listeners.sections();
        let (go, stay): (Vec<_>, Vec<_>) =
            standing.drain(..).partition(|l| difference.listeners_removed.contains(&l.name));
        let in_the_way = |old: &&ListenerSection| {
            sections.clone().any(|new| stands_in_the_way(new, old).is_some())
        };
        let (first, last): (Vec<_>, Vec<_>) = go.into_iter().partition(|old| in_the_way(&old));
        steps.removed_first = first.into_iter().map(|listener| listener.name).collect();
        let standing = [stay, last].concat();
        self.order(standing, sections.cloned().collect(), &mut steps);
        steps
    }

    fn regions_that_go(&self, difference: &Difference, refusals: &mut Vec<String>) {
        for name in &difference.regions_removed {
            let users = self.regions.users_of(name);
            if users > 0 {
                refusals.push(format!("region `{name}` cannot go: {users} streams use it"));
            }
            if let Some(listener) = self.listeners.of_api_naming(name) {
                refusals.push(format!("region `{name}` cannot go: listener `{listener}` names it"));
            }
        }
    }

    /// Returns a refusal unless all new regions and the allowed streams fit under the new memory
    /// ceiling.
    fn over_memory(&self, config: &Config, difference: &Difference) -> Option<String> {
        let added = difference.regions_added.iter().map(Regions::counted);
        let added = added.fold(0u64, u64::saturating_add);
        let asked = |limits: &Limits| (limits.memory, limits.streams);
        if added == 0 && asked(&config.limits) == asked(&self.env.facts.config.limits) {
            return None;
        }
        let what = match difference.regions_added.len() {
            0 => "limits.memory and limits.streams of the file".to_owned(),
            added => format!("the file's {added} new regions"),
        };
        Some(self.env.budget.check(&what, added, Some(&config.limits)).err()?.to_string())
    }

    fn regions_that_come(
        &self,
        config: &Config,
        difference: &Difference,
        files: &Directories,
        refusals: &mut Vec<String>,
    ) {
        let limits = &config.limits;
        for section in &difference.regions_added {
            let may_add = self.regions.may_add_with(&self.env, section, limits);
            let checks = [may_add, self.listeners.check_file(section)];
            refusals.extend(checks.into_iter().filter_map(Result::err).map(|e| e.message));
            if let Backing::File { path, .. } = &section.backing {
                let region = format!("region {}", section.name);
                refused(&region, writable(path, files), refusals);
            }
        }
        // Removed regions are freed after the new ones have been added.
        let added = difference.regions_added.len();
        let (number, most) = (self.regions.len() + added, limits.regions);
        if added > 1 && number > most as usize {
            refusals.push(format!(
                "there would be {number} regions, and limits.regions is {most}: remove some first, or raise it"
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

    /// Checks a listener independently of the others.
    fn listener_alone(
        &self,
        difference: &Difference,
        section: &ListenerSection,
        files: &Directories,
        refusals: &mut Vec<String>,
    ) {
        let name = &section.name;
        let of_it = |message: String| match message.contains(&format!("listener `{name}`")) {
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
        checks.push(self.listeners.may_become(section));
        if added || self.listeners.serves_otherwise(section) {
            checks.push(self.regions.check_pieces(section));
        }
        refusals.extend(checks.into_iter().filter_map(Result::err).map(|e| of_it(e.message)));
        for queue in &section.queues {
            if let Delivery::File { path } = &queue.deliver_to
                && !self.listeners.has_open(name, path)
            {
                let queue = format!("listener `{name}`, queue {}", queue.qn);
                refused(&queue, writable(path, files), refusals);
            }
        }
    }

    /// Orders the listeners so that each finds its address and region free, and its regions in one domain.
    fn order(
        &self,
        mut standing: Vec<ListenerSection>,
        mut left: Vec<ListenerSection>,
        steps: &mut Steps,
    ) {
        let mut domains = HashMap::new();
        while !left.is_empty() {
            let blocked_by = |new: &ListenerSection| {
                let others = standing.iter().filter(|old| old.name != new.name);
                others.filter_map(|old| stands_in_the_way(new, old)).next()
            };
            let Some(at) = left.iter().position(|new| blocked_by(new).is_none()) else {
                steps.refusals.extend(left.iter().filter_map(blocked_by));
                return;
            };
            let section = left.remove(at);
            standing.retain(|old| old.name != section.name);
            steps.refusals.extend(self.domain(&section, &standing, &mut domains));
            standing.push(section.clone());
            steps.order.push(section);
        }
    }

    /// Puts the listener's regions into one domain, or reports why they cannot share one.
    fn domain(
        &self,
        section: &ListenerSection,
        standing: &[ListenerSection],
        domains: &mut HashMap<String, Domain>,
    ) -> Option<String> {
        let mut fixed: Option<(Domain, &String)> = None;
        let mut free = None;
        for name in &section.regions {
            let known = domains.get(name).copied();
            // A new region has a domain of its own until a listener names it.
            let domain = known
                .or_else(|| self.regions.pd_of(name).map(Domain::Known))
                .unwrap_or(Domain::New(domains.len()));
            let is_fixed = self.regions.users_of(name) > 0
                || standing.iter().any(|listener| listener.regions.contains(name));
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

/// A predicted protection domain: an existing one, or the n-th new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Domain {
    Known(PdId),
    New(usize),
}

fn refused(what: &str, file: Result<(), String>, refusals: &mut Vec<String>) {
    refusals.extend(file.err().map(|error| format!("{what}: {error}")));
}

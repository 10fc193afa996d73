//! Protection domains. A listener's streams may use all its regions, so its regions are in one domain. Listeners that
//! share a region share its domain. A region has its own domain until a listener lists it.

use std::collections::HashMap;
use std::time::Instant;

use api::ApiError;
use config::ListenerSection;
use dataplane::memory::Memory;
use dataplane::{Command, SourceRemoval};
use ddp::{PdId, StagEntry};

use super::Regions;
use crate::appliance::env::Env;
use crate::appliance::pending::Continuation;

/// Allocator of protection domains, and the domains planned for the configured regions.
pub(super) struct Domains {
    /// Domain of each region that a configured listener lists, by the region's name.
    planned: HashMap<String, PdId>,
    /// Lowest number that was never used.
    next: u32,
}

impl Domains {
    /// Plans the domains of the configured regions. Listeners that share regions, directly or indirectly, get one
    /// domain.
    pub(super) fn new(listeners: &[ListenerSection]) -> Domains {
        let mut domains = Domains { planned: HashMap::new(), next: 1 };
        let mut merged = MergedDomains::default();
        for listener in listeners {
            let mut own: Option<PdId> = None;
            for region in &listener.regions {
                let Some(&known) = domains.planned.get(region) else { continue };
                match own {
                    // The listener merges the domains of its regions.
                    Some(own) => merged.merge(own, known),
                    None => own = Some(known),
                }
            }
            let own = own.unwrap_or_else(|| domains.next());
            let new = listener.regions.iter().map(|region| (region.clone(), own));
            domains.planned.extend(new);
        }
        domains.planned.values_mut().for_each(|pd| *pd = merged.find(*pd));
        domains
    }

    /// Allocates an unused domain.
    pub(super) fn next(&mut self) -> PdId {
        self.next += 1;
        PdId(self.next - 1)
    }

    /// Returns the domain of a new region: its planned domain, the domain of a listener that lists it, or an unused
    /// domain.
    pub(super) fn for_region(&mut self, name: &str, listener: Option<PdId>) -> PdId {
        match self.planned.get(name).copied().or(listener) {
            Some(pd) => pd,
            None => self.next(),
        }
    }
}

/// Merged domains: a disjoint-set forest.
#[derive(Default)]
struct MergedDomains(HashMap<PdId, PdId>);

impl MergedDomains {
    /// Returns the domain that replaces `pd`. Shortens the chain of replacements that leads there.
    fn find(&mut self, pd: PdId) -> PdId {
        let mut root = pd;
        while let Some(&next) = self.0.get(&root) {
            root = next;
        }
        let mut at = pd;
        while at != root {
            at = self.0.insert(at, root).unwrap_or(root);
        }
        root
    }

    fn merge(&mut self, a: PdId, b: PdId) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            self.0.insert(b, a);
        }
    }
}

impl Regions {
    /// Returns the domain of a listener, and its regions that must move to it. `is_listed`: true if another listener
    /// lists the region.
    pub(in crate::appliance) fn domain_for(
        &mut self,
        section: &ListenerSection,
        is_listed: impl Fn(&str) -> bool,
    ) -> Result<(PdId, Vec<String>), ApiError> {
        // The domain of regions that are in use, or listed by other listeners, is fixed. It takes precedence.
        let mut fixed: Option<(PdId, &str)> = None;
        let mut free: Option<PdId> = None;
        for name in &section.regions {
            let region = self.regions.get(name).filter(|region| region.is_live());
            let region = region.ok_or_else(|| {
                let listener = &section.name;
                ApiError::bad_request(format!("listener `{listener}`: there is no region `{name}`"))
            })?;
            let is_fixed = is_listed(name) || !region.users.is_empty();
            match fixed {
                Some((pd, other)) if is_fixed && pd != region.pd => {
                    return Err(ApiError::conflict(format!(
                        "listener `{}`: regions `{other}` and `{name}` are in use in different \
                         protection domains",
                        section.name
                    )));
                }
                None if is_fixed => fixed = Some((region.pd, name)),
                _ => free = free.or(Some(region.pd)),
            }
        }
        let pd = match fixed.map(|(pd, _)| pd).or(free) {
            Some(pd) => pd,
            None => self.domains.next(),
        };
        let moved = |name: &&String| self.regions.get(*name).is_some_and(|r| r.pd != pd);
        Ok((pd, section.regions.iter().filter(moved).cloned().collect()))
    }

    /// Returns the domain of an active open, which all its regions must share.
    pub(in crate::appliance) fn domain_of(
        &mut self,
        regions: &[String],
        now: Instant,
    ) -> Result<PdId, ApiError> {
        let mut domain = None;
        for name in regions {
            let region = self.live(name)?;
            if !region.is_available() {
                return Err(self.busy(name, now));
            }
            if domain.is_some_and(|pd| pd != region.pd) {
                return Err(ApiError::conflict(format!(
                    "region `{name}` is in another protection domain than the ones before it"
                )));
            }
            domain = Some(region.pd);
        }
        Ok(domain.unwrap_or_else(|| self.domains.next()))
    }

    /// Moves regions to another domain. Returns their new entries for the workers.
    pub(in crate::appliance) fn reassign(
        &mut self,
        names: &[String],
        pd: PdId,
    ) -> Vec<StagEntry<Memory>> {
        let mut entries = Vec::new();
        for name in names {
            if let Some(region) = self.regions.get_mut(name) {
                region.pd = pd;
                entries.push(region.entry());
            }
        }
        entries
    }

    /// Moves regions to another domain and registers them again.
    pub(in crate::appliance) fn reregister(&mut self, env: &mut Env, names: &[String], pd: PdId) {
        for entry in self.reassign(names, pd) {
            let stag = entry.stag;
            let sources = SourceRemoval::Wait;
            env.broadcast_all(
                Continuation::Ignore,
                &[&|ticket| Command::RemoveStag { stag, removal: sources, ticket }, &|ticket| {
                    Command::AddStag { entry: entry.clone(), ticket }
                }],
            );
        }
    }
}

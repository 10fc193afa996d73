//! The kernel's policies, and the list of policies for the data plane.

use std::collections::HashMap;

use ipsec::guard::Protection;
use ipsec::policy::{Action, Direction, Flow, MAX_POLICIES, Policy, Unmatched};
use netlink_packet_xfrm::constants::XFRM_USERPOLICY_BLOCK;
use netlink_packet_xfrm::{UserPolicyDefault, UserPolicyId, UserPolicyInfo};

use crate::ages::{Age, AgeCounter};
use crate::event::{Event, EventQueue, PolicyInfo, ProtectionInfo, RefusedKind};
use crate::message::Attributes;
use crate::policy::{KernelPolicy, PolicyKey, SaRequirements, Translation, matches_flow};
use crate::protections::Protections;

struct PolicyEntry {
    policy: KernelPolicy,
    /// Translation of `policy` for the data plane.
    reading: Translation,
    age: Age,
    /// Action in the data plane's list; `None` if the policy is not in it.
    action: Option<Action<Protection>>,
    /// Reason of the refusal that was reported last.
    refused: Option<String>,
}

/// The mirrored policies.
pub(crate) struct Policies {
    entries: HashMap<PolicyKey, PolicyEntry>,
    pub(crate) ages: AgeCounter,
    /// Treatment of packets that match no policy.
    unselected: Unmatched,
    /// Number of policies omitted since the last dump began, because the mirror was full.
    pub(crate) left_out: u64,
    /// True if policies were omitted, so that the list is incomplete.
    overflow: bool,
    pub(crate) protections: Protections,
    /// The last reported list.
    last_report: Option<(Vec<Policy<Protection>>, Unmatched, Vec<ProtectionInfo>)>,
}

impl Policies {
    pub(crate) fn new() -> Policies {
        Policies {
            entries: HashMap::new(),
            ages: AgeCounter::default(),
            // Kernels without default policies let unmatched packets pass.
            unselected: Unmatched::PASS,
            left_out: 0,
            overflow: false,
            protections: Protections::default(),
            last_report: None,
        }
    }

    pub(crate) fn begin_dump(&mut self) {
        self.ages.begin_dump();
        self.left_out = 0;
    }

    /// Removes policies that the dump did not list.
    pub(crate) fn end_dump(&mut self) {
        let ages = &self.ages;
        self.entries.retain(|_, entry| ages.is_current(entry.age));
        self.overflow = self.left_out > 0;
    }

    /// Adds or replaces a policy. `of_dump`: true if the message is part of a dump, false if the monitor sent it.
    pub(crate) fn insert(
        &mut self,
        info: UserPolicyInfo,
        attributes: Attributes,
        of_dump: bool,
        events: &mut EventQueue,
    ) {
        let age = self.ages.next_age(of_dump);
        let key = PolicyKey::new(&info.selector, info.direction, &attributes);
        let Some(kernel) = KernelPolicy::new(info, attributes) else { return };
        if self.entries.len() >= MAX_POLICIES && !self.entries.contains_key(&key) {
            self.left_out += 1;
            if !std::mem::replace(&mut self.overflow, true) {
                events.warn(format!(
                    "more than {MAX_POLICIES} policies: the others are left out, and packets that no \
                     policy selects are dropped"
                ));
            }
            return;
        }
        let reading = kernel.translate();
        let (action, refused) =
            self.entries.remove(&key).map(|old| (old.action, old.refused)).unwrap_or_default();
        self.entries.insert(key, PolicyEntry { policy: kernel, reading, age, action, refused });
    }

    /// Deletes a policy. Returns true if a new dump is needed: policies were omitted because the mirror was full, and
    /// now it can store more.
    pub(crate) fn delete(&mut self, id: &UserPolicyId, attributes: &Attributes) -> bool {
        match &attributes.policy {
            Some(info) => self.remove_expired(info, attributes),
            None if id.index != 0 => {
                self.entries.retain(|_, entry| entry.policy.info.index != id.index);
                self.has_room()
            }
            None => {
                self.entries.remove(&PolicyKey::new(&id.selector, id.direction, attributes));
                self.has_room()
            }
        }
    }

    /// Removes a policy that has expired or was deleted. Returns the result of [`delete`](Self::delete).
    pub(crate) fn remove_expired(
        &mut self,
        info: &UserPolicyInfo,
        attributes: &Attributes,
    ) -> bool {
        self.entries.remove(&PolicyKey::new(&info.selector, info.direction, attributes));
        self.has_room()
    }

    pub(crate) fn flush(&mut self) {
        self.entries.clear();
        self.overflow = false;
    }

    fn has_room(&self) -> bool {
        self.overflow && self.entries.len() < MAX_POLICIES
    }

    pub(crate) fn set_defaults(&mut self, defaults: UserPolicyDefault) {
        self.unselected = Unmatched {
            inbound: defaults.input != XFRM_USERPOLICY_BLOCK,
            outbound: defaults.output != XFRM_USERPOLICY_BLOCK,
        };
    }

    /// Rebuilds the data plane's list and reports refusals. Returns the list as [`Event::Policies`] if it has changed.
    pub(crate) fn refresh_list(&mut self, events: &mut EventQueue) -> Option<Event> {
        let mut entries: Vec<&mut PolicyEntry> = self.entries.values_mut().collect();
        entries.sort_by_key(|entry| entry.sort_key());
        let wanted: Vec<_> = entries
            .iter()
            .filter_map(|entry| entry.requirements().map(|wants| wants.endpoints))
            .collect();
        self.protections.assign_numbers(&wanted);
        let mut list = Vec::with_capacity(entries.len());
        for entry in entries {
            let (policy, refused) = entry.resolve_action(&mut self.protections);
            let policy = policy.map(|mut policy| {
                // A policy that was left out may protect or discard packets that this policy would let pass.
                if self.overflow && policy.action == Action::Bypass {
                    policy.action = Action::Discard;
                }
                policy
            });
            entry.action = policy.as_ref().map(|policy| policy.action.clone());
            list.extend(policy);
            let reported = entry.refused.take();
            entry.refused = events.report_refusal(
                RefusedKind::Policy,
                &entry.policy,
                reported,
                refused.as_deref(),
            );
        }
        let unselected = if self.overflow { Unmatched::DROP } else { self.unselected };
        let made = (list, unselected, self.protections.list());
        if self.last_report.as_ref() == Some(&made) {
            return None;
        }
        self.last_report = Some(made.clone());
        let (list, unselected, protections) = made;
        Some(Event::Policies { list, unselected, protections })
    }

    /// Returns the outbound policy of this protection that matches the flow, and its requirements. `None` if no policy
    /// matches.
    pub(crate) fn outbound_policy(
        &self,
        protection: Protection,
        flow: &Flow,
    ) -> Option<(&KernelPolicy, SaRequirements)> {
        let found = self.entries.values().filter_map(|entry| match &entry.reading {
            Translation::Listed { selector, action: Action::Protect(wants), .. }
                if entry.policy.direction == Direction::Out
                    && entry.action == Some(Action::Protect(protection))
                    && matches_flow(selector, flow) =>
            {
                Some((entry, *wants))
            }
            _ => None,
        });
        let (entry, wants) = found.min_by_key(|(entry, _)| entry.sort_key())?;
        Some((&entry.policy, wants))
    }

    pub(crate) fn infos(&self) -> impl Iterator<Item = PolicyInfo> {
        let mut entries: Vec<&PolicyEntry> = self.entries.values().collect();
        entries.sort_by_key(|entry| entry.sort_key());
        entries.into_iter().map(|entry| PolicyInfo {
            selector: entry.policy.to_string(),
            translated_selector: match &entry.reading {
                Translation::Listed { selector, .. } => Some(selector.clone()),
                _ => None,
            },
            direction: entry.policy.direction,
            action: entry.action.clone(),
            reqid: entry.policy.templates.first().map(|template| template.reqid),
            priority: entry.policy.info.priority,
            index: entry.policy.info.index,
            templates: entry.policy.template_summary(),
            refused: entry.refused.clone(),
        })
    }
}

impl PolicyEntry {
    /// Returns the sort key. The kernel applies the matching policy with the lowest priority number; among equal
    /// numbers, the oldest.
    fn sort_key(&self) -> (u32, u64) {
        (self.policy.info.priority, self.age.order)
    }

    fn requirements(&self) -> Option<&SaRequirements> {
        match &self.reading {
            Translation::Listed { action: Action::Protect(wants), .. } => Some(wants),
            _ => None,
        }
    }

    /// Returns the policy for the data plane, with the number of its protection, and the reason if the policy is
    /// refused.
    fn resolve_action(
        &self,
        protections: &mut Protections,
    ) -> (Option<Policy<Protection>>, Option<String>) {
        let (selector, action, mut refused) = match &self.reading {
            Translation::Ignored => return (None, None),
            Translation::Skipped(reason) => return (None, Some(reason.clone())),
            Translation::Listed { selector, action, refused } => {
                (selector, action, refused.clone())
            }
        };
        let direction = self.policy.direction;
        let action = match action {
            Action::Bypass => Action::Bypass,
            Action::Discard => Action::Discard,
            Action::Protect(wants) => match protections.require(wants, direction) {
                Ok(protection) => Action::Protect(protection),
                Err(reason) => {
                    refused = Some(reason);
                    Action::Discard
                }
            },
        };
        let selector = selector.clone();
        (Some(Policy { direction: Some(direction), selector, action }), refused)
    }
}

//! The kernel's policies, and the list for the data plane.

use std::collections::HashMap;

use ipsec::guard::Protection;
use ipsec::policy::{Action, Direction, Flow, MOST, Policy, Unselected};
use netlink_packet_xfrm::constants::XFRM_USERPOLICY_BLOCK;
use netlink_packet_xfrm::{UserPolicyDefault, UserPolicyId, UserPolicyInfo};

use crate::ages::{Age, Ages};
use crate::event::{Event, Events, PolicyInfo, ProtectionInfo, Refusal};
use crate::message::Attributes;
use crate::policy::{Kernel, Key, Reading, Wants, fits};
use crate::protections::Protections;

struct Entry {
    kernel: Kernel,
    reading: Reading,
    age: Age,
    /// Action in the list; `None` if the policy is not in it.
    action: Option<Action<Protection>>,
    /// Reported reason of the refusal.
    refused: Option<String>,
}

/// The mirrored policies.
pub(crate) struct Policies {
    entries: HashMap<Key, Entry>,
    pub(crate) ages: Ages,
    unselected: Unselected,
    /// Policies left out since the last dump began.
    pub(crate) left_out: u64,
    /// Policies were left out: the list is incomplete.
    overflow: bool,
    pub(crate) protections: Protections,
    /// The last reported list.
    told: Option<(Vec<Policy<Protection>>, Unselected, Vec<ProtectionInfo>)>,
}

impl Policies {
    pub(crate) fn new() -> Policies {
        Policies {
            entries: HashMap::new(),
            ages: Ages::default(),
            // Kernels without defaults let unmatched packets pass.
            unselected: Unselected::PASS,
            left_out: 0,
            overflow: false,
            protections: Protections::default(),
            told: None,
        }
    }

    pub(crate) fn begin_dump(&mut self) {
        self.ages.begin();
        self.left_out = 0;
    }

    /// Removes policies that the dump did not list.
    pub(crate) fn end_dump(&mut self) {
        let ages = &self.ages;
        self.entries.retain(|_, entry| ages.is_current(entry.age));
        self.overflow = self.left_out > 0;
    }

    /// Adds or replaces a policy.
    pub(crate) fn take(
        &mut self,
        info: UserPolicyInfo,
        attributes: Attributes,
        of_dump: bool,
        events: &mut Events,
    ) {
        let age = self.ages.next(of_dump);
        let key = Key::new(&info.selector, info.direction, &attributes);
        let Some(kernel) = Kernel::new(info, attributes) else { return };
        if self.entries.len() >= MOST && !self.entries.contains_key(&key) {
            self.left_out += 1;
            if !std::mem::replace(&mut self.overflow, true) {
                events.warn(format!(
                    "more than {MOST} policies: the others are left out, and packets that no \
                     policy selects are dropped"
                ));
            }
            return;
        }
        let reading = kernel.read();
        let (action, refused) =
            self.entries.remove(&key).map(|old| (old.action, old.refused)).unwrap_or_default();
        self.entries.insert(key, Entry { kernel, reading, age, action, refused });
    }

    /// Deletes a policy. Returns true if a policy that was left out may now fit.
    pub(crate) fn delete(&mut self, id: &UserPolicyId, attributes: &Attributes) -> bool {
        match &attributes.policy {
            Some(info) => self.remove(info, attributes),
            None if id.index != 0 => {
                self.entries.retain(|_, entry| entry.kernel.info.index != id.index);
                self.has_room()
            }
            None => {
                self.entries.remove(&Key::new(&id.selector, id.direction, attributes));
                self.has_room()
            }
        }
    }

    /// Removes an expired policy. Returns as [`delete`](Self::delete).
    pub(crate) fn remove(&mut self, info: &UserPolicyInfo, attributes: &Attributes) -> bool {
        self.entries.remove(&Key::new(&info.selector, info.direction, attributes));
        self.has_room()
    }

    pub(crate) fn flush(&mut self) {
        self.entries.clear();
        self.overflow = false;
    }

    fn has_room(&self) -> bool {
        self.overflow && self.entries.len() < MOST
    }

    pub(crate) fn set_defaults(&mut self, defaults: UserPolicyDefault) {
        self.unselected = Unselected {
            inbound: defaults.input != XFRM_USERPOLICY_BLOCK,
            outbound: defaults.output != XFRM_USERPOLICY_BLOCK,
        };
    }

    /// Rebuilds the list. Returns it if it has changed, and reports refusals.
    pub(crate) fn refresh(&mut self, events: &mut Events) -> Option<Event> {
        let mut entries: Vec<&mut Entry> = self.entries.values_mut().collect();
        entries.sort_by_key(|entry| entry.place());
        let wanted: Vec<_> =
            entries.iter().filter_map(|entry| entry.wants().map(|wants| wants.ends)).collect();
        self.protections.renew(&wanted);
        let mut list = Vec::with_capacity(entries.len());
        for entry in entries {
            let (policy, refused) = entry.resolve(&mut self.protections);
            let policy = policy.map(|mut policy| {
                // A policy that was left out may require more than to bypass.
                if self.overflow && policy.action == Action::Bypass {
                    policy.action = Action::Discard;
                }
                policy
            });
            entry.action = policy.as_ref().map(|policy| policy.action.clone());
            list.extend(policy);
            let told = entry.refused.take();
            entry.refused = events.refuse(Refusal::Policy, &entry.kernel, told, refused.as_deref());
        }
        let unselected = if self.overflow { Unselected::DROP } else { self.unselected };
        let made = (list, unselected, self.protections.list());
        if self.told.as_ref() == Some(&made) {
            return None;
        }
        self.told = Some(made.clone());
        let (list, unselected, protections) = made;
        Some(Event::Policies { list, unselected, protections })
    }

    /// Returns the outbound policy that a flow of this protection matches.
    pub(crate) fn outbound(&self, protection: Protection, flow: &Flow) -> Option<(&Kernel, Wants)> {
        let found = self.entries.values().filter_map(|entry| match &entry.reading {
            Reading::Listed { selector, action: Action::Protect(wants), .. }
                if entry.kernel.direction == Direction::Out
                    && entry.action == Some(Action::Protect(protection))
                    && fits(selector, flow) =>
            {
                Some((entry, *wants))
            }
            _ => None,
        });
        let (entry, wants) = found.min_by_key(|(entry, _)| entry.place())?;
        Some((&entry.kernel, wants))
    }

    pub(crate) fn infos(&self) -> impl Iterator<Item = PolicyInfo> {
        let mut entries: Vec<&Entry> = self.entries.values().collect();
        entries.sort_by_key(|entry| entry.place());
        entries.into_iter().map(|entry| PolicyInfo {
            selector: entry.kernel.to_string(),
            fits: match &entry.reading {
                Reading::Listed { selector, .. } => Some(selector.clone()),
                _ => None,
            },
            direction: entry.kernel.direction,
            action: entry.action.clone(),
            reqid: entry.kernel.templates.first().map(|template| template.reqid),
            priority: entry.kernel.info.priority,
            index: entry.kernel.info.index,
            templates: entry.kernel.template_summary(),
            refused: entry.refused.clone(),
        })
    }
}

impl Entry {
    /// Returns the sort key. The kernel applies the matching policy with the lowest priority number, of equals
    /// the oldest.
    fn place(&self) -> (u32, u64) {
        (self.kernel.info.priority, self.age.order)
    }

    fn wants(&self) -> Option<&Wants> {
        match &self.reading {
            Reading::Listed { action: Action::Protect(wants), .. } => Some(wants),
            _ => None,
        }
    }

    /// Returns the policy with the number of its protection, and the reason if it is refused.
    fn resolve(
        &self,
        protections: &mut Protections,
    ) -> (Option<Policy<Protection>>, Option<String>) {
        let (selector, action, mut refused) = match &self.reading {
            Reading::Ignored => return (None, None),
            Reading::Skipped(reason) => return (None, Some(reason.clone())),
            Reading::Listed { selector, action, refused } => (selector, action, refused.clone()),
        };
        let direction = self.kernel.direction;
        let action = match action {
            Action::Bypass => Action::Bypass,
            Action::Discard => Action::Discard,
            Action::Protect(wants) => match protections.ask(wants, direction) {
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

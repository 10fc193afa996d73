//! Listeners as `[[listener]]` sections, for the running configuration and reloads.

use std::path::Path;

use api::ApiError;
use config::{Delivery, ListenerSection};

use super::Listeners;
use crate::appliance::env::Origin;

impl Listeners {
    /// Returns the sections of all current listeners, with their origin.
    pub(in crate::appliance) fn declared(
        &self,
    ) -> impl Iterator<Item = (&ListenerSection, Origin)> {
        self.current().map(|listener| (&listener.section, listener.origin))
    }

    pub(in crate::appliance) fn sections(&self) -> Vec<ListenerSection> {
        self.declared().map(|(section, _)| section.clone()).collect()
    }

    pub(in crate::appliance) fn section_of(&self, name: &str) -> Option<ListenerSection> {
        self.by_name(name).map(|listener| listener.section.clone())
    }

    /// Checks that the listener with the section's name, if it exists, can change to the section.
    pub(in crate::appliance) fn check_change(
        &self,
        section: &ListenerSection,
    ) -> Result<(), ApiError> {
        self.by_name(&section.name).map_or(Ok(()), |old| old.check_change(section))
    }

    /// Returns true if the section changes service or slots of the listener with its name.
    pub(in crate::appliance) fn changes_service(&self, section: &ListenerSection) -> bool {
        self.by_name(&section.name).is_some_and(|old| old.changes_service(section))
    }

    /// Returns true if the listener has the file open for one of its queues.
    pub(in crate::appliance) fn has_file_open(&self, name: &str, file: &Path) -> bool {
        let is_this_file =
            |delivery: &Delivery| matches!(delivery, Delivery::File { path } if path == file);
        let listener = self.by_name(name);
        listener
            .is_some_and(|l| l.section.queues.iter().any(|queue| is_this_file(&queue.deliver_to)))
    }
}

//! Adds, changes and starts listeners. Their regions move to a common protection domain in the same step.

use api::{ApiError, Responder};
use config::ListenerSection;
use ddp::PdId;

use super::Core;
use crate::appliance::env::Origin;
use crate::appliance::listeners::{Listener, PreparedChange, open_queue_files};

/// A refusal, and the answer channel of the request, which is still unused.
type ListenerError = (ApiError, Option<Responder>);

impl Core {
    /// Adds a listener. A refusal returns the answer channel. Otherwise the answer is sent when all workers listen.
    pub(super) fn add_listener(
        &mut self,
        section: ListenerSection,
        origin: Origin,
        answer: Option<Responder>,
    ) -> Result<(), ListenerError> {
        match self.make_listener(section, origin) {
            Ok((listener, moved)) => {
                let entries = self.regions.reassign(&moved, listener.pd());
                self.listeners.start(&mut self.env, listener, entries, None, answer);
                Ok(())
            }
            Err(error) => Err((error, answer)),
        }
    }

    /// Checks the section and opens its files. Returns the listener, and the regions that must move to its protection
    /// domain.
    fn make_listener(
        &mut self,
        section: ListenerSection,
        origin: Origin,
    ) -> Result<(Listener, Vec<String>), ApiError> {
        self.listeners.check_addition(&self.env, &section)?;
        let (pd, moved) = self.domain_for(&section)?;
        self.regions.check_slots(&section)?;
        self.regions.check_files(&section)?;
        let region = self.divided_region_len(&section);
        let listener = self.listeners.make(&mut self.env, section, pd, region, origin)?;
        Ok((listener, moved))
    }

    /// Returns the protection domain of the section's regions, and the regions that must move to it.
    fn domain_for(&mut self, section: &ListenerSection) -> Result<(PdId, Vec<String>), ApiError> {
        self.regions.domain_for(section, |region| self.listeners.is_listed(region))
    }

    /// Returns the length in bytes of the listener's first region, which may be divided into one slot per stream; 0
    /// without regions.
    fn divided_region_len(&self, section: &ListenerSection) -> u64 {
        section.regions.first().map_or(0, |name| self.regions.len_of(name))
    }

    /// Applies a changed section: limits at once, regions and queues to new streams. Adds the listener if there is none
    /// of this name. If the workers must apply the change, the listener gets a new number, and half-open streams are
    /// reset. Returns true if the result is known only when the workers have answered.
    pub(in crate::appliance) fn change_listener(
        &mut self,
        section: ListenerSection,
    ) -> Result<bool, ApiError> {
        let Some(mut listener) = self.listeners.take(&section.name) else {
            return self
                .add_listener(section, Origin::Configuration, None)
                .map(|()| true)
                .map_err(|(error, _)| error);
        };
        let (changed, moved) = match self.prepare_change(&section, &listener) {
            Ok(parts) => parts,
            Err(error) => {
                self.listeners.restore(listener);
                return Err(error);
            }
        };
        let pd = changed.pd;
        match listener.change(&mut self.env, section, changed) {
            Some(config) => {
                let entries = self.regions.reassign(&moved, pd);
                self.listeners.restart(&mut self.env, listener, config, entries);
                Ok(true)
            }
            None => {
                self.listeners.restore(listener);
                self.regions.reregister(&mut self.env, &moved, pd);
                Ok(false)
            }
        }
    }

    /// Checks a change and opens its files. Returns the prepared parts, and the regions that must move to the
    /// listener's protection domain.
    fn prepare_change(
        &mut self,
        section: &ListenerSection,
        old: &Listener,
    ) -> Result<(PreparedChange, Vec<String>), ApiError> {
        old.check_change(section)?;
        self.listeners.check_addition(&self.env, section)?;
        if old.changes_service(section) {
            self.regions.check_slots(section)?;
        }
        self.regions.check_files(section)?;
        let (pd, moved) = self.domain_for(section)?;
        let files = open_queue_files(&mut self.env, section, Some(old))?;
        let region = self.divided_region_len(section);
        Ok((PreparedChange { pd, files, region }, moved))
    }
}

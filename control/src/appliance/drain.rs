//! The end: no new streams, jobs and streams end in order, then the workers stop; or at once.

use std::time::Instant;

use dataplane::Command;

use super::core::{Core, Phase};
use crate::api::EventKind;

impl Core {
    /// Ends in order within the configured time. A second call changes nothing.
    pub fn drain(&mut self, now: Instant) {
        if !self.is_running() {
            return;
        }
        let deadline = now + self.config.management.drain_timeout;
        self.phase = Phase::Draining { deadline, asked: false, drained: 0 };
        self.log.push(EventKind::Draining);
        tracing::info!("draining: {} streams, {} jobs", self.streams.len(), self.running_jobs());
        let names: Vec<String> = self.listeners.keys().cloned().collect();
        names.iter().for_each(|name| self.remove_listener(name, None));
        self.drain_step(now);
    }

    /// Ends now: streams are reset.
    pub fn stop(&mut self) {
        if !matches!(self.phase, Phase::Stopping { .. }) {
            self.phase = Phase::Stopping { stopped: 0 };
            self.tell_all(|| Command::Stop);
        }
    }

    /// Jobs have ended: streams may be closed.
    pub(super) fn drain_step(&mut self, now: Instant) {
        let jobs = self.running_jobs();
        if let Phase::Draining { deadline, asked, .. } = &mut self.phase
            && !*asked
            && (jobs == 0 || now >= *deadline)
        {
            *asked = true;
            self.tell_all(|| Command::Drain);
        }
    }

    /// A worker has no stream left.
    pub(super) fn on_drained(&mut self) {
        let workers = self.workers();
        if let Phase::Draining { drained, .. } = &mut self.phase {
            *drained += 1;
            if *drained >= workers {
                self.stop();
            }
        }
    }

    pub(super) fn on_stopped(&mut self) {
        if let Phase::Stopping { stopped } = &mut self.phase {
            *stopped += 1;
        }
    }

    pub(super) fn drain_timeout(&mut self, now: Instant) {
        if let Phase::Draining { deadline, .. } = self.phase
            && now >= deadline
        {
            let left = self.streams.len();
            self.warn(format!("{left} streams did not end in time and are aborted"));
            self.stop();
        }
    }
}

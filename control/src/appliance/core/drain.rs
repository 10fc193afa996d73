//! The end: no new streams, jobs and streams end in order, then the workers stop; or at once. And the operator's drain,
//! which ends nothing: no stream and no job begins until it is taken back.

use std::time::Instant;

use dataplane::{Command, WorkerId};

use super::Core;
use crate::appliance::env::Phase;
use api::{ApiError, EventKind, Reply};
use base::plural::counted_are;

impl Core {
    /// Ends in order within the configured time. A second call changes nothing.
    pub fn drain(&mut self, now: Instant) {
        if !self.env.is_running() {
            return;
        }
        let deadline = now + self.env.facts.config.management.drain_timeout;
        self.env.phase = Phase::Draining { deadline, asked: false, drained: 0 };
        self.env.log.push(EventKind::Draining);
        tracing::info!("draining: {} streams, {} jobs", self.streams.len(), self.jobs.running());
        for name in self.listeners.names() {
            self.listeners.remove(&mut self.env, &name, None);
        }
        self.env.cancel_regions();
        // It would go on until its time is over.
        self.with_jobs(now, |jobs, _, out| jobs.cancel_benches(out));
        self.drain_step(now);
    }

    /// Begins or ends the operator's drain. Again changes nothing.
    pub(super) fn set_drained(&mut self, drained: bool, now: Instant) -> Result<Reply, ApiError> {
        if !self.env.is_running() {
            return Err(ApiError::unavailable("the appliance is ending"));
        }
        if self.env.drained_by_operator != drained {
            self.env.drained_by_operator = drained;
            let left = self.streams.left();
            tracing::info!(
                "{}: {left} streams, {} jobs",
                if drained { "draining, by the operator" } else { "taking new streams again" },
                self.jobs.running()
            );
            self.env.log.push(if drained { EventKind::Draining } else { EventKind::Undrained });
        }
        Ok(Reply::Status(self.status(now)))
    }

    /// The note about the operator's drain.
    pub(super) fn drain_note(&self) -> Option<String> {
        if !self.env.is_running() || !self.env.drained_by_operator {
            return None;
        }
        let left = self.streams.left();
        let streams = counted_are(left, "stream");
        Some(format!(
            "draining: new streams and jobs are refused; {streams} left; `ddpctl undrain` ends it"
        ))
    }

    /// Ends now: streams are reset.
    pub fn stop(&mut self) {
        if !matches!(self.env.phase, Phase::Stopping { .. }) {
            self.env.phase = Phase::Stopping { stopped: 0 };
            self.report_last_use();
            self.env.cancel_regions();
            self.env.command_all(|| Command::Stop);
        }
    }

    /// Jobs have ended: streams may be closed.
    pub(super) fn drain_step(&mut self, now: Instant) {
        let jobs = self.jobs.running();
        if let Phase::Draining { deadline, asked, .. } = &mut self.env.phase
            && !*asked
            && (jobs == 0 || now >= *deadline)
        {
            *asked = true;
            self.env.command_all(|| Command::Drain);
            // The workers leave these to us.
            self.streams.close_stored(&mut self.env);
        }
    }

    /// A worker has no stream left.
    pub(super) fn on_drained(&mut self) {
        let workers = self.env.workers();
        if let Phase::Draining { drained, .. } = &mut self.env.phase {
            *drained += 1;
            if *drained >= workers {
                self.stop();
            }
        }
    }

    pub(super) fn on_stopped(&mut self) {
        if let Phase::Stopping { stopped } = &mut self.env.phase {
            *stopped += 1;
        }
    }

    pub(super) fn drain_timeout(&mut self, now: Instant) {
        if let Phase::Draining { deadline, .. } = self.env.phase
            && now >= deadline
        {
            let left = self.streams.len();
            self.env.warn(format!("{left} streams did not end in time and are aborted"));
            self.stop();
        }
    }

    /// A worker's thread has died of a defect.
    pub(super) fn on_worker_failed(&mut self, worker: WorkerId, message: &str) {
        let message = format!("worker {worker} died: {message}");
        tracing::error!("{message}");
        self.env.log.push(EventKind::Warning { message });
        self.stop();
        // A dead worker answers nothing: it counts as stopped.
        self.on_stopped();
    }
}

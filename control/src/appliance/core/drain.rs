//! Shutdown of the appliance, graceful or immediate, and the operator's drain.
//!
//! A graceful shutdown refuses new streams and waits for the jobs to end. Then the streams are closed, and the workers
//! stop. After `management.drain_timeout` the workers stop at once, which resets the remaining streams. The operator's
//! drain does not end streams or jobs: new ones are refused until the drain is revoked.

use std::time::Instant;

use api::{ApiError, EventKind, Reply};
use base::plural::counted_are;
use dataplane::{Command, WorkerId};

use super::Core;
use crate::appliance::env::Phase;

impl Core {
    /// Starts a graceful shutdown. The jobs and the streams have `management.drain_timeout` to end. Has no effect if
    /// the appliance is already shutting down.
    pub fn drain(&mut self, now: Instant) {
        if !self.env.is_running() {
            return;
        }
        let deadline = now + self.env.context.config.management.drain_timeout;
        self.env.phase = Phase::Draining { deadline, drain_sent: false, drained_workers: 0 };
        self.env.log.push(EventKind::Draining);
        tracing::info!("draining: {} streams, {} jobs", self.streams.len(), self.jobs.running());
        for name in self.listeners.names() {
            self.listeners.remove(&mut self.env, &name, None);
        }
        let actions = self.programs.stop_all_listening(&mut self.env);
        self.apply_stream_actions(actions);
        self.env.cancel_regions();
        // Benches are cancelled, because they would otherwise run for their full duration.
        self.with_jobs(now, |jobs, _, out| jobs.cancel_benches(out));
        self.drain_step(now);
    }

    /// Begins or ends the operator's drain. Has no effect if the drain is already in the requested state. `drained`:
    /// true to begin.
    pub(super) fn set_drained(&mut self, drained: bool, now: Instant) -> Result<Reply, ApiError> {
        if !self.env.is_running() {
            return Err(ApiError::unavailable("the appliance is ending"));
        }
        if self.env.drained_by_operator != drained {
            self.env.drained_by_operator = drained;
            let remaining = self.streams.remaining();
            tracing::info!(
                "{}: {remaining} streams, {} jobs",
                if drained { "draining, by the operator" } else { "taking new streams again" },
                self.jobs.running()
            );
            self.env.log.push(if drained { EventKind::Draining } else { EventKind::Undrained });
        }
        Ok(Reply::Status(self.status(now)))
    }

    /// Returns the note about the operator's drain while it is in force.
    pub(super) fn drain_note(&self) -> Option<String> {
        if !self.env.is_running() || !self.env.drained_by_operator {
            return None;
        }
        let remaining = self.streams.remaining();
        let streams = counted_are(remaining, "stream");
        Some(format!(
            "draining: new streams and jobs are refused; {streams} left; `ddpctl undrain` ends it"
        ))
    }

    /// Stops the workers at once. All streams are reset.
    pub fn stop(&mut self) {
        if !matches!(self.env.phase, Phase::Stopping { .. }) {
            self.env.phase = Phase::Stopping { stopped_workers: 0 };
            self.request_final_sa_usage();
            self.env.cancel_regions();
            self.env.send_to_all(|| Command::Stop);
        }
    }

    /// Commands the workers to close their streams when all jobs have ended, or at the deadline. The command is sent
    /// once.
    pub(super) fn drain_step(&mut self, now: Instant) {
        let jobs = self.jobs.running();
        if let Phase::Draining { deadline, drain_sent, .. } = &mut self.env.phase
            && !*drain_sent
            && (jobs == 0 || now >= *deadline)
        {
            *drain_sent = true;
            self.env.send_to_all(|| Command::Drain);
            // The workers do not close streams whose data must still be written to a file, so the control thread closes
            // these streams.
            self.streams.close_file_writers(&mut self.env);
        }
    }

    /// Counts a worker that has no streams left. Stops the appliance after the last worker.
    pub(super) fn on_drained(&mut self) {
        let workers = self.env.workers();
        if let Phase::Draining { drained_workers: drained, .. } = &mut self.env.phase {
            *drained += 1;
            if *drained >= workers {
                self.stop();
            }
        }
    }

    pub(super) fn on_stopped(&mut self) {
        if let Phase::Stopping { stopped_workers: stopped } = &mut self.env.phase {
            *stopped += 1;
        }
    }

    /// Stops the workers at the deadline of a graceful shutdown, which resets the remaining streams.
    pub(super) fn drain_timeout(&mut self, now: Instant) {
        if let Phase::Draining { deadline, .. } = self.env.phase
            && now >= deadline
        {
            let remaining = self.streams.len();
            self.env.warn(format!("{remaining} streams did not end in time and are aborted"));
            self.stop();
        }
    }

    /// Reports the panic of a worker and stops the appliance.
    pub(super) fn on_worker_failed(&mut self, worker: WorkerId, message: &str) {
        let message = format!("worker {worker} died: {message}");
        tracing::error!("{message}");
        self.env.log.push(EventKind::Warning { message });
        self.stop();
        // A panicked worker does not answer, so it is considered stopped.
        self.on_stopped();
    }
}

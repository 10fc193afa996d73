//! What the appliance is doing, for the service manager.

use super::Core;
use crate::appliance::env::Phase;
use crate::notify::{Stage, State};

impl Core {
    /// What changes seldom and is sent at once: cheap enough for every turn.
    pub fn stage(&self) -> (Stage, u64, bool) {
        let stage = match self.env.phase {
            Phase::Running if self.env.drained_by_operator => Stage::Draining,
            Phase::Running => Stage::Serving,
            Phase::Draining { .. } => Stage::Ending,
            Phase::Stopping { .. } => Stage::Stopping,
        };
        (stage, self.reloads.begun, self.reloads.plan.is_some())
    }

    /// The same with its numbers.
    pub fn state(&self) -> State {
        let (stage, reloads, reloading) = self.stage();
        let (listeners, streams) = (self.listeners.len(), self.streams.left());
        State { stage, listeners, streams, reloads, reloading }
    }
}

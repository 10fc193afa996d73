//! Life-cycle stage of the appliance, for the service manager.

use super::Core;
use crate::appliance::env::Phase;
use crate::notify::{Stage, State};

impl Core {
    /// Returns the stage, the number of reloads, and whether a reload is in progress. Cheap, because every turn calls
    /// it.
    pub fn stage(&self) -> (Stage, u64, bool) {
        let stage = match self.env.phase {
            Phase::Running if self.env.drained_by_operator => Stage::Draining,
            Phase::Running => Stage::Serving,
            Phase::Draining { .. } => Stage::Ending,
            Phase::Stopping { .. } => Stage::Stopping,
        };
        (stage, self.reloads.begun, self.reloads.plan.is_some())
    }

    /// Returns the stage, the numbers of listeners and streams, and the state of reloads.
    pub fn state(&self) -> State {
        let (stage, reloads, reloading) = self.stage();
        let (listeners, streams) = (self.listeners.len(), self.streams.remaining());
        State { stage, listeners, streams, reloads, reloading }
    }
}

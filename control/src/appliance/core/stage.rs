//! Life-cycle stage of the appliance, for the service manager.

use super::Core;
use crate::appliance::env::Phase;
use crate::notify::{Stage, State};

impl Core {
    /// Returns the stage. `Draining` means the operator's drain. When the appliance ends, the stage is `Ending`, then
    /// `Stopping`.
    pub fn stage(&self) -> Stage {
        match self.env.phase {
            Phase::Running if self.env.drained_by_operator => Stage::Draining,
            Phase::Running => Stage::Serving,
            Phase::Draining { .. } => Stage::Ending,
            Phase::Stopping { .. } => Stage::Stopping,
        }
    }

    /// Returns the stage and the state of reloads. The numbers of listeners and streams are 0. Must be cheap, because
    /// it is called in every iteration of the control thread's loop.
    pub fn outline(&self) -> State {
        State {
            stage: self.stage(),
            listeners: 0,
            streams: 0,
            reloads: self.reloads.begun,
            reloading: self.reloads.plan.is_some(),
        }
    }

    /// Returns the stage, the numbers of listeners and streams, and the state of reloads.
    pub fn state(&self) -> State {
        let (listeners, streams) = (self.listeners.len(), self.streams.remaining());
        State { listeners, streams, ..self.outline() }
    }
}

//! Worker state that an endpoint borrows.

use ddp::{BufferPool, HoldBudget, StagTable};

/// State of the worker that an endpoint borrows for one call.
#[derive(Debug)]
pub struct Context<'a, M> {
    /// STags of the worker's memory regions.
    pub stags: &'a StagTable<M>,
    /// Buffers for untagged messages, shared by the worker's streams.
    pub buffers: &'a mut BufferPool,
    /// Budget, in bytes, for data that cannot be delivered yet. The worker's streams and associations share it.
    pub hold: &'a mut HoldBudget,
}

impl<M> Context<'_, M> {
    /// Reborrows the part that a DDP stream needs.
    pub(super) fn reborrow(&mut self) -> ddp::Context<'_, M> {
        ddp::Context { stags: self.stags, buffers: self.buffers }
    }
}

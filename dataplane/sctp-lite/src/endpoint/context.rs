//! What an endpoint borrows of its worker.

use ddp::{BufferPool, HoldBudget, StagTable};

/// The worker's state that an endpoint borrows for one call.
#[derive(Debug)]
pub struct Context<'a, M> {
    /// The worker's STags.
    pub stags: &'a StagTable<M>,
    /// The worker's untagged buffers.
    pub buffers: &'a mut BufferPool,
    /// What the worker's streams and associations may hold that cannot go up yet.
    pub hold: &'a mut HoldBudget,
}

impl<M> Context<'_, M> {
    /// What a stream borrows of it.
    pub(super) fn reborrow(&mut self) -> ddp::Context<'_, M> {
        ddp::Context { stags: self.stags, buffers: self.buffers }
    }
}

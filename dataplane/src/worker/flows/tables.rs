//! The state of a worker that endpoints borrow for one call: STags, receive buffers and budgets. This module also
//! counts the posts and running loads that use each region.

use ddp::{
    Access, BufferPool, HoldBudget, PdId, Stag, StagEntry, StagError, StagTable, StreamId,
    WindowBudget,
};
use hashbrown::HashMap;
use sctp_lite::endpoint::Context as SessionContext;
use tcp_lite::endpoint::Context;

use super::keep_budget::KeepBudget;
use crate::api::{CommandError, Counters, Event, Limits, Ticket};
use crate::memory::Memory;
use crate::worker::link::control::ControlLink;

/// STags, buffers and budgets of one worker.
pub(in crate::worker) struct Tables {
    stags: StagTable<Memory>,
    buffers: BufferPool,
    hold_budget: HoldBudget,
    /// Budget for copies of sent data.
    keep_budget: KeepBudget,
    /// Number of incomplete posts and running loads that use each region as source or sink. Unused regions have no
    /// entry.
    sources: HashMap<Stag, u32>,
    /// Regions already removed from `stags`. Their removal is reported once `sources` has no entry for them.
    removals: Vec<(Stag, Ticket)>,
}

impl Tables {
    pub(in crate::worker) fn new(limits: &Limits) -> Self {
        Tables {
            stags: StagTable::new(),
            buffers: BufferPool::new(limits.untagged_bytes as u64),
            hold_budget: HoldBudget::new(limits.hold_bytes as u64)
                .with_windows(WindowBudget::new(limits.window_bytes as u64)),
            keep_budget: KeepBudget::new(limits.keep_bytes as u64),
            sources: HashMap::new(),
            removals: Vec::new(),
        }
    }

    /// Returns the state that the endpoint of a TCP connection borrows for one call.
    #[inline]
    pub(in crate::worker) fn context(&mut self) -> Context<'_, Memory> {
        Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold_budget }
    }

    /// Returns the state that the endpoint of an SCTP association borrows for one call.
    #[inline]
    pub(in crate::worker) fn session_context(&mut self) -> SessionContext<'_, Memory> {
        SessionContext {
            stags: &self.stags,
            buffers: &mut self.buffers,
            hold: &mut self.hold_budget,
        }
    }

    /// Returns the budget for copies of sent data.
    #[inline]
    pub(in crate::worker) fn keep_budget_mut(&mut self) -> &mut KeepBudget {
        &mut self.keep_budget
    }

    /// Returns the buffer of an untagged message to the pool.
    pub(in crate::worker) fn recycle(&mut self, data: Vec<u8>) {
        self.buffers.recycle(data);
    }

    /// Adds a region.
    ///
    /// # Errors
    /// The STag is in use.
    pub(in crate::worker) fn add_stag(
        &mut self,
        entry: StagEntry<Memory>,
    ) -> Result<(), CommandError> {
        self.stags.insert(entry).map_err(CommandError::Stag)
    }

    pub(in crate::worker) fn stags(&self) -> &StagTable<Memory> {
        &self.stags
    }

    /// Returns the entry of a region; `None` if the STag does not exist.
    pub(in crate::worker) fn stag(&self, stag: Stag) -> Option<&StagEntry<Memory>> {
        self.stags.get(stag)
    }

    /// Returns true if the region belongs to domain `pd` and is bound to a stream.
    pub(in crate::worker) fn is_bound(&self, stag: Stag, pd: PdId) -> bool {
        self.stags.get(stag).is_some_and(|e| e.pd == pd && e.stream.is_some())
    }

    /// Binds a region to a stream, or with `None` to all streams of its domain. Returns the previous value of `stream`,
    /// always within `Some`.
    ///
    /// # Errors
    /// The STag does not exist.
    pub(in crate::worker) fn bind_stag(
        &mut self,
        stag: Stag,
        stream: Option<StreamId>,
    ) -> Result<Option<Option<StreamId>>, CommandError> {
        let before = self.stags.get(stag).map(|entry| entry.stream);
        self.stags.bind(stag, stream).map_err(CommandError::Stag)?;
        Ok(before)
    }

    /// Sets the access rights of peers to a region. Returns the previous rights.
    ///
    /// # Errors
    /// The STag does not exist.
    pub(in crate::worker) fn set_access(
        &mut self,
        stag: Stag,
        access: Access,
    ) -> Result<Access, CommandError> {
        let before = self.stags.get(stag).map_or(Access::NONE, |entry| entry.access);
        self.stags.set_access(stag, access).map_err(CommandError::Stag)?;
        Ok(before)
    }

    /// Removes a region. This worker places no more data in it. Returns its entry.
    ///
    /// # Errors
    /// The STag does not exist.
    pub(in crate::worker) fn remove_stag(
        &mut self,
        stag: Stag,
    ) -> Result<StagEntry<Memory>, CommandError> {
        self.stags.remove(stag).ok_or(CommandError::Stag(StagError::Unknown(stag)))
    }

    /// Increments the number of posts and loads that use the region, when one of them starts.
    pub(in crate::worker) fn add_source(&mut self, stag: Stag) {
        *self.sources.entry(stag).or_insert(0) += 1;
    }

    /// Decrements the number of posts and loads that use the region, when one of them has ended.
    pub(in crate::worker) fn release_source(&mut self, stag: Stag) {
        if let Some(count) = self.sources.get_mut(&stag) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&stag);
            }
        }
    }

    /// Returns true while posts or loads use the region.
    pub(in crate::worker) fn is_source(&self, stag: Stag) -> bool {
        self.sources.contains_key(&stag)
    }

    /// Defers the report of a region's removal until no post or load uses the region.
    pub(in crate::worker) fn defer_removal(&mut self, stag: Stag, ticket: Ticket) {
        self.removals.push((stag, ticket));
    }

    /// Reports the removals of regions that no post or load uses any more.
    pub(in crate::worker) fn finish_removals(&mut self, control: &mut ControlLink) {
        let sources = &self.sources;
        self.removals.retain(|&(stag, ticket)| {
            let waits = sources.contains_key(&stag);
            if !waits {
                control.send(Event::Done { ticket, result: Ok(()) });
            }
            waits
        });
    }

    /// Publishes the memory gauges.
    pub(in crate::worker) fn publish(&self, counters: &Counters) {
        counters.memory.untagged_bytes.set(self.buffers.in_use());
        counters.memory.untagged_bytes_max.set(self.buffers.high_water());
        counters.memory.untagged_refused_full.set(self.buffers.refused_full());
        counters.memory.untagged_refused_share.set(self.buffers.refused_share());
        counters.memory.held_bytes.set(self.hold_budget.used());
        counters.memory.held_bytes_max.max(self.hold_budget.used());
        counters.memory.kept_bytes.set(self.keep_budget.used());
        counters.memory.kept_bytes_max.set(self.keep_budget.high_water());
        counters.memory.window_bytes.set(self.hold_budget.windows().used());
        counters.memory.window_refusals.set(self.hold_budget.windows().refused());
    }
}

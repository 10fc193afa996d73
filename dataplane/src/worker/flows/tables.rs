//! The worker's state that the endpoints of its streams borrow while they run: STags, buffers and budgets; and which regions
//! unacknowledged messages are sent from.

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

/// The tables of one worker.
pub(in crate::worker) struct Tables {
    stags: StagTable<Memory>,
    buffers: BufferPool,
    hold_budget: HoldBudget,
    /// For what streams keep of what they have sent.
    keep_budget: KeepBudget,
    /// Unacknowledged messages by the region that they are sent from.
    sources: HashMap<Stag, u32>,
    /// Regions that are gone from the table and wait for `sources`.
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

    /// What a connection's endpoint borrows for one call.
    #[inline]
    pub(in crate::worker) fn context(&mut self) -> Context<'_, Memory> {
        Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold_budget }
    }

    /// What an association's endpoint borrows for one call.
    #[inline]
    pub(in crate::worker) fn session_context(&mut self) -> SessionContext<'_, Memory> {
        SessionContext {
            stags: &self.stags,
            buffers: &mut self.buffers,
            hold: &mut self.hold_budget,
        }
    }

    /// The budget for what streams keep of what they have sent.
    #[inline]
    pub(in crate::worker) fn keep_budget_mut(&mut self) -> &mut KeepBudget {
        &mut self.keep_budget
    }

    /// Returns the buffer of an untagged message.
    pub(in crate::worker) fn recycle(&mut self, data: Vec<u8>) {
        self.buffers.recycle(data);
    }

    /// Adds a region.
    ///
    /// # Errors
    /// Its STag is in use.
    pub(in crate::worker) fn add_stag(
        &mut self,
        entry: StagEntry<Memory>,
    ) -> Result<(), CommandError> {
        self.stags.insert(entry).map_err(CommandError::Stag)
    }

    /// The entry of a region.
    pub(in crate::worker) fn stag(&self, stag: Stag) -> Option<&StagEntry<Memory>> {
        self.stags.get(stag)
    }

    /// True when the region is bound to one stream, of this domain.
    pub(in crate::worker) fn is_bound(&self, stag: Stag, pd: PdId) -> bool {
        self.stags.get(stag).is_some_and(|e| e.pd == pd && e.stream.is_some())
    }

    /// Binds a region to a stream, or to none; returns what it was bound to before.
    ///
    /// # Errors
    /// There is none.
    pub(in crate::worker) fn bind_stag(
        &mut self,
        stag: Stag,
        stream: Option<StreamId>,
    ) -> Result<Option<Option<StreamId>>, CommandError> {
        let before = self.stags.get(stag).map(|entry| entry.stream);
        self.stags.bind(stag, stream).map_err(CommandError::Stag)?;
        Ok(before)
    }

    /// Changes what peers may do with a region; returns what they might do before.
    ///
    /// # Errors
    /// There is none.
    pub(in crate::worker) fn set_access(
        &mut self,
        stag: Stag,
        access: Access,
    ) -> Result<Access, CommandError> {
        let before = self.stags.get(stag).map_or(Access::NONE, |entry| entry.access);
        self.stags.set_access(stag, access).map_err(CommandError::Stag)?;
        Ok(before)
    }

    /// Removes a region. From here on nothing is placed in it by this worker.
    ///
    /// # Errors
    /// There is none.
    pub(in crate::worker) fn remove_stag(&mut self, stag: Stag) -> Result<(), CommandError> {
        match self.stags.remove(stag) {
            Some(_) => Ok(()),
            None => Err(CommandError::Stag(StagError::Unknown(stag))),
        }
    }

    /// Another message is being sent from a region.
    pub(in crate::worker) fn add_source(&mut self, stag: Stag) {
        *self.sources.entry(stag).or_insert(0) += 1;
    }

    /// One message less is being sent from a region.
    pub(in crate::worker) fn release_source(&mut self, stag: Stag) {
        if let Some(count) = self.sources.get_mut(&stag) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&stag);
            }
        }
    }

    /// True when messages are being sent from a region.
    pub(in crate::worker) fn is_source(&self, stag: Stag) -> bool {
        self.sources.contains_key(&stag)
    }

    /// The removal of a region is answered when no message is being sent from it any more.
    pub(in crate::worker) fn defer_removal(&mut self, stag: Stag, ticket: Ticket) {
        self.removals.push((stag, ticket));
    }

    /// Answers the removals of regions whose last message is done.
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

    /// Sets the gauges.
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

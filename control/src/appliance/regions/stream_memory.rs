//! STags that are valid on one stream only: slots of a listener's region, and memory of jobs.

use api::ApiError;
use config::{ListenerSection, unsaved_writes};
use dataplane::memory::Memory;
use dataplane::{Command, SourceRemoval};
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};

use super::{Region, Regions};
use crate::appliance::env::Env;
use crate::appliance::loader::LoadTask;
use crate::appliance::pending::{Continuation, Loading, ReservedSlot, SinkOwner, TakenSlot};
use crate::service;
use crate::service::Slot;

/// Memory that is registered for one stream of a job: sink of a get, source or sink of a bench, or buffers of a ping.
pub(in crate::appliance) struct Sink {
    pub owner: SinkOwner,
    pub stream: StreamId,
    pub pd: PdId,
    pub memory: Memory,
    /// Offset of the first registered byte in `memory`.
    pub offset: u64,
    /// Tagged offset of this byte.
    pub base_to: u64,
    /// Number of registered bytes.
    pub len: u64,
    pub access: Access,
}

impl Regions {
    /// Refuses a listener that would divide a region into slots while streams use the region.
    pub(in crate::appliance) fn check_slots(
        &self,
        section: &ListenerSection,
    ) -> Result<(), ApiError> {
        match section.regions.iter().find(|name| self.user_count(name) > 0) {
            Some(region) if section.has_slots() => Err(ApiError::conflict(format!(
                "listener `{}`: region `{region}` is in use by streams that share it: close them first",
                section.name
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a listener that lists a file-backed region whose file would not receive the peers' Writes.
    pub(in crate::appliance) fn check_files(
        &self,
        section: &ListenerSection,
    ) -> Result<(), ApiError> {
        let named = section.regions.iter().filter_map(|name| self.regions.get(name));
        match named.filter_map(|region| unsaved_writes(section, &region.section)).next() {
            Some(why) => {
                Err(ApiError::bad_request(format!("listener `{}`: regions: {why}", section.name)))
            }
            None => Ok(()),
        }
    }

    /// Registers a reserved slot of the listener's region for a new stream. The commands are queued; the stream is
    /// accepted when all workers have answered.
    ///
    /// # Errors
    /// Returns one sentence if no STag is available, or the region was removed or its access reduced. The caller frees
    /// the slot.
    pub(in crate::appliance) fn bind_slot(
        &mut self,
        env: &mut Env,
        reserved: ReservedSlot,
        stream: StreamId,
        pd: PdId,
    ) -> Result<TakenSlot, String> {
        let ReservedSlot { listener, number, slot_len: len, kind, region: name } = reserved;
        let stag = env.stags.allocate().map_err(|error| error.to_string())?;
        let Some(region) = self.regions.get_mut(&name).filter(|region| region.is_live()) else {
            env.stags.release(stag);
            return Err(format!("region `{name}` was removed"));
        };
        if region.access != Region::max_access(&region.section) {
            env.stags.release(stag);
            return Err(format!("region `{name}` has less access than it was registered with"));
        }
        region.users.insert(stream);
        region.slots += 1;
        let offset = u64::from(number) * len;
        let access = service::slot_access(kind);
        let memory = region.memory.clone();
        let entry = StagEntry {
            stag,
            pd,
            stream: Some(stream),
            base_to: TaggedOffset(offset),
            len,
            access,
            memory: memory.clone(),
            memory_offset: offset,
        };
        env.broadcast(Continuation::Bound { stream }, |ticket| Command::AddStag {
            entry: entry.clone(),
            ticket,
        });
        let slot = Slot { stag, to: offset, len };
        Ok(TakenSlot { number, slot, listener, memory, region: name, stream })
    }

    /// Revokes the STag of a slot whose stream has ended. The slot is cleared afterwards.
    pub(in crate::appliance) fn release_slot(&self, env: &mut Env, taken: TakenSlot) {
        let (stag, sources) = (taken.slot.stag, SourceRemoval::Wait);
        env.broadcast(Continuation::SlotFreed { taken }, |ticket| Command::RemoveStag {
            stag,
            removal: sources,
            ticket,
        });
    }

    pub(in crate::appliance) fn on_slot_freed(&mut self, env: &mut Env, taken: TakenSlot) {
        let Slot { stag, to, len } = taken.slot;
        env.stags.release(stag);
        let bytes = to..to.saturating_add(len);
        env.load(LoadTask::Clear(vec![(taken.memory.clone(), bytes)]), Loading::ClearSlot(taken));
    }

    /// Returns true if the slot can be used by another stream: clearing it has succeeded.
    pub(in crate::appliance) fn on_slot_cleared(
        &mut self,
        env: &mut Env,
        taken: &TakenSlot,
        result: Result<(), String>,
    ) -> bool {
        if let Err(reason) = result {
            env.warn(format!(
                "region {}: a stream's slot cannot be used again: {reason}",
                taken.region
            ));
            return false;
        }
        if let Some(region) = self.regions.get_mut(&taken.region) {
            region.users.remove(&taken.stream);
            region.slots = region.slots.saturating_sub(1);
        }
        true
    }

    /// Returns the memory of the region, if `total` bytes fit at `offset`.
    pub(in crate::appliance) fn sink_memory(
        &self,
        name: &str,
        offset: u64,
        total: u64,
    ) -> Result<Memory, ApiError> {
        let region = self.live(name)?;
        match offset.checked_add(total) {
            Some(end) if end <= region.len => Ok(region.memory.clone()),
            _ => Err(ApiError::bad_request(format!(
                "{total} bytes at offset {offset} do not fit into region `{name}` of {} bytes",
                region.len
            ))),
        }
    }

    /// Registers memory with the workers, for one job on one stream.
    pub(in crate::appliance) fn add_sink(
        &mut self,
        env: &mut Env,
        sink: Sink,
    ) -> Result<Stag, ApiError> {
        let Sink { owner: of, stream, pd, memory, offset, base_to, len, access } = sink;
        let stag = env.stags.allocate().map_err(|e| ApiError::internal(e.to_string()))?;
        let entry = StagEntry {
            stag,
            pd,
            stream: Some(stream),
            base_to: TaggedOffset(base_to),
            len,
            access,
            memory,
            memory_offset: offset,
        };
        env.broadcast(Continuation::SinkReady(of), |ticket| Command::AddStag {
            entry: entry.clone(),
            ticket,
        });
        Ok(stag)
    }

    /// Revokes the STag of a sink on all workers.
    pub(in crate::appliance) fn remove_sink(&self, env: &mut Env, stag: Stag) {
        let sources = SourceRemoval::Wait;
        env.broadcast(Continuation::SinkRemoved { stag }, |ticket| Command::RemoveStag {
            stag,
            removal: sources,
            ticket,
        });
    }

    /// Releases the STag of a sink that all workers have removed.
    pub(in crate::appliance) fn on_sink_removed(&self, env: &mut Env, stag: Stag) {
        env.stags.release(stag);
    }
}

//! Protection domains and memory regions of a program.
//!
//! ```text
//!   Adding --all workers have the region--> Active --deregistration--> Checking --no window is bound--> Removing
//!   Removing --all workers have removed the region, and its memory is free--> answered
//! ```
//!
//! If a worker refuses the registration, the region changes from Adding to Removing. If a window is bound to the
//! region, the deregistration is refused, and the region returns from Checking to Active. If the program has no
//! windows, the deregistration changes the region from Active to Removing at once. The end of the program changes
//! the region from any state to Removing.

use dataplane::{Command, ProgramId, SourceRemoval};
use ddp::{Access, Stag, StagEntry, TaggedOffset};
use verbs_session::message::{Answer, MemoryAccess, Refusal, RefusalKind};

use super::prepare::Registration;
use super::program::{Domain, Region, RegionPhase};
use super::{Programs, check_unused, in_use, limit, no_memory, refusal};
use crate::appliance::env::Env;
use crate::appliance::notes::Cause;
use crate::appliance::pending::{Continuation, ProgramStep};

impl Programs {
    pub(super) fn create_pd(&mut self, id: ProgramId, request: u32) -> Result<(), Refusal> {
        if self.open(id)?.domains.is_full() {
            return Err(refusal(RefusalKind::Limit, "the program has all protection domains"));
        }
        let domain = Domain { id: self.domains.allocate(), users: 0 };
        let program = self.open(id)?;
        if let Some(number) = program.domains.insert(domain) {
            program.reply(request, Ok(Answer::Created { number }));
        }
        Ok(())
    }

    pub(super) fn remove_pd(
        &mut self,
        id: ProgramId,
        request: u32,
        pd: u32,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        check_unused(
            program.domain(pd)?.users,
            format_args!("protection domain {pd} has memory regions, memory windows or QPs"),
        )?;
        let removed = program.domains.remove(pd);
        program.reply(request, Ok(Answer::Done));
        if let Some(domain) = removed {
            self.domains.release(domain.id);
        }
        Ok(())
    }

    /// Registers a memory region with all workers. Its memory is mapped already.
    pub(super) fn register(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        registration: Registration,
    ) -> Result<(), Refusal> {
        let Registration { pd, address, len, offset, access, memory, key } = registration;
        let most = self.settings().map_or(0, |settings| settings.memory_regions);
        let program = self.open(id)?;
        let domain = program.domain(pd)?.id;
        if program.regions.len() >= most as usize {
            return Err(limit("memory_regions", most));
        }
        let stag = env.stags.allocate().map_err(no_memory)?;
        let phase = RegionPhase::Adding;
        let region = Region { pd, key, len, phase, is_removed: false, is_freed: false };
        program.regions.insert(stag, region);
        program.count_domain_user(pd, true);
        if !memory.is_locked() {
            let statement = memory.statements().first().cloned().unwrap_or_default();
            let sentence = format!("program {} ({}): {statement}", id.0, program.name);
            env.notes.set(Cause::ProgramMemory(id), sentence, None);
        }
        self.keys.insert(key, (id, stag));
        let entry = StagEntry {
            stag,
            pd: domain,
            stream: None,
            base_to: TaggedOffset(address),
            len,
            access: rights(access),
            memory,
            memory_offset: offset,
        };
        let then = Continuation::Program(id, ProgramStep::Registered { stag, request });
        env.broadcast(then, |ticket| Command::AddStag { entry: entry.clone(), ticket });
        Ok(())
    }

    pub(super) fn on_registered(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        stag: Stag,
        request: u32,
        result: Result<(), String>,
    ) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some(region) = program.regions.get_mut(&stag) else { return };
        // The program may have ended before the workers answered.
        if region.phase != RegionPhase::Adding {
            return;
        }
        match result {
            Ok(()) => {
                region.phase = RegionPhase::Active;
                program.reply(request, Ok(Answer::Registered { stag: stag.0 }));
            }
            Err(reason) => {
                env.warn(format!("program {}: memory is not registered: {reason}", id.0));
                program.reply(request, Err(no_memory(reason)));
                self.remove_region(env, id, stag, SourceRemoval::Abort, None);
            }
        }
    }

    pub(super) fn deregister(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        stag: Stag,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let has_windows = !program.windows.is_empty();
        let region = program.region(stag)?;
        if !has_windows {
            self.remove_region(env, id, stag, SourceRemoval::Wait, Some(request));
            return Ok(());
        }
        region.phase = RegionPhase::Checking { request };
        let then = Continuation::Program(id, ProgramStep::RegionChecked { stag, request });
        env.broadcast(then, |ticket| Command::CheckRegion { stag, ticket });
        Ok(())
    }

    /// Removes a region, unless memory windows are bound to it. A window that a QP binds after this check becomes
    /// invalid with the region.
    pub(super) fn on_region_checked(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        stag: Stag,
        request: u32,
        result: Result<(), String>,
    ) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some(region) = program.regions.get_mut(&stag) else { return };
        // The program may have ended before the workers answered.
        if region.phase != (RegionPhase::Checking { request }) {
            return;
        }
        match result {
            Ok(()) => self.remove_region(env, id, stag, SourceRemoval::Wait, Some(request)),
            Err(reason) => {
                region.phase = RegionPhase::Active;
                program.reply(request, Err(in_use(reason)));
            }
        }
    }

    /// Removes a memory region from all workers. `request`: the call to answer when its memory is free.
    pub(super) fn remove_region(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        stag: Stag,
        removal: SourceRemoval,
        request: Option<u32>,
    ) {
        let program = self.programs.get_mut(&id);
        let Some(region) = program.and_then(|program| program.regions.get_mut(&stag)) else {
            return;
        };
        region.phase = RegionPhase::Removing { request };
        let then = Continuation::Program(id, ProgramStep::Deregistered { stag });
        env.broadcast(then, |ticket| Command::RemoveStag { stag, removal, ticket });
    }

    /// Records that no worker accepts the STag any longer. Workers that did not have the STag have also answered.
    pub(super) fn on_region_removed(&mut self, env: &mut Env, id: ProgramId, stag: Stag) {
        let program = self.programs.get_mut(&id);
        if let Some(region) = program.and_then(|program| program.regions.get_mut(&stag)) {
            region.is_removed = true;
            self.finish_region(env, id, stag);
        }
    }

    /// Records that the memory of a region is free: its last handle was dropped.
    pub(in crate::appliance) fn on_freed(&mut self, env: &mut Env, key: u64) {
        // A region that the control thread refused to register has no entry.
        let Some(&(id, stag)) = self.keys.get(&key) else { return };
        let program = self.programs.get_mut(&id);
        if let Some(region) = program.and_then(|program| program.regions.get_mut(&stag)) {
            region.is_freed = true;
            self.finish_region(env, id, stag);
        }
    }

    /// Removes a memory region from the table, if the workers have removed it and its memory is free. Answers the call
    /// that removes it, if there is one.
    fn finish_region(&mut self, env: &mut Env, id: ProgramId, stag: Stag) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some(region) = program.regions.get(&stag) else { return };
        if !region.is_removed || !region.is_freed {
            return;
        }
        let &Region { pd, key, phase, .. } = region;
        program.regions.remove(&stag);
        program.count_domain_user(pd, false);
        self.keys.remove(&key);
        env.stags.release(stag);
        if let RegionPhase::Removing { request: Some(request) } = phase {
            program.reply(request, Ok(Answer::Done));
        }
        self.finish(env, id);
    }
}

/// Returns the access rights of peers.
fn rights(access: MemoryAccess) -> Access {
    let MemoryAccess { local_write: _, remote_write, remote_read, remote_atomic } = access;
    let rights = [
        (remote_write, Access::REMOTE_WRITE),
        (remote_read, Access::REMOTE_READ),
        (remote_atomic, Access::ATOMIC),
    ];
    let granted = rights.into_iter().filter(|(is_granted, _)| *is_granted);
    granted.fold(Access::NONE, |all, (_, right)| all | right)
}

//! Descriptions of the programs for the API, and the counts of their objects.

use api::{ApiError, ProgramInfo};
use dataplane::ProgramId;

use super::Programs;
use super::program::{ListenerPhase, PairState, Program, State};
use crate::appliance::counters::ProgramCounts;
use crate::appliance::env::Env;

impl Programs {
    pub(in crate::appliance) fn counts(&self) -> ProgramCounts {
        let mut counts = ProgramCounts { tally: self.tally, ..ProgramCounts::default() };
        for program in self.programs.values() {
            counts.programs += 1;
            counts.queue_pairs += program.pairs.len() as u64;
            counts.memory_regions += program.regions.len() as u64;
            counts.memory += program.share.bytes();
        }
        counts
    }

    pub(in crate::appliance) fn infos(&self, env: &Env) -> Vec<ProgramInfo> {
        self.programs.values().map(|program| info(program, env)).collect()
    }

    pub(in crate::appliance) fn info(&self, env: &Env, id: u32) -> Result<ProgramInfo, ApiError> {
        let program = self.programs.get(&ProgramId(id));
        let program =
            program.ok_or_else(|| ApiError::not_found(format!("there is no program {id}")))?;
        Ok(info(program, env))
    }
}

fn info(program: &Program, env: &Env) -> ProgramInfo {
    let state = match program.state {
        State::Attaching { .. } => "attaching",
        State::Open => "attached",
        State::Ending { .. } => "ending",
    };
    let pairs = program.pairs.iter().filter(|(_, p)| matches!(p.state, PairState::Connected(_)));
    // Peers can connect once all workers have added the listener.
    let active = program.listeners.iter().filter(|(_, l)| l.phase == ListenerPhase::Active);
    let listeners =
        active.map(|(_, listener)| format!("{} {}", listener.transport.as_str(), listener.local));
    ProgramInfo {
        id: program.id.0,
        name: program.name.clone(),
        uid: program.uid,
        pid: program.pid,
        state: state.into(),
        seconds: env.now.saturating_duration_since(program.since).as_secs_f64(),
        queue_pairs: program.pairs.len() as u32,
        connections: pairs.count() as u32,
        completion_queues: program.queues.len() as u32,
        memory_regions: program.regions.len() as u32,
        registered: program.regions.values().map(|region| region.len).sum(),
        memory: program.share.bytes(),
        listeners: listeners.collect(),
        requests: program.requests.len() as u32,
    }
}

//! The end of a program, after its session has ended or when the operator ends it.
//!
//! The workers receive commands that remove the listeners, then the program with its QPs and CQs, then its STags. The
//! caller then resets the streams. The program leaves the table when the workers have answered and its memory is free.

use api::EventKind;
use dataplane::{Command, ProgramId, SourceRemoval};
use ddp::Stag;

use super::program::{RegionPhase, State};
use super::{Programs, StreamAction, StreamUse, is_stopping};
use crate::appliance::env::Env;
use crate::appliance::notes::Cause;
use crate::appliance::pending::{Continuation, ProgramStep};

/// Reason with which the program's streams are reset.
const REASON: &str = "its program has ended";

impl Programs {
    /// Ends a program, unless it is ending already. Returns the changes of streams for the caller to apply.
    pub(in crate::appliance) fn end(&mut self, env: &mut Env, id: ProgramId) -> Vec<StreamAction> {
        let mut actions = Vec::new();
        let Some(program) = self.programs.get_mut(&id) else { return actions };
        program.outbox.close();
        if matches!(program.state, State::Ending { .. }) {
            return actions;
        }
        program.state = State::Ending { is_removed: false };
        let regions: Vec<Stag> = program
            .regions
            .iter()
            .filter(|(_, region)| !matches!(region.phase, RegionPhase::Removing { .. }))
            .map(|(&stag, _)| stag)
            .collect();
        let streams: Vec<_> = program.pairs.iter().filter_map(|(_, pair)| pair.stream()).collect();
        self.remove_listeners(env, id);
        self.drop_requests(id, None, REASON, &mut actions);
        let program = id;
        let then = Continuation::Program(id, ProgramStep::Removed);
        env.broadcast(then, |ticket| Command::RemoveProgram { program, ticket });
        for stream in streams {
            if matches!(self.streams.remove(&stream), Some(StreamUse::Pair { .. })) {
                actions.push(StreamAction::Abort(stream, REASON));
            }
        }
        for stag in regions {
            self.remove_region(env, id, stag, SourceRemoval::Abort, None);
        }
        if is_stopping(env) {
            // The workers are stopping and do not answer.
            if let Some(program) = self.programs.remove(&id) {
                env.context.audit.program_ended(program.audited());
            }
        }
        actions
    }

    /// Handles the workers' answers to the removal of a program. No worker uses its queues any more, so they are freed.
    pub(super) fn on_removed(&mut self, env: &mut Env, id: ProgramId) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        program.state = State::Ending { is_removed: true };
        drop((program.pairs.take_all(), program.queues.take_all(), program.channels.take_all()));
        drop(program.shared_queues.take_all());
        for (window, _) in program.windows.drain() {
            env.stags.release_window(window.0);
        }
        self.finish(env, id);
    }

    /// Removes a program from the table, if all workers have removed it and it has no regions or listeners left.
    pub(super) fn finish(&mut self, env: &mut Env, id: ProgramId) {
        let Some(program) = self.programs.get(&id) else { return };
        let is_removed = matches!(program.state, State::Ending { is_removed: true });
        if !is_removed || !program.regions.is_empty() || !program.listeners.is_empty() {
            return;
        }
        if let Some(mut program) = self.programs.remove(&id) {
            for domain in program.domains.take_all() {
                self.domains.release(domain.id);
            }
            self.tally.ended += 1;
            env.notes.clear(&Cause::ProgramLimit(id));
            env.notes.clear(&Cause::ProgramMemory(id));
            env.context.audit.program_ended(program.audited());
            env.log.push(EventKind::ProgramEnded { program: id.0, name: program.name });
        }
    }
}

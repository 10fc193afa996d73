//! Memory windows of a program. The QPs bind and invalidate windows at their workers. Only bindings of type 1 windows,
//! which all workers need, pass through the control thread.

use dataplane::{Command, ProgramId, QueuePairId, WindowChange, WindowId};
use ddp::Stag;
use verbs_layout::work::WindowBind;
use verbs_session::message::{Answer, Refusal, WindowKind};

use super::program::{Window, WindowPhase};
use super::{Programs, no_memory};
use crate::appliance::env::Env;
use crate::appliance::pending::{Continuation, ProgramStep};

impl Programs {
    /// Adds an unbound window at all workers.
    pub(super) fn allocate_window(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        pd: u32,
        kind: WindowKind,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let domain = program.domain(pd)?.id;
        let hold = program.share.take(&env.budget, 0, 1)?;
        let window = WindowId(env.stags.allocate_window().map_err(no_memory)?);
        let kind = match kind {
            WindowKind::One => dataplane::WindowKind::One,
            WindowKind::Two => dataplane::WindowKind::Two,
        };
        let phase = WindowPhase::Adding;
        program.windows.insert(window, Window { pd, kind, phase, _hold: hold });
        program.count_domain_user(pd, true);
        let change = WindowChange::Add { window, pd: domain, kind };
        let then = Continuation::Program(id, ProgramStep::WindowAdded { window, request });
        env.broadcast(then, |ticket| Command::Window { program: id, change, ticket });
        Ok(())
    }

    pub(super) fn on_window_added(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        window: WindowId,
        request: u32,
        result: Result<(), String>,
    ) {
        let Ok(program) = self.open(id) else { return };
        let Some(added) = program.windows.get_mut(&window) else { return };
        match result {
            Ok(()) => {
                added.phase = WindowPhase::Active;
                program.reply(request, Ok(Answer::Window { stag: window.stag(0).0 }));
            }
            Err(reason) => {
                program.reply(request, Err(no_memory(reason)));
                self.remove_window(env, id, window, None);
            }
        }
    }

    /// Removes a window, bound or not.
    pub(super) fn deallocate_window(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        stag: Stag,
    ) -> Result<(), Refusal> {
        let window = WindowId::of(stag);
        self.open(id)?.window(stag)?;
        self.remove_window(env, id, window, Some(request));
        Ok(())
    }

    fn remove_window(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        window: WindowId,
        request: Option<u32>,
    ) {
        let program = self.programs.get_mut(&id);
        let Some(removed) = program.and_then(|program| program.windows.get_mut(&window)) else {
            return;
        };
        removed.phase = WindowPhase::Removing;
        let change = WindowChange::Remove { window };
        let then = Continuation::Program(id, ProgramStep::WindowRemoved { window, request });
        env.broadcast(then, |ticket| Command::Window { program: id, change, ticket });
    }

    pub(super) fn on_window_removed(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        window: WindowId,
        request: Option<u32>,
    ) {
        let Ok(program) = self.open(id) else { return };
        if let Some(removed) = program.windows.remove(&window) {
            program.count_domain_user(removed.pd, false);
            env.stags.release_window(window.0);
        }
        if let Some(request) = request {
            program.reply(request, Ok(Answer::Done));
        }
    }

    /// Binds a type 1 window at all workers, because a QP has requested it.
    pub(super) fn bind_window(
        &mut self,
        env: &mut Env,
        pair: QueuePairId,
        sequence: u32,
        bind: WindowBind,
    ) {
        let QueuePairId { program: id, number } = pair;
        let Ok(program) = self.open(id) else { return };
        let window = program.window(Stag(bind.window));
        if !window.is_ok_and(|window| window.kind == dataplane::WindowKind::One) {
            return self.on_window_bound(env, id, number, sequence, false);
        }
        let step = ProgramStep::WindowBound { pair: number, sequence };
        let change = WindowChange::Bind(bind);
        let then = Continuation::Program(id, step);
        env.broadcast(then, |ticket| Command::Window { program: id, change, ticket });
    }

    /// Reports to the worker of a QP that all workers have answered its request to bind a window. `sequence`: number
    /// that the worker gave the request. `is_bound`: true if all workers have bound the window.
    pub(super) fn on_window_bound(
        &self,
        env: &mut Env,
        program: ProgramId,
        number: u32,
        sequence: u32,
        is_bound: bool,
    ) {
        let pair = self.programs.get(&program).and_then(|program| program.pairs.get(number));
        if let Some(worker) = pair.and_then(|pair| pair.worker) {
            let id = QueuePairId { program, number };
            env.send_command(worker.0, Command::WindowBound { id, sequence, is_bound });
        }
    }
}

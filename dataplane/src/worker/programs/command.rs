//! Commands about programs: registration and removal of programs, CQs and QPs, and the link of a QP to its stream.

use base::Instant;
use ddp::{Stag, StreamId};
use tcp_lite::endpoint::UlpConfig;

use super::Program;
use super::pair::QueuePair;
use super::removal::Revocation;
use super::windows::Binding;
use crate::api::{
    CommandError, CompletionQueueConfig, MAX_QUEUE_PAIRS, ProgramConfig, ProgramId,
    QueuePairConfig, QueuePairError, QueuePairId, Ticket, WindowChange, WindowId,
};
use crate::io::PortIo;
use crate::worker::flows::conn::{Conn, PairRef, Stream};
use crate::worker::{Core, Env};

impl<Io: PortIo> Core<Io> {
    /// Adds a program.
    ///
    /// # Errors
    /// A program with this id exists.
    pub(in crate::worker) fn add_program(
        &mut self,
        config: ProgramConfig,
    ) -> Result<(), CommandError> {
        let programs = &mut self.env.programs;
        if programs.find(config.id).is_some() {
            return Err(CommandError::Program);
        }
        let program = Some(Box::new(Program::new(config)));
        match programs.programs.iter_mut().find(|entry| entry.is_none()) {
            Some(entry) => *entry = program,
            None => programs.programs.push(program),
        }
        Ok(())
    }

    /// Begins to remove a program with its queues. The following turns reset its streams and unbind its windows, and
    /// then report to the control thread that the command with `ticket` is done.
    ///
    /// # Errors
    /// The program does not exist.
    pub(in crate::worker) fn remove_program(
        &mut self,
        id: ProgramId,
        ticket: Ticket,
    ) -> Result<(), CommandError> {
        let program = self.env.programs.get_mut(id).ok_or(CommandError::Program)?;
        program.removal = Some(ticket);
        Ok(())
    }

    /// Adds a completion queue.
    ///
    /// # Errors
    /// The program does not exist, or the number of the CQ is in use or too high.
    pub(in crate::worker) fn add_completion_queue(
        &mut self,
        config: CompletionQueueConfig,
    ) -> Result<(), CommandError> {
        let program = self.env.programs.get_mut(config.program).ok_or(CommandError::Program)?;
        program.completions.add(config)
    }

    /// Removes a completion queue that no QP uses.
    ///
    /// # Errors
    /// The program or the queue does not exist, or the queue is in use.
    pub(in crate::worker) fn remove_completion_queue(
        &mut self,
        program: ProgramId,
        number: u32,
    ) -> Result<(), CommandError> {
        let program = self.env.programs.get_mut(program).ok_or(CommandError::Program)?;
        program.completions.remove(number)
    }

    /// Adds a QP.
    ///
    /// # Errors
    /// The program or a CQ does not exist, a CQ has failed, or the number of the QP is in use or too high.
    pub(in crate::worker) fn add_queue_pair(
        &mut self,
        config: QueuePairConfig,
    ) -> Result<(), CommandError> {
        let number = config.id.number as usize;
        let program = self.env.programs.get_mut(config.id.program).ok_or(CommandError::Program)?;
        let is_used = program.pairs.get(number).is_some_and(Option::is_some);
        if number >= MAX_QUEUE_PAIRS as usize || is_used {
            return Err(CommandError::QueuePair);
        }
        let pair = QueuePair::new(config);
        program.completions.acquire(pair.completion_queues())?;
        if program.pairs.len() <= number {
            program.pairs.resize_with(number + 1, || None);
        }
        program.pairs[number] = Some(Box::new(pair));
        self.count_queue_pairs(1);
        Ok(())
    }

    /// Removes a QP. Its stream is reset.
    ///
    /// # Errors
    /// The program or the QP does not exist.
    pub(in crate::worker) fn remove_queue_pair(
        &mut self,
        id: QueuePairId,
    ) -> Result<(), CommandError> {
        let program = self.env.programs.get_mut(id.program).ok_or(CommandError::Program)?;
        let entry = program.pairs.get_mut(id.number as usize);
        let pair = entry.and_then(Option::take).ok_or(CommandError::QueuePair)?;
        program.completions.release(pair.completion_queues());
        program.windows.release_pair(id.number, &mut self.env.tables);
        self.abandon_pair(&pair);
        self.count_queue_pairs(-1);
        Ok(())
    }

    /// Ends a QP whose program no longer waits for a connection. Its present and later posts are flushed. Ignores QPs
    /// that do not exist.
    pub(in crate::worker) fn end_queue_pair(&mut self, id: QueuePairId) {
        let Some(index) = self.env.programs.find(id.program) else { return };
        let Some(mut program) = self.env.programs.take(index) else { return };
        if let Some(Some(pair)) = program.pairs.get_mut(id.number as usize)
            && !pair.ended
        {
            self.abandon_pair(pair);
            program.windows.release_pair(id.number, &mut self.env.tables);
            pair.end(&mut program.completions);
            program.make_ready(id.number);
        }
        self.env.programs.restore(index, program);
    }

    /// Links a new stream to its QP.
    ///
    /// # Errors
    /// The QP does not exist, has ended, or has a stream.
    pub(in crate::worker) fn bind_pair(
        &mut self,
        id: QueuePairId,
        stream: StreamId,
    ) -> Result<(), CommandError> {
        let found = self.env.programs.find_unconnected(id).ok_or(CommandError::QueuePair)?;
        let (bound, env) = self.find(stream).ok_or(CommandError::QueuePair)?;
        bound.conn.transient.pair = Some(found);
        if let Some((program, number)) = env.programs.pair_mut(found) {
            if let Some(pair) = program.pair(number) {
                pair.stream = Some(stream);
            }
            program.make_ready(number);
        }
        Ok(())
    }

    /// Configures RDMAP for a QP's stream: receives that the program posts, and the limits of the QP.
    ///
    /// # Errors
    /// The program or the QP does not exist, the QP has ended or has a stream, or the ULP is not RDMAP.
    pub(in crate::worker) fn configure_pair(
        &self,
        id: QueuePairId,
        ulp: &mut UlpConfig,
    ) -> Result<(), CommandError> {
        let programs = &self.env.programs;
        programs.find_unconnected(id).ok_or(CommandError::QueuePair)?;
        let index = programs.find(id.program).ok_or(CommandError::Program)?;
        let program = programs.programs[index].as_ref().ok_or(CommandError::Program)?;
        let pair = program.pairs.get(id.number as usize).and_then(Option::as_ref);
        let pair = pair.ok_or(CommandError::QueuePair)?;
        let UlpConfig::Rdmap(config) = ulp else { return Err(CommandError::QueuePair) };
        pair.configure(config);
        Ok(())
    }

    /// Changes a program's memory windows.
    ///
    /// # Errors
    /// The program or the window does not exist, the window to add exists already, or the window cannot be bound as
    /// requested.
    pub(in crate::worker) fn change_window(
        &mut self,
        program: ProgramId,
        change: WindowChange,
        now: Instant,
    ) -> Result<(), CommandError> {
        let programs = &mut self.env.programs;
        let windows = &mut programs.get_mut(program).ok_or(CommandError::Program)?.windows;
        let tables = &mut self.env.tables;
        let ended = match change {
            WindowChange::Add { window, pd, kind } => return windows.add(window, pd, kind),
            WindowChange::Remove { window } => windows.remove(window, tables)?,
            WindowChange::Bind(bind) => {
                let window = WindowId::of(Stag(bind.window));
                let (pd, _) = windows.find(window).ok_or(CommandError::Window)?;
                windows.bind(&bind, pd, None, tables).map_err(|_| CommandError::Window)?
            }
        };
        self.revoke_binding(ended, now);
        Ok(())
    }

    /// Completes the request of a QP that binds a type 1 window at all workers. `sequence` is the number that the
    /// request reported to the control thread. The call has no effect if the QP has ended meanwhile.
    pub(in crate::worker) fn on_window_bound(
        &mut self,
        id: QueuePairId,
        sequence: u32,
        is_bound: bool,
        now: Instant,
    ) {
        let Some(index) = self.env.programs.find(id.program) else { return };
        let Some(mut program) = self.env.programs.take(index) else { return };
        let Program { pairs, completions, .. } = &mut *program;
        if let Some(Some(pair)) = pairs.get_mut(id.number as usize)
            && let Some(performed) = pair.finish_bind(sequence, is_bound, completions)
        {
            self.env.control.counters().programs.program_sends_completed.add(performed);
            if !is_bound {
                self.fail_pair(pair, QueuePairError::Window, now);
            }
            program.make_ready(id.number);
        }
        self.env.programs.restore(index, program);
    }

    /// Checks that no memory window is bound to a region.
    ///
    /// # Errors
    /// A window is bound to the region.
    pub(in crate::worker) fn check_no_windows(&self, stag: Stag) -> Result<(), CommandError> {
        let mut programs = self.env.programs.programs.iter().flatten();
        match programs.any(|program| program.windows.has_windows_on(stag)) {
            true => Err(CommandError::WindowsBound),
            false => Ok(()),
        }
    }

    /// Ends the use of a region by programs, because the region is being removed. Windows on the region are unbound at
    /// once. This and the following turns remove the region from posted receives. The region's memory is freed
    /// afterwards, because posted receives have handles of it.
    pub(in crate::worker) fn revoke_from_programs(&mut self, stag: Stag, now: Instant) {
        if self.env.programs.is_empty() {
            return;
        }
        let Some(entry) = self.env.tables.stag(stag) else { return };
        let revocation = Revocation::new(entry.pd, entry.memory.clone());
        self.env.programs.revocations.push_back(revocation);
        self.for_each_program(|core, program| {
            for ended in program.windows.release_region(stag, &mut core.env.tables) {
                core.revoke_binding(Some(ended), now);
            }
        });
    }

    /// Terminates the streams whose peers have an RDMA Read in progress through a window that was unbound.
    fn revoke_binding(&mut self, ended: Option<Binding>, now: Instant) {
        if let Some(Binding { stag, pair, .. }) = ended {
            self.revoke_users(stag, pair.map(|pair| pair.stream), now);
        }
    }

    /// Resets the stream of a QP that is removed, or ended by a command.
    pub(super) fn abandon_pair(&mut self, pair: &QueuePair) {
        let Some((mut stream, env)) = pair.stream.and_then(|stream| self.find(stream)) else {
            return;
        };
        stream.conn.transient.pair = None;
        env.abort(&mut stream);
        env.make_ready(&mut stream);
    }

    /// Adds `change` to the number of QPs, and publishes it.
    pub(super) fn count_queue_pairs(&mut self, change: isize) {
        let programs = &mut self.env.programs;
        programs.pairs = programs.pairs.saturating_add_signed(change);
        self.env.control.counters().programs.queue_pairs.set(programs.pairs as u64);
    }
}

impl<Io: PortIo> Env<Io> {
    /// Queues the QP of an established stream to be served, because it may send now.
    pub(in crate::worker) fn start_pair(&mut self, stream: &Stream<'_>) {
        if let Some((program, number)) =
            stream.conn.transient.pair.and_then(|pair| self.programs.pair_mut(pair))
        {
            program.make_ready(number);
        }
    }

    /// Ends the QP of a stream that has ended. Its incomplete posts are flushed.
    pub(in crate::worker) fn end_pair(&mut self, conn: &mut Conn) {
        let Some(reference) = take_pair(conn) else { return };
        let Some((program, number)) = self.programs.pair_mut(reference) else { return };
        program.windows.release_pair(number, &mut self.tables);
        let Program { pairs, completions, .. } = program;
        if let Some(Some(pair)) = pairs.get_mut(number as usize) {
            pair.end(completions);
            program.make_ready(number);
        }
    }

    /// Separates a failed stream from its QP, because another attempt to connect the QP follows.
    pub(in crate::worker) fn release_pair(&mut self, conn: &mut Conn) {
        let Some(reference) = take_pair(conn) else { return };
        if let Some((program, number)) = self.programs.pair_mut(reference)
            && let Some(pair) = program.pair(number)
        {
            pair.stream = None;
            pair.receives.release_source();
        }
    }
}

fn take_pair(conn: &mut Conn) -> Option<PairRef> {
    conn.transient.get_mut()?.pair.take()
}

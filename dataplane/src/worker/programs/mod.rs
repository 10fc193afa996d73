//! Local programs of a worker: takes the descriptors that programs post, performs their operations on the streams of
//! the queue pairs (QPs), and writes completions.
//!
//! ```text
//!   SQ, RQ --> doorbells, ready QPs --> checks of SGEs --> RDMAP of the stream --> events --> CQ, notification
//!             (`serve`)                (`request`)                              (`event`)    (`completion`)
//! ```
//!
//! A program is not trusted: it can harm only its own memory and QPs. A descriptor is copied once and then checked. A
//! violation of the ring protocol, an invalid descriptor or an SGE outside the program's memory ends the QP. A full CQ
//! ends the QPs that use it. The worker never waits for a program, and serves each within a budget per turn.
//!
//! Posts complete in order: each event of the stream completes the oldest post of its queue. After the end of the
//! stream, incomplete and later posts are flushed.

mod command;
mod completion;
mod event;
mod pair;
mod removal;
mod request;
mod serve;
mod shared;
mod sleep;
mod source;
mod windows;

use std::collections::VecDeque;

use self::completion::CompletionQueues;
use self::pair::QueuePair;
use self::removal::Revocation;
use self::shared::Notices;
use self::windows::Windows;
use crate::api::{ProgramConfig, ProgramId, QueuePairId, Ticket};
use crate::io::PortIo;
use crate::memory::DoorbellScanner;
use crate::signal::Signal;
use crate::worker::Core;
use crate::worker::flows::conn::PairRef;

#[derive(Default)]
pub(in crate::worker) struct Programs {
    /// Programs. The index of a program never changes. `None`: a free entry, or a program that is being served.
    programs: Vec<Option<Box<Program>>>,
    /// Memory regions that are being removed from posted receives, oldest first.
    revocations: VecDeque<Revocation>,
    /// Number of QPs of all programs.
    pairs: usize,
}

struct Program {
    id: ProgramId,
    doorbells: DoorbellScanner,
    wake: Signal,
    /// False once the program has closed its end of `wake`: a closed socket is always readable and would end each
    /// sleep.
    can_wake: bool,
    /// Maximum work per turn, in the units of [`ProgramConfig::budget`].
    budget: u32,
    pairs: Vec<Option<Box<QueuePair>>>,
    completions: CompletionQueues,
    windows: Windows,
    notices: Notices,
    /// Numbers of QPs that may have descriptors to take, without duplicates ([`QueuePair::queued`]).
    ready: VecDeque<u32>,
    /// Number of receives that may still be taken from the rings in this turn.
    receives_left: u32,
    /// Numbers of QPs whose receive rings may still have descriptors because the limit of receives per turn was
    /// reached, without duplicates ([`QueuePair::is_late`]).
    late: VecDeque<u32>,
    /// Ticket of the command that removes the program, while its QPs and windows are being removed.
    removal: Option<Ticket>,
    /// True once all QPs and windows of a removed program are removed.
    is_removed: bool,
}

impl Programs {
    /// Returns true if the table has no entries.
    #[inline]
    fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Takes the program at an index out of the table. [`restore`](Self::restore) puts it back.
    fn take(&mut self, index: usize) -> Option<Box<Program>> {
        self.programs[index].take()
    }

    fn restore(&mut self, index: usize, program: Box<Program>) {
        self.programs[index] = Some(program);
    }

    /// Returns the index of a program in the table; `None` also while the program is being removed.
    fn find(&self, id: ProgramId) -> Option<usize> {
        let is_meant = |program: &Program| program.id == id && program.removal.is_none();
        self.programs.iter().position(|program| program.as_deref().is_some_and(is_meant))
    }

    /// Drops the programs whose removal is complete. Trailing free entries are removed, so that the table of a worker
    /// without programs is empty.
    fn drop_removed(&mut self) {
        for place in &mut self.programs {
            place.take_if(|program| program.is_removed);
        }
        while self.programs.last().is_some_and(Option::is_none) {
            self.programs.pop();
        }
        if self.programs.is_empty() {
            self.revocations.clear();
        }
    }

    fn get_mut(&mut self, id: ProgramId) -> Option<&mut Program> {
        let index = self.find(id)?;
        self.programs[index].as_deref_mut()
    }

    /// Returns the program of a stream's QP, and the number of the QP.
    fn pair_mut(&mut self, pair: PairRef) -> Option<(&mut Program, u32)> {
        let program = self.programs.get_mut(pair.index as usize)?.as_deref_mut()?;
        Some((program, pair.number))
    }

    /// Returns a reference to a QP; `None` if it does not exist, has ended or has a stream.
    pub(in crate::worker) fn find_unconnected(&self, id: QueuePairId) -> Option<PairRef> {
        let index = self.find(id.program)?;
        let pair = self.programs[index].as_ref()?.pairs.get(id.number as usize)?.as_deref()?;
        pair.is_unconnected().then_some(PairRef { index: index as u32, number: id.number })
    }
}

#[cfg(test)]
impl Programs {
    pub(in crate::worker) fn stream_of(&self, id: QueuePairId) -> Option<ddp::StreamId> {
        let index = self.find(id.program)?;
        self.programs[index].as_ref()?.pairs.get(id.number as usize)?.as_ref()?.stream
    }
}

impl<Io: PortIo> Core<Io> {
    /// Calls `serve` with each program. Each program is taken out of the table during its call, because its operations
    /// borrow the rest of the worker.
    fn for_each_program(&mut self, mut serve: impl FnMut(&mut Self, &mut Program)) {
        for index in 0..self.env.programs.programs.len() {
            let Some(mut program) = self.env.programs.take(index) else { continue };
            serve(self, &mut program);
            self.env.programs.restore(index, program);
        }
    }
}

impl Program {
    fn new(config: ProgramConfig) -> Program {
        let ProgramConfig { id, doorbells, wake, budget } = config;
        Program {
            id,
            doorbells,
            wake,
            can_wake: true,
            budget: budget.max(1),
            pairs: Vec::new(),
            completions: CompletionQueues::default(),
            windows: Windows::default(),
            notices: Notices::default(),
            ready: VecDeque::new(),
            receives_left: 0,
            late: VecDeque::new(),
            removal: None,
            is_removed: false,
        }
    }

    fn pair(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.pairs.get_mut(number as usize)?.as_deref_mut()
    }

    /// Queues a QP whose remaining receives are taken in the next turn.
    fn make_late(&mut self, number: u32) {
        if let Some(Some(pair)) = self.pairs.get_mut(number as usize)
            && !pair.is_late
        {
            pair.is_late = true;
            self.late.push_back(number);
        }
    }

    /// Queues a QP to be served, unless it is queued already.
    fn make_ready(&mut self, number: u32) {
        if let Some(Some(pair)) = self.pairs.get_mut(number as usize)
            && !pair.queued
        {
            pair.queued = true;
            self.ready.push_back(number);
        }
    }
}

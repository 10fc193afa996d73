//! Removals that take several turns: of programs with their QPs and windows, and of memory regions from posted
//! receives. The removal of a program with many QPs thus does not delay other programs.

use ddp::PdId;

use super::Program;
use crate::io::PortIo;
use crate::memory::Memory;
use crate::worker::Core;

/// Maximum number of a removed program's QPs, and of its bound windows, that are removed per turn.
const MAX_REMOVED: usize = 64;
/// Maximum number of QPs per turn whose posted receives are searched for removed memory.
const MAX_SEARCHED: usize = 64;

/// A memory region that is being removed from the posted receives of its protection domain.
pub(super) struct Revocation {
    pd: PdId,
    memory: Memory,
    /// Index of the program, and number of its QP, that are searched next.
    next: (usize, usize),
}

impl Revocation {
    pub(super) fn new(pd: PdId, memory: Memory) -> Revocation {
        Revocation { pd, memory, next: (0, 0) }
    }
}

impl<Io: PortIo> Core<Io> {
    /// Continues to remove a program: resets the streams of its QPs, and unbinds its windows. Returns true once both
    /// are done.
    pub(super) fn continue_removal(&mut self, program: &mut Program) -> bool {
        for _ in 0..MAX_REMOVED {
            match program.pairs.pop() {
                Some(Some(pair)) => {
                    self.abandon_pair(&pair);
                    self.count_queue_pairs(-1);
                }
                Some(None) => {}
                None => break,
            }
        }
        // RDMA Reads in progress through these windows are not terminated separately: the streams of all QPs are reset,
        // in this or a later turn.
        let is_unbound = program.windows.release_some(MAX_REMOVED, &mut self.env.tables);
        program.pairs.is_empty() && is_unbound
    }

    /// Continues to remove memory regions from posted receives. Returns true if there was work.
    pub(super) fn continue_revocations(&mut self) -> bool {
        let Some(mut revocation) = self.env.programs.revocations.pop_front() else { return false };
        let mut searched = 0;
        while searched < MAX_SEARCHED {
            let (place, number) = revocation.next;
            if place >= self.env.programs.programs.len() {
                return true;
            }
            revocation.next = (place + 1, 0);
            let Some(program) = self.env.programs.take(place) else { continue };
            let end = program.pairs.len().min(number + MAX_SEARCHED - searched);
            for pair in program.pairs[number.min(end)..end].iter().flatten() {
                if pair.pd == revocation.pd
                    && let Some((mut stream, _)) = pair.stream.and_then(|stream| self.find(stream))
                    && let Some(mut lower) = stream.lower()
                {
                    lower.revoke_receives(&revocation.memory);
                }
            }
            searched += end.saturating_sub(number).max(1);
            if end < program.pairs.len() {
                revocation.next = (place, end);
            }
            self.env.programs.restore(place, program);
        }
        self.env.programs.revocations.push_front(revocation);
        true
    }
}

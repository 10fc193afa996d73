//! A program with one QP, whose queues share a CQ: its ends of the queues, and its memory.
//!
//! ```text
//!  area    | header | doorbells | SQ | RQ | CQ |
//!  memory  | 0 .. MEMORY: region with all rights of peers | MEMORY .. MEMORY + SECRET: region without rights |
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Instant;
use dataplane::memory::{Arena, Maps, Memory, QueueArea, ViewConfig};
use dataplane::{
    Command, CompletionQueueConfig, ProgramConfig, ProgramId, QueuePairConfig, QueuePairId,
    Receives, Signal,
};
use ddp::{Access, PdId, RegionMemory, Stag, StagEntry, TaggedOffset};
use verbs_layout::completion::{self, Consumer};
use verbs_layout::doorbell::{self, Ringer};
use verbs_layout::ring::{self, Producer};
use verbs_layout::work::{Completion, Operation, ReceiveWork, Remote, SendWork, Sge, SgeList};
use verbs_layout::{LINE_WORDS, Word, session};

use super::host::Host;

/// Address of the first byte of a program's memory, which is also its TO.
pub(super) const ADDRESS: u64 = 0x7f00_0000_0000;
/// Length of the region with rights, bytes.
pub(super) const MEMORY: u64 = 16 << 10;
/// Length of the region without rights, bytes.
pub(super) const SECRET: u64 = 4 << 10;
/// Capacity of the SQ and of the RQ, units.
pub(super) const UNITS: usize = 64;
/// Capacity of the CQ, entries.
pub(super) const COMPLETIONS: usize = 64;
/// Maximum number of incomplete posts of SQ and RQ.
pub(super) const MAX_POSTS: u32 = 16;
/// Maximum number of doorbells and send descriptors of a program per turn.
pub(super) const BUDGET: u32 = 16;

const LINE: usize = LINE_WORDS * 8;
const BELLS_AT: u64 = (session::HEADER_WORDS * 8) as u64;
pub(super) const SENDS_AT: u64 = aligned(BELLS_AT, doorbell::WORDS);
pub(super) const RECEIVES_AT: u64 = aligned(SENDS_AT, ring::words(UNITS));
const COMPLETIONS_AT: u64 = aligned(RECEIVES_AT, ring::words(UNITS));
const AREA: u64 = aligned(COMPLETIONS_AT, completion::words(COMPLETIONS));

/// Returns the first aligned offset after a structure of `words` words at `offset`.
const fn aligned(offset: u64, words: usize) -> u64 {
    (offset + words as u64 * 8).next_multiple_of(LINE as u64)
}

/// Creates the area of a program.
pub(super) fn area() -> QueueArea {
    QueueArea::create("queues", AREA, &Maps::default()).expect("an area").0
}

pub(super) struct Program<'a> {
    /// Number of the program; determines its STags.
    pub(super) number: u32,
    /// The words of its area.
    pub(super) words: &'a [Word],
    pub(super) bells: Ringer<'a>,
    pub(super) sends: Producer<'a>,
    pub(super) receives: Producer<'a>,
    pub(super) completions: Consumer<'a>,
    /// Region with all rights of peers, [`MEMORY`] bytes.
    pub(super) memory: Memory,
    /// Region without rights, [`SECRET`] bytes.
    pub(super) secret: Memory,
    /// Initial contents of the two regions.
    pub(super) initial: (Vec<u8>, Vec<u8>),
    /// Shared with the two regions, and dropped with their last handles.
    pub(super) token: Arc<()>,
    /// Ends of the sockets for notifications and wake-ups.
    _descriptors: [std::os::fd::OwnedFd; 2],
}

impl<'a> Program<'a> {
    /// Registers program `number` at a host. `marks`: mark of the region with rights, and mark of the region without
    /// rights.
    pub(super) fn attach(
        host: &mut Host,
        number: u32,
        area: &'a QueueArea,
        marks: [u64; 2],
    ) -> Program<'a> {
        let (wake, their_wake) = Signal::pair().expect("sockets");
        let (channel, their_channel) = Signal::pair().expect("sockets");
        let end = |at| area.ring(at, UNITS).expect("a ring of the area");
        let id = ProgramId(number);
        let doorbells = area.doorbells(BELLS_AT).expect("doorbells of the area");
        let program = Box::new(ProgramConfig { id, doorbells, wake, budget: BUDGET });
        let queue = Box::new(CompletionQueueConfig {
            program: id,
            number: 0,
            queue: area.completion_queue(COMPLETIONS_AT, COMPLETIONS).expect("a CQ of the area"),
            channel: Some(Arc::new(channel)),
        });
        let pair = Box::new(QueuePairConfig {
            id: pair_id(number),
            pd: domain(number),
            sends: end(SENDS_AT),
            max_sends: MAX_POSTS,
            receives: Receives::Own(end(RECEIVES_AT)),
            max_receives: MAX_POSTS,
            send_completions: 0,
            receive_completions: 0,
            copy_sources: false,
        });
        host.command(|ticket| Command::AddProgram { program, ticket });
        host.command(|ticket| Command::AddCompletionQueue { queue, ticket });
        host.command(|ticket| Command::AddQueuePair { pair, ticket });
        let token = Arc::new(());
        let (memory, secret) = memory(&token);
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC;
        for (stag, memory, access) in
            [(main_stag(number), &memory, all), (secret_stag(number), &secret, Access::NONE)]
        {
            let entry = StagEntry {
                stag,
                pd: domain(number),
                stream: None,
                base_to: TaggedOffset(ADDRESS),
                len: memory.len(),
                access,
                memory: memory.clone(),
                memory_offset: 0,
            };
            host.command(|ticket| Command::AddStag { entry, ticket });
        }
        let initial = (cells(marks[0], 0, MEMORY), cells(marks[1], MEMORY, SECRET));
        memory.write(0, &initial.0);
        secret.write(0, &initial.1);
        let words = area.words();
        let part = |at, words_of| session::part(words, at, words_of).expect("a part of the area");
        let ring = |at| Producer::new(part(at, ring::words(UNITS)), UNITS).expect("a ring");
        let queue = part(COMPLETIONS_AT, completion::words(COMPLETIONS));
        Program {
            number,
            words,
            bells: Ringer::new(part(BELLS_AT, doorbell::WORDS)).expect("doorbells"),
            sends: ring(SENDS_AT),
            receives: ring(RECEIVES_AT),
            completions: Consumer::new(queue, COMPLETIONS).expect("a CQ"),
            memory,
            secret,
            initial,
            token,
            _descriptors: [their_wake, their_channel],
        }
    }

    pub(super) fn id(&self) -> QueuePairId {
        pair_id(self.number)
    }

    /// Returns a list of one SGE in the region with rights.
    pub(super) fn list(&self, offset: u64, len: u32) -> SgeList {
        let sge = Sge { address: ADDRESS + offset, len, lkey: main_stag(self.number).0 };
        SgeList::new(&[sge]).expect("one SGE")
    }

    /// Posts a signalled operation. Returns false if the ring is full.
    pub(super) fn post(&mut self, wr_id: u64, operation: Operation) -> bool {
        let work = SendWork { wr_id, signalled: true, fence: false, operation };
        let is_posted = self.sends.push(&work.encode()).is_ok();
        self.sends.publish();
        self.ring(self.id().send_doorbell());
        is_posted
    }

    /// Posts a receive. Returns false if the ring is full.
    pub(super) fn receive(&mut self, wr_id: u64, offset: u64, len: u32) -> bool {
        let work = ReceiveWork { wr_id, buffers: self.list(offset, len) };
        let is_posted = self.receives.push(&work.encode()).is_ok();
        self.receives.publish();
        self.ring(self.id().receive_doorbell());
        is_posted
    }

    pub(super) fn ring(&self, doorbell: u32) {
        let _must_wake = self.bells.ring(doorbell).expect("a doorbell of this program");
    }

    /// Takes the next completion, if there is one.
    pub(super) fn poll(&mut self) -> Option<Completion> {
        let completion = self.completions.poll().expect("a valid entry of the CQ");
        self.completions.release();
        completion
    }

    /// Overwrites the index of a ring at byte `at` of the area.
    pub(super) fn set_index(&self, at: u64, index: u64) {
        self.words[at as usize / 8].store(index, Ordering::Release);
    }
}

/// Returns the current bytes of a region.
pub(super) fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.read(0, &mut bytes);
    bytes
}

fn memory(token: &Arc<()>) -> (Memory, Memory) {
    let arena = Arena::create("arena", MEMORY + SECRET).expect("an arena");
    let config = ViewConfig { writable: true, lock: false };
    let view = |part: std::ops::Range<u64>| {
        let view = arena.view(&[part], config, &Maps::default(), &mut |_| true);
        view.expect("a view").with_charge(Arc::clone(token))
    };
    (view(0..MEMORY), view(MEMORY..MEMORY + SECRET))
}

/// Returns the initial bytes of a region: cells of 16 bytes that consist of `mark` and the number of the cell.
fn cells(mark: u64, from: u64, len: u64) -> Vec<u8> {
    let cell = |at: u64| [mark.to_le_bytes(), at.to_le_bytes()].concat();
    (from..from + len).step_by(16).flat_map(cell).collect()
}

pub(super) fn pair_id(number: u32) -> QueuePairId {
    QueuePairId { program: ProgramId(number), number: 1 }
}

pub(super) fn domain(number: u32) -> PdId {
    PdId(number + 1)
}

/// Returns the STag of the region with rights.
pub(super) const fn main_stag(number: u32) -> Stag {
    Stag((number + 1) << 8)
}

/// Returns the STag of the region without rights.
pub(super) const fn secret_stag(number: u32) -> Stag {
    Stag((number + 1) << 8 | 1)
}

/// Returns the address at `offset` in the region of program `number` with rights, for operations of its peer.
pub(super) fn remote(number: u32, offset: u64) -> Remote {
    Remote { stag: main_stag(number).0, to: ADDRESS + offset }
}

/// Time of the first turn.
pub(super) const START: Instant = Instant::from_millis(1000);

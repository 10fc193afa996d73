//! Fuzz target for a worker with a hostile program: arbitrary words in its SQ, RQ, CQ and doorbells, and descriptors
//! with any STag. Meanwhile a good program transfers to a good peer.
//!
//! Checks:
//! - The memory of other programs is neither changed nor read.
//! - The good program makes progress, and its completions are in order.
//! - A turn of the worker processes a bounded number of posts.
//! - A hostile QP ends with an event, and the removal of its program frees its memory.
//!
//! Input: records
//!
//! ```text
//!   what (1)    bits 0 to 2: 0 a word of the area is overwritten: index (2), value (8)
//!                            1 a send descriptor: operation, flags, STag, address, lkey, offset, length (1 each)
//!                            2 a receive descriptor: lkey, offset, length (1 each)
//!                            3 a descriptor of arbitrary units: their number (1), words (8 each)
//!                            4 a doorbell is rung: its number (2)
//!                            5 turns of the workers: their number (1)
//!                            6 the CQ is polled; bit 3: with a request for a notification
//!                            7 the time advances: milliseconds (1)
//!               bits 4 to 7: for a descriptor, if bit 3 is set: damaged word of its first unit, modulo 8
//! ```

mod host;
mod port;
mod program;
#[cfg(test)]
mod tests;
mod world;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataplane::{Command, ProgramEvent, ProgramId, SourceRemoval};
use verbs_layout::completion::Request;
use verbs_layout::work::{
    AtomicResult, Inline, Operation, Payload, ReceiveWork, Remote, SendWork, Sge, SgeList,
};
use verbs_layout::{MAX_UNITS, Unit, Units, ring};

use self::program::*;
use self::world::{GOOD, HOSTILE, TARGET, WITNESS, World};

/// Number of operations that the good program must perform after the hostile acts.
const PROGRESS: u64 = 12;
/// Maximum number of turns that an input requests in total.
const MAX_TURNS: u32 = 400;

pub(crate) fn hostile_program(data: &[u8]) {
    run(data);
}

/// Effect of the hostile acts.
#[cfg_attr(not(test), expect(dead_code, reason = "only the tests of named inputs compare it"))]
struct Outcome {
    /// Events about the hostile QP and CQ.
    failures: Vec<ProgramEvent>,
    /// True if the stream of the hostile QP has ended.
    is_closed: bool,
}

fn run(data: &[u8]) -> Outcome {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    // The mark is a hash of the input, so that no input contains its own mark.
    let mark = hasher.finish();
    let areas = [area(), area(), area(), area()];
    let mut world = World::new(&areas, mark);
    let mut hostile = Hostile { sends: 0, receives: 0, turns: 0 };
    let mut input = Input(data);
    while let Some(what) = input.byte() {
        hostile.act(&mut world, what, &mut input);
    }
    world.make_progress(PROGRESS);
    let is_closed = world.closed.contains(&world.streams[0]);
    let outcome = Outcome { failures: world.failures.clone(), is_closed };
    end_hostile_pair(&mut world);
    world.make_progress(PROGRESS);
    world.check_memory(mark);
    remove_hostile_program(world);
    outcome
}

/// Breaks the ring protocol of the hostile QP. The QP must end with an event, unless its stream has ended before. The
/// peer's QP must end, too.
fn end_hostile_pair(world: &mut World<'_>) {
    world.hostile.set_index(SENDS_AT, u64::MAX / 2);
    world.hostile.ring(world.hostile.id().send_doorbell());
    world.run_until("the end of the hostile QP", |world| {
        let [here, there] = world.streams;
        let is_closed = [here, there].iter().all(|stream| world.closed.contains(stream));
        is_closed.then_some(())
    });
    let failed = world.hosts[0].count("queue_pairs_failed");
    let is_pair = |event: &&ProgramEvent| matches!(event, ProgramEvent::QueuePairFailed { .. });
    let events = world.failures.iter().filter(is_pair);
    assert_eq!(events.count() as u64, failed, "one event for each failed QP");
}

/// Removes the hostile program. Its memory must then be free.
fn remove_hostile_program(mut world: World<'_>) {
    let host = &mut world.hosts[0];
    let (program, removal) = (ProgramId(HOSTILE), SourceRemoval::Abort);
    let mut tickets = vec![host.command(|ticket| Command::RemoveProgram { program, ticket })];
    for stag in [main_stag(HOSTILE), secret_stag(HOSTILE)] {
        tickets.push(host.command(|ticket| Command::RemoveStag { stag, removal, ticket }));
    }
    for ticket in tickets {
        let answer = world.run_until("an answer", |world| world.hosts[0].take_answer(ticket));
        assert_eq!(answer, Ok(()));
    }
    // Posted receives keep the memory of the removed regions. The workers release these regions in later turns.
    for _ in 0..4 {
        world.turn();
    }
    let Program { memory, secret, token, .. } = world.hostile;
    drop((memory, secret));
    dataplane::memory::wait_for_frees();
    assert_eq!(Arc::strong_count(&token), 1, "handles to the memory of a removed program");
}

/// Reader of the input. Missing bytes are zero.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn number(&mut self, bytes: u32) -> u64 {
        (0..bytes).fold(0, |sum, n| sum | u64::from(self.byte().unwrap_or(0)) << (8 * n))
    }

    /// Selects an element of a table by the next byte.
    fn select<T: Copy>(&mut self, table: &[T]) -> T {
        table[self.number(1) as usize % table.len()]
    }
}

/// The hostile program's own indices, and the turns that it has requested.
struct Hostile {
    sends: u64,
    receives: u64,
    turns: u32,
}

/// STags of the hostile program, of its target and of other programs, with and without rights, and two unused STags.
const STAGS: [u32; 9] = [
    main_stag(HOSTILE).0,
    main_stag(TARGET).0,
    secret_stag(HOSTILE).0,
    secret_stag(TARGET).0,
    main_stag(GOOD).0,
    main_stag(WITNESS).0,
    secret_stag(GOOD).0,
    0,
    u32::MAX,
];
const OFFSETS: [u64; 8] =
    [0, 8, 4096, MEMORY - 1, MEMORY, MEMORY - 8, u64::MAX, u64::MAX - ADDRESS];
const LENGTHS: [u32; 8] = [0, 1, 8, 100, 256, 4000, MEMORY as u32, u32::MAX];

impl Hostile {
    fn act(&mut self, world: &mut World<'_>, what: u8, input: &mut Input<'_>) {
        let damaged = (what & 8 != 0).then_some(usize::from(what >> 4));
        match what & 7 {
            0 => {
                let words = world.hostile.words;
                let at = input.number(2) as usize % words.len();
                words[at].store(input.number(8), Ordering::Release);
            }
            1 => {
                if let Some(units) = send(input) {
                    self.post_send(world, units, damaged);
                }
            }
            2 => {
                let buffers = sges(input);
                let units = ReceiveWork { wr_id: 1, buffers }.encode();
                post(world, RECEIVES_AT, &mut self.receives, units, damaged);
                world.offered += 1;
                world.hostile.ring(world.hostile.id().receive_doorbell());
            }
            3 => {
                let count = input.number(1) as usize % (MAX_UNITS + 1);
                let unit = |_| std::array::from_fn(|_| input.number(8));
                let units: Units =
                    (0..count).map(unit).collect::<Vec<Unit>>().into_iter().collect();
                self.post_send(world, units, damaged);
            }
            4 => {
                let doorbell = input.number(2) as u32 % verbs_layout::doorbell::QUEUES;
                world.hostile.ring(doorbell);
            }
            5 => {
                for _ in 0..=input.number(1) & 31 {
                    self.turn(world);
                }
            }
            6 => {
                // The program may have damaged the entries itself.
                while let Ok(Some(_)) = world.hostile.completions.poll() {}
                match damaged {
                    None => world.hostile.completions.release(),
                    Some(_) => world.hostile.completions.arm(Request::Next),
                }
            }
            _ => {
                world.wait(input.number(1));
                self.turn(world);
            }
        }
    }

    fn turn(&mut self, world: &mut World<'_>) {
        self.turns += 1;
        if self.turns <= MAX_TURNS {
            world.turn();
        }
    }

    fn post_send(&mut self, world: &mut World<'_>, units: Units, damaged: Option<usize>) {
        post(world, SENDS_AT, &mut self.sends, units, damaged);
        world.hostile.ring(world.hostile.id().send_doorbell());
    }
}

/// Writes units to a ring and publishes them, whether there is room or not. `damaged`: a word of the first unit in
/// which one bit is inverted.
fn post(world: &World<'_>, ring_at: u64, next: &mut u64, mut units: Units, damaged: Option<usize>) {
    if let (Some(at), Some(first)) = (damaged, units.first_mut()) {
        first[at % 8] ^= 1 << (at * 5 % 64);
    }
    let words = &world.hostile.words[ring_at as usize / 8 + ring::HEADER_WORDS..];
    for unit in &units {
        let at = (*next as usize % UNITS) * 8;
        words[at..at + 8]
            .iter()
            .zip(unit)
            .for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        *next += 1;
    }
    world.hostile.set_index(ring_at, *next);
}

fn sges(input: &mut Input<'_>) -> SgeList {
    let (lkey, offset, len) =
        (input.select(&STAGS), input.select(&OFFSETS), input.select(&LENGTHS));
    let sge = Sge { address: ADDRESS.wrapping_add(offset), len, lkey };
    SgeList::new(&[sge]).unwrap_or_default()
}

/// Returns a descriptor of the SQ; `None` for one that the layout cannot express.
fn send(input: &mut Input<'_>) -> Option<Units> {
    let (kind, flags) = (input.number(1), input.number(1));
    let stag = input.select(&STAGS);
    let remote = Remote { stag, to: ADDRESS.wrapping_add(input.select(&OFFSETS)) };
    let list = sges(input);
    let first = list.sges().first();
    let result =
        AtomicResult { address: first.map_or(0, |s| s.address), lkey: first.map_or(0, |s| s.lkey) };
    let inline = Inline::new(&flags.to_le_bytes()).ok()?;
    let payload =
        if flags & 1 != 0 { Payload::Inline(inline) } else { Payload::Gather(list.clone()) };
    let solicited = flags & 2 != 0;
    let operation = match kind % 8 {
        0 => Operation::Send { payload, solicited },
        1 => Operation::SendInvalidate { payload, solicited, stag },
        2 => Operation::Write { remote, payload },
        3 => Operation::Read { remote, sinks: list },
        4 => Operation::CompareSwap { remote, compare: flags, swap: flags + 1, result },
        5 => Operation::FetchAdd { remote, add: flags, result },
        6 => Operation::Immediate { data: flags.to_le_bytes(), solicited },
        _ => Operation::LocalInvalidate { stag },
    };
    let (signalled, fence) = (flags & 4 == 0, flags & 8 != 0);
    Some(SendWork { wr_id: 1, signalled, fence, operation }.encode())
}

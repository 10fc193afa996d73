//! Two hosts with two programs each, and the operations of the good programs.
//!
//! ```text
//!   host 10.0.0.1                 host 10.0.0.2
//!   hostile (0) ---- stream ----> target (2)       the target is a good program, whose peer is hostile
//!   good (1)    ---- stream ----> witness (3)
//!
//!   memory of good and witness    0           4096           8192                12288          16384
//!   good                          | constant  |              | sink of Reads     |              |
//!   witness                       | Writes    | Receives     |                   | constant     |
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use base::Instant;
use dataplane::memory::QueueArea;
use dataplane::{Command, Connect, Event, InterfaceId, ProgramEvent, Service};
use ddp::StreamId;
use ddp::rdmap;
use tcp_lite::endpoint::UlpConfig;
use verbs_layout::work::{Completed, Inline, Operation, Payload, Status};

use super::host::{Host, PORT, endpoint};
use super::program::*;

pub(super) const HOSTILE: u32 = 0;
pub(super) const GOOD: u32 = 1;
pub(super) const TARGET: u32 = 2;
pub(super) const WITNESS: u32 = 3;

/// Number of operations of the good program in flight.
const IN_FLIGHT: u64 = 3;
/// Length of a Write and of a Read of the good program, bytes.
const LEN: u32 = 1000;
/// Length of a part of a program's memory, bytes; see the diagram above.
const PART: u64 = 4096;
/// Distance between the destinations of consecutive Writes, and of consecutive Reads, bytes.
const SLOT: u64 = 1024;
/// Maximum number of turns of a wait. Only a hang reaches it.
const MAX_TURNS: u32 = 20_000;
/// Maximum number of receives that one turn completes: all posted receives of two programs, and one for each frame
/// of four bursts.
const MAX_RECEIVES_PER_TURN: u64 = 2 * MAX_POSTS as u64 + 4 * dataplane::io::BURST as u64;

pub(super) struct World<'a> {
    pub(super) hosts: [Host; 2],
    pub(super) hostile: Program<'a>,
    pub(super) good: Program<'a>,
    pub(super) target: Program<'a>,
    pub(super) witness: Program<'a>,
    now: Instant,
    /// Streams of the hostile program and of its target.
    pub(super) streams: [StreamId; 2],
    /// Streams that have ended.
    pub(super) closed: Vec<StreamId>,
    /// Events about the hostile QP or CQ.
    pub(super) failures: Vec<ProgramEvent>,
    /// Number of operations of the good program: posted, completed, and received by the witness.
    posted: u64,
    completed: u64,
    received: u64,
    /// Number of calls of [`Self::answer`]. The target posts in every eighth call.
    answers: u64,
    /// Number of receives that the hostile program has posted, valid or not, less the number of Sends that the target
    /// has posted.
    pub(super) offered: u32,
    /// True while the good program posts operations.
    is_posting: bool,
}

impl<'a> World<'a> {
    /// Creates the hosts and connects the programs. `mark` is in all memory of the programs.
    pub(super) fn new(areas: &'a [QueueArea; 4], mark: u64) -> World<'a> {
        let mut hosts = [Host::new(1, START), Host::new(2, START)];
        let [first, second] = &mut hosts;
        let [hostile, good, target, witness] = areas;
        // The hostile program may read its target's region with rights, so this region has another mark.
        let hostile = Program::attach(first, HOSTILE, hostile, [!mark, !mark]);
        let good = Program::attach(first, GOOD, good, [mark, mark]);
        let target = Program::attach(second, TARGET, target, [!mark, mark]);
        let witness = Program::attach(second, WITNESS, witness, [mark, mark]);
        let nowhere = StreamId(u64::MAX);
        let mut world = World {
            hosts,
            hostile,
            good,
            target,
            witness,
            now: START,
            streams: [nowhere; 2],
            closed: Vec::new(),
            failures: Vec::new(),
            posted: 0,
            completed: 0,
            received: 0,
            answers: 0,
            offered: 0,
            is_posting: true,
        };
        world.connect(GOOD, WITNESS);
        world.streams = world.connect(HOSTILE, TARGET);
        world
    }

    /// Connects the QP of program `from`, at the first host, to the QP of program `to`, at the second host. Returns the
    /// stream at each end.
    fn connect(&mut self, from: u32, to: u32) -> [StreamId; 2] {
        let connect = |ticket| {
            Command::Connect(Box::new(Connect {
                ticket,
                interface: InterfaceId(0),
                local: None,
                remote: SocketAddr::from(([10, 0, 0, 2], PORT)),
                endpoint: endpoint(),
                ip: Default::default(),
                ulp: ulp(),
                service: Service::Program(pair_id(from)),
                pd: domain(from),
                stags: Vec::new(),
                private_data: Vec::new(),
                timeout: Duration::from_secs(20),
            }))
        };
        self.hosts[0].command(connect);
        let there = self.run_until("a request", |world| {
            world.hosts[1].take_event(|event| match event {
                Event::Incoming { stream, .. } => Some(*stream),
                _ => None,
            })
        });
        let (pd, service) = (domain(to), Service::Program(pair_id(to)));
        let private_data = Vec::new();
        let accept = Command::Accept { stream: there, pd, private_data, ulp: ulp(), service };
        self.hosts[1].command(|_| accept);
        let here = self.run_until("an established stream", |world| {
            world.hosts[0].take_event(|event| match event {
                Event::Established { stream, ticket: Some(_), .. } => Some(*stream),
                _ => None,
            })
        });
        [here, there]
    }

    /// Runs turns until `done` returns a value.
    pub(super) fn run_until<T>(
        &mut self,
        awaited: &str,
        mut done: impl FnMut(&mut World<'a>) -> Option<T>,
    ) -> T {
        for _ in 0..MAX_TURNS {
            if let Some(value) = done(self) {
                return value;
            }
            self.turn();
        }
        panic!("too many turns; waiting for {awaited}; {} operations", self.completed);
    }

    /// Runs one turn of both workers, delivers the frames, and lets the good programs post and poll.
    pub(super) fn turn(&mut self) {
        self.post();
        let mut busy = false;
        let counts = |host: &Host| ["program_sends", "program_receives"].map(|n| host.count(n));
        for host in &mut self.hosts {
            let before = counts(host);
            busy |= host.turn(self.now);
            let [sends, receives] = counts(host);
            // The work of a turn is bounded, whatever the programs post.
            assert!(sends - before[0] <= 2 * u64::from(BUDGET), "{} sends", sends - before[0]);
            let receives = receives - before[1];
            assert!(receives <= MAX_RECEIVES_PER_TURN, "{receives} receives");
        }
        let [first, second] = &mut self.hosts;
        let frames = [first.port().sent.split_off(0), second.port().sent.split_off(0)];
        let [to_second, to_first] = frames;
        busy |= !to_second.is_empty() || !to_first.is_empty();
        first.port().received.extend(to_first);
        second.port().received.extend(to_second);
        self.take_events();
        self.poll();
        // Larger steps while only a timer can cause work.
        self.now += Duration::from_micros(if busy { 10 } else { 1000 });
    }

    /// Advances the time by `milliseconds`.
    pub(super) fn wait(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    /// Takes the events about streams and programs. Only the hostile program may fail.
    fn take_events(&mut self) {
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let failures = &mut self.failures;
            let closed = &mut self.closed;
            host.events.retain(|event| match event {
                Event::Program(event) => {
                    let of = match event {
                        ProgramEvent::QueuePairFailed { id, .. } => id.program,
                        ProgramEvent::BindWindow { id, .. } => id.program,
                        ProgramEvent::CompletionQueueFailed { program, .. }
                        | ProgramEvent::SharedReceivesLow { program, .. }
                        | ProgramEvent::SharedReceivesFailed { program, .. } => *program,
                    };
                    assert_eq!((at, of.0), (0, HOSTILE), "{event:?}");
                    failures.push(*event);
                    false
                }
                Event::Closed { stream, .. } => {
                    closed.push(*stream);
                    false
                }
                _ => true,
            });
        }
    }

    /// Posts operations of the good programs.
    fn post(&mut self) {
        while self.is_posting && self.posted < self.completed + IN_FLIGHT {
            let n = self.posted;
            let (constant, sink) = (3 * PART, 2 * PART);
            let operation = match n % 3 {
                0 => {
                    let payload = Payload::Gather(self.good.list(0, LEN));
                    Operation::Write { remote: remote(WITNESS, n % 4 * SLOT), payload }
                }
                1 => {
                    let at = PART + n % 64 * 8;
                    assert!(self.witness.receive(n, at, 8), "room in the RQ of the witness");
                    let payload = Payload::Inline(Inline::new(&n.to_le_bytes()).expect("8 bytes"));
                    Operation::Send { payload, solicited: false }
                }
                _ => {
                    let sinks = self.good.list(sink + n % 4 * SLOT, LEN);
                    Operation::Read { remote: remote(WITNESS, constant), sinks }
                }
            };
            assert!(self.good.post(n, operation), "room in the SQ of the good program");
            self.posted += 1;
        }
        self.answer();
    }

    /// Posts receives and operations of the target, whose peer is hostile. A full ring is not an error, because the
    /// hostile program may not answer.
    fn answer(&mut self) {
        let n = self.answers;
        self.answers += 1;
        if n.is_multiple_of(8) {
            self.target.receive(n, PART, 300);
            let operation = match n / 8 % 3 {
                0 => Operation::Write {
                    remote: remote(HOSTILE, 0),
                    payload: Payload::Gather(self.target.list(0, LEN)),
                },
                // A message without a receive would end the stream.
                1 if self.offered > 0 => Operation::Send {
                    payload: Payload::Gather(self.target.list(0, 100)),
                    solicited: true,
                },
                _ => Operation::Read {
                    remote: remote(HOSTILE, 0),
                    sinks: self.target.list(2 * PART, LEN),
                },
            };
            self.offered -= u32::from(self.offered > 0 && n / 8 % 3 == 1);
            self.target.post(n, operation);
        }
    }

    /// Takes the completions of the good programs and compares them.
    fn poll(&mut self) {
        while let Some(completion) = self.good.poll() {
            assert_eq!((completion.wr_id, completion.status), (self.completed, Status::Success));
            self.completed += 1;
        }
        while let Some(completion) = self.witness.poll() {
            let expected = self.received * 3 + 1;
            let seen = (completion.wr_id, completion.status, completion.byte_len);
            assert_eq!(seen, (expected, Status::Success, 8));
            assert!(matches!(completion.completed, Completed::Received { .. }));
            self.received += 1;
        }
        while self.target.poll().is_some() {}
    }

    /// Runs until the good program has performed further operations.
    pub(super) fn make_progress(&mut self, operations: u64) {
        let until = self.completed + operations;
        self.run_until("operations of the good program", |world| {
            (world.completed >= until).then_some(())
        });
    }

    /// Waits until all operations of the good program are complete, and posts no more. Compares all memory that the
    /// hostile program must not change or read. `mark`: mark of the memory that it must not read.
    pub(super) fn check_memory(&mut self, mark: u64) {
        self.is_posting = false;
        self.run_until("the end of all operations", |world| {
            (world.completed == world.posted).then_some(())
        });
        let (own, other) = (&self.good, &self.witness);
        let [mut mine, mut theirs] = [own, other].map(|program| program.initial.0.clone());
        let place = |bytes: &mut [u8], at: u64, from: &[u8]| {
            bytes[at as usize..][..from.len()].copy_from_slice(from);
        };
        let written = &own.initial.0[..LEN as usize];
        let read = &other.initial.0[3 * PART as usize..][..LEN as usize];
        for n in 0..self.completed {
            match n % 3 {
                0 => place(&mut theirs, n % 4 * SLOT, written),
                1 => place(&mut theirs, PART + n % 64 * 8, &n.to_le_bytes()),
                _ => place(&mut mine, 2 * PART + n % 4 * SLOT, read),
            }
        }
        assert!(contents(&own.memory) == mine, "memory of the good program");
        assert!(contents(&other.memory) == theirs, "memory of the witness");
        // The hostile program's `secret` is not compared: `Access::NONE` bars peers, but a program may still use its
        // own region as source or sink.
        for program in [own, other, &self.target] {
            assert!(contents(&program.secret) == program.initial.1, "program {}", program.number);
        }
        for program in [&self.hostile, &self.target] {
            let bytes = contents(&program.memory);
            let leaks = bytes.windows(8).any(|seen| seen == mark.to_le_bytes());
            assert!(!leaks, "memory of others in that of program {}", program.number);
        }
    }
}

fn ulp() -> UlpConfig {
    rdmap::Config { ird: 4, ord: 4, ..rdmap::Config::default() }.into()
}

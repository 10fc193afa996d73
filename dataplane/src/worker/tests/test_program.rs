//! Local programs of test hosts: the program's ends of its queues, and its registered memory.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ddp::{Access, RegionMemory, Stag, StagEntry, StreamId, TaggedOffset, rdmap};
use rustix::net::{RecvFlags, recv};
use tcp_lite::endpoint::{EndpointConfig, UlpConfig};
use tcp_lite::mpa::{self, Revision};
use verbs_layout::completion::{self, Request};
use verbs_layout::doorbell::{self, Ringer};
use verbs_layout::work::{
    Completion, Inline, Operation, Payload, ReceiveWork, Remote, SendWork, Sge, SgeList,
};
use verbs_layout::{Unit, ring, session};

use super::sctp;
use super::test_host::*;
use crate::api::{
    self, Command, CompletionQueueConfig, Connect, Event, InterfaceId, ProgramConfig, ProgramId,
    QueuePairConfig, QueuePairId, Receives, Service, SharedReceives, Ticket, Transport,
};
use crate::memory::{Arena, Maps, Memory, QueueArea, ViewConfig};
use crate::signal::Signal;

pub(super) const PROGRAM: ProgramId = ProgramId(7);
pub(super) const SRQ: u32 = 8;
/// Address of the first byte of a program's memory region, which is also its TO.
pub(super) const ADDRESS: u64 = 0x7f00_0000_1000;
/// Size of a program's memory region, bytes.
pub(super) const MEMORY: u64 = 1 << 20;
const PORT: u16 = 4793;
/// Alignment of the queues in the program's memory, bytes.
const LINE: u64 = 128;

/// Parameters of a test program with its QP and CQ.
#[derive(Clone, Copy)]
pub(super) struct PairPlan {
    /// Capacity of each ring, in units of 64 bytes.
    pub(super) units: usize,
    pub(super) max_sends: u32,
    pub(super) max_receives: u32,
    /// Number of entries of the CQ.
    pub(super) completions: usize,
    /// Maximum work for the program per turn of the worker.
    pub(super) budget: u32,
    pub(super) copy_sources: bool,
    pub(super) transport: Transport,
    /// True if the QP takes its receives from an SRQ.
    pub(super) shared: bool,
}

impl PairPlan {
    pub(super) const DEFAULT: PairPlan = PairPlan {
        units: 256,
        max_sends: 64,
        max_receives: 64,
        completions: 256,
        budget: 64,
        copy_sources: false,
        transport: Transport::Tcp,
        shared: false,
    };
}

impl Default for PairPlan {
    fn default() -> PairPlan {
        PairPlan::DEFAULT
    }
}

/// A program with one QP, whose queues share a CQ, and one memory region.
pub(super) struct TestProgram {
    program: ProgramId,
    pub(super) number: u32,
    pub(super) area: &'static QueueArea,
    pub(super) sends: ring::Producer<'static>,
    pub(super) receives: ring::Producer<'static>,
    pub(super) completions: completion::Consumer<'static>,
    pub(super) bells: Ringer<'static>,
    /// The program's end of the socket for notifications.
    pub(super) channel: OwnedFd,
    /// The program's end of the socket for wake-ups; `None` once closed.
    pub(super) wake: Option<OwnedFd>,
    pub(super) stag: Stag,
    pub(super) memory: Memory,
    /// Byte offset of the SQ in the area.
    pub(super) sends_at: u64,
    /// Byte offset of the RQ or SRQ in the area.
    receives_at: u64,
    pub(super) shared: Option<Arc<SharedReceives>>,
}

impl TestProgram {
    /// Registers the program [`PROGRAM`] with its queues at the first worker of a host.
    pub(super) fn attach(net: &mut Net, host: usize, plan: PairPlan) -> TestProgram {
        TestProgram::attach_as(net, host, plan, PROGRAM)
    }

    /// Registers a program with its queues at the first worker of a host.
    pub(super) fn attach_as(
        net: &mut Net,
        host: usize,
        plan: PairPlan,
        program: ProgramId,
    ) -> TestProgram {
        let program_id = program;
        let align = |words: usize| (words as u64 * 8).next_multiple_of(LINE);
        let bells_at = LINE;
        let sends_at = bells_at + align(doorbell::WORDS);
        let receives_at = sends_at + align(ring::words(plan.units));
        let completions_at = receives_at + align(ring::words(plan.units));
        let bytes = completions_at + align(completion::words(plan.completions));
        let maps = Maps::default();
        let (area, _) = QueueArea::create("queues", bytes, &maps).unwrap();
        let area: &'static QueueArea = Box::leak(Box::new(area));
        let (wake, program_wake) = Signal::pair().unwrap();
        let (channel, program_channel) = Signal::pair().unwrap();
        let number = 3;
        let id = QueuePairId { program: program_id, number };
        let ring = |at| area.ring(at, plan.units).unwrap();
        let shared = plan.shared.then(|| {
            let ring = area.shared_ring(receives_at, plan.units).unwrap();
            Arc::new(SharedReceives::new((PROGRAM, SRQ), PD, ring, plan.units as u32))
        });
        let receives = match &shared {
            Some(shared) => Receives::Shared(shared.clone()),
            None => Receives::Own(ring(receives_at)),
        };
        let program = ProgramConfig {
            id: program_id,
            doorbells: area.doorbells(bells_at).unwrap(),
            wake,
            budget: plan.budget,
        };
        let queue = CompletionQueueConfig {
            program: program_id,
            number: 5,
            queue: area.completion_queue(completions_at, plan.completions).unwrap(),
            channel: Some(Arc::new(channel)),
        };
        let pair = QueuePairConfig {
            id,
            pd: PD,
            sends: ring(sends_at),
            max_sends: plan.max_sends,
            receives,
            max_receives: plan.max_receives,
            send_completions: 5,
            receive_completions: 5,
            copy_sources: plan.copy_sources,
        };
        let commands = [
            Box::new(move |ticket| Command::AddProgram { program: Box::new(program), ticket })
                as Box<dyn FnOnce(Ticket) -> Command>,
            Box::new(move |ticket| Command::AddCompletionQueue { queue: Box::new(queue), ticket }),
            Box::new(move |ticket| Command::AddQueuePair { pair: Box::new(pair), ticket }),
        ];
        for command in commands {
            let ticket = net.hosts[host].command(0, command);
            assert_eq!(net.wait_done(host, ticket), Ok(()));
        }
        let part = |at, words| session::part(area.words(), at, words).unwrap();
        let ring = |at| ring::Producer::new(part(at, ring::words(plan.units)), plan.units).unwrap();
        let words = part(completions_at, completion::words(plan.completions));
        let completions = completion::Consumer::new(words, plan.completions).unwrap();
        let bells = Ringer::new(part(bells_at, doorbell::WORDS)).unwrap();
        let stag = Stag(0x5000 + host as u32 + 0x100 * (program_id.0 - PROGRAM.0));
        let memory = register(net, host, stag, true);
        TestProgram {
            program: program_id,
            number,
            area,
            sends: ring(sends_at),
            receives: ring(receives_at),
            completions,
            bells,
            channel: program_channel,
            wake: Some(program_wake),
            stag,
            memory,
            sends_at,
            receives_at,
            shared,
        }
    }

    pub(super) fn id(&self) -> QueuePairId {
        QueuePairId { program: self.program, number: self.number }
    }

    /// Returns an SGE of the program's region.
    pub(super) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { address: ADDRESS + offset, len, lkey: self.stag.0 }
    }

    /// Returns the address at `offset` in the region, for Writes, Reads and atomics of the other program.
    pub(super) fn remote(&self, offset: u64) -> Remote {
        Remote { stag: self.stag.0, to: ADDRESS + offset }
    }

    pub(super) fn gather(&self, pieces: &[(u64, u32)]) -> Payload {
        Payload::Gather(self.list(pieces))
    }

    pub(super) fn list(&self, pieces: &[(u64, u32)]) -> SgeList {
        let sges: Vec<_> = pieces.iter().map(|&(offset, len)| self.sge(offset, len)).collect();
        SgeList::new(&sges).unwrap()
    }

    /// Posts a signalled operation and rings the doorbell.
    pub(super) fn post(&mut self, wr_id: u64, operation: Operation) {
        self.post_work(&SendWork { wr_id, signalled: true, fence: false, operation });
    }

    pub(super) fn post_work(&mut self, work: &SendWork) {
        self.sends.push(&work.encode()).unwrap();
        self.publish_sends();
    }

    /// Posts arbitrary units, not necessarily a valid descriptor.
    pub(super) fn post_units(&mut self, units: &[Unit]) {
        self.sends.push(units).unwrap();
        self.publish_sends();
    }

    fn publish_sends(&mut self) {
        self.sends.publish();
        self.bells.ring(self.id().send_doorbell()).unwrap();
    }

    /// Posts a receive into pieces of the region.
    pub(super) fn receive(&mut self, wr_id: u64, pieces: &[(u64, u32)]) {
        let work = ReceiveWork { wr_id, buffers: self.list(pieces) };
        self.post_receive(&work);
    }

    pub(super) fn post_receive(&mut self, work: &ReceiveWork) {
        self.receives.push(&work.encode()).unwrap();
        if self.shared.is_some() {
            return self.receives.publish_counted(1);
        }
        self.receives.publish();
        self.bells.ring(self.id().receive_doorbell()).unwrap();
    }

    /// Overwrites a word of the SRQ.
    pub(super) fn shared_word(&self, at: usize, word: u64) {
        let words = session::part(self.area.words(), self.receives_at, at + 1).unwrap();
        words[at].store(word, Ordering::Release);
    }

    /// Takes the next completion, if there is one.
    pub(super) fn poll(&mut self) -> Option<Completion> {
        let completion = self.completions.poll().unwrap();
        self.completions.release();
        completion
    }

    /// Requests a notification of the next completion, or of the next solicited completion.
    pub(super) fn arm(&mut self, request: Request) {
        self.completions.arm(request);
    }

    /// Returns the number of notifications since the last call.
    pub(super) fn notifications(&self) -> usize {
        let mut bytes = [0; 64];
        recv(&self.channel, &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(count, _)| count)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(offset, bytes);
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

/// Registers a memory region of a new arena. Peers may read it, and if `writable` also write it and use atomics.
pub(super) fn register(net: &mut Net, host: usize, stag: Stag, writable: bool) -> Memory {
    let arena = Arena::create("arena", MEMORY).unwrap();
    let config = ViewConfig { writable, lock: false };
    let whole = 0..MEMORY;
    let memory =
        arena.view(std::slice::from_ref(&whole), config, &Maps::default(), &mut |_| true).unwrap();
    let access = match writable {
        true => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC,
        false => Access::REMOTE_READ,
    };
    let entry = StagEntry {
        stag,
        pd: PD,
        stream: None,
        base_to: TaggedOffset(ADDRESS),
        len: MEMORY,
        access,
        memory: memory.clone(),
        memory_offset: 0,
    };
    let ticket =
        net.hosts[host].command(0, |ticket| Command::AddStag { entry: entry.clone(), ticket });
    assert_eq!(net.wait_done(host, ticket), Ok(()));
    memory
}

/// Two hosts with one program each.
pub(super) struct Programs {
    pub(super) net: Net,
    pub(super) a: TestProgram,
    pub(super) b: TestProgram,
    transport: Transport,
}

impl Programs {
    pub(super) fn new(plan: PairPlan) -> Programs {
        let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
        let a = TestProgram::attach(&mut net, 0, plan);
        let b = TestProgram::attach(&mut net, 1, plan);
        let transport = plan.transport;
        net.hosts[1].listen_as(PORT, 100, 100, endpoint(transport));
        Programs { net, a, b, transport }
    }

    /// Creates two programs and connects their QPs.
    pub(super) fn connected(plan: PairPlan) -> Programs {
        let mut programs = Programs::new(plan);
        programs.connect();
        programs
    }

    /// Connects the QPs. Returns the streams of `a` and `b`.
    pub(super) fn connect(&mut self) -> (StreamId, StreamId) {
        self.connect_pairs(self.a.id(), self.b.id())
    }

    /// Connects a QP of `a` with a QP of `b`. Returns their streams.
    pub(super) fn connect_pairs(&mut self, a: QueuePairId, b: QueuePairId) -> (StreamId, StreamId) {
        let service = Service::Program(a);
        let endpoint = endpoint(self.transport);
        self.net.hosts[0].command(0, |ticket| {
            Command::Connect(Box::new(Connect {
                ip: Default::default(),
                ticket,
                interface: InterfaceId(0),
                local: None,
                remote: SocketAddr::new(v4(2), PORT),
                endpoint,
                ulp: ulp(),
                service,
                pd: PD,
                stags: Vec::new(),
                private_data: b"hello".to_vec(),
                timeout: Duration::from_secs(20),
            }))
        });
        let there = self.net.run_until("a request", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Incoming { stream, .. } => Some(*stream),
                _ => None,
            })
        });
        let (pd, private_data) = (PD, b"welcome".to_vec());
        let service = Service::Program(b);
        let accept = Command::Accept { stream: there, pd, private_data, ulp: ulp(), service };
        self.net.hosts[1].command(there.worker().into(), |_| accept);
        let here = self.net.run_until("both ends", |net| {
            net.hosts[0].take_event(|e| match e {
                Event::Established { stream, ticket: Some(_), .. } => Some(*stream),
                Event::ConnectFailed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        });
        self.net.run_until_idle();
        (here, there)
    }

    /// Runs until the program of host `host` has a completion, and returns it.
    pub(super) fn completion(&mut self, host: usize) -> Completion {
        let program = if host == 0 { &mut self.a } else { &mut self.b };
        self.net.run_until("a completion", |_| program.poll())
    }

    /// Runs until the program of host `host` has had `count` completions, and returns them.
    pub(super) fn completions(&mut self, host: usize, count: usize) -> Vec<Completion> {
        (0..count).map(|_| self.completion(host)).collect()
    }
}

pub(super) fn ulp() -> UlpConfig {
    rdmap::Config { ird: 4, ord: 4, ..rdmap::Config::default() }.into()
}

pub(super) fn endpoint(transport: Transport) -> api::EndpointConfig {
    match transport {
        Transport::Tcp => {
            let mpa = mpa::Config { initiate: Revision::Two, ..mpa::Config::default() };
            EndpointConfig { mpa, ..EndpointConfig::default() }.into()
        }
        Transport::Sctp => sctp::config().into(),
    }
}

pub(super) fn inline(bytes: &[u8]) -> Payload {
    Payload::Inline(Inline::new(bytes).unwrap())
}

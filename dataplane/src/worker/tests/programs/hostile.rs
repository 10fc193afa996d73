//! Programs that violate the protocol of the queues or post invalid requests: only their own QPs end.

use std::sync::atomic::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_layout::completion::CompletionError;
use verbs_layout::ring::RingError;
use verbs_layout::work::{
    AtomicResult, DescriptorError, Operation, Payload, ReceiveWork, SendWork, Sge, SgeList, Status,
    WindowBind,
};
use verbs_layout::{Unit, session};

use super::*;
use crate::api::{ProgramEvent, QueuePairError, WindowId, WindowKind};

/// Returns the next event about the program of host 0.
pub(super) fn program_event(programs: &mut Programs) -> ProgramEvent {
    program_event_of(programs, 0)
}

/// Returns the next event about the program of a host.
pub(super) fn program_event_of(programs: &mut Programs, host: usize) -> ProgramEvent {
    programs.net.run_until("an event about the program", |net| {
        net.hosts[host].take_event(|e| match e {
            Event::Program(event) => Some(*event),
            _ => None,
        })
    })
}

pub(super) fn failed(reason: QueuePairError) -> ProgramEvent {
    failed_pair(3, reason)
}

pub(super) fn failed_pair(number: u32, reason: QueuePairError) -> ProgramEvent {
    let id = crate::api::QueuePairId { program: PROGRAM, number };
    ProgramEvent::QueuePairFailed { id, reason }
}

fn gather(sge: Sge) -> Payload {
    Payload::Gather(SgeList::new(&[sge]).unwrap())
}

#[test]
fn sge_outside_the_domain_fails_the_request_in_its_place() {
    type Change = fn(&mut Sge);
    let changes: [(&str, Change); 5] = [
        ("unknown lkey", |sge| sge.lkey += 1),
        ("below the region", |sge| sge.address = ADDRESS - 1),
        ("across the end", |sge| sge.address = ADDRESS + MEMORY - 7),
        ("overflow", |sge| sge.address = u64::MAX),
        ("other domain", |sge| sge.lkey = 0x9000),
    ];
    for (what, change) in changes {
        let mut programs = Programs::connected(PairPlan::default());
        programs.add_foreign_region();
        let mut sge = programs.a.sge(0, 8);
        change(&mut sge);
        programs.b.receive(9, &[(0, 64)]);
        programs.a.post(1, Operation::Send { payload: inline(b"good"), solicited: false });
        programs.a.post(2, Operation::Send { payload: gather(sge), solicited: false });
        programs.a.post(3, Operation::Send { payload: inline(b"late"), solicited: false });
        let statuses: Vec<_> =
            programs.completions(0, 3).into_iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(
            (statuses[1], statuses[2]),
            ((2, Status::LocalProtection), (3, Status::Flushed)),
            "{what}"
        );
        assert_eq!(statuses[0].0, 1, "{what}");
        assert_eq!(program_event(&mut programs), failed(QueuePairError::SendProtection), "{what}");
    }
}

impl Programs {
    /// Adds a region of another protection domain at host 0, with STag 0x9000.
    pub(super) fn add_foreign_region(&mut self) {
        let memory = self.a.memory.clone();
        let entry = ddp::StagEntry {
            stag: ddp::Stag(0x9000),
            pd: ddp::PdId(PD.0 + 1),
            stream: None,
            base_to: ddp::TaggedOffset(ADDRESS),
            len: MEMORY,
            access: ddp::Access::NONE,
            memory,
            memory_offset: 0,
        };
        let add = |ticket| Command::AddStag { entry, ticket };
        let ticket = self.net.hosts[0].command(0, add);
        assert_eq!(self.net.wait_done(0, ticket), Ok(()));
    }
}

#[test]
fn read_only_region_is_refused_as_sink() {
    let read_only = ddp::Stag(0x6000);
    let sge = Sge { address: ADDRESS, len: 8, lkey: read_only.0 };
    let posts: [fn(&mut TestProgram, Sge, u64); 3] = [
        |a, sge, to| {
            let remote = verbs_layout::work::Remote { stag: 0x5001, to };
            a.post(1, Operation::Read { remote, sinks: SgeList::new(&[sge]).unwrap() });
        },
        |a, sge, to| {
            let remote = verbs_layout::work::Remote { stag: 0x5001, to };
            let result = AtomicResult { address: sge.address, lkey: sge.lkey };
            a.post(1, Operation::FetchAdd { remote, add: 1, result });
        },
        |a, sge, _| {
            a.post_receive(&ReceiveWork { wr_id: 1, buffers: SgeList::new(&[sge]).unwrap() });
        },
    ];
    for post in posts {
        let mut programs = Programs::connected(PairPlan::default());
        register(&mut programs.net, 0, read_only, false);
        post(&mut programs.a, sge, ADDRESS);
        assert_eq!(programs.completion(0).status, Status::LocalProtection);
    }
    // A read-only region is allowed as a source.
    let mut programs = Programs::connected(PairPlan::default());
    register(&mut programs.net, 0, read_only, false);
    let remote = programs.b.remote(0);
    programs.a.post(1, Operation::Write { remote, payload: gather(sge) });
    assert_eq!(programs.completion(0).status, Status::Success);
}

#[test]
fn read_only_region_takes_no_rights_to_write() {
    let mut programs = Programs::connected(PairPlan::default());
    let memory = register(&mut programs.net, 0, ddp::Stag(0x6000), false);
    for access in [ddp::Access::REMOTE_WRITE, ddp::Access::ATOMIC] {
        let entry = ddp::StagEntry {
            stag: ddp::Stag(0x6001),
            pd: PD,
            stream: None,
            base_to: ddp::TaggedOffset(0),
            len: 8,
            access,
            memory: memory.clone(),
            memory_offset: 0,
        };
        let ticket = programs.net.hosts[0].command(0, |ticket| Command::AddStag { entry, ticket });
        assert!(programs.net.wait_done(0, ticket).is_err());
        let stag = ddp::Stag(0x6000);
        let change = |ticket| Command::SetAccess { stag, access, ticket };
        let ticket = programs.net.hosts[0].command(0, change);
        assert!(programs.net.wait_done(0, ticket).is_err());
    }
}

#[test]
fn broken_rules_end_the_pair_with_an_event() {
    let bind = WindowBind { window: 1, region: 2, address: 3, len: 4, access: Default::default() };
    let window = SendWork {
        wr_id: 1,
        signalled: true,
        fence: false,
        operation: Operation::BindWindow(bind),
    };
    type Break = Box<dyn Fn(&mut TestProgram)>;
    // The first word of a descriptor has the number of units in bits 0..8 and the opcode in bits 8..16.
    let cases: Vec<(QueuePairError, Break)> = vec![
        (QueuePairError::Window, Box::new(move |a| a.post_work(&window))),
        (QueuePairError::SendQueue(RingError::UnitCount(0)), Box::new(|a| a.post_units(&[[0; 8]]))),
        (
            QueuePairError::SendQueue(RingError::Truncated { units: 3, available: 1 }),
            Box::new(|a| a.post_units(&[[3, 0, 0, 0, 0, 0, 0, 0]])),
        ),
        (
            QueuePairError::SendDescriptor(DescriptorError::Opcode(99)),
            Box::new(|a| a.post_units(&[[1 | 99 << 8, 0, 0, 0, 0, 0, 0, 0]])),
        ),
        (
            QueuePairError::SendQueue(RingError::LyingIndex),
            Box::new(|a| {
                let words = session::part(a.area.words(), a.sends_at, 1).unwrap();
                words[0].store(1 << 40, Ordering::Release);
                a.bells.ring(a.id().send_doorbell()).unwrap();
            }),
        ),
    ];
    for (reason, break_rule) in cases {
        let mut programs = Programs::connected(PairPlan::default());
        break_rule(&mut programs.a);
        assert_eq!(program_event(&mut programs), failed(reason));
        // The peer's QP ends, too.
        programs.b.receive(7, &[(0, 8)]);
        assert_eq!(programs.completion(1).status, Status::Flushed);
    }
}

#[test]
fn full_completion_queue_ends_its_pairs_only() {
    let mut programs = Programs::connected(PairPlan { completions: 8, ..PairPlan::default() });
    for wr_id in 0..20 {
        let Programs { a, b, .. } = &mut programs;
        let payload = inline(b"x");
        a.post(wr_id, Operation::Write { remote: b.remote(0), payload });
    }
    let event = program_event(&mut programs);
    let (program, number, reason) = (PROGRAM, 5, CompletionError::Full);
    assert_eq!(event, ProgramEvent::CompletionQueueFailed { program, number, reason });
    assert_eq!(program_event(&mut programs), failed(QueuePairError::CompletionQueue));
    programs.b.receive(7, &[(0, 8)]);
    assert_eq!(programs.completion(1).status, Status::Flushed, "the peer's QP ends in order");
}

#[test]
fn message_longer_than_its_receive_is_refused() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.b.receive(1, &[(0, 100)]);
    programs.b.receive(2, &[(1000, 100)]);
    programs.a.post(1, Operation::Send { payload: inline(&[5; 101]), solicited: false });
    let first = programs.completion(1);
    assert_eq!((first.wr_id, first.status), (1, Status::LocalLength));
    let second = programs.completion(1);
    assert_eq!((second.wr_id, second.status), (2, Status::Flushed));
    assert_eq!(programs.b.read(0, 200), vec![0; 200]);
}

#[test]
fn refused_read_has_its_status() {
    let mut programs = Programs::connected(PairPlan::default());
    let sinks = programs.a.list(&[(0, 8)]);
    let remote = programs.b.remote(MEMORY);
    programs.a.post(1, Operation::Read { remote, sinks });
    let operation = Operation::Send { payload: inline(b"x"), solicited: false };
    programs.a.post_work(&SendWork { wr_id: 2, signalled: true, fence: true, operation });
    let statuses: Vec<_> =
        programs.completions(0, 2).into_iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(statuses, [(1, Status::RemoteAccess), (2, Status::Flushed)]);
}

#[derive(Clone, Debug)]
enum Step {
    /// Appends units to the SQ and publishes them.
    Units(Vec<Unit>),
    /// Overwrites a word of the queue area: index, value.
    Word(usize, u64),
    Bell(u32),
    /// Sends a message of the peer.
    Message,
    Turn,
}

fn unit() -> impl Strategy<Value = Unit> {
    // A descriptor that probably decodes. Its first word has the number of units, opcode, flags and number of SGEs.
    let likely = (1..6u64, 0..11u64, 0..16u64, 0..7u64).prop_map(|(units, opcode, flags, sges)| {
        [
            units | opcode << 8 | flags << 16 | sges << 24,
            1,
            ADDRESS,
            0x5001,
            0,
            0,
            ADDRESS,
            8 | 0x5000 << 32,
        ]
    });
    // Binds and invalidations of a window of type 2 (0x77) or type 1 (0x78).
    let window =
        (0x77..0x79u64, 0..3u64, 0..MEMORY, 0..32u64).prop_map(|(window, key, len, access)| {
            let stag = (window << 8 | key) << 32;
            [1 | 6 << 8, 1, ADDRESS, 0x5000 | stag, len, access, 0, 0]
        });
    let invalidation =
        (0..3u64).prop_map(|key| [1 | 5 << 8, 1, 0, (0x7700 | key) << 32, 0, 0, 0, 0]);
    prop_oneof![likely, window, invalidation, any::<Unit>()]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        vec(unit(), 1..6).prop_map(Step::Units),
        (any::<usize>(), prop_oneof![any::<u64>(), 0..1000u64])
            .prop_map(|(at, word)| Step::Word(at, word)),
        any::<u32>().prop_map(|bell| Step::Bell(bell % verbs_layout::doorbell::QUEUES)),
        Just(Step::Message),
        Just(Step::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Arbitrary words in all queues of a program: the worker does not panic, and a region of the other host without
    /// access rights does not change.
    #[test]
    fn arbitrary_words_harm_no_other_program(steps in vec(step(), 1..60), shared in any::<bool>()) {
        let plan = PairPlan { units: 16, budget: 8, shared, ..PairPlan::default() };
        let mut programs = Programs::connected(plan);
        programs.add_window(0, WindowId(0x77), WindowKind::Two);
        programs.add_window(0, WindowId(0x78), WindowKind::One);
        programs.b.write(0, &pattern(4096));
        // A region of the other host, whose access rights are removed below.
        let stag = ddp::Stag(0x6001);
        let guard = register(&mut programs.net, 1, stag, true);
        guard.write(0, &pattern(4096));
        let Programs { net, a, b, .. } = &mut programs;
        let unbind = |ticket| Command::SetAccess { stag, access: ddp::Access::NONE, ticket };
        let ticket = net.hosts[1].command(0, unbind);
        prop_assert_eq!(net.wait_done(1, ticket), Ok(()));
        let words = a.area.words();
        for step in steps {
            match step {
                Step::Units(units) => {
                    if a.sends.push(&units).is_ok() {
                        a.sends.publish();
                    }
                    a.bells.ring(a.id().send_doorbell()).unwrap();
                }
                Step::Word(at, word) => words[16 + at % (words.len() - 16)].store(word, Ordering::Release),
                Step::Bell(bell) => {
                    a.bells.ring(bell).unwrap();
                }
                Step::Message => {
                    let work = SendWork {
                        wr_id: 1,
                        signalled: false,
                        fence: false,
                        operation: Operation::Send { payload: inline(b"hello"), solicited: true },
                    };
                    if b.sends.push(&work.encode()).is_ok() {
                        b.sends.publish();
                        b.bells.ring(b.id().send_doorbell()).unwrap();
                    }
                }
                Step::Turn => {
                    net.turn();
                }
            }
        }
        for _ in 0..200 {
            net.turn();
        }
        let mut bytes = vec![0; 4096];
        guard.read(0, &mut bytes);
        prop_assert_eq!(bytes, pattern(4096));
    }
}

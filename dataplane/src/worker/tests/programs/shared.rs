//! Shared receive queues: order of use, several QPs, the limit, empty queues, ends of QPs, and hostile programs.

use std::sync::atomic::Ordering;

use verbs_layout::ring::{self, RingError};
use verbs_layout::session;
use verbs_layout::work::{DescriptorError, Sge};

use super::hostile::{failed_pair, program_event_of};
use super::*;
use crate::api::{
    ProgramEvent, QueuePairConfig, QueuePairError, QueuePairId, Receives, SharedReceivesError,
};
use crate::memory::{Maps, QueueArea};

const SHARED: PairPlan = PairPlan { shared: true, ..PairPlan::DEFAULT };
const SECOND: QueuePairId = QueuePairId { program: PROGRAM, number: 4 };

/// A further QP of a program, with the program's SRQ or its own RQ, and the program's CQ.
struct SecondPair {
    sends: ring::Producer<'static>,
}

impl SecondPair {
    fn add(programs: &mut Programs, host: usize) -> SecondPair {
        const UNITS: usize = 64;
        let bytes = ring::words(UNITS) as u64 * 8;
        let (area, _) = QueueArea::create("second", 128 + 2 * bytes, &Maps::default()).unwrap();
        let area: &'static QueueArea = Box::leak(Box::new(area));
        let program = if host == 0 { &programs.a } else { &programs.b };
        let receives = match &program.shared {
            Some(shared) => Receives::Shared(shared.clone()),
            None => Receives::Own(area.ring(128 + bytes, UNITS).unwrap()),
        };
        let pair = QueuePairConfig {
            id: SECOND,
            pd: PD,
            sends: area.ring(128, UNITS).unwrap(),
            max_sends: 16,
            receives,
            max_receives: 16,
            send_completions: 5,
            receive_completions: 5,
            copy_sources: false,
        };
        let add = |ticket| Command::AddQueuePair { pair: Box::new(pair), ticket };
        let ticket = programs.net.hosts[host].command(0, add);
        assert_eq!(programs.net.wait_done(host, ticket), Ok(()));
        let part = session::part(area.words(), 128, ring::words(UNITS)).unwrap();
        SecondPair { sends: ring::Producer::new(part, UNITS).unwrap() }
    }

    fn post(&mut self, program: &TestProgram, wr_id: u64, operation: Operation) {
        let work = SendWork { wr_id, signalled: true, fence: false, operation };
        self.sends.push(&work.encode()).unwrap();
        self.sends.publish();
        program.bells.ring(SECOND.send_doorbell()).unwrap();
    }
}

/// Two programs with two connected QPs each. The QPs of `b` share an SRQ. Returns the second QP of `a`.
fn two_pairs() -> (Programs, SecondPair) {
    let mut programs = Programs::new(SHARED);
    let second = SecondPair::add(&mut programs, 0);
    SecondPair::add(&mut programs, 1);
    let first = programs.a.id();
    programs.connect_pairs(first, programs.b.id());
    programs.connect_pairs(SECOND, SECOND);
    (programs, second)
}

fn send(bytes: &[u8]) -> Operation {
    Operation::Send { payload: inline(bytes), solicited: false }
}

/// Returns `wr_id`, QP number, status and length of a completion.
fn summary(completion: Completion) -> (u64, u32, Status, u32) {
    let Completion { wr_id, qp_number, status, byte_len, .. } = completion;
    (wr_id, qp_number, status, byte_len)
}

#[test]
fn pairs_take_shared_receives_in_the_order_of_arrivals() {
    let (mut programs, mut second) = two_pairs();
    for n in 0..4 {
        programs.b.receive(20 + n, &[(n * 100, 100)]);
    }
    for n in 0..4u8 {
        let data = [n + 1; 10];
        match n % 2 {
            0 => second.post(&programs.a, 7, send(&data)),
            _ => programs.a.post(7, send(&data)),
        }
        let number = if n % 2 == 0 { 4 } else { 3 };
        let expected = (20 + u64::from(n), number, Status::Success, 10);
        assert_eq!(summary(programs.completion(1)), expected);
        assert_eq!(programs.completion(0).status, Status::Success);
        assert_eq!(programs.b.read(u64::from(n) * 100, 10), data);
    }
    // Immediate Data takes a receive, too, and does not change the receive's memory.
    programs.b.receive(30, &[(0, 8)]);
    programs.a.post(8, Operation::Immediate { data: *b"8 bytes!", solicited: true });
    let carried = Carried::Immediate(*b"8 bytes!");
    assert_eq!(programs.completion(1), received(30, 0, true, carried));
}

#[test]
fn message_takes_its_receive_when_its_first_segment_arrives() {
    let mut programs = Programs::connected(SHARED);
    for n in 0..3 {
        programs.b.receive(20 + n, &[(n * 1000, 1000)]);
    }
    // The first message is lost once, and arrives after the second.
    let mut lost = false;
    programs.net.is_lost = Box::new(move |_, frame| {
        let is_first = frame.windows(4).any(|bytes| bytes == [0xa1; 4]);
        is_first && !std::mem::replace(&mut lost, true)
    });
    programs.a.post(1, send(&[0xa1; 200]));
    programs.net.run_until_idle();
    programs.a.post(2, send(&[0xa2; 201]));
    programs.a.post(3, send(&[0xa3; 202]));
    let received: Vec<_> = programs.completions(1, 3).into_iter().map(summary).collect();
    let lens: Vec<_> = received.iter().map(|&(_, _, _, len)| len).collect();
    assert_eq!(lens, [200, 201, 202], "in the order of messages");
    let mut receives: Vec<_> = received.iter().map(|&(wr_id, ..)| wr_id).collect();
    assert_ne!(receives[0], 20, "a later message has taken the oldest receive");
    for ((&wr_id, byte), len) in receives.iter().zip([0xa1, 0xa2, 0xa3]).zip([200, 201, 202]) {
        let at = (wr_id - 20) * 1000;
        assert_eq!(programs.b.read(at, len), vec![byte; len]);
        assert_eq!(programs.b.read(at + len as u64, 8), [0; 8]);
    }
    receives.sort_unstable();
    assert_eq!(receives, [20, 21, 22]);
}

#[test]
fn limit_is_reported_once_for_each_request() {
    let mut programs = Programs::connected(SHARED);
    let shared = programs.b.shared.clone().unwrap();
    for n in 0..5 {
        programs.b.receive(n, &[(0, 64)]);
    }
    assert!(!shared.set_limit(4), "five remain");
    let event = ProgramEvent::SharedReceivesLow { program: PROGRAM, number: SRQ };
    let low = |programs: &mut Programs| {
        let mut count = 0;
        while let Some(taken) = programs.net.hosts[1].take_event(|e| match e {
            Event::Program(event) => Some(*event),
            _ => None,
        }) {
            assert_eq!(taken, event);
            count += 1;
        }
        count
    };
    for expected in [0, 1, 0] {
        programs.a.post(1, send(b"x"));
        programs.completion(1);
        programs.net.run_until_idle();
        assert_eq!(low(&mut programs), expected);
    }
    assert!(shared.set_limit(3), "two remain: reported at once");
    assert!(!shared.set_limit(2));
    programs.a.post(1, send(b"x"));
    programs.completion(1);
    programs.net.run_until_idle();
    assert_eq!(low(&mut programs), 1);
    assert!(!shared.set_limit(0));
}

#[test]
fn empty_shared_queue_ends_the_connection_as_an_empty_receive_queue_does() {
    let mut ends = Vec::new();
    for shared in [false, true] {
        let mut programs = Programs::connected(PairPlan { shared, ..PairPlan::default() });
        programs.a.post(1, send(b"nowhere"));
        // A Read is never answered.
        let sinks = programs.a.list(&[(0, 8)]);
        let remote = programs.b.remote(0);
        programs.a.post(2, Operation::Read { remote, sinks });
        let statuses: Vec<_> =
            programs.completions(0, 2).into_iter().map(|completion| completion.status).collect();
        let terminated = programs.net.hosts[0].count("rdmap_terminates_received");
        ends.push((statuses, terminated));
        assert_eq!(programs.b.poll(), None, "nothing was taken");
        programs.b.receive(9, &[(0, 8)]);
        programs.net.run_until_idle();
        let flushed = if shared { None } else { Some(Status::Flushed) };
        assert_eq!(programs.b.poll().map(|completion| completion.status), flushed);
    }
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn end_of_a_pair_flushes_only_the_receives_that_it_has_taken() {
    let (mut programs, mut second) = two_pairs();
    for n in 0..3 {
        programs.b.receive(20 + n, &[(n * 100_000, 100_000)]);
    }
    // Only a part of the message arrives: all further frames with payload are lost.
    let mut frames = 0;
    programs.net.is_lost = Box::new(move |_, frame| {
        frames += u32::from(frame.len() > 1000);
        frame.len() > 1000 && frames > 3
    });
    programs.a.write(0, &[7; 50_000]);
    let payload = programs.a.gather(&[(0, 50_000)]);
    programs.a.post(1, Operation::Send { payload, solicited: false });
    programs.net.run_until("a part of the message", |_| {
        let mut byte = [0];
        programs.b.memory.read(0, &mut byte);
        (byte == [7]).then_some(())
    });
    programs.net.is_lost = Box::new(|_, _| false);
    let stream = programs.stream_of(1, 3);
    programs.net.hosts[1].command(0, |_| Command::Close { stream, abort: true });
    assert_eq!(summary(programs.completion(1)), (20, 3, Status::Flushed, 0));
    programs.net.run_until_idle();
    assert_eq!(programs.b.poll(), None, "the others remain");
    second.post(&programs.a, 7, send(b"next"));
    assert_eq!(summary(programs.completion(1)), (21, 4, Status::Success, 4));
}

impl Programs {
    /// Returns the stream of a QP of a host.
    fn stream_of(&self, host: usize, number: u32) -> ddp::StreamId {
        let programs = &self.net.hosts[host].cores[0].env.programs;
        programs.stream_of(QueuePairId { program: PROGRAM, number }).expect("a stream")
    }
}

#[test]
fn refused_sge_of_a_shared_receive_fails_its_message() {
    type Change = fn(&mut Sge);
    let changes: [(&str, Change); 3] = [
        ("unknown lkey", |sge| sge.lkey += 2),
        ("across the end", |sge| sge.address = ADDRESS + MEMORY - 7),
        ("below the region", |sge| sge.address = ADDRESS - 1),
    ];
    for (what, change) in changes {
        let mut programs = Programs::connected(SHARED);
        let mut sge = programs.b.sge(0, 64);
        change(&mut sge);
        let buffers = SgeList::new(&[sge]).unwrap();
        programs.b.post_receive(&ReceiveWork { wr_id: 9, buffers });
        programs.a.post(1, send(b"message"));
        assert_eq!(summary(programs.completion(1)), (9, 3, Status::LocalProtection, 0), "{what}");
        assert_eq!(programs.b.read(0, 8), [0; 8], "{what}");
    }
    // A receive whose region was removed after the post also fails, and the region's memory is freed.
    let mut programs = Programs::connected(SHARED);
    programs.b.receive(9, &[(0, 64)]);
    let (stag, removal) = (programs.b.stag, SourceRemoval::Wait);
    let remove = |ticket| Command::RemoveStag { stag, removal, ticket };
    let ticket = programs.net.hosts[1].command(0, remove);
    assert_eq!(programs.net.wait_done(1, ticket), Ok(()));
    assert!(programs.b.memory.is_unique());
    programs.a.post(1, send(b"late"));
    assert_eq!(programs.completion(1).status, Status::LocalProtection);
}

#[test]
fn broken_shared_queue_ends_its_pairs_with_an_event() {
    type Break = fn(&mut TestProgram);
    let lying = SharedReceivesError::Ring(RingError::LyingIndex);
    let cases: [(SharedReceivesError, Break); 4] = [
        (lying, |b| b.shared_word(0, 1 << 40)),
        (SharedReceivesError::Ring(RingError::UnitCount(0)), |b| b.shared_word(0, 1)),
        (SharedReceivesError::Ring(RingError::Truncated { units: 3, available: 1 }), |b| {
            b.shared_word(ring::HEADER_WORDS, 3);
            b.shared_word(0, 1);
        }),
        (SharedReceivesError::Descriptor(DescriptorError::Opcode(99)), |b| {
            b.shared_word(ring::HEADER_WORDS, 1 | 99 << 8);
            b.shared_word(0, 1);
        }),
    ];
    for (reason, break_rule) in cases {
        let (mut programs, _second) = two_pairs();
        break_rule(&mut programs.b);
        programs.a.post(1, send(b"x"));
        let event = ProgramEvent::SharedReceivesFailed { program: PROGRAM, number: SRQ, reason };
        assert_eq!(program_event_of(&mut programs, 1), event);
        let failed = QueuePairError::SharedReceives;
        for number in [3, 4] {
            assert_eq!(program_event_of(&mut programs, 1), failed_pair(number, failed));
        }
        // No further receive is taken from the SRQ, and the peer's QPs end.
        programs.net.run_until_idle();
        programs.a.post(2, send(b"x"));
        let statuses: Vec<_> = programs.completions(0, 2).into_iter().map(|c| c.status).collect();
        assert_eq!(statuses[1], Status::Flushed, "{reason}");
    }
}

#[test]
fn lying_count_of_shared_receives_causes_no_limit_events() {
    let mut programs = Programs::connected(SHARED);
    let shared = programs.b.shared.clone().unwrap();
    programs.b.receive(1, &[(0, 64)]);
    programs.b.receive(2, &[(0, 64)]);
    // According to the program's count, fewer receives were posted than taken.
    programs.b.shared_word(1, 0);
    assert!(shared.set_limit(4), "0 remain, according to the program");
    assert!(shared.set_limit(4));
    shared.set_limit(0);
    programs.b.shared_word(1, u64::MAX);
    assert!(!shared.set_limit(200));
    programs.a.post(1, send(b"x"));
    assert_eq!(summary(programs.completion(1)), (1, 3, Status::Success, 1));
    let words = programs.b.area.words();
    assert!(words.iter().any(|word| word.load(Ordering::Relaxed) == u64::MAX));
}

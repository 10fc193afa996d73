//! Local programs: operations between two programs, errors of their posts, flushes, budgets and notifications.

mod hostile;
mod mixes;
mod removal;
mod shared;
mod windows;

use ddp::RegionMemory;
use verbs_layout::completion::Request;
use verbs_layout::work::{
    AtomicResult, Carried, Completed, Completion, Opcode, Operation, ReceiveWork, SendWork,
    SgeList, Status,
};

use super::test_host::*;
use super::test_program::*;
use crate::api::{Command, Event, SourceRemoval, Transport};

fn sent(wr_id: u64, opcode: Opcode, byte_len: u32) -> Completion {
    let (status, completed) = (Status::Success, Completed::Sent(opcode));
    Completion { wr_id, status, completed, byte_len, qp_number: 3 }
}

fn received(wr_id: u64, byte_len: u32, solicited: bool, carried: Carried) -> Completion {
    let (status, completed) = (Status::Success, Completed::Received { solicited, carried });
    Completion { wr_id, status, completed, byte_len, qp_number: 3 }
}

#[test]
fn send_fills_posted_receives_in_order() {
    let mut programs = Programs::new(PairPlan::default());
    // Receives posted before the connection: a receive with two pieces, then a receive with one piece.
    programs.b.receive(20, &[(0, 1000), (5000, 4000)]);
    programs.b.receive(21, &[(10_000, 100)]);
    programs.connect();
    let Programs { net, a, b, .. } = &mut programs;
    let data = pattern(4500);
    a.write(100, &data);
    let payload = a.gather(&[(100, 1), (101, 2999), (3100, 1500)]);
    a.post(1, Operation::Send { payload, solicited: true });
    a.post(2, Operation::Send { payload: inline(b"short"), solicited: false });
    let _ = (net, b);
    assert_eq!(programs.completions(0, 2), [sent(1, Opcode::Send, 0), sent(2, Opcode::Send, 0)]);
    let expected =
        [received(20, 4500, true, Carried::Nothing), received(21, 5, false, Carried::Nothing)];
    assert_eq!(programs.completions(1, 2), expected);
    assert_eq!(programs.b.read(0, 1000), data[..1000]);
    assert_eq!(programs.b.read(1000, 4000), vec![0; 4000], "between the pieces");
    assert_eq!(programs.b.read(5000, 3501), [&data[1000..], &[0]].concat());
    assert_eq!(programs.b.read(10_000, 6), b"short\0");
}

#[test]
fn write_read_and_atomics_use_the_memory_of_both_programs() {
    let mut programs = Programs::connected(PairPlan::default());
    let Programs { a, b, .. } = &mut programs;
    let data = pattern(200_000);
    a.write(0, &data);
    b.write(400_000, &7u64.to_ne_bytes());
    let payload = a.gather(&[(0, 150_000), (150_000, 50_000)]);
    a.post(1, Operation::Write { remote: b.remote(8), payload });
    let sinks = a.list(&[(300_000, 10), (310_000, 0), (320_000, 70_000)]);
    a.post(2, Operation::Read { remote: b.remote(9), sinks });
    let result = |offset| AtomicResult { address: ADDRESS + offset, lkey: a.stag.0 };
    let (add, swap) = (result(500_000), result(500_008));
    let remote = b.remote(400_000);
    a.post(3, Operation::FetchAdd { remote, add: 5, result: add });
    a.post(4, Operation::CompareSwap { remote, compare: 12, swap: 99, result: swap });
    let expected = [
        sent(1, Opcode::Write, 0),
        sent(2, Opcode::Read, 70_010),
        sent(3, Opcode::FetchAdd, 8),
        sent(4, Opcode::CompareSwap, 8),
    ];
    assert_eq!(programs.completions(0, 4), expected);
    let Programs { a, b, .. } = &programs;
    assert_eq!(b.read(8, 200_000), data);
    assert_eq!(a.read(300_000, 10), data[1..11]);
    assert_eq!(a.read(320_000, 70_000), data[11..70_011]);
    let values = [a.read(500_000, 8), a.read(500_008, 8), b.read(400_000, 8)];
    assert_eq!(values, [7u64, 12, 99].map(|value| value.to_ne_bytes().to_vec()));
}

#[test]
fn immediate_data_and_invalidation_are_in_the_completion() {
    let mut programs = Programs::connected(PairPlan::default());
    let Programs { net, a, b, .. } = &mut programs;
    let (here, there) = (b.stag, net.hosts[1].cores[0].streams().next().is_some());
    assert!(there);
    b.post_receive(&ReceiveWork { wr_id: 9, buffers: SgeList::default() });
    b.receive(10, &[(0, 64)]);
    a.post(1, Operation::Immediate { data: *b"8 bytes!", solicited: true });
    assert_eq!(programs.completion(1), received(9, 0, true, Carried::Immediate(*b"8 bytes!")));
    // Binds b's region to the stream alone, so that the peer may invalidate its STag.
    let stream = programs.b_stream();
    let bind = |ticket| Command::BindStag { stag: here, stream: Some(stream), ticket };
    let ticket = programs.net.hosts[1].command(0, bind);
    assert_eq!(programs.net.wait_done(1, ticket), Ok(()));
    let payload = inline(b"bye");
    let stag = here.0;
    programs.a.post(2, Operation::SendInvalidate { payload, solicited: false, stag });
    assert_eq!(programs.completion(1), received(10, 3, false, Carried::Invalidated(stag)));
}

#[test]
fn immediate_data_has_the_length_of_the_write_before_it() {
    for transport in [Transport::Tcp, Transport::Sctp] {
        let mut programs = Programs::connected(PairPlan { transport, ..PairPlan::DEFAULT });
        let Programs { a, b, .. } = &mut programs;
        (10..14).for_each(|wr_id| b.receive(wr_id, &[(0, 64)]));
        let write = |b: &TestProgram, payload| Operation::Write { remote: b.remote(4096), payload };
        let immediate = Operation::Immediate { data: [0xff; 8], solicited: false };
        a.post(1, write(b, inline(b"an earlier Write")));
        a.post(2, write(b, a.gather(&[(0, 30_000), (100, 7)])));
        a.post(3, immediate.clone());
        a.post(4, immediate.clone());
        a.post(5, write(b, inline(b"before a Send")));
        a.post(6, Operation::Send { payload: inline(b"Send"), solicited: false });
        a.post(7, immediate);
        let found = programs.completions(1, 4);
        let lengths: Vec<_> = found.iter().map(|found| (found.wr_id, found.byte_len)).collect();
        assert_eq!(lengths, [(10, 30_007), (11, 0), (12, 4), (13, 0)]);
    }
}

impl Programs {
    /// Returns the stream of the second program.
    fn b_stream(&mut self) -> ddp::StreamId {
        let list =
            |ticket| Command::ListStreams { selection: crate::api::StreamSelection::All, ticket };
        self.net.hosts[1].command(0, list);
        self.net.run_until("a list", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Streams { streams, .. } => Some(streams[0].stream),
                _ => None,
            })
        })
    }
}

#[test]
fn unsignalled_operation_has_no_completion_and_fence_waits_for_reads() {
    let mut programs = Programs::connected(PairPlan::default());
    let Programs { a, b, .. } = &mut programs;
    b.write(0, &pattern(100_000));
    let quiet = |wr_id, operation| SendWork { wr_id, signalled: false, fence: false, operation };
    let sinks = a.list(&[(0, 100_000)]);
    a.post_work(&quiet(1, Operation::Read { remote: b.remote(0), sinks }));
    // The fenced Write sends the bytes that the Read has placed.
    let payload = a.gather(&[(0, 100_000)]);
    let operation = Operation::Write { remote: b.remote(200_000), payload };
    a.post_work(&SendWork { wr_id: 2, signalled: true, fence: true, operation });
    assert_eq!(programs.completion(0), sent(2, Opcode::Write, 0));
    assert_eq!(programs.b.read(200_000, 100_000), pattern(100_000));
}

#[test]
fn posts_beyond_the_bounds_wait_and_none_is_lost() {
    let plan =
        PairPlan { units: 64, max_sends: 3, max_receives: 10, budget: 5, ..PairPlan::default() };
    let mut programs = Programs::connected(plan);
    for round in 0..20u64 {
        let Programs { a, b, .. } = &mut programs;
        for n in 0..10 {
            let at = n * 16;
            b.receive(round * 10 + n, &[(at, 16)]);
            let payload = inline(&(round * 10 + n).to_le_bytes());
            a.post(round * 10 + n, Operation::Send { payload, solicited: false });
        }
        for n in 0..10 {
            let number = round * 10 + n;
            assert_eq!(programs.completion(0), sent(number, Opcode::Send, 0));
            assert_eq!(programs.completion(1), received(number, 8, false, Carried::Nothing));
        }
        let last = programs.b.read(9 * 16, 8);
        assert_eq!(last, (round * 10 + 9).to_le_bytes());
    }
}

#[test]
fn posts_of_a_lossy_path_complete_in_order() {
    let mut programs = Programs::connected(PairPlan::default());
    let mut seen = 0u32;
    programs.net.is_lost = Box::new(move |_, frame| {
        seen += 1;
        frame.len() > 100 && seen.is_multiple_of(7)
    });
    let data = pattern(30_000);
    programs.a.write(0, &data);
    for n in 0..30 {
        let Programs { a, b, .. } = &mut programs;
        b.receive(100 + n, &[(n * 30_000, 10_000), (n * 30_000 + 10_000, 20_000)]);
        let payload = a.gather(&[(0, 30_000)]);
        a.post(n, Operation::Send { payload, solicited: false });
    }
    for n in 0..30 {
        assert_eq!(programs.completion(0), sent(n, Opcode::Send, 0));
        assert_eq!(programs.completion(1), received(100 + n, 30_000, false, Carried::Nothing));
        assert_eq!(programs.b.read(n * 30_000, 30_000), data);
    }
    assert!(programs.net.hosts[0].count("program_sends") == 30);
}

#[test]
fn close_flushes_posts_and_later_ones_in_order() {
    let mut programs = Programs::connected(PairPlan::default());
    for wr_id in 0..3 {
        programs.b.receive(wr_id, &[(0, 64)]);
    }
    programs.net.run_until_idle();
    let stream = programs.b_stream();
    programs.net.hosts[1].command(0, |_| Command::Close { stream, abort: true });
    let flushed = |wr_id, completed| Completion {
        wr_id,
        status: Status::Flushed,
        completed,
        byte_len: 0,
        qp_number: 3,
    };
    let nothing = Completed::Received { solicited: false, carried: Carried::Nothing };
    for wr_id in 0..3 {
        assert_eq!(programs.completion(1), flushed(wr_id, nothing));
    }
    programs.b.receive(3, &[(0, 64)]);
    programs.b.post(4, Operation::Send { payload: inline(b"late"), solicited: false });
    let mut last = programs.completions(1, 2);
    last.sort_by_key(|completion| completion.wr_id);
    assert_eq!(last, [flushed(3, nothing), flushed(4, Completed::Sent(Opcode::Send))]);
    programs.a.post(5, Operation::Send { payload: inline(b"x"), solicited: false });
    assert_eq!(programs.completion(0), flushed(5, Completed::Sent(Opcode::Send)));
}

#[test]
fn ended_pair_flushes_posts_and_later_ones_in_each_state() {
    for transport in [Transport::Tcp, Transport::Sctp] {
        for is_connected in [false, true] {
            let plan = PairPlan { transport, ..PairPlan::DEFAULT };
            let mut pair = Programs::new(plan);
            pair.a.receive(1, &[(0, 8)]);
            match is_connected {
                true => drop(pair.connect()),
                false => {
                    pair.a.post(2, Operation::Send { payload: inline(b"x"), solicited: false })
                }
            }
            let id = pair.a.id();
            pair.net.hosts[0].command(0, |_| Command::EndQueuePair { id });
            pair.a.receive(3, &[(0, 8)]);
            pair.a.post(4, Operation::Send { payload: inline(b"x"), solicited: false });
            pair.a.arm(Request::Next);
            let expected = if is_connected { vec![1, 3, 4] } else { vec![1, 2, 3, 4] };
            let mut found = pair.completions(0, expected.len());
            assert!(found.iter().all(|completion| completion.status == Status::Flushed));
            found.sort_by_key(|completion| completion.wr_id);
            assert_eq!(found.iter().map(|found| found.wr_id).collect::<Vec<_>>(), expected);
            pair.net.run_until_idle();
            // A second command has no effect.
            pair.net.hosts[0].command(0, |_| Command::EndQueuePair { id });
            pair.net.run_until_idle();
            assert_eq!(pair.a.poll(), None);
            if is_connected {
                let event = |e: &Event| matches!(e, Event::Closed { .. }).then_some(());
                pair.net.run_until("the end at the peer", |net| net.hosts[1].take_event(event));
            }
        }
    }
}

#[test]
fn notification_follows_a_request_once() {
    let mut programs = Programs::connected(PairPlan::default());
    let send = |programs: &mut Programs, solicited| {
        programs.b.receive(1, &[(0, 64)]);
        programs.a.post(1, Operation::Send { payload: inline(b"x"), solicited });
        programs.completion(0);
        programs.completion(1);
    };
    send(&mut programs, false);
    assert_eq!(programs.b.notifications(), 0, "none was requested");
    programs.b.arm(Request::Next);
    send(&mut programs, false);
    send(&mut programs, false);
    assert_eq!(programs.b.notifications(), 1);
    programs.b.arm(Request::Solicited);
    send(&mut programs, false);
    assert_eq!(programs.b.notifications(), 0);
    send(&mut programs, true);
    assert_eq!(programs.b.notifications(), 1);
}

#[test]
fn removed_program_resets_its_streams_and_releases_its_memory() {
    let mut programs = Programs::connected(PairPlan::default());
    let Programs { net, a, b, .. } = &mut programs;
    b.receive(1, &[(0, 64)]);
    net.run_until_idle();
    let ticket =
        net.hosts[1].command(0, |ticket| Command::RemoveProgram { program: PROGRAM, ticket });
    assert_eq!(net.wait_done(1, ticket), Ok(()));
    assert_eq!(net.hosts[1].count("queue_pairs"), 0);
    let (stag, removal) = (b.stag, SourceRemoval::Wait);
    let ticket = net.hosts[1].command(0, |ticket| Command::RemoveStag { stag, removal, ticket });
    assert_eq!(net.wait_done(1, ticket), Ok(()));
    assert!(b.memory.is_unique(), "no worker has a handle");
    a.post(5, Operation::Send { payload: inline(b"x"), solicited: false });
    assert_eq!(programs.completion(0).status, Status::Flushed);
    let _ = programs.b.memory.len();
}

#[test]
fn receive_posted_after_the_message_arrived_at_the_port_is_found() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.a.post(1, Operation::Send { payload: inline(b"early"), solicited: false });
    // After one turn of both hosts, the frame is in the receive queue of the second host's port.
    programs.net.turn();
    programs.b.receive(9, &[(0, 64)]);
    assert_eq!(programs.completion(1), received(9, 5, false, Carried::Nothing));
}

#[test]
fn removed_region_is_taken_from_posted_receives() {
    let mut programs = Programs::connected(PairPlan::default());
    programs.b.receive(9, &[(0, 64)]);
    programs.net.run_until_idle();
    let (stag, removal) = (programs.b.stag, SourceRemoval::Wait);
    let remove = |ticket| Command::RemoveStag { stag, removal, ticket };
    let ticket = programs.net.hosts[1].command(0, remove);
    assert_eq!(programs.net.wait_done(1, ticket), Ok(()));
    assert!(programs.b.memory.is_unique(), "no receive has a handle");
    programs.a.post(1, Operation::Send { payload: inline(b"late"), solicited: false });
    assert_eq!(programs.completion(1).status, Status::LocalLength);
    assert_eq!(programs.b.read(0, 4), [0; 4]);
}

#[test]
fn doorbell_wakes_a_sleeping_worker_once() {
    let mut programs = Programs::connected(PairPlan::default());
    let Programs { net, a, .. } = &mut programs;
    net.run_until_idle();
    let core = &mut net.hosts[0].cores[0];
    assert!(!a.bells.ring(a.id().send_doorbell()).unwrap(), "the worker is awake");
    assert!(!core.programs_mut().arm(), "a doorbell was rung");
    core.programs_mut().disarm();
    net.run_until_idle();
    let core = &mut net.hosts[0].cores[0];
    assert!(core.programs_mut().arm());
    let rung = [0, 0].map(|_| a.bells.ring(a.id().send_doorbell()).unwrap());
    assert_eq!(rung, [true, false]);
    assert_eq!(core.programs().descriptors().count(), 1);
    core.programs_mut().disarm();
    // The wake-ups of a program that has closed its end do not end sleeps.
    a.wake = None;
    core.programs_mut().disarm();
    assert_eq!(core.programs().descriptors().count(), 0);
}

#[test]
fn changed_source_is_retransmitted_as_sent_if_copies_are_kept() {
    for copy_sources in [false, true] {
        let mut programs = Programs::connected(PairPlan { copy_sources, ..PairPlan::default() });
        programs.a.write(0, &[1; 1000]);
        // The first transmission is lost.
        let mut lost = 0;
        programs.net.is_lost = Box::new(move |_, frame| {
            lost += u32::from(frame.len() > 1000);
            frame.len() > 1000 && lost == 1
        });
        let payload = programs.a.gather(&[(0, 1000)]);
        let remote = programs.b.remote(0);
        programs.a.post(1, Operation::Write { remote, payload });
        programs.net.run_until_idle();
        // The program changes the source before the completion.
        programs.a.write(0, &[2; 1000]);
        assert_eq!(programs.completion(0), sent(1, Opcode::Write, 0));
        let expected = if copy_sources { 1 } else { 2 };
        assert_eq!(programs.b.read(0, 1000), [expected; 1000]);
    }
}

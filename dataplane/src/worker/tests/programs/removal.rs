//! Removals of programs with many QPs, and of memory regions of such programs: each turn does a bounded part.

use super::*;
use crate::api::{Event, QueuePairConfig, QueuePairId, Receives, Ticket};
use crate::memory::{Maps, QueueArea};

/// Number of QPs besides the connected QP: more than a worker visits in three turns.
const MORE: u32 = 200;
const UNITS: usize = 8;

/// Adds QPs without a connection to the program of the second host.
fn add_pairs(programs: &mut Programs) {
    let Programs { net, b, .. } = programs;
    let bytes = verbs_layout::ring::words(UNITS) as u64 * 8;
    for number in 10..10 + MORE {
        let (area, _) = QueueArea::create("queues", 128 + 2 * bytes, &Maps::default()).unwrap();
        let id = QueuePairId { number, ..b.id() };
        let pair = Box::new(QueuePairConfig {
            id,
            pd: PD,
            sends: area.ring(128, UNITS).unwrap(),
            max_sends: 1,
            receives: Receives::Own(area.ring(128 + bytes, UNITS).unwrap()),
            max_receives: 1,
            send_completions: 5,
            receive_completions: 5,
            copy_sources: false,
        });
        let ticket = net.hosts[1].command(0, |ticket| Command::AddQueuePair { pair, ticket });
        assert_eq!(net.wait_done(1, ticket), Ok(()));
    }
}

fn is_done(net: &mut Net, ticket: Ticket) -> bool {
    let done = |event: &Event| match event {
        Event::Done { ticket: of, result } if *of == ticket => Some(result.clone()),
        _ => None,
    };
    net.hosts[1].take_event(done).inspect(|result| assert_eq!(*result, Ok(()))).is_some()
}

#[test]
fn program_with_many_pairs_is_removed_over_several_turns() {
    let mut programs = Programs::connected(PairPlan::default());
    add_pairs(&mut programs);
    let Programs { net, .. } = &mut programs;
    assert_eq!(net.hosts[1].count("queue_pairs"), u64::from(MORE) + 1);
    let ticket =
        net.hosts[1].command(0, |ticket| Command::RemoveProgram { program: PROGRAM, ticket });
    let mut before = net.hosts[1].count("queue_pairs");
    let mut turns = 0;
    while !is_done(net, ticket) {
        net.turn();
        let now = net.hosts[1].count("queue_pairs");
        assert!(before - now <= 64, "{} QPs in one turn", before - now);
        (before, turns) = (now, turns + 1);
        assert!(turns < 100, "the removal does not end");
    }
    assert_eq!(before, 0);
}

#[test]
fn region_is_taken_from_receives_of_many_pairs_over_several_turns() {
    let mut programs = Programs::connected(PairPlan::default());
    add_pairs(&mut programs);
    let Programs { net, b, .. } = &mut programs;
    b.receive(1, &[(0, 64)]);
    net.run_until_idle();
    let (stag, removal) = (b.stag, SourceRemoval::Wait);
    let ticket = net.hosts[1].command(0, |ticket| Command::RemoveStag { stag, removal, ticket });
    net.turn();
    assert!(is_done(net, ticket), "the worker no longer accepts the STag");
    assert!(!b.memory.is_unique(), "not all QPs are visited");
    net.run_until_idle();
    assert!(b.memory.is_unique(), "no receive has the memory");
}

#[test]
fn receives_beyond_the_bound_of_a_turn_are_taken_in_later_turns_and_before_sends() {
    let plan =
        PairPlan { units: 8192, max_receives: 4096, completions: 4096, ..PairPlan::default() };
    let mut programs = Programs::connected(plan);
    // The accepting side may send after the first message of the connecting side.
    programs.b.receive(9, &[(0, 8)]);
    programs.a.post(9, Operation::Send { payload: inline(b"first"), solicited: false });
    assert_eq!(programs.completion(0), sent(9, Opcode::Send, 0));
    assert_eq!(programs.completion(1), received(9, 5, false, Carried::Nothing));
    let Programs { net, a, b, .. } = &mut programs;
    for wr_id in 0..3000_u64 {
        b.receive(wr_id, &[(wr_id * 8, 8)]);
    }
    let sends = net.hosts[1].count("program_sends");
    b.post(7, Operation::Send { payload: inline(b"posted"), solicited: false });
    a.receive(1, &[(0, 64)]);
    let mut before = net.hosts[1].count("program_receives");
    for _ in 0..2 {
        net.turn();
        let now = net.hosts[1].count("program_receives");
        assert!((1..=1024).contains(&(now - before)), "{} receives in one turn", now - before);
        assert_eq!(net.hosts[1].count("program_sends"), sends, "sends wait");
        before = now;
    }
    assert_eq!(programs.completion(0), received(1, 6, false, Carried::Nothing));
    assert_eq!(programs.net.hosts[1].count("program_receives"), 3001);
    for wr_id in 0..3000_u64 {
        let payload = inline(&wr_id.to_le_bytes());
        programs.a.post(wr_id, Operation::Send { payload, solicited: false });
        assert_eq!(programs.completion(0), sent(wr_id, Opcode::Send, 0));
    }
    programs.net.run_until_idle();
    // Send completion of the program `b`, then its receives in order.
    let completions = programs.completions(1, 3001);
    let receives = completions.into_iter().filter(|c| c.completed != Completed::Sent(Opcode::Send));
    assert!(receives.map(|completion| completion.wr_id).eq(0..3000));
}

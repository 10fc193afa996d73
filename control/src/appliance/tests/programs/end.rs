//! The end of programs after each step, by the operator, and while the appliance drains.

use super::*;

type Step = fn(&mut Client, &mut Rig);

/// Steps of a program. Each step creates an object, a connection or a connection request.
const STEPS: [Step; 10] = [
    |client, rig| drop(client.call(rig, hello())),
    |client, rig| drop(client.call(rig, Call::CreatePd)),
    |client, rig| drop(client.call(rig, register(0, LOCAL_ACCESS))),
    |client, rig| drop(client.call(rig, Call::CreateChannel)),
    |client, rig| {
        let call = Call::CreateCompletionQueue { entries: 4, channel: Some(0) };
        client.call(rig, call).unwrap();
    },
    |client, rig| drop(client.call(rig, queue_pair(0, 0))),
    |client, rig| drop(client.call(rig, connect(0))),
    |_, rig| {
        rig.establish_connect(1);
    },
    |client, rig| {
        client.call(rig, listen(4000)).unwrap();
        rig.request(2, 4000);
    },
    |client, rig| {
        client.call(rig, queue_pair(0, 0)).unwrap();
        let private_data = Vec::new();
        let call = Call::Accept { request: 2, pair: 1, depths: DEPTHS, private_data };
        client.call(rig, call).unwrap();
    },
];

#[test]
fn nothing_is_left_of_a_program_that_ends_after_any_step() {
    for steps in 0..=STEPS.len() {
        let mut rig = Rig::new(PROGRAMS);
        let mut client = Client::new(&rig, 1);
        STEPS[..steps].iter().for_each(|step| step(&mut client, &mut rig));
        client.hang_up(&mut rig);
        rig.assert_empty();
    }
}

/// For each prefix of the calls: the workers answer all calls but the last, then the program hangs up.
#[test]
fn program_ended_before_worker_answers_leaves_no_objects() {
    let calls = [
        hello(),
        Call::CreatePd,
        register(0, LOCAL_ACCESS),
        completion_queue(),
        queue_pair(0, 0),
        connect(0),
        listen(0),
        Call::RemoveQueuePair { pair: 0 },
    ];
    for number in 1..=calls.len() {
        let mut rig = Rig::new(PROGRAMS);
        let mut client = Client::new(&rig, 1);
        for (at, call) in calls[..number].iter().enumerate() {
            // The workers do not answer the last call.
            if at + 1 < number {
                client.call(&mut rig, call.clone()).unwrap();
            } else {
                client.send(&rig, call.clone());
                while rig.bench.core.handle_programs(rig.bench.now) {}
            }
        }
        client.hang_up(&mut rig);
        rig.assert_empty();
    }
}

#[test]
fn end_waits_for_the_last_handle_to_the_memory() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let stag = client.create(&mut rig, register(pd, LOCAL_ACCESS));
    let held = rig.entry(0, stag).unwrap().memory.clone();
    client.hang_up(&mut rig);
    assert!(rig.entry(0, stag).is_none());
    assert_eq!(rig.bench.core.env().stags.live(), 1, "not used again before");
    drop(held);
    rig.assert_empty();
}

#[test]
fn streams_of_an_ended_program_tell_why() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    client.connect(&mut rig, 1);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn program_that_does_not_read_is_disconnected_and_ends() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    client.create(&mut rig, Call::CreatePd);
    let mut calls = 0;
    while !client.outbox.has_ended() {
        client.send(&rig, Call::RemovePd { pd: 7 });
        while rig.bench.core.handle_programs(rig.bench.now) {}
        calls += 1;
        assert!(calls < 100_000, "the backlog is bounded");
    }
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn draining_appliance_refuses_new_things_and_stops_listeners() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.create_pair(&mut rig);
    client.create(&mut rig, listen(4000));
    rig.request(1, 4000);
    rig.bench.core.drain(rig.bench.now);
    let commands = rig.bench.all_commands();
    let is_removal = |command: &&Command| matches!(command, Command::RemoveListener { .. });
    assert_eq!(commands.iter().filter(is_removal).count(), WORKERS);
    assert!(commands.iter().any(|c| matches!(c, Command::Close { abort: true, .. })));
    for call in [connect(pair), listen(4001)] {
        let id = client.send(&rig, call);
        while rig.bench.core.handle_programs(rig.bench.now) {}
        assert_eq!(client.reply(id).unwrap().unwrap_err().kind, RefusalKind::Draining);
    }
    let mut other = Client::new(&rig, 2);
    let id = other.send(&rig, hello());
    while rig.bench.core.handle_programs(rig.bench.now) {}
    assert_eq!(other.reply(id).unwrap().unwrap_err().kind, RefusalKind::Draining);
}

#[test]
fn programs_are_listed_ended_by_the_operator_and_logged() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 3);
    client.connect(&mut rig, 1);
    client.create(&mut rig, register(0, LOCAL_ACCESS));
    client.create(&mut rig, listen(4000));
    let Ok(api::Reply::Programs(all)) = answer(&mut rig.bench.call(Request::Programs)) else {
        panic!()
    };
    let [info] = &all[..] else { panic!("{all:?}") };
    assert_eq!((info.id, info.name.as_str(), info.state.as_str()), (3, "test", "attached"));
    assert_eq!((info.queue_pairs, info.connections, info.completion_queues), (1, 1, 1));
    assert_eq!((info.memory_regions, info.registered, info.requests), (1, PAGE, 0));
    assert_eq!(info.listeners, ["tcp 0.0.0.0:4000"]);
    assert!(info.memory >= 2 * PAGE);
    let mut streams = rig.bench.call(Request::Streams { limit: 9, after: None });
    for (ticket, _) in rig.bench.take_lists() {
        rig.bench.report_list(ticket, Vec::new(), true);
    }
    let Ok(api::Reply::Streams(streams)) = answer(&mut streams) else { panic!() };
    assert_eq!(streams[0].program, Some(3));
    let mut unknown = rig.bench.call(Request::KillProgram(9));
    assert!(answer(&mut unknown).is_err());
    let Ok(api::Reply::Program(info)) = answer(&mut rig.bench.call(Request::KillProgram(3))) else {
        panic!()
    };
    assert_eq!(info.state, "ending");
    client.read();
    assert!(client.is_closed);
    rig.settle();
    // The session's thread reports the end of the session afterwards.
    client.hang_up(&mut rig);
    rig.assert_empty();
    for wanted in [
        |kind: &EventKind| matches!(kind, EventKind::ProgramAttached { program: 3, .. }),
        |kind: &EventKind| matches!(kind, EventKind::ProgramEnded { program: 3, .. }),
    ] {
        assert!(rig.bench.is_logged(wanted));
    }
}

//! Observation of programs by the operator: events, notes and the history of their connections.

use api::explain::NoteKind;
use api::{ExplainSubject, Why};

use super::*;

/// Returns the kinds and sentences of the present notes about programs.
fn notes(rig: &Rig) -> Vec<(NoteKind, String)> {
    let notes = rig.bench.core.env().notes.current(rig.bench.now);
    // Excludes notes about memory that is not locked: the test's process may be unable to lock memory.
    notes.filter(|(kind, _)| *kind == NoteKind::ProgramLimit).collect()
}

fn why(rig: &mut Rig, program: u32) -> Result<Why, ApiError> {
    let mut pending = rig.bench.call(Request::Explain(ExplainSubject::Program(program)));
    for worker in 0..WORKERS {
        for command in rig.bench.commands(worker) {
            let Command::ListRecordings { ticket, .. } = command else { panic!("{command:?}") };
            rig.bench.event(Event::Recordings { ticket: Some(ticket), recordings: Vec::new() });
        }
    }
    match answer(&mut pending)? {
        api::Reply::Explanation(why) => Ok(why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_refusal_of_a_program_is_an_event() {
    let mut rig = Rig::new(PROGRAMS);
    let other_user = AttachedProcess { uid: 12, pid: 77, admitted: false };
    let mut client = Client::of_process(&rig, 1, other_user);
    assert_eq!(client.refused(&mut rig, hello()), RefusalKind::NotAllowed);
    let mut old = Client::new(&rig, 2);
    let call = Call::Hello { oldest: VERSION + 1, newest: 9, name: "x".into() };
    assert_eq!(old.refused(&mut rig, call), RefusalKind::Version);
    let events = rig.bench.logged_events(|kind| matches!(kind, EventKind::ProgramRefused { .. }));
    let [EventKind::ProgramRefused { uid: 12, pid: 77, reason }, EventKind::ProgramRefused { .. }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(reason.contains("programs.allow"), "{reason}");
    assert_eq!(rig.bench.core.programs().tally().refused, 2);
    rig.assert_empty();
}

#[test]
fn listener_is_listed_once_all_workers_have_added_it() {
    let listed = |rig: &mut Rig| {
        let reply = answer(&mut rig.bench.call(Request::Programs));
        let Ok(api::Reply::Programs(programs)) = reply else { panic!("{reply:?}") };
        programs[0].listeners.clone()
    };
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    client.send(&rig, listen(4000));
    while rig.bench.core.handle_programs(rig.bench.now) {}
    assert!(listed(&mut rig).is_empty(), "no worker has added it");
    rig.settle();
    assert_eq!(listed(&mut rig), ["tcp 0.0.0.0:4000"]);
}

#[test]
fn reached_limit_is_a_note_until_the_program_ends() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let queue = client.create(&mut rig, completion_queue());
    for _ in 0..3 {
        client.create(&mut rig, queue_pair(pd, queue));
    }
    assert_eq!(notes(&rig), []);
    assert_eq!(client.refused(&mut rig, queue_pair(pd, queue)), RefusalKind::Limit);
    let sentence = "program 1 (test): programs.queue_pairs allows 3 for a program";
    assert_eq!(notes(&rig), [(NoteKind::ProgramLimit, sentence.to_owned())]);
    // The session's thread refuses memory without the control thread.
    let all = 1 << 20;
    let call = Call::RegisterMemory {
        pd,
        address: 0x7f00_0000_0000,
        len: all,
        offset: 0,
        parts: vec![(0, all), (0, all)],
        access: LOCAL_ACCESS,
    };
    assert_eq!(client.refused(&mut rig, call), RefusalKind::Limit);
    let [(NoteKind::ProgramLimit, sentence)] = &notes(&rig)[..] else { panic!() };
    assert!(sentence.starts_with("program 1 (test): programs.memory allows"), "{sentence}");
    client.hang_up(&mut rig);
    assert_eq!(notes(&rig), []);
    rig.assert_empty();
}

#[test]
fn why_names_the_program_of_a_stream_and_tells_its_history() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    client.connect(&mut rig, 5);
    let history = why(&mut rig, 1).unwrap();
    assert_eq!(history.sentences, ["Program 1 (test) of uid 1000, pid 4321, attached."]);
    let [stream] = &history.streams[..] else { panic!("{history:?}") };
    assert_eq!(stream.program, Some(1));
    assert!(stream.sentences[0].contains("opened from here, program 1,"), "{stream:?}");
    client.hang_up(&mut rig);
    let history = why(&mut rig, 1).unwrap();
    assert_eq!(history.sentences.last().unwrap(), "It ended.");
    let error = why(&mut rig, 2).unwrap_err();
    assert_eq!(error.message, "no program 2 was seen since ddpd started");
    rig.assert_empty();
}

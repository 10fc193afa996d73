//! The end of an appliance.

use super::*;
use crate::api::{ErrorKind, PutSpec, RemotePlace, Via};

fn drained(bench: &mut Bench) {
    for _ in 0..WORKERS {
        bench.event(Event::Drained);
    }
}

fn count(commands: &[Command], what: impl Fn(&Command) -> bool) -> usize {
    commands.iter().filter(|command| what(command)).count()
}

#[test]
fn listeners_go_first_then_streams_then_workers() {
    let mut bench = bench();
    bench.accepted(1, "10.0.0.2");
    bench.core.drain(bench.now);
    let commands = bench.acknowledge();
    assert!(bench.core.listeners().is_empty());
    assert_eq!(count(&commands, |c| matches!(c, Command::Drain)), WORKERS);
    bench.closed(1, CloseReason::LocalShutdown);
    bench.acknowledge();
    drained(&mut bench);
    let commands = bench.all_commands();
    assert_eq!(count(&commands, |c| matches!(c, Command::Stop)), WORKERS);
    assert!(!bench.core.is_stopped());
    for _ in 0..WORKERS {
        bench.event(Event::Stopped);
    }
    assert!(bench.core.is_stopped());
}

#[test]
fn nothing_new_begins_while_it_drains() {
    let mut bench = bench();
    let listener = bench.listener("in");
    bench.core.drain(bench.now);
    bench.event(Event::Incoming {
        stream: StreamId(1),
        listener,
        interface: InterfaceId(0),
        local: LOCAL.parse().unwrap(),
        remote: remote("10.0.0.2"),
        private_data: vec![],
        revision: Some(Revision::One),
        enhanced: None,
    });
    let commands = bench.acknowledge();
    assert_eq!(count(&commands, |c| matches!(c, Command::Reject { .. })), 1);
    let section = bench.core.regions()["own"].section().clone();
    let mut pending = bench.call(Request::AddRegion(section));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::Unavailable);
}

#[test]
fn a_running_job_is_waited_for() {
    let mut bench = bench();
    bench.accepted(1, "10.0.0.2");
    let file = bench.dir.path().join("file");
    std::fs::write(&file, b"sample").unwrap();
    let via = Via::Stream(crate::api::StreamId(1));
    let target = RemotePlace::Tagged { stag: 1, to: 0 };
    let _pending = bench.call(Request::Put(PutSpec { file, via, target }));
    bench.load_all();
    let commands = bench.acknowledge();
    let [Command::Post { ticket, .. }] = commands[..] else { panic!("{commands:?}") };
    bench.core.drain(bench.now);
    assert_eq!(count(&bench.acknowledge(), |c| matches!(c, Command::Drain)), 0);
    bench.event(Event::Sent { stream: StreamId(1), ticket });
    // An error of the peer may still come.
    assert_eq!(count(&bench.acknowledge(), |c| matches!(c, Command::Drain)), 0);
    bench.pass(Duration::from_millis(250));
    assert_eq!(count(&bench.acknowledge(), |c| matches!(c, Command::Drain)), WORKERS);
}

#[test]
fn the_deadline_and_a_second_signal_end_it_at_once() {
    for second_signal in [false, true] {
        let mut bench = bench_with(&format!("{BASIC}\n[management]\ndrain_timeout = \"5 s\"\n"));
        bench.accepted(1, "10.0.0.2");
        bench.core.drain(bench.now);
        bench.acknowledge();
        if second_signal {
            bench.core.stop();
        } else {
            assert_eq!(bench.core.poll_timeout(), Some(bench.now + Duration::from_secs(5)));
            bench.pass(Duration::from_secs(5));
        }
        let commands = bench.all_commands();
        assert_eq!(count(&commands, |c| matches!(c, Command::Stop)), WORKERS);
    }
}

#[test]
fn a_worker_that_dies_ends_the_appliance() {
    let mut bench = bench();
    let message = "defect".to_owned();
    bench.event(Event::Failed { worker: WorkerId(0), message });
    assert_eq!(count(&bench.commands(1), |c| matches!(c, Command::Stop)), 1);
    bench.event(Event::Stopped);
    assert!(bench.core.is_stopped());
    assert!(
        bench.has_logged(
            |k| matches!(k, EventKind::Warning { message } if message.contains("defect"))
        )
    );
}

//! Shutdown of an appliance, and the operator's drain.

use api::{ErrorKind, PutSpec, RemotePlace, Via};

use super::*;

fn report_drained(bench: &mut Bench) {
    for _ in 0..WORKERS {
        bench.event(Event::Drained);
    }
}

fn count(commands: &[Command], what: impl Fn(&Command) -> bool) -> usize {
    commands.iter().filter(|command| what(command)).count()
}

#[test]
fn drain_stops_listeners_then_streams_then_workers() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    bench.core.drain(bench.now);
    let commands = bench.acknowledge();
    assert!(bench.core.listeners().is_empty());
    assert_eq!(count(&commands, |c| matches!(c, Command::Drain)), WORKERS);
    bench.close_stream(1, CloseReason::LocalShutdown);
    bench.acknowledge();
    report_drained(&mut bench);
    let commands = bench.all_commands();
    assert_eq!(count(&commands, |c| matches!(c, Command::Stop)), WORKERS);
    assert!(!bench.core.is_stopped());
    for _ in 0..WORKERS {
        bench.event(Event::Stopped);
    }
    assert!(bench.core.is_stopped());
}

#[test]
fn drain_refuses_new_streams_and_jobs() {
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
fn drain_waits_for_running_job() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let file = bench.dir.path().join("file");
    std::fs::write(&file, b"sample").unwrap();
    let via = Via::Stream(api::StreamId(1));
    let target = RemotePlace::Tagged { stag: 1, to: 0 };
    let _pending = bench.call(Request::Put(PutSpec { file: Some(file), via, target }));
    bench.load_all();
    let commands = bench.acknowledge();
    let [Command::Post { ticket, .. }] = commands[..] else { panic!("{commands:?}") };
    bench.core.drain(bench.now);
    assert_eq!(count(&bench.acknowledge(), |c| matches!(c, Command::Drain)), 0);
    bench.event(Event::Sent { stream: StreamId(1), ticket });
    // The job waits 250 ms for an error of the peer.
    assert_eq!(count(&bench.acknowledge(), |c| matches!(c, Command::Drain)), 0);
    bench.advance(Duration::from_millis(250));
    assert_eq!(count(&bench.acknowledge(), |c| matches!(c, Command::Drain)), WORKERS);
}

#[test]
fn drain_deadline_or_second_signal_stops_at_once() {
    for second_signal in [false, true] {
        let mut bench = bench_with(&format!("{BASIC}\n[management]\ndrain_timeout = \"5 s\"\n"));
        bench.accept_stream(1, "10.0.0.2");
        bench.core.drain(bench.now);
        bench.acknowledge();
        if second_signal {
            bench.core.stop();
        } else {
            assert_eq!(bench.core.poll_timeout(), Some(bench.now + Duration::from_secs(5)));
            bench.advance(Duration::from_secs(5));
        }
        let commands = bench.all_commands();
        assert_eq!(count(&commands, |c| matches!(c, Command::Stop)), WORKERS);
    }
}

#[test]
fn worker_panic_stops_the_appliance() {
    let mut bench = bench();
    let message = "defect".to_owned();
    bench.event(Event::Failed { worker: WorkerId(0), message });
    assert_eq!(count(&bench.commands(1), |c| matches!(c, Command::Stop)), 1);
    bench.event(Event::Stopped);
    assert!(bench.core.is_stopped());
    assert!(
        bench.is_logged(
            |k| matches!(k, EventKind::Warning { message } if message.contains("defect"))
        )
    );
}

fn reject_text(commands: &[Command]) -> Option<String> {
    commands.iter().find_map(|command| match command {
        Command::Reject { private_data, .. } => String::from_utf8(private_data.clone()).ok(),
        _ => None,
    })
}

// docs/protocol.md §1: the reject has the same text over TCP and SCTP.
#[test]
fn operator_drain_refuses_new_streams_and_keeps_live_ones() {
    for revision in [Some(Revision::One), None] {
        let mut bench = bench();
        bench.accept_stream(1, "10.0.0.2");
        let mut pending = bench.call(Request::Drain);
        let Ok(Reply::Status(status)) = answer(&mut pending) else { panic!() };
        assert_eq!((status.state.as_str(), status.streams_left), ("draining", Some(1)));
        assert!(status.notes[0].contains("1 stream is left"), "{:?}", status.notes);
        assert_eq!(bench.core.stage(), crate::notify::Stage::Draining);
        let peer = |id| Event::Incoming {
            stream: StreamId(id),
            listener: bench.listener("in"),
            interface: InterfaceId(0),
            local: LOCAL.parse().unwrap(),
            remote: remote("10.0.0.3"),
            private_data: vec![],
            revision,
            enhanced: None,
        };
        let (second, third) = (peer(2), peer(3));
        bench.event(second);
        let refused = reject_text(&bench.acknowledge()).expect("a reject");
        assert!(refused.starts_with("draining: "), "{refused}");
        // Neither number includes a stream that is being rejected.
        let status = bench.core.status(bench.now);
        assert_eq!((status.streams, status.streams_left), (1, Some(1)));
        assert_eq!(bench.core.listeners().len(), 1, "the listener stays");
        bench.close_stream(2, CloseReason::LocalShutdown);
        assert!(matches!(answer(&mut bench.call(Request::Undrain)), Ok(Reply::Status(_))));
        let status = bench.core.status(bench.now);
        assert_eq!((status.state.as_str(), status.streams_left), ("running", None));
        assert!(status.notes.is_empty(), "{:?}", status.notes);
        bench.event(third);
        let commands = bench.acknowledge();
        assert_eq!(reject_text(&commands), None);
        assert_eq!(count(&commands, |c| matches!(c, Command::Accept { .. })), 1);
        let drains = |kind: &EventKind| matches!(kind, EventKind::Draining | EventKind::Undrained);
        assert_eq!(bench.logged_events(drains), [EventKind::Draining, EventKind::Undrained]);
    }
}

#[test]
fn operator_drain_refuses_new_jobs() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    bench.call(Request::Drain);
    let file = bench.dir.path().join("file");
    std::fs::write(&file, b"sample").unwrap();
    let target = RemotePlace::Tagged { stag: 1, to: 0 };
    let connect = api::ConnectSpec::to_remote(remote("10.0.0.9"));
    let via = Via::Stream(api::StreamId(1));
    let put = Request::Put(PutSpec { file: Some(file), via, target });
    for request in [put, Request::Connect(connect)] {
        let error = answer(&mut bench.call(request.clone())).unwrap_err();
        assert_eq!(error.error, ErrorKind::Unavailable);
        assert!(error.message.contains("ddpctl undrain"), "{}", error.message);
        bench.call(Request::Undrain);
        let refused = |answer| matches!(answer, Ok(Err(_)));
        assert!(!refused(bench.call(request).try_recv()), "undrain does not end the drain");
        bench.call(Request::Drain);
    }
    // During the operator's drain the appliance can still be ended.
    bench.core.drain(bench.now);
    let error = answer(&mut bench.call(Request::Undrain)).unwrap_err();
    assert_eq!(error.error, ErrorKind::Unavailable);
}

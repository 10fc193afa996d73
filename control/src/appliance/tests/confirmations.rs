//! Confirmations of streams that write to files: sent when the files contain the peer's data, never after a failed
//! write.

use ddp::{Msn, Qn, TaggedOffset};
use tcp_lite::endpoint::UlpConfig;

use super::super::pending_confirmations::{MAX_WAIT, STALL_TIMEOUT};
use super::*;

const QUEUE: &str = r#"
[[listener.queue]]
qn = 0
deliver_to = "file"
path = "PATH"
"#;

/// Returns a bench with a queue that delivers to this file, and an established stream.
fn queue(path: &str) -> Bench {
    let mut bench = bench_with(&format!("{BASIC}{}", QUEUE.replace("PATH", path)));
    bench.accept_stream(1, "10.0.0.2");
    bench
}

/// Returns a bench with an established stream and a region `own` that is backed by a file.
fn region(fsync: &str) -> Bench {
    let own = format!("name = \"own\"\npath = \"DIR/region\"\nfsync = \"{fsync}\"");
    let mut bench = bench_with(&BASIC.replace("name = \"own\"", &own));
    bench.accept_stream(1, "10.0.0.2");
    bench
}

fn message(bench: &mut Bench) {
    let (stream, qn, msn) = (StreamId(1), Qn(0), Msn(1));
    bench.event(Event::Untagged { stream, qn, msn, data: b"line".to_vec(), rsvd_ulp: [0; 5] });
}

fn write(bench: &mut Bench) {
    let region = &bench.core.regions()["own"];
    let (stag, memory) = (region.stag(), region.memory().clone());
    ddp::RegionMemory::write(&memory, 0, b"sample");
    let (stream, to) = (StreamId(1), TaggedOffset(0));
    bench.event(Event::TaggedDelivered { stream, stag, to, len: 6, rsvd_ulp: 0 });
}

fn peer_closes(bench: &mut Bench) {
    bench.event(Event::PeerClosed { stream: StreamId(1), incomplete: false });
}

/// Returns the commands for confirmations and the stream's end.
fn close_commands(bench: &mut Bench) -> Vec<&'static str> {
    let words = bench.acknowledge().into_iter().filter_map(|command| match command {
        Command::Close { abort: false, .. } => Some("close"),
        Command::Close { abort: true, .. } => Some("abort"),
        Command::Fail { .. } => Some("fail"),
        Command::ReleaseRead { .. } => Some("release"),
        Command::AnnounceClose { .. } => Some("confirming"),
        _ => None,
    });
    words.collect()
}

/// Waits until the file writer's reports cause commands for confirmations or the stream's end. Returns them.
fn wait_for_close_commands(bench: &mut Bench) -> Vec<&'static str> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answers = close_commands(bench);
        if !answers.is_empty() {
            return answers;
        }
        assert!(Instant::now() < deadline, "no report or step within 30 s");
        std::thread::yield_now();
        bench.core.handle_reports();
    }
}

fn file_error(bench: &Bench) -> Option<String> {
    let errors = bench.logged_events(|kind| matches!(kind, EventKind::StreamError { .. }));
    errors.into_iter().find_map(|kind| match kind {
        EventKind::StreamError { layer, reason, .. } if layer == "file" => Some(reason),
        _ => None,
    })
}

#[test]
fn close_is_confirmed_after_queue_file_has_the_message() {
    let mut bench = queue("DIR/queue");
    message(&mut bench);
    peer_closes(&mut bench);
    assert_eq!(close_commands(&mut bench), ["confirming"], "the file is not flushed yet");
    assert_eq!(wait_for_close_commands(&mut bench), ["close"]);
    assert_eq!(std::fs::read(bench.dir.path().join("queue")).unwrap(), b"\0\0\0\x04line");
}

#[test]
fn confirmations_wait_for_region_file_and_stay_in_order() {
    for fsync in ["never", "close", "message", "1 h"] {
        let mut bench = region(fsync);
        write(&mut bench);
        bench.event(Event::ReadHeld { stream: StreamId(1) });
        peer_closes(&mut bench);
        assert_eq!(close_commands(&mut bench), ["confirming"], "{fsync}");
        let mut seen = wait_for_close_commands(&mut bench);
        if seen.len() == 1 {
            seen.extend(wait_for_close_commands(&mut bench));
        }
        assert_eq!(seen, ["release", "close"], "{fsync}");
        assert_eq!(std::fs::read(bench.dir.path().join("region")).unwrap(), b"sample", "{fsync}");
    }
}

#[test]
fn stream_without_writes_is_confirmed_at_once() {
    let mut bench = queue("DIR/queue");
    bench.event(Event::ReadHeld { stream: StreamId(1) });
    peer_closes(&mut bench);
    assert_eq!(close_commands(&mut bench), ["release", "close"]);
}

#[test]
fn a_message_for_a_full_disk_fails_its_stream_and_is_counted() {
    let mut bench = queue("/dev/full");
    message(&mut bench);
    peer_closes(&mut bench);
    assert_eq!(close_commands(&mut bench), ["confirming"]);
    assert_eq!(wait_for_close_commands(&mut bench), ["fail"]);
    let reason = file_error(&bench).unwrap();
    assert!(reason.contains("not stored: cannot write /dev/full: No space left"), "{reason}");
    let tally = &bench.core.env().tally;
    assert_eq!((tally.streams_not_stored, tally.file_errors > 0), (1, true));
}

#[test]
fn unwritable_region_file_fails_streams_that_wrote_to_it() {
    for fsync in ["never", "close", "message", "1 h"] {
        let mut bench = region(fsync);
        bench.accept_stream(2, "10.0.0.3");
        // A directory has the file's name, so the file cannot be opened again.
        let (file, inner) = (bench.dir.path().join("region"), bench.dir.path().join("region/x"));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir_all(inner).unwrap();
        write(&mut bench);
        bench.event(Event::ReadHeld { stream: StreamId(1) });
        assert_eq!(wait_for_close_commands(&mut bench), ["fail"], "{fsync}");
        assert!(file_error(&bench).is_some(), "{fsync}");
    }
}

/// Returns a bench with a stream whose close waits: its message is in the queue's file, but the file writer's report of
/// the flush is not handled yet.
fn bench_awaiting_flush() -> Bench {
    let mut bench = queue("DIR/queue");
    message(&mut bench);
    peer_closes(&mut bench);
    // One write and one sync.
    steps(&mut bench, 2);
    assert_eq!(close_commands(&mut bench), ["confirming"]);
    bench
}

/// Waits for this many steps of the file writer, then lets the control thread check its progress.
fn steps(bench: &mut Bench, steps: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.core.env().writer.progress() < steps {
        assert!(Instant::now() < deadline, "no report or step within 30 s");
        std::thread::yield_now();
    }
    bench.advance(Duration::ZERO);
}

#[test]
fn stalled_disk_fails_the_stream_after_timeout() {
    let mut bench = bench_awaiting_flush();
    bench.advance(STALL_TIMEOUT - Duration::from_millis(1));
    assert!(close_commands(&mut bench).is_empty());
    assert!(bench.core.poll_timeout().is_some_and(|at| at <= bench.now + Duration::from_millis(1)));
    bench.advance(Duration::from_millis(1));
    assert_eq!(close_commands(&mut bench), ["fail"]);
    // The file writer's report of the flush arrives too late.
    bench.core.handle_reports();
    assert!(close_commands(&mut bench).is_empty());
}

#[test]
fn slow_disk_with_progress_fails_stream_only_at_the_limit() {
    let mut bench = bench_awaiting_flush();
    let step = STALL_TIMEOUT - Duration::from_millis(1);
    for _ in 0..5 {
        bench.advance(step);
        assert!(close_commands(&mut bench).is_empty());
        bench.core.env().writer.step();
        let next = bench.core.poll_timeout().expect("the next progress check");
        assert!(next <= bench.now + Duration::from_secs(1));
        bench.advance(Duration::from_millis(1));
    }
    bench.core.handle_reports();
    assert_eq!(close_commands(&mut bench), ["close"]);

    let mut bench = bench_awaiting_flush();
    let end = bench.now + MAX_WAIT;
    while bench.now + STALL_TIMEOUT / 2 < end {
        bench.advance(STALL_TIMEOUT / 2);
        bench.core.env().writer.step();
        assert!(close_commands(&mut bench).is_empty());
    }
    bench.advance(STALL_TIMEOUT / 2);
    assert_eq!(close_commands(&mut bench), ["fail"]);
}

/// Closes the stream on behalf of an operator.
fn operator_closes(bench: &mut Bench) -> Pending {
    bench.call(Request::CloseStream { id: api::StreamId(1), abort: false })
}

fn report_confirming(bench: &mut Bench) {
    bench.event(Event::Confirming { stream: StreamId(1) });
}

#[test]
fn operator_close_waits_for_data_and_file() {
    for fsync in ["never", "close", "message", "1 h"] {
        let mut bench = region(fsync);
        write(&mut bench);
        let _pending = operator_closes(&mut bench);
        assert_eq!(close_commands(&mut bench), ["confirming"], "{fsync}");
        // The Read is answered before the close, even though it arrives after the request to close. A second close has
        // no effect.
        bench.event(Event::ReadHeld { stream: StreamId(1) });
        let _second = operator_closes(&mut bench);
        report_confirming(&mut bench);
        let mut seen = wait_for_close_commands(&mut bench);
        if seen.len() == 1 {
            seen.extend(wait_for_close_commands(&mut bench));
        }
        assert_eq!(seen, ["release", "close"], "{fsync}");
        assert_eq!(std::fs::read(bench.dir.path().join("region")).unwrap(), b"sample", "{fsync}");
    }
}

#[test]
fn data_received_after_flush_is_flushed_before_close() {
    let mut bench = region("close");
    let _pending = operator_closes(&mut bench);
    assert_eq!(close_commands(&mut bench), ["confirming"]);
    write(&mut bench);
    report_confirming(&mut bench);
    write(&mut bench);
    assert_eq!(wait_for_close_commands(&mut bench), ["confirming"]);
    report_confirming(&mut bench);
    assert_eq!(
        close_commands(&mut bench).len()
            + usize::from(wait_for_close_commands(&mut bench) == ["close"]),
        1
    );
}

#[test]
fn unwritten_file_turns_close_into_an_error() {
    // The disk hangs.
    let mut bench = region("close");
    write(&mut bench);
    let _pending = operator_closes(&mut bench);
    steps(&mut bench, 1);
    bench.advance(STALL_TIMEOUT);
    assert_eq!(close_commands(&mut bench), ["confirming", "fail"]);
    // The disk is full.
    let mut bench = queue("/dev/full");
    message(&mut bench);
    let _pending = operator_closes(&mut bench);
    assert_eq!(close_commands(&mut bench), ["confirming"]);
    report_confirming(&mut bench);
    assert_eq!(wait_for_close_commands(&mut bench), ["fail"]);
}

#[test]
fn drain_close_waits_for_files_like_operator_close() {
    let drains = [true, false];
    for drain in drains {
        let mut bench = region("close");
        bench.accept_stream(2, "10.0.0.3");
        write(&mut bench);
        match drain {
            true => bench.core.drain(bench.now),
            false => bench.event(Event::Idle { stream: StreamId(1) }),
        }
        assert_eq!(close_commands(&mut bench), ["confirming"], "the other stream has no file");
        report_confirming(&mut bench);
        assert_eq!(wait_for_close_commands(&mut bench), ["close"]);
    }
}

#[test]
fn stream_established_during_drain_is_closed() {
    let mut bench = region("close");
    bench.close_stream(1, CloseReason::PeerShutdown);
    bench.request_stream(2, "10.0.0.2");
    bench.acknowledge();
    bench.core.drain(bench.now);
    bench.acknowledge();
    bench.establish_stream(2, "10.0.0.2", None, &[]);
    let _ = close_commands(&mut bench);
    bench.event(Event::Confirming { stream: StreamId(2) });
    assert_eq!(close_commands(&mut bench), ["close"]);
}

#[test]
fn file_region_serves_next_stream_after_flush() {
    let binds = |bench: &mut Bench| {
        let commands = bench.acknowledge_all();
        commands.iter().filter(|c| matches!(c, Command::BindStag { .. })).count()
    };
    let mut bench = region("close");
    write(&mut bench);
    let _pending = operator_closes(&mut bench);
    assert_eq!(binds(&mut bench), 0, "its bytes are not in the file");
    let mut other = super::bench();
    other.accept_stream(1, "10.0.0.2");
    let _pending = operator_closes(&mut other);
    assert!(binds(&mut other) > 0);
}

#[test]
fn pending_appends_of_ended_stream_are_dropped() {
    let mut bench = queue("DIR/queue");
    message(&mut bench);
    assert_eq!(bench.core.streams().appending(), 1);
    bench.close_stream(1, CloseReason::PeerShutdown);
    assert_eq!(bench.core.streams().appending(), 0);
}

#[test]
fn only_streams_writing_files_delay_confirmations() {
    let holds = |bench: &mut Bench, id: u64| {
        bench.request_stream(id, "10.0.0.9");
        let accepted = bench.acknowledge().into_iter().find_map(|command| match command {
            Command::Accept { ulp: UlpConfig::Ddp(config), .. } => Some(config.hold_confirmations),
            _ => None,
        });
        accepted.expect("it is accepted")
    };
    assert!(holds(&mut queue("DIR/queue"), 5));
    // While a region is bound to another stream, a new stream does not write to the region's file.
    let mut bench = region("close");
    assert!(!holds(&mut bench, 5), "the region is bound to another stream");
    bench.close_stream(1, CloseReason::PeerShutdown);
    bench.acknowledge();
    assert!(holds(&mut bench, 6));
    assert!(!holds(&mut super::bench(), 5));
    let mut other = super::bench();
    other.accept_stream(1, "10.0.0.2");
    peer_closes(&mut other);
    assert_eq!(close_commands(&mut other), ["close"], "no file is awaited");
}

#[test]
fn a_rotated_file_is_opened_again_by_a_reload_and_reported() {
    let mut bench = queue("DIR/queue");
    let (path, moved) = (bench.dir.path().join("queue"), bench.dir.path().join("queue.1"));
    std::fs::rename(&path, moved).unwrap();
    // The file is reopened even if the reload refuses the configuration.
    std::fs::write(&bench.file, "nonsense").unwrap();
    bench.core.reload_from_file(None);
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.core.env().tally.files_reopened == 0 {
        assert!(Instant::now() < deadline, "no report or step within 30 s");
        std::thread::yield_now();
        bench.core.handle_reports();
    }
    assert!(path.exists());
    assert!(bench.is_logged(|kind| matches!(
        kind, EventKind::Warning { message } if message.contains("opened again")
    )));
}

#[test]
fn file_region_is_refused_for_listener_without_file_writes() {
    use config::{Backing, Fsync, RdmapSection, ServiceKind, Ulp};
    let rdmap = |service| {
        let peer = tcp_lite::mpa::Peer::Standard;
        Ulp::Rdmap(RdmapSection { service, ird: 1, ord: 1, peer, message_size: 4096 })
    };
    for (service, refused) in [
        (ServiceKind::Region, false),
        (ServiceKind::Echo, true),
        (ServiceKind::Sink, true),
        (ServiceKind::Rping, true),
        (ServiceKind::Perftest, true),
    ] {
        // Case 1: the file-backed region exists, and a listener for it is added.
        let mut bench = bench_with(
            &BASIC.replace("name = \"own\"", "name = \"own\"\npath = \"DIR/region\"").replace(
                "[[listener]]",
                "[[region]]\nname = \"other\"\nsize = \"64 KiB\"\naccess = \"rw\"\nshared = true\n[[listener]]",
            ),
        );
        let mut section = bench.core.listeners()["in"].section().clone();
        section.queues.clear();
        (section.name, section.port, section.ulp) = ("new".into(), 999, rdmap(service));
        section.regions = vec!["own".into()];
        let mut pending = bench.call(Request::AddListener(section.clone()));
        bench.acknowledge();
        let error = answer(&mut pending).err().map(|error| error.message);
        assert_eq!(error.is_some(), refused, "{service:?}: {error:?}");
        // For services with slots another rule applies first: the region is shared.
        if let Some(error) = error.filter(|_| !service.has_slots()) {
            assert!(error.contains("has the file"), "{error}");
        }
        // Case 2: the listener exists, and its region is replaced by a file-backed region.
        section.regions = vec!["other".into()];
        let mut pending = bench.call(Request::AddListener(section));
        bench.acknowledge();
        if service == ServiceKind::Region {
            continue;
        }
        answer(&mut pending).unwrap();
        let mut region = bench.core.regions()["other"].section().clone();
        let _pending = bench.call(Request::RemoveRegion { name: "other".into(), force: true });
        bench.acknowledge();
        let path = bench.dir.path().join("late");
        region.backing = Backing::File { path, fsync: Fsync::Close };
        let mut pending = bench.call(Request::AddRegion(region));
        let error = answer(&mut pending).unwrap_err().message;
        assert!(error.contains("listener `new`") && error.contains("has the file"), "{error}");
    }
}

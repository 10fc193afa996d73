//! Confirmations of streams that reach files: given when the files have what the peer sent, and not at all when they
//! cannot.

use ddp::{Msn, Qn, TaggedOffset};
use tcp_lite::endpoint::UlpConfig;

use super::super::stores::PATIENCE;
use super::*;

const QUEUE: &str = r#"
[[listener.queue]]
qn = 0
deliver_to = "file"
path = "PATH"
"#;

/// A listener with a queue that goes to this file, and one established stream.
fn queue(path: &str) -> Bench {
    let mut bench = bench_with(&format!("{BASIC}{}", QUEUE.replace("PATH", path)));
    bench.accepted(1, "10.0.0.2");
    bench
}

/// A listener whose region `own` has a file, and one established stream.
fn region(fsync: &str) -> Bench {
    let own = format!("name = \"own\"\npath = \"DIR/region\"\nfsync = \"{fsync}\"");
    let mut bench = bench_with(&BASIC.replace("name = \"own\"", &own));
    bench.accepted(1, "10.0.0.2");
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

/// Commands about the stream's end and confirmations.
fn answers(bench: &mut Bench) -> Vec<&'static str> {
    let words = bench.acknowledge().into_iter().filter_map(|command| match command {
        Command::Close { abort: false, .. } => Some("close"),
        Command::Close { abort: true, .. } => Some("abort"),
        Command::Fail { .. } => Some("fail"),
        Command::ReleaseRead { .. } => Some("release"),
        _ => None,
    });
    words.collect()
}

/// The next of them; the writer works meanwhile.
fn wait(bench: &mut Bench) -> Vec<&'static str> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answers = answers(bench);
        if !answers.is_empty() {
            return answers;
        }
        assert!(Instant::now() < deadline, "nothing follows");
        std::thread::yield_now();
        bench.core.handle_reports();
    }
}

fn file_error(bench: &Bench) -> Option<String> {
    let errors = bench.logged(|kind| matches!(kind, EventKind::StreamError { .. }));
    errors.into_iter().find_map(|kind| match kind {
        EventKind::StreamError { layer, reason, .. } if layer == "file" => Some(reason),
        _ => None,
    })
}

#[test]
fn the_end_of_a_stream_is_confirmed_when_the_queues_file_has_its_message() {
    let mut bench = queue("DIR/queue");
    message(&mut bench);
    peer_closes(&mut bench);
    assert!(answers(&mut bench).is_empty(), "the file was not asked yet");
    assert_eq!(wait(&mut bench), ["close"]);
    assert_eq!(std::fs::read(bench.dir.path().join("queue")).unwrap(), b"\0\0\0\x04line");
}

#[test]
fn confirmations_wait_for_the_file_of_a_region_with_every_policy_and_come_in_order() {
    for fsync in ["never", "close", "message", "1 h"] {
        let mut bench = region(fsync);
        write(&mut bench);
        bench.event(Event::ReadHeld { stream: StreamId(1) });
        peer_closes(&mut bench);
        assert!(answers(&mut bench).is_empty(), "{fsync}");
        let mut seen = wait(&mut bench);
        if seen.len() == 1 {
            seen.extend(wait(&mut bench));
        }
        assert_eq!(seen, ["release", "close"], "{fsync}");
        assert_eq!(std::fs::read(bench.dir.path().join("region")).unwrap(), b"sample", "{fsync}");
    }
}

#[test]
fn a_stream_that_wrote_nothing_is_confirmed_at_once() {
    let mut bench = queue("DIR/queue");
    bench.event(Event::ReadHeld { stream: StreamId(1) });
    peer_closes(&mut bench);
    assert_eq!(answers(&mut bench), ["release", "close"]);
}

#[test]
fn a_message_for_a_full_disk_fails_its_stream_and_is_counted() {
    let mut bench = queue("/dev/full");
    message(&mut bench);
    peer_closes(&mut bench);
    assert_eq!(wait(&mut bench), ["fail"]);
    let reason = file_error(&bench).unwrap();
    assert!(reason.contains("not stored: cannot write /dev/full: No space left"), "{reason}");
    let tally = &bench.core.env().tally;
    assert_eq!((tally.streams_not_stored, tally.file_errors > 0), (1, true));
}

#[test]
fn a_region_whose_file_cannot_be_written_fails_the_streams_that_wrote_to_it() {
    for fsync in ["never", "close", "message", "1 h"] {
        let mut bench = region(fsync);
        bench.accepted(2, "10.0.0.3");
        // The name leads nowhere, and cannot.
        let (file, inner) = (bench.dir.path().join("region"), bench.dir.path().join("region/x"));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir_all(inner).unwrap();
        write(&mut bench);
        bench.event(Event::ReadHeld { stream: StreamId(1) });
        assert_eq!(wait(&mut bench), ["fail"], "{fsync}");
        assert!(file_error(&bench).is_some(), "{fsync}");
    }
}

#[test]
fn a_disk_that_does_not_answer_fails_the_stream_in_the_end() {
    let mut bench = queue("DIR/queue");
    message(&mut bench);
    peer_closes(&mut bench);
    bench.pass(PATIENCE - Duration::from_millis(1));
    assert!(answers(&mut bench).is_empty());
    assert!(bench.core.poll_timeout().is_some_and(|at| at <= bench.now + Duration::from_millis(1)));
    bench.pass(Duration::from_millis(1));
    assert_eq!(answers(&mut bench), ["fail"]);
    // Too late.
    bench.core.handle_reports();
    assert!(answers(&mut bench).is_empty());
}

#[test]
fn only_streams_that_reach_a_file_hold_confirmations() {
    let holds = |bench: &mut Bench, id: u64| {
        bench.incoming(id, "10.0.0.9");
        let accepted = bench.acknowledge().into_iter().find_map(|command| match command {
            Command::Accept { ulp: UlpConfig::Ddp(config), .. } => Some(config.hold_confirmations),
            _ => None,
        });
        accepted.expect("it is accepted")
    };
    assert!(holds(&mut queue("DIR/queue"), 5));
    // The region is free again, or another stream has it.
    let mut bench = region("close");
    assert!(!holds(&mut bench, 5), "another stream has the region");
    bench.closed(1, CloseReason::PeerShutdown);
    bench.acknowledge();
    assert!(holds(&mut bench, 6));
    assert!(!holds(&mut super::bench(), 5));
    let mut other = super::bench();
    other.accepted(1, "10.0.0.2");
    peer_closes(&mut other);
    assert_eq!(answers(&mut other), ["close"], "no file is awaited");
}

#[test]
fn a_rotated_file_is_opened_again_by_a_reload_and_reported() {
    let mut bench = queue("DIR/queue");
    let (path, moved) = (bench.dir.path().join("queue"), bench.dir.path().join("queue.1"));
    std::fs::rename(&path, moved).unwrap();
    // Also when the configuration is refused.
    std::fs::write(&bench.file, "nonsense").unwrap();
    bench.core.reload_from_file(None);
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.core.env().tally.files_reopened == 0 {
        assert!(Instant::now() < deadline, "nothing follows");
        std::thread::yield_now();
        bench.core.handle_reports();
    }
    assert!(path.exists());
    assert!(bench.has_logged(|kind| matches!(
        kind, EventKind::Warning { message } if message.contains("opened again")
    )));
}

//! Pings and atomic operations of API clients.

use api::{
    AtomicChoice, AtomicDone, AtomicSpec, ConnectSpec, ErrorKind, PingReport, PingSpec,
    RemotePlace, Via,
};
use ddp::rdmap::{AtomicOp, Outcome, Terminate, WorkRequest};
use ddp::{Access, RegionMemory as _, Stag, TaggedOffset};

use super::rdmap::{
    OPENED, closes, connected_bench, establish, offer, posts, rdmap_spec, removed_stags, send_bytes,
};
use super::*;

fn ping_spec(count: u32, size: u32) -> PingSpec {
    PingSpec { connect: rdmap_spec(), count, size, timeout_us: 1_000_000 }
}

/// Returns a ping with an established stream and registered memory, whose first Send is posted.
fn start_ping(count: u32, size: u32) -> (Bench, Pending, StagEntry<Memory>) {
    let mut bench = bench();
    let pending = bench.call(Request::Ping(ping_spec(count, size)));
    establish(&mut bench, &[]);
    bench.load_all();
    let commands = bench.all_commands();
    let entries = added_entries(&commands);
    assert_eq!(entries.len(), WORKERS, "{commands:?}");
    let entry = entries[0].clone();
    commands.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
    (bench, pending, entry)
}

/// Returns the buffer advertised by the posted Send: TO, STag, length.
fn sent_buffer(bench: &mut Bench) -> (u64, u32, u32) {
    let commands = bench.all_commands();
    let posted = posts(&commands);
    assert_eq!(posted.len(), 1, "{commands:?}");
    let bytes = send_bytes(posted[0].0);
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (u64::from_be_bytes(bytes[..8].try_into().unwrap()), word(8), word(12))
}

/// Performs a round as rping's server would: reads the source, writes to the sink. Returns the data.
fn serve_round(bench: &mut Bench, entry: &StagEntry<Memory>, size: u32) -> Vec<u8> {
    let stag = entry.stag.0;
    assert_eq!(sent_buffer(bench), (0, stag, size));
    let mut bytes = vec![0; size as usize];
    entry.memory.read(0, &mut bytes);
    bench.receive_send(OPENED, &[0; 16]);
    assert_eq!(sent_buffer(bench), (u64::from(size), stag, size));
    entry.memory.write(u64::from(size), &bytes);
    bytes
}

fn error(pending: &mut Pending) -> (ErrorKind, String) {
    let error = answer(pending).unwrap_err();
    (error.error, error.message)
}

#[test]
fn ping_rounds_are_counted_timed_and_compared() {
    let (mut bench, mut pending, entry) = start_ping(3, 32);
    assert_eq!((entry.stream, entry.len), (Some(OPENED), 64));
    assert_eq!(entry.access, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let mut seen = Vec::new();
    for round in 1..=3 {
        seen.push(serve_round(&mut bench, &entry, 32));
        assert!(is_unanswered(&mut pending));
        bench.now += Duration::from_micros(round);
        bench.receive_send(OPENED, &[0; 16]);
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2], "different bytes in each round");
    let Ok(Reply::Ping(report)) = answer(&mut pending) else { panic!("no report") };
    let (min_ns, mean_ns, median_ns) = (1000, 2000, 2000);
    let remote = "10.0.0.9:5000".to_owned();
    let (p99_ns, max_ns) = (3000, 3000);
    let expected =
        PingReport { remote, rounds: 3, size: 32, min_ns, mean_ns, median_ns, p99_ns, max_ns };
    assert_eq!(report, expected);
    let commands = bench.all_commands();
    assert_eq!(closes(&commands, OPENED), [false]);
    assert_eq!(removed_stags(&commands), [entry.stag; WORKERS]);
    commands.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
    bench.close_stream(OPENED.0, CloseReason::LocalShutdown);
    assert_eq!(bench.core.poll_timeout(), None);
}

#[test]
fn changed_ping_data_is_reported_as_peer_error() {
    let (mut bench, mut pending, entry) = start_ping(2, 32);
    serve_round(&mut bench, &entry, 32);
    bench.receive_send(OPENED, &[0; 16]);
    serve_round(&mut bench, &entry, 32);
    entry.memory.write(32 + 5, &[0]);
    bench.receive_send(OPENED, &[0; 16]);
    let sentence = "after 2 of 2 rounds: round 2: byte 5 came back changed";
    assert_eq!(error(&mut pending), (ErrorKind::PeerRefused, sentence.into()));
    assert_eq!(closes(&bench.all_commands(), OPENED), [true]);
}

#[test]
fn non_rping_silent_or_closing_peer_fails_the_ping() {
    let (mut bench, mut pending, _) = start_ping(2, 32);
    bench.receive_send(OPENED, b"hello");
    let sentence =
        "after 0 of 2 rounds: the peer is no rping server: a Send of 5 bytes, 16 are expected";
    assert_eq!(error(&mut pending), (ErrorKind::PeerRefused, sentence.into()));

    let (mut bench, mut pending, entry) = start_ping(2, 32);
    assert_eq!(bench.core.poll_timeout(), Some(bench.now + Duration::from_secs(1)));
    bench.advance(Duration::from_millis(999));
    assert!(is_unanswered(&mut pending));
    bench.advance(Duration::from_millis(1));
    let sentence = "after 0 of 2 rounds: no answer of the rping server within 1 s";
    let refused = answer(&mut pending).unwrap_err();
    assert_eq!((refused.error, refused.message.as_str()), (ErrorKind::Timeout, sentence));
    assert!(refused.hint.is_some_and(|hint| hint.contains("service = \"rping\"")));
    let commands = bench.all_commands();
    assert_eq!(closes(&commands, OPENED), [true]);
    assert_eq!(removed_stags(&commands), [entry.stag; WORKERS]);
    assert_eq!(bench.core.poll_timeout(), None);

    let (mut bench, mut pending, entry) = start_ping(2, 32);
    let terminate = Terminate::new(0, 1, 0);
    bench.event(Event::Terminated { stream: OPENED, by_peer: true, terminate });
    bench.close_stream(OPENED.0, CloseReason::Lower(TcpReason::PeerReset));
    let (kind, sentence) = error(&mut pending);
    assert_eq!(kind, ErrorKind::PeerRefused);
    assert!(sentence.contains("the stream has ended: terminated by the peer"), "{sentence}");
    assert_eq!(removed_stags(&bench.all_commands()), [entry.stag; WORKERS]);
}

#[test]
fn send_before_first_round_fails_the_ping() {
    let mut bench = bench();
    let mut pending = bench.call(Request::Ping(ping_spec(1, 8)));
    establish(&mut bench, &[]);
    bench.receive_send(OPENED, &[0; 16]);
    let (kind, sentence) = error(&mut pending);
    assert_eq!(kind, ErrorKind::PeerRefused);
    assert!(sentence.ends_with("a Send before the first round"), "{sentence}");
    assert_eq!(closes(&bench.all_commands(), OPENED), [true]);
    // The memory becomes available after the ping has ended.
    bench.load_all();
    assert!(bench.all_commands().is_empty());
}

#[test]
fn invalid_ping_is_refused_before_connecting() {
    let ddp = ConnectSpec::to_remote(remote("10.0.0.9"));
    let bounds = "count must be from 1 to 100000, size from 1 to 65536";
    let time = "timeout_us must be from 1 to 60000000";
    let cases = [
        (PingSpec { connect: ddp, ..ping_spec(1, 1) }, "rping needs RDMAP: ulp must be rdmap"),
        (ping_spec(0, 1), bounds),
        (ping_spec(100_001, 1), bounds),
        (ping_spec(1, 0), bounds),
        (ping_spec(1, 65_537), bounds),
        (PingSpec { timeout_us: 0, ..ping_spec(1, 1) }, time),
        (PingSpec { timeout_us: 60_000_001, ..ping_spec(1, 1) }, time),
    ];
    let mut bench = bench();
    for (spec, sentence) in cases {
        let mut pending = bench.call(Request::Ping(spec));
        assert_eq!(error(&mut pending), (ErrorKind::BadRequest, sentence.into()));
    }
    assert!(bench.all_commands().is_empty());
    let mut most = bench.call(Request::Ping(ping_spec(100_000, 65_536)));
    assert!(is_unanswered(&mut most), "the bounds are valid");
}

fn box_target(offset: u64) -> RemotePlace {
    RemotePlace::Region { name: "counter".into(), offset }
}

fn atomic(bench: &mut Bench, target: RemotePlace, operation: AtomicChoice) -> Pending {
    let via = Via::Stream(api::StreamId(OPENED.0));
    bench.call(Request::Atomic(AtomicSpec { via, target, operation }))
}

// RFC 7306 §5.1: the response contains the previous value.
#[test]
fn atomic_is_posted_to_its_target_and_returns_old_value() {
    let all = u64::MAX;
    for (operation, expected) in [
        (AtomicChoice::FetchAdd { add: 3 }, AtomicOp::FetchAdd { add: 3, mask: 0 }),
        (
            AtomicChoice::CompareSwap { compare: 1, swap: 2 },
            AtomicOp::CompareSwap { compare: 1, compare_mask: all, swap: 2, swap_mask: all },
        ),
        (AtomicChoice::Swap { swap: 9 }, AtomicOp::swap(9)),
    ] {
        let mut bench = connected_bench(&[offer("counter", "rwa")]);
        let mut pending = atomic(&mut bench, box_target(8), operation);
        let commands = bench.all_commands();
        let [(WorkRequest::Atomic { op, stag, to, .. }, ticket)] = posts(&commands)[..] else {
            panic!("{commands:?}")
        };
        assert_eq!((*op, *stag, *to), (expected, Stag(77), TaggedOffset(4104)));
        bench.now += Duration::from_micros(12);
        bench.complete_post(OPENED, ticket, Outcome::Atomic { original: u64::MAX });
        let Ok(Reply::Atomic(done)) = answer(&mut pending) else { panic!("no answer") };
        // A double cannot represent the value, so it is a string of digits.
        let original = "18446744073709551615".to_owned();
        assert_eq!(done, AtomicDone { original, time_us: 12 });
        assert!(bench.all_commands().is_empty(), "an existing stream stays open");
    }
}

#[test]
fn invalid_atomic_is_refused_with_reason() {
    let add = AtomicChoice::FetchAdd { add: 1 };
    for (offers, target, kind, sentence) in [
        (
            offer("counter", "rw"),
            box_target(0),
            ErrorKind::PeerRefused,
            "the peer's region `counter` is not open to atomics",
        ),
        (
            offer("other", "rwa"),
            box_target(0),
            ErrorKind::PeerRefused,
            "the peer offers no region `counter` (it offers: other)",
        ),
        (
            offer("counter", "rwa"),
            box_target(1017),
            ErrorKind::BadRequest,
            "8 bytes at offset 1017 do not fit into the peer's region `counter` of 1024 bytes",
        ),
        (
            offer("counter", "rwa"),
            box_target(12),
            ErrorKind::BadRequest,
            "offset 12 of the peer's region `counter` is not 64-bit aligned, as atomics must be",
        ),
    ] {
        let mut bench = connected_bench(&[offers]);
        let mut pending = atomic(&mut bench, target, add);
        assert_eq!(error(&mut pending), (kind, sentence.into()));
        assert!(bench.all_commands().is_empty());
    }
}

#[test]
fn atomic_on_stream_without_atomics_is_refused() {
    let add = AtomicChoice::FetchAdd { add: 1 };
    let mut bench = bench();
    let mut pending = atomic(&mut bench, box_target(0), add);
    let sentence = "there is no stream 0000000000000005";
    assert_eq!(error(&mut pending), (ErrorKind::NotFound, sentence.into()));
    bench.accept_stream(OPENED.0, "10.0.0.2");
    let mut pending = atomic(&mut bench, box_target(0), add);
    let sentence = "stream 0000000000000005 uses bare DDP, which has no Reads and no atomics";
    assert_eq!(error(&mut pending), (ErrorKind::Conflict, sentence.into()));
    let via = Via::Connect(ConnectSpec::to_remote(remote("10.0.0.9")));
    let mut pending =
        bench.call(Request::Atomic(AtomicSpec { via, target: box_target(0), operation: add }));
    assert_eq!(error(&mut pending), (ErrorKind::BadRequest, "atomics need ulp rdmap".into()));
}

#[test]
fn stream_opened_for_one_atomic_is_closed_afterwards() {
    for refused in [false, true] {
        let mut bench = bench();
        let (via, target) = (Via::Connect(rdmap_spec()), box_target(0));
        let operation = AtomicChoice::Swap { swap: 1 };
        let mut pending = bench.call(Request::Atomic(AtomicSpec { via, target, operation }));
        establish(&mut bench, &[offer("counter", if refused { "rw" } else { "rwa" })]);
        if !refused {
            let commands = bench.all_commands();
            bench.complete_post(OPENED, posts(&commands)[0].1, Outcome::Atomic { original: 0 });
        }
        assert_eq!(answer(&mut pending).is_err(), refused);
        assert_eq!(closes(&bench.all_commands(), OPENED), [false]);
    }
}

// RFC 7306 §8.2: a misaligned atomic operation ends the stream. The client of the operation receives the reason.
#[test]
fn peers_terminate_is_reported_for_refused_operation() {
    let mut bench = connected_bench(&[offer("counter", "rwa")]);
    // Only the peer can check the alignment of a bare TO.
    let target = RemotePlace::Tagged { stag: 77, to: 4100 };
    let mut pending = atomic(&mut bench, target, AtomicChoice::FetchAdd { add: 1 });
    let ticket = posts(&bench.all_commands())[0].1;
    let terminate = Terminate::new(0, 2, 7);
    bench.event(Event::Terminated { stream: OPENED, by_peer: true, terminate });
    let reason = dataplane::PostFailure::Flushed;
    bench.event(Event::PostFailed { stream: OPENED, ticket, reason });
    assert!(is_unanswered(&mut pending), "the end of the stream reports the reason");
    bench.close_stream(OPENED.0, CloseReason::Lower(TcpReason::PeerReset));
    let (kind, sentence) = error(&mut pending);
    assert_eq!(kind, ErrorKind::PeerRefused);
    assert!(sentence.starts_with("terminated by the peer: "), "{sentence}");
    assert!(bench.core.env().is_answered());
}

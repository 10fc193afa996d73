//! Time limits of entire operations, which expire while connecting or while the peer does not answer.

use api::{
    AtomicChoice, AtomicSpec, ConnectSpec, ErrorKind, GetSink, GetSpec, JobState, PingSpec,
    PutSpec, RemotePlace, SendSpec, Via,
};
use dataplane::{ConnectError, ConnectStage};
use ddp::Message;

use super::rdmap::{OPENED, closes, establish, offer, rdmap_spec};
use super::*;

const TIME_LIMIT: Duration = Duration::from_secs(3);

fn limited_spec() -> ConnectSpec {
    ConnectSpec { within_us: Some(3_000_000), ..rdmap_spec() }
}

fn target() -> RemotePlace {
    RemotePlace::Region { name: "box".into(), offset: 0 }
}

/// Returns a request of each operation that opens its own stream.
fn operations(bench: &Bench) -> Vec<Request> {
    let file = bench.dir.path().join("file");
    std::fs::write(&file, [7; 10]).unwrap();
    let via = || Via::Connect(limited_spec());
    let sink = GetSink::File(bench.dir.path().join("got"));
    let operation = AtomicChoice::FetchAdd { add: 1 };
    vec![
        Request::Put(PutSpec { file: Some(file), via: via(), target: target() }),
        Request::Get(GetSpec { via: via(), source: target(), length: Some(8), sink }),
        Request::Send(SendSpec { via: via(), queue: 0, data: b"x".to_vec(), wait_reply_us: 0 }),
        Request::Ping(PingSpec {
            connect: limited_spec(),
            count: 1,
            size: 8,
            timeout_us: 60_000_000,
        }),
        Request::Atomic(AtomicSpec { via: via(), target: target(), operation }),
    ]
}

/// Returns the error of an operation that was answered, or of its job if that has ended.
fn failure(bench: &mut Bench, pending: &mut Pending, job: Option<u64>) -> Option<String> {
    let Some(id) = job else { return pending.try_recv().ok()?.err().map(|error| error.message) };
    let info = bench.core.jobs().info(bench.core.env(), id, bench.now).unwrap();
    (info.state == JobState::Failed).then(|| info.error.unwrap_or_default())
}

fn start(bench: &mut Bench, request: Request) -> (Pending, Option<u64>) {
    let is_job = matches!(request, Request::Put(_) | Request::Get(_));
    let mut pending = bench.call(request);
    let job = is_job.then(|| match answer(&mut pending) {
        Ok(Reply::Job(info)) => info.id,
        other => panic!("{:?}", other.map(|_| ())),
    });
    bench.load_all();
    (pending, job)
}

#[test]
fn silent_peer_times_out_operation_with_awaited_step() {
    let awaited = [
        "the peer has not acknowledged all bytes",
        "the peer has not answered all Reads",
        "the peer has not acknowledged the message",
        "after 0 of 1 rounds: not done within 3 s",
        "the peer has not answered the operation",
    ];
    for (at, awaited) in awaited.into_iter().enumerate() {
        let mut bench = bench();
        let request = operations(&bench).remove(at);
        let (mut pending, job) = start(&mut bench, request);
        establish(&mut bench, &[offer("box", "rwa")]);
        bench.load_all();
        bench.acknowledge_all();
        bench.advance(TIME_LIMIT - Duration::from_millis(1));
        assert_eq!(failure(&mut bench, &mut pending, job), None, "{awaited}");
        bench.advance(Duration::from_millis(1));
        let sentence = failure(&mut bench, &mut pending, job).unwrap_or_default();
        assert!(sentence.contains("within 3 s") && sentence.contains(awaited), "{sentence}");
        assert_eq!(closes(&bench.all_commands(), OPENED), [true], "{awaited}");
    }
}

#[test]
fn connect_time_limit_fails_operation_with_awaited_step() {
    for (awaited, words) in [
        (ConnectStage::SynAck, "no answer to the SYN within 3 s"),
        (ConnectStage::MpaReply, "no answer to the MPA request within 3 s"),
        (ConnectStage::NextHop, "no answer to address resolution within 3 s"),
    ] {
        for at in 0..5 {
            let mut bench = bench();
            let request = operations(&bench).remove(at);
            let (mut pending, job) = start(&mut bench, request);
            let commands = bench.all_commands();
            let [Command::Connect(connect)] = &commands[..] else { panic!("{commands:?}") };
            assert_eq!(connect.timeout, TIME_LIMIT);
            bench.advance(TIME_LIMIT);
            assert_eq!(
                failure(&mut bench, &mut pending, job),
                None,
                "the worker reports the time-out"
            );
            let (ticket, reason) = (connect.ticket, ConnectError::Timeout(awaited));
            bench.event(Event::ConnectFailed { ticket, reason });
            let sentence = failure(&mut bench, &mut pending, job).unwrap_or_default();
            assert!(sentence.contains(words), "{sentence}");
        }
    }
}

/// An operation that ends in time is not affected by its limit. Limits out of range are refused.
#[test]
fn time_limit_ends_with_operation_and_is_range_checked() {
    let mut bench = bench();
    let request = operations(&bench).remove(0);
    let (mut pending, job) = start(&mut bench, request);
    establish(&mut bench, &[offer("box", "rwa")]);
    bench.load_all();
    let commands = bench.all_commands();
    let posted = commands.iter().find_map(|command| match command {
        Command::Post { ticket, message: Message::Tagged { .. }, .. } => Some(*ticket),
        Command::PostRdmap { ticket, .. } => Some(*ticket),
        _ => None,
    });
    assert!(posted.is_some(), "{commands:?}");
    let mut cancelled = bench.call(Request::CancelJob(job.unwrap()));
    assert!(
        matches!(answer(&mut cancelled), Ok(Reply::Job(job)) if job.state == JobState::Cancelled)
    );
    bench.advance(TIME_LIMIT);
    assert_eq!(failure(&mut bench, &mut pending, job), None);
    for within_us in [0, 86_400_000_001] {
        let spec = ConnectSpec { within_us: Some(within_us), ..rdmap_spec() };
        let error = answer(&mut bench.call(Request::Connect(spec))).unwrap_err();
        assert_eq!(
            (error.error, error.message.as_str()),
            (ErrorKind::BadRequest, "within_us is 1 to 86400000000")
        );
    }
}

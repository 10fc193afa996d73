//! `bench`: refused requests, commands to the workers, and the end of a run.

use api::{
    BenchInfo, BenchLoad, BenchPeer, BenchSpec, ConnectSpec, ErrorKind, JobInfo, JobState,
    RemotePlace,
};
use dataplane::{Load, LoadKind, LoadReport, Order, Pace, PostFailure, Window};
use ddp::rdmap::WorkRequest;
use ddp::{Access, Qn, RegionMemory as _, Source, Stag, TaggedOffset};
use tcp_lite::endpoint::TcpReason;

use super::rdmap::{closes, offer, rdmap_spec, removed_stags};
use super::*;

const BENCH_ENABLED: &str = "[management]\nbench = true\n";

fn spec(load: BenchLoad) -> BenchSpec {
    BenchSpec {
        load,
        connect: rdmap_spec(),
        target: None,
        peer: BenchPeer::Appliance,
        queue: 0,
        streams: 2,
        size: 100,
        depth: 3,
        time_us: 1_000_000,
        rate: None,
    }
}

fn bench_enabled() -> Bench {
    bench_with(&(BASIC.to_owned() + BENCH_ENABLED))
}

fn request_bench(bench: &mut Bench, spec: BenchSpec) -> Result<JobInfo, ApiError> {
    match answer(&mut bench.call(Request::Bench(spec)))? {
        Reply::Job(info) => Ok(info),
        _ => panic!("no job"),
    }
}

fn job(bench: &mut Bench, id: u64) -> (JobInfo, BenchInfo) {
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Job(id))) else { panic!("no job") };
    let result = *info.bench.clone().unwrap();
    (info, result)
}

/// Establishes the pending active open as stream `id`. The peer advertises `offers`.
fn establish(bench: &mut Bench, id: u64, offers: &[Advertised]) {
    let commands = bench.acknowledge();
    let connects: Vec<Ticket> = commands
        .iter()
        .filter_map(|command| match command {
            Command::Connect(connect) => Some(connect.ticket),
            _ => None,
        })
        .collect();
    assert_eq!(connects.len(), 1, "one after the other: {commands:?}");
    bench.establish_stream(id, "10.0.0.9", Some(connects[0]), offers);
}

fn loads(commands: &[Command]) -> Vec<(u64, Load)> {
    let loads = commands.iter().filter_map(|command| match command {
        Command::Load { stream, load, .. } => Some((stream.0, *load)),
        _ => None,
    });
    loads.collect()
}

fn stops(commands: &[Command]) -> Vec<u64> {
    let stops = commands.iter().filter_map(|command| match command {
        Command::StopLoad { stream } => Some(stream.0),
        _ => None,
    });
    stops.collect()
}

/// Answers the first progress check of a run whose time has elapsed. Returns the streams whose loads are stopped.
fn end_run_time(bench: &mut Bench, moved: u64) -> Vec<u64> {
    let commands = bench.all_commands();
    report_progress(bench, &commands, moved, 0);
    stops(&commands)
}

/// Answers a progress check with `moved` bytes on the run's stream.
fn answer_progress_check(bench: &mut Bench, moved: u64) {
    let commands = bench.all_commands();
    // Bytes on other streams are not progress of the run.
    report_progress(bench, &commands, moved, 1 << 40);
}

/// Answers progress checks: `moved` bytes on stream 5, and `others` on stream 99, which is not part of the run.
fn report_progress(bench: &mut Bench, commands: &[Command], moved: u64, others: u64) {
    let mut lists = 0;
    for command in commands {
        let Command::ListStreams { ticket, .. } = command else { continue };
        let streams =
            if lists == 0 { vec![stream_info(5, moved), stream_info(99, others)] } else { vec![] };
        lists += 1;
        bench.report_list(*ticket, streams, true);
    }
    assert!(lists > 0, "no progress check was sent: {commands:?}");
}

/// Returns a worker's data of a stream whose peer has acknowledged this many bytes.
pub(super) fn stream_info(id: u64, acknowledged: u64) -> dataplane::StreamInfo {
    let mut stats = EndpointStats::default();
    stats.tcp.bytes_acknowledged = acknowledged;
    dataplane::StreamInfo {
        stream: StreamId(id),
        listener: None,
        interface: InterfaceId(0),
        local: remote("10.0.0.1"),
        remote: remote("10.0.0.9"),
        transport: dataplane::Transport::Tcp,
        association: None,
        state: "established",
        age: Duration::ZERO,
        flow: dataplane::FlowInfo::default(),
        stats: StreamStats::Tcp(stats),
    }
}

/// Ends a load with this many messages, each with a latency of 1 µs.
fn complete_load(
    bench: &mut Bench,
    job: u64,
    id: u64,
    messages: u64,
    failure: Option<PostFailure>,
) {
    let mut latency = hdrhistogram::Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
    latency.record_n(1000, messages).unwrap();
    let report = Box::new(LoadReport {
        messages,
        bytes: messages * 100,
        nanoseconds: 1_000_000_000,
        latency: Some(latency),
        unfinished: 0,
        failure,
    });
    bench.event(Event::LoadDone { stream: StreamId(id), ticket: Ticket(job), report });
}

/// Returns a run with load on two streams.
fn running_bench(load: BenchLoad) -> (Bench, u64) {
    let mut bench = bench_enabled();
    let id = request_bench(&mut bench, spec(load)).unwrap().id;
    establish(&mut bench, 5, &[]);
    establish(&mut bench, 6, &[]);
    assert_eq!(loads(&bench.all_commands()).len(), 2);
    (bench, id)
}

#[test]
fn bench_is_off_by_default_and_its_values_are_bounded() {
    let mut bench = bench();
    let refused = request_bench(&mut bench, spec(BenchLoad::Write)).unwrap_err();
    assert_eq!(refused.error, ErrorKind::Unavailable);
    assert!(refused.message.contains("`bench = true` in [management]"), "{}", refused.message);
    let mut bench = bench_enabled();
    let tagged =
        |load| BenchSpec { target: Some(RemotePlace::Tagged { stag: 1, to: 0 }), ..spec(load) };
    let (write, echo) = (spec(BenchLoad::Write), spec(BenchLoad::Echo));
    let tested = |load| BenchSpec { peer: BenchPeer::Perftest, ..spec(load) };
    let plain = ConnectSpec::to_remote(remote("10.0.0.9"));
    let offering = ConnectSpec { regions: vec!["own".into()], ..rdmap_spec() };
    for (spec, sentence) in [
        (BenchSpec { streams: 0, ..write.clone() }, "streams must be from 1 to 256"),
        (BenchSpec { streams: 257, ..write.clone() }, "streams must be from 1 to 256"),
        (BenchSpec { size: 0, ..write.clone() }, "size of `write` must be from 1 to 16777216"),
        (BenchSpec { size: (16 << 20) + 1, ..write.clone() }, "size of `write`"),
        (BenchSpec { size: (1 << 20) + 1, ..spec(BenchLoad::Send) }, "1 to 1048576"),
        (BenchSpec { size: (64 << 10) + 1, ..echo.clone() }, "1 to 65536"),
        (BenchSpec { depth: 1025, ..write.clone() }, "depth of `write` must be from 1 to 1024"),
        (BenchSpec { depth: 33, ..echo.clone() }, "depth of `echo` must be from 1 to 32"),
        (BenchSpec { size: (16 << 20) + 1, ..spec(BenchLoad::Connect) }, "size of `connect`"),
        (BenchSpec { depth: 1025, ..spec(BenchLoad::Connect) }, "1 to 1024"),
        (BenchSpec { time_us: 0, ..write.clone() }, "time_us must be from 1 to 3600000000"),
        (BenchSpec { time_us: 3_600_000_001, ..write.clone() }, "time_us"),
        (BenchSpec { rate: Some(0), ..write.clone() }, "rate must be from 1 to 1000000000"),
        (BenchSpec { rate: Some(u64::MAX), ..write.clone() }, "rate"),
        (tagged(BenchLoad::Echo), "a bench of `echo` uses no region"),
        (BenchSpec { streams: 1, ..tested(BenchLoad::Send) }, "not `send`"),
        (tested(BenchLoad::Write), "streams must be 1"),
        (BenchSpec { connect: offering, ..write }, "connect.regions must be empty"),
        (BenchSpec { connect: plain, ..spec(BenchLoad::Read) }, "bare DDP has no Reads"),
    ] {
        let refused = request_bench(&mut bench, spec).unwrap_err();
        assert_eq!(refused.error, ErrorKind::BadRequest, "{refused}");
        assert!(refused.message.contains(sentence), "{refused}");
    }
    assert!(bench.all_commands().is_empty());
}

#[test]
fn bench_writes_start_at_the_region_base() {
    let mut bench = bench_enabled();
    let rate = Some(1000);
    let info = request_bench(&mut bench, BenchSpec { rate, ..spec(BenchLoad::Write) }).unwrap();
    assert_eq!((info.kind.as_str(), info.state), ("bench", JobState::Connecting));
    let busy = request_bench(&mut bench, spec(BenchLoad::Write)).unwrap_err();
    assert_eq!(busy.error, ErrorKind::Conflict);
    establish(&mut bench, 5, &[offer("box", "w")]);
    assert_eq!(job(&mut bench, info.id).0.state, JobState::Staging);
    bench.load_all();
    let commands = bench.all_commands();
    let entry = added_entries(&commands)[0].clone();
    assert_eq!((entry.stream, entry.access), (Some(StreamId(5)), Access::NONE));
    assert_eq!((entry.base_to, entry.len), (TaggedOffset(4096), 1024));
    assert!(entry.memory.is_stable(), "retransmissions are framed from this memory");
    commands.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
    establish(&mut bench, 6, &[offer("box", "w")]);
    let commands = bench.all_commands();
    let second = added_entries(&commands)[0].clone();
    assert_eq!(second.stream, Some(StreamId(6)));
    commands.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
    let begun = loads(&bench.all_commands());
    let ms = Duration::from_millis;
    for ((id, load), (stream, stag, phase)) in
        begun.iter().zip([(5, entry.stag, ms(0)), (6, second.stag, ms(1))])
    {
        let (base, order) = (TaggedOffset(4096), Order::Sequential);
        let window = Window { local: stag, remote: Stag(77), base, bytes: 1024, order };
        let pace = Pace::Open { interval: ms(2), phase };
        let kind = LoadKind::Write(window);
        assert_eq!((*id, load.kind, load.pace), (stream, kind, pace));
        assert_eq!((load.len, load.depth, load.timed), (100, 3, true));
    }
    assert_eq!(begun.len(), 2);
    bench.advance(ms(999));
    assert!(stops(&bench.all_commands()).is_empty(), "before the run time has elapsed");
    bench.advance(ms(1));
    assert_eq!(stops(&bench.all_commands()), [5, 6]);
    complete_load(&mut bench, info.id, 5, 10, None);
    assert!(closes(&bench.all_commands(), StreamId(5)).is_empty(), "the other load continues");
    complete_load(&mut bench, info.id, 6, 20, None);
    let commands = bench.all_commands();
    assert_eq!(closes(&commands, StreamId(5)), [false]);
    assert_eq!(closes(&commands, StreamId(6)), [false]);
    assert_eq!(job(&mut bench, info.id).0.state, JobState::Stopping);
    for id in [5, 6] {
        bench.close_stream(id, CloseReason::LocalShutdown);
    }
    let (info, result) = job(&mut bench, info.id);
    assert_eq!((info.state, info.error, info.acknowledged), (JobState::Done, None, 3000));
    assert_eq!((result.messages, result.messages_per_s, result.open), (30, 30.0, 0));
    let times = result.latency.unwrap();
    assert_eq!((times.count, times.min_ns, times.p50_ns, times.max_ns), (30, 1000, 1000, 1000));
    let mut removed = removed_stags(&bench.all_commands());
    removed.sort_unstable();
    removed.dedup();
    assert_eq!(removed.len(), 2);
    assert!(bench.is_logged(|k| matches!(k, EventKind::JobFinished { error: None, .. })));
    assert!(request_bench(&mut bench, spec(BenchLoad::Echo)).is_ok(), "another may run");
}

#[test]
fn stalled_peer_fails_bench_after_grace_time() {
    let (mut bench, id) = running_bench(BenchLoad::Echo);
    bench.advance(Duration::from_secs(1));
    assert_eq!(end_run_time(&mut bench, 1000), [5, 6]);
    complete_load(&mut bench, id, 5, 10, None);
    bench.advance(Duration::from_secs(5));
    answer_progress_check(&mut bench, 1000);
    let commands = bench.all_commands();
    assert_eq!(
        (closes(&commands, StreamId(5)), closes(&commands, StreamId(6))),
        (vec![true], vec![true])
    );
    complete_load(&mut bench, id, 6, 0, Some(PostFailure::Flushed));
    for id in [5, 6] {
        bench.close_stream(id, CloseReason::LocalAbort);
    }
    let (info, result) = job(&mut bench, id);
    assert_eq!((info.state, result.messages), (JobState::Failed, 10));
    let sentence = "messages on 1 stream did not complete and no byte moved for 5 s: does the peer send \
                    them back (service = \"echo\")?";
    assert_eq!(info.error.as_deref(), Some(sentence));
}

#[test]
fn slow_path_extends_bench_while_bytes_move() {
    let (mut bench, id) = running_bench(BenchLoad::Echo);
    bench.advance(Duration::from_secs(1));
    assert_eq!(end_run_time(&mut bench, 0), [5, 6]);
    for moved in 1..=10 {
        bench.advance(Duration::from_secs(5));
        answer_progress_check(&mut bench, moved);
        assert_eq!(job(&mut bench, id).0.state, JobState::Stopping, "after {moved} bytes");
    }
    complete_load(&mut bench, id, 5, 3, None);
    complete_load(&mut bench, id, 6, 3, None);
    for id in [5, 6] {
        bench.close_stream(id, CloseReason::LocalShutdown);
    }
    let (info, result) = job(&mut bench, id);
    assert_eq!((info.state, info.error, result.messages), (JobState::Done, None, 6));
}

#[test]
fn too_slow_path_fails_bench_after_a_minute() {
    let (mut bench, id) = running_bench(BenchLoad::Send);
    bench.advance(Duration::from_secs(1));
    assert_eq!(end_run_time(&mut bench, 0), [5, 6]);
    for moved in 1..=11 {
        bench.advance(Duration::from_secs(5));
        answer_progress_check(&mut bench, moved);
        assert_eq!(job(&mut bench, id).0.state, JobState::Stopping, "after {moved} bytes");
    }
    assert_eq!(bench.core.poll_timeout(), Some(bench.now + Duration::from_secs(5)));
    bench.advance(Duration::from_secs(5));
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [true]);
    for id in [5, 6] {
        bench.close_stream(id, CloseReason::LocalAbort);
    }
    let (info, _) = job(&mut bench, id);
    let sentence = "messages on 2 streams did not complete within 60 s of the end: the path is too slow for 3 \
                    messages of 100 bytes in flight on each";
    assert_eq!((info.state, info.error.as_deref()), (JobState::Failed, Some(sentence)));
}

#[test]
fn early_stream_end_fails_bench_with_its_cause() {
    let (mut bench, id) = running_bench(BenchLoad::Send);
    complete_load(&mut bench, id, 6, 0, Some(PostFailure::Flushed));
    assert!(bench.all_commands().is_empty(), "the end of the stream is awaited");
    bench.close_stream(6, CloseReason::Lower(TcpReason::PeerReset));
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [true]);
    complete_load(&mut bench, id, 5, 0, Some(PostFailure::Flushed));
    bench.close_stream(5, CloseReason::LocalAbort);
    let (info, _) = job(&mut bench, id);
    assert_eq!((info.state, info.refused), (JobState::Failed, true));
    let sentence = info.error.unwrap();
    assert!(sentence.starts_with("the stream has ended: "), "{sentence}");
    assert!(sentence.contains("(service = \"sink\"), and buffers for 3 messages of 100 bytes?"));
    assert_eq!(bench.logged_events(|k| matches!(k, EventKind::JobFinished { .. })).len(), 1);
}

#[test]
fn expired_lease_cancels_bench() {
    let mut bench = bench_enabled();
    let long = BenchSpec { time_us: 3_600_000_000, ..spec(BenchLoad::Echo) };
    let id = request_bench(&mut bench, long).unwrap().id;
    establish(&mut bench, 5, &[]);
    establish(&mut bench, 6, &[]);
    let begun = loads(&bench.all_commands());
    assert!(begun.iter().all(|(_, load)| load.kind == LoadKind::Echo { qn: Qn(0) }));
    for _ in 0..3 {
        bench.advance(Duration::from_secs(9));
        assert_eq!(job(&mut bench, id).0.state, JobState::Running);
    }
    // Only a request for the job itself renews its lease; a list of all jobs does not.
    bench.advance(Duration::from_secs(9));
    assert!(answer(&mut bench.call(Request::Jobs)).is_ok());
    assert_eq!(bench.core.poll_timeout(), Some(bench.now + Duration::from_secs(1)));
    bench.advance(Duration::from_secs(1));
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [true]);
    for id in [5, 6] {
        bench.close_stream(id, CloseReason::LocalAbort);
    }
    let (info, _) = job(&mut bench, id);
    assert_eq!(info.state, JobState::Cancelled);
    assert_eq!(info.error.as_deref(), Some("no client has requested the job for 10 s"));
}

#[test]
fn stream_established_after_bench_end_is_closed() {
    let mut bench = bench_enabled();
    let id = request_bench(&mut bench, spec(BenchLoad::Echo)).unwrap().id;
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::CancelJob(id))) else { panic!() };
    assert_eq!(info.state, JobState::Cancelled);
    establish(&mut bench, 5, &[]);
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [true]);
    bench.close_stream(5, CloseReason::LocalAbort);
    assert_eq!(job(&mut bench, id).0.state, JobState::Cancelled);
    assert!(request_bench(&mut bench, spec(BenchLoad::Echo)).is_ok());
}

/// Returns the tickets of the active opens.
fn connects(commands: &[Command]) -> Vec<Ticket> {
    let connects = commands.iter().filter_map(|command| match command {
        Command::Connect(connect) => Some(connect.ticket),
        _ => None,
    });
    connects.collect()
}

#[test]
fn connect_bench_opens_and_resets_streams_repeatedly() {
    let mut bench = bench_enabled();
    let id = request_bench(&mut bench, spec(BenchLoad::Connect)).unwrap().id;
    let mut opening = connects(&bench.all_commands());
    assert_eq!(opening.len(), 2, "both at once");
    for stream in 5..15 {
        bench.now += Duration::from_millis(1);
        bench.establish_stream(stream, "10.0.0.9", Some(opening.remove(0)), &[]);
        assert_eq!(closes(&bench.all_commands(), StreamId(stream)), [true]);
        bench.close_stream(stream, CloseReason::LocalAbort);
        opening.extend(connects(&bench.all_commands()));
        assert_eq!(opening.len(), 2, "the next");
    }
    let (info, result) = job(&mut bench, id);
    assert_eq!((info.state, result.messages, info.acknowledged), (JobState::Running, 10, 0));
    bench.advance(Duration::from_secs(1));
    for stream in 15..17 {
        assert_eq!(job(&mut bench, id).0.state, JobState::Stopping);
        bench.establish_stream(stream, "10.0.0.9", Some(opening.remove(0)), &[]);
        bench.close_stream(stream, CloseReason::LocalAbort);
        assert!(connects(&bench.all_commands()).is_empty());
    }
    let (info, result) = job(&mut bench, id);
    assert_eq!((info.state, info.error, result.messages), (JobState::Done, None, 12));
    let times = result.latency.unwrap();
    assert_eq!(times.count, 12);
    assert!((999_000..=1_000_000).contains(&times.min_ns), "{times:?}");
    assert!(times.max_ns > 1_000_000_000, "the last two waited");
}

#[test]
fn connect_latency_counts_from_the_due_time() {
    let mut bench = bench_enabled();
    let paced = BenchSpec { rate: Some(10), streams: 1, ..spec(BenchLoad::Connect) };
    let id = request_bench(&mut bench, paced).unwrap().id;
    let first = connects(&bench.all_commands());
    assert_eq!(first.len(), 1, "due at once");
    // The stream is established after 450 ms; at 10 opens per second four more became due in that time.
    bench.advance(Duration::from_millis(450));
    assert!(connects(&bench.all_commands()).is_empty(), "one at a time");
    let mut next = first[0];
    for stream in 5..10 {
        bench.establish_stream(stream, "10.0.0.9", Some(next), &[]);
        bench.close_stream(stream, CloseReason::LocalAbort);
        let more = connects(&bench.all_commands());
        if stream < 9 {
            next = more[0];
        } else {
            assert!(more.is_empty(), "none is due");
        }
    }
    assert_eq!(bench.core.poll_timeout(), Some(bench.now + Duration::from_millis(50)));
    bench.advance(Duration::from_millis(50));
    assert_eq!(connects(&bench.all_commands()).len(), 1);
    // The peer does not answer until the end of the run, nor in the 5 s after it.
    bench.advance(Duration::from_millis(500));
    bench.advance(Duration::from_secs(5));
    let (info, result) = job(&mut bench, id);
    assert_eq!(info.state, JobState::Failed);
    assert_eq!(info.error.as_deref(), Some("1 stream was not established within 5 s"));
    assert_eq!((result.messages, result.unfinished), (5, 6));
    // 450, 350, 250, 150 and 50 ms for the opened streams; 400 to 0 ms for the streams that were due but not opened.
    let times = result.latency.unwrap();
    assert_eq!((times.count, times.max_ns / 1_000_000), (10, 450));
}

/// Returns the Sends posted on this stream.
fn sends(commands: &[Command], stream: u64) -> Vec<Vec<u8>> {
    let sends = commands.iter().filter_map(|command| match command {
        Command::PostRdmap {
            stream: id,
            request: WorkRequest::Send { source: Source::Bytes(bytes), .. },
            ..
        } if id.0 == stream => Some(bytes.to_vec()),
        _ => None,
    });
    sends.collect()
}

/// Delivers an answer of the server on stream 5, after which the next message is sent.
fn receive_answer(bench: &mut Bench, data: Vec<u8>) {
    let (stream, solicited) = (StreamId(5), false);
    bench.event(Event::Received { stream, data, solicited, invalidated: None });
}

/// Returns a perftest run at the point where the data stream is to be opened.
fn greeted_bench() -> (Bench, u64) {
    let mut bench = bench_enabled();
    let tested = BenchSpec { peer: BenchPeer::Perftest, streams: 1, ..spec(BenchLoad::Write) };
    let id = request_bench(&mut bench, tested).unwrap().id;
    establish(&mut bench, 5, &[]);
    for _ in 1..=5 {
        let mut sent = sends(&bench.all_commands(), 5);
        assert_eq!(sent.len(), 1, "one at a time");
        receive_answer(&mut bench, sent.remove(0));
    }
    (bench, id)
}

/// Returns a perftest run whose load has started.
fn loading_bench() -> (Bench, u64) {
    let (mut bench, id) = greeted_bench();
    establish(&mut bench, 6, &[]);
    for _ in 6..=9 {
        let mut sent = sends(&bench.all_commands(), 5);
        sent[0][16..20].copy_from_slice(&77u32.to_be_bytes());
        sent[0][24..32].copy_from_slice(&0x1_0000u64.to_be_bytes());
        receive_answer(&mut bench, sent.remove(0));
    }
    bench.load_all();
    let commands = bench.all_commands();
    commands.iter().filter_map(ticket).for_each(|ticket| bench.acknowledge_ticket(ticket));
    let begun = loads(&bench.all_commands());
    let LoadKind::Write(window) = begun[0].1.kind else { panic!("{begun:?}") };
    assert_eq!((begun.len(), begun[0].0, window.remote), (1, 6, Stag(77)));
    assert_eq!((window.base, window.bytes), (TaggedOffset(0x1_0000), 4096));
    (bench, id)
}

#[test]
fn perftest_run_exchanges_greeting_load_and_report() {
    let (mut bench, id) = loading_bench();
    assert_eq!(job(&mut bench, id).1.open, 1, "the control stream does not count as open");
    bench.advance(Duration::from_secs(1));
    let commands = bench.all_commands();
    assert_eq!(stops(&commands), [6]);
    complete_load(&mut bench, id, 6, 20, None);
    // No byte moves while the result is sent to the server; the run must not fail for lack of progress.
    report_progress(&mut bench, &commands, 0, 0);
    let mut reported = Vec::new();
    for _ in 10..=16 {
        assert_eq!(job(&mut bench, id).0.state, JobState::Stopping);
        let mut sent = sends(&bench.all_commands(), 5);
        reported.push(sent[0].clone());
        receive_answer(&mut bench, sent.remove(0));
    }
    assert_eq!(reported[2], 20u64.to_be_bytes());
    // The streams stay open for `LINGER_TIME` (500 ms) after the last answer: the server fails if its stream closes
    // before its last Send has completed.
    bench.advance(Duration::from_millis(499));
    assert!(closes(&bench.all_commands(), StreamId(5)).is_empty());
    bench.advance(Duration::from_millis(1));
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [false]);
    for id in [6, 5] {
        bench.close_stream(id, CloseReason::PeerShutdown);
    }
    let (info, result) = job(&mut bench, id);
    assert_eq!((info.state, info.error, result.messages), (JobState::Done, None, 20));
}

#[test]
fn perftest_data_stream_end_still_awaits_final_answer() {
    let (mut bench, id) = loading_bench();
    bench.advance(Duration::from_secs(1));
    assert_eq!(end_run_time(&mut bench, 0), [6]);
    complete_load(&mut bench, id, 6, 20, None);
    bench.close_stream(6, CloseReason::PeerShutdown);
    assert_eq!(job(&mut bench, id).0.state, JobState::Stopping);
    // The run must end although the server is silent.
    bench.advance(Duration::from_secs(9));
    assert_eq!(job(&mut bench, id).0.state, JobState::Stopping);
    bench.advance(Duration::from_secs(1));
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [true]);
    bench.close_stream(5, CloseReason::LocalAbort);
    let (info, _) = job(&mut bench, id);
    let sentence = "no answer within 10 s; is it `ib_write_bw -R -s 100`?";
    assert_eq!((info.state, info.error.as_deref()), (JobState::Failed, Some(sentence)));
}

#[test]
fn non_perftest_server_fails_bench_with_hint() {
    let mut bench = bench_enabled();
    let tested = BenchSpec { peer: BenchPeer::Perftest, streams: 1, ..spec(BenchLoad::Read) };
    let id = request_bench(&mut bench, tested).unwrap().id;
    establish(&mut bench, 5, &[]);
    receive_answer(&mut bench, vec![0; 5]);
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [true]);
    bench.close_stream(5, CloseReason::LocalAbort);
    let (info, _) = job(&mut bench, id);
    let sentence = "the peer is no perftest server: a Send of 5 bytes, 16 are expected; is it \
                    `ib_read_bw -R -s 100`?";
    assert_eq!((info.refused, info.error.as_deref()), (true, Some(sentence)));
    // The server is silent.
    let (mut bench, id) = greeted_bench();
    establish(&mut bench, 6, &[]);
    bench.advance(Duration::from_secs(9));
    assert_eq!(job(&mut bench, id).0.state, JobState::Connecting);
    bench.advance(Duration::from_secs(1));
    let commands = bench.all_commands();
    for id in [5, 6] {
        assert_eq!(closes(&commands, StreamId(id)), [true]);
        bench.close_stream(id, CloseReason::LocalAbort);
    }
    assert_eq!(job(&mut bench, id).0.state, JobState::Failed);
}

#[test]
fn refused_perftest_connect_is_retried() {
    let (mut bench, id) = greeted_bench();
    let refused = |bench: &mut Bench| {
        let opening = connects(&bench.all_commands());
        assert_eq!(opening.len(), 1);
        let reason = dataplane::ConnectError::Closed(CloseReason::ConnectRefused.into());
        bench.event(Event::ConnectFailed { ticket: opening[0], reason });
    };
    for _ in 0..50 {
        refused(&mut bench);
        assert_eq!(job(&mut bench, id).0.state, JobState::Connecting);
        bench.advance(Duration::from_millis(200));
    }
    refused(&mut bench);
    assert_eq!(closes(&bench.all_commands(), StreamId(5)), [true], "10 s are over");
    bench.close_stream(5, CloseReason::LocalAbort);
    assert_eq!(job(&mut bench, id).0.state, JobState::Failed);
}

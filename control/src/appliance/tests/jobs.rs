//! `put`, from the file to the last acknowledgement.

use api::{ConnectSpec, ErrorKind, JobInfo, JobState, MpaChoice, PutSpec, RemotePlace, Via};
use ddp::{Message, RegionMemory, Source};

use super::super::jobs::MAX_MESSAGE;
use super::*;

fn put(bench: &mut Bench, len: usize, target: RemotePlace) -> u64 {
    let file = bench.dir.path().join("file");
    std::fs::write(&file, vec![7; len]).unwrap();
    put_file(bench, file, target, MpaChoice::default())
}

fn put_file(bench: &mut Bench, file: PathBuf, target: RemotePlace, mpa: MpaChoice) -> u64 {
    let remote = remote("10.0.0.9");
    let connect = ConnectSpec { mpa, ..ConnectSpec::to_remote(remote) };
    let via = Via::Connect(connect);
    let mut pending = bench.call(Request::Put(PutSpec { file: Some(file), via, target }));
    let Ok(Reply::Job(info)) = answer(&mut pending) else { panic!("no job") };
    assert_eq!(info.state, JobState::Staging);
    bench.load_all();
    info.id
}

fn target(offset: u64) -> RemotePlace {
    RemotePlace::Region { name: "theirs".into(), offset }
}

fn job(bench: &mut Bench, id: u64) -> JobInfo {
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Job(id))) else { panic!("no job") };
    info
}

/// Establishes the stream that the job opens. The peer advertises a region of 64 MiB.
fn connect(bench: &mut Bench) {
    let offer = Advertised {
        name: "theirs".into(),
        stag: 77,
        base_to: 1000,
        len: 64 << 20,
        remote_write: true,
        remote_read: false,
        remote_atomic: false,
        busy: false,
    };
    let commands = bench.all_commands();
    let connect = commands.iter().find_map(|command| match command {
        Command::Connect(connect) => Some(connect.ticket),
        _ => None,
    });
    bench.establish_stream(5, "10.0.0.9", connect, &[offer]);
    bench.load_all();
}

/// Returns the posted messages: ticket, TO, length.
fn posted_messages(commands: &[Command]) -> Vec<(Ticket, u64, u32)> {
    let post = |command: &Command| match command {
        Command::Post { message, ticket, .. } => match message {
            Message::Tagged { stag, to, source: Source::Region { memory, len, .. }, .. } => {
                assert_eq!(stag.0, 77);
                assert!(memory.is_stable(), "retransmissions are framed from this memory");
                Some((*ticket, to.0, *len))
            }
            _ => panic!("{message:?}"),
        },
        _ => None,
    };
    commands.iter().filter_map(post).collect()
}

fn acknowledge_message(bench: &mut Bench, ticket: Ticket) {
    bench.event(Event::Sent { stream: StreamId(5), ticket });
}

#[test]
fn put_posts_mebibyte_messages_with_bounded_outstanding() {
    let mut bench = bench();
    let len = 20 * MAX_MESSAGE as usize + 5;
    let id = put(&mut bench, len, target(10));
    assert_eq!(job(&mut bench, id).state, JobState::Connecting);
    connect(&mut bench);
    let first = posted_messages(&bench.all_commands());
    assert_eq!(first.len(), 16);
    assert_eq!((first[0].1, first[0].2), (1010, MAX_MESSAGE as u32));
    assert_eq!(first[15].1, 1010 + 15 * MAX_MESSAGE);
    let mut waiting = first;
    let mut bytes = 0;
    while let Some((ticket, to, len)) = waiting.first().copied() {
        waiting.remove(0);
        assert_eq!(to, 1010 + bytes, "in order, without gaps");
        bytes += u64::from(len);
        acknowledge_message(&mut bench, ticket);
        bench.load_all();
        assert_eq!(job(&mut bench, id).acknowledged, bytes);
        let commands = bench.all_commands();
        let closes = commands.iter().any(|c| matches!(c, Command::Close { abort: false, .. }));
        assert_eq!(closes, bytes == len_of(&bench, id), "closed after the last acknowledgement");
        waiting.extend(posted_messages(&commands));
    }
    assert_eq!(bytes, 20 * MAX_MESSAGE + 5);
    assert_eq!(job(&mut bench, id).state, JobState::Running, "the peer's close is awaited");
    let mut stats = EndpointStats::default();
    stats.tcp.loss.bytes_retransmitted = 3;
    let (stream, reason) = (StreamId(5), CloseReason::LocalShutdown);
    bench.event(Event::Closed {
        stream,
        reason: reason.into(),
        stats: Box::new(StreamStats::Tcp(stats)),
    });
    let info = job(&mut bench, id);
    assert_eq!((info.state, info.error), (JobState::Done, None));
    assert_eq!(info.counters["retransmitted_bytes"], 3);
    assert!(bench.is_logged(|k| matches!(k, EventKind::JobFinished { error: None, .. })));
}

fn len_of(bench: &Bench, id: u64) -> u64 {
    bench.core.jobs().info(bench.core.env(), id, bench.now).unwrap().total
}

#[test]
fn empty_file_is_put_as_one_empty_message() {
    let mut bench = bench();
    let id = put(&mut bench, 0, target(0));
    connect(&mut bench);
    let posts = posted_messages(&bench.all_commands());
    assert_eq!((posts.len(), posts[0].2), (1, 0));
    acknowledge_message(&mut bench, posts[0].0);
    bench.close_stream(5, CloseReason::LocalShutdown);
    assert_eq!(job(&mut bench, id).state, JobState::Done);
}

#[test]
fn put_beyond_or_without_region_fails_and_ends_stream() {
    for (target, refused) in
        [(target(64 << 20), false), (RemotePlace::Region { name: "other".into(), offset: 0 }, true)]
    {
        let mut bench = bench();
        let id = put(&mut bench, 10, target);
        connect(&mut bench);
        let commands = bench.all_commands();
        assert!(matches!(commands[..], [Command::Close { stream: StreamId(5), abort: true }]));
        let info = job(&mut bench, id);
        assert_eq!((info.state, info.refused), (JobState::Failed, refused), "{:?}", info.error);
    }
}

#[test]
fn early_stream_end_fails_the_put() {
    let mut bench = bench();
    let id = put(&mut bench, 10, target(0));
    connect(&mut bench);
    assert_eq!(posted_messages(&bench.all_commands()).len(), 1);
    bench.close_stream(5, CloseReason::Lower(TcpReason::PeerReset));
    let info = job(&mut bench, id);
    assert_eq!((info.state, info.refused), (JobState::Failed, true));
    assert!(info.error.unwrap().contains("reset by the peer"));
    assert!(bench.core.env().is_answered(), "no ticket is outstanding");
}

// RFC 5041 §5.4: only the peer's DDP delivers. An acknowledgement of its LLP does not prove delivery.
#[test]
fn peer_error_after_last_acknowledgement_fails_the_put() {
    let mut bench = bench();
    let id = put(&mut bench, 10, target(0));
    connect(&mut bench);
    let posts = posted_messages(&bench.all_commands());
    acknowledge_message(&mut bench, posts[0].0);
    let (stream, qn, msn) = (StreamId(5), ddp::ERROR_QUEUE, ddp::Msn(1));
    let data = vec![1, 0x11, 2, 0, 0, 0, 0, 0];
    bench.event(Event::Untagged { stream, qn, msn, data, rsvd_ulp: [0; 5] });
    bench.close_stream(5, CloseReason::PeerShutdown);
    let info = job(&mut bench, id);
    assert_eq!((info.state, info.refused), (JobState::Failed, true));
    assert!(info.error.as_ref().unwrap().contains("1/02"), "{:?}", info.error);
}

#[test]
fn a_missing_file_and_a_relative_path_are_refused() {
    let mut bench = bench();
    let file = bench.dir.path().join("none");
    let id = put_file(&mut bench, file, target(0), MpaChoice::default());
    let info = job(&mut bench, id);
    assert_eq!((info.state, info.refused), (JobState::Failed, false));
    let via = Via::Stream(api::StreamId(1));
    let spec = PutSpec { file: Some("relative".into()), via, target: target(0) };
    let mut pending = bench.call(Request::Put(spec));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::BadRequest);
}

#[test]
fn cancelled_put_aborts_stream_and_ignores_late_events() {
    let mut bench = bench();
    let id = put(&mut bench, 10, target(0));
    connect(&mut bench);
    let posts = posted_messages(&bench.all_commands());
    let mut pending = bench.call(Request::CancelJob(id));
    let Ok(Reply::Job(info)) = answer(&mut pending) else { panic!("no job") };
    assert_eq!(info.state, JobState::Cancelled);
    assert!(matches!(bench.all_commands()[..], [Command::Close { abort: true, .. }]));
    acknowledge_message(&mut bench, posts[0].0);
    bench.close_stream(5, CloseReason::LocalAbort);
    assert_eq!(job(&mut bench, id).state, JobState::Cancelled);
}

#[test]
fn ended_job_is_kept_until_many_newer_jobs_begin() {
    let mut bench = bench();
    let cancelled = |bench: &mut Bench| {
        let id = put(bench, 10, target(0));
        let Ok(Reply::Job(_)) = answer(&mut bench.call(Request::CancelJob(id))) else {
            panic!("no job")
        };
        connect(bench);
        bench.all_commands();
        id
    };
    let first = cancelled(&mut bench);
    for _ in 1..512 {
        cancelled(&mut bench);
        bench.advance(Duration::from_millis(1));
    }
    assert_eq!(job(&mut bench, first).state, JobState::Cancelled);
    cancelled(&mut bench);
    let error = answer(&mut bench.call(Request::Job(first))).unwrap_err();
    assert_eq!(error.error, ErrorKind::NotFound);
}

#[test]
fn put_cancelled_while_connecting_closes_the_late_stream() {
    let mut bench = bench();
    let id = put(&mut bench, 10, target(0));
    let _pending = bench.call(Request::CancelJob(id));
    connect(&mut bench);
    assert!(matches!(bench.all_commands()[..], [Command::Close { abort: false, .. }]));
}

#[test]
fn existing_stream_serves_one_job_at_a_time_and_stays_open() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let file = bench.dir.path().join("file");
    std::fs::write(&file, b"sample").unwrap();
    let spec = || PutSpec {
        file: Some(file.clone()),
        via: Via::Stream(api::StreamId(1)),
        target: RemotePlace::Tagged { stag: 77, to: 5 },
    };
    let mut pending = bench.call(Request::Put(spec()));
    let Ok(Reply::Job(info)) = answer(&mut pending) else { panic!("no job") };
    let mut second = bench.call(Request::Put(spec()));
    assert_eq!(answer(&mut second).unwrap_err().error, ErrorKind::Conflict);
    bench.load_all();
    let posts = posted_messages(&bench.all_commands());
    bench.event(Event::Sent { stream: StreamId(1), ticket: posts[0].0 });
    assert!(bench.all_commands().is_empty(), "the stream stays open");
    // The stream cannot confirm: the job waits 250 ms for an error of the peer.
    bench.advance(Duration::from_millis(249));
    assert_eq!(job(&mut bench, info.id).state, JobState::Running);
    bench.advance(Duration::from_millis(1));
    let done = job(&mut bench, info.id);
    assert_eq!((done.state, done.confirmed), (JobState::Done, Some(false)));
    let mut third = bench.call(Request::Put(spec()));
    assert!(answer(&mut third).is_ok());
}

// draft-culley-iwarp-mpa §13.3.1: Start Keys have no private data, so STag and TO must be in the request.
#[test]
fn revision_0_with_known_stag_uses_start_keys() {
    for (target, initiate) in
        [(RemotePlace::Tagged { stag: 77, to: 0 }, Revision::Draft), (target(0), Revision::Zero)]
    {
        let mut bench = bench();
        let file = bench.dir.path().join("file");
        std::fs::write(&file, b"sample").unwrap();
        let mpa = MpaChoice { revision: Some(0), ..MpaChoice::default() };
        put_file(&mut bench, file, target, mpa);
        let commands = bench.all_commands();
        let [Command::Connect(connect)] = &commands[..] else { panic!("{commands:?}") };
        let EndpointConfig::Tcp(endpoint) = &connect.endpoint else { panic!("not TCP") };
        assert_eq!(endpoint.mpa.initiate, initiate);
    }
}

// The memory of a put is bounded regardless of the file's length. The destination is checked before the file is read.
#[test]
fn large_file_is_put_through_bounded_memory() {
    let mut bench = bench();
    let before = bench.budget.info().jobs;
    let file = bench.dir.path().join("sparse");
    let len = 40 * MAX_MESSAGE + 3;
    std::fs::File::create(&file).unwrap().set_len(len).unwrap();
    let id = put_file(&mut bench, file.clone(), target(0), MpaChoice::default());
    assert_eq!(bench.budget.info().jobs - before, 32 * MAX_MESSAGE);
    connect(&mut bench);
    let mut waiting = posted_messages(&bench.all_commands());
    let mut bytes = 0;
    while !waiting.is_empty() {
        assert!(waiting.len() <= 16);
        let (ticket, to, len) = waiting.remove(0);
        assert_eq!(to, 1000 + bytes);
        bytes += u64::from(len);
        acknowledge_message(&mut bench, ticket);
        bench.load_all();
        waiting.extend(posted_messages(&bench.all_commands()));
    }
    assert_eq!((bytes, job(&mut bench, id).acknowledged), (len, len));
    bench.close_stream(5, CloseReason::LocalShutdown);
    assert_eq!(bench.budget.info().jobs, before, "the memory is freed");
    // A file of 1 TiB, mostly a hole, needs no more memory. The job detects before the first read that the file is
    // longer than the region.
    std::fs::File::options().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
    let id = put_file(&mut bench, file, target(0), MpaChoice::default());
    connect(&mut bench);
    let error = job(&mut bench, id).error.unwrap();
    assert!(error.contains("1099511627776 bytes at offset 0 do not fit"), "{error}");
}

// A slot must not be refilled before its message is acknowledged: the bytes of unacknowledged messages are compared.
#[test]
fn staging_slot_is_refilled_only_after_acknowledgement() {
    let mut bench = bench();
    let file = bench.dir.path().join("file");
    let content: Vec<u8> = (0..40u8).flat_map(|n| vec![n; MAX_MESSAGE as usize]).collect();
    std::fs::write(&file, content).unwrap();
    put_file(&mut bench, file, target(0), MpaChoice::default());
    connect(&mut bench);
    let mut waiting = bench.all_commands();
    let (mut n, mut checked) = (0u8, 0);
    while checked < waiting.len() {
        // The slots of all unacknowledged messages must be unchanged.
        for command in &waiting[checked..] {
            let Command::Post { message, .. } = command else { continue };
            let Message::Tagged { to, source: Source::Region { memory, offset, .. }, .. } = message
            else {
                panic!("{message:?}")
            };
            let mut byte = [0];
            memory.read(*offset, &mut byte);
            assert_eq!(u64::from(byte[0]), (to.0 - 1000) / MAX_MESSAGE);
        }
        if let Command::Post { ticket, .. } = &waiting[checked] {
            let ticket = *ticket;
            n += 1;
            acknowledge_message(&mut bench, ticket);
            bench.load_all();
            let more = bench.all_commands();
            waiting.extend(more);
        }
        checked += 1;
    }
    assert_eq!(n, 40);
}

fn fifo(bench: &Bench) -> PathBuf {
    let path = bench.dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    path
}

#[test]
fn pipe_is_put_to_eof_and_job_length_is_bytes_read() {
    use std::io::Write as _;
    for content in [&b"sample"[..], b""] {
        let mut bench = bench();
        let path = fifo(&bench);
        let id = put_file(&mut bench, path.clone(), target(0), MpaChoice::default());
        let content = content.to_vec();
        let writer = std::thread::spawn(move || {
            std::fs::File::options().write(true).open(path).unwrap().write_all(&content).unwrap();
            content.len()
        });
        connect(&mut bench);
        let len = writer.join().unwrap() as u64;
        let posts = posted_messages(&bench.all_commands());
        let sizes: Vec<u64> = posts.iter().map(|post| u64::from(post.2)).collect();
        assert_eq!(sizes.iter().sum::<u64>(), len);
        assert!(!posts.is_empty(), "0 bytes are also a message");
        posts.iter().for_each(|post| acknowledge_message(&mut bench, post.0));
        bench.close_stream(5, CloseReason::LocalShutdown);
        let info = job(&mut bench, id);
        assert_eq!((info.state, info.total, info.acknowledged), (JobState::Done, len, len));
    }
}

#[test]
fn pipe_longer_than_region_fails_with_reason() {
    use std::io::Write as _;
    for (len, fits) in [(10, true), (11, false)] {
        let mut bench = bench();
        let path = fifo(&bench);
        let id = put_file(&mut bench, path.clone(), target((64 << 20) - 10), MpaChoice::default());
        let writer = std::thread::spawn(move || {
            let mut pipe = std::fs::File::options().write(true).open(path).unwrap();
            pipe.write_all(&vec![1; len]).unwrap();
        });
        connect(&mut bench);
        writer.join().unwrap();
        // The bytes before the excess are still sent.
        let posts = posted_messages(&bench.all_commands());
        assert_eq!(posts.iter().map(|post| post.2).sum::<u32>(), 10);
        posts.iter().for_each(|post| acknowledge_message(&mut bench, post.0));
        assert!(matches!(bench.all_commands()[..], [Command::Close { abort: false, .. }]));
        bench.close_stream(5, CloseReason::LocalShutdown);
        let error = job(&mut bench, id).error;
        assert_eq!(error.is_none(), fits, "{error:?}");
        if let Some(error) = error {
            let sentence = "the peer's region `theirs` has 10 bytes from offset 67108854 on, and the pipe has more \
                            than the 10 bytes that it took: the region is full";
            assert_eq!(error, sentence);
        }
    }
}

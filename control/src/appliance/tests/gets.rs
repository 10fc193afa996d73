//! `get`: RDMA Reads into a file or a region.

use api::{ConnectSpec, ErrorKind, GetSink, GetSpec, JobInfo, JobState, PutSpec, RemotePlace, Via};
use ddp::rdmap::{Outcome, WorkRequest};
use ddp::{Access, RegionMemory as _, Stag, TaggedOffset};

use super::super::jobs::MAX_MESSAGE;
use super::rdmap::{
    OPENED, closes, connected_bench, establish, establish_with_reads, offer, posts, rdmap_spec,
    removed_stags,
};
use super::*;

const STAG: u32 = 77;

fn get(bench: &mut Bench, spec: GetSpec) -> Result<JobInfo, ApiError> {
    match answer(&mut bench.call(Request::Get(spec)))? {
        Reply::Job(info) => Ok(info),
        _ => panic!("no job"),
    }
}

fn box_target(offset: u64) -> RemotePlace {
    RemotePlace::Region { name: "box".into(), offset }
}

fn get_to_file(bench: &Bench, source: RemotePlace, length: Option<u64>) -> GetSpec {
    let sink = GetSink::File(bench.dir.path().join("got"));
    GetSpec { via: Via::Connect(rdmap_spec()), source, length, sink }
}

fn get_to_region(name: &str, offset: u64, length: u64) -> GetSpec {
    let sink = GetSink::Region { name: name.into(), offset };
    GetSpec { via: Via::Connect(rdmap_spec()), source: box_target(0), length: Some(length), sink }
}

fn job(bench: &mut Bench, id: u64) -> JobInfo {
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Job(id))) else { panic!("no job") };
    info
}

/// Creates the sink and registers it with all workers. Returns its STag entry, and the commands that follow.
fn make_sink_ready(bench: &mut Bench) -> (StagEntry<Memory>, Vec<Command>) {
    bench.load_all();
    let commands = bench.all_commands();
    let entries = added_entries(&commands);
    assert_eq!(entries.len(), WORKERS, "{commands:?}");
    let entry = entries[0].clone();
    assert_eq!(
        (entry.stream, entry.access),
        (Some(OPENED), Access::NONE),
        "for the job's Reads only"
    );
    let mut tickets = commands.iter().filter_map(ticket);
    bench.acknowledge_ticket(tickets.next().unwrap());
    assert!(bench.all_commands().is_empty(), "not before every worker has registered the STag");
    tickets.for_each(|ticket| bench.acknowledge_ticket(ticket));
    let posted = bench.all_commands();
    (entry, posted)
}

/// Returns the posted Reads: ticket, offset in the sink, TO at the peer, length.
fn reads(commands: &[Command], sink: Stag) -> Vec<(Ticket, u64, u64, u32)> {
    let read = |(request, ticket): (&WorkRequest<Memory>, Ticket)| match request {
        WorkRequest::Read { sink_stag, sink_to, source_stag, source_to, len, .. } => {
            assert_eq!((*sink_stag, *source_stag), (sink, Stag(STAG)));
            (ticket, sink_to.0, source_to.0, *len)
        }
        _ => panic!("{request:?}"),
    };
    posts(commands).into_iter().map(read).collect()
}

fn complete(bench: &mut Bench, read: (Ticket, u64, u64, u32)) {
    bench.complete_post(OPENED, read.0, Outcome::Read { len: read.3 });
}

#[test]
fn get_reads_region_in_mebibytes_and_saves_file() {
    let mut bench = bench();
    let total = 20 * MAX_MESSAGE + 5;
    let spec = get_to_file(&bench, box_target(10), None);
    let info = get(&mut bench, spec).unwrap();
    assert_eq!((info.kind.as_str(), info.state), ("get", JobState::Connecting));
    establish(&mut bench, &[Advertised { len: total + 10, ..offer("box", "r") }]);
    assert_eq!(job(&mut bench, info.id).state, JobState::Staging);
    assert_eq!(job(&mut bench, info.id).total, total, "all bytes after the offset");
    let (sink, posted) = make_sink_ready(&mut bench);
    assert_eq!((sink.base_to, sink.len, sink.memory_offset), (TaggedOffset(0), total, 0));
    let mut waiting = reads(&posted, sink.stag);
    assert_eq!(waiting.len(), 16, "maximum number of outstanding Reads");
    let mut bytes = 0;
    while !waiting.is_empty() {
        let read = waiting.remove(0);
        let (_, at, to, len) = read;
        assert_eq!((at, to), (bytes, 4096 + 10 + bytes), "in order, without gaps");
        sink.memory.write(at, &vec![at as u8 ^ 0x5a; len as usize]);
        bytes += u64::from(len);
        complete(&mut bench, read);
        assert_eq!(job(&mut bench, info.id).acknowledged, bytes);
        let commands = bench.all_commands();
        waiting.extend(reads(&commands, sink.stag));
    }
    assert_eq!(bench.core.jobs().reads().len(), 21);
    assert_eq!(bytes, total);
    assert_eq!(job(&mut bench, info.id).state, JobState::Saving);
    bench.load_all();
    let done = job(&mut bench, info.id);
    assert_eq!((done.state, done.error), (JobState::Done, None));
    let commands = bench.all_commands();
    assert_eq!(closes(&commands, OPENED), [false]);
    assert_eq!(removed_stags(&commands), [sink.stag; WORKERS]);
    let saved = std::fs::read(bench.dir.path().join("got")).unwrap();
    let mut expected = vec![0; total as usize];
    sink.memory.read(0, &mut expected);
    assert!(saved == expected, "the file differs");
    assert!(bench.is_logged(|k| matches!(k, EventKind::JobFinished { error: None, .. })));
}

#[test]
fn get_into_region_writes_at_its_offset() {
    let mut bench = bench();
    let info = get(&mut bench, get_to_region("own", 100, 24)).unwrap();
    establish(&mut bench, &[offer("box", "r")]);
    let (sink, posted) = make_sink_ready(&mut bench);
    assert_eq!((sink.memory_offset, sink.len, sink.base_to), (100, 24, TaggedOffset(0)));
    let read = reads(&posted, sink.stag)[0];
    assert_eq!((read.1, read.2, read.3), (0, 4096, 24));
    assert!(!bench.core.regions()["own"].is_written());
    complete(&mut bench, read);
    let done = job(&mut bench, info.id);
    assert_eq!((done.state, done.region.as_deref()), (JobState::Done, Some("own")));
    assert!(
        bench.core.regions()["own"].is_written(),
        "the region is cleared before another peer can read it"
    );
    assert!(bench.is_logged(|kind| matches!(
        kind, EventKind::RegionFetched { region, offset: 100, bytes: 24 } if region == "own"
    )));
    assert_ne!(sink.stag, bench.core.regions()["own"].stag(), "a separate STag");
    assert_eq!(removed_stags(&bench.all_commands()), [sink.stag; WORKERS]);
}

#[test]
fn invalid_get_is_refused_at_once() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let tagged = RemotePlace::Tagged { stag: STAG, to: 0 };
    let good = get_to_file(&bench, box_target(0), None);
    let relative = GetSink::File("relative".into());
    let ddp = Via::Connect(ConnectSpec::to_remote(remote("10.0.0.9")));
    let stream = |id| Via::Stream(api::StreamId(id));
    let (bad, conflict) = (ErrorKind::BadRequest, ErrorKind::Conflict);
    for (spec, kind, sentence) in [
        (GetSpec { sink: relative, ..good.clone() }, bad, "`relative` is not an absolute path"),
        (
            GetSpec { source: tagged, ..good.clone() },
            bad,
            "length must be given where a STag names the place",
        ),
        (GetSpec { via: ddp, ..good.clone() }, bad, "RDMA Reads need ulp rdmap"),
        (
            GetSpec { via: stream(1), ..good.clone() },
            conflict,
            "stream 0000000000000001 uses bare DDP, which has no Reads and no atomics",
        ),
        (
            GetSpec { via: stream(9), ..good },
            ErrorKind::NotFound,
            "there is no stream 0000000000000009",
        ),
    ] {
        let error = get(&mut bench, spec).unwrap_err();
        assert_eq!((error.error, error.message.as_str()), (kind, sentence));
    }
    assert!(bench.all_commands().is_empty());
    assert!(bench.core.jobs().is_empty());
}

#[test]
fn get_beyond_peer_or_local_region_fails_the_job() {
    let fit = "1025 bytes at offset 0 do not fit into the peer's region `box` of 1024 bytes";
    let own = "24 bytes at offset 65520 do not fit into region `own` of 65536 bytes";
    for (spec, rights, sentence, refused) in [
        (get_to_region("own", 0, 1025), "r", fit, false),
        (get_to_region("own", 0, 8), "wa", "the peer's region `box` is not open to reads", true),
        (get_to_region("own", 65520, 24), "r", own, false),
        (get_to_region("none", 0, 8), "r", "there is no region `none`", false),
    ] {
        let mut bench = bench();
        let id = get(&mut bench, spec).unwrap().id;
        establish(&mut bench, &[offer("box", rights)]);
        let info = job(&mut bench, id);
        assert_eq!((info.state, info.refused), (JobState::Failed, refused));
        assert_eq!(info.error.unwrap(), sentence);
        assert_eq!(closes(&bench.all_commands(), OPENED), [true]);
    }
    let mut bench = bench_with(&format!("{BASIC}\n[limits]\nregion_memory = \"1 MiB\"\n"));
    let spec = get_to_file(&bench, box_target(0), None);
    let id = get(&mut bench, spec).unwrap().id;
    establish(&mut bench, &[Advertised { len: 2 << 20, ..offer("box", "r") }]);
    let sentence = job(&mut bench, id).error.unwrap();
    assert!(sentence.contains("are more than limits.region_memory"), "{sentence}");
}

#[test]
fn stream_end_fails_get_and_removes_its_sink() {
    // The stream ends while memory is being created.
    let mut bench = bench();
    let spec = get_to_file(&bench, box_target(0), None);
    let id = get(&mut bench, spec.clone()).unwrap().id;
    establish(&mut bench, &[offer("box", "r")]);
    bench.close_stream(OPENED.0, CloseReason::Lower(TcpReason::PeerReset));
    bench.load_all();
    assert!(added_entries(&bench.all_commands()).is_empty(), "the sink would be unused");
    assert_eq!(job(&mut bench, id).state, JobState::Failed);
    // The stream ends while Reads are outstanding.
    let mut bench = super::bench();
    let spec = GetSpec { sink: GetSink::File(bench.dir.path().join("got")), ..spec };
    let id = get(&mut bench, spec).unwrap().id;
    establish(&mut bench, &[offer("box", "r")]);
    let (sink, posted) = make_sink_ready(&mut bench);
    assert_eq!(reads(&posted, sink.stag).len(), 1);
    bench.close_stream(OPENED.0, CloseReason::Lower(TcpReason::PeerReset));
    let info = job(&mut bench, id);
    assert_eq!((info.state, info.refused), (JobState::Failed, true));
    assert_eq!(removed_stags(&bench.acknowledge_all()), [sink.stag; WORKERS]);
    assert!(!bench.dir.path().join("got").exists(), "no partial file");
    assert!(bench.core.env().is_answered());
}

#[test]
fn cancelled_get_releases_sink_and_ignores_late_events() {
    let mut bench = bench();
    let id = get(&mut bench, get_to_region("own", 0, 24)).unwrap().id;
    establish(&mut bench, &[offer("box", "r")]);
    let (sink, posted) = make_sink_ready(&mut bench);
    assert!(answer(&mut bench.call(Request::CancelJob(id))).is_ok());
    let commands = bench.all_commands();
    assert_eq!(closes(&commands, OPENED), [true]);
    assert_eq!(removed_stags(&commands), [sink.stag; WORKERS]);
    complete(&mut bench, reads(&posted, sink.stag)[0]);
    bench.close_stream(OPENED.0, CloseReason::LocalAbort);
    assert_eq!(job(&mut bench, id).state, JobState::Cancelled);
}

#[test]
fn get_by_stag_keeps_the_existing_stream_open() {
    let mut bench = connected_bench(&[]);
    let via = Via::Stream(api::StreamId(OPENED.0));
    let source = RemotePlace::Tagged { stag: STAG, to: 5000 };
    let spec = GetSpec { via, source, ..get_to_region("own", 0, 8) };
    let id = get(&mut bench, spec.clone()).unwrap().id;
    assert_eq!(get(&mut bench, spec).unwrap_err().error, ErrorKind::Conflict);
    let (sink, posted) = make_sink_ready(&mut bench);
    let read = reads(&posted, sink.stag)[0];
    assert_eq!((read.2, read.3), (5000, 8));
    complete(&mut bench, read);
    assert_eq!(job(&mut bench, id).state, JobState::Done);
    assert!(closes(&bench.all_commands(), OPENED).is_empty());
}

// RFC 5040 §5.5: the response to a Read follows the delivery of earlier messages.
#[test]
fn put_is_confirmed_by_zero_length_read_if_negotiated() {
    for agreed in [false, true] {
        let mut bench = bench();
        let file = bench.dir.path().join("file");
        std::fs::write(&file, b"sample").unwrap();
        let spec =
            PutSpec { file: Some(file), via: Via::Connect(rdmap_spec()), target: box_target(0) };
        let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Put(spec))) else {
            panic!("no job")
        };
        bench.load_all();
        establish_with_reads(&mut bench, &[offer("box", "w")], agreed);
        bench.load_all();
        let commands = bench.all_commands();
        let [(WorkRequest::Write { .. }, write)] = posts(&commands)[..] else {
            panic!("{commands:?}")
        };
        bench.complete_post(OPENED, write, Outcome::Sent);
        let commands = bench.all_commands();
        if agreed {
            let [(WorkRequest::Read { len: 0, .. }, read)] = posts(&commands)[..] else {
                panic!("{commands:?}")
            };
            assert_eq!(closes(&commands, OPENED), [false; 0]);
            bench.complete_post(OPENED, read, Outcome::Read { len: 0 });
            // The confirmation stays valid although the peer never closes its sending direction.
            assert_eq!(closes(&bench.all_commands(), OPENED), [false]);
            bench.close_stream(OPENED.0, CloseReason::PeerLingers);
        } else {
            assert_eq!((posts(&commands).len(), closes(&commands, OPENED)), (0, vec![false]));
            bench.close_stream(OPENED.0, CloseReason::PeerLingers);
        }
        let info = job(&mut bench, info.id);
        assert_eq!((info.state, info.confirmed), (JobState::Done, Some(agreed)));
    }
}

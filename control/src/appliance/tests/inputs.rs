//! `put` of input that the client sends: complete and truncated input.

use api::{
    ConnectSpec, ErrorKind, Input, InputWriter, JobInfo, JobState, PutSpec, RemotePlace, Via,
};

use super::super::jobs::INPUT_WAIT;
use super::*;

/// Returns a put job that waits for its input.
fn put(bench: &mut Bench) -> u64 {
    let target = RemotePlace::Region { name: "theirs".into(), offset: 0 };
    let via = Via::Connect(ConnectSpec::to_remote(remote("10.0.0.9")));
    let mut pending = bench.call(Request::Put(PutSpec { file: None, via, target }));
    let Ok(Reply::Job(info)) = answer(&mut pending) else { panic!("no job") };
    assert_eq!((info.state, info.file), (JobState::Staging, PathBuf::new()));
    bench.load_all();
    info.id
}

fn job(bench: &mut Bench, id: u64) -> JobInfo {
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Job(id))) else { panic!("no job") };
    info
}

fn send(bench: &mut Bench, id: u64, input: Input) -> Result<Reply, ApiError> {
    let taken = answer(&mut bench.call(Request::Input { id, input }));
    bench.load_all();
    taken
}

/// Returns an input with these bytes, complete or truncated.
fn input(bytes: &[u8], is_complete: bool) -> Input {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut feed, input) = InputWriter::pair().unwrap();
        feed.write(bytes).await.unwrap();
        if is_complete {
            feed.complete();
        }
        input
    })
}

/// Establishes the stream that the job opens.
fn connect(bench: &mut Bench) {
    let commands = bench.all_commands();
    let connect = commands.iter().find_map(|command| match command {
        Command::Connect(connect) => Some(connect.ticket),
        _ => None,
    });
    let theirs = Advertised {
        name: "theirs".into(),
        stag: 77,
        base_to: 0,
        len: 64,
        remote_write: true,
        remote_read: false,
        remote_atomic: false,
        busy: false,
    };
    bench.establish_stream(5, "10.0.0.9", connect, &[theirs]);
    bench.load_all();
}

#[test]
fn complete_input_is_posted_whole_then_acknowledged() {
    for len in [0, 1, 64] {
        let mut bench = bench();
        let id = put(&mut bench);
        assert_eq!(send(&mut bench, id, input(&vec![7; len], true)), Ok(Reply::EMPTY));
        connect(&mut bench);
        let posts = bench.all_commands();
        let tickets = posts.iter().filter_map(|command| match command {
            Command::Post { ticket, .. } => Some(*ticket),
            _ => None,
        });
        let tickets: Vec<Ticket> = tickets.collect();
        assert_eq!(tickets.len(), 1, "{posts:?}");
        bench.event(Event::Sent { stream: StreamId(5), ticket: tickets[0] });
        bench.close_stream(5, CloseReason::LocalShutdown);
        let info = job(&mut bench, id);
        assert_eq!((info.state, info.total), (JobState::Done, len as u64), "{:?}", info.error);
    }
}

#[test]
fn truncated_input_fails_the_put() {
    let mut bench = bench();
    let id = put(&mut bench);
    assert_eq!(send(&mut bench, id, input(b"half", false)), Ok(Reply::EMPTY));
    connect(&mut bench);
    bench.load_all();
    let info = job(&mut bench, id);
    assert_eq!(info.state, JobState::Failed);
    let error = info.error.unwrap();
    assert_eq!(error, "the input ended early: its client closed the connection");
}

#[test]
fn put_without_input_times_out() {
    let mut bench = bench();
    let id = put(&mut bench);
    bench.advance(INPUT_WAIT - Duration::from_millis(1));
    assert_eq!(job(&mut bench, id).state, JobState::Staging);
    bench.advance(Duration::from_millis(1));
    let info = job(&mut bench, id);
    let sentence = format!("no input came within 30 s: POST /v1/jobs/{id}/input sends it");
    assert_eq!((info.state, info.error), (JobState::Failed, Some(sentence)));
}

#[test]
fn input_is_accepted_once_and_only_by_a_waiting_job() {
    let mut bench = bench();
    let id = put(&mut bench);
    assert_eq!(send(&mut bench, id, input(b"", true)), Ok(Reply::EMPTY));
    let kind = |taken: Result<Reply, ApiError>| taken.unwrap_err().error;
    assert_eq!(kind(send(&mut bench, id, input(b"", true))), ErrorKind::Conflict);
    assert_eq!(kind(send(&mut bench, id + 100, input(b"", true))), ErrorKind::NotFound);
    let cancelled = put(&mut bench);
    answer(&mut bench.call(Request::CancelJob(cancelled))).unwrap();
    assert_eq!(kind(send(&mut bench, cancelled, input(b"", true))), ErrorKind::Conflict);
}

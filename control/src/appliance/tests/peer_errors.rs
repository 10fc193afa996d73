//! A peer refuses a message and closes: its FIN, its last message or Terminate, and our next post, in all orders.

use ddp::PostError;
use ddp::rdmap::Terminate;

use api::{
    AtomicChoice, AtomicSpec, ConnectSpec, ErrorKind, GetSink, GetSpec, JobInfo, JobState, PutSpec,
    RemotePlace, SendSpec, Via,
};
use dataplane::PostFailure;

use super::super::streams::CAUSE_WAIT;
use super::rdmap::{OPENED, establish, offer, posts, rdmap_spec};
use super::*;

/// Events of a stream before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamEvent {
    /// The peer's last message, or its Terminate.
    Error,
    /// The peer's FIN, or the end of its session.
    Fin,
    /// The failure of a post.
    Post,
}

/// All possible orders: the peer's error always precedes its FIN.
const ORDERS: [[StreamEvent; 3]; 3] = [
    [StreamEvent::Error, StreamEvent::Fin, StreamEvent::Post],
    [StreamEvent::Error, StreamEvent::Post, StreamEvent::Fin],
    [StreamEvent::Post, StreamEvent::Error, StreamEvent::Fin],
];

/// Returns the reasons why a worker refuses, or does not complete, a post on an ending stream.
fn reasons() -> [PostFailure; 3] {
    [PostFailure::Refused(PostError::Closed), PostFailure::NoStream, PostFailure::Flushed]
}

impl Bench {
    fn deliver(&mut self, event: StreamEvent, rdmap: bool, ticket: Ticket, reason: &PostFailure) {
        let stream = OPENED;
        self.event(match event {
            StreamEvent::Error if rdmap => {
                let terminate = Terminate::new(1, 1, 2);
                Event::Terminated { stream, by_peer: true, terminate }
            }
            StreamEvent::Error => {
                let (qn, msn, data) =
                    (ddp::ERROR_QUEUE, ddp::Msn(1), vec![1, 0x11, 2, 0, 0, 0, 0, 0]);
                Event::Untagged { stream, qn, msn, data, rsvd_ulp: [0; 5] }
            }
            StreamEvent::Fin => Event::PeerClosed { stream, incomplete: false },
            StreamEvent::Post => Event::PostFailed { stream, ticket, reason: reason.clone() },
        });
    }

    fn job(&mut self, id: u64) -> JobInfo {
        self.core.jobs().info(self.core.env(), id, self.now).unwrap()
    }
}

fn target() -> RemotePlace {
    RemotePlace::Region { name: "theirs".into(), offset: 0 }
}

fn tickets(commands: &[Command]) -> Vec<Ticket> {
    let ticket = |command: &Command| match command {
        Command::Post { ticket, .. } | Command::PostRdmap { ticket, .. } => Some(*ticket),
        _ => None,
    };
    commands.iter().filter_map(ticket).collect()
}

/// Returns a `put` with two posted messages.
fn put(rdmap: bool) -> (Bench, u64, Vec<Ticket>) {
    let mut bench = bench();
    let file = bench.dir.path().join("file");
    std::fs::write(&file, vec![7; (1 << 20) + 1]).unwrap();
    let connect = if rdmap { rdmap_spec() } else { ConnectSpec::to_remote(remote("10.0.0.9")) };
    let via = Via::Connect(connect);
    let mut pending = bench.call(Request::Put(PutSpec { file: Some(file), via, target: target() }));
    let Ok(Reply::Job(info)) = answer(&mut pending) else { panic!("no job") };
    bench.load_all();
    establish(&mut bench, &[Advertised { len: 4 << 20, ..offer("theirs", "w") }]);
    bench.load_all();
    let posted = tickets(&bench.all_commands());
    assert_eq!(posted.len(), 2);
    (bench, info.id, posted)
}

/// Returns a `get` with one posted Read.
fn get() -> (Bench, u64, Vec<Ticket>) {
    let mut bench = bench();
    let sink = GetSink::File(bench.dir.path().join("got"));
    let spec =
        GetSpec { via: Via::Connect(rdmap_spec()), source: target(), length: Some(1024), sink };
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Get(spec))) else { panic!() };
    establish(&mut bench, &[offer("theirs", "r")]);
    bench.load_all();
    let posted = tickets(&bench.acknowledge());
    assert_eq!(posted.len(), 1);
    (bench, info.id, posted)
}

// RFC 5041 §7.1, RFC 5040 §4.8: the job must report the peer's refusal in any order of events.
#[test]
fn job_reports_peer_error_in_any_event_order() {
    for (kind, order, reason) in (0..3).flat_map(|kind| {
        ORDERS.into_iter().flat_map(move |o| reasons().into_iter().map(move |r| (kind, o, r)))
    }) {
        let (mut bench, id, posted) = match kind {
            0 => put(false),
            1 => put(true),
            _ => get(),
        };
        let case = format!("{kind} {order:?} {reason:?}");
        for what in order {
            bench.deliver(what, kind > 0, posted[0], &reason);
            assert_eq!(bench.job(id).state, JobState::Running, "{case}: the end is awaited");
        }
        bench.close_stream(OPENED.0, CloseReason::PeerShutdown);
        let info = bench.job(id);
        assert_eq!((info.state, info.refused), (JobState::Failed, true), "{case}");
        assert!(info.error.as_ref().unwrap().contains("1/"), "{case}: {:?}", info.error);
        bench.acknowledge();
        assert!(bench.core.env().is_answered(), "{case}: no ticket is outstanding");
        assert_eq!(bench.core.poll_timeout(), None, "{case}");
    }
}

#[test]
fn job_fails_if_peer_closes_without_error() {
    let (mut bench, id, posted) = put(false);
    let reason = PostFailure::Refused(PostError::Closed);
    bench.deliver(StreamEvent::Fin, false, posted[0], &reason);
    bench.deliver(StreamEvent::Post, false, posted[0], &reason);
    bench.close_stream(OPENED.0, CloseReason::PeerShutdown);
    let info = bench.job(id);
    assert_eq!((info.state, info.refused), (JobState::Failed, true));
    assert!(info.error.as_ref().unwrap().contains("closed by the peer"), "{:?}", info.error);
}

/// If the stream does not end in time, the job fails with the peer's error, if there was one.
#[test]
fn refused_post_waits_bounded_time_for_the_end() {
    for refused in [false, true] {
        let (mut bench, id, posted) = put(false);
        let reason = PostFailure::Refused(PostError::Closed);
        bench.deliver(StreamEvent::Post, false, posted[0], &reason);
        assert_eq!(bench.core.poll_timeout(), Some(bench.now + CAUSE_WAIT));
        if refused {
            bench.deliver(StreamEvent::Error, false, posted[0], &reason);
        }
        bench.advance(CAUSE_WAIT - Duration::from_millis(1));
        assert_eq!(bench.job(id).state, JobState::Running);
        bench.advance(Duration::from_millis(1));
        let info = bench.job(id);
        assert_eq!((info.state, info.refused), (JobState::Failed, refused));
        let sentence = if refused { "1/" } else { "the stream is closed" };
        assert!(info.error.as_ref().unwrap().contains(sentence), "{:?}", info.error);
        assert_eq!(bench.core.poll_timeout(), None);
    }
}

/// The operations are a client's message over bare DDP and over RDMAP, and an atomic operation.
#[test]
fn clients_receive_peer_error_in_any_event_order() {
    for (kind, order) in (0..3).flat_map(|kind| ORDERS.into_iter().map(move |o| (kind, o))) {
        let mut bench = bench();
        let connect =
            if kind == 0 { ConnectSpec::to_remote(remote("10.0.0.9")) } else { rdmap_spec() };
        let via = Via::Connect(connect);
        let mut pending = bench.call(match kind {
            0 | 1 => {
                let data = b"ping".to_vec();
                Request::Send(SendSpec { via, queue: 0, data, wait_reply_us: 0 })
            }
            _ => {
                let operation = AtomicChoice::FetchAdd { add: 1 };
                Request::Atomic(AtomicSpec { via, target: target(), operation })
            }
        });
        establish(&mut bench, &[offer("theirs", "rwa")]);
        let commands = bench.all_commands();
        assert_eq!(posts(&commands).is_empty(), kind == 0);
        let ticket = tickets(&commands)[0];
        for what in order {
            bench.deliver(what, kind > 0, ticket, &PostFailure::Refused(PostError::Closed));
            assert!(is_unanswered(&mut pending), "{kind} {order:?}: the end is awaited");
        }
        bench.close_stream(OPENED.0, CloseReason::PeerShutdown);
        let error = answer(&mut pending).unwrap_err();
        assert_eq!(error.error, ErrorKind::PeerRefused, "{kind} {order:?}: {}", error.message);
        assert!(error.message.contains("1/"), "{kind} {order:?}: {}", error.message);
    }
}

//! The flight recorder: records of streams, their lifetime, and their reports.

use api::{ErrorKind, EventFilter, EventKind, Flight, StreamId as ApiStream, Subject, Via, Why};
use ddp::rdmap::Terminate;

use super::*;
use dataplane::{Record, RecordKind, Recording, Transport, WaitedFor};

const PEER: &str = "10.0.0.9";

impl Bench {
    fn why(&mut self, subject: Subject) -> Result<Why, ApiError> {
        self.why_with(subject, |_| None)
    }

    /// Queries a subject. The workers answer with these records.
    fn why_with(
        &mut self,
        subject: Subject,
        has: impl Fn(StreamId) -> Option<Recording>,
    ) -> Result<Why, ApiError> {
        let mut pending = self.call(Request::Why(subject));
        for command in self.all_commands() {
            let Command::ListRecordings { streams, ticket } = command else { continue };
            assert!(streams.len() <= dataplane::RECORDINGS);
            let recordings = streams.into_iter().filter_map(&has).collect();
            self.event(Event::Recordings { ticket: Some(ticket), recordings });
        }
        match answer(&mut pending)? {
            Reply::Why(why) => Ok(why),
            other => panic!("{other:?}"),
        }
    }

    fn flight(&mut self, id: u64) -> Flight {
        let mut why = self.why(Subject::Stream(ApiStream(id))).unwrap();
        assert_eq!(why.streams.len(), 1);
        why.streams.remove(0)
    }

    fn delivered(&mut self, id: u64, len: u64) {
        let (stag, to, rsvd_ulp) = (ddp::Stag(0), ddp::TaggedOffset(0), 0);
        self.event(Event::TaggedDelivered { stream: StreamId(id), stag, to, len, rsvd_ulp });
    }
}

fn timeout() -> CloseReason {
    TcpReason::TcpTimeout.into()
}

#[test]
fn a_stream_that_timed_out_is_told_in_order_with_the_key_that_matters() {
    let mut bench = bench();
    bench.accepted(1, PEER);
    bench.delivered(1, 100);
    bench.delivered(1, 23);
    bench.pass(Duration::from_millis(2500));
    let before = bench.flight(1);
    assert_eq!(before.end, None);
    assert_eq!(before.sentences.last().unwrap(), "It has not ended.");

    bench.closed(1, timeout());
    let flight = bench.flight(1);
    let events: Vec<&str> = flight.events.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(events, ["requested", "established", "delivered"]);
    assert!(flight.events[2].detail.starts_with("2 messages, 123 bytes"), "{flight:?}");
    assert_eq!((flight.listener.as_deref(), flight.remote.as_str()), (Some("in"), "10.0.0.9:5000"));
    let end = flight.end.unwrap();
    assert_eq!((end.by.as_str(), end.reason.as_str()), ("network", "tcp_timeout"));
    assert_eq!(
        (end.code.as_deref(), end.key.as_deref()),
        (Some("2/0/01"), Some("[tcp] user_timeout"))
    );
    assert_eq!(end.time_us - flight.began_us, 2_500_000);
    let told = flight.sentences.join("\n");
    for part in [
        "Stream 0000000000000001 with 10.0.0.9:5000: accepted by listener in, bare DDP over TCP",
        "The network, or the peer's host, ended it after 2.500 s: ",
        "layer 2 (MPA), error type 0, code 0x01",
        "[tcp] user_timeout",
    ] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
}

#[test]
fn an_error_of_the_peer_is_told_with_layer_code_field_and_header() {
    let mut bench = bench();
    bench.accepted(1, PEER);
    let error = super::streams::sample_error();
    bench.event(Event::Error { stream: StreamId(1), error: error.clone() });
    bench.closed(1, CloseReason::Ddp(error.clone()));
    let flight = bench.flight(1);
    let end = flight.end.as_ref().unwrap();
    assert_eq!((end.by.as_str(), end.code.as_deref()), ("peer", Some("1/1/02")));
    assert_eq!(end.key.as_deref(), Some("[[listener]] regions"));
    let told = flight.sentences.join("\n");
    let found = format!(
        "found an error of the peer in DDP, 1/02: {error}. The segment's header: c1000000 0007"
    );
    assert!(told.contains(&found), "{told}");
    assert!(told.contains("serves one stream at a time"), "{told}");
}

#[test]
fn a_terminate_says_who_sent_it() {
    for (by_peer, who) in [(true, "the peer"), (false, "this end")] {
        let mut bench = bench();
        bench.accepted(1, PEER);
        let terminate = Terminate::new(0, 2, 5);
        let event =
            Event::Terminated { stream: StreamId(1), by_peer, terminate: terminate.clone() };
        bench.event(event);
        bench.closed(1, CloseReason::Terminated(Box::new(terminate)));
        let told = bench.flight(1).sentences.join("\n");
        assert!(told.contains(&format!("{who} sent a Terminate: ")), "{told}");
        assert!(told.contains("layer 0 (RDMAP), error type 2, code 0x05"), "{told}");
    }
}

#[test]
fn streams_that_ended_in_order_and_rejected_ones_are_not_kept() {
    let mut bench = bench();
    bench.accepted(1, PEER);
    bench.closed(1, CloseReason::PeerShutdown);
    let error = bench.why(Subject::Stream(ApiStream(1))).unwrap_err();
    assert_eq!(error.message, "stream 0000000000000001 ended: closed by the peer");
    assert_eq!(bench.core.flights().archived(), (0, 0, 0));
}

#[test]
fn of_what_is_not_recorded_the_log_tells_whether_it_was_seen() {
    const KEPT: &str = "streams that ended in order are not kept, of the others the newest 256 ([management] \
                        recorder_streams)";
    const NO_PACKET: &str = "no packet of it came, or it was dropped before TCP and SCTP: `ddpctl stats` has the \
                             reasons of drops, `ddpctl explain` what they mean";
    let peer = |text: &str, port| Subject::Peer(text.parse().unwrap(), port);
    let mut bench = bench();
    let told = |bench: &mut Bench, subject| {
        let error = bench.why(subject).unwrap_err();
        assert_eq!(error.error, ErrorKind::NotFound);
        (error.message, error.hint.unwrap())
    };
    assert_eq!(
        told(&mut bench, peer("192.0.2.1", None)),
        (
            "no stream with 192.0.2.1 and no attempt of it was seen since ddpd started".into(),
            NO_PACKET.into()
        )
    );
    bench.accepted(1, PEER);
    bench.closed(1, CloseReason::PeerShutdown);
    for (port, shown) in [(None, "10.0.0.9"), (Some(5000), "10.0.0.9:5000")] {
        let sentence =
            format!("the last stream with {shown}, 0000000000000001, ended: closed by the peer");
        assert_eq!(told(&mut bench, peer(PEER, port)), (sentence, KEPT.into()));
    }
    assert_eq!(
        told(&mut bench, peer("2001:db8::1", Some(9))).0,
        "no stream with [2001:db8::1]:9 and no attempt of it was seen since ddpd started"
    );
    assert_eq!(told(&mut bench, peer(PEER, Some(1))).1, NO_PACKET);
    assert_eq!(
        told(&mut bench, Subject::Stream(ApiStream(7))),
        (
            "no stream 0000000000000007 was seen since ddpd started".into(),
            "`ddpctl streams` lists those that have not ended, `ddpctl events` has others".into()
        )
    );
    let error = bench.why(Subject::Job(7)).unwrap_err();
    assert_eq!(error.message, "there is no job 7");
}

#[test]
fn a_log_that_has_lost_events_is_not_taken_for_the_whole_time() {
    let mut bench = bench_with(&format!("{BASIC}\n[management]\nrecorder = false\n"));
    bench.accepted(1, PEER);
    let told = |bench: &mut Bench| {
        let error = bench.why(Subject::Peer(PEER.parse().unwrap(), None)).unwrap_err();
        (error.message, error.hint.unwrap())
    };
    assert_eq!(
        told(&mut bench),
        (
            "nothing is recorded of the last stream with 10.0.0.9, 0000000000000001".into(),
            "the recorder is off: set `recorder = true` in [management]".into()
        )
    );
    let stream = bench.why(Subject::Stream(ApiStream(1))).unwrap_err();
    assert_eq!(stream.message, "nothing is recorded of stream 0000000000000001");
    while bench.core.env().log.read(0, usize::MAX, &EventFilter::default()).lost == 0 {
        for _ in 0..10_000 {
            bench.core.env().log.push(EventKind::Undrained);
        }
    }
    let other = bench.why(Subject::Peer("192.0.2.1".parse().unwrap(), None)).unwrap_err();
    let message = other.message;
    assert!(message.contains("was seen in the log, which has lost its oldest "), "{message}");
}

#[test]
fn an_abort_says_who_aborted() {
    let mut bench = bench();
    let last_two = |bench: &mut Bench, id| {
        let mut sentences = bench.flight(id).sentences;
        (sentences.pop().unwrap(), sentences.pop().unwrap())
    };
    bench.accepted(1, PEER);
    let _pending = bench.call(Request::CloseStream { id: ApiStream(1), abort: true });
    bench.closed(1, CloseReason::LocalAbort);
    let traffic = "The peer placed 0 bytes, and acknowledged 0 bytes of ours.".to_owned();
    let sentence = "This end ended it after 0.000 s: aborted by a call of the API.".to_owned();
    assert_eq!(last_two(&mut bench, 1), (traffic, sentence));

    bench.accepted(2, PEER);
    bench.closed(2, CloseReason::LocalAbort);
    let flight = bench.flight(2);
    assert_eq!(
        flight.sentences.last().unwrap(),
        "The cause is not recorded. A region that is removed by force, a listener that no longer admits the peer, a reload \
         and the end of ddpd abort streams: `ddpctl events` has them at that time."
    );
    assert!(flight.sentences.iter().any(|s| s.ends_with(": aborted by this end.")), "{flight:?}");
}

#[test]
fn a_job_is_told_in_one_sentence() {
    let mut bench = bench();
    let told = |bench: &mut Bench, id| bench.why(Subject::Job(id)).unwrap().sentences;
    let file = bench.dir.path().join("file");
    std::fs::write(&file, b"sample").unwrap();
    let put = |bench: &mut Bench, file: &std::path::Path| {
        let spec = api::PutSpec {
            file: Some(file.to_owned()),
            via: Via::Stream(ApiStream(1)),
            target: api::RemotePlace::Tagged { stag: 77, to: 5 },
        };
        match answer(&mut bench.call(Request::Put(spec))).unwrap() {
            Reply::Job(job) => job.id,
            other => panic!("{other:?}"),
        }
    };
    bench.accepted(1, PEER);
    let id = put(&mut bench, &file);
    assert_eq!(
        told(&mut bench, id),
        [format!("Job {id} (put) with 10.0.0.9:5000 is under way, after 0 of 0 bytes.")]
    );
    let _pending = bench.call(Request::CancelJob(id));
    assert_eq!(
        told(&mut bench, id),
        [format!("Job {id} (put) with 10.0.0.9:5000 was cancelled, after 0 of 0 bytes.")]
    );
    let none = bench.dir.path().join("none");
    let id = put(&mut bench, &none);
    bench.load_all();
    assert_eq!(
        told(&mut bench, id),
        [format!(
            "Job {id} (put) with 10.0.0.9:5000 failed: cannot open {}: No such file or directory (os error 2), after 0 \
             of 0 bytes.",
            none.display()
        )]
    );
}

#[test]
fn the_archive_is_bounded_and_keeps_the_newest() {
    let mut bench = bench();
    for id in 1..=400 {
        bench.accepted(id, PEER);
        bench.closed(id, timeout());
    }
    let (live, archived, bytes) = bench.core.flights().archived();
    assert_eq!((live, archived), (0, 256));
    assert!(bytes <= 1 << 20, "{bytes}");
    assert!(bench.why(Subject::Stream(ApiStream(144))).is_err());
    assert_eq!(bench.flight(145).stream, ApiStream(145));
    let told = bench.why(Subject::Peer(PEER.parse().unwrap(), Some(5000))).unwrap();
    let streams: Vec<u64> = told.streams.iter().map(|flight| flight.stream.0).collect();
    assert_eq!(streams, (145..=400).collect::<Vec<_>>());
    assert!(bench.why(Subject::Peer(PEER.parse().unwrap(), Some(1))).is_err());
}

#[test]
fn of_many_events_the_first_and_the_last_are_kept() {
    let mut bench = bench();
    bench.accepted(1, PEER);
    for len in 0..100 {
        bench.delivered(1, len);
        let closed = Event::PeerClosed { stream: StreamId(1), incomplete: false };
        bench.event(closed);
    }
    let flight = bench.flight(1);
    assert_eq!((flight.events.len(), flight.left_out), (32, 2 + 200 - 32));
    assert_eq!(flight.events[0].event, "requested");
    assert!(
        flight.events[30].detail.starts_with("1 messages, 99 bytes"),
        "{:?}",
        flight.events[30]
    );
}

#[test]
fn an_idle_stream_takes_a_few_hundred_bytes() {
    let mut bench = bench();
    bench.accepted(1, PEER);
    let bytes = bench.core.flights().live_bytes(StreamId(1));
    assert!(bytes <= 400, "{bytes}");
}

#[test]
fn a_peers_attempts_are_told_beside_its_streams() {
    let mut bench = bench();
    bench.incoming(1, PEER);
    bench.acknowledge();
    bench.closed(1, timeout());
    let told = bench.why(Subject::Peer(PEER.parse().unwrap(), None)).unwrap();
    assert_eq!(told.streams.len(), 1, "{told:?}");
    assert!(told.streams[0].sentences[0].contains("never established"), "{told:?}");
    assert!(
        told.sentences[0].starts_with("10.0.0.9:5000 to 10.0.0.1:7471: no stream, "),
        "{told:?}"
    );
}

fn micros(at: u64) -> base::Instant {
    base::Instant::from_micros(at)
}

/// Returns a worker's recording. The worker's clock shows ten seconds.
fn recording(id: u64, transport: Transport, records: Vec<Record>) -> Recording {
    let now = micros(10_000_000);
    Recording { stream: StreamId(id), transport, now, records, left_out: 3 }
}

#[test]
fn what_a_worker_recorded_is_told_in_order_with_headers_and_sentences() {
    let mut bench = bench();
    bench.accepted(1, PEER);
    bench.pass(Duration::from_secs(5));
    // Five seconds ago by the worker's clock: when the stream began.
    let records = vec![
        Record::new(micros(6_000_000), RecordKind::Recovery, 4000, 8000),
        Record::new(micros(6_000_001), RecordKind::Resent, 77, 88).with(0x18, 5, 1448).counted(12),
        Record::new(micros(8_000_000), RecordKind::Timeout, 99, 400).counted(2),
    ];
    let live = recording(1, Transport::Tcp, records.clone());
    let why = bench.why_with(Subject::Stream(ApiStream(1)), |_| Some(live.clone())).unwrap();
    let flight = &why.streams[0];
    let events: Vec<(&str, u64)> =
        flight.events.iter().map(|event| (event.event.as_str(), event.after_us)).collect();
    assert_eq!(
        events[2..],
        [("recovery", 1_000_000), ("retransmission", 1_000_001), ("timeout", 3_000_000)]
    );
    let header = flight.events[3].header.clone().unwrap();
    assert_eq!((header.number, header.acknowledges, header.length), (77, 88, 1448));
    assert_eq!((header.flags, header.from_peer, flight.recorder_left_out), (0x18, false, 3));
    assert!(flight.events.iter().filter(|event| event.header.is_some()).count() == 1);
    let told = flight.sentences.join("\n");
    for part in [
        "from 1.000 s on 12 segments were sent again, the first with sequence number 77",
        "At 3.000 s the retransmission timer expired, the 2nd time in a row: nothing was acknowledged from sequence \
         number 99 on, and the next time-out was set for 400 ms",
        "It has not ended.",
    ] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }

    // The stream ends, and its worker sends its recording.
    bench.event(Event::Recordings { ticket: None, recordings: vec![live] });
    bench.closed(1, timeout());
    let flight = bench.flight(1);
    assert_eq!(flight.events.iter().filter(|event| event.event == "timeout").count(), 1);
    assert_eq!(flight.end.unwrap().key.as_deref(), Some("[tcp] user_timeout"));
}

#[test]
fn a_time_out_has_the_key_of_its_cause() {
    let record = |kind| Record::new(micros(9_000_000), kind, 1, 2);
    let closed = record(RecordKind::WindowClosed);
    let gave_up = |what| record(RecordKind::GaveUp).waiting_for(what);
    let does_not_read = "its program does not read";
    for (records, key, reads) in [
        (vec![], Some("[tcp] user_timeout"), true),
        (vec![gave_up(WaitedFor::Acknowledgement)], Some("[tcp] user_timeout"), true),
        (vec![closed, gave_up(WaitedFor::Window)], Some("[tcp] zero_window_timeout"), false),
        // The peer closed its window, and then stopped responding.
        (vec![closed, gave_up(WaitedFor::Acknowledgement)], Some("[tcp] user_timeout"), true),
        (vec![gave_up(WaitedFor::ProbeAnswer)], Some("[tcp] keepalive"), true),
        (vec![gave_up(WaitedFor::Fin)], None, true),
    ] {
        let mut bench = bench();
        bench.accepted(1, PEER);
        let recordings = vec![recording(1, Transport::Tcp, records.clone())];
        bench.event(Event::Recordings { ticket: None, recordings });
        bench.closed(1, timeout());
        let flight = bench.flight(1);
        assert_eq!(flight.end.unwrap().key.as_deref(), key, "{records:?}");
        assert_eq!(!flight.sentences.join("").contains(does_not_read), reads, "{records:?}");
    }
}

#[test]
fn every_kind_of_record_has_words() {
    let kinds = RecordKind::ALL;
    for transport in [Transport::Tcp, Transport::Sctp] {
        let mut bench = bench();
        bench.accepted(1, PEER);
        let records =
            kinds.iter().map(|kind| Record::new(micros(9_000_000), *kind, 1, 0x0001_0102));
        let live = recording(1, transport, records.collect());
        let why =
            bench.why_with(Subject::Peer(PEER.parse().unwrap(), None), |_| Some(live.clone()));
        let flight = why.unwrap().streams.remove(0);
        assert_eq!(flight.events.len(), 2 + kinds.len());
        for event in &flight.events {
            assert!(!event.event.is_empty() && !event.detail.is_empty(), "{event:?}");
            let header = event.header.as_ref().map(|header| header.transport.as_str());
            assert!(header.is_none_or(|name| name == transport.name()), "{event:?}");
        }
    }
}

#[test]
fn what_the_control_thread_and_the_worker_saw_is_told_once() {
    let mut bench = bench();
    bench.accepted(1, PEER);
    bench.pass(Duration::from_secs(5));
    let error = super::streams::sample_error();
    bench.event(Event::Error { stream: StreamId(1), error });
    for by_peer in [false, true] {
        let terminate = Terminate::new(0, 2, 5);
        bench.event(Event::Terminated { stream: StreamId(1), by_peer, terminate });
    }
    let record = |at, kind, answer| Record::new(micros(at), kind, 0, answer);
    let records = vec![
        record(7_000_000, RecordKind::Recovery, 4000),
        record(7_000_001, RecordKind::ErrorFound, 0x0001_0102),
        // An error that the control thread has not seen.
        record(7_000_002, RecordKind::ErrorFound, 0x0001_0103),
        record(7_000_003, RecordKind::TerminateSent, 0x0000_0205),
        record(7_000_004, RecordKind::TerminateReceived, 0x0000_0205),
        record(7_000_005, RecordKind::FinReceived, 7),
    ];
    let live = recording(1, Transport::Tcp, records);
    let why = bench.why_with(Subject::Stream(ApiStream(1)), |_| Some(live.clone())).unwrap();
    let flight = &why.streams[0];
    let events: Vec<(&str, u64)> =
        flight.events[2..].iter().map(|event| (event.event.as_str(), event.after_us)).collect();
    assert_eq!(
        events,
        [
            ("recovery", 2_000_000),
            ("error", 2_000_001),
            ("error_found", 2_000_002),
            ("terminate", 2_000_003),
            ("terminate", 2_000_004),
            ("fin", 2_000_005),
        ]
    );
    assert!(flight.events[5].detail.starts_with("by this end"), "{flight:?}");
}

#[test]
fn giving_up_says_for_want_of_what() {
    let gave_up =
        |what| Record::new(micros(9_000_000), RecordKind::GaveUp, 9, 100).waiting_for(what);
    for (what, detail) in [
        (WaitedFor::Acknowledgement, "100 ms without progress, time-outs in a row: 1"),
        (WaitedFor::Window, "the peer's window was closed for 100 ms, time-outs in a row: 1"),
        (
            WaitedFor::ProbeAnswer,
            "100 ms without a segment of the peer, which did not answer keepalive probes",
        ),
        (WaitedFor::Fin, "100 ms without a segment of the peer, which did not close its direction"),
    ] {
        let mut bench = bench();
        bench.accepted(1, PEER);
        let live = recording(1, Transport::Tcp, vec![gave_up(what)]);
        let why = bench.why_with(Subject::Stream(ApiStream(1)), |_| Some(live.clone())).unwrap();
        assert_eq!(why.streams[0].events[2].detail, detail);
    }
}

#[test]
fn details_are_those_of_what_carries_the_stream() {
    let record = |kind, number, answer| Record::new(micros(9_000_000), kind, number, answer);
    let records = vec![
        record(RecordKind::Resent, 7, 8).with(0x18, 5, 1448),
        record(RecordKind::PathMtu, 1448, 512),
        record(RecordKind::WindowOpened, 1, 77).with(0x10, 300, 0),
        record(RecordKind::ResetReceived, 0, 12),
        record(RecordKind::ResetSent, 0, 0),
        record(RecordKind::GaveUp, 9, 100).counted(3),
    ];
    let of_tcp = [
        "sequence number 7, 1448 bytes",
        "segments of 512 bytes of payload instead of 1448",
        "by the peer, which acknowledges 77: window field 300",
        "sent by the peer",
        "sent by this end",
        "100 ms without progress, time-outs in a row: 3",
    ];
    let of_sctp = [
        "TSN 7, 1448 bytes",
        "packets of 512 bytes instead of 1448",
        "by the peer, which acknowledges 77: window field 300",
        "sent by the peer, an ABORT with cause 12",
        "sent by this end, an ABORT without a cause",
        "unanswered retransmissions and HEARTBEATs in a row: 3",
    ];
    for (transport, details, lost, cause) in [
        (Transport::Tcp, of_tcp, "1 segment was sent again, with sequence number 7.", 12),
        (Transport::Sctp, of_sctp, "1 chunk was sent again, with TSN 7.", 0),
    ] {
        let mut bench = bench();
        bench.accepted(1, PEER);
        bench.pass(Duration::from_secs(5));
        let live = recording(1, transport, records.clone());
        let why = bench.why_with(Subject::Stream(ApiStream(1)), |_| Some(live.clone())).unwrap();
        let flight = &why.streams[0];
        let seen: Vec<&str> = flight.events[2..].iter().map(|event| &*event.detail).collect();
        assert_eq!(seen, details);
        let told = flight.sentences.join("\n");
        assert!(told.contains(lost) && told.contains(details[1]), "{told}");
        // The cause of an ABORT is not an acknowledgement number.
        let reset = flight.events[5].header.as_ref().unwrap();
        assert_eq!(reset.acknowledges, cause, "{reset:?}");
    }
}

#[test]
fn one_peer_pushes_no_record_of_another_out_of_the_archive() {
    let mut bench = bench_with(&format!("{BASIC}\n[management]\nrecorder_streams = 4\n"));
    bench.accepted(1, "192.0.2.77");
    bench.closed(1, timeout());
    for id in 2..=20 {
        bench.accepted(id, PEER);
        bench.closed(id, timeout());
    }
    assert_eq!(bench.core.flights().archived().1, 4);
    bench.flight(1);
    bench.flight(20);
}

#[test]
fn the_archive_has_the_bounds_of_the_configuration_and_can_be_off() {
    let text_of = |streams| format!("{BASIC}\n[management]\nrecorder_streams = {streams}\n");
    let mut bench = bench_with(&text_of(3));
    for id in 1..=9 {
        bench.accepted(id, PEER);
        bench.closed(id, timeout());
    }
    assert_eq!(bench.core.flights().archived().1, 3);
    assert!(bench.why(Subject::Stream(ApiStream(6))).is_err());
    bench.flight(7);

    let text = format!("{BASIC}\n[management]\nrecorder_size = \"64 KiB\"\n");
    let mut bench = bench_with(&text);
    for id in 1..=200 {
        bench.accepted(id, PEER);
        bench.closed(id, timeout());
    }
    let (_, archived, bytes) = bench.core.flights().archived();
    assert!(archived < 200 && archived > 20 && bytes <= 64 << 10, "{archived}, {bytes}");
    bench.flight(200);

    // Lower bounds apply at once.
    let mut bench = bench_with(BASIC);
    for id in 1..=9 {
        bench.accepted(id, PEER);
        bench.closed(id, timeout());
    }
    bench.reload(&text_of(4)).unwrap();
    assert_eq!(bench.core.flights().archived().1, 4);
    bench.flight(6);

    let mut bench = bench_with(&format!("{BASIC}\n[management]\nrecorder = false\n"));
    bench.accepted(1, PEER);
    bench.closed(1, timeout());
    assert_eq!(bench.core.flights().archived(), (0, 0, 0));
    let error = bench.why(Subject::Stream(ApiStream(1))).unwrap_err();
    assert!(error.hint.unwrap().contains("recorder = true"));
}

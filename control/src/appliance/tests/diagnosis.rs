//! The flight recorder: recorded events, their retention, and their report.

use api::{
    ErrorKind, EventFilter, EventKind, ExplainSubject, Flight, StreamId as ApiStream, Via, Why,
};
use ddp::rdmap::Terminate;

use super::*;
use dataplane::{AwaitedEvent, Record, RecordKind, Recording, Transport};

const PEER: &str = "10.0.0.9";

impl Bench {
    fn diagnose(&mut self, subject: ExplainSubject) -> Result<Why, ApiError> {
        self.diagnose_with(subject, |_| None)
    }

    /// Requests an explanation. The workers answer with the recordings that `recording_of` returns.
    fn diagnose_with(
        &mut self,
        subject: ExplainSubject,
        recording_of: impl Fn(StreamId) -> Option<Recording>,
    ) -> Result<Why, ApiError> {
        let mut pending = self.call(Request::Explain(subject));
        for command in self.all_commands() {
            let Command::ListRecordings { streams, ticket } = command else { continue };
            assert!(streams.len() <= dataplane::MAX_RECORDINGS);
            let recordings = streams.into_iter().filter_map(&recording_of).collect();
            self.event(Event::Recordings { ticket: Some(ticket), recordings });
        }
        match answer(&mut pending)? {
            Reply::Explanation(why) => Ok(why),
            other => panic!("{other:?}"),
        }
    }

    fn flight(&mut self, id: u64) -> Flight {
        let mut why = self.diagnose(ExplainSubject::Stream(ApiStream(id))).unwrap();
        assert_eq!(why.streams.len(), 1);
        why.streams.remove(0)
    }

    fn deliver_message(&mut self, id: u64, len: u64) {
        let (stag, to, rsvd_ulp) = (ddp::Stag(0), ddp::TaggedOffset(0), 0);
        self.event(Event::TaggedDelivered { stream: StreamId(id), stag, to, len, rsvd_ulp });
    }
}

fn timeout() -> CloseReason {
    TcpReason::TcpTimeout.into()
}

#[test]
fn timed_out_stream_is_reported_in_order_with_its_key() {
    let mut bench = bench();
    bench.accept_stream(1, PEER);
    bench.deliver_message(1, 100);
    bench.deliver_message(1, 23);
    bench.advance(Duration::from_millis(2500));
    let before = bench.flight(1);
    assert_eq!(before.end, None);
    assert_eq!(before.sentences.last().unwrap(), "It has not ended.");

    bench.close_stream(1, timeout());
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
    let sentences = flight.sentences.join("\n");
    for part in [
        "Stream 0000000000000001 with 10.0.0.9:5000: accepted by listener in, bare DDP over TCP",
        "The network, or the peer's host, ended it after 2.500 s: ",
        "layer 2 (MPA), error type 0, code 0x01",
        "[tcp] user_timeout",
    ] {
        assert!(sentences.contains(part), "{part} is not in:\n{sentences}");
    }
}

#[test]
fn peer_error_is_reported_with_layer_code_and_header() {
    let mut bench = bench();
    bench.accept_stream(1, PEER);
    let error = super::streams::sample_error();
    bench.event(Event::Error { stream: StreamId(1), error: error.clone() });
    bench.close_stream(1, CloseReason::Ddp(error.clone()));
    let flight = bench.flight(1);
    let end = flight.end.as_ref().unwrap();
    assert_eq!((end.by.as_str(), end.code.as_deref()), ("peer", Some("1/1/02")));
    assert_eq!(end.key.as_deref(), Some("[[listener]] regions"));
    let sentences = flight.sentences.join("\n");
    let found = format!(
        "found an error of the peer in DDP, 1/02: {error}. The segment's header: c1000000 0007"
    );
    assert!(sentences.contains(&found), "{sentences}");
    assert!(sentences.contains("serves one stream at a time"), "{sentences}");
}

#[test]
fn terminate_is_reported_with_its_sender() {
    for (by_peer, who) in [(true, "the peer"), (false, "this end")] {
        let mut bench = bench();
        bench.accept_stream(1, PEER);
        let terminate = Terminate::new(0, 2, 5);
        let event =
            Event::Terminated { stream: StreamId(1), by_peer, terminate: terminate.clone() };
        bench.event(event);
        bench.close_stream(1, CloseReason::Terminated(Box::new(terminate)));
        let sentences = bench.flight(1).sentences.join("\n");
        assert!(sentences.contains(&format!("{who} sent a Terminate: ")), "{sentences}");
        assert!(sentences.contains("layer 0 (RDMAP), error type 2, code 0x05"), "{sentences}");
    }
}

#[test]
fn graceful_and_rejected_streams_are_not_archived() {
    let mut bench = bench();
    bench.accept_stream(1, PEER);
    bench.close_stream(1, CloseReason::PeerShutdown);
    let error = bench.diagnose(ExplainSubject::Stream(ApiStream(1))).unwrap_err();
    assert_eq!(error.message, "stream 0000000000000001 ended: closed by the peer");
    assert_eq!(bench.core.flights().live_count(), 0);
    assert_eq!(bench.core.flights().archived_count(), 0);
    assert_eq!(bench.core.flights().archive_bytes(), 0);
}

#[test]
fn unrecorded_subject_is_looked_up_in_the_log() {
    const KEPT: &str = "only streams that did not close gracefully are kept: the newest 256 ([management] \
                        recorder_streams)";
    const NO_PACKET: &str = "no packet of the peer arrived, or all were dropped below TCP and SCTP: `ddpctl stats` \
                             counts drops by reason, and `ddpctl explain` explains the reasons";
    let peer = |text: &str, port| ExplainSubject::Peer(text.parse().unwrap(), port);
    let mut bench = bench();
    let error_texts = |bench: &mut Bench, subject| {
        let error = bench.diagnose(subject).unwrap_err();
        assert_eq!(error.error, ErrorKind::NotFound);
        (error.message, error.hint.unwrap())
    };
    assert_eq!(
        error_texts(&mut bench, peer("192.0.2.1", None)),
        (
            "no stream with 192.0.2.1 and no attempt of it was seen since ddpd started".into(),
            NO_PACKET.into()
        )
    );
    bench.accept_stream(1, PEER);
    bench.close_stream(1, CloseReason::PeerShutdown);
    for (port, shown) in [(None, "10.0.0.9"), (Some(5000), "10.0.0.9:5000")] {
        let sentence =
            format!("the last stream with {shown}, 0000000000000001, ended: closed by the peer");
        assert_eq!(error_texts(&mut bench, peer(PEER, port)), (sentence, KEPT.into()));
    }
    assert_eq!(
        error_texts(&mut bench, peer("2001:db8::1", Some(9))).0,
        "no stream with [2001:db8::1]:9 and no attempt of it was seen since ddpd started"
    );
    assert_eq!(error_texts(&mut bench, peer(PEER, Some(1))).1, NO_PACKET);
    assert_eq!(
        error_texts(&mut bench, ExplainSubject::Stream(ApiStream(7))),
        (
            "no stream 0000000000000007 was seen since ddpd started".into(),
            "`ddpctl streams` lists live streams, `ddpctl events` reports ended streams".into()
        )
    );
    let error = bench.diagnose(ExplainSubject::Job(7)).unwrap_err();
    assert_eq!(error.message, "there is no job 7");
}

#[test]
fn incomplete_log_is_reported_with_its_period() {
    let mut bench = bench_with(&format!("{BASIC}\n[management]\nrecorder = false\n"));
    bench.accept_stream(1, PEER);
    let error_text = |bench: &mut Bench| {
        let error = bench.diagnose(ExplainSubject::Peer(PEER.parse().unwrap(), None)).unwrap_err();
        (error.message, error.hint.unwrap())
    };
    assert_eq!(
        error_text(&mut bench),
        (
            "nothing is recorded of the last stream with 10.0.0.9, 0000000000000001".into(),
            "the recorder is off: set `recorder = true` in [management]".into()
        )
    );
    let stream = bench.diagnose(ExplainSubject::Stream(ApiStream(1))).unwrap_err();
    assert_eq!(stream.message, "nothing is recorded of stream 0000000000000001");
    while bench.core.env().log.read(0, usize::MAX, &EventFilter::default()).lost == 0 {
        for _ in 0..10_000 {
            bench.core.env().log.push(EventKind::Undrained);
        }
    }
    let other =
        bench.diagnose(ExplainSubject::Peer("192.0.2.1".parse().unwrap(), None)).unwrap_err();
    let message = other.message;
    assert!(message.contains("was seen in the log, which has lost its oldest "), "{message}");
}

#[test]
fn abort_is_reported_with_its_origin() {
    let mut bench = bench();
    let last_two = |bench: &mut Bench, id| {
        let mut sentences = bench.flight(id).sentences;
        (sentences.pop().unwrap(), sentences.pop().unwrap())
    };
    bench.accept_stream(1, PEER);
    let _pending = bench.call(Request::CloseStream { id: ApiStream(1), abort: true });
    bench.close_stream(1, CloseReason::LocalAbort);
    let traffic = "The peer placed 0 bytes, and acknowledged 0 bytes of ours.".to_owned();
    let sentence = "This end ended it after 0.000 s: aborted by a call of the API.".to_owned();
    assert_eq!(last_two(&mut bench, 1), (traffic, sentence));

    bench.accept_stream(2, PEER);
    bench.close_stream(2, CloseReason::LocalAbort);
    let flight = bench.flight(2);
    assert_eq!(
        flight.sentences.last().unwrap(),
        "The cause is not recorded. A region that is removed by force, a listener that no longer admits the peer, a reload \
         and the end of ddpd abort streams: `ddpctl events` has them at that time."
    );
    assert!(flight.sentences.iter().any(|s| s.ends_with(": aborted by this end.")), "{flight:?}");
}

#[test]
fn job_end_is_reported_in_one_sentence() {
    let mut bench = bench();
    let sentences =
        |bench: &mut Bench, id| bench.diagnose(ExplainSubject::Job(id)).unwrap().sentences;
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
    bench.accept_stream(1, PEER);
    let id = put(&mut bench, &file);
    assert_eq!(
        sentences(&mut bench, id),
        [format!("Job {id} (put) with 10.0.0.9:5000 is in progress, after 0 of 0 bytes.")]
    );
    let _pending = bench.call(Request::CancelJob(id));
    assert_eq!(
        sentences(&mut bench, id),
        [format!("Job {id} (put) with 10.0.0.9:5000 was cancelled, after 0 of 0 bytes.")]
    );
    let none = bench.dir.path().join("none");
    let id = put(&mut bench, &none);
    bench.load_all();
    assert_eq!(
        sentences(&mut bench, id),
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
        bench.accept_stream(id, PEER);
        bench.close_stream(id, timeout());
    }
    assert_eq!(bench.core.flights().live_count(), 0);
    assert_eq!(bench.core.flights().archived_count(), 256);
    let bytes = bench.core.flights().archive_bytes();
    assert!(bytes <= 1 << 20, "{bytes}");
    assert!(bench.diagnose(ExplainSubject::Stream(ApiStream(144))).is_err());
    assert_eq!(bench.flight(145).stream, ApiStream(145));
    let diagnosis =
        bench.diagnose(ExplainSubject::Peer(PEER.parse().unwrap(), Some(5000))).unwrap();
    let streams: Vec<u64> = diagnosis.streams.iter().map(|flight| flight.stream.0).collect();
    assert_eq!(streams, (145..=400).collect::<Vec<_>>());
    assert!(bench.diagnose(ExplainSubject::Peer(PEER.parse().unwrap(), Some(1))).is_err());
}

#[test]
fn flight_keeps_first_and_last_events() {
    let mut bench = bench();
    bench.accept_stream(1, PEER);
    for len in 0..100 {
        bench.deliver_message(1, len);
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
    bench.accept_stream(1, PEER);
    let bytes = bench.core.flights().live_bytes(StreamId(1));
    assert!(bytes <= 400, "{bytes}");
}

#[test]
fn peer_report_includes_failed_attempts() {
    let mut bench = bench();
    bench.request_stream(1, PEER);
    bench.acknowledge();
    bench.close_stream(1, timeout());
    let diagnosis = bench.diagnose(ExplainSubject::Peer(PEER.parse().unwrap(), None)).unwrap();
    assert_eq!(diagnosis.streams.len(), 1, "{diagnosis:?}");
    assert!(diagnosis.streams[0].sentences[0].contains("never established"), "{diagnosis:?}");
    assert!(
        diagnosis.sentences[0].starts_with("10.0.0.9:5000 to 10.0.0.1:7471: no stream, "),
        "{diagnosis:?}"
    );
}

fn micros(at: u64) -> base::Instant {
    base::Instant::from_micros(at)
}

/// Returns a worker's recording, taken when the worker's clock shows 10 s.
fn recording(id: u64, transport: Transport, records: Vec<Record>) -> Recording {
    let now = micros(10_000_000);
    Recording { stream: StreamId(id), transport, now, records, left_out: 3 }
}

#[test]
fn worker_records_are_reported_in_order_with_headers() {
    let mut bench = bench();
    bench.accept_stream(1, PEER);
    bench.advance(Duration::from_secs(5));
    // The stream began 5 s ago, when the worker's clock showed 5 s.
    let records = vec![
        Record::new(micros(6_000_000), RecordKind::Recovery, 4000, 8000),
        Record::new(micros(6_000_001), RecordKind::Resent, 77, 88)
            .with_header(0x18, 5, 1448)
            .with_count(12),
        Record::new(micros(8_000_000), RecordKind::Timeout, 99, 400).with_count(2),
    ];
    let live = recording(1, Transport::Tcp, records.clone());
    let why =
        bench.diagnose_with(ExplainSubject::Stream(ApiStream(1)), |_| Some(live.clone())).unwrap();
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
    let sentences = flight.sentences.join("\n");
    for part in [
        "from 1.000 s on 12 segments were sent again, the first with sequence number 77",
        "At 3.000 s the retransmission timer expired, the 2nd time in a row: nothing was acknowledged from sequence \
         number 99 on, and the next time-out was set for 400 ms",
        "It has not ended.",
    ] {
        assert!(sentences.contains(part), "{part} is not in:\n{sentences}");
    }

    // The worker sends its recording, and the stream ends.
    bench.event(Event::Recordings { ticket: None, recordings: vec![live] });
    bench.close_stream(1, timeout());
    let flight = bench.flight(1);
    assert_eq!(flight.events.iter().filter(|event| event.event == "timeout").count(), 1);
    assert_eq!(flight.end.unwrap().key.as_deref(), Some("[tcp] user_timeout"));
}

#[test]
fn timeout_advice_names_the_key_of_its_cause() {
    let record = |kind| Record::new(micros(9_000_000), kind, 1, 2);
    let closed = record(RecordKind::WindowClosed);
    let gave_up = |what| record(RecordKind::GaveUp).with_awaited_event(what);
    let does_not_read = "its program does not read";
    for (records, key, reads) in [
        (vec![], Some("[tcp] user_timeout"), true),
        (vec![gave_up(AwaitedEvent::Acknowledgement)], Some("[tcp] user_timeout"), true),
        (vec![closed, gave_up(AwaitedEvent::Window)], Some("[tcp] zero_window_timeout"), false),
        // The peer closed its window and later did not respond.
        (vec![closed, gave_up(AwaitedEvent::Acknowledgement)], Some("[tcp] user_timeout"), true),
        (vec![gave_up(AwaitedEvent::ProbeAnswer)], Some("[tcp] keepalive"), true),
        (vec![gave_up(AwaitedEvent::Fin)], None, true),
    ] {
        let mut bench = bench();
        bench.accept_stream(1, PEER);
        let recordings = vec![recording(1, Transport::Tcp, records.clone())];
        bench.event(Event::Recordings { ticket: None, recordings });
        bench.close_stream(1, timeout());
        let flight = bench.flight(1);
        assert_eq!(flight.end.unwrap().key.as_deref(), key, "{records:?}");
        assert_eq!(!flight.sentences.join("").contains(does_not_read), reads, "{records:?}");
    }
}

#[test]
fn every_record_kind_has_a_description() {
    let kinds = RecordKind::ALL;
    for transport in [Transport::Tcp, Transport::Sctp] {
        let mut bench = bench();
        bench.accept_stream(1, PEER);
        let records =
            kinds.iter().map(|kind| Record::new(micros(9_000_000), *kind, 1, 0x0001_0102));
        let live = recording(1, transport, records.collect());
        let why = bench.diagnose_with(ExplainSubject::Peer(PEER.parse().unwrap(), None), |_| {
            Some(live.clone())
        });
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
fn event_seen_by_control_thread_and_worker_is_reported_once() {
    let mut bench = bench();
    bench.accept_stream(1, PEER);
    bench.advance(Duration::from_secs(5));
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
        // Only the worker has this error, not the control thread.
        record(7_000_002, RecordKind::ErrorFound, 0x0001_0103),
        record(7_000_003, RecordKind::TerminateSent, 0x0000_0205),
        record(7_000_004, RecordKind::TerminateReceived, 0x0000_0205),
        record(7_000_005, RecordKind::FinReceived, 7),
    ];
    let live = recording(1, Transport::Tcp, records);
    let why =
        bench.diagnose_with(ExplainSubject::Stream(ApiStream(1)), |_| Some(live.clone())).unwrap();
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
fn give_up_is_reported_with_the_awaited_event() {
    let gave_up =
        |what| Record::new(micros(9_000_000), RecordKind::GaveUp, 9, 100).with_awaited_event(what);
    for (what, detail) in [
        (AwaitedEvent::Acknowledgement, "100 ms without progress, time-outs in a row: 1"),
        (AwaitedEvent::Window, "the peer's window was closed for 100 ms, time-outs in a row: 1"),
        (
            AwaitedEvent::ProbeAnswer,
            "100 ms without a segment of the peer, which did not answer keepalive probes",
        ),
        (
            AwaitedEvent::Fin,
            "100 ms without a segment of the peer, which did not close its direction",
        ),
    ] {
        let mut bench = bench();
        bench.accept_stream(1, PEER);
        let live = recording(1, Transport::Tcp, vec![gave_up(what)]);
        let why = bench
            .diagnose_with(ExplainSubject::Stream(ApiStream(1)), |_| Some(live.clone()))
            .unwrap();
        assert_eq!(why.streams[0].events[2].detail, detail);
    }
}

#[test]
fn record_details_use_terms_of_the_transport() {
    let record = |kind, number, answer| Record::new(micros(9_000_000), kind, number, answer);
    let records = vec![
        record(RecordKind::Resent, 7, 8).with_header(0x18, 5, 1448),
        record(RecordKind::PathMtu, 1448, 512),
        record(RecordKind::WindowOpened, 1, 77).with_header(0x10, 300, 0),
        record(RecordKind::ResetReceived, 0, 12),
        record(RecordKind::ResetSent, 0, 0),
        record(RecordKind::GaveUp, 9, 100).with_count(3),
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
        bench.accept_stream(1, PEER);
        bench.advance(Duration::from_secs(5));
        let live = recording(1, transport, records.clone());
        let why = bench
            .diagnose_with(ExplainSubject::Stream(ApiStream(1)), |_| Some(live.clone()))
            .unwrap();
        let flight = &why.streams[0];
        let seen: Vec<&str> = flight.events[2..].iter().map(|event| &*event.detail).collect();
        assert_eq!(seen, details);
        let sentences = flight.sentences.join("\n");
        assert!(sentences.contains(lost) && sentences.contains(details[1]), "{sentences}");
        // The cause of an ABORT must not appear as an acknowledgement number.
        let reset = flight.events[5].header.as_ref().unwrap();
        assert_eq!(reset.acknowledges, cause, "{reset:?}");
    }
}

#[test]
fn one_peers_records_evict_no_other_peers() {
    let mut bench = bench_with(&format!("{BASIC}\n[management]\nrecorder_streams = 4\n"));
    bench.accept_stream(1, "192.0.2.77");
    bench.close_stream(1, timeout());
    for id in 2..=20 {
        bench.accept_stream(id, PEER);
        bench.close_stream(id, timeout());
    }
    assert_eq!(bench.core.flights().archived_count(), 4);
    bench.flight(1);
    bench.flight(20);
}

#[test]
fn the_archive_has_the_bounds_of_the_configuration_and_can_be_off() {
    let text_of = |streams| format!("{BASIC}\n[management]\nrecorder_streams = {streams}\n");
    let mut bench = bench_with(&text_of(3));
    for id in 1..=9 {
        bench.accept_stream(id, PEER);
        bench.close_stream(id, timeout());
    }
    assert_eq!(bench.core.flights().archived_count(), 3);
    assert!(bench.diagnose(ExplainSubject::Stream(ApiStream(6))).is_err());
    bench.flight(7);

    let text = format!("{BASIC}\n[management]\nrecorder_size = \"64 KiB\"\n");
    let mut bench = bench_with(&text);
    for id in 1..=200 {
        bench.accept_stream(id, PEER);
        bench.close_stream(id, timeout());
    }
    let flights = bench.core.flights();
    let (archived, bytes) = (flights.archived_count(), flights.archive_bytes());
    assert!(archived < 200 && archived > 20 && bytes <= 64 << 10, "{archived}, {bytes}");
    bench.flight(200);

    // A lower `recorder_streams` takes effect at once.
    let mut bench = bench_with(BASIC);
    for id in 1..=9 {
        bench.accept_stream(id, PEER);
        bench.close_stream(id, timeout());
    }
    bench.reload(&text_of(4)).unwrap();
    assert_eq!(bench.core.flights().archived_count(), 4);
    bench.flight(6);

    let mut bench = bench_with(&format!("{BASIC}\n[management]\nrecorder = false\n"));
    bench.accept_stream(1, PEER);
    bench.close_stream(1, timeout());
    assert_eq!(bench.core.flights().live_count(), 0);
    assert_eq!(bench.core.flights().archived_count(), 0);
    assert_eq!(bench.core.flights().archive_bytes(), 0);
    let error = bench.diagnose(ExplainSubject::Stream(ApiStream(1))).unwrap_err();
    assert!(error.hint.unwrap().contains("recorder = true"));
}

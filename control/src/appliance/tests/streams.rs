//! Streams: accepted, refused, opened, their untagged messages, and their end.

use api::{ConnectSpec, ErrorKind, MpaChoice};
use dataplane::{ConnectError, ConnectStage};
use ddp::{DdpError, ErrorCode, Message, Msn, Qn, Source, VersionPolicy};

use super::super::pending::NO_STREAM;
use super::*;

const QUEUES: &str = r#"
[[listener.queue]]
qn = 0
buffers = 4
buffer_size = "1 KiB"
deliver_to = "echo"
[[listener.queue]]
qn = 1
buffers = 4
buffer_size = "1 KiB"
deliver_to = "events"
[[listener.queue]]
qn = 3
buffers = 4
buffer_size = "1 KiB"
deliver_to = "discard"
[[listener.queue]]
qn = 5
buffers = 4
buffer_size = "1 KiB"
deliver_to = "echo"
[[listener.queue]]
qn = 4
buffers = 4
buffer_size = "1 KiB"
deliver_to = "file"
path = "DIR/queue"
"#;

fn with_queues() -> Bench {
    let mut bench = bench_with(&format!("{BASIC}{QUEUES}"));
    bench.accept_stream(1, "10.0.0.2");
    bench
}

fn message(qn: u32, data: &[u8]) -> Event {
    let (stream, qn, msn) = (StreamId(1), Qn(qn), Msn(1));
    Event::Untagged { stream, qn, msn, data: data.to_vec(), rsvd_ulp: [0; 5] }
}

fn reposts_buffer(commands: &[Command], queue: u32) -> bool {
    commands
        .iter()
        .any(|c| matches!(c, Command::PostBuffers { qn: Qn(q), buffers: 1, .. } if *q == queue))
}

fn rejects(commands: &[Command], id: u64) -> bool {
    commands.iter().any(|c| matches!(c, Command::Reject { stream, .. } if stream.0 == id))
}

fn refusals(bench: &Bench) -> Vec<String> {
    let reason = |kind| match kind {
        EventKind::StreamRefused { reason, .. } => Some(reason),
        EventKind::HandshakeFailed { detail, .. } => Some(detail),
        _ => None,
    };
    bench.logged_events(|_| true).into_iter().filter_map(reason).collect()
}

fn connect_spec(regions: &[&str]) -> ConnectSpec {
    ConnectSpec {
        regions: regions.iter().map(|r| (*r).to_owned()).collect(),
        ..ConnectSpec::to_remote(remote("10.0.0.9"))
    }
}

/// Returns the `Connect` among the commands.
fn take_connect(commands: Vec<Command>) -> Box<dataplane::Connect> {
    let connect = commands.into_iter().find_map(|command| match command {
        Command::Connect(connect) => Some(connect),
        _ => None,
    });
    connect.expect("a Connect")
}

#[test]
fn stream_limits_refuse_with_reason_until_a_stream_ends() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    bench.accept_stream(2, "10.0.0.2");
    bench.request_stream(3, "10.0.0.2");
    assert!(rejects(&bench.acknowledge(), 3));
    bench.accept_stream(4, "10.0.0.3");
    bench.request_stream(5, "10.0.0.4");
    assert!(rejects(&bench.acknowledge(), 5));
    assert_eq!(
        refusals(&bench),
        [
            "the peer has reached its limit of 2 streams",
            "the listener has reached its limit of 3 streams"
        ]
    );
    for id in [3, 5] {
        bench.close_stream(id, CloseReason::RejectedHere);
    }
    bench.close_stream(1, CloseReason::PeerShutdown);
    assert!(offered_names(&bench.accept_stream(6, "10.0.0.2")).is_some());
    let Ok(Reply::Listeners(all)) = answer(&mut bench.call(Request::Listeners(FIRST_PAGE))) else {
        panic!()
    };
    assert_eq!((all[0].streams, all[0].accepted, all[0].refused), (3, 4, 2));
}

#[test]
fn handshake_credit_returns_on_accept_or_end_of_reject() {
    let mut bench = bench();
    let credits = |commands: &[Command]| {
        commands.iter().filter(|c| matches!(c, Command::Credits { additional: 1, .. })).count()
    };
    assert_eq!(credits(&bench.accept_stream(1, "10.0.0.2")), 1);
    bench.accept_stream(2, "10.0.0.2");
    bench.request_stream(3, "10.0.0.2");
    assert_eq!(credits(&bench.acknowledge()), 0);
    bench.close_stream(3, CloseReason::RejectedHere);
    assert_eq!(credits(&bench.acknowledge()), 1);
}

#[test]
fn workers_share_the_pending_handshakes() {
    let mut bench = fresh_bench(BASIC);
    let commands = bench.commands(0);
    let listener = commands.iter().find_map(|c| match c {
        Command::AddListener { listener, .. } => Some(listener),
        _ => None,
    });
    let listener = listener.unwrap();
    assert_eq!((listener.credits, listener.backlog), (2, 2), "3 pending, 2 workers, rounded up");
}

// RFC 5044 appendix C: after a revision 0 request either DDP version may follow.
#[test]
fn the_ddp_version_follows_the_revision() {
    for (revision, expected) in [
        (Some(Revision::One), VersionPolicy::V1),
        (Some(Revision::Zero), VersionPolicy::AdoptFirst),
        (Some(Revision::Draft), VersionPolicy::V0),
        // RFC 5043: over SCTP only DDP version 1 exists.
        (None, VersionPolicy::V1),
    ] {
        let mut bench = bench();
        let listener = bench.listener("in");
        bench.event(Event::Incoming {
            stream: StreamId(1),
            listener,
            interface: InterfaceId(0),
            local: LOCAL.parse().unwrap(),
            remote: remote("10.0.0.2"),
            private_data: vec![],
            revision,
            enhanced: None,
        });
        let commands = bench.acknowledge();
        let accept = commands.iter().find_map(|c| match c {
            Command::Accept {
                ulp: tcp_lite::endpoint::UlpConfig::Ddp(config),
                private_data,
                ..
            } => Some((config, private_data)),
            _ => None,
        });
        let (config, private_data) = accept.unwrap();
        assert_eq!(config.version, expected);
        assert_eq!(private_data.is_empty(), revision == Some(Revision::Draft));
    }
}

// docs/protocol.md §4: an echo is sent to queue 0 with the RsvdULP of the message.
#[test]
fn echo_uses_queue_0_and_sender_rsvd_ulp_then_reposts_buffer() {
    for queue in [0, 5] {
        let mut bench = with_queues();
        let (stream, qn, msn, data) = (StreamId(1), Qn(queue), Msn(1), b"hello".to_vec());
        let rsvd_ulp = [0x81, 0xff, 0, 3, 4];
        bench.event(Event::Untagged { stream, qn, msn, data, rsvd_ulp });
        let commands = bench.acknowledge();
        let [Command::Post { message, ticket, .. }] = &commands[..] else { panic!("{commands:?}") };
        let Message::Untagged { qn: Qn(0), source: Source::Bytes(bytes), rsvd_ulp: back, .. } =
            message
        else {
            panic!("{message:?}")
        };
        assert_eq!((&bytes[..], *back), (&b"hello"[..], rsvd_ulp));
        bench.event(Event::Sent { stream, ticket: *ticket });
        assert!(reposts_buffer(&bench.acknowledge(), queue));
    }
}

// docs/protocol.md §4: the event contains the RsvdULP as sent.
#[test]
fn logged_message_has_the_senders_rsvd_ulp() {
    let mut bench = with_queues();
    let (stream, qn, msn, data) = (StreamId(1), Qn(1), Msn(1), b"for the log".to_vec());
    bench.event(Event::Untagged { stream, qn, msn, data, rsvd_ulp: [0x81, 0xff, 0, 3, 4] });
    bench.acknowledge();
    assert!(bench.is_logged(|kind| matches!(
        kind,
        EventKind::Message { queue: 1, rsvd_ulp: 0x81_ff00_0304, .. }
    )));
}

#[test]
fn events_and_discard_queues_repost_buffer_at_once() {
    let mut bench = with_queues();
    bench.event(message(1, b"for the log"));
    assert!(reposts_buffer(&bench.acknowledge(), 1));
    assert!(bench.is_logged(|kind| matches!(
        kind, EventKind::Message { queue: 1, msn: 1, data, listener, .. }
            if data == b"for the log" && listener.as_deref() == Some("in")
    )));
    bench.event(message(3, b"away"));
    assert!(reposts_buffer(&bench.acknowledge(), 3));
    assert_eq!(bench.core.env().tally.discarded, 1);
}

#[test]
fn file_queue_reposts_buffer_after_write() {
    let mut bench = with_queues();
    bench.event(message(4, b"line"));
    let mut commands = bench.acknowledge();
    while !reposts_buffer(&commands, 4) {
        bench.core.handle_reports();
        commands = bench.acknowledge();
        std::thread::yield_now();
    }
    let written = std::fs::read(bench.dir.path().join("queue")).unwrap();
    assert_eq!(written, b"\0\0\0\x04line");
}

#[test]
fn the_peers_last_message_is_explained() {
    let mut bench = with_queues();
    bench.event(message(2, &[1, 0x11, 0, 0, 0, 0, 0, 0]));
    assert!(bench.is_logged(|kind| matches!(
        kind, EventKind::StreamError { code, reason, .. }
            if code == "1/00" && reason.contains("invalid STag")
    )));
}

#[test]
fn an_error_of_the_peer_is_logged_with_its_number() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let error = sample_error();
    bench.event(Event::Error { stream: StreamId(1), error: error.clone() });
    bench.close_stream(1, CloseReason::Ddp(error));
    assert!(bench.is_logged(|kind| matches!(
        kind, EventKind::StreamError { code, layer, .. } if code == "1/02" && layer == "ddp"
    )));
    let mut pending = bench.call(Request::Stats);
    for worker in 0..WORKERS {
        for command in bench.commands(worker) {
            if let Command::ListStreams { ticket, .. } = command {
                bench.report_list(ticket, vec![], true);
            }
        }
    }
    let Ok(Reply::Stats(stats)) = answer(&mut pending) else { panic!("no stats") };
    assert_eq!(stats.workers[0].errors["ddp_1_02"], 1);
    assert_eq!(stats.control["stream_errors"], 1);
}

pub(super) fn sample_error() -> DdpError {
    let mut found = None;
    // Only DDP can construct errors, so an error is provoked.
    let mut stags = ddp::StagTable::<ddp::VecMemory>::new();
    let entry = ddp::StagEntry {
        stag: ddp::Stag(7),
        pd: ddp::PdId(99),
        stream: None,
        base_to: ddp::TaggedOffset(0),
        len: 8,
        access: ddp::Access::REMOTE_WRITE,
        memory: ddp::VecMemory::new(8),
        memory_offset: 0,
    };
    stags.insert(entry).unwrap();
    let mut buffers = ddp::BufferPool::new(1 << 20);
    let mut stream = ddp::Stream::new(StreamId(1), ddp::PdId(1), ddp::StreamConfig::default());
    let segment = [&[0xc1, 0, 0, 0, 0, 7][..], &[0; 8], b"xx"].concat();
    let pieces = [&segment[..]];
    let cx = ddp::Context { stags: &stags, buffers: &mut buffers };
    {
        use ddp::llp::{Disposition, OrderKey, Ulpdu, UlpduSink};
        let mut sink = stream.sink(cx);
        assert_eq!(sink.ulpdu(OrderKey(0), Ulpdu::new(&pieces)), Disposition::Ignored);
        sink.order_complete(OrderKey(1));
    }
    while let Some(event) = stream.poll_event() {
        if let ddp::Event::Error(error) = event {
            found = Some(error);
        }
    }
    let error = found.expect("an error");
    assert_eq!(error.code, ErrorCode::StagNotAssociated);
    error
}

#[test]
fn connect_is_answered_when_established() {
    let mut bench = bench();
    let mut pending = bench.call(Request::Connect(connect_spec(&["common"])));
    let connect = take_connect(bench.all_commands());
    let advertised = advert::decode(&connect.private_data).unwrap();
    assert_eq!(advertised[0].name, "common");
    assert_eq!(connect.pd, bench.core.regions()["common"].pd());
    let offers = [offer("theirs", 100)];
    bench.establish_stream(5, "10.0.0.9", Some(connect.ticket), &offers);
    for command in bench.all_commands() {
        if let Command::ListStreams { ticket, .. } = command {
            bench.report_list(ticket, vec![], true);
        }
    }
    let Ok(Reply::Stream(info)) = answer(&mut pending) else { panic!("no stream") };
    assert_eq!((info.id.0, info.listener), (5, None));
    assert_eq!(info.peer_regions[0].name, "theirs");
    assert_eq!(info.regions, ["common"]);
}

#[test]
fn connect_with_start_key_sends_one_without_private_data() {
    for (revision, initiate) in [(0, Revision::Draft), (1, Revision::One)] {
        let mut bench = bench();
        let mpa = MpaChoice { revision: Some(revision), start_key: true, ..MpaChoice::default() };
        let spec = ConnectSpec { mpa, ..connect_spec(&["common"]) };
        let _pending = bench.call(Request::Connect(spec));
        let connect = take_connect(bench.all_commands());
        let EndpointConfig::Tcp(endpoint) = &connect.endpoint else { panic!("not TCP") };
        assert_eq!(endpoint.mpa.initiate, initiate);
        assert_eq!(connect.private_data.is_empty(), initiate == Revision::Draft);
    }
}

fn offer(name: &str, len: u64) -> Advertised {
    let name = name.to_owned();
    Advertised {
        name,
        stag: 77,
        base_to: 1000,
        len,
        remote_write: true,
        remote_read: false,
        remote_atomic: false,
        busy: false,
    }
}

#[test]
fn stream_of_disconnected_client_is_closed() {
    let mut bench = bench();
    let pending = bench.call(Request::Connect(connect_spec(&[])));
    let connect = take_connect(bench.all_commands());
    drop(pending);
    bench.establish_stream(5, "10.0.0.9", Some(connect.ticket), &[]);
    assert!(matches!(bench.all_commands()[..], [Command::Close { abort: false, .. }]));
}

#[test]
fn connect_binds_exclusive_region_and_releases_it_at_end() {
    let mut bench = bench();
    let mut pending = bench.call(Request::Connect(connect_spec(&["own"])));
    let others = bench.acknowledge();
    let connect = take_connect(others);
    let mut second = bench.call(Request::Connect(connect_spec(&["own"])));
    assert_eq!(answer(&mut second).unwrap_err().error, ErrorKind::Conflict);
    let (ticket, reason) = (connect.ticket, ConnectError::Timeout(ConnectStage::SynAck));
    bench.event(Event::ConnectFailed { ticket, reason });
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::Timeout);
    bench.acknowledge();
    assert_eq!(offered_names(&bench.accept_stream(1, "10.0.0.2")).unwrap(), ["own", "common"]);
}

#[test]
fn failed_connect_reports_which_end_failed() {
    for (reason, kind) in [
        (ConnectError::Closed(CloseReason::ConnectRefused.into()), ErrorKind::PeerRefused),
        (ConnectError::Unreachable, ErrorKind::Timeout),
        (ConnectError::NoRoute, ErrorKind::BadRequest),
        (ConnectError::TooManyStreams, ErrorKind::Unavailable),
    ] {
        let mut bench = bench();
        let mut pending = bench.call(Request::Connect(connect_spec(&[])));
        let ticket = take_connect(bench.all_commands()).ticket;
        bench.event(Event::ConnectFailed { ticket, reason });
        assert_eq!(answer(&mut pending).unwrap_err().error, kind);
        assert_eq!(refusals(&bench).len(), 1);
    }
}

#[test]
fn connects_are_spread_round_robin_over_workers() {
    let mut bench = bench();
    for round in 0..4 {
        let _pending = bench.call(Request::Connect(connect_spec(&[])));
        let commands = bench.commands(round % WORKERS);
        let ticket = take_connect(commands).ticket;
        bench.event(Event::ConnectFailed {
            ticket,
            reason: ConnectError::Timeout(ConnectStage::SynAck),
        });
    }
}

#[test]
fn connect_without_route_is_refused_at_once() {
    let mut bench = bench();
    let remote = "192.0.2.1:1".parse().unwrap();
    let far = ConnectSpec { remote, ..connect_spec(&[]) };
    let mut pending = bench.call(Request::Connect(far));
    let error = answer(&mut pending).unwrap_err();
    assert_eq!(error.message, "no interface has a route to 192.0.2.1");
    let interface = Some("nope".to_owned());
    let mut pending = bench.call(Request::Connect(ConnectSpec { interface, ..connect_spec(&[]) }));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::BadRequest);
}

#[test]
fn close_is_answered_when_stream_has_ended() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let id = api::StreamId(1);
    let mut pending = bench.call(Request::CloseStream { id, abort: true });
    assert!(matches!(
        bench.commands(0)[..],
        [
            Command::Close { stream: StreamId(1), abort: true },
            Command::BindStag { stream: Some(NO_STREAM), .. }
        ]
    ));
    assert!(is_unanswered(&mut pending));
    bench.close_stream(1, CloseReason::LocalAbort);
    assert_eq!(answer(&mut pending), Ok(Reply::EMPTY));
    let mut pending = bench.call(Request::CloseStream { id, abort: true });
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::NotFound);
}

#[test]
fn totals_include_counters_of_ended_streams() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let mut stats = EndpointStats::default();
    stats.tcp.loss.bytes_retransmitted = 5;
    stats.mpa_rx.unlocatable_max = 9;
    stats.mpa_rx.alignment_lost = 4;
    stats.ddp.placed_out_of_order_bytes = 3;
    let (stream, reason) = (StreamId(1), CloseReason::PeerShutdown);
    bench.event(Event::Closed {
        stream,
        reason: reason.into(),
        stats: Box::new(StreamStats::Tcp(stats)),
    });
    let mut pending = bench.call(Request::Stats);
    for command in bench.all_commands() {
        if let Command::ListStreams { ticket, .. } = command {
            bench.report_list(ticket, vec![], true);
        }
    }
    let Ok(Reply::Stats(stats)) = answer(&mut pending) else { panic!("no stats") };
    assert_eq!(stats.control["retransmitted_bytes"], 5);
    assert_eq!(stats.control["unlocatable_bytes_max"], 9);
    assert_eq!(stats.control["mpa_alignment_lost"], 4);
    assert_eq!(stats.control["placed_out_of_order_bytes"], 3);
    assert_eq!(stats.control["frames_lost"], 0);
}

#[test]
fn listeners_with_conflicting_endpoint_or_region_are_refused() {
    let mut bench = bench();
    let mut section = bench.core.listeners()["in"].section().clone();
    section.name = "second".into();
    let mut pending = bench.call(Request::AddListener(section.clone()));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::Conflict);
    section.port = 7472;
    section.regions = vec!["none".into()];
    let mut pending = bench.call(Request::AddListener(section.clone()));
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::BadRequest);
    section.regions = vec!["own".into()];
    let mut pending = bench.call(Request::AddListener(section));
    bench.acknowledge();
    assert!(matches!(answer(&mut pending), Ok(Reply::Listener(_))));
    let listeners = &bench.core.listeners();
    assert_eq!(listeners["second"].pd(), listeners["in"].pd(), "they share a region");
}

#[test]
fn a_removed_listener_keeps_its_streams() {
    let mut bench = bench();
    bench.accept_stream(1, "10.0.0.2");
    let mut pending = bench.call(Request::RemoveListener { name: "in".into() });
    bench.acknowledge();
    assert_eq!(answer(&mut pending), Ok(Reply::EMPTY));
    assert!(bench.core.streams().contains(StreamId(1)));
    assert_eq!(bench.core.listeners().retired(), 1);
    bench.close_stream(1, CloseReason::PeerShutdown);
    assert_eq!(bench.core.listeners().retired(), 0);
}

// RFC 5042 §3, §6.1.1: streams of different listeners share a protection domain only if the operator gave the listeners
// a common region.
#[test]
fn listeners_without_common_region_have_separate_domains() {
    let second = r#"
[[listener]]
name = "other"
interface = "i"
port = 7472
[[region]]
name = "others"
size = "64 KiB"
access = "w"
[[listener]]
name = "third"
interface = "i"
port = 7473
regions = ["others"]
"#;
    let bench = bench_with(&format!("{BASIC}{second}"));
    let pd = |name: &str| bench.core.listeners()[name].pd();
    let domains = [pd("in"), pd("other"), pd("third")];
    assert!(domains[0] != domains[1] && domains[1] != domains[2] && domains[0] != domains[2]);
    assert_eq!(bench.core.regions()["common"].pd(), pd("in"));
    assert_eq!(bench.core.regions()["others"].pd(), pd("third"));
}

#[test]
fn retry_with_revision_1_is_logged() {
    let mut bench = bench();
    let mut pending = bench.call(Request::Connect(connect_spec(&[])));
    let ticket = take_connect(bench.acknowledge()).ticket;
    bench
        .event(Event::Retrying { ticket, reason: CloseReason::Lower(TcpReason::PeerReset).into() });
    let reason = CloseReason::Lower(TcpReason::PeerReset);
    let expected = format!("10.0.0.9:5000: MPA revision 2 failed, trying revision 1: {reason}");
    assert!(
        bench.is_logged(|k| matches!(k, EventKind::Warning { message } if *message == expected))
    );
    assert!(is_unanswered(&mut pending), "the open continues");
    bench.event(Event::ConnectFailed {
        ticket,
        reason: ConnectError::Timeout(ConnectStage::SynAck),
    });
    assert_eq!(answer(&mut pending).unwrap_err().error, ErrorKind::Timeout);
    // The ticket is no longer valid.
    bench
        .event(Event::Retrying { ticket, reason: CloseReason::Lower(TcpReason::PeerReset).into() });
    assert_eq!(bench.core.env().tally.unexpected_events, 1);
}

/// A full disk is noted while it lasts. A peer whose message is not stored loses its stream.
#[test]
fn unwritable_queue_file_is_noted_and_fails_the_stream() {
    let queues = QUEUES.replace("DIR/queue", "/dev/full");
    let mut bench = bench_with(&format!("{BASIC}{queues}"));
    bench.accept_stream(1, "10.0.0.2");
    bench.accept_stream(2, "10.0.0.3");
    bench.all_commands();
    bench.event(message(4, b"for the file"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.core.status(bench.now).notes.is_empty() {
        assert!(Instant::now() < deadline, "nothing is reported");
        std::thread::yield_now();
        bench.core.handle_reports();
    }
    let notes = bench.core.status(bench.now).notes;
    assert!(notes[0].starts_with("cannot write /dev/full: "), "{notes:?}");
    assert!(notes[0].ends_with("it is tried again every second"), "{notes:?}");
    assert!(bench.is_logged(|kind| matches!(kind, EventKind::Warning { .. })));
    let commands = bench.all_commands();
    let failed = commands.iter().filter(|c| matches!(c, Command::Fail { .. }));
    assert_eq!(failed.count(), 1, "{commands:?}");
}

//! Failed passive handshakes: event, hint, and counters.

use api::{ConnectSpec, UlpChoice};
use dataplane::{Connect, FailedHandshake, HandshakeCount, HandshakeFailure, Transport};
use tcp_lite::mpa::StartupError;

use super::*;

const LISTENER: &str = "[[listener]]\nname = \"in\"\ninterface = \"i\"\nport = 7471\nulp = \"ddp\"\n\
                        [listener.limits]\nstreams = 1\n";

fn bench_with_listener() -> Bench {
    bench_with(&format!("{}{LISTENER}", host!()))
}

fn attempts(bench: &Bench) -> Vec<EventKind> {
    bench.logged_events(|kind| matches!(kind, EventKind::HandshakeFailed { .. }))
}

/// Takes all commands of the workers. Returns the private data of the first reject among them.
fn take_reject(bench: &mut Bench) -> Option<Vec<u8>> {
    bench.all_commands().into_iter().find_map(|command| match command {
        Command::Reject { private_data, .. } => Some(private_data),
        _ => None,
    })
}

/// Takes all commands of the workers. Returns the first connect among them.
fn take_connect(bench: &mut Bench) -> Option<Box<Connect>> {
    bench.all_commands().into_iter().find_map(|command| match command {
        Command::Connect(connect) => Some(connect),
        _ => None,
    })
}

/// Returns the handshake counters of `/v1/stats`: listener, stage, reason and count.
fn handshake_counts(bench: &mut Bench) -> Vec<(String, String, String, u64)> {
    let mut pending = bench.call(Request::Stats);
    for command in bench.all_commands() {
        if let Command::ListStreams { ticket, .. } = command {
            let (streams, associations, handshakes) = (vec![], vec![], vec![]);
            bench.event(Event::Streams { ticket, streams, associations, handshakes, last: true });
        }
    }
    let Ok(Reply::Stats(stats)) = answer(&mut pending) else { panic!() };
    let all = stats.handshakes.into_iter();
    all.map(|info| (info.listener, info.stage, info.reason, info.count)).collect()
}

fn failed_event(
    listener: Option<ListenerId>,
    port: u16,
    stage: &'static str,
    reason: &'static str,
) -> Event {
    Event::HandshakeFailed(Box::new(FailedHandshake {
        listener,
        interface: InterfaceId(0),
        transport: Transport::Tcp,
        local: format!("10.0.0.1:{port}").parse().unwrap(),
        remote: "10.0.0.9:1234".parse().unwrap(),
        failure: HandshakeFailure::new(stage, reason),
        detail: "the peer does not speak MPA but HTTP".into(),
        unreported: 3,
    }))
}

#[test]
fn failed_handshake_report_is_logged_with_hint() {
    let mut bench = bench_with_listener();
    let listener = bench.listener("in");
    bench.event(failed_event(Some(listener), 7471, "mpa", "http"));
    bench.event(failed_event(None, 80, "tcp", "no_listener"));
    let events = attempts(&bench);
    let EventKind::HandshakeFailed {
        listener: listener_name,
        local,
        remote,
        stage,
        reason,
        hint,
        unreported,
        ..
    } = &events[0]
    else {
        panic!()
    };
    assert_eq!(
        (listener_name.as_deref(), local.as_str(), remote.as_str()),
        (Some("in"), "10.0.0.1:7471", "10.0.0.9:1234")
    );
    assert_eq!((stage.as_str(), reason.as_str(), *unreported), ("mpa", "http", 3));
    assert!(hint.as_deref().is_some_and(|hint| hint.contains("management API")), "{hint:?}");
    let EventKind::HandshakeFailed { listener: None, hint: Some(hint), .. } = &events[1] else {
        panic!("{:?}", events[1])
    };
    assert!(hint.contains("ddpctl listeners"), "{hint}");
}

/// A listener has the port, but on the other transport.
#[test]
fn failed_handshake_names_listener_on_other_transport() {
    let sctp = LISTENER.replace("port = 7471", "port = 7471\ntransport = \"sctp\"");
    let mut bench = bench_with(&format!("{}{sctp}", host!()));
    bench.event(failed_event(None, 7471, "tcp", "no_listener"));
    let EventKind::HandshakeFailed { hint, .. } = &attempts(&bench)[0] else { panic!() };
    assert_eq!(hint.as_deref(), Some("listener `in` has this port over sctp: use that"));
}

#[test]
fn handshake_counts_are_summed_by_listener_name() {
    let mut bench = bench_with_listener();
    let listener = bench.listener("in");
    let mut pending = bench.call(Request::Stats);
    let http = HandshakeFailure::new("mpa", "http");
    for command in bench.all_commands() {
        if let Command::ListStreams { ticket, .. } = command {
            let count = |listener, count| HandshakeCount { listener, failure: http, count };
            let handshakes = vec![count(Some(listener), 5), count(None, 2)];
            let (streams, associations) = (vec![], vec![]);
            bench.event(Event::Streams { ticket, streams, associations, handshakes, last: true });
        }
    }
    drop(answer(&mut pending));
    // Two workers report. Counts are added once only, not at each request.
    let expected = [("", 4), ("in", 10)]
        .map(|(listener, count)| (listener.into(), "mpa".into(), "http".into(), count));
    assert_eq!(handshake_counts(&mut bench), expected);
}

#[test]
fn refusal_is_logged_as_failed_attempt() {
    let mut bench = bench_with_listener();
    bench.request_stream(1, "10.0.0.2");
    bench.request_stream(2, "10.0.0.3");
    let events = attempts(&bench);
    let EventKind::HandshakeFailed { stage, reason, detail, hint: Some(hint), .. } = &events[0]
    else {
        panic!("{events:?}")
    };
    assert_eq!((stage.as_str(), reason.as_str()), ("admission", "listener_full"));
    assert_eq!(detail, "the listener has reached its limit of 1 streams");
    assert!(hint.contains("`streams` in `[listener.limits]`"), "{hint}");
    let expected = ("in".into(), "admission".into(), "listener_full".into(), 1);
    assert_eq!(handshake_counts(&mut bench), [expected]);
}

#[test]
fn end_before_establishment_is_logged_as_failed_attempt() {
    let mut bench = bench_with_listener();
    bench.request_stream(1, "10.0.0.2");
    bench.close_stream(1, CloseReason::Lower(TcpReason::Startup(StartupError::Timeout)));
    let expected = ("in".into(), "mpa".into(), "timeout".into(), 1);
    assert_eq!(handshake_counts(&mut bench), [expected]);
    assert_eq!(attempts(&bench).len(), 1);
}

/// A flood of refused peers: all are counted, a bounded number of events is logged.
#[test]
fn refusals_are_limited_in_the_log_and_always_counted() {
    let mut bench = bench_with_listener();
    for id in 1..=101 {
        bench.request_stream(id, "10.0.0.2");
    }
    let expected = ("in".into(), "admission".into(), "listener_full".into(), 100);
    assert_eq!(handshake_counts(&mut bench), [expected]);
    assert_eq!(attempts(&bench).len(), 32);
    bench.advance(std::time::Duration::from_secs(1));
    bench.request_stream(102, "10.0.0.2");
    let events = attempts(&bench);
    let Some(EventKind::HandshakeFailed { unreported: 68, .. }) = events.last() else {
        panic!("{:?}", events.last())
    };
}

/// docs/protocol.md §1: the reject contains the reason as text for the peer's operator.
#[test]
fn reject_carries_reason_and_connect_reports_it() {
    use api::refusal::{Refusal, RefusalKind, RefusedStream};

    let mut bench = bench_with_listener();
    bench.request_stream(1, "10.0.0.2");
    bench.all_commands();
    bench.request_stream(2, "10.0.0.3");
    let private_data = take_reject(&mut bench).unwrap();
    let text = "listener_full: the listener has reached its limit of 1 streams";
    assert_eq!(private_data, text.as_bytes());

    // The initiator receives the same reject.
    let mut other = bench_with_listener();
    let spec = ConnectSpec::to_remote(remote("10.0.0.9"));
    let mut pending = other.call(Request::Connect(spec));
    let connect = take_connect(&mut other).unwrap();
    let rejected = CloseReason::RejectedByPeer { private_data, enhanced: None };
    let reason = dataplane::ConnectError::Closed(rejected.into());
    other.event(Event::ConnectFailed { ticket: connect.ticket, reason });
    let error = answer(&mut pending).unwrap_err();
    assert!(error.message.ends_with(&format!("rejected by the peer: {text}")), "{error}");
    let refused =
        RefusedStream::Appliance { ulp: UlpChoice::Ddp, transport: config::Transport::Tcp };
    assert_eq!(error.hint.as_deref(), Some(RefusalKind::ListenerFull.peer_hint(refused)));
    assert!(other.is_logged(|kind| matches!(kind, EventKind::StreamRefused { reason, hint, .. }
        if reason.ends_with(text) && *hint == error.hint)));
    assert_eq!(Refusal::decode(text.as_bytes()).unwrap().kind, Some(RefusalKind::ListenerFull));
}

fn request(
    bench: &mut Bench,
    id: u64,
    revision: Option<Revision>,
    reads: bool,
    private_data: Vec<u8>,
) {
    let listener = bench.listener("in");
    let enhanced = reads.then_some(tcp_lite::mpa::EnhancedRepr { ird: 1, ord: 1, rtr: None });
    bench.event(Event::Incoming {
        stream: StreamId(id),
        listener,
        interface: InterfaceId(0),
        local: LOCAL.parse().unwrap(),
        remote: remote("10.0.0.2"),
        private_data,
        revision,
        enhanced,
    });
}

/// RDMAP peers are refused by a bare DDP listener, and bare DDP peers by an RDMAP listener, over MPA and SCTP. A
/// request without a stated ULP is accepted.
#[test]
fn wrong_ulp_is_refused_by_name() {
    let rdmap = LISTENER.replace("\"ddp\"", "\"rdmap\"\nservice = \"sink\"");
    let (bare, verbs) = (format!("{}{LISTENER}", host!()), format!("{}{rdmap}", host!()));
    let advertisement = |ulp| advert::encode_for(ulp, &[]);
    let to_bare = "wrong_ulp: the listener speaks bare DDP, the peer RDMAP";
    let to_rdmap = "wrong_ulp: the listener speaks RDMAP, the peer bare DDP";
    let cases = [
        (&bare, Some(Revision::Two), true, vec![], Some(to_bare)),
        (&bare, Some(Revision::Two), false, vec![], Some(to_bare)),
        (&bare, Some(Revision::One), false, advertisement(UlpKind::Rdmap), Some(to_bare)),
        (&bare, None, true, vec![], Some(to_bare)),
        (&bare, None, false, advertisement(UlpKind::Rdmap), Some(to_bare)),
        (&bare, Some(Revision::One), false, advertisement(UlpKind::Ddp), None),
        (&bare, Some(Revision::One), false, vec![], None),
        (&verbs, Some(Revision::One), false, advertisement(UlpKind::Ddp), Some(to_rdmap)),
        (&verbs, None, false, advertisement(UlpKind::Ddp), Some(to_rdmap)),
        (&verbs, Some(Revision::Two), true, vec![], None),
        (&verbs, Some(Revision::One), false, b"of a verbs program".to_vec(), None),
    ];
    for (text, revision, reads, private_data, refusal) in cases {
        let mut bench = bench_with(text);
        request(&mut bench, 1, revision, reads, private_data.clone());
        let reject = take_reject(&mut bench).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(reject.as_deref(), refusal, "{revision:?} {private_data:?}");
        let named = attempts(&bench).iter().any(|kind| {
            matches!(kind, EventKind::HandshakeFailed { reason, .. } if reason == "wrong_ulp")
        });
        assert_eq!(named, refusal.is_some());
    }
}

/// The request does not state the ULP, but the listener's advertisement does. The stream is aborted before data is
/// sent.
#[test]
fn connect_detects_wrong_ulp_in_the_advertisement() {
    for (ours, theirs) in [(UlpChoice::Ddp, UlpKind::Rdmap), (UlpChoice::Rdmap, UlpKind::Ddp)] {
        let mut bench = bench_with_listener();
        let spec = ConnectSpec { ulp: ours, ..ConnectSpec::to_remote(remote("10.0.0.9")) };
        let mut pending = bench.call(Request::Connect(spec));
        let connect = take_connect(&mut bench).unwrap();
        // The request announces the ULP only for bare DDP. With RDMAP the private data is unchanged, as verbs programs
        // expect.
        let stated = (ours == UlpChoice::Ddp).then_some(UlpKind::Ddp);
        assert_eq!(advert::ulp(&connect.private_data), stated);
        bench.event(Event::Established {
            stream: StreamId(1),
            ticket: Some(connect.ticket),
            private_data: advert::encode_for(theirs, &[]),
            params: PARAMS,
            local: LOCAL.parse().unwrap(),
            remote: remote("10.0.0.9"),
        });
        let error = answer(&mut pending).unwrap_err();
        assert!(error.message.contains("wrong_ulp: the peer speaks "), "{error}");
        let hint = match ours {
            UlpChoice::Ddp => "write rdmap:// instead of tcp://",
            UlpChoice::Rdmap => {
                "get, ping, atomics and bench read need a listener with ulp = \"rdmap\""
            }
        };
        assert!(error.hint.as_deref().is_some_and(|text| text.contains(hint)), "{error:?}");
        let commands = bench.all_commands();
        let closes = |c: &Command| matches!(c, Command::Close { abort: true, .. });
        assert!(commands.iter().any(closes), "{commands:?}");
        bench.close_stream(1, CloseReason::LocalAbort);
        assert_eq!(bench.core.env().tally.unexpected_events, 0);
    }
}

//! Connections of QPs, listeners, and their events.

use dataplane::{ConnectError, ConnectStage};
use tcp_lite::endpoint::UlpConfig;

use super::*;

#[test]
fn connect_registers_the_pair_then_opens_and_reports_the_stream() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.create_pair(&mut rig);
    assert_eq!(client.call(&mut rig, connect(pair)), Ok(Answer::Done));
    let (_, opened) = &rig.connects[0];
    let UlpConfig::Rdmap(ulp) = &opened.ulp else { panic!("{opened:?}") };
    assert_eq!((ulp.ird, ulp.ord, ulp.max_operations), (4, 8, 4));
    assert_eq!((&opened.private_data[..], opened.timeout), (&b"hello"[..], Duration::from_secs(1)));
    assert_eq!(rig.pairs()[0].pd, opened.pd);
    let stream = rig.establish_connect(5);
    let [ProgramEvent::Established { pair: 0, worker, depths, private_data, .. }] =
        &client.take_events()[..]
    else {
        panic!()
    };
    assert_eq!((*worker, *depths, &private_data[..]), (stream.worker(), DEPTHS, &b"welcome"[..]));
    assert_eq!(client.refused(&mut rig, connect(pair)), RefusalKind::Invalid, "once");
    // The appliance closes its sending direction after the peer's, and only once if the event is repeated.
    for _ in 0..2 {
        rig.bench.event(Event::PeerClosed { stream, incomplete: false });
    }
    rig.settle();
    assert_eq!(rig.closed, [(stream.0, false)]);
    let [ProgramEvent::Disconnected { pair: 0, graceful: true, .. }] = &client.take_events()[..]
    else {
        panic!()
    };
    assert_eq!(client.call(&mut rig, Call::Disconnect { pair }), Ok(Answer::Done));
    client.call(&mut rig, Call::RemoveQueuePair { pair }).unwrap();
    assert!(rig.pairs().is_empty());
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn connections_are_shared_by_the_workers() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pd = client.create(&mut rig, Call::CreatePd);
    let queue = client.create(&mut rig, completion_queue());
    for _ in 0..2 {
        let pair = client.create(&mut rig, queue_pair(pd, queue));
        client.call(&mut rig, connect(pair)).unwrap();
    }
    let mut workers: Vec<usize> = rig.connects.iter().map(|(worker, _)| *worker).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 1]);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn failed_connects_are_events_of_their_kind() {
    let rejected = CloseReason::RejectedByPeer { private_data: b"no".to_vec(), enhanced: None };
    for (reason, expected) in [
        (
            ConnectError::Closed(rejected.into()),
            ProgramEvent::Rejected { pair: 0, private_data: b"no".to_vec() },
        ),
        (
            ConnectError::Timeout(ConnectStage::SynAck),
            ProgramEvent::ConnectFailed {
                pair: 0,
                unreachable: true,
                refused: false,
                message: "no answer to the SYN in time".into(),
            },
        ),
        (
            ConnectError::QueuePair,
            ProgramEvent::ConnectFailed {
                pair: 0,
                unreachable: false,
                refused: false,
                message: ConnectError::QueuePair.to_string(),
            },
        ),
        (
            ConnectError::Closed(CloseReason::ConnectRefused.into()),
            ProgramEvent::ConnectFailed {
                pair: 0,
                unreachable: false,
                refused: true,
                message: ConnectError::Closed(CloseReason::ConnectRefused.into()).to_string(),
            },
        ),
    ] {
        let mut rig = Rig::new(PROGRAMS);
        let mut client = Client::attach(&mut rig, 1);
        let pair = client.create_pair(&mut rig);
        client.call(&mut rig, connect(pair)).unwrap();
        rig.fail_connect(reason);
        assert_eq!(client.take_events(), [expected]);
        assert_eq!(rig.ended, [rig.pairs()[0].id], "also if no stream was opened");
        client.hang_up(&mut rig);
        rig.assert_empty();
    }
}

#[test]
fn own_address_is_reached_through_its_interface() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.create_pair(&mut rig);
    let remote = "[::ffff:10.0.0.1]:7471".parse().unwrap();
    let call = ConnectCall { remote, ..connect_call(pair) };
    assert_eq!(client.call(&mut rig, Call::Connect(call)), Ok(Answer::Done));
    let (_, opened) = &rig.connects[0];
    assert_eq!((opened.interface, opened.local), (InterfaceId(0), None));
    assert_eq!(opened.remote, "10.0.0.1:7471".parse().unwrap());
    client.hang_up(&mut rig);
    rig.assert_empty();
}

/// Returns the connect of a QP to a siw that may send first.
fn connect_to_siw(pair: u32) -> Call {
    let start_up = StartUp { peer: PeerKind::Siw, peer_to_peer: true };
    Call::Connect(ConnectCall { start_up, ..connect_call(pair) })
}

#[test]
fn connect_to_siw_uses_its_profile_and_is_reported_after_its_settling_time() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.create_pair(&mut rig);
    assert_eq!(client.call(&mut rig, connect_to_siw(pair)), Ok(Answer::Done));
    let dataplane::EndpointConfig::Tcp(endpoint) = &rig.connects[0].1.endpoint else { panic!() };
    let mpa = &endpoint.mpa;
    assert_eq!((mpa.peer, mpa.enhanced.peer_to_peer), (tcp_lite::mpa::Peer::Siw, true));
    assert_eq!(mpa.initiate, Revision::Two);
    rig.establish_connect(5);
    assert_eq!(client.take_events(), []);
    rig.bench.advance(Duration::from_millis(49));
    assert_eq!(client.take_events(), []);
    rig.bench.advance(Duration::from_millis(1));
    assert!(matches!(client.take_events()[..], [ProgramEvent::Established { pair: 0, .. }]));
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn connection_that_ends_in_its_settling_time_has_failed() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.create_pair(&mut rig);
    client.call(&mut rig, connect_to_siw(pair)).unwrap();
    let stream = rig.establish_connect(5);
    rig.end_stream(stream.0, CloseReason::PeerShutdown);
    rig.settle();
    assert!(matches!(client.take_events()[..], [ProgramEvent::ConnectFailed { pair: 0, .. }]));
    rig.bench.advance(Duration::from_secs(1));
    assert_eq!(client.take_events(), []);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn impossible_connects_are_refused() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.create_pair(&mut rig);
    let valid = || connect_call(pair);
    let remote = |text: &str| ConnectCall { remote: text.parse().unwrap(), ..valid() };
    for (call, kind) in [
        (connect_call(2), RefusalKind::NotFound),
        (remote("192.0.2.1:7471"), RefusalKind::Unreachable),
        (remote("10.0.0.9:0"), RefusalKind::Invalid),
        (remote("127.0.0.1:1"), RefusalKind::Invalid),
        (
            ConnectCall { local: Some("10.0.0.2".parse().unwrap()), ..valid() },
            RefusalKind::Unreachable,
        ),
        (ConnectCall { timeout: 0, ..valid() }, RefusalKind::Invalid),
        (ConnectCall { depths: Depths { ird: 129, ..DEPTHS }, ..valid() }, RefusalKind::Invalid),
        (ConnectCall { private_data: vec![0; 509], ..valid() }, RefusalKind::Invalid),
    ] {
        assert_eq!(client.refused(&mut rig, Call::Connect(call.clone())), kind, "{call:?}");
    }
    rig.refuse_next("AddQueuePair");
    // Only the last worker refuses the QP. The connect may be at the other worker, which accepts the QP.
    let refused = client.call(&mut rig, connect(pair));
    assert!(refused.is_ok() || refused.is_err_and(|refusal| refusal.kind == RefusalKind::Invalid));
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn route_is_the_local_address_of_a_connect_or_refused() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let ip = |text: &str| text.parse().unwrap();
    let route = |remote, local| Call::Route { remote, local };
    for local in [None, Some(ip("0.0.0.0")), Some(ip("10.0.0.1"))] {
        let answer = client.call(&mut rig, route(ip("10.0.0.9"), local));
        assert_eq!(answer, Ok(Answer::Route { local: ip("10.0.0.1") }));
    }
    let own = client.call(&mut rig, route(ip("10.0.0.1"), None));
    assert_eq!(own, Ok(Answer::Route { local: ip("10.0.0.1") }));
    for (remote, local) in [
        ("192.0.2.1", None),
        ("10.0.0.9", Some(ip("10.0.0.2"))),
        ("2001:db8::1", None),
        ("224.0.0.1", None),
        ("10.0.0.255", None),
    ] {
        let refused = client.refused(&mut rig, route(ip(remote), local));
        assert_eq!(refused, RefusalKind::Unreachable, "{remote}");
    }
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn listener_passes_requests_which_are_accepted_or_rejected() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let listener = client.create(&mut rig, listen(4000));
    for worker in 0..WORKERS {
        let [at] = &rig.listeners(worker)[..] else { panic!() };
        assert_eq!((at.address, at.port), (Some("10.0.0.1".parse().unwrap()), 4000));
        assert_eq!((at.backlog, at.credits), (2, 2), "4 requests, 2 workers");
    }
    rig.request(1, 4000);
    rig.request(2, 4000);
    rig.request(3, 4000);
    let events = client.take_events();
    let [ProgramEvent::Incoming { request: 1, depths, private_data, .. }, _, _] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*depths, &private_data[..]), (Some(Depths { ird: 2, ord: 3 }), &b"request"[..]));
    assert_eq!(rig.credits, 0);
    let pair = client.create_pair(&mut rig);
    let private_data = b"yes".to_vec();
    let accept = Call::Accept { request: 1, pair, depths: DEPTHS, private_data };
    assert_eq!(client.call(&mut rig, accept.clone()), Ok(Answer::Done));
    assert_eq!((&rig.accepted[..], rig.credits), (&[(1, b"yes".to_vec())][..], 1));
    assert_eq!(client.refused(&mut rig, accept), RefusalKind::NotFound, "once");
    rig.establish_accepted(1);
    let [ProgramEvent::Established { pair: 0, worker: 0, .. }] = &client.take_events()[..] else {
        panic!()
    };
    let reject = Call::Reject { request: 2, private_data: b"no".to_vec() };
    assert_eq!(client.call(&mut rig, reject.clone()), Ok(Answer::Done));
    assert_eq!((&rig.rejected[..], rig.credits), (&[(2, b"no".to_vec())][..], 2));
    assert_eq!(client.refused(&mut rig, reject), RefusalKind::NotFound);
    rig.end_stream(3, CloseReason::PeerShutdown);
    rig.settle();
    assert_eq!(client.take_events(), [ProgramEvent::RequestEnded { request: 3 }]);
    assert_eq!(rig.credits, 3);
    rig.request(4, 4000);
    client.take_events();
    assert_eq!(client.call(&mut rig, Call::StopListening { listener }), Ok(Answer::Done));
    assert_eq!(rig.closed, [(4, true)], "a request that waits is reset");
    assert!(rig.listeners(0).is_empty() && client.take_events().is_empty());
    assert_eq!(client.refused(&mut rig, Call::StopListening { listener }), RefusalKind::NotFound);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn request_that_ends_during_its_accept_is_a_refusal() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    client.create(&mut rig, listen(4000));
    rig.request(1, 4000);
    let pair = client.create_pair(&mut rig);
    let accept = Call::Accept { request: 1, pair, depths: DEPTHS, private_data: Vec::new() };
    let id = client.send(&rig, accept);
    while rig.bench.core.handle_programs(rig.bench.now) {}
    rig.end_stream(1, CloseReason::PeerShutdown);
    rig.settle();
    let refused = client.reply(id).unwrap().unwrap_err();
    assert_eq!(refused.kind, RefusalKind::NotFound);
    assert!(rig.accepted.is_empty());
    assert_eq!(rig.credits, 1);
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn pair_removed_while_it_connects_leaves_no_stream() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.create_pair(&mut rig);
    client.call(&mut rig, connect(pair)).unwrap();
    let (worker, opened) = rig.connects.pop().unwrap();
    client.call(&mut rig, Call::RemoveQueuePair { pair }).unwrap();
    // A new QP reuses the number. Then the worker reports the stream of the removed QP.
    assert_eq!(client.create(&mut rig, queue_pair(0, 0)), pair);
    client.call(&mut rig, connect(pair)).unwrap();
    rig.connects.insert(0, (worker, opened));
    let stream = rig.establish_connect(9);
    assert_eq!(rig.closed, [(stream.0, true)]);
    assert!(client.take_events().is_empty());
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn addresses_and_ports_of_listeners_are_checked_and_chosen() {
    let mut rig = Rig::new(&format!(
        "{PROGRAMS}[[listener]]\nname = \"n\"\ninterface = \"i\"\nport = 7471\n"
    ));
    let mut client = Client::attach(&mut rig, 1);
    let at = |text: &str, transport, backlog| Call::Listen {
        local: text.parse().unwrap(),
        transport,
        backlog,
    };
    for (call, kind) in [
        (at("0.0.0.0:7471", Transport::Tcp, 1), RefusalKind::InUse),
        (at("10.0.0.1:7471", Transport::Tcp, 1), RefusalKind::InUse),
        (at("10.0.0.2:80", Transport::Tcp, 1), RefusalKind::Unreachable),
        (at("[::]:80", Transport::Tcp, 1), RefusalKind::Unreachable),
        (at("0.0.0.0:80", Transport::Tcp, 0), RefusalKind::Invalid),
    ] {
        assert_eq!(client.refused(&mut rig, call.clone()), kind, "{call:?}");
    }
    let Ok(Answer::Listening { local, .. }) = client.call(&mut rig, listen(0)) else { panic!() };
    assert!(local.port() >= 49152 && local.ip().is_unspecified());
    let mut other = Client::attach(&mut rig, 2);
    assert_eq!(other.refused(&mut rig, listen(local.port())), RefusalKind::InUse);
    // The last worker refuses the listener, which is then removed from the other worker.
    rig.refuse_next("AddListener");
    assert_eq!(other.refused(&mut rig, listen(5000)), RefusalKind::InUse);
    assert!(rig.listeners(0).iter().all(|listener| listener.port != 5000), "removed again");
    client.hang_up(&mut rig);
    other.hang_up(&mut rig);
}

#[test]
fn reload_changes_the_admitted_peers_of_programs_listeners() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    client.create(&mut rig, listen(4000));
    for deny in ["deny = [\"10.0.0.9/32\"]\n", ""] {
        let text = PROGRAMS.replace("[programs]", &format!("{deny}[programs]"));
        std::fs::write(&rig.bench.file, text).unwrap();
        let mut reload = rig.bench.call(Request::Reload);
        rig.settle();
        let reloaded = answer(&mut reload);
        assert!(reloaded.is_ok(), "{reloaded:?}");
        for worker in 0..WORKERS {
            let peers = &rig.listeners(worker)[0].peers;
            let admitted = peers.check("10.0.0.9".parse().unwrap()).is_ok();
            assert_eq!(admitted, deny.is_empty());
        }
    }
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn failures_of_queues_are_events_of_the_program() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    let pair = client.connect(&mut rig, 3);
    client.take_events();
    let id = dataplane::QueuePairId { program: client.id, number: pair };
    let reason = dataplane::QueuePairError::SendProtection;
    rig.bench.event(Event::Program(dataplane::ProgramEvent::QueuePairFailed { id, reason }));
    let message = reason.to_string();
    assert_eq!(client.take_events(), [ProgramEvent::QueuePairFailed { pair, message }]);
    let unknown = dataplane::QueuePairId { program: ProgramId(99), number: 0 };
    let failed = dataplane::ProgramEvent::QueuePairFailed { id: unknown, reason };
    rig.bench.event(Event::Program(failed));
    client.hang_up(&mut rig);
    rig.assert_empty();
}

#[test]
fn ended_pair_is_at_a_worker_and_its_connection_in_progress_fails() {
    let mut rig = Rig::new(PROGRAMS);
    let mut client = Client::attach(&mut rig, 1);
    client.create(&mut rig, listen(4000));
    let failed = |pair| ProgramEvent::ConnectFailed {
        pair,
        unreachable: false,
        refused: false,
        message: "the program has ended the QP".into(),
    };
    let end = |pair| Call::EndQueuePair { pair };

    // A QP that was never connected.
    let new = client.create_pair(&mut rig);
    assert_eq!(client.call(&mut rig, end(new)), Ok(Answer::Done));
    assert_eq!(rig.ended.iter().map(|id| id.number).collect::<Vec<_>>(), [new]);
    assert_eq!(client.call(&mut rig, end(new)), Ok(Answer::Done), "twice");
    assert_eq!(client.refused(&mut rig, connect(new)), RefusalKind::Invalid);
    assert!(client.take_events().is_empty());

    // Connecting: ending the QP reports `ConnectFailed` once. The cancelled connect causes no second event.
    let connecting = client.create(&mut rig, queue_pair(0, 0));
    client.call(&mut rig, connect(connecting)).unwrap();
    assert_eq!(client.call(&mut rig, end(connecting)), Ok(Answer::Done));
    assert!(rig.connects.is_empty());
    assert_eq!(client.take_events(), [failed(connecting)]);
    assert_eq!(rig.ended.last().map(|id| id.number), Some(connecting));

    // The worker is adding the QP for an accept.
    let starting = client.create(&mut rig, queue_pair(0, 0));
    rig.request(1, 4000);
    let accept = Call::Accept { request: 1, pair: starting, depths: DEPTHS, private_data: vec![] };
    let accepted = client.send(&rig, accept);
    assert_eq!(client.call(&mut rig, end(starting)), Ok(Answer::Done));
    assert_eq!(client.reply(accepted).unwrap().unwrap_err().kind, RefusalKind::Invalid);
    assert_eq!((&rig.closed[..], rig.credits), (&[(1, true)][..], 1));
    assert_eq!(rig.ended.last().map(|id| id.number), Some(starting));
    client.call(&mut rig, Call::RemoveQueuePair { pair: starting }).unwrap();
    client.take_events();

    // Accepting: the stream is reset.
    let accepting = client.create(&mut rig, queue_pair(0, 0));
    rig.request(2, 4000);
    let accept = Call::Accept { request: 2, pair: accepting, depths: DEPTHS, private_data: vec![] };
    client.call(&mut rig, accept).unwrap();
    client.take_events();
    assert_eq!(client.call(&mut rig, end(accepting)), Ok(Answer::Done));
    assert_eq!(rig.closed.last(), Some(&(2, true)));
    let events = client.take_events();
    assert!(matches!(events[..], [ProgramEvent::ConnectFailed { .. }]), "{events:?}");
    client.call(&mut rig, Call::RemoveQueuePair { pair: accepting }).unwrap();

    // Connected: closed gracefully.
    let connected = client.create(&mut rig, queue_pair(0, 0));
    client.call(&mut rig, connect(connected)).unwrap();
    let stream = rig.establish_connect(3);
    client.take_events();
    assert_eq!(client.call(&mut rig, end(connected)), Ok(Answer::Done));
    assert_eq!(rig.closed.last(), Some(&(stream.0, false)));
    let events = client.take_events();
    assert!(matches!(events[..], [ProgramEvent::Disconnected { .. }]), "{events:?}");
    client.hang_up(&mut rig);
    rig.assert_empty();
}

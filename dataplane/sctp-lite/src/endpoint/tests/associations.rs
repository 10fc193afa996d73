//! Tests of whole associations, with their sessions: setup, linger and end.

use super::host::{Policy, send_message, stream_config, write_message};
use super::net::{Fate, Net, Node, Setup, Side, Tx};
use crate::endpoint::*;
use core::time::Duration;
use ddp::Cookie;
use wire::sctp::{Chunk, DataHeader, Packet, PacketBuilder, Parameter, chunk_type};

const SECOND: Duration = Duration::from_secs(1);

fn lingering(linger: Duration) -> Setup {
    let endpoint = EndpointConfig { linger, ..EndpointConfig::default() };
    Setup { endpoint, ..Setup::default() }
}

/// RFC 5043 §11.1: an association between ends with different adaptation indications ends.
#[test]
fn other_adaptation_ends_the_association() {
    for side in [Side::A, Side::B] {
        let mut other_setup = Setup::default();
        other_setup.sctp.adaptation = 7;
        let (a, b) = match side {
            Side::A => (Node::initiator(other_setup, b""), Node::responder(Setup::default())),
            Side::B => (Node::initiator(Setup::default(), b""), Node::responder(other_setup)),
        };
        let mut net = Net::new(a, b);
        net.run();
        assert_eq!((net.a.established(), net.b.sessions().len()), (0, 0));
        let reason = net.a.reason(net.a.session()).expect("an ended session");
        let names = [reason.name(), net.a.down_reason().expect("an ended session").name()];
        assert!(["not_ddp", "connect_refused"].contains(&names[0]), "{names:?}");
        assert_eq!(names[0], names[1]);
        net.a.assert_nothing_left();
    }
}

/// In the first case the peer's host has no listener and refuses. In the second case the path drops all packets, and
/// the connect times out.
#[test]
fn connect_without_listener_is_refused_or_times_out() {
    let mut net =
        Net::new(Node::initiator(Setup::default(), b""), Node::unresponsive(Setup::default()));
    net.run();
    assert_eq!(net.a.reason(net.a.session()), Some(CloseReason::ConnectRefused));
    assert_eq!(net.a.down_reason(), Some(CloseReason::ConnectRefused));
    let mut net =
        Net::new(Node::initiator(Setup::default(), b""), Node::unresponsive(Setup::default()));
    net.set_fate(|_, _, _| Fate::Drop);
    net.run();
    assert_eq!(net.a.reason(net.a.session()), Some(CloseReason::Lower(SctpReason::SctpTimeout)));
    net.a.assert_nothing_left();
}

// RFC 9260 §10 (ICMP8): the host no longer supports SCTP. A report about an old INIT has no effect.
#[test]
fn icmp_protocol_unreachable_ends_the_association() {
    let mut net = Net::established(&Setup::default());
    let (now, session) = (net.now, net.a.session());
    net.a.with_endpoint(|ep, cx| ep.protocol_unreachable(now, true, cx));
    net.transmit();
    assert_eq!(net.a.reason(session), None);
    net.a.with_endpoint(|ep, cx| ep.protocol_unreachable(now, false, cx));
    net.run();
    assert_eq!(net.a.reason(session), Some(CloseReason::Lower(SctpReason::NoSctp)));
    net.a.assert_nothing_left();
}

/// After its last session the association lingers, then shuts down. Consecutive sessions use the same streams.
#[test]
fn association_lingers_then_shuts_down() {
    let mut net = Net::established(&lingering(SECOND * 3));
    for round in 0..5_u8 {
        let session = *net.a.sessions().last().expect("a session");
        assert_eq!(session.stream, 0);
        net.a.ep().post(session, send_message(&[round; 3000], 1)).expect("room");
        let now = net.now;
        net.a.ep().shutdown_session(now, session);
        net.run_for(SECOND);
        assert_eq!(net.a.reason(session), Some(CloseReason::LocalShutdown));
        if round < 4 {
            let now = net.now;
            net.a.open(now, &[round]);
            net.run_for(SECOND);
            assert_eq!(net.a.established(), usize::from(round) + 2);
        }
    }
    assert!(net.a.is_up() && net.b.is_up());
    net.run();
    assert!(!net.a.is_up() && !net.b.is_up());
    assert!(!net.has_sent(Side::A, chunk_type::ABORT) && !net.has_sent(Side::B, chunk_type::ABORT));
    assert_eq!(net.b.sessions().len(), 5);
    net.a.assert_nothing_left();
    net.b.assert_nothing_left();
}

/// The end that accepted the association also opens sessions.
#[test]
fn both_ends_open_sessions() {
    let mut net = Net::established(&Setup::default());
    let now = net.now;
    let (of_b, of_a) = (net.b.open(now, b"b"), net.a.open(now, b"a"));
    // The end that opened the association takes the lowest free stream, and the end that accepted it the highest.
    assert_eq!((of_b.stream, of_a.stream), (15, 1));
    net.run_for(SECOND);
    let streams = |node: &mut Node| node.ep().sessions().map(|id| id.stream).collect::<Vec<_>>();
    assert_eq!((streams(&mut net.a), streams(&mut net.b)), (vec![0, 1, 15], vec![0, 1, 15]));
    assert_eq!((net.a.established(), net.b.established()), (3, 3));
    net.b.ep().post(of_b, write_message(0, b"hello", 1)).expect("room");
    net.run_for(SECOND);
    assert_eq!(net.a.memory.to_vec()[..5], *b"hello");
}

/// A rejected session leaves other sessions of the association unaffected.
#[test]
fn rejected_session_leaves_the_association_open() {
    let mut net = Net::established(&Setup::default());
    net.b.policy = Policy::Reject(b"no".to_vec());
    let now = net.now;
    let session = net.a.open(now, b"");
    net.run_for(SECOND);
    let (private_data, enhanced) = (b"no".to_vec(), None);
    let reason = CloseReason::RejectedByPeer { private_data, enhanced };
    assert_eq!(net.a.reason(session), Some(reason));
    assert!(net.a.is_up() && net.b.is_up());
    // The streams of the rejected session are free.
    net.b.policy = Policy::Accept(Vec::new());
    let now = net.now;
    assert_eq!(net.a.open(now, b"").stream, session.stream);
}

/// An association without a session for `answer_timeout` is shut down.
#[test]
fn sessionless_association_is_shut_down() {
    let mut net =
        Net::new(Node::initiator(Setup::default(), b""), Node::responder(Setup::default()));
    // The first Initiate never arrives.
    net.set_fate(|side, _, packet| {
        let data = side == Side::A && super::net::has_data(packet);
        if data { Fate::Drop } else { Fate::Pass }
    });
    net.run_until(|net| !net.b.is_up() && net.b.ep.is_some());
    assert!(!net.b.is_up());
    assert_eq!(net.b.sessions().len(), 0);
}

/// RFC 5043 §11.3: every session reports its end, and no RDMAP Terminate is sent.
#[test]
fn association_abort_closes_all_sessions() {
    let ulp = ddp::rdmap::Config::default();
    let mut net = Net::established(&Setup { ulp: ulp.into(), ..Setup::default() });
    let now = net.now;
    net.a.open(now, b"");
    net.run_for(SECOND);
    let before = net.a.sessions().iter().map(|id| net.a.stats(*id).ddp.segments_sent).sum::<u64>();
    let now = net.now;
    net.a.with_endpoint(|ep, cx| ep.abort(now, cx));
    net.run();
    for id in net.a.sessions() {
        assert_eq!(net.a.reason(id), Some(CloseReason::LocalAbort));
    }
    for id in net.b.sessions() {
        let reason = net.b.reason(id).expect("an ended session");
        assert_eq!(reason, CloseReason::Lower(SctpReason::PeerAbort { cause: Some(12) }));
    }
    let after = net.a.sessions().iter().map(|id| net.a.stats(*id).ddp.segments_sent).sum::<u64>();
    assert_eq!(before, after, "no segment of a session was sent");
    assert_eq!(net.b.down_reason().map(|reason| reason.name()), Some("peer_abort"));
    net.a.assert_nothing_left();
    net.b.assert_nothing_left();
}

/// The path fails while messages are outstanding: their posts are reported as flushed.
#[test]
fn lost_association_flushes_outstanding_messages() {
    let mut net = Net::established(&Setup::default());
    let session = net.a.session();
    net.set_fate(|_, _, _| Fate::Drop);
    net.a.ep().post(session, send_message(&[1; 5000], 7)).expect("room");
    net.run();
    assert_eq!(net.a.reason(session), Some(CloseReason::Lower(SctpReason::SctpTimeout)));
    let events: Vec<_> = net.a.events_of(session).collect();
    assert!(
        events.contains(&&SessionEvent::Ddp(ddp::Event::Flushed { cookie: Cookie::user(7) })),
        "{events:?}"
    );
    net.a.assert_nothing_left();
}

/// The peer's host restarts. The old sessions end, and new sessions begin on the restarted association.
#[test]
fn peer_restart_ends_old_sessions() {
    let mut net = Net::established(&Setup::default());
    let (old, now) = (net.b.session(), net.now);
    net.a.events.clear();
    net.a.connect(now + SECOND, b"again");
    net.run_for(SECOND * 5);
    assert_eq!(net.b.reason(old), Some(CloseReason::Lower(SctpReason::PeerRestart)));
    assert_eq!((net.a.established(), net.b.established()), (1, 2));
    let session = net.a.session();
    net.a.ep().post(session, write_message(0, b"fresh", 1)).expect("room");
    net.run_for(SECOND);
    assert_eq!(net.b.memory.to_vec()[..5], *b"fresh");
}

/// The peer's host restarts, and sends its first Initiate in the packet with the cookie. The Initiate belongs to the
/// restarted association.
#[test]
fn initiate_bundled_with_restart_cookie_begins_a_session() {
    use std::cell::RefCell;
    use std::rc::Rc;
    let mut net = Net::established(&Setup::default());
    let (old, now) = (net.b.session(), net.now);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let keep = seen.clone();
    net.set_fate(move |side, _, packet| {
        let is_cookie = super::net::kinds(packet).contains(&chunk_type::COOKIE_ECHO);
        if side == Side::A {
            keep.borrow_mut().push(packet.to_vec());
        }
        if is_cookie { Fate::Drop } else { Fate::Pass }
    });
    net.a.connect(now, b"again");
    net.run_for(Duration::from_millis(10));
    let packets = seen.borrow();
    let [init, cookie] = &packets[..] else { panic!("{} packets", packets.len()) };
    let packet = Packet::new(init).expect("a packet");
    let raw = packet.chunks().next().expect("a chunk").expect("a whole chunk");
    let Ok(Chunk::Init(init)) = Chunk::parse(raw) else { panic!("no INIT") };
    let packet = Packet::new(cookie).expect("a packet");
    let raw = packet.chunks().next().expect("a chunk").expect("a whole chunk");
    let Ok(Chunk::CookieEcho(cookie)) = Chunk::parse(raw) else { panic!("no COOKIE ECHO") };
    let mut out = [0; 1000];
    let mut builder = PacketBuilder::new(&mut out, packet.ports(), packet.tag());
    builder.cookie_echo(cookie).expect("room");
    let tsn = init.header.initial_tsn;
    let (begin, end, unordered, immediate) = (true, true, true, true);
    let header = DataHeader { tsn, stream: 0, ssn: 0, ppid: 17, immediate, unordered, begin, end };
    let initiate = [0, 0, 0, 1, b'h', b'i'];
    builder.data_buffer()[..initiate.len()].copy_from_slice(&initiate);
    builder.push_data(&header, initiate.len()).expect("room");
    let len = builder.finish();
    net.b.input(net.now, &out[..len]);
    assert_eq!(net.b.reason(old), Some(CloseReason::Lower(SctpReason::PeerRestart)));
    assert_eq!(net.b.established(), 2, "{:?}", net.b.events);
    assert!(net.b.is_up());
}

/// After a restart the peer again has the whole `answer_timeout` for its first session, although it had sessions
/// before.
#[test]
fn restarted_peer_gets_the_first_session_timeout_again() {
    let mut net = Net::established(&lingering(SECOND));
    let (old, now) = (net.b.session(), net.now);
    net.set_fate(|side, _, packet| {
        let data = side == Side::A && super::net::has_data(packet);
        if data { Fate::Drop } else { Fate::Pass }
    });
    net.a.connect(now, b"again");
    net.run_for(SECOND * 5);
    assert_eq!(net.b.reason(old), Some(CloseReason::Lower(SctpReason::PeerRestart)));
    let state = net.b.ep().state();
    assert_eq!(state, sctp::State::Established, "after five times the linger");
    net.run_until(|net| !net.b.is_up());
    assert!(!net.b.is_up());
}

/// A peer that is silent for `idle_timeout` loses its sessions and the association.
#[test]
fn idle_timeout_closes_sessions_and_association() {
    let mut setup = Setup::default();
    setup.endpoint.policy.idle_timeout = Some(SECOND * 20);
    let a = Node::initiator(Setup::default(), b"");
    let mut net = Net::new(a, Node::responder(setup));
    net.run_for(SECOND * 19);
    assert_eq!(net.b.reason(net.b.session()), None);
    net.run();
    assert_eq!(net.b.reason(net.b.session()), Some(CloseReason::Idle));
    assert_eq!(net.a.reason(net.a.session()), Some(CloseReason::PeerShutdown));
    assert!(!net.a.is_up() && !net.b.is_up());
}

/// The peer shuts the association down while sessions are open: messages posted by this end still arrive.
#[test]
fn peer_shutdown_delivers_posted_messages_first() {
    let mut net = Net::established(&Setup::default());
    let (session, there) = (net.a.session(), net.b.session());
    for cookie in 0..20 {
        net.b.ep().post(there, write_message(0, &[5; 3000], cookie)).expect("room");
    }
    let now = net.now;
    net.a.ep().shutdown(now);
    let open = net.a.open_request(b"");
    assert_eq!(net.a.ep().open_session(now, StreamId(9), open), Err(OpenError::Closed));
    net.run();
    assert_eq!(net.a.reason(session), Some(CloseReason::LocalShutdown));
    assert_eq!(net.b.reason(there), Some(CloseReason::PeerShutdown));
    let sent = |event: &&SessionEvent| matches!(event, SessionEvent::Ddp(ddp::Event::Sent { .. }));
    assert_eq!(net.b.events_of(there).filter(sent).count(), 20);
    assert_eq!(net.a.down_reason(), Some(CloseReason::LocalShutdown));
    assert_eq!(net.b.down_reason(), Some(CloseReason::PeerShutdown));
}

/// An association that is being shut down does not linger.
#[test]
fn shutdown_ends_with_the_last_session() {
    let mut net = Net::established(&lingering(SECOND * 60));
    let now = net.now;
    net.a.ep().shutdown(now);
    net.run_for(SECOND);
    assert!(!net.a.is_up() && !net.b.is_up());
    assert_eq!(net.a.down_reason(), Some(CloseReason::LocalShutdown));
}

/// No session begins on a closed association. The endpoint is done when its ABORT is sent and its events are polled.
#[test]
fn closed_association_refuses_new_sessions() {
    let mut net = Net::established(&Setup::default());
    let (now, open) = (net.now, net.a.open_request(b""));
    assert!(net.a.ep().can_open());
    net.a.with_endpoint(|ep, cx| ep.abort(now, cx));
    assert!(!net.a.ep().can_open());
    assert_eq!(net.a.ep().open_session(now, StreamId(9), open), Err(OpenError::Closed));
    let mut tx = Tx::default();
    net.a.ep().poll_transmit(now, &mut tx);
    assert_eq!(tx.packets.len(), 1);
    assert!(!net.a.ep().is_done(), "its events are not polled");
    while net.a.ep().poll_event().is_some() {}
    assert!(net.a.ep().is_done());
    let mut net = Net::established(&Setup::default());
    net.a.with_endpoint(|ep, cx| ep.abort(now, cx));
    while net.a.ep().poll_event().is_some() {}
    assert!(!net.a.ep().is_done(), "its ABORT is not sent");
}

#[test]
fn paused_session_refuses_messages_and_others_continue() {
    let mut net = Net::established(&Setup::default());
    let now = net.now;
    let (paused, other) = (net.a.session(), net.a.open(now, b""));
    net.run_for(SECOND);
    let peer_session = net.b.session();
    net.b.ep().pause_session(peer_session, Some(0));
    let before = net.b.events_of(peer_session).count();
    net.a.ep().post(paused, send_message(b"later", 1)).expect("room");
    net.a.ep().post(other, write_message(0, b"now", 2)).expect("room");
    net.run_for(SECOND);
    let sent = |net: &Net, session, cookie| {
        let sent =
            SessionEvent::Ddp(ddp::Event::Sent { cookie: Cookie::user(cookie), messages: 1 });
        net.a.events_of(session).any(|event| *event == sent)
    };
    assert_eq!(net.b.memory.to_vec()[..3], *b"now");
    assert!(!sent(&net, paused, 1));
    assert_eq!(net.b.events_of(peer_session).count(), before);
    assert!(net.b.ep().association().receiver().stats().not_taken > 0);
    net.b.ep().pause_session(peer_session, None);
    net.run_for(SECOND * 5);
    assert!(sent(&net, paused, 1) && sent(&net, other, 2));
    assert_eq!(net.b.events_of(peer_session).count(), before + 1);
}

/// RFC 5043 §9: the MULPDU follows the path MTU.
#[test]
fn mulpdu_follows_the_path_mtu() {
    let mut net = Net::established(&Setup::default());
    let session = net.a.session();
    let mulpdu = |net: &mut Net| net.a.ep().params(session).expect("accepted").mulpdu;
    let first = mulpdu(&mut net);
    assert_eq!(first, 1480 - 12 - 16 - 16 - 2 - 16);
    let now = net.now;
    assert!(net.a.ep().on_packet_too_big(now, 1000));
    assert!(
        !net.a.ep().on_packet_too_big(now, 1200),
        "a report above the current MTU has no effect"
    );
    assert_eq!(mulpdu(&mut net), 1000 - 62);
    // A session control message fits, regardless of the reported MTU.
    assert!(net.a.ep().on_packet_too_big(now, 100));
    assert_eq!(mulpdu(&mut net), 516);
    net.a.ep().set_path_mtu(now, 1480);
    assert_eq!(mulpdu(&mut net), first);
}

/// Both ends limit the number of streams, and therefore of sessions.
#[test]
fn open_without_free_stream_is_refused() {
    let mut few = lingering(SECOND);
    few.sctp.streams = 3;
    let mut net = Net::new(Node::initiator(Setup::default(), b""), Node::responder(few));
    net.run_until(|net| net.a.established() == 1);
    let now = net.now;
    net.a.open(now, b"");
    net.a.open(now, b"");
    assert!(!net.a.ep().can_open());
    let open = net.a.open_request(b"");
    assert_eq!(net.a.ep().open_session(now, StreamId(77), open), Err(OpenError::NoStream));
    net.run_for(SECOND);
    assert_eq!(net.b.established(), 3);
    // Opening sessions leaves the ULP configuration unchanged.
    assert_eq!(net.a.setup.ulp, stream_config().into());
}

/// RFC 5043 §5.1, §8, §9, §10, §11.1: INIT and INIT ACK have the indication and equal numbers of streams. Every DATA
/// chunk is unordered and unfragmented, with PPID 16 or 17, also if packets are lost.
#[test]
fn data_chunks_are_unordered_unfragmented_with_ddp_ppids() {
    use std::cell::RefCell;
    use std::rc::Rc;
    let packets = Rc::new(RefCell::new(Vec::new()));
    let seen = packets.clone();
    let mut net =
        Net::new(Node::initiator(Setup::default(), b"hello"), Node::responder(Setup::default()));
    net.set_fate(move |_, n, packet| {
        seen.borrow_mut().push(packet.to_vec());
        if n % 7 == 6 { Fate::Drop } else { Fate::Pass }
    });
    net.run_until(|net| net.b.established() == 1 && net.a.established() == 1);
    let session = net.a.session();
    for cookie in 0..20 {
        net.a.ep().post(session, write_message(0, &[7; 10_000], cookie)).expect("room");
        net.a.ep().post(session, send_message(&[7; 10], cookie)).expect("room");
    }
    let now = net.now;
    net.a.ep().shutdown_session(now, session);
    net.run();
    let (mut inits, mut data) = (0, 0);
    for bytes in packets.borrow().iter() {
        let packet = Packet::new(bytes).expect("a packet");
        for raw in packet.chunks() {
            match Chunk::parse(raw.expect("a chunk")).expect("a known chunk") {
                Chunk::Init(init) | Chunk::InitAck(init) => {
                    let header = init.header;
                    assert_eq!(header.inbound_streams, header.outbound_streams);
                    let address = |p: &Result<Parameter<'_>, _>| {
                        matches!(p, Ok(Parameter::Ipv4(_) | Parameter::Ipv6(_)))
                    };
                    // RFC 5043 §7.2: the only address is the packet's source.
                    assert!(!init.parameters().any(|p| address(&p)));
                    let mut parameters = init.parameters();
                    let ours =
                        |p: &Result<Parameter<'_>, _>| matches!(p, Ok(Parameter::Adaptation(1)));
                    assert!(parameters.any(|p| ours(&p)));
                    inits += 1;
                }
                Chunk::Data(chunk) => {
                    let header = chunk.header;
                    assert!(header.unordered && header.begin && header.end);
                    assert!([16, 17].contains(&header.ppid));
                    data += 1;
                }
                _ => {}
            }
        }
    }
    assert!(inits >= 2 && data > 160, "{inits} {data}");
}

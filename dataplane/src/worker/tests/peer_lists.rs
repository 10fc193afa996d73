//! Peers that `allow` and `deny` refuse receive no answer and create no state, regardless of the frames that they send.
//! Admitted peers connect, lists change at run time, and locally opened streams are not affected.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use sctp_lite::endpoint::{CloseReason, SctpReason};
use tcp_lite::tcp::Flags;
use wire::sctp::chunk_type;

use super::floods::{forged_from_address, forged_segment};
use super::sctp::{PORT, config, list_streams, wait_connect_failure, write};
use super::sctp_frames::{init, sctp_frame_between, sctp_frame_in};
use super::test_host::*;
use crate::api::{
    self, Command, CommandError, ConnectError, Event, HandshakeFailure, ListenerId, PeerFilter,
    PeerLists, SctpConfig, SynCookieMode, Transport,
};
use crate::net::sctp_path::UdpPorts;

const UDP: u16 = 9899;
const FAMILIES: [fn(u8) -> IpAddr; 2] = [v4, v6];

fn host_net(address: IpAddr) -> IpNet {
    address.into()
}

fn deny_list(peers: &[IpAddr]) -> Arc<PeerFilter> {
    let deny: Vec<IpNet> = peers.iter().copied().map(host_net).collect();
    let interface = PeerLists::new(&[], &deny);
    Arc::new(PeerFilter { interface, ..PeerFilter::default() })
}

fn allow_list(peers: &[IpAddr]) -> Arc<PeerFilter> {
    let allow: Vec<IpNet> = peers.iter().copied().map(host_net).collect();
    let listener = PeerLists::new(&allow, &[]);
    Arc::new(PeerFilter { listener, ..PeerFilter::default() })
}

/// Creates hosts 1 and 2. Host 2 has a listener for each transport, with this peer list.
fn net_with_listeners(mode: SynCookieMode, peers: &Arc<PeerFilter>) -> Net {
    let mut plan = Plan { udp: Some(UDP), workers: 2, ..Plan::new(2) };
    plan.limits.syn_cookies = mode;
    let mut net = Net::new(&[Plan { udp: Some(UDP), ..Plan::new(1) }, plan]);
    net.hosts[1].peers = Arc::clone(peers);
    net.hosts[1].listen(PORT - 1);
    net.hosts[1].listen_as(PORT, 100, 100, config());
    net.run_until_idle();
    net
}

fn set_peers(net: &mut Net, peers: &Arc<PeerFilter>) {
    for port in [PORT - 1, PORT] {
        let listener = ListenerId(port.into());
        net.hosts[1].command_all(|ticket| Command::SetPeers {
            listener,
            peers: Arc::clone(peers),
            ticket,
        });
    }
    net.run_until_idle();
}

/// Delivers a frame to host 2. Returns the number of frames that the host sent, and the number of frames that it
/// dropped because of a refused peer.
fn deliver_frame(net: &mut Net, frame: TestFrame) -> (u64, u64) {
    let counts = |net: &Net| (net.hosts[1].count("tx_frames"), net.hosts[1].count("peer_refused"));
    let before = counts(net);
    net.hosts[1].deliver(frame);
    net.run_until_idle();
    let after = counts(net);
    (after.0 - before.0, after.1 - before.1)
}

fn take_reports(net: &mut Net) -> Vec<api::FailedHandshake> {
    let mut all = Vec::new();
    while let Some(failed) = net.hosts[1].take_event(|e| match e {
        Event::HandshakeFailed(failed) => Some(api::FailedHandshake::clone(failed)),
        _ => None,
    }) {
        all.push(failed);
    }
    all
}

const REFUSED: HandshakeFailure = HandshakeFailure::new("admission", "peer_refused");

#[test]
fn refused_syn_is_dropped_without_answer_and_state() {
    for address in FAMILIES {
        for mode in [SynCookieMode::Auto, SynCookieMode::Always, SynCookieMode::Never] {
            for peers in [deny_list(&[address(3)]), allow_list(&[address(4)])] {
                let mut net = net_with_listeners(mode, &peers);
                let syn =
                    |from| forged_from_address((address(from), 2000), PORT - 1, Flags::SYN, 7);
                assert_eq!(deliver_frame(&mut net, syn(3)), (0, 1), "{mode:?} {}", address(3));
                let state = ["streams", "half_open", "cookies_sent", "resets_sent"];
                assert_eq!(state.map(|name| net.hosts[1].count(name)), [0; 4]);
                let reports = take_reports(&mut net);
                assert_eq!(reports.len(), 1);
                assert_eq!(reports[0].failure, REFUSED);
                assert_eq!(reports[0].listener, Some(ListenerId((PORT - 1).into())));
                assert_eq!(reports[0].remote, (address(3), 2000).into());
                let list = ["`allow` of the listener", "`deny` of the interface"];
                assert!(list.iter().any(|list| reports[0].detail.starts_with(list)), "{reports:?}");
                // An admitted peer is answered, after a solicitation for its address.
                let (answers, refused) = deliver_frame(&mut net, syn(4));
                assert!(answers > 0 && refused == 0, "{mode:?} {}", address(4));
            }
        }
    }
}

#[test]
fn refused_peer_gets_no_reset_for_segments_without_a_stream() {
    for address in FAMILIES {
        let mut net = net_with_listeners(SynCookieMode::Auto, &deny_list(&[address(3)]));
        let fin = Flags::FIN.with(Flags::ACK);
        for flags in [Flags::ACK, fin, Flags::SYN.with(Flags::ACK), Flags::FIN] {
            let segment = |from, port| forged_from_address((address(from), 2000), port, flags, 7);
            assert_eq!(deliver_frame(&mut net, segment(3, PORT - 1)), (0, 1), "{flags:?}");
            assert_eq!(deliver_frame(&mut net, segment(4, PORT - 1)), (1, 0), "{flags:?}");
            // Peer lists belong to listeners. Other ports answer all peers.
            assert_eq!(deliver_frame(&mut net, segment(3, 80)), (1, 0), "{flags:?}");
        }
    }
}

#[test]
fn syn_cookie_of_a_refused_peer_opens_no_stream() {
    for address in FAMILIES {
        let mut net = net_with_listeners(SynCookieMode::Always, &Arc::default());
        let held: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let recorder = held.clone();
        // Holds back host 1's segments after its SYN.
        net.is_lost = Box::new(move |from, frame| {
            let at = if frame[12..14] == [8, 0] { 14 + 20 } else { 14 + 40 };
            let tcp = frame[if at == 34 { 23 } else { 20 }] == 6;
            let behind = from == 0 && tcp && frame[at + 13] & 2 == 0;
            if behind {
                recorder.borrow_mut().push(frame.to_vec());
            }
            behind
        });
        net.hosts[0].connect(0, (address(2), PORT - 1).into());
        net.run_until_idle();
        assert_eq!(net.hosts[1].count("cookies_sent"), 1);
        let ack = held.borrow()[0].clone();
        set_peers(&mut net, &deny_list(&[address(1)]));
        assert_eq!(deliver_frame(&mut net, TestFrame::new(ack.clone())), (0, 1));
        assert_eq!((net.hosts[1].count("cookies_accepted"), net.hosts[1].count("streams")), (0, 0));
        set_peers(&mut net, &allow_list(&[address(1)]));
        deliver_frame(&mut net, TestFrame::new(ack));
        assert_eq!(net.hosts[1].count("cookies_accepted"), 1);
    }
}

/// An SCTP peer that has no `Host`: the test builds its frames to host 2.
#[derive(Clone, Copy)]
struct RawSctpPeer {
    address: fn(u8) -> IpAddr,
    host: u8,
    udp: bool,
}

impl RawSctpPeer {
    fn frame(self, port: u16, tag: u32, chunk: &[u8]) -> TestFrame {
        let ends = ((self.address)(self.host), (self.address)(2));
        let udp = self.udp.then_some(UdpPorts { local: 5555, remote: UDP });
        sctp_frame_between((self.host, 2), ends, (port, PORT), tag, chunk, udp)
    }

    /// Sends an INIT. Returns the tag of the INIT ACK, and its cookie as a COOKIE ECHO chunk.
    fn cookie(self, net: &mut Net, port: u16) -> (u32, Vec<u8>) {
        let recorded: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let recorder = recorded.clone();
        net.is_lost = Box::new(move |from, frame| {
            if from == 1 {
                recorder.borrow_mut().push(frame.to_vec());
            }
            from == 1
        });
        net.hosts[1].deliver(self.frame(port, 0, &init(port.into())));
        net.run_until_idle();
        net.is_lost = Box::new(|_, _| false);
        let answer = recorded.borrow_mut().pop().expect("an INIT ACK");
        let ip = if (self.address)(2).is_ipv4() { 20 } else { 40 };
        let chunk = 14 + ip + if self.udp { 8 } else { 0 } + 12;
        assert_eq!(answer[chunk], chunk_type::INIT_ACK);
        let tag = u32::from_be_bytes(answer[chunk + 4..chunk + 8].try_into().expect("four bytes"));
        let mut at = chunk + 20;
        loop {
            let len = usize::from(u16::from_be_bytes([answer[at + 2], answer[at + 3]]));
            if answer[at..at + 2] == [0, 7] {
                let mut echo = vec![chunk_type::COOKIE_ECHO, 0, answer[at + 2], answer[at + 3]];
                echo.extend_from_slice(&answer[at + 4..at + len]);
                echo.resize(echo.len().next_multiple_of(4), 0);
                return (tag, echo);
            }
            at += len.next_multiple_of(4);
        }
    }
}

fn raw_sctp_peers() -> Vec<RawSctpPeer> {
    let ways =
        FAMILIES.map(|address| [false, true].map(|udp| RawSctpPeer { address, host: 3, udp }));
    ways.as_flattened().to_vec()
}

#[test]
fn refused_init_is_dropped_without_answer_and_state() {
    for raw in raw_sctp_peers() {
        let refused = (raw.address)(3);
        for peers in [deny_list(&[refused]), allow_list(&[(raw.address)(4)])] {
            let mut net = net_with_listeners(SynCookieMode::Auto, &peers);
            assert_eq!(deliver_frame(&mut net, raw.frame(9, 0, &init(5))), (0, 1), "{refused}");
            // Other packets of the refused peer are not answered either, with ABORT, ERROR or SHUTDOWN COMPLETE.
            let shutdown_ack = [chunk_type::SHUTDOWN_ACK, 0, 0, 4];
            assert_eq!(
                deliver_frame(&mut net, raw.frame(9, 5, &shutdown_ack)),
                (0, 1),
                "{refused}"
            );
            let data = [0, 3, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16, 1, 2, 3, 4];
            assert_eq!(deliver_frame(&mut net, raw.frame(9, 5, &data)), (0, 1), "{refused}");
            assert_eq!(net.hosts[1].count("sctp_cookies_sent"), 0);
            let reports = take_reports(&mut net);
            assert_eq!(reports.len(), 1);
            assert_eq!((reports[0].failure, reports[0].transport), (REFUSED, Transport::Sctp));
            assert_eq!(reports[0].listener, Some(ListenerId(PORT.into())));
            let other = RawSctpPeer { host: 4, ..raw };
            assert_eq!(deliver_frame(&mut net, other.frame(9, 0, &init(5))), (1, 0), "{refused}");
        }
    }
}

#[test]
fn cookie_echo_of_a_refused_peer_opens_no_association() {
    for raw in raw_sctp_peers() {
        let mut net = net_with_listeners(SynCookieMode::Auto, &Arc::default());
        let (tag, echo) = raw.cookie(&mut net, 9);
        set_peers(&mut net, &deny_list(&[(raw.address)(3)]));
        assert_eq!(deliver_frame(&mut net, raw.frame(9, tag, &echo)), (0, 1));
        assert_eq!(net.hosts[1].count("associations"), 0);
        set_peers(&mut net, &Arc::default());
        assert_eq!(deliver_frame(&mut net, raw.frame(9, tag, &echo)).1, 0);
        assert_eq!(net.hosts[1].count("associations"), 1);
    }
}

#[test]
fn association_drops_packets_from_refused_addresses() {
    let mut net = net_with_listeners(SynCookieMode::Auto, &deny_list(&[v4(3)]));
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    let port = list_streams(&mut net, 0)[0].local.port();
    let associations = net.hosts[1].cores.iter().flat_map(|core| core.associations.iter());
    let tags: Vec<_> = associations.map(|(_, a)| a.endpoint().association().local_tag()).collect();
    let heartbeat = [chunk_type::HEARTBEAT, 0, 0, 8, 0, 1, 0, 4];
    let from = |host| sctp_frame_in(host, 2, (port, PORT), tags[0].0, &heartbeat, None);
    assert_eq!(deliver_frame(&mut net, from(3)), (0, 1));
    assert_eq!(deliver_frame(&mut net, from(4)), (1, 0));
    write(&mut net, here, 5000);
}

#[test]
fn established_streams_stay_when_their_peer_is_denied() {
    for over_sctp in [false, true] {
        for address in FAMILIES {
            let mut net = net_with_listeners(SynCookieMode::Auto, &Arc::default());
            let shared = api::EndpointConfig::from(config());
            let (endpoint, port) = match over_sctp {
                true => (shared.clone(), PORT),
                false => (tcp_lite::endpoint::EndpointConfig::default().into(), PORT - 1),
            };
            let remote = (address(2), port).into();
            let (here, _) = net.open_as(0, 0, 1, remote, endpoint.clone());
            set_peers(&mut net, &deny_list(&[v4(1), v6(1)]));
            write(&mut net, here, 50_000);
            // A new stream is refused, even over the same association.
            let ticket = net.hosts[0].connect_as(0, remote, endpoint.clone());
            if over_sctp {
                let turned_away = CloseReason::Lower(SctpReason::TurnedAway);
                assert_eq!(
                    wait_connect_failure(&mut net, ticket),
                    ConnectError::Closed(turned_away.into())
                );
            } else {
                net.advance(Duration::from_millis(100));
                assert_eq!(net.hosts[1].count("peer_refused"), 1);
                assert!(matches!(wait_connect_failure(&mut net, ticket), ConnectError::Timeout(_)));
            }
            assert!(take_reports(&mut net).iter().all(|report| report.failure == REFUSED));
            let ticket = net.hosts[0].send(here, &[5; 2000]);
            net.wait_sent(0, ticket);
            set_peers(&mut net, &allow_list(&[address(1)]));
            net.open_as(0, 0, 1, remote, endpoint);
        }
    }
}

#[test]
fn denied_peer_cannot_restart_its_association() {
    let mut net = net_with_listeners(SynCookieMode::Auto, &Arc::default());
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    let port = list_streams(&mut net, 0)[0].local.port();
    let restart = || sctp_frame_in(1, 2, (port, PORT), 0, &init(5), None);
    net.is_lost = Box::new(|from, _| from == 1);
    assert_eq!(deliver_frame(&mut net, restart()), (1, 0), "an INIT ACK");
    set_peers(&mut net, &deny_list(&[v4(1)]));
    assert_eq!(deliver_frame(&mut net, restart()).0, 0);
    assert_eq!(take_reports(&mut net).pop().map(|report| report.failure), Some(REFUSED));
    net.is_lost = Box::new(|_, _| false);
    write(&mut net, here, 5000);
}

#[test]
fn older_cookie_of_a_denied_peer_restarts_no_association() {
    for denied in [true, false] {
        let mut net = net_with_listeners(SynCookieMode::Auto, &Arc::default());
        let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
        let port = list_streams(&mut net, 0)[0].local.port();
        let (tag, echo) = RawSctpPeer { address: v4, host: 1, udp: false }.cookie(&mut net, port);
        if denied {
            set_peers(&mut net, &deny_list(&[v4(1)]));
        }
        net.is_lost = Box::new(|from, _| from == 1);
        let restart = sctp_frame_in(1, 2, (port, PORT), tag, &echo, None);
        assert_eq!(deliver_frame(&mut net, restart).1, u64::from(denied));
        net.is_lost = Box::new(|_, _| false);
        let ended = net.hosts[1].take_event(|e| matches!(e, Event::Closed { .. }).then_some(()));
        assert_eq!(ended.is_none(), denied);
        if denied {
            write(&mut net, here, 5000);
        }
    }
}

#[test]
fn denying_a_peer_aborts_its_handshakes() {
    let mut net = net_with_listeners(SynCookieMode::Auto, &Arc::default());
    for from in [3, 4] {
        net.hosts[1].deliver(forged_segment((from, 2000), PORT - 1, Flags::SYN));
    }
    net.run_until_idle();
    let raw = RawSctpPeer { address: v4, host: 1, udp: false };
    let (tag, echo) = raw.cookie(&mut net, 9);
    // SCTP packets to host 1 are lost, because host 1 has no state of the association and would abort it.
    net.is_lost = Box::new(|from, frame| from == 1 && frame[12..14] == [8, 0] && frame[23] == 132);
    net.hosts[1].deliver(raw.frame(9, tag, &echo));
    net.run_until_idle();
    assert_eq!((net.hosts[1].count("half_open"), net.hosts[1].count("associations")), (3, 1));
    set_peers(&mut net, &deny_list(&[v4(1), v4(3)]));
    assert_eq!(net.hosts[1].count("associations"), 0);
    assert_eq!(net.hosts[1].count("half_open"), 1, "host 4's");
    let reports = take_reports(&mut net);
    assert!(!reports.is_empty() && reports.iter().all(|r| r.failure == REFUSED), "{reports:?}");
}

#[test]
fn locally_opened_streams_reach_denied_peers() {
    for address in FAMILIES {
        for udp in [None, Some(UDP)] {
            let mut net = net_with_listeners(SynCookieMode::Auto, &deny_list(&[v4(1), v6(1)]));
            net.hosts[0].listen(PORT + 1);
            net.hosts[0].listen_as(PORT + 2, 100, 100, config());
            net.run_until_idle();
            net.open(1, 0, 0, (address(1), PORT + 1).into());
            net.open_as(1, 1, 0, (address(1), PORT + 2).into(), SctpConfig { udp, ..config() });
            assert_eq!(net.hosts[1].count("peer_refused"), 0);
        }
    }
}

#[test]
fn set_peers_of_unknown_listener_fails() {
    let mut net = net_with_listeners(SynCookieMode::Auto, &Arc::default());
    let listener = ListenerId(1);
    let peers = Arc::default();
    let ticket = net.hosts[1].command(0, |ticket| Command::SetPeers { listener, peers, ticket });
    assert_eq!(net.wait_done(1, ticket), Err(CommandError::NoListener));
}

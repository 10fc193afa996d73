//! Attacks on associations, by an off-path attacker who knows addresses and ports or by a hostile peer. No attack has a
//! lasting effect.
//!
//! | attack | attacker | test |
//! |---|---|---|
//! | an INIT whose refusal exceeds the packet size | off-path | `blind_init_does_not_silence_an_association` |
//! | an INIT ACK whose refusal exceeds the packet size | a server | `unacceptable_init_ack_leaves_no_association` |
//! | an INIT from another UDP port | off-path, knows ports | `a_blind_packet_does_not_move_the_udp_port` |
//! | INITs with another host's address | any host | `init_ack_reflection_is_rate_limited_per_victim` |
//! | associations without streams | a peer | `associations_without_streams_count_against_their_peer` |
//! | incomplete messages | many peers | `held_fragments_of_all_associations_stay_within_budget` |

use std::sync::Arc;
use std::time::Duration;

use sctp_lite::endpoint::{CloseReason, EndpointConfig, SctpReason};
use sctp_lite::sctp;
use wire::sctp::chunk_type;

use super::paths::divert;
use super::sctp::{
    PORT, config, list_streams, net, pair, wait_closed, wait_connect_failure, write,
};
use super::sctp_frames::{init, sctp_frame_in};
use super::test_host::*;
use crate::api::{self, Command, ConnectError, Event, Limits, SctpConfig};
use crate::net::sctp_path::UdpPorts;

/// Builds an INIT or INIT ACK with a Host Name parameter of `len` bytes.
fn with_host_name(kind: u8, tag: u32, len: u16) -> Vec<u8> {
    let mut chunk = init(tag);
    chunk[0] = kind;
    chunk.extend_from_slice(&[0, 11]);
    chunk.extend_from_slice(&len.to_be_bytes());
    chunk.resize(28 + usize::from(len), b'h');
    let whole = chunk.len() as u16;
    chunk[2..4].copy_from_slice(&whole.to_be_bytes());
    chunk.resize(usize::from(whole.next_multiple_of(4)), 0);
    chunk
}

/// Returns the type of the first chunk of an untagged IPv4 frame with SCTP.
fn first_chunk(frame: &[u8]) -> Option<u8> {
    (frame[12..14] == [8, 0] && frame[23] == 132).then(|| frame[14 + 20 + 12])
}

/// Returns a configuration with which an accepted association stays open for `linger` after its last stream.
fn server_config(linger: Duration) -> SctpConfig {
    let endpoint = EndpointConfig { linger, ..EndpointConfig::default() };
    SctpConfig { endpoint: Arc::new(endpoint), ..config() }
}

/// Drains a host, and waits until the drain is complete.
fn drain(net: &mut Net, host: usize) {
    net.hosts[host].command(0, |_| Command::Drain);
    net.run_until("the end of the drain", |net| {
        net.hosts[host].take_event(|e| matches!(e, Event::Drained).then_some(()))
    });
    assert_eq!(net.hosts[host].count("associations"), 0);
}

// RFC 9260 §5.2.2, §3.3.2.1.4: any host that knows addresses and ports can send an INIT with a Host Name parameter.
// Such an INIT is refused. The association continues and can still be shut down.
#[test]
fn blind_init_does_not_silence_an_association() {
    for len in [8, 400, 484, 490, 492, 600, 1400] {
        let mut net = pair();
        let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
        let local = list_streams(&mut net, 0)[0].local.port();
        for tag in 1..4 {
            let chunk = with_host_name(chunk_type::INIT, tag, len);
            net.hosts[1].deliver(sctp_frame_in(1, 2, (local, PORT), 0, &chunk, None));
            net.run_until_idle();
        }
        assert_eq!(net.hosts[1].count("bad_init"), 3);
        write(&mut net, here, 50_000);
        net.hosts[1].command(0, |_| Command::Drain);
        assert_eq!(wait_closed(&mut net, 0), CloseReason::PeerShutdown, "{len}");
        net.advance(Duration::from_secs(2));
        for host in &net.hosts {
            assert_eq!((host.count("streams"), host.count("associations")), (0, 0), "{len}");
        }
    }
}

// RFC 9260 §5.1: after an unacceptable INIT ACK of any length, an ABORT is sent and the connect fails. No state
// remains, and a drain completes.
#[test]
fn unacceptable_init_ack_leaves_no_association() {
    for len in [8, 484, 492, 600, 1400] {
        let mut net = pair();
        let taken = divert(&mut net, 0);
        let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
        net.run_until_idle();
        let packet = taken.borrow().last().expect("an INIT").clone();
        assert_eq!(first_chunk(&packet), Some(chunk_type::INIT));
        let port = u16::from_be_bytes([packet[34], packet[35]]);
        let tag = u32::from_be_bytes(packet[50..54].try_into().unwrap());
        let chunk = with_host_name(chunk_type::INIT_ACK, 7, len);
        net.hosts[0].deliver(sctp_frame_in(2, 1, (PORT, port), tag, &chunk, None));
        let fault = CloseReason::Lower(SctpReason::SctpFault(sctp::Fault::InitAck));
        assert_eq!(wait_connect_failure(&mut net, ticket), ConnectError::Closed(fault.into()));
        net.run_until_idle();
        let answer = taken.borrow().last().expect("an ABORT").clone();
        assert_eq!(first_chunk(&answer), Some(chunk_type::ABORT), "{len}");
        assert_eq!(net.hosts[0].count("associations"), 0);
        drain(&mut net, 0);
    }
}

/// Returns the UDP port to which packets of host 1's association are sent.
fn udp_port_of_peer(net: &mut Net) -> u16 {
    let info = net.hosts[1].cores[0].associations.info(0, net.now);
    info.and_then(|info| info.udp).expect("in UDP").1
}

/// Opens a stream over SCTP in UDP between two hosts. Returns the stream's id and the SCTP port of its association at
/// host 0.
fn open_in_udp() -> (Net, ddp::StreamId, u16) {
    let udp = |n| Plan { udp: Some(9899), ..Plan::new(n) };
    let mut net = net(&[udp(1), udp(2)]);
    let encapsulated = SctpConfig { udp: Some(9899), ..config() };
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), encapsulated);
    let local = list_streams(&mut net, 0)[0].local.port();
    (net, here, local)
}

// RFC 6951 §5.4: the peer's UDP port is updated only from packets whose verification tag was checked.
#[test]
fn a_blind_packet_does_not_move_the_udp_port() {
    let udp = Some(UdpPorts { local: 6666, remote: 9899 });
    let blind: [(u32, Vec<u8>); 6] = [
        (0, init(5)),
        (0, with_host_name(chunk_type::INIT, 5, 600)),
        (77, vec![chunk_type::HEARTBEAT, 0, 0, 8, 0, 1, 0, 4]),
        (77, vec![chunk_type::ABORT, 0, 0, 4]),
        (77, vec![chunk_type::COOKIE_ACK, 0, 0, 4]),
        (77, [&[chunk_type::COOKIE_ECHO, 0, 0, 68][..], &[1; 64]].concat()),
    ];
    for (tag, chunk) in blind {
        let (mut net, here, local) = open_in_udp();
        let before = net.hosts[1].count("tx_frames");
        net.hosts[1].deliver(sctp_frame_in(1, 2, (local, PORT), tag, &chunk, udp));
        net.hosts[1].cores[0].turn(net.now);
        let answers = net.hosts[1].take_sent();
        assert_eq!(udp_port_of_peer(&mut net), 9899, "{chunk:?}");
        // Only an INIT is answered, at the sender's UDP port.
        let is_init = chunk[0] == chunk_type::INIT;
        assert_eq!(answers.len(), usize::from(is_init), "{chunk:?}");
        assert_eq!(net.hosts[1].count("tx_frames") - before, u64::from(is_init));
        for answer in answers {
            assert_eq!(answer.0[36..38], 6666u16.to_be_bytes());
            let kind = answer.0[14 + 20 + 8 + 12];
            assert!(matches!(kind, chunk_type::INIT_ACK | chunk_type::ABORT), "{kind}");
        }
        write(&mut net, here, 50_000);
    }
}

// RFC 6951 §5.4: after its NAT mapping has expired, a peer sends from another UDP port. Once a packet from the new port
// is verified, all further packets to the peer go to that port.
#[test]
fn the_peers_own_packet_moves_the_udp_port() {
    let (mut net, here, _) = open_in_udp();
    net.hosts[0].send(here, &[1; 100]);
    net.hosts[0].cores[0].turn(net.now);
    let sent = net.hosts[0].take_sent();
    assert!(!sent.is_empty());
    for mut frame in sent {
        frame.0[34..36].copy_from_slice(&7777u16.to_be_bytes());
        frame.0[40..42].fill(0); // no UDP checksum
        net.hosts[1].deliver(frame.clone());
        net.run_until_idle();
        assert_eq!(udp_port_of_peer(&mut net), 7777);
    }
}

/// Opens a stream from host 0 over a separate association, and closes the stream at host 0.
fn open_and_close(net: &mut Net) {
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
    wait_closed(net, 0);
    wait_closed(net, 1);
    net.run_until_idle();
}

/// Creates two hosts. The second listens within these limits and never receives packets that would end an association.
fn net_without_shutdown(limits: Limits, linger: Duration) -> Net {
    let mut net = Net::new(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    net.hosts[1].listen_as(PORT, 200, 200, server_config(linger));
    net.run_until_idle();
    net.is_lost = Box::new(|from, frame| {
        let ends = [
            chunk_type::ABORT,
            chunk_type::SHUTDOWN,
            chunk_type::SHUTDOWN_ACK,
            chunk_type::SHUTDOWN_COMPLETE,
        ];
        from == 0 && first_chunk(frame).is_some_and(|kind| ends.contains(&kind))
    });
    net
}

// A peer's streams and its associations without a stream share the limit of streams. The oldest association in shutdown
// is evicted for a new association.
#[test]
fn associations_without_streams_count_against_their_peer() {
    let mut net =
        net_without_shutdown(Limits { streams_per_peer: 2, ..Limits::default() }, Duration::ZERO);
    for n in 0..100 {
        open_and_close(&mut net);
        assert!(net.hosts[1].count("associations") <= 2, "{n}");
    }
    assert_eq!(net.hosts[1].count("associations_evicted"), 98);
    assert_eq!(net.hosts[1].count("peer_streams"), 0);
    // Streams in use are never evicted.
    for _ in 0..2 {
        net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    }
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    assert!(matches!(wait_connect_failure(&mut net, ticket), ConnectError::Timeout(_)));
    assert!(net.hosts[1].count("peer_streams") > 0);
    assert_eq!(net.hosts[1].count("associations"), 2);
    // Without further packets all associations end, and the counts return to zero.
    net.hosts[0].command(0, |_| Command::Stop);
    net.advance(Duration::from_secs(1500));
    assert_eq!((net.hosts[1].count("associations"), net.hosts[1].count("half_open")), (0, 0));
}

// An association that lingers for another stream is not evicted: a new association is refused and counted. A new stream
// over the lingering association is accepted.
#[test]
fn lingering_associations_count_and_accept_streams() {
    let mut net = net_without_shutdown(
        Limits { streams_per_peer: 1, ..Limits::default() },
        Duration::from_secs(60),
    );
    let shared = api::EndpointConfig::from(server_config(Duration::from_secs(60)));
    for _ in 0..3 {
        let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), shared.clone());
        net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
        wait_closed(&mut net, 0);
        wait_closed(&mut net, 1);
        net.run_until_idle();
        assert_eq!(net.hosts[1].count("associations"), 1);
    }
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    assert!(matches!(wait_connect_failure(&mut net, ticket), ConnectError::Timeout(_)));
    assert!(net.hosts[1].count("peer_streams") > 0);
    assert_eq!((net.hosts[1].count("associations"), net.hosts[1].count("half_open")), (1, 0));
    assert_eq!(net.hosts[1].count("associations_evicted"), 0);
    // The limit includes streams over TCP.
    net.hosts[1].listen(9);
    let ticket = net.hosts[0].connect(0, (v4(2), 9).into());
    assert!(matches!(wait_connect_failure(&mut net, ticket), ConnectError::Timeout(_)));
}

// An association that never had a stream leaves the backlog when it shuts down. The association counts against its
// peer's limit until it is freed.
#[test]
fn associations_without_any_session_leave_the_backlog() {
    let limits = Limits { streams_per_peer: 2, half_open_per_peer: 1, ..Limits::default() };
    let mut net = net_without_shutdown(limits, Duration::ZERO);
    let mut ends = std::mem::replace(&mut net.is_lost, Box::new(|_, _| false));
    // The DATA chunk with the first session's Initiate is lost, too.
    net.is_lost = Box::new(move |from, frame| {
        ends(from, frame) || from == 0 && first_chunk(frame) == Some(chunk_type::DATA)
    });
    for n in 0..5 {
        let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
        net.advance(Duration::from_secs(5));
        assert_eq!(net.hosts[1].count("half_open"), 1, "{n}");
        assert!(wait_connect_failure(&mut net, ticket) != ConnectError::TooManyStreams);
        net.advance(Duration::from_secs(15));
        assert_eq!(net.hosts[1].count("half_open"), 0, "{n}");
        assert_eq!(net.hosts[1].count("associations"), 2.min(n + 1));
    }
}

// If a worker is at its limit of associations, an association in shutdown is evicted for a new association, accepted or
// locally opened.
#[test]
fn associations_in_shutdown_are_evicted_for_new_ones() {
    let mut net = net_without_shutdown(Limits { streams: 3, ..Limits::default() }, Duration::ZERO);
    for _ in 0..10 {
        open_and_close(&mut net);
        assert!(net.hosts[1].count("associations") <= 3);
    }
    assert_eq!(net.hosts[1].count("associations_evicted"), 7);
    // A new locally opened association also evicts an association in shutdown.
    net.hosts[0].listen_as(PORT, 200, 200, config());
    net.run_until_idle();
    for _ in 0..3 {
        net.open_as(1, 0, 0, (v4(1), PORT).into(), config());
    }
    assert_eq!(net.hosts[1].count("associations"), 3);
    let ticket = net.hosts[1].connect_as(0, (v4(1), PORT).into(), config());
    let refused = net.run_until("a refusal", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::ConnectFailed { ticket: t, reason } if *t == ticket => Some(reason.clone()),
            _ => None,
        })
    });
    assert_eq!(refused, ConnectError::TooManyStreams);
}

// A locally opened association that has lost its last stream is evicted for a new association.
#[test]
fn idle_local_associations_are_evicted_for_new_ones() {
    let limits = Limits { streams: 2, ..Limits::default() };
    let mut net = Net::new(&[Plan { limits, ..Plan::new(1) }, Plan::new(2)]);
    // Both ends keep an association for an hour after its last stream.
    let hour = Duration::from_secs(3600);
    net.hosts[1].listen_as(PORT, 200, 200, server_config(hour));
    net.run_until_idle();
    for n in 0..6 {
        let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), server_config(hour));
        net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
        wait_closed(&mut net, 0);
        wait_closed(&mut net, 1);
        net.run_until_idle();
        assert_eq!(net.hosts[0].count("associations"), 2.min(n + 1));
        net.now += Duration::from_secs(1);
    }
    assert_eq!(net.hosts[0].count("associations_evicted"), 4);
    // The evicted associations have also ended at the peer.
    assert_eq!(net.hosts[1].count("associations"), 2);
}

/// Runs the first host alone, without room in its transmit ring, until `done` returns true. Panics after `time`.
fn run_without_room(net: &mut Net, time: Duration, mut done: impl FnMut(&mut Host) -> bool) {
    net.hosts[0].cores[0].port_mut(0).room = 0;
    let end = net.now + time;
    while net.now < end {
        net.now += Duration::from_millis(100);
        let host = &mut net.hosts[0];
        host.cores[0].turn(net.now);
        while let Some(event) = host.handles[0].poll() {
            host.events.push((0, event));
        }
        if done(&mut net.hosts[0]) {
            return;
        }
    }
    panic!("not done after {time:?}");
}

// Associations are freed even while the transmit ring is full: last packets are dropped after a time limit, and a drain
// completes.
#[test]
fn full_transmit_ring_does_not_retain_associations() {
    let mut net = pair();
    net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    net.run_until_idle();
    net.hosts[0].command(0, |_| Command::Drain);
    run_without_room(&mut net, Duration::from_secs(330), |host| {
        host.take_event(|e| matches!(e, Event::Drained).then_some(())).is_some()
    });
    assert_eq!((net.hosts[0].count("streams"), net.hosts[0].count("associations")), (0, 0));
    // An aborted association is freed when its last packet has waited for the maximum time.
    let mut net = pair();
    net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| matches!(e, Event::Incoming { .. }).then_some(()))
    });
    net.hosts[0].cores[0].abort_associations();
    run_without_room(&mut net, Duration::from_secs(6), |host| host.count("associations") == 0);
}

// Associations are also freed if the peer's link-layer address cannot be resolved.
#[test]
fn unresolved_next_hop_does_not_retain_associations() {
    let mut net = pair();
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    net.run_until_idle();
    net.is_lost = Box::new(|_, _| true);
    net.hosts[0].send(here, &[1; 1000]);
    net.advance(Duration::from_secs(20));
    net.hosts[0].command(0, |_| Command::Drain);
    net.run_until("the end of the drain", |net| {
        net.hosts[0].take_event(|e| matches!(e, Event::Drained).then_some(()))
    });
    // The association ends because of the peer's silence, before a time-out of its shutdown.
    assert!(net.now < START + Duration::from_secs(400), "{:?}", net.now);
    // An aborted association with an unresolved next hop is freed when its last packet has waited for the maximum time.
    let mut net = pair();
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    net.run_until_idle();
    net.is_lost = Box::new(|_, _| true);
    net.hosts[0].send(here, &[1; 1000]);
    net.run_until("a failure of the neighbour", |net| {
        (net.hosts[0].count("neighbour_failures") > 0).then_some(())
    });
    net.hosts[0].cores[0].abort_associations();
    net.advance(Duration::from_secs(10));
    assert_eq!((net.hosts[0].count("streams"), net.hosts[0].count("associations")), (0, 0));
}

// If the transmit ring stays full, the last segment of a TCP connection is also dropped after a time limit.
#[test]
fn full_transmit_ring_drops_the_last_reset_after_timeout() {
    let mut net = pair();
    net.hosts[1].listen(9);
    net.run_until_idle();
    let (here, _) = net.open(0, 0, 1, (v4(2), 9).into());
    // Waits until the probes for the host's own addresses are sent. A later probe would be counted as a lost answer.
    net.advance(Duration::from_secs(10));
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: true });
    run_without_room(&mut net, Duration::from_secs(7), |host| host.count("streams") == 0);
    assert_eq!(net.hosts[0].count("answers_lost"), 1);
}

// INITs with a victim's source address: the answers are rate-limited, whether the victim has an association or not. An
// INIT ACK is at most three times as long as an INIT. Peers at other addresses are served, and so is the victim a
// little later.
#[test]
fn init_ack_reflection_is_rate_limited_per_victim() {
    let limits = Limits { inits_per_second: 3200, ..Limits::default() };
    let mut net = net(&[Plan::new(1), Plan { limits, ..Plan::new(2) }, Plan::new(3)]);
    let seen = SentPackets::default();
    let recorder = seen.clone();
    net.is_lost = Box::new(move |from, frame| {
        let to_victim = from == 1 && frame[12..14] == [8, 0] && frame[23] == 132 && frame[33] == 1;
        if to_victim {
            recorder.borrow_mut().push(frame.to_vec());
        }
        to_victim
    });
    let association = RawPeer::open(&mut net, &seen, 1, 4000);
    seen.borrow_mut().clear();
    let mut sent = 0;
    for n in 0..1000 {
        for port in [5000 + n, association.port] {
            let frame = sctp_frame_in(1, 2, (port, PORT), 0, &init(u32::from(n) + 9), None);
            sent = frame.0.len();
            net.hosts[1].deliver(frame);
        }
        net.run_until_idle();
    }
    // The share of one peer is 1/32 of the limit. A burst may contain the share of a tenth of a second.
    let answers = seen.borrow().len();
    assert!((5..=12).contains(&answers), "{answers}");
    assert!(net.hosts[1].count("answers_limited") > 1900);
    // An INIT without an association is counted as rate-limited. An INIT to the association is counted as one of its
    // packets.
    assert!(net.hosts[1].count("rate_limited") > 980, "{}", net.hosts[1].count("rate_limited"));
    assert_eq!(net.hosts[1].count("no_room"), 0);
    assert!(seen.borrow().iter().all(|frame| frame.len() <= 3 * sent));
    // Other peers are served, and the victim's own retransmitted INIT is answered.
    net.open_as(2, 0, 1, (v4(2), PORT).into(), config());
    net.is_lost = Box::new(|_, _| false);
    net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
}

/// An SCTP peer's association that the test drives frame by frame.
struct RawPeer {
    host: u8,
    port: u16,
    /// Verification tag of packets to host 2.
    tag: u32,
}

/// Packets sent by host 2, all of them lost.
type SentPackets = std::rc::Rc<std::cell::RefCell<Vec<Vec<u8>>>>;

impl RawPeer {
    fn open(net: &mut Net, seen: &SentPackets, host: u8, port: u16) -> RawPeer {
        let own = u32::from(port);
        net.hosts[1].deliver(sctp_frame_in(host, 2, (port, PORT), 0, &init(own), None));
        net.run_until_idle();
        let answer = seen.borrow_mut().pop().expect("an INIT ACK");
        assert_eq!(answer[46], chunk_type::INIT_ACK);
        let tag = u32::from_be_bytes(answer[50..54].try_into().unwrap());
        let mut at = 66;
        let cookie = loop {
            let len = usize::from(u16::from_be_bytes([answer[at + 2], answer[at + 3]]));
            if answer[at..at + 2] == [0, 7] {
                break &answer[at + 4..at + len];
            }
            at += len.next_multiple_of(4);
        };
        let mut echo = vec![chunk_type::COOKIE_ECHO, 0];
        echo.extend_from_slice(&(cookie.len() as u16 + 4).to_be_bytes());
        echo.extend_from_slice(cookie);
        echo.resize(echo.len().next_multiple_of(4), 0);
        let raw = RawPeer { host, port, tag };
        raw.deliver_chunk(net, &echo);
        raw
    }

    fn deliver_chunk(&self, net: &mut Net, chunk: &[u8]) {
        let ports = (self.port, PORT);
        net.hosts[1].deliver(sctp_frame_in(self.host, 2, ports, self.tag, chunk, None));
        net.run_until_idle();
    }

    /// Sends a fragment of an unordered message, with 1000 bytes. `begin_end` has the chunk's flags B (2) and E (1).
    fn deliver_fragment(&self, net: &mut Net, tsn: u32, begin_end: u8) {
        let mut chunk = vec![0, 4 | begin_end, (1016u16 >> 8) as u8, 1016u16 as u8];
        chunk.extend_from_slice(&tsn.to_be_bytes());
        chunk.resize(1016, 0);
        self.deliver_chunk(net, &chunk);
    }

    /// Returns the last cumulative TSN ack that was sent to the peer.
    fn cumulative_tsn_ack(&self, seen: &SentPackets) -> Option<u32> {
        let seen = seen.borrow();
        let to = |frame: &&Vec<u8>| {
            frame[36..38] == self.port.to_be_bytes() && frame[46] == chunk_type::SACK
        };
        let sack = seen.iter().rev().find(to)?;
        Some(u32::from_be_bytes(sack[50..54].try_into().unwrap()))
    }
}

// RFC 5042 §6.4.3, RFC 9260 §6.2: fragments of all associations together stay within `hold_bytes` of the worker, in
// order or out of order. Refused fragments are retransmitted, and their message completes once other fragments are
// freed.
#[test]
fn held_fragments_of_all_associations_stay_within_budget() {
    const BUDGET: u64 = 512 << 10;
    let limits = Limits { hold_bytes: BUDGET as usize, ..Limits::default() };
    let plan = Plan { limits, ..Plan::new(2) };
    let mut net = net(&[Plan::new(1), plan, Plan::new(3), Plan::new(4)]);
    let seen = SentPackets::default();
    let recorder = seen.clone();
    net.is_lost = Box::new(move |from, frame| {
        let sctp = from == 1 && frame[12..14] == [8, 0] && frame[23] == 132;
        if sctp {
            recorder.borrow_mut().push(frame.to_vec());
        }
        sctp
    });
    let open =
        |net: &mut Net, n: u16| RawPeer::open(net, &seen, [1, 3, 4][usize::from(n % 3)], 5000 + n);
    let peers: Vec<RawPeer> = (0..36).map(|n| open(&mut net, n)).collect();
    let last = peers.last().unwrap();
    // Each peer begins a message, and sends fragments beyond a gap: 1.4 MB in all.
    for n in 0..20 {
        for peer in &peers {
            peer.deliver_fragment(&mut net, 1 + n, if n == 0 { 2 } else { 0 });
            peer.deliver_fragment(&mut net, 101 + n, 0);
            assert!(net.hosts[1].count("held_bytes") <= BUDGET);
        }
    }
    assert!(net.hosts[1].count("held_bytes_max") > BUDGET / 2);
    assert!(net.hosts[1].count("hold_budget") > 500);
    assert_eq!(net.hosts[1].count("associations"), 36, "slowed, not ended");
    let so_far = last.cumulative_tsn_ack(&seen).expect("a SACK");
    assert!(so_far < 20, "{so_far}");
    // The other associations end with an ABORT. The last peer retransmits its unacknowledged fragments, and its message
    // completes.
    for peer in &peers[..35] {
        peer.deliver_chunk(&mut net, &[chunk_type::ABORT, 0, 0, 4]);
    }
    let of_one = net.hosts[1].count("held_bytes");
    assert!(of_one <= 40 * 1064, "{of_one}");
    for n in so_far..20 {
        last.deliver_fragment(&mut net, 1 + n, if n == 19 { 1 } else { 0 });
    }
    net.advance(Duration::from_millis(300));
    assert_eq!(last.cumulative_tsn_ack(&seen), Some(20));
    last.deliver_chunk(&mut net, &[chunk_type::ABORT, 0, 0, 4]);
    assert_eq!(net.hosts[1].count("held_bytes"), 0);
}

// RFC 9260 §3.3.10.4: a fragmented message that exceeds the whole budget of a worker ends its association.
#[test]
fn message_larger_than_hold_budget_aborts_the_association() {
    let limits = Limits { hold_bytes: 64 << 10, ..Limits::default() };
    let mut net = net(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    let seen = SentPackets::default();
    let recorder = seen.clone();
    net.is_lost = Box::new(move |from, frame| {
        let sctp = from == 1 && frame[12..14] == [8, 0] && frame[23] == 132;
        if sctp {
            recorder.borrow_mut().push(frame.to_vec());
        }
        sctp
    });
    let peer = RawPeer::open(&mut net, &seen, 1, 5000);
    for n in 0..40 {
        peer.deliver_fragment(&mut net, 1 + n, if n == 0 { 2 } else { 0 });
    }
    let aborts = seen.borrow().iter().filter(|frame| frame[46] == chunk_type::ABORT).count();
    assert!(aborts >= 1);
    net.run_until_idle();
    assert_eq!((net.hosts[1].count("associations"), net.hosts[1].count("held_bytes")), (0, 0));
}

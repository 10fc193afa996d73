//! What somebody who knows addresses and ports, or a hostile peer, can do to associations: nothing that lasts.
//!
//! | attack | who | test |
//! |---|---|---|
//! | an INIT whose refusal is too long to be sent | off the path, knows the ports | `a_blind_init_mutes_no_association` |
//! | an INIT ACK of the same kind | a server | `a_server_cannot_keep_an_association` |
//! | an INIT from another UDP port | off the path, knows the ports | `a_blind_packet_does_not_move_the_udp_port` |

use std::time::Duration;

use sctp_lite::endpoint::CloseReason;
use sctp_lite::sctp;
use wire::sctp::chunk_type;

use super::paths::divert;
use super::sctp::{PORT, closed, config, failure, frame, init, list, net, pair, write};
use super::wire_pair::*;
use crate::api::{Command, ConnectError, Event, SctpConfig};
use crate::net::carrier::UdpPorts;

/// INIT or INIT ACK with a Host Name parameter of this many bytes in all.
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

/// The kind of the first chunk of a frame with SCTP in IPv4 without a tag.
fn first_chunk(frame: &[u8]) -> Option<u8> {
    (frame[12..14] == [8, 0] && frame[23] == 132).then(|| frame[14 + 20 + 12])
}

/// Drains a host, and waits for the end of it.
fn drain(net: &mut Net, host: usize) {
    net.hosts[host].tell(0, |_| Command::Drain);
    net.until("the end of the drain", |net| {
        net.hosts[host].take(|e| matches!(e, Event::Drained).then_some(()))
    });
    assert_eq!(net.hosts[host].count("associations"), 0);
}

// RFC 9260 §5.2.2, §3.3.2.1.4: one packet that anybody can send who knows addresses and ports. Its refusal is sent,
// and the association goes on, and ends.
#[test]
fn a_blind_init_mutes_no_association() {
    for len in [8, 400, 484, 490, 492, 600, 1400] {
        let mut net = pair();
        let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
        let local = list(&mut net, 0)[0].local.port();
        for tag in 1..4 {
            let chunk = with_host_name(chunk_type::INIT, tag, len);
            net.hosts[1].arrive(frame(1, 2, (local, PORT), 0, &chunk, None));
            net.settle();
        }
        assert_eq!(net.hosts[1].count("bad_init"), 3);
        write(&mut net, here, 50_000);
        net.hosts[1].tell(0, |_| Command::Drain);
        assert_eq!(closed(&mut net, 0), CloseReason::PeerShutdown, "{len}");
        net.pass(Duration::from_secs(2));
        for host in &net.hosts {
            assert_eq!((host.count("streams"), host.count("associations")), (0, 0), "{len}");
        }
    }
}

// RFC 9260 §5.1: an INIT ACK that cannot be accepted, whatever its refusal would repeat: the open fails, nothing is
// left of it, and a drain ends.
#[test]
fn a_server_cannot_keep_an_association() {
    for len in [8, 484, 492, 600, 1400] {
        let mut net = pair();
        let taken = divert(&mut net, 0);
        let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
        net.settle();
        let packet = taken.borrow().last().expect("an INIT").clone();
        assert_eq!(first_chunk(&packet), Some(chunk_type::INIT));
        let port = u16::from_be_bytes([packet[34], packet[35]]);
        let tag = u32::from_be_bytes(packet[50..54].try_into().unwrap());
        let chunk = with_host_name(chunk_type::INIT_ACK, 7, len);
        net.hosts[0].arrive(frame(2, 1, (PORT, port), tag, &chunk, None));
        let fault = CloseReason::SctpFault(sctp::Fault::InitAck);
        assert_eq!(failure(&mut net, ticket), ConnectError::Closed(fault.into()));
        net.settle();
        let answer = taken.borrow().last().expect("an ABORT").clone();
        assert_eq!(first_chunk(&answer), Some(chunk_type::ABORT), "{len}");
        assert_eq!(net.hosts[0].count("associations"), 0);
        drain(&mut net, 0);
    }
}

/// The UDP port that packets of the association of host 1 go to.
fn udp_port_of_peer(net: &mut Net) -> u16 {
    let infos = net.hosts[1].cores[0].associations.infos();
    infos[0].udp.expect("in UDP").1
}

/// Two hosts with a stream in UDP, and the port of its association at host 0.
fn in_udp() -> (Net, ddp::StreamId, u16) {
    let udp = |n| Plan { udp: Some(9899), ..Plan::new(n) };
    let mut net = net(&[udp(1), udp(2)]);
    let encapsulated = SctpConfig { udp: Some(9899), ..config() };
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), encapsulated);
    let local = list(&mut net, 0)[0].local.port();
    (net, here, local)
}

// RFC 6951 §5.4: the peer's UDP port is learned from packets whose verification tag was checked, and from no other.
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
        let (mut net, here, local) = in_udp();
        let before = net.hosts[1].count("tx_frames");
        net.hosts[1].arrive(frame(1, 2, (local, PORT), tag, &chunk, udp));
        net.hosts[1].cores[0].turn(net.now);
        let answers = net.hosts[1].sent();
        assert_eq!(udp_port_of_peer(&mut net), 9899, "{chunk:?}");
        // What is answered is answered where it came from.
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

// RFC 6951 §5.4: a peer whose NAT has forgotten it comes from another port, and is answered there, whatever becomes of
// the packet.
#[test]
fn the_peers_own_packet_moves_the_udp_port() {
    let (mut net, here, _) = in_udp();
    net.hosts[0].send(here, &[1; 100]);
    net.hosts[0].cores[0].turn(net.now);
    let sent = net.hosts[0].sent();
    assert!(!sent.is_empty());
    for mut frame in sent {
        frame.0[34..36].copy_from_slice(&7777u16.to_be_bytes());
        frame.0[40..42].fill(0); // without a checksum
        net.hosts[1].arrive(frame.clone());
        net.settle();
        assert_eq!(udp_port_of_peer(&mut net), 7777);
    }
}

/// Turns of the first host alone, without room in its transmit ring, until it says so or time is over.
fn without_room(net: &mut Net, time: Duration, mut done: impl FnMut(&mut Host) -> bool) {
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
    panic!("it takes more than {time:?}");
}

// A port that never takes a frame again keeps nothing: last packets are given up, and a drain ends.
#[test]
fn a_port_without_room_keeps_no_association() {
    let mut net = pair();
    net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    net.settle();
    net.hosts[0].tell(0, |_| Command::Drain);
    without_room(&mut net, Duration::from_secs(330), |host| {
        host.take(|e| matches!(e, Event::Drained).then_some(())).is_some()
    });
    assert_eq!((net.hosts[0].count("streams"), net.hosts[0].count("associations")), (0, 0));
    // One that is aborted takes no more than its last packet may wait.
    let mut net = pair();
    net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    net.until("a request", |net| {
        net.hosts[1].take(|e| matches!(e, Event::Incoming { .. }).then_some(()))
    });
    net.hosts[0].cores[0].abort_associations();
    without_room(&mut net, Duration::from_secs(6), |host| host.count("associations") == 0);
}

// The same without a link-layer address of the peer.
#[test]
fn a_silent_next_hop_keeps_no_association() {
    let mut net = pair();
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), config());
    net.settle();
    net.loses = Box::new(|_, _| true);
    net.hosts[0].send(here, &[1; 1000]);
    net.pass(Duration::from_secs(20));
    net.hosts[0].tell(0, |_| Command::Drain);
    net.until("the end of the drain", |net| {
        net.hosts[0].take(|e| matches!(e, Event::Drained).then_some(()))
    });
    // It is given up after some silence, before its shutdown would be.
    assert!(net.now < START + Duration::from_secs(400), "{:?}", net.now);
}

// TCP's last segment likewise.
#[test]
fn a_port_without_room_keeps_no_reset() {
    let mut net = pair();
    net.hosts[1].listen(9);
    net.settle();
    let (here, _) = net.open(0, 0, 1, (v4(2), 9).into());
    net.settle();
    net.hosts[0].tell(0, |_| Command::Close { stream: here, abort: true });
    without_room(&mut net, Duration::from_secs(7), |host| host.count("streams") == 0);
    assert_eq!(net.hosts[0].count("tx_full"), 1);
}

//! Streams over SCTP between workers: loss, shared associations, several workers, UDP encapsulation, failed connects
//! and rejects, a close or abort by either side, drain and stop, RDMAP, echo load, limits, and ICMP errors.

use std::sync::Arc;
use std::time::Duration;

use ddp::rdmap::{Outcome, WorkRequest};
use ddp::{Access, Cookie, MESSAGE_QUEUE, RegionMemory, Source, Stag, StreamId, TaggedOffset};
use sctp_lite::endpoint::{CloseReason, EndpointConfig, SctpReason};
use sctp_lite::sctp;

use super::paths::{divert, icmp_quoting_frame};
use super::test_host::{
    Host, Net, PD, Plan, Rss, list_all, pattern, read_memory, stream_config, v4, v6,
};
use crate::api::{
    self, Command, Connect, ConnectError, ConnectStage, Event, InterfaceId, Limits, Load, LoadKind,
    SctpConfig, Service, StreamInfo, Ticket, Transport,
};

pub(super) const PORT: u16 = 7471;

pub(super) fn config() -> SctpConfig {
    let sctp = sctp::Config::default();
    SctpConfig { sctp: Arc::new(sctp), endpoint: Arc::new(EndpointConfig::default()), udp: None }
}

/// Creates hosts. The second host listens.
pub(super) fn net(plans: &[Plan]) -> Net {
    let mut net = Net::new(plans);
    net.hosts[1].listen_as(PORT, 200, 200, config());
    net.run_until_idle();
    net
}

pub(super) fn pair() -> Net {
    net(&[Plan::new(1), Plan::new(2)])
}

/// Opens a stream from host 0 to host 1.
pub(super) fn open(net: &mut Net) -> (StreamId, StreamId) {
    net.open_as(0, 0, 1, (v4(2), PORT).into(), config())
}

/// Writes `len` bytes from host 0 to a region of host 1, and compares the content.
pub(super) fn write(net: &mut Net, stream: StreamId, len: usize) {
    let from = net.hosts[0].region(1, len, Access::NONE);
    let to = net.hosts[1].region(2, len, Access::REMOTE_WRITE);
    from.write(0, &pattern(len));
    let ticket = net.hosts[0].write(stream, (Stag(1), &from), Stag(2), len as u32);
    net.wait_sent(0, ticket);
    assert_eq!(read_memory(&to), pattern(len));
}

pub(super) fn wait_closed(net: &mut Net, host: usize) -> CloseReason {
    net.run_until("the end", |net| {
        net.hosts[host].take_event(|e| match e {
            Event::Closed { reason: api::CloseReason::Sctp(reason), .. } => Some(reason.clone()),
            _ => None,
        })
    })
}

pub(super) fn list_streams(net: &mut Net, host: usize) -> Vec<StreamInfo> {
    list_stream_parts(net, host).concat()
}

/// Returns the streams of a worker, one list per event.
pub(super) fn list_stream_parts(net: &mut Net, host: usize) -> Vec<Vec<StreamInfo>> {
    let ticket = net.hosts[host].command(0, list_all);
    let mut parts = Vec::new();
    loop {
        let (streams, last) = net.run_until("a part of the list", |net| {
            net.hosts[host].take_event(|e| match e {
                Event::Streams { ticket: t, streams, last, .. } if *t == ticket => {
                    Some((streams.clone(), *last))
                }
                _ => None,
            })
        });
        parts.push(streams);
        if last {
            return parts;
        }
    }
}

#[test]
fn sctp_write_is_placed_and_acknowledged_over_ipv4_and_ipv6() {
    for peer in [v4(2), v6(2)] {
        let mut net = pair();
        let (here, there) = net.open_as(0, 0, 1, (peer, PORT).into(), config());
        write(&mut net, here, 300_000);
        for (host, stream) in [(0, here), (1, there)] {
            let infos = list_streams(&mut net, host);
            assert_eq!(infos.len(), 1);
            assert_eq!((infos[0].stream, infos[0].transport), (stream, Transport::Sctp));
            assert_eq!(infos[0].state, "established");
            assert!(infos[0].association.is_some());
        }
        assert_eq!(net.hosts[1].count("associations"), 1);
        assert_eq!(net.hosts[1].count("half_open"), 0);
        for host in &net.hosts {
            let counters = host.handles[0].counters();
            assert_eq!(counters.handshake_nanoseconds.counts().len(), 1);
            let bursts = counters.burst_frames.counts();
            assert_eq!(bursts.sum, host.count("rx_frames"));
        }
    }
}

#[test]
fn sctp_stream_recovers_from_loss() {
    let mut net = pair();
    let (here, _) = open(&mut net);
    let mut n = 0u32;
    net.is_lost = Box::new(move |_, _| {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        n >> 24 < 8
    });
    write(&mut net, here, 1 << 20);
}

// RFC 5043 §6.2: Terminates end the session. The association, whose last session has ended, is then shut down.
#[test]
fn closing_a_session_from_either_side_ends_the_association() {
    for closer in [0, 1] {
        let mut net = pair();
        let streams = open(&mut net);
        let stream = if closer == 0 { streams.0 } else { streams.1 };
        net.hosts[closer].command(0, |_| Command::Close { stream, abort: false });
        assert_eq!(wait_closed(&mut net, closer), CloseReason::LocalShutdown);
        assert_eq!(wait_closed(&mut net, 1 - closer), CloseReason::PeerShutdown);
        net.advance(Duration::from_secs(2));
        for host in &net.hosts {
            assert_eq!((host.count("streams"), host.count("associations")), (0, 0));
        }
    }
}

#[test]
fn aborting_a_session_keeps_others_of_its_association() {
    let mut net = pair();
    let shared = api::EndpointConfig::from(config());
    let remote = (v4(2), PORT).into();
    let (first, _) = net.open_as(0, 0, 1, remote, shared.clone());
    let (second, _) = net.open_as(0, 0, 1, remote, shared);
    net.hosts[0].command(0, |_| Command::Close { stream: first, abort: true });
    assert_eq!(wait_closed(&mut net, 0), CloseReason::LocalAbort);
    let _ = wait_closed(&mut net, 1);
    assert_eq!(net.hosts[0].count("associations"), 1);
    write(&mut net, second, 5000);
}

// RFC 5043 §4: each session of an association is a separate stream.
#[test]
fn streams_of_one_configuration_share_an_association() {
    let mut net = pair();
    let shared = api::EndpointConfig::from(config());
    let remote = (v4(2), PORT).into();
    let streams: Vec<_> = (0..100).map(|_| net.open_as(0, 0, 1, remote, shared.clone())).collect();
    let other = net.open_as(0, 0, 1, remote, config());
    assert_eq!(net.hosts[0].count("associations"), 2);
    assert_eq!(net.hosts[1].count("associations"), 2);
    let infos = list_streams(&mut net, 0);
    assert_eq!(infos.len(), 101);
    let association_of = |stream| infos.iter().find(|i| i.stream == stream).unwrap().association;
    assert!(streams.iter().all(|s| association_of(s.0) == association_of(streams[0].0)));
    assert_ne!(association_of(other.0), association_of(streams[0].0));
    for (here, there) in &streams {
        let ticket = net.hosts[0].send(*here, &here.0.to_be_bytes());
        net.wait_sent(0, ticket);
        let (stream, data) = net.run_until("a message", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Untagged { stream, data, .. } => Some((*stream, data.clone())),
                _ => None,
            })
        });
        assert_eq!((stream, &data[..]), (*there, &here.0.to_be_bytes()[..]));
    }
}

/// The association that a new stream would share ends at different moments of the connect. The stream is then opened
/// over another association.
#[test]
fn connect_reopens_when_its_shared_association_ends() {
    let remote = (v4(2), PORT).into();
    let (mut retried, mut turns) = (0, 0);
    loop {
        let mut net = pair();
        let shared = api::EndpointConfig::from(config());
        let (_, there) = net.open_as(0, 0, 1, remote, shared.clone());
        net.run_until_idle();
        net.hosts[1].command(0, |_| Command::Close { stream: there, abort: false });
        for _ in 0..turns {
            net.turn();
        }
        let before = net.hosts[0].count("associations");
        let (here, _) = net.open_as(0, 0, 1, remote, shared.clone());
        write(&mut net, here, 5000);
        retried += net.hosts[0].count("sessions_reopened");
        if before == 0 {
            break;
        }
        turns += 1;
        assert!(turns < 100, "the association does not end");
    }
    assert!(turns > 3 && retried > 0, "{turns} turns, {retried} crossed");
}

/// The peer was killed and restarted: it has no state of the association that a new stream would share.
#[test]
fn connect_reopens_after_a_peer_restart() {
    let mut net = pair();
    let (remote, shared) = ((v4(2), PORT).into(), api::EndpointConfig::from(config()));
    net.open_as(0, 0, 1, remote, shared.clone());
    net.run_until_idle();
    net.hosts[1] = Host::new(&Plan::new(2));
    net.hosts[1].listen_as(PORT, 200, 200, config());
    let (here, _) = net.open_as(0, 0, 1, remote, shared);
    // The stream from before the restart has ended, with its reason.
    let reason = CloseReason::Lower(SctpReason::PeerAbort { cause: None });
    assert_eq!(wait_closed(&mut net, 0), reason);
    assert_eq!(net.hosts[0].count("sessions_reopened"), 1);
    write(&mut net, here, 5000);
}

/// An association with outstanding data waits for its doubled T3-rtx while the peer restarts. A new stream does not
/// wait for this association.
#[test]
fn connect_avoids_an_association_whose_peer_does_not_answer() {
    let mut net = pair();
    let (remote, shared) = ((v4(2), PORT).into(), api::EndpointConfig::from(config()));
    let (old, _) = net.open_as(0, 0, 1, remote, shared.clone());
    net.run_until_idle();
    // ARP is answered, so that the next hop stays reachable.
    net.is_lost = Box::new(|_, frame| frame[12..14] == [0x08, 0x00]);
    net.hosts[0].send(old, b"lost");
    net.advance(Duration::from_secs(20));
    net.is_lost = Box::new(|_, _| false);
    net.hosts[1] = Host::new(&Plan::new(2));
    net.hosts[1].listen_as(PORT, 200, 200, config());
    let restarted = net.now;
    let (here, _) = net.open_as(0, 0, 1, remote, shared.clone());
    assert!(net.now - restarted < Duration::from_secs(1), "after {:?}", net.now - restarted);
    assert_eq!(net.hosts[0].count("associations"), 2);
    write(&mut net, here, 5000);
    // The new association is shared again.
    net.open_as(0, 0, 1, remote, shared);
    assert_eq!(net.hosts[0].count("associations"), 2);
}

/// A connect beyond the listener's credits is refused with an answer, and leaves no state.
#[test]
fn session_without_listener_credit_is_refused() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen_as(PORT, 100, 2, config());
    net.run_until_idle();
    let shared = api::EndpointConfig::from(config());
    let remote = (v4(2), PORT).into();
    for _ in 0..2 {
        net.open_as(0, 0, 1, remote, shared.clone());
    }
    let ticket = net.hosts[0].connect_as(0, remote, shared.clone());
    assert_eq!(
        wait_connect_failure(&mut net, ticket),
        ConnectError::Closed(CloseReason::Lower(SctpReason::TurnedAway).into())
    );
    assert_eq!(net.hosts[1].count("sessions_refused"), 1);
    let listener = api::ListenerId(PORT.into());
    net.hosts[1].command(0, |_| Command::Credits { listener, additional: 1 });
    net.open_as(0, 0, 1, remote, shared);
}

pub(super) fn wait_connect_failure(net: &mut Net, ticket: Ticket) -> ConnectError {
    net.run_until("a refusal", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::ConnectFailed { ticket: t, reason } if *t == ticket => Some(reason.clone()),
            Event::Established { .. } => panic!("established"),
            _ => None,
        })
    })
}

// RFC 9260 §8.4: an INIT to a port without a listener is refused.
#[test]
fn init_to_port_without_listener_is_refused() {
    let mut net = pair();
    let ticket = net.hosts[0].connect_as(0, (v4(2), 9).into(), config());
    assert_eq!(
        wait_connect_failure(&mut net, ticket),
        ConnectError::Closed(CloseReason::ConnectRefused.into())
    );
    assert_eq!(net.hosts[1].count("sctp_aborts_sent"), 1);
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("associations"), 0);
    // A listener of the other transport does not match.
    net.hosts[1].listen(8);
    let ticket = net.hosts[0].connect_as(0, (v4(2), 8).into(), config());
    assert_eq!(
        wait_connect_failure(&mut net, ticket),
        ConnectError::Closed(CloseReason::ConnectRefused.into())
    );
}

#[test]
fn connect_without_init_ack_times_out() {
    let mut net = pair();
    net.is_lost = Box::new(|from, frame| from == 1 && frame[12..14] == [8, 0]);
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    assert_eq!(
        wait_connect_failure(&mut net, ticket),
        ConnectError::Timeout(ConnectStage::InitAck)
    );
    net.advance(Duration::from_secs(1));
    assert_eq!((net.hosts[0].count("associations"), net.hosts[0].count("streams")), (0, 0));
}

#[test]
fn connect_to_missing_neighbour_is_unreachable() {
    let mut net = pair();
    let ticket = net.hosts[0].connect_as(0, (v4(77), PORT).into(), config());
    assert_eq!(wait_connect_failure(&mut net, ticket), ConnectError::Unreachable);
    assert_eq!((net.hosts[0].count("associations"), net.hosts[0].count("streams")), (0, 0));
}

#[test]
fn rejected_session_leaves_no_stream_or_association() {
    let mut net = pair();
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    let stream = net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, revision: None, private_data, .. } => {
                assert_eq!(private_data, b"hello");
                Some(*stream)
            }
            _ => None,
        })
    });
    net.hosts[1].command(0, |_| Command::Reject { stream, private_data: b"no".to_vec() });
    let refused = CloseReason::RejectedByPeer { private_data: b"no".to_vec(), enhanced: None };
    assert_eq!(wait_connect_failure(&mut net, ticket), ConnectError::Closed(refused.into()));
    assert_eq!(wait_closed(&mut net, 1), CloseReason::RejectedHere);
    net.advance(Duration::from_secs(2));
    for host in &net.hosts {
        assert_eq!((host.count("streams"), host.count("associations")), (0, 0));
    }
}

/// The ports of an association select the worker that owns it. Its packets may arrive at any queue. A connect chooses a
/// local port that selects its own worker.
#[test]
fn sctp_packets_are_forwarded_to_the_owning_worker() {
    for rss in [Rss::Device, Rss::None] {
        let many = |n| Plan { workers: 3, rss, ..Plan::new(n) };
        let mut net = net(&[many(1), many(2)]);
        for worker in 0..3 {
            let remote = (v4(2), PORT).into();
            let (here, _) = net.open_as(0, worker, 1, remote, config());
            assert_eq!(usize::from(here.worker()), worker);
            let ticket = net.hosts[0].send(here, b"across");
            net.wait_sent(0, ticket);
        }
        assert!(net.hosts[1].count("mesh_in") > 0);
    }
}

// RFC 6951: packets in UDP are sent to the configured port of the peer, from the local UDP port.
#[test]
fn configured_association_is_encapsulated_in_udp() {
    let udp = |n, port| Plan { udp: Some(port), ..Plan::new(n) };
    let mut net = net(&[udp(1, 4000), udp(2, 9899)]);
    net.is_lost = Box::new(|_, frame| {
        assert_ne!((frame[12..14] == [8, 0], frame[23]), (true, 132), "SCTP outside of UDP");
        false
    });
    let encapsulated = SctpConfig { udp: Some(9899), ..config() };
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), encapsulated);
    write(&mut net, here, 50_000);
    // Without a local UDP port the connect fails.
    let mut net = pair();
    let encapsulated = SctpConfig { udp: Some(9899), ..config() };
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), encapsulated);
    assert_eq!(wait_connect_failure(&mut net, ticket), ConnectError::NoUdpPort);
}

#[test]
fn a_drain_waits_for_associations() {
    let mut net = pair();
    let (here, _) = open(&mut net);
    net.hosts[0].command(0, |_| Command::Drain);
    assert_eq!(wait_closed(&mut net, 0), CloseReason::LocalShutdown);
    net.run_until("the end of the drain", |net| {
        net.hosts[0].take_event(|e| matches!(e, Event::Drained).then_some(()))
    });
    assert_eq!(net.hosts[0].count("associations"), 0);
    let _ = here;
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    assert_eq!(wait_connect_failure(&mut net, ticket), ConnectError::Draining);
}

#[test]
fn a_stop_aborts_associations() {
    let mut net = pair();
    open(&mut net);
    net.hosts[0].command(0, |_| Command::Stop);
    assert!(matches!(wait_closed(&mut net, 1), CloseReason::Lower(SctpReason::PeerAbort { .. })));
    assert!(net.hosts[0].cores[0].is_stopped());
}

#[test]
fn rdmap_read_and_send_complete_over_sctp() {
    let mut net = pair();
    let len = 100_000;
    let sink = net.hosts[0].region(5, len, Access::REMOTE_WRITE);
    let source = net.hosts[1].region(6, len, Access::REMOTE_READ);
    source.write(0, &pattern(len));
    let ulp = || ddp::rdmap::Config { recv_buffers: 16, ..Default::default() };
    let ticket = net.hosts[0].command(0, |ticket| {
        Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket,
            interface: InterfaceId(0),
            local: None,
            remote: (v4(2), PORT).into(),
            endpoint: config().into(),
            ulp: ulp().into(),
            service: Service::Control,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        }))
    });
    let stream = net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, enhanced: Some(_), .. } => Some(*stream),
            _ => None,
        })
    });
    let (pd, private_data, service) = (PD, Vec::new(), Service::Echo);
    let accept = Command::Accept { stream, pd, private_data, ulp: ulp().into(), service };
    net.hosts[1].command(0, |_| accept);
    let here = net.run_until("both ends", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Established { stream, ticket: Some(t), .. } if *t == ticket => Some(*stream),
            Event::ConnectFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    });
    let request = WorkRequest::Read {
        sink_stag: Stag(5),
        sink_to: TaggedOffset(0),
        source_stag: Stag(6),
        source_to: TaggedOffset(0),
        len: len as u32,
        cookie: Cookie::user(0),
    };
    let region = Some(Stag(5));
    let read = net.hosts[0].command(0, |ticket| Command::PostRdmap {
        stream: here,
        request,
        region,
        ticket,
    });
    let outcome = net.run_until("the read", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Completed { ticket, outcome, .. } if *ticket == read => Some(*outcome),
            Event::PostFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    });
    assert_eq!(outcome, Outcome::Read { len: len as u32 });
    assert_eq!(read_memory(&sink), pattern(len));
    // The Echo service returns the message.
    let data = Source::Bytes(b"there and back".as_slice().into());
    let request = WorkRequest::Send {
        source: data,
        solicited: false,
        invalidate: None,
        cookie: Cookie::user(0),
    };
    net.hosts[0].command(0, |ticket| Command::PostRdmap {
        stream: here,
        request,
        region: None,
        ticket,
    });
    let data = net.run_until("an echo", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Received { data, .. } => Some(data.clone()),
            _ => None,
        })
    });
    assert_eq!(data, b"there and back");
}

#[test]
fn echo_load_completes_over_sctp() {
    let mut net = pair();
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    let stream = net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    let ulp = stream_config().into();
    let (pd, private_data, service) = (PD, Vec::new(), Service::Echo);
    net.hosts[1].command(0, |_| Command::Accept { stream, pd, private_data, ulp, service });
    let here = net.run_until("both ends", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Established { stream, ticket: Some(t), .. } if *t == ticket => Some(*stream),
            _ => None,
        })
    });
    let load = Load { count: 1000, ..Load::closed(LoadKind::Echo { qn: MESSAGE_QUEUE }, 100, 8) };
    let done = net.hosts[0].command(0, |ticket| Command::Load { stream: here, load, ticket });
    let report = net.run_until("the load", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::LoadDone { ticket, report, .. } if *ticket == done => Some(report.clone()),
            _ => None,
        })
    });
    assert_eq!((report.messages, report.failure), (1000, None));
}

#[test]
fn removed_listener_refuses_new_sessions() {
    let mut net = pair();
    let shared = api::EndpointConfig::from(config());
    let remote = (v4(2), PORT).into();
    let (here, _) = net.open_as(0, 0, 1, remote, shared.clone());
    let listener = api::ListenerId(PORT.into());
    let ticket = net.hosts[1].command(0, |ticket| Command::RemoveListener { listener, ticket });
    net.wait_done(1, ticket).unwrap();
    let ticket = net.hosts[0].connect_as(0, remote, shared);
    assert_eq!(
        wait_connect_failure(&mut net, ticket),
        ConnectError::Closed(CloseReason::Lower(SctpReason::TurnedAway).into())
    );
    write(&mut net, here, 5000);
    let ticket = net.hosts[0].connect_as(0, remote, config());
    assert_eq!(
        wait_connect_failure(&mut net, ticket),
        ConnectError::Closed(CloseReason::ConnectRefused.into())
    );
}

#[test]
fn connect_beyond_the_association_limit_fails() {
    let limits = Limits { streams: 2, ..Limits::default() };
    let mut net = net(&[Plan { limits, ..Plan::new(1) }, Plan::new(2)]);
    for _ in 0..2 {
        open(&mut net);
    }
    let ticket = net.hosts[0].connect_as(0, (v4(2), PORT).into(), config());
    assert_eq!(wait_connect_failure(&mut net, ticket), ConnectError::TooManyStreams);
}

// RFC 9260 §10 (ICMP3, ICMP6, ICMP8): "port unreachable" has no effect, "protocol unreachable" ends the association.
// Both messages must quote the verification tag.
#[test]
fn icmp_protocol_unreachable_ends_sctp_streams() {
    let mut net = pair();
    let (here, _) = open(&mut net);
    let taken = divert(&mut net, 0);
    net.hosts[0].send(here, &[5; 100]);
    net.hosts[0].cores[0].turn(net.now);
    net.turn();
    let frame = taken.borrow().last().expect("a packet").clone();
    net.is_lost = Box::new(|_, _| false);
    let mut guess = frame.clone();
    guess[38] ^= 1;
    net.hosts[0].deliver(icmp_quoting_frame(3, 2, 0, &guess));
    net.hosts[0].deliver(icmp_quoting_frame(3, 3, 0, &frame));
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("icmp_not_in_flight"), 1);
    assert_eq!(net.hosts[0].count("associations"), 1);
    net.hosts[0].deliver(icmp_quoting_frame(3, 2, 0, &frame));
    assert_eq!(wait_closed(&mut net, 0), CloseReason::Lower(SctpReason::NoSctp));
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("associations"), 0);
}

//! Outages that streams survive, over TCP and over SCTP: interrupted paths, changed neighbours, lost handshake packets,
//! and ICMP errors of routers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ddp::StreamId;
use tcp_lite::endpoint::EndpointConfig;

use super::paths::{divert, icmp_quoting, icmp_quoting_frame};
use super::sctp::{PORT, config, wait_connect_failure};
use super::test_host::*;
use crate::api::{
    CloseReason, Command, Connect, ConnectError, Event, InterfaceId, PortId, Service, Ticket,
};
use crate::net::icmp::Unreachable;

const TCP_PORT: u16 = 7472;

/// Variant of the stream: transport and address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Variant {
    sctp: bool,
    v6: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant { sctp: false, v6: false },
    Variant { sctp: true, v6: false },
    Variant { sctp: false, v6: true },
    Variant { sctp: true, v6: true },
];

impl Variant {
    fn net(self) -> Net {
        let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
        net.hosts[1].listen(TCP_PORT);
        net.hosts[1].listen_as(PORT, 200, 200, config());
        net.run_until_idle();
        net
    }

    fn peer(self) -> std::net::IpAddr {
        if self.v6 { v6(2) } else { v4(2) }
    }

    /// Requests a stream from host 0.
    fn connect(self, net: &mut Net) -> Ticket {
        match self.sctp {
            true => net.hosts[0].connect_as(0, (self.peer(), PORT).into(), config()),
            false => net.hosts[0].connect(0, (self.peer(), TCP_PORT).into()),
        }
    }

    /// Creates two hosts with a stream. Returns the stream's id at each host.
    fn open(self) -> (Net, StreamId, StreamId) {
        let mut net = self.net();
        let (here, there) = match self.sctp {
            true => net.open_as(0, 0, 1, (self.peer(), PORT).into(), config()),
            false => net.open(0, 0, 1, (self.peer(), TCP_PORT).into()),
        };
        let ticket = net.hosts[0].send(here, b"go on");
        net.wait_sent(0, ticket);
        net.advance(Duration::from_secs(5));
        (net, here, there)
    }
}

/// Returns true for ARP and IPv6 neighbour discovery (ICMPv6 or hop-by-hop options).
fn is_neighbour_discovery(frame: &[u8]) -> bool {
    frame[12..14] == [8, 6] || frame[12..14] == [0x86, 0xdd] && matches!(frame[20], 0 | 58)
}

/// Frames that an outage loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    /// All frames: a cable is unplugged.
    All,
    /// All frames except neighbour discovery: the path is interrupted behind the next hop.
    BeyondNextHop,
    /// All frames that the first host sends.
    FromFirst,
    /// All frames that the second host sends.
    FromSecond,
}

impl Cut {
    fn is_lost(self, from: usize, frame: &[u8]) -> bool {
        match self {
            Cut::All => true,
            Cut::BeyondNextHop => !is_neighbour_discovery(frame),
            Cut::FromFirst => from == 0,
            Cut::FromSecond => from == 1,
        }
    }
}

/// Waits until these messages are acknowledged. Returns the time that passed.
fn wait_both_sent(net: &mut Net, sent: [(usize, Ticket); 2]) -> Duration {
    let begun = net.now;
    for (host, ticket) in sent {
        net.wait_sent(host, ticket);
    }
    net.now - begun
}

// RFC 9293 §3.8.3, RFC 9260 §8.1, RFC 4861 §7.3: streams survive outages that are shorter than TCP's `user_timeout` and
// than the time in which SCTP reaches `max_retransmits`.
#[test]
fn streams_survive_a_path_outage() {
    for variant in VARIANTS {
        for cut in [Cut::All, Cut::BeyondNextHop, Cut::FromFirst, Cut::FromSecond] {
            for seconds in [1, 100] {
                let (mut net, here, there) = variant.open();
                net.is_lost = Box::new(move |from, frame| cut.is_lost(from, frame));
                let sent = [
                    (0, net.hosts[0].send(here, &[7; 4000])),
                    (1, net.hosts[1].send(there, &[8; 4000])),
                ];
                net.advance(Duration::from_secs(seconds));
                net.is_lost = Box::new(|_, _| false);
                let duration = wait_both_sent(&mut net, sent);
                // After the outage, the next retransmission time-out follows within the duration of the outage, at most
                // 60 s.
                let max_duration = Duration::from_secs(seconds.min(60) + 2);
                assert!(duration <= max_duration, "{variant:?} {cut:?} {seconds} s: {duration:?}");
                let sent = [
                    (0, net.hosts[0].send(here, &[7; 4000])),
                    (1, net.hosts[1].send(there, &[8; 4000])),
                ];
                let duration = wait_both_sent(&mut net, sent);
                assert!(
                    duration < Duration::from_secs(1),
                    "{variant:?} {cut:?} {seconds} s: then {duration:?}"
                );
            }
        }
    }
}

// Idle streams survive the same outages, although SCTP heartbeats remain unanswered.
#[test]
fn idle_streams_survive_a_path_outage() {
    for variant in VARIANTS {
        for cut in [Cut::All, Cut::BeyondNextHop, Cut::FromFirst, Cut::FromSecond] {
            let (mut net, here, there) = variant.open();
            net.is_lost = Box::new(move |from, frame| cut.is_lost(from, frame));
            net.advance(Duration::from_secs(180));
            net.is_lost = Box::new(|_, _| false);
            let sent = [
                (0, net.hosts[0].send(here, &[7; 4000])),
                (1, net.hosts[1].send(there, &[8; 4000])),
            ];
            let duration = wait_both_sent(&mut net, sent);
            assert!(duration < Duration::from_secs(5), "{variant:?} {cut:?}: {duration:?}");
        }
    }
}

// RFC 9293 §3.8.1, RFC 9260 §5.1.6, RFC 4861 §7.2.2: each packet of the handshake, including neighbour discovery, is
// lost once in one of the runs.
#[test]
fn handshake_survives_loss_of_any_single_packet() {
    for variant in VARIANTS {
        let mut lost = 0;
        for which in 0..24 {
            let mut net = variant.net();
            net.advance(Duration::from_secs(15));
            let (mut n, done) = (0, Rc::new(RefCell::new(false)));
            let seen = done.clone();
            net.is_lost = Box::new(move |_, _| {
                n += 1;
                let loses = n == which + 1;
                *seen.borrow_mut() |= loses;
                loses
            });
            let ticket = variant.connect(&mut net);
            let there = net.run_until("a request", |net| {
                net.hosts[1].take_event(|e| match e {
                    Event::Incoming { stream, .. } => Some(*stream),
                    _ => None,
                })
            });
            net.accept(1, there);
            let here = net.run_until("both ends", |net| {
                net.hosts[0].take_event(|e| match e {
                    Event::Established { stream, ticket: t, .. } if *t == Some(ticket) => {
                        Some(*stream)
                    }
                    Event::ConnectFailed { reason, .. } => panic!("{variant:?} {which}: {reason}"),
                    _ => None,
                })
            });
            let ticket = net.hosts[0].send(here, &[1; 100]);
            net.wait_sent(0, ticket);
            lost += usize::from(*done.borrow());
        }
        assert!(lost >= 8, "{variant:?}: {lost} packets");
    }
}

/// The second host's link-layer address changes, with and without an announcement that reaches the first host.
#[test]
fn stream_continues_after_neighbour_mac_change() {
    for variant in VARIANTS {
        for is_announced in [true, false] {
            let (mut net, here, there) = variant.open();
            let mac = [2, 0, 0, 0, 9, 9];
            net.is_lost = Box::new(move |from, frame| {
                from == 1 && !is_announced && is_neighbour_discovery(frame)
            });
            net.hosts[1].command_all(|_| Command::PortChanged { port: PortId(0), mac });
            net.advance(Duration::from_millis(10));
            net.is_lost = Box::new(|_, _| false);
            let ticket = net.hosts[0].send(here, &[7; 4000]);
            let begun = net.now;
            net.wait_sent(0, ticket);
            let duration = net.now - begun;
            // The first host verifies an announcement before it uses the new address (RFC 4861 §7.3.3).
            let max_duration = Duration::from_secs(if is_announced { 5 } else { 30 });
            assert!(duration < max_duration, "{variant:?} {is_announced}: {duration:?}");
            let ticket = net.hosts[1].send(there, &[8; 4000]);
            net.wait_sent(1, ticket);
        }
    }
}

/// The first host's own link-layer address changes. The host announces the new address to neighbours, and the stream
/// sends from the new address.
#[test]
fn stream_continues_after_own_mac_change() {
    for variant in VARIANTS {
        let (mut net, here, _) = variant.open();
        let sent = net.record_frames_from(0);
        let mac = [2, 0, 0, 0, 7, 7];
        net.hosts[0].command_all(|_| Command::PortChanged { port: PortId(0), mac });
        net.advance(Duration::from_secs(5));
        let ticket = net.hosts[0].send(here, &[7; 4000]);
        net.wait_sent(0, ticket);
        assert!(sent.borrow().iter().all(|frame| frame[6..12] == mac), "{variant:?}");
        assert!(sent.borrow().iter().any(|frame| frame.len() > 1000), "{variant:?}");
    }
}

/// Returns true for an IPv4 frame with the transport of host 0's stream.
fn is_stream_frame(variant: Variant, frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[23] == if variant.sctp { 132 } else { 6 }
}

// RFC 5927 §5.2, RFC 9260 §10 (ICMP3, ICMP9): ICMP errors do not end an established stream. The exception is ICMP8: the
// peer's host has no SCTP.
#[test]
fn icmp_errors_do_not_end_established_streams() {
    for variant in VARIANTS.into_iter().filter(|variant| !variant.v6) {
        let (mut net, here, _) = variant.open();
        let caught = Rc::new(RefCell::new(Vec::new()));
        let recorder = caught.clone();
        net.is_lost = Box::new(move |from, frame| {
            let takes = from == 0 && is_stream_frame(variant, frame);
            if takes {
                recorder.borrow_mut().push(frame.to_vec());
            }
            takes
        });
        let ticket = net.hosts[0].send(here, &[6; 1000]);
        net.turn();
        let frame = caught.borrow()[0].clone();
        net.is_lost = Box::new(|_, _| false);
        for code in [0, 1, 3, 5, 9, 10, 13] {
            net.hosts[0].deliver(icmp_quoting_frame(3, code, 0, &frame));
        }
        net.turn();
        assert_eq!(net.hosts[0].count("icmp_soft_errors"), 7, "{variant:?}");
        net.wait_sent(0, ticket);
    }
}

/// Connects over a path on which up to `most` packets of the handshake are answered with this ICMP code. Returns the
/// number of answered packets, with the error if the connect failed.
fn connect_answered_by_icmp(
    variant: Variant,
    code: u8,
    most: usize,
) -> Result<usize, (ConnectError, usize)> {
    let mut net = variant.net();
    let first = divert(&mut net, 40);
    let ticket = variant.connect(&mut net);
    let mut answered = 0;
    loop {
        if answered == most {
            net.is_lost = Box::new(|_, _| false);
            net.run_until("a request", |net| {
                net.hosts[1].take_event(|e| matches!(e, Event::Incoming { .. }).then_some(()))
            });
            return Ok(answered);
        }
        let reason = net.run_until("an answer", |net| {
            for frame in first.borrow_mut().drain(..) {
                if is_stream_frame(variant, &frame) {
                    answered += 1;
                    // RFC 1812 §4.3.2.3: the error quotes all bytes that fit. RFC 9260 §10 (ICMP6) requires the
                    // initiate tag.
                    net.hosts[0].deliver(icmp_quoting(3, code, 0, &frame[14..]));
                }
            }
            net.turn();
            let failed = net.hosts[0].take_event(|e| match e {
                Event::ConnectFailed { ticket: t, reason } if *t == ticket => Some(reason.clone()),
                _ => None,
            });
            failed.map(Some).or((answered == most).then_some(None))
        });
        if let Some(reason) = reason {
            return Err((reason, answered));
        }
    }
}

// RFC 5461 §4.1: a connect survives one soft error, and succeeds if the path works again.
#[test]
fn connect_survives_one_soft_icmp_error() {
    for variant in VARIANTS.into_iter().filter(|variant| !variant.v6) {
        let unreachable = |what| ConnectError::Icmp(what);
        assert_eq!(
            connect_answered_by_icmp(variant, 3, 9),
            Err((unreachable(Unreachable::Port), 1)),
            "{variant:?}"
        );
        assert_eq!(
            connect_answered_by_icmp(variant, 2, 9),
            Err((unreachable(Unreachable::Protocol), 1)),
            "{variant:?}"
        );
        assert_eq!(
            connect_answered_by_icmp(variant, 13, 9),
            Err((unreachable(Unreachable::Prohibited), 1)),
            "{variant:?}"
        );
        for code in [0, 1, 5] {
            assert_eq!(connect_answered_by_icmp(variant, code, 1), Ok(1), "{variant:?} {code}");
            assert_eq!(
                connect_answered_by_icmp(variant, code, 9),
                Err((unreachable(Unreachable::Host), 2)),
                "{variant:?}"
            );
        }
    }
}

// A next hop that does not answer during a connect is solicited for a bounded time.
#[test]
fn connect_without_next_hop_fails_as_unreachable() {
    for variant in VARIANTS {
        let mut net = variant.net();
        net.is_lost = Box::new(|_, _| true);
        let ticket = variant.connect(&mut net);
        let begun = net.now;
        assert_eq!(
            wait_connect_failure(&mut net, ticket),
            ConnectError::Unreachable,
            "{variant:?}"
        );
        assert!(net.now - begun < Duration::from_secs(5), "{variant:?}");
    }
}

/// Opens a stream with the maximum private data in request and reply (RFC 5044 §7.1).
fn open_with_max_private_data(variant: Variant, net: &mut Net) -> (StreamId, StreamId) {
    let endpoint = match variant.sctp {
        true => config().into(),
        false => EndpointConfig::default().into(),
    };
    let port = if variant.sctp { PORT } else { TCP_PORT };
    let ticket = net.hosts[0].command(0, |ticket| {
        Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket,
            interface: InterfaceId(0),
            local: None,
            remote: (variant.peer(), port).into(),
            endpoint,
            ulp: stream_config().into(),
            service: Service::Control,
            pd: PD,
            stags: Vec::new(),
            private_data: vec![7; 512],
            timeout: Duration::from_secs(60),
        }))
    });
    let there = net.run_until("a request", |net| {
        if let Some(reason) = net.hosts[0].take_event(|e| match e {
            Event::ConnectFailed { reason, .. } => Some(reason.clone()),
            _ => None,
        }) {
            panic!("{variant:?}: {reason}");
        }
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    let (private_data, service, ulp) = (vec![8; 512], Service::Control, stream_config().into());
    let accept = Command::Accept { stream: there, pd: PD, private_data, ulp, service };
    net.hosts[1].command(0, |_| accept);
    let here = net.run_until("both ends", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Established { stream, ticket: t, .. } if *t == Some(ticket) => Some(*stream),
            Event::ConnectFailed { reason, .. } => panic!("{variant:?}: {reason}"),
            _ => None,
        })
    });
    (here, there)
}

// RFC 4821 §7.7, RFC 8899 §4.3: packets that exceed the path MTU are lost without a report, from the first packet on.
#[test]
fn streams_open_over_a_pmtu_black_hole() {
    for variant in VARIANTS {
        for mtu in [1400, 1280, 1000, 600] {
            if variant.v6 && mtu < 1280 {
                continue;
            }
            let mut net = variant.net();
            net.is_lost = Box::new(move |_, frame| frame.len() - 14 > mtu);
            let begun = net.now;
            let (here, there) = open_with_max_private_data(variant, &mut net);
            assert!(
                net.now - begun < Duration::from_secs(15),
                "{variant:?} {mtu}: {:?}",
                net.now - begun
            );
            let sent = [
                (0, net.hosts[0].send(here, &[7; 4000])),
                (1, net.hosts[1].send(there, &[8; 4000])),
            ];
            let duration = wait_both_sent(&mut net, sent);
            assert!(duration < Duration::from_secs(30), "{variant:?} {mtu}: {duration:?}");
        }
    }
}

fn wait_end(net: &mut Net, host: usize) -> CloseReason {
    net.run_until("an end", |net| {
        net.hosts[host].take_event(|e| match e {
            Event::Closed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    })
}

// RFC 9293 §3.6, RFC 9260 §9.2: each packet of a close by either side is lost once in one of the runs.
#[test]
fn graceful_close_survives_loss_of_any_single_packet() {
    for variant in VARIANTS {
        for first in [0, 1] {
            let mut lost = 0;
            for which in 0..16 {
                let (mut net, here, there) = variant.open();
                let (mut n, done) = (0, Rc::new(RefCell::new(false)));
                let seen = done.clone();
                net.is_lost = Box::new(move |_, _| {
                    n += 1;
                    let loses = n == which + 1;
                    *seen.borrow_mut() |= loses;
                    loses
                });
                let stream = [here, there][first];
                net.hosts[first].command(0, |_| Command::Close { stream, abort: false });
                for host in [0, 1] {
                    let reason = wait_end(&mut net, host);
                    assert!(
                        reason.is_graceful(),
                        "{variant:?} {first} {which}: {reason} of {host}"
                    );
                }
                lost += usize::from(*done.borrow());
            }
            assert!(lost >= 3, "{variant:?}: {lost} packets");
        }
    }
}

// RFC 9293 §3.5.1, RFC 9260 §8.4: a restarted peer rejects the old stream and accepts a new one.
#[test]
fn restarted_peer_resets_the_old_stream() {
    for variant in VARIANTS {
        let (mut net, here, _) = variant.open();
        net.hosts[1] = Host::new(&Plan::new(2));
        net.hosts[1].listen(TCP_PORT);
        net.hosts[1].listen_as(PORT, 200, 200, config());
        net.run_until_idle();
        net.hosts[0].send(here, &[7; 100]);
        let begun = net.now;
        let reason = wait_end(&mut net, 0);
        assert_eq!(
            reason.name(),
            if variant.sctp { "peer_abort" } else { "peer_reset" },
            "{variant:?}"
        );
        assert!(net.now - begun < Duration::from_secs(1), "{variant:?}");
        net.hosts[0].events.clear();
        let (here, _) = open_with_max_private_data(variant, &mut net);
        let ticket = net.hosts[0].send(here, &[7; 100]);
        net.wait_sent(0, ticket);
    }
}

// A full transmit ring or an empty pool does not count as silence of the peer.
#[test]
fn streams_survive_a_full_ring_and_an_empty_pool() {
    for variant in VARIANTS {
        for no_buffers in [false, true] {
            let (mut net, here, there) = variant.open();
            let was = {
                let io = net.hosts[0].cores[0].port_mut(0);
                let was = (io.room, io.buffers);
                if no_buffers {
                    io.buffers = 0
                } else {
                    io.room = 0
                }
                was
            };
            let sent = [
                (0, net.hosts[0].send(here, &[7; 4000])),
                (1, net.hosts[1].send(there, &[8; 4000])),
            ];
            let until = net.now + Duration::from_secs(60);
            while net.now < until {
                net.turn();
                net.now += Duration::from_millis(50);
            }
            let io = net.hosts[0].cores[0].port_mut(0);
            (io.room, io.buffers) = was;
            let duration = wait_both_sent(&mut net, sent);
            assert!(duration < Duration::from_secs(62), "{variant:?} {no_buffers}: {duration:?}");
        }
    }
}

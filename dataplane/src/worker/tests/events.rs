//! A peer that causes events faster than the control thread reads them is paused. Other streams continue.

use std::sync::Arc;
use std::time::Duration;

use ddp::rdmap::{self, WorkRequest};
use ddp::{Access, Cookie, Message, RegionMemory, Source, Stag, StreamId, TaggedOffset};
use sctp_lite::sctp;
use smoltcp::wire::IpProtocol;
use tcp_lite::endpoint::{EndpointConfig, UlpConfig};

use super::test_host::*;
use crate::api::{
    self, Command, Connect, Event, InterfaceId, SctpConfig, Service, Ticket, Transport,
};
use crate::memory::Memory;
use crate::net::path::{IpHeader, write_ip_frame};
use crate::worker::link::event_queue::{EVENT_BATCH, MIN_CREDIT};

const FLOODER: usize = 0;
const VICTIM: usize = 1;
const OTHER: usize = 2;
const SINK: Stag = Stag(0x1234);
const SOURCE: Stag = Stag(0x77);
/// Number of entries of the victim's event ring.
const RING: usize = 64;
/// Number of messages of the flood.
const FLOOD: usize = 4000;

/// ULP and transport of the flood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flood {
    /// Tagged DDP messages without payload.
    Ddp(Transport),
    /// RDMA Writes to a region, on a stream with the Region service.
    Rdmap(Transport),
}

impl Flood {
    const ALL: [Flood; 4] = [
        Flood::Ddp(Transport::Tcp),
        Flood::Ddp(Transport::Sctp),
        Flood::Rdmap(Transport::Tcp),
        Flood::Rdmap(Transport::Sctp),
    ];

    fn transport(self) -> Transport {
        match self {
            Flood::Ddp(transport) | Flood::Rdmap(transport) => transport,
        }
    }

    fn ulp(self) -> UlpConfig {
        match self {
            Flood::Ddp(_) => stream_config().into(),
            Flood::Rdmap(_) => rdmap::Config::default().into(),
        }
    }

    fn len(self) -> u64 {
        u64::from(matches!(self, Flood::Rdmap(_)))
    }

    fn post(self, net: &mut Net, stream: StreamId) -> Ticket {
        let (stag, to) = (SINK, TaggedOffset(0));
        let source = Source::Bytes(vec![7; self.len() as usize].into());
        let region = None;
        net.hosts[FLOODER].command(0, |ticket| match self {
            Flood::Ddp(_) => {
                let message =
                    Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(0) };
                Command::Post { stream, message, region, ticket }
            }
            Flood::Rdmap(_) => {
                let request = WorkRequest::Write { stag, to, source, cookie: Cookie::user(0) };
                Command::PostRdmap { stream, request, region, ticket }
            }
        })
    }
}

fn port(transport: Transport) -> u16 {
    match transport {
        Transport::Tcp => 4791,
        Transport::Sctp => 7471,
    }
}

fn endpoint(transport: Transport) -> api::EndpointConfig {
    match transport {
        Transport::Tcp => EndpointConfig::default().into(),
        Transport::Sctp => SctpConfig {
            sctp: Arc::new(sctp::Config::default()),
            endpoint: Arc::new(sctp_lite::endpoint::EndpointConfig::default()),
            udp: None,
        }
        .into(),
    }
}

fn scene(ring: usize) -> Net {
    let mut plan = Plan::new(2);
    plan.limits.events = ring;
    let mut net = Net::new(&[Plan::new(1), plan, Plan::new(3)]);
    for transport in [Transport::Tcp, Transport::Sctp] {
        net.hosts[VICTIM].listen_as(port(transport), 100, 100, endpoint(transport));
    }
    net.hosts[VICTIM].region(SINK.0, 1 << 16, Access::REMOTE_WRITE);
    net.run_until_idle();
    net
}

/// Opens a stream to the victim, which serves it with `service`.
fn open(
    net: &mut Net,
    from: usize,
    transport: Transport,
    ulp: &UlpConfig,
    service: Service,
) -> StreamId {
    net.hosts[from].command(0, |ticket| {
        Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket,
            interface: InterfaceId(0),
            local: None,
            remote: (v4(2), port(transport)).into(),
            endpoint: endpoint(transport),
            ulp: ulp.clone(),
            service: Service::Control,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        }))
    });
    let stream = net.run_until("a request", |net| {
        net.hosts[VICTIM].take_event(|e| match e {
            Event::Incoming { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    let (ulp, private_data) = (ulp.clone(), Vec::new());
    net.hosts[VICTIM].command(0, |_| Command::Accept {
        stream,
        pd: PD,
        private_data,
        ulp,
        service,
    });
    net.run_until("a stream", |net| {
        net.hosts[from].take_event(|e| match e {
            Event::Established { stream, .. } => Some(*stream),
            Event::ConnectFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    })
}

/// Builds an ARP request and an ICMP echo request from host 3 to host 2.
fn arp_and_echo_requests() -> [TestFrame; 2] {
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 3, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.extend([2, 0, 0, 0, 0, 3, 10, 0, 0, 3, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    let mut echo = vec![8, 0, 0, 0, 0, 1, 0, 1];
    let sum = !crate::checksum::sum(&echo);
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let host = Host::new(&Plan::new(3));
    let (interface, to) = (host.cores[0].env.network.interface(0), [2, 0, 0, 0, 0, 2]);
    let mut frame = Vec::new();
    let protocol = IpProtocol::Icmp;
    let header = IpHeader { source: v4(3), destination: v4(2), protocol, hop_limit: 64 };
    write_ip_frame(&mut frame, interface, to, header, echo.len(), |p| p.copy_from_slice(&echo));
    [TestFrame::new(arp), TestFrame::new(frame)]
}

/// Returns the number of tagged messages of this length that the victim has reported so far.
fn delivered_count(net: &Net, wanted: u64) -> usize {
    let found =
        |e: &&(usize, Event)| matches!(e.1, Event::TaggedDelivered { len, .. } if len == wanted);
    net.hosts[VICTIM].events.iter().filter(found).count()
}

/// Posts messages of the flood, at most 200 unfinished and [`FLOOD`] in all. Runs one turn of the hosts, and counts
/// finished messages in `sent`.
fn post_flood(net: &mut Net, stream: StreamId, flood: Flood, posted: &mut usize, sent: &mut usize) {
    while *posted < FLOOD && *posted - *sent < 200 {
        flood.post(net, stream);
        *posted += 1;
    }
    net.turn();
    for (_, event) in std::mem::take(&mut net.hosts[FLOODER].events) {
        match event {
            Event::Sent { .. } | Event::Completed { .. } => *sent += 1,
            Event::PostFailed { reason, .. } => panic!("{flood:?}: {reason}"),
            _ => {}
        }
    }
}

/// Writes `len` bytes from the other host over an established stream, and waits for the acknowledgement.
fn write(net: &mut Net, stream: StreamId, source: &Memory, to: Stag, len: usize) {
    let ticket = net.hosts[OTHER].write(stream, (SOURCE, source), to, len as u32);
    net.wait_sent(OTHER, ticket);
}

#[test]
fn message_flood_pauses_only_its_own_stream() {
    for flood in Flood::ALL {
        let len = 100_000;
        let mut net = scene(RING);
        let flooding = open(&mut net, FLOODER, flood.transport(), &flood.ulp(), Service::Region);
        let plain = stream_config().into();
        let others = [Transport::Tcp, Transport::Sctp]
            .map(|transport| open(&mut net, OTHER, transport, &plain, Service::Control));
        let source = net.hosts[OTHER].region(SOURCE.0, len, Access::NONE);
        source.write(0, &pattern(len));
        let sinks = [1, 2].map(|n| net.hosts[VICTIM].region(n, len, Access::REMOTE_WRITE));
        net.run_until_idle();
        net.hosts[VICTIM].events.clear();
        net.hosts[FLOODER].events.clear();

        net.hosts[VICTIM].takes_events = false;
        let (mut posted, mut sent) = (0, 0);
        for _ in 0..2000 {
            post_flood(&mut net, flooding, flood, &mut posted, &mut sent);
        }
        // ARP and echo requests are still answered, and other streams still served.
        let (before, answers) = (net.hosts[VICTIM].count("echo_replies"), "neighbour_answers");
        let resolved = net.hosts[VICTIM].count(answers);
        arp_and_echo_requests().into_iter().for_each(|frame| net.hosts[VICTIM].deliver(frame));
        net.advance(Duration::from_millis(1));
        assert_eq!(net.hosts[VICTIM].count("echo_replies"), before + 1, "{flood:?}");
        assert_eq!(net.hosts[VICTIM].count(answers), resolved + 1, "{flood:?}");
        for (n, stream) in others.into_iter().enumerate() {
            write(&mut net, stream, &source, Stag(n as u32 + 1), len);
            assert!(read_memory(&sinks[n]) == pattern(len), "{flood:?}");
        }
        // The number of queued events of the flood is bounded.
        assert_eq!(net.hosts[VICTIM].count("streams_waiting"), 1, "{flood:?}");
        assert!(sent < FLOOD / 4, "{flood:?}: the peer is slowed, {sent}");
        let core = &net.hosts[VICTIM].cores[0];
        assert!(
            core.env.control.backlog() <= MIN_CREDIT as usize + 2,
            "{}",
            core.env.control.backlog()
        );
        let pending = core.streams().map(|endpoint| endpoint.pending_events()).max();
        assert!(pending.is_none_or(|n| n <= EVENT_BATCH + 1460 / 20), "{flood:?}: {pending:?}");
        net.advance(Duration::from_secs(3));
        assert!(net.hosts[VICTIM].cores[0].env.control.backlog() <= MIN_CREDIT as usize + 2);

        // No message is lost, and the flood continues after the pause.
        net.hosts[VICTIM].takes_events = true;
        net.run_until("the rest", |net| {
            post_flood(net, flooding, flood, &mut posted, &mut sent);
            (sent == FLOOD && delivered_count(net, flood.len()) == FLOOD).then_some(())
        });
        net.run_until_idle();
        assert_eq!(delivered_count(&net, flood.len()), FLOOD, "{flood:?}: each once");
        assert_eq!(delivered_count(&net, len as u64), 2, "{flood:?}");
        assert_eq!(net.hosts[VICTIM].count("streams_waiting"), 0, "{flood:?}");
    }
}

/// Only the flooding session of an association is paused. The shared receive window closes (RFC 9260 §6.2), and refused
/// data fill the peer's congestion window. Both sessions continue once the control thread reads events again.
#[test]
fn paused_session_resumes_with_others_of_its_association() {
    let mut net = scene(RING);
    let (flood, len) = (Flood::Ddp(Transport::Sctp), 10_000);
    let config = endpoint(Transport::Sctp);
    let streams = [0, 1].map(|_| {
        let remote = (v4(2), port(Transport::Sctp)).into();
        net.open_as(FLOODER, 0, VICTIM, remote, config.clone()).0
    });
    assert_eq!(net.hosts[VICTIM].count("associations"), 1);
    let source = net.hosts[FLOODER].region(SOURCE.0, len, Access::NONE);
    source.write(0, &pattern(len));
    let sink = net.hosts[VICTIM].region(1, len, Access::REMOTE_WRITE);
    net.run_until_idle();
    net.hosts[VICTIM].events.clear();
    net.hosts[VICTIM].takes_events = false;
    let (mut posted, mut sent) = (0, 0);
    for _ in 0..500 {
        post_flood(&mut net, streams[0], flood, &mut posted, &mut sent);
    }
    assert_eq!(net.hosts[VICTIM].count("streams_waiting"), 1);
    net.hosts[FLOODER].write(streams[1], (SOURCE, &source), Stag(1), len as u32);
    // Time advances in each turn: without delay on the wire, refused data would be retransmitted at once.
    for _ in 0..20_000 {
        net.turn();
        net.now += Duration::from_micros(100);
    }
    assert_eq!(net.hosts[VICTIM].count("streams_waiting"), 1);
    net.hosts[VICTIM].takes_events = true;
    let rest = posted;
    net.run_until("the rest", |net| {
        (delivered_count(net, 0) == rest && delivered_count(net, len as u64) == 1).then_some(())
    });
    assert!(read_memory(&sink) == pattern(len));
}

/// A paused stream that ends still delivers all of its events, the end last.
#[test]
fn paused_stream_that_ends_delivers_all_its_events() {
    for (transport, abort) in
        [(Transport::Tcp, false), (Transport::Tcp, true), (Transport::Sctp, true)]
    {
        let mut net = scene(RING);
        let flood = Flood::Ddp(transport);
        let stream = open(&mut net, FLOODER, transport, &flood.ulp(), Service::Control);
        net.run_until_idle();
        net.hosts[VICTIM].events.clear();
        net.hosts[VICTIM].takes_events = false;
        let (mut posted, mut sent) = (0, 0);
        for _ in 0..300 {
            post_flood(&mut net, stream, flood, &mut posted, &mut sent);
        }
        net.hosts[FLOODER].command(0, |_| Command::Close { stream, abort });
        net.advance(Duration::from_secs(1));
        let closed = |e: &Event| matches!(e, Event::Closed { .. });
        assert_eq!(net.hosts[VICTIM].take_event(|e| closed(e).then_some(())), None);
        net.hosts[VICTIM].takes_events = true;
        let at = net.run_until("the end", |net| {
            net.hosts[VICTIM].events.iter().position(|(_, e)| closed(e))
        });
        net.run_until_idle();
        let events = &net.hosts[VICTIM].events;
        let is_association = |e: &(usize, Event)| matches!(e.1, Event::AssociationClosed { .. });
        assert!(events[at + 1..].iter().all(is_association), "{transport:?}: the end is last");
        let count = delivered_count(&net, 0);
        assert!((sent..=posted).contains(&count), "{transport:?}: {sent} {count} {posted}");
    }
}

/// Peers that open associations in quick succession cause events, even if no stream is accepted. New associations are
/// refused while the event ring is nearly full.
#[test]
fn short_lived_associations_do_not_fill_the_event_ring() {
    let mut net = scene(RING);
    net.hosts[VICTIM].takes_events = false;
    for _ in 0..200 {
        let remote = (v4(2), port(Transport::Sctp)).into();
        let ticket = net.hosts[FLOODER].connect_as(0, remote, endpoint(Transport::Sctp));
        net.advance(Duration::from_millis(20));
        let opened = net.hosts[FLOODER].take_event(|e| match e {
            Event::Established { stream, ticket: Some(t), .. } if *t == ticket => Some(*stream),
            _ => None,
        });
        assert_eq!(opened, None, "no stream is accepted");
    }
    net.advance(Duration::from_secs(60));
    assert!(net.hosts[VICTIM].count("event_ring") > 0, "cookies are refused");
    assert!(
        net.hosts[VICTIM].cores[0].env.control.backlog() <= 110,
        "events of the existing streams only"
    );
}

//! RDMAP between two workers: operations, services of the worker, start and end of streams.

mod regions;
mod services;

use std::net::SocketAddr;
use std::time::Duration;

use base::ErrorNumbers;
use ddp::rdmap::{self, AtomicOp, Outcome, WorkRequest};
use ddp::{Access, Cookie, RegionMemory, Source, Stag, StreamId, TaggedOffset};
use tcp_lite::endpoint::{CloseReason, EndpointConfig, TcpReason, UlpConfig};
use tcp_lite::mpa::{self, Enhanced, EnhancedRepr, Revision, Revisions, RtrSet};

use super::test_host::*;
use crate::api::{self, Command, Connect, ConnectError, Event, InterfaceId, Limits, PostFailure};
use crate::api::{Service, SourceRemoval, Ticket};
use crate::memory::Memory;

const PORT: u16 = 4792;
const REGION: Stag = Stag(0x4100);
const LOCAL: Stag = Stag(0x4200);
const LEN: usize = 1 << 20;

fn ulp() -> UlpConfig {
    rdmap::Config { ird: 4, ord: 4, recv_buffers: 8, ..rdmap::Config::default() }.into()
}

fn mpa() -> mpa::Config {
    mpa::Config { initiate: Revision::Two, ..mpa::Config::default() }
}

fn endpoint(mpa: mpa::Config) -> EndpointConfig {
    EndpointConfig { mpa, ..EndpointConfig::default() }
}

/// Two hosts with a region each.
struct Bench {
    net: Net,
    local: Memory,
    remote: Memory,
    /// Regions that are bound to the streams opened next.
    stags: Vec<Stag>,
}

fn bench() -> Bench {
    bench_with(Limits::default())
}

/// Creates two hosts with a region each. The second host has these limits.
fn bench_with(limits: Limits) -> Bench {
    let mut net = Net::new(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC;
    let remote = net.hosts[1].region(REGION.0, LEN, rights);
    let local = net.hosts[0].region(LOCAL.0, LEN, Access::NONE);
    net.hosts[1].listen_as(PORT, 100, 100, endpoint(mpa()));
    Bench { net, local, remote, stags: Vec::new() }
}

fn connect(net: &mut Net, mpa: mpa::Config) -> Ticket {
    connect_with(net, mpa, &[])
}

fn connect_with(net: &mut Net, mpa: mpa::Config, stags: &[Stag]) -> Ticket {
    net.hosts[0].command(0, |ticket| {
        Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket,
            interface: InterfaceId(0),
            local: None,
            remote: SocketAddr::new(v4(2), PORT),
            endpoint: endpoint(mpa).into(),
            ulp: ulp(),
            service: Service::Control,
            pd: PD,
            stags: stags.to_vec(),
            private_data: b"hello".to_vec(),
            timeout: Duration::from_secs(20),
        }))
    })
}

impl Bench {
    /// Opens a stream whose end at the second host has this service.
    fn open(&mut self, service: Service) -> (StreamId, StreamId) {
        self.open_with(mpa(), service)
    }

    fn open_with(&mut self, mpa: mpa::Config, service: Service) -> (StreamId, StreamId) {
        self.open_as(mpa, ulp(), service)
    }

    fn open_as(
        &mut self,
        mpa: mpa::Config,
        ulp: UlpConfig,
        service: Service,
    ) -> (StreamId, StreamId) {
        connect_with(&mut self.net, mpa, &self.stags);
        let there = self.net.run_until("a request", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Incoming { stream, .. } => Some(*stream),
                _ => None,
            })
        });
        let (pd, private_data) = (PD, b"welcome".to_vec());
        let accept = Command::Accept { stream: there, pd, private_data, ulp, service };
        self.net.hosts[1].command(there.worker().into(), |_| accept);
        let here = self.net.run_until("both ends", |net| {
            net.hosts[0].take_event(|e| match e {
                Event::Established { stream, ticket: Some(_), .. } => Some(*stream),
                Event::ConnectFailed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        });
        (here, there)
    }

    fn post(&mut self, stream: StreamId, request: WorkRequest<Memory>) -> Ticket {
        let region = match &request {
            WorkRequest::Read { .. } => Some(LOCAL),
            _ => None,
        };
        let worker = stream.worker().into();
        self.net.hosts[0].command(worker, |ticket| Command::PostRdmap {
            stream,
            request,
            region,
            ticket,
        })
    }

    fn wait_outcome(&mut self, ticket: Ticket) -> Outcome {
        self.net.run_until("a completion", |net| {
            net.hosts[0].take_event(|e| match e {
                Event::Completed { ticket: t, outcome, .. } if *t == ticket => Some(*outcome),
                Event::PostFailed { ticket: t, reason, .. } if *t == ticket => panic!("{reason}"),
                _ => None,
            })
        })
    }

    /// Waits for the next Send that a host reports. Returns its data.
    fn wait_received(&mut self, host: usize) -> Vec<u8> {
        self.net.run_until("a Send", |net| {
            net.hosts[host].take_event(|e| match e {
                Event::Received { data, .. } => Some(data.clone()),
                _ => None,
            })
        })
    }

    fn wait_end(&mut self, host: usize) -> CloseReason {
        self.net.run_until("the end", |net| {
            net.hosts[host].take_event(|e| match e {
                Event::Closed { reason: api::CloseReason::Tcp(reason), .. } => Some(reason.clone()),
                _ => None,
            })
        })
    }
}

fn send_request(bytes: &[u8]) -> WorkRequest<Memory> {
    let source = Source::Bytes(bytes.into());
    WorkRequest::send(source, Cookie::user(0))
}

fn read_request(len: u32) -> WorkRequest<Memory> {
    WorkRequest::Read {
        sink_stag: LOCAL,
        sink_to: TaggedOffset(0),
        source_stag: REGION,
        source_to: TaggedOffset(0),
        len,
        cookie: Cookie::user(0),
    }
}

// Data of RDMA Read Responses are always copied, regardless of the access rights of their region. The peer determines
// how much it reads, and the worker's budget bounds the copies.
#[test]
fn copies_of_read_responses_stay_within_budget() {
    const BUDGET: usize = 64 << 10;
    let max_kept_with = |keep_bytes| {
        let mut b = bench_with(Limits { keep_bytes, ..Limits::default() });
        b.remote.write(0, &pattern(LEN));
        let streams: Vec<_> = (0..3).map(|_| b.open(Service::Control).0).collect();
        let reads: Vec<_> =
            streams.into_iter().map(|here| b.post(here, read_request(LEN as u32))).collect();
        for ticket in reads {
            assert_eq!(b.wait_outcome(ticket), Outcome::Read { len: LEN as u32 });
        }
        assert!(read_memory(&b.local) == pattern(LEN));
        b.net.advance(Duration::from_secs(1));
        assert_eq!(b.net.hosts[1].count("kept_bytes"), 0);
        b.net.hosts[1].count("kept_bytes_max") as usize
    };
    let bounded = max_kept_with(BUDGET);
    assert!(bounded <= BUDGET + 3 * 1500, "{bounded}");
    let wide = max_kept_with(64 << 20);
    assert!(wide > BUDGET + 3 * 1500, "{wide}");
}

#[test]
fn every_rdmap_operation_completes_between_workers() {
    let mut b = bench();
    let (here, there) = b.open(Service::Control);
    b.local.write(0, &pattern(LEN));
    let source = Source::Region { memory: b.local.clone(), offset: 0, len: LEN as u32 };
    let to = TaggedOffset(0);
    let write =
        b.post(here, WorkRequest::Write { stag: REGION, to, source, cookie: Cookie::user(0) });
    let op = AtomicOp::swap(77);
    let swap = WorkRequest::Atomic {
        op,
        stag: REGION,
        to: TaggedOffset(LEN as u64 - 8),
        cookie: Cookie::user(0),
    };
    let swap = b.post(here, swap);
    let immediate =
        WorkRequest::Immediate { data: [5; 8], solicited: true, cookie: Cookie::user(0) };
    let immediate = b.post(here, immediate);
    let last = b.post(here, send_request(b"all of it"));
    assert_eq!(b.wait_outcome(write), Outcome::Written);
    let before: [u8; 8] = pattern(LEN)[LEN - 8..].try_into().expect("8 bytes");
    let original = u64::from_ne_bytes(before);
    assert_eq!(b.wait_outcome(swap), Outcome::Atomic { original });
    assert_eq!(b.wait_outcome(immediate), Outcome::Sent);
    assert_eq!(b.wait_outcome(last), Outcome::Sent);
    let found = b.net.run_until("the immediate data", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Immediate { stream, data, solicited } => Some((*stream, *data, *solicited)),
            _ => None,
        })
    });
    assert_eq!(found, (there, [5; 8], true));
    assert_eq!(b.wait_received(1), b"all of it");
    // The service of this stream does not report RDMA Writes.
    assert!(!b.net.hosts[1].events.iter().any(|(_, e)| matches!(e, Event::TaggedDelivered { .. })));
    let back = b.post(here, read_request(LEN as u32));
    assert_eq!(b.wait_outcome(back), Outcome::Read { len: LEN as u32 });
    let mut expected = pattern(LEN);
    expected[LEN - 8..].copy_from_slice(&77_u64.to_ne_bytes());
    assert!(read_memory(&b.local) == expected && read_memory(&b.remote) == expected);
}

#[test]
fn large_read_does_not_delay_other_streams() {
    let mut b = bench();
    let (reader, _) = b.open(Service::Echo);
    let (other, _) = b.open(Service::Echo);
    b.remote.write(0, &pattern(LEN));
    let reads: Vec<Ticket> = (0..4).map(|_| b.post(reader, read_request(LEN as u32))).collect();
    let mut rounds = 0;
    while !b.net.hosts[0]
        .events
        .iter()
        .any(|(_, e)| matches!(e, Event::Completed { ticket, .. } if *ticket == reads[0]))
    {
        b.post(other, send_request(b"ping"));
        assert_eq!(b.wait_received(0), b"ping");
        b.net.hosts[0].command(0, |_| Command::PostBuffers {
            stream: other,
            qn: ddp::Qn(0),
            buffers: 1,
        });
        rounds += 1;
    }
    assert!(rounds >= 3, "{rounds} rounds while a Read of 1 MiB ran");
    for ticket in reads {
        assert_eq!(b.wait_outcome(ticket), Outcome::Read { len: LEN as u32 });
    }
    assert!(read_memory(&b.local) == pattern(LEN));
}

#[test]
fn mpa_request_fields_reach_the_control_thread() {
    let mut b = bench();
    let enhanced = Enhanced { peer_to_peer: true, rtr: RtrSet::ALL, required_ord: 0 };
    connect(&mut b.net, mpa::Config { enhanced, ..mpa() });
    let found = b.net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { revision, enhanced, private_data, .. } => {
                Some((*revision, *enhanced, private_data.clone()))
            }
            _ => None,
        })
    });
    let enhanced = Some(EnhancedRepr { ird: 4, ord: 4, rtr: Some(RtrSet::ALL) });
    assert_eq!(found, (Some(Revision::Two), enhanced, b"hello".to_vec()));
}

#[test]
fn responder_sends_first_in_peer_to_peer_mode() {
    for rtr in [
        RtrSet { send: true, ..RtrSet::default() },
        RtrSet { write: true, ..RtrSet::default() },
        RtrSet { read: true, ..RtrSet::default() },
    ] {
        let mut b = bench();
        let enhanced = Enhanced { peer_to_peer: true, rtr, required_ord: 0 };
        let (_, there) = b.open_with(mpa::Config { enhanced, ..mpa() }, Service::Control);
        b.net.run_until("the responder", |net| {
            net.hosts[1].take_event(|e| matches!(e, Event::Established { .. }).then_some(()))
        });
        b.net.hosts[1].command(there.worker().into(), |ticket| Command::PostRdmap {
            stream: there,
            request: send_request(b"first"),
            region: None,
            ticket,
        });
        assert_eq!(b.wait_received(0), b"first");
        let delivered = |e: &Event| matches!(e, Event::Received { .. } | Event::Completed { .. });
        assert!(!b.net.hosts[0].events.iter().any(|(_, e)| delivered(e)));
        assert!(!b.net.hosts[1].events.iter().any(|(_, e)| matches!(e, Event::Received { .. })));
    }
}

#[test]
fn connect_falls_back_to_mpa_revision_one() {
    for retry_rev1 in [true, false] {
        let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
        let revisions = Revisions { one: true, ..Revisions::NONE };
        net.hosts[1].listen_as(PORT, 10, 10, endpoint(mpa::Config { revisions, ..mpa() }));
        let ticket = connect(&mut net, mpa::Config { retry_rev1, ..mpa() });
        if !retry_rev1 {
            let reason = net.run_until("the refusal", |net| {
                net.hosts[0].take_event(|e| match e {
                    Event::ConnectFailed { ticket: t, reason } if *t == ticket => {
                        Some(reason.clone())
                    }
                    _ => None,
                })
            });
            assert_eq!(
                reason,
                ConnectError::Closed(CloseReason::Lower(TcpReason::PeerReset).into())
            );
            continue;
        }
        let retrying = net.run_until("the second attempt", |net| {
            net.hosts[0].take_event(|e| match e {
                Event::Retrying { ticket, reason } => Some((*ticket, reason.clone())),
                _ => None,
            })
        });
        assert_eq!(retrying, (ticket, CloseReason::Lower(TcpReason::PeerReset).into()));
        let revision = net.run_until("a request", |net| {
            net.hosts[1].take_event(|e| match e {
                Event::Incoming { revision, enhanced: None, stream, .. } => {
                    Some((*revision, *stream))
                }
                _ => None,
            })
        });
        assert_eq!(revision.0, Some(Revision::One));
        let (pd, private_data, service) = (PD, Vec::new(), Service::Echo);
        let accept = Command::Accept { stream: revision.1, pd, private_data, ulp: ulp(), service };
        net.hosts[1].command(0, |_| accept);
        let params = net.run_until("the stream", |net| {
            net.hosts[0].take_event(|e| match e {
                Event::Established { ticket: Some(t), params, .. } if *t == ticket => Some(*params),
                _ => None,
            })
        });
        assert_eq!((params.revision(), params.agreed()), (Some(Revision::One), None));
        net.advance(Duration::from_secs(1));
        assert_eq!(net.hosts[0].count("streams"), 1);
    }
}

#[test]
fn out_of_bounds_write_terminates_only_its_stream() {
    let mut b = bench();
    let (wrong, there) = b.open(Service::Echo);
    let (good, _) = b.open(Service::Echo);
    let source = Source::Bytes([1; 4].into());
    let to = TaggedOffset(LEN as u64 - 2);
    b.post(wrong, WorkRequest::Write { stag: REGION, to, source, cookie: Cookie::user(0) });
    let error = b.net.run_until("the error", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::RdmapError { stream, error } if *stream == there => Some(error.clone()),
            _ => None,
        })
    });
    assert!(matches!(error, rdmap::Error::Ddp(_)), "{error}");
    let found = |e: &Event| match e {
        Event::Terminated { by_peer, terminate, .. } => {
            Some((*by_peer, (terminate.layer, terminate.error_type, terminate.code)))
        }
        _ => None,
    };
    let sent = b.net.run_until("the Terminate", |net| net.hosts[1].take_event(found));
    let received = b.net.run_until("the Terminate", |net| net.hosts[0].take_event(found));
    assert_eq!((sent, received), ((false, (1, 1, 1)), (true, (1, 1, 1))));
    assert_eq!(b.wait_end(0).numbers(), Some(ErrorNumbers::new(1, 1, 1)));
    assert_eq!(b.wait_end(1).numbers(), Some(ErrorNumbers::new(1, 1, 1)));
    assert_eq!(read_memory(&b.remote)[LEN - 2..], [0, 0]);
    b.post(good, send_request(b"still here"));
    assert_eq!(b.wait_received(0), b"still here");
}

#[test]
fn invalid_rdmap_posts_are_refused_with_reason() {
    let mut b = bench();
    let (here, _) = b.open(Service::Control);
    let refused = |b: &mut Bench, ticket: Ticket| {
        b.net.run_until("the refusal", |net| {
            net.hosts[0].take_event(|e| match e {
                Event::PostFailed { ticket: t, reason, .. } if *t == ticket => Some(reason.clone()),
                _ => None,
            })
        })
    };
    let (stream, request, region) = (here, send_request(b"x"), Some(Stag(9)));
    let ticket =
        b.net.hosts[0].command(0, |ticket| Command::PostRdmap { stream, request, region, ticket });
    assert_eq!(refused(&mut b, ticket), PostFailure::NoRegion);
    let ticket = b.post(StreamId(u64::from(u32::MAX)), send_request(b"x"));
    assert_eq!(refused(&mut b, ticket), PostFailure::NoStream);
    let ticket = b.net.hosts[0].send(here, b"bare");
    assert_eq!(refused(&mut b, ticket), PostFailure::Refused(ddp::PostError::OtherUlp));
}

#[test]
fn accept_with_too_long_private_data_is_a_local_error() {
    let mut b = bench();
    connect(&mut b.net, mpa());
    let stream = b.net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    let (pd, private_data, service) = (PD, vec![0; 509], Service::Control);
    let accept = Command::Accept { stream, pd, private_data, ulp: ulp(), service };
    b.net.hosts[1].command(0, |_| accept);
    let reason = b.wait_end(1);
    assert_eq!(reason, CloseReason::Lower(TcpReason::Startup(mpa::StartupError::Local)));
    assert_eq!(reason.numbers(), Some(ErrorNumbers::new(2, 0, 5)));
}

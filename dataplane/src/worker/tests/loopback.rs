//! Connections between two addresses of one appliance. Both ends are streams of one worker, and the device sends none
//! of their frames.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory as _, Stag, StreamId};
use verbs_layout::work::{Carried, Completed, Completion, Opcode, Operation, Status};

use super::ipsec;
use super::sctp;
use super::test_host::*;
use super::test_program::*;
use crate::api::{
    Command, Connect, ConnectError, Event, InterfaceId, PortId, ProgramId, Service, Transport,
};
use crate::capture::{Direction, Filter, pair};

const PORT: u16 = 4791;
const SINK: Stag = Stag(0x1234);
const SOURCE: Stag = Stag(0x77);

/// Creates a host that listens on all of its addresses and whose announcements have ended.
fn host(change: impl FnOnce(&mut Plan)) -> Net {
    let mut plan = Plan::new(1);
    change(&mut plan);
    let mut net = Net::new(&[plan]);
    net.hosts[0].listen(PORT);
    net.hosts[0].listen_as(sctp::PORT, 100, 100, sctp::config());
    net.advance(Duration::from_secs(5));
    net
}

/// Writes `len` bytes over a stream, waits for the acknowledgement, and compares.
fn write(net: &mut Net, stream: StreamId, len: usize) {
    let sink = net.hosts[0].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    source.write(0, &pattern(len));
    net.run_until_idle();
    let ticket = net.hosts[0].write(stream, (SOURCE, &source), SINK, len as u32);
    net.wait_sent(0, ticket);
    let mut placed = vec![0; len];
    sink.read(0, &mut placed);
    assert!(placed == pattern(len), "other bytes");
    for stag in [SINK, SOURCE] {
        let ticket = net.hosts[0].command(0, |ticket| Command::RemoveStag {
            stag,
            removal: crate::api::SourceRemoval::Abort,
            ticket,
        });
        assert_eq!(net.wait_done(0, ticket), Ok(()));
    }
}

/// Closes both ends, and asserts that all state of the connection is freed.
fn close(net: &mut Net, here: StreamId) {
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
    net.advance(Duration::from_secs(300));
    for gauge in ["streams", "associations", "half_open", "kept_bytes"] {
        assert_eq!(net.hosts[0].count(gauge), 0, "{gauge}");
    }
}

/// Asserts that frames were sent since `before` (`tx_frames`, `looped_frames`), and that all of them were looped back.
fn assert_nothing_sent(net: &Net, before: [u64; 2]) {
    let [sent, looped] = ["tx_frames", "looped_frames"].map(|name| net.hosts[0].count(name));
    assert!(looped > before[1]);
    assert_eq!(sent - before[0], looped - before[1]);
}

fn counts(net: &Net) -> [u64; 2] {
    ["tx_frames", "looped_frames"].map(|name| net.hosts[0].count(name))
}

#[test]
fn own_address_is_reached_without_a_frame_on_the_wire() {
    for (transport, address) in [
        (Transport::Tcp, v4(1)),
        (Transport::Tcp, v6(1)),
        (Transport::Sctp, v4(1)),
        (Transport::Sctp, v6(1)),
    ] {
        let mut net = host(|plan| plan.vlan = address.is_ipv6().then_some(9));
        let wire = net.record_frames_from(0);
        let before = counts(&net);
        let (port, endpoint) = match transport {
            Transport::Tcp => (PORT, tcp_lite::endpoint::EndpointConfig::default().into()),
            Transport::Sctp => (sctp::PORT, sctp::config().into()),
        };
        let remote = SocketAddr::new(address, port);
        let ulp = stream_config().into();
        let (here, there) = net.open_ulp((0, 0), 0, remote, endpoint, ulp);
        write(&mut net, here, 3_000_000);
        write(&mut net, there, 100_000);
        close(&mut net, here);
        assert_nothing_sent(&net, before);
        assert_eq!(wire.borrow().len(), 0, "{transport:?} {address}");
        for drop in ["l4_checksum", "bad_source", "not_our_address"] {
            assert_eq!(net.hosts[0].count(drop), 0, "{drop}");
        }
    }
}

fn failure(net: &mut Net) -> ConnectError {
    net.run_until("a failure", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::ConnectFailed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    })
}

#[test]
fn unused_port_of_own_address_refuses_at_once() {
    for shared in [false, true] {
        let mut net = host(|plan| plan.shared = shared);
        let wire = net.record_frames_from(0);
        let begin = net.now;
        net.hosts[0].connect(0, (v4(1), 9).into());
        assert!(matches!(failure(&mut net), ConnectError::Closed(_)));
        net.hosts[0].connect_as(0, (v6(1), 9).into(), sctp::config());
        assert!(matches!(failure(&mut net), ConnectError::Closed(_)));
        assert_eq!((net.now - begin, wire.borrow().len()), (Duration::ZERO, 0));
        let kernel = net.hosts[0].kernel.as_mut().and_then(|kernel| kernel.pop());
        assert!(kernel.is_none(), "the kernel gets no looped frame");
    }
}

#[test]
fn full_transmit_ring_does_not_stop_looped_frames() {
    let mut net = host(|_| {});
    net.hosts[0].cores[0].port_mut(0).room = 0;
    let (here, _) = net.open(0, 0, 0, (v4(1), PORT).into());
    write(&mut net, here, 1_000_000);
    close(&mut net, here);
}

#[test]
fn many_streams_share_the_loopback_queue() {
    let mut net = host(|_| {});
    let streams: Vec<StreamId> =
        (0..64).map(|_| net.open(0, 0, 0, (v4(1), PORT).into()).0).collect();
    let len = 200_000;
    let sink = net.hosts[0].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    source.write(0, &pattern(len));
    net.run_until_idle();
    let tickets: Vec<_> = streams
        .iter()
        .map(|&stream| net.hosts[0].write(stream, (SOURCE, &source), SINK, len as u32))
        .collect();
    for ticket in tickets {
        net.wait_sent(0, ticket);
    }
    let mut placed = vec![0; len];
    sink.read(0, &mut placed);
    assert!(placed == pattern(len), "other bytes");
}

#[test]
fn every_worker_serves_both_ends_of_its_connections() {
    let mut net = host(|plan| plan.workers = 3);
    for worker in 0..3 {
        let (here, there) = net.open(0, worker, 0, (v4(1), PORT).into());
        let workers = [here, there].map(|stream| usize::from(stream.worker()));
        assert_eq!(workers, [worker; 2]);
    }
    assert_eq!(net.hosts[0].count("mesh_out"), 0);
}

#[test]
fn capture_has_each_looped_frame_once() {
    let mut net = host(|_| {});
    let filter = Arc::new(Filter::parse("").unwrap());
    let (tap, mut reader) = pair(filter, 65_535, 4 << 20, || 0);
    let tap = Some(Box::new(tap));
    let port = PortId(0);
    let ticket = net.hosts[0].command(0, |ticket| Command::Capture { port, tap, ticket });
    assert_eq!(net.wait_done(0, ticket), Ok(()));
    let (here, _) = net.open(0, 0, 0, (v4(1), PORT).into());
    write(&mut net, here, 10_000);
    let records: Vec<_> = std::iter::from_fn(|| reader.next_record()).collect();
    assert_eq!(records.len() as u64, net.hosts[0].count("looped_frames"));
    assert!(records.iter().all(|record| record.direction == Direction::Out));
}

#[test]
fn ipsec_policies_do_not_apply_inside_the_appliance() {
    for address in [v4(1), v6(1)] {
        let mut net = host(|plan| plan.ipsec = Some(ipsec::config(ipsec::PLAIN, 1, 1)));
        net.hosts[0].require = Some(256);
        net.hosts[0].listen(PORT + 1);
        net.hosts[0].listen_as(sctp::PORT + 1, 100, 100, sctp::config());
        net.run_until_idle();
        let wire = net.record_frames_from(0);
        let (here, _) = net.open(0, 0, 0, (address, PORT + 1).into());
        write(&mut net, here, 100_000);
        let remote = (address, sctp::PORT + 1).into();
        let (here, _) = net.open_as(0, 0, 0, remote, sctp::config());
        write(&mut net, here, 100_000);
        // Longer than the 60 s after which a connection without its required protection ends.
        net.advance(Duration::from_secs(100));
        write(&mut net, here, 100);
        assert_eq!((wire.borrow().len(), net.hosts[0].count("ipsec_sealed")), (0, 0));
    }
}

/// Connects the QP of `a` to a listener of `b`, another program of the same host.
fn connect(net: &mut Net, a: &TestProgram, b: &TestProgram, remote: SocketAddr, over: Transport) {
    let service = Service::Program(a.id());
    net.hosts[0].command(0, |ticket| {
        Command::Connect(Box::new(Connect {
            ip: Default::default(),
            ticket,
            interface: InterfaceId(0),
            local: None,
            remote,
            endpoint: endpoint(over),
            ulp: ulp(),
            service,
            pd: PD,
            stags: Vec::new(),
            private_data: b"hello".to_vec(),
            timeout: Duration::from_secs(20),
        }))
    });
    let there = net.run_until("a request", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Incoming { stream, private_data, .. } => {
                assert_eq!(private_data, b"hello");
                Some(*stream)
            }
            _ => None,
        })
    });
    let (private_data, service) = (b"welcome".to_vec(), Service::Program(b.id()));
    let accept = Command::Accept { stream: there, pd: PD, private_data, ulp: ulp(), service };
    net.hosts[0].command(0, |_| accept);
    net.run_until("both ends", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Established { ticket: Some(_), .. } => Some(()),
            Event::ConnectFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    });
    net.run_until_idle();
}

fn success(wr_id: u64, completed: Completed, byte_len: u32) -> Completion {
    Completion { wr_id, status: Status::Success, completed, byte_len, qp_number: 3 }
}

#[test]
fn two_programs_of_one_host_exchange_all_operations() {
    let addresses: [IpAddr; 2] = [v4(1), v6(1)];
    for (over, address) in [Transport::Tcp, Transport::Sctp]
        .into_iter()
        .flat_map(|over| addresses.map(|address| (over, address)))
    {
        let mut net = Net::new(&[Plan::new(1)]);
        net.advance(Duration::from_secs(5));
        let plan = PairPlan::default();
        let mut a = TestProgram::attach_as(&mut net, 0, plan, ProgramId(7));
        let mut b = TestProgram::attach_as(&mut net, 0, plan, ProgramId(8));
        net.hosts[0].listen_as(PORT, 10, 10, endpoint(over));
        b.receive(20, &[(0, 5000)]);
        let before = counts(&net);
        connect(&mut net, &a, &b, (address, PORT).into(), over);
        let data = pattern(150_000);
        a.write(0, &data);
        let payload = a.gather(&[(0, 150_000)]);
        a.post(1, Operation::Write { remote: b.remote(400_000), payload });
        let sinks = a.list(&[(300_000, 70_000)]);
        a.post(2, Operation::Read { remote: b.remote(400_001), sinks });
        let payload = a.gather(&[(0, 4500)]);
        a.post(3, Operation::Send { payload, solicited: true });
        let sent = [(1, Opcode::Write, 0), (2, Opcode::Read, 70_000), (3, Opcode::Send, 0)];
        for (wr_id, opcode, len) in sent {
            let completion = net.run_until("a completion", |_| a.poll());
            assert_eq!(completion, success(wr_id, Completed::Sent(opcode), len));
        }
        let received = Completed::Received { solicited: true, carried: Carried::Nothing };
        let completion = net.run_until("a receive", |_| b.poll());
        assert_eq!(completion, success(20, received, 4500));
        assert!(b.read(0, 4500) == data[..4500]);
        assert!(b.read(400_000, 150_000) == data);
        assert!(a.read(300_000, 70_000) == data[1..70_001]);
        assert_nothing_sent(&net, before);
        // The end of one program ends the connection of the other program.
        b.receive(21, &[(0, 64)]);
        net.run_until_idle();
        let program = ProgramId(7);
        let ticket = net.hosts[0].command(0, |ticket| Command::RemoveProgram { program, ticket });
        assert_eq!(net.wait_done(0, ticket), Ok(()));
        let flushed = net.run_until("the flush", |_| b.poll());
        assert_eq!((flushed.wr_id, flushed.status), (21, Status::Flushed));
    }
}

//! Paths that fragment packets or report them as too big, and off-path hosts that forge such reports.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ddp::{Access, RegionMemory, Stag, StreamId};
use smoltcp::wire::IpProtocol;

use super::test_host::*;
use crate::api::{ConnectError, Event, InterfaceId};
use crate::checksum;
use crate::net::icmp::Unreachable;
use crate::net::path::{self, IpHeader};
use crate::worker::flows::lower_layer::LowerLayer;

const PORT: u16 = 4791;
const SINK: Stag = Stag(9);
const SOURCE: Stag = Stag(8);

pub(super) type TakenFrames = Rc<RefCell<Vec<Vec<u8>>>>;

/// Records the first host's IPv4 frames of more than `len` bytes. These frames are lost.
pub(super) fn divert(net: &mut Net, len: usize) -> TakenFrames {
    let taken = TakenFrames::default();
    let recorder = taken.clone();
    net.is_lost = Box::new(move |from, frame| {
        let long = from == 0 && frame.len() > len && frame[12..14] == [8, 0];
        if long {
            recorder.borrow_mut().push(frame.to_vec());
        }
        long
    });
    taken
}

/// Builds a fragment with bytes `range` of the payload of an IPv4 frame. `more` is the More Fragments flag.
pub(super) fn fragment(
    frame: &[u8],
    id: u16,
    range: std::ops::Range<usize>,
    more: bool,
) -> TestFrame {
    let mut out = frame[..34].to_vec();
    out[16..18].copy_from_slice(&(20 + range.len() as u16).to_be_bytes());
    out[18..20].copy_from_slice(&id.to_be_bytes());
    let field = (range.start / 8) as u16 | if more { 0x2000 } else { 0 };
    out[20..22].copy_from_slice(&field.to_be_bytes());
    out[24..26].fill(0);
    let sum = !checksum::sum(&out[14..34]);
    out[24..26].copy_from_slice(&sum.to_be_bytes());
    out.extend(&frame[34..][range]);
    TestFrame::new(out)
}

/// Builds an ICMP message to the first host that quotes one of its frames: the IP header and eight bytes (RFC 792).
pub(super) fn icmp_quoting_frame(kind: u8, code: u8, mtu: u16, quoted: &[u8]) -> TestFrame {
    icmp_quoting(kind, code, mtu, &quoted[14..42])
}

/// Builds an ICMP message to the first host that quotes these bytes of a packet.
pub(super) fn icmp_quoting(kind: u8, code: u8, mtu: u16, quoted: &[u8]) -> TestFrame {
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(quoted);
    let sum = !checksum::sum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let host = Host::new(&Plan::new(2));
    let (interface, mac) = (host.cores[0].env.network.interface(0), [2, 0, 0, 0, 0, 1]);
    let protocol = IpProtocol::Icmp;
    let header = IpHeader { source: v4(2), destination: v4(1), protocol, hop_limit: 64 };
    let mut out = Vec::new();
    path::write_ip_frame(&mut out, interface, mac, header, message.len(), |p| {
        p.copy_from_slice(&message);
    });
    TestFrame::new(out)
}

fn write(net: &mut Net, stream: StreamId, len: usize) -> crate::memory::Memory {
    let sink = net.hosts[1].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    source.write(0, &pattern(len));
    net.hosts[0].write(stream, (SOURCE, &source), SINK, len as u32);
    sink
}

fn emss(net: &Net, host: usize) -> usize {
    let core = &net.hosts[host].cores[0];
    match &core.streams.iter().next().expect("a stream").lower {
        LowerLayer::Tcp(carrier) => carrier.endpoint().connection().emss(),
        LowerLayer::Sctp(_) => panic!("a stream over TCP"),
    }
}

// RFC 791 §3.2: fragments arrive at any worker, in any order. The reassembled packet reaches the owner of the stream.
#[test]
fn stream_completes_when_every_packet_is_fragmented() {
    for workers in [1, 2, 3] {
        let plan = |n| Plan { workers, ..Plan::new(n) };
        let mut net = Net::new(&[plan(1), plan(2)]);
        net.hosts[1].listen(PORT);
        let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
        net.run_until_idle();
        let taken = divert(&mut net, 800);
        let len = 200_000;
        let sink = write(&mut net, here, len);
        let mut id = 0;
        net.run_until("delivery", |net| {
            for frame in taken.borrow_mut().drain(..) {
                id += 1;
                let len = frame.len() - 34;
                net.hosts[1].deliver(fragment(&frame, id, 704..len, false));
                net.hosts[1].deliver(fragment(&frame, id, 0..104, true));
                net.hosts[1].deliver(fragment(&frame, id, 104..704, true));
            }
            net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
        });
        assert!(read_memory(&sink) == pattern(len), "{workers} workers");
        net.run_until_idle();
        assert!(net.hosts[1].count("reassembled") > 100);
        assert_eq!(net.hosts[1].count("reassembly_bytes"), 0);
    }
}

#[test]
fn fragment_flood_stays_in_bounds_and_expires() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    let taken = divert(&mut net, 800);
    write(&mut net, here, 100_000);
    while taken.borrow().is_empty() {
        net.turn();
    }
    let frame = taken.borrow()[0].clone();
    net.is_lost = Box::new(|_, _| false);
    let bound = Plan::new(2).limits.reassembly_bytes as u64;
    for n in 0..5000u32 {
        // Fragments from a hundred unknown hosts. Their packets are never complete.
        let mut piece = fragment(&frame, n as u16, 24..1424, true).0;
        piece[29] = 100 + (n % 100) as u8;
        piece[24..26].fill(0);
        let sum = !checksum::sum(&piece[14..34]);
        piece[24..26].copy_from_slice(&sum.to_be_bytes());
        net.hosts[1].deliver(TestFrame::new(piece));
        if n % 16 == 15 {
            net.turn();
            assert!(net.hosts[1].count("reassembly_bytes") <= bound);
        }
    }
    net.run_until("delivery", |net| {
        net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
    });
    assert!(net.hosts[1].count("reassembly_evicted") > 1000);
    // The remaining fragments expire.
    net.advance(Duration::from_secs(20));
    assert_eq!(net.hosts[1].count("reassembly_bytes"), 0);
    assert!(net.hosts[1].count("reassembly_timeouts") > 0);
}

/// Creates two hosts with a stream, on which the first host has a long segment in flight. Returns that segment.
fn net_with_segment_in_flight() -> (Net, StreamId, Vec<u8>) {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    let ticket = net.hosts[0].send(here, &[5; 4000]);
    net.wait_sent(0, ticket);
    net.run_until_idle();
    let taken = divert(&mut net, 800);
    write(&mut net, here, 100_000);
    net.hosts[0].cores[0].turn(net.now);
    net.turn();
    let frame = taken.borrow()[0].clone();
    (net, here, frame)
}

// RFC 5927 §4.1, §7.2: a forged report must quote sequence numbers in flight. Even then it has no effect while data are
// acknowledged.
#[test]
fn forged_icmp_reports_do_not_change_the_mss() {
    let (mut net, _, frame) = net_with_segment_in_flight();
    let full = emss(&net, 0);
    // The path loses nothing: the segment was only delayed.
    net.is_lost = Box::new(|_, _| false);
    net.hosts[1].deliver(TestFrame::new(frame.clone()));
    net.hosts[0].deliver(icmp_quoting_frame(3, 4, 576, &frame));
    for n in 0..2000u32 {
        let mut guess = frame.clone();
        guess[38..42].copy_from_slice(&(n << 20).to_be_bytes());
        net.hosts[0].deliver(icmp_quoting_frame(3, 4, 576, &guess));
        guess[36..38].copy_from_slice(&(n as u16).to_be_bytes());
        net.hosts[0].deliver(icmp_quoting_frame(3, 1, 0, &guess));
    }
    net.run_until("delivery", |net| {
        net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
    });
    net.run_until_idle();
    let host = &net.hosts[0];
    assert!(host.count("icmp_not_in_flight") > 0 && host.count("icmp_no_stream") > 0);
    assert!(host.count("icmp_rate_limited") > 1000, "{}", host.count("icmp_rate_limited"));
    assert_eq!(host.count("path_mtu_remembered"), 1);
    assert!(emss(&net, 0) >= full.min(524), "{} of {full}", emss(&net, 0));
}

// RFC 5927 §5.2: hard errors count as soft errors once the connection is synchronized.
#[test]
fn icmp_unreachable_does_not_end_an_established_stream() {
    let (mut net, here, frame) = net_with_segment_in_flight();
    net.is_lost = Box::new(|_, _| false);
    for code in [0, 1, 2, 3, 13] {
        net.hosts[0].deliver(icmp_quoting_frame(3, code, 0, &frame));
    }
    net.turn();
    assert_eq!(net.hosts[0].count("icmp_soft_errors"), 5);
    let ticket = net.hosts[0].send(here, &[6; 2000]);
    net.wait_sent(0, ticket);
}

/// Connects over a path that loses each SYN and answers it with this ICMP code. Returns the error and the number of
/// answered SYNs.
fn connect_answered_by_icmp(code: u8) -> (ConnectError, usize) {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    let syns = divert(&mut net, 40);
    let ticket = net.hosts[0].connect(0, (v4(2), PORT).into());
    let mut answered = 0;
    let reason = net.run_until("a refusal", |net| {
        for syn in syns.borrow_mut().drain(..) {
            answered += 1;
            net.hosts[0].deliver(icmp_quoting_frame(3, code, 0, &syn));
        }
        net.hosts[0].take_event(|e| match e {
            Event::ConnectFailed { ticket: t, reason } if *t == ticket => Some(reason.clone()),
            _ => None,
        })
    });
    net.advance(Duration::from_secs(1));
    assert_eq!(net.hosts[0].count("streams"), 0);
    (reason, answered)
}

// RFC 1122 §4.2.3.9, RFC 5461 §4.1: a hard error, or the second soft error, ends the connect.
#[test]
fn icmp_unreachable_fails_a_connect_with_its_reason() {
    assert_eq!(connect_answered_by_icmp(3), (ConnectError::Icmp(Unreachable::Port), 1));
    assert_eq!(connect_answered_by_icmp(2), (ConnectError::Icmp(Unreachable::Protocol), 1));
    assert_eq!(connect_answered_by_icmp(13), (ConnectError::Icmp(Unreachable::Prohibited), 1));
    // The first soft error is ignored.
    assert_eq!(connect_answered_by_icmp(1), (ConnectError::Icmp(Unreachable::Host), 2));
}

// RFC 1191 §3, §6.3: later streams to the peer begin with the cached path MTU.
#[test]
fn learned_path_mtu_applies_to_later_streams() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let (here, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.run_until_idle();
    let full = emss(&net, 0);
    let taken = divert(&mut net, 1014);
    write(&mut net, here, 100_000);
    net.run_until("delivery", |net| {
        for frame in taken.borrow_mut().drain(..) {
            net.hosts[0].deliver(icmp_quoting_frame(3, 4, 1000, &frame));
        }
        net.hosts[1].take_event(|e| matches!(e, Event::TaggedDelivered { .. }).then_some(()))
    });
    let small = emss(&net, 0);
    assert!(small < full && small >= 900, "{small} of {full}");
    assert_eq!(net.hosts[0].count("path_mtus"), 1);
    let long = taken.borrow().len();
    let (second, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    assert!(second != here && there.0 > 0);
    let ticket = net.hosts[0].send(second, &[7; 4000]);
    net.wait_sent(0, ticket);
    assert_eq!(taken.borrow().len(), long, "no long segment was tried");
}

/// Another host claims an address of the first host for a while. Every claim is counted, and the conflict is reported
/// every ten seconds.
#[test]
fn address_conflict_is_reported_every_ten_seconds() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.advance(Duration::from_secs(10));
    let claim = |mac: u8| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, mac, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, mac]);
        frame.extend([10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 77]);
        TestFrame::new(frame)
    };
    let mut reported = Vec::new();
    for second in 0..25 {
        net.hosts[0].deliver(claim(9));
        net.advance(Duration::from_secs(1));
        let conflict = net.hosts[0].take_event(|e| match e {
            Event::AddressConflict { interface, address, mac } => {
                Some((*interface, *address, *mac))
            }
            _ => None,
        });
        if let Some(conflict) = conflict {
            assert_eq!(conflict, (InterfaceId(0), v4(1), [2, 0, 0, 0, 0, 9]));
            reported.push(second);
        }
    }
    assert_eq!(reported, [0, 10, 20]);
    assert_eq!(net.hosts[0].count("address_conflict"), 25);
    // The host's own announcement is not a conflict.
    net.hosts[0].deliver(claim(1));
    net.advance(Duration::from_secs(20));
    assert_eq!(net.hosts[0].count("address_conflict"), 25);
}

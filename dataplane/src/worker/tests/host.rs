//! A port shared with the host's kernel: frames reach the right recipient, and streams are not slowed.

use std::net::SocketAddr;
use std::time::Duration;

use ddp::{Access, RegionMemory as _, Stag};
use smoltcp::wire::IpProtocol;
use tcp_lite::tcp::Flags;

use super::accounting::{echo_request, ip_packet};
use super::attacks::floods::arp;
use super::floods::forged_segment;
use super::paths::{fragment, icmp_quoting_frame};
use super::sctp::{PORT as SCTP_PORT, config};
use super::sctp_frames::{init, sctp_frame_in as sctp_frame};
use super::test_host::*;
use crate::checksum;
use crate::io::BURST;

const PORT: u16 = 4791;
/// TCP port of a service of the host's kernel.
const SSH: u16 = 22;
/// A port in the worker's range of local ports for outgoing streams.
const LOCAL_STREAM_PORT: u16 = 40_000;

fn plan(number: u8) -> Plan {
    Plan { shared: number == 2, ..Plan::new(number) }
}

/// Creates two hosts. The second shares its port with its kernel and listens.
fn net(change: impl Fn(&mut Plan)) -> Net {
    let mut plans = [plan(1), plan(2)];
    plans.iter_mut().for_each(change);
    let mut net = Net::new(&plans);
    net.hosts[1].listen(PORT);
    net.hosts[1].listen_as(SCTP_PORT, 100, 100, config());
    // Waits until the announcements of both hosts' addresses have ended.
    net.advance(Duration::from_secs(5));
    take_kernel_frames(&mut net);
    net
}

/// Takes the frames that the second host's kernel has received.
fn take_kernel_frames(net: &mut Net) -> Vec<Box<[u8]>> {
    let end = net.hosts[1].kernel.as_mut().unwrap();
    std::iter::from_fn(|| end.pop()).collect()
}

/// Delivers one frame. Returns the number of frames that the kernel received, and that the second host sent.
fn deliver_frame(net: &mut Net, frame: TestFrame) -> (usize, usize) {
    let before = net.hosts[1].count("tx_frames");
    net.hosts[1].deliver(frame.clone());
    net.run_until_idle();
    let got = take_kernel_frames(net);
    for copy in &got {
        assert!(copy[..] == frame.0[..], "another frame");
    }
    (got.len(), (net.hosts[1].count("tx_frames") - before) as usize)
}

/// Returns the number of frames passed to the kernel.
fn host_frame_count(net: &Net) -> u64 {
    net.hosts[1].count("host_frames")
}

fn udp_packet() -> TestFrame {
    ip_packet(9, IpProtocol::Udp, &[0, 7, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4])
}

/// Inserts these options into the IPv4 header of a frame.
fn with_options(mut frame: TestFrame, options: &[u8]) -> TestFrame {
    frame.0.splice(34..34, options.iter().copied());
    frame.0[14] += options.len() as u8 / 4;
    frame.0[17] += options.len() as u8;
    frame.0[24..26].fill(0);
    let sum = !checksum::sum(&frame.0[14..34 + options.len()]);
    frame.0[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Builds a packet from the second host to the ninth, for a router to quote.
fn quoted_packet(protocol: u8, port: u16) -> Vec<u8> {
    let mut frame = ip_packet(9, IpProtocol::from(protocol), &[0; 20]).0;
    let port = port.to_be_bytes();
    frame[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 9]);
    frame[34..36].copy_from_slice(&port);
    // The bytes of the TCP sequence number or the SCTP verification tag.
    frame[38..42].copy_from_slice(&[1, 2, 3, 4]);
    frame
}

#[test]
fn unmatched_frames_go_to_the_host_kernel() {
    let mut net = net(|_| {});
    let mut other_address = udp_packet();
    other_address.0[33] = 77;
    let sum = {
        other_address.0[24..26].fill(0);
        !checksum::sum(&other_address.0[14..34])
    };
    other_address.0[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut lldp = TestFrame::new([[1, 0x80, 0xc2, 0, 0, 14], [2, 0, 0, 0, 0, 9]].concat());
    lldp.0.extend([0x88, 0xcc, 1, 2, 3]);
    let mut echo_reply = echo_request();
    echo_reply.0[34] = 0;
    echo_reply.0[36] += 8;
    let (whole, before) = (udp_packet(), host_frame_count(&net));
    for (name, frame) in [
        ("UDP", udp_packet()),
        ("a group's frame", lldp),
        ("another address", other_address),
        ("a SYN to a port of the host", forged_segment((9, 1), SSH, Flags::SYN)),
        ("data to a port of the host", forged_segment((9, 1), SSH, Flags::ACK)),
        ("a reset to a port of the host", forged_segment((9, 1), SSH, Flags::RST)),
        ("an INIT to a port of the host", sctp_frame(9, 2, (1, 9), 0, &init(1), None)),
        ("an echo reply", echo_reply),
        ("a fragment of UDP", fragment(&whole.0, 5, 0..8, true)),
        ("protocol 47", ip_packet(9, IpProtocol::from(47), &[0; 8])),
        ("UDP with a source route", with_options(udp_packet(), &[131, 3, 4, 0])),
    ] {
        assert_eq!(deliver_frame(&mut net, frame), (1, 0), "{name}");
    }
    assert_eq!(host_frame_count(&net), before + 11);
    assert_eq!(net.hosts[1].count("resets_sent") + net.hosts[1].count("sctp_aborts_sent"), 0);
}

#[test]
fn own_or_damaged_frames_do_not_reach_the_host_kernel() {
    let mut net = net(|_| {});
    let before = (host_frame_count(&net), net.hosts[1].count("host_copies"));
    let mut elsewhere = udp_packet();
    elsewhere.0[5] = 3;
    let mut damaged = udp_packet();
    damaged.0[24] ^= 1;
    let mac = [2, 0, 0, 0, 0, 9];
    let source_route = with_options(forged_segment((9, 1), PORT, Flags::SYN), &[137, 3, 4, 0]);
    for (name, frame, sent) in [
        ("a SYN to a listener", forged_segment((9, 1), PORT, Flags::SYN), 1),
        ("data to a listener", forged_segment((9, 2), PORT, Flags::ACK), 1),
        ("data to a port of streams", forged_segment((9, 3), LOCAL_STREAM_PORT, Flags::ACK), 1),
        ("an INIT to a listener", sctp_frame(9, 2, (1, SCTP_PORT), 0, &init(1), None), 1),
        ("an echo request", echo_request(), 1),
        ("an ARP request for our address", arp(1, v4(9), mac, v4(2)), 1),
        ("another host's frame", elsewhere, 0),
        ("a damaged header", damaged, 0),
        ("a source route to a listener", source_route, 0),
        ("an echo request with an invalid option", with_options(echo_request(), &[7, 5, 0, 0]), 0),
    ] {
        let (got, out) = deliver_frame(&mut net, frame);
        assert_eq!(got, 0, "{name}");
        assert!(out >= sent && (sent > 0 || out == 0), "{name}: {out} frames sent");
    }
    assert_eq!((host_frame_count(&net), net.hosts[1].count("host_copies")), before);
    assert_eq!((net.hosts[1].count("source_route"), net.hosts[1].count("ip_options")), (1, 1));
}

#[test]
fn neighbour_announcements_reach_worker_and_host_kernel() {
    let mut net = net(|_| {});
    let (copies, ignored) =
        (net.hosts[1].count("host_copies"), net.hosts[1].count("neighbour_ignored"));
    let mac = [2, 0, 0, 0, 0, 9];
    assert_eq!(deliver_frame(&mut net, arp(2, v4(9), mac, v4(2))).0, 1, "a reply");
    assert_eq!(deliver_frame(&mut net, arp(1, v4(9), mac, v4(9))).0, 1, "an announcement");
    assert_eq!(
        deliver_frame(&mut net, arp(1, v4(9), mac, v4(3))).0,
        1,
        "an ARP request for another address"
    );
    assert_eq!(net.hosts[1].count("host_copies"), copies + 3);
    // The worker ignored the sender's link-layer address in all three frames, because it had not solicited the address.
    assert_eq!(net.hosts[1].count("neighbour_ignored"), ignored + 3);
}

#[test]
fn icmp_error_goes_to_the_owner_of_the_quoted_packet() {
    let mut net = net(|_| {});
    let error = |quoted: Vec<u8>| {
        let mut frame = icmp_quoting_frame(3, 3, 0, &quoted);
        // Sends the error from the ninth host to the second.
        frame.0[5] = 2;
        frame.0[11] = 9;
        frame.0[26..34].copy_from_slice(&[10, 0, 0, 9, 10, 0, 0, 2]);
        frame.0[24..26].fill(0);
        let sum = !checksum::sum(&frame.0[14..34]);
        frame.0[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    for (protocol, port, hosts) in [
        (6, PORT, 0),
        (6, LOCAL_STREAM_PORT, 0),
        (132, SCTP_PORT, 0),
        (6, SSH, 1),
        (17, PORT, 1),
        (132, SSH, 1),
        (1, 0, 1),
    ] {
        let got = deliver_frame(&mut net, error(quoted_packet(protocol, port))).0;
        assert_eq!(got, hosts, "protocol {protocol}, port {port}");
    }
}

#[test]
fn fragments_are_reassembled_before_the_host_kernel() {
    let mut net = net(|_| {});
    let whole = sctp_frame(9, 2, (1, 9), 0, &init(1), None).0;
    let (len, before) = (whole.len() - 34, host_frame_count(&net));
    assert!(len > 16, "{len}");
    net.hosts[1].deliver(fragment(&whole, 5, 16..len, false));
    net.hosts[1].deliver(fragment(&whole, 5, 0..16, true));
    net.run_until_idle();
    let got = take_kernel_frames(&mut net);
    assert_eq!(got.len(), 1, "one packet, put together");
    assert_eq!(got[0][34..], whole[34..]);
    assert_eq!(host_frame_count(&net), before + 1);
}

#[test]
fn any_worker_passes_frames_and_first_worker_sends_for_host() {
    for vlan in [None, Some(5)] {
        let mut net = net(|plan| {
            (plan.workers, plan.vlan) = (2, vlan);
        });
        // Some of these flows belong to the second worker.
        for port in 0..16 {
            let mut frame = forged_segment((9, port), SSH, Flags::SYN);
            let plain = frame.0.clone();
            if vlan.is_some() {
                frame.0.splice(12..12, [0x81, 0, 0, 5]);
            }
            net.hosts[1].deliver(frame);
            net.run_until_idle();
            assert!(
                take_kernel_frames(&mut net).iter().any(|got| got[..] == plain[..]),
                "port {port}"
            );
        }
        let by = |worker: usize| net.hosts[1].handles[worker].counters().host.host_frames.get();
        assert!(by(0) > 0 && by(1) > 0);
        let frame: Vec<u8> = (0..100).collect();
        let end = net.hosts[1].kernel.as_mut().unwrap();
        end.push(&frame);
        end.push(&[0; 13]);
        end.push(&[0; 1515]);
        for core in &mut net.hosts[1].cores {
            assert!(!core.has_pending_work(START) || core.turn(START));
        }
        let sent = net.hosts[1].take_sent();
        assert_eq!(sent.len(), 1);
        match vlan {
            None => assert_eq!(sent[0].0, frame),
            Some(_) => {
                let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
                assert_eq!(sent[0].0, tagged);
            }
        }
        assert_eq!((net.hosts[1].count("host_sent"), net.hosts[1].count("host_sent_lost")), (1, 2));
    }
}

#[test]
fn host_frames_wait_for_transmit_ring_room() {
    let mut net = net(|plan| plan.room = 8);
    let end = net.hosts[1].kernel.as_mut().unwrap();
    (0..20).for_each(|n| end.push(&[n; 60]));
    let core = &mut net.hosts[1].cores[0];
    core.turn(START);
    assert_eq!(core.port_mut(0).tx.len(), 8);
    assert!(core.has_pending_work(START), "twelve wait");
    net.run_until_idle();
    assert_eq!((net.hosts[1].count("host_sent"), net.hosts[1].count("host_sent_lost")), (20, 0));
}

#[test]
fn flood_towards_the_host_does_not_slow_a_stream() {
    const LEN: usize = 300_000;
    let (source, sink) = (Stag(0x100), Stag(0x200));
    let mut net = net(|_| {});
    let (client, _) = net.open(0, 0, 1, SocketAddr::new(v4(2), PORT));
    let before = host_frame_count(&net);
    let memory = net.hosts[1].region(sink.0, LEN, Access::REMOTE_WRITE);
    let bytes = net.hosts[0].region(source.0, LEN, Access::NONE);
    bytes.write(0, &pattern(LEN));
    let ticket = net.hosts[0].write(client, (source, &bytes), sink, LEN as u32);
    net.hosts[1].exhaust_budgets();
    let mut rounds = 0;
    while read_memory(&memory) != pattern(LEN) {
        rounds += 1;
        assert!(rounds < 10_000, "the stream makes no progress");
        // Delivers more frames than the kernel's queue holds. The kernel reads none.
        (0..BURST).for_each(|_| net.hosts[1].deliver(udp_packet()));
        net.turn();
        net.now += Duration::from_micros(50);
    }
    net.wait_sent(0, ticket);
    net.run_until_idle();
    let (given, full) = (host_frame_count(&net) - before, net.hosts[1].count("host_full"));
    assert!(given > 0 && full > 0, "{given} given, {full} not");
    assert_eq!(given + full, rounds * BURST as u64);
    assert!(take_kernel_frames(&mut net).len() as u64 <= given);
    // The sender's transmit ring was never full.
    assert_eq!(net.hosts[0].count("tx_stalls"), 0);
}

//! SCTP checksums by the device (RFC 9260 §6.8). The worker requests checksums that the device can compute, and trusts
//! the device's verdict on checksums that the device verifies. Software computes and verifies all other checksums.

use std::net::SocketAddr;

use ddp::StreamId;

use super::ipsec;
use super::sctp::{PORT, config, net, wait_closed, write};
use super::sctp_frames::{init, sctp_frame_in};
use super::test_host::{Host, Net, Plan, TestFrame, v4, v6, verdict};
use crate::api::{Command, SctpConfig};
use crate::net::sctp_path::UdpPorts;
use crate::port::RxChecksum;

const UDP: u16 = 9899;

/// Returns the plan of a host whose device computes and verifies SCTP checksums.
fn plan_with_offload(n: u8) -> Plan {
    Plan { offloads_sctp: true, ..Plan::new(n) }
}

fn open(net: &mut Net, remote: SocketAddr) -> (StreamId, StreamId) {
    net.open_as(0, 0, 1, remote, config())
}

/// Builds an INIT to host 2, in UDP if `udp`.
fn init_frame(udp: bool) -> TestFrame {
    let udp = udp.then_some(UdpPorts { local: 4000, remote: UDP });
    sctp_frame_in(1, 2, (9, PORT), 0, &init(1), udp)
}

/// Builds the INIT of [`init_frame`] with a wrong SCTP checksum as its only error.
fn init_with_bad_checksum(udp: bool) -> TestFrame {
    let mut frame = init_frame(udp).0;
    let at = 14 + 20 + if udp { 8 } else { 0 };
    frame[at + 8] ^= 1;
    if udp {
        // RFC 768: a checksum of zero means that UDP has none.
        frame[at - 2..at].fill(0);
    }
    TestFrame::new(frame)
}

/// Returns the number of cookies that a host has sent, and the number of packets that it has dropped because of a wrong
/// checksum.
fn cookie_and_drop_counts(host: &Host) -> (u64, u64) {
    (host.count("sctp_cookies_sent"), host.count("bad_checksum"))
}

// The test device asserts that checksum requests are valid. A host without offload verifies the checksums.
#[test]
fn streams_run_with_sctp_checksum_offload() {
    for (vlan, remote) in [(None, v4(2)), (None, v6(2)), (Some(7), v4(2))] {
        for peer in [plan_with_offload(2), Plan::new(2)] {
            let plan = |plan: Plan| Plan { vlan, workers: 2, ..plan };
            let mut net = net(&[plan(plan_with_offload(1)), plan(peer)]);
            let (here, there) = open(&mut net, (remote, PORT).into());
            write(&mut net, here, 200_000);
            let ticket = net.hosts[1].send(there, &[7; 3000]);
            net.wait_sent(1, ticket);
            // TCP checksums on the same port are still computed by software.
            net.hosts[1].listen(4791);
            net.run_until_idle();
            let (segments, _) = net.open(0, 0, 1, (remote, 4791).into());
            let ticket = net.hosts[0].send(segments, &[7; 3000]);
            net.wait_sent(0, ticket);
            net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
            wait_closed(&mut net, 1);
            net.run_until_idle();
            for host in &net.hosts {
                assert_eq!((host.count("associations"), host.count("bad_checksum")), (0, 0));
            }
        }
    }
}

// Answers to unknown senders also use the device's checksum: an ABORT for an INIT to a port without a listener.
#[test]
fn abort_to_unmatched_init_uses_checksum_offload() {
    let mut net = net(&[Plan::new(1), plan_with_offload(2)]);
    let ticket = net.hosts[0].connect_as(0, (v4(2), 9).into(), config());
    super::sctp::wait_connect_failure(&mut net, ticket);
    assert_eq!(
        (net.hosts[1].count("sctp_aborts_sent"), net.hosts[0].count("bad_checksum")),
        (1, 0)
    );
}

#[test]
fn device_verdict_decides_and_software_verifies_without_one() {
    use RxChecksum::{Bad, Good, Unknown};
    for (verdict, is_wrong, taken) in [
        (Good, false, true),
        // A wrong checksum with a good verdict is accepted: software does not verify it again.
        (Good, true, true),
        (Bad, false, false),
        (Bad, true, false),
        (Unknown, false, true),
        (Unknown, true, false),
    ] {
        let mut net = net(&[Plan::new(1), plan_with_offload(2)]);
        net.hosts[1].verdict_of = Box::new(|_| Unknown);
        let frame = if is_wrong { init_with_bad_checksum(false) } else { init_frame(false) };
        // The second frame is classified by header prediction from the first.
        for _ in 0..2 {
            net.hosts[1].deliver(TestFrame::with_verdict(frame.0.clone(), verdict));
        }
        net.run_until_idle();
        let expected = if taken { (2, 0) } else { (0, 2) };
        assert_eq!(cookie_and_drop_counts(&net.hosts[1]), expected, "{verdict:?} {is_wrong}");
    }
}

// Each packet of a burst has its own verdict, even if its headers match its predecessor's.
#[test]
fn packets_with_bad_verdict_are_dropped_and_retransmitted() {
    let mut net = net(&[plan_with_offload(1), plan_with_offload(2)]);
    let (here, _) = open(&mut net, (v4(2), PORT).into());
    let mut n = 0u32;
    net.hosts[1].verdict_of = Box::new(move |frame| {
        n += u32::from(frame.len() > 1000);
        if frame.len() > 1000 && n % 7 == 3 { RxChecksum::Bad } else { verdict(frame) }
    });
    let before = net.hosts[1].count("sctp_packets");
    write(&mut net, here, 300_000);
    let (bad, taken) = (net.hosts[1].count("bad_checksum"), net.hosts[1].count("sctp_packets"));
    assert!(bad > 10 && taken > before + 200, "{bad} of {taken}");
}

// RFC 6951: the device does not parse SCTP in UDP, and its verdict is ignored.
#[test]
fn sctp_in_udp_is_verified_in_software() {
    let plan = |n, udp| Plan { udp: Some(udp), ..plan_with_offload(n) };
    let mut net = net(&[plan(1, 4000), plan(2, UDP)]);
    let encapsulated = SctpConfig { udp: Some(UDP), ..config() };
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), encapsulated);
    write(&mut net, here, 50_000);
    let before = cookie_and_drop_counts(&net.hosts[1]);
    for verdict in [RxChecksum::Good, RxChecksum::Bad] {
        net.hosts[1].deliver(TestFrame::with_verdict(init_with_bad_checksum(true).0, verdict));
        net.hosts[1].deliver(TestFrame::with_verdict(init_frame(true).0, verdict));
    }
    net.run_until_idle();
    assert_eq!(cookie_and_drop_counts(&net.hosts[1]), (before.0 + 2, before.1 + 2));
}

// RFC 4303: the device sees only ESP, so software computes and verifies the checksums of SCTP inside.
#[test]
fn sctp_in_esp_is_verified_in_software() {
    for udp in [false, true] {
        let suite = ipsec::Suite { udp, ..ipsec::PLAIN };
        let mut net = ipsec::net(suite, |plan| plan.offloads_sctp = true);
        let stream = ipsec::open(&mut net, true, false);
        ipsec::assert_no_clear_packets(&mut net, udp);
        ipsec::write(&mut net, stream, 1, 50_000);
        for host in &net.hosts {
            assert_eq!((host.count("bad_checksum"), host.count("l4_checksum")), (0, 0));
        }
    }
}

// The device's verdicts on fragments are ignored: software verifies the reassembled packet.
#[test]
fn reassembled_sctp_packet_is_verified_in_software() {
    for verdict in [RxChecksum::Good, RxChecksum::Bad] {
        for (frame, expected) in
            [(init_frame(false), (1, 0)), (init_with_bad_checksum(false), (0, 1))]
        {
            let mut net = net(&[Plan::new(1), plan_with_offload(2)]);
            for (at, more) in [(0, true), (24, false)] {
                let mut piece = frame.0[..34].to_vec();
                let bytes = &frame.0[34..];
                piece.extend_from_slice(if more { &bytes[..24] } else { &bytes[24..] });
                let len = piece.len() as u16 - 14;
                piece[16..18].copy_from_slice(&len.to_be_bytes());
                piece[20..22].copy_from_slice(&[if more { 0x20 } else { 0 }, at / 8]);
                piece[24..26].fill(0);
                let sum = !crate::checksum::sum(&piece[14..34]);
                piece[24..26].copy_from_slice(&sum.to_be_bytes());
                net.hosts[1].deliver(TestFrame::with_verdict(piece, verdict));
            }
            net.run_until_idle();
            assert_eq!(net.hosts[1].count("reassembled"), 1);
            assert_eq!(cookie_and_drop_counts(&net.hosts[1]), expected);
        }
    }
}

// The verdict of a device that verifies only TCP checksums is ignored for SCTP.
#[test]
fn tcp_only_device_verdict_is_ignored_for_sctp() {
    for sums_sctp in [false, true] {
        let plan = |n| Plan { verifies_tcp: true, ..Plan::new(n) };
        let mut net = net(&[plan(1), Plan { offloads_sctp: sums_sctp, ..plan(2) }]);
        net.hosts[1].verdict_of = Box::new(|_| RxChecksum::Unknown);
        let before = net.hosts[1].count("l4_checksum");
        for verdict in [RxChecksum::Good, RxChecksum::Bad] {
            for frame in [init_with_bad_checksum(false), init_frame(false), init_frame(false)] {
                net.hosts[1].deliver(TestFrame::with_verdict(frame.0, verdict));
            }
        }
        net.run_until_idle();
        // The verdict of a device that verifies TCP and SCTP checksums is trusted for SCTP.
        assert_eq!(cookie_and_drop_counts(&net.hosts[1]), if sums_sctp { (3, 3) } else { (4, 2) });
        assert_eq!(net.hosts[1].count("l4_checksum"), before);
        // The device's verdict still applies to TCP: a bad verdict drops the segment.
        net.hosts[1].listen(4791);
        net.run_until_idle();
        net.hosts[1].verdict_of = Box::new(|_| RxChecksum::Bad);
        net.hosts[0].connect(0, (v4(2), 4791).into());
        net.run_until_idle();
        assert!(net.hosts[1].count("l4_checksum") > before);
    }
}

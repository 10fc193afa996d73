//! Ports whose MAC address changes while a worker runs, and peers that leave checksums to a device.

use std::time::Duration;

use tcp_lite::tcp::Flags;

use super::floods::forged_segment;
use super::sctp_frames::{init, sctp_frame_between, sctp_frame_in};
use super::test_host::*;
use crate::api::{Command, Event, PortId};
use crate::checksum;
use crate::net::protocol::{self, TCP};
use crate::net::sctp_path::UdpPorts;

const PORT: u16 = 4791;
/// Byte range of the TCP checksum in an IPv4 frame.
const TCP_CHECKSUM: std::ops::Range<usize> = 14 + 20 + 16..14 + 20 + 18;

/// Builds a SYN whose checksum field has only the sum of the pseudo-header, as Linux leaves it for checksum offload.
fn partial_checksum_syn(from: (u8, u16)) -> TestFrame {
    let mut frame = forged_segment(from, PORT, Flags::SYN);
    let len = frame.0.len() - 34;
    let sum = checksum::pseudo_header(v4(from.0), v4(2), TCP, len);
    frame.0[TCP_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn take_reports(host: &mut Host) -> Vec<(PortId, std::net::IpAddr)> {
    let mut all = Vec::new();
    while let Some(report) = host.take_event(|event| match event {
        Event::UnfinishedChecksums { port, source } => Some((*port, *source)),
        _ => None,
    }) {
        all.push(report);
    }
    all
}

#[test]
fn repeated_partial_checksums_are_reported_every_ten_seconds() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    net.advance(Duration::from_secs(20));
    for n in 0..30 {
        net.hosts[1].deliver(partial_checksum_syn((9, 5000 + n)));
        net.advance(Duration::from_secs(1));
    }
    assert_eq!(take_reports(&mut net.hosts[1]), [(PortId(0), v4(9)); 3]);
    assert_eq!(net.hosts[1].count("l4_checksum"), 30);
    // Corruption in transit leaves other values, and is not reported.
    for n in 0..30 {
        let mut frame = partial_checksum_syn((8, 5000 + n));
        frame.0[TCP_CHECKSUM.start] ^= 0x10;
        net.hosts[1].deliver(frame);
    }
    net.advance(Duration::from_secs(1));
    assert_eq!(take_reports(&mut net.hosts[1]), []);
}

#[test]
fn partial_sctp_checksums_are_reported() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.advance(Duration::from_secs(20));
    for n in 0..3 {
        let mut frame = sctp_frame_in(9, 2, (5000 + n, PORT), 0, &init(9), None);
        frame.0[14 + 20 + 8..14 + 20 + 12].fill(0);
        net.hosts[1].deliver(frame);
        net.advance(Duration::from_secs(1));
    }
    assert_eq!(take_reports(&mut net.hosts[1]), [(PortId(0), v4(9))]);
}

/// Linux also leaves the checksum of UDP around SCTP to the device (RFC 6951 §5.4).
#[test]
fn partial_udp_checksums_around_sctp_are_reported() {
    const UDP: u16 = 9899;
    for (source, us, sum_at) in [(v4(9), v4(2), 14 + 20 + 6), (v6(9), v6(2), 14 + 40 + 6)] {
        let mut plan = Plan::new(2);
        plan.udp = Some(UDP);
        let mut net = Net::new(&[Plan::new(1), plan]);
        net.advance(Duration::from_secs(20));
        let datagram = |damaged: bool| {
            let ports = Some(UdpPorts { local: 4000, remote: UDP });
            let ends = (source, us);
            let init = init(9);
            let mut frame = sctp_frame_between((9, 2), ends, (5000, PORT), 0, &init, ports);
            let len = frame.0.len() - (sum_at - 6);
            let sum = checksum::pseudo_header(source, us, protocol::UDP, len) ^ u16::from(damaged);
            frame.0[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
            frame
        };
        for damaged in [true, false] {
            let before = net.hosts[1].count("l4_checksum");
            for _ in 0..3 {
                net.hosts[1].deliver(datagram(damaged));
                net.advance(Duration::from_secs(1));
            }
            assert_eq!(net.hosts[1].count("l4_checksum"), before + 3);
            let expected = if damaged { vec![] } else { vec![(PortId(0), source)] };
            assert_eq!(take_reports(&mut net.hosts[1]), expected);
        }
    }
}

/// A stream continues with the port's new MAC address, which is announced to neighbours at once.
#[test]
fn changed_port_mac_is_announced_and_used_by_streams() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let (stream, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    net.advance(Duration::from_secs(20));
    let sent = net.record_frames_from(0);
    let mac = [2, 0, 0, 0, 7, 7];
    net.hosts[0].command_all(|_| Command::PortChanged { port: PortId(0), mac });
    net.advance(Duration::from_millis(10));
    let ours = [10, 0, 0, 1];
    let announced =
        |frame: &Vec<u8>| frame[12..14] == [8, 6] && frame[28..32] == ours && frame[38..42] == ours;
    assert_eq!(sent.borrow().iter().filter(|frame| announced(frame)).count(), 1);
    net.advance(Duration::from_secs(5));
    assert_eq!(sent.borrow().iter().filter(|frame| announced(frame)).count(), 2);
    let ticket = net.hosts[0].send(stream, &[7; 4000]);
    net.wait_sent(0, ticket);
    let sent = sent.borrow();
    assert!(sent.iter().any(|frame| frame[12..14] == [8, 0] && frame.len() > 1000));
    assert!(sent.iter().all(|frame| frame[6..12] == mac), "all frames are from the new address");
}

//! Builds frames with SCTP packets, for peers that the test plays itself (without a `Host`).

use std::net::IpAddr;

use ipnet::IpNet;

use super::test_host::{TestFrame, v4};
use crate::api::{InterfaceConfig, InterfaceId, PortId};
use crate::net::interface::Interface;
use crate::net::path::{Path, TxChecksum};
use crate::net::sctp_path::{SctpPath, UdpPorts};

/// Builds a frame from one host to another with an SCTP packet of these ports, in UDP if UDP ports are given.
pub(super) fn sctp_frame_in(
    from: u8,
    to: u8,
    ports: (u16, u16),
    tag: u32,
    chunk: &[u8],
    udp: Option<UdpPorts>,
) -> TestFrame {
    sctp_frame_between((from, to), (v4(from), v4(to)), ports, tag, chunk, udp)
}

/// Builds a frame with an SCTP packet between two addresses of either family. `hosts` are the last bytes of the hosts'
/// MAC addresses.
pub(super) fn sctp_frame_between(
    hosts: (u8, u8),
    ends: (IpAddr, IpAddr),
    ports: (u16, u16),
    tag: u32,
    chunk: &[u8],
    udp: Option<UdpPorts>,
) -> TestFrame {
    let (from, to) = hosts;
    let mut packet = Vec::new();
    packet.extend_from_slice(&ports.0.to_be_bytes());
    packet.extend_from_slice(&ports.1.to_be_bytes());
    packet.extend_from_slice(&tag.to_be_bytes());
    packet.extend_from_slice(&[0; 4]);
    packet.extend_from_slice(chunk);
    let sum = wire::sctp::checksum(&packet);
    packet[8..12].copy_from_slice(&sum);
    let config = InterfaceConfig {
        ip: Default::default(),
        local_ports: Default::default(),
        host: false,
        name: "stranger".into(),
        port: PortId(0),
        vlan: None,
        addresses: vec![IpNet::new_assert(ends.0, if ends.0.is_ipv4() { 24 } else { 64 })],
        routes: Vec::new(),
        mtu: 9000,
    };
    let interface = Interface::new(InterfaceId(0), &config, [2, 0, 0, 0, 0, from], 16, [0; 16]);
    let (local, remote) = ((ends.0, ports.0).into(), (ends.1, ports.1).into());
    let mut carrier = SctpPath::new(Path::new(0, &interface, local, remote).unwrap(), udp);
    carrier.set_mac([2, 0, 0, 0, 0, to]);
    let mut frame = vec![0; carrier.header_len()];
    frame.extend_from_slice(&packet);
    carrier.finish(&mut frame, TxChecksum::SOFTWARE);
    TestFrame::new(frame)
}

/// Builds an INIT with this initiate tag and the adaptation indication of DDP.
pub(super) fn init(tag: u32) -> Vec<u8> {
    let mut chunk = vec![1, 0, 0, 28];
    chunk.extend_from_slice(&tag.to_be_bytes());
    chunk.extend_from_slice(&65_536u32.to_be_bytes());
    chunk.extend_from_slice(&[0, 8, 0, 8, 0, 0, 0, 1]);
    chunk.extend_from_slice(&[0xc0, 6, 0, 8, 0, 0, 0, 1]);
    chunk
}

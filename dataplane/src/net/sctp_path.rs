//! The headers in front of SCTP packets: directly in IP, or in UDP (RFC 6951) to pass middleboxes that do not support
//! SCTP. [`super::path`] writes the IP headers.
//!
//! ```text
//!  | Ethernet, VLAN | IP | SCTP packet ...
//!  | Ethernet, VLAN | IP | UDP 8 | SCTP packet ...
//! ```

use smoltcp::wire::IpProtocol;

use super::neighbour::Mac;
use super::path::{Path, TxChecksum};
use super::protocol::{SCTP, UDP, UDP_HEADER};
use crate::checksum;
use port_kind::policy::IpFields;

/// UDP ports of an encapsulated association.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpPorts {
    /// Local UDP port, the same for all associations.
    pub local: u16,
    /// The peer's UDP port: the source port of its last accepted packet (RFC 6951 §5.4).
    pub remote: u16,
}

/// The headers in front of an association's packets, and the next hop.
#[derive(Clone, Debug)]
pub struct SctpPath {
    /// Ethernet and IP headers, and the next hop.
    pub path: Path,
    udp: Option<UdpPorts>,
}

impl AsRef<Path> for SctpPath {
    #[inline]
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl AsMut<Path> for SctpPath {
    #[inline]
    fn as_mut(&mut self) -> &mut Path {
        &mut self.path
    }
}

impl SctpPath {
    /// Creates the SCTP path over `path`, with encapsulation in UDP if `udp` is `Some`.
    pub fn new(path: Path, udp: Option<UdpPorts>) -> Self {
        let protocol = if udp.is_some() { IpProtocol::Udp } else { SCTP };
        SctpPath { path: path.with_protocol(protocol), udp }
    }

    /// Replaces IP header fields as [`Path::with_fields`] does.
    #[must_use]
    pub fn with_fields(self, fields: IpFields) -> Self {
        SctpPath { path: self.path.with_fields(fields), ..self }
    }

    /// Returns the UDP ports; `None` if the association is not encapsulated.
    pub fn udp(&self) -> Option<UdpPorts> {
        self.udp
    }

    /// Sets the peer's UDP port, which a NAT may change (RFC 6951 §5.4). No effect without encapsulation.
    pub fn set_peer_port(&mut self, port: u16) {
        if let Some(udp) = &mut self.udp {
            udp.remote = port;
        }
    }

    /// Sets the link-layer address of the next hop.
    pub fn set_mac(&mut self, mac: Mac) {
        self.path.set_mac(mac);
    }

    /// Returns the length of the headers in front of an SCTP packet, bytes.
    pub fn header_len(&self) -> usize {
        self.path.header_len() + self.udp_len()
    }

    /// Returns the number of header bytes to subtract from an MTU: the IP header, and the UDP header if encapsulated.
    pub fn mtu_overhead(&self) -> usize {
        self.path.l3_len() + self.udp_len()
    }

    /// Returns the maximum length of an SCTP packet in an IP packet of `mtu` bytes.
    pub fn packet_limit(&self, mtu: u16) -> usize {
        self.path.segment_limit(mtu).saturating_sub(self.udp_len())
    }

    /// Writes the headers of `frame`, which has space for them in front of an SCTP packet. The caller has written
    /// SCTP's checksum, unless the device computes it.
    pub fn finish(&self, frame: &mut [u8], checksums: TxChecksum) {
        if let Some(UdpPorts { local, remote }) = self.udp {
            let datagram = &mut frame[self.path.header_len()..];
            let len = datagram.len() as u16;
            datagram[..2].copy_from_slice(&local.to_be_bytes());
            datagram[2..4].copy_from_slice(&remote.to_be_bytes());
            datagram[4..6].copy_from_slice(&len.to_be_bytes());
            datagram[6..8].fill(0);
            // RFC 6951 §5.3: the UDP checksum is computed although IPv4 allows omitting it. Software computes the
            // checksum, because the device's checksum offload does not apply to UDP.
            let (source, destination) = self.path.addresses();
            let sum = match checksum::segment(source, destination, UDP, datagram) {
                0 => u16::MAX,
                sum => sum,
            };
            datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        self.path.finish_ip(frame, checksums, false);
    }

    /// Returns the sites that compute the checksums of this path's packets. `checksums` are the sites of the port.
    pub fn checksum_offload(&self, checksums: TxChecksum) -> TxChecksum {
        checksums.for_sctp(self.udp.is_some())
    }

    fn udp_len(&self) -> usize {
        if self.udp.is_some() { UDP_HEADER } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::drops::DropReason;
    use crate::net::demux::{Kind, L4Check, demux};
    use crate::net::interface::Interface;

    fn interface(host: u8) -> Interface {
        let [v4, v6] = [format!("10.0.0.{host}"), format!("2001:db8::{host}")];
        Interface::with_addresses(None, [2, 0, 0, 0, 0, host], [&v4, &v6])
    }

    /// An SCTP packet from port 700 to port 800: verification tag, checksum (not verified), and one chunk header.
    const PACKET: [u8; 16] = [2, 188, 3, 32, 1, 2, 3, 4, 5, 6, 7, 8, 14, 0, 0, 4];

    fn emit_packet(v6: bool, udp: Option<UdpPorts>) -> (Vec<u8>, SocketAddr, SocketAddr) {
        let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let local = SocketAddr::new(a.parse().unwrap(), 700);
        let remote = SocketAddr::new(b.parse().unwrap(), 800);
        let path = Path::new(0, &interface(1), local, remote).unwrap();
        let mut path = SctpPath::new(path, udp);
        path.set_mac([2, 0, 0, 0, 0, 2]);
        let mut frame = vec![0xdd; path.header_len()];
        frame.extend_from_slice(&PACKET);
        path.finish(&mut frame, TxChecksum::SOFTWARE);
        (frame, local, remote)
    }

    fn read(frame: &[u8], expected: Option<u16>) -> Result<Kind, DropReason> {
        let mut us = interface(2);
        us.encapsulation = expected;
        demux(frame, 0, L4Check::Unknown, &[us]).map(|packet| packet.kind)
    }

    #[test]
    fn written_sctp_headers_pass_demux() {
        for v6 in [false, true] {
            let (frame, source, destination) = emit_packet(v6, None);
            let packet = frame.len() - PACKET.len()..frame.len();
            let kind = Kind::Sctp { source, destination, packet, udp: None };
            assert_eq!(read(&frame, None), Ok(kind));
        }
    }

    // RFC 6951 §5.3, §5.4: ports and checksum.
    #[test]
    fn udp_is_decapsulated_at_configured_port_only() {
        for v6 in [false, true] {
            let ports = UdpPorts { local: 4000, remote: 9899 };
            let (frame, source, destination) = emit_packet(v6, Some(ports));
            let packet = frame.len() - PACKET.len()..frame.len();
            let kind = Kind::Sctp { source, destination, packet, udp: Some(4000) };
            assert_eq!(read(&frame, Some(9899)), Ok(kind.clone()));
            assert_eq!(read(&frame, Some(9900)), Err(DropReason::IpProtocol));
            assert_eq!(read(&frame, None), Err(DropReason::IpProtocol));
            let mut bad = frame.clone();
            *bad.last_mut().unwrap() ^= 1;
            assert_eq!(read(&bad, Some(9899)), Err(DropReason::L4Checksum));
            // RFC 768, RFC 8200 §8.1: a zero checksum is allowed over IPv4 only.
            let mut none = frame;
            let at = none.len() - PACKET.len() - 2;
            none[at..at + 2].fill(0);
            let answer = if v6 { Err(DropReason::L4Checksum) } else { Ok(kind) };
            assert_eq!(read(&none, Some(9899)), answer);
        }
    }

    #[test]
    fn packet_limit_leaves_room_for_headers() {
        let path = |v6| {
            let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
            let end = |a: &str| SocketAddr::new(a.parse().unwrap(), 1);
            Path::new(0, &interface(1), end(a), end(b)).unwrap()
        };
        let ports = UdpPorts { local: 1, remote: 1 };
        assert_eq!(SctpPath::new(path(false), None).packet_limit(1500), 1480);
        assert_eq!(SctpPath::new(path(true), Some(ports)).packet_limit(1500), 1452);
    }
}

//! The packets of a case in a pcapng file. A TCP socket does not show segments, so each write and read becomes one or
//! more segments with plausible headers, which a dissector can reassemble.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;

use crate::link::{Side, Transcript, What};
use crate::suite::Report;

/// Maximum payload of a segment, bytes.
const SEGMENT: usize = 1400;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
/// IP protocol numbers of TCP and UDP.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Writes `DIRECTORY/ID.pcapng`, with `/` in the id replaced by `_`.
///
/// # Errors
/// The file cannot be written.
pub fn write(directory: &Path, report: &Report) -> Result<(), String> {
    let path = directory.join(format!("{}.pcapng", report.case.id.replace('/', "_")));
    let error = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let file = std::fs::File::create(&path).map_err(|e| error(&e))?;
    let mut writer = PcapNgWriter::new(std::io::BufWriter::new(file)).map_err(|e| error(&e))?;
    let interface =
        InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen: 65535, options: vec![] };
    writer.write_pcapng_block(interface).map_err(|e| error(&e))?;
    for (at, packet) in packets(&report.outcome.transcript) {
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: at,
            original_len: packet.len() as u32,
            data: Cow::Owned(packet),
            options: vec![],
        };
        writer.write_pcapng_block(block).map_err(|e| error(&e))?;
    }
    Ok(())
}

/// Both ends of the connection, with the next sequence number of each.
struct Ends {
    tester: (SocketAddr, u32),
    device: (SocketAddr, u32),
}

fn packets(transcript: &Transcript) -> Vec<(Duration, Vec<u8>)> {
    let mut out = vec![];
    let mut ends: Option<Ends> = None;
    for event in &transcript.events {
        let at = event.at;
        if let What::Bound { local, peer } = event.what {
            ends = Some(Ends { tester: (local, 0), device: (peer, 0) });
            continue;
        }
        if let What::Opened { local, peer } = event.what {
            let mut e = Ends { tester: (local, 1000), device: (peer, 2000) };
            out.push((at, e.packet(Side::Tester, SYN, &[])));
            out.push((at, e.packet(Side::Device, SYN | ACK, &[])));
            out.push((at, e.packet(Side::Tester, ACK, &[])));
            ends = Some(e);
            continue;
        }
        let Some(e) = &mut ends else { continue };
        match &event.what {
            What::Bytes(bytes) => {
                out.extend(
                    bytes.chunks(SEGMENT).map(|chunk| (at, e.packet(event.from, PSH | ACK, chunk))),
                );
            }
            What::Packet(bytes) => out.push((at, e.datagram(event.from, bytes))),
            What::Fin => out.push((at, e.packet(event.from, FIN | ACK, &[]))),
            What::Reset => out.push((at, e.packet(event.from, RST | ACK, &[]))),
            What::Note(_) | What::Opened { .. } | What::Bound { .. } => {}
        }
    }
    out
}

impl Ends {
    /// Builds the datagram of an SCTP packet in UDP.
    fn datagram(&self, from: Side, payload: &[u8]) -> Vec<u8> {
        let (source, sink) = match from {
            Side::Tester => (self.tester.0, self.device.0),
            Side::Device => (self.device.0, self.tester.0),
        };
        let mut udp = source.port().to_be_bytes().to_vec();
        udp.extend(sink.port().to_be_bytes());
        udp.extend(((8 + payload.len()) as u16).to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(payload);
        ip(source.ip(), sink.ip(), UDP, udp)
    }

    fn packet(&mut self, from: Side, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (source, sink) = match from {
            Side::Tester => (&mut self.tester, &mut self.device),
            Side::Device => (&mut self.device, &mut self.tester),
        };
        let mut tcp = source.0.port().to_be_bytes().to_vec();
        tcp.extend(sink.0.port().to_be_bytes());
        tcp.extend(source.1.to_be_bytes());
        tcp.extend(if flags & ACK != 0 { sink.1 } else { 0 }.to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let ends = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        source.1 = source.1.wrapping_add(payload.len() as u32 + ends);
        ip(source.0.ip(), sink.0.ip(), TCP, tcp)
    }
}

/// Prepends an IP header to a TCP segment or UDP datagram, and computes both checksums.
fn ip(source: IpAddr, sink: IpAddr, protocol: u8, mut body: Vec<u8>) -> Vec<u8> {
    let mut pseudo = match (source, sink) {
        (IpAddr::V4(a), IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (IpAddr::V6(a), IpAddr::V6(b)) => [a.octets(), b.octets()].concat(),
        _ => vec![0; 8],
    };
    let addresses = pseudo.clone();
    pseudo.extend([0, protocol]);
    pseudo.extend((body.len() as u16).to_be_bytes());
    pseudo.extend(&body);
    let sum = checksum(&pseudo).to_be_bytes();
    let at = if protocol == TCP { 16 } else { 6 };
    body[at..at + 2].copy_from_slice(&sum);
    let mut out = if addresses.len() == 32 {
        let mut h = vec![0x60, 0, 0, 0];
        h.extend((body.len() as u16).to_be_bytes());
        h.extend([protocol, 64]);
        h
    } else {
        let mut h = vec![0x45, 0];
        h.extend((20 + body.len() as u16).to_be_bytes());
        h.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        let sum = checksum(&[&h[..], &addresses].concat()).to_be_bytes();
        h[10..12].copy_from_slice(&sum);
        h
    };
    out.extend(addresses);
    out.extend(body);
    out
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|c| u32::from(c[0]) << 8 | u32::from(c.get(1).copied().unwrap_or(0)))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_packets_are_right() {
        let a = |text: &str| text.parse::<SocketAddr>().expect("address");
        for (x, y) in [("192.0.2.1:5", "192.0.2.2:6"), ("[fd00::1]:5", "[fd00::2]:6")] {
            let mut ends = Ends { tester: (a(x), 7), device: (a(y), 9) };
            let packet = ends.packet(Side::Tester, PSH | ACK, b"abc");
            let header = if x.starts_with('[') { 40 } else { 20 };
            if header == 20 {
                assert_eq!(checksum(&packet[..20]), 0);
            }
            let addresses = &packet[if header == 20 { 12..20 } else { 8..40 }];
            let tcp = &packet[header..];
            let pseudo = [addresses, &[0, 6], &(tcp.len() as u16).to_be_bytes(), tcp].concat();
            assert_eq!(checksum(&pseudo), 0);
            assert_eq!(ends.tester.1, 10);
        }
    }
}

//! The packets of a case in a pcapng file. A TCP socket does not show segments, so each write and read becomes one or
//! more segments with plausible headers, which a dissector can reassemble. Packets of the raw port are real.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use dialogue::segment::{Flags, Segment};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, TcpPacket, UdpPacket, UdpRepr};

use crate::link::{Side, Transcript, What};
use crate::raw::station::ip_packet;
use crate::suite::Report;

/// Maximum payload of a segment, bytes.
const SEGMENT: usize = 1400;
const PSH_ACK: Flags = Flags::PSH.with(Flags::ACK);

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
            out.push((at, e.packet(Side::Tester, Flags::SYN, &[])));
            out.push((at, e.packet(Side::Device, Flags::SYN.with(Flags::ACK), &[])));
            out.push((at, e.packet(Side::Tester, Flags::ACK, &[])));
            ends = Some(e);
            continue;
        }
        if let What::Segment(packet) = &event.what {
            out.push((at, packet.clone()));
            continue;
        }
        let Some(e) = &mut ends else { continue };
        match &event.what {
            What::Bytes(bytes) => {
                out.extend(
                    bytes.chunks(SEGMENT).map(|chunk| (at, e.packet(event.from, PSH_ACK, chunk))),
                );
            }
            What::Packet(bytes) => out.push((at, e.datagram(event.from, bytes))),
            What::Fin => out.push((at, e.packet(event.from, Flags::FIN.with(Flags::ACK), &[]))),
            What::Reset => out.push((at, e.packet(event.from, Flags::RST.with(Flags::ACK), &[]))),
            What::Note(_) | What::Opened { .. } | What::Bound { .. } | What::Segment(_) => {}
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
        let repr = UdpRepr { src_port: source.port(), dst_port: sink.port() };
        let mut udp = vec![0; repr.header_len() + payload.len()];
        repr.emit(
            &mut UdpPacket::new_unchecked(&mut udp),
            &source.ip().into(),
            &sink.ip().into(),
            payload.len(),
            |buffer| buffer.copy_from_slice(payload),
            &ChecksumCapabilities::default(),
        );
        ip_packet(source.ip(), sink.ip(), IpProtocol::Udp, 0, &udp).unwrap_or_default()
    }

    fn packet(&mut self, from: Side, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let (source, sink) = match from {
            Side::Tester => (&mut self.tester, &mut self.device),
            Side::Device => (&mut self.device, &mut self.tester),
        };
        let segment = Segment {
            src_port: source.0.port(),
            dst_port: sink.0.port(),
            seq: source.1,
            ack: if flags.has(Flags::ACK) { sink.1 } else { 0 },
            flags,
            window: u16::MAX,
            payload: payload.to_vec(),
            ..Segment::default()
        };
        source.1 = source.1.wrapping_add(segment.sequence_len());
        let mut tcp = segment.emit();
        let (source, sink) = (source.0.ip(), sink.0.ip());
        TcpPacket::new_unchecked(&mut tcp).fill_checksum(&source.into(), &sink.into());
        ip_packet(source, sink, IpProtocol::Tcp, 0, &tcp).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet};

    #[test]
    fn checksums_of_packets_are_right() {
        let a = |text: &str| text.parse::<SocketAddr>().expect("address");
        for (x, y) in [("192.0.2.1:5", "192.0.2.2:6"), ("[fd00::1]:5", "[fd00::2]:6")] {
            let mut ends = Ends { tester: (a(x), 7), device: (a(y), 9) };
            let (from, to): (IpAddress, IpAddress) = (a(x).ip().into(), a(y).ip().into());
            let segment = ends.packet(Side::Tester, PSH_ACK, b"abc");
            let datagram = ends.datagram(Side::Device, b"odd");
            let (tcp, udp) = match from {
                IpAddress::Ipv4(_) => {
                    assert!(Ipv4Packet::new_checked(&segment).expect("whole").verify_checksum());
                    (&segment[20..], &datagram[20..])
                }
                IpAddress::Ipv6(_) => {
                    assert_eq!(Ipv6Packet::new_checked(&segment).expect("whole").hop_limit(), 255);
                    (&segment[40..], &datagram[40..])
                }
            };
            assert!(TcpPacket::new_checked(tcp).expect("whole").verify_checksum(&from, &to));
            assert!(UdpPacket::new_checked(udp).expect("whole").verify_checksum(&to, &from));
            assert_eq!(ends.tester.1, 10);
        }
    }
}

//! Builds Ethernet frames with IPv4 and TCP or SCTP for generated captures, and parses them for the listing. `smoltcp`
//! encodes Ethernet and IPv4, `dialogue` encodes TCP. DATA chunks follow RFC 9260 §3.3.1.

use dialogue::segment::{Flags, Segment};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Address,
    Ipv4Packet, Ipv4Repr, TcpPacket,
};

const SCTP: IpProtocol = IpProtocol::Unknown(132);
const HOP_LIMIT: u8 = 64;
/// Window of generated segments, bytes.
const WINDOW: u16 = 0xffff;

/// One end of a TCP connection or SCTP association.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// IPv4 address.
    pub address: [u8; 4],
    /// TCP or SCTP port.
    pub port: u16,
}

/// Parsed fields of a frame with TCP or SCTP over IPv4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Address and port of the sender.
    pub source: Endpoint,
    /// Address and port of the receiver.
    pub destination: Endpoint,
    /// TCP segment, or DATA chunks of an SCTP packet.
    pub content: Content,
}

/// Transport content of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A TCP segment.
    Tcp(Segment),
    /// The DATA chunks of an SCTP packet.
    Sctp(Vec<Data>),
}

/// A DATA chunk (RFC 9260 §3.3.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    /// Flags: 1 last fragment, 2 first fragment, 4 unordered.
    pub flags: u8,
    /// Transmission sequence number.
    pub tsn: u32,
    /// Stream identifier of the SCTP association.
    pub stream: u16,
    /// Payload protocol identifier.
    pub ppid: u32,
    /// User data: a message or a fragment of a message.
    pub data: Vec<u8>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses a frame. `None` if it is not TCP or SCTP over IPv4 without fragmentation.
pub fn parse(frame: &[u8]) -> Option<Packet> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    if ethernet.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
    if ip.more_frags() || ip.frag_offset() != 0 {
        return None;
    }
    let body = ip.payload();
    let (ports, content) = match ip.next_header() {
        IpProtocol::Tcp => {
            let segment = Segment::parse(body)?;
            ((segment.src_port, segment.dst_port), Content::Tcp(segment))
        }
        SCTP => ((be16(body, 0)?, be16(body, 2)?), Content::Sctp(data_chunks(body.get(12..)?))),
        _ => return None,
    };
    Some(Packet {
        source: Endpoint { address: ip.src_addr().octets(), port: ports.0 },
        destination: Endpoint { address: ip.dst_addr().octets(), port: ports.1 },
        content,
    })
}

fn data_chunks(mut chunks: &[u8]) -> Vec<Data> {
    let mut found = Vec::new();
    while let (Some(&[kind, flags]), Some(length)) = (chunks.first_chunk(), be16(chunks, 2)) {
        let length = usize::from(length);
        let Some(chunk) = chunks.get(..length).filter(|_| length >= 4) else { break };
        if let (0, Some(data)) = (kind, chunk.get(16..)) {
            found.extend((|| {
                let (tsn, stream, ppid) = (be32(chunk, 4)?, be16(chunk, 8)?, be32(chunk, 12)?);
                Some(Data { flags, tsn, stream, ppid, data: data.to_vec() })
            })());
        }
        chunks = chunks.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn ipv4_frame(from: Endpoint, to: Endpoint, next_header: IpProtocol, body: &[u8]) -> Vec<u8> {
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress([2, 0, 0, 0, 0, from.address[3]]),
        dst_addr: EthernetAddress([2, 0, 0, 0, 0, to.address[3]]),
        ethertype: EthernetProtocol::Ipv4,
    };
    let ip = Ipv4Repr {
        src_addr: Ipv4Address::from(from.address),
        dst_addr: Ipv4Address::from(to.address),
        next_header,
        payload_len: body.len(),
        hop_limit: HOP_LIMIT,
    };
    let mut bytes = vec![0; ethernet.buffer_len() + ip.buffer_len() + body.len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    ethernet.emit(&mut frame);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    packet.payload_mut().copy_from_slice(body);
    bytes
}

/// Builds the frame of a TCP segment without options.
pub fn tcp(
    from: Endpoint,
    to: Endpoint,
    flags: Flags,
    seq: u32,
    ack: u32,
    payload: &[u8],
) -> Vec<u8> {
    let segment = Segment {
        src_port: from.port,
        dst_port: to.port,
        seq,
        ack,
        flags,
        window: WINDOW,
        payload: payload.to_vec(),
        ..Segment::default()
    };
    let mut body = segment.emit();
    let address = |end: Endpoint| Ipv4Address::from(end.address).into();
    TcpPacket::new_unchecked(&mut body).fill_checksum(&address(from), &address(to));
    ipv4_frame(from, to, IpProtocol::Tcp, &body)
}

/// Builds the frame of an SCTP packet with DATA chunks.
pub fn sctp(from: Endpoint, to: Endpoint, tag: u32, chunks: &[Data]) -> Vec<u8> {
    let mut body = from.port.to_be_bytes().to_vec();
    body.extend(to.port.to_be_bytes());
    body.extend(tag.to_be_bytes());
    body.extend([0; 4]);
    for chunk in chunks {
        body.extend([0, chunk.flags]);
        body.extend(((16 + chunk.data.len()) as u16).to_be_bytes());
        body.extend(chunk.tsn.to_be_bytes());
        body.extend(chunk.stream.to_be_bytes());
        body.extend([0, 0]);
        body.extend(chunk.ppid.to_be_bytes());
        body.extend(&chunk.data);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let sum = oracle::crc32c(&body);
    body[8..12].copy_from_slice(&sum.to_le_bytes());
    ipv4_frame(from, to, SCTP, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Endpoint = Endpoint { address: [10, 0, 0, 1], port: 40000 };
    const B: Endpoint = Endpoint { address: [10, 0, 0, 2], port: 7471 };

    #[test]
    fn built_packets_are_parsed() {
        let frame = tcp(A, B, Flags::SYN, 7, 0, b"abc");
        let packet = parse(&frame).expect("a packet");
        assert_eq!((packet.source, packet.destination), (A, B));
        let Content::Tcp(segment) = packet.content else { panic!("{packet:?}") };
        assert_eq!(
            (segment.seq, segment.flags, &segment.payload[..]),
            (7, Flags::SYN, &b"abc"[..])
        );
        let data = [
            Data { flags: 7, tsn: 1, stream: 2, ppid: 16, data: b"abcde".to_vec() },
            Data { flags: 3, tsn: 2, stream: 2, ppid: 17, data: b"f".to_vec() },
        ];
        let frame = sctp(B, A, 9, &data);
        let content = Content::Sctp(data.to_vec());
        assert_eq!(parse(&frame), Some(Packet { source: B, destination: A, content }));
    }

    #[test]
    fn checksums_are_correct() {
        let frame = tcp(A, B, Flags::ACK, 1, 2, b"odd");
        let ethernet = EthernetFrame::new_checked(&frame).expect("a frame");
        let ip = Ipv4Packet::new_checked(ethernet.payload()).expect("a packet");
        assert!(ip.verify_checksum());
        let segment = TcpPacket::new_checked(ip.payload()).expect("a segment");
        assert!(segment.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
    }
}

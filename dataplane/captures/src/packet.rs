//! Builds Ethernet frames with IPv4 and TCP or SCTP for generated captures, and parses them for the listing (RFC 791,
//! RFC 9293 §3.1, RFC 9260 §3).

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const TCP: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_SCTP: u8 = 132;

/// SYN bit of the TCP flags.
pub const SYN: u8 = 2;
/// FIN bit of the TCP flags.
pub const FIN: u8 = 1;
/// ACK bit of the TCP flags.
pub const ACK: u8 = 16;

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
pub struct Packet<'a> {
    /// Address and port of the sender.
    pub source: Endpoint,
    /// Address and port of the receiver.
    pub destination: Endpoint,
    /// TCP segment, or DATA chunks of an SCTP packet.
    pub content: Content<'a>,
}

/// Transport content of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// A TCP segment with its payload.
    Tcp {
        /// Sequence number of the first payload byte, or of the SYN.
        seq: u32,
        /// True if the SYN flag is set.
        syn: bool,
        /// Bytes after the TCP header.
        payload: &'a [u8],
    },
    /// The DATA chunks of an SCTP packet.
    Sctp(Vec<Data<'a>>),
}

/// A DATA chunk (RFC 9260 §3.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data<'a> {
    /// Flags: 1 last fragment, 2 first fragment, 4 unordered.
    pub flags: u8,
    /// Transmission sequence number.
    pub tsn: u32,
    /// Stream identifier of the SCTP association.
    pub stream: u16,
    /// Payload protocol identifier.
    pub ppid: u32,
    /// User data: a message or a fragment of a message.
    pub data: &'a [u8],
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses a frame. `None` if it is not TCP or SCTP over IPv4 without fragmentation.
pub fn parse(frame: &[u8]) -> Option<Packet<'_>> {
    if be16(frame, 12)? != 0x0800 || be16(frame, ETHERNET + 6)? & 0x3fff != 0 {
        return None;
    }
    let header = usize::from(frame[ETHERNET] & 15) * 4;
    let total = usize::from(be16(frame, ETHERNET + 2)?);
    let protocol = *frame.get(ETHERNET + 9)?;
    let address = |at: usize| frame.get(ETHERNET + at..ETHERNET + at + 4)?.try_into().ok();
    let (from, to) = (address(12)?, address(16)?);
    let body = frame.get(ETHERNET + header..ETHERNET + total)?;
    let content = match protocol {
        PROTOCOL_TCP => {
            let offset = usize::from(body.get(12)? >> 4) * 4;
            let syn = body[13] & SYN != 0;
            Content::Tcp { seq: be32(body, 4)?, syn, payload: body.get(offset..)? }
        }
        PROTOCOL_SCTP => Content::Sctp(data_chunks(body.get(12..)?)),
        _ => return None,
    };
    Some(Packet {
        source: Endpoint { address: from, port: be16(body, 0)? },
        destination: Endpoint { address: to, port: be16(body, 2)? },
        content,
    })
}

fn data_chunks(mut chunks: &[u8]) -> Vec<Data<'_>> {
    let mut found = Vec::new();
    while let (Some(&[kind, flags]), Some(length)) = (chunks.first_chunk(), be16(chunks, 2)) {
        let length = usize::from(length);
        let Some(chunk) = chunks.get(..length).filter(|_| length >= 4) else { break };
        if let (0, Some(data)) = (kind, chunk.get(16..)) {
            found.extend((|| {
                let (tsn, stream, ppid) = (be32(chunk, 4)?, be16(chunk, 8)?, be32(chunk, 12)?);
                Some(Data { flags, tsn, stream, ppid, data })
            })());
        }
        chunks = chunks.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ipv4_frame(from: Endpoint, to: Endpoint, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to.address[3], 2, 0, 0, 0, 0, from.address[3], 8, 0];
    let mut header = vec![0x45, 0];
    header.extend(((IPV4 + body.len()) as u16).to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    header.extend(from.address);
    header.extend(to.address);
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend(body);
    frame
}

/// Builds the frame of a TCP segment without options.
pub fn tcp(from: Endpoint, to: Endpoint, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let mut body = from.port.to_be_bytes().to_vec();
    body.extend(to.port.to_be_bytes());
    body.extend(seq.to_be_bytes());
    body.extend(ack.to_be_bytes());
    body.extend([(TCP as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    body.extend(payload);
    let length = (body.len() as u16).to_be_bytes();
    let pseudo = [&from.address[..], &to.address, &[0, PROTOCOL_TCP], &length].concat();
    let sum = checksum(&[&pseudo, &body]);
    body[16..18].copy_from_slice(&sum.to_be_bytes());
    ipv4_frame(from, to, PROTOCOL_TCP, &body)
}

/// Builds the frame of an SCTP packet with DATA chunks.
pub fn sctp(from: Endpoint, to: Endpoint, tag: u32, chunks: &[Data<'_>]) -> Vec<u8> {
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
        body.extend(chunk.data);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let sum = oracle::crc32c(&body);
    body[8..12].copy_from_slice(&sum.to_le_bytes());
    ipv4_frame(from, to, PROTOCOL_SCTP, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Endpoint = Endpoint { address: [10, 0, 0, 1], port: 40000 };
    const B: Endpoint = Endpoint { address: [10, 0, 0, 2], port: 7471 };

    #[test]
    fn built_packets_are_parsed() {
        let frame = tcp(A, B, SYN, 7, 0, b"abc");
        let content = Content::Tcp { seq: 7, syn: true, payload: b"abc" };
        assert_eq!(parse(&frame), Some(Packet { source: A, destination: B, content }));
        let data = [
            Data { flags: 7, tsn: 1, stream: 2, ppid: 16, data: b"abcde" },
            Data { flags: 3, tsn: 2, stream: 2, ppid: 17, data: b"f" },
        ];
        let frame = sctp(B, A, 9, &data);
        let content = Content::Sctp(data.to_vec());
        assert_eq!(parse(&frame), Some(Packet { source: B, destination: A, content }));
    }

    // RFC 1071: the checksum over a packet that includes its checksum is zero.
    #[test]
    fn checksums_are_correct() {
        let frame = tcp(A, B, ACK, 1, 2, b"odd");
        assert_eq!(checksum(&[&frame[ETHERNET..ETHERNET + IPV4]]), 0);
        let body = &frame[ETHERNET + IPV4..];
        let pseudo = [10, 0, 0, 1, 10, 0, 0, 2, 0, 6, 0, body.len() as u8];
        assert_eq!(checksum(&[&pseudo, body]), 0);
    }
}

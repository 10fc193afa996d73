//! Writes recorded headers as pcapng. The frames are synthetic: their Ethernet and IP headers are generated, TCP has no
//! options, and all checksums except the IPv4 checksum are zero. Payload is not recorded. A TCP segment is truncated
//! after the header, and the original length of the frame includes the payload. The payload of an SCTP DATA chunk is
//! zeros, because Wireshark does not decode a truncated chunk.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness};

use api::{Flight, FlightHeader, Why};

/// Resolution of times: 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Direction of a frame in the option `epb_flags` of pcapng.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
const TCP: u8 = 6;
const SCTP: u8 = 132;
/// Chunk types (RFC 9260 §3.2).
const DATA: u8 = 0;
const SACK: u8 = 3;
const SHUTDOWN: u8 = 7;

/// Returns the bytes of the file, with the frames in the order of time, and the number of frames. An event without a
/// header is in the comment of the stream's next frame, or of its last frame if no frame follows. A stream without
/// headers has no frames, and its events are omitted.
pub(super) fn pcapng_file(why: &Why) -> (Vec<u8>, usize) {
    let application = concat!("ddpctl ", env!("CARGO_PKG_VERSION"));
    let section = SectionHeaderBlock {
        endianness: Endianness::Big,
        options: vec![SectionHeaderOption::UserApplication(application.into())],
        ..SectionHeaderBlock::default()
    };
    let writer = PcapNgWriter::with_section_header(Vec::new(), section);
    let mut writer = writer.expect("writing to memory cannot fail");
    let options = vec![
        InterfaceDescriptionOption::IfName("recorder".into()),
        InterfaceDescriptionOption::IfDescription("headers that the flight recorder kept".into()),
        InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
    ];
    let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
    writer.write_pcapng_block(interface).expect("writing to memory cannot fail");
    let mut frames: Vec<Frame> = why.streams.iter().flat_map(flight_frames).collect();
    frames.sort_by_key(|frame| frame.time);
    let headers = frames.len();
    for frame in frames {
        let options = vec![
            EnhancedPacketOption::Flags(if frame.from_peer { INBOUND } else { OUTBOUND }),
            EnhancedPacketOption::Comment(frame.comment.into()),
        ];
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: frame.time,
            original_len: frame.original_len,
            data: Cow::Owned(frame.data),
            options,
        };
        writer
            .write_pcapng_block(block)
            .expect("writing to memory cannot fail, and the interface exists");
    }
    (writer.into_inner(), headers)
}

/// A synthetic frame around a recorded header.
struct Frame {
    time: Duration,
    from_peer: bool,
    data: Vec<u8>,
    original_len: u32,
    comment: String,
}

/// Returns the frames of a stream. The comment of each frame lists the events since the previous frame. The comment of
/// the last frame also lists the later events.
fn flight_frames(flight: &Flight) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    let beginning = format!("stream {}", flight.stream);
    let mut comment = beginning.clone();
    for event in &flight.events {
        comment += &format!("; {}: {}", event.event, event.detail);
        let Some(header) = &event.header else { continue };
        let Some((data, original_len)) = build_frame(flight, header) else { continue };
        let at = Duration::from_micros(flight.began_us.saturating_add(event.after_us));
        let comment = std::mem::replace(&mut comment, beginning.clone());
        frames.push(Frame { time: at, from_peer: header.from_peer, data, original_len, comment });
    }
    if let (Some(last), Some(after)) = (frames.last_mut(), comment.strip_prefix(&beginning)) {
        last.comment += after;
    }
    frames
}

/// Returns a frame, and its original length including the omitted payload. `None` if the addresses do not parse or are
/// not of the same family, or if the IP length would overflow.
fn build_frame(flight: &Flight, header: &FlightHeader) -> Option<(Vec<u8>, u32)> {
    let local: SocketAddr = flight.local.parse().ok()?;
    let remote: SocketAddr = flight.remote.parse().ok()?;
    let (from, to) = if header.from_peer { (remote, local) } else { (local, remote) };
    let mut segment = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let (protocol, left_out) = match header.transport.as_str() {
        "tcp" => {
            push_tcp_header(header, &mut segment);
            (TCP, header.length)
        }
        _ => {
            push_sctp_packet(header, &mut segment);
            (SCTP, 0)
        }
    };
    let mut data = ip_header(from.ip(), to.ip(), protocol, segment.len() + usize::from(left_out))?;
    data.extend(segment);
    let whole = data.len() as u32 + u32::from(left_out);
    Some((data, whole))
}

/// Appends the TCP header after the ports (RFC 9293 §3.1).
fn push_tcp_header(header: &FlightHeader, out: &mut Vec<u8>) {
    const HEADER_WORDS: u8 = 5;
    out.extend(header.number.to_be_bytes());
    out.extend(header.acknowledges.to_be_bytes());
    out.extend([HEADER_WORDS << 4, header.flags]);
    out.extend(header.window.to_be_bytes());
    out.extend([0; 4]);
}

/// Appends the SCTP header after the ports (tag and checksum), and one chunk (RFC 9260 §3).
fn push_sctp_packet(header: &FlightHeader, out: &mut Vec<u8>) {
    out.extend([0; 8]);
    let chunk = header.flags;
    let (flags, len): (u8, u16) = match chunk {
        // Flags U, B and E: unordered and unfragmented.
        DATA => (7, header.length.saturating_add(16)),
        SACK => (0, 16),
        SHUTDOWN => (0, 8),
        _ => (0, 4),
    };
    out.extend([chunk, flags]);
    out.extend(len.to_be_bytes());
    match chunk {
        DATA => {
            out.extend(header.number.to_be_bytes());
            out.extend([0; 8]);
            // RFC 9260 §3.2: padded to a multiple of four bytes.
            let payload = usize::from(header.length).next_multiple_of(4);
            out.resize(out.len() + payload, 0);
        }
        SACK => {
            out.extend(header.acknowledges.to_be_bytes());
            out.extend(u32::from(header.window).to_be_bytes());
            out.extend([0; 4]);
        }
        SHUTDOWN => out.extend(header.acknowledges.to_be_bytes()),
        _ => {}
    }
}

/// Returns the Ethernet and IP headers of a packet with `len` bytes of IP payload. MAC addresses are zero. `None` if
/// the addresses are not of the same family, or if the IP length would overflow.
fn ip_header(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> Option<Vec<u8>> {
    const TTL: u8 = 64;
    let mut out = vec![0; 12];
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend([8, 0]);
            let total = u16::try_from(20 + len).ok()?;
            let mut header = vec![0x45, 0];
            header.extend(total.to_be_bytes());
            header.extend([0, 0, 0x40, 0, TTL, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let checksum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&checksum);
            out.extend(header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend(u16::try_from(len).ok()?.to_be_bytes());
            out.extend([protocol, TTL]);
            out.extend(from.octets());
            out.extend(to.octets());
        }
        _ => return None,
    }
    Some(out)
}

/// Returns the checksum of an IPv4 header (RFC 791 §3.1).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum: u32 = words.sum();
    // The carries are added twice, because the first addition may produce another carry.
    for _ in 0..2 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}

#[cfg(test)]
mod tests;

//! Segments that carry FPDUs: segments that match no stream, and segments forged into a live stream.

use anyhow::{Context, Result};
use etherparse::{TcpHeader, TcpOptionElement};
use fastrand::Rng;
use wire::ddp::{DdpVersion, TAGGED_HEADER_LEN, TaggedRepr};
use wire::mpa::{self, MARKER_INTERVAL, MARKER_LEN, Marker};
use wire::rdmap::{Control, Opcode};
use wire::{Stag, TaggedOffset, crc32c};

use super::build::{FrameAddresses, frame_addresses, random_bytes, tcp_frame};
use super::{Plan, Stream, tcp};

/// Number of consecutive segments in a run. Each run starts at RCV.NXT, and its 9 KB fit into the target's receive
/// window.
const RUN_LEN: usize = 16;
/// Length of the payload of the Write in a forged segment, bytes.
const WRITE_LEN: usize = 512;
/// Offset of the checksum in a TCP header.
const CHECKSUM_OFFSET: usize = 16;

/// Returns a segment that matches no stream: one complete FPDU to the listener's port.
pub(super) fn unmatched_segment(plan: &Plan, rng: &mut Rng) -> Result<Vec<u8>> {
    let (ends, mut header) = tcp::listener_segment(plan, rng);
    header.psh = true;
    header.set_options(&timestamp_options(rng.u32(..), rng.u32(..)))?;
    let len = [16, 256, 1024, 1392][rng.usize(..4)];
    tcp_frame(&ends, header, &write_fpdu(len, None, rng).bytes)
}

/// Returns a segment with a random sequence number, mostly outside the window.
pub(super) fn random_seq_segment(plan: &Plan, rng: &mut Rng) -> Result<Vec<u8>> {
    let (stream, ends) = live_stream(plan)?;
    let fpdu = write_fpdu(WRITE_LEN, None, rng);
    forged_segment(&stream, &ends, rng.u32(..), &fpdu.bytes)
}

/// Returns a segment of a run, with a wrong TCP checksum.
pub(super) fn bad_checksum_segment(plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let (stream, ends) = live_stream(plan)?;
    let (seq, fpdu) = next_fpdu(&stream, index, rng);
    let mut frame = forged_segment(&stream, &ends, seq, &fpdu.bytes)?;
    let at =
        super::build::ETHERNET_LEN + super::build::ip_header_len(plan.is_v6()) + CHECKSUM_OFFSET;
    // 0x0000 and 0xffff are equal in one's complement; flipping one bit cannot turn one into the other.
    frame[at + rng.usize(..2)] ^= 1 << rng.u32(..8);
    Ok(frame)
}

/// Returns a segment of a run, with a wrong CRC in its FPDU.
pub(super) fn bad_crc_segment(plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let (stream, ends) = live_stream(plan)?;
    let (seq, mut fpdu) = next_fpdu(&stream, index, rng);
    let crc = fpdu.bytes.len() - mpa::CRC_LEN;
    fpdu.bytes[crc + rng.usize(..mpa::CRC_LEN)] ^= 1 << rng.u32(..8);
    forged_segment(&stream, &ends, seq, &fpdu.bytes)
}

/// Returns a segment at RCV.NXT with a marker whose FPDU pointer is wrong. The CRC, which covers markers, is correct.
pub(super) fn bad_marker_segment(plan: &Plan, rng: &mut Rng) -> Result<Vec<u8>> {
    let (stream, ends) = live_stream(plan)?;
    let at = usize::from(
        stream
            .marker
            .context("in-window-marker needs to know where the stream's next marker is")?,
    );
    let mut fpdu = write_fpdu(2 * WRITE_LEN, Some(at), rng);
    let field = &mut fpdu.bytes[at..at + MARKER_LEN];
    let right = Marker::parse(&[field[0], field[1], field[2], field[3]]).fpduptr();
    field.copy_from_slice(&Marker::new(right ^ (4 << rng.u32(..8))).emit());
    fpdu.write_crc();
    forged_segment(&stream, &ends, stream.next_seq, &fpdu.bytes)
}

fn live_stream(plan: &Plan) -> Result<(Stream, FrameAddresses)> {
    let stream = plan.stream.context("no stream")?;
    Ok((stream, frame_addresses(plan, stream.remote.ip(), stream.local)))
}

/// Returns the sequence number and FPDU of segment `index` of a run.
fn next_fpdu(stream: &Stream, index: usize, rng: &mut Rng) -> (u32, Fpdu) {
    let mut offset = 0;
    // Markers have fixed positions in the stream, so the offset depends on all previous FPDUs of the run.
    for _ in 0..index % RUN_LEN {
        offset +=
            fpdu_layout(WRITE_LEN, stream.marker.map(|marker| bytes_until_marker(marker, offset)))
                .0;
    }
    let marker = stream.marker.map(|marker| bytes_until_marker(marker, offset));
    (stream.next_seq.wrapping_add(offset as u32), write_fpdu(WRITE_LEN, marker, rng))
}

/// Returns the bytes from `offset` to the next marker, where the first marker is at `first`.
fn bytes_until_marker(first: u16, offset: usize) -> usize {
    let interval = MARKER_INTERVAL as usize;
    (usize::from(first) + interval - offset % interval) % interval
}

fn forged_segment(
    stream: &Stream,
    ends: &FrameAddresses,
    seq: u32,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let mut header = TcpHeader::new(stream.remote.port(), stream.local.port(), seq, 1000);
    header.ack = true;
    header.psh = true;
    header.acknowledgment_number = stream.ack;
    if let Some((value, echo)) = stream.timestamps {
        header.set_options(&timestamp_options(value, echo))?;
    }
    tcp_frame(ends, header, payload)
}

fn timestamp_options(value: u32, echo: u32) -> [TcpOptionElement; 3] {
    [TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(value, echo)]
}

/// An FPDU with its markers, as it appears in the stream (RFC 5044 §4).
pub(super) struct Fpdu {
    pub(super) bytes: Vec<u8>,
}

impl Fpdu {
    /// Writes the CRC over all preceding bytes, including markers (RFC 5044 §4.4).
    fn write_crc(&mut self) {
        let at = self.bytes.len() - mpa::CRC_LEN;
        let crc = crc32c::field(&self.bytes[..at]);
        self.bytes[at..].copy_from_slice(&crc);
    }
}

/// Returns an FPDU with an RDMA Write of `len` random bytes to a random STag. `marker` is the offset of its first
/// marker; `None` for a stream without markers.
pub(super) fn write_fpdu(len: usize, marker: Option<usize>, rng: &mut Rng) -> Fpdu {
    let header = TaggedRepr {
        last: true,
        version: DdpVersion::V1,
        rsvd_ulp: Control::new(DdpVersion::V1, Opcode::Write).0,
        stag: Stag(rng.u32(1..)),
        to: TaggedOffset(rng.u64(..)),
    };
    let ulpdu_len = TAGGED_HEADER_LEN + len;
    let mut plain = (ulpdu_len as u16).to_be_bytes().to_vec();
    plain.extend(header.pack().bytes());
    plain.extend(random_bytes(len, rng));
    plain.resize(mpa::fpdu_len(ulpdu_len), 0);

    let (_, markers) = fpdu_layout(len, marker);
    let mut bytes = Vec::new();
    let mut taken = 0;
    let mut length_at = None;
    for at in markers {
        let more = at - bytes.len();
        if more > 0 {
            length_at.get_or_insert(bytes.len());
        }
        bytes.extend(&plain[taken..taken + more]);
        taken += more;
        // RFC 5044 §4.3: distance from the ULPDU_Length field to the marker; 0 if the marker precedes that field.
        bytes.extend(Marker::new(length_at.map_or(0, |start| bytes.len() - start) as u16).emit());
    }
    bytes.extend(&plain[taken..]);
    let mut fpdu = Fpdu { bytes };
    fpdu.write_crc();
    fpdu
}

/// Returns the length of the FPDU of a Write of `len` bytes, including markers, and the offsets of the markers. A
/// marker right after the FPDU's last byte belongs to the next FPDU.
fn fpdu_layout(len: usize, marker: Option<usize>) -> (usize, Vec<usize>) {
    let mut total = mpa::fpdu_len(TAGGED_HEADER_LEN + len);
    let mut markers = Vec::new();
    let mut at = marker;
    while let Some(position) = at.filter(|position| *position < total) {
        markers.push(position);
        total += MARKER_LEN;
        at = Some(position + MARKER_INTERVAL as usize);
    }
    (total, markers)
}

//! Writes one FPDU (RFC 5044 §4.1, §4.3, §4.4): header, markers, payload and pad in one pass over the source, then the
//! CRC over the bytes written; of a long payload without markers the CRC is computed as it is copied, and the Internet
//! checksum with it.

use super::super::framing::Framing;
use ddp::llp::{Outgoing, UlpduSource};
use wire::crc32c::{self, Digest, Sum};
use wire::mpa::{CRC_LEN, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, Marker, pad_len};

/// Writes the FPDU that begins at stream offset `fpdu` into `out`, which has exactly its bytes. A `sum` takes them, or is
/// none afterwards if it does not come with the copy.
#[inline]
pub(super) fn frame(
    framing: Framing,
    crc: bool,
    fpdu: u64,
    outgoing: &Outgoing,
    source: &impl UlpduSource,
    out: &mut [u8],
    sum: &mut Option<Sum>,
) {
    if !framing.has_markers() {
        if crc && Digest::is_one_pass(outgoing.payload_len) {
            return one_pass(outgoing, source, out, sum);
        }
        *sum = None;
        return plain(crc, outgoing, source, out);
    }
    *sum = None;
    let header = framing.header(fpdu);
    let mut writer = Writer { framing, header, at: fpdu, out, done: 0 };
    writer.put(&(outgoing.len() as u16).to_be_bytes());
    writer.put(&outgoing.header.bytes());
    if outgoing.payload_len > 0 {
        source.read_pieces(outgoing.token, 0, writer.pieces(outgoing.payload_len));
    }
    writer.put(&[0; 3][..pad_len(outgoing.len())]);
    // A marker between pad and CRC is a part of this FPDU.
    writer.marker();
    let done = writer.done;
    debug_assert_eq!(out.len(), done + CRC_LEN);
    // RFC 5044 §4.1: the field is there when CRCs are off too.
    let field = if crc { crc32c::field(&out[..done]) } else { [0; CRC_LEN] };
    out[done..].copy_from_slice(&field);
}

/// The same without markers: nothing is cut. No byte that was written is read again: the CPU would wait for all those
/// before it to reach the cache, and of a buffer that another core wrote to last each line comes from there first.
#[inline(never)]
fn one_pass(outgoing: &Outgoing, source: &impl UlpduSource, out: &mut [u8], sum: &mut Option<Sum>) {
    let (len, pad) = (outgoing.len(), pad_len(outgoing.len()));
    debug_assert_eq!(out.len(), LENGTH_LEN + len + pad + CRC_LEN);
    let mut digest = Digest::new(sum.is_some());
    digest.add(&outgoing.header.bytes_behind(len as u16));
    let (length, rest) = out.split_at_mut(LENGTH_LEN);
    length.copy_from_slice(&(len as u16).to_be_bytes());
    let (header, rest) = rest.split_at_mut(outgoing.header.len());
    outgoing.header.write(header);
    let (payload, rest) = rest.split_at_mut(outgoing.payload_len);
    source.read_digested(outgoing.token, 0, payload, &mut digest);
    let zeros = &[0; 3][..pad];
    digest.add(zeros);
    rest[..pad].copy_from_slice(zeros);
    let field = crc32c::to_field(digest.crc());
    digest.add_to_sum(&field);
    rest[pad..].copy_from_slice(&field);
    *sum = sum.zip(digest.sum()).map(|(before, sum)| before.then(sum));
}

/// The same in two passes, for short payloads and where there are no CRCs.
#[inline]
fn plain(crc: bool, outgoing: &Outgoing, source: &impl UlpduSource, out: &mut [u8]) {
    let len = outgoing.len();
    let (length, rest) = out.split_at_mut(LENGTH_LEN);
    length.copy_from_slice(&(len as u16).to_be_bytes());
    let (header, rest) = rest.split_at_mut(outgoing.header.len());
    outgoing.header.write(header);
    let (payload, pad) = rest.split_at_mut(outgoing.payload_len);
    if !payload.is_empty() {
        source.read_payload(outgoing.token, 0, payload);
    }
    pad[..pad_len(len)].fill(0);
    let done = out.len() - CRC_LEN;
    debug_assert_eq!(done, LENGTH_LEN + len + pad_len(len));
    let field = if crc { crc32c::field(&out[..done]) } else { [0; CRC_LEN] };
    out[done..].copy_from_slice(&field);
}

struct Writer<'a> {
    framing: Framing,
    header: u64,
    /// Stream offset of the next byte.
    at: u64,
    out: &'a mut [u8],
    done: usize,
}

impl Writer<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.run(bytes.len());
            let (now, later) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            bytes = later;
        }
    }

    /// Room for `len` bytes, which are not none; the marker before each piece is written as the piece is taken.
    fn pieces(&mut self, len: usize) -> impl Iterator<Item = &mut [u8]> {
        const INTERVAL: usize = MARKER_INTERVAL as usize;
        self.marker();
        let first = self.framing.run(self.at).min(len);
        let left = len - first;
        let markers = left.div_ceil(INTERVAL - MARKER_LEN);
        let all = first + left + markers * MARKER_LEN;
        let mut pointer = self.at + first as u64 - self.header;
        let (first, rest) = self.out[self.done..self.done + all].split_at_mut(first);
        self.at += all as u64;
        self.done += all;
        let rest = rest.chunks_mut(INTERVAL).map(move |chunk| {
            let (marker, room) = chunk.split_at_mut(MARKER_LEN);
            marker.copy_from_slice(&Marker::new(pointer as u16).emit());
            pointer += MARKER_INTERVAL;
            room
        });
        core::iter::once(first).chain(rest)
    }

    /// Room for at most `want` bytes, up to the next marker.
    fn run(&mut self, want: usize) -> &mut [u8] {
        self.marker();
        let n = self.framing.run(self.at).min(want);
        self.at += n as u64;
        self.done += n;
        &mut self.out[self.done - n..self.done]
    }

    /// Writes a marker if one is due (RFC 5044 §4.3).
    fn marker(&mut self) {
        if self.framing.is_marker(self.at) {
            let pointer = self.at.saturating_sub(self.header) as u16;
            self.out[self.done..self.done + MARKER_LEN]
                .copy_from_slice(&Marker::new(pointer).emit());
            self.at += MARKER_LEN as u64;
            self.done += MARKER_LEN;
        }
    }
}

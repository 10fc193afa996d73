//! Writes one FPDU (RFC 5044 §4.1, §4.3, §4.4). Header, markers, payload and pad take one pass over the source. The CRC
//! takes a second pass, over the written bytes. For long payloads the copy itself computes CRC and Internet checksum.

use super::super::framing::Framing;
use ddp::llp::{Outgoing, UlpduSource};
use wire::crc32c::{self, Digest, Inserts, Sum, Target};
use wire::mpa::{CRC_LEN, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, Marker, pad_len};

/// Writes the FPDU that begins at stream offset `fpdu` into `out`, which has the FPDU's length. Adds the FPDU to the
/// Internet checksum `sum`, or sets `sum` to `None` if the copy does not compute the checksum.
#[inline(always)]
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
            return write_one_pass(outgoing, source, None, out, sum);
        }
        *sum = None;
        return write_plain(crc, outgoing, source, out);
    }
    if crc && let Some(markers) = markers_in_payload(framing, fpdu, outgoing) {
        return write_one_pass(outgoing, source, Some(markers), out, sum);
    }
    *sum = None;
    write_with_markers(framing, crc, fpdu, outgoing, source, out);
}

/// Returns the markers of an FPDU if they are all in the payload, where a one-pass copy can insert them; otherwise
/// `None`. Nearly all FPDUs that fill a segment qualify.
#[inline]
fn markers_in_payload(framing: Framing, fpdu: u64, outgoing: &Outgoing) -> Option<Inserts> {
    const _: () =
        assert!(Inserts::LEN == MARKER_LEN && Inserts::INTERVAL as u64 == MARKER_INTERVAL);
    let header = LENGTH_LEN + outgoing.header.len();
    let first = (framing.next_marker(fpdu) - fpdu) as usize;
    let alone = first >= header && pad_len(outgoing.len()) == 0;
    // FPDUPTR (RFC 5044 §4.3): distance from the length field, with which this FPDU begins, to the marker.
    let markers = Inserts::new(first.wrapping_sub(header) as u32, first as u16);
    (alone && Target::inserts_in_one_pass(outgoing.payload_len)).then_some(markers)
}

/// Writes an FPDU with markers, in two passes.
#[inline(never)]
fn write_with_markers(
    framing: Framing,
    crc: bool,
    fpdu: u64,
    outgoing: &Outgoing,
    source: &impl UlpduSource,
    out: &mut [u8],
) {
    let origin = framing.pointer_origin(fpdu);
    let mut writer = Writer { framing, origin, at: fpdu, out, done: 0 };
    writer.put(&(outgoing.len() as u16).to_be_bytes());
    writer.put(&outgoing.header.bytes());
    if outgoing.payload_len > 0 {
        source.read_pieces(outgoing.token, 0, writer.reserve_pieces(outgoing.payload_len));
    }
    writer.put(&[0; 3][..pad_len(outgoing.len())]);
    // A marker between pad and CRC belongs to this FPDU.
    writer.write_marker_if_due();
    let done = writer.done;
    debug_assert_eq!(out.len(), done + CRC_LEN);
    // RFC 5044 §4.1: the field is present even with CRCs off.
    let field = if crc { crc32c::field(&out[..done]) } else { [0; CRC_LEN] };
    out[done..].copy_from_slice(&field);
}

/// Writes an FPDU in one pass. CRC and sum do not read written bytes back. Such a read would wait until earlier stores
/// have reached the cache, and would fetch each line of a buffer that another core wrote last. With `markers`, which
/// are all in the payload, the FPDU has no pad.
#[inline(never)]
fn write_one_pass(
    outgoing: &Outgoing,
    source: &impl UlpduSource,
    markers: Option<Inserts>,
    out: &mut [u8],
    sum: &mut Option<Sum>,
) {
    let (payload, field) = lay_out(outgoing, out);
    let mut digest = Digest::new(sum.is_some());
    outgoing.header.digest_after_length(outgoing.len() as u16, &mut digest);
    let mut target = match markers {
        Some(markers) => Target::with_inserts(payload, markers, digest),
        None => Target::new(payload, digest),
    };
    source.read_digested(outgoing.token, 0, &mut target);
    let mut digest = target.into_digest();
    let pad = pad_len(outgoing.len());
    if pad > 0 {
        digest.add(&[0; 3][..pad]);
    }
    *field = crc32c::to_field(digest.crc());
    digest.add_to_sum(field);
    *sum = sum.zip(digest.sum()).map(|(before, sum)| before.concat(sum));
}

/// Writes an FPDU without markers in two passes: for a short payload, or without CRC.
#[inline]
fn write_plain(crc: bool, outgoing: &Outgoing, source: &impl UlpduSource, out: &mut [u8]) {
    let (payload, _) = lay_out(outgoing, out);
    if !payload.is_empty() {
        source.read_payload(outgoing.token, 0, payload);
    }
    let done = out.len() - CRC_LEN;
    let field = if crc { crc32c::field(&out[..done]) } else { [0; CRC_LEN] };
    out[done..].copy_from_slice(&field);
}

/// Writes length, header and pad of an FPDU that fills `out` and whose markers, if any, are in the payload. Returns the
/// payload's slice and the CRC field.
#[inline(always)]
fn lay_out<'a>(outgoing: &Outgoing, out: &'a mut [u8]) -> (&'a mut [u8], &'a mut [u8; CRC_LEN]) {
    let len = outgoing.len();
    let (out, field) = out.split_last_chunk_mut().expect("room for the CRC");
    let (length, rest) = out.split_at_mut(LENGTH_LEN);
    length.copy_from_slice(&(len as u16).to_be_bytes());
    let (header, rest) = rest.split_at_mut(outgoing.header.len());
    outgoing.header.write(header);
    let (payload, pad) = rest.split_at_mut(rest.len() - pad_len(len));
    // A ULPDU of MULPDU bytes normally needs no pad. The check saves the call of memset.
    if !pad.is_empty() {
        pad.fill(0);
    }
    (payload, field)
}

/// Writer of the parts of an FPDU, and of the markers between them, in order.
struct Writer<'a> {
    framing: Framing,
    /// Stream offset from which FPDUPTR counts.
    origin: u64,
    /// Stream offset of the next byte to write.
    at: u64,
    out: &'a mut [u8],
    /// Number of bytes written to `out`.
    done: usize,
}

impl Writer<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.reserve_run(bytes.len());
            let (now, later) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            bytes = later;
        }
    }

    /// Returns slices for `len` > 0 bytes, split at markers. The iterator writes each marker before it
    /// returns the slice that follows the marker.
    fn reserve_pieces(&mut self, len: usize) -> impl Iterator<Item = &mut [u8]> {
        const INTERVAL: usize = MARKER_INTERVAL as usize;
        self.write_marker_if_due();
        let first = self.framing.bytes_to_marker(self.at).min(len);
        let left = len - first;
        let markers = left.div_ceil(INTERVAL - MARKER_LEN);
        let all = first + left + markers * MARKER_LEN;
        let mut pointer = self.at + first as u64 - self.origin;
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

    /// Returns a slice for at most `want` bytes, up to the next marker.
    fn reserve_run(&mut self, want: usize) -> &mut [u8] {
        self.write_marker_if_due();
        let n = self.framing.bytes_to_marker(self.at).min(want);
        self.at += n as u64;
        self.done += n;
        &mut self.out[self.done - n..self.done]
    }

    /// Writes a marker if one is due (RFC 5044 §4.3). FPDUPTR is 0 in a marker in front of the length field.
    fn write_marker_if_due(&mut self) {
        if self.framing.is_marker(self.at) {
            let pointer = self.at.saturating_sub(self.origin) as u16;
            self.out[self.done..self.done + MARKER_LEN]
                .copy_from_slice(&Marker::new(pointer).emit());
            self.at += MARKER_LEN as u64;
            self.done += MARKER_LEN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ddp::llp::UlpduToken;
    use wire::ddp::{HeaderRepr, PackedHeader, TaggedRepr, UntaggedRepr};
    use wire::{DdpVersion, MessageOffset, Msn, Qn, Stag, TaggedOffset};

    /// Returns a ULPDU with `payload_len` bytes of payload.
    fn ulpdu(header: PackedHeader, payload_len: usize) -> (Outgoing, Payload) {
        let source = Payload((0..payload_len).map(|i| (i * 13 + i / 9) as u8).collect());
        let token = UlpduToken { message: 0, offset: 0 };
        (Outgoing { token, header, payload_len, stable: true }, source)
    }

    /// The payload of one ULPDU.
    struct Payload(Vec<u8>);

    impl UlpduSource for Payload {
        fn next_len(&self, _: usize) -> Option<usize> {
            None
        }
        fn next_is_stable(&self) -> bool {
            true
        }
        fn next(&mut self, _: usize) -> Option<Outgoing> {
            None
        }
        fn reframe(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
            Outgoing { token, header: Default::default(), payload_len, stable: true }
        }
        fn read_pieces<'a>(
            &self,
            _: UlpduToken,
            at: usize,
            pieces: impl Iterator<Item = &'a mut [u8]>,
        ) {
            let mut rest = &self.0[at..];
            for piece in pieces {
                let (now, later) = rest.split_at(piece.len());
                piece.copy_from_slice(now);
                rest = later;
            }
        }
        fn on_acknowledged(&mut self, _: UlpduToken, _: usize) {}
    }

    fn headers() -> [PackedHeader; 2] {
        let (version, last, rsvd_ulp) = (DdpVersion::V1, true, 0x41);
        let tagged = TaggedRepr {
            version,
            last,
            rsvd_ulp,
            stag: Stag(0x0102_0304),
            to: TaggedOffset(0xf1f2_f3f4_f5f6_f7f8),
        };
        let untagged = UntaggedRepr {
            version,
            last,
            rsvd_ulp: [0x41, 1, 2, 3, 4],
            qn: Qn(7),
            msn: Msn(0x9090_9191),
            mo: MessageOffset(0xfeff_fdfc),
        };
        [HeaderRepr::Tagged(tagged).pack(), HeaderRepr::Untagged(untagged).pack()]
    }

    /// For each header and payload length, both writers write equal bytes, and the sum covers all of them.
    #[test]
    fn one_pass_and_two_pass_writers_agree() {
        for header in headers() {
            let number = 0x8234;
            let behind = [&u16::to_be_bytes(number)[..], &header.bytes()].concat();
            let mut digest = Digest::new(true);
            header.digest_after_length(number, &mut digest);
            let mut expected = Digest::new(true);
            expected.add(&behind);
            assert_eq!(digest, expected);
            for payload_len in (0..600).chain([1411, 1412, 1413, 1414, 8900]) {
                let (outgoing, source) = ulpdu(header, payload_len);
                let len = wire::mpa::fpdu_len(outgoing.len());
                let (mut one, mut two) = (vec![0xee; len], vec![0xdd; len]);
                let before = Sum::default().add_bytes(b"what is before");
                let mut sum = Some(before);
                write_one_pass(&outgoing, &source, None, &mut one, &mut sum);
                write_plain(true, &outgoing, &source, &mut two);
                assert!(one == two, "{payload_len}");
                assert_eq!(sum, Some(before.add_bytes(&one)), "{payload_len}");
                let mut none = None;
                write_one_pass(&outgoing, &source, None, &mut one, &mut none);
                assert!(one == two && none.is_none(), "{payload_len}");
            }
        }
    }

    /// `frame` and `write_with_markers` write equal FPDUs at every marker phase. If `frame` computes the Internet
    /// checksum, it covers all bytes of the FPDU.
    #[test]
    fn one_pass_and_piecewise_markers_agree() {
        const START: u64 = 36;
        let framing = Framing::new(START, true);
        let lens = || (0..20).chain(220..260).chain(480..530).chain(1390..1432).chain(8856..8862);
        for (header, payload_len) in headers().into_iter().flat_map(|h| lens().map(move |n| (h, n)))
        {
            let (outgoing, source) = ulpdu(header, payload_len);
            for fpdu in (START..START + 2 * MARKER_INTERVAL).step_by(4) {
                let len = framing.fpdu_total_len(fpdu, outgoing.len());
                let (mut one, mut pieces) = (vec![0xee; len], vec![0xdd; len]);
                write_with_markers(framing, true, fpdu, &outgoing, &source, &mut pieces);
                let before = Sum::default().add_bytes(b"even");
                let mut sum = Some(before);
                frame(framing, true, fpdu, &outgoing, &source, &mut one, &mut sum);
                assert!(one == pieces, "{payload_len} at {fpdu}");
                assert!(
                    sum.is_none_or(|sum| sum == before.add_bytes(&one)),
                    "{payload_len} at {fpdu}"
                );
                // Tests the one-pass writer even on CPUs on which `frame` does not choose it.
                let first = (framing.next_marker(fpdu) - fpdu) as usize;
                let in_front = first < LENGTH_LEN + header.len();
                assert!(sum.is_none() || !in_front);
                if !in_front && pad_len(outgoing.len()) == 0 {
                    let front = LENGTH_LEN + header.len();
                    let markers = Inserts::new((first - front) as u32, first as u16);
                    let mut sum = Some(before);
                    one.fill(0xee);
                    write_one_pass(&outgoing, &source, Some(markers), &mut one, &mut sum);
                    assert!(one == pieces, "{payload_len} at {fpdu}");
                    assert_eq!(sum, Some(before.add_bytes(&pieces)), "{payload_len} at {fpdu}");
                }
            }
        }
    }
}

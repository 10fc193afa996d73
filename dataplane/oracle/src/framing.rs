//! Decoder of an MPA stream in Full Operation: FPDUs with their markers, pad and CRC (RFC 5044 §4), and start frames
//! (§7.1.1). The decoder reports damaged fields and does not reject them.

use crate::{MARKER_SPACING, StartFrame, crc32c};

/// A marker inside or before an FPDU (RFC 5044 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The 16 reserved bits.
    pub reserved: u16,
    /// FPDUPTR as received.
    pub pointer: u16,
    /// FPDUPTR that the position requires.
    pub expected: u16,
}

/// An FPDU as received, with the CRC that it should have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fpdu {
    /// All bytes of the FPDU, including a marker before it.
    pub raw: Vec<u8>,
    /// The ULPDU, without markers.
    pub ulpdu: Vec<u8>,
    /// Bytes between the ULPDU and the CRC, 0 to 3.
    pub pad: Vec<u8>,
    /// Markers in the order of the stream.
    pub markers: Vec<Marker>,
    /// The CRC field, least significant byte first.
    pub crc: u32,
    /// CRC32c of all bytes before the field.
    pub computed_crc: u32,
}

/// Decoder of one direction. Positions count from the first byte of Full Operation.
#[derive(Clone, Debug, Default)]
pub struct Deframer {
    /// True if this direction carries markers.
    pub markers: bool,
    /// True if FPDUPTR counts from the first byte of an FPDU, which may belong to a marker
    /// (draft-culley-iwarp-mpa-03 §7.1), instead of from the ULPDU_Length field (RFC 5044 §4.3).
    pub draft_pointers: bool,
    position: usize,
}

impl Deframer {
    /// Returns a decoder at the start of Full Operation.
    pub fn new(markers: bool) -> Deframer {
        Deframer { markers, ..Deframer::default() }
    }

    /// Returns this decoder with `draft_pointers`.
    pub fn with_draft_pointers(self, draft_pointers: bool) -> Deframer {
        Deframer { draft_pointers, ..self }
    }

    /// Decodes the FPDU at the start of `bytes`. `None` if it is incomplete.
    pub fn next(&mut self, bytes: &[u8]) -> Option<Fpdu> {
        let mut walk = Walk {
            bytes,
            at: 0,
            position: self.position,
            markers: self.markers,
            draft_pointers: self.draft_pointers,
            start: None,
            found: vec![],
        };
        let length = [walk.byte()?, walk.byte()?];
        let length = usize::from(u16::from_be_bytes(length));
        let ulpdu = (0..length).map(|_| walk.byte()).collect::<Option<Vec<u8>>>()?;
        let pad = (2 + length).next_multiple_of(4) - (2 + length);
        let pad = (0..pad).map(|_| walk.byte()).collect::<Option<Vec<u8>>>()?;
        walk.marker()?;
        let covered = walk.at;
        let field = bytes.get(covered..covered + 4)?;
        let raw = bytes[..covered + 4].to_vec();
        self.position += raw.len();
        Some(Fpdu {
            ulpdu,
            pad,
            markers: walk.found,
            crc: u32::from_le_bytes([field[0], field[1], field[2], field[3]]),
            computed_crc: crc32c(&raw[..covered]),
            raw,
        })
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    position: usize,
    markers: bool,
    draft_pointers: bool,
    start: Option<usize>,
    found: Vec<Marker>,
}

impl Walk<'_> {
    /// Consumes a marker if one is due at the current position.
    fn marker(&mut self) -> Option<()> {
        let here = self.position + self.at;
        if self.markers && here.is_multiple_of(MARKER_SPACING) {
            let m = self.bytes.get(self.at..self.at + 4)?;
            // RFC 5044 §4.3: bytes from the length field to the marker; 0 in front of that field.
            let expected = self.start.map_or(0, |start| self.at - start) as u16;
            self.found.push(Marker {
                reserved: u16::from_be_bytes([m[0], m[1]]),
                pointer: u16::from_be_bytes([m[2], m[3]]),
                expected,
            });
            self.at += 4;
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        self.marker()?;
        self.start.get_or_insert(if self.draft_pointers { 0 } else { self.at });
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }
}

/// Decodes a start frame with any key. `None` if it is incomplete. Returns the frame and its length in bytes.
pub fn start_frame(bytes: &[u8]) -> Option<(StartFrame, usize)> {
    let head: [u8; 20] = bytes.get(..20)?.try_into().ok()?;
    let length = usize::from(u16::from_be_bytes([head[18], head[19]]));
    let private_data = bytes.get(20..20 + length)?.to_vec();
    let mut key = [0; 16];
    key.copy_from_slice(&head[..16]);
    let flag = |bit: u8| head[16] >> bit & 1 == 1;
    let frame = StartFrame {
        key,
        markers: flag(7),
        crc: flag(6),
        reject: flag(5),
        reserved: head[16] & 0x1f,
        revision: head[17],
        claimed_length: None,
        private_data,
    };
    Some((frame, 20 + length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flaw, Stream};

    fn stream(markers: bool) -> Stream {
        Stream { markers, crc: true, ..Stream::default() }
    }

    // RFC 5044 §4.3, §4.4: decoding restores the ULPDU for every length and marker position.
    #[test]
    fn encoded_fpdus_are_decoded() {
        for markers in [false, true] {
            let mut s = stream(markers);
            let ulpdus: Vec<Vec<u8>> =
                (1..700).map(|n| (0..n).map(|i| (i * 7) as u8).collect()).collect();
            ulpdus.iter().for_each(|u| s.fpdu(u, Flaw::None));
            let mut deframer = Deframer::new(markers);
            let mut rest = s.bytes();
            for expected in &ulpdus {
                let mut before = deframer.clone();
                let fpdu = deframer.next(rest).expect("complete");
                assert_eq!(&fpdu.ulpdu, expected);
                assert_eq!(fpdu.crc, fpdu.computed_crc);
                assert!(fpdu.pad.iter().all(|&b| b == 0));
                assert!(fpdu.markers.iter().all(|m| m.pointer == m.expected && m.reserved == 0));
                assert_eq!(before.next(&rest[..fpdu.raw.len() - 1]), None);
                rest = &rest[fpdu.raw.len()..];
            }
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn flaws_are_reported() {
        let mut s = stream(true);
        s.fpdu(&[1; 600], Flaw::BadPointer(4));
        let fpdu = Deframer::new(true).next(s.bytes()).expect("complete");
        assert_eq!(fpdu.crc, fpdu.computed_crc);
        assert_eq!(fpdu.markers[1], Marker { reserved: 0, pointer: 512, expected: 508 });
        let mut s = stream(false);
        s.fpdu(&[1; 6], Flaw::BadCrc);
        let fpdu = Deframer::new(false).next(s.bytes()).expect("complete");
        assert_eq!(fpdu.crc ^ fpdu.computed_crc, 1);
    }

    // draft-culley-iwarp-mpa-03 §7.1: FPDUPTR counts from the first byte of the FPDU. Only FPDUs that begin with a marker
    // differ from RFC 5044 §4.3.
    #[test]
    fn draft_pointers_count_from_the_marker() {
        let mut s = Stream { draft_pointers: true, ..stream(true) };
        s.fpdu(&[1; 600], Flaw::None);
        s.fpdu(&[1; 600], Flaw::None);
        let pointers = |draft_pointers| {
            let mut deframer = Deframer::new(true).with_draft_pointers(draft_pointers);
            let first = deframer.next(s.bytes()).expect("complete");
            let second = deframer.next(&s.bytes()[first.raw.len()..]).expect("complete");
            let pairs = |f: &Fpdu| f.markers.iter().map(|m| (m.pointer, m.expected)).collect();
            let pairs: (Vec<_>, Vec<_>) = (pairs(&first), pairs(&second));
            pairs
        };
        assert_eq!(pointers(true), (vec![(0, 0), (512, 512)], vec![(408, 408)]));
        assert_eq!(pointers(false), (vec![(0, 0), (512, 508)], vec![(408, 408)]));
    }

    #[test]
    fn start_frames_are_decoded() {
        let frame = StartFrame {
            key: StartFrame::REPLY,
            markers: true,
            crc: false,
            reject: true,
            reserved: 0x15,
            revision: 2,
            claimed_length: None,
            private_data: vec![1, 2, 3],
        };
        let bytes = frame.bytes();
        assert_eq!(start_frame(&bytes), Some((frame, 23)));
        assert_eq!(start_frame(&bytes[..22]), None);
    }
}

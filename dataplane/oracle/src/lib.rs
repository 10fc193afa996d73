//! Reference encoder of MPA streams and DDP segments, written from the specifications and independent of the code under
//! test. Scripted dialogues encode the peer's segments and the expected segments with it. The conformance test `iwspec`
//! uses it in both directions. The decoders are in [`framing`] and [`segment`]; they check only lengths.
#![forbid(unsafe_code)]

pub mod framing;
pub mod segment;

/// Bytes between the starts of two markers (RFC 5044 §4.3).
const MARKER_SPACING: usize = 512;

/// One direction of an MPA stream: the start frame, then FPDUs. Positions count from the first byte after the SYN.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    /// Position at which Full Operation starts; set by the first FPDU.
    operation: Option<usize>,
    /// True if this direction carries markers.
    pub markers: bool,
    /// True if FPDUs have a CRC; otherwise the field is zero.
    pub crc: bool,
    /// True if FPDUPTR counts from the first byte of an FPDU, which may belong to a marker
    /// (draft-culley-iwarp-mpa-03 §7.1), instead of from the ULPDU_Length field (RFC 5044 §4.3).
    pub draft_pointers: bool,
}

/// A deliberate mistake in an FPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Flaw {
    /// No mistake.
    #[default]
    None,
    /// One bit of the CRC is flipped.
    BadCrc,
    /// FPDUPTR of every marker in the FPDU is too large by this many bytes. The CRC covers the wrong value.
    BadPointer(u16),
    /// ULPDU_Length is too large by this many bytes. The CRC covers the wrong value.
    BadLength(u16),
    /// Bytes of the pad have this value. The CRC covers them.
    Pad(u8),
    /// The reserved bits of every marker in the FPDU have this value. The CRC covers them.
    MarkerReserved(u16),
    /// The CRC is sent most significant byte first.
    BigEndianCrc,
}

/// A request or reply frame (RFC 5044 §7.1.1, figure 8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartFrame {
    /// Key that identifies a request or a reply, 16 bytes.
    pub key: [u8; 16],
    /// M flag: the sender requires markers.
    pub markers: bool,
    /// C flag: the sender prefers CRCs.
    pub crc: bool,
    /// R flag: the connection is rejected.
    pub reject: bool,
    /// The five reserved bits, in the low bits of the byte.
    pub reserved: u8,
    /// MPA revision, as in the frame.
    pub revision: u8,
    /// PD_Length to write; `None`: the correct length.
    pub claimed_length: Option<u16>,
    /// Private data of any length, unchecked.
    pub private_data: Vec<u8>,
}

impl StartFrame {
    /// Key of a request frame (RFC 5044 §7.1.1).
    pub const REQUEST: [u8; 16] = *b"MPA ID Req Frame";
    /// Key of a reply frame (RFC 5044 §7.1.1).
    pub const REPLY: [u8; 16] = *b"MPA ID Rep Frame";

    /// Returns the bytes of the frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.key.to_vec();
        let flag = |on: bool, bit: u8| if on { 1 << bit } else { 0 };
        let flags = flag(self.markers, 7) | flag(self.crc, 6) | flag(self.reject, 5);
        out.push(flags | (self.reserved & 0x1f));
        out.push(self.revision);
        let length = self.claimed_length.unwrap_or(self.private_data.len() as u16);
        out.extend(length.to_be_bytes());
        out.extend(&self.private_data);
        out
    }
}

impl Stream {
    /// Returns an empty stream. Full Operation starts with the first FPDU.
    pub fn new(markers: bool, crc: bool) -> Stream {
        Stream { markers, crc, ..Stream::default() }
    }

    /// Returns all bytes built so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of bytes built so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if the stream is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends bytes unchanged, such as a start frame.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Appends an FPDU with `ulpdu`, and the markers at their positions (RFC 5044 §4.1, §4.3).
    pub fn fpdu(&mut self, ulpdu: &[u8], flaw: Flaw) {
        let operation = *self.operation.get_or_insert(self.bytes.len());
        let claimed = ulpdu.len() + if let Flaw::BadLength(n) = flaw { usize::from(n) } else { 0 };
        let mut body = (claimed as u16).to_be_bytes().to_vec();
        body.extend(ulpdu);
        let pad = if let Flaw::Pad(value) = flaw { value } else { 0 };
        body.resize(body.len().next_multiple_of(4), pad);
        let from = self.bytes.len();
        let mut start = None;
        for byte in body {
            self.marker_if_due(operation, start, flaw);
            start.get_or_insert(if self.draft_pointers { from } else { self.bytes.len() });
            self.bytes.push(byte);
        }
        // A marker between the pad and the CRC field is part of this FPDU and is covered by its CRC (§4.4).
        self.marker_if_due(operation, start, flaw);
        let mut crc = if self.crc { crc32c(&self.bytes[from..]) } else { 0 };
        if flaw == Flaw::BadCrc {
            crc ^= 1;
        }
        let field = if flaw == Flaw::BigEndianCrc { crc.to_be_bytes() } else { crc.to_le_bytes() };
        self.bytes.extend(field);
    }

    fn marker_if_due(&mut self, operation: usize, start: Option<usize>, flaw: Flaw) {
        let position = self.bytes.len();
        if !self.markers || !(position - operation).is_multiple_of(MARKER_SPACING) {
            return;
        }
        let extra = if let Flaw::BadPointer(n) = flaw { n } else { 0 };
        let pointer = start.map_or(0, |start| (position - start) as u16) + extra;
        let reserved = if let Flaw::MarkerReserved(value) = flaw { value } else { 0 };
        self.bytes.extend(reserved.to_be_bytes());
        self.bytes.extend(pointer.to_be_bytes());
    }
}

/// Encodes a tagged DDP segment (RFC 5041 §4.2).
pub fn tagged(version: u8, last: bool, rsvd: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80 | u8::from(last) << 6 | version & 3, rsvd];
    out.extend(stag.to_be_bytes());
    out.extend(to.to_be_bytes());
    out.extend(payload);
    out
}

/// Encodes an untagged DDP segment (RFC 5041 §4.3). `rsvd` is the RsvdULP field: one byte after the control byte, and
/// four more.
pub fn untagged(
    version: u8,
    last: bool,
    rsvd: [u8; 5],
    qn: u32,
    msn: u32,
    mo: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut out = vec![u8::from(last) << 6 | version & 3];
    out.extend(rsvd);
    for field in [qn, msn, mo] {
        out.extend(field.to_be_bytes());
    }
    out.extend(payload);
    out
}

/// Computes CRC32c bit by bit (RFC 3720 §B.4).
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rfc_5044_fpdu(qn: u32, msn: u32) -> Vec<u8> {
        let mut ulpdu = untagged(1, true, [0x40, 0, 0, 0, 0], qn, msn, 0, &[0; 24]);
        assert_eq!(ulpdu.len(), 42);
        ulpdu[0] = 0x41;
        ulpdu[1] = 0x43;
        ulpdu
    }

    // RFC 5044 §4.4: encoded FPDUs equal the annotated dumps of figures 5 and 6.
    #[test]
    fn fpdus_match_rfc_5044_annotated_dumps() {
        let mut s = Stream { markers: true, crc: true, ..Stream::default() };
        s.fpdu(&rfc_5044_fpdu(0, 1), Flaw::None);
        assert_eq!(s.bytes()[..6], [0, 0, 0, 0, 0, 0x2a]);
        assert_eq!(s.bytes()[s.len() - 4..], [0x52, 0x23, 0x99, 0x83]);

        let mut s = Stream { markers: true, crc: true, ..Stream::default() };
        // A first FPDU of 492 bytes: a marker of 4 bytes, and 488 bytes of length, ULPDU, pad and CRC.
        s.fpdu(&untagged(1, true, [0x43, 0, 0, 0, 0], 0, 1, 0, &[0; 464]), Flaw::None);
        assert_eq!(s.len(), 492);
        s.fpdu(&rfc_5044_fpdu(0, 2), Flaw::None);
        assert_eq!(s.bytes()[512..516], [0, 0, 0, 20]);
        assert_eq!(s.bytes()[s.len() - 4..], [0x84, 0x92, 0x58, 0x98]);
    }
}

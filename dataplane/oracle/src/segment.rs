//! Decoder of DDP segments (RFC 5041 §4) with RDMAP's control field (RFC 5040 §4.1), and of the headers in the payload
//! of untagged RDMAP messages: Read Request (§4.4) and Terminate (§4.8).

/// Bytes of a tagged DDP header.
pub const TAGGED_HEADER: usize = 14;
/// Bytes of an untagged DDP header.
pub const UNTAGGED_HEADER: usize = 18;
/// Bytes of an RDMA Read Request header (RFC 5040 §4.4).
pub const READ_HEADER: usize = 28;

/// A DDP segment, its header split into fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// T flag: the segment is tagged.
    pub tagged: bool,
    /// L flag: last segment of its message.
    pub last: bool,
    /// The four reserved bits of the DDP control field.
    pub reserved: u8,
    /// DDP version, two bits.
    pub version: u8,
    /// RsvdULP's first byte: RDMAP's control field.
    pub rdmap: u8,
    /// Addressing fields, which depend on the T flag.
    pub model: Model,
    /// Bytes after the header.
    pub payload: Vec<u8>,
}

/// The addressing fields of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// Addressing of a tagged segment (RFC 5041 §4.2).
    Tagged {
        /// Steering tag of the destination.
        stag: u32,
        /// Tagged offset, bytes.
        to: u64,
    },
    /// Addressing of an untagged segment (RFC 5041 §4.3).
    Untagged {
        /// The last four bytes of RsvdULP: RDMAP's Invalidate STag.
        invalidate: u32,
        /// Queue number.
        qn: u32,
        /// Message sequence number.
        msn: u32,
        /// Message offset, bytes.
        mo: u32,
    },
}

impl Segment {
    /// Decodes a ULPDU. `None` if it is shorter than its header.
    pub fn parse(ulpdu: &[u8]) -> Option<Segment> {
        let (&control, &rdmap) = (ulpdu.first()?, ulpdu.get(1)?);
        let tagged = control & 0x80 != 0;
        let word = |at: usize| Some(u32::from_be_bytes(ulpdu.get(at..at + 4)?.try_into().ok()?));
        let (model, header) = if tagged {
            let to = u64::from(word(6)?) << 32 | u64::from(word(10)?);
            (Model::Tagged { stag: word(2)?, to }, TAGGED_HEADER)
        } else {
            let model = Model::Untagged {
                invalidate: word(2)?,
                qn: word(6)?,
                msn: word(10)?,
                mo: word(14)?,
            };
            (model, UNTAGGED_HEADER)
        };
        Some(Segment {
            tagged,
            last: control & 0x40 != 0,
            reserved: control >> 2 & 0xf,
            version: control & 3,
            rdmap,
            model,
            payload: ulpdu[header..].to_vec(),
        })
    }

    /// Returns the RDMAP version, two bits.
    pub fn rdmap_version(&self) -> u8 {
        self.rdmap >> 6
    }

    /// Returns the two reserved bits of RDMAP's control field.
    pub fn rdmap_reserved(&self) -> u8 {
        self.rdmap >> 4 & 3
    }

    /// Returns the RDMAP opcode, four bits.
    pub fn opcode(&self) -> u8 {
        self.rdmap & 0xf
    }
}

/// A Read Request header (RFC 5040 §4.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// STag of the data sink.
    pub sink_stag: u32,
    /// TO of the data sink.
    pub sink_to: u64,
    /// Length of the Read, bytes.
    pub size: u32,
    /// STag of the data source.
    pub source_stag: u32,
    /// TO of the data source.
    pub source_to: u64,
}

impl ReadRequest {
    /// Decodes the payload of a Read Request. `None` if it is too short.
    pub fn parse(payload: &[u8]) -> Option<ReadRequest> {
        let word = |at: usize| Some(u32::from_be_bytes(payload.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from(word(at)?) << 32 | u64::from(word(at + 4)?));
        Some(ReadRequest {
            sink_stag: word(0)?,
            sink_to: long(4)?,
            size: word(12)?,
            source_stag: word(16)?,
            source_to: long(20)?,
        })
    }

    /// Encodes the header as the payload of a Read Request.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.sink_stag.to_be_bytes().to_vec();
        out.extend(self.sink_to.to_be_bytes());
        out.extend(self.size.to_be_bytes());
        out.extend(self.source_stag.to_be_bytes());
        out.extend(self.source_to.to_be_bytes());
        out
    }
}

/// A Terminate message's payload (RFC 5040 §4.8, figures 7 and 8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// Layer, four bits: 0 RDMAP, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type, four bits.
    pub etype: u8,
    /// Error code, eight bits; its meaning depends on layer and type.
    pub code: u8,
    /// M: DDP Segment Length is valid.
    pub m: bool,
    /// D: the DDP header of the terminated segment is included.
    pub d: bool,
    /// R: the RDMA header of the terminated message is included.
    pub r: bool,
    /// The 13 reserved bits.
    pub reserved: u16,
    /// Bytes after the control word: segment length and headers.
    pub quoted: Vec<u8>,
}

impl Terminate {
    /// Decodes the payload of a Terminate. `None` if it is shorter than the control word.
    pub fn parse(payload: &[u8]) -> Option<Terminate> {
        let c: [u8; 4] = payload.get(..4)?.try_into().ok()?;
        Some(Terminate {
            layer: c[0] >> 4,
            etype: c[0] & 0xf,
            code: c[1],
            m: c[2] & 0x80 != 0,
            d: c[2] & 0x40 != 0,
            r: c[2] & 0x20 != 0,
            reserved: u16::from(c[2] & 0x1f) << 8 | u16::from(c[3]),
            quoted: payload[4..].to_vec(),
        })
    }

    /// Encodes the payload of a Terminate message.
    pub fn bytes(&self) -> Vec<u8> {
        let flag = |on: bool, bit: u8| if on { 1 << bit } else { 0u8 };
        let flags = flag(self.m, 7) | flag(self.d, 6) | flag(self.r, 5);
        let mut out = vec![
            self.layer << 4 | self.etype & 0xf,
            self.code,
            flags | (self.reserved >> 8) as u8 & 0x1f,
            self.reserved as u8,
        ];
        out.extend(&self.quoted);
        out
    }

    /// Returns the DDP Segment Length; `None` if M and D are not set, or bytes are missing.
    pub fn segment_length(&self) -> Option<u16> {
        let bytes = self.quoted.get(..2).filter(|_| self.m || self.d)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Returns the quoted headers after the DDP Segment Length: the DDP header, then the RDMA header.
    pub fn headers(&self) -> &[u8] {
        self.quoted.get(2..).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded() {
        let bytes = crate::tagged(1, true, 0x42, 0x0102_0304, 0x1122_3344_5566_7788, b"abc");
        let s = Segment::parse(&bytes).expect("whole");
        assert!(s.tagged && s.last);
        assert_eq!((s.version, s.reserved, s.rdmap_version(), s.opcode()), (1, 0, 1, 2));
        assert_eq!(s.model, Model::Tagged { stag: 0x0102_0304, to: 0x1122_3344_5566_7788 });
        assert_eq!(s.payload, b"abc");
        assert_eq!(Segment::parse(&bytes[..13]), None);

        let bytes = crate::untagged(2, false, [0x74, 9, 8, 7, 6], 1, 2, 3, b"");
        let s = Segment::parse(&bytes).expect("whole");
        assert!(!s.tagged && !s.last);
        assert_eq!((s.version, s.rdmap_version(), s.rdmap_reserved(), s.opcode()), (2, 1, 3, 4));
        assert_eq!(s.model, Model::Untagged { invalidate: 0x0908_0706, qn: 1, msn: 2, mo: 3 });
        assert_eq!(Segment::parse(&bytes[..17]), None);
    }

    #[test]
    fn payload_headers_round_trip() {
        let read = ReadRequest {
            sink_stag: 1,
            sink_to: u64::MAX,
            size: 3,
            source_stag: 4,
            source_to: 5 << 40,
        };
        assert_eq!(ReadRequest::parse(&read.bytes()), Some(read));
        assert_eq!(ReadRequest::parse(&read.bytes()[..27]), None);
        for bits in [0, 0x1fff, 0x0aaa] {
            let t = Terminate {
                layer: 1,
                etype: 2,
                code: 3,
                m: true,
                d: false,
                r: bits == 0,
                reserved: bits,
                quoted: vec![0, 20, 7],
            };
            assert_eq!(Terminate::parse(&t.bytes()), Some(t.clone()));
            assert_eq!((t.segment_length(), t.headers()), (Some(20), &[7][..]));
        }
    }
}

//! The device's stream, decoded into frames and messages.
//!
//! The device may be hostile: every buffer of the decoder is bounded. A stream that cannot be decoded is an error of
//! the device.

use std::collections::VecDeque;

use oracle::StartFrame;
use oracle::framing::{Deframer, Fpdu, start_frame};
use oracle::segment::{Model, READ_HEADER, ReadRequest, Segment, Terminate};

use crate::message::{Kind, Message};

/// Maximum length of an assembled message, bytes.
const MAX_MESSAGE: usize = 4 << 20;
/// Maximum number of incomplete messages.
const MAX_PARTIAL: usize = 32;
/// First 15 bytes of a Start Key (draft-culley-iwarp-mpa-03 §8.1.1).
const START_KEY: &[u8; 15] = b"MPA ident frame";

/// Decoder of the device's stream.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    operation: Option<Operation>,
    partial: Vec<Partial>,
    boundaries: Option<Boundaries>,
}

/// Boundaries of the received TCP segments, as positions in the device's stream.
#[derive(Debug, Default)]
struct Boundaries {
    /// Position of the first byte that is not decoded.
    position: u64,
    /// Start and end of each segment whose last byte is not decoded.
    segments: VecDeque<(u64, u64)>,
    /// Start of the last segment that begins with a frame.
    aligned: Option<u64>,
}

impl Boundaries {
    fn push(&mut self, length: usize) {
        let start = self.segments.back().map_or(self.position, |&(_, end)| end);
        self.segments.push_back((start, start + length as u64));
    }

    /// Removes a frame of `length` bytes. Returns true if the frame lies within one segment, and that segment begins
    /// with a frame.
    fn take(&mut self, length: usize) -> bool {
        let end = self.position + length as u64;
        let first = self.segments.front().copied();
        let aligned = first.is_some_and(|(start, segment_end)| {
            if start == self.position {
                self.aligned = Some(start);
            }
            self.aligned == Some(start) && end <= segment_end
        });
        self.position = end;
        while self.segments.front().is_some_and(|&(_, segment_end)| segment_end <= end) {
            self.segments.pop_front();
        }
        aligned
    }
}

#[derive(Debug)]
struct Operation {
    deframer: Deframer,
    crc: bool,
}

/// An incomplete message.
#[derive(Debug)]
struct Partial {
    first: Segment,
    /// Identifies the message. Tagged: true, opcode, STag. Untagged: false, QN, MSN.
    key: (bool, u32, u32),
    /// Expected TO or MO of the next segment.
    next: u64,
    message: Message,
    /// Length of the longest ULPDU so far, bytes.
    largest: u64,
    /// Number of segments so far.
    segments: u64,
    /// True if all segments so far arrived in order, with equal versions and RDMAP control bytes.
    order: bool,
    framing: Framing,
}

/// Framing of all FPDUs of a message so far. `crc` and `markers` are true if all CRCs and all marker pointers are
/// correct. `crc_field`, `marker_reserved` and `pad` combine the bits of all FPDUs by OR.
#[derive(Debug)]
struct Framing {
    crc: bool,
    crc_field: u64,
    markers: bool,
    marker_count: u64,
    marker_reserved: u64,
    pad: u64,
    /// True if all FPDUs so far were aligned: see [`Boundaries::take`]. `None` if the segments are not known.
    aligned: Option<bool>,
}

impl Decoder {
    /// Appends bytes received from the device.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Appends the bytes of one TCP segment.
    pub fn push_segment(&mut self, bytes: &[u8]) {
        self.boundaries.get_or_insert_default().push(bytes.len());
        self.push(bytes);
    }

    /// Removes and returns the bytes of a frame. The flag is true if the frame is aligned (see [`Boundaries::take`]),
    /// and `None` if the segments are not known.
    fn take(&mut self, length: usize) -> (Vec<u8>, Option<bool>) {
        let aligned = self.boundaries.as_mut().map(|boundaries| boundaries.take(length));
        (self.bytes.drain(..length).collect(), aligned)
    }

    /// Returns the bytes that are not part of a decoded frame.
    pub fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes and returns the bytes that are not part of a decoded frame.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Returns true if a frame or message is incomplete.
    pub fn within_message(&self) -> bool {
        !self.bytes.is_empty() || !self.partial.is_empty()
    }

    /// Enters Full Operation: the following bytes are the FPDUs that `deframer` decodes. CRCs are verified if `crc`.
    pub fn operate(&mut self, deframer: Deframer, crc: bool) {
        self.operation = Some(Operation { deframer, crc });
    }

    /// Decodes a DDP segment received over SCTP, without MPA; `None` if its message is incomplete. `raw` is the segment
    /// with its DDP-SSN.
    ///
    /// # Errors
    /// The device's messages exceed a bound of this decoder.
    pub fn segment(&mut self, ulpdu: &[u8], raw: &[u8]) -> Result<Option<Message>, String> {
        let fpdu = Fpdu {
            raw: raw.to_vec(),
            ulpdu: ulpdu.to_vec(),
            pad: vec![],
            markers: vec![],
            crc: 0,
            computed_crc: 0,
        };
        self.assemble(fpdu, true, None)
    }

    /// Decodes the next frame or message. `None` if more bytes are needed.
    ///
    /// # Errors
    /// The device's messages exceed a bound of this decoder.
    pub fn decode(&mut self) -> Result<Option<Message>, String> {
        if self.operation.is_none() {
            return Ok(self.next_start_frame());
        }
        while let Some(operation) = &mut self.operation {
            let Some(fpdu) = operation.deframer.next(&self.bytes) else { break };
            let crc = !operation.crc || fpdu.crc == fpdu.computed_crc;
            let (_, aligned) = self.take(fpdu.raw.len());
            if let Some(message) = self.assemble(fpdu, crc, aligned)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    fn next_start_frame(&mut self) -> Option<Message> {
        if self.bytes.len() >= 16 && self.bytes.starts_with(START_KEY) {
            let (raw, _) = self.take(16);
            let flags = raw[15];
            let bit = |n: u8| u64::from(flags >> n & 1);
            let fields = vec![
                ("rev", u64::from(flags & 7)),
                ("markers", bit(7)),
                ("crc", bit(6)),
                ("reserved", u64::from(flags >> 3 & 7)),
            ];
            return Some(Message { kind: Kind::StartKey, fields, data: vec![], raw });
        }
        let (frame, length) = start_frame(&self.bytes)?;
        let (raw, _) = self.take(length);
        Some(start_message(&frame, raw))
    }

    fn assemble(
        &mut self,
        fpdu: Fpdu,
        crc: bool,
        aligned: Option<bool>,
    ) -> Result<Option<Message>, String> {
        let framing = Framing { aligned, ..Framing::of(&fpdu, crc) };
        let Some(segment) = Segment::parse(&fpdu.ulpdu) else {
            let mut fields = vec![("len", fpdu.ulpdu.len() as u64), ("segments", 1)];
            framing.report(&mut fields);
            return Ok(Some(Message { kind: Kind::Fpdu, fields, data: fpdu.ulpdu, raw: fpdu.raw }));
        };
        let (key, offset) = match segment.model {
            Model::Tagged { stag, to } => ((true, u32::from(segment.opcode()), stag), to),
            Model::Untagged { qn, msn, mo, .. } => ((false, qn, msn), u64::from(mo)),
        };
        let length = segment.payload.len();
        let last = segment.last;
        match self.partial.iter_mut().find(|p| p.key == key) {
            Some(p) => {
                p.order &= p.next == offset
                    && p.first.version == segment.version
                    && p.first.rdmap == segment.rdmap;
                p.next = offset.wrapping_add(length as u64);
                p.message.data.extend(&segment.payload);
                p.message.raw.extend(&fpdu.raw);
                p.largest = p.largest.max(fpdu.ulpdu.len() as u64);
                p.segments += 1;
                p.framing.join(&framing);
            }
            None => self.partial.push(Partial {
                key,
                next: offset.wrapping_add(length as u64),
                // RFC 5041 §4.3: MO of an untagged message starts at 0.
                order: key.0 || offset == 0,
                message: Message {
                    kind: kind(&segment),
                    fields: vec![],
                    data: segment.payload.clone(),
                    raw: fpdu.raw,
                },
                largest: fpdu.ulpdu.len() as u64,
                segments: 1,
                framing,
                first: segment,
            }),
        }
        let total: usize = self.partial.iter().map(|p| p.message.data.len()).sum();
        if self.partial.len() > MAX_PARTIAL || total > MAX_MESSAGE {
            return Err("the device begins more messages than it ends".into());
        }
        if !last {
            return Ok(None);
        }
        let at = self.partial.iter().position(|p| p.key == key);
        Ok(at.map(|at| self.partial.swap_remove(at).finish()))
    }
}

impl Framing {
    fn of(fpdu: &Fpdu, crc: bool) -> Framing {
        Framing {
            crc,
            crc_field: u64::from(fpdu.crc),
            // RFC 5044 §4.2: the receiver treats the low two bits of FPDUPTR as zero.
            markers: fpdu.markers.iter().all(|m| m.pointer & !3 == m.expected),
            marker_count: fpdu.markers.len() as u64,
            marker_reserved: fpdu
                .markers
                .iter()
                .fold(0, |all, m| all | u64::from(m.reserved | m.pointer & 3)),
            pad: fpdu.pad.iter().fold(0, |all, &b| all | u64::from(b)),
            aligned: None,
        }
    }

    fn join(&mut self, other: &Framing) {
        self.crc &= other.crc;
        self.crc_field |= other.crc_field;
        self.markers &= other.markers;
        self.marker_count += other.marker_count;
        self.marker_reserved |= other.marker_reserved;
        self.pad |= other.pad;
        self.aligned = self.aligned.zip(other.aligned).map(|(a, b)| a && b);
    }

    fn report(&self, fields: &mut Vec<(&'static str, u64)>) {
        fields.push(("crc", u64::from(self.crc)));
        fields.push(("crc-field", self.crc_field));
        fields.push(("markers", u64::from(self.markers)));
        fields.push(("marker-count", self.marker_count));
        fields.push(("marker-reserved", self.marker_reserved));
        fields.push(("pad", self.pad));
        fields.extend(self.aligned.map(|aligned| ("aligned", u64::from(aligned))));
    }
}

impl Partial {
    fn finish(self) -> Message {
        let mut message = self.message;
        let first = &self.first;
        let fields = &mut message.fields;
        match first.model {
            Model::Tagged { stag, to } => fields.extend([("stag", u64::from(stag)), ("to", to)]),
            Model::Untagged { invalidate, qn, msn, mo } => fields.extend([
                ("inv", u64::from(invalidate)),
                ("qn", u64::from(qn)),
                ("msn", u64::from(msn)),
                ("mo", u64::from(mo)),
            ]),
        }
        payload_fields(message.kind, &message.data, fields);
        fields.extend([
            ("len", message.data.len() as u64),
            ("ver", u64::from(first.version)),
            ("ddp-reserved", u64::from(first.reserved)),
            ("rv", u64::from(first.rdmap_version())),
            ("rdmap-reserved", u64::from(first.rdmap_reserved())),
            ("op", u64::from(first.opcode())),
            ("segments", self.segments),
            ("largest", self.largest),
            ("order", u64::from(self.order)),
        ]);
        self.framing.report(fields);
        message
    }
}

fn kind(segment: &Segment) -> Kind {
    match (segment.tagged, segment.opcode()) {
        (true, 0) => Kind::Write,
        (true, 2) => Kind::Response,
        (true, _) => Kind::Tagged,
        (false, 1) => Kind::Read,
        (false, 3..=6) => Kind::Send,
        (false, 7) => Kind::Terminate,
        (false, 8 | 9) => Kind::Immediate,
        (false, 10) => Kind::Atomic,
        (false, 11) => Kind::AtomicResponse,
        (false, _) => Kind::Untagged,
    }
}

fn payload_fields(kind: Kind, data: &[u8], fields: &mut Vec<(&'static str, u64)>) {
    let long =
        |at: usize| data.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
    let word = |at: usize| {
        data.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes).map(u64::from)
    };
    let mut add = |name: &'static str, value: Option<u64>| fields.extend(value.map(|v| (name, v)));
    match kind {
        Kind::Read => {
            let Some(read) = ReadRequest::parse(data).filter(|_| data.len() >= READ_HEADER) else {
                return;
            };
            add("sink", Some(read.sink_stag.into()));
            add("sink-to", Some(read.sink_to));
            add("size", Some(read.size.into()));
            add("stag", Some(read.source_stag.into()));
            add("to", Some(read.source_to));
        }
        Kind::Terminate => {
            let Some(t) = Terminate::parse(data) else { return };
            add("layer", Some(t.layer.into()));
            add("type", Some(t.etype.into()));
            add("code", Some(t.code.into()));
            add("m", Some(t.m.into()));
            add("d", Some(t.d.into()));
            add("r", Some(t.r.into()));
            add("reserved", Some(t.reserved.into()));
            add("length", Some(t.segment_length().unwrap_or(0).into()));
        }
        Kind::Atomic => {
            add("aop", word(0).map(|w| w & 0xf));
            add("id", word(4));
            add("stag", word(8));
            add("to", long(12));
            add("add", long(20));
            add("compare", long(36));
        }
        Kind::AtomicResponse => {
            add("id", word(0));
            add("value", long(4));
        }
        _ => {}
    }
}

fn start_message(frame: &StartFrame, raw: Vec<u8>) -> Message {
    let kind = match frame.key {
        StartFrame::REQUEST => Kind::Request,
        StartFrame::REPLY => Kind::Reply,
        _ => Kind::Bytes,
    };
    let enhanced = frame.reserved & 0x10 != 0;
    // RFC 6581 §6: in revision 2, flag S occupies one of the reserved bits.
    let reserved = if frame.revision >= 2 { frame.reserved & 0xf } else { frame.reserved };
    let mut fields = vec![
        ("rev", u64::from(frame.revision)),
        ("markers", u64::from(frame.markers)),
        ("crc", u64::from(frame.crc)),
        ("reject", u64::from(frame.reject)),
        ("reserved", u64::from(reserved)),
        ("enhanced", u64::from(enhanced)),
        ("pdlen", frame.private_data.len() as u64),
    ];
    let mut data = frame.private_data.clone();
    if enhanced && frame.revision >= 2 && data.len() >= 4 {
        let ird = u64::from(u16::from_be_bytes([data[0], data[1]]));
        let ord = u64::from(u16::from_be_bytes([data[2], data[3]]));
        fields.extend([
            ("ird", ird & 0x3fff),
            ("ord", ord & 0x3fff),
            ("flags", ird >> 14 << 2 | ord >> 14),
        ]);
        data.drain(..4);
    }
    Message { kind, fields, data, raw }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oracle::{Flaw, Stream};
    use proptest::prelude::*;

    fn operating(markers: bool) -> Decoder {
        let mut d = Decoder::default();
        d.operate(Deframer::new(markers), true);
        d
    }

    #[test]
    fn segments_of_a_message_are_joined() {
        let mut s = Stream::new(true, true);
        s.fpdu(&oracle::tagged(1, false, 0x42, 7, 100, &[1; 500]), Flaw::None);
        s.fpdu(&oracle::untagged(1, true, [0x43, 0, 0, 0, 0], 0, 1, 0, b"hi"), Flaw::None);
        s.fpdu(&oracle::tagged(1, true, 0x42, 7, 600, &[2; 100]), Flaw::None);
        let mut d = operating(true);
        d.push(s.bytes());
        let send = d.decode().expect("bounded").expect("complete");
        assert_eq!((send.kind, send.field("msn")), (Kind::Send, Some(1)));
        let response = d.decode().expect("bounded").expect("complete");
        assert_eq!(response.kind, Kind::Response);
        assert_eq!((response.data.len(), response.field("segments")), (600, Some(2)));
        assert_eq!((response.field("order"), response.field("markers")), (Some(1), Some(1)));
        assert!(!d.within_message());
    }

    #[test]
    fn fpdus_that_do_not_fill_segments_are_not_aligned() {
        let mut s = Stream::new(true, true);
        for to in 0..3 {
            s.fpdu(&oracle::tagged(1, true, 0x42, 7, to, &[1; 100]), Flaw::None);
        }
        let bytes = s.bytes().to_vec();
        let aligned = |sizes: &[usize]| {
            let mut d = operating(true);
            let mut rest = &bytes[..];
            for size in sizes {
                let (segment, tail) = rest.split_at(*size);
                d.push_segment(segment);
                rest = tail;
            }
            d.push_segment(rest);
            let mut found = vec![];
            while let Some(m) = d.decode().expect("bounded") {
                found.push(m.field("aligned") == Some(1));
            }
            found
        };
        let first = bytes.len() - 2 * 120;
        assert_eq!(aligned(&[first, 120]), [true, true, true]);
        assert_eq!(aligned(&[first + 120]), [true, true, true], "a segment may have several");
        assert_eq!(aligned(&[first + 60]), [true, false, false], "the second begins inside");
        assert_eq!(aligned(&[60, first - 60]), [false, true, true]);
    }

    #[test]
    fn hole_in_a_message_is_reported() {
        let mut s = Stream::default();
        s.fpdu(&oracle::tagged(1, false, 0x42, 7, 100, &[1; 50]), Flaw::None);
        s.fpdu(&oracle::tagged(1, true, 0x42, 7, 151, &[1; 50]), Flaw::None);
        let mut d = Decoder::default();
        d.operate(Deframer::new(false), false);
        d.push(s.bytes());
        assert_eq!(d.decode().expect("bounded").expect("complete").field("order"), Some(0));
    }

    #[test]
    fn endless_messages_are_an_error() {
        let mut s = Stream::default();
        for msn in 0..40 {
            s.fpdu(&oracle::untagged(1, false, [0x43, 0, 0, 0, 0], 0, msn, 0, b"hi"), Flaw::None);
        }
        let mut d = Decoder::default();
        d.operate(Deframer::new(false), false);
        d.push(s.bytes());
        assert!(d.decode().is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_neither_panic_nor_hang(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20),
            operate in any::<bool>(), markers in any::<bool>(),
        ) {
            let mut d = Decoder::default();
            if operate {
                d.operate(Deframer::new(markers), true);
            }
            for piece in &pieces {
                d.push(piece);
                while let Ok(Some(message)) = d.decode() {
                    let _ = message.describe();
                }
            }
        }

        #[test]
        fn any_ulpdu_is_described(ulpdus in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..20)) {
            let mut s = Stream::new(true, true);
            ulpdus.iter().for_each(|u| s.fpdu(u, Flaw::None));
            let mut d = operating(true);
            d.push(s.bytes());
            while let Ok(Some(message)) = d.decode() {
                prop_assert_eq!(message.field("crc"), Some(1));
                let _ = message.describe();
            }
            prop_assert!(d.rest().is_empty() || d.within_message());
        }
    }
}

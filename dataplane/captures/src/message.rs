//! The fields of a message in wire order, with the names of the dissector and the values of the reference codec.

use std::fmt::{self, Display, Write as _};

use oracle::StartFrame;
use oracle::framing::Fpdu;
use oracle::segment::{Model, ReadRequest, Segment, Terminate, UNTAGGED_HEADER};

use crate::errors;

/// Protocol above DDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upper {
    /// RDMAP (RFC 5040).
    Rdmap,
    /// Bare DDP (docs/protocol.md).
    Bare,
}

/// Names and values of a message's fields. Numbers are decimal, bytes hexadecimal, spaces in text are underscores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields(Vec<(&'static str, String)>);

impl Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(word(bytes, at)?) << 32 | u64::from(word(bytes, at + 4)?))
}

impl Fields {
    fn put(&mut self, name: &'static str, value: impl Display) {
        self.0.push((name, value.to_string()));
    }

    fn flag(&mut self, name: &'static str, value: bool) {
        self.put(name, u8::from(value));
    }

    fn text(&mut self, name: &'static str, value: &str) {
        self.put(name, value.replace(' ', "_"));
    }

    /// Returns the fields of a request or reply frame (RFC 5044 §7.1.1, RFC 6581 §6).
    pub fn start_frame(frame: &StartFrame) -> Fields {
        let mut fields = Fields::default();
        fields
            .text("mpa.start", if frame.key == StartFrame::REQUEST { "request" } else { "reply" });
        fields.text("mpa.key", &String::from_utf8_lossy(&frame.key));
        fields.flag("mpa.m", frame.markers);
        fields.flag("mpa.c", frame.crc);
        fields.flag("mpa.r", frame.reject);
        let enhanced = frame.reserved & 0x10 != 0;
        fields.flag("mpa.s", enhanced);
        fields.put("mpa.reserved", frame.reserved & 0xf);
        fields.put("mpa.revision", frame.revision);
        fields.put("mpa.pd_length", frame.private_data.len());
        fields.private_data(&frame.private_data, enhanced && frame.revision >= 2);
        fields
    }

    /// Returns the fields of a Start Key (draft-culley-iwarp-mpa-03 §8.1.1).
    pub fn start_key(flags: u8) -> Fields {
        let mut fields = Fields::default();
        fields.text("mpa.start", "start key");
        fields.text("mpa.key", "MPA ident frame");
        fields.flag("mpa.m", flags & 0x80 != 0);
        fields.flag("mpa.c", flags & 0x40 != 0);
        fields.put("mpa.revision", flags & 7);
        fields
    }

    fn private_data(&mut self, mut bytes: &[u8], enhanced: bool) {
        if enhanced {
            let Some((depths, rest)) = bytes.split_at_checked(4) else { return };
            let (ird, ord) = (&depths[..2], &depths[2..]);
            let depth = |d: &[u8]| (u16::from(d[0]) << 8 | u16::from(d[1])) & 0x3fff;
            self.flag("mpa.a", ird[0] & 0x80 != 0);
            self.flag("mpa.b", ird[0] & 0x40 != 0);
            self.put("mpa.ird", depth(ird));
            self.flag("mpa.c_rtr", ord[0] & 0x80 != 0);
            self.flag("mpa.d_rtr", ord[0] & 0x40 != 0);
            self.put("mpa.ord", depth(ord));
            bytes = rest;
        }
        if !bytes.is_empty() {
            self.put("mpa.private_data", hex(bytes));
            self.advertisement(bytes);
        }
    }

    /// Adds an advertisement (docs/protocol.md, section 2).
    fn advertisement(&mut self, bytes: &[u8]) -> Option<()> {
        let rest = bytes.strip_prefix(b"DDPA").filter(|rest| rest.len() >= 4)?;
        self.put("advert.version", rest[0]);
        self.flag("advert.bare_ddp", rest[1] & 1 != 0);
        self.flag("advert.rdmap", rest[1] & 2 != 0);
        let count = u16::from_be_bytes([rest[2], rest[3]]);
        self.put("advert.count", count);
        let mut rest = &rest[4..];
        for _ in 0..count {
            let name_len = usize::from(*rest.get(5)?);
            let name = rest.get(24..24 + name_len)?;
            self.put("advert.stag", word(rest, 0)?);
            self.put("advert.access", rest[4]);
            self.put("advert.to", long(rest, 8)?);
            self.put("advert.length", long(rest, 16)?);
            self.text("advert.name", &String::from_utf8_lossy(name));
            rest = &rest[24 + name_len..];
        }
        Some(())
    }

    /// Returns the fields of an FPDU. `crc`: the connection uses CRCs.
    pub fn fpdu(fpdu: &Fpdu, crc: bool, upper: Option<Upper>, draft: bool) -> Fields {
        let mut fields = Fields::default();
        let marked_start = fpdu.markers.first().is_some_and(|m| m.expected == 0);
        for marker in &fpdu.markers {
            let [a, b] = marker.reserved.to_be_bytes();
            let [c, d] = marker.pointer.to_be_bytes();
            fields.put("mpa.marker", hex(&[a, b, c, d]));
            fields.put("mpa.marker.reserved", marker.reserved);
            fields.put("mpa.marker.fpduptr", marker.pointer);
            let pointer = marker.pointer & !3;
            // In the first draft, FPDUPTR counts from the start of the FPDU, which may be a marker.
            let draft_pointer = marker.expected + 4;
            let good = pointer == marker.expected
                || marked_start && marker.expected > 0 && pointer == draft_pointer;
            fields.flag("mpa.marker.status", good);
        }
        fields.put("mpa.ulpdu_length", fpdu.ulpdu.len());
        fields.segment(&fpdu.ulpdu, upper, draft);
        if !fpdu.pad.is_empty() {
            fields.put("mpa.pad", hex(&fpdu.pad));
        }
        fields.put("mpa.crc", fpdu.crc);
        let verdict = match crc {
            false => 2,
            true => u8::from(fpdu.crc == fpdu.computed_crc),
        };
        fields.put("mpa.crc.status", verdict);
        fields
    }

    /// Returns the fields of a user message of RFC 5043 §5.2; `None` for other payload protocols and for messages that
    /// are too short.
    pub fn sctp(ppid: u32, message: &[u8], upper: Option<Upper>) -> Option<Fields> {
        let mut fields = Fields::default();
        let half = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
        match ppid {
            16 => {
                fields.put("sctp.ddp_ssn", half(0)?);
                fields.segment(&message[2..], upper, false);
            }
            17 => {
                fields.put("sctp.ddp_ssn", half(0)?);
                let function = half(2)?;
                fields.put("sctp.function", function);
                fields.private_data(&message[4..], (5..=7).contains(&function));
            }
            _ => return None,
        }
        Some(fields)
    }

    /// Adds the header of a DDP segment. Returns the segment and its upper protocol.
    fn header(
        &mut self,
        bytes: &[u8],
        upper: Option<Upper>,
        draft: bool,
    ) -> Option<(Segment, Upper)> {
        let segment = Segment::parse(bytes)?;
        let detected = match segment.rdmap {
            // RDMAP has version 1; version 0 occurs with the first MPA draft.
            0 if !(draft && segment.version == 0) => Upper::Bare,
            _ => Upper::Rdmap,
        };
        let upper = upper.unwrap_or(detected);
        self.flag("ddp.t", segment.tagged);
        self.flag("ddp.l", segment.last);
        self.put("ddp.reserved", segment.reserved);
        self.put("ddp.dv", segment.version);
        if upper == Upper::Rdmap {
            self.put("rdmap.rv", segment.rdmap_version());
            self.put("rdmap.reserved", segment.rdmap_reserved());
            self.put("rdmap.opcode", segment.opcode());
        } else {
            self.put("ddp.rsvd_ulp", hex(&bytes[1..if segment.tagged { 2 } else { 6 }]));
        }
        match segment.model {
            Model::Tagged { stag, to } => {
                self.put("ddp.stag", stag);
                self.put("ddp.to", to);
            }
            Model::Untagged { invalidate, qn, msn, mo } => {
                if upper == Upper::Rdmap {
                    self.put("rdmap.invalidate_stag", invalidate);
                }
                self.put("ddp.qn", qn);
                self.put("ddp.msn", msn);
                self.put("ddp.mo", mo);
            }
        }
        Some((segment, upper))
    }

    /// Adds a DDP segment and the RDMAP header in its payload.
    fn segment(&mut self, bytes: &[u8], upper: Option<Upper>, draft: bool) {
        let stated = upper;
        let Some((segment, upper)) = self.header(bytes, stated, draft) else { return };
        let payload = &segment.payload[..];
        self.put("ddp.payload_length", payload.len());
        if payload.is_empty() {
            return;
        }
        let (queue, first) = match segment.model {
            Model::Untagged { qn, mo, .. } => (Some(qn), mo == 0),
            Model::Tagged { .. } => (None, false),
        };
        match (upper, segment.opcode()) {
            (Upper::Bare, _)
                if queue == Some(2)
                    && first
                    && segment.last
                    && payload[0] == 1
                    && payload.len() >= 8 =>
            {
                self.last_message(payload, stated);
            }
            (Upper::Rdmap, 1) if first => self.read_request(payload),
            (Upper::Rdmap, 7) if first => self.terminate(payload, stated, draft),
            (Upper::Rdmap, 8 | 9) if first => {
                if let Some(data) = long(payload, 0) {
                    self.put("rdmap.immediate", data);
                }
            }
            (Upper::Rdmap, 10) if first => {
                self.atomic_request(payload);
            }
            (Upper::Rdmap, 11) if first => {
                if let (Some(id), Some(value)) = (word(payload, 0), long(payload, 4)) {
                    self.put("rdmap.atomic.id", id);
                    self.put("rdmap.atomic.original", value);
                }
            }
            _ => self.put("ddp.payload", hex(payload)),
        }
    }

    fn read_request(&mut self, bytes: &[u8]) {
        let Some(request) = ReadRequest::parse(bytes) else { return };
        self.put("rdmap.sink_stag", request.sink_stag);
        self.put("rdmap.sink_to", request.sink_to);
        self.put("rdmap.read_size", request.size);
        self.put("rdmap.source_stag", request.source_stag);
        self.put("rdmap.source_to", request.source_to);
    }

    /// Adds an Atomic Request header (RFC 7306 §5.2.1).
    fn atomic_request(&mut self, bytes: &[u8]) -> Option<()> {
        self.put("rdmap.atomic.opcode", word(bytes, 0)? & 0xf);
        self.put("rdmap.atomic.id", word(bytes, 4)?);
        self.put("rdmap.atomic.stag", word(bytes, 8)?);
        self.put("rdmap.atomic.to", long(bytes, 12)?);
        self.put("rdmap.atomic.data", long(bytes, 20)?);
        self.put("rdmap.atomic.mask", long(bytes, 28)?);
        self.put("rdmap.atomic.compare", long(bytes, 36)?);
        self.put("rdmap.atomic.compare_mask", long(bytes, 44)?);
        Some(())
    }

    /// Adds a Terminate header. Linux siw swaps layer and type, and has M, D and R in the lowest bits of the third
    /// byte.
    fn terminate(&mut self, bytes: &[u8], upper: Option<Upper>, draft: bool) {
        let Some(mut t) = Terminate::parse(bytes) else { return };
        let swapped = errors::name(t.etype, t.layer, t.code).is_some();
        let known = errors::name(t.layer, t.etype, t.code).is_some();
        let low_flags = bytes[2] & 7;
        let siw = !(t.m || t.d || t.r) && (low_flags != 0 || swapped && !known);
        if siw {
            (t.layer, t.etype) = (t.etype, t.layer);
            (t.m, t.d, t.r) = (low_flags & 1 != 0, low_flags & 2 != 0, low_flags & 4 != 0);
        }
        self.put("term.layer", t.layer);
        self.put("term.type", t.etype);
        self.put("term.code", t.code);
        self.text("term.error", &errors::describe(t.layer, t.etype, t.code));
        self.flag("term.m", t.m);
        self.flag("term.d", t.d);
        self.flag("term.r", t.r);
        if siw {
            self.flag("term.siw_layout", true);
        }
        let mut rest = &t.quoted[..];
        if let Some(length) = t.segment_length() {
            self.put("term.segment_length", length);
            rest = t.headers();
        }
        if t.d {
            let Some((quoted, _)) = self.header(rest, upper, draft) else { return };
            rest = if quoted.tagged {
                &rest[oracle::segment::TAGGED_HEADER..]
            } else {
                &rest[UNTAGGED_HEADER..]
            };
        }
        if t.r {
            self.read_request(rest);
        }
    }

    /// Adds the last message of bare DDP (docs/protocol.md, section 5).
    fn last_message(&mut self, bytes: &[u8], upper: Option<Upper>) {
        let (layer, etype, code) = (bytes[1] >> 4, bytes[1] & 15, bytes[2]);
        self.put("term.version", bytes[0]);
        self.put("term.layer", layer);
        self.put("term.type", etype);
        self.put("term.code", code);
        self.text("term.error", &errors::describe(layer, etype, code));
        self.put(
            "term.segment_length",
            u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        );
        let quoted = bytes.get(8..8 + usize::from(bytes[3])).unwrap_or_default();
        self.header(quoted, upper, false);
    }
}

#[cfg(test)]
mod tests {
    use oracle::framing::Deframer;
    use oracle::{Flaw, Stream};

    use super::*;

    // RFC 5044 figure 5: a Send of 24 zero bytes in the first FPDU of a stream.
    #[test]
    fn figure_5_is_listed() {
        let mut stream = Stream::default();
        (stream.markers, stream.crc) = (true, true);
        let mut ulpdu = oracle::untagged(1, true, [0x43, 0, 0, 0, 0], 0, 1, 0, &[0; 24]);
        ulpdu[0] = 0x41;
        stream.fpdu(&ulpdu, Flaw::None);
        let fpdu = Deframer::new(true).next(stream.bytes()).expect("complete");
        let zeros = "00".repeat(24);
        assert_eq!(
            Fields::fpdu(&fpdu, true, None, false).to_string(),
            format!(
                "mpa.marker=00000000 mpa.marker.reserved=0 mpa.marker.fpduptr=0 mpa.marker.status=1 \
                 mpa.ulpdu_length=42 ddp.t=0 ddp.l=1 ddp.reserved=0 ddp.dv=1 rdmap.rv=1 \
                 rdmap.reserved=0 rdmap.opcode=3 rdmap.invalidate_stag=0 ddp.qn=0 ddp.msn=1 ddp.mo=0 \
                 ddp.payload_length=24 ddp.payload={zeros} mpa.crc={} mpa.crc.status=1",
                u32::from_le_bytes([0x52, 0x23, 0x99, 0x83])
            )
        );
    }

    #[test]
    fn start_frames_are_listed() {
        let frame = StartFrame {
            key: StartFrame::REPLY,
            markers: true,
            crc: false,
            reject: true,
            reserved: 0x13,
            revision: 2,
            claimed_length: None,
            private_data: vec![0x80, 5, 0x7f, 0xff, 9],
        };
        assert_eq!(
            Fields::start_frame(&frame).to_string(),
            "mpa.start=reply mpa.key=MPA_ID_Rep_Frame mpa.m=1 mpa.c=0 mpa.r=1 mpa.s=1 \
             mpa.reserved=3 mpa.revision=2 mpa.pd_length=5 mpa.a=1 mpa.b=0 mpa.ird=5 mpa.c_rtr=0 \
             mpa.d_rtr=1 mpa.ord=16383 mpa.private_data=09"
        );
    }
}

//! Builds the frames that a case sends from the arguments of its `send` lines.

use dialogue::streams::parse_hex;
use oracle::segment::{ReadRequest, Terminate};
use oracle::{Flaw, StartFrame, Stream};

use crate::message::Kind;
use crate::value::{Arguments, MAX_DATA, Variables, number, payload};

/// A frame ready to be appended to the output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Bytes of the stream without FPDU framing.
    Raw(Vec<u8>),
    /// A ULPDU and the flaw of its FPDU; `Flaw::None` for a correct FPDU.
    Fpdu(Vec<u8>, Flaw),
}

impl Frame {
    /// Appends the frame to a stream.
    pub fn append(&self, stream: &mut Stream) {
        match self {
            Frame::Raw(bytes) => stream.raw(bytes),
            Frame::Fpdu(ulpdu, flaw) => stream.fpdu(ulpdu, *flaw),
        }
    }
}

/// Next MSN of each untagged queue that RDMAP uses (RFC 5040 §4.1, RFC 7306 §4.1).
#[derive(Clone, Debug)]
pub struct Numbers([u32; 4]);

impl Numbers {
    /// Returns the next MSN of the queues 0 to 3.
    pub fn next(&self) -> [u32; 4] {
        self.0
    }
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers([1; 4])
    }
}

struct Encoder<'a> {
    arguments: &'a Arguments,
    variables: &'a Variables,
}

/// Builds the frame of a `send` line. If the frame is the last segment of an untagged message, advances the MSN of its
/// queue in `numbers`.
///
/// # Errors
/// An argument cannot be computed, or `kind` is not a frame.
pub fn frame(
    kind: Kind,
    arguments: &Arguments,
    variables: &Variables,
    numbers: &mut Numbers,
) -> Result<Frame, String> {
    let e = Encoder { arguments, variables };
    match kind {
        Kind::Request => e.start_frame(StartFrame::REQUEST).map(Frame::Raw),
        Kind::Reply => e.start_frame(StartFrame::REPLY).map(Frame::Raw),
        Kind::StartKey => e.start_key().map(Frame::Raw),
        Kind::Bytes => e.payload(0).map(Frame::Raw),
        Kind::Fpdu => e.fpdu(e.payload(0)?),
        Kind::Write => e.tagged(0),
        Kind::Response => e.tagged(2),
        Kind::Tagged => e.tagged(0),
        Kind::Send | Kind::Untagged => e.untagged(3, 0, e.payload(e.number("mo", 0)?)?, numbers),
        Kind::Immediate => e.untagged(8, 0, e.payload(0)?, numbers),
        Kind::Read => e.untagged(1, 1, e.read()?.bytes(), numbers),
        Kind::Atomic => e.untagged(10, 1, e.atomic()?, numbers),
        Kind::AtomicResponse => {
            let mut body = (e.number("id", 0)? as u32).to_be_bytes().to_vec();
            body.extend(e.number("value", 0)?.to_be_bytes());
            e.untagged(11, 3, body, numbers)
        }
        Kind::Terminate => e.untagged(7, 2, e.terminate()?.bytes(), numbers),
        Kind::Initiate
        | Kind::Accept
        | Kind::Reject
        | Kind::End
        | Kind::Control
        | Kind::Chunk
        | Kind::Shutdown
        | Kind::Fin
        | Kind::Reset
        | Kind::Close
        | Kind::Quiet => Err(format!("`{}` cannot be sent", kind.name())),
    }
}

impl Encoder<'_> {
    fn number(&self, key: &str, default: u64) -> Result<u64, String> {
        self.arguments.number(key, default, self.variables)
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, String> {
        Ok(self.number(key, u64::from(default))? != 0)
    }

    fn payload(&self, offset: u64) -> Result<Vec<u8>, String> {
        let length = self.number("len", 0)?;
        if length > MAX_DATA {
            return Err(format!("len={length} is above {MAX_DATA}"));
        }
        payload(
            self.arguments.get("data").unwrap_or("pattern"),
            length as usize,
            offset,
            self.variables,
        )
    }

    /// Truncates a frame to the number of bytes in the argument `keep`.
    fn keep(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        bytes.truncate(self.number("keep", MAX_DATA)? as usize);
        Ok(bytes)
    }

    fn start_frame(&self, key: [u8; 16]) -> Result<Vec<u8>, String> {
        let mut frame = StartFrame {
            key,
            markers: self.flag("markers", false)?,
            crc: self.flag("crc", true)?,
            reject: self.flag("reject", false)?,
            reserved: self.number("reserved", 0)? as u8,
            revision: self.number("rev", 1)? as u8,
            claimed_length: None,
            private_data: Vec::new(),
        };
        if let Some(digits) = self.arguments.get("key") {
            let bytes = parse_hex(digits)?;
            frame.key = bytes.try_into().map_err(|_| "key= needs 16 bytes")?;
        }
        if self.flag("enhanced", false)? {
            // RFC 6581 §6: flag S is the highest of the bits that RFC 5044 reserves.
            frame.reserved |= 0x10;
        }
        if self.arguments.get("ird").is_some() || self.arguments.get("ord").is_some() {
            // RFC 6581 §9: order of the fields is A, B, IRD, C, D, ORD.
            let flags = self.number("flags", 0)?;
            let ird = self.number("ird", 0)? & 0x3fff | flags >> 2 << 14;
            let ord = self.number("ord", 0)? & 0x3fff | (flags & 3) << 14;
            frame.private_data.extend((ird as u16).to_be_bytes());
            frame.private_data.extend((ord as u16).to_be_bytes());
        }
        frame.private_data.extend(self.payload(0)?);
        if self.arguments.get("pdlen").is_some() {
            frame.claimed_length = Some(self.number("pdlen", 0)? as u16);
        }
        self.keep(frame.bytes())
    }

    fn start_key(&self) -> Result<Vec<u8>, String> {
        let mut out = b"MPA ident frame".to_vec();
        let bit = |on: bool, bit: u8| if on { 1 << bit } else { 0u8 };
        let flags = bit(self.flag("markers", false)?, 7) | bit(self.flag("crc", true)?, 6);
        let reserved = (self.number("reserved", 0)? as u8 & 7) << 3;
        out.push(flags | reserved | self.number("rev", 0)? as u8 & 7);
        Ok(out)
    }

    fn flaw(&self) -> Result<Flaw, String> {
        let Some(text) = self.arguments.get("flaw") else { return Ok(Flaw::None) };
        flaw(text)
    }

    fn fpdu(&self, ulpdu: Vec<u8>) -> Result<Frame, String> {
        Ok(Frame::Fpdu(self.keep(ulpdu)?, self.flaw()?))
    }

    fn rdmap(&self, opcode: u64) -> Result<u8, String> {
        let (rv, reserved) =
            (self.number("rv", 1)? as u8 & 3, self.number("rdmap-reserved", 0)? as u8 & 3);
        Ok(rv << 6 | reserved << 4 | self.number("op", opcode)? as u8 & 0xf)
    }

    fn tagged(&self, opcode: u64) -> Result<Frame, String> {
        let to = self.number("to", 0)?;
        let mut ulpdu = oracle::tagged(
            self.number("ver", 1)? as u8,
            self.flag("last", true)?,
            self.rdmap(opcode)?,
            self.number("stag", 0)? as u32,
            to,
            &self.payload(to)?,
        );
        ulpdu[0] |= (self.number("ddp-reserved", 0)? as u8 & 0xf) << 2;
        self.fpdu(ulpdu)
    }

    fn untagged(
        &self,
        opcode: u64,
        queue: u32,
        payload: Vec<u8>,
        numbers: &mut Numbers,
    ) -> Result<Frame, String> {
        let qn = self.number("qn", u64::from(queue))? as u32;
        let last = self.flag("last", true)?;
        let next = numbers.0.get_mut(qn as usize);
        let default = next.as_ref().map_or(1, |n| **n);
        if let Some(n) = next.filter(|_| last) {
            *n = n.wrapping_add(1);
        }
        let invalidate = (self.number("inv", 0)? as u32).to_be_bytes();
        let mut rsvd = [self.rdmap(opcode)?, 0, 0, 0, 0];
        rsvd[1..].copy_from_slice(&invalidate);
        let mut ulpdu = oracle::untagged(
            self.number("ver", 1)? as u8,
            last,
            rsvd,
            qn,
            self.number("msn", u64::from(default))? as u32,
            self.number("mo", 0)? as u32,
            &payload,
        );
        ulpdu[0] |= (self.number("ddp-reserved", 0)? as u8 & 0xf) << 2;
        self.fpdu(ulpdu)
    }

    fn read(&self) -> Result<ReadRequest, String> {
        Ok(ReadRequest {
            sink_stag: self.number("sink", 0x5100)? as u32,
            sink_to: self.number("sink-to", 0)?,
            size: self.number("len", 0)? as u32,
            source_stag: self.number("stag", 0)? as u32,
            source_to: self.number("to", 0)?,
        })
    }

    /// Encodes an Atomic Request header (RFC 7306 §5.2.1, figure 4).
    fn atomic(&self) -> Result<Vec<u8>, String> {
        let mut out = (self.number("aop", 0)? as u32).to_be_bytes().to_vec();
        out.extend((self.number("id", 1)? as u32).to_be_bytes());
        out.extend((self.number("stag", 0)? as u32).to_be_bytes());
        for (key, default) in
            [("to", 0), ("add", 0), ("add-mask", 0), ("compare", 0), ("compare-mask", u64::MAX)]
        {
            out.extend(self.number(key, default)?.to_be_bytes());
        }
        Ok(out)
    }

    fn terminate(&self) -> Result<Terminate, String> {
        Ok(Terminate {
            layer: self.number("layer", 0)? as u8 & 0xf,
            etype: self.number("type", 0)? as u8 & 0xf,
            code: self.number("code", 0)? as u8,
            m: self.flag("m", false)?,
            d: self.flag("d", false)?,
            r: self.flag("r", false)?,
            reserved: self.number("reserved", 0)? as u16 & 0x1fff,
            quoted: self.arguments.get("quoted").map_or(Ok(Vec::new()), parse_hex)?,
        })
    }
}

/// Parses the flaw of an FPDU: `crc`, `pointer:N`, `length:N`, `pad:N`, `marker-reserved:N`, `crc-order`. Without `:N`,
/// N is 4.
///
/// # Errors
/// The text has another form.
pub fn flaw(text: &str) -> Result<Flaw, String> {
    let (name, amount) = text.split_once(':').unwrap_or((text, "4"));
    let amount = number(amount, &Variables::new())? as u16;
    match name {
        "crc" => Ok(Flaw::BadCrc),
        "crc-order" => Ok(Flaw::BigEndianCrc),
        "pointer" => Ok(Flaw::BadPointer(amount)),
        "length" => Ok(Flaw::BadLength(amount)),
        "pad" => Ok(Flaw::Pad(amount as u8)),
        "marker-reserved" => Ok(Flaw::MarkerReserved(amount)),
        other => Err(format!(
            "`{other}` is none of crc, crc-order, pointer:N, length:N, pad:N, marker-reserved:N"
        )),
    }
}

//! A TCP segment as a value: parsed from bytes, written to bytes (RFC 9293 §3.1, §3.2).
//!
//! smoltcp's parser is not used, for two reasons. This parser is on the path of every segment, so it reads and writes
//! the fixed header as a whole. smoltcp keeps only three SACK blocks, but a segment may carry four (RFC 2018 §3).
//!
//! The owner of the packet buffer computes and verifies checksums. The urgent pointer is legal and ignored: RFC 6093 §5
//! advises against its use, and MPA has none. Urgent bytes are ordinary bytes of the stream.

use arrayvec::ArrayVec;
use transport::seq::SeqNumber;
#[cfg(doc)]
use wire::crc32c::Sum;

use super::drop_reason::DropReason;

/// Length of a TCP header without options, in bytes.
pub const HEADER_LEN: usize = 20;
/// Length of the timestamps option with two bytes of padding. Every segment has it if both sides use timestamps (RFC
/// 7323 appendix A).
pub const TIMESTAMPS_LEN: usize = 12;
/// Maximum length of the options of a header, in bytes.
pub const MAX_OPTIONS_LEN: usize = 40;
/// Maximum number of SACK blocks in a segment (RFC 2018 §3).
pub const MAX_SACK_BLOCKS: usize = 4;

// Kinds of options. Pairs are the kind and the length, in bytes, of an option with a fixed length.
const OPT_END: u8 = 0;
const OPT_NOP: u8 = 1;
const OPT_MSS: (u8, usize) = (2, 4);
const OPT_WINDOW_SCALE: (u8, usize) = (3, 3);
const OPT_SACK_PERMITTED: (u8, usize) = (4, 2);
const OPT_SACK: u8 = 5;
const OPT_TIMESTAMPS: (u8, usize) = (8, 10);

/// The control bits (RFC 9293 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push: deliver the received data without delay.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is significant.
    pub const URG: Flags = Flags(0x20);
    /// ECN-Echo (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Returns true if every bit of `other` is set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any bit of `other` is set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union with `other`.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The timestamps option (RFC 7323 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamps {
    /// TSval: the sender's timestamp clock.
    pub val: u32,
    /// TSecr: the timestamp being echoed, meaningful with ACK only.
    pub ecr: u32,
}

/// The supported TCP options. Unknown options are skipped (RFC 9293 §3.1 MUST-6).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Maximum segment size, in SYN segments.
    pub mss: Option<u16>,
    /// Window scale shift, in SYN segments, as received: 0 to 255 (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// SACK permitted, in SYN segments (RFC 2018 §2).
    pub sack_permitted: bool,
    /// TSval and TSecr.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks as left and right edges, in the order of the option (RFC 2018 §3).
    pub sack: ArrayVec<(SeqNumber, SeqNumber), MAX_SACK_BLOCKS>,
}

/// A TCP segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Segment<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// SEG.SEQ.
    pub seq: SeqNumber,
    /// SEG.ACK, meaningful with the ACK flag.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: Flags,
    /// SEG.WND before scaling.
    pub window: u16,
    /// Options of the header.
    pub options: Options,
    /// Payload: bytes of the stream.
    pub payload: &'a [u8],
    /// True if the packet was marked Congestion Experienced (RFC 3168 §5). The parser of the IP header sets this field.
    pub ce: bool,
    /// CRC32c of the payload without its last four bytes, if the CRC was computed together with the checksum. If the
    /// payload is exactly one FPDU, its last four bytes are the CRC field of the FPDU.
    pub text_crc: Option<u32>,
}

impl<'a> Segment<'a> {
    /// Parses a TCP segment that fills `bytes`. The caller verifies the checksum.
    ///
    /// # Errors
    /// [`DropReason::BadHeader`] if the header does not fit `bytes` or a port is zero, [`DropReason::BadOption`] if an
    /// option has an illegal length (RFC 9293 §3.1 MUST-7).
    pub fn parse(bytes: &'a [u8]) -> Result<Segment<'a>, DropReason> {
        let mut segment = Segment::default();
        segment.read(bytes)?;
        Ok(segment)
    }

    /// Parses a segment into `self`, which must be a default value. Unlike [`parse`](Self::parse), copies no result. A
    /// copy would wait for all earlier stores, including the stores of the previous payload.
    ///
    /// # Errors
    /// The errors of [`parse`](Self::parse). After an error the content of `self` is unspecified.
    #[inline]
    pub fn read(&mut self, bytes: &'a [u8]) -> Result<(), DropReason> {
        let fixed = bytes.first_chunk::<HEADER_LEN>().ok_or(DropReason::BadHeader)?;
        let header_len = data_offset(fixed[OFFSET_AT]);
        let options = bytes.get(HEADER_LEN..header_len).ok_or(DropReason::BadHeader)?;
        let short = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let word = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        (self.src_port, self.dst_port) = (short(SRC_PORT_AT), short(DST_PORT_AT));
        if self.src_port == 0 || self.dst_port == 0 {
            return Err(DropReason::BadHeader);
        }
        self.seq = SeqNumber(word(SEQ_AT));
        self.ack = SeqNumber(word(ACK_AT));
        self.flags = Flags(fixed[FLAGS_AT]);
        self.window = short(WINDOW_AT);
        self.payload = &bytes[header_len..];
        self.options.read(options)
    }

    /// Returns the length of the header with options, in bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Returns the length of the whole segment, in bytes.
    pub fn wire_len(&self) -> usize {
        self.header_len() + self.payload.len()
    }

    /// Returns SEG.LEN: payload bytes plus one each for SYN and FIN (RFC 9293 §3.4).
    pub fn seq_len(&self) -> u32 {
        let controls =
            u32::from(self.flags.has(Flags::SYN)) + u32::from(self.flags.has(Flags::FIN));
        self.payload.len() as u32 + controls
    }

    /// Writes the header with options at the start of `out`, with a checksum of zero. Returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`header_len`](Self::header_len).
    fn emit_header(&self, out: &mut [u8]) -> usize {
        let len = self.header_len();
        let (fixed, options) = out[..len].split_at_mut(HEADER_LEN);
        let mut bytes = [0; HEADER_LEN];
        bytes[SRC_PORT_AT..][..2].copy_from_slice(&self.src_port.to_be_bytes());
        bytes[DST_PORT_AT..][..2].copy_from_slice(&self.dst_port.to_be_bytes());
        bytes[SEQ_AT..][..4].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[ACK_AT..][..4].copy_from_slice(&self.ack.0.to_be_bytes());
        bytes[OFFSET_AT] = ((len / 4) as u8) << 4;
        bytes[FLAGS_AT] = self.flags.0;
        bytes[WINDOW_AT..][..2].copy_from_slice(&self.window.to_be_bytes());
        fixed.copy_from_slice(&bytes);
        self.options.emit(options);
        len
    }

    /// Returns the flags of the segment in `bytes`; `None` if `bytes` is too short. The header is not checked further.
    #[inline]
    pub fn flags_of(bytes: &[u8]) -> Option<Flags> {
        bytes.get(FLAGS_AT).map(|&bits| Flags(bits))
    }

    /// Returns the header length, in bytes, that the data offset of the segment in `bytes` gives; `None` if `bytes` is
    /// too short. The value is not checked: it may exceed `bytes`, or be less than 20.
    #[inline]
    pub fn header_len_of(bytes: &[u8]) -> Option<usize> {
        bytes.get(OFFSET_AT).map(|&byte| data_offset(byte))
    }

    /// Writes the whole segment at the start of `out`, with a checksum of zero, and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`wire_len`](Self::wire_len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let header = self.emit_header(out);
        out[header..header + self.payload.len()].copy_from_slice(self.payload);
        header + self.payload.len()
    }
}

/// Returns the header length in bytes. `byte` is the header byte whose upper half is the data offset.
#[inline(always)]
fn data_offset(byte: u8) -> usize {
    usize::from(byte >> 4) * 4
}

/// Header of data segments without options other than timestamps, as [`Segment::emit`] writes it. Contains all fields
/// except the sequence number and PSH, which differ within a run of segments.
///
/// The value stays in registers. A value in memory would be loaded in pieces whose size differs from the size
/// of the stores. Store-to-load forwarding fails for such loads: they wait for all earlier stores, including the
/// stores of the payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataHeader {
    ports: u32,
    ack: u32,
    /// Data offset, flags and window.
    control: u32,
    timestamps: Option<Timestamps>,
    /// Sum of ports, acknowledgement number and timestamps option, for [`Sum::from_fields`].
    sum: u64,
}

impl DataHeader {
    #[inline(always)]
    pub(super) fn new(
        src_port: u16,
        dst_port: u16,
        ack: SeqNumber,
        flags: Flags,
        window: u16,
        timestamps: Option<Timestamps>,
    ) -> Self {
        let len = HEADER_LEN + if timestamps.is_some() { TIMESTAMPS_LEN } else { 0 };
        let ports = u32::from(src_port) << 16 | u32::from(dst_port);
        let control = (len as u32 / 4) << 28 | u32::from(flags.0) << 16 | u32::from(window);
        let mut sum = u64::from(ports) + u64::from(ack.0);
        if let Some(Timestamps { val, ecr }) = timestamps {
            sum += [TIMESTAMPS_FIRST_WORD, val, ecr].map(u64::from).iter().sum::<u64>();
        }
        DataHeader { ports, ack: ack.0, control, timestamps, sum }
    }

    /// Writes the header at the start of `out`, with PSH if `push`. Returns the sum of its fields, for
    /// [`Sum::from_fields`].
    #[inline(always)]
    pub(super) fn write(&self, seq: SeqNumber, push: bool, out: &mut [u8]) -> u64 {
        let pair = |a: u32, b: u32| (u64::from(a) << 32 | u64::from(b)).to_be_bytes();
        let control = self.control | if push { u32::from(Flags::PSH.0) << 16 } else { 0 };
        let len = HEADER_LEN + if self.timestamps.is_some() { TIMESTAMPS_LEN } else { 0 };
        let (fixed, options) = out[..len].split_at_mut(HEADER_LEN);
        fixed[SRC_PORT_AT..ACK_AT].copy_from_slice(&pair(self.ports, seq.0));
        fixed[ACK_AT..CHECKSUM_AT].copy_from_slice(&pair(self.ack, control));
        fixed[CHECKSUM_AT..].fill(0); // checksum and urgent pointer
        if let Some(Timestamps { val, ecr }) = self.timestamps {
            options[..8].copy_from_slice(&pair(TIMESTAMPS_FIRST_WORD, val));
            options[8..].copy_from_slice(&ecr.to_be_bytes());
        }
        self.sum + u64::from(seq.0) + u64::from(control)
    }
}

/// First four bytes of the timestamps option with its padding: two NOPs, kind, length.
const TIMESTAMPS_FIRST_WORD: u32 =
    u32::from_be_bytes([OPT_NOP, OPT_NOP, OPT_TIMESTAMPS.0, OPT_TIMESTAMPS.1 as u8]);

/// Offsets of the fields, bytes (RFC 9293 §3.1). The data offset is the upper half of its byte.
const SRC_PORT_AT: usize = 0;
const DST_PORT_AT: usize = 2;
const SEQ_AT: usize = 4;
const ACK_AT: usize = 8;
const OFFSET_AT: usize = 12;
const FLAGS_AT: usize = 13;
const WINDOW_AT: usize = 14;
const CHECKSUM_AT: usize = 16;

impl Options {
    /// Parses the options of a header into an empty `self`.
    ///
    /// # Errors
    /// [`DropReason::BadOption`] if a length is illegal.
    #[inline]
    fn read(&mut self, mut bytes: &[u8]) -> Result<(), DropReason> {
        if let [OPT_NOP, OPT_NOP, kind, len, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes
            && (kind, usize::from(len)) == OPT_TIMESTAMPS
        {
            // RFC 7323 appendix A: nearly every segment has this layout.
            let val = u32::from_be_bytes([v0, v1, v2, v3]);
            let ecr = u32::from_be_bytes([e0, e1, e2, e3]);
            self.timestamps = Some(Timestamps { val, ecr });
            return Ok(());
        }
        while let [kind, rest @ ..] = bytes {
            if *kind == OPT_END {
                break;
            }
            if *kind == OPT_NOP {
                bytes = rest;
                continue;
            }
            // RFC 9293 §3.1 MUST-7: an illegal length, for example zero, is an error.
            let len = usize::from(*rest.first().ok_or(DropReason::BadOption)?);
            let data = bytes.get(2..len).ok_or(DropReason::BadOption)?;
            self.set_option(*kind, len, data)?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn set_option(&mut self, kind: u8, len: usize, data: &[u8]) -> Result<(), DropReason> {
        let word =
            |at: usize| u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let legal = match kind {
            OPT_SACK => len >= 10 && (len - 2).is_multiple_of(8),
            k if k == OPT_MSS.0 => len == OPT_MSS.1,
            k if k == OPT_WINDOW_SCALE.0 => len == OPT_WINDOW_SCALE.1,
            k if k == OPT_SACK_PERMITTED.0 => len == OPT_SACK_PERMITTED.1,
            k if k == OPT_TIMESTAMPS.0 => len == OPT_TIMESTAMPS.1,
            _ => return Ok(()), // RFC 9293 §3.1 MUST-6
        };
        if !legal {
            return Err(DropReason::BadOption);
        }
        match kind {
            OPT_SACK => {
                self.sack.clear();
                for at in (0..data.len()).step_by(8).take(MAX_SACK_BLOCKS) {
                    self.sack.push((SeqNumber(word(at)), SeqNumber(word(at + 4))));
                }
            }
            k if k == OPT_MSS.0 => self.mss = Some(u16::from_be_bytes([data[0], data[1]])),
            k if k == OPT_WINDOW_SCALE.0 => self.window_scale = Some(data[0]),
            k if k == OPT_SACK_PERMITTED.0 => self.sack_permitted = true,
            _ => self.timestamps = Some(Timestamps { val: word(0), ecr: word(4) }),
        }
        Ok(())
    }

    /// Returns the encoded length in bytes: a multiple of four, at most [`MAX_OPTIONS_LEN`]. SACK blocks that do not
    /// fit are not written: with timestamps there is room for three.
    pub fn len(&self) -> usize {
        self.fixed_len() + self.sack_len()
    }

    /// Returns true if there are no options.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn fixed_len(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        // SACK-permitted replaces the padding of the timestamps.
        let stamps_or_permitted = match self.timestamps {
            Some(_) => TIMESTAMPS_LEN,
            None if self.sack_permitted => 4,
            None => 0,
        };
        mss + scale + stamps_or_permitted
    }

    fn sack_blocks(&self) -> usize {
        let room = (MAX_OPTIONS_LEN - self.fixed_len()).saturating_sub(4) / 8;
        self.sack.len().min(room)
    }

    fn sack_len(&self) -> usize {
        match self.sack_blocks() {
            0 => 0,
            blocks => 4 + 8 * blocks,
        }
    }

    /// Writes the options. NOPs in front of an option pad it to a multiple of four bytes. SACK-permitted replaces the
    /// padding of the timestamps, so that a SYN-ACK is no longer than a SYN with the same options.
    fn emit(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[OPT_MSS.0, OPT_MSS.1 as u8]);
            put(&mss.to_be_bytes());
        }
        let permitted = [OPT_SACK_PERMITTED.0, OPT_SACK_PERMITTED.1 as u8];
        match self.timestamps {
            Some(Timestamps { val, ecr }) => {
                put(if self.sack_permitted { &permitted } else { &[OPT_NOP, OPT_NOP] });
                put(&[OPT_TIMESTAMPS.0, OPT_TIMESTAMPS.1 as u8]);
                put(&val.to_be_bytes());
                put(&ecr.to_be_bytes());
            }
            None if self.sack_permitted => {
                put(&[OPT_NOP, OPT_NOP]);
                put(&permitted);
            }
            None => {}
        }
        if let Some(shift) = self.window_scale {
            put(&[OPT_NOP, OPT_WINDOW_SCALE.0, OPT_WINDOW_SCALE.1 as u8, shift]);
        }
        let blocks = self.sack_blocks();
        if blocks > 0 {
            put(&[OPT_NOP, OPT_NOP, OPT_SACK, 2 + 8 * blocks as u8]);
            for (left, right) in &self.sack[..blocks] {
                put(&left.0.to_be_bytes());
                put(&right.0.to_be_bytes());
            }
        }
    }
}

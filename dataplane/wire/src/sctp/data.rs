//! DATA chunks (RFC 9260 §3.3.1).
//!
//! ```text
//!   0  | 0 | Res |I|U|B|E| length (16) |     8  |  stream (16)  |  SSN (16)   |
//!   4  |             TSN               |    12  | payload protocol identifier |
//! ```

use super::raw::{RawChunk, chunk_type};
use super::{CHUNK_HEADER_LEN, Tsn};
use crate::be;

/// Bytes of a DATA chunk before its user data, the chunk header included.
pub const DATA_HEADER_LEN: usize = field::PPID + 4;

mod field {
    pub(super) const END: u8 = 0x01;
    pub(super) const BEGIN: u8 = 0x02;
    pub(super) const UNORDERED: u8 = 0x04;
    pub(super) const IMMEDIATE: u8 = 0x08;

    // From the start of the chunk.
    pub(super) const TSN: usize = super::CHUNK_HEADER_LEN;
    pub(super) const STREAM: usize = 8;
    pub(super) const SSN: usize = 10;
    pub(super) const PPID: usize = 12;

    const _: () = assert!(super::DATA_HEADER_LEN == 16);
}

/// Values of a DATA chunk's header, without the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataHeader {
    /// Transmission sequence number.
    pub tsn: Tsn,
    /// Stream identifier.
    pub stream: u16,
    /// Stream sequence number (SSN); ignored if `unordered`.
    pub ssn: u16,
    /// Payload protocol identifier (PPID): identifies the format of the user data to the ULP.
    pub ppid: u32,
    /// I: the sender requests an immediate SACK.
    pub immediate: bool,
    /// U: the message is unordered.
    pub unordered: bool,
    /// B: the user data is the first fragment of a message, or a whole message.
    pub begin: bool,
    /// E: the user data is the last fragment of a message, or a whole message.
    pub end: bool,
}

impl DataHeader {
    /// Returns the chunk's header for `len` bytes of user data, 1 to 65519.
    #[inline]
    pub fn emit(&self, len: usize) -> [u8; DATA_HEADER_LEN] {
        let [head, tail] = self.emit_numbers(len);
        (u128::from(head) << 64 | u128::from(tail)).to_be_bytes()
    }

    /// Returns the chunk's header for `len` bytes of user data as two 64-bit numbers, each sent in network byte order.
    #[inline]
    pub(super) fn emit_numbers(&self, len: usize) -> [u64; 2] {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = flag(self.immediate, field::IMMEDIATE)
            | flag(self.unordered, field::UNORDERED)
            | flag(self.begin, field::BEGIN)
            | flag(self.end, field::END);
        let len = (DATA_HEADER_LEN + len) as u16;
        // The numbers are assembled in registers and stored whole, so that the CPU can forward the stores to a load
        // that soon follows.
        let head = u64::from(u16::from_be_bytes([chunk_type::DATA, flags])) << 48
            | u64::from(len) << 32
            | u64::from(self.tsn.0);
        let tail = u64::from(self.stream) << 48 | u64::from(self.ssn) << 32 | u64::from(self.ppid);
        [head, tail]
    }
}

/// A received DATA chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data<'a> {
    /// Values of the chunk's header.
    pub header: DataHeader,
    /// User data. Empty user data is a protocol violation that the association handles (RFC 9260 §6.2).
    pub payload: &'a [u8],
}

impl<'a> Data<'a> {
    /// Parses the header and the user data; `None` if the chunk is shorter than [`DATA_HEADER_LEN`].
    #[inline]
    pub(super) fn parse(raw: RawChunk<'a>) -> Option<Data<'a>> {
        let bytes = raw.bytes;
        let payload = bytes.get(DATA_HEADER_LEN..)?;
        let flag = |bit: u8| raw.flags & bit != 0;
        let header = DataHeader {
            tsn: Tsn(be::u32(bytes, field::TSN)),
            stream: be::u16(bytes, field::STREAM),
            ssn: be::u16(bytes, field::SSN),
            ppid: be::u32(bytes, field::PPID),
            immediate: flag(field::IMMEDIATE),
            unordered: flag(field::UNORDERED),
            begin: flag(field::BEGIN),
            end: flag(field::END),
        };
        Some(Data { header, payload })
    }
}

//! Bundles chunks into a packet buffer (RFC 9260 §6.10). Each chunk is padded to a multiple of 4 bytes, and the
//! checksum is written last. Not included: which chunks may share a packet, and their order.

use super::data::DATA_HEADER_LEN;
use super::raw::{self, emit_chunk_header};
use super::{
    CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause, DataHeader, GapBlock, InitHeader, Parameter, Ports,
    SackHeader, Tag, Tsn, chunk_type, common_header, field, padded, sack,
};
use crate::{be, crc32c};

/// The chunk does not fit into this packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no room for the chunk in this packet")]
pub struct PacketFull;

/// Common header of all packets with the same ports and verification tag, and its CRC32c. Both are computed once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommonHeader {
    /// The header with a checksum field of zero.
    bytes: [u8; COMMON_HEADER_LEN],
    crc: u32,
}

impl CommonHeader {
    /// Returns the header for packets with these ports and this verification tag.
    pub fn new(ports: Ports, tag: Tag) -> CommonHeader {
        let bytes = common_header(ports, tag);
        CommonHeader { bytes, crc: crc32c::update(0, &bytes) }
    }
}

/// A packet under construction. A chunk that does not fit leaves the packet unchanged. Chunks are in the order of the
/// calls; the caller adds control chunks first, then DATA chunks in TSN order (RFC 9260 §6.10).
#[derive(Debug)]
pub struct PacketBuilder<'a> {
    out: &'a mut [u8],
    len: usize,
    /// CRC32c of the first `digested` bytes, computed with a checksum field of zero (RFC 9260 §6.8).
    crc: u32,
    digested: usize,
}

impl<'a> PacketBuilder<'a> {
    /// Creates an empty packet in `out`, which has at least [`COMMON_HEADER_LEN`] bytes.
    pub fn new(out: &'a mut [u8], ports: Ports, tag: Tag) -> PacketBuilder<'a> {
        PacketBuilder::with_header(out, &CommonHeader::new(ports, tag))
    }

    /// Creates an empty packet with a precomputed header in `out`, which has at least [`COMMON_HEADER_LEN`] bytes.
    #[inline]
    pub fn with_header(out: &'a mut [u8], header: &CommonHeader) -> PacketBuilder<'a> {
        out[..COMMON_HEADER_LEN].copy_from_slice(&header.bytes);
        PacketBuilder { out, len: COMMON_HEADER_LEN, crc: header.crc, digested: COMMON_HEADER_LEN }
    }

    /// Returns true while the packet has no chunk.
    pub const fn is_empty(&self) -> bool {
        self.len == COMMON_HEADER_LEN
    }

    /// Returns the current length in bytes, including the common header and pads.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the free space in bytes for chunks, including their headers and pads.
    pub const fn remaining(&self) -> usize {
        self.out.len() - self.len
    }

    /// Returns the maximum length of user data that one more DATA chunk can hold, bytes: a multiple of 4.
    pub const fn max_data_len(&self) -> usize {
        self.remaining().saturating_sub(DATA_HEADER_LEN) & !3
    }

    /// Returns the buffer for the user data of the next DATA chunk, [`max_data_len`](Self::max_data_len) bytes. After
    /// the data is written, [`push_data`](Self::push_data) adds the chunk.
    pub fn data_buffer(&mut self) -> &mut [u8] {
        let room = self.max_data_len();
        let start = (self.len + DATA_HEADER_LEN).min(self.out.len());
        &mut self.out[start..start + room]
    }

    /// Adds the DATA chunk whose user data is the first `len` bytes of [`data_buffer`](Self::data_buffer), 1 to
    /// [`max_data_len`](Self::max_data_len).
    #[inline]
    pub fn push_data(&mut self, header: &DataHeader, len: usize) -> Result<(), PacketFull> {
        self.push_data_header(header.emit_numbers(len), len)
    }

    /// Adds the DATA chunk as [`push_data`](Self::push_data) does. `crc`: CRC32c of the user data, so that the data
    /// need not be read again for the packet's checksum.
    #[inline]
    pub fn push_digested(
        &mut self,
        header: &DataHeader,
        len: usize,
        crc: u32,
    ) -> Result<(), PacketFull> {
        let (start, header) = (self.len, header.emit_numbers(len));
        self.push_data_header(header, len)?;
        let end = start + DATA_HEADER_LEN + len;
        debug_assert_eq!(crc, crc32c::update(0, &self.out[end - len..end]));
        let front = crc32c::update_numbers(self.crc_of_first(start), header);
        self.crc = crc32c::combine(front, crc, len);
        self.digested = end;
        Ok(())
    }

    /// Writes header and pad of a DATA chunk.
    #[inline]
    fn push_data_header(&mut self, [head, tail]: [u64; 2], len: usize) -> Result<(), PacketFull> {
        if len == 0 || len > self.max_data_len() {
            return Err(PacketFull);
        }
        let out = &mut self.out[self.len..][..DATA_HEADER_LEN];
        out[..8].copy_from_slice(&head.to_be_bytes());
        out[8..].copy_from_slice(&tail.to_be_bytes());
        self.advance_padded(DATA_HEADER_LEN + len);
        Ok(())
    }

    /// Returns the CRC32c of the first `end` bytes, computed with a checksum field of zero. `end` is at least
    /// `digested`.
    #[inline]
    fn crc_of_first(&self, end: usize) -> u32 {
        match self.digested == end {
            true => self.crc,
            false => crc32c::update(self.crc, &self.out[self.digested..end]),
        }
    }

    /// Adds a SACK. Entries that do not fit are omitted: duplicates first, then the blocks with the highest TSNs (RFC
    /// 9260 §6.7).
    pub fn sack(
        &mut self,
        header: SackHeader,
        gaps: &[GapBlock],
        duplicates: &[Tsn],
    ) -> Result<(), PacketFull> {
        let out = &mut self.out[self.len..];
        self.len += sack::emit(header, gaps, duplicates, out).ok_or(PacketFull)?;
        Ok(())
    }

    /// Adds an INIT with the fixed fields of `header` and the parameters.
    pub fn init(
        &mut self,
        header: &InitHeader,
        parameters: &[Parameter<'_>],
    ) -> Result<(), PacketFull> {
        self.init_chunk(chunk_type::INIT, header, parameters)
    }

    /// Adds an INIT ACK with the fixed fields of `header` and the parameters.
    pub fn init_ack(
        &mut self,
        header: &InitHeader,
        parameters: &[Parameter<'_>],
    ) -> Result<(), PacketFull> {
        self.init_chunk(chunk_type::INIT_ACK, header, parameters)
    }

    fn init_chunk(
        &mut self,
        kind: u8,
        header: &InitHeader,
        parameters: &[Parameter<'_>],
    ) -> Result<(), PacketFull> {
        let header = header.emit();
        let len = header.len() + parameters.iter().map(Parameter::padded_len).sum::<usize>();
        let value = self.push_value(kind, 0, len)?;
        value[..header.len()].copy_from_slice(&header);
        let mut at = header.len();
        for parameter in parameters {
            at += parameter.emit(&mut value[at..]);
        }
        Ok(())
    }

    /// Adds an ABORT. `reflected`: the T bit, set if the packet's verification tag is copied from the packet that it
    /// answers.
    pub fn abort(&mut self, reflected: bool, causes: &[Cause<'_>]) -> Result<(), PacketFull> {
        self.push_causes(chunk_type::ABORT, reflected_flag(reflected), causes)
    }

    /// Adds an ERROR with the error causes.
    pub fn error(&mut self, causes: &[Cause<'_>]) -> Result<(), PacketFull> {
        self.push_causes(chunk_type::ERROR, 0, causes)
    }

    fn push_causes(&mut self, kind: u8, flags: u8, causes: &[Cause<'_>]) -> Result<(), PacketFull> {
        let len = causes.iter().map(Cause::padded_len).sum();
        let value = self.push_value(kind, flags, len)?;
        let mut at = 0;
        for cause in causes {
            at += cause.emit(&mut value[at..]);
        }
        Ok(())
    }

    /// Adds a HEARTBEAT with a Heartbeat Info parameter of value `info`.
    pub fn heartbeat(&mut self, info: &[u8]) -> Result<(), PacketFull> {
        let info = Parameter::HeartbeatInfo(info);
        let value = self.push_value(chunk_type::HEARTBEAT, 0, info.padded_len())?;
        info.emit(value);
        Ok(())
    }

    /// Adds a chunk of type `kind` with a value of `len` zeros.
    pub fn padding(&mut self, kind: u8, len: usize) -> Result<(), PacketFull> {
        self.push_value(kind, 0, len)?.fill(0);
        Ok(())
    }

    /// Adds a HEARTBEAT ACK. `value`: the value of the HEARTBEAT as received.
    pub fn heartbeat_ack(&mut self, value: &[u8]) -> Result<(), PacketFull> {
        self.push_chunk(chunk_type::HEARTBEAT_ACK, 0, value)
    }

    /// Adds a SHUTDOWN. `cumulative`: the Cumulative TSN Ack.
    pub fn shutdown(&mut self, cumulative: Tsn) -> Result<(), PacketFull> {
        self.push_chunk(chunk_type::SHUTDOWN, 0, &cumulative.0.to_be_bytes())
    }

    /// Adds a SHUTDOWN ACK.
    pub fn shutdown_ack(&mut self) -> Result<(), PacketFull> {
        self.push_chunk(chunk_type::SHUTDOWN_ACK, 0, &[])
    }

    /// Adds a SHUTDOWN COMPLETE. `reflected`: the T bit, set if the packet's verification tag is copied from the packet
    /// that it answers.
    pub fn shutdown_complete(&mut self, reflected: bool) -> Result<(), PacketFull> {
        self.push_chunk(chunk_type::SHUTDOWN_COMPLETE, reflected_flag(reflected), &[])
    }

    /// Adds a COOKIE ECHO with the state cookie of the INIT ACK.
    pub fn cookie_echo(&mut self, cookie: &[u8]) -> Result<(), PacketFull> {
        self.push_chunk(chunk_type::COOKIE_ECHO, 0, cookie)
    }

    /// Adds a COOKIE ACK.
    pub fn cookie_ack(&mut self) -> Result<(), PacketFull> {
        self.push_chunk(chunk_type::COOKIE_ACK, 0, &[])
    }

    /// Adds a PAD chunk (RFC 4820) of `len` bytes in total, a multiple of 4, at least 4.
    pub fn pad(&mut self, len: usize) -> Result<(), PacketFull> {
        let value = self.push_value(
            chunk_type::PAD,
            0,
            len.checked_sub(CHUNK_HEADER_LEN).ok_or(PacketFull)?,
        )?;
        value.fill(0);
        Ok(())
    }

    /// Adds a chunk of type `kind` with these flags and this value.
    pub fn push_chunk(&mut self, kind: u8, flags: u8, value: &[u8]) -> Result<(), PacketFull> {
        self.push_value(kind, flags, value.len())?.copy_from_slice(value);
        Ok(())
    }

    /// Writes a chunk's header and pad. Returns the buffer for its value of `len` bytes.
    fn push_value(&mut self, kind: u8, flags: u8, len: usize) -> Result<&mut [u8], PacketFull> {
        let whole = CHUNK_HEADER_LEN + len;
        if padded(whole) > self.remaining() || whole > usize::from(u16::MAX) {
            return Err(PacketFull);
        }
        let start = self.len;
        emit_chunk_header(kind, flags, whole, &mut self.out[start..]);
        self.advance_padded(whole);
        Ok(&mut self.out[start + CHUNK_HEADER_LEN..start + whole])
    }

    /// Adds a chunk of `len` bytes, header included, to the length of the packet, and writes its pad.
    fn advance_padded(&mut self, len: usize) {
        // RFC 9260 §3.2: the padding is at most three zero bytes, which the length does not count.
        let (end, next) = (self.len + len, self.len + padded(len));
        if end < next {
            self.out[end..next].fill(0);
        }
        self.len = next;
    }

    /// Writes the checksum. Returns the length of the packet in bytes.
    pub fn finish(self) -> usize {
        let crc = self.crc_of_first(self.len);
        // RFC 9260 §6.8: the checksum is inserted last.
        be::put(self.out, field::CHECKSUM, &crc32c::to_field(crc));
        self.len
    }

    /// Returns the length of the packet in bytes, and writes the checksum if `checksum` is true. Otherwise the checksum
    /// field remains zero for a device that computes it.
    #[inline]
    pub fn finish_with(self, checksum: bool) -> usize {
        if checksum { self.finish() } else { self.len }
    }
}

const fn reflected_flag(reflected: bool) -> u8 {
    if reflected { raw::field::REFLECTED } else { 0 }
}

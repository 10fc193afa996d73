//! The header common to all chunks, and the iterator over the chunks of a packet (RFC 9260 §3.2).

use super::{CHUNK_HEADER_LEN, padded};
use crate::be;

/// Chunk types (RFC 9260 §3.2; PAD: RFC 4820).
pub mod chunk_type {
    /// User data with its TSN.
    pub const DATA: u8 = 0;
    /// Starts an association.
    pub const INIT: u8 = 1;
    /// Acknowledgement of INIT.
    pub const INIT_ACK: u8 = 2;
    /// Selective acknowledgement.
    pub const SACK: u8 = 3;
    /// Heartbeat request.
    pub const HEARTBEAT: u8 = 4;
    /// Acknowledgement of HEARTBEAT.
    pub const HEARTBEAT_ACK: u8 = 5;
    /// Ends the association at once.
    pub const ABORT: u8 = 6;
    /// Starts the graceful close of the association; has the cumulative TSN.
    pub const SHUTDOWN: u8 = 7;
    /// Acknowledgement of SHUTDOWN.
    pub const SHUTDOWN_ACK: u8 = 8;
    /// Error causes; the association continues.
    pub const ERROR: u8 = 9;
    /// Carries the state cookie of the INIT ACK back.
    pub const COOKIE_ECHO: u8 = 10;
    /// Acknowledgement of COOKIE ECHO.
    pub const COOKIE_ACK: u8 = 11;
    /// Confirms SHUTDOWN ACK: the association has ended.
    pub const SHUTDOWN_COMPLETE: u8 = 14;
    /// Padding (RFC 4820).
    pub const PAD: u8 = 0x84;
}

pub(super) mod field {
    pub(in super::super) const TYPE: usize = 0;
    pub(in super::super) const FLAGS: usize = 1;
    pub(in super::super) const LENGTH: usize = 2;
    /// The T bit in the flags of ABORT and SHUTDOWN COMPLETE.
    pub(in super::super) const REFLECTED: u8 = 0x01;

    const _: () = assert!(LENGTH + 2 == super::CHUNK_HEADER_LEN);
}

/// Reasons to reject a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadChunk {
    /// The packet ends before the chunk does: a partial chunk (RFC 9260 §6.10).
    #[error("the packet ends within a chunk")]
    Partial,
    /// The length field is too small for the chunk's header, its fixed fields, or the lists whose lengths the chunk
    /// states.
    #[error("the length of a chunk of type {kind} is too small for it")]
    Length {
        /// Chunk type.
        kind: u8,
    },
}

/// A chunk of a packet whose value is not parsed yet. Its length is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawChunk<'a> {
    /// Chunk type.
    pub kind: u8,
    /// Chunk flags, 8 bits; their meaning depends on the type.
    pub flags: u8,
    /// The whole chunk with its header, without its pad.
    pub bytes: &'a [u8],
}

impl<'a> RawChunk<'a> {
    /// Returns the chunk's value: the bytes after its header, without the pad.
    pub fn value(&self) -> &'a [u8] {
        &self.bytes[CHUNK_HEADER_LEN..]
    }

    /// Returns the T bit of an ABORT or SHUTDOWN COMPLETE.
    pub(super) fn reflected(&self) -> bool {
        self.flags & field::REFLECTED != 0
    }
}

/// The chunks of a packet, in the order of the packet. Iteration ends after the first chunk with an impossible length.
#[derive(Clone, Debug)]
pub struct Chunks<'a>(&'a [u8]);

impl<'a> Chunks<'a> {
    /// Returns an iterator over the chunks in `bytes`, which follow the common header.
    pub const fn new(bytes: &'a [u8]) -> Chunks<'a> {
        Chunks(bytes)
    }

    /// Returns true if no bytes are left.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<RawChunk<'a>, BadChunk>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = core::mem::take(&mut self.0);
        if bytes.len() < CHUNK_HEADER_LEN {
            return Some(Err(BadChunk::Partial));
        }
        let kind = bytes[field::TYPE];
        let len = usize::from(be::u16(bytes, field::LENGTH));
        if len < CHUNK_HEADER_LEN {
            return Some(Err(BadChunk::Length { kind }));
        }
        if len > bytes.len() {
            // RFC 9260 §6.10: a partial chunk is dropped.
            return Some(Err(BadChunk::Partial));
        }
        // The pad of the last chunk may be missing. The content of a pad is ignored (RFC 9260 §3.2).
        self.0 = bytes.get(padded(len)..).unwrap_or_default();
        Some(Ok(RawChunk { kind, flags: bytes[field::FLAGS], bytes: &bytes[..len] }))
    }
}

/// Writes type, flags and length of a chunk at the front of `out`. `len`: bytes of the chunk, header included.
pub(super) fn emit_chunk_header(kind: u8, flags: u8, len: usize, out: &mut [u8]) {
    out[field::TYPE] = kind;
    out[field::FLAGS] = flags;
    be::put(out, field::LENGTH, &(len as u16).to_be_bytes());
}

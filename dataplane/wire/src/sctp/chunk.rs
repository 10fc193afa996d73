//! Chunks: the iterator over the chunks of a packet, and the content of each (RFC 9260 §3.2, §3.3).

use super::{CHUNK_HEADER_LEN, Causes, Data, Init, Sack, Tsn, padded, parameter::Parameters};
use crate::be;

/// Chunk types (RFC 9260 §3.2; PAD is RFC 4820's).
pub mod chunk_type {
    /// Payload data.
    pub const DATA: u8 = 0;
    /// Initiation.
    pub const INIT: u8 = 1;
    /// Its acknowledgement.
    pub const INIT_ACK: u8 = 2;
    /// Selective acknowledgement.
    pub const SACK: u8 = 3;
    /// Heartbeat request.
    pub const HEARTBEAT: u8 = 4;
    /// Its acknowledgement.
    pub const HEARTBEAT_ACK: u8 = 5;
    /// Abort.
    pub const ABORT: u8 = 6;
    /// Shutdown.
    pub const SHUTDOWN: u8 = 7;
    /// Its acknowledgement.
    pub const SHUTDOWN_ACK: u8 = 8;
    /// Operation error.
    pub const ERROR: u8 = 9;
    /// State cookie.
    pub const COOKIE_ECHO: u8 = 10;
    /// Its acknowledgement.
    pub const COOKIE_ACK: u8 = 11;
    /// Reserved: congestion notification echo.
    pub const ECNE: u8 = 12;
    /// Reserved: congestion window reduced.
    pub const CWR: u8 = 13;
    /// Shutdown complete.
    pub const SHUTDOWN_COMPLETE: u8 = 14;
    /// Padding (RFC 4820).
    pub const PAD: u8 = 0x84;
}

pub(super) mod field {
    pub(in super::super) const TYPE: usize = 0;
    pub(in super::super) const FLAGS: usize = 1;
    pub(in super::super) const LENGTH: usize = 2;
    /// T of ABORT and SHUTDOWN COMPLETE.
    pub(in super::super) const REFLECTED: u8 = 0x01;

    const _: () = assert!(LENGTH + 2 == super::CHUNK_HEADER_LEN);
}

/// Why a chunk cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadChunk {
    /// The packet ends before the chunk does: a partial chunk (RFC 9260 §6.10).
    #[error("the packet ends within a chunk")]
    Partial,
    /// The length field is less than the chunk's header or fixed fields need, or than the lists in it.
    #[error("the length of a chunk of type {kind} is too small for it")]
    Length {
        /// Its type.
        kind: u8,
    },
}

/// A chunk by its length, not yet looked into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawChunk<'a> {
    /// Chunk type.
    pub kind: u8,
    /// Chunk flags.
    pub flags: u8,
    /// The whole chunk with its header, without its pad.
    pub bytes: &'a [u8],
}

impl<'a> RawChunk<'a> {
    /// Its value.
    pub fn value(&self) -> &'a [u8] {
        &self.bytes[CHUNK_HEADER_LEN..]
    }

    fn reflected(&self) -> bool {
        self.flags & field::REFLECTED != 0
    }
}

/// The chunks of a packet in their order; ends after the first that cannot be delimited.
#[derive(Clone, Debug)]
pub struct Chunks<'a>(&'a [u8]);

impl<'a> Chunks<'a> {
    /// Of the bytes behind the common header.
    pub const fn new(bytes: &'a [u8]) -> Chunks<'a> {
        Chunks(bytes)
    }

    /// True when no byte is left.
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
        // The last chunk's pad may be missing; what it holds does not matter (RFC 9260 §3.2).
        self.0 = bytes.get(padded(len)..).unwrap_or_default();
        Some(Ok(RawChunk { kind, flags: bytes[field::FLAGS], bytes: &bytes[..len] }))
    }
}

/// What a chunk says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk<'a> {
    /// DATA.
    Data(Data<'a>),
    /// INIT.
    Init(Init<'a>),
    /// INIT ACK.
    InitAck(Init<'a>),
    /// SACK.
    Sack(Sack<'a>),
    /// HEARTBEAT: the Heartbeat Information parameter and whatever else it carries, to be sent back as it is.
    Heartbeat(&'a [u8]),
    /// HEARTBEAT ACK, likewise.
    HeartbeatAck(&'a [u8]),
    /// ABORT.
    Abort {
        /// T: the verification tag is the reflected one.
        reflected: bool,
        /// Its causes.
        causes: Causes<'a>,
    },
    /// SHUTDOWN.
    Shutdown {
        /// Cumulative TSN Ack.
        cumulative: Tsn,
    },
    /// SHUTDOWN ACK.
    ShutdownAck,
    /// ERROR.
    Error(Causes<'a>),
    /// COOKIE ECHO: the cookie.
    CookieEcho(&'a [u8]),
    /// COOKIE ACK.
    CookieAck,
    /// SHUTDOWN COMPLETE.
    ShutdownComplete {
        /// T: the verification tag is the reflected one.
        reflected: bool,
    },
    /// PAD.
    Pad,
    /// Anything else.
    Unknown(UnknownChunk<'a>),
}

/// A chunk of a type that is not known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownChunk<'a> {
    /// The whole chunk with its header.
    pub bytes: &'a [u8],
    /// Bit 2^7 of the type: the chunks after it are looked at; else they are dropped with it.
    pub skip: bool,
    /// Bit 2^6 of the type: an ERROR is to say so (RFC 9260 §3.2, table 2).
    pub report: bool,
}

impl<'a> Chunk<'a> {
    /// What `raw` says.
    pub fn parse(raw: RawChunk<'a>) -> Result<Chunk<'a>, BadChunk> {
        let bad = BadChunk::Length { kind: raw.kind };
        let value = raw.value();
        Ok(match raw.kind {
            chunk_type::DATA => Chunk::Data(Data::parse(raw).ok_or(bad)?),
            chunk_type::INIT => Chunk::Init(Init::parse(value).ok_or(bad)?),
            chunk_type::INIT_ACK => Chunk::InitAck(Init::parse(value).ok_or(bad)?),
            chunk_type::SACK => Chunk::Sack(Sack::parse(value).ok_or(bad)?),
            chunk_type::HEARTBEAT => Chunk::Heartbeat(value),
            chunk_type::HEARTBEAT_ACK => Chunk::HeartbeatAck(value),
            chunk_type::ABORT => {
                Chunk::Abort { reflected: raw.reflected(), causes: Causes::new(value) }
            }
            chunk_type::SHUTDOWN => {
                let cumulative = value.first_chunk::<4>().ok_or(bad)?;
                Chunk::Shutdown { cumulative: Tsn(u32::from_be_bytes(*cumulative)) }
            }
            chunk_type::SHUTDOWN_ACK => Chunk::ShutdownAck,
            chunk_type::ERROR => Chunk::Error(Causes::new(value)),
            chunk_type::COOKIE_ECHO => Chunk::CookieEcho(value),
            chunk_type::COOKIE_ACK => Chunk::CookieAck,
            chunk_type::SHUTDOWN_COMPLETE => Chunk::ShutdownComplete { reflected: raw.reflected() },
            chunk_type::PAD => Chunk::Pad,
            // RFC 9260 §3.2, table 2.
            kind => Chunk::Unknown(UnknownChunk {
                bytes: raw.bytes,
                skip: kind & 0x80 != 0,
                report: kind & 0x40 != 0,
            }),
        })
    }

    /// The parameters in the value of a HEARTBEAT or HEARTBEAT ACK.
    pub const fn heartbeat_parameters(value: &'a [u8]) -> Parameters<'a> {
        Parameters::new(value)
    }
}

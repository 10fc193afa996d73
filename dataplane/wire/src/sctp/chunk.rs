//! Parsed content of each chunk type (RFC 9260 §3.3).

use super::raw::{BadChunk, RawChunk, chunk_type};
use super::{Causes, Data, Init, Sack, Tsn, parameter::Parameters};

/// A parsed chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk<'a> {
    /// DATA: header fields and user data.
    Data(Data<'a>),
    /// INIT: fixed fields and parameters.
    Init(Init<'a>),
    /// INIT ACK: fixed fields and parameters.
    InitAck(Init<'a>),
    /// SACK: fixed fields, gap ack blocks and duplicate TSNs.
    Sack(Sack<'a>),
    /// HEARTBEAT: its value, which the HEARTBEAT ACK returns unchanged.
    Heartbeat(&'a [u8]),
    /// HEARTBEAT ACK: the value of the HEARTBEAT that it answers.
    HeartbeatAck(&'a [u8]),
    /// ABORT: ends the association at once.
    Abort {
        /// T: the packet's verification tag is copied from the packet that it answers (RFC 9260 §8.5.1).
        reflected: bool,
        /// Error causes, in the order of the chunk.
        causes: Causes<'a>,
    },
    /// SHUTDOWN: begins the graceful close.
    Shutdown {
        /// Cumulative TSN Ack: this TSN and all before it were received.
        cumulative: Tsn,
    },
    /// SHUTDOWN ACK, which has no fields.
    ShutdownAck,
    /// ERROR: its error causes.
    Error(Causes<'a>),
    /// COOKIE ECHO: the state cookie of the INIT ACK.
    CookieEcho(&'a [u8]),
    /// COOKIE ACK, which has no fields.
    CookieAck,
    /// SHUTDOWN COMPLETE: ends the graceful close.
    ShutdownComplete {
        /// T: the packet's verification tag is copied from the packet that it answers (RFC 9260 §8.5.1).
        reflected: bool,
    },
    /// PAD: its content is ignored (RFC 4820).
    Pad,
    /// A chunk of another type.
    Unknown(UnknownChunk<'a>),
}

/// A chunk of an unknown type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownChunk<'a> {
    /// The whole chunk with its header, without its pad.
    pub bytes: &'a [u8],
    /// Bit 2^7 of the type. True: the following chunks are processed. False: the rest of the packet is dropped.
    pub skip: bool,
    /// Bit 2^6 of the type: an ERROR must report the chunk (RFC 9260 §3.2, table 2).
    pub report: bool,
}

impl<'a> Chunk<'a> {
    /// Parses `raw` by its type.
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

    /// Returns the parameters in the value of a HEARTBEAT or HEARTBEAT ACK.
    pub const fn heartbeat_parameters(value: &'a [u8]) -> Parameters<'a> {
        Parameters::new(value)
    }
}

//! SCTP formats (RFC 9260 §3): the common header, chunks, their parameters and error causes. Also a builder that
//! bundles chunks into a packet buffer, and the user messages of DDP ([`ddp`], RFC 5043).
//!
//! ```text
//!  common header (12 bytes)                       chunk (4 bytes + value + pad 0..3)
//!   0  |   source port   | destination port |      0  |  type  | flags | length (16) |
//!   4  |          verification tag          |      4  |           value              |
//!   8  |              CRC32c                |      length counts type, flags, length and value
//! ```
//!
//! [`Packet`] iterates over the chunks of a received packet, [`Chunk`] is the parsed content of one chunk, and
//! [`PacketBuilder`] writes packets. The association decides whether a chunk is legal in its state. Parsing accepts any
//! bytes and yields chunks or an error; no read extends beyond the length that a length field states.

mod builder;
mod cause;
mod chunk;
mod data;
pub mod ddp;
mod init;
mod parameter;
mod raw;
mod sack;
#[cfg(test)]
mod tests;

pub use builder::{CommonHeader, PacketBuilder, PacketFull};
pub use cause::{Cause, Causes};
pub use chunk::{Chunk, UnknownChunk};
pub use data::{DATA_HEADER_LEN, Data, DataHeader};
pub use init::{INIT_FIXED_LEN, Init, InitHeader};
pub use parameter::{BadParameter, Parameter, Parameters, parameter_type};
pub use raw::{BadChunk, Chunks, RawChunk, chunk_type};
pub use sack::{GapBlock, SACK_FIXED_LEN, Sack, SackHeader};

use core::fmt;

use crate::{Truncated, be, crc32c};

/// Bytes of the common header.
pub const COMMON_HEADER_LEN: usize = field::CHECKSUM + 4;
/// Bytes of a chunk before its value.
pub const CHUNK_HEADER_LEN: usize = 4;

mod field {
    pub(super) const SOURCE_PORT: usize = 0;
    pub(super) const DESTINATION_PORT: usize = 2;
    pub(super) const TAG: usize = 4;
    pub(super) const CHECKSUM: usize = 8;

    const _: () = assert!(super::COMMON_HEADER_LEN == 12);
}

/// Returns the length of a chunk, parameter or cause of `len` bytes with its pad: the next multiple of 4 (RFC 9260
/// §3.2).
pub const fn padded(len: usize) -> usize {
    (len + 3) & !3
}

/// Transmission Sequence Number. Comparisons are modulo 2^32 (RFC 9260 §1.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tsn(pub u32);

impl Tsn {
    /// Returns `self + n`, modulo 2^32.
    #[must_use]
    pub const fn add(self, n: u32) -> Tsn {
        Tsn(self.0.wrapping_add(n))
    }

    /// Returns `self - n`, modulo 2^32.
    #[must_use]
    pub const fn sub(self, n: u32) -> Tsn {
        Tsn(self.0.wrapping_sub(n))
    }

    /// Returns the distance from `earlier` to `self`, modulo 2^32.
    pub const fn distance_from(self, earlier: Tsn) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns true if `self` precedes `other` by less than 2^31.
    pub const fn before(self, other: Tsn) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns true if `self` follows `other` by less than 2^31.
    pub const fn after(self, other: Tsn) -> bool {
        other.before(self)
    }
}

impl fmt::Debug for Tsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A verification tag or Initiate Tag (RFC 9260 §8.5). Zero is [`Tag::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(pub u32);

impl Tag {
    /// Zero: the verification tag of a packet that contains an INIT (RFC 9260 §8.5.1 A).
    pub const NONE: Tag = Tag(0);
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The ports in the common header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ports {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

impl Ports {
    /// Returns the ports of a packet in the other direction.
    #[must_use]
    pub const fn reversed(self) -> Ports {
        Ports { source: self.destination, destination: self.source }
    }
}

/// View of an SCTP packet: the common header and the chunks (RFC 9260 §3.1).
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Returns a view of `bytes`; fails if they are fewer than [`COMMON_HEADER_LEN`].
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, Truncated> {
        if bytes.len() < COMMON_HEADER_LEN {
            return Err(Truncated { needed: COMMON_HEADER_LEN, seen: bytes.len() });
        }
        Ok(Packet(bytes))
    }

    /// Returns the source and destination ports.
    pub fn ports(&self) -> Ports {
        Ports {
            source: be::u16(self.0, field::SOURCE_PORT),
            destination: be::u16(self.0, field::DESTINATION_PORT),
        }
    }

    /// Returns the verification tag.
    pub fn tag(&self) -> Tag {
        Tag(be::u32(self.0, field::TAG))
    }

    /// Returns true if the checksum field has the CRC32c of the packet (RFC 9260 §6.8).
    pub fn checksum_ok(&self) -> bool {
        be::array::<4>(self.0, field::CHECKSUM) == checksum(self.0)
    }

    /// Returns an iterator over the chunks, in the order of the packet.
    pub fn chunks(&self) -> Chunks<'a> {
        Chunks::new(&self.0[COMMON_HEADER_LEN..])
    }

    /// Returns the DATA chunk of a packet that contains this chunk only; otherwise `None`.
    #[inline]
    pub fn only_data(&self) -> Option<Data<'a>> {
        let mut chunks = self.chunks();
        let raw = chunks.next()?.ok()?;
        if raw.kind != chunk_type::DATA || !chunks.is_empty() {
            return None;
        }
        Data::parse(raw)
    }

    /// Returns all bytes of the packet.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// Returns the four bytes of a packet's checksum field. The checksum is computed with a checksum field of zero (RFC
/// 9260 §6.8). `packet` has at least [`COMMON_HEADER_LEN`] bytes.
pub fn checksum(packet: &[u8]) -> [u8; 4] {
    let crc = crc32c::update(0, &packet[..field::CHECKSUM]);
    let crc = crc32c::update(crc, &[0; 4]);
    crc32c::to_field(crc32c::update(crc, &packet[COMMON_HEADER_LEN..]))
}

/// Computes the checksum of a packet and writes it to the checksum field, whose old value is ignored (RFC 9260 §6.8).
/// `packet` has at least [`COMMON_HEADER_LEN`] bytes.
pub fn fill_checksum(packet: &mut [u8]) {
    let sum = checksum(packet);
    be::put(packet, field::CHECKSUM, &sum);
}

/// Returns a common header with a checksum field of zero.
fn common_header(ports: Ports, tag: Tag) -> [u8; COMMON_HEADER_LEN] {
    let mut header = [0; COMMON_HEADER_LEN];
    be::put(&mut header, field::SOURCE_PORT, &ports.source.to_be_bytes());
    be::put(&mut header, field::DESTINATION_PORT, &ports.destination.to_be_bytes());
    be::put(&mut header, field::TAG, &tag.0.to_be_bytes());
    header
}

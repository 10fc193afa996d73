//! INIT and INIT ACK chunks (RFC 9260 §3.3.2, §3.3.3), which have the same fields before their parameters.
//!
//! ```text
//!  value
//!   0  |       Initiate Tag       |     8  | outbound streams | max inbound streams |
//!   4  |          a_rwnd          |    12  |             initial TSN                |
//!  16  parameters
//! ```

use super::{Parameters, Tag, Tsn};
use crate::be;

/// Bytes of the fixed fields, without the chunk header.
pub const INIT_FIXED_LEN: usize = field::INITIAL_TSN + 4;

mod field {
    pub(super) const TAG: usize = 0;
    pub(super) const A_RWND: usize = 4;
    pub(super) const OUTBOUND: usize = 8;
    pub(super) const INBOUND: usize = 10;
    pub(super) const INITIAL_TSN: usize = 12;

    const _: () = assert!(super::INIT_FIXED_LEN == 16);
}

/// The fixed fields of an INIT or INIT ACK. The association checks whether received values are legal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitHeader {
    /// Initiate Tag; zero is illegal.
    pub tag: Tag,
    /// Advertised receiver window credit, in bytes; below 1500 is illegal.
    pub a_rwnd: u32,
    /// Number of outbound streams; zero is illegal.
    pub outbound_streams: u16,
    /// Maximum number of inbound streams; zero is illegal.
    pub inbound_streams: u16,
    /// TSN of the first DATA chunk that the sender of this chunk will send.
    pub initial_tsn: Tsn,
}

impl InitHeader {
    /// Returns the fixed fields in wire format.
    pub fn emit(&self) -> [u8; INIT_FIXED_LEN] {
        let mut out = [0; INIT_FIXED_LEN];
        be::put(&mut out, field::TAG, &self.tag.0.to_be_bytes());
        be::put(&mut out, field::A_RWND, &self.a_rwnd.to_be_bytes());
        be::put(&mut out, field::OUTBOUND, &self.outbound_streams.to_be_bytes());
        be::put(&mut out, field::INBOUND, &self.inbound_streams.to_be_bytes());
        be::put(&mut out, field::INITIAL_TSN, &self.initial_tsn.0.to_be_bytes());
        out
    }
}

/// A received INIT or INIT ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init<'a> {
    /// Fixed fields before the parameters.
    pub header: InitHeader,
    parameters: &'a [u8],
}

impl<'a> Init<'a> {
    /// Parses a chunk's value; `None` if it is shorter than [`INIT_FIXED_LEN`].
    pub(super) fn parse(value: &'a [u8]) -> Option<Init<'a>> {
        let parameters = value.get(INIT_FIXED_LEN..)?;
        let header = InitHeader {
            tag: Tag(be::u32(value, field::TAG)),
            a_rwnd: be::u32(value, field::A_RWND),
            outbound_streams: be::u16(value, field::OUTBOUND),
            inbound_streams: be::u16(value, field::INBOUND),
            initial_tsn: Tsn(be::u32(value, field::INITIAL_TSN)),
        };
        Some(Init { header, parameters })
    }

    /// Returns an iterator over the parameters, in the order of the chunk.
    pub fn parameters(&self) -> Parameters<'a> {
        Parameters::new(self.parameters)
    }
}

//! Errors of a peer that RDMAP detects, and the Terminate for every error of every layer (RFC 5040 §4.8, §7).

use core::fmt;

use arrayvec::ArrayVec;
use base::ErrorNumbers;
use wire::rdmap::ReadRequestRepr;
use wire::rdmap::terminate::{LAYER_DDP, LAYER_LLP, LAYER_RDMAP, TerminateRepr, describe};

use crate::error::{DdpError, ErrorCode as DdpCode, Mismatch};
use crate::llp::MAX_DDP_HEADER;

/// An error number of RFC 5040 figure 9.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorCode {
    /// 0: this end failed, not the peer.
    LocalCatastrophic,
    /// 1/00: no such STag.
    InvalidStag,
    /// 1/01: bytes outside the region.
    BaseOrBounds,
    /// 1/02: the region's access rights do not allow the access.
    AccessRights,
    /// 1/03: the STag belongs to another protection domain or is bound to another stream.
    StagNotAssociated,
    /// 1/04: TO plus length does not fit into 64 bits.
    ToWrap,
    /// 1/09: the STag is not bound to this stream alone.
    CannotInvalidate,
    /// 2/05: the RDMAP version is not the stream's.
    InvalidVersion,
    /// 2/06: the opcode is unknown, not allowed on this queue, or not expected now.
    UnexpectedOpcode,
    /// 2/07: the message breaks the rules of its kind: length, alignment, or a response that does not match the oldest
    /// request.
    StreamCatastrophic,
}

impl ErrorCode {
    /// All errors, in the order of RFC 5040 figure 9.
    pub const ALL: [ErrorCode; 10] = [
        ErrorCode::LocalCatastrophic,
        ErrorCode::InvalidStag,
        ErrorCode::BaseOrBounds,
        ErrorCode::AccessRights,
        ErrorCode::StagNotAssociated,
        ErrorCode::ToWrap,
        ErrorCode::CannotInvalidate,
        ErrorCode::InvalidVersion,
        ErrorCode::UnexpectedOpcode,
        ErrorCode::StreamCatastrophic,
    ];

    /// Returns the index in [`ALL`](Self::ALL) and in counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the error type, 4 bits: 0 local, 1 remote protection, 2 remote operation.
    pub const fn error_type(self) -> u8 {
        match self {
            ErrorCode::LocalCatastrophic => 0,
            ErrorCode::InvalidStag
            | ErrorCode::BaseOrBounds
            | ErrorCode::AccessRights
            | ErrorCode::StagNotAssociated
            | ErrorCode::ToWrap
            | ErrorCode::CannotInvalidate => 1,
            ErrorCode::InvalidVersion
            | ErrorCode::UnexpectedOpcode
            | ErrorCode::StreamCatastrophic => 2,
        }
    }

    /// Returns the error code, 8 bits.
    pub const fn code(self) -> u8 {
        match self {
            ErrorCode::LocalCatastrophic | ErrorCode::InvalidStag => 0x00,
            ErrorCode::BaseOrBounds => 0x01,
            ErrorCode::AccessRights => 0x02,
            ErrorCode::StagNotAssociated => 0x03,
            ErrorCode::ToWrap => 0x04,
            ErrorCode::CannotInvalidate => 0x09,
            ErrorCode::InvalidVersion => 0x05,
            ErrorCode::UnexpectedOpcode => 0x06,
            ErrorCode::StreamCatastrophic => 0x07,
        }
    }

    /// Returns layer, error type and code.
    pub const fn numbers(self) -> ErrorNumbers {
        ErrorNumbers::new(LAYER_RDMAP, self.error_type(), self.code())
    }

    /// Returns a short description for people.
    pub fn description(self) -> &'static str {
        describe(LAYER_RDMAP, self.error_type(), self.code()).unwrap_or("unknown error")
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (t, c) = (self.error_type(), self.code());
        write!(f, "RDMAP error {t}/{c:02x}: {}", self.description())
    }
}

/// A protocol error of the peer, detected by RDMAP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RdmapError {
    /// Error number.
    pub code: ErrorCode,
    /// The value in error, and the expected range.
    pub mismatch: Mismatch,
    /// Header of the segment in error, or of the last segment of the message in error. Empty if no segment caused the
    /// error.
    pub header: ArrayVec<u8, MAX_DDP_HEADER>,
    /// Length of that segment in bytes, header included; 0 if no segment caused the error.
    pub segment_len: u32,
    /// The Read Request in error, or its unanswered part.
    pub read_request: Option<ReadRequestRepr>,
}

/// The error that ended a stream, by the layer that found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// An error of DDP.
    Ddp(DdpError),
    /// An error of RDMAP.
    Rdmap(RdmapError),
    /// An error of the LLP, with the LLP's numbers (MPA: RFC 5044 §8, RFC 6581 §8).
    Llp {
        /// Error type, 4 bits.
        error_type: u8,
        /// Error code, 0 to 255; its meaning depends on the error type.
        code: u8,
    },
    /// The peer's Terminate is shorter than its control field requires. It is not answered with a Terminate.
    InvalidTerminate {
        /// Length of the Terminate message without its DDP header, bytes.
        len: usize,
    },
}

impl Error {
    /// Returns the Terminate that reports the error to the peer: RFC 5040 figures 9 and 10, §7.1. `None` for
    /// [`InvalidTerminate`](Self::InvalidTerminate), which is not answered.
    pub fn terminate(&self) -> Option<TerminateRepr> {
        Some(match self {
            Error::Ddp(error) => from_ddp(error),
            Error::Rdmap(error) => from_rdmap(error),
            // RFC 5040 figure 10: an LLP error carries neither the DDP nor the RDMAP header.
            Error::Llp { error_type, code } => TerminateRepr::new(LAYER_LLP, *error_type, *code),
            Error::InvalidTerminate { .. } => return None,
        })
    }
}

fn from_ddp(error: &DdpError) -> TerminateRepr {
    let repr = TerminateRepr::new(LAYER_DDP, error.code.error_type(), error.code.code());
    // RFC 5040 figure 9: a Local Catastrophic Error has no header.
    if error.code == DdpCode::LocalCatastrophic {
        return repr;
    }
    with_segment(repr, &error.header, error.segment_len)
}

fn from_rdmap(error: &RdmapError) -> TerminateRepr {
    let repr = TerminateRepr::new(LAYER_RDMAP, error.code.error_type(), error.code.code());
    if error.code == ErrorCode::LocalCatastrophic {
        return repr;
    }
    let mut repr = with_segment(repr, &error.header, error.segment_len);
    // RFC 5040 figure 10: the Read Request is included only with a Remote Protection Error.
    repr.read_request = error.read_request.filter(|_| error.code.error_type() == 1);
    repr
}

/// Adds the segment's length (M) and its DDP header (D). An incomplete header is omitted. Without a segment, neither is
/// added.
fn with_segment(mut repr: TerminateRepr, header: &[u8], segment_len: u32) -> TerminateRepr {
    if segment_len == 0 {
        return repr;
    }
    repr.segment_len = Some(u16::try_from(segment_len).unwrap_or(u16::MAX));
    let whole = header.first().map(|first| wire::ddp::Control(*first).header_len());
    if whole == Some(header.len()) {
        repr.ddp_header.extend(header.iter().copied());
    }
    repr
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Ddp(error) => error.fmt(f),
            Error::Rdmap(error) => write!(f, "{} ({})", error.code, error.mismatch),
            Error::Llp { error_type, code } => {
                let name = describe(LAYER_LLP, *error_type, *code).unwrap_or("unknown error");
                write!(f, "LLP error {error_type}/{code:02x}: {name}")
            }
            Error::InvalidTerminate { len } => {
                write!(f, "the peer's Terminate has {len} bytes, too few for its control field")
            }
        }
    }
}

impl core::error::Error for Error {}

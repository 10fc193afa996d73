//! DDP errors of a peer, with the numbers of RFC 5041 §7.2, and reasons to refuse a post. An error of the peer ends the
//! stream; a refused post does not.

use core::fmt;

use arrayvec::ArrayVec;
use base::ErrorNumbers;

use crate::llp::{MAX_DDP_HEADER, OrderKey};

/// Layer of a DDP error in a Terminate or in the last message (RFC 5040 §4.8).
pub const LAYER_DDP: u8 = 1;

/// An error number of RFC 5041 §7.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorCode {
    /// 0/00: this end failed, not the peer.
    LocalCatastrophic,
    /// 1/00: no such STag, or its access rights do not allow placement.
    InvalidStag,
    /// 1/01: the payload would lie outside the region.
    BaseOrBounds,
    /// 1/02: the STag belongs to another protection domain or is bound to another stream.
    StagNotAssociated,
    /// 1/03: TO plus payload length does not fit into 64 bits.
    ToWrap,
    /// 1/04: the version of a tagged segment is not the stream's.
    TaggedVersion,
    /// 2/01: the stream has no such queue.
    InvalidQn,
    /// 2/02: the message is the next expected message, but no buffer is posted for it.
    NoBuffer,
    /// 2/03: the MSN is outside the range that may arrive now.
    MsnRange,
    /// 2/04: the payload starts outside the buffer, overlaps earlier payload, or leaves a hole in the message.
    InvalidMo,
    /// 2/05: the payload starts within the buffer and ends beyond it.
    MessageTooLong,
    /// 2/06: the version of an untagged segment is not the stream's.
    UntaggedVersion,
}

impl ErrorCode {
    /// All errors, in the order of RFC 5041 §7.2.
    pub const ALL: [ErrorCode; 12] = [
        ErrorCode::LocalCatastrophic,
        ErrorCode::InvalidStag,
        ErrorCode::BaseOrBounds,
        ErrorCode::StagNotAssociated,
        ErrorCode::ToWrap,
        ErrorCode::TaggedVersion,
        ErrorCode::InvalidQn,
        ErrorCode::NoBuffer,
        ErrorCode::MsnRange,
        ErrorCode::InvalidMo,
        ErrorCode::MessageTooLong,
        ErrorCode::UntaggedVersion,
    ];

    /// Returns the index in [`ALL`](Self::ALL) and in [`Counters::errors`](crate::Counters::errors).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the error type, 4 bits: 0 local, 1 tagged buffer, 2 untagged buffer.
    pub const fn error_type(self) -> u8 {
        match self {
            ErrorCode::LocalCatastrophic => 0,
            ErrorCode::InvalidStag
            | ErrorCode::BaseOrBounds
            | ErrorCode::StagNotAssociated
            | ErrorCode::ToWrap
            | ErrorCode::TaggedVersion => 1,
            ErrorCode::InvalidQn
            | ErrorCode::NoBuffer
            | ErrorCode::MsnRange
            | ErrorCode::InvalidMo
            | ErrorCode::MessageTooLong
            | ErrorCode::UntaggedVersion => 2,
        }
    }

    /// Returns the error code, 8 bits.
    pub const fn code(self) -> u8 {
        match self {
            ErrorCode::LocalCatastrophic | ErrorCode::InvalidStag => 0,
            ErrorCode::BaseOrBounds | ErrorCode::InvalidQn => 1,
            ErrorCode::StagNotAssociated | ErrorCode::NoBuffer => 2,
            ErrorCode::ToWrap | ErrorCode::MsnRange => 3,
            ErrorCode::TaggedVersion | ErrorCode::InvalidMo => 4,
            ErrorCode::MessageTooLong => 5,
            ErrorCode::UntaggedVersion => 6,
        }
    }

    /// Returns layer, error type and code.
    pub const fn numbers(self) -> ErrorNumbers {
        ErrorNumbers::new(LAYER_DDP, self.error_type(), self.code())
    }

    /// Returns the error with this type and code.
    pub fn from_numbers(error_type: u8, code: u8) -> Option<ErrorCode> {
        Self::ALL.into_iter().find(|e| e.error_type() == error_type && e.code() == code)
    }

    /// Returns a short description for people.
    pub const fn description(self) -> &'static str {
        match self {
            ErrorCode::LocalCatastrophic => "local catastrophic error",
            ErrorCode::InvalidStag => "invalid STag",
            ErrorCode::BaseOrBounds => "base or bounds violation",
            ErrorCode::StagNotAssociated => "STag not associated with the stream",
            ErrorCode::ToWrap => "TO wraps",
            ErrorCode::TaggedVersion | ErrorCode::UntaggedVersion => "invalid DDP version",
            ErrorCode::InvalidQn => "invalid QN",
            ErrorCode::NoBuffer => "invalid MSN: no buffer available",
            ErrorCode::MsnRange => "invalid MSN: out of range",
            ErrorCode::InvalidMo => "invalid MO",
            ErrorCode::MessageTooLong => "message too long for the available buffer",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (t, c) = (self.error_type(), self.code());
        write!(f, "DDP error {t}/{c:02}: {}", self.description())
    }
}

/// The value of a segment or message that failed a check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field {
    /// Length of the segment, compared with the length of its header.
    SegmentLength,
    /// DDP version (DV).
    Version,
    /// Steering tag (STag).
    Stag,
    /// Protection domain of the STag's entry, compared with the stream's.
    ProtectionDomain,
    /// The stream that the STag is bound to, compared with the receiving stream.
    Stream,
    /// Access rights that the segment needs, as bits, compared with the rights of the STag's entry.
    Access,
    /// TO of the first byte.
    TaggedOffset,
    /// TO of the byte after the last, modulo 2^64.
    TaggedEnd,
    /// Queue number (QN).
    Qn,
    /// Message sequence number (MSN).
    Msn,
    /// Number of buffers posted for the message.
    Buffers,
    /// MO of the first byte.
    MessageOffset,
    /// MO of the byte after the last.
    MessageEnd,
    /// RDMAP version (RV).
    RdmapVersion,
    /// RDMAP opcode.
    Opcode,
    /// Length of an RDMA message, compared with the length required for its kind.
    MessageLength,
    /// AOpCode of an atomic operation.
    AtomicCode,
    /// Remainder of an atomic's address modulo 8.
    Alignment,
    /// Identifier in an Atomic Response, compared with the request's identifier.
    RequestId,
    /// Bytes of memory left at this end to record one more received range of a message, compared with the bytes needed.
    RangeMemory,
}

impl Field {
    /// Returns a name for output: the name in the specification, if there is one.
    pub const fn name(self) -> &'static str {
        match self {
            Field::SegmentLength => "segment length",
            Field::Version => "DV",
            Field::Stag => "STag",
            Field::ProtectionDomain => "protection domain",
            Field::Stream => "DDP stream",
            Field::Access => "access rights",
            Field::TaggedOffset => "TO",
            Field::TaggedEnd => "TO after the last byte",
            Field::Qn => "QN",
            Field::Msn => "MSN",
            Field::Buffers => "buffers posted",
            Field::MessageOffset => "MO",
            Field::MessageEnd => "MO after the last byte",
            Field::RdmapVersion => "RV",
            Field::Opcode => "RDMAP opcode",
            Field::MessageLength => "message length",
            Field::AtomicCode => "atomic operation code",
            Field::Alignment => "address modulo 8",
            Field::RequestId => "request identifier",
            Field::RangeMemory => "memory for ranges of the message",
        }
    }
}

/// A received value, and the range of valid values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The compared value.
    pub field: Field,
    /// The received value.
    pub seen: u64,
    /// The lowest valid value.
    pub low: u64,
    /// The highest valid value; below `low` if no value is valid.
    pub high: u64,
}

impl Mismatch {
    pub(crate) fn new(field: Field, seen: u64, low: u64, high: u64) -> Self {
        Mismatch { field, seen, low, high }
    }

    pub(crate) fn exact(field: Field, seen: u64, expected: u64) -> Self {
        Self::new(field, seen, expected, expected)
    }

    /// Returns a mismatch for which no value is valid.
    pub(crate) fn unexpected(field: Field, seen: u64) -> Self {
        Self::new(field, seen, 1, 0)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.field.name();
        if self.field == Field::Stag {
            return write!(f, "{name} {:#010x}", self.seen);
        }
        match self.low.cmp(&self.high) {
            core::cmp::Ordering::Equal => {
                write!(f, "{name} is {}, expected {}", self.seen, self.low)
            }
            core::cmp::Ordering::Less => {
                write!(f, "{name} is {}, expected {} to {}", self.seen, self.low, self.high)
            }
            core::cmp::Ordering::Greater => write!(f, "{name} is {}", self.seen),
        }
    }
}

/// An error of the peer, with the values that a report to the ULP contains (RFC 5041 §7.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DdpError {
    /// Error of RFC 5041 §7.2.
    pub code: ErrorCode,
    /// The value in error, and the expected range.
    pub mismatch: Mismatch,
    /// Key of the segment in error. No data at or beyond it is placed or delivered.
    pub key: OrderKey,
    /// The segment's header as received, truncated if the segment was.
    pub header: ArrayVec<u8, MAX_DDP_HEADER>,
    /// Length of the whole segment including the header, bytes.
    pub segment_len: u32,
}

impl fmt::Display for DdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.code, self.mismatch)
    }
}

impl core::error::Error for DdpError {}

/// Reasons to refuse a post of a message or of buffers. The cause is at this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The stream already has as many posted messages, or posted receives, as its configuration allows.
    #[error("the stream's queue is full")]
    Full,
    /// The stream is closing or closed (RFC 5041 §6.2.1). For a receive: no more data can arrive.
    #[error("the stream is closed")]
    Closed,
    /// The message has more than 2^32 - 1 bytes (RFC 5041 §5.2).
    #[error("the message has {0} bytes, more than 4294967295")]
    TooLong(u64),
    /// A list has more than [`MAX_SPANS`](crate::MAX_SPANS) spans.
    #[error("the list has more than 6 spans")]
    TooManySpans,
    /// The requested bytes are not all in the region.
    #[error("bytes {offset} to {end} are not all in a region of {len}")]
    OutOfBounds {
        /// Offset of the first requested byte.
        offset: u64,
        /// Offset after the last requested byte.
        end: u64,
        /// Bytes in the region.
        len: u64,
    },
    /// The last byte's TO would not fit into 64 bits.
    #[error("TO {to} plus {len} bytes wraps")]
    ToWrap {
        /// TO of the first byte.
        to: u64,
        /// Length of the message, bytes.
        len: u64,
    },
    /// The stream has no such queue.
    #[error("the stream has no queue {0}")]
    NoSuchQueue(u32),
    /// The peer accepts no Read and no atomic: the negotiated ORD is 0.
    #[error("the peer accepts no RDMA Read: ORD is 0")]
    NoReads,
    /// The stream was set up without this operation of RFC 7306.
    #[error("the stream does not use RFC 7306's messages")]
    NoExtensions,
    /// A message of bare DDP on an RDMAP stream, or the reverse.
    #[error("the message is of another protocol than the stream's")]
    OtherUlp,
    /// A receive on a stream with pooled receive buffers, or pooled buffers on a stream with posted receives.
    #[error("the stream's receive buffers are of the other kind: pooled or posted")]
    OtherReceiveMode,
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 5041 §7.2: error types and codes match the table.
    #[test]
    fn error_numbers_match_rfc_5041_table() {
        let table: [(ErrorCode, u8, u8); 12] = [
            (ErrorCode::LocalCatastrophic, 0, 0x00),
            (ErrorCode::InvalidStag, 1, 0x00),
            (ErrorCode::BaseOrBounds, 1, 0x01),
            (ErrorCode::StagNotAssociated, 1, 0x02),
            (ErrorCode::ToWrap, 1, 0x03),
            (ErrorCode::TaggedVersion, 1, 0x04),
            (ErrorCode::InvalidQn, 2, 0x01),
            (ErrorCode::NoBuffer, 2, 0x02),
            (ErrorCode::MsnRange, 2, 0x03),
            (ErrorCode::InvalidMo, 2, 0x04),
            (ErrorCode::MessageTooLong, 2, 0x05),
            (ErrorCode::UntaggedVersion, 2, 0x06),
        ];
        for (i, (code, error_type, number)) in table.into_iter().enumerate() {
            assert_eq!((code.error_type(), code.code()), (error_type, number));
            assert_eq!(ErrorCode::from_numbers(error_type, number), Some(code));
            assert_eq!((ErrorCode::ALL[i], code.index()), (code, i));
        }
        assert_eq!(ErrorCode::from_numbers(2, 0), None);
    }

    #[test]
    fn error_report_reads_as_a_sentence() {
        let error = DdpError {
            code: ErrorCode::MsnRange,
            mismatch: Mismatch::new(Field::Msn, 99, 5, 8),
            key: OrderKey(0),
            header: ArrayVec::new(),
            segment_len: 18,
        };
        assert_eq!(
            error.to_string(),
            "DDP error 2/03: invalid MSN: out of range (MSN is 99, expected 5 to 8)"
        );
    }
}

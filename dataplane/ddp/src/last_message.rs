//! The one message that bare DDP sends after a peer's error (RFC 5041 §7.1): an untagged message to
//! queue [`ERROR_QUEUE`](crate::ERROR_QUEUE), MSN 1, RsvdULP zero, with these bytes
//! (docs/protocol.md):
//!
//! ```text
//!  0  version, 1
//!  1  layer (high 4 bits), error type (low 4 bits)
//!  2  error code
//!  3  H: bytes of DDP header that follow, 0 to 18
//!  4  length of the DDP segment in error, bytes, 32 bits, big-endian; 0 if not known
//!  8  that segment's DDP header as received, H bytes
//! ```
//!
//! Bytes after the header are ignored. Layer, type and code are those of an RDMAP Terminate (RFC 5040 §4.8).

use arrayvec::ArrayVec;

use crate::error::{DdpError, ErrorCode, LAYER_DDP};
use crate::llp::MAX_DDP_HEADER;

mod field {
    pub(super) const VERSION: usize = 0;
    pub(super) const LAYER_TYPE: usize = 1;
    pub(super) const LAYER_SHIFT: u32 = 4;
    pub(super) const TYPE: u8 = 0x0f;
    pub(super) const CODE: usize = 2;
    pub(super) const HEADER_LEN: usize = 3;
    pub(super) const SEGMENT_LEN: core::ops::Range<usize> = 4..8;
    pub(super) const HEADER: usize = 8;
}

/// Version of the layout.
pub const VERSION: u8 = 1;
/// Maximum length of a last message, bytes.
pub const MAX_LEN: usize = field::HEADER + MAX_DDP_HEADER;

/// Content of the last message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastMessage {
    /// Layer, 0 to 15: 0 RDMAP, 1 DDP, 2 LLP (RFC 5040 §4.8).
    pub layer: u8,
    /// Error type, 0 to 15.
    pub error_type: u8,
    /// Error code, 0 to 255; its meaning depends on layer and error type.
    pub code: u8,
    /// Length of the DDP segment in error, bytes; 0 if not known.
    pub segment_len: u32,
    /// DDP header of the segment in error, empty if not known.
    pub header: ArrayVec<u8, MAX_DDP_HEADER>,
}

/// Reasons to reject a last message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LastMessageError {
    /// The message is shorter than its fixed part, or than its header length field requires.
    #[error("last message: {0} bytes are too few")]
    Truncated(usize),
    /// The version of the layout is not [`VERSION`].
    #[error("last message: version {0} is unknown")]
    Version(u8),
    /// The header length field is above the length of the longest DDP header.
    #[error("last message: a DDP header of {0} bytes is too long")]
    HeaderLength(u8),
}

impl LastMessage {
    /// Returns the last message for an error of the lower layer, without a header.
    pub fn llp(error_type: u8, code: u8) -> Self {
        LastMessage { layer: 2, error_type, code, segment_len: 0, header: ArrayVec::new() }
    }

    /// Returns the last message for a local catastrophic error, not caused by a segment.
    pub fn local() -> Self {
        let code = ErrorCode::LocalCatastrophic;
        let (layer, error_type, code) = (LAYER_DDP, code.error_type(), code.code());
        LastMessage { layer, error_type, code, segment_len: 0, header: ArrayVec::new() }
    }

    /// Returns the DDP error that the message reports; `None` for another layer or an unknown number.
    pub fn ddp_error(&self) -> Option<ErrorCode> {
        (self.layer == LAYER_DDP)
            .then(|| ErrorCode::from_numbers(self.error_type, self.code))
            .flatten()
    }

    /// Returns the bytes of the message.
    pub fn emit(&self) -> ArrayVec<u8, MAX_LEN> {
        let mut bytes = ArrayVec::from([0; MAX_LEN]);
        bytes[field::VERSION] = VERSION;
        bytes[field::LAYER_TYPE] = self.layer << field::LAYER_SHIFT | self.error_type & field::TYPE;
        bytes[field::CODE] = self.code;
        bytes[field::HEADER_LEN] = self.header.len() as u8;
        bytes[field::SEGMENT_LEN].copy_from_slice(&self.segment_len.to_be_bytes());
        let end = field::HEADER + self.header.len();
        bytes[field::HEADER..end].copy_from_slice(&self.header);
        bytes.truncate(end);
        bytes
    }

    /// Parses the bytes of a last message. Bytes after the header are ignored.
    pub fn parse(bytes: &[u8]) -> Result<LastMessage, LastMessageError> {
        let truncated = LastMessageError::Truncated(bytes.len());
        let fixed = bytes.first_chunk::<{ field::HEADER }>().ok_or(truncated)?;
        if fixed[field::VERSION] != VERSION {
            return Err(LastMessageError::Version(fixed[field::VERSION]));
        }
        let header_len = fixed[field::HEADER_LEN];
        if usize::from(header_len) > MAX_DDP_HEADER {
            return Err(LastMessageError::HeaderLength(header_len));
        }
        let end = field::HEADER + usize::from(header_len);
        let header = bytes.get(field::HEADER..end).ok_or(truncated)?;
        let mut segment_len = [0; 4];
        segment_len.copy_from_slice(&fixed[field::SEGMENT_LEN]);
        Ok(LastMessage {
            layer: fixed[field::LAYER_TYPE] >> field::LAYER_SHIFT,
            error_type: fixed[field::LAYER_TYPE] & field::TYPE,
            code: fixed[field::CODE],
            segment_len: u32::from_be_bytes(segment_len),
            header: header.iter().copied().collect(),
        })
    }
}

impl From<&DdpError> for LastMessage {
    fn from(error: &DdpError) -> Self {
        LastMessage {
            layer: LAYER_DDP,
            error_type: error.code.error_type(),
            code: error.code.code(),
            segment_len: error.segment_len,
            header: error.header.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn last_message_round_trips(
            layer in 0u8..16, error_type in 0u8..16, code: u8, segment_len: u32,
            header in proptest::collection::vec(any::<u8>(), 0..=18),
            trailing in proptest::collection::vec(any::<u8>(), 0..4),
        ) {
            let header = header.into_iter().collect();
            let message = LastMessage { layer, error_type, code, segment_len, header };
            let mut bytes = message.emit().to_vec();
            prop_assert!(bytes.len() <= MAX_LEN);
            bytes.extend(trailing);
            prop_assert_eq!(LastMessage::parse(&bytes), Ok(message));
        }

        #[test]
        fn arbitrary_bytes_parse_or_return_the_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            match LastMessage::parse(&bytes) {
                Ok(m) => prop_assert!(bytes.starts_with(&m.emit())),
                Err(LastMessageError::Version(v)) => prop_assert_ne!(v, VERSION),
                Err(LastMessageError::HeaderLength(n)) => prop_assert!(n > 18),
                Err(LastMessageError::Truncated(n)) => prop_assert_eq!(n, bytes.len()),
            }
        }
    }

    // The same bytes as the example in docs/protocol.md.
    #[test]
    fn last_message_bytes_match_document() {
        let message = LastMessage {
            layer: LAYER_DDP,
            error_type: 1,
            code: 1,
            segment_len: 0x05dc,
            header: (0x80..0x8e).collect(),
        };
        let mut expected = vec![0x01, 0x11, 0x01, 0x0e, 0x00, 0x00, 0x05, 0xdc];
        expected.extend(0x80..0x8e);
        assert_eq!(message.emit().as_slice(), expected);
        assert_eq!(message.ddp_error(), Some(ErrorCode::BaseOrBounds));
        assert_eq!(LastMessage::llp(0, 2).emit().as_slice(), [1, 0x20, 2, 0, 0, 0, 0, 0]);
        assert_eq!(LastMessage::llp(0, 2).ddp_error(), None);
    }
}

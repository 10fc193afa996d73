//! Violations of RFC 5043 by a peer in a session.

use thiserror::Error;
use wire::sctp::ddp::{BadControl, Function};

/// Violation of the legal sequences (RFC 5043 §6.1): the session is terminated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SessionError {
    /// A DDP-SSN that was received before, or is too far ahead of the next DDP-SSN (RFC 5043 §10).
    #[error("DDP-SSN {seen}, but {expected} is next in order")]
    Ssn {
        /// The next DDP-SSN in order.
        expected: u16,
        /// The DDP-SSN received.
        seen: u16,
    },
    /// A user message without a DDP-SSN.
    #[error("{seen} bytes, too few for a DDP-SSN")]
    Short {
        /// Bytes received.
        seen: usize,
    },
    /// A payload protocol identifier that RFC 5043 §5.2 does not define.
    #[error("payload protocol identifier {seen}, not 16 or 17")]
    Ppid {
        /// The identifier received.
        seen: u32,
    },
    /// A DATA chunk without the U flag (RFC 5043 §10).
    #[error("a DATA chunk without the U flag")]
    Ordered,
    /// Bytes that are not a session control message (RFC 5043 §5.2.3).
    #[error(transparent)]
    BadControl(#[from] BadControl),
    /// An enhanced message without IRD and ORD (RFC 6581 §7).
    #[error("an enhanced message with {seen} bytes, too few for IRD and ORD")]
    EnhancedData {
        /// Bytes of private data received.
        seen: usize,
    },
    /// A session control message at the wrong place in the sequence.
    #[error("session control message {seen:?} where it is not expected")]
    Control {
        /// Function of the message.
        seen: Function,
    },
    /// A DDP segment where an Initiate or its answer is expected.
    #[error("a DDP segment before the session's first control message")]
    EarlySegment,
    /// A message after the peer's Terminate.
    #[error("DDP-SSN {seen} after the Terminate, which has DDP-SSN {terminate}")]
    AfterTerminate {
        /// DDP-SSN of the Terminate.
        terminate: u16,
        /// DDP-SSN of the message after the Terminate.
        seen: u16,
    },
    /// A DDP segment longer than this end accepts (RFC 5043 §9).
    #[error("a DDP segment of {seen} bytes, at most {limit} are accepted")]
    Oversized {
        /// Largest segment accepted, bytes.
        limit: usize,
        /// Length of the segment, bytes.
        seen: usize,
    },
}

impl SessionError {
    /// Returns a stable name for counters and machine-readable output.
    pub const fn name(&self) -> &'static str {
        match self {
            SessionError::Ssn { .. } => "ssn",
            SessionError::Short { .. } => "short",
            SessionError::Ppid { .. } => "ppid",
            SessionError::Ordered => "ordered",
            SessionError::BadControl(_) => "bad_control",
            SessionError::EnhancedData { .. } => "enhanced_data",
            SessionError::Control { .. } => "control",
            SessionError::EarlySegment => "early_segment",
            SessionError::AfterTerminate { .. } => "after_terminate",
            SessionError::Oversized { .. } => "oversized",
        }
    }
}

//! SCTP below DDP (RFC 5043): in UDP (RFC 6951) over an ordinary socket, or in IP on the raw port.
//!
//! The association is that of the project's `sctp-lite`. All layers above it come from this crate and `oracle`. Module
//! `packet` parses the device's packets independently, and changes sent packets where a case requires values that
//! `sctp-lite` does not send.
//!
//! Kernel SCTP is not supported: PPIDs, stream identifiers and the adaptation indication need socket options and
//! control messages for which no maintained crate has a safe interface.

pub mod association;
pub mod carrier;
pub mod control;
mod core;
pub mod order;
pub mod packet;
mod upper;

pub(crate) use self::core::{Batch, protocol_time};
pub use self::core::{Core, Ended, config};
pub use self::upper::{MAX_BYTES, Upper};

/// PPID of DDP segments (RFC 5043 §5.2).
pub const SEGMENT: u32 = 16;
/// PPID of session control messages (RFC 5043 §5.2).
pub const CONTROL: u32 = 17;
/// Adaptation indication of DDP (RFC 5043 §5.1).
pub const DDP: u32 = 1;
/// Length of an SCTP packet at MTU 1500, without IPv6 and UDP headers, bytes.
pub const PACKET: usize = 1500 - 40 - 8;

/// A user message, with the fields of its DATA chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Stream identifier.
    pub stream: u16,
    /// Payload protocol identifier.
    pub ppid: u32,
    /// U flag: unordered delivery.
    pub unordered: bool,
    /// True if one DATA chunk contained the whole message.
    pub whole: bool,
    /// User data: DDP-SSN, then a segment or control message.
    pub data: Vec<u8>,
}

impl Chunk {
    /// Returns the DDP-SSN; `None` if the message is too short.
    pub fn ssn(&self) -> Option<u16> {
        self.data.first_chunk().map(|b| u16::from_be_bytes(*b))
    }
}

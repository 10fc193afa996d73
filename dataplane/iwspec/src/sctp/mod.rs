//! SCTP in UDP (RFC 6951) below DDP (RFC 5043), over an ordinary UDP socket.
//!
//! The association is that of the project's `sctp-lite`; all above it is from this crate and the `oracle`. `packet`
//! reads the device's packets on its own, and changes ours where a case wants what `sctp-lite` does not send.
//!
//! Left out: the kernel's SCTP. PPIDs, stream identifiers and the adaptation indication need socket options and control
//! messages for which no maintained crate has a safe interface.

pub mod association;
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
/// PPID of session control messages.
pub const CONTROL: u32 = 17;
/// Adaptation indication of DDP (RFC 5043 §5.1).
pub const DDP: u32 = 1;
/// Bytes of an SCTP packet: an MTU of 1500 with the headers of IPv6 and UDP.
pub const PACKET: usize = 1500 - 40 - 8;

/// A user message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Stream identifier
    pub stream: u16,
    /// Payload protocol identifier
    pub ppid: u32,
    /// U flag
    pub unordered: bool,
    /// True if it was in one DATA chunk.
    pub whole: bool,
    /// User data
    pub data: Vec<u8>,
}

impl Chunk {
    /// Returns the DDP-SSN. `None` if the message is too short.
    pub fn ssn(&self) -> Option<u16> {
        self.data.first_chunk().map(|b| u16::from_be_bytes(*b))
    }
}

//! Descriptors as checked values: requests that a program posts, and completions that a worker returns.
//!
//! Only the `decode` functions parse descriptors. They check opcode, flags, numbers of SGEs and bytes, number of units,
//! and that reserved words and bits are zero. Each value has exactly one encoding, and `decode` accepts no other. Not
//! checked here: lkeys, STags, rights and bounds, which need the tables of the worker, and alignment and tagged offset
//! (TO) at the peer.
//!
//! ```text
//!  word  0         1       2 ..                                        first word of a descriptor
//!       | control | wr_id | fields, SGEs, inline data |                 bits  0..7   units, 1 to 5
//!                                                                             8..15  opcode
//!  SGE: 2 words                                                              16..23  flags
//!       | address | 0..31 length, 32..63 lkey |                              24..31  SGEs, 0 to 6
//!                                                                            32..47  bytes of inline data, 0 to 256
//!                                                                            48..63  zero
//! ```
//!
//! The layout of the other words is shown at [`SendWork`] and [`ReceiveWork`], that of completions at [`Completion`].

mod completion;
mod control;
mod payload;
mod receive;
mod send;

pub use completion::{Carried, Completed, Completion, Status};
pub use payload::{Inline, MAX_INLINE, MAX_SGES, Payload, Sge, SgeList};
pub use receive::ReceiveWork;
pub use send::{AtomicResult, Opcode, Operation, Remote, SendWork, WindowAccess, WindowBind};

/// Reason why words are not a valid descriptor, or values cannot be encoded as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptorError {
    /// The number of units in the control word differs from the number that SGEs or inline data need, or from the
    /// number of units decoded.
    #[error("{0} units are not the length of the descriptor")]
    Units(u8),
    /// The opcode is not defined, or not allowed on this queue.
    #[error("opcode {0} is not defined on this queue")]
    Opcode(u8),
    /// A flag is not defined, or not allowed for this opcode.
    #[error("flags {0:#04x} are not those of the opcode")]
    Flags(u8),
    /// Too many SGEs, or a number that the opcode or inline data do not allow.
    #[error("{0} SGEs; at most {MAX_SGES}, and 1 for atomics")]
    Sges(u8),
    /// Too many bytes of inline data, inline data without their flag, or inline data that the opcode does not allow.
    #[error("{0} bytes of inline data; at most {MAX_INLINE}")]
    InlineLength(u16),
    /// The lengths of the SGEs add up to 2³² bytes or more.
    #[error("the lengths of the SGEs add up to more than 32 bits")]
    TotalLength,
    /// The SGE of an atomic does not have 8 bytes.
    #[error("{0} bytes for the result of an atomic, which has 8")]
    AtomicLength(u32),
    /// The status of a completion is not defined.
    #[error("status {0} is not defined")]
    Status(u8),
    /// A reserved word or bit is not zero.
    #[error("a reserved word or bit is not zero")]
    Reserved,
}

/// Returns an error unless the reserved bits `bits` are zero.
fn reserved(bits: u64) -> Result<(), DescriptorError> {
    if bits == 0 { Ok(()) } else { Err(DescriptorError::Reserved) }
}

/// Packs two 32-bit fields into a word: `low` into bits 0 to 31, `high` into bits 32 to 63.
fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Returns the two 32-bit fields of a word: bits 0 to 31, then bits 32 to 63.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[cfg(all(test, not(loom)))]
mod tests;

//! Entries of completion queues, without their generation, which the [queue](crate::completion) writes and checks.

use super::receive::RECEIVE;
use super::send::Opcode;
use super::{DescriptorError, halves, pack, reserved};

/// Opcode of a Receive that was completed by Immediate Data (RFC 7306 §6).
const RECEIVE_IMMEDIATE: u8 = RECEIVE + 1;

const SOLICITED: u8 = 1;
const INVALIDATED: u8 = 2;

const OPCODE: u32 = 8;
const FLAGS: u32 = 16;

/// A completed request.
///
/// ```text
///  word  0       1                        2                   3                4 .. 6   7
///       | wr_id | bits  0..7  status     | low: bytes        | immediate data | zero   | generation, not
///       |       |       8..15 opcode     | high: invalidated |                |        | part of the value
///       |       |      16..23 flags      |       STag        |                |        |
///       |       |      24..31 zero       |
///       |       |      32..63 QP number  |
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The `wr_id` of the request, which the program chose.
    pub wr_id: u64,
    /// Outcome of the request.
    pub status: Status,
    /// Kind of the completed request.
    pub completed: Completed,
    /// Bytes received, read, or returned by an atomic. For received Immediate Data, bytes of the RDMA Write before it;
    /// 0 if a Send or Immediate Data is between them. Undefined if `status` is an error.
    pub byte_len: u32,
    /// Number of the queue pair (QP).
    pub qp_number: u32,
}

/// Kind of a completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed {
    /// A request of a send queue, with its opcode.
    Sent(Opcode),
    /// A Receive of a receive queue or shared receive queue.
    Received {
        /// True if the message had Solicited Event (RFC 5040 §5.3).
        solicited: bool,
        /// Data that the message carried in addition to its payload.
        carried: Carried,
    },
}

/// Data that a message carried in addition to its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carried {
    /// No additional data.
    Nothing,
    /// The STag of this side that the message invalidated.
    Invalidated(u32),
    /// The 8 bytes of Immediate Data (RFC 7306 §6).
    Immediate([u8; 8]),
}

/// Outcome of a request. The numbers are those of `enum ibv_wc_status`. Its values for the InfiniBand transport
/// (retries, RNR, EEC, RDD, aborts) and for tag matching are not defined here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The request is complete.
    Success = 0,
    /// The message is longer than the posted Receive, or a request is too long.
    LocalLength = 1,
    /// The request cannot be carried out by this QP.
    LocalQpOperation = 2,
    /// An SGE is not within a region of the QP's protection domain, or lacks a right.
    LocalProtection = 4,
    /// The QP ended before the request was complete.
    Flushed = 5,
    /// A memory window cannot be bound.
    WindowBind = 6,
    /// The peer sent an unexpected response.
    BadResponse = 7,
    /// A peer's operation violated the protection of a posted Receive's memory.
    LocalAccess = 8,
    /// The peer refused the message as invalid.
    RemoteInvalidRequest = 9,
    /// The peer refused the access to its memory.
    RemoteAccess = 10,
    /// The peer could not complete the operation.
    RemoteOperation = 11,
    /// The QP cannot continue.
    Fatal = 19,
    /// Any other error.
    General = 21,
}

impl Status {
    /// All statuses, in ascending order of their numbers.
    pub const ALL: [Status; 13] = [
        Status::Success,
        Status::LocalLength,
        Status::LocalQpOperation,
        Status::LocalProtection,
        Status::Flushed,
        Status::WindowBind,
        Status::BadResponse,
        Status::LocalAccess,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::Fatal,
        Status::General,
    ];

    #[inline]
    fn from_bits(bits: u8) -> Result<Status, DescriptorError> {
        // The usual status needs no search.
        if bits == Status::Success as u8 {
            return Ok(Status::Success);
        }
        let found = Status::ALL.into_iter().find(|status| *status as u8 == bits);
        found.ok_or(DescriptorError::Status(bits))
    }
}

impl Completion {
    /// Number of words of the encoding, without the generation.
    pub const WORDS: usize = 7;

    /// Returns true if the completion satisfies a request for the next solicited completion: an error, or a Receive of
    /// a message with Solicited Event.
    pub fn is_solicited(&self) -> bool {
        let solicited = matches!(self.completed, Completed::Received { solicited: true, .. });
        solicited || self.status != Status::Success
    }

    /// Encodes the completion as words 0 to 6 of an entry.
    pub fn encode(&self) -> [u64; Completion::WORDS] {
        let (opcode, flags, invalidated, immediate) = match self.completed {
            Completed::Sent(opcode) => (opcode as u8, 0, 0, 0),
            Completed::Received { solicited, carried } => {
                let flags = if solicited { SOLICITED } else { 0 };
                match carried {
                    Carried::Nothing => (RECEIVE, flags, 0, 0),
                    Carried::Invalidated(stag) => (RECEIVE, flags | INVALIDATED, stag, 0),
                    Carried::Immediate(data) => {
                        (RECEIVE_IMMEDIATE, flags, 0, u64::from_le_bytes(data))
                    }
                }
            }
        };
        let low =
            u32::from(self.status as u8) | u32::from(opcode) << OPCODE | u32::from(flags) << FLAGS;
        let second = pack(low, self.qp_number);
        [self.wr_id, second, pack(self.byte_len, invalidated), immediate, 0, 0, 0]
    }

    /// Decodes words 0 to 6 of an entry. Returns an error if they are not the encoding of a completion.
    #[inline]
    pub fn decode(words: &[u64; Completion::WORDS]) -> Result<Completion, DescriptorError> {
        let [wr_id, second, third, immediate, rest @ ..] = *words;
        let (low, qp_number) = halves(second);
        let (byte_len, invalidated) = halves(third);
        let (opcode, flags) = ((low >> OPCODE) as u8, (low >> FLAGS) as u8);
        reserved(u64::from(low >> 24) | rest.iter().fold(0, |bits, word| bits | word))?;
        let status = Status::from_bits(low as u8)?;
        let (allowed, completed) = match opcode {
            RECEIVE if flags & INVALIDATED != 0 => {
                reserved(immediate)?;
                (SOLICITED | INVALIDATED, received(flags, Carried::Invalidated(invalidated)))
            }
            RECEIVE => {
                reserved(u64::from(invalidated) | immediate)?;
                (SOLICITED, received(flags, Carried::Nothing))
            }
            RECEIVE_IMMEDIATE => {
                reserved(invalidated.into())?;
                (SOLICITED, received(flags, Carried::Immediate(immediate.to_le_bytes())))
            }
            _ => {
                let opcode = Opcode::from_bits(opcode)?;
                reserved(u64::from(invalidated) | immediate)?;
                (0, Completed::Sent(opcode))
            }
        };
        if flags & !allowed != 0 {
            return Err(DescriptorError::Flags(flags));
        }
        Ok(Completion { wr_id, status, completed, byte_len, qp_number })
    }
}

fn received(flags: u8, carried: Carried) -> Completed {
    Completed::Received { solicited: flags & SOLICITED != 0, carried }
}

//! Headers of RDMAP (RFC 5040 §4) and its extensions (RFC 7306 §4). These are the control byte in DDP's RsvdULP field,
//! and the headers after the DDP header in a Read Request, an Atomic Request and an Atomic Response. The Terminate
//! header is in [`terminate`].
//!
//! ```text
//!  DDP RsvdULP[0]:  | RV | Rsv | Opcode |      RsvdULP[1..5]: Invalidate STag or zero
//!                     2    2      4
//! ```

pub mod terminate;
#[cfg(test)]
mod tests;

use crate::{DdpVersion, Qn, Stag, TaggedOffset, Truncated, be};

/// Queue of Sends and Immediate Data (RFC 5040 §4.1, RFC 7306 §4.1).
pub const SEND_QUEUE: Qn = Qn(0);
/// Queue of Read Requests and Atomic Requests (RFC 5040 §4.1, RFC 7306 §4.1).
pub const REQUEST_QUEUE: Qn = Qn(1);
/// Queue of the Terminate, at most one per stream (RFC 5040 §4.1).
pub const TERMINATE_QUEUE: Qn = Qn(2);
/// Queue of Atomic Responses (RFC 7306 §4.1).
pub const ATOMIC_RESPONSE_QUEUE: Qn = Qn(3);

/// Kind of a message (RFC 5040 figure 4, RFC 7306 figure 2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opcode {
    /// RDMA Write, 0x0: tagged payload for a buffer of the receiver.
    Write,
    /// RDMA Read Request, 0x1: names the source and sink buffers.
    ReadRequest,
    /// RDMA Read Response, 0x2: tagged payload for the requester's buffer.
    ReadResponse,
    /// Send, 0x3: payload for a receive buffer.
    Send,
    /// Send with Invalidate, 0x4: also invalidates an STag of the receiver.
    SendInvalidate,
    /// Send with Solicited Event, 0x5: also requests an event at the receiver.
    SendSolicited,
    /// Send with Solicited Event and Invalidate, 0x6.
    SendSolicitedInvalidate,
    /// Terminate, 0x7: reports an error and ends the stream.
    Terminate,
    /// Immediate Data, 0x8: 8 bytes for a receive buffer (RFC 7306 §6).
    Immediate,
    /// Immediate Data with Solicited Event, 0x9 (RFC 7306 §6).
    ImmediateSolicited,
    /// Atomic Request, 0xA (RFC 7306 §5.2.1).
    AtomicRequest,
    /// Atomic Response, 0xB (RFC 7306 §5.2.2).
    AtomicResponse,
}

impl Opcode {
    /// All opcodes, indexed by their number on the wire.
    pub const ALL: [Opcode; 12] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
        Opcode::Immediate,
        Opcode::ImmediateSolicited,
        Opcode::AtomicRequest,
        Opcode::AtomicResponse,
    ];

    /// Returns the number on the wire, 4 bits.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Returns the opcode with number `bits`; `None` for 12 to 15, which are undefined.
    pub fn from_bits(bits: u8) -> Option<Opcode> {
        Self::ALL.get(usize::from(bits)).copied()
    }

    /// Returns the queue of the message, or `None` for a tagged message.
    pub const fn queue(self) -> Option<Qn> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::ReadRequest | Opcode::AtomicRequest => Some(REQUEST_QUEUE),
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited => Some(SEND_QUEUE),
            Opcode::Terminate => Some(TERMINATE_QUEUE),
            Opcode::AtomicResponse => Some(ATOMIC_RESPONSE_QUEUE),
        }
    }

    /// Returns true for the messages that RFC 7306 adds to RFC 5040.
    pub const fn is_extension(self) -> bool {
        self as u8 >= Opcode::Immediate as u8
    }

    /// Returns true if the message requests an event at the receiver.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Opcode::SendSolicited | Opcode::SendSolicitedInvalidate | Opcode::ImmediateSolicited
        )
    }

    /// Returns true if the message has a valid Invalidate STag.
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }
}

mod field {
    pub(super) const VERSION: u8 = 0xc0;
    pub(super) const VERSION_SHIFT: u32 = 6;
    pub(super) const RESERVED: u8 = 0x30;
    pub(super) const OPCODE: u8 = 0x0f;
    const _: () = assert!(VERSION ^ RESERVED ^ OPCODE == 0xff);

    // Read Request.
    pub(super) const SINK_STAG: usize = 0;
    pub(super) const SINK_TO: usize = 4;
    pub(super) const SIZE: usize = 12;
    pub(super) const SOURCE_STAG: usize = 16;
    pub(super) const SOURCE_TO: usize = 20;

    // Atomic Request.
    pub(super) const ATOMIC_CODE: usize = 3;
    pub(super) const ATOMIC_CODE_MASK: u8 = 0x0f;
    pub(super) const REQUEST_ID: usize = 4;
    pub(super) const REMOTE_STAG: usize = 8;
    pub(super) const REMOTE_TO: usize = 12;
    pub(super) const DATA: usize = 20;
    pub(super) const MASK: usize = 28;
    pub(super) const COMPARE: usize = 36;
    pub(super) const COMPARE_MASK: usize = 44;

    // Atomic Response.
    pub(super) const ORIGINAL_ID: usize = 0;
    pub(super) const ORIGINAL: usize = 4;

    const _: () = assert!(super::READ_REQUEST_LEN == 28);
    const _: () = assert!(super::ATOMIC_REQUEST_LEN == 52);
    const _: () = assert!(super::ATOMIC_RESPONSE_LEN == 12);
}

/// Bytes of a Read Request header (RFC 5040 §4.4).
pub const READ_REQUEST_LEN: usize = field::SOURCE_TO + 8;
/// Bytes of an Atomic Request header (RFC 7306 §5.2.1).
pub const ATOMIC_REQUEST_LEN: usize = field::COMPARE_MASK + 8;
/// Bytes of an Atomic Response header (RFC 7306 §5.2.2).
pub const ATOMIC_RESPONSE_LEN: usize = field::ORIGINAL + 8;
/// Bytes of Immediate Data (RFC 7306 §6.2).
pub const IMMEDIATE_LEN: usize = 8;

/// The RDMAP control byte (RFC 5040 §4.1), as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control(pub u8);

impl Control {
    /// Returns the control byte with zero reserved bits. The version field RV has the same values as DDP's DV: 1 for
    /// the RFCs, 0 for the RDMA Consortium.
    pub const fn new(version: DdpVersion, opcode: Opcode) -> Control {
        Control(version.bits() << field::VERSION_SHIFT | opcode.bits())
    }

    /// Returns RV, the RDMAP version, 2 bits.
    pub const fn version_bits(self) -> u8 {
        (self.0 & field::VERSION) >> field::VERSION_SHIFT
    }

    /// Returns Rsv, 2 reserved bits that are ignored on receipt.
    pub const fn reserved(self) -> u8 {
        (self.0 & field::RESERVED) >> field::RESERVED.trailing_zeros()
    }

    /// Returns the Opcode field, 4 bits, which may be an undefined opcode.
    pub const fn opcode_bits(self) -> u8 {
        self.0 & field::OPCODE
    }

    /// Returns the opcode, or `None` if it is not defined.
    pub fn opcode(self) -> Option<Opcode> {
        Opcode::from_bits(self.opcode_bits())
    }

    /// Returns RsvdULP of an untagged message: this byte, then the Invalidate STag or zero (RFC 5040 §4.1).
    pub fn with_invalidate(self, stag: Option<Stag>) -> [u8; 5] {
        let [a, b, c, d] = stag.unwrap_or_default().0.to_be_bytes();
        [self.0, a, b, c, d]
    }
}

/// Returns the control byte and the Invalidate STag of an untagged message's RsvdULP.
pub fn split_rsvd_ulp(rsvd_ulp: [u8; 5]) -> (Control, Stag) {
    let [control, a, b, c, d] = rsvd_ulp;
    (Control(control), Stag(u32::from_be_bytes([a, b, c, d])))
}

/// View of a Read Request header (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug)]
pub struct ReadRequestHeader<T>(T);

impl<T: AsRef<[u8]>> ReadRequestHeader<T> {
    /// Returns a view of `bytes`; fails if they are fewer than [`READ_REQUEST_LEN`].
    pub fn new(bytes: T) -> Result<Self, Truncated> {
        check_len(bytes.as_ref().len(), READ_REQUEST_LEN).map(|()| ReadRequestHeader(bytes))
    }

    /// Returns SinkSTag, the requester's buffer.
    pub fn sink_stag(&self) -> Stag {
        Stag(be::u32(self.0.as_ref(), field::SINK_STAG))
    }

    /// Returns SinkTO, the offset of the first byte in the requester's buffer.
    pub fn sink_to(&self) -> TaggedOffset {
        TaggedOffset(be::u64(self.0.as_ref(), field::SINK_TO))
    }

    /// Returns RDMARDSZ, the number of bytes to read.
    pub fn size(&self) -> u32 {
        be::u32(self.0.as_ref(), field::SIZE)
    }

    /// Returns SrcSTag, the responder's buffer.
    pub fn source_stag(&self) -> Stag {
        Stag(be::u32(self.0.as_ref(), field::SOURCE_STAG))
    }

    /// Returns SrcTO, the offset of the first byte in the responder's buffer.
    pub fn source_to(&self) -> TaggedOffset {
        TaggedOffset(be::u64(self.0.as_ref(), field::SOURCE_TO))
    }
}

/// Values of a Read Request header (RFC 5040 §4.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequestRepr {
    /// SinkSTag: buffer of the requester.
    pub sink_stag: Stag,
    /// SinkTO: TO of the first byte in the requester's buffer.
    pub sink_to: TaggedOffset,
    /// RDMARDSZ: number of bytes to read.
    pub size: u32,
    /// SrcSTag: buffer of the responder.
    pub source_stag: Stag,
    /// SrcTO: TO of the first byte in the responder's buffer.
    pub source_to: TaggedOffset,
}

impl ReadRequestRepr {
    /// Parses the header at the start of `bytes`. Fails if bytes are missing.
    pub fn parse(bytes: &[u8]) -> Result<ReadRequestRepr, Truncated> {
        let view = ReadRequestHeader::new(bytes)?;
        Ok(ReadRequestRepr {
            sink_stag: view.sink_stag(),
            sink_to: view.sink_to(),
            size: view.size(),
            source_stag: view.source_stag(),
            source_to: view.source_to(),
        })
    }

    /// Returns the header's bytes.
    pub fn emit(&self) -> [u8; READ_REQUEST_LEN] {
        let mut bytes = [0; READ_REQUEST_LEN];
        be::put(&mut bytes, field::SINK_STAG, &self.sink_stag.0.to_be_bytes());
        be::put(&mut bytes, field::SINK_TO, &self.sink_to.0.to_be_bytes());
        be::put(&mut bytes, field::SIZE, &self.size.to_be_bytes());
        be::put(&mut bytes, field::SOURCE_STAG, &self.source_stag.0.to_be_bytes());
        be::put(&mut bytes, field::SOURCE_TO, &self.source_to.0.to_be_bytes());
        bytes
    }

    /// Returns the Read Request for the bytes that remain after the first `done` bytes, as a Terminate reports it (RFC
    /// 5040 §4.8, Terminated RDMA Header).
    #[must_use]
    pub fn advanced(&self, done: u32) -> ReadRequestRepr {
        ReadRequestRepr {
            sink_to: TaggedOffset(self.sink_to.0.wrapping_add(done.into())),
            size: self.size.saturating_sub(done),
            source_to: TaggedOffset(self.source_to.0.wrapping_add(done.into())),
            ..*self
        }
    }
}

/// Operation of an Atomic Request (RFC 7306 §5.1). Numbers are in the byte order of the responder's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Adds `add` to the value, field by field. Each set bit of `mask` is the most significant bit of a field; a carry
    /// does not leave its field. A mask of 0 makes all 64 bits one field (RFC 7306 §5.1.1).
    FetchAdd {
        /// Value to add.
        add: u64,
        /// Most significant bit of each field.
        mask: u64,
    },
    /// If the value equals `compare` in the bits of `compare_mask`, replaces the bits of `swap_mask` with those of
    /// `swap` (RFC 7306 §5.1.2).
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Bits to compare.
        compare_mask: u64,
        /// Bits that replace the bits of the value.
        swap: u64,
        /// Bits to replace.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Returns an unconditional swap: a compare-and-swap that compares no bit. AOpCode 0001b, formerly the swap, is
    /// reserved (RFC 7306 §10.1).
    pub const fn swap(value: u64) -> AtomicOp {
        AtomicOp::CompareSwap { compare: 0, compare_mask: 0, swap: value, swap_mask: u64::MAX }
    }

    /// Returns AOpCode, 4 bits (RFC 7306 figure 5).
    pub const fn code(&self) -> u8 {
        match self {
            AtomicOp::FetchAdd { .. } => 0,
            AtomicOp::CompareSwap { .. } => 2,
        }
    }

    /// Returns the value in memory after the operation, if the value before is `original`.
    pub const fn apply(&self, original: u64) -> u64 {
        match *self {
            AtomicOp::FetchAdd { add, mask } => {
                // The most significant bits of the fields are added without carry, all other bits with carry.
                let low = (original & !mask).wrapping_add(add & !mask);
                low ^ ((original ^ add) & mask)
            }
            AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                if (compare ^ original) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
        }
    }
}

/// Values of an Atomic Request header (RFC 7306 §5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequestRepr {
    /// Request Identifier: chosen by the requester and returned in the response.
    pub id: u32,
    /// Remote STag: the responder's buffer.
    pub stag: Stag,
    /// Remote Tagged Offset: offset of the 64-bit value in the responder's buffer.
    pub to: TaggedOffset,
    /// Operation on the 64-bit value at `to`.
    pub op: AtomicOp,
}

/// Reasons to reject bytes as an Atomic Request header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AtomicError {
    /// Fewer bytes than the header has.
    #[error("Atomic Request header: {0}")]
    Truncated(#[from] Truncated),
    /// AOpCode is not defined.
    #[error("Atomic Request header: operation code {0} is unknown")]
    Code(u8),
}

impl AtomicRequestRepr {
    /// Parses the header at the start of `bytes`. Reserved bits, and fields that the operation does not use,
    /// are ignored.
    pub fn parse(bytes: &[u8]) -> Result<AtomicRequestRepr, AtomicError> {
        check_len(bytes.len(), ATOMIC_REQUEST_LEN)?;
        let data = be::u64(bytes, field::DATA);
        let mask = be::u64(bytes, field::MASK);
        let op = match bytes[field::ATOMIC_CODE] & field::ATOMIC_CODE_MASK {
            0 => AtomicOp::FetchAdd { add: data, mask },
            2 => AtomicOp::CompareSwap {
                compare: be::u64(bytes, field::COMPARE),
                compare_mask: be::u64(bytes, field::COMPARE_MASK),
                swap: data,
                swap_mask: mask,
            },
            code => return Err(AtomicError::Code(code)),
        };
        Ok(AtomicRequestRepr {
            id: be::u32(bytes, field::REQUEST_ID),
            stag: Stag(be::u32(bytes, field::REMOTE_STAG)),
            to: TaggedOffset(be::u64(bytes, field::REMOTE_TO)),
            op,
        })
    }

    /// Returns the header's bytes. Reserved bits are zero; unused fields are as in RFC 7306 §5.2.1.
    pub fn emit(&self) -> [u8; ATOMIC_REQUEST_LEN] {
        let (data, mask, compare, compare_mask) = match self.op {
            AtomicOp::FetchAdd { add, mask } => (add, mask, 0, u64::MAX),
            AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                (swap, swap_mask, compare, compare_mask)
            }
        };
        let mut bytes = [0; ATOMIC_REQUEST_LEN];
        bytes[field::ATOMIC_CODE] = self.op.code();
        be::put(&mut bytes, field::REQUEST_ID, &self.id.to_be_bytes());
        be::put(&mut bytes, field::REMOTE_STAG, &self.stag.0.to_be_bytes());
        be::put(&mut bytes, field::REMOTE_TO, &self.to.0.to_be_bytes());
        be::put(&mut bytes, field::DATA, &data.to_be_bytes());
        be::put(&mut bytes, field::MASK, &mask.to_be_bytes());
        be::put(&mut bytes, field::COMPARE, &compare.to_be_bytes());
        be::put(&mut bytes, field::COMPARE_MASK, &compare_mask.to_be_bytes());
        bytes
    }
}

/// Values of an Atomic Response header (RFC 7306 §5.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponseRepr {
    /// Original Request Identifier: the identifier of the request that is answered.
    pub id: u32,
    /// Original Remote Data Value: the value in the responder's memory before the operation.
    pub original: u64,
}

impl AtomicResponseRepr {
    /// Parses the header at the start of `bytes`. Fails if bytes are missing.
    pub fn parse(bytes: &[u8]) -> Result<AtomicResponseRepr, Truncated> {
        check_len(bytes.len(), ATOMIC_RESPONSE_LEN)?;
        let id = be::u32(bytes, field::ORIGINAL_ID);
        Ok(AtomicResponseRepr { id, original: be::u64(bytes, field::ORIGINAL) })
    }

    /// Returns the header's bytes.
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE_LEN] {
        let mut bytes = [0; ATOMIC_RESPONSE_LEN];
        be::put(&mut bytes, field::ORIGINAL_ID, &self.id.to_be_bytes());
        be::put(&mut bytes, field::ORIGINAL, &self.original.to_be_bytes());
        bytes
    }
}

fn check_len(seen: usize, needed: usize) -> Result<(), Truncated> {
    if seen < needed { Err(Truncated { needed, seen }) } else { Ok(()) }
}

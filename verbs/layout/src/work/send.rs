//! Descriptors of the send queue (SQ).

use super::control::{Control, MAX_WORDS};
use super::payload::{Inline, MAX_INLINE, MAX_SGES, Payload, SGE_WORDS, Sge, SgeList};
use super::{DescriptorError, halves, pack, reserved};
use crate::unit::{MAX_UNITS, UNIT_WORDS, Unit, Units};

const SIGNALLED: u8 = 1;
const SOLICITED: u8 = 2;
const FENCE: u8 = 4;
const INLINE: u8 = 8;

const PAYLOAD_AT: usize = 6;

const _: () = {
    assert!((PAYLOAD_AT + SGE_WORDS).div_ceil(UNIT_WORDS) == 1);
    assert!((PAYLOAD_AT + MAX_SGES * SGE_WORDS).div_ceil(UNIT_WORDS) == 3);
    assert!((PAYLOAD_AT + MAX_INLINE / 8).div_ceil(UNIT_WORDS) == MAX_UNITS);
};

/// A posted request of a send queue. Six words precede the SGEs, 2 words each, or the inline data. The descriptor is
/// therefore 1 unit (8 words, 64 bytes) with at most one SGE or 16 bytes of inline data, 3 units with 6 SGEs, and 5
/// units with 256 bytes of inline data.
///
/// ```text
///  word  0         1       2            3 (low half)  3 (high half)   4                5             6 ..
///       | control | wr_id | remote TO  | remote STag | invalidated   | immediate data |             | SGEs, or
///       |         |       |            |             | STag          | compare, add   | swap        | inline data
///
///        words 2 to 5 of a window bind:
///                       | address    | region STag | window STag   | length         | access      |
/// ```
///
/// Fields that an operation does not use are zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendWork {
    /// Number that the program chose for the request; copied into its completion.
    pub wr_id: u64,
    /// True to request a completion also on success. A failed request always has a completion.
    pub signalled: bool,
    /// True to start the request only after all earlier Reads and atomics of this queue are complete.
    pub fence: bool,
    /// Operation, with its addresses and payload.
    pub operation: Operation,
}

/// Operation of a send request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "a value is on the stack for the time of one call")]
pub enum Operation {
    /// Send, or Send with Solicited Event (RFC 5040 §5.3).
    Send {
        /// Bytes of the message.
        payload: Payload,
        /// True to request an event at the receiver (Solicited Event).
        solicited: bool,
    },
    /// Send with Invalidate, with or without Solicited Event (RFC 5040).
    SendInvalidate {
        /// Bytes of the message.
        payload: Payload,
        /// True to request an event at the receiver (Solicited Event).
        solicited: bool,
        /// The peer's STag to invalidate.
        stag: u32,
    },
    /// RDMA Write (RFC 5040).
    Write {
        /// Destination at the peer.
        remote: Remote,
        /// Bytes of the message.
        payload: Payload,
    },
    /// RDMA Read (RFC 5040).
    Read {
        /// Source at the peer.
        remote: Remote,
        /// Local destination; the sum of the lengths is the length of the Read.
        sinks: SgeList,
    },
    /// Invalidates a local STag.
    LocalInvalidate {
        /// The local STag to invalidate.
        stag: u32,
    },
    /// Binds a memory window to a part of a region.
    BindWindow(WindowBind),
    /// Atomic compare and swap of 64 bits (RFC 7306 §5); all bits are compared and swapped.
    CompareSwap {
        /// The 8 bytes at the peer.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to store if the bytes at the peer are equal to `compare`.
        swap: u64,
        /// Local buffer for the original value.
        result: AtomicResult,
    },
    /// Atomic fetch and add of 64 bits (RFC 7306 §5).
    FetchAdd {
        /// The 8 bytes at the peer.
        remote: Remote,
        /// Value to add.
        add: u64,
        /// Local buffer for the original value.
        result: AtomicResult,
    },
    /// Immediate Data (RFC 7306 §6). RDMA Write with Immediate Data is posted as two requests: a Write, then this
    /// operation.
    Immediate {
        /// The 8 bytes of the message, not interpreted.
        data: [u8; 8],
        /// True to request an event at the receiver (Solicited Event).
        solicited: bool,
    },
}

/// Location in memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The peer's STag.
    pub stag: u32,
    /// Tagged offset (TO) of the first byte.
    pub to: u64,
}

/// Memory of the program for the 8 bytes that an atomic returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResult {
    /// Address of the first byte, as in [`Sge::address`].
    pub address: u64,
    /// STag of the local memory region.
    pub lkey: u32,
}

/// Binding of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBind {
    /// STag of the window after the binding.
    pub window: u32,
    /// STag of the memory region to which the window is bound.
    pub region: u32,
    /// Address of the first byte, as in [`Sge::address`].
    pub address: u64,
    /// Length in bytes; 0 unbinds the window.
    pub len: u64,
    /// Rights of peers, and addressing of the window.
    pub access: WindowAccess,
}

/// Rights of peers through a window, and its addressing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WindowAccess {
    /// Peers may write. Bit 0.
    pub remote_write: bool,
    /// Peers may read. Bit 1.
    pub remote_read: bool,
    /// Peers may use atomics. Bit 2.
    pub remote_atomic: bool,
    /// The TO of the first byte is 0 instead of its address. Bit 3.
    pub zero_based: bool,
}

impl WindowAccess {
    fn bits(self) -> u64 {
        u64::from(self.remote_write)
            | u64::from(self.remote_read) << 1
            | u64::from(self.remote_atomic) << 2
            | u64::from(self.zero_based) << 3
    }

    fn from_bits(bits: u64) -> Result<WindowAccess, DescriptorError> {
        reserved(bits >> 4)?;
        Ok(WindowAccess {
            remote_write: bits & 1 != 0,
            remote_read: bits & 2 != 0,
            remote_atomic: bits & 4 != 0,
            zero_based: bits & 8 != 0,
        })
    }
}

/// Opcode of a request of a send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// [`Operation::Send`].
    Send = 1,
    /// [`Operation::SendInvalidate`].
    SendInvalidate = 2,
    /// [`Operation::Write`].
    Write = 3,
    /// [`Operation::Read`].
    Read = 4,
    /// [`Operation::LocalInvalidate`].
    LocalInvalidate = 5,
    /// [`Operation::BindWindow`].
    BindWindow = 6,
    /// [`Operation::CompareSwap`].
    CompareSwap = 7,
    /// [`Operation::FetchAdd`].
    FetchAdd = 8,
    /// [`Operation::Immediate`].
    Immediate = 9,
}

impl Opcode {
    /// Returns true for Reads and atomics: a response of the peer completes them, and a fence waits for them.
    pub fn is_request(self) -> bool {
        matches!(self, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd)
    }

    /// All opcodes, in ascending order from 1.
    pub const ALL: [Opcode; 9] = [
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::Write,
        Opcode::Read,
        Opcode::LocalInvalidate,
        Opcode::BindWindow,
        Opcode::CompareSwap,
        Opcode::FetchAdd,
        Opcode::Immediate,
    ];

    pub(super) fn from_bits(bits: u8) -> Result<Opcode, DescriptorError> {
        let index = usize::from(bits).wrapping_sub(1);
        Opcode::ALL.get(index).copied().ok_or(DescriptorError::Opcode(bits))
    }

    /// Returns the flags that are allowed for the opcode.
    fn flags(self) -> u8 {
        let common = SIGNALLED | FENCE;
        match self {
            Opcode::Send | Opcode::SendInvalidate => common | SOLICITED | INLINE,
            Opcode::Write => common | INLINE,
            Opcode::Immediate => common | SOLICITED,
            Opcode::Read
            | Opcode::LocalInvalidate
            | Opcode::BindWindow
            | Opcode::CompareSwap
            | Opcode::FetchAdd => common,
        }
    }
}

impl Operation {
    /// Returns the opcode of a descriptor with this operation.
    pub fn opcode(&self) -> Opcode {
        match self {
            Operation::Send { .. } => Opcode::Send,
            Operation::SendInvalidate { .. } => Opcode::SendInvalidate,
            Operation::Write { .. } => Opcode::Write,
            Operation::Read { .. } => Opcode::Read,
            Operation::LocalInvalidate { .. } => Opcode::LocalInvalidate,
            Operation::BindWindow(_) => Opcode::BindWindow,
            Operation::CompareSwap { .. } => Opcode::CompareSwap,
            Operation::FetchAdd { .. } => Opcode::FetchAdd,
            Operation::Immediate { .. } => Opcode::Immediate,
        }
    }

    fn is_solicited(&self) -> bool {
        match self {
            Operation::Send { solicited, .. }
            | Operation::SendInvalidate { solicited, .. }
            | Operation::Immediate { solicited, .. } => *solicited,
            _ => false,
        }
    }
}

/// Words 2 to 5 of a descriptor. Word 3 is split into two 32-bit fields.
#[derive(Clone, Copy, Default)]
struct Fields {
    to: u64,
    stag: u32,
    second_stag: u32,
    operand: u64,
    second_operand: u64,
}

impl Fields {
    fn of_remote(remote: Remote) -> Fields {
        Fields { to: remote.to, stag: remote.stag, ..Fields::default() }
    }

    fn remote(self) -> Remote {
        Remote { stag: self.stag, to: self.to }
    }

    fn pack(self) -> [u64; 4] {
        [self.to, pack(self.stag, self.second_stag), self.operand, self.second_operand]
    }

    fn unpack(words: [u64; 4]) -> Fields {
        let [to, stags, operand, second_operand] = words;
        let (stag, second_stag) = halves(stags);
        Fields { to, stag, second_stag, operand, second_operand }
    }
}

/// Evaluates to an error unless all given fields are zero.
macro_rules! unused {
    ($fields:expr, $($field:ident)*) => {
        reserved(0 $(| u64::from($fields.$field))*)
    };
}

impl SendWork {
    /// Encodes the request as a descriptor of 1 to [`MAX_UNITS`] units, and calls `take` with these units.
    #[inline]
    pub fn encode_with<R>(&self, take: impl FnOnce(&[Unit]) -> R) -> R {
        // Most descriptors have one unit. Their words need not be cleared to the maximum length.
        match self.operation.payload_words() <= UNIT_WORDS - PAYLOAD_AT {
            true => take(self.encode_in(&mut [0; UNIT_WORDS])),
            false => take(self.encode_in(&mut [0; MAX_WORDS])),
        }
    }

    /// Encodes the request as a descriptor of 1 to [`MAX_UNITS`] units.
    pub fn encode(&self) -> Units {
        self.encode_with(|units| units.iter().copied().collect())
    }

    /// Encodes the request at the beginning of `words`, which are zero and have room for it. Returns its units.
    #[inline]
    fn encode_in<'a>(&self, words: &'a mut [u64]) -> &'a [Unit] {
        let mut control = Control {
            opcode: self.operation.opcode() as u8,
            flags: flag(SIGNALLED, self.signalled)
                | flag(FENCE, self.fence)
                | flag(SOLICITED, self.operation.is_solicited()),
            ..Control::default()
        };
        words[1] = self.wr_id;
        words[2..PAYLOAD_AT].copy_from_slice(&self.operation.fields().pack());
        let used = PAYLOAD_AT + self.operation.encode_payload(&mut control, words);
        control.finish(words, used)
    }

    /// Decodes the descriptor in `units`. Returns an error if `units` are not the encoding of a request.
    #[inline]
    pub fn decode(units: &[Unit]) -> Result<SendWork, DescriptorError> {
        let control = Control::unpack(units)?;
        let opcode = Opcode::from_bits(control.opcode)?;
        if control.flags & !opcode.flags() != 0 {
            return Err(DescriptorError::Flags(control.flags));
        }
        let words = units.as_flattened();
        let payload = decode_payload(control, words)?;
        let fields = Fields::unpack([words[2], words[3], words[4], words[5]]);
        let solicited = control.flags & SOLICITED != 0;
        Ok(SendWork {
            wr_id: words[1],
            signalled: control.flags & SIGNALLED != 0,
            fence: control.flags & FENCE != 0,
            operation: Operation::decode(opcode, solicited, fields, payload)?,
        })
    }
}

impl Operation {
    /// Returns the number of words of the SGEs or the inline data.
    #[inline]
    fn payload_words(&self) -> usize {
        match self {
            Operation::Send { payload, .. }
            | Operation::SendInvalidate { payload, .. }
            | Operation::Write { payload, .. } => match payload {
                Payload::Gather(list) => list.sges().len() * SGE_WORDS,
                Payload::Inline(inline) => inline.bytes().len().div_ceil(8),
            },
            Operation::Read { sinks, .. } => sinks.sges().len() * SGE_WORDS,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => SGE_WORDS,
            Operation::LocalInvalidate { .. }
            | Operation::BindWindow(_)
            | Operation::Immediate { .. } => 0,
        }
    }

    #[inline]
    fn fields(&self) -> Fields {
        match *self {
            Operation::Send { .. } => Fields::default(),
            Operation::SendInvalidate { stag, .. } => {
                Fields { second_stag: stag, ..Fields::default() }
            }
            Operation::Write { remote, .. } | Operation::Read { remote, .. } => {
                Fields::of_remote(remote)
            }
            Operation::LocalInvalidate { stag } => {
                Fields { second_stag: stag, ..Fields::default() }
            }
            Operation::BindWindow(bind) => Fields {
                to: bind.address,
                stag: bind.region,
                second_stag: bind.window,
                operand: bind.len,
                second_operand: bind.access.bits(),
            },
            Operation::CompareSwap { remote, compare, swap, .. } => {
                Fields { operand: compare, second_operand: swap, ..Fields::of_remote(remote) }
            }
            Operation::FetchAdd { remote, add, .. } => {
                Fields { operand: add, ..Fields::of_remote(remote) }
            }
            Operation::Immediate { data, .. } => {
                Fields { operand: u64::from_le_bytes(data), ..Fields::default() }
            }
        }
    }

    /// Encodes SGEs or inline data from word 6 on, and sets their number and flag in `control`. Returns the number of
    /// words written.
    #[inline]
    fn encode_payload(&self, control: &mut Control, words: &mut [u64]) -> usize {
        let words = &mut words[PAYLOAD_AT..];
        let mut gather = |list: &SgeList| {
            control.sges = list.sges().len() as u8;
            list.encode(words)
        };
        match self {
            Operation::Send { payload, .. }
            | Operation::SendInvalidate { payload, .. }
            | Operation::Write { payload, .. } => match payload {
                Payload::Gather(list) => gather(list),
                Payload::Inline(inline) => {
                    control.flags |= INLINE;
                    control.inline = inline.bytes().len() as u16;
                    inline.encode(words)
                }
            },
            Operation::Read { sinks, .. } => gather(sinks),
            Operation::CompareSwap { result, .. } | Operation::FetchAdd { result, .. } => {
                control.sges = 1;
                words[..SGE_WORDS].copy_from_slice(&[result.address, pack(8, result.lkey)]);
                SGE_WORDS
            }
            Operation::LocalInvalidate { .. }
            | Operation::BindWindow(_)
            | Operation::Immediate { .. } => 0,
        }
    }

    fn decode(
        opcode: Opcode,
        solicited: bool,
        fields: Fields,
        payload: Payload,
    ) -> Result<Operation, DescriptorError> {
        let operation = match opcode {
            Opcode::Send => {
                unused!(fields, to stag second_stag operand second_operand)?;
                Operation::Send { payload, solicited }
            }
            Opcode::SendInvalidate => {
                unused!(fields, to stag operand second_operand)?;
                Operation::SendInvalidate { payload, solicited, stag: fields.second_stag }
            }
            Opcode::Write => {
                unused!(fields, second_stag operand second_operand)?;
                Operation::Write { remote: fields.remote(), payload }
            }
            Opcode::Read => {
                unused!(fields, second_stag operand second_operand)?;
                Operation::Read { remote: fields.remote(), sinks: gathered(payload)? }
            }
            Opcode::LocalInvalidate => {
                no_payload(payload)?;
                unused!(fields, to stag operand second_operand)?;
                Operation::LocalInvalidate { stag: fields.second_stag }
            }
            Opcode::BindWindow => {
                no_payload(payload)?;
                Operation::BindWindow(WindowBind {
                    window: fields.second_stag,
                    region: fields.stag,
                    address: fields.to,
                    len: fields.operand,
                    access: WindowAccess::from_bits(fields.second_operand)?,
                })
            }
            Opcode::CompareSwap => {
                unused!(fields, second_stag)?;
                let (compare, swap) = (fields.operand, fields.second_operand);
                let result = atomic_result(payload)?;
                Operation::CompareSwap { remote: fields.remote(), compare, swap, result }
            }
            Opcode::FetchAdd => {
                unused!(fields, second_stag second_operand)?;
                let result = atomic_result(payload)?;
                Operation::FetchAdd { remote: fields.remote(), add: fields.operand, result }
            }
            Opcode::Immediate => {
                no_payload(payload)?;
                unused!(fields, to stag second_stag second_operand)?;
                Operation::Immediate { data: fields.operand.to_le_bytes(), solicited }
            }
        };
        Ok(operation)
    }
}

/// Decodes SGEs or inline data, and checks that the descriptor ends after them.
fn decode_payload(control: Control, words: &[u64]) -> Result<Payload, DescriptorError> {
    let is_inline = control.flags & INLINE != 0;
    if usize::from(control.inline) > MAX_INLINE || !is_inline && control.inline != 0 {
        return Err(DescriptorError::InlineLength(control.inline));
    }
    if is_inline && control.sges != 0 {
        return Err(DescriptorError::Sges(control.sges));
    }
    let inline = usize::from(control.inline);
    let used = PAYLOAD_AT + usize::from(control.sges) * SGE_WORDS + inline.div_ceil(8);
    control.check_end(words, used)?;
    let words = &words[PAYLOAD_AT..used];
    if is_inline {
        Inline::decode(words, inline).map(Payload::Inline)
    } else {
        SgeList::decode(words).map(Payload::Gather)
    }
}

/// Returns the SGEs of a payload for an opcode that allows no inline data.
fn gathered(payload: Payload) -> Result<SgeList, DescriptorError> {
    match payload {
        Payload::Gather(list) => Ok(list),
        Payload::Inline(inline) => Err(DescriptorError::InlineLength(inline.bytes().len() as u16)),
    }
}

fn no_payload(payload: Payload) -> Result<(), DescriptorError> {
    match gathered(payload)?.sges() {
        [] => Ok(()),
        sges => Err(DescriptorError::Sges(sges.len() as u8)),
    }
}

fn atomic_result(payload: Payload) -> Result<AtomicResult, DescriptorError> {
    match *gathered(payload)?.sges() {
        [Sge { address, len: 8, lkey }] => Ok(AtomicResult { address, lkey }),
        [Sge { len, .. }] => Err(DescriptorError::AtomicLength(len)),
        ref sges => Err(DescriptorError::Sges(sges.len() as u8)),
    }
}

fn flag(bit: u8, set: bool) -> u8 {
    if set { bit } else { 0 }
}

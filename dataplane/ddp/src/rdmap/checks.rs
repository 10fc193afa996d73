//! RDMAP's checks at the data sink, on a segment before placement and when it is next in order (RFC 5040 §7.2).
//!
//! A Read Response may write only the sink buffer of an outstanding Read. A response segment beyond a gap may belong to
//! any outstanding Read. When all earlier segments have arrived, it must belong to the oldest. A segment in order is
//! checked against the oldest before placement:
//! ```text
//!   reads, oldest first:  [==received==.......]  [..........]  [....]
//!                                      ^          ^ a segment beyond a gap may also be here
//!                                      the segment in order is here
//! ```

use arrayvec::ArrayVec;
use base::LazyDeque;
use wire::ddp::{HeaderRepr, TaggedRepr, UNTAGGED_HEADER_LEN, UntaggedRepr};
use wire::rdmap::{Control, Opcode, SEND_QUEUE, split_rsvd_ulp};
use wire::{DdpVersion, Msn, Stag, TaggedOffset};

use crate::checks::{self, FilledReceive, ReceiveUse, UlpChecks, UlpError};
use crate::error::{ErrorCode as DdpCode, Field, Mismatch};
use crate::llp::MAX_DDP_HEADER;
use crate::rdmap::{Config, Error, ErrorCode, RdmapError};
use crate::receive::{InsertError, Ranges, with_control_byte};
use crate::stag::Access;

/// A Read of this end whose response is not delivered yet.
#[derive(Debug)]
pub(crate) struct OutstandingRead {
    /// Number of the Read in [`Operations`](crate::rdmap::operations::Operations).
    pub(crate) operation: u64,
    pub(crate) stag: Stag,
    pub(crate) to: TaggedOffset,
    pub(crate) len: u32,
    /// Byte ranges of the segments processed in order, relative to `to`.
    pub(crate) received: Ranges,
}

/// The last segment of a delivered untagged message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveredSegment {
    header: UntaggedRepr,
    control: u8,
    /// Payload bytes of the segment.
    len: u32,
    /// The posted receive that the message has used up.
    pub(crate) receive: Option<FilledReceive>,
    /// True for the initiator's ready-to-receive message.
    pub(crate) is_ready: bool,
}

impl DeliveredSegment {
    /// Returns the DDP header as received, reserved bits included.
    pub(crate) fn header(&self) -> ArrayVec<u8, MAX_DDP_HEADER> {
        with_control_byte(self.header.pack().bytes(), self.control)
    }

    /// Returns the length of the segment in bytes, header included.
    pub(crate) fn segment_len(&self) -> u32 {
        self.len + UNTAGGED_HEADER_LEN as u32
    }
}

type Reject = checks::Reject<ErrorCode>;

/// RDMAP's part of the data sink: outstanding Reads, and the messages that have arrived in order.
#[derive(Debug)]
pub(crate) struct Checks {
    atomics: bool,
    immediate: bool,
    /// True while the initiator's zero-length Send is awaited (RFC 6581 §9.2).
    awaits_ready: bool,
    /// Opcode of the tagged message of which only a part has arrived in order; `None` between messages.
    tagged: Option<u8>,
    /// Reads without a complete response, oldest first.
    reads: LazyDeque<OutstandingRead>,
    /// Reads whose response is complete and not yet delivered to the stream, oldest first.
    completed_reads: LazyDeque<OutstandingRead>,
    /// Last segments of delivered untagged messages that the stream has not processed yet, oldest first.
    delivered: LazyDeque<DeliveredSegment>,
    /// An error found by RDMAP. Set once all segments before it have arrived.
    pub(crate) reached_error: Option<Box<Error>>,
}

impl Checks {
    pub(crate) fn shrink(&mut self) {
        self.reads.shrink();
        self.completed_reads.shrink();
        self.delivered.shrink();
    }

    pub(crate) fn new(config: &Config) -> Self {
        Checks {
            atomics: config.atomics,
            immediate: config.immediate,
            awaits_ready: config.rtr_send,
            tagged: None,
            reads: LazyDeque::new(),
            completed_reads: LazyDeque::new(),
            delivered: LazyDeque::new(),
            reached_error: None,
        }
    }

    pub(crate) fn push_read(&mut self, operation: u64, stag: Stag, to: TaggedOffset, len: u32) {
        self.reads.push_back(OutstandingRead {
            operation,
            stag,
            to,
            len,
            received: Ranges::default(),
        });
    }

    /// Returns the number of outstanding Reads.
    pub(crate) fn outstanding_reads(&self) -> usize {
        self.reads.len()
    }

    /// Removes all outstanding Reads and returns the numbers of their operations.
    pub(crate) fn drain_reads(&mut self) -> impl Iterator<Item = u64> {
        self.reads.drain(..).map(|read| read.operation)
    }

    /// Removes and returns the oldest Read whose response is complete.
    pub(crate) fn pop_completed_read(&mut self) -> Option<OutstandingRead> {
        self.completed_reads.pop_front()
    }

    /// Removes and returns the last segment of the oldest delivered untagged message.
    pub(crate) fn pop_delivered(&mut self) -> Option<DeliveredSegment> {
        self.delivered.pop_front()
    }

    /// Puts back the last segment of a message that cannot be reported. The message's receive is flushed later.
    pub(crate) fn put_back_delivered(&mut self, delivered: DeliveredSegment) {
        self.delivered.push_front(delivered);
    }

    /// Removes all delivered messages and returns the receives that they have used up.
    pub(crate) fn drain_delivered(&mut self) -> impl Iterator<Item = FilledReceive> {
        self.delivered.drain(..).filter_map(|delivered| delivered.receive)
    }

    /// Records that the initiator is ready: a zero-length Send is now an ordinary Send.
    pub(crate) fn on_peer_ready(&mut self) {
        self.awaits_ready = false;
    }

    /// Returns true if a message with this last segment is the initiator's ready-to-receive message.
    fn is_ready_message(&self, header: &UntaggedRepr, len: u32) -> bool {
        let opcode = split_rsvd_ulp(header.rsvd_ulp).0.opcode();
        self.awaits_ready
            && matches!(opcode, Some(Opcode::Send | Opcode::SendSolicited))
            && header.last
            && (header.mo.0, len) == (0, 0)
    }

    /// Returns true if the stream accepts this opcode. RFC 7306 §4.1: the extensions have RV 01b.
    fn supports(&self, opcode: Opcode, header: &HeaderRepr) -> bool {
        if opcode.is_extension() && header.version() != DdpVersion::V1 {
            return false;
        }
        match opcode {
            Opcode::AtomicRequest | Opcode::AtomicResponse => self.atomics,
            Opcode::Immediate | Opcode::ImmediateSolicited => self.immediate,
            _ => true,
        }
    }

    fn admit_response(&self, header: &TaggedRepr, len: u32) -> Result<(), Reject> {
        let Some(oldest) = self.reads.front() else {
            return Err(unexpected_opcode(Opcode::ReadResponse.bits()));
        };
        // RFC 5041 §5.2: STag and TO of a zero-length segment are not checked.
        if len == 0 {
            return Ok(());
        }
        // A match with any outstanding Read suffices for this check. `advance` requires a match with the oldest, and
        // runs before placement if the segment is in order.
        let fits = |read: &OutstandingRead| read.offset_of(header, len).is_some();
        if self.reads.iter().any(fits) { Ok(()) } else { Err(oldest.unmatched_error(header, len)) }
    }
}

impl UlpChecks for Checks {
    type Code = ErrorCode;

    /// Returns the right that a tagged segment needs on its buffer. A Read Response needs none: this end chose the sink
    /// buffer, and [`admit`](Self::admit) restricts the response to that buffer.
    fn access_needed(&self, header: &TaggedRepr) -> Access {
        match Control(header.rsvd_ulp).opcode() {
            Some(Opcode::ReadResponse) => Access::NONE,
            _ => Access::REMOTE_WRITE,
        }
    }

    /// Checks version, opcode and queue (RFC 5040 §7.2 (2), (3)), and that a Read Response lies within the bytes of an
    /// outstanding Read. Runs before placement.
    fn admit(&self, header: &HeaderRepr, len: u32) -> Result<(), Reject> {
        let (control, queue) = match header {
            HeaderRepr::Tagged(tagged) => (Control(tagged.rsvd_ulp), None),
            HeaderRepr::Untagged(untagged) => {
                (split_rsvd_ulp(untagged.rsvd_ulp).0, Some(untagged.qn))
            }
        };
        // RFC 5040 §4.1: RV is 01b for the RFC, 00b for the RDMA Consortium. RV must equal DV.
        let (seen, expected) = (control.version_bits(), header.version().bits());
        if seen != expected {
            let mismatch = Mismatch::exact(Field::RdmapVersion, seen.into(), expected.into());
            return Err(Reject::Ulp(ErrorCode::InvalidVersion, mismatch));
        }
        let known = |opcode: &Opcode| opcode.queue() == queue && self.supports(*opcode, header);
        let Some(opcode) = control.opcode().filter(known) else {
            return Err(unexpected_opcode(control.opcode_bits()));
        };
        match header {
            HeaderRepr::Tagged(tagged) if opcode == Opcode::ReadResponse => {
                self.admit_response(tagged, len)
            }
            _ => Ok(()),
        }
    }

    /// Advances the tagged message by its next segment in order, and for a Read Response also the oldest Read.
    fn advance(&mut self, header: &TaggedRepr, len: u32) -> Result<(), Reject> {
        let opcode = Control(header.rsvd_ulp).opcode_bits();
        // RFC 5040 §4.1: a message has one opcode. A tagged message within another is an error.
        if let Some(expected) = self.tagged
            && expected != opcode
        {
            let mismatch = Mismatch::exact(Field::Opcode, opcode.into(), expected.into());
            return Err(Reject::Ulp(ErrorCode::UnexpectedOpcode, mismatch));
        }
        self.tagged = (!header.last).then_some(opcode);
        if opcode != Opcode::ReadResponse.bits() {
            return Ok(());
        }
        let oldest = self.reads.front_mut().ok_or(unexpected_opcode(opcode))?;
        if len > 0 {
            let at =
                oldest.offset_of(header, len).ok_or_else(|| oldest.unmatched_error(header, len))?;
            match oldest.received.insert(at, at + len) {
                Ok(()) => {}
                Err(InsertError::TooMany) => return Err(Reject::NoRangeRoom),
                Err(InsertError::Overlap) => {
                    let awaited = oldest.to.0.wrapping_add(oldest.received.prefix().into());
                    let mismatch = Mismatch::exact(Field::TaggedOffset, header.to.0, awaited);
                    return Err(Reject::Ddp(DdpCode::BaseOrBounds, mismatch));
                }
            }
        }
        if !header.last {
            return Ok(());
        }
        // RFC 5040 §5.2.2: the response has the requested length.
        if !oldest.received.is_exactly(oldest.len) {
            let (seen, asked) = (oldest.received.prefix().into(), oldest.len.into());
            let mismatch = Mismatch::exact(Field::MessageLength, seen, asked);
            return Err(Reject::Ulp(ErrorCode::StreamCatastrophic, mismatch));
        }
        self.completed_reads.extend(self.reads.pop_front());
        Ok(())
    }

    fn grow_ranges(&mut self) {
        if let Some(oldest) = self.reads.front_mut() {
            oldest.received.grow();
        }
    }

    fn on_delivered(
        &mut self,
        header: &UntaggedRepr,
        control: u8,
        len: u32,
        receive: Option<FilledReceive>,
    ) {
        let is_ready = self.is_ready_message(header, len);
        if header.qn == SEND_QUEUE {
            self.awaits_ready = false;
        }
        let header = *header;
        self.delivered.push_back(DeliveredSegment { header, control, len, receive, is_ready });
    }

    /// Returns whether the message uses up a receive, and where its payload is placed. Immediate Data uses up a
    /// receive, but is not placed into it (RFC 7306 §6.3). While the stream awaits the ready-to-receive message, the
    /// receives of all messages after the first are undecided: the first message may be the ready-to-receive message,
    /// which uses up no receive.
    fn receive_use(&self, header: &UntaggedRepr, len: u32) -> ReceiveUse {
        if self.is_ready_message(header, len) {
            return ReceiveUse::Ready;
        }
        if self.awaits_ready && header.msn != Msn::FIRST {
            return ReceiveUse::Undecided;
        }
        match split_rsvd_ulp(header.rsvd_ulp).0.opcode() {
            Some(Opcode::Immediate | Opcode::ImmediateSolicited) => ReceiveUse::Inline,
            _ => ReceiveUse::Placed,
        }
    }

    fn on_error_reached(&mut self, error: UlpError<ErrorCode>) {
        let UlpError { code, mismatch, header, segment_len } = error;
        let error = RdmapError { code, mismatch, header, segment_len, read_request: None };
        self.reached_error = Some(Box::new(Error::Rdmap(error)));
    }
}

impl OutstandingRead {
    /// Returns the payload's offset in the sink buffer of the Read. `None` if the STag differs or not all bytes are
    /// within the buffer.
    fn offset_of(&self, header: &TaggedRepr, len: u32) -> Option<u32> {
        let at = header.to.0.checked_sub(self.to.0)?;
        let end = at.checked_add(len.into())?;
        (header.stag == self.stag && end <= self.len.into()).then_some(at as u32)
    }

    /// Returns the error for a response segment outside the requested bytes. The sink buffer of the Read is the only
    /// memory that the response may write. The error is therefore DDP's error for an invalid STag or for bounds.
    fn unmatched_error(&self, header: &TaggedRepr, len: u32) -> Reject {
        if header.stag != self.stag {
            let (seen, expected) = (header.stag.0.into(), self.stag.0.into());
            let mismatch = Mismatch::exact(Field::Stag, seen, expected);
            return Reject::Ddp(DdpCode::InvalidStag, mismatch);
        }
        let (low, high) = (self.to.0, self.to.0.saturating_add(self.len.into()));
        let mismatch = if header.to.0 < low || header.to.0 > high {
            Mismatch::new(Field::TaggedOffset, header.to.0, low, high)
        } else {
            Mismatch::new(Field::TaggedEnd, header.to.0.wrapping_add(len.into()), low, high)
        };
        Reject::Ddp(DdpCode::BaseOrBounds, mismatch)
    }
}

fn unexpected_opcode(opcode: u8) -> Reject {
    Reject::Ulp(ErrorCode::UnexpectedOpcode, Mismatch::unexpected(Field::Opcode, opcode.into()))
}

//! The interface between the data sink and its ULP: the ULP's checks of a segment in addition to DDP's own, and
//! notifications of the segments that passed. [`BareDdp`] checks nothing; RDMAP's checks are in `rdmap::checks`.
//!
//! ```text
//!   segment arrives:                             DDP's checks -> access_needed, admit
//!                                                -> [in order: advance] -> placement
//!   all segments before it have arrived:         advance -> [untagged message complete: on_delivered]
//!   all segments before an error have arrived:   on_error_reached
//! ```

use core::convert::Infallible;
use core::fmt::Debug;

use arrayvec::ArrayVec;
use wire::ddp::{HeaderRepr, TaggedRepr, UntaggedRepr};

use crate::error::{ErrorCode, Mismatch};
use crate::llp::MAX_DDP_HEADER;
use crate::stag::Access;

/// Reasons to reject a segment. `C` is the type of the ULP's error codes.
#[derive(Clone, Copy, Debug)]
pub enum Reject<C> {
    /// An error of DDP (RFC 5041 §7.2).
    Ddp(ErrorCode, Mismatch),
    /// An error of the ULP.
    Ulp(C, Mismatch),
    /// A bound of this end is reached: the segment is refused, and the peer retransmits it.
    Refused,
    /// The bound on the number of separate received ranges of the message is reached; [`UlpChecks::grow_ranges`] raises
    /// it.
    NoRangeRoom,
}

/// An error that the ULP found in a segment.
#[derive(Clone, Debug)]
pub struct UlpError<C> {
    /// Error code of the ULP.
    pub code: C,
    /// The received value, and the range of valid values.
    pub mismatch: Mismatch,
    /// The segment's DDP header as received.
    pub header: ArrayVec<u8, MAX_DDP_HEADER>,
    /// Length of the segment including the header, bytes.
    pub segment_len: u32,
}

/// Use of a posted receive by an untagged message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveUse {
    /// The payload is placed into the receive's memory.
    Placed,
    /// The payload is delivered with the message and does not touch the receive's memory.
    Inline,
    /// The message has no payload and uses up no receive.
    Ready,
    /// The message's receive is not known until earlier messages have arrived.
    Undecided,
}

/// The posted receive that a delivered message has used up.
#[derive(Clone, Copy, Debug)]
pub struct FilledReceive {
    /// Cookie of the receive.
    pub cookie: u64,
    /// Payload length of the message, bytes.
    pub len: u32,
    /// True if some segments of the message were [`Placed`](ReceiveUse::Placed), others
    /// [`Inline`](ReceiveUse::Inline).
    pub mixed: bool,
}

/// A ULP's part of the data sink. Calls are dispatched statically, so they cost nothing for bare DDP.
pub trait UlpChecks: Debug {
    /// The ULP's error codes.
    type Code: Copy + Debug;

    /// Returns the right that a tagged segment needs on its buffer.
    fn access_needed(&self, header: &TaggedRepr) -> Access;

    /// Checks a segment that DDP has accepted. Called at arrival, before placement, whether the segment is in order or
    /// beyond a gap.
    ///
    /// # Errors
    /// The ULP rejects the segment; it is not placed.
    fn admit(&self, header: &HeaderRepr, len: u32) -> Result<(), Reject<Self::Code>>;

    /// Checks a tagged segment that [`admit`](Self::admit) has accepted, once all earlier segments have arrived. For a
    /// segment that arrives in order, this is before placement.
    ///
    /// # Errors
    /// The ULP does not expect this segment now.
    fn advance(&mut self, header: &TaggedRepr, len: u32) -> Result<(), Reject<Self::Code>>;

    /// Raises the bound on separate received ranges of the tagged message in progress by `STEP_RANGES`. The caller has
    /// reserved `STEP_BYTES` bytes of the worker's pool for these ranges (see `receive::ranges`).
    fn grow_ranges(&mut self);

    /// Notifies the ULP that an untagged message is delivered. `header`: header of its last segment; `control`: first
    /// byte of that header as received; `len`: payload bytes of that segment; `receive`: the posted receive that the
    /// message used up.
    fn on_delivered(
        &mut self,
        header: &UntaggedRepr,
        control: u8,
        len: u32,
        receive: Option<FilledReceive>,
    );

    /// Returns whether the untagged message of this segment uses up a posted receive, and where the payload is placed.
    /// `len`: payload bytes of the segment. Called at arrival, and again before the message is delivered.
    fn receive_use(&self, header: &UntaggedRepr, len: u32) -> ReceiveUse;

    /// Notifies the ULP of an error that the ULP itself found, once all segments before this error have arrived.
    /// Called at most once.
    fn on_error_reached(&mut self, error: UlpError<Self::Code>);
}

/// The ULP of bare DDP, which checks no segments.
#[derive(Clone, Copy, Debug)]
pub struct BareDdp;

impl UlpChecks for BareDdp {
    type Code = Infallible;

    #[inline]
    fn access_needed(&self, _header: &TaggedRepr) -> Access {
        Access::REMOTE_WRITE
    }

    #[inline]
    fn admit(&self, _header: &HeaderRepr, _len: u32) -> Result<(), Reject<Infallible>> {
        Ok(())
    }

    #[inline]
    fn advance(&mut self, _header: &TaggedRepr, _len: u32) -> Result<(), Reject<Infallible>> {
        Ok(())
    }

    #[inline]
    fn grow_ranges(&mut self) {}

    #[inline]
    fn on_delivered(
        &mut self,
        _header: &UntaggedRepr,
        _control: u8,
        _len: u32,
        _receive: Option<FilledReceive>,
    ) {
    }

    #[inline]
    fn receive_use(&self, _header: &UntaggedRepr, _len: u32) -> ReceiveUse {
        ReceiveUse::Placed
    }

    #[inline]
    fn on_error_reached(&mut self, error: UlpError<Infallible>) {
        match error.code {}
    }
}

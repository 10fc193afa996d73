//! The seam between the data sink and its ULP: what a ULP checks of a segment beside DDP's own checks, and
//! what it learns of the segments that passed. [`BareDdp`] checks nothing; RDMAP's checks are in
//! `rdmap::checks`.
//!
//! ```text
//!   at arrival:           DDP's checks -> access_needed, admit  -> [in order: advance] -> placement
//!   order reaches it:     advance -> [untagged message complete: delivered]
//!   order reaches error:  error_reached
//! ```

use core::convert::Infallible;
use core::fmt::Debug;

use arrayvec::ArrayVec;
use wire::ddp::{HeaderRepr, TaggedRepr, UntaggedRepr};

use crate::error::{ErrorCode, Mismatch};
use crate::llp::MAX_DDP_HEADER;
use crate::stag::Access;

/// Why a segment is not taken. `C` numbers the ULP's errors.
#[derive(Clone, Copy, Debug)]
pub enum Reject<C> {
    /// An error of DDP (RFC 5041 §7.2).
    Ddp(ErrorCode, Mismatch),
    /// An error of the ULP.
    Ulp(C, Mismatch),
    /// A bound of this end is reached.
    Refused,
    /// The message has come in more ranges than there is room for; with [`UlpChecks::more_room`] there is.
    NoRoom,
}

/// An error that the ULP found in a segment.
#[derive(Clone, Debug)]
pub struct UlpError<C> {
    /// The ULP's number.
    pub code: C,
    /// The value that was wrong.
    pub mismatch: Mismatch,
    /// The segment's header.
    pub header: ArrayVec<u8, MAX_DDP_HEADER>,
    /// Bytes of the segment, header included.
    pub segment_len: u32,
}

/// A ULP's part in the data sink. Statically dispatched: bare DDP pays nothing for it.
pub trait UlpChecks: Debug {
    /// Numbers the ULP's errors.
    type Code: Copy + Debug;

    /// The right that a tagged segment needs on its buffer.
    fn access_needed(&self, header: &TaggedRepr) -> Access;

    /// A segment that DDP finds right has arrived, in order or beyond a gap. Before placement.
    ///
    /// # Errors
    /// The ULP does not take it; it is not placed.
    fn admit(&self, header: &HeaderRepr, len: u32) -> Result<(), Reject<Self::Code>>;

    /// The order has reached a tagged segment that [`admit`](Self::admit) let in. One that arrives in order
    /// is not placed yet.
    ///
    /// # Errors
    /// It is not the one that had to come.
    fn advance(&mut self, header: &TaggedRepr, len: u32) -> Result<(), Reject<Self::Code>>;

    /// Room for one more step of the ranges in which the tagged message comes.
    fn more_room(&mut self);

    /// The untagged message of which this is the last segment is delivered. `control`: the first byte of its header
    /// as it came; `len`: its payload bytes.
    fn delivered(&mut self, header: &UntaggedRepr, control: u8, len: u32);

    /// The order has reached an error of the ULP. Called at most once.
    fn error_reached(&mut self, error: UlpError<Self::Code>);
}

/// No ULP that checks segments.
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
    fn more_room(&mut self) {}

    #[inline]
    fn delivered(&mut self, _header: &UntaggedRepr, _control: u8, _len: u32) {}

    #[inline]
    fn error_reached(&mut self, error: UlpError<Infallible>) {
        match error.code {}
    }
}

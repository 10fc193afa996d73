//! Writers of send and receive queues, for callers that convert their own requests to descriptors one at a time,
//! without an intermediate list.

use verbs_layout::work::{ReceiveWork, SendWork};
use verbs_layout::{MAX_UNITS, UNIT_WORDS, Unit};

use crate::error::Error;
use crate::mapping::RingProducer;

/// Writer of a send queue: see [`QueuePair::post_sends_with`](crate::QueuePair::post_sends_with).
#[derive(Debug)]
pub struct SendWriter<'a> {
    pub(crate) ring: &'a mut RingProducer,
}

/// Writer of a receive queue or SRQ: see [`QueuePair::post_receives_with`](crate::QueuePair::post_receives_with).
#[derive(Debug)]
pub struct ReceiveWriter<'a> {
    pub(crate) ring: &'a mut RingProducer,
    /// Number of written receives.
    pub(crate) written: u64,
}

/// Encoded operations that are posted together or not at all. [`clear`](Self::clear) keeps the allocated memory.
#[derive(Clone, Default, Debug)]
pub struct SendBatch {
    pub(crate) units: Vec<Unit>,
}

impl SendWriter<'_> {
    /// Writes one operation.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Queue`].
    #[inline]
    pub fn push(&mut self, work: &SendWork) -> Result<(), Error> {
        Ok(work.encode_with(|units| self.ring.push(units))?)
    }

    /// Writes two operations, both or none.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Queue`].
    pub fn push_both(&mut self, first: &SendWork, second: &SendWork) -> Result<(), Error> {
        let mut units = [[0; UNIT_WORDS]; 2 * MAX_UNITS];
        let (first, second) = (first.encode(), second.encode());
        let count = first.len() + second.len();
        units[..first.len()].copy_from_slice(&first);
        units[first.len()..count].copy_from_slice(&second);
        Ok(self.ring.push(&units[..count])?)
    }

    /// Writes all operations of a batch or none.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Queue`].
    pub fn push_batch(&mut self, batch: &SendBatch) -> Result<(), Error> {
        Ok(self.ring.push(&batch.units)?)
    }
}

impl ReceiveWriter<'_> {
    /// Writes one receive.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Queue`].
    #[inline]
    pub fn push(&mut self, work: &ReceiveWork) -> Result<(), Error> {
        work.encode_with(|units| self.ring.push(units))?;
        self.written += 1;
        Ok(())
    }
}

impl SendBatch {
    /// Adds an operation.
    pub fn push(&mut self, work: &SendWork) {
        work.encode_with(|units| self.units.extend_from_slice(units));
    }

    /// Removes all operations.
    pub fn clear(&mut self) {
        self.units.clear();
    }

    /// Returns true if there are no operations.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }
}

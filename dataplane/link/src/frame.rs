//! The trait of frames that a link carries. Implementations: plain bytes in simulations, packet buffers in the
//! appliance.

/// A frame that a [`FaultyLink`](crate::FaultyLink) carries.
pub trait Frame: Sized {
    /// Returns the length of the frame in bytes. The length determines the transmission time on a slow link.
    fn len(&self) -> usize;

    /// Returns true if the frame has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes in which a bit may be flipped. A frame without such bytes is never corrupted.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns a second frame with the same bytes. `None` if no packet buffer is free, or if the frame type does not
    /// support copies.
    fn duplicate(&self) -> Option<Self>;

    /// Marks the frame Congestion Experienced (RFC 3168 §5). Returns false if the frame's sender does not support ECN,
    /// or if the frame type does not support marks.
    fn mark(&mut self) -> bool {
        false
    }
}

impl Frame for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }
}

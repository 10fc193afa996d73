//! What a link needs to know of a frame. Real implementations: plain bytes in simulations, packet
//! buffers in the appliance.

/// A frame that can travel over a [`FaultyLink`](crate::FaultyLink).
pub trait Frame: Sized {
    /// Bytes of the frame; what a slow link counts.
    fn len(&self) -> usize;

    /// True when the frame has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in which a bit may be flipped. Empty: the frame is never damaged.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// A second frame with the same bytes, or `None` where that is impossible now (no packet buffer)
    /// or never.
    fn duplicate(&self) -> Option<Self>;

    /// Marks the frame Congestion Experienced (RFC 3168 §5); false where the frame's sender does not
    /// understand that, or where marks are not read.
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

//! Our SYN, or SYN and ACK, until it is acknowledged.

/// State of our SYN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syn {
    /// True if it is due.
    pub(super) due: bool,
    /// True if it was sent more than once.
    pub(super) lost: bool,
    /// True if the time of its transmission is unknown.
    pub(super) unmeasured: bool,
    /// Window of the last transmission, unscaled.
    pub(super) window: u16,
    /// Our MSS, bytes.
    pub(super) mss: u16,
}

impl Syn {
    /// Creates the state of a SYN that is due, with this MSS.
    pub(super) fn new(mss: u16) -> Self {
        Syn { due: true, lost: false, unmeasured: false, window: 0, mss }
    }
}

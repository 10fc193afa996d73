//! Our SYN, or SYN and ACK, until it is acknowledged.

/// What there is to know of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syn {
    /// It is to be sent.
    pub(super) due: bool,
    /// It was sent more than once.
    pub(super) lost: bool,
    /// It is not known when it was sent.
    pub(super) unmeasured: bool,
    /// The window in it, when it was sent last.
    pub(super) window: u16,
    /// Our MSS.
    pub(super) mss: u16,
}

impl Syn {
    /// It is to be sent, with this MSS.
    pub(super) fn new(mss: u16) -> Self {
        Syn { due: true, lost: false, unmeasured: false, window: 0, mss }
    }
}

//! Our SYN or SYN-ACK, until it is acknowledged.

/// State of our SYN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syn {
    /// True if the SYN is to be sent.
    pub(super) due: bool,
    /// True if the SYN was sent more than once.
    pub(super) lost: bool,
    /// True if the time of transmission is unknown: the SYN-ACK was sent by a SYN cookie.
    pub(super) unmeasured: bool,
    /// Window field of the last transmission, unscaled.
    pub(super) window: u16,
    /// MSS option of our SYN, bytes.
    pub(super) mss: u16,
}

impl Syn {
    /// Creates the state of a SYN that is due, with this MSS.
    pub(super) fn new(mss: u16) -> Self {
        Syn { due: true, lost: false, unmeasured: false, window: 0, mss }
    }
}

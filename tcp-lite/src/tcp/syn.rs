//! State of our SYN or SYN-ACK until it is acknowledged.

/// State of our SYN or SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syn {
    /// True if the SYN must be sent at the next transmission.
    pub(super) due: bool,
    /// True if the SYN was sent more than once.
    pub(super) lost: bool,
    /// True if the time of transmission is unknown, because a SYN cookie was sent as SYN-ACK.
    pub(super) unmeasured: bool,
    /// Window field of the last transmitted SYN; never scaled.
    pub(super) window: u16,
    /// MSS option of our SYN, bytes.
    pub(super) mss: u16,
}

impl Syn {
    /// Creates the state of a SYN that is due, with the MSS option `mss`.
    pub(super) fn new(mss: u16) -> Self {
        Syn { due: true, lost: false, unmeasured: false, window: 0, mss }
    }
}

//! The window that the peer offers, for the sender (RFC 9293 §3.3.1, §3.10.7.4).

use transport::seq::ExtSeq;

/// SND.WND and the variables of its update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerWindow {
    /// SND.WL1: SEG.SEQ of the last window update.
    wl1: ExtSeq,
    /// SND.WL2: SEG.ACK of the last window update.
    wl2: ExtSeq,
    /// SND.WND, bytes beyond SND.UNA.
    wnd: u32,
    /// MAX.SND.WND: largest window that the peer has offered, bytes (RFC 5961 §5).
    max_wnd: u32,
}

impl PeerWindow {
    /// Creates a closed window. `una` is the initial SND.UNA.
    pub(super) fn new(una: ExtSeq) -> Self {
        PeerWindow { wl1: ExtSeq::default(), wl2: una, wnd: 0, max_wnd: 0 }
    }

    /// Returns SND.WND, bytes.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.wnd
    }

    /// Returns true if SND.WND is zero.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.wnd == 0
    }

    /// Returns the largest window that the peer has offered, bytes (RFC 5961 §5).
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.max_wnd
    }

    /// Returns true if the segment is not older than the last window update, so that it may update the window (RFC 9293
    /// §3.10.7.4). A retransmission has an old sequence number, but its window is new if it acknowledges more. If the
    /// new window were ignored, the old SND.WND would count from the new SND.UNA, beyond the peer's offer.
    #[inline]
    pub(super) fn accepts_update(&self, seq: ExtSeq, ack: ExtSeq) -> bool {
        self.wl2 < ack || self.wl1 < seq || (self.wl1 == seq && self.wl2 <= ack)
    }

    /// Updates SND.WL1 and SND.WL2 from a segment with an unchanged window.
    #[inline]
    pub(super) fn update_wl(&mut self, seq: ExtSeq, ack: ExtSeq) {
        self.wl1 = self.wl1.max(seq);
        self.wl2 = self.wl2.max(ack);
    }

    /// Sets SND.WND to `window`, in bytes, and updates SND.WL1 and SND.WL2. SND.WL1 never decreases.
    #[inline]
    pub(super) fn set(&mut self, seq: ExtSeq, ack: ExtSeq, window: u64) {
        // RFC 7323 §2.3: the window is at most 65,535 << 14, which fits 32 bits.
        self.wnd = window as u32;
        self.max_wnd = self.max_wnd.max(self.wnd);
        self.wl1 = self.wl1.max(seq);
        self.wl2 = ack;
    }
}

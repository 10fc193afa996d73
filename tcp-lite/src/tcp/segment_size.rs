//! The effective MSS: maximum payload of a data segment (RFC 9293 §3.7.1).

use super::segment::TIMESTAMPS_LEN;

/// The effective MSS and its inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentSize {
    /// Effective MSS: maximum payload bytes of a segment.
    emss: u32,
    /// MSS of the peer, bytes, options not deducted.
    peer_mss: u16,
    /// MSS of the path, bytes, options not deducted.
    path_mss: u16,
    /// Bytes of options in each data segment.
    options_len: u8,
    /// True if the upper layer must be notified of the effective MSS.
    changed: bool,
}

impl SegmentSize {
    /// Creates the size from the interface's MSS, before the peer's MSS is known.
    pub(super) fn new(mss: u16) -> Self {
        let emss = u32::from(mss);
        SegmentSize { emss, peer_mss: mss, path_mss: mss, options_len: 0, changed: false }
    }

    /// Returns the effective MSS: maximum payload bytes of a segment.
    #[inline]
    pub(super) fn emss(&self) -> u32 {
        self.emss
    }

    /// Applies the peer's MSS and the negotiated options (RFC 9293 §3.7.1).
    pub(super) fn negotiate(&mut self, peer_mss: u16, timestamps: bool) {
        self.peer_mss = peer_mss;
        self.options_len = if timestamps { TIMESTAMPS_LEN as u8 } else { 0 };
        self.emss = self.compute_emss();
    }

    /// Sets the path's MSS (RFC 1191). Returns true if the effective MSS changed.
    pub(super) fn set_path_mss(&mut self, mss: u16) -> bool {
        self.path_mss = mss;
        let emss = self.compute_emss();
        let before = core::mem::replace(&mut self.emss, emss);
        self.changed |= before != self.emss;
        before != self.emss
    }

    /// Schedules a notification of the upper layer, even if the effective MSS is unchanged.
    pub(super) fn announce(&mut self) {
        self.changed = true;
    }

    /// Returns true if the upper layer must be notified, and clears this state.
    #[inline]
    pub(super) fn take_change(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }

    /// Returns the maximum payload bytes of a segment for the MSS `mss`, at least 1.
    pub(super) fn payload_for_mss(&self, mss: u16) -> usize {
        usize::from(mss).saturating_sub(self.options_len.into()).max(1)
    }

    /// Returns the MSS that allows a payload of `payload` bytes.
    pub(super) fn mss_for_payload(&self, payload: u16) -> u16 {
        payload.saturating_add(self.options_len.into())
    }

    /// Computes the effective MSS. Options of data segments are deducted (RFC 9293 §3.7.1); data segments never carry
    /// SACK blocks.
    fn compute_emss(&self) -> u32 {
        self.payload_for_mss(self.peer_mss.min(self.path_mss)) as u32
    }
}

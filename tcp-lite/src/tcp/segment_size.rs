//! How long segments are: the effective MSS (RFC 9293 §3.7.1).

use super::segment::TIMESTAMPS_LEN;

/// The effective MSS, and what it is computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentSize {
    /// Effective MSS: bytes of payload in a segment.
    emss: u32,
    /// MSS of the peer and of the path, options not deducted.
    peer_mss: u16,
    path_mss: u16,
    options_len: u8,
    /// The effective MSS is to be reported to the upper layer.
    changed: bool,
}

impl SegmentSize {
    /// What a segment on this interface can carry, before the peer is known.
    pub(super) fn new(mss: u16) -> Self {
        let emss = u32::from(mss);
        SegmentSize { emss, peer_mss: mss, path_mss: mss, options_len: 0, changed: false }
    }

    /// Effective MSS: bytes of payload in a segment.
    #[inline]
    pub(super) fn emss(&self) -> u32 {
        self.emss
    }

    /// What the SYNs settled (RFC 9293 §3.7.1).
    pub(super) fn settle(&mut self, peer_mss: u16, timestamps: bool) {
        self.peer_mss = peer_mss;
        self.options_len = if timestamps { TIMESTAMPS_LEN as u8 } else { 0 };
        self.emss = self.computed();
    }

    /// The path takes segments of `mss` (RFC 1191). Returns whether the effective MSS changed.
    pub(super) fn set_path_mss(&mut self, mss: u16) -> bool {
        self.path_mss = mss;
        let emss = self.computed();
        let before = core::mem::replace(&mut self.emss, emss);
        self.changed |= before != self.emss;
        before != self.emss
    }

    /// The effective MSS is to be reported to the upper layer.
    pub(super) fn announce(&mut self) {
        self.changed = true;
    }

    /// Whether it has to, once.
    #[inline]
    pub(super) fn take_change(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }

    /// Payload bytes of a segment of this MSS.
    pub(super) fn payload_of(&self, mss: u16) -> usize {
        usize::from(mss).saturating_sub(self.options_len.into()).max(1)
    }

    /// The other way round.
    pub(super) fn mss_of(&self, payload: u16) -> u16 {
        payload.saturating_add(self.options_len.into())
    }

    /// Options of data segments are deducted; SACK blocks never ride on them (RFC 9293 §3.7.1).
    fn computed(&self) -> u32 {
        self.payload_of(self.peer_mss.min(self.path_mss)) as u32
    }
}

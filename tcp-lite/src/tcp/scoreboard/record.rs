//! The record of one segment in flight: 16 bytes.

use base::Instant;

/// A segment in flight. `sent_at` is the time of the last transmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) sent_at: Instant,
    /// First sequence number, as on the wire.
    pub(super) start: u32,
    /// Bytes of payload.
    pub(super) len: u16,
    /// Set of marks, [`FIN`] to [`PROBE`].
    pub(super) marks: u8,
    /// Number of transmissions, saturating at 255.
    pub(super) sends: u8,
}

const _: () = assert!(size_of::<Record>() == 16);

/// Mark: the segment carries the FIN after its payload.
pub(super) const FIN: u8 = 1;
/// Mark: the peer has SACKed the segment.
pub(super) const SACKED: u8 = 1 << 1;
/// Mark: the segment is considered lost.
pub(super) const LOST: u8 = 1 << 2;
/// Mark: the segment was retransmitted after it was considered lost, or as a window or tail loss probe.
pub(super) const RETRANSMITTED: u8 = 1 << 3;
/// Mark: first transmission of a path MTU probe, longer than the effective MSS (RFC 4821 §7).
pub(super) const PROBE: u8 = 1 << 4;

impl Record {
    pub(super) fn has_mark(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    pub(super) fn seq_len(&self) -> u32 {
        u32::from(self.len) + u32::from(self.has_mark(FIN))
    }

    /// Returns true if the segment was sent once and has no mark except perhaps FIN.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.marks & !FIN == 0 && self.sends == 1
    }

    /// Returns the estimated bytes of all copies of the segment in the network (RFC 6675 §4, SetPipe).
    pub(super) fn pipe_bytes(&self) -> u64 {
        if self.has_mark(SACKED) {
            return 0;
        }
        let copies = u64::from(!self.has_mark(LOST)) + u64::from(self.has_mark(RETRANSMITTED));
        copies * u64::from(self.seq_len())
    }

    pub(super) fn awaits_retransmission(&self) -> bool {
        self.marks & (SACKED | LOST | RETRANSMITTED) == LOST
    }

    /// Returns true if the segment was retransmitted, and neither SACKed nor marked lost since.
    pub(super) fn has_resend_in_flight(&self) -> bool {
        self.marks & (SACKED | RETRANSMITTED) == RETRANSMITTED
    }
}

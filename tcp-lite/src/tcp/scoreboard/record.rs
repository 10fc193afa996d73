//! The record of one segment in flight: 16 bytes.

use base::Instant;

/// One segment in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) sent_at: Instant,
    /// First sequence number.
    pub(super) start: u32,
    /// Bytes of payload.
    pub(super) len: u16,
    pub(super) marks: u8,
    /// Transmissions, saturating.
    pub(super) sends: u8,
}

const _: () = assert!(size_of::<Record>() == 16);

/// Carries the FIN after its payload.
pub(super) const FIN: u8 = 1;
/// The peer reported it as received.
pub(super) const SACKED: u8 = 1 << 1;
/// Considered lost.
pub(super) const LOST: u8 = 1 << 2;
/// Sent again since it was considered lost, or without being so.
pub(super) const AGAIN: u8 = 1 << 3;
/// Longer than the effective MSS, to see whether the path carries it (RFC 4821 §7); still the first
/// transmission.
pub(super) const PROBE: u8 = 1 << 4;

impl Record {
    pub(super) fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    pub(super) fn seq_len(&self) -> u32 {
        u32::from(self.len) + u32::from(self.is(FIN))
    }

    /// It was sent once, is not SACKed or lost, and is no probe.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.marks & !FIN == 0 && self.sends == 1
    }

    /// Bytes of it that are thought to be in the network (RFC 6675 §4, SetPipe).
    pub(super) fn in_pipe(&self) -> u64 {
        if self.is(SACKED) {
            return 0;
        }
        let copies = u64::from(!self.is(LOST)) + u64::from(self.is(AGAIN));
        copies * u64::from(self.seq_len())
    }

    pub(super) fn awaits_retransmission(&self) -> bool {
        self.marks & (SACKED | LOST | AGAIN) == LOST
    }

    /// It was sent again and that one may be in the network.
    pub(super) fn is_out_again(&self) -> bool {
        self.marks & (SACKED | AGAIN) == AGAIN
    }
}
